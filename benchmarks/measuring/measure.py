"""Measures strategies on traces, and sums the rows of their steps up to figures: shares, tokens, time, intervals."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from memory_bank.audit.costs import Costs, named_counter
from memory_bank.audit.figures import percent
from memory_bank.audit.measure import StepRow, measure_trace
from memory_bank.audit.needs import environment_constants, needs_of
from memory_bank.audit.traces import Trace
from memory_bank.pricing import Price, Usage, cost
from memory_bank.transcript import ENCODING, TokenCounter, content_text, read

from .strategies import Build, Strategy, given_needs
from .tables import Column, milliseconds, whole
from .tasks import ProgressReport, run_tasks

PRICE_TABLES = {
    "0.1/1.25": Price(prompt=1, completion=5, cached=0.1, cache_write=1.25),
    "0.1/1": Price(prompt=1, completion=5, cached=0.1),
    "0.25/1": Price(prompt=1, completion=5, cached=0.25),
}
"""Prices of 2026 relative to a token of input, by what one costs that is read from the cache / written to it."""

AGES = (("1", 1), ("2-3", 3), ("4-7", 7), ("8+", math.inf))
"""The bins of age, in interactions back, with the oldest age of each."""

RowT = TypeVar("RowT")
Part = Callable[[Sequence[RowT]], tuple[float, float]]
"""A numerator and a denominator of one trace."""
RowsOf = Callable[[Build], list[RowT]]
"""Measures one strategy on one trace: a row a turn."""


# Figures


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures by name, which are attributes too (shares 0 to 1, NaN for none), and 95% bounds by bootstrap."""

    by_name: dict[str, Any]
    intervals: dict[str, tuple[float, float]]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self.by_name:
            raise AttributeError(name)
        return self.by_name[name]

    def as_dict(self) -> dict[str, Any]:
        """JSON values; NaN is None."""
        return dict(json_value(self.by_name | {"intervals": self.intervals}))


def sum_up(rows: Sequence[Any], **more: Any) -> dict[str, Any]:
    """The figures of every meter, of rows with ``tokens``, ``full``, ``seconds``, ``error`` and ``broken``."""
    seconds = sorted(row.seconds for row in rows)
    return {
        "steps": len(rows),
        "tokens": ratio(sum(row.tokens for row in rows), len(rows)),
        "full_tokens": ratio(sum(row.full for row in rows), len(rows)),
        "ms": 1000 * ratio(sum(seconds), len(rows)),
        "ms_p95": 1000 * _p95(seconds),
        "exceptions": sum(bool(row.error) for row in rows),
        "broken": sum(row.broken for row in rows),
        **more,
    }


def figures_of(traces: Sequence[Sequence[StepRow]]) -> Figures:
    """The figures of a strategy, from the rows of every trace (``evbench.run`` defines them).

    Recall, its parts and completeness are over turns that call tools; ``say`` is over those that answer. ``old``
    values were last shown before the last interaction. ``share_of_history`` is the tokens beyond anchor and last
    interaction over those of the older history, the only part that a memory may shrink; ``step_ratio`` is the mean of
    each step's own ratio to the full history, ``dollars`` what the input costs over what that of the full history
    does, by the name of a price table.
    """
    rows = [row for trace in traces for row in trace]
    calls = [row for row in rows if row.kind == "call" and row.found]
    values = [f for row in calls for f in row.found]
    old = [f for f in values if f.age > 1]
    said = [f.present for row in rows if row.kind == "say" for f in row.found]
    bins = zip(AGES, (0, *(age for _, age in AGES)), strict=False)  # with the oldest age of the bin before

    def share(hits: Iterable[bool]) -> float:
        flags = list(hits)
        return ratio(sum(flags), len(flags))

    by_name = sum_up(
        rows,
        traces=len(traces),
        values=len(values),
        values_old=len(old),
        values_say=len(said),
        first_old=share(f.present for f in old if f.first_use),
        leaf_old=share(f.present for f in old if f.kind == "leaf"),
        complete=share(all(f.present for f in row.found) for row in calls),
        say=share(said),
        by_age={n: share(f.present for f in values if low < f.age <= high) for (n, high), low in bins},
        tokens_p95=_p95(sorted(row.tokens for row in rows)),
        step_ratio=ratio(sum(row.tokens / max(1, row.full) for row in rows), len(rows)),
        dollars={
            name: ratio(
                sum(cost(Usage(*r.used), p) for r in rows), sum(cost(Usage(*r.full_used), p) for r in rows)
            )
            for name, p in PRICE_TABLES.items()
        },
        **{name: ratio_of_sums(map(part, traces)) for name, part in _PARTS.items()},
    )
    return Figures(by_name, intervals_of(traces, _PARTS))


def _recall_part(of: str, youngest: int) -> Part[StepRow]:
    def part(trace: Sequence[StepRow]) -> tuple[float, float]:
        called = (f for row in trace if row.kind == "call" for f in row.found)
        flags = [getattr(f, of) for f in called if f.age >= youngest]
        return sum(flags), len(flags)

    return part


old_bound = _recall_part("bound", 2)
"""The numbers of bound and of all old values of a trace's calls."""

