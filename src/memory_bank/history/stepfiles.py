"""Files of steps as JSON lines, replaced in one move; a damaged file gives the steps before the damage."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from memory_bank.errors import HistoryError, RecordError, StepFileError
from memory_bank.history.steps import Json, Step
from memory_bank.transcript.jsontext import dump_value

_HEAD = "memory_bank_history"
_VERSION = 1


def save_steps(path: str | Path, steps: Sequence[Step], head: Json | None = None) -> None:
    """Write a head line with the number of steps, then one JSON line a step.

    The file is replaced in one move, so a crash leaves the old one. Raises StepFileError with the reason when
    it cannot be written.
    """
    path = Path(path)
    first = {_HEAD: _VERSION, "steps": len(steps), **(head or {})}
    try:
        lines = [dump_value(v, "a step") for v in (first, *(s.dict() for s in steps))]
    except (RecordError, RecursionError) as e:
        raise StepFileError(f"{path} was not written, as a step is not JSON ({e}): give JSON values.") from e
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with open(handle, "wb") as file:
                file.writelines(line.encode("utf-8", "surrogatepass") + b"\n" for line in lines)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as e:
        raise StepFileError(f"{path} cannot be written ({e.strerror}): give another file.") from e


def load_steps(path: str | Path) -> tuple[list[Step], Json]:
    """The steps of a file and its head (``{}`` for a file without one).

    Raises:
        StepFileError: the file cannot be read, a line is cut or is not a step, the steps are out of order, or
            their number is not the one in the head. Its ``steps`` are those before the damage.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as e:
        raise StepFileError(f"{path} cannot be read ({e.strerror}): give a file that save() wrote.") from e
    steps: list[Step] = []
    head: Json = {}
    lines = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line.decode("utf-8", "surrogatepass"))
        except (ValueError, RecursionError):
            what = "is cut in the middle" if number == len(lines) else "is not JSON"
            raise _damage(path, number, what, steps) from None
        if not steps and not head and isinstance(value, dict) and _HEAD in value:
            if value[_HEAD] != _VERSION:
                raise _damage(path, number, "was written by a newer version of memory_bank", steps)
            head = value
            continue
        try:
            step = Step.from_dict(value)
        except HistoryError as e:
            raise _damage(path, number, f"is not a step ({str(e).rstrip('.')})", steps) from e
        if steps and step.step_number < steps[-1].step_number:
            what = f"holds step {step.step_number} after step {steps[-1].step_number}"
            raise _damage(path, number, what, steps)
        steps.append(step)
    if head and head.get("steps") != len(steps):
        what = f"is the last, with {len(steps)} steps where the first line says {head.get('steps')}"
        raise _damage(path, max(1, len(data.splitlines())), what, steps)
    return steps, head


def _damage(path: Path, line: int, what: str, steps: list[Step]) -> StepFileError:
    advice = f"repair it, or load with recover=True the {len(steps)} steps before it."
    return StepFileError(f"{path}: line {line} {what}: {advice}", steps)
