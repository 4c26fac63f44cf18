"""Measures the search: does it find the output that the next call needs, and how long does it take?

    python benchmarks/search.py FILES... [--limit 60] [--model MODEL]
    python benchmarks/search.py --curve 500,5000,50000,100000

Queries are what an agent wrote before a call (25 characters or more), at most twelve a run. Wanted are the older
outputs (at most three of them) that show a value of the call which neither the task nor the query shows; the last
interaction does not count. hit@k is the share of such values of which one of the first k results shows the source.
Beside the search stands textbook BM25 over the outputs alone. ``--model`` adds the search with an embedder.

``--curve`` measures searches of made-up records: in a session of 500 and in a namespace of sessions of 500, the first
one (which reads the index) and the median of nine more, beside a scan of all stored outputs for one of the words.
"""

from __future__ import annotations

import math
import random
import re
import sqlite3
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from harness import command_line, print_head, print_row, words
from memory_bank import InteractionRecord, MemoryBankSettings, MemoryBankState, apply_memory_bank_strategy
from memory_bank.audit.traces import Trace, read_traces
from memory_bank.bank.database import Database
from memory_bank.tools.matching import identifiers_in
from memory_bank.tools.search import search_session
from memory_bank.transcript.messages import MessageKind, calls_of, content_text, kind_of

PLACES = (1, 3, 10)


def queries(trace: Trace) -> Iterator[tuple[int, str, list[list[int]], list[str]]]:
    """The position of a call, what was written before it, the numbers of the outputs wanted, and all outputs."""
    outputs: list[str] = []
    turns: list[int] = []
    known: list[set[str]] = []
    task, turn, asked = "", 0, 0
    for position, message in enumerate(trace.messages):
        text, kind = content_text(message.get("content")), kind_of(message)
        if kind in (MessageKind.SYSTEM, MessageKind.USER):
            task += text
        elif kind is MessageKind.RESULT:
            outputs.append(text)
            turns.append(turn)
            known.append(set(identifiers_in(text[:200_000])))
        elif kind is MessageKind.CALL:
            turn += 1
            if len(text) < 25 or len(outputs) < 8 or asked == 12:
                continue
            given = {token for call in calls_of(message) for token in identifiers_in(str(call.arguments))}
            wanted = []
            for token in sorted(t for t in given if t not in task and t not in text):
                holders = [n for n, tokens in enumerate(known) if token in tokens]
                if 0 < len(holders) <= 3 and all(turns[n] < turn - 1 for n in holders):
                    wanted.append(holders)
            if wanted:
                asked += 1
                yield position, text, wanted, list(outputs)


def terms(text: str) -> list[str]:
    split = re.sub(r"([a-z])([A-Z])", r"\1 \2", re.sub(r"[_/.:@#-]", " ", text))
    return [re.sub(r"(ing|ed|es|s)$", "", word) for word in re.findall(r"[a-z0-9]+", split.lower())]


def bm25(outputs: list[str], query: str, k1: float = 1.2, b: float = 0.75) -> list[int]:
    """The numbers of the outputs by the textbook: Robertson and Zaragoza, 2009."""
    counts = [Counter(terms(output[:40_000])) for output in outputs]
    lengths = [count.total() for count in counts]
    mean = statistics.mean(lengths) or 1
    scores = [0.0] * len(outputs)
    for term in set(terms(query)):
        holders = [n for n, count in enumerate(counts) if term in count]
        idf = math.log(1 + (len(counts) - len(holders) + 0.5) / (len(holders) + 0.5))
        for n in holders:
            often = counts[n][term]
            scores[n] += idf * often * (k1 + 1) / (often + k1 * (1 - b + b * lengths[n] / mean))
    return sorted(range(len(outputs)), key=lambda n: -scores[n])


def measure(path: Path, limit: int, model: str) -> None:
    found: dict[str, list[list[float]]] = {}
    for trace in [t for t in read_traces(path) if isinstance(t, Trace)][:limit]:
        states: dict[str, MemoryBankState] = {}
        for position, query, wanted, outputs in queries(trace):
            ranked = {"BM25 over outputs": bm25(outputs, query)}
            embedders = {"search": "lexical"} | ({"search with weights": model} if model else {})
            for name, embedder in embedders.items():
                settings = MemoryBankSettings(
                    selection="evidence", observer_model="extractive", embedding_model=embedder
                )
                state = states.setdefault(name, MemoryBankState(embedder))
                apply_memory_bank_strategy(trace.messages[:position], None, settings, state)
                ranked[name] = [m.outline.number - 1 for m in search_session(state, query, 10).matches]
            for name, numbers in ranked.items():
                hits = [[not set(w).isdisjoint(numbers[:k]) for k in PLACES] for w in wanted]
                found.setdefault(name, []).append(
                    [statistics.mean(column) for column in zip(*hits, strict=True)]
                )
    for name, rows in found.items():
        shares = (f"{100 * statistics.mean(column):.1f}" for column in zip(*rows, strict=True))
        print_row(path.name.split(".")[0], name, len(rows), *shares)


def curve(sizes: list[int], seed: int = 1) -> None:
    rng = random.Random(seed)
    vocabulary = [f"w{n}" for n in range(20_000)]
    print_head("records", "where", "first, s", "then, ms", "scan, ms")
    with tempfile.TemporaryDirectory() as folder:
        path, stored = Path(folder) / "bank.db", 0
        database = Database(path)
        for size in sizes:
            while stored < size:
                state = MemoryBankState("lexical", database=database, session_id=f"s{stored}")
                texts = [" ".join(rng.choices(vocabulary, k=100)) for _ in range(500)]
                state.add([
                    InteractionRecord.create(n, "get_thing", {"id": f"T-{stored + n}"}, {"text": text})
                    for n, text in enumerate(texts)
                ])  # fmt: skip
                stored += 500
            for where, scope in (("session", "session"), ("namespace", "all")):
                state = MemoryBankState("lexical", database=database, session_id="s0")
                state.prepare(MemoryBankSettings(embedding_model="lexical"))
                times = []
                for _ in range(10):
                    began = time.perf_counter()
                    search_session(state, "status of thing T-77 with w12, w400 and w77", 10, scope=scope)  # type: ignore[arg-type]
                    times.append(time.perf_counter() - began)
                began = time.perf_counter()
                if scope == "all":
                    with sqlite3.connect(path) as c:
                        c.execute("SELECT seq FROM records WHERE instr(output, ?)", (b"w12",)).fetchall()
                scanned = time.perf_counter() - began
                then, whole = (
                    1000 * statistics.median(times[1:]),
                    f"{1000 * scanned:.0f}" if scope == "all" else "",
                )
                print_row(size, where, f"{times[0]:.2f}", f"{then:.1f}", whole)
        database.close()


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--limit", type=int, default=60)
    parser.add_argument("--model", default="")
    parser.add_argument("--curve", type=words, default=[])
    args = parser.parse_args()
    if args.files:
        print_head("runs", "ranking", "queries", *(f"hit@{k}" for k in PLACES))
    for path in args.files:
        measure(path, args.limit, args.model)
    if args.curve:
        curve([int(size) for size in args.curve])
    return 0


if __name__ == "__main__":
    sys.exit(main())
