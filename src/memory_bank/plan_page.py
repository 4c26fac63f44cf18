"""A plan as one self-contained page: what is shown, what nearly is, what became of every past interaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PAGE = """\
<!doctype html><html lang=en><meta charset=utf-8><title>What went into the context</title>
<meta name=viewport content='width=device-width'>
<style>
:root { color-scheme: light dark; --line: #8884; --new: #2a7; --part: #c80; --out: #888; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code { font: 13px/1.4 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
.kept { color: var(--new); } .part { color: var(--part); } .left, .listed { color: var(--out); }
.new td:first-child { border-left: 3px solid var(--new); }
small { color: var(--out); }
</style>
{% macro table(title, pieces, hint) %}
{% if pieces %}
<h2>{{ title }} ({{ "{:,}".format(pieces | length) }})</h2><p>{{ hint }}</p>
<table><tr><th>call<th>worth<th>piece and why
{% for p in pieces %}
<tr{% if p.new %} class="new"{% endif %}><td>{{ p.tool }}<br><small>{{ p.trace_id[:8] }}</small>
<td class=number>{{ "%.3f" % p.score }}<td><code>{{ p.text }}</code>
{% for v in p["values"] %}
<br><small>{{ v.value }} {{ "%.2f" % v.probability }}:
{% for name, amount in v.features.items() %}{{ name }} {{ "%+.2f" % amount }}{{ ", " if not loop.last }}{% endfor %}
</small>
{% endfor %}
{% endfor %}
</table>
{% endif %}
{% endmacro %}
<h1>What went into the context</h1>
<p><b>{{ "{:,}".format(m.tokens) }}</b> tokens instead of {{ "{:,}".format(m.full_tokens) }}
({{ "{:.0%}".format(1 - m.tokens / m.full_tokens if m.full_tokens else 0) }} less),
{{ "{:,}".format(m.memory_tokens) }} of them memory; counted by {{ m.counter }}.</p>
{% if m.unchanged %}<p>The messages went through unchanged: {{ m.why_unchanged }}.</p>{% endif %}
{{ table("Shown", m.pieces, "New since the step before is marked at the left.") }}
{{ table("Nearly shown", m.near_misses, "What a larger budget would show next.") }}
{{ table("Gone since the step before", m.gone, "") }}
<h2>Every past interaction ({{ "{:,}".format(m.decisions | length) }})</h2>
<table><tr><th>step<th>tools<th>fate<th>worth<th>tokens in full<th>why
{% for d in m.decisions %}
<tr><td class=number>{{ "earlier" if d.step is none else d.step }}<td>{{ d.tools | join(", ") }}
<td class={{ {"shown in part": "part", "left out": "left"}.get(d.fate, d.fate) }}>{{ d.fate }}
<td class=number>{{ "" if d.score is none else "%.3f" % d.score }}
<td class=number>{{ "{:,}".format(d.tokens) }}<td>{{ d.reason }}
{% endfor %}
</table></html>
"""


def render_plan(manifest: Mapping[str, Any]) -> str:
    """HTML of a manifest (``Plan.manifest()``). All texts are escaped; nothing is loaded from other hosts."""
    from jinja2 import Environment

    return Environment(autoescape=True, trim_blocks=True).from_string(_PAGE).render(m=manifest)
