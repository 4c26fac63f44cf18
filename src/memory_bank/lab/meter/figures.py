"""Rows of measured steps summed up to figures: shares, tokens, time, and their 95% intervals."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from memory_bank.lab.costs import PRICE_TABLES
from memory_bank.lab.tables import Column, milliseconds, percent, whole
from memory_bank.pricing import Price, Usage, cost

AGES = (("1", 1), ("2-3", 3), ("4-7", 7), ("8+", math.inf))
"""The bins of age, in interactions back, with the oldest age of each."""

RowT = TypeVar("RowT")

RESAMPLES = 500
_SEED = 0
_UNKNOWN = Usage()
_LEAST_TRACES = 4  # fewer give no interval


@dataclass(frozen=True, slots=True)
class NeedResult:
    """Whether a context holds a needed value, next to its words, or shows how to fetch it.

    ``age``, ``kind`` and ``first_use`` are the need's own. ``reachable`` is None except for values that are
    not present and older than the last interaction.
    """

    present: bool
    bound: bool
    age: int
    kind: str
    first_use: bool
    reachable: bool | None = None


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step: tokens of the context, of the full history, of its anchor and of its last interaction.

    ``used`` and ``full_used``: how a prefix cache splits those of the context and of the full history.
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
    used: Usage = _UNKNOWN
    full_used: Usage = _UNKNOWN


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a strategy on a set of traces. Shares are 0 to 1; NaN where there was nothing to share.

    ``old`` values were last shown before the last interaction. ``share_of_history`` is the tokens beyond
    anchor and last interaction over those of the older history, the only part that a memory may shrink;
    ``step_ratio`` is the mean of each step's own ratio to the full history, ``dollars`` what the input costs over
    what that of the full history does, by the name of a price table. ``reachable`` is the share of the
    old values left out of contexts (there are ``left_out``) that one exact fetch brings back. ``intervals``
    are 95% bounds, ``(low, high)``, by bootstrap over traces.
    """

    traces: int
    steps: int
    values: int
    values_old: int
    values_say: int
    recall: float
    bound: float
    recall_old: float
    bound_old: float
    first_old: float
    leaf_old: float
    complete: float
    say: float
    by_age: dict[str, float]
    left_out: int
    reachable: float
    tokens: float
    tokens_p95: float
    full_tokens: float
    share_of_full: float
    share_of_history: float
    step_ratio: float
    dollars: dict[str, float]
    ms: float
    ms_p95: float
    exceptions: int
    broken: int
    intervals: dict[str, tuple[float, float]]

    def as_dict(self) -> dict[str, Any]:
        """JSON values; NaN is None."""
        return {k: json_value(v) for k, v in asdict(self).items()}


def figures_of(traces: Sequence[Sequence[StepRow]]) -> Figures:
    """The figures of a strategy, from the rows of every trace (``evbench.run`` defines them).

    Recall, its parts and completeness are over turns that call tools; ``say`` is over those that answer.
    """
    rows = [row for trace in traces for row in trace]
    calls = [row for row in rows if row.kind == "call" and row.found]
    values = [f for row in calls for f in row.found]
    old = [f for f in values if f.age > 1]
    said = [f for row in rows if row.kind == "say" for f in row.found]
    left_out = [f for f in old if not f.present]
    seconds = sorted(row.seconds for row in rows)
    tokens = sorted(row.tokens for row in rows)
    return Figures(
        traces=len(traces),
        steps=len(rows),
        values=len(values),
        values_old=len(old),
        values_say=len(said),
        recall=_share(f.present for f in values),
        bound=_share(f.bound for f in values),
        recall_old=_share(f.present for f in old),
        bound_old=_share(f.bound for f in old),
        first_old=_share(f.present for f in old if f.first_use),
        leaf_old=_share(f.present for f in old if f.kind == "leaf"),
        complete=_share(all(f.present for f in row.found) for row in calls),
        say=_share(f.present for f in said),
        by_age={name: _share(f.present for f in values if age_bin(f.age) == name) for name, _ in AGES},
        left_out=len(left_out),
        reachable=_share(bool(f.reachable) for f in left_out),
        tokens=ratio(sum(tokens), len(rows)),
        tokens_p95=p95(tokens),
        full_tokens=ratio(sum(row.full for row in rows), len(rows)),
        share_of_full=ratio_of_sums(map(_PARTS["share_of_full"], traces)),
        share_of_history=ratio_of_sums(map(_PARTS["share_of_history"], traces)),
        step_ratio=ratio(sum(row.tokens / max(1, row.full) for row in rows), len(rows)),
        dollars={
            name: ratio(sum(cost(r.used, p) for r in rows), sum(cost(r.full_used, p) for r in rows))
            for name, p in PRICE_TABLES.items()
        },
        ms=1000 * ratio(sum(seconds), len(rows)),
        ms_p95=1000 * p95(seconds),
        exceptions=sum(bool(row.error) for row in rows),
        broken=sum(row.broken for row in rows),
        intervals=intervals_of(traces, _PARTS),
    )


