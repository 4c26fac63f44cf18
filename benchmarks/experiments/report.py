"""The report of an experiment: one line for each strategy at a threshold on a suite, as Markdown and HTML."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.experiments.plan import ExperimentPlan
from benchmarks.experiments.run import rows_in
from benchmarks.measuring.measure import COLUMNS, Figures, figures_of, old_bound, ratio
from benchmarks.measuring.pages import OLD_BOUND, PlotPoint, drawn, plot_of
from benchmarks.measuring.tables import Column, markdown_table, milliseconds, whole

from memory_bank.audit.figures import money, percent
from memory_bank.pages import render


@dataclass(frozen=True)
class ReportLine:
    """A strategy at a threshold (and with a model) on a suite: the results of its units that are done."""

    suite: str
    kind: str
    model: str | None
    strategy: str
    threshold: int | None
    results: tuple[dict[str, Any], ...]

    @property
    def label(self) -> str:
        """The name of the line: ``MODEL: KEY?setting=value @ threshold``."""
        at = "" if self.threshold is None else f" @ {self.threshold}"
        return f"{self.model}: {self.strategy}{at}" if self.model else f"{self.strategy}{at}"

    @cached_property
    def figures(self) -> Figures:
        """Of a replay suite: the evidence meter's figures over all its cases."""
        return figures_of([rows_in(r) for r in self.results])

    @property
    def columns(self) -> tuple[Column[ReportLine], ...]:
        """The columns for the line's kind of suite."""
        return REPLAY if self.kind == "replay" else LIVE

    def numbers(self, *path: str) -> list[float]:
        """A number of every result that has it."""
        found: list[Any] = list(self.results)
        for name in path:
            found = [value[name] for value in found if value.get(name) is not None]
        return list(map(float, found))

    def mean(self, *path: str) -> float:
        """The mean of a number over the results; NaN where none has it."""
        numbers = self.numbers(*path)
        return ratio(sum(numbers), len(numbers))

    def share(self, table: str, part: str, of: str) -> float:
        """The sum of one number over the sum of another; NaN where that is 0."""
        return ratio(sum(self.numbers(table, part)), sum(self.numbers(table, of)))

    def as_row(self) -> dict[str, Any]:
        """The line as JSON values: its place in the matrix, and the numbers of its columns."""
        place = {k: getattr(self, k) for k in ("suite", "kind", "model", "strategy", "threshold")}
        values = {c.title: c.value(self) for c in self.columns}
        return place | {k: None if math.isnan(v) else v for k, v in values.items()}


_BILL: tuple[Column[ReportLine], ...] = (
    Column("cost", lambda x: sum(x.numbers("bill", "plain")), money, "all input tokens at the plain price"),
    Column("cache-priced", lambda x: sum(x.numbers("bill", "priced")), money,
           "the same, tokens of the longest prefix that an earlier request had at the cached price"),
    Column("cached", lambda x: x.share("bill", "cached", "tokens"), percent,
           "tokens that a prefix cache holds, %"),
)  # fmt: skip
_CASES: Column[ReportLine] = Column("cases", lambda x: len(x.results), whole, "cases done")
_FIGURES: dict[str, Column[ReportLine]] = {
    c.title: Column(c.title, lambda x, c=c: c.value(x.figures), c.write, c.meaning)  # type: ignore[misc]
    for c in COLUMNS
}
REPLAY: tuple[Column[ReportLine], ...] = (
    _CASES,
    replace(_FIGURES["old bound"], title="evidence"),
    *(_FIGURES[title] for title in ("recall", "of history", "of full", "tokens")),
    *_BILL,
    *(_FIGURES[title] for title in ("ms", "errors", "broken")),
)
LIVE: tuple[Column[ReportLine], ...] = (
    _CASES,
    Column("success", lambda x: x.mean("score", "success"), percent, "cases that succeeded, %"),
    Column("call accuracy", lambda x: x.share("score", "correct", "calls"), percent, "of the calls due, %"),
    Column("completeness", lambda x: x.mean("score", "completeness"), lambda v: f"{v:.2f}",
           "of the answer, 0 to 2, by the judge; a dash without one"),
    Column("wrong calls", lambda x: sum(x.numbers("score", "wrong")), whole, "calls that were not due"),
    Column("steps", lambda x: x.mean("steps"), lambda v: f"{v:.1f}", "mean model calls a case"),
    Column("largest", lambda x: max(x.numbers("largest"), default=math.nan), whole,
           "tokens of the largest context"),
    Column("overflowed", lambda x: sum(r["ended"] == "overflow" for r in x.results), whole,
           "cases that ended because the context was too large"),
    *_BILL,
    Column("ms", lambda x: x.mean("ms"), milliseconds, "mean milliseconds of the strategy a step"),
)  # fmt: skip


