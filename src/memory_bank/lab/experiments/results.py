"""The results file: JSON lines, a header that names the experiment, then one line for each unit done."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from memory_bank.errors import ConfigError

try:
    import fcntl
except ImportError:  # not on Windows: two runs at once are not told from each other there
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
_BEGINNING = b'{"format":'


class Results:
    """A results file opened to go on with: ``done`` has what it holds, by unit id.

    Every line is on the disk when ``add`` returns. A line that a crash cut off is taken away; the unit is
    done again. Raises ConfigError: another experiment's file, no results file, one that another run writes.
    """

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a+b")  # noqa: SIM115
        except OSError as e:
            raise ConfigError(
                f"{path} cannot be written ({e.strerror}): give another folder with --out."
            ) from e
        try:
            self._lock()
            kept, self.done, self.runs = read_results(path, header["experiment"])
            self._file.truncate(kept)
            self._write({"format": FORMAT, **header} if kept == 0 else {"run": header["about"]})
            self.runs.append(header["about"])
        except BaseException:
            self._file.close()
            raise

    def add(self, line: dict[str, Any]) -> None:
        """Write a unit's result, for good."""
        self._write(line)
        self.done[line["unit"]] = line

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _lock(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"{self.path} is being written by another run: wait for it, or give another --out."
            ) from None

    def __enter__(self) -> Results:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, t: TracebackType | None
    ) -> None:
        self._file.close()


def read_results(path: Path, experiment: str) -> tuple[int, dict[str, dict[str, Any]], list[Any]]:
    """What a results file holds: bytes in whole lines, results by unit id, its runs.

    Raises ConfigError when it is another experiment's, or no results file.
    """
    done: dict[str, dict[str, Any]] = {}
    runs: list[Any] = []
    kept = 0
    with open(path, "rb") as file:
        for number, raw in enumerate(file, 1):
            if not raw.endswith(b"\n"):
                if number == 1 and not (raw.startswith(_BEGINNING) or _BEGINNING.startswith(raw)):
                    _check_header(path, None, experiment)
                break  # cut off by a crash
            try:
                line = json.loads(raw)
            except ValueError:
                line = None
            if number == 1:
                _check_header(path, line, experiment)
                runs.append(line["about"])
            elif isinstance(line, dict) and "run" in line:
                runs.append(line["run"])
            elif isinstance(line, dict) and isinstance(line.get("unit"), str):
                done[line["unit"]] = line
            else:
                raise ConfigError(
                    f"{path}, line {number}: it is no result: remove it, or give another --out."
                )
            kept += len(raw)
    return kept, done, runs


def _check_header(path: Path, line: Any, experiment: str) -> None:
    if not isinstance(line, dict) or "experiment" not in line or "about" not in line:
        raise ConfigError(f"{path} is no results file of an experiment: give another folder with --out.")
    if line.get("format") != FORMAT:
        raise ConfigError(
            f"{path} was written by another version of memory_bank: give another folder with --out."
        )
    if line["experiment"] != experiment:
        raise ConfigError(
            f"{path} holds the results of another experiment (or of this one before its settings or cases "
            "changed): it is left as it is, give another folder with --out."
        )
