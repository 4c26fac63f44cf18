"""PostgreSQL that refuses, goes away, comes back, or is not what was expected: one sentence, nothing lost."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from tests.bank.test_database import STORE, refused
from tests.contracts.insights import NumbersEmbedder
from tests.contracts.stores import a_record, together
from tests.postgres import Relay, python
from tests.service.processes import until

from memory_bank.bank.database import Database
from memory_bank.bank.listing import list_sessions
from memory_bank.bank.postgres import _Line
from memory_bank.bank.stores import FactStore, InsightStore
from memory_bank.errors import (
    DatabaseVersionError,
    StorageError,
)

pytestmark = pytest.mark.long


@pytest.fixture
def database(postgres_url):
    database = Database(postgres_url)
    yield database
    database.close()


# what cannot be opened


@pytest.fixture(scope="module")
def users(postgres):
    """A server with a user who needs a password, and one without rights."""
    postgres.sql("CREATE ROLE guarded LOGIN PASSWORD 'right'")
    postgres.sql("CREATE ROLE plain LOGIN")
    postgres.demand_password("guarded")
    return postgres


def test_who_may_not_in(users):
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


def test_what_is_not_there(postgres):
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


def test_an_encoding_that_cannot_hold_every_name(postgres):
    for encoding in ("SQL_ASCII", "LATIN1"):
        name = f"db_{encoding.lower()}"
        postgres.sql(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")
        assert "ENCODING 'UTF8'" in refused(postgres.url(name))


@pytest.mark.parametrize(
    "options",
    ["connect_timeout=secret", "port=99999", "sslmode=secret", "nonsense=secret", "options=-csecret%3D1"],
)
def test_options_that_no_server_takes(postgres_url, options):
    refused(f"{postgres_url}&{options}".replace("secret", "strange"))


def empty_name(url):
    return url.partition("@/")[2].partition("?")[0]


@pytest.mark.short
@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg", "postgres"])
def test_three_names_of_one_scheme(postgres, postgres_url, scheme):
    database = Database(postgres_url.replace("postgresql", scheme, 1), must_exist=True)
    FactStore(database).store(a_record(1))
    database.close()


def test_a_newer_schema(postgres):
    bank = postgres.new()
    postgres.sql("UPDATE schema_version SET version_num = '9999'", bank)
    assert "newer memory_bank (schema 9999" in refused(postgres.url(bank), DatabaseVersionError)


def test_the_database_of_another_application(postgres):
    other = postgres.new("template0")
    postgres.sql("CREATE TABLE customers (name text)", other)
    assert "another program" in refused(postgres.url(other))
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


def test_the_extension_may_not_be_made_or_is_not_there(users):
    bank = users.new("template0")
    assert "CREATE EXTENSION vector" in refused(users.url(bank, "plain"))
    users.sql(f"ALTER DATABASE {bank} SET extension_control_path = '/nowhere'")
    assert "install pgvector" in refused(users.url(bank))
    users.sql(f"ALTER DATABASE {bank} RESET extension_control_path")
    users.sql("CREATE EXTENSION vector", bank)
    assert "rights" in refused(users.url(bank, "plain"))  # a schema that is not theirs
    users.sql("GRANT ALL ON SCHEMA public TO plain", bank)
    Database(users.url(bank, "plain")).close()


@pytest.mark.short
def test_without_the_driver_the_extra_is_named():
    script = """
import sys
sys.modules["psycopg"] = None  # as where it is not installed
from memory_bank.bank.database import Database
Database("sqlite://")
Database("postgresql://u:secret@localhost/d")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("memory_bank.errors.DatabaseOpenError: ")
    assert last.endswith("run  pip install '.[postgres]'  in a checkout.")
    assert "secret" not in done.stderr.replace('secret@localhost/d")', "")


# a server that goes away


def test_a_server_that_goes_away_and_comes_back(postgres, postgres_url, database):
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


def test_connections_that_broke_unseen_are_replaced_before_anything_is_sent(postgres, database):
    store = FactStore(database)
    together(*[lambda n=n: store.store(a_record(n)) for n in range(4)])  # several connections in the pool
    postgres.stop()
    postgres.start()
    for n in range(4, 8):
        store.store(a_record(n))
        assert store.get(a_record(n).trace_id) == a_record(n)
    assert store.size() == 8


@pytest.mark.parametrize("when", ["before the end", "at the end"])
def test_a_server_that_goes_away_during_a_write(postgres, database, when):
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
    assert database.extent("default").generation == 0


