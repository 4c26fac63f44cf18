"""The stores on PostgreSQL with pgvector: the contracts, what cannot be opened, and many writers at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from tests.postgres import Server

from memory_bank.errors import (
    ConfigError,
    DatabaseOpenError,
    DatabaseVersionError,
    EmbedderMismatchError,
    StorageError,
)
from memory_bank.records import Insight
from memory_bank.stores.catalog import bank_embedder, find_record, has_session, list_sessions, re_embed
from memory_bank.stores.database import Database
from memory_bank.stores.facts import FactStore
from memory_bank.stores.insights import InsightStore
from memory_bank.stores.schema import HEAD, insights, metadata
from memory_bank.testing.insight_contract import InsightStoreContract, NumbersEmbedder
from memory_bank.testing.store_contracts import FactStoreContract, a_record, together


class Banks:
    """Databases that are closed after the test."""

    @pytest.fixture(autouse=True)
    def _bank(self, postgres_url: str) -> Iterator[None]:
        self.url = postgres_url
        self.open = [Database(postgres_url)]
        yield
        for database in self.open:
            database.close()

    def another(self) -> Database:
        self.open.append(Database(self.url))
        return self.open[-1]


class TestFactsInPostgres(Banks, FactStoreContract):
    durable = shared = True

    def make_store(self, session_id: str = "default") -> FactStore:
        return FactStore(self.open[0], session_id)

    def second(self, store: FactStore) -> FactStore:
        return FactStore(self.another(), store.session_id)

    def reopen(self, store: FactStore) -> FactStore:
        store.database.close()
        return self.second(store)


class TestInsightsInPostgres(Banks, InsightStoreContract):
    durable = shared = True

    def make_store(self, embedder: Any, session_id: str = "default") -> InsightStore:
        return InsightStore(embedder, self.open[0], session_id)

    def second(self, store: InsightStore) -> InsightStore:
        return InsightStore(NumbersEmbedder(), self.another(), store.session_id)

    def reopen(self, store: InsightStore) -> InsightStore:
        store.database.close()
        return self.second(store)


@pytest.fixture
def database(postgres_url: str) -> Iterator[Database]:
    database = Database(postgres_url)
    yield database
    database.close()


def test_a_closed_database_opens_again(database: Database) -> None:
    store = FactStore(database)
    store.store(a_record(1))
    database.close()
    assert store.get("trace-00001") == a_record(1)
    database.close()
    store.store(a_record(2))
    assert store.size() == 2


def test_migrations_make_what_the_metadata_says(database: Database) -> None:
    with database.read() as c, warnings.catch_warnings():
        warnings.simplefilter("ignore", sa.exc.SAWarning)  # SQLAlchemy does not know the type vector
        assert compare_metadata(MigrationContext.configure(c), metadata) == []
        assert c.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == HEAD
        types = {(row["name"], str(row["type"])) for row in sa.inspect(c).get_columns("insights")}
    assert ("seq", "BIGINT") in types
    assert ("summary", "BYTEA") in types


def test_no_bit_of_a_vector_is_lost(database: Database) -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 4096, dtype=np.uint32).view("<f4")
    edges = np.array([0.0, -0.0, 1e-45, -1e-45, 1.1754942e-38, 3.4028235e38, 0.1, 1 / 3], dtype="<f4")
    vector = np.concatenate([bits[np.isfinite(bits)], edges]).astype("<f4").tobytes()
    row = {"session_id": "s", "trace_id": "t", "summary": "", "embedding": vector, "source": "x"}
    with database.write() as c:
        c.execute(sa.insert(insights), [row])
        assert c.execute(sa.select(insights.c.embedding)).scalar() == vector


class Directions:
    """Many directions, some of them alike; a text is a seed."""

    name = "directions"

    def encode(self, texts: list[str]) -> list[Any]:
        return [np.random.default_rng(int(text)).normal(size=384) for text in texts]


def test_a_long_session_is_ranked_as_by_faiss(database: Database) -> None:
    stores = [InsightStore(Directions(), database), InsightStore(Directions())]
    for store in stores:
        for start in range(0, 2_500, 500):
            store.add_many([Insight(f"{n}", f"{n % 400}") for n in range(start, start + 500)])
    for query in range(3):
        for limit, exclude in ((1, ()), (10, ["7", "407"]), (10**12, ()), (None, ["1"])):
            got, expected = (s.rank(str(query), exclude, limit) for s in stores)
            assert list(got.trace_ids) == list(expected.trace_ids)
            assert list(got.scores) == pytest.approx(list(expected.scores), abs=1e-6)


def test_a_session_is_found_by_its_b_tree(database: Database) -> None:
    store = InsightStore(NumbersEmbedder(), database)
    store.add("a", "1 0")
    query = "SELECT trace_id FROM insights WHERE session_id = 's' ORDER BY embedding <#> '[1,0]' LIMIT 3"
    with database.write() as c:
        c.exec_driver_sql("SET LOCAL enable_seqscan = off")
        plan = "\n".join(c.exec_driver_sql(f"EXPLAIN {query}").scalars())
    assert "ix_insights_session_id_seq" in plan


@pytest.mark.parametrize("wanted", ["\udcff", "a\0b", "", "x" * 300])
def test_ids_that_no_database_takes_are_nowhere(database: Database, wanted: str) -> None:
    assert not has_session(database, wanted)
    assert find_record(database, wanted) is None
    with pytest.raises(ConfigError, match="session_id"):
        FactStore(database, wanted)


# what cannot be opened


def refused(url: str, kind: type[StorageError] = DatabaseOpenError, *, must_exist: bool = False) -> str:
    """The error's sentence."""
    with pytest.raises(kind) as caught:
        Database(url, must_exist=must_exist)
    assert type(caught.value) is kind
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert "secret" not in "".join(traceback.format_exception(caught.value))
    return sentence


