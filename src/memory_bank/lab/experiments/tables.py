"""Results gathered into lines, one for each strategy at a threshold on a suite, and written as Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from memory_bank.lab.experiments.replay import unpacked
from memory_bank.lab.experiments.units import Plan
from memory_bank.lab.meter.columns import milliseconds, percent, whole
from memory_bank.lab.meter.figures import Figures, figures_of

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """A strategy at a threshold (and with a model) on a suite: the results of its units that are done."""

    suite: str
    kind: str
    model: str | None
    strategy: str
    threshold: int | None
    results: tuple[Result, ...]

    @property
    def label(self) -> str:
        """What tells it from its neighbours: ``KEY?setting=value @ threshold``, the model before it."""
        at = "" if self.threshold is None else f" @ {self.threshold}"
        return f"{self.model}: {self.strategy}{at}" if self.model else f"{self.strategy}{at}"

    @cached_property
    def figures(self) -> Figures:
        """Of a replay suite: the instrument's figures over all its cases."""
        return figures_of([[unpacked(row) for row in r["rows"]] for r in self.results])

    def mean(self, *path: str) -> float:
        """The mean of a number over the results, NaN where none has it."""
        numbers = [v for r in self.results if (v := _at(r, path)) is not None]
        return float(sum(numbers)) / len(numbers) if numbers else math.nan

    def total(self, *path: str) -> float:
        """The sum of a number over the results."""
        return float(sum(v for r in self.results if (v := _at(r, path)) is not None))


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, the number of a line, how it is written, what it means."""

    title: str
    value: Callable[[Line], float]
    write: Callable[[float], str]
    meaning: str

    def cell(self, line: Line) -> str:
        """The text, a dash where there is no number."""
        value = self.value(line)
        return "–" if math.isnan(value) else self.write(value)


def money(amount: float) -> str:
    """A cost with four digits that count."""
    return f"{amount:,.2f}" if amount >= 100 else f"{amount:.4g}"


def _cached(line: Line) -> float:
    tokens = line.total("bill", "tokens")
    return line.total("bill", "cached") / tokens if tokens else math.nan


_BILL: tuple[Column, ...] = (
    Column("cost", lambda x: x.total("bill", "plain"), money, "all input tokens at the plain price"),
    Column(
        "cache-priced", lambda x: x.total("bill", "priced"), money,
        "the same, tokens of the longest common prefix with the request before at the cached price",
    ),
    Column("cached", _cached, percent, "tokens that a prefix cache knows, %"),
)  # fmt: skip
REPLAY: tuple[Column, ...] = (
    Column("cases", lambda x: len(x.results), whole, "cases done"),
    Column("evidence", lambda x: x.figures.bound_old, percent,
           "bound recall of evidence older than the last interaction, %"),
    Column("recall", lambda x: x.figures.recall, percent, "evidence that is present, %"),
    Column("of history", lambda x: x.figures.share_of_history, percent,
           "tokens beyond anchor and last interaction, % of the older ones"),
    Column("of full", lambda x: x.figures.share_of_full, percent, "tokens, % of the full history"),
    Column("tokens", lambda x: x.figures.tokens, whole, "mean tokens of a context"),
    *_BILL,
    Column("ms", lambda x: x.figures.ms, milliseconds, "mean milliseconds a step"),
    Column("errors", lambda x: x.figures.exceptions, whole, "steps at which the strategy raised"),
    Column("broken", lambda x: x.figures.broken, whole, "contexts with broken call/result pairs"),
)  # fmt: skip
LIVE: tuple[Column, ...] = (
    Column("cases", lambda x: len(x.results), whole, "cases done"),
    Column("success", lambda x: x.mean("score", "success"), percent, "cases done to their end, %"),
    Column("call accuracy", lambda x: _per(x, "correct", "calls"), percent, "of the calls due, %"),
    Column("completeness", lambda x: x.mean("score", "completeness"), lambda v: f"{v:.2f}",
           "of the answer, 0 to 2, by the judge; a dash without one"),
    Column("wrong calls", lambda x: x.total("score", "wrong"), whole, "calls that were not due"),
    Column("steps", lambda x: x.mean("steps"), lambda v: f"{v:.1f}", "mean model calls a case"),
    Column("largest", lambda x: max((r["largest"] for r in x.results), default=math.nan), whole,
           "tokens of the largest context"),
    Column("overflowed", lambda x: sum(r["ended"] == "overflow" for r in x.results), whole,
           "cases that ended because the context was too large"),
    *_BILL,
    Column("ms", lambda x: x.mean("ms"), milliseconds, "mean milliseconds of the strategy a step"),
)  # fmt: skip


def columns_of(kind: str) -> tuple[Column, ...]:
    """The columns of a kind of suite."""
    return REPLAY if kind == "replay" else LIVE


def gather(plan: Plan, done: Mapping[str, Result]) -> list[Line]:
    """The lines of an experiment in the order of its matrix; units that are not done are left out."""
    groups: dict[tuple[str, str, str | None, str, int | None], list[Result]] = {}
    for unit in plan.units:
        place = unit.place
        key = (unit.suite, unit.kind, place["model"], place["strategy"], unit.threshold)
        found = groups.setdefault(key, [])
        if unit.id in done:
            found.append(done[unit.id])
    return [Line(*key, tuple(found)) for key, found in groups.items() if found]


def markdown(lines: Sequence[Line]) -> str:
    """A table for each suite; before them, where there are several replay suites, one over all of them."""
    suites = list(dict.fromkeys(line.suite for line in lines))
    parts = []
    replayed = [line for line in lines if line.kind == "replay"]
    if len({line.suite for line in replayed}) > 1:
        parts.append(_overview(replayed))
    for suite in suites:
        own = [line for line in lines if line.suite == suite]
        columns = columns_of(own[0].kind)
        rows = [[line.label, *(c.cell(line) for c in columns)] for line in own]
        parts.append(f"## {suite}\n\n{_table(['strategy', *(c.title for c in columns)], rows)}")
    return "\n\n".join(parts) + "\n"


def _overview(lines: Sequence[Line]) -> str:
    """Strategies × suites, four numbers a cell; last the plain means over the suites."""
    suites = list(dict.fromkeys(line.suite for line in lines))
    shown = ("evidence", "tokens", "cache-priced", "ms")
    columns = [next(c for c in REPLAY if c.title == title) for title in shown]
    rows = []
    for label in dict.fromkeys(line.label for line in lines):
        own = {line.suite: line for line in lines if line.label == label}
        cells = [" / ".join(c.cell(own[s]) for c in columns) if s in own else "–" for s in suites]
        rows.append([label, *cells, " / ".join(_mean(c, list(own.values())) for c in columns)])
    return f"## {' / '.join(shown)}\n\n{_table(['strategy', *suites, 'mean'], rows)}"


def _mean(column: Column, lines: Sequence[Line]) -> str:
    numbers = [v for line in lines if not math.isnan(v := column.value(line))]
    return column.write(sum(numbers) / len(numbers)) if numbers else "–"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    written = [f"| {' | '.join(_cell(c) for c in row)} |" for row in rows]
    return "\n".join(
        [f"| {' | '.join(map(_cell, titles))} |", "|---|" + "---:|" * (len(titles) - 1), *written]
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _per(line: Line, part: str, all_of: str) -> float:
    due = line.total("score", all_of)
    return line.total("score", part) / due if due else math.nan


def _at(result: Result, path: Sequence[str]) -> Any:
    value: Any = result
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
