"""The report, one self-contained HTML page: plots, tables, cases one click away, and what made it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from memory_bank.lab.experiments.replay import unpacked
from memory_bank.lab.experiments.tables import LIVE, REPLAY, Line, columns_of, money
from memory_bank.lab.meter.columns import percent
from memory_bank.lab.meter.page import escape, render_document
from memory_bank.lab.meter.plot import Point, frontier_plot

MOST_CASES = 40
"""So many cases of a line are shown, those that lost most; the results file has all."""

_STYLE = """
body { max-width: 76rem; }
details { margin: .3rem 0 .3rem 1rem; } summary { cursor: pointer; }
details table { margin: .3rem 0 .6rem 1rem; } pre { overflow-x: auto; font-size: 12px; }
a { color: var(--one); } td.left { text-align: left; white-space: normal; overflow-wrap: anywhere; }
:target { outline: 2px solid var(--best); outline-offset: 2px; }
"""


def render_report(name: str, lines: Sequence[Line], done: int, total: int, made: Mapping[str, Any]) -> str:
    """The page of an experiment. ``made`` has its ``settings``, ``runs`` and hash (``experiment``).

    It works without scripts: a link leads into a closed part, which browsers open.
    """
    parts = [f"<h1>{escape(f'Experiment {name}')}</h1>"]
    state = "all are done" if done >= total else f"{total - done:,} are not done yet"
    parts.append(f'<p class="advice">{escape(f"{total:,} units, {state}.")}</p>')
    numbered = list(enumerate(lines))
    for suite in dict.fromkeys(line.suite for line in lines):
        own = [(n, line) for n, line in numbered if line.suite == suite]
        parts.append(f'<section class="suite"><h2>{escape(suite)}</h2>')
        parts.append(_plot([line for _, line in own]))
        parts.append(_summary(own))
        parts += [_drill(n, line) for n, line in own]
        parts.append("</section>")
    parts.append(_meanings(lines))
    parts.append(_made(made))
    return render_document(f"Experiment {name}", parts, _STYLE)


def _plot(lines: Sequence[Line]) -> str:
    if lines[0].kind == "replay":
        return frontier_plot([p for line in lines if (p := _kept(line))], escape)
    dearest = max(line.mean("bill", "priced") for line in lines) or 1.0
    points = []
    for line in lines:
        cost, share = line.mean("bill", "priced"), line.mean("score", "success")
        told = f"{line.label}: {percent(share)}% succeed at {money(cost)} a case"
        points.append(Point(line.label, cost / dearest, share, share, share, told))
    return frontier_plot(points, escape, "cache-priced cost, share of the dearest", "cases that succeed")


def _kept(line: Line) -> Point | None:
    f = line.figures
    if math.isnan(f.share_of_history) or math.isnan(f.bound_old):
        return None
    low, high = f.intervals.get("bound_old", (f.bound_old, f.bound_old))
    share = percent(f.share_of_history)
    told = f"{line.label}: {percent(f.bound_old)}% of old evidence at {share}% of older history"
    return Point(line.label, f.share_of_history, f.bound_old, low, high, told)


def _summary(lines: Sequence[tuple[int, Line]]) -> str:
    columns = columns_of(lines[0][1].kind)
    rows = [
        [f'<a href="#line-{n}">{escape(line.label)}</a>', *(escape(c.cell(line)) for c in columns)]
        for n, line in lines
    ]
    return f'<div class="wide">{_table(["strategy", *(c.title for c in columns)], rows, "summary")}</div>'


def _drill(number: int, line: Line) -> str:
    """A line's cases, those that lost most first, each with its steps."""
    ranked = sorted(line.results, key=_loss)[:MOST_CASES]
    ids = [f"line-{number}-case-{i}" for i in range(len(ranked))]
    links = [
        [f'<a href="#{at}">{escape(str(r["case"]))}</a>', *map(escape, _case_cells(line.kind, r))]
        for at, r in zip(ids, ranked, strict=True)
    ]
    titles = ["case", "seed", *(_REPLAY_CASE if line.kind == "replay" else _LIVE_CASE)]
    left = len(line.results) - len(ranked)
    more = f"<p>{left:,} cases that lost less are in results.jsonl.</p>" if left else ""
    cases = "".join(_case(at, line.kind, r) for at, r in zip(ids, ranked, strict=True))
    return (
        f"<details><summary>{escape(line.label)}: {len(line.results):,} cases</summary>"
        f'<div id="line-{number}" class="wide">{_table(titles, links, "cases")}{more}{cases}</div></details>'
    )


