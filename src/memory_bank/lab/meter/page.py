"""One self-contained HTML page: the frontier plot and the table; nothing loaded, no scripts, all escaped."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from memory_bank.lab.meter.audit import Audit, described
from memory_bank.lab.meter.columns import COLUMNS, percent
from memory_bank.lab.meter.figures import Figures
from memory_bank.lab.meter.plot import Point, frontier_plot

_NO_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")

_COLOURS = """
:root {
  color-scheme: light dark;
  --ink: #1c2024; --dim: #6b7280; --line: #d7dbe0; --paper: #ffffff; --one: #2563a8; --best: #b4430f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e6e8ea; --dim: #9aa2ab; --line: #3a4048; --paper: #16191d; --one: #7db4ee; --best: #f0976a;
  }
}
"""
_PLOT = """
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .axis { stroke: var(--dim); } svg .grid { stroke: var(--line); } svg .dim { fill: var(--dim); }
svg .edge { stroke: var(--dim); fill: none; stroke-dasharray: 4 4; }
svg .range { stroke: var(--one); stroke-width: 1.5; } svg .dot { fill: var(--one); }
svg .best .range { stroke: var(--best); } svg .best .dot, svg .best text { fill: var(--best); }
"""
_STYLE = (
    _COLOURS
    + """
body {
  font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  margin: 2rem auto; max-width: 62rem; padding: 0 1rem;
}
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.advice { border-left: 4px solid var(--best); padding: .2rem 1rem; font-size: 1.05rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .25rem .6rem; text-align: right; white-space: nowrap; }
th, td { border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
tr.best td { color: var(--best); font-weight: 600; }
svg { width: 100%; height: auto; }
dt { font-weight: 600; } dd { margin: 0 0 .4rem 0; color: var(--dim); }
li { overflow-wrap: anywhere; }
"""
    + _PLOT
)

Lists = Sequence[tuple[str, Sequence[str]]]  # headings with plain lines below them


@dataclass(frozen=True, slots=True)
class Section:
    """A set of traces: its heading, and the figures of every strategy on it by name."""

    heading: str
    rows: Sequence[tuple[str, Figures]]
    best: str = ""


def escape(text: str) -> str:
    """Text that markup cannot come out of; characters that no page may hold are shown as U+FFFD."""
    return html.escape(_NO_TEXT.sub("\ufffd", text))


def render_page(title: str, lead: str, sections: Sequence[Section], lists: Lists = ()) -> str:
    """The page: a title, a leading sentence, a plot and a table for each section, lists of plain lines."""
    parts = [f"<h1>{escape(title)}</h1>"]
    if lead:
        parts.append(f'<p class="advice">{escape(lead)}</p>')
    for section in sections:
        parts.append(f"<h2>{escape(section.heading)}</h2>")
        parts.append(frontier_plot([p for row in section.rows if (p := _point(row, section.best))], escape))
        parts.append(_table(section))
    for heading, lines in lists:
        if lines:
            items = "".join(f"<li>{escape(line)}</li>" for line in lines)
            parts.append(f"<h2>{escape(heading)}</h2><ul>{items}</ul>")
    meanings = "".join(f"<dt>{escape(c.title)}</dt><dd>{escape(c.meaning)}</dd>" for c in COLUMNS)
    parts.append(f"<h2>What the columns mean</h2><dl>{meanings}</dl>")
    return render_document(title, parts)


def render_document(title: str, parts: Sequence[str], style: str = "") -> str:
    """A whole page around markup: nothing loaded, light and dark; ``style`` is added to its own."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{escape(title)}</title><style>{_STYLE}{style}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def render_plot(section: Section) -> str:
    """The section's frontier plot as an SVG file of its own, for light and dark; short names as labels."""
    points = [p for name, f in section.rows if (p := _point((short_name(name), f), short_name(section.best)))]
    drawing = frontier_plot(points, escape)
    paper = '<rect width="100%" height="100%" fill="var(--paper)"/>'
    head, rest = drawing.split(">", 1)
    return f"{head}><style>{_COLOURS}{_PLOT}</style>{paper}{rest}\n"


def short_name(strategy: str) -> str:
    """``keep_last_n?n=5`` as ``keep_last_n 5``: the key and the values of its settings, files left out."""
    key, _, settings = strategy.partition("?")
    values = (s.partition("=")[2] for s in settings.split("&") if s)
    return " ".join([key, ", ".join(v for v in values if "/" not in v)]).strip()


def audit_page(audit: Audit) -> str:
    """The page of an audit."""
    rows = [(o.strategy.name, o.figures) for o in audit.outcomes]
    losses = [f"{x.trace_id}: {x.kept:,} of {x.values:,} old values kept" for x in audit.losses]
    advised = next((described(o.strategy) for o in audit.outcomes if o.strategy.name == audit.advised), "")
    return render_page(
        "Memory audit",
        audit.sentence,
        [Section(f"{audit.traces:,} traces, tokens by {audit.counter}", rows, audit.advised)],
        [
            (f"Traces that lose most with {advised}", losses),
            ("Notes", audit.notes),
            ("Lines skipped", audit.skipped_lines),
            ("Files that cannot be read", audit.unreadable_files),
        ],
    )


def _point(row: tuple[str, Figures], best: str) -> Point | None:
    name, f = row
    if math.isnan(f.share_of_history) or math.isnan(f.bound_old):
        return None
    low, high = f.intervals.get("bound_old", (f.bound_old, f.bound_old))
    told = (
        f"{name}: {percent(f.bound_old)}% of old evidence at {percent(f.share_of_history)}% of older history"
    )
    return Point(name, f.share_of_history, f.bound_old, low, high, told, name == best)


def _table(section: Section) -> str:
    head = "".join(f"<th>{escape(c.title)}</th>" for c in COLUMNS)
    body = []
    for name, figures in section.rows:
        cells = "".join(f"<td>{escape(c.cell([figures]))}</td>" for c in COLUMNS)
        mark = ' class="best"' if name == section.best else ""
        body.append(f"<tr{mark}><td>{escape(name)}</td>{cells}</tr>")
    return f'<div class="wide"><table><tr><th>strategy</th>{head}</tr>{"".join(body)}</table></div>'
