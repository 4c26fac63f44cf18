"""HTML pages and SVG drawings from templates: self-contained, everything escaped."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from jinja2 import Environment, PackageLoader, StrictUndefined

from memory_bank.lab.meter.figures import COLUMNS
from memory_bank.lab.plot import Plot, PlotPoint
from memory_bank.lab.tables import Column, percent

_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")

Lists = Sequence[tuple[str, Sequence[str]]]
"""Headings with the plain lines below them."""


def render(template: str, **values: object) -> str:
    """A template of this package filled in; characters that no page may hold become U+FFFD."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("memory_bank.lab"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        keep_trailing_newline=True,
    )


def _printable(value: object) -> object:
    return _NOT_IN_XML.sub("\ufffd", value) if type(value) is str else value


class SharesKept(Protocol):
    """Figures of a strategy: shares as attributes, their intervals by name, and the price."""

    @property
    def share_of_history(self) -> float:
        """Tokens beyond anchor and last interaction over those of the older history."""

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """95% bounds by the name of a share."""


@dataclass(frozen=True, slots=True)
class PlottedShare:
    """A figure on the y axis of a frontier plot: its attribute, and the title of the axis."""

    name: str
    title: str

    def point(self, strategy: str, figures: SharesKept, best: bool = False) -> PlotPoint | None:
        """A strategy's point in the plot; None when one of its two figures is missing."""
        price, kept = figures.share_of_history, float(getattr(figures, self.name))
        if math.isnan(price) or math.isnan(kept):
            return None
        low, high = figures.intervals.get(self.name, (kept, kept))
        tooltip = f"{strategy}: {self.title} {percent(kept)}% at {percent(price)}% of older history"
        return PlotPoint(strategy, price, kept, low, high, tooltip, best)


OLD_BOUND = PlottedShare("bound_old", "old evidence kept, bound")


@dataclass(frozen=True, slots=True)
class PageSection:
    """A set of traces: its heading, the figures of every strategy on it by name, and the best strategy."""

    heading: str
    rows: Sequence[tuple[str, SharesKept]]
    best: str = ""
    shares: Sequence[PlottedShare] = (OLD_BOUND,)

    def plots(self) -> list[Plot]:
        """A frontier plot for each share, of the strategies that have both figures."""
        plots = []
        for share in self.shares:
            points = (share.point(name, figures, name == self.best) for name, figures in self.rows)
            plots.append(Plot([p for p in points if p is not None], kept=share.title))
        return plots


def figures_page(
    title: str,
    lead: str,
    sections: Sequence[PageSection],
    lists: Lists = (),
    columns: Sequence[Column[Any]] = COLUMNS,
) -> str:
    """A page with a leading sentence, plots and a table for each section, and lists of plain lines."""
    return render("figures.html", title=title, lead=lead, sections=sections, lists=lists, columns=columns)


def plot_file(section: PageSection) -> str:
    """The section's first frontier plot as an SVG file, for light and dark, with short names as labels."""
    rows = [(short_name(name), f) for name, f in section.rows]
    style = _environment().get_template("colours.css").render()
    plot = PageSection("", rows, short_name(section.best), section.shares).plots()[0]
    return render("plot.svg", plot=plot, style=style)


def short_name(strategy: str) -> str:
    """``keep_last_n?n=5`` as ``keep_last_n 5``: the key and the values of its settings, without files."""
    key, _, settings = strategy.partition("?")
    values = (s.partition("=")[2] for s in settings.split("&") if s)
    return " ".join([key, ", ".join(v for v in values if "/" not in v)]).strip()