def age_bin(age: int) -> str:
    """The name of the bin of an age."""
    return next(name for name, oldest in AGES if age <= oldest)


TracePart = tuple[float, float]
"""Of one trace: a numerator and a denominator."""


def called_values(trace: Sequence[StepRow], youngest: int = 1) -> Iterator[NeedResult]:
    """The needs of a trace's calls that are at least ``youngest`` interactions old."""
    return (f for row in trace if row.kind == "call" for f in row.found if f.age >= youngest)


def old_bound(trace: Sequence[StepRow]) -> tuple[int, int]:
    """The numbers of bound and of all old values of a trace's calls."""
    bound = [f.bound for f in called_values(trace, 2)]
    return sum(bound), len(bound)


def _recall_part(of: str, youngest: int) -> Callable[[Sequence[StepRow]], TracePart]:
    def part(trace: Sequence[StepRow]) -> TracePart:
        flags = [getattr(f, of) for f in called_values(trace, youngest)]
        return sum(flags), len(flags)

    return part


def _history_part(trace: Sequence[StepRow]) -> TracePart:
    beyond = sum(max(0, row.tokens - row.anchor - row.last) for row in trace)
    return beyond, sum(row.full - row.anchor - row.last for row in trace)


_PARTS: dict[str, Callable[[Sequence[StepRow]], TracePart]] = {
    "recall": _recall_part("present", 1),
    "bound": _recall_part("bound", 1),
    "recall_old": _recall_part("present", 2),
    "bound_old": _recall_part("bound", 2),
    "share_of_full": lambda trace: (sum(row.tokens for row in trace), sum(row.full for row in trace)),
    "share_of_history": _history_part,
}


def intervals_of(
    traces: Sequence[Sequence[RowT]], parts: Mapping[str, Callable[[Sequence[RowT]], TracePart]]
) -> dict[str, tuple[float, float]]:
    """95% bounds of ratios of sums by resampling traces; none where fewer than four traces have a share."""
    bounds = {}
    for name, part in parts.items():
        own = [p for p in map(part, traces) if p[1] > 0]
        if len(own) < _LEAST_TRACES:
            continue
        dice = random.Random(_SEED)
        drawn = sorted(ratio_of_sums(dice.choices(own, k=len(own))) for _ in range(RESAMPLES))
        edge = round(RESAMPLES * 0.025)
        bounds[name] = (drawn[edge], drawn[-1 - edge])
    return bounds


def ratio_of_sums(parts: Iterable[TracePart]) -> float:
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
    """A figure as a JSON value; NaN is None."""
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, dict):
        return {k: json_value(v) for k, v in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _half_interval(figures: Figures) -> float:
    low, high = figures.intervals.get("bound_old", (math.nan, math.nan))
    return (high - low) / 2


def _age_column(name: str) -> Column[Figures]:
    meaning = f"recall at age {name}, in interactions, %"
    return Column(f"age {name}", lambda f: f.by_age[name], percent, meaning)


def _dollar_column(name: str, price: Price) -> Column[Figures]:
    written = 1.0 if price.cache_write is None else price.cache_write
    meaning = f"dollars, % of the full history's; of a prefix cache, read at {price.cached:g}, written at {written:g}"
    return Column(f"$ {name}", lambda f: f.dollars[name], percent, meaning)


COLUMNS: tuple[Column[Figures], ...] = (
    Column("old bound", lambda f: f.bound_old, percent,
           "bound recall of what is older than the last interaction, %"),
    Column("±", _half_interval, percent, "half of its 95% interval, points"),
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
    Column("reachable", lambda f: f.reachable, percent,
           "left-out old evidence that one exact fetch brings back, %"),
    Column("tokens", lambda f: f.tokens, whole, "mean tokens of a context"),
    Column("p95", lambda f: f.tokens_p95, whole, "tokens that 95% of the contexts stay below"),
    Column("ms", lambda f: f.ms, milliseconds, "mean milliseconds a step"),
    Column("ms p95", lambda f: f.ms_p95, milliseconds, "milliseconds that 95% of the steps stay below"),
    Column("errors", lambda f: f.exceptions, whole, "steps at which the strategy raised"),
    Column("broken", lambda f: f.broken, whole, "contexts with broken call/result pairs"),
)  # fmt: skip

_WIDE = {"a step", "recall", "old", "first use", "say", "p95", "ms p95"}
SHORT: tuple[Column[Figures], ...] = tuple(
    c for c in COLUMNS if c.title not in _WIDE and not c.title.startswith("age")
)
"""The columns that fit a terminal."""
