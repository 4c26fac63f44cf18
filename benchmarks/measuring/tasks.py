"""Runs independent tasks in this process or in several, and yields each result as soon as it is there."""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from memory_bank.audit.replay import quiet
from memory_bank.errors import MemoryBankError

TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")

ProgressReport = Callable[[int, int], None]
"""Called with the number of tasks done and the number of all tasks."""


def run_tasks(
    tasks: Sequence[TaskT], work: Callable[[TaskT], ResultT], jobs: int
) -> Generator[tuple[int, ResultT], None, None]:
    """Yield ``(index of the task, work(task))`` in the order in which tasks finish.

    ``jobs`` processes are started with spawn, none for 1; ``work`` and the tasks must be picklable then. When
    a task raises, results that were complete before are yielded first. Raises MemoryBankError when a process dies.
    Closing the generator ends the processes.
    """
    workers = min(jobs, len(tasks))
    if workers <= 1:
        with quiet():
            yield from ((i, work(task)) for i, task in enumerate(tasks))
        return
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start_worker)
    try:
        running = {pool.submit(work, task): i for i, task in enumerate(tasks)}
        for future in as_completed(running):
            yield running.pop(future), future.result()
    except BrokenProcessPool:
        raise MemoryBankError(
            "a worker process died (out of memory?): results so far are kept; run it again with fewer --jobs."
        ) from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends its workers
    logging.getLogger("memory_bank").setLevel(logging.ERROR)