def test_a_kill_while_the_tables_are_created_leaves_nothing(postgres):
    name = postgres.new("template0")
    opening = "import sys; from memory_bank.bank.database import Database; Database(sys.argv[1])"
    killed = subprocess.run(
        [sys.executable, "-c", opening, postgres.url(name)],
        env={**os.environ, "MEMORY_BANK_FAULT": "write.executed"},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert postgres.sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", name) == [(0,)]
    database = Database(postgres.url(name))
    FactStore(database).store(a_record(1))
    database.close()


@pytest.mark.parametrize("who", ["the process", "the server"])
def test_a_kill_loses_no_acknowledged_record(postgres, postgres_url, who):
    worker = python(STORE, postgres_url, 0)
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


def test_who_holds_a_session_for_long_is_not_waited_for_without_end(database):
    store = FactStore(database)
    store.store(a_record(1))
    with database.write() as c:
        database.lock_session(c, "default")
        start = time.monotonic()
        with pytest.raises(StorageError, match="lock timeout; nothing was changed"):
            store.store(a_record(2))
        assert 14 < time.monotonic() - start < 60  # longer than a request waits for memory
        assert store.get("trace-00001") == a_record(1)  # reading goes on
        FactStore(database, "other").store(a_record(2))  # so do other sessions
    store.store(a_record(2))
    assert store.size() == 2


# a network that is silent, a pooler before the server


@pytest.fixture
def relay(postgres):
    relay = Relay(postgres)
    yield relay
    relay.close()


def test_those_that_wait_for_a_connection_to_a_silent_server_do_not_wait_one_after_another(postgres, relay):
    database = Database(f"{relay.url(postgres.emptied())}?pool_size=2")
    said = []

    def ask():
        try:
            database.value(sa.select(1))
        except StorageError as e:
            said.append(str(e))

    database.value(sa.select(1))
    with relay.silence():
        began = time.monotonic()
        threads = [threading.Thread(target=ask) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - began < 8  # two at a time, one pair after the other: 12 seconds
    assert len(said) == 16
    database.close()


def test_a_question_whose_thread_is_gone_does_not_stay_open():
    """As in a process that was forked meanwhile, or where no thread can be started."""
    line = _Line(lambda: False)
    line._asked = time.monotonic() - 60
    assert not line.is_silent

    before = threading.stack_size(2**46)  # no machine has so much
    try:
        with pytest.raises(RuntimeError):
            threading.Thread().start()
        line.ask()
    finally:
        threading.stack_size(before)
    assert not line.is_silent


def test_a_silent_server_is_given_up_and_known_until_it_answers(postgres, relay):
    database = Database(relay.url(postgres.emptied()))
    store = FactStore(database)
    store.store(a_record(1))
    with relay.silence():
        for operation in (lambda: store.get("trace-00001"), lambda: store.store(a_record(2))):
            with pytest.raises(StorageError, match=r"does not answer.*same call"):
                operation()
        with pytest.raises(StorageError, match="does not answer"), database.snapshot():
            pass  # known by now: no statement is sent
        assert database.is_silent
    until(lambda: not database.is_silent)
    store.store(a_record(2))
    assert store.size() == 2
    database.close()


def test_a_server_that_is_only_slow_is_waited_for(postgres, relay):
    database = Database(relay.url(postgres.emptied()))
    with database.read() as c:
        assert c.exec_driver_sql("SELECT 'done' FROM pg_sleep(3)").scalar() == "done"
    database.close()


def test_a_connection_that_ends_as_a_write_begins_is_said_in_a_sentence(postgres, database):
    pid = database.value(sa.text("SELECT pg_backend_pid()"))
    checkout = sa.event.listens_for(database._engine, "checkout", named=True)
    checkout(lambda **_: postgres.sql(f"SELECT pg_terminate_backend({pid})") or time.sleep(0.3))
    with pytest.raises(StorageError, match="nothing was changed"), database.write():
        pass


def test_a_server_that_answers_others_but_lets_a_new_connection_wait_is_not_silent(postgres, relay):
    """As on a machine with much to do, where the server's new process takes seconds to begin."""
    database = Database(relay.url(postgres.emptied()))
    with database.read(), database.read():
        pass  # two connections, which stay
    with relay.silence(only_new=True), database.read() as c, ThreadPoolExecutor(1) as other:
        slow = other.submit(database.value, sa.text("SELECT 'done' FROM pg_sleep(3)"))
        while not slow.done():
            assert c.exec_driver_sql("SELECT 1").scalar() == 1
            time.sleep(0.1)
        assert slow.result() == "done"
    database.close()


def test_all_who_wait_are_told_of_silence(postgres, relay):
    """Also one that runs a long statement, and those who wait for a shared transaction."""
    database = Database(relay.url(postgres.emptied()))
    stores = [FactStore(database, f"s{n}") for n in range(6)]
    for store in stores:
        store.store(a_record(1))
    told = []

    def tell(operation):
        try:
            operation()
        except StorageError as e:
            told.append(str(e))

    def sleep():
        with database.read() as c:
            c.exec_driver_sql("SELECT pg_sleep(60)")

    operations = [sleep, *(lambda s=s: s.store(a_record(2)) for s in stores)]
    with relay.silence():
        threads = [threading.Thread(target=tell, args=(o,)) for o in operations]
        for t in threads:
            t.start()
        for t in threads:
            t.join(30)
    assert len(told) == 7
    until(lambda: not database.is_silent)
    for store in stores:
        store.store(a_record(2))
        assert store.size() == 2
    database.close()


def test_nothing_is_kept_in_the_session_of_a_pooled_server(postgres):
    """PgBouncer gives each transaction another process of the server."""
    relay = Relay(postgres, pools=True)
    database = Database(relay.url(postgres.emptied()))
    store = FactStore(database)
    for n in range(12):  # more often than psycopg prepares
        store.store(a_record(n))
        assert store.get(f"trace-{n:05}") == a_record(n)
    with database.read() as c:
        assert c.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar() == 0
        assert c.exec_driver_sql("SHOW lock_timeout").scalar() == "0"
    with database.write() as c:
        assert c.exec_driver_sql("SHOW lock_timeout").scalar() == "15s"
    database.close()
    relay.close()


def test_the_options_of_the_url(postgres_url):
    database = Database(
        f"{postgres_url}&pool_size=1&prepare_threshold=none&application_name=one&options=-cstatement_timeout%3D300"
    )
    store = FactStore(database)
    for n in range(12):
        store.store(a_record(n))
    with database.read() as c:
        assert c.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar() == 0
        own = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'one'"
        assert c.exec_driver_sql(own).scalar() == 1
    with pytest.raises(StorageError, match="statement timeout"), database.read() as c:
        c.exec_driver_sql("SELECT pg_sleep(30)")
    database.close()
    for wrong in ("pool_size=0", "pool_size=many", "prepare_threshold=-1"):
        assert wrong.partition("=")[0] in refused(f"{postgres_url}&{wrong}")
