"""Pages of figures, and the frontier plot."""

import itertools
import re
import xml.etree.ElementTree as ET

from benchmarks.measuring.measure import COLUMNS, figures_of, measure
from benchmarks.measuring.pages import (
    HEIGHT,
    WIDTH,
    PageSection,
    PlotPoint,
    drawn,
    figures_page,
    frontier,
    plot_of,
)
from benchmarks.measuring.strategies import parse_strategy

TOYS = "tests.benchmarks.toys:"


def elements(page):
    body = page.removeprefix("<!DOCTYPE html>\n")
    return list(ET.fromstring(body).iter())


def test_the_page_is_well_formed_self_contained_and_escaped(traces, config):
    strategies = [
        parse_strategy(name, config) for name in ("full", TOYS + "keep_last?n=2", TOYS + "shorten", "oracle")
    ]
    rows = [(m.strategy.name, m.figures) for m in measure(traces, strategies, counter="approximate")]
    page = figures_page("<script>alert('&')</script>", [PageSection("orders", rows)], COLUMNS)
    tags = {e.tag.split("}")[-1] for e in elements(page)}
    assert {"svg", "table", "circle"} <= tags
    assert not tags & {"script", "link", "img", "iframe", "object", "image", "use"}
    assert not re.search(r"(?:src|href)=|url\(|@import", page)
    addresses = set(re.findall(r"https?://[^\"]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of SVG, not loaded
    assert "&lt;script&gt;alert(&#39;&amp;&#39;)" in page
    assert "prefers-color-scheme: dark" in page
    page.encode("utf-8")
    assert len([e for e in elements(page) if e.tag.endswith("circle")]) == 4


def test_a_page_without_points():
    page = figures_page("<t>\x00\x1b", [PageSection("<h>", [("x", figures_of([]))])], COLUMNS)
    assert elements(page)
    assert "<t>" not in page
    assert "&lt;t&gt;\ufffd\ufffd" in page


def test_labels_stay_in_the_drawing_and_off_each_other():
    points = [
        PlotPoint(f"strategy number {i}", 0.1 + 0.01 * (i % 3), 0.5 + 0.01 * i, 0.4, 0.9) for i in range(9)
    ]
    root = ET.fromstring(drawn(plot_of([*points, PlotPoint("dear", 1.4, 0.0, 0, 0)])))
    boxes = []
    for g in (g for g in root if g.tag.endswith("}g")):
        text = next(e for e in g if e.tag.endswith("text"))
        width, x, y = len(text.text) * 6.6, float(text.get("x")), float(text.get("y"))
        left = x if text.get("text-anchor") == "start" else x - width
        boxes.append((left, y - 11, left + width, y + 3))
    assert all(b[0] >= 0 and b[2] <= WIDTH and b[1] >= 0 and b[3] <= HEIGHT for b in boxes)
    pairs = itertools.combinations(boxes, 2)
    assert not any(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for a, b in pairs)


def test_the_frontier_leaves_out_what_is_beaten():
    a, b, c = PlotPoint("a", 0.1, 0.5, 0, 0), PlotPoint("b", 0.2, 0.4, 0, 0), PlotPoint("c", 0.3, 0.9, 0, 0)
    assert frontier([c, b, a]) == [a, c]


def test_every_column_says_what_it_means():
    assert len({c.title for c in COLUMNS}) == len(COLUMNS)
    assert all(c.meaning for c in COLUMNS)
    assert {c.cell(figures_of([])) for c in COLUMNS} == {"–", "0"}
