"""Measures how much of a selection one hostile source takes, and what it pushes out, on recorded runs.

    python benchmarks/sources.py toolathlon_dev --limit 12 --budget 4000

A hostile tool is woven into each run, from its first third on: ``plain`` is called once and brings an ordinary page,
``stuffed`` one with the words of the task, ``ids`` one with ids that look like those of the run; ``chain`` is called
25 times, each time with a value of its last output, ``often`` with three of them; ``control`` as often, without using
what it showed. At seven later points of each run the evidence model selects for a budget. Printed are the tokens of
these selections that the hostile source has, and the values with a digit that the next ten calls of the run take from
older outputs and that the selections show.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import tiktoken

from harness import command_line
from memory_bank.audit.traces import Trace, TraceFiles
from memory_bank.selection.index import EvidenceIndex
from memory_bank.selection.model import load_model
from memory_bank.selection.values import fold, stands_in
from memory_bank.transcript import Interaction, parse_messages
from meters import DATA, find

KINDS = ("none", "plain", "stuffed", "ids", "chain", "often", "control")
CALLS = 25  # of a source that comes back
POINTS, AHEAD = 8, 10
_WORD = re.compile(r"[A-Za-z]{4,}")
_ID = re.compile(r"\b(?=\w*\d)[\w-]{6,40}\b")

Call = tuple[str, str, str]  # tool, arguments, output
ENCODING = tiktoken.get_encoding("o200k_base")


def count(text: str) -> int:
    """Tokens of a text."""
    return len(ENCODING.encode(text, disallowed_special=()))


def calls_of_run(trace: Trace) -> list[Call]:
    """The answered calls of a run."""
    found = []
    for interaction in parse_messages(trace.messages):
        for pair in interaction.pairs if isinstance(interaction, Interaction) else ():
            if pair.call is not None and pair.result is not None:
                found.append((pair.tool_name, pair.call.text, pair.result.text))
    return found


def hostile(kind: str, run: Sequence[Call], task: str, chance: random.Random) -> Iterator[Call]:
    """The calls of the hostile source."""
    words = _WORD.findall(task) or ["order"]
    seen = _ID.findall(" ".join(output[:20_000] for _, _, output in run)) or ["A-100200"]
    last: list[str] = []
    for n in range({"none": 0, "plain": 1, "stuffed": 1, "ids": 1}.get(kind, CALLS)):
        rows = []
        for _ in range(30):
            note = " ".join(
                chance.choices(words if kind == "stuffed" else ["open", "late", "done", "paid"], k=6)
            )
            made = f"{chance.choice('QXZ')}{chance.randrange(10**6):06}-{n}"
            if kind == "ids":
                like = chance.choice(seen)
                made = re.sub(r"\d", lambda _: str(chance.randrange(10)), like)
            rows.append({"ref": made, "title": f"Item {chance.randrange(10**5)}", "note": note})
        given: dict[str, object] = {"page": n}
        if kind in ("chain", "often"):
            given = {f"ref{i}": ref for i, ref in enumerate(last[: 1 if kind == "chain" else 3])} or given
        yield "feed_lookup", json.dumps(given), json.dumps(rows)
        last = [row["ref"] for row in chance.sample(rows, 3)]


def measure(kind: str, run: Sequence[Call], task: str, budget: int) -> tuple[int, int, int, int]:
    """Tokens of the hostile source and of all in the selections; needed values that they show, and all."""
    chance = random.Random(0)
    begin = len(run) // 3
    woven: list[tuple[bool, Call]] = [(False, call) for call in run[:begin]]
    rest = [(False, call) for call in run[begin:]]
    bad = [(True, call) for call in hostile(kind, run[:begin], task, chance)]
    every = max(1, len(bad) // max(1, len(rest) // 2))
    for at, call in enumerate(rest):
        woven += bad[at * every : (at + 1) * every]
        woven.append(call)
    index = EvidenceIndex(load_model(), count)
    owners: list[bool] = []
    own = taken = shown = needed = 0
    points = {begin + (len(rest) * p) // POINTS for p in range(1, POINTS)}
    honest = 0
    for number, (is_bad, (tool, arguments, output)) in enumerate(woven, 1):
        before = index.tables.records.size
        index.add_call(
            trace_id=str(number), interaction=number, tool=tool, arguments=arguments, output=output
        )
        owners += [is_bad] * (index.tables.records.size - before)
        honest += not is_bad
        if is_bad or honest not in points:
            continue
        selection = index.select(anchor=[task], tail_interaction=number, budget=budget)
        for segment in selection.gains:
            tokens = int(index.tables.segments["tokens"][segment])
            taken += tokens
            own += tokens * owners[index.tables.place_of(segment)[0]]
        text, later = fold(selection.text), fold(" ".join(a for _, a, _ in run[honest : honest + AHEAD]))
        wanted = {index.tables.forms[v] for v in index.eligible(number).tolist()}
        for form in wanted:
            if any(map(str.isdigit, form)) and len(form) > 3 and stands_in(form, later):
                needed += 1
                shown += stands_in(form, text)
    return own, taken, shown, needed


def main() -> None:
    """Print the table."""
    parser = command_line(__doc__)
    parser.add_argument("data", nargs="+", help="trace files or names")
    parser.add_argument("--data-dir", type=Path, default=DATA)
    parser.add_argument("--limit", type=int, default=12, help="runs of each set, evenly spread")
    parser.add_argument("--budget", type=int, default=4_000, help="tokens of a selection")
    args = parser.parse_args()
    print("| set | source | of the selection, % | needed values shown, % | of |\n|---|---|---:|---:|---:|")
    for name in args.data:
        traces = [t for t in TraceFiles([find(name, args.data_dir)], print) if len(calls_of_run(t)) >= 12]
        chosen = traces[:: max(1, len(traces) // args.limit)][: args.limit]
        runs = [(calls_of_run(t), str(t.messages[0].get("content") or "") + t.task) for t in chosen]
        for kind in KINDS:
            rows = [measure(kind, run, task, args.budget) for run, task in runs]
            own, taken, shown, needed = (sum(column) for column in zip(*rows, strict=True))
            share, recall = 100 * own / max(1, taken), 100 * shown / max(1, needed)
            print(f"| {name} | {kind} | {share:.1f} | {recall:.1f} | {needed:,} |", flush=True)


if __name__ == "__main__":
    main()