_PARTS: dict[str, Part[StepRow]] = {
    "recall": _recall_part("present", 1),
    "bound": _recall_part("bound", 1),
    "recall_old": _recall_part("present", 2),
    "bound_old": old_bound,
    "share_of_full": lambda trace: (sum(row.tokens for row in trace), sum(row.full for row in trace)),
    "share_of_history": lambda trace: (
        sum(max(0, row.tokens - row.anchor - row.last) for row in trace),
        sum(row.full - row.anchor - row.last for row in trace),
    ),
}


def intervals_of(
    traces: Sequence[Sequence[RowT]], parts: Mapping[str, Part[RowT]]
) -> dict[str, tuple[float, float]]:
    """95% bounds of ratios of sums by resampling traces; none where fewer than four traces have a share."""
    bounds = {}
    for name, part in parts.items():
        own = [p for p in map(part, traces) if p[1] > 0]
        if len(own) >= 4:
            dice = random.Random(0)
            drawn = sorted(ratio_of_sums(dice.choices(own, k=len(own))) for _ in range(500))
            bounds[name] = (drawn[12], drawn[-13])  # 2.5% of them lie beyond each
    return bounds


def ratio_of_sums(parts: Iterable[tuple[float, float]]) -> float:
    """The sum of the numerators over that of the denominators; NaN where that is 0."""
    pairs = list(parts)
    return ratio(sum(p[0] for p in pairs), sum(p[1] for p in pairs))


def ratio(total: float, count: float) -> float:
    """A quotient; NaN where the denominator is 0."""
    return total / count if count else math.nan


def _p95(ascending: Sequence[float]) -> float:
    return float(ascending[int(len(ascending) * 0.95)]) if ascending else math.nan


def json_value(value: Any) -> Any:
    """Figures as a JSON value; NaN is None."""
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, dict):
        return {k: json_value(v) for k, v in value.items()}
    return list(value) if isinstance(value, tuple) else value


def half_interval(name: str) -> Callable[[Any], float]:
    """Half of the 95% interval of a figure."""

    def half(figures: Any) -> float:
        low, high = figures.intervals.get(name, (math.nan, math.nan))
        return float(high - low) / 2

    return half


def _column(
    title: str, name: str, meaning: str, write: Callable[[float], str] = percent, key: str = ""
) -> Column[Figures]:
    """The column of a figure, or of its part under a key."""
    return Column(title, lambda f: getattr(f, name)[key] if key else getattr(f, name), write, meaning)


COLUMNS: tuple[Column[Figures], ...] = (
    _column("old bound", "bound_old", "bound recall of what is older than the last interaction, %"),
    Column("±", half_interval("bound_old"), percent, "half of its 95% interval, points"),
    _column("of history", "share_of_history", "tokens beyond anchor and last interaction, % of the older ones"),
    _column("of full", "share_of_full", "tokens, % of the full history"),
    *(
        _column(f"$ {name}", "dollars", "dollars, % of the full history's; of a prefix cache, read at "
                f"{p.cached:g}, written at {1.0 if p.cache_write is None else p.cache_write:g}", key=name)
        for name, p in PRICE_TABLES.items()
    ),
    _column("a step", "step_ratio", "mean over steps of each step's own share, %"),
    _column("recall", "recall", "evidence that is present, %"),
    _column("bound", "bound", "evidence that stands next to what it belongs to, %"),
    _column("old", "recall_old", "recall of what is older than the last interaction, %"),
    _column("first use", "first_old", "recall of old values the agent had not used before, %"),
    _column("complete", "complete", "calls whose evidence is all present, %"),
    *(_column(f"age {n}", "by_age", f"recall at age {n}, in interactions, %", key=n) for n, _ in AGES),
    _column("say", "say", "recall of values quoted in answers, %"),
    _column("tokens", "tokens", "mean tokens of a context", whole),
    _column("p95", "tokens_p95", "tokens that 95% of the contexts stay below", whole),
    _column("ms", "ms", "mean milliseconds a step", milliseconds),
    _column("ms p95", "ms_p95", "milliseconds that 95% of the steps stay below", milliseconds),
    _column("errors", "exceptions", "steps at which the strategy raised", whole),
    _column("broken", "broken", "contexts with broken call/result pairs", whole),
)  # fmt: skip


# Traces


@dataclass(frozen=True, slots=True)
class Measurement(Generic[RowT]):
    """The figures of a strategy, and the rows of every trace in the order of the traces."""

    strategy: Strategy
    figures: Figures
    rows: tuple[tuple[RowT, ...], ...]


def measure(
    traces: Sequence[Trace], strategies: Sequence[Strategy], **options: Any
) -> list[Measurement[StepRow]]:
    """Measure strategies on traces; ``options`` are those of ``measure_by``."""
    prepare = partial(_prepare, constants=environment_constants(traces))
    return measure_by(prepare, figures_of, traces, strategies, **options)


def _prepare(trace: Trace, costs: Costs, constants: frozenset[str]) -> RowsOf[StepRow]:
    turns = needs_of(trace, constants)
    return lambda build: measure_trace(trace, turns, given_needs(build, turns), costs)


def measure_by(
    prepare: Callable[[Trace, Costs], RowsOf[RowT]],
    sum_up: Callable[[Sequence[Sequence[RowT]]], Figures],
    traces: Sequence[Trace],
    strategies: Sequence[Strategy],
    *,
    counter: str | TokenCounter = ENCODING,
    jobs: int = 1,
    limit: int | None = None,
    progress: ProgressReport | None = None,
) -> list[Measurement[RowT]]:
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
