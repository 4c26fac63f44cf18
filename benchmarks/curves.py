"""Draws how figures grow: curves of a table that a benchmark has printed, on two logarithmic axes.

    python benchmarks/curves.py docs/benchmarks/size.md records "list, s" "verify, s" --title seconds --svg size.svg

The first table of the Markdown file that has these columns is taken. The first column named is the horizontal axis,
each other one is a curve; where the table has a column before it, such as the database, one for each of its values.
Cells are read up to the first blank: ``2.72 (0.9 ×)`` is 2.72. The dotted line grows as the horizontal axis does.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from harness import command_line
from measuring.pages import HEIGHT, WIDTH
from memory_bank.pages import render

_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 210, 20, 50  # margins; labels stand at the right
_COLOURS = ("#0b6e99", "#b4541a", "#4c7a34", "#7a4ba0", "#a03050", "#6b6b1e", "#2f6f6f", "#555555")
STYLE = (
    "svg{font:13px system-ui,sans-serif;background:#fff}.grid{stroke:#ddd}.axis{stroke:#444}.dim{fill:#666}"
)

UNIT = re.compile(r" \([^)]*\)$|, \w+$")
"""The unit at the end of a column's head."""
Curves = dict[str, list[tuple[float, float]]]


def tables(text: str) -> Iterator[list[list[str]]]:
    """The cells of the tables of a Markdown text, the head first."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("|"):
            rows = [line, *takewhile(lambda each: each.startswith("|"), lines)]
            cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
            yield [row for row in cells if not set("".join(row)) <= set("-:")]


def curves_of(text: str, x: str, ys: Sequence[str]) -> Curves:
    """The points of each curve in the first table that has all columns; no point where a cell is empty or zero.

    Raises SystemExit where no table has the columns.
    """
    head, *rows = next((t for t in tables(text) if {x, *ys} <= {*t[0]}), [[]])
    if not head:
        raise SystemExit(
            f"no table of the file has the columns {', '.join([x, *ys])}: name columns as its head does."
        )
    at, kind = head.index(x), 0 if head.index(x) else None
    curves: Curves = {}
    for row in rows:
        for y in ys:
            values = [_number(row[at]), _number(row[head.index(y)])]
            if all(values):
                name = ": ".join(([] if kind is None else [row[kind]]) + [UNIT.sub("", y)])
                curves.setdefault(name, []).append((values[0], values[1]))
    return {name: sorted(points) for name, points in curves.items()}


def _number(cell: str) -> float:
    first = cell.partition(" ")[0].replace(",", "")
    try:
        return float(first)
    except ValueError:
        return 0.0


def drawing(curves: Curves, x: str, y: str) -> str:
    """The curves as an SVG file; ``x`` and ``y`` are the titles of the axes."""
    points = [p for each in curves.values() for p in each]
    (left, right), (low, high) = _decades([p[0] for p in points]), _decades([p[1] for p in points])

    def place(point: tuple[float, float]) -> tuple[float, float]:
        across, up = (
            (math.log10(point[0]) - left) / (right - left),
            (math.log10(point[1]) - low) / (high - low),
        )
        return _LEFT + across * (WIDTH - _LEFT - _RIGHT), HEIGHT - _BOTTOM - up * (HEIGHT - _TOP - _BOTTOM)

    drawn: list[dict[str, Any]] = [
        {"name": name, "points": [place(p) for p in each], "colour": _COLOURS[n % len(_COLOURS)]}
        for n, (name, each) in enumerate(curves.items())
    ]
    free = float(_TOP)
    for curve in sorted(drawn, key=lambda c: c["points"][-1][1]):
        curve["label"] = free = max(curve["points"][-1][1], free + 16)
    first = max(curves.values(), key=lambda each: each[-1][1] / each[0][1])[0]
    end = min(10.0**right, first[0] * 10**high / first[1])
    return render(
        Path(__file__).parent / "measuring" / "curves.svg",
        width=WIDTH, height=HEIGHT, left=_LEFT, right=WIDTH - _RIGHT, top=_TOP, bottom=HEIGHT - _BOTTOM, x=x, y=y,
        curves=drawn, style=STYLE, even=[place(first), place((end, first[1] * end / first[0]))],
        columns=[(f"{10**n:,}", place((10.0**n, 10.0**low))[0]) for n in range(left, right + 1)],
        rows=[(f"{10.0**n:g}", place((10.0**left, 10.0**n))[1]) for n in range(low, high + 1)],
    )  # fmt: skip


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """The powers of ten that are around the values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def main(arguments: list[str] | None = None) -> int:
    parser = command_line(__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("x", help="the column of the horizontal axis")
    parser.add_argument("y", nargs="+", help="the columns that are curves")
    parser.add_argument("--title", default="", help="of the vertical axis")
    parser.add_argument("--svg", type=Path, required=True)
    args = parser.parse_args(arguments)
    curves = curves_of(args.file.read_text("utf-8"), args.x, args.y)
    args.svg.write_text(drawing(curves, args.x, args.title or ", ".join(args.y)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
