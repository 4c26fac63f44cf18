"""Curves of tables: which points they have, and that those of the documentation are of its tables."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.benchmarks import load

curves = load("curves")
ROOT = Path(__file__).parents[2]
TABLE = """
| other |
|---|
| 9 |

| database | records | list, s | verify, s |
|---|---|---|---|
| sqlite | 10,000 | 0.1 (2 ×) | 1 |
| postgres | 1,000 | 0.3 |  |
| sqlite | 1,000 | 0.02 | 0.5 |
"""
COMMANDS = [
    match.group(1)
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for match in re.finditer(
        r"^\$ python benchmarks/curves\.py (.+(?:\n> .+)*)", page.read_text("utf-8"), re.M
    )
]


def test_a_curve_for_each_column_and_kind() -> None:
    assert curves.curves_of(TABLE, "records", ["list, s", "verify, s"]) == {
        "sqlite: list": [(1000, 0.02), (10_000, 0.1)],
        "sqlite: verify": [(1000, 0.5), (10_000, 1)],
        "postgres: list": [(1000, 0.3)],
    }


def test_a_column_that_no_table_has() -> None:
    with pytest.raises(SystemExit, match="no table of the file has the columns records, size"):
        curves.curves_of(TABLE, "records", ["size"])


def test_a_point_stands_where_its_figures_say() -> None:
    drawn = curves.drawing({"a": [(10, 1), (100, 10), (1000, 100)]}, "n", "ms")
    places = [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', drawn)]
    (x1, y1), (x2, y2), (x3, y3) = places
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    assert y1 - y2 == pytest.approx(y2 - y3, abs=0.2) and y1 > y2 > y3


@pytest.mark.parametrize("command", COMMANDS)
def test_the_curves_of_the_documentation_are_those_of_its_tables(command: str, tmp_path: Path) -> None:
    file, *rest, _, kept = shlex.split(command.replace("\\\n> ", " ").replace("\n> ", " "))
    made = tmp_path / "made.svg"
    assert curves.main([str(ROOT / file), *rest, "--svg", str(made)]) == 0
    assert made.read_text("utf-8") == (ROOT / kept).read_text("utf-8")


def test_the_documentation_has_curves() -> None:
    assert len(COMMANDS) >= 2
