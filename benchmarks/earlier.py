"""Measures what the earlier sessions of a project would have answered.

    python benchmarks/earlier.py FILES... [--limit 40]

The runs of a file are taken as the sessions of one project, in the order of the file; nothing of a later run is
searched. Queries are the arguments of calls that look something up, at most eight a run, spread over it. A record
answers if it has at least half of the lines that the call returned, of 20 characters or more. "any" is the share of
calls that some record of an earlier run answers; hit@k, one of the first k results; worth, the first one, and the
search's answer and the record that it names have fewer tokens than what the call returned; tokens@k, what
``search_memory`` says with so many results.

The second table is of the moment of an action: calls that failed and were made again in other words until one worked
(the *cure*: the same tool within ten calls, with at least half of the words). "any" is the share for which an earlier
run had the same failure (tool and error, but for numbers and paths) with its cure; hit@k, that a search with the
failed call's own arguments has this cure among the first k results.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections import Counter
from pathlib import Path

from harness import command_line, print_head, print_row
from memory_bank import InteractionRecord, MemoryBankSettings, MemoryBankState, handle_tool_call
from memory_bank.audit.traces import Trace, read_traces
from memory_bank.bank.database import Database
from memory_bank.bank.retrieval import records_of
from memory_bank.selection.effects import changes_something, is_failure
from memory_bank.selection.outcomes import outcome
from memory_bank.tools.search import search_session
from memory_bank.transcript.jsontext import compact
from memory_bank.transcript.tokens import approximate_counter, open_counter
from memory_bank.transcript.transcript import Transcript

PLACES = (1, 3, 10)
QUERIES = 8
SETTINGS = MemoryBankSettings(
    selection="evidence", observer_model="extractive", embedding_model="lexical", scope="project"
)


def lines_of(record: InteractionRecord) -> set[str]:
    """The lines by which an output is known again, without the numbers that a client writes before them."""
    output = record.output_text or compact(record.raw_output)
    stripped = (re.sub(r"^\s*\d+\s*[→|\t:]", "", line).strip() for line in output[:200_000].splitlines())
    return {line for line in stripped if len(line) >= 20}


def look_ups(records: list[InteractionRecord]) -> list[InteractionRecord]:
    """The calls that only look, and returned something that can be known again."""
    found = [
        r
        for r in records
        if isinstance(r.raw_input, dict)
        and not changes_something(r.tool_name, compact(r.raw_input))
        and len(lines_of(r)) >= 3
    ]
    return found[:: max(1, len(found) // QUERIES)][:QUERIES]


def failure_of(record: InteractionRecord) -> tuple[str, str] | None:
    """What failed and how, without numbers and paths; None for a call that worked."""
    output, given = record.output_text or compact(record.raw_output), compact(record.raw_input)
    if not is_failure(output, record.tool_name, given):
        return None
    said, _ = outcome(output, failed=True)
    return record.tool_name, re.sub(r"[^\s'\"]*/[^\s'\"]*|\d+", "#", said.casefold())


def cured(
    records: list[InteractionRecord],
) -> list[tuple[InteractionRecord, tuple[str, str], InteractionRecord]]:
    """The calls that failed, how, and the later ones of the same tool that worked with other arguments."""
    words = [set(re.findall(r"\w{2,}", compact(r.raw_input))) for r in records]
    found = []
    for n, record in enumerate(records):
        if (failed := failure_of(record)) is None or not words[n]:
            continue
        for m in range(n + 1, min(n + 11, len(records))):
            other = records[m]
            near = 2 * len(words[n] & words[m]) >= len(words[n]) and other.raw_input != record.raw_input
            if other.tool_name == record.tool_name and near and failure_of(other) is None:
                found.append((record, failed, other))
                break
    return found


def query_of(record: InteractionRecord) -> str:
    """The arguments of a call as words."""
    given = record.raw_input.values() if isinstance(record.raw_input, dict) else [record.raw_input]
    return " ".join(v for v in given if isinstance(v, str))[:2_000]


def measure(path: Path, limit: int) -> tuple[list[object], list[object]]:
    """A row of each table."""
    database, count = Database(""), open_counter().count_text
    holders: dict[str, set[tuple[str, str]]] = {}  # by line, the records that have it
    rows: list[list[float]] = []
    cures: dict[tuple[str, str], set[tuple[str, str]]] = {}  # by failure, the records that cured it
    tries: list[list[float]] = []
    for number, trace in enumerate([t for t in read_traces(path) if isinstance(t, Trace)][:limit]):
        name = f"run {number}"
        view = Transcript(name, approximate_counter()).update(trace.messages)
        records, _ = records_of(view.interactions, {}, 0)
        asking = MemoryBankState.open(database, f"asks {number}", project="p")
        asking.prepare(SETTINGS)
        for record in look_ups(records) if number else ():
            query = query_of(record)
            lines = lines_of(record)
            shared = Counter(place for line in lines for place in holders.get(line, ()))
            answers = {place for place, n in shared.items() if 2 * n >= len(lines)}
            matches = search_session(asking, query, max(PLACES)).matches
            places = [(m.outline.session_id, m.outline.trace_id) for m in matches]
            hits = (not answers.isdisjoint(places[:k]) for k in PLACES)
            said = [
                count(handle_tool_call(asking, "search_memory", {"query": query, "top_k": k})) for k in PLACES
            ]
            read = handle_tool_call(asking, "get_record", {"trace_id": places[0][1]}) if places else ""
            returned = record.output_text or compact(record.raw_output)
            is_worth = not answers.isdisjoint(places[:1]) and said[0] + count(read) < count(returned)
            rows.append([float(x) for x in (bool(answers), *hits, is_worth, *said)])
        own = cured(records)
        for record, failed, _ in own if number else ():
            matches = search_session(asking, query_of(record), max(PLACES)).matches
            places = [(m.outline.session_id, m.outline.trace_id) for m in matches]
            known = cures.get(failed, set())
            tries.append(
                [float(x) for x in (bool(known), *(not known.isdisjoint(places[:k]) for k in PLACES))]
            )
        for _, failed, cure in own:
            cures.setdefault(failed, set()).add((name, cure.trace_id))
        with MemoryBankState.open(database, name, project="p") as state:
            state.prepare(SETTINGS)
            state.add(records, task=trace.task)
        for record in records:
            for line in lines_of(record):
                holders.setdefault(line, set()).add((name, record.trace_id))
    means = [statistics.mean(column) for column in zip(*rows, strict=True)]
    told = (f"{100 * m:.1f}" for m in means[:5]), (f"{m:,.0f}" for m in means[5:])
    shares = [f"{100 * statistics.mean(column):.1f}" for column in zip(*tries, strict=True)]
    title = path.name.split(".")[0]
    return [title, len(rows), *told[0], *told[1]], [title, len(tries), *(shares or ["-"] * (1 + len(PLACES)))]


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--limit", type=int, default=40)
    args = parser.parse_args()
    hits, tokens = [f"hit@{k}" for k in PLACES], [f"tokens@{k}" for k in PLACES]
    found = [measure(path, args.limit) for path in args.files]
    for n, head in enumerate(
        (("look-ups", "any", *hits, "worth", *tokens), ("cured failures", "any", *hits))
    ):
        print_head("runs", *head)
        for rows in found:
            print_row(*rows[n])
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
