"""The words' index in the database: blocks rank as rows do, and have no words of what was deleted."""

import json
import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import sqlalchemy as sa
from cachetools import LRUCache
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.stores import before_statements
from tests.examples import first_short

from memory_bank import Insight, InteractionRecord
from memory_bank.bank import words
from memory_bank.bank.database import Database
from memory_bank.bank.lineage import ForkPoint, _copy_beginning
from memory_bank.bank.maintenance import purge, verify
from memory_bank.bank.schema import block_sessions, blocks
from memory_bank.bank.schema import words as rows_of_words
from memory_bank.bank.stores import FactStore, InsightStore
from memory_bank.bank.terms import Postings, heads_of, terms_of, terms_of_query
from memory_bank.bank.transfer import export_lines, import_lines
from memory_bank.errors import StorageError

NAMES = ("red", "green", "blue", "black", "white", "ORD-1", "ORD-2", "ORD-3")


@pytest.fixture
def small(bank):
    """A database whose blocks have few insights."""
    database = bank.database()
    database.block_size = 8
    return database


def opened(database, name, namespace=None):
    database.open_session(name, namespace=namespace)
    return FactStore(database, name), InsightStore("lexical", database, name)


def fill(database, name, texts, namespace=None):
    """Records of these outputs, each with its insight."""
    facts, insights = opened(database, name, namespace)
    records = [InteractionRecord.create(n, "get", {"n": n}, text) for n, text in enumerate(texts)]
    facts.store_many(records)
    insights.add_many([Insight(r.trace_id, "A call.") for r in records], records=records)
    return [r.trace_id for r in records]


def count(database, table):
    return database.value(sa.select(sa.func.count()).select_from(table))


def terms_in(database):
    """All terms that the index has."""
    with database.read() as c:
        stored = list(c.execute(sa.select(rows_of_words.c.terms)).scalars())
        parts = c.execute(sa.select(blocks.c.body).where(blocks.c.bucket >= 0)).scalars()
        found = [Postings.of(stored).terms, *(words._unpacked(body).terms for body in parts)]
    return set(np.concatenate(found).tolist())


@given(st.lists(st.lists(st.sampled_from(NAMES), max_size=6).map(" ".join), min_size=1, max_size=30))
def test_a_block_gives_back_what_it_was_made_of(texts):
    stored = [terms_of(text, None) for text in texts]
    bodies = words._packed(Postings.of(stored))
    assert words._joined(map(words._unpacked, bodies.values())).stored(heads_of(stored)) == stored


@pytest.mark.parametrize("seed", first_short(range(3)))
def test_blocks_rank_as_rows_do(seed, small):
    """Sessions of two namespaces write, replace, forget and clear; a bank that has no blocks and keeps no words between
    searches is the reference."""
    random_ = random.Random(seed)
    database, plain = small, Database()
    plain.kept_words = LRUCache(0, lambda rows: rows.bytes)
    sessions = {"a": None, "b": None, "x/c": "x", "x/d": "x"}
    ids = {name: [] for name in sessions}
    was_sealed = False
    for n in range(40):
        name = random_.choice(list(sessions))
        verb = random_.choice(["add"] * 6 + ["replace", "forget", "clear"])
        text = " ".join(random_.choices(NAMES, k=4))
        new = [InteractionRecord.create(n, "get", {"n": n % 5}, f"{text} {k}") for k in range(3)]
        for each in (database, plain):
            facts, insights = opened(each, name, sessions[name])
            if verb == "add":
                facts.store_many(new)
                insights.add_many([Insight(r.trace_id, text) for r in new], records=new)
            elif verb == "replace" and ids[name]:
                insights.add(ids[name][0], f"better {text}")
            elif verb == "forget" and ids[name]:
                facts.forget(ids[name][-1])
            elif verb == "clear" and n % 2:
                facts.clear()
                insights.clear()
        ids[name] += [r.trace_id for r in new] if verb == "add" else []
        if verb == "clear" and n % 2:
            ids[name] = []
        was_sealed = was_sealed or bool(count(database, blocks))
        scope = ("session", "project", "all")[n % 3]
        query = " ".join(random_.choices(NAMES, k=2))
        mine, theirs = (
            opened(each, name, sessions[name])[1].rank(query, ids[name][:1], scope=scope)
            for each in (database, plain)
        )
        assert mine == theirs
    assert was_sealed
    assert list(verify(database)) == []
    plain.close()


def test_a_search_reads_words_that_it_has_kept_once_and_keeps_a_bounded_size(bank):
    database = bank.database()
    database.kept_words = LRUCache(2**20, lambda rows: rows.bytes)
    fill(database, "a", [f"{name} apple" for name in NAMES])
    mine = InsightStore("lexical", database, "a")
    first = mine.rank("ORD-2 apple")
    read = []
    with before_statements(lambda *event: read.append(event[2])):
        assert mine.rank("ORD-2 apple") == first
    (statement,) = (s for s in read if "words.terms" in s)
    assert "words.seq >" in statement  # only what is newer
    fill(database, "a", ["ORD-9 apple"])
    assert len(mine.rank("ORD-9")) == len(NAMES) + 1
    kept = database.kept_words.currsize
    for n in range(9):
        fill(database, f"s{n}", [" ".join(f"w{n}-{k}" for k in range(400)) for _ in range(30)])
        InsightStore("lexical", database, f"s{n}").rank("w1-1")
    assert kept < database.kept_words.currsize <= database.kept_words.maxsize
    assert mine.rank("ORD-2 apple")[0].trace_id == first[0].trace_id


