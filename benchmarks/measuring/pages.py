"""Pages of figures, and the frontier plot.

The plot shows evidence kept over history paid for, one labelled point a strategy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memory_bank.audit.figures import percent
from memory_bank.pages import render

from .tables import Column

WIDTH, HEIGHT = 760, 440  # user units of the drawing
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 20, 50  # margins
_Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class PlotPoint:
    """A strategy: its shares of 0 to 1 (x may be more), the 95% interval of y, and its tooltip."""

    label: str
    x: float
    y: float
    low: float
    high: float
    tooltip: str = ""


def plot_of(
    points: Sequence[PlotPoint],
    price: str = "share of the older history paid for",
    kept: str = "old evidence kept, bound",
) -> dict[str, Any]:
    """What the template ``plot.svg`` draws, with its places; ``price`` and ``kept`` are the titles of the axes.

    The price axis is scaled by the square root, since cheap strategies lie close together.
    """
    widest = max([1.0, *(p.x for p in points)])
    widest = widest if widest <= 1 else math.ceil(widest * 10) / 10

    def at_x(share: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * math.sqrt(max(0.0, share) / widest)

    def at_y(share: float) -> float:
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * share

    places = [(at_x(p.x), at_y(p.y)) for p in points]
    taken: list[_Box] = [(x - 6, y - 6, x + 6, y + 6) for x, y in places]
    drawn = []
    for p, (x, y) in zip(points, places, strict=True):
        label = p.label if len(p.label) <= 40 else f"{p.label[:39]}…"
        label_x, label_y, anchor = _free_place(x, y, len(label) * 7.3, taken)
        drawn.append(
            {
                "x": x, "y": y, "low": at_y(p.low), "high": at_y(p.high), "label": label, "label_x": label_x,
                "label_y": label_y, "anchor": anchor, "leader": abs(label_y - 4 - y) > 15,
                "tooltip": p.tooltip or p.label,
            }
        )  # fmt: skip
    step = 100 * math.ceil(widest / 5)
    columns = (0, 1, 5, 10, 20, 40, 60, 80, 100, *range(100 + step, round(100 * widest) + 1, step))
    edge = [(at_x(p.x), at_y(p.y)) for p in frontier(points)]
    return {
        "width": WIDTH, "height": HEIGHT, "left": at_x(0), "right": at_x(widest), "bottom": at_y(0), "top": at_y(1),
        "price": price, "kept": kept, "points": drawn, "edge": edge if len(edge) > 1 else [],
        "rows": [(n, at_y(n / 100)) for n in range(0, 101, 20)], "columns": [(n, at_x(n / 100)) for n in columns],
    }  # fmt: skip


def frontier(points: Sequence[PlotPoint]) -> list[PlotPoint]:
    """The points that no other point beats in both price and evidence, cheapest first."""
    edge: list[PlotPoint] = []
    for p in sorted(points, key=lambda p: (p.x, -p.y)):
        if not edge or p.y > edge[-1].y:
            edge.append(p)
    return edge


def _free_place(x: float, y: float, width: float, taken: list[_Box]) -> tuple[float, float, str]:
    """A place next to a point for its label that no other label or point covers, else the least bad."""
    first: tuple[float, float, str] | None = None
    for lines in sorted(range(-14, 15), key=abs):
        for anchor, at in (("start", x + 9), ("end", x - 9)):
            left, base = (at if anchor == "start" else at - width), y + 4 + lines * 15
            box = (left, base - 11, left + width, base + 3)
            if box[0] < 4 or box[2] > WIDTH - 4 or box[1] < 2 or box[3] > HEIGHT - _BOTTOM:
                continue
            first = first or (at, base, anchor)
            if not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken):
                taken.append(box)
                return at, base, anchor
    return first or (x, y - 10, "middle")


@dataclass(frozen=True, slots=True)
class PlottedShare:
    """A figure on the y axis of a frontier plot: its attribute, and the title of the axis."""

    name: str
    title: str

    def point(self, strategy: str, figures: Any) -> PlotPoint | None:
        """A strategy's point in the plot; None when its share or its ``share_of_history`` is missing."""
        price, kept = figures.share_of_history, float(getattr(figures, self.name))
        if math.isnan(price) or math.isnan(kept):
            return None
        low, high = figures.intervals.get(self.name, (kept, kept))
        tooltip = f"{strategy}: {self.title} {percent(kept)}% at {percent(price)}% of older history"
        return PlotPoint(strategy, price, kept, low, high, tooltip)


OLD_BOUND = PlottedShare("bound_old", "old evidence kept, bound")


@dataclass(frozen=True, slots=True)
class PageSection:
    """A set of traces: its heading, and the figures of every strategy on it by name."""

    heading: str
    rows: Sequence[tuple[str, Any]]
    shares: Sequence[PlottedShare] = (OLD_BOUND,)

    def plots(self, **values: str) -> list[str]:
        """A frontier plot for each share, of the strategies that have both figures; ``values`` are the template's."""
        points = ([s.point(n, f) for n, f in self.rows] for s in self.shares)
        return [
            drawn(plot_of([*filter(None, p)], kept=s.title), **values)
            for p, s in zip(points, self.shares, strict=True)
        ]


def figures_page(title: str, sections: Sequence[PageSection], columns: Sequence[Column[Any]]) -> str:
    """A page with plots and a table for each section."""
    page = Path(__file__).with_name("figures.html")
    return render(page, title=title, lead="", sections=sections, columns=columns)


def drawn(plot: dict[str, Any], **values: str) -> str:
    """A plot as SVG; ``style``: for a file of its own."""
    return render(Path(__file__).with_name("plot.svg"), plot=plot, **values)