@pytest.fixture(scope="module")
def users(postgres: Server) -> Server:
    """A server with a user who needs a password, and one without rights."""
    postgres.sql("CREATE ROLE guarded LOGIN PASSWORD 'right'")
    postgres.sql("CREATE ROLE plain LOGIN")
    postgres.demand_password("guarded")
    return postgres


def test_who_may_not_in(users: Server) -> None:
    bank = users.new()
    assert "check the URL's user and password" in refused(users.url(bank, "guarded", "secret"))
    assert "check the URL's user and password" in refused(users.url(bank, "guarded"))
    assert "check the URL's user and password" in refused(users.url(bank, "nobody", "secret"))
    assert "rights" in refused(users.url(bank, "guarded", "right"))
    users.sql(
        "GRANT ALL ON SCHEMA public TO guarded; GRANT ALL ON ALL TABLES IN SCHEMA public TO guarded; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO guarded",
        bank,
    )
    for url in (users.url(bank, "guarded", "right"), f"{users.url(bank, 'guarded')}&password=right"):
        database = Database(url)
        FactStore(database).store(a_record(1))
        assert "right" not in database.name
        database.close()


def test_what_is_not_there(postgres: Server) -> None:
    assert "create that database" in refused(postgres.url("nowhere", "postgres", "secret"))
    for address in (
        "@127.0.0.1:1/d",
        "@/d?host=/nowhere",
        "@localhost:1/d",
        "@127.0.0.1:1/d?password=secret",
    ):
        assert "that the server runs" in refused(f"postgresql://u:secret{address}")
    empty = postgres.url(postgres.new("template0"))
    assert "no bank yet" in refused(empty, must_exist=True)
    assert postgres.sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", empty_name(empty)) == [
        (0,)
    ]


