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
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import DATA, about, command_line, print_head, print_row
from memory_bank import MemoryBankState
from memory_bank.lab.traces import Trace, read_traces
from memory_bank.provenance import Origin, check_call
from memory_bank.provenance.check import index_of
from memory_bank.provenance.index import IDENTIFIERS, ValueKind, normal
from memory_bank.transcript.messages import Call, calls_of
from workload import interaction

WAYS = ("swap", "replace", "other")
COLUMNS = (*WAYS, "swap of names", "replace of names")
IDENTIFIER_KINDS = {str(k) for k in IDENTIFIERS}
Counts = defaultdict[str, Counter[str]]


def corrupt(value: str, way: str, rng: random.Random) -> str | None:
    """The value with one slip; None where it has nothing to slip on."""

    def other(c: str) -> str:
        pool = "0123456789" if c.isdigit() else "abcdefghijklmnopqrstuvwxyz"
        new = rng.choice([x for x in pool if x != c.lower()])
        return new.upper() if c.isupper() else new

    places = [i for i, c in enumerate(value) if c.isalnum()]
    if way == "swap":
        pairs = [
            i for i in places
            if i + 1 < len(value) and value[i + 1].isalnum() and value[i].lower() != value[i + 1].lower()
        ]  # fmt: skip
        pairs = [i for i in pairs if value[i].isdigit() and value[i + 1].isdigit()] or pairs
        i = rng.choice(pairs) if pairs else None
        return None if i is None else value[:i] + value[i + 1] + value[i] + value[i + 2 :]
    if way == "replace":
        i = rng.choice([i for i in places if value[i].isdigit()] or places) if places else None
        return None if i is None else value[:i] + other(value[i]) + value[i + 1 :]
    return "".join(other(c) if c.isalnum() else c for c in value)


def replaced(node: Any, old: Any, new: str) -> Any:
    """The arguments with one value replaced wherever it stands; equal to them where it does not stand by itself."""
    if isinstance(node, dict):
        return {k: replaced(v, old, new) for k, v in node.items()}
    if isinstance(node, list):
        return [replaced(v, old, new) for v in node]
    if type(node) is type(old) and node == old:
        return int(new) if isinstance(node, int) else float(new) if isinstance(node, float) else new
    return node


@dataclass
class Part:
    """What was found in a part of a file: alarms by kind with examples, detection by way and kind, seconds."""

    counts: Counter[str] = field(default_factory=Counter)
    alarms: Counts = field(default_factory=lambda: defaultdict(Counter))
    detection: Counts = field(default_factory=lambda: defaultdict(Counter))
    missed: list[str] = field(default_factory=list)
    took: list[float] = field(default_factory=list)

    def add(self, other: Part) -> None:
        """Sum both."""
        self.counts += other.counts
        for own, others in ((self.alarms, other.alarms), (self.detection, other.detection)):
            for key, counter in others.items():
                own[key] += counter
        self.missed += other.missed
        self.took += other.took

    def check(self, call: Call, state: MemoryBankState, messages: list[Any], tools: Any) -> Any:
        """Check a recorded call, and count its alarms."""
        start = time.perf_counter()
        report = check_call(call, state, messages, tools=tools)
        self.took.append(time.perf_counter() - start)
        self.counts += Counter(
            {
                "calls": 1,
                "values": len(report.values),
                "identifiers": sum(v.kind in IDENTIFIER_KINDS for v in report.values),
                "alarms": len(report.alarms),
                "calls with an alarm": not report.ok,
            }
        )
        for alarm in report.alarms:
            kind = f"{alarm.kind}{' in text' if alarm.token else ''}"
            near = str(alarm.nearest.value if alarm.nearest else None)[:90]
            self.alarms[kind][f"{call.name} {alarm.path} = {str(alarm.value)[:90]!r} near {near!r}"] += 1
        if not report.ok:
            before = json.dumps([messages, tools], ensure_ascii=False).casefold()
            absent = [not any(u in before for u in a.unknown) for a in report.alarms]
            self.counts["alarms on what is absent in every form"] += sum(absent)
            self.counts["calls with another alarm"] += not all(absent)
        return report

    def detect(
        self, call: Call, report: Any, state: MemoryBankState, messages: Any, tools: Any, rng: random.Random
    ) -> None:
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
                changed = replaced(call.raw_input, value.value, wrong)
                if changed == call.raw_input:
                    continue
                alarms = check_call((call.name, changed), state, messages, tools=tools).alarms
                found = [a for a in alarms if str(a.value) == wrong]
                near = found[0].nearest if found else None
                name = f"{way} of names" if value.kind == str(ValueKind.NAME) else way
                for row in (name, f"{way}, {value.kind}"):
                    self.detection[row]["tried"] += 1
                    self.detection[row]["detected"] += bool(found)
                    self.detection[row]["original proposed"] += bool(
                        near and normal(near.value) == normal(text)
                    )
                if not found:
                    where = f"{call.name} {value.path} {text[:80]!r} as {wrong[:80]!r}"
                    self.missed.append(f"{way}, {value.kind}: {where}")


