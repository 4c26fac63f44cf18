"""Measures a bank of many records: bytes, times and memory, as a table with a row for each size.

    python benchmarks/size.py [--records 1000,10000,100000] [--in-session 10] [--databases sqlite,postgres]

A bank is filled with made-up records of about 1.2 kB (arguments and output), ``--in-session`` in each session, as the
library stores them, but without waiting for the disk: facts, then insights by extraction with the lexical
embedder. Of more than 20,000 records most are copies of some of them in sessions of their own. Then each of these is
measured in a process of its own, at the median of a few where it can be repeated:

- ``bytes``: of the database, a record; ``raw`` of its arguments and output alone
- ``fill``: a record; ``open``: the bank; ``step``: one more call of a session, stored, and its context
- ``search``: over all sessions, the first of a process with what it adds to its memory, and the ones after
- ``list``: all sessions, as ``bank sessions`` counts them; ``totals``: those of the page, with a step for each record
- ``forget``: a record; ``purge``: a session; ``verify``; ``backup`` (SQLite)

Times are seconds of the wall clock, except the two of a search, which are of the CPU.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from harness import command_line, print_head, print_row, words
from memory_bank import InteractionRecord, LexicalEmbedder, MemoryBankSettings, MemoryBankState
from memory_bank.bank import schema
from memory_bank.bank import words as index
from memory_bank.bank.backup import backup
from memory_bank.bank.database import Database
from memory_bank.bank.listing import list_sessions, namespace_totals
from memory_bank.bank.maintenance import purge, verify
from memory_bank.bank.steps import usage_sums
from memory_bank.bank.stores import FactStore, InsightStore
from memory_bank.models.observer import Observer
from memory_bank.processor import apply_memory_bank_strategy
from memory_bank.tools.search import search_session
from workload import banks, beginning, interaction

SETTINGS = MemoryBankSettings(
    embedding_model="lexical", observer_model="extractive", token_encoding="approximate"
)
DISTINCT = 20_000
TOOLS = ("get_order", "list_files", "read_file", "run_query", "get_user", "create_ticket")
STATES = ("open", "closed", "late", "paid")
QUERIES = ("late orders of {0} {1}", "note on {2}", "ORD-{n}", "{3} {4} {5} paid", "which total has {6}")


class Texts:
    """Made-up records, as frequent in their words as texts are."""

    def __init__(self, seed: int = 1) -> None:
        self.random = random.Random(seed)
        syllables = [a + b for a in "bcdfghklmnprstvz" for b in "aeiou"]
        self.words = [
            "".join(self.random.choices(syllables, k=self.random.randint(2, 4))) for _ in range(30_000)
        ]
        self.weights = list(accumulate(1 / (n + 5) for n in range(len(self.words))))

    def some(self, count: int) -> list[str]:
        """So many words."""
        return self.random.choices(self.words, cum_weights=self.weights, k=count)

    def record(self, number: int, step: int) -> InteractionRecord:
        """The record of a call."""
        rng = self.random
        said = iter(self.some(160))
        rows = [
            {
                "id": f"ORD-{rng.randrange(10**7)}", "name": " ".join(islice(said, 2)), "status": rng.choice(STATES),
                "total": rng.randrange(10**5) / 100, "note": " ".join(islice(said, 8)),
            }
            for _ in range(rng.randint(1, 14))
        ]  # fmt: skip
        arguments = {"query": " ".join(self.some(3)), "id": f"C-{number}"}
        return InteractionRecord.create(step, rng.choice(TOOLS), arguments, {"items": rows, "page": number})


def fill(where: str, count: int, in_session: int) -> dict[str, float]:
    """Fill a bank; the seconds and the raw bytes of a record."""
    unsynced = where if "://" in where else f"sqlite:///{where}?synchronous=normal"
    database, texts, embedder, observer = Database(unsynced), Texts(), LexicalEmbedder(), Observer()
    copies = -(-count // DISTINCT)
    block, distinct, began, raw = database.block_size, count // copies, time.perf_counter(), 0
    database.block_size = block if distinct == count else 2**31  # copies need the words
    for first in range(0, distinct, in_session):
        name = f"{first:032x}"
        records = [texts.record(first + n, n + 1) for n in range(min(in_session, distinct - first))]
        raw += sum(len(json.dumps(r.raw_input)) + len(json.dumps(r.raw_output)) for r in records)
        FactStore(database, name).store_many(records)
        InsightStore(embedder, database, name).add_many(
            [observer.extract(r) for r in records], records=records
        )
    seconds = time.perf_counter() - began
    terms = [] if distinct == count else [dict(r) for r in database.rows(sa.select(schema.words))]
    database.block_size, began = block, time.perf_counter()
    index.settle_all(database)
    seconds += time.perf_counter() - began
    for n in range(1, copies):
        vacuum(database, "FULL" if n == 1 else "")
        copy(database, n, distinct, terms)
        index.settle_all(database)
    database.close()
    return {"fill": seconds / distinct, "raw": raw / distinct}


def vacuum(database: Database, how: str) -> None:
    """Let PostgreSQL use the place of words that are in blocks now, as it does by itself within minutes."""
    if database.ranks:
        engine = sa.create_engine(database.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as c:
            c.execute(sa.text(f"VACUUM {how} words"))
        engine.dispose()


def copy(database: Database, number: int, count: int, terms: list[dict[str, Any]]) -> None:
    """Store the first ``count`` records of a bank once more with their ``terms``, in sessions of their own."""
    shift = number * count
    with database.write() as c:
        for table in (schema.sessions, schema.records, schema.insights):
            changed = {
                name: sa.literal(f"{number:04x}").concat(sa.func.substr(table.c[name], 5))
                for name in ("session_id", "trace_id")
                if name in table.c
            }
            if "seq" in table.c:
                changed["seq"] = table.c.seq + shift
            found = sa.select(*(changed.get(column.name, column) for column in table.c))
            found = found.where(sa.func.substr(table.c.session_id, 1, 4) == "0000")
            c.execute(sa.insert(table).from_select(list(table.c), found))
            if database.ranks and "trace_id" in table.c:
                c.exec_driver_sql(f"SELECT setval('{table}_seq_seq', {shift + count})")
        of_copy = [
            t | {"seq": t["seq"] + shift, "session_id": f"{number:04x}{t['session_id'][4:]}"} for t in terms
        ]
        c.execute(sa.insert(schema.words), of_copy)


def add_steps(database: Database) -> None:
    """A step for each record, as a service keeps them."""
    r = schema.records.c
    columns: dict[str, Any] = {
        "session_id": r.session_id, "number": r.seq, "records": r.step_id, "created": r.timestamp,
    }  # fmt: skip
    step = {
        "messages": 9, "status": "rebuilt", "strategy": "memory_bank", "milliseconds": 5.0, "model": "gpt-4.1",
        "full_tokens": 9_000, "tokens": 5_000, "input_tokens": 5_000,
    }  # fmt: skip
    columns |= {name: sa.literal(value, schema.steps.c[name].type) for name, value in step.items()}
    with database.write() as c:
        c.execute(sa.insert(schema.steps).from_select(list(columns), sa.select(*columns.values())))


def searched(where: str) -> dict[str, float]:
    """Opening a bank, and searches of a process that has read nothing of it."""
    times, texts = list[float](), Texts(2)

    def memory() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

    began = time.perf_counter()
    database = Database(where)
    found = {"open": time.perf_counter() - began}
    with MemoryBankState("lexical", database=database, session_id=f"{0:032x}") as state:
        state.prepare(SETTINGS)
        search_session(state, "warm", 1, scope="session")  # what any search imports and compiles
        before = memory()
        for query in QUERIES * 2:
            text = query.format(*texts.some(7), n=texts.random.randrange(10**7))
            began = time.process_time()
            search_session(state, text, 10, scope="all")
            times.append(time.process_time() - began)
            found.setdefault("MB", memory() - before)
    return found | {"first": times[0], "then": statistics.median(times[1:])}


def used(where: str) -> dict[str, float]:
    """A step, lists, deletions and checks."""
    database, found = Database(where), dict[str, float]()

    def measure(name: str, work: Callable[[], object], times: int = 1) -> None:
        each = []
        for _ in range(times):
            began = time.perf_counter()
            work()
            each.append(time.perf_counter() - began)
        found[name] = statistics.median(each)

    rng, messages = random.Random(3), beginning("x")
    with MemoryBankState("lexical", database=database, session_id="step") as state:

        def step() -> None:
            messages.extend(interaction(len(messages), rng))
            apply_memory_bank_strategy(messages, None, SETTINGS, state)

        measure("step", step, 5)
    add_steps(database)
    measure("list", lambda: list_sessions(database, is_short=True))
    measure("totals", lambda: (namespace_totals(database, None), usage_sums(database, None)), 3)
    facts = FactStore(database, f"{0:032x}")
    measure("forget", lambda: facts.forget(facts.page()[0].trace_id))
    measure("purge", lambda: list(purge(database, session_id=f"{0:032x}")))
    measure("verify", lambda: list(verify(database)))
    if not database.ranks:
        with tempfile.TemporaryDirectory() as folder:
            measure("backup", lambda: backup(database, Path(folder) / "copy.db"))
    database.close()
    return found


def size_of(where: str) -> int:
    """The bytes of a database that no process has open."""
    if "://" not in where:
        return Path(where).stat().st_size
    database = Database(where)
    size = database.value(sa.select(sa.func.pg_database_size(sa.func.current_database())))
    database.close()
    return int(size or 0)


PARTS: dict[str, Callable[..., dict[str, float]]] = {"fill": fill, "searched": searched, "used": used}
HEAD = {
    "raw": "raw", "bytes": "bytes", "fill": "fill, ms", "open": "open, ms", "step": "step, ms",
    "first": "first search, s", "MB": "+MB", "then": "then, s", "list": "list, s", "totals": "totals, ms",
    "forget": "forget, s", "purge": "purge, s", "verify": "verify, s", "backup": "backup, s",
}  # fmt: skip


def apart(part: str, *args: object) -> dict[str, Any]:
    """What a part measures in a process of its own."""
    command = [sys.executable, __file__, "--part", json.dumps([part, *args])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return dict(json.loads(done.stdout))


def main(arguments: list[str] | None = None) -> int:
    parser = command_line(__doc__)
    parser.add_argument("--records", type=words, default=["1000", "10000", "100000"])
    parser.add_argument("--in-session", type=int, default=10)
    parser.add_argument("--databases", type=words, default=["sqlite", "postgres"])
    parser.add_argument("--part", type=json.loads, help="what a child measures")
    args = parser.parse_args(arguments)
    if args.part:
        print(json.dumps(PARTS[args.part[0]](*args.part[1:])))
        return 0
    print_head("database", "records", *HEAD.values())
    with banks(args.databases, fsync=False) as (new, _):
        for kind in args.databases:
            for count in map(int, args.records):
                where = new(kind)
                empty = size_of(where) if kind == "postgres" else 0
                found = apart("fill", where, count, args.in_session)
                found |= (
                    {"bytes": (size_of(where) - empty) / count}
                    | apart("searched", where)
                    | apart("used", where)
                )
                cells = []
                for name, title in HEAD.items():
                    value = found.get(name, float("nan")) * (1_000 if title.endswith(", ms") else 1)
                    cells.append(
                        "" if value != value else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
                    )
                print_row(kind, count, *cells)
    return 0


if __name__ == "__main__":
    sys.exit(main())
