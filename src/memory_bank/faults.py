"""Points at which a test may kill this process, to check what survives a crash.

``MEMORY_BANK_FAULT=NAME`` arms a point; ``NAME:N`` kills at the N-th call, ``NAME:N:SIGINT`` with another
signal than SIGKILL. A point that is not armed costs one comparison. Only tests and ``benchmarks/faults.py``
use them.
"""

from __future__ import annotations

import os
import signal

POINTS = (  # of an agent's steps and of its background work
    "write.begun", "write.executed", "write.committed", "facts.executed", "facts.stored", "insights.executed",
    "insights.stored", "observer.taken", "observer.asked", "observer.stored", "step.done",
    "seal.executed",
)  # fmt: skip
VERB_POINTS = tuple(f"{verb}.executed" for verb in ("purge", "import", "re_embed", "backup", "restore"))
_name, _nth, _how = (os.environ.get("MEMORY_BANK_FAULT", "") + "::").split(":")[:3]
if _name and _name not in POINTS + VERB_POINTS:
    raise ValueError(f"MEMORY_BANK_FAULT={_name}: there is no such point, see memory_bank.faults.")
_left = int(_nth) if _nth.isdigit() else 1
_signal = getattr(signal, _how or "SIGKILL")


def fault_point(name: str) -> None:
    """Kill this process if the point is armed."""
    if not _name:
        return
    global _left
    if name == _name:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), _signal)
