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

from benchmarks.experiments.plan import Experiment, ExperimentPlan, Unit, bill, gated
from benchmarks.measuring.strategies import given_needs
from benchmarks.measuring.tasks import ProgressReport, run_tasks

from memory_bank.audit.costs import Costs, named_counter
from memory_bank.audit.measure import NeedResult, StepRow, measure_trace
from memory_bank.audit.needs import NeedyTurn, needs_of
from memory_bank.audit.traces import Trace
from memory_bank.errors import ConfigError

try:
    import fcntl
except ImportError:  # Windows: two runs on one file are not detected there
    fcntl = None  # type: ignore[assignment]


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
    with closing(run_tasks(waiting, do_unit, jobs or plan.experiment.jobs)) as lines:
        for _, line in lines:
            results.add(line)
            if progress is not None:
                progress(len(results.done), total)


def do_unit(unit: Unit) -> dict[str, Any]:
    """The results line of a unit. Raises ModelError when an endpoint fails."""
    if unit.suite.kind != "replay":
        from benchmarks.experiments.live import live_unit

        return {"unit": unit.id, **unit.place, **live_unit(unit)}
    key = (unit.case, unit.constants, unit.experiment.counter)
    if not _latest or _latest[0][0] != key:
        _latest[:] = [
            (key, Costs(named_counter(unit.experiment.counter)), needs_of(unit.case, unit.constants))
        ]
    _, costs, turns = _latest[0]
    with gated(unit, costs) as (build, contexts):
        rows = measure_trace(unit.case, turns, given_needs(build, turns), costs)
    paid, cached = bill(unit, contexts, costs)
    result = {"rows": rows, "cached": cached, "counter": costs.counter.name, "bill": paid}
    return {"unit": unit.id, **unit.place, **result}


_latest: list[tuple[tuple[Trace, frozenset[str], str], Costs, list[NeedyTurn]]] = []
"""The case of the unit before: the strategies of a case follow one another."""


def rows_in(result: dict[str, Any]) -> list[StepRow]:
    """The rows of a replayed unit, as they were before they were written."""
    rows = (StepRow(*values) for values in result["rows"])
    return [row._replace(found=tuple(NeedResult(*f) for f in row.found)) for row in rows]


class Results:
    """A results file opened to be continued: ``done`` has the results it holds, by unit id.

    A line is on the disk when ``add`` returns. A last line that a crash cut off is removed, and its unit done
    again. Raises ConfigError for the file of another experiment, a file of something else, and one that
    another run is writing.
    """

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path = path
        self.done: dict[str, dict[str, Any]] = {}
        self.runs: list[dict[str, Any]] = []
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a+b")  # noqa: SIM115
        except OSError as e:
            raise ConfigError(
                f"{path} cannot be written ({e.strerror}): give another folder with --out."
            ) from e
        try:
            if fcntl is not None:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            kept = self._read(header["experiment"])
            self._file.truncate(kept)
            self._write(header if kept == 0 else {"run": header["about"]})
            self.runs.append(header["about"])
        except BaseException as e:
            self._file.close()
            if isinstance(e, BlockingIOError):
                raise ConfigError(
                    f"{path} is being written by another run: wait for it, or give another --out."
                ) from None
            raise

    def add(self, line: dict[str, Any]) -> None:
        """Write a unit's result to the disk."""
        self._write(line)
        self.done[line["unit"]] = line

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self, experiment: str) -> int:
        kept, beginning = 0, b'{"experiment":'
        self._file.seek(0)
        for number, raw in enumerate(self._file, 1):
            ours = number > 1 or raw.startswith(beginning) or beginning.startswith(raw)
            if ours and not raw.endswith(b"\n"):
                break  # cut off by a crash
            try:
                line = json.loads(raw)
            except ValueError:
                line = None
            if number == 1:
                if not isinstance(line, dict) or "experiment" not in line or "about" not in line:
                    raise ConfigError(
                        f"{self.path} is no results file of an experiment: give another folder with --out."
                    )
                if line["experiment"] != experiment:
                    raise ConfigError(
                        f"{self.path} holds the results of another experiment (or of this one before its settings or "
                        "cases changed): it is not changed, give another folder with --out."
                    )
                self.runs.append(line["about"])
            elif isinstance(line, dict) and "run" in line:
                self.runs.append(line["run"])
            elif isinstance(line, dict) and isinstance(line.get("unit"), str):
                self.done[line["unit"]] = line
            else:
                raise ConfigError(
                    f"{self.path}, line {number}: it is not a result: remove it, or give another --out."
                )
            kept += len(raw)
        return kept

    def __enter__(self) -> Results:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()


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

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)  # fails when installed below another project's folder
        return git("describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return ""
