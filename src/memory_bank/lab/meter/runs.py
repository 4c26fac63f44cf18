"""Many traces through many strategies, in several processes: one trace at a time, all strategies on it."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from memory_bank.lab.meter.costs import Costs, named_counter
from memory_bank.lab.meter.figures import Figures, figures_of
from memory_bank.lab.meter.matching import Reader
from memory_bank.lab.meter.measure import Row, measure_trace
from memory_bank.lab.meter.needs import environment_constants, needs_of
from memory_bank.lab.meter.strategies import Strategy
from memory_bank.lab.traces import Trace
from memory_bank.ports import TokenCounter
from memory_bank.transcript.content import content_text, read
from memory_bank.transcript.tokens import ENCODING

Progress = Callable[[int, int], None]  # traces done, traces in all


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a strategy came to: its figures, and the rows of every trace in the order of the traces."""

    strategy: Strategy
    figures: Figures
    rows: tuple[tuple[Row, ...], ...]


def measure(
    traces: Sequence[Trace],
    strategies: Sequence[Strategy],
    *,
    counter: str | TokenCounter = ENCODING,
    jobs: int = 1,
    limit: int | None = None,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Measure strategies on traces; one Outcome a strategy, in their order.

    ``counter`` is the name of an encoding, ``"approximate"``, ``"reference"``, or a counter (which several
    processes must be able to share by pickling). ``jobs`` processes are started anew (spawn), none for 1.
    ``limit`` takes so many traces, evenly spread; constants of the environment come from all. Figures do not
    depend on ``jobs``, times aside. Exceptions of strategies are counted; others are raised.
    """
    constants = environment_constants(traces)
    chosen = _spread(traces, limit)
    tasks = sorted(range(len(chosen)), key=lambda i: -_weight(chosen[i]))
    results: dict[int, list[list[Row]]] = {}
    for i, rows in _results(chosen, tasks, tuple(strategies), constants, counter, jobs):
        results[i] = rows
        if progress is not None:
            progress(len(results), len(chosen))
    outcomes = []
    for n, strategy in enumerate(strategies):
        own = tuple(tuple(results[i][n]) for i in range(len(chosen)))
        outcomes.append(Outcome(strategy, figures_of(own), own))
    return outcomes


def _spread(traces: Sequence[Trace], limit: int | None) -> Sequence[Trace]:
    if limit is None or limit >= len(traces):
        return traces
    return traces[:: max(1, len(traces) // limit)][:limit] if limit > 0 else []


def _weight(trace: Trace) -> int:
    """Long traces go first, so that no process works alone at the end."""
    return sum(len(content_text(read(m, "content"))) for m in trace.messages)


def _results(
    traces: Sequence[Trace],
    tasks: Sequence[int],
    strategies: tuple[Strategy, ...],
    constants: frozenset[str],
    counter: str | TokenCounter,
    jobs: int,
) -> Iterator[tuple[int, list[list[Row]]]]:
    if jobs <= 1 or len(tasks) <= 1:
        with quiet():
            for i in tasks:
                yield i, measure_one(traces[i], strategies, constants, counter)
        return
    spawn = multiprocessing.get_context("spawn")
    workers = min(jobs, len(tasks))
    with ProcessPoolExecutor(workers, spawn, _begin, (strategies, constants, counter)) as pool:
        waiting: dict[Future[list[list[Row]]], int] = {}
        queue = iter(tasks)
        try:
            for i in islice(queue, 2 * workers):
                waiting[pool.submit(_work, traces[i])] = i
            while waiting:
                for done in wait(waiting, return_when=FIRST_COMPLETED).done:
                    yield waiting.pop(done), done.result()
                    for i in islice(queue, 1):
                        waiting[pool.submit(_work, traces[i])] = i
        finally:
            for future in waiting:
                future.cancel()


_task: dict[str, Any] = {}  # what a worker was told when it began


def _begin(strategies: tuple[Strategy, ...], constants: frozenset[str], counter: str | TokenCounter) -> None:
    logging.getLogger("memory_bank").setLevel(logging.ERROR)
    _task.update(strategies=strategies, constants=constants, counter=counter)


def _work(trace: Trace) -> list[list[Row]]:
    return measure_one(trace, _task["strategies"], _task["constants"], _task["counter"])


def measure_one(
    trace: Trace, strategies: Sequence[Strategy], constants: frozenset[str], counter: str | TokenCounter
) -> list[list[Row]]:
    """The rows of one trace, a list for each strategy."""
    reader = Reader()
    costs = Costs(_open(counter) if isinstance(counter, str) else counter)
    turns = needs_of(trace, constants, reader)
    measured = []
    for strategy in strategies:
        running = strategy.start(trace, reader)
        with contextlib.closing(running):
            measured.append(measure_trace(trace, turns, running, costs, reader))
    return measured


@lru_cache(maxsize=4)
def _open(name: str) -> TokenCounter:
    return named_counter(name)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Warnings of hundreds of steps are not what a measurement is read for."""
    logger = logging.getLogger("memory_bank")
    level = logger.level
    logger.setLevel(max(level, logging.ERROR))
    try:
        yield
    finally:
        logger.setLevel(level)
