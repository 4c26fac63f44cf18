"""A plan as one self-contained page: what was shown, what nearly was, what became of every past call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --new: #2a7; --part: #c80; --out: #888; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code { font: 13px/1.4 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
.kept { color: var(--new); } .part { color: var(--part); } .left, .listed { color: var(--out); }
.new td:first-child { border-left: 3px solid var(--new); }
small { color: var(--out); }
"""


def render_manifest(manifest: Mapping[str, Any]) -> str:
    """HTML of a manifest (``Plan.manifest()``). Every text is escaped; nothing is loaded from anywhere."""
    m = manifest
    saved = 1 - m["tokens"] / m["full_tokens"] if m["full_tokens"] else 0.0
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>What went into the context</title>",
        "<meta name=viewport content='width=device-width'>",
        f"<style>{_STYLE}</style><h1>What went into the context</h1>",
        f"<p><b>{m['tokens']:,}</b> tokens instead of {m['full_tokens']:,} ({saved:.0%} less), "
        f"{m['memory_tokens']:,} of them memory; counted by {escape(m['counter'])}.</p>",
    ]
    if m["unchanged"]:
        parts.append("<p>The messages went through unchanged.</p>")
    parts += _pieces("Shown", m["pieces"], "New since the step before is marked at the left.")
    parts += _pieces("Nearly shown", m["near_misses"], "What would have come next with a larger budget.")
    parts += _pieces("Gone since the step before", m["gone"], "")
    parts += _decisions(m["decisions"])
    return "\n".join([*parts, "</html>"])


def _pieces(title: str, pieces: Sequence[Mapping[str, Any]], hint: str) -> list[str]:
    if not pieces:
        return []
    rows = []
    for p in pieces:
        mark = ' class="new"' if p.get("new") else ""
        why = "<br>".join(
            f"<small>{escape(v['value'])} {v['probability']:.2f}: {escape(_features(v['features']))}</small>"
            for v in p["values"]
        )
        rows.append(
            f"<tr{mark}><td>{escape(p['tool'])}<br><small>{escape(p['trace_id'][:8])}</small>"
            f"<td class=number>{p['score']:.3f}<td><code>{escape(p['text'])}</code><br>{why}"
        )
    head = "<tr><th>call<th>worth<th>piece and why"
    return [f"<h2>{title} ({len(pieces):,})</h2><p>{hint}</p><table>{head}", *rows, "</table>"]


def _features(features: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {amount:+.2f}" for name, amount in features.items())


def _decisions(decisions: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = []
    for d in decisions:
        fate = str(d["fate"])
        score = "" if d["score"] is None else f"{d['score']:.3f}"
        step = "earlier" if d["step"] is None else d["step"]
        kind = {"shown in part": "part", "left out": "left"}.get(fate, fate)
        rows.append(
            f"<tr><td class=number>{step}<td>{escape(', '.join(d['tools']))}<td class={kind}>{escape(fate)}"
            f"<td class=number>{score}<td class=number>{d['tokens']:,}<td>{escape(d['reason'])}"
        )
    head = "<tr><th>step<th>tools<th>fate<th>worth<th>tokens in full<th>why"
    return [f"<h2>Every past interaction ({len(decisions):,})</h2><table>{head}", *rows, "</table>"]
