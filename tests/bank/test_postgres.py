"""The stores on PostgreSQL with pgvector: the contracts, how they rank, and many writers at once."""

import threading
import warnings

import numpy as np
import pytest
import sqlalchemy as sa
from tests.contracts.insights import NumbersEmbedder
from tests.contracts.stores import a_record, together
from tests.postgres import python

from memory_bank.bank.database import Database
from memory_bank.bank.embedder import bank_embedder, re_embed
from memory_bank.bank.schema import insights
from memory_bank.bank.stores import FactStore, InsightStore
from memory_bank.bank.terms import terms_of
from memory_bank.errors import (
    EmbedderMismatchError,
    StorageError,
)
from memory_bank.models.lexical import LexicalEmbedder
from memory_bank.records import Insight


@pytest.fixture
def database(postgres_url):
    database = Database(postgres_url)
    yield database
    database.close()


def test_texts_are_bytes_and_numbers_long(database):
    with database.read() as c, warnings.catch_warnings():
        warnings.simplefilter("ignore", sa.exc.SAWarning)  # SQLAlchemy does not know the type vector
        types = {(row["name"], str(row["type"])) for row in sa.inspect(c).get_columns("insights")}
    assert ("seq", "BIGINT") in types
    assert ("summary", "BYTEA") in types


def test_no_bit_of_a_vector_is_lost(database):
    bits = np.random.default_rng(0).integers(0, 2**32, 4096, dtype=np.uint32).view("<f4")
    edges = np.array([0.0, -0.0, 1e-45, -1e-45, 1.1754942e-38, 3.4028235e38, 0.1, 1 / 3], dtype="<f4")
    vector = np.concatenate([bits[np.isfinite(bits)], edges]).astype("<f4").tobytes()
    row = {"session_id": "s", "trace_id": "t", "summary": "", "embedding": vector, "source": "x"}
    row["terms"] = terms_of("", None)
    with database.write() as c:
        c.execute(sa.insert(insights), [row])
        assert c.execute(sa.select(insights.c.embedding)).scalar() == vector


class Directions:
    """Many directions, some of them alike; a text is a seed."""

    name = "directions"

    def encode(self, texts):
        return [np.random.default_rng(int(text)).normal(size=384) for text in texts]


def test_a_long_session_is_ranked_as_by_faiss(database):
    stores = [InsightStore(Directions(), database), InsightStore(Directions())]
    for store in stores:
        for start in range(0, 1_500, 500):
            store.add_many([Insight(f"{n}", f"{n % 400}") for n in range(start, start + 500)])
    for query in range(3):
        for limit, exclude in ((1, ()), (10, ["7", "407"]), (10**12, ()), (None, ["1"])):
            got, expected = (s.rank(str(query), exclude, limit) for s in stores)
            assert [h.trace_id for h in got] == [h.trace_id for h in expected]
            assert [h.score for h in got] == pytest.approx([h.score for h in expected], abs=1e-6)


def test_a_row_that_is_committed_after_a_later_one_is_found(database):
    """Sessions write at once, so numbers are committed in another order than they were given."""
    early, late, asking = (InsightStore(LexicalEmbedder(), database, s) for s in ("early", "late", "asking"))
    late.add("first", "the bank has an embedder")
    rows = early.embed([Insight("slow", "a zebra crossing")])
    with database.write() as c:
        early.insert(c, rows)
        writing = threading.Thread(target=late.add, args=("fast", "another zebra"))
        writing.start()
        writing.join()
        assert {h.trace_id for h in asking.rank("zebra", scope="all") if h.why == "words"} == {"fast"}
    assert {h.trace_id for h in asking.rank("zebra", scope="all") if h.why == "words"} == {"fast", "slow"}


def test_a_session_is_found_by_its_b_tree(database):
    store = InsightStore(NumbersEmbedder(), database)
    store.add("a", "1 0")
    query = "SELECT trace_id FROM insights WHERE session_id = 's' ORDER BY embedding <#> '[1,0]' LIMIT 3"
    with database.write() as c:
        c.exec_driver_sql("SET LOCAL enable_seqscan = off")
        plan = "\n".join(c.exec_driver_sql(f"EXPLAIN {query}").scalars())
    assert "ix_insights_session_id_seq" in plan


# many at once


def at_once(workers):
    """Let workers begin together, once each has said that it is ready."""
    for worker in workers:
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    errors = [worker.communicate(timeout=60)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * len(workers), errors


WORKER = """
import sys, threading
from memory_bank.models.lexical import LexicalEmbedder
from memory_bank.records import Insight
from memory_bank.bank.database import Database
from memory_bank.bank.stores import FactStore
from memory_bank.bank.stores import InsightStore
from tests.contracts.insights import NumbersEmbedder
from tests.contracts.stores import a_record, together
print("ready", flush=True)
sys.stdin.readline()
database, first = Database(sys.argv[1]), int(sys.argv[2])
facts, insights = FactStore(database, "s"), InsightStore(NumbersEmbedder(), database, "s")
def store(k):
    for n in range(first + k, first + 200, 8):
        facts.store_many([a_record(n), a_record(n + 1)])
        insights.add_many([Insight(a_record(m).trace_id, f"1 {m}") for m in (n, n + 1)])
together(*[lambda k=k: store(k) for k in range(8)])
database.close()
"""


@pytest.mark.long
def test_processes_fill_one_session_of_an_empty_database(postgres):
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


def test_a_sessions_order_only_grows_at_its_end(postgres_url):
    """Numbers such as ``#12`` name a record by its place: a slow commit must not squeeze itself in."""
    databases = [Database(postgres_url) for _ in range(4)]
    done = threading.Event()

    def write(k):
        store = FactStore(databases[k])
        for n in range(60):
            many = [a_record(10_000 * k + 100 * n + i) for i in range(1 + 30 * (n % 2))]
            store.store_many(many)

    def write_all():
        try:
            together(*[lambda k=k: write(k) for k in range(3)])
        finally:
            done.set()

    def read():
        store, seen = FactStore(databases[3]), []
        while not done.is_set():
            now = list(store.steps())
            assert now[: len(seen)] == seen
            seen = now

    together(write_all, read)
    for database in databases:
        database.close()


def test_two_embedders_on_an_empty_bank_never_mix(postgres):
    for attempt in range(6):
        databases = [Database(url) for url in [postgres.url(postgres.emptied())] * 4]
        refusals = []

        def add(k, databases=databases, refusals=refusals, attempt=attempt):
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


def test_a_bank_is_embedded_anew_while_others_write(postgres_url):
    """Somebody may be told to try again, but nothing is mixed and nobody waits for another in a circle."""
    databases = [Database(postgres_url) for _ in range(4)]
    InsightStore(NumbersEmbedder(), databases[0], "s0").add_many(
        [Insight(f"{n}", f"1 {n}") for n in range(50)]
    )
    told = []

    def write(k):
        for n in range(25):
            try:
                known = bank_embedder(databases[k])  # None: both sessions have just been cleared
                embedder = NumbersEmbedder(known[0]) if known else NumbersEmbedder()
                store = InsightStore(embedder, databases[k], f"s{k % 2}")
                store.add_many([Insight(f"{k}-{n}-{i}", f"1 {i}") for i in range(3)])
                if n % 8 == 7:
                    store.clear()
            except (EmbedderMismatchError, StorageError) as e:
                told.append(str(e))

    def embed():
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
