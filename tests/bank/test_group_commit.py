"""Group commit: writes of many threads in one transaction, each of which fails only itself."""

import contextlib
import signal
import threading
import time
from typing import Any

import pytest
import sqlalchemy as sa
from tests.contracts.stores import a_record, together

from memory_bank.bank.database import Database, GroupWriter
from memory_bank.bank.schema import bank
from memory_bank.bank.stores import FactStore
from memory_bank.errors import RecordConflictError, StorageError


@pytest.fixture
def database(tmp_path):
    database = Database(tmp_path / "bank.db")
    yield database
    database.close()


def put(key):
    def write(c):
        c.execute(sa.insert(bank), {"key": key, "value": "x"})
        return key

    return write


def keys(database):
    with database.read() as c:
        return list(c.execute(sa.text("SELECT key FROM bank ORDER BY rowid")).scalars())


class Line:
    """A writer that is held at a gate while others stand in line behind it, in a known order."""

    def __init__(self, writer):
        self.writer = writer
        self.gate = threading.Event()
        self.outcomes: dict[str, Any] = {}
        self.threads: list[threading.Thread] = []
        held = threading.Event()

        def wait(_c):
            held.set()
            self.gate.wait(30)

        self.start("gate", wait)
        held.wait(30)

    def start(self, name, operation):
        def run():
            try:
                self.outcomes[name] = self.writer.run(operation, "s")
            except BaseException as e:
                self.outcomes[name] = e

        waiting = len(self.writer.waiting)
        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()
        if name != "gate":
            while len(self.writer.waiting) == waiting:
                time.sleep(0.001)

    def open(self):
        self.gate.set()
        for thread in self.threads:
            thread.join(30)
        return self.outcomes


def writer_of(database):
    assert database._writer is not None
    return database._writer


def test_writes_in_line_are_done_in_its_order_and_each_gets_its_own_result(database):
    line = Line(writer_of(database))
    for i in range(10):
        line.start(f"k{i}", put(f"k{i}"))
    outcomes = line.open()
    assert {k: v for k, v in outcomes.items() if k != "gate"} == {f"k{i}": f"k{i}" for i in range(10)}
    assert keys(database) == [f"k{i}" for i in range(10)]


def test_a_write_that_fails_among_others_undoes_only_itself(database):
    def failing(c):
        put("half")(c)
        raise ValueError("mine")

    line = Line(writer_of(database))
    line.start("a", put("a"))
    line.start("bad", failing)
    line.start("twice", lambda c: (put("twice")(c), put("twice")(c)))
    line.start("b", put("b"))
    outcomes = line.open()
    assert keys(database) == ["a", "b"]
    assert isinstance(outcomes["bad"], ValueError)
    assert isinstance(outcomes["twice"], sa.exc.IntegrityError)
    assert (outcomes["a"], outcomes["b"]) == ("a", "b")


def test_a_commit_that_fails_fails_all_of_its_writes_and_no_later_one(database):
    broken = threading.Event()

    @contextlib.contextmanager
    def transaction(durable):
        with database.write() as c:
            yield c
            if broken.is_set():
                raise OSError("the disk is full")

    writer = GroupWriter(transaction, lambda _c, ids: ids)
    line = Line(writer)
    line.start("a", put("a"))
    line.start("b", put("b"))
    broken.set()
    outcomes = line.open()
    assert [type(outcomes[k]) for k in ("gate", "a", "b")] == [OSError] * 3
    assert keys(database) == []
    broken.clear()
    assert writer.run(put("c"), "s") == "c"
    assert keys(database) == ["c"]


def test_ctrl_c_in_the_leader_is_nobody_elses(database):
    def interrupted(_c):
        raise KeyboardInterrupt

    line = Line(writer_of(database))
    line.start("leads", interrupted)  # first in line: it gets the lead
    line.start("other", put("other"))
    outcomes = line.open()
    assert isinstance(outcomes["leads"], KeyboardInterrupt)
    assert isinstance(outcomes["other"], StorageError)
    assert keys(database) == []
    assert writer_of(database).run(put("later"), "s") == "later"


