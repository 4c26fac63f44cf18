"""Measures false alarms and detection of memory_bank.provenance on recorded runs.

    python benchmarks/provenance.py [FILES...] [--limit N] [--seed 0] [--show 12] [--out results.json]

Every recorded tool call is checked with exactly the messages before it. Recorded calls are presumed
legitimate, so each value from nowhere is a false alarm, unless the agent really made it up: the commonest
kinds are listed with examples (``--show``), and those calls are counted apart in which an unknown part of
an alarm does stand before, in whatever form (a plain search in the JSON of messages and tools).

Detection: every identifier of a call that came from an earlier tool output (and from nothing the user or the
system said before) is corrupted in three ways, one at a time, seeded: ``swap`` exchanges two neighbouring
characters, ``replace`` puts another of its class in the place of one character, ``other`` writes a random
identifier of the same shape. Where the result stands nowhere in the session, it should be an alarm, and the
value suggested should be the original (``proposed``: for the detected swaps and replacements). Names
(``order_items``, ``report.pdf``: nothing that an agent could not have thought of) are counted apart. The
default files are ``../shared/data/*.jsonl.gz`` beside the repository, where they exist.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from harness import DATA, about, command_line, print_head
from memory_bank import MemoryBankState
from memory_bank.lab.traces import Trace, read_traces
from memory_bank.provenance import Origin, check_call
from memory_bank.provenance.check import index_of
from memory_bank.provenance.identifiers import IDENTIFIERS, ValueKind, normal
from memory_bank.transcript.messages import Call, calls_of

WAYS = ("swap", "replace", "other")
COLUMNS = (*WAYS, "swap of names", "replace of names")
IDENTIFIER_KINDS = {str(k) for k in IDENTIFIERS}


def corrupt(value: str, way: str, rng: random.Random) -> str | None:
    """The value with one slip; None where it has nothing to slip on."""
    places = [i for i, c in enumerate(value) if c.isalnum()]
    digits = [i for i in places if value[i].isdigit()]
    if way == "swap":
        pairs = [
            i for i in places
            if i + 1 < len(value) and value[i + 1].isalnum() and value[i].lower() != value[i + 1].lower()
        ]  # fmt: skip
        pairs = [i for i in pairs if value[i].isdigit() and value[i + 1].isdigit()] or pairs
        if not pairs:
            return None
        i = rng.choice(pairs)
        return value[:i] + value[i + 1] + value[i] + value[i + 2 :]
    if way == "replace":
        if not places:
            return None
        i = rng.choice(digits or places)
        return value[:i] + _other(value[i], rng) + value[i + 1 :]
    return "".join(_other(c, rng) if c.isalnum() else c for c in value)


def _other(c: str, rng: random.Random) -> str:
    pool = "0123456789" if c.isdigit() else "abcdefghijklmnopqrstuvwxyz"
    new = rng.choice([x for x in pool if x != c.lower()])
    return new.upper() if c.isupper() else new


def calls_before(trace: Trace) -> Iterator[tuple[Call, list[Any]]]:
    """Every recorded call with the messages before its turn."""
    for i, message in enumerate(trace.messages):
        if message.get("role") == "assistant":
            for call in calls_of(message):
                yield call, trace.messages[:i]


def measure(job: tuple[str, int, int, int]) -> dict[str, Any]:
    """One part of one file: counts, alarms by kind with examples, detection by way and kind, milliseconds."""
    file, limit, seed, part = job
    counts: Counter[str] = Counter()
    alarms: dict[str, Counter[str]] = defaultdict(Counter)
    detection: dict[str, Counter[str]] = defaultdict(Counter)
    missed: list[str] = []
    took: list[float] = []
    for number, trace in enumerate(read_traces(file)):
        if not isinstance(trace, Trace) or number % 2 != part or (limit and number >= limit):
            continue
        rng = random.Random(f"{seed}:{trace.id}")
        with MemoryBankState(session_id="trace") as state:
            for call, messages in calls_before(trace):
                start = time.perf_counter()
                report = check_call(call, state, messages, tools=trace.tools)
                took.append(time.perf_counter() - start)
                counts["calls"] += 1
                counts["values"] += len(report.values)
                counts["identifiers"] += sum(v.kind in IDENTIFIER_KINDS for v in report.values)
                counts["alarms"] += len(report.alarms)
                counts["calls with an alarm"] += not report.ok
                for alarm in report.alarms:
                    kind = f"{alarm.kind}{' in text' if alarm.token else ''}"
                    near = alarm.nearest.value if alarm.nearest else None
                    alarms[kind][
                        f"{call.name} {alarm.path} = {str(alarm.value)[:90]!r} near {str(near)[:90]!r}"
                    ] += 1
                if not report.ok:
                    before = json.dumps([messages, trace.tools], ensure_ascii=False).casefold()
                    absent = [not any(u in before for u in a.unknown) for a in report.alarms]
                    counts["alarms on what is absent in every form"] += sum(absent)
                    counts["calls with another alarm"] += not all(absent)
                detect(call, report, state, messages, trace.tools, rng, detection, missed)
    return {"counts": counts, "alarms": alarms, "detection": detection, "missed": missed, "took": took}


def detect(
    call: Call, report: Any, state: Any, messages: Any, tools: Any, rng: random.Random,
    detection: dict[str, Counter[str]], missed: list[str],
) -> None:  # fmt: skip
    """Corrupt each identifier that came from an output; count what is noticed and what is proposed."""
    index = index_of(state, messages, tools)
    for value in report.values:
        if value.origin is not Origin.RECORD or value.kind not in IDENTIFIER_KINDS or value.token:
            continue
        text = str(value.value)
        for way in WAYS:
            wrong = corrupt(text, way, rng)
            if wrong is None or wrong == text or index.holders(normal(wrong), 1):
                continue
            changed = _replaced(call.raw_input, value.value, wrong)
            if changed is None:
                continue
            found = [
                a for a in check_call((call.name, changed), state, messages, tools=tools).alarms
                if str(a.value) == wrong
            ]  # fmt: skip
            right = (
                bool(found)
                and found[0].nearest is not None
                and normal(found[0].nearest.value) == normal(text)
            )
            soft = value.kind == str(ValueKind.NAME)
            for row in (f"{way} of names" if soft else way, f"{way}, {value.kind}"):
                detection[row]["tried"] += 1
                detection[row]["detected"] += bool(found)
                detection[row]["original proposed"] += right
            if not found:
                missed.append(
                    f"{way}, {value.kind}: {call.name} {value.path} {text[:80]!r} as {wrong[:80]!r}"
                )


def _replaced(node: Any, old: Any, new: str) -> Any:
    """The arguments with one value replaced wherever it stands; None where it does not stand by itself."""
    hit = False

    def walk(n: Any) -> Any:
        nonlocal hit
        if isinstance(n, dict):
            return {k: walk(v) for k, v in n.items()}
        if isinstance(n, list):
            return [walk(v) for v in n]
        if type(n) is type(old) and n == old:
            hit = True
            return int(new) if isinstance(n, int) else float(new) if isinstance(n, float) else new
        return n

    changed = walk(node)
    return changed if hit else None


def at_many_calls(calls: int = 1_000) -> dict[str, float]:
    """Milliseconds of processor time of one check after so many past calls of 1.5 kB each."""
    from workload import interaction

    rng = random.Random(0)
    messages: list[Any] = [{"role": "user", "content": "Check all orders of the week."}]
    for i in range(calls):
        messages += interaction(i, rng)
    out: dict[str, float] = {}
    with MemoryBankState(session_id="many") as state:
        start = time.process_time()
        check_call(("get_order", {"order_id": "ORD-000007"}), state, messages)
        out["first (builds the index)"] = (time.process_time() - start) * 1000
        for name, arguments in (
            ("known id", {"order_id": "ORD-000500", "customer": "CUS-77", "limit": 5}),
            ("unknown id", {"order_id": "ORD-500000", "sku": "SKU-1234567"}),
            (
                "prose with ids",
                {"text": "Refund ORD-000500 and ORD-005000 to the customer, total 5123.20 dollars."},
            ),
        ):
            times = []
            for i in range(40):
                messages += interaction(calls + i, rng)
                start = time.process_time()
                check_call(("get_order", arguments), state, messages)
                times.append((time.process_time() - start) * 1000)
            out[name] = statistics.median(times)
    return out


def main() -> None:
    """Measure and print."""
    parser = command_line(__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--limit", type=int, default=0, help="traces a file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--show", type=int, default=0, help="examples of alarms and misses a file")
    parser.add_argument("--out", type=Path, help="also write the figures as JSON")
    args = parser.parse_args()
    files = args.files or sorted(DATA.glob("*.jsonl.gz"))
    if not files:
        sys.exit(f"no trace files: name some, or put them into {DATA}")
    results: dict[str, Any] = {}
    print_head(
        "data", "calls", "values", "alarms / 1,000 values", "calls with an alarm",
        "of these, not absent in every form", *COLUMNS, "proposed", "ms, p95",
    )  # fmt: skip
    details = []
    with ProcessPoolExecutor(args.jobs) as pool:
        jobs = [(str(f), args.limit, args.seed, part) for f in files for part in (0, 1)]
        parts = list(pool.map(measure, jobs))
        for i, file in enumerate(files):
            both = parts[2 * i : 2 * i + 2]
            counts = sum((b["counts"] for b in both), Counter())
            detection: dict[str, Counter[str]] = defaultdict(Counter)
            alarms: dict[str, Counter[str]] = defaultdict(Counter)
            for b in both:
                for k, c in b["detection"].items():
                    detection[k] += c
                for k, c in b["alarms"].items():
                    alarms[k] += c
            took = sorted(t for b in both for t in b["took"])
            name = file.name.split(".")[0]
            results[name] = {
                "counts": counts, "alarms by kind": {k: sum(c.values()) for k, c in alarms.items()},
                "detection": detection, "p95_ms": took[int(len(took) * 0.95)] * 1000 if took else 0.0,
            }  # fmt: skip
            print(_line(name, results[name]), flush=True)
            if args.show:
                details.append(f"\n## {name}")
                for kind, c in sorted(alarms.items(), key=lambda kc: -sum(kc[1].values())):
                    details.append(f"alarms, {kind}: {sum(c.values())}")
                    details += [f"  {n} × {example}" for example, n in c.most_common(args.show)]
                missed = [m for b in both for m in b["missed"]]
                random.Random(args.seed).shuffle(missed)
                missed.sort(key=lambda m: (m.startswith("other"), ", name:" in m))
                details.append(f"missed: {len(missed)}")
                details += [f"  {m}" for m in missed[: args.show]]
                details += [f"  {k}: {dict(c)}" for k, c in sorted(detection.items()) if "," in k]
    print("\n".join(details))
    speed = at_many_calls()
    print(
        "\nms of processor time of one check after 1,000 past calls: "
        + ", ".join(f"{k} {v:.2f}" for k, v in speed.items())
    )
    if args.out:
        document = about(seed=args.seed, results=results, ms=speed)
        args.out.write_text(json.dumps(document, indent=1))


def _line(name: str, r: dict[str, Any]) -> str:
    c, d = r["counts"], r["detection"]
    cells = [
        f"{c['calls']:,}", f"{c['values']:,}", f"{1000 * c['alarms'] / max(1, c['values']):.1f}",
        f"{c['calls with an alarm']} ({100 * c['calls with an alarm'] / max(1, c['calls']):.2f}%)",
    ]  # fmt: skip
    cells.append(f"{c['calls with another alarm']}")
    for way in COLUMNS:
        n = d[way]["tried"] if way in d else 0
        cells.append(f"{100 * d[way]['detected'] / n:.1f}% of {n}" if n else "–")
    # Of the detected swaps and replacements, the share for which the original is proposed.
    tried = sum(d[w]["detected"] for w in WAYS[:2] if w in d)
    right = sum(d[w]["original proposed"] for w in WAYS[:2] if w in d)
    cells.append(f"{100 * right / tried:.1f}%" if tried else "–")
    cells.append(f"{r['p95_ms']:.1f}")
    return f"| {name} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
