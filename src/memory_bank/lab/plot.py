"""The layout of the frontier plot: evidence kept over history paid for, one labelled point a strategy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 760, 440  # user units of the drawing
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 20, 50  # margins
_LETTER, _LINE = 7.3, 15  # width of a label's letter, height of its line
_LINES = 14  # a label is at most this many lines above or below its point

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
    best: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """The places of a point's dot, interval and label; ``leader``: a line joins dot and label."""

    point: PlotPoint
    x: float
    y: float
    low: float
    high: float
    label: str
    label_x: float
    label_y: float
    anchor: str
    leader: bool


class Plot:
    """Positions of everything that the template ``plot.svg`` draws.

    ``price`` and ``kept`` are the titles of the axes. The price axis is scaled by the square root, since
    cheap strategies lie close together.
    """

    width, height = WIDTH, HEIGHT

    def __init__(
        self,
        points: Sequence[PlotPoint],
        price: str = "share of the older history paid for",
        kept: str = "old evidence kept, bound",
    ) -> None:
        self.price, self.kept = price, kept
        widest = max([1.0, *(p.x for p in points)])
        self._widest = widest if widest <= 1 else math.ceil(widest * 10) / 10
        self.left, self.right, self.bottom, self.top = (
            self._x(0),
            self._x(self._widest),
            self._y(0),
            self._y(1),
        )
        self.rows = [(n, self._y(n / 100)) for n in range(0, 101, 20)]
        step = 100 * math.ceil(self._widest / 5)
        beyond = range(100 + step, round(100 * self._widest) + 1, step)
        self.columns = [(n, self._x(n / 100)) for n in (0, 1, 5, 10, 20, 40, 60, 80, 100, *beyond)]
        edge = frontier(points)
        self.edge = [(self._x(p.x), self._y(p.y)) for p in edge] if len(edge) > 1 else []
        taken: list[_Box] = [(x - 6, y - 6, x + 6, y + 6) for p in points for x, y in [self._position(p)]]
        self.marks = [self._mark(p, taken) for p in points]

    def _x(self, share: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * math.sqrt(max(0.0, share) / self._widest)

    def _y(self, share: float) -> float:
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * share

    def _position(self, p: PlotPoint) -> tuple[float, float]:
        return self._x(p.x), self._y(p.y)

    def _mark(self, p: PlotPoint, taken: list[_Box]) -> Mark:
        x, y = self._position(p)
        label = p.label if len(p.label) <= 40 else f"{p.label[:39]}…"
        label_x, label_y, anchor = _free_place(x, y, len(label) * _LETTER, taken)
        leader = abs(label_y - 4 - y) > _LINE
        return Mark(p, x, y, self._y(p.low), self._y(p.high), label, label_x, label_y, anchor, leader)


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
    for lines in sorted(range(-_LINES, _LINES + 1), key=abs):
        for anchor, at in (("start", x + 9), ("end", x - 9)):
            left = at if anchor == "start" else at - width
            base = y + 4 + lines * _LINE
            box = (left, base - 11, left + width, base + 3)
            if box[0] < 4 or box[2] > WIDTH - 4 or box[1] < 2 or box[3] > HEIGHT - _BOTTOM:
                continue
            first = first or (at, base, anchor)
            if not any(_overlap(box, other) for other in taken):
                taken.append(box)
                return at, base, anchor
    return first or (x, y - 10, "middle")


def _overlap(a: _Box, b: _Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
