"""Points at which a test may kill this process: what must survive a crash is tried at every one of them.

Armed by ``MEMORY_BANK_FAULT=NAME`` or ``NAME:N`` (at the N-th passing); otherwise a point costs one
comparison. Not meant for anything but tests and ``benchmarks/faults.py``.
"""

from __future__ import annotations

import os
import signal

POINTS = (
    "write.begun",
    "write.executed",
    "write.committed",
    "facts.executed",
    "facts.stored",
    "insights.executed",
    "insights.stored",
    "jobs.leased",
    "jobs.observed",
    "jobs.finished",
    "step.done",
)
_name, _, _nth = os.environ.get("MEMORY_BANK_FAULT", "").partition(":")
_left = int(_nth) if _nth.isdigit() else 1


def fault_point(name: str) -> None:
    """Die here, by SIGKILL, if this point is armed."""
    if not _name:
        return
    global _left
    if name == _name:
        _left -= 1
        if _left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
