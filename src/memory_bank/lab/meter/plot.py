"""The frontier plot as inline SVG: evidence kept over history paid for, a labelled point a strategy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 760, 440  # user units of the drawing
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 20, 50  # margins
_LETTER, _LINE = 7.3, 15  # what a letter of a label takes, and a line
_LINES = 14  # a label stands so many lines above or below its point at most

Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Point:
    """A strategy: its shares of 0 to 1 (x may be more), the 95% interval of y, and what a reader is told."""

    label: str
    x: float
    y: float
    low: float
    high: float
    told: str = ""
    best: bool = False


def frontier_plot(
    points: Sequence[Point],
    escape: Callable[[str], str],
    price: str = "share of the older history paid for",
    kept: str = "old evidence kept, bound",
) -> str:
    """An ``<svg>`` element with axes, intervals, points and labels; a dashed line joins the frontier.

    ``price`` and ``kept`` are what the axes say. Colours come from the page's classes ``axis grid dim edge
    range dot best``.
    """
    widest = max([1.0, *(p.x for p in points)])
    scale = _Scale(widest if widest <= 1 else math.ceil(widest * 10) / 10)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(kept)} over the {escape(price)}">'
    ]
    parts += _axes(scale, escape(price), escape(kept))
    edge = frontier(points)
    if len(edge) > 1:
        path = " ".join(f"{scale.x(p.x):.1f},{scale.y(p.y):.1f}" for p in edge)
        parts.append(f'<polyline class="edge" points="{path}"/>')
    taken: list[Box] = [_around(scale.x(p.x), scale.y(p.y)) for p in points]
    for p in points:
        parts.append(_drawn(p, scale, taken, escape))
    parts.append("</svg>")
    return "".join(parts)


def frontier(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats in both price and evidence, cheapest first."""
    edge: list[Point] = []
    for p in sorted(points, key=lambda p: (p.x, -p.y)):
        if not edge or p.y > edge[-1].y:
            edge.append(p)
    return edge


class _Scale:
    """Shares to places in the drawing; the price by its square root, as what is cheap lies close together."""

    def __init__(self, widest: float) -> None:
        self.widest = widest

    def x(self, share: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * math.sqrt(max(0.0, share) / self.widest)

    def y(self, share: float) -> float:
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * share


def _axes(scale: _Scale, price: str, kept: str) -> list[str]:
    left, right, low, high = scale.x(0), scale.x(scale.widest), scale.y(0), scale.y(1)
    parts = []
    for n in range(0, 101, 20):
        y = scale.y(n / 100)
        parts.append(f'<line class="grid" x1="{left:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="dim" x="{left - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{n}%</text>')
    step = 100 * math.ceil(scale.widest / 5)
    beyond = range(100 + step, round(100 * scale.widest) + 1, step)
    for n in (0, 1, 5, 10, 20, 40, 60, 80, 100, *beyond):
        x = scale.x(n / 100)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>')
        parts.append(f'<text class="dim" x="{x:.1f}" y="{low + 18:.1f}" text-anchor="middle">{n}%</text>')
    corner = f"{left:.1f},{high:.1f} {left:.1f},{low:.1f} {right:.1f},{low:.1f}"
    parts.append(f'<polyline class="axis" fill="none" points="{corner}"/>')
    x, y = (left + right) / 2, (low + high) / 2
    parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 10}" text-anchor="middle">{price}</text>')
    turned = f'text-anchor="middle" transform="rotate(-90 16 {y:.1f})"'
    parts.append(f'<text x="16" y="{y:.1f}" {turned}>{kept}</text>')
    return parts


def _drawn(p: Point, scale: _Scale, taken: list[Box], escape: Callable[[str], str]) -> str:
    x, y = scale.x(p.x), scale.y(p.y)
    label = p.label if len(p.label) <= 40 else f"{p.label[:39]}…"
    at_x, at_y, anchor = _room(x, y, len(label) * _LETTER, taken)
    mark = ' class="best"' if p.best else ""
    leader = ""
    if abs(at_y - 4 - y) > _LINE:  # far from its point: a line leads there
        ends = f'x1="{x:.1f}" y1="{y:.1f}" x2="{at_x:.1f}" y2="{at_y - 4:.1f}"'
        leader = f'<line class="grid" {ends}/>'
    low, high = scale.y(p.low), scale.y(p.high)
    return (
        f"<g{mark}><title>{escape(p.told or p.label)}</title>"
        f'<line class="range" x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>'
        f"{leader}"
        f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="5"/>'
        f'<text x="{at_x:.1f}" y="{at_y:.1f}" text-anchor="{anchor}">{escape(label)}</text></g>'
    )


def _around(x: float, y: float) -> Box:
    return (x - 6, y - 6, x + 6, y + 6)


def _room(x: float, y: float, width: float, taken: list[Box]) -> tuple[float, float, str]:
    """A place for a label beside its point that no other label or point has, else the least bad."""
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


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