def test_what_is_deleted_leaves_no_words(small):
    database = small
    ids = fill(database, "a", [f"{name} apple" for name in NAMES])
    fill(database, "b", [f"{name} pear" for name in NAMES])
    assert count(database, blocks) > 0
    assert count(database, rows_of_words) == 0
    whole = next(t for t in terms_of_query("ORD-2").tolist() if t not in terms_of_query("ORD 2"))
    assert whole in terms_in(database)
    FactStore(database, "a").forget(ids[NAMES.index("ORD-2")])
    list(purge(database, session_id="b"))
    assert not set(terms_of_query("pear").tolist()) & terms_in(database)
    assert whole not in terms_in(database)
    assert InsightStore("lexical", database, "a").rank("ORD-3")[0].why == "words"
    assert list(verify(database)) == []


def test_two_processes_make_one_block_of_the_same_rows(bank_url):
    first, second = Database(bank_url), Database(bank_url)
    fill(first, "a", [f"{n} apple" for n in range(60)])
    fill(first, "b", [f"{n} pear" for n in range(60)])
    first.block_size = second.block_size = 16
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(words.settle_all, [first, second] * 2))
    heads = first.column(sa.select(blocks.c.body).where(blocks.c.bucket == -1))
    sealed = [seq for body in heads for seq in words._Rows.unpacked(body).seqs.tolist()]
    assert len(sealed) == len(set(sealed)) == 112
    assert count(first, rows_of_words) == 8
    assert list(verify(first)) == []
    for database in (first, second):
        assert len(InsightStore("lexical", database, "a").rank("apple pear", scope="all")) == 120
        database.close()


DIES = """
import sys
from tests.bank.test_words import Database, fill
database = Database(sys.argv[1])
database.block_size = 16
fill(database, "a", [f"{n} apple" for n in range(20)])
"""


def test_a_process_that_dies_while_it_makes_a_block_loses_nothing(bank_url):
    Database(bank_url).close()
    env = {**os.environ, "MEMORY_BANK_FAULT": "seal.executed:1"}
    done = subprocess.run([sys.executable, "-c", DIES, bank_url], env=env, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    database = Database(bank_url)
    assert (count(database, blocks), count(database, rows_of_words)) == (0, 20)
    database.block_size = 16
    words.settle(database, "a", 16)
    assert count(database, rows_of_words) == 4
    assert len(InsightStore("lexical", database, "a").rank("apple")) == 20
    database.close()


def test_an_import_takes_the_words_to_its_namespace(small):
    database = small
    fill(database, "a", [f"{name} apple" for name in NAMES])
    lines = [json.dumps(line) for line in export_lines(database, "a")]
    head = json.loads(lines[0])
    head["session"]["namespace"] = "x"
    list(import_lines(database, enumerate([json.dumps(head), *lines[1:]])))
    opened(database, "x/b", "x")
    fill(database, "n", ["red plum"])
    own = InsightStore("lexical", database, "x/b")
    assert {hit.session_id for hit in own.rank("red", scope="all")} == {"a"}
    assert {hit.session_id for hit in InsightStore("lexical", database, "n").rank("red", scope="all")} == {
        None
    }


def test_a_fork_has_the_words_of_its_beginning(small):
    database = small
    ids = fill(database, "a", [f"{name} apple" for name in NAMES])
    assert count(database, block_sessions) == 1
    database.open_session("f")
    upto = database.value(sa.select(sa.func.max(sa.column("seq"))).select_from(sa.table("records")))
    with database.write() as c:
        database.lock_bank(c)
        _copy_beginning(database, c, ForkPoint("a", upto, 0), "f")
    found = InsightStore("lexical", database, "f").rank("ORD-2")
    assert len(found) == len(ids)
    assert found[0].why == "words"
    assert list(verify(database)) == []


def test_words_that_are_missing_or_damaged_are_named_and_mended(small):
    database = small
    fill(database, "a", [f"{name} apple" for name in NAMES])
    with database.write() as c:
        c.execute(sa.update(blocks).where(blocks.c.bucket >= 0).values(body=b"damaged"))
        c.execute(sa.insert(rows_of_words), {"seq": 99, "namespace": "", "session_id": "a", "terms": b""})
    with pytest.raises(StorageError, match="verify --repair"):
        InsightStore("lexical", database, "a").rank("ORD-2")
    told = [(d.kind, d.session_id, d.mended) for d in verify(database)]
    assert told == [("words", "a", False), ("words", None, False)]
    assert all(d.mended for d in verify(database, repair=True))
    assert list(verify(database)) == []
    assert InsightStore("lexical", database, "a").rank("ORD-2")[0].why == "words"


def test_a_record_in_a_damaged_block_can_be_forgotten(small):
    database = small
    ids = fill(database, "a", [f"{name} apple" for name in NAMES])
    with database.write() as c:
        c.execute(sa.update(blocks).values(body=b"damaged"))
    assert FactStore(database, "a").forget(ids[0])
    assert count(database, blocks) == count(database, block_sessions) == 0
    list(verify(database, repair=True))
    assert InsightStore("lexical", database, "a").rank("ORD-2")[0].why == "words"


def test_terms_of_a_wrong_length_are_told_and_stop_no_step(small):
    database = small
    fill(database, "a", NAMES[:4])
    with database.write() as c:
        c.execute(sa.update(rows_of_words).where(rows_of_words.c.seq == 2).values(terms=b"x" * 23))
    with pytest.raises(StorageError, match="damaged"):
        InsightStore("lexical", database, "a").rank("red")
    fill(database, "b", NAMES)  # enough for a block
    assert len(list(verify(database))) == 1
    list(verify(database, repair=True))
    assert list(verify(database)) == []
    assert len(InsightStore("lexical", database, "a").rank("green")) > 0
