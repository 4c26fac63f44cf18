"""Measures what a step costs after n past steps: it should depend on what is new, not on the history.

    python benchmarks/step_overhead.py [--out results.json]
    python benchmarks/step_overhead.py --part observer,crowd [--database sqlite,postgres] [--records 1000000]
    python benchmarks/step_overhead.py --part runs --traces claude_code_dev.jsonl.gz --runs 6 [--against SRC]
    python benchmarks/step_overhead.py --part loop [--traces claude_code_dev.jsonl.gz --runs 3]

An agent's conversation grows one tool call at a time (outputs of about 1.5 kB); each step calls
``apply_memory_bank_strategy`` with the lexical embedder and the extractive observer, in memory and on a
SQLite file (WAL, synchronous=FULL). The figures are medians over the 41 steps around n, and their ratio to
the steps around 30. ``evidence`` selects by evidence under 2,000 tokens; its 95th percentile is printed
too. ``re-parse`` is the straightforward way for comparison, in the same run: the same
strategy with a conversation that is read anew at every step.

``observer``: at 1,000 past steps, steps with an Observer whose model takes 2 s, in the background, beside
steps by extraction and with the Observer off: states of their own in one database, in blocks of 40 steps by
turns, 50 ms between the steps. ``crowd``: steps at 100 past steps in a bank that holds a million small
records (with insights) of 1,000 other sessions, and in one that holds none, step by step by turns.
``runs``: CPU time of every step of recorded runs (evenly spread over each file) with the shipped strategy;
``--against`` names the ``src`` folder of another version, whose contexts are compared message by message.
``loop``: how long an event loop waits while ``Memory.acontext`` works in a thread, at every step of a growing
conversation and of recorded runs: CPU time between two turns of a task that sleeps a millisecond, so that other
programs do not count; full collections of Python's garbage, which stop every thread, stand by themselves.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import importlib
import json
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import workload
from harness import about, command_line, print_head, print_row
from memory_bank import (
    Memory,
    MemoryBankSettings,
    MemoryBankState,
    MemoryProcessor,
    apply_memory_bank_strategy,
)
from memory_bank.audit.traces import Trace, is_turn, read_traces
from memory_bank.transcript import ENCODING
from workload import interaction

POINTS = (30, 100, 300, 1000, 3000)
HALF_WINDOW = 20
LOCAL = {"embedding_model": "lexical", "observer_model": "extractive"}
SETTINGS = MemoryBankSettings(**LOCAL, retrieval_query="adaptive")
EVIDENCE = MemoryBankSettings(**LOCAL, selection="evidence", history_budget=2000, refresh_after=0)


class Growing:
    """A session whose conversation grows, and the seconds that its steps took."""

    def __init__(self, state: MemoryBankState, settings: MemoryBankSettings, model: Any = None) -> None:
        self.state, self.settings, self.model = state, settings, model
        self.messages = workload.beginning(state.session_id)
        self.rng = random.Random(state.session_id)
        self.seconds: list[float] = []
        self.count = 0

    def step(self, settings: MemoryBankSettings | None = None) -> None:
        """One more step."""
        self.grow()
        start = time.perf_counter()
        apply_memory_bank_strategy(self.messages, self.model, settings or self.settings, self.state)
        self.seconds.append(time.perf_counter() - start)

    def grow(self) -> None:
        """One more call."""
        self.messages += interaction(self.count, self.rng)
        self.count += 1

    def figures(self) -> tuple[float, float]:
        """Median and 95th percentile, in ms."""
        cuts = statistics.quantiles(self.seconds, n=20)
        return 1000 * statistics.median(self.seconds), 1000 * cuts[-1]


def run(
    where: str | Path,
    points: tuple[int, ...],
    *,
    reparse: bool = False,
    settings: MemoryBankSettings = SETTINGS,
    share: float = 0.5,
) -> dict[int, float]:
    """Seconds of a step around each point: the median, or another share of the steps that are no slower."""
    growing = Growing(MemoryBankState("lexical", database=where), settings)
    timed: dict[int, list[float]] = {n: [] for n in points}
    for i in range(max(points) + HALF_WINDOW + 1):
        windows = [times for n, times in timed.items() if max(1, n - HALF_WINDOW) <= i <= n + HALF_WINDOW]
        if reparse and not windows:
            growing.grow()  # the slow way is only walked where it is timed
            continue
        if reparse:
            growing.state.transcript.reset()
        growing.step()
        for times in windows:
            times.append(growing.seconds[-1])
    growing.state.close()
    return {n: sorted(t)[min(len(t) - 1, int(share * len(t)))] for n, t in timed.items()}


def opened(where: str, session: str, settings: MemoryBankSettings, model: Any = None) -> Growing:
    """A session in a database."""
    return Growing(workload.open_state(where, session), settings, model)


def observer_part(places: dict[str, str], past: int = 1000, blocks: int = 3) -> None:
    """What a slow Observer beside the agent adds to a step."""
    print_head("database", "Observer", "steps", "median (ms)", "p95 (ms)", "p95 beyond extraction (ms)")
    for kind, where in places.items():
        asked = {"observer_model": "slow", "observer_mode": "background"}
        modes = {
            "extraction": opened(where, "extraction", SETTINGS),
            "off": opened(where, "off", SETTINGS.model_copy(update={"observer_mode": "off"})),
            "2 s, in the background": opened(
                where, "background", SETTINGS.model_copy(update=asked), workload.scripted(2.0)
            ),
        }
        for growing in modes.values():
            while growing.count < past:
                growing.step(SETTINGS)
            growing.seconds.clear()
        for _ in range(blocks):
            for growing in modes.values():
                for _ in range(40):
                    growing.step()
                    time.sleep(0.05)
                if growing.state.flush(120):
                    raise RuntimeError("the Observer did not come to an end")
        base = modes["extraction"].figures()[1]
        for name, growing in modes.items():
            median, p95 = growing.figures()
            print_row(kind, name, len(growing.seconds), f"{median:.2f}", f"{p95:.2f}", f"{p95 - base:+.2f}")
            growing.state.close()


def crowd_part(places: dict[str, tuple[str, str]], records: int, steps: int = 200) -> None:
    """What a million records of others add to a step."""
    print_head(
        "database", "others' records", "median alone (ms)", "median in the crowd (ms)", "ratio", "p95 ratio"
    )
    for kind, (alone_at, crowd_at) in places.items():
        start = time.perf_counter()
        alone, crowd = (opened(where, "me", SETTINGS) for where in (alone_at, crowd_at))
        crowd.step()
        alone.step()
        fill = fill_sqlite if kind == "sqlite" else fill_postgres
        size = fill(crowd_at, records)
        print(f"<!-- {kind}: {size / 1e9:.1f} GB, filled in {time.perf_counter() - start:.0f} s -->")
        for i in range(100 + steps):
            for growing in (alone, crowd) if i % 2 else (crowd, alone):
                growing.step()
        for growing in (alone, crowd):
            del growing.seconds[:101]
        (a50, a95), (c50, c95) = alone.figures(), crowd.figures()
        print_row(kind, records, *(f"{x:.2f}" for x in (a50, c50, c50 / a50, c95 / a95)))
        alone.state.close()
        crowd.state.close()


RECORD = "session_id, trace_id, step_id, tool_name, input, input_verbatim, output, output_verbatim, timestamp"
INSIGHT = "session_id, trace_id, summary, embedding, source"


def others(records: int) -> Iterator[tuple[str, str, int]]:
    """Session, trace_id and step of records of 1,000 sessions that take turns."""
    for i in range(records):
        yield f"other{i % 1000}", f"{i:036}", i // 1000


def fill_sqlite(where: str, records: int) -> int:
    """Add small records of others with insights; how many bytes the file has then."""
    file = where.removeprefix("sqlite:///")
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA synchronous=OFF")
    connection.executemany(
        f"INSERT INTO records ({RECORD}) VALUES (?, ?, ?, x'66', x'7b7d', 1, ?, 1, 0)",
        ((s, t, i, b"order " + t.encode()) for s, t, i in others(records)),
    )
    connection.executemany(
        f"INSERT INTO insights ({INSIGHT}) VALUES (?, ?, ?, ?, 'extractive')",
        ((s, t, b"order " + t.encode(), b"\0\0\x80\x3f" * 4) for s, t, _ in others(records)),
    )
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return Path(file).stat().st_size


def fill_postgres(where: str, records: int) -> int:
    """The same by COPY."""
    import psycopg

    with psycopg.connect(where) as connection:
        with connection.cursor().copy(f"COPY records ({RECORD}) FROM STDIN".encode()) as copy:
            for s, t, i in others(records):
                copy.write_row((s, t, i, b"f", b"{}", True, b"order " + t.encode(), True, 0.0))
        with connection.cursor().copy(f"COPY insights ({INSIGHT}) FROM STDIN".encode()) as copy:
            for s, t, _ in others(records):
                copy.write_row((s, t, b"order " + t.encode(), "[1,1,1,1]", "extractive"))
        connection.commit()
        connection.autocommit = True
        connection.execute("VACUUM ANALYZE")  # as the server does by itself within a minute
        found = connection.execute("SELECT pg_database_size(current_database())").fetchone()
        return int(found[0]) if found else 0


def recorded_part(files: list[Path], runs: int, key: str) -> None:
    """CPU time of the steps of recorded runs, a line of JSON each: file, milliseconds, digest of the context."""
    with suppress(Exception):  # loaded before the first step, which waits a few seconds at most
        importlib.import_module("tiktoken").get_encoding(ENCODING)
    for file in files:
        traces = [t for t in read_traces(file) if isinstance(t, Trace)]
        for trace in traces[:: max(1, len(traces) // runs)][:runs]:
            processor = MemoryProcessor()
            given: list[Any] = []
            for message in trace.messages:
                if is_turn(message):
                    start = time.thread_time()
                    context, _ = processor.apply_strategy(given, key, session_id=trace.id)
                    milliseconds = 1000 * (time.thread_time() - start)
                    text = json.dumps(context, default=str).encode()
                    print(json.dumps([file.name, milliseconds, hashlib.sha256(text).hexdigest()]))
                given.append(message)
            processor.close()


def runs_table(args: argparse.Namespace) -> None:
    """The times of recorded runs, each version in a process of its own, and how many contexts differ."""
    command = [sys.executable, __file__, "--part", "recorded", "--runs", str(args.runs)]
    command += ["--strategy", args.strategy, "--traces", *map(str, args.traces)]
    versions = [None, args.against] if args.against else [None]
    steps: list[list[list[Any]]] = []
    for source in versions:
        env = {**os.environ, "PYTHONPATH": str(source)} if source else None
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
        steps.append([json.loads(line) for line in done.stdout.splitlines()])
    print_head("runs", "version", "steps", "median (ms)", "p95 (ms)", "mean (ms)", "contexts that differ")
    for file in dict.fromkeys(step[0] for step in steps[0]):
        for source, of_version in zip(versions, steps, strict=True):
            times = [step[1] for step in of_version if step[0] == file]
            differ = sum(a != b for (_, _, a), (_, _, b) in zip(steps[0], of_version, strict=True))
            figures = statistics.median(times), statistics.quantiles(times, n=20)[-1], statistics.mean(times)
            shown = (f"{figure:.1f}" for figure in figures)
            print_row(file, "other" if source else "this", len(times), *shown, differ if source else "")


async def _waits(messages: list[Any], ends: Iterable[int], folder: str) -> list[float]:
    """Milliseconds of CPU that the loop waited at worst in each step, without full garbage collections."""
    collected, began = [0.0], [0.0]

    def collecting(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            began[0] = time.process_time()
        elif info["generation"] == 2:
            collected[0] += time.process_time() - began[0]

    worst = [0.0]

    async def tick() -> None:
        while True:
            before, without = time.process_time(), collected[0]
            await asyncio.sleep(0.001)
            waited = time.process_time() - before
            await asyncio.sleep(0.002)  # the end of a collection is told after the threads go on
            worst[0] = max(worst[0], waited - (collected[0] - without))

    steps = []
    gc.callbacks.append(collecting)
    try:
        async with Memory(Path(folder) / "bank.db", model="gpt-4.1") as memory:
            ticking = asyncio.create_task(tick())
            for end in ends:
                await memory.acontext(messages[:end])
                await asyncio.sleep(0.005)
                steps.append(worst[0] * 1_000)
                worst[0] = 0.0
            ticking.cancel()
    finally:
        gc.callbacks.remove(collecting)
    return steps


def loop_table(args: argparse.Namespace) -> None:
    """How long an event loop waits at each step."""
    print_head("loop", "steps", "median (ms)", "p95 (ms)", "at most (ms)")
    grown, rng = workload.beginning("loop"), random.Random(1)
    for number in range(800):
        grown += interaction(number, rng)
    runs = {"grown": [grown]}
    for path in args.traces:
        traces = [t for t in read_traces(path) if isinstance(t, Trace)]
        runs[path.name] = [t.messages for t in traces[:: max(1, len(traces) // args.runs)][: args.runs]]
    for name, conversations in runs.items():
        waits: list[float] = []
        for messages in conversations:
            ends = [n for n in range(2, len(messages) + 1) if not is_turn(messages[n - 1])]
            with tempfile.TemporaryDirectory() as folder:
                waits += asyncio.run(_waits(messages, ends, folder))
        figures = statistics.median(waits), statistics.quantiles(waits, n=20)[-1], max(waits)
        print_row(name, len(waits), *(f"{figure:.1f}" for figure in figures))


def parts(chosen: list[str], kinds: list[str], records: int) -> None:
    """The parts that need databases."""
    with workload.banks(kinds) as (new, _):
        if "observer" in chosen:
            observer_part({kind: new(kind) for kind in kinds})
        if "crowd" in chosen:
            crowd_part({kind: (new(kind), new(kind)) for kind in kinds}, records)


def main() -> None:
    """Run and print the tables."""
    parser = command_line(__doc__)
    parser.add_argument("--out", type=Path, help="also write the figures as JSON")
    parser.add_argument("--points", default=",".join(map(str, POINTS)))
    parser.add_argument(
        "--part", default="tables", help="tables, observer, crowd, runs, loop; several with commas"
    )
    parser.add_argument("--database", default="sqlite,postgres", help="of the parts observer and crowd")
    parser.add_argument("--records", type=int, default=1_000_000, help="of others, in the part crowd")
    parser.add_argument("--traces", type=Path, nargs="*", default=[], help="files of the part runs")
    parser.add_argument("--runs", type=int, default=6, help="recorded runs of each file")
    parser.add_argument("--strategy", default="memory_bank", help="the key of the strategy of the part runs")
    parser.add_argument("--against", type=Path, help="the src folder of another version to compare with")
    args = parser.parse_args()
    chosen = args.part.split(",")
    if "tables" in chosen:
        tables(args)
    if "loop" in chosen:
        loop_table(args)
    if "runs" in chosen:
        runs_table(args)
    if "recorded" in chosen:  # what the part runs starts
        recorded_part(args.traces, args.runs, args.strategy)
    if {"observer", "crowd"} & set(chosen):
        parts(chosen, args.database.split(","), args.records)


def tables(args: argparse.Namespace) -> None:
    """Steps after n past steps."""
    points = tuple(int(p) for p in args.points.split(","))
    with tempfile.TemporaryDirectory() as folder:
        run("", (points[0],))  # imports and caches
        results = {
            "in memory": run("", points),
            "SQLite file": run(Path(folder) / "bank.db", points),
            "evidence": run("", points, settings=EVIDENCE),
            "evidence, p95": run("", points, settings=EVIDENCE, share=0.95),
            "in memory, re-parse": run("", points, reparse=True),
        }
    print_head("past steps", *(f"{k} (ms, ratio)" for k in results))
    for n in points:
        print_row(n, *(f"{r[n] * 1000:.2f} ({r[n] / r[points[0]]:.1f} ×)" for r in results.values()))
    if args.out:
        document = about(seed=0, settings=SETTINGS.model_dump(), seconds=results)
        args.out.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
