"""Measures the search: does it find the output that the next call needs?

    python benchmarks/search.py FILES... [--limit 60] [--model MODEL]

Queries are what an agent wrote before a call (25 characters or more), at most twelve a run. Wanted are the older
outputs (at most three of them) that show a value of the call which neither the task nor the query shows; the last
interaction does not count. hit@k is the share of such values of which one of the first k results shows the source.
Beside the search stands textbook BM25 over the outputs alone. ``--model`` adds the search with an embedder.
"""

from __future__ import annotations

import math
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from harness import command_line, print_head, print_row
from memory_bank import MemoryBankSettings, MemoryBankState, apply_memory_bank_strategy
from memory_bank.audit.traces import Trace, read_traces
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


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--limit", type=int, default=60)
    parser.add_argument("--model", default="")
    args = parser.parse_args()
    if args.files:
        print_head("runs", "ranking", "queries", *(f"hit@{k}" for k in PLACES))
    for path in args.files:
        measure(path, args.limit, args.model)
    return 0


if __name__ == "__main__":
    sys.exit(main())
