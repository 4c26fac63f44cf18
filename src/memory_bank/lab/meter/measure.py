"""Measures strategies on traces: every turn's context is searched for what the turn needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TypeVar

from memory_bank.lab.costs import Costs, named_counter
from memory_bank.lab.meter.figures import Figures, NeedResult, StepRow, figures_of
from memory_bank.lab.meter.matching import Page, Reader
from memory_bank.lab.meter.needs import Need, NeedyTurn, environment_constants, needs_of
from memory_bank.lab.meter.recall import Facts, Reach, context_pages, recall
from memory_bank.lab.processes import ProgressReport, run_tasks
from memory_bank.lab.replay import play
from memory_bank.lab.strategies import Strategy, StrategyRun
from memory_bank.lab.traces import Trace
from memory_bank.transcript import ENCODING, MessageKind, TokenCounter, content_text, kind_of, read

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Measurement:
    """The figures of a strategy, and the rows of every trace in the order of the traces."""

    strategy: Strategy
    figures: Figures
    rows: tuple[tuple[StepRow, ...], ...]


def measure(
    traces: Sequence[Trace],
    strategies: Sequence[Strategy],
    *,
    counter: str | TokenCounter = ENCODING,
    jobs: int = 1,
    limit: int | None = None,
    progress: ProgressReport | None = None,
) -> list[Measurement]:
    """Measure strategies on traces; returns one Measurement a strategy, in their order.

    ``counter`` is the name of an encoding, ``"approximate"``, ``"reference"``, or a counter (picklable when
    there are several ``jobs``, which are processes). ``limit`` takes that many traces, evenly spread;
    constants of the environment come from all. Except for times, figures do not depend on ``jobs``. What
    strategies raise is counted; other exceptions are raised.
    """
    constants = environment_constants(traces)
    work = partial(_measure_one, strategies=tuple(strategies), constants=constants, counter=counter)
    rows = measure_each(traces, work, jobs=jobs, limit=limit, progress=progress)
    found = []
    for n, strategy in enumerate(strategies):
        own = tuple(tuple(by_strategy[n]) for by_strategy in rows)
        found.append(Measurement(strategy, figures_of(own), own))
    return found


def measure_each(
    traces: Sequence[Trace],
    work: Callable[[Trace], ResultT],
    *,
    jobs: int = 1,
    limit: int | None = None,
    progress: ProgressReport | None = None,
) -> list[ResultT]:
    """The result of ``work`` for every trace, or for ``limit`` of them, evenly spread; in their order."""
    if limit is not None and limit < len(traces):
        traces = traces[:: max(1, len(traces) // limit)][:limit] if limit > 0 else []
    # long traces first, so that no process works alone at the end
    order = sorted(range(len(traces)), key=lambda i: -_length(traces[i]))
    results: dict[int, ResultT] = {}
    with closing(run_tasks([traces[i] for i in order], work, jobs)) as measured:
        for n, result in measured:
            results[order[n]] = result
            if progress is not None:
                progress(len(results), len(traces))
    return [results[i] for i in range(len(traces))]


def _length(trace: Trace) -> int:
    return sum(len(content_text(read(m, "content"))) for m in trace.messages)


def _measure_one(
    trace: Trace, strategies: Sequence[Strategy], constants: frozenset[str], counter: str | TokenCounter
) -> list[list[StepRow]]:
    """The rows of one trace, a list for each strategy."""
    reader = Reader()
    costs = Costs(named_counter(counter) if isinstance(counter, str) else counter)
    turns = needs_of(trace, constants, reader)
    measured = []
    for strategy in strategies:
        with closing(strategy.start(trace, reader)) as run:
            measured.append(measure_trace(trace, turns, run, costs, reader))
    return measured


def measure_trace(
    trace: Trace, turns: Sequence[NeedyTurn], run: StrategyRun, costs: Costs, reader: Reader
) -> list[StepRow]:
    """The rows of a trace, one a turn. A strategy that raises has an empty context at that turn.

    As in the reference meter, only values that a tool output held first count as needs.
    """
    tokens = _TokensBefore(trace.messages, costs)
    reach = Reach(reader)
    needed = [[n for n in turn.needs if n.born == "tool"] for turn in turns]
    played = play(trace, run, zip((t.position for t in turns), needed, strict=True))
    rows: list[StepRow] = []
    for turn, needs, step in zip(turns, needed, played, strict=True):
        pages = context_pages(step.context, reader) if needs else []
        facts = run.facts if turn.kind == "call" else None
        rows.append(
            StepRow(
                kind=turn.kind,
                tokens=costs.total(step.context),
                full=tokens.full[turn.position],
                anchor=tokens.anchor[turn.position],
                last=tokens.last[turn.position],
                seconds=step.seconds,
                error="" if step.error is None else type(step.error).__name__,
                broken=step.broken_pairs > 0,
                found=_results_of(turn, needs, pages, facts, reach),
            )
        )
    return rows


def _results_of(
    turn: NeedyTurn, needs: Sequence[Need], pages: Sequence[Page], facts: Facts | None, reach: Reach
) -> tuple[NeedResult, ...]:
    recalled = [recall(need, pages) for need in needs]
    left_out = [n for n, (present, _) in zip(needs, recalled, strict=True) if not present and n.age > 1]
    fetched = reach.fetchable(left_out, pages, facts) if turn.kind == "call" and left_out else {}
    return tuple(
        NeedResult(present, bound, n.age, n.kind, n.first_use, fetched.get(n.value))
        for n, (present, bound) in zip(needs, recalled, strict=True)
    )


class _TokensBefore:
    """Tokens of a trace's first i messages, for every i: all, the anchor's, the last interaction's."""

    def __init__(self, messages: Sequence[object], costs: Costs) -> None:
        tokens = [costs.of(m) for m in messages]
        kinds = [kind_of(m) for m in messages]
        anchor = (
            t if k in (MessageKind.SYSTEM, MessageKind.USER) else 0
            for t, k in zip(tokens, kinds, strict=True)
        )
        self.full = list(accumulate(tokens, initial=0))
        self.anchor = list(accumulate(anchor, initial=0))
        self.last = [0]
        latest = 0
        for count, kind in zip(tokens, kinds, strict=True):
            if kind is MessageKind.CALL:
                latest = count
            elif kind is MessageKind.RESULT:
                latest += count
            self.last.append(latest)
