"""Rows of many traces to figures: shares, tokens, time, and how sure they are."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from memory_bank.lab.meter.measure import Found, Row

AGES = (("1", 1), ("2-3", 3), ("4-7", 7), ("8+", math.inf))
"""The bins of age, in interactions back, with the oldest age of each."""

RESAMPLES = 500
_SEED = 0
_LEAST_TRACES = 4  # fewer say nothing about an interval


@dataclass(frozen=True, slots=True)
class Figures:
    """What a strategy came to on a set of traces. Shares are 0 to 1; NaN where there was nothing to share.

    ``old`` is what was last shown before the last interaction. ``share_of_history`` is the tokens beyond
    anchor and last interaction over those of the older history, the only part that a memory may shrink;
    ``step_ratio`` the mean of each step's own ratio to the full history. ``reachable`` is the share of the
    old values left out of contexts (``left_out`` of them) that one exact fetch brings back. ``intervals``
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
    ms: float
    ms_p95: float
    exceptions: int
    broken: int
    intervals: dict[str, tuple[float, float]]

    def as_dict(self) -> dict[str, Any]:
        """JSON values; NaN is None."""
        return {k: _plain(v) for k, v in asdict(self).items()}


def figures_of(traces: Sequence[Sequence[Row]]) -> Figures:
    """The figures of a strategy, from the rows of every trace (``evbench.run`` defines them).

    Recall, its parts and completeness are over turns that call tools; ``say`` over those that answer.
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
        tokens=_over(sum(tokens), len(rows)),
        tokens_p95=_p95(tokens),
        full_tokens=_over(sum(row.full for row in rows), len(rows)),
        share_of_full=_ratio([_full_share(t) for t in traces]),
        share_of_history=_ratio([_history_share(t) for t in traces]),
        step_ratio=_over(sum(row.tokens / max(1, row.full) for row in rows), len(rows)),
        ms=1000 * _over(sum(seconds), len(rows)),
        ms_p95=1000 * _p95(seconds),
        exceptions=sum(bool(row.error) for row in rows),
        broken=sum(row.broken for row in rows),
        intervals=_intervals(traces),
    )


def age_bin(age: int) -> str:
    """The name of the bin of an age."""
    return next(name for name, oldest in AGES if age <= oldest)


Part = tuple[float, float]  # of one trace: a numerator and a denominator


def old_bound(trace: Sequence[Row]) -> Part:
    """Bound and all old values of a trace's calls."""
    old = _old(trace)
    return sum(f.bound for f in old), len(old)


def _old(trace: Sequence[Row]) -> list[Found]:
    return [f for row in trace if row.kind == "call" for f in row.found if f.age > 1]


def _recall(trace: Sequence[Row]) -> Part:
    found = [f for row in trace if row.kind == "call" for f in row.found]
    return sum(f.present for f in found), len(found)


def _bound(trace: Sequence[Row]) -> Part:
    found = [f for row in trace if row.kind == "call" for f in row.found]
    return sum(f.bound for f in found), len(found)


def _old_recall(trace: Sequence[Row]) -> Part:
    old = _old(trace)
    return sum(f.present for f in old), len(old)


def _full_share(trace: Sequence[Row]) -> Part:
    return sum(row.tokens for row in trace), sum(row.full for row in trace)


def _history_share(trace: Sequence[Row]) -> Part:
    beyond = sum(max(0, row.tokens - row.anchor - row.last) for row in trace)
    return beyond, sum(row.full - row.anchor - row.last for row in trace)


_SAMPLED: dict[str, Callable[[Sequence[Row]], Part]] = {
    "recall": _recall,
    "bound": _bound,
    "recall_old": _old_recall,
    "bound_old": old_bound,
    "share_of_full": _full_share,
    "share_of_history": _history_share,
}


def _intervals(traces: Sequence[Sequence[Row]]) -> dict[str, tuple[float, float]]:
    """95% bounds by resampling traces with replacement; none for fewer than four traces with any share."""
    bounds = {}
    for name, part in _SAMPLED.items():
        parts = [p for p in map(part, traces) if p[1] > 0]
        if len(parts) < _LEAST_TRACES:
            continue
        dice = random.Random(_SEED)
        drawn = sorted(_ratio(dice.choices(parts, k=len(parts))) for _ in range(RESAMPLES))
        edge = round(RESAMPLES * 0.025)
        bounds[name] = (drawn[edge], drawn[-1 - edge])
    return bounds


def _ratio(parts: Sequence[Part]) -> float:
    return _over(sum(p[0] for p in parts), sum(p[1] for p in parts))


def _over(total: float, count: float) -> float:
    return total / count if count else math.nan


def _share(hits: Iterable[bool]) -> float:
    flags = list(hits)
    return _over(sum(flags), len(flags))


def _p95(ascending: Sequence[float]) -> float:
    return float(ascending[int(len(ascending) * 0.95)]) if ascending else math.nan


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value
