"""Runs an experiment and keeps its results: every result is on the disk before the next is awaited.

The results file has JSON lines: a header that names the experiment, then one line for each unit done.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from memory_bank.errors import ConfigError
from memory_bank.lab.experiments.config import Experiment
from memory_bank.lab.experiments.matrix import ExperimentPlan, Unit
from memory_bank.lab.experiments.units import live_unit, replay_unit
from memory_bank.lab.processes import ProgressReport, run_tasks

try:
    import fcntl
except ImportError:  # Windows: two runs on one file are not detected there
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
_BEGINNING = b'{"format":'


def run_experiment(
    plan: ExperimentPlan, results: Results, *, jobs: int | None = None, progress: ProgressReport | None = None
) -> None:
    """Do every unit that the results do not hold yet.

    Raises what a unit raises (a model that cannot be reached), or KeyboardInterrupt. Everything done until
    then is in the file, and another call continues from there.
    """
    waiting = [u for u in plan.units if u.id not in results.done]
    total = len(plan.units)
    if progress is not None:
        progress(total - len(waiting), total)
    with closing(run_tasks(waiting, _UnitWork(plan), jobs or plan.experiment.jobs)) as lines:
        for _, line in lines:
            results.add(line)
            if progress is not None:
                progress(len(results.done), total)


class _UnitWork:
    """Does a unit, in any process."""

    def __init__(self, plan: ExperimentPlan) -> None:
        self._counter, self._cost = plan.experiment.counter, plan.experiment.cost
        self._suites = {s.name: (s.settings, s.constants) for s in plan.suites}

    def __call__(self, unit: Unit) -> dict[str, Any]:
        """The results line of a unit. Raises ModelError when an endpoint fails."""
        settings, constants = self._suites[unit.suite]
        if unit.kind == "replay":
            result = replay_unit(unit, self._counter, self._cost, constants)
        else:
            result = live_unit(unit, settings, self._counter, self._cost)
        return {"unit": unit.id, **unit.place, **result}


class Results:
    """A results file opened to be continued: ``done`` has the results it holds, by unit id.

    A line is on the disk when ``add`` returns. A last line that a crash cut off is removed, and its unit done
    again. Raises ConfigError for the file of another experiment, a file of something else, and one that
    another run is writing.
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
            kept, self.done, self.runs = _read_results(path, header["experiment"])
            self._file.truncate(kept)
            self._write({"format": FORMAT, **header} if kept == 0 else {"run": header["about"]})
            self.runs.append(header["about"])
        except BaseException:
            self._file.close()
            raise

    def add(self, line: dict[str, Any]) -> None:
        """Write a unit's result to the disk."""
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

    def __exit__(self, *exc: object) -> None:
        self._file.close()


def _read_results(path: Path, experiment: str) -> tuple[int, dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """The bytes of a results file in complete lines, its results by unit id, and its runs.

    Raises ConfigError when it belongs to another experiment, or is not a results file.
    """
    done: dict[str, dict[str, Any]] = {}
    runs: list[dict[str, Any]] = []
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
                    f"{path}, line {number}: it is not a result: remove it, or give another --out."
                )
            kept += len(raw)
    return kept, done, runs


def _check_header(path: Path, line: object, experiment: str) -> None:
    if not isinstance(line, dict) or "experiment" not in line or "about" not in line:
        raise ConfigError(f"{path} is no results file of an experiment: give another folder with --out.")
    if line.get("format") != FORMAT:
        raise ConfigError(
            f"{path} was written by another version of memory_bank: give another folder with --out."
        )
    if line["experiment"] != experiment:
        raise ConfigError(
            f"{path} holds the results of another experiment (or of this one before its settings or cases "
            "changed): it is not changed, give another folder with --out."
        )


def about_run(experiment: Experiment, version: str) -> dict[str, Any]:
    """Where and when a run was made: version, commit, machine, time and seeds."""
    return {
        "version": version,
        "commit": _commit(),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seeds": list(experiment.seeds),
    }


def _commit() -> str:
    """The commit of the checkout that this code runs from, with ``+`` when it has changes, or ``""``."""
    here = Path(__file__).resolve()
    output = ""
    for arguments in (
        ["ls-files", "--error-unmatch", here.name],  # fails when installed below another project's folder
        ["describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"],
    ):
        try:
            git = ["git", "-C", str(here.parent), *arguments]
            done = subprocess.run(git, capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.SubprocessError):
            return ""
        if done.returncode:
            return ""
        output = done.stdout.strip()
    return output
