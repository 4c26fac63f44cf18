"""Measures strategies on traces: every turn's context is searched for what the turn needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from memory_bank.lab.costs import Costs, ScriptedCache, named_counter
from memory_bank.lab.meter.figures import Figures, NeedResult, StepRow, figures_of
from memory_bank.lab.meter.needs import NeedyTurn, environment_constants, needs_of, recall
from memory_bank.lab.meter.text import texts_of
from memory_bank.lab.processes import ProgressReport, run_tasks
from memory_bank.lab.replay import play
from memory_bank.lab.strategies import Build, Strategy
from memory_bank.lab.traces import Trace
from memory_bank.transcript import ENCODING, MessageKind, TokenCounter, content_text, kind_of, read

RowT = TypeVar("RowT")
FiguresT = TypeVar("FiguresT")

RowsOf = Callable[[Build], list[RowT]]
"""Measures one strategy on one trace: a row a turn."""


@dataclass(frozen=True, slots=True)
class Measurement(Generic[RowT, FiguresT]):
    """The figures of a strategy, and the rows of every trace in the order of the traces."""

    strategy: Strategy
    figures: FiguresT
    rows: tuple[tuple[RowT, ...], ...]


def measure(
    traces: Sequence[Trace], strategies: Sequence[Strategy], **options: Any
) -> list[Measurement[StepRow, Figures]]:
    """Measure strategies on traces; ``options`` are those of ``measure_by``."""
    prepare = partial(_prepare, constants=environment_constants(traces))
    return measure_by(prepare, figures_of, traces, strategies, **options)


def _prepare(trace: Trace, costs: Costs, constants: frozenset[str]) -> RowsOf[StepRow]:
    turns = needs_of(trace, constants)
    return lambda build: measure_trace(trace, turns, build, costs)


def measure_by(
    prepare: Callable[[Trace, Costs], RowsOf[RowT]],
    sum_up: Callable[[Sequence[Sequence[RowT]]], FiguresT],
    traces: Sequence[Trace],
    strategies: Sequence[Strategy],
    *,
    counter: str | TokenCounter = ENCODING,
    jobs: int = 1,
    limit: int | None = None,
    progress: ProgressReport | None = None,
) -> list[Measurement[RowT, FiguresT]]:
    """Measure strategies on traces; returns one Measurement a strategy, in their order.

    ``prepare`` (picklable) looks at a trace once and returns what measures each strategy on it; ``sum_up`` makes the
    figures of the rows of all traces. ``counter`` is the name of an encoding, ``"approximate"``, or a counter
    (picklable when there are several ``jobs``, which are processes). ``limit`` takes that many traces, evenly spread.
    Except for times, figures do not depend on ``jobs``. What strategies raise is counted.
    """
    if limit is not None and limit < len(traces):
        traces = traces[:: max(1, len(traces) // limit)][:limit] if limit > 0 else []
    lengths = [sum(len(content_text(read(m, "content"))) for m in trace.messages) for trace in traces]
    # long traces first, so that no process works alone at the end
    order = sorted(range(len(traces)), key=lambda i: -lengths[i])
    work = partial(_measure_one, prepare=prepare, strategies=tuple(strategies), counter=counter)
    results: dict[int, list[list[RowT]]] = {}
    with closing(run_tasks([traces[i] for i in order], work, jobs)) as measured:
        for n, result in measured:
            results[order[n]] = result
            if progress is not None:
                progress(len(results), len(traces))
    rows = (tuple(tuple(results[i][n]) for i in range(len(traces))) for n in range(len(strategies)))
    return [Measurement(s, sum_up(own), own) for s, own in zip(strategies, rows, strict=True)]


def _measure_one(
    trace: Trace,
    prepare: Callable[[Trace, Costs], RowsOf[RowT]],
    strategies: Sequence[Strategy],
    counter: str | TokenCounter,
) -> list[list[RowT]]:
    """The rows of one trace, a list for each strategy."""
    rows_of = prepare(trace, Costs(named_counter(counter) if isinstance(counter, str) else counter))
    measured = []
    for strategy in strategies:
        with strategy.start(trace) as build:
            measured.append(rows_of(build))
    return measured


def measure_trace(trace: Trace, turns: Sequence[NeedyTurn], build: Build, costs: Costs) -> list[StepRow]:
    """The rows of a trace, one a turn. A strategy that raises has an empty context at that turn.

    As in the reference meter, only values that a tool output held first count as needs.
    """
    tokens = [costs.of(m) for m in trace.messages]
    kinds = [kind_of(m) for m in trace.messages]
    full, anchor, last = [0], [0], [0]  # last: of the last interaction before each message
    for count, kind in zip(tokens, kinds, strict=True):
        full.append(full[-1] + count)
        anchor.append(anchor[-1] + count * (kind in (MessageKind.SYSTEM, MessageKind.USER)))
        before = 0 if kind is MessageKind.CALL else last[-1]
        last.append(before + count * (kind in (MessageKind.CALL, MessageKind.RESULT)))
    parts = [(str(i), count) for i, count in enumerate(tokens)]  # of the full history, which only grows
    cache, full_cache = ScriptedCache(costs.counter), ScriptedCache(costs.counter)
    needed = [[n for n in turn.needs if n.born == "tool"] for turn in turns]
    played = play(trace, build, zip((t.position for t in turns), needed, strict=True))
    rows: list[StepRow] = []
    for turn, needs, step in zip(turns, needed, played, strict=True):
        texts = texts_of(step.context) if needs else []
        sent = costs.parts(step.context)
        used, full_used = cache.add(sent), full_cache.add(parts[: turn.position])
        rows.append(
            StepRow(
                kind=turn.kind,
                tokens=sum(count for _, count in sent),
                full=full[turn.position],
                anchor=anchor[turn.position],
                last=last[turn.position],
                seconds=step.seconds,
                error=step.error_name,
                broken=step.broken_pairs > 0,
                found=tuple(NeedResult(*recall(n, texts), n.age, n.kind, n.first_use) for n in needs),
                used=(used.input, used.cached, used.written),
                full_used=(full_used.input, full_used.cached, full_used.written),
            )
        )
    return rows