def test_an_encoding_that_cannot_hold_every_name(postgres: Server) -> None:
    for encoding in ("SQL_ASCII", "LATIN1"):
        name = f"db_{encoding.lower()}"
        postgres.sql(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")
        assert "ENCODING 'UTF8'" in refused(postgres.url(name))


@pytest.mark.parametrize(
    "options",
    ["connect_timeout=secret", "port=99999", "sslmode=secret", "nonsense=secret", "options=-csecret%3D1"],
)
def test_options_that_no_server_takes(postgres_url: str, options: str) -> None:
    refused(f"{postgres_url}&{options}".replace("secret", "strange"))


def empty_name(url: str) -> str:
    return url.partition("@/")[2].partition("?")[0]


@pytest.mark.parametrize("url", [
    "postgresql+psycopg2://u:secret@h/d", "postgresql+asyncpg://u:secret@h/d", "postgresql://u:secret@h:port/d",
    "postgresql://u:sec@secret@h/d", "mysql://u:secret@h/d",
])  # fmt: skip
def test_urls_that_name_no_database(url: str) -> None:
    assert "secret" not in refused(url)


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg", "postgres"])
def test_three_names_of_one_scheme(postgres: Server, postgres_url: str, scheme: str) -> None:
    database = Database(postgres_url.replace("postgresql", scheme, 1), must_exist=True)
    FactStore(database).store(a_record(1))
    database.close()


def test_a_newer_schema(postgres: Server) -> None:
    bank = postgres.new()
    postgres.sql("UPDATE alembic_version SET version_num = '9999'", bank)
    assert "newer memory_bank (schema 9999" in refused(postgres.url(bank), DatabaseVersionError)


def test_the_database_of_another_application(postgres: Server) -> None:
    other = postgres.new("template0")
    postgres.sql("CREATE TABLE customers (name text)", other)
    assert "something else" in refused(postgres.url(other))
    assert postgres.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", other) == [
        ("customers",)
    ]
    assert "no schema" in refused(f"{postgres.url(other)}&options=-csearch_path%3Dbank")
    postgres.sql("CREATE SCHEMA bank; CREATE EXTENSION vector SCHEMA public", other)
    database = Database(
        f"{postgres.url(other)}&options=-csearch_path%3Dbank,public"
    )  # what the error proposes
    InsightStore(NumbersEmbedder(), database).add("a", "1 0")
    database.close()
    assert "extension vector in the schema public" in refused(
        f"{postgres.url(other)}&options=-csearch_path%3Dbank"
    )


def test_the_extension_may_not_be_made_or_is_not_there(users: Server) -> None:
    bank = users.new("template0")
    assert "CREATE EXTENSION vector" in refused(users.url(bank, "plain"))
    users.sql(f"ALTER DATABASE {bank} SET extension_control_path = '/nowhere'")
    assert "install pgvector" in refused(users.url(bank))
    users.sql(f"ALTER DATABASE {bank} RESET extension_control_path")
    users.sql("CREATE EXTENSION vector", bank)
    assert "rights" in refused(users.url(bank, "plain"))  # a schema that is not theirs
    users.sql("GRANT ALL ON SCHEMA public TO plain", bank)
    Database(users.url(bank, "plain")).close()


def test_without_the_driver_the_extra_is_named() -> None:
    script = """
import sys
sys.modules["psycopg"] = None  # as where it is not installed
from memory_bank.stores.database import Database
Database("sqlite://")
Database("postgresql://u:secret@localhost/d")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("memory_bank.errors.DatabaseOpenError: ")
    assert last.endswith("run  pip install 'memory-bank[postgres]'.")
    assert "secret" not in done.stderr.replace('secret@localhost/d")', "")


# a server that goes away


def test_a_server_that_goes_away_and_comes_back(
    postgres: Server, postgres_url: str, database: Database
) -> None:
    facts = FactStore(database)
    summaries = InsightStore(NumbersEmbedder(), database)
    facts.store(a_record(1))
    summaries.add("a", "1 0")
    postgres.stop()
    try:
        for attempt in (
            lambda: facts.store(a_record(2, raw_output="secret")),
            facts.size,
            lambda: summaries.search("1 0"),
            lambda: summaries.add("b", "1 0"),
            lambda: list_sessions(database),
        ):
            with pytest.raises(
                StorageError, match=r"the server went away.*the same call can be made again"
            ) as e:
                attempt()
            assert "\n" not in str(e.value)
            assert "secret" not in str(e.value)
        assert "that the server runs" in refused(postgres_url)
    finally:
        postgres.start()
    facts.store(a_record(2))
    summaries.add("b", "1 0")
    assert (facts.size(), summaries.search("1 0")) == (2, ["b", "a"])


def test_connections_that_broke_unseen_are_replaced_before_anything_is_sent(
    postgres: Server, database: Database
) -> None:
    store = FactStore(database)
    together(*[lambda n=n: store.store(a_record(n)) for n in range(4)])  # several connections in the pool
    postgres.stop()
    postgres.start()
    for n in range(4, 8):
        store.store(a_record(n))
        assert store.get(a_record(n).trace_id) == a_record(n)
    assert store.size() == 8


@pytest.mark.parametrize("when", ["before the end", "at the end"])
def test_a_server_that_goes_away_during_a_write(postgres: Server, database: Database, when: str) -> None:
    FactStore(database)
    try:
        with pytest.raises(StorageError, match=r"the server went away.*same call") as caught:  # noqa: SIM117, PT012
            with database.write() as c:
                c.exec_driver_sql("UPDATE sessions SET generation = 5")
                postgres.stop()
                if when == "before the end":
                    c.exec_driver_sql("UPDATE sessions SET generation = 6")
    finally:
        postgres.start()
    assert ("nothing was changed" in str(caught.value)) == (when == "before the end")
    assert database.generation("default") == 0


KILL_IN_MIGRATION = """
import os, signal, sys
from alembic import op
from memory_bank.stores.database import Database
made = 0
create_table = op.create_table
def create_and_die(*a, **k):
    global made
    create_table(*a, **k)
    made += 1
    if made == 3:
        os.kill(os.getpid(), signal.SIGKILL)
