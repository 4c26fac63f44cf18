"""Draws what a step costs against the growth between two folds: the figure of docs/benchmarks/prefix-cache.md.

    python benchmarks/fold_curve.py docs/fold-curve.svg

Prints for each price table the growth at which a step costs least, as ``growth_that_pays`` returns it, and how much
more a step costs at half and at twice this growth.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from pathlib import Path

from memory_bank.lab.pages import render
from memory_bank.pricing import growth_that_pays

FOLD, INTERACTION = 4_000, 600  # tokens
# of a token read from the cache and of one written to it; the curve's colour, and where the label of its minimum is
PRICES = ((0.1, 1.25, "--best", -12), (0.1, 1.0, "--one", 22), (0.25, 1.0, "--dim", -12))
LEAST, MOST, DEAREST = 600, 32_000, 6_000  # of the axes
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 440, 70, 80, 20, 50


def step_cost(growth: float, read: float, write: float) -> float:
    """Return what a step costs between two folds, in tokens at the price of input."""
    folds = (write - read) * FOLD * INTERACTION / growth
    return write * INTERACTION + read * (FOLD + growth / 2) + folds


def x_of(growth: float) -> float:
    share = math.log(growth / LEAST) / math.log(MOST / LEAST)
    return LEFT + (WIDTH - LEFT - RIGHT) * share


def y_of(cost: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * cost / DEAREST


def line(growths: Iterable[float], read: float, write: float, colour: str, width: float) -> str:
    points = " ".join(f"{x_of(g):.1f},{y_of(step_cost(g, read, write)):.1f}" for g in growths)
    return f'<polyline fill="none" style="stroke: var({colour}); stroke-width: {width}" points="{points}"/>'


def label(x: float, y: float, text: str, anchor: str = "middle", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{text}</text>'


def draw() -> Iterable[str]:
    name = "cost of a step over refresh_after"
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}">'
    yield f'<style>{render("colours.css")}</style><rect width="100%" height="100%" fill="var(--paper)"/>'
    right, bottom = x_of(MOST), y_of(0)
    for cost in range(0, DEAREST + 1, 1_000):
        y = y_of(cost)
        yield f'<line class="grid" x1="{LEFT}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield label(LEFT - 8, y + 4, f"{cost:,}", "end", ' class="dim"')
    for growth in (600, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000):
        yield label(x_of(growth), bottom + 18, f"{growth:,}", extra=' class="dim"')
    yield label((LEFT + right) / 2, HEIGHT - 10, "refresh_after: tokens of interactions between two folds")
    turned = f' transform="rotate(-90 18 {HEIGHT / 2 - 15})"'
    yield label(18, HEIGHT / 2 - 15, "cost of a step, in tokens at the input price", extra=turned)
    for read, write, colour, place in PRICES:
        best = growth_that_pays(FOLD, INTERACTION, read, write)
        yield line((LEAST * (MOST / LEAST) ** (n / 80) for n in range(81)), read, write, colour, 1.5)
        yield line((best / 2 * 4 ** (n / 20) for n in range(21)), read, write, colour, 5)
        least = step_cost(best, read, write)
        yield f'<circle cx="{x_of(best):.1f}" cy="{y_of(least):.1f}" r="6" style="fill: var({colour})"/>'
        yield label(x_of(best), y_of(least) + place, f"{best:,}")
        beside = y_of(step_cost(MOST, read, write)) + 4 - 80 * (write - 1.125)
        yield label(right + 8, beside, f"{read} / {write:g}", "start")
        more = [step_cost(best * times, read, write) / least - 1 for times in (0.5, 2)]
        print(f"read {read}, write {write}: {best:,} tokens; at half {more[0]:+.1%}, at twice {more[1]:+.1%}")
    yield "</svg>\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("\n".join(draw()), encoding="utf-8")