def report_lines(plan: ExperimentPlan, done: Mapping[str, dict[str, Any]]) -> list[ReportLine]:
    """The lines of an experiment in the order of its matrix; units that are not done are left out."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for unit in plan.units:
        key = tuple(unit.place[k] for k in ("suite", "kind", "model", "strategy", "threshold"))
        groups.setdefault(key, []).extend([done[unit.id]] if unit.id in done else [])
    return [ReportLine(*(*key, tuple(found))) for key, found in groups.items() if found]


def by_suite(lines: Iterable[ReportLine]) -> dict[str, list[ReportLine]]:
    """The lines of each suite, in their order."""
    suites: dict[str, list[ReportLine]] = {}
    for line in lines:
        suites.setdefault(line.suite, []).append(line)
    return suites


def markdown(lines: Sequence[ReportLine]) -> str:
    """A table for each suite; where there are several replay suites, one over all of them comes first."""
    parts = []
    replayed = by_suite(line for line in lines if line.kind == "replay")
    if len(replayed) > 1:
        parts.append(_overview(replayed))
    for suite, own in by_suite(lines).items():
        columns = own[0].columns
        rows = [[line.label, *(c.cell(line) for c in columns)] for line in own]
        parts.append(f"## {suite}\n\n{markdown_table(['strategy', *(c.title for c in columns)], rows)}")
    return "\n\n".join(parts) + "\n"


def _overview(suites: Mapping[str, Sequence[ReportLine]]) -> str:
    """Strategies × suites with four numbers a cell, and the plain means over the suites."""
    shown = ("evidence", "tokens", "cache-priced", "ms")
    columns = [next(c for c in REPLAY if c.title == title) for title in shown]
    rows = []
    for label in dict.fromkeys(line.label for own in suites.values() for line in own):
        found = {suite: line for suite, own in suites.items() for line in own if line.label == label}
        cells = [" / ".join(c.cell(found[s]) for c in columns) if s in found else "–" for s in suites]
        rows.append([label, *cells, " / ".join(c.cell(*found.values()) for c in columns)])
    return f"## {' / '.join(shown)}\n\n{markdown_table(['strategy', *suites, 'mean'], rows)}"


def render_report(
    name: str, lines: Sequence[ReportLine], done: int, total: int, header: Mapping[str, Any]
) -> str:
    """The self-contained page of an experiment: plots, tables, and the cases of each line with their steps.

    ``header`` has the experiment's hash (``experiment``), its ``settings`` and its ``runs``. The page works
    without scripts: browsers open a closed part when a link leads into it.
    """
    numbers = {id(line): n for n, line in enumerate(lines)}
    state = "all are done" if done >= total else f"{total - done:,} are not done yet"
    replays_first = sorted(lines, key=lambda line: line.kind != "replay")
    run_titles = ("started", "commit", "version", "seeds", "python", "machine")
    return render(
        Path(__file__).with_name("experiment.html"),
        title=f"Experiment {name}",
        lead=f"{total:,} units, {state}.",
        suites=[
            {
                "name": suite,
                "plot": drawn(_plot(own)),
                "columns": own[0].columns,
                "lines": [_line_part(numbers[id(line)], line) for line in own],
            }
            for suite, own in by_suite(lines).items()
        ],
        columns=list({c.title: c for line in replays_first for c in line.columns}.values()),
        experiment=header["experiment"],
        run_titles=run_titles,
        runs=[[run.get(k, "") for k in run_titles] for run in header["runs"]],
        settings=json.dumps(header["settings"], indent=1, ensure_ascii=False),
        money=money,
        whole=whole,
    )


def _plot(lines: Sequence[ReportLine]) -> dict[str, Any]:
    if lines[0].kind == "replay":
        return plot_of([p for line in lines if (p := OLD_BOUND.point(line.label, line.figures))])
    dearest = max(line.mean("bill", "priced") for line in lines) or 1.0
    points = []
    for line in lines:
        cost, share = line.mean("bill", "priced"), line.mean("score", "success")
        tooltip = f"{line.label}: {percent(share)}% succeed at {money(cost)} a case"
        points.append(PlotPoint(line.label, cost / dearest, share, share, share, tooltip))
    return plot_of(points, "cache-priced cost, share of the dearest", "cases that succeed")


def _line_part(number: int, line: ReportLine) -> dict[str, Any]:
    """A line for the template, with the 40 cases that lost most, each with its ``rows`` or ``turns``."""
    cases: list[dict[str, Any]] = []
    for result in line.results:
        if line.kind == "replay":
            rows = rows_in(result)
            kept, values = old_bound(rows)
            cases.append({**result, "loss": kept - values, "kept": kept, "values": values, "rows": rows})
        else:
            score = result["score"]
            loss = float(score["success"]), score["correct"] / max(1, score["calls"])
            cases.append({**result, "loss": loss})
    cases.sort(key=lambda case: case["loss"])
    return {"id": f"line-{number}", "line": line, "cases": cases[:40], "left": len(cases[40:])}
