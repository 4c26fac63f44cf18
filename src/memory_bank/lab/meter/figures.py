"""Rows of measured steps summed up to figures: shares, tokens, time, and their 95% intervals."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from memory_bank.lab.costs import PRICE_TABLES
from memory_bank.lab.tables import Column, milliseconds, percent, whole
from memory_bank.pricing import Price, Usage, cost

AGES = (("1", 1), ("2-3", 3), ("4-7", 7), ("8+", math.inf))
"""The bins of age, in interactions back, with the oldest age of each."""

RowT = TypeVar("RowT")
Part = Callable[[Sequence[RowT]], tuple[float, float]]
"""A numerator and a denominator of one trace."""


class NeedResult(NamedTuple):
    """Whether a context holds a needed value, and next to its words; its age, kind and first use are the need's."""

    present: bool
    bound: bool
    age: int
    kind: str
    first_use: bool


class StepRow(NamedTuple):
    """One step: tokens of the context, of the full history, of its anchor and of its last interaction.

    ``used`` and ``full_used``: those of the context and of the full history, with the tokens read from a prefix cache
    and written to it.
    """

    kind: str
    tokens: int
    full: int
    anchor: int
    last: int
    seconds: float
    error: str  # the type of the exception that the strategy raised, or ""
    broken: bool  # the context has broken pairs that the trace itself does not have
    found: tuple[NeedResult, ...]
    used: tuple[int, int, int] = (0, 0, 0)
    full_used: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures by name, which are attributes too, and the 95% bounds of some of them by bootstrap, ``(low, high)``.

    Shares are 0 to 1; NaN where there was nothing to share.
    """

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
    """The figures of every meter: steps, tokens of contexts and of the full history, times, exceptions, broken pairs.

    Rows have ``tokens``, ``full``, ``seconds``, ``error`` and ``broken``.
    """
    seconds = sorted(row.seconds for row in rows)
    return {
        "steps": len(rows),
        "tokens": ratio(sum(row.tokens for row in rows), len(rows)),
        "full_tokens": ratio(sum(row.full for row in rows), len(rows)),
        "ms": 1000 * ratio(sum(seconds), len(rows)),
        "ms_p95": 1000 * p95(seconds),
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
    values_of = sum_up(
        rows,
        traces=len(traces),
        values=len(values),
        values_old=len(old),
        values_say=len(said),
        first_old=_share(f.present for f in old if f.first_use),
        leaf_old=_share(f.present for f in old if f.kind == "leaf"),
        complete=_share(all(f.present for f in row.found) for row in calls),
        say=_share(said),
        by_age={n: _share(f.present for f in values if low < f.age <= high) for (n, high), low in bins},
        tokens_p95=p95(sorted(row.tokens for row in rows)),
        step_ratio=ratio(sum(row.tokens / max(1, row.full) for row in rows), len(rows)),
        dollars={
            name: ratio(
                sum(cost(Usage(*r.used), p) for r in rows), sum(cost(Usage(*r.full_used), p) for r in rows)
            )
            for name, p in PRICE_TABLES.items()
        },
        **{name: ratio_of_sums(map(part, traces)) for name, part in _PARTS.items()},
    )
    return Figures(values_of, intervals_of(traces, _PARTS))


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


def _share(hits: Iterable[bool]) -> float:
    flags = list(hits)
    return ratio(sum(flags), len(flags))


def p95(ascending: Sequence[float]) -> float:
    """The value that 95% of the numbers stay below."""
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


def _dollar_column(name: str, price: Price) -> Column[Figures]:
    written = 1.0 if price.cache_write is None else price.cache_write
    meaning = f"dollars, % of the full history's; of a prefix cache, read at {price.cached:g}, written at {written:g}"
    return Column(f"$ {name}", lambda f: f.dollars[name], percent, meaning)


def _age_column(name: str) -> Column[Figures]:
    meaning = f"recall at age {name}, in interactions, %"
    return Column(f"age {name}", lambda f: f.by_age[name], percent, meaning)


COLUMNS: tuple[Column[Figures], ...] = (
    Column("old bound", lambda f: f.bound_old, percent,
           "bound recall of what is older than the last interaction, %"),
    Column("±", half_interval("bound_old"), percent, "half of its 95% interval, points"),
    Column("of history", lambda f: f.share_of_history, percent,
           "tokens beyond anchor and last interaction, % of the older ones"),
    Column("of full", lambda f: f.share_of_full, percent, "tokens, % of the full history"),
    *(_dollar_column(name, price) for name, price in PRICE_TABLES.items()),
    Column("a step", lambda f: f.step_ratio, percent, "mean over steps of each step's own share, %"),
    Column("recall", lambda f: f.recall, percent, "evidence that is present, %"),
    Column("bound", lambda f: f.bound, percent, "evidence that stands next to what it belongs to, %"),
    Column("old", lambda f: f.recall_old, percent, "recall of what is older than the last interaction, %"),
    Column("first use", lambda f: f.first_old, percent,
           "recall of old values the agent had not used before, %"),
    Column("complete", lambda f: f.complete, percent, "calls whose evidence is all present, %"),
    *(_age_column(name) for name, _ in AGES),
    Column("say", lambda f: f.say, percent, "recall of values quoted in answers, %"),
    Column("tokens", lambda f: f.tokens, whole, "mean tokens of a context"),
    Column("p95", lambda f: f.tokens_p95, whole, "tokens that 95% of the contexts stay below"),
    Column("ms", lambda f: f.ms, milliseconds, "mean milliseconds a step"),
    Column("ms p95", lambda f: f.ms_p95, milliseconds, "milliseconds that 95% of the steps stay below"),
    Column("errors", lambda f: f.exceptions, whole, "steps at which the strategy raised"),
    Column("broken", lambda f: f.broken, whole, "contexts with broken call/result pairs"),
)  # fmt: skip

_WIDE = {"a step", "recall", "old", "first use", "say", "p95", "ms p95"}
SHORT = tuple(c for c in COLUMNS if c.title not in _WIDE and not c.title.startswith("age"))
"""The columns that fit a terminal."""
