"""HTML pages and SVG drawings from templates: self-contained, everything escaped."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from memory_bank.lab.meter.figures import COLUMNS, Figures
from memory_bank.lab.plot import Plot, PlotPoint
from memory_bank.lab.tables import percent

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


@dataclass(frozen=True, slots=True)
class PageSection:
    """A set of traces: its heading, the figures of every strategy on it by name, and the best strategy."""

    heading: str
    rows: Sequence[tuple[str, Figures]]
    best: str = ""

    def plot(self) -> Plot:
        """The frontier plot of the strategies that have both figures."""
        points = (evidence_point(name, figures, name == self.best) for name, figures in self.rows)
        return Plot([p for p in points if p is not None])


def evidence_point(name: str, f: Figures, best: bool = False) -> PlotPoint | None:
    """A strategy's point in the frontier plot; None when one of its two figures is missing."""
    if math.isnan(f.share_of_history) or math.isnan(f.bound_old):
        return None
    low, high = f.intervals.get("bound_old", (f.bound_old, f.bound_old))
    kept, price = percent(f.bound_old), percent(f.share_of_history)
    tooltip = f"{name}: {kept}% of old evidence at {price}% of older history"
    return PlotPoint(name, f.share_of_history, f.bound_old, low, high, tooltip, best)


def figures_page(title: str, lead: str, sections: Sequence[PageSection], lists: Lists = ()) -> str:
    """A page with a leading sentence, a plot and a table for each section, and lists of plain lines."""
    return render("figures.html", title=title, lead=lead, sections=sections, lists=lists, columns=COLUMNS)


def plot_file(section: PageSection) -> str:
    """The section's frontier plot as an SVG file, for light and dark, with short names as labels."""
    rows = [(short_name(name), f) for name, f in section.rows]
    style = _environment().get_template("colours.css").render()
    return render("plot.svg", plot=PageSection("", rows, short_name(section.best)).plot(), style=style)


def short_name(strategy: str) -> str:
    """``keep_last_n?n=5`` as ``keep_last_n 5``: the key and the values of its settings, without files."""
    key, _, settings = strategy.partition("?")
    values = (s.partition("=")[2] for s in settings.split("&") if s)
    return " ".join([key, ", ".join(v for v in values if "/" not in v)]).strip()