def measure(job: tuple[str, int, int, int]) -> Part:
    """Every second trace of a file."""
    file, limit, seed, half = job
    part = Part()
    for number, trace in enumerate(read_traces(file)):
        if not isinstance(trace, Trace) or number % 2 != half or (limit and number >= limit):
            continue
        rng = random.Random(f"{seed}:{trace.id}")
        with MemoryBankState(session_id="trace") as state:
            for i, message in enumerate(trace.messages):
                for call in calls_of(message) if message.get("role") == "assistant" else ():
                    report = part.check(call, state, trace.messages[:i], trace.tools)
                    part.detect(call, report, state, trace.messages[:i], trace.tools, rng)
    return part


def at_many_calls(calls: int = 1_000) -> dict[str, float]:
    """Milliseconds of processor time of one check after so many past calls of 1.5 kB each."""
    rng = random.Random(0)
    messages: list[Any] = [{"role": "user", "content": "Check all orders of the week."}]
    for i in range(calls):
        messages += interaction(i, rng)
    prose = "Refund ORD-000500 and ORD-005000 to the customer, total 5123.20 dollars."
    asked = {
        "known id": {"order_id": "ORD-000500", "customer": "CUS-77", "limit": 5},
        "unknown id": {"order_id": "ORD-500000", "sku": "SKU-1234567"},
        "prose with ids": {"text": prose},
    }
    with MemoryBankState(session_id="many") as state:

        def milliseconds(arguments: dict[str, Any]) -> float:
            start = time.process_time()
            check_call(("get_order", arguments), state, messages)
            return (time.process_time() - start) * 1000

        out = {"first (builds the index)": milliseconds({"order_id": "ORD-000007"})}
        for name, arguments in asked.items():
            times = []
            for i in range(40):
                messages += interaction(calls + i, rng)
                times.append(milliseconds(arguments))
            out[name] = statistics.median(times)
    return out


def cells(part: Part) -> list[str]:
    """The row of a file."""
    c, d = part.counts, part.detection
    found = [
        f"{c['calls']:,}", f"{c['values']:,}", f"{1000 * c['alarms'] / max(1, c['values']):.1f}",
        f"{c['calls with an alarm']} ({100 * c['calls with an alarm'] / max(1, c['calls']):.2f}%)",
        f"{c['calls with another alarm']}",
    ]  # fmt: skip
    for way in COLUMNS:
        n = d[way]["tried"]
        found.append(f"{100 * d[way]['detected'] / n:.1f}% of {n}" if n else "–")
    # Of the detected swaps and replacements, the share for which the original is proposed.
    detected, right = (sum(d[w][k] for w in WAYS[:2]) for k in ("detected", "original proposed"))
    found.append(f"{100 * right / detected:.1f}%" if detected else "–")
    return [*found, f"{p95(part):.1f}"]


def p95(part: Part) -> float:
    """Milliseconds that 95% of the checks stay below."""
    took = sorted(part.took)
    return took[int(len(took) * 0.95)] * 1000 if took else 0.0


def examples(name: str, part: Part, most: int, seed: int) -> list[str]:
    """Examples of alarms and misses."""
    lines = [f"\n## {name}"]
    for kind, c in sorted(part.alarms.items(), key=lambda kc: -sum(kc[1].values())):
        lines.append(f"alarms, {kind}: {sum(c.values())}")
        lines += [f"  {n} × {example}" for example, n in c.most_common(most)]
    random.Random(seed).shuffle(part.missed)
    part.missed.sort(key=lambda m: (m.startswith("other"), ", name:" in m))
    lines += [f"missed: {len(part.missed)}", *(f"  {m}" for m in part.missed[:most])]
    return [*lines, *(f"  {k}: {dict(c)}" for k, c in sorted(part.detection.items()) if "," in k)]


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
    print_head(
        "data", "calls", "values", "alarms / 1,000 values", "calls with an alarm",
        "of these, not absent in every form", *COLUMNS, "proposed", "ms, p95",
    )  # fmt: skip
    results: dict[str, Any] = {}
    details: list[str] = []
    with ProcessPoolExecutor(args.jobs) as pool:
        parts = pool.map(measure, [(str(f), args.limit, args.seed, half) for f in files for half in (0, 1)])
        for file, part, other in zip(files, parts, parts, strict=False):
            part.add(other)
            name = file.name.split(".")[0]
            kinds = {k: sum(c.values()) for k, c in part.alarms.items()}
            results[name] = {
                "counts": part.counts, "alarms by kind": kinds, "detection": part.detection, "p95_ms": p95(part),
            }  # fmt: skip
            print_row(name, *cells(part))
            details += examples(name, part, args.show, args.seed) if args.show else []
    print("\n".join(details))
    speed = at_many_calls()
    shown = ", ".join(f"{k} {v:.2f}" for k, v in speed.items())
    print(f"\nms of processor time of one check after 1,000 past calls: {shown}")
    if args.out:
        args.out.write_text(json.dumps(about(seed=args.seed, results=results, ms=speed), indent=1))


if __name__ == "__main__":
    main()