op.create_table = create_and_die
Database(sys.argv[1])
"""


def test_a_kill_in_a_migration_leaves_nothing(postgres: Server) -> None:
    name = postgres.new("template0")
    assert python(KILL_IN_MIGRATION, postgres.url(name)).wait(60) == -signal.SIGKILL
    assert postgres.sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", name) == [(0,)]
    database = Database(postgres.url(name))
    FactStore(database).store(a_record(1))
    database.close()


STORE = """
import itertools, sys
from memory_bank.stores.database import Database
from memory_bank.stores.facts import FactStore
from memory_bank.testing.store_contracts import a_record
store = FactStore(Database(sys.argv[1]))
for n in itertools.count(int(sys.argv[2])):
    store.store_many([a_record(2 * n), a_record(2 * n + 1)])
    print(n, flush=True)
"""


@pytest.mark.parametrize("who", ["the process", "the server"])
def test_a_kill_loses_no_acknowledged_record(postgres: Server, postgres_url: str, who: str) -> None:
    worker = python(STORE, postgres_url, 0)
    assert worker.stdout is not None
    acknowledged = [int(worker.stdout.readline()) for _ in range(40)]
    if who == "the process":
        os.kill(worker.pid, signal.SIGKILL)
    else:
        postgres.crash()
        postgres.start()
    acknowledged += [int(line) for line in worker.stdout.read().split("\n")[:-1]]
    assert worker.wait(60) != 0
    database = Database(postgres_url)
    store = FactStore(database)
    stored = [int(trace_id[-5:]) for trace_id in store.steps()]
    assert set(range(2 * len(acknowledged))) <= set(stored)
    assert len(stored) % 2 == 0  # what was under way is there as a whole or not at all
    assert store.get_many(list(store.steps())) == [a_record(n) for n in stored]
    database.close()


def test_who_holds_a_session_for_long_is_not_waited_for_without_end(database: Database) -> None:
    store = FactStore(database)
    store.store(a_record(1))
    with database.write() as c:
        database.lock_session(c, "default")
        start = time.monotonic()
        with pytest.raises(StorageError, match="lock timeout; nothing was changed"):
            store.store(a_record(2))
        assert 4 < time.monotonic() - start < 15
        assert store.get("trace-00001") == a_record(1)  # reading goes on
        FactStore(database, "other").store(a_record(2))  # so do other sessions
    store.store(a_record(2))
    assert store.size() == 2


# many at once


def python(script: str, *args: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def at_once(workers: list[subprocess.Popen[str]]) -> None:
    """Let workers begin together, once each has said that it is ready."""
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.close()
    assert [worker.wait(60) for worker in workers] == [0] * len(workers)


WORKER = """
import sys, threading
from memory_bank.records import Insight
from memory_bank.stores.database import Database
from memory_bank.stores.facts import FactStore
from memory_bank.stores.insights import InsightStore
from memory_bank.testing.insight_contract import NumbersEmbedder
from memory_bank.testing.store_contracts import a_record, together
print("ready", flush=True)
sys.stdin.read()
database, first = Database(sys.argv[1]), int(sys.argv[2])
facts, insights = FactStore(database, "s"), InsightStore(NumbersEmbedder(), database, "s")
def store(k):
    for n in range(first + k, first + 200, 8):
        facts.store_many([a_record(n), a_record(n + 1)])
        insights.add_many([Insight(a_record(m).trace_id, f"1 {m}") for m in (n, n + 1)])