_REPLAY_CASE = ("evidence", "tokens", "cost", "cache-priced", "errors")
_LIVE_CASE = ("success", "right calls", "ended", "tokens", "cost", "cache-priced")


def _case_cells(kind: str, result: Mapping[str, Any]) -> list[str]:
    bill = result["bill"]
    costs = [f"{bill['tokens']:,}", money(bill["plain"]), money(bill["priced"])]
    seed = str(result["seed"])
    if kind != "replay":
        score = result["score"]
        right = f"{score['correct']} of {score['calls']}"
        return [seed, "yes" if score["success"] else "no", right, str(result["ended"]), *costs]
    kept, all_of_them = _old(result)
    errors = sum(bool(unpacked(row).error) for row in result["rows"])
    return [seed, f"{kept} of {all_of_them}", *costs, str(errors)]


def _case(at: str, kind: str, result: Mapping[str, Any]) -> str:
    if kind == "replay":
        titles, rows = _replay_steps(result)
    else:
        titles, rows = _live_steps(result)
    head = f"<summary>{escape(str(result['case']))}</summary>"
    steps = _table(titles, rows, "steps")
    return f'<details class="case">{head}<div id="{at}" class="wide">{steps}</div></details>'


def _replay_steps(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    rows = []
    for n, (packed, cached) in enumerate(zip(result["rows"], result["cached"], strict=True), 1):
        row = unpacked(packed)
        lost = sorted(f.age for f in row.found if not f.bound)
        kept = f"{len(row.found) - len(lost)} of {len(row.found)}"
        ages = ", ".join(map(str, lost[:12])) + (" …" if len(lost) > 12 else "")
        numbers = [f"{v:,}" for v in (row.tokens, row.full, cached)]
        rows.append([str(n), row.kind, *numbers, kept, ages, f"{1000 * row.seconds:.1f}", escape(row.error)])
    titles = ["step", "turn", "tokens", "full", "cached", "evidence kept", "ages lost", "ms", "error"]
    return titles, rows


def _live_steps(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    rows = []
    for n, turn in enumerate(result["turns"], 1):
        numbers = [f"{turn[k]:,}" for k in ("tokens", "full", "cached")]
        said = "; ".join(f"{c['call']}: {c['verdict']}" for c in turn["calls"]) or "an answer"
        rows.append([str(n), *numbers, f"{turn['ms']:.1f}", escape(said)])
    return ["step", "tokens", "full", "cached", "ms", "calls"], rows


def _loss(result: Mapping[str, Any]) -> tuple[float, float]:
    """What sorts cases: the share of right calls or kept evidence, then the larger loss."""
    if "rows" not in result:
        score = result["score"]
        return float(score["success"]), score["correct"] / max(1, score["calls"])
    kept, all_of_them = _old(result)
    return float(kept - all_of_them), 0.0


def _old(result: Mapping[str, Any]) -> tuple[int, int]:
    rows = [unpacked(row) for row in result["rows"]]
    found = [f.bound for row in rows if row.kind == "call" for f in row.found if f.age > 1]
    return sum(found), len(found)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], kind: str) -> str:
    """A table of cells that are markup already."""
    head = "".join(f"<th>{escape(t)}</th>" for t in titles)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _meanings(lines: Sequence[Line]) -> str:
    kinds = {line.kind == "replay" for line in lines}
    columns = {c.title: c for c in [*(REPLAY if True in kinds else ()), *(LIVE if False in kinds else ())]}
    told = "".join(f"<dt>{escape(c.title)}</dt><dd>{escape(c.meaning)}</dd>" for c in columns.values())
    return f"<h2>What the columns mean</h2><dl>{told}</dl>"


def _made(made: Mapping[str, Any]) -> str:
    """Commit, machine, seeds and settings."""
    keys = ("started", "commit", "version", "seeds", "python", "machine")
    runs = [[escape(str(run.get(k, ""))) for k in keys] for run in made["runs"]]
    settings = escape(json.dumps(made["settings"], indent=1, ensure_ascii=False))
    return (
        f"<h2>What made it</h2><p>experiment {escape(str(made['experiment']))}</p>"
        f'<div class="wide">{_table(keys, runs, "runs")}</div>'
        f"<details><summary>settings</summary><pre>{settings}</pre></details>"
    )
