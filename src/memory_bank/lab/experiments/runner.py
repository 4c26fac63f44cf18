"""An experiment run: units in several processes, each result on the disk before the next is waited for."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import platform
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from pathlib import Path
from typing import Any

from memory_bank.errors import MemoryBankError
from memory_bank.lab.experiments.config import CostSettings, Experiment, SuiteSettings
from memory_bank.lab.experiments.live import live_unit
from memory_bank.lab.experiments.replay import replay_unit
from memory_bank.lab.experiments.results import Results
from memory_bank.lab.experiments.units import Plan, Unit
from memory_bank.lab.meter.runs import quiet

Progress = Callable[[int, int], None]  # units done, units in all


class _Task:
    """What every worker is told when it begins."""

    def __init__(self, plan: Plan) -> None:
        self.counter: str = plan.experiment.counter
        self.cost: CostSettings = plan.experiment.cost
        self.suites: Mapping[str, tuple[SuiteSettings, frozenset[str]]] = {
            s.name: (s.settings, s.constants) for s in plan.suites
        }

    def do(self, unit: Unit) -> dict[str, Any]:
        """The whole results line of a unit. Raises ModelError when an endpoint fails."""
        settings, constants = self.suites[unit.suite]
        if unit.kind == "replay":
            result = replay_unit(unit, self.counter, self.cost, constants)
        else:
            result = live_unit(unit, settings, self.counter, self.cost)
        return {"unit": unit.id, **unit.place, **result}


def run_experiment(
    plan: Plan, results: Results, *, jobs: int | None = None, progress: Progress | None = None
) -> None:
    """Do every unit that the results do not hold yet.

    Raises what a unit raises (a model that cannot be reached), or KeyboardInterrupt; what was done until then
    is in the file, and another call goes on from there.
    """
    waiting = [u for u in plan.units if u.id not in results.done]
    total = len(plan.units)
    if progress is not None:
        progress(total - len(waiting), total)
    workers = min(jobs or plan.experiment.jobs, len(waiting))
    with contextlib.closing(_lines(_Task(plan), waiting, workers)) as lines:
        for line in lines:
            results.add(line)
            if progress is not None:
                progress(len(results.done), total)


def _lines(task: _Task, units: Sequence[Unit], workers: int) -> Generator[dict[str, Any], None, None]:
    if workers <= 1:
        with quiet():
            for unit in units:
                yield task.do(unit)
        return
    spawn = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, spawn, _begin, (task,))
    waiting: set[Future[dict[str, Any]]] = set()
    queue = iter(units)
    try:
        waiting |= {pool.submit(_work, u) for u in islice(queue, 2 * workers)}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            waiting |= {pool.submit(_work, u) for u in islice(queue, len(done))}
            failed: BaseException | None = None
            for future in done:  # what is whole is kept, whatever befell its neighbour
                error = future.exception()
                if error is None:
                    yield future.result()
                failed = failed or error
            if failed is not None:
                raise failed
        pool.shutdown()
    except BrokenProcessPool:
        raise MemoryBankError(
            "a worker process died (out of memory?): results so far are kept, go on with fewer --jobs."
        ) from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()


_told: list[_Task] = []  # in a worker: its task


def _begin(task: _Task) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    logging.getLogger("memory_bank").setLevel(logging.ERROR)
    _told.append(task)


def _work(unit: Unit) -> dict[str, Any]:
    return _told[0].do(unit)


def about(experiment: Experiment, version: str) -> dict[str, Any]:
    """What made a run: version, commit, machine and time, beside the experiment's own settings."""
    return {
        "version": version,
        "commit": _commit(),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seeds": list(experiment.seeds),
    }


def _commit() -> str:
    """The commit of the checkout that this code runs from, with ``+`` when it was changed; else nothing."""
    here = Path(__file__).resolve()
    told = ""
    for asked in (
        ["ls-files", "--error-unmatch", here.name],  # installed below another project's folder: not ours
        ["describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"],
    ):
        try:
            git = ["git", "-C", str(here.parent), *asked]
            done = subprocess.run(git, capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.SubprocessError):
            return ""
        if done.returncode:
            return ""
        told = done.stdout.strip()
    return told