together(*[lambda k=k: store(k) for k in range(8)])
database.close()
"""


def test_processes_fill_one_session_of_an_empty_database(postgres: Server) -> None:
    """Two processes with eight threads each migrate, bind the embedder, and store what overlaps."""
    url = postgres.url(postgres.new("template0"))
    at_once([python(WORKER, url, first) for first in (0, 100)])
    database = Database(url)
    facts, summaries = FactStore(database, "s"), InsightStore(NumbersEmbedder(), database, "s")
    ids = [a_record(n).trace_id for n in range(301)]
    assert sorted(facts.steps()) == sorted(summaries.trace_ids()) == ids
    assert facts.get_many(ids) == [a_record(n) for n in range(301)]
    assert bank_embedder(database) == ("numbers", 2)
    assert len(summaries.rank("1 1")) == 301
    database.close()


def test_threads_open_an_empty_database_at_once(postgres: Server) -> None:
    url = postgres.url(postgres.new("template0"))

    def store(n: int) -> None:
        database = Database(url)
        FactStore(database, f"s{n % 2}").store(a_record(n))
        database.close()

    together(*[lambda n=n: store(n) for n in range(4)])
    database = Database(url)
    assert [s.records for s in list_sessions(database)] == [2, 2]
    database.close()


def test_a_sessions_order_only_grows_at_its_end(postgres_url: str) -> None:
    """Numbers such as ``#12`` name a record by its place: a slow commit must not squeeze itself in."""
    databases = [Database(postgres_url) for _ in range(4)]
    done = threading.Event()

    def write(k: int) -> None:
        store = FactStore(databases[k])
        for n in range(60):
            many = [a_record(10_000 * k + 100 * n + i) for i in range(1 + 30 * (n % 2))]
            store.store_many(many)

    def write_all() -> None:
        try:
            together(*[lambda k=k: write(k) for k in range(3)])
        finally:
            done.set()

    def read() -> None:
        store, seen = FactStore(databases[3]), []
        while not done.is_set():
            now = list(store.steps())
            assert now[: len(seen)] == seen
            seen = now

    together(write_all, read)
    for database in databases:
        database.close()


def test_two_embedders_on_an_empty_bank_never_mix(postgres: Server) -> None:
    for attempt in range(6):
        databases = [Database(url) for url in [postgres.url(postgres.emptied())] * 4]
        refusals: list[EmbedderMismatchError] = []

        def add(k: int, databases: Any = databases, refusals: Any = refusals, attempt: int = attempt) -> None:
            model = NumbersEmbedder(f"numbers{k % 2}")
            try:
                store = InsightStore(model, databases[k], f"s{k}")
                for n in range(5):
                    store.add(f"{attempt} {n}", "1 0" if k % 2 else "1 0 0")
            except EmbedderMismatchError as e:
                refusals.append(e)

        together(*[lambda k=k: add(k) for k in range(4)])
        known = bank_embedder(databases[0])
        assert known in (("numbers0", 3), ("numbers1", 2))
        assert len(refusals) == 2
        with databases[0].read() as c:
            lengths = set(c.execute(sa.select(sa.func.vector_dims(insights.c.embedding))).scalars())
        assert lengths == {known[1]}
        for database in databases:
            database.close()


def test_a_bank_is_embedded_anew_while_others_write(postgres_url: str) -> None:
    """Somebody may be told to try again, but nothing is mixed and nobody waits for another in a circle."""
    databases = [Database(postgres_url) for _ in range(4)]
    InsightStore(NumbersEmbedder(), databases[0], "s0").add_many(
        [Insight(f"{n}", f"1 {n}") for n in range(50)]
    )
    told: list[str] = []

    def write(k: int) -> None:
        for n in range(25):
            try:
                store = InsightStore(
                    NumbersEmbedder(bank_embedder(databases[k])[0]), databases[k], f"s{k % 2}"
                )  # type: ignore[index]
                store.add_many([Insight(f"{k}-{n}-{i}", f"1 {i}") for i in range(3)])
                if n % 8 == 7:
                    store.clear()
            except (EmbedderMismatchError, StorageError) as e:
                told.append(str(e))

    def embed() -> None:
        for n in range(12):
            try:
                re_embed(databases[3], NumbersEmbedder(f"numbers{n}"))
            except StorageError as e:
                told.append(str(e))

    together(embed, *[lambda k=k: write(k) for k in range(3)])
    known = bank_embedder(databases[0])
    assert known is None or known[1] == 2
    assert [
        t for t in told if "holds embeddings of" not in t and "written to during re-embedding" not in t
    ] == []
    for database in databases:
        database.close()
