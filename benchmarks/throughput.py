"""Measures durable writes a second, and compares them with the bare database.

    python benchmarks/throughput.py [--database sqlite,postgres] [--writers 1,8,64] [--seconds 2] [--rounds 3]

Writers are threads of one process, each with a session of its own. ``store`` is one
``FactStore.store_many`` of one record of about 1 kB; ``step`` a whole ``apply_memory_bank_strategy``
(lexical embedder, extraction: record, insight, retrieval and the context of up to 50 past steps), which
computes more than it writes. ``bare`` inserts such rows into the same tables, each in a transaction of its
own and on disk before the next: the sqlite3 module with one connection a thread (WAL, synchronous=FULL,
BEGIN IMMEDIATE; the faster of two ways to wait: in SQLite's busy handler, and by a lock around the
transaction), psycopg with one connection a thread (fsync and synchronous_commit on). Ours and bare
alternate; the table has the medians over the rounds and the ratio bare : ours (target: at most 1.5).
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sqlalchemy.engine import make_url

import workload
from harness import command_line, print_head, print_row
from memory_bank.bank.database import Database
from memory_bank.bank.rows import to_row
from memory_bank.bank.stores import FactStore
from memory_bank.processor import apply_memory_bank_strategy
from memory_bank.records import InteractionRecord

Write = Callable[[], None]
SIZE = 1_000
PAST = 50
DIMENSION = 4096
INSERT = (
    "INSERT INTO records (session_id, trace_id, step_id, call_id, tool_name, input, input_verbatim, output, "
    "output_verbatim, timestamp) VALUES ({})"
)
INSERT_INSIGHT = "INSERT INTO insights (session_id, trace_id, summary, embedding, source) VALUES ({})"
_numbers = itertools.count()


def a_record() -> InteractionRecord:
    """One of about 1 kB, like no other."""
    n = next(_numbers)
    output = f"order {n} " + "x" * SIZE
    return InteractionRecord(
        f"{n:036}", 1, "get_order", {}, None, time.time(), f"call{n}", f'{{"id":{n}}}', output
    )


def columns(session: str) -> tuple[Any, ...]:
    """A new row as the drivers take it."""
    texts = ("call_id", "tool_name", "input", "output")
    return tuple(v.encode() if k in texts else v for k, v in to_row(a_record(), session).items())


def measure(writers: int, seconds: float, make: Callable[[int], tuple[Write, Callable[[], None]]]) -> float:
    """Writes a second of so many threads."""
    made = [make(k) for k in range(writers)]
    for write, _ in made[: min(writers, 4)]:
        write()
    barrier = threading.Barrier(writers + 1)
    stop = threading.Event()
    errors: list[BaseException] = []

    def run(write: Write) -> int:
        count = 0
        barrier.wait()
        try:
            while not stop.is_set():
                write()
                count += 1
        except BaseException as e:
            errors.append(e)
            stop.set()
        return count

    with ThreadPoolExecutor(writers) as pool:
        counts = [pool.submit(run, write) for write, _ in made]
        barrier.wait()
        start = time.perf_counter()
        stop.wait(seconds)
        stop.set()
        total = sum(count.result() for count in counts)
    took = time.perf_counter() - start
    for _, close in made:
        close()
    if errors:
        raise errors[0]
    return total / took


def store(database: Database, k: int) -> tuple[Write, Callable[[], None]]:
    """Ours: one record a call."""
    facts = FactStore(database, f"writer{k}")
    return lambda: facts.store_many([a_record()]), lambda: None


def step(database: Database, k: int) -> tuple[Write, Callable[[], None]]:
    """Ours: a whole step; the conversation begins anew after some."""
    session = f"stepper{k}-{next(_numbers)}"
    state = workload.open_state(database, session)
    settings = workload.settings_for("extractive")
    messages = workload.beginning(session)
    count = itertools.count(1)

    def write() -> None:
        n = next(count)
        if n % PAST == 0:
            del messages[2:]
        messages.extend(workload.turn(session, n, 1))
        apply_memory_bank_strategy(messages, None, settings, state)

    return write, lambda: None


def bare_sqlite(file: str, insights: bool, lock: threading.Lock | None, k: int) -> tuple[Write, Write]:
    """The sqlite3 module, durable."""
    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False, timeout=60)
    connection.execute("PRAGMA synchronous=FULL")
    embedding = b"\0\0\0\0" * DIMENSION

    def write() -> None:
        values = columns(f"bare{k}")
        with lock or contextlib.nullcontext():
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(INSERT.format(", ".join("?" * 10)), values)
            if insights:
                inserted = (values[0], values[1], b"s" * 400, embedding, "extractive")
                connection.execute(INSERT_INSIGHT.format(", ".join("?" * 5)), inserted)
            connection.execute("COMMIT")

    return write, connection.close


def bare_postgres(url: str, insights: bool, k: int) -> tuple[Write, Write]:
    """Psycopg, durable."""
    import psycopg

    parsed = make_url(url)
    connection: Any = psycopg.connect(
        host=str(parsed.query["host"]), dbname=str(parsed.database), user=str(parsed.username)
    )
    embedding = f"[{','.join(['0.1'] * DIMENSION)}]"

    def write() -> None:
        values = columns(f"bare{k}")
        connection.execute(INSERT.format(", ".join(["%s"] * 10)), values)
        if insights:
            inserted = (values[0], values[1], b"s" * 400, embedding, "extractive")
            connection.execute(INSERT_INSIGHT.format(", ".join(["%s"] * 5)), inserted)
        connection.commit()

    return write, connection.close


def compare(
    kind: str, where: str, bare_where: str, what: str, writers: int, seconds: float
) -> tuple[float, float]:
    """One round: writes a second, ours and bare."""
    insights = what == "step"
    ways: list[Callable[[int], tuple[Write, Write]]] = []
    if kind == "sqlite":
        for lock in (None, threading.Lock()):
            ways.append(lambda k, lock=lock: bare_sqlite(bare_where, insights, lock, k))  # type: ignore[misc]
    else:
        ways.append(lambda k: bare_postgres(bare_where, insights, k))
    bare = max(measure(writers, seconds, way) for way in ways)
    database = Database(where)
    make = step if what == "step" else store
    ours = measure(writers, seconds, lambda k: make(database, k))
    database.close()
    return ours, bare


def main() -> None:
    """Run and print the table."""
    parser = command_line(__doc__)
    parser.add_argument("--database", default="sqlite,postgres")
    parser.add_argument("--what", default="store,step")
    parser.add_argument("--writers", default="1,8,64")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print_head("database", "what", "writers", "ours (writes/s)", "bare (writes/s)", "bare : ours", "rounds")
    kinds = args.database.split(",")
    with workload.banks(kinds) as (new, _):
        for kind, what, writers in itertools.product(
            kinds, args.what.split(","), map(int, args.writers.split(","))
        ):
            rounds = []
            for _round in range(args.rounds):
                where, bare = new(kind), new(kind)
                Database(bare).close()
                rounds.append(compare(kind, where, bare, what, writers, args.seconds))
            ours, bare_rate = (statistics.median(r[j] for r in rounds) for j in (0, 1))
            ratios = sorted(b / o for o, b in rounds)
            shown = f"{statistics.median(ratios):.2f}", ", ".join(f"{r:.2f}" for r in ratios)
            print_row(kind, what, writers, round(ours), round(bare_rate), *shown)


if __name__ == "__main__":
    main()
