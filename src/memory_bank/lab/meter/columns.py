"""Figures as columns: one list that the terminal, Markdown and HTML tables share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memory_bank.lab.meter.figures import AGES, Figures


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, its number, how that is written, and what it means."""

    title: str
    value: Callable[[Figures], float]
    write: Callable[[float], str]
    meaning: str

    def cell(self, figures: Sequence[Figures]) -> str:
        """The text for one set of traces, or the plain mean over several; a dash where there is none."""
        numbers = [v for f in figures if not math.isnan(v := self.value(f))]
        return self.write(sum(numbers) / len(numbers)) if numbers else "–"


def percent(share: float) -> str:
    """A share in percent with one digit: 0.4088 is 40.9; 100.0 is only what is whole."""
    shown = f"{100 * share:.1f}"
    return "99.9" if shown == "100.0" and share < 1 else shown


def whole(number: float) -> str:
    """A number without fraction."""
    return f"{number:,.0f}"


def milliseconds(number: float) -> str:
    """A time with as many digits as say something."""
    return f"{number:.1f}" if number < 100 else whole(number)


def _age(name: str) -> Callable[[Figures], float]:
    return lambda f: f.by_age[name]


_SHARES: tuple[tuple[str, Callable[[Figures], float], str], ...] = (
    ("old bound", lambda f: f.bound_old, "bound recall of what is older than the last interaction, %"),
    ("±", lambda f: _half(f, "bound_old"), "half of its 95% interval, points"),
    (
        "of history",
        lambda f: f.share_of_history,
        "tokens beyond anchor and last interaction, % of the older ones",
    ),
    ("of full", lambda f: f.share_of_full, "tokens, % of the full history"),
    ("a step", lambda f: f.step_ratio, "mean over steps of each step's own share, %"),
    ("recall", lambda f: f.recall, "evidence that is present, %"),
    ("bound", lambda f: f.bound, "evidence that stands next to what it belongs to, %"),
    ("old", lambda f: f.recall_old, "recall of what is older than the last interaction, %"),
    ("first use", lambda f: f.first_old, "recall of old values the agent had not used before, %"),
    ("complete", lambda f: f.complete, "calls whose evidence is all present, %"),
    *((f"age {name}", _age(name), f"recall at age {name}, in interactions, %") for name, _ in AGES),
    ("say", lambda f: f.say, "recall of values quoted in answers, %"),
    ("reachable", lambda f: f.reachable, "left-out old evidence that one exact fetch brings back, %"),
)

_REST: tuple[Column, ...] = (
    Column("tokens", lambda f: f.tokens, whole, "mean tokens of a context"),
    Column("p95", lambda f: f.tokens_p95, whole, "tokens that 95% of the contexts stay below"),
    Column("ms", lambda f: f.ms, milliseconds, "mean milliseconds a step"),
    Column("ms p95", lambda f: f.ms_p95, milliseconds, "milliseconds that 95% of the steps stay below"),
    Column("errors", lambda f: f.exceptions, whole, "steps at which the strategy raised"),
    Column("broken", lambda f: f.broken, whole, "contexts with broken call/result pairs"),
)

COLUMNS: tuple[Column, ...] = (
    *(Column(title, value, percent, meaning) for title, value, meaning in _SHARES),
    *_REST,
)

_NARROW = frozenset(
    {"old bound", "±", "of history", "of full", "tokens", "bound", "complete", "reachable", "ms"}
)
SHORT: tuple[Column, ...] = tuple(c for c in COLUMNS if c.title in _NARROW or c.title in ("errors", "broken"))
"""The columns that fit a terminal."""


def _half(figures: Figures, name: str) -> float:
    low, high = figures.intervals.get(name, (math.nan, math.nan))
    return (high - low) / 2