@pytest.mark.parametrize("place", ["first", "last"])
def test_ctrl_c_in_a_waiting_thread_lets_the_others_go_on(database, place):
    line = Line(writer_of(database))
    if place == "last":
        line.start("other", put("other"))
    waiting = len(line.writer.waiting)

    def interrupt():
        while len(line.writer.waiting) == waiting:
            time.sleep(0.001)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        line.writer.run(put("mine"), "s")
    thread.join()
    if place == "first":
        line.start("other", put("other"))
    assert line.open()["other"] == "other"
    assert keys(database) == ["other"]
    assert line.writer.run(put("later"), "s") == "later"


def test_a_write_whose_session_another_transaction_holds_runs_alone_whatever_becomes_of_others(
    database,
):
    def fail(_c):
        raise RecordConflictError("another record has this trace_id.")

    for name, operation in (("a", put("a")), ("fails", fail)):
        writer = GroupWriter(database.write, lambda _c, ids: [i for i in ids if i != "busy"])
        line, result = Line(writer), []
        line.start(name, operation)
        alone = threading.Thread(
            target=lambda w=writer, r=result, n=name: r.append(w.run(put(f"{n} alone"), "busy"))
        )
        alone.start()
        while len(writer.waiting) < 2:
            time.sleep(0.001)
        outcome = line.open()[name]
        alone.join(30)
        assert result == [f"{name} alone"]
    assert isinstance(outcome, RecordConflictError)
    assert sorted(keys(database)) == ["a", "a alone", "fails alone"]


def test_several_leaders_run_every_write_once(tmp_path):
    database = Database(tmp_path / "bank.db")
    writer = GroupWriter(database.write, lambda _c, ids: ids, leaders=3)
    together(*[lambda k=k: [writer.run(put(f"{k}/{i}"), "s") for i in range(10)] for k in range(24)])
    assert len(keys(database)) == 240
    assert writer.free == 3
    assert not writer.waiting
    database.close()


@pytest.mark.long
def test_64_threads_some_of_which_are_refused(bank_url):
    database = Database(bank_url)
    stores = [FactStore(database, f"s{k % 16}") for k in range(64)]  # four to a session
    for k, store in enumerate(stores):
        if k % 8 == 0:
            store.store(a_record(100_000 + k))
    refused = []

    def write(k):
        for i in range(5):
            stores[k].store_many([a_record(100 * k + 2 * i), a_record(100 * k + 2 * i + 1)])
        if k % 8 == 0:
            try:
                stores[k].store_many([a_record(200_000 + k), a_record(100_000 + k, raw_output="another")])
            except RecordConflictError:
                refused.append(k)

    together(*[lambda k=k: write(k) for k in range(64)])
    assert len(refused) == 8
    for k, store in enumerate(stores):
        mine = [a_record(100 * k + i).trace_id for i in range(10)]
        assert [t for t in store.steps() if t in mine] == mine  # each thread's in its own order
        assert store.get_many(mine) == [a_record(100 * k + i) for i in range(10)]
        assert store.get(a_record(200_000 + k).trace_id) is None
    assert sum(FactStore(database, f"s{k}").size() for k in range(16)) == 64 * 10 + 8
    database.close()


def test_a_session_that_another_process_holds_keeps_up_no_other(bank_url):
    if bank_url.startswith("sqlite"):
        pytest.skip("SQLite has one writer at a time")
    database, other = Database(bank_url), Database(bank_url)
    stores = [FactStore(database, f"s{k}") for k in range(20)]
    with other.write() as c:
        other.lock_session(c, "s0")
        held = threading.Thread(target=lambda: stores[0].store(a_record(0)))
        held.start()
        together(*[lambda s=s: s.store(a_record(1)) for s in stores[1:]])
        assert [s.size() for s in stores] == [0] + [1] * 19
        assert held.is_alive()
    held.join(30)
    assert stores[0].size() == 1
    database.close()
    other.close()


def test_a_record_without_a_call_id_is_stored_alone_and_among_others(bank_url):
    database = Database(bank_url)
    facts = FactStore(database)
    facts.store(a_record(0, call_id=None))
    facts.store_many([a_record(1, call_id=None), a_record(2)])
    facts.store(a_record(0, call_id=None))
    assert [r.call_id for r in facts.get_many(list(facts.steps()))] == [None, None, "call_2"]
    database.close()
