"""Databases: opened, migrated, refused in one sentence, and whole after a kill."""

import logging
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.bank.test_steps import a_step
from tests.contracts.stores import a_record, another_program, together
from tests.postgres import python

from memory_bank.bank import sqlite as module
from memory_bank.bank.database import Database
from memory_bank.bank.embedder import bank_embedder
from memory_bank.bank.listing import list_sessions, namespace_totals
from memory_bank.bank.maintenance import verify
from memory_bank.bank.schema import (
    IDS,
    MIGRATIONS,
    SET_SESSION,
    VERSION,
    folds,
    insights,
    of_session,
    records,
    schema_version,
    sessions,
    steps,
    triggers,
)
from memory_bank.bank.sqlite import schema_script
from memory_bank.bank.steps import add_steps
from memory_bank.bank.stores import FactStore, InsightStore
from memory_bank.errors import ConfigError, DatabaseOpenError, DatabaseVersionError, StorageError
from memory_bank.records import Insight


def pragma(database, name):
    with database.read() as c:
        return c.exec_driver_sql(f"PRAGMA {name}").scalar()


def schema(connection):
    rows = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {" ".join(sql.split()) for (sql,) in rows}


def test_a_fresh_file_has_the_tables_and_is_safe(tmp_path):
    database = Database(tmp_path / "bank.db")
    assert pragma(database, "journal_mode") == "wal"
    assert pragma(database, "synchronous") == 2  # FULL
    assert pragma(database, "busy_timeout") == module.BUSY_TIMEOUT_MS == 5_000
    with database.write() as c:
        assert c.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert c.exec_driver_sql("SELECT version_num FROM schema_version").scalar() == VERSION


def test_memory_and_a_file_have_the_same_tables(tmp_path):
    Database(tmp_path / "bank.db").close()
    memory = sqlite3.connect(":memory:")
    memory.executescript(schema_script())
    assert schema(memory) == schema(sqlite3.connect(tmp_path / "bank.db"))


@pytest.mark.parametrize("where", ["", ":memory:", "sqlite://", "sqlite:///:memory:"])
def test_memory_is_private_and_gone_when_closed(where):
    one, two = Database(where), Database(where)
    store = FactStore(one)
    store.store(a_record(1))
    assert FactStore(two).size() == 0
    one.close()
    with pytest.raises(StorageError, match="closed"):
        store.size()


def test_a_closed_file_opens_again(tmp_path):
    store = FactStore(Database(f"sqlite:///{tmp_path}/a%b ü.db"))
    store.database.close()
    store.store(a_record(1))
    assert FactStore(Database(tmp_path / "a%b ü.db", must_exist=True)).size() == 1


# what cannot be opened


def refused(where, kind=DatabaseOpenError, *, must_exist=False):
    """The error's sentence."""
    with pytest.raises(kind) as caught:
        Database(where, must_exist=must_exist)
    assert type(caught.value) is kind
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert "secret" not in "".join(traceback.format_exception(caught.value, limit=0))
    return sentence


def test_no_database(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("secret content, no database\n" * 100)
    assert "notes.txt" in refused(file)
    assert file.read_text() == "secret content, no database\n" * 100


@pytest.mark.parametrize("where", ["", "sub"])
def test_a_folder(tmp_path, where):
    (tmp_path / "sub").mkdir()
    assert "folder" in refused(tmp_path / where)


def test_a_missing_folder(tmp_path):
    assert "folder does not exist" in refused(tmp_path / "no" / "bank.db")
    assert "no such database" in refused(tmp_path / "bank.db", must_exist=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("with_alembic", [False, True])
def test_the_database_of_another_application(tmp_path, with_alembic):
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE customers (name)")
    if with_alembic:
        other.execute("CREATE TABLE alembic_version (version_num)")
        other.execute("INSERT INTO alembic_version VALUES ('abc')")
    other.commit()
    before = schema(other)
    assert "another program" in refused(tmp_path / "other.db")
    assert schema(other) == before


OLDER = (  # what banks of schema 7 had: pins, manifests, the Observer's jobs, and what its calls cost
    "UPDATE records SET mark = 'pinned'",
    "ALTER TABLE steps ADD COLUMN manifest varchar(9)",
    "CREATE TABLE jobs (session_id varchar(255), trace_id varchar(64), attempts integer)",
    "INSERT INTO jobs VALUES ('s', 'trace-00001', 2)",
    "CREATE TABLE spending (session_id varchar(255), day varchar(10), model varchar(255), calls integer)",
    "INSERT INTO spending VALUES ('s', '2026-03-01', 'a', 3), ('s', '2026-03-01', 'b', 4)",
)


_TERMS = "UPDATE insights SET terms = (SELECT terms FROM words WHERE words.seq = insights.seq)"
UNPACKED = {  # insights of schema 8
    "sqlite": [
        _TERMS,
        "UPDATE insights SET summary = CAST('It is late.' AS BLOB), embedding = zeroblob(2048)",
    ],
    "postgresql": [
        _TERMS,
        "UPDATE insights SET summary = 'It is late.', embedding = array_fill(0, ARRAY[512])::vector",
        "ALTER TABLE insights ALTER COLUMN embedding SET NOT NULL",
    ],
}

AGENTS = (  # of schema 9: what searches crossed
    "ALTER TABLE sessions ADD COLUMN agent_id varchar(255)",
    "CREATE INDEX ix_sessions_agent_id ON sessions (agent_id)",
    "UPDATE sessions SET agent_id = 'team␟clerk'",
)


def drop_triggers(c):
    """Let the database keep no sums."""
    for kind, name in (statement.split()[1:3] for statement in triggers(c.dialect.name)):
        if kind == "FUNCTION":
            c.exec_driver_sql(f"DROP FUNCTION {name} CASCADE")
        elif c.dialect.name == "sqlite":
            c.exec_driver_sql(f"DROP TRIGGER {name}")


def age(database, version, *last):
    """Bring a bank with two insights to an older version; ``last``: more statements."""
    number = int(version)
    with database.write() as c:
        drop_triggers(c)
        for statement in OLDER if number < 8 else ():
            c.exec_driver_sql(statement)
        if number <= 3:
            c.exec_driver_sql("CREATE TABLE models (namespace varchar(64) PRIMARY KEY)")
        for statement in UNPACKED[database.url.get_backend_name()] if number < 9 else ():
            c.exec_driver_sql(statement)
        has_agents = number > 9 or "agent_id" in {
            column["name"] for column in sa.inspect(c).get_columns("sessions")
        }
        for statement in AGENTS[has_agents:] if number <= 9 else ():  # PostgreSQL's bank is used again
            c.exec_driver_sql(statement)
        added = [
            step
            for v in MIGRATIONS
            if int(v) >= number
            for step in MIGRATIONS[v]
            if isinstance(step, (sa.Table, sa.Index, sa.Column))
        ]
        for column in reversed(added):
            if isinstance(column, (sa.Table, sa.Index)):
                column.drop(c)
                continue
            c.exec_driver_sql(f"ALTER TABLE {column.table} DROP COLUMN {column.name}")
        for statement in (f"UPDATE schema_version SET version_num = '{version}'", *last):
            c.exec_driver_sql(statement)


@pytest.mark.parametrize("version", list(MIGRATIONS))
def test_a_bank_of_an_older_version_is_brought_to_this_one(bank_url, version):
    """Two processes open it at once; what it holds stays."""
    database = Database(bank_url)
    database.open_session("s")
    FactStore(database, "s").store_many([a_record(1), a_record(2)])
    InsightStore("lexical", database, "s").add_many(
        [Insight(a_record(n).trace_id, "It is late.") for n in (1, 2)]
    )
    age(database, version)
    database.close()
    if version == "8":  # a process that dies meanwhile changes nothing
        opens = "import sys; from memory_bank.bank.database import Database; Database(sys.argv[1])"
        env = {**os.environ, "MEMORY_BANK_FAULT": "write.executed:1"}
        done = subprocess.run([sys.executable, "-c", opens, bank_url], env=env, timeout=60, check=False)
        assert done.returncode == -signal.SIGKILL
    with ThreadPoolExecutor(2) as pool:
        opened = list(pool.map(Database, [bank_url] * 2))
    for database in opened:
        assert [r.mark for r in FactStore(database, "s").page()] == [None, None]  # pins went
        counts = (1, 7, 2) if int(version) < 8 else (0, 0, 2)
        assert [(s.waiting, s.calls, s.insights) for s in list_sessions(database)] == [counts]
        totals = namespace_totals(database, None)
        assert (totals.records, totals.insights) == (2, 2)
        database.set_session("s", title="Named")
        assert database.value(sa.select(sessions.c.title)) == "Named"
        assert database.project_of("s") == ("clerk" if int(version) < 10 else None)
        assert database.value(sa.select(schema_version.c.version_num)) == VERSION
        assert database.rows(sa.select(steps)) == database.rows(sa.select(folds)) == []
        assert database.column(sa.select(insights.c.embedding)) == [b"", b""]
        assert len(InsightStore("lexical", database, "s").search("late")) == 2
        assert InsightStore("lexical", database, "s").rank("late")[0].why == "words"
        with database.read() as c:
            assert database.tables(c).isdisjoint({"models", "jobs", "spending"})
        database.close()
    if int(version) < 8:
        with Database(bank_url).write() as c:
            c.exec_driver_sql("ALTER TABLE steps DROP COLUMN manifest")  # PostgreSQL's bank is used again


def test_the_groups_of_an_older_bank_stay(bank_url):
    """Before schema 10 a hash of the id decided at each step; its steps say how."""
    database = Database(bank_url)
    names = ["before", "control", "memory"]
    for created, name in enumerate(names):
        database.open_session(name)
        database.set_session(name, created=float(created))
        add_steps(database, [a_step(name, status="control" if name == "control" else "rebuilt")])
    age(database, "9")
    database.close()
    with closing(Database(bank_url)) as database:
        found = database.rows(
            sa.select(sessions.c.session_id, sessions.c.control).order_by(sessions.c.created)
        )
    assert [tuple(row.values()) for row in found] == [("before", None), ("control", True), ("memory", False)]


def test_a_damaged_insight_does_not_keep_an_older_bank_closed(bank_url):
    database = Database(bank_url)
    database.open_session("s")
    FactStore(database, "s").store_many([a_record(1), a_record(2)])
    InsightStore("lexical", database, "s").add_many(
        [Insight(a_record(n).trace_id, "It is late.") for n in (1, 2)]
    )
    damaged = {"sqlite": "X'c3'", "postgresql": r"'\xc3'::bytea"}[database.url.get_backend_name()]
    age(database, "8", f"UPDATE insights SET summary = {damaged} WHERE seq = 1")
    database.close()
    with closing(Database(bank_url)) as database:
        assert [d.what for d in verify(database)] == ["its summary is not readable"]
        assert len(list(verify(database, repair=True))) == 1
        assert list(verify(database)) == []
        assert database.column(sa.select(insights.c.summary)) == ["It is late."]


def test_a_process_beside_one_that_brings_the_bank_to_a_newer_schema_stores_nothing(bank_url):
    """It waits for the other one, and then each write, and each read of what has gone, says what to do."""
    old, new = Database(bank_url), Database(bank_url)
    facts = FactStore(old, "s")
    facts.store_many([a_record(1)])
    with ThreadPoolExecutor(1) as pool:
        with new._transaction(creating=True) as c:
            c.exec_driver_sql("UPDATE schema_version SET version_num = '9999'")
            waits = pool.submit(facts.store_many, [a_record(2)])
            time.sleep(0.3)
            assert not waits.done()
        with pytest.raises(StorageError, match=r"has schema 9999 by now.*start this process again"):
            waits.result()
    assert facts.size() == 1
    with another_program(new.url) as c:
        c.exec_driver_sql("ALTER TABLE calls RENAME TO gone")
    try:
        with pytest.raises(StorageError, match="has schema 9999 by now"):
            list_sessions(old)
    finally:  # PostgreSQL's bank is used again
        with another_program(new.url) as c:
            c.exec_driver_sql("ALTER TABLE gone RENAME TO calls")
            c.exec_driver_sql(f"UPDATE schema_version SET version_num = '{VERSION}'")
    facts.store_many([a_record(2)])
    old.close()
    new.close()


@pytest.mark.long  # a minute
def test_an_opening_that_waits_in_vain_for_another_says_so(tmp_path, postgres_url):
    banks = [Database(url) for url in (tmp_path / "bank.db", postgres_url)]
    with ThreadPoolExecutor() as pool, ExitStack() as held:
        for database in banks:
            age(database, "9")
            c = held.enter_context(database._transaction(creating=True))
            c.exec_driver_sql("UPDATE schema_version SET version_num = version_num")
            if database.ranks:  # else the server ends a transaction in which nothing happens
                c.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        for waits in [pool.submit(Database, database.url) for database in banks]:
            with pytest.raises(
                DatabaseOpenError, match="another process has been bringing it to another schema"
            ):
                waits.result()
    for database in banks:
        database.close()
        Database(database.url).close()


@pytest.mark.long  # it sleeps
def test_a_long_way_to_this_schema_tells_how_far_it_is(postgres_url, caplog):
    database = Database(postgres_url)
    FactStore(database, "s").store_many([a_record(1)])
    InsightStore("lexical", database, "s").add_many([Insight(a_record(1).trace_id, "It is late.")])
    age(database, "8")
    with another_program(database.url) as c:  # a slow server
        c.exec_driver_sql(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(6); RETURN NULL; END';"
            "CREATE TRIGGER slow AFTER DELETE ON insights EXECUTE FUNCTION slow()"
        )
    database.close()
    with caplog.at_level(logging.INFO, "memory_bank.Database"):
        Database(postgres_url).close()
    assert [r.getMessage().partition(" is brought ")[2] for r in caplog.records] == [
        f"from schema 8 to schema {VERSION}; others wait",
        "to schema 9: 1 of 1 summaries",
    ]


def test_a_newer_schema(tmp_path):
    Database(tmp_path / "bank.db").close()
    with sqlite3.connect(tmp_path / "bank.db") as connection:
        connection.execute("UPDATE schema_version SET version_num = '9999'")
    assert "newer memory_bank" in refused(tmp_path / "bank.db", DatabaseVersionError)
    with sqlite3.connect(tmp_path / "bank.db") as connection:  # as a bank from before the first release
        connection.execute("ALTER TABLE schema_version RENAME TO alembic_version")
    assert "(schema 9999" in refused(tmp_path / "bank.db", DatabaseVersionError)


@pytest.mark.parametrize(
    "url",
    [
        "://", "sqlite//:x://", "nonsense://u:secret@host/db", "postgresql+psycopg2://u:secret@host/db",
        "mysql://u:secret@h/d", "postgresql+asyncpg://u:secret@h/d", "postgresql://u:sec@secret@h/d", "sqlite+nodriver:///x", "sqlite+aiosqlite:///x", "sqlite://u:secret@host/x", 
        "sqlite:///x?password=secret", "sqlite:///file:x?mode=ro&uri=true", 
        "postgresql://u:secret@host:port/db", "a\0b", "sqlite:///" + "x" * 5000,
        "\ud800/x",
    ],
    ids=lambda u: ascii(u)[:40],
)  # fmt: skip
def test_urls_that_name_no_database(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(url)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def open_folder():
    """A folder that all users may enter: pytest closes its own to others whenever it starts anywhere."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def test_files_and_folders_that_may_not_be_written(open_folder):
    closed, bank = open_folder / "closed", open_folder / "bank.db"
    FactStore(Database(bank)).database.close()
    closed.mkdir()
    script = f"""
import os
from memory_bank.errors import DatabaseOpenError
from memory_bank.bank.database import Database
from memory_bank.bank.embedder import bank_embedder
Database()  # import everything while it may be read
if os.geteuid() == 0:
    os.setgroups([]); os.setegid(65534); os.seteuid(65534)
for where in ({str(closed / "new.db")!r}, {str(bank)!r}):
    try:
        Database(where)
        print("opened", where)
    except DatabaseOpenError as e:
        print("refused", "\\n" not in str(e), e)
"""
    for path, mode in ((bank, 0o444), (closed, 0o555), (open_folder, 0o555)):
        path.chmod(mode)
    try:
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    finally:
        open_folder.chmod(0o755)
    first, second = done.stdout.splitlines()
    assert first.startswith("refused True")
    assert "unable to open" in first or "Permission denied" in first
    assert second.startswith("refused True")
    assert "readonly" in second or "unable to open" in second


@pytest.mark.parametrize("session_id", ["", "x" * 256, "a\0b", "\ud800", None, 5])
def test_session_ids_that_no_database_takes(session_id):
    with pytest.raises(ConfigError, match="session_id"):
        Database().open_session(session_id)


# others at work


OPEN = """
import sys
from memory_bank.bank.database import Database
from memory_bank.bank.stores import FactStore, InsightStore
from tests.contracts.stores import a_record
import os, time
for attempt in range(2):
    print("ready", flush=True)
    while not os.path.exists(f"{sys.argv[1]}/go{attempt}"): time.sleep(0.001)
    FactStore(Database(f"{sys.argv[1]}/bank{attempt}.db")).store(a_record(int(sys.argv[2])))
"""


@pytest.mark.long
def test_processes_that_open_a_fresh_file_at_once(tmp_path):
    workers = [python(OPEN, tmp_path, n) for n in range(3)]
    for attempt in range(2):
        for worker in workers:
            assert worker.stdout.readline() == "ready\n"
        (tmp_path / f"go{attempt}").touch()
    assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    for attempt in range(2):
        assert FactStore(Database(tmp_path / f"bank{attempt}.db")).size() == 3


def test_threads_that_open_fresh_files_at_once(tmp_path):
    for attempt in range(5):
        files = [tmp_path / f"{attempt}-{n}.db" for n in (0, 0, 1, 2)]
        together(*(lambda f=f, n=n: FactStore(Database(f)).store(a_record(n)) for n, f in enumerate(files)))
        assert [FactStore(Database(f)).size() for f in files] == [2, 2, 1, 1]


def test_a_kill_while_the_tables_are_created_leaves_nothing(tmp_path):
    opening = "import sys; from memory_bank.bank.database import Database; Database(sys.argv[1])"
    killed = subprocess.run(
        [sys.executable, "-c", opening, tmp_path / "bank.db"],
        env={**os.environ, "MEMORY_BANK_FAULT": "write.executed"},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    with sqlite3.connect(tmp_path / "bank.db") as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    FactStore(Database(tmp_path / "bank.db")).store(a_record(1))


STORE = """
import itertools, sys
from memory_bank.bank.database import Database
from memory_bank.bank.stores import FactStore, InsightStore
from tests.contracts.stores import a_record
store = FactStore(Database(sys.argv[1]))
for n in itertools.count(int(sys.argv[2])):
    store.store_many([a_record(2 * n), a_record(2 * n + 1)])
    print(n, flush=True)
"""


def test_a_kill_loses_no_acknowledged_record(tmp_path):
    acknowledged = []
    for _ in range(2):
        worker = python(STORE, tmp_path / "bank.db", max(acknowledged, default=0))  # the last one once more
        acknowledged += [int(worker.stdout.readline()) for _ in range(40)]
        os.kill(worker.pid, signal.SIGKILL)
        acknowledged += [int(line) for line in worker.stdout.read().split("\n")[:-1]]
        worker.wait(60)
    store = FactStore(Database(tmp_path / "bank.db"))
    stored = [int(trace_id[-5:]) for trace_id in store.steps()]
    assert len(stored) == len(set(stored)) == store.size()
    assert {2 * n for n in acknowledged} | {2 * n + 1 for n in acknowledged} <= set(stored)
    assert len(stored) % 2 == 0  # what was under way is there as a whole or not at all
    assert store.get_many(list(store.steps())) == [a_record(n) for n in stored]


def test_a_locked_database_refuses_once_and_works_later(tmp_path):
    store = FactStore(Database(tmp_path / "bank.db"))
    store.store(a_record(1))
    with store.database.write() as c:
        c.exec_driver_sql("PRAGMA busy_timeout=50")
    other = sqlite3.connect(tmp_path / "bank.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match="locked; nothing was changed") as caught:
        store.store(a_record(2, raw_output="secret"))
    assert "secret" not in str(caught.value)
    with pytest.raises(StorageError, match="locked"):
        store.clear()
    assert store.get("trace-00001") == a_record(1)  # reading goes on
    Database(tmp_path / "bank.db").close()  # so does opening
    other.execute("COMMIT")
    store.store(a_record(2))
    assert store.size() == 2


def test_errors_hold_no_contents():
    store = FactStore()
    with store.database.write() as c:
        c.exec_driver_sql("DROP TABLE records")
    with pytest.raises(StorageError) as caught:
        store.store(a_record(1, raw_output="secret"))
    assert "secret" not in "".join(traceback.format_exception(caught.value, limit=0))
    assert "no such table" in str(caught.value)
    assert "INSERT" not in str(caught.value)


def test_a_failing_write_changes_nothing(tmp_path):
    for where in ("", tmp_path / "bank.db"):
        database = Database(where)
        store = FactStore(database)
        with pytest.raises(ZeroDivisionError), database.write() as c:  # noqa: PT012
            c.exec_driver_sql("UPDATE sessions SET generation = 5")
            1 / 0  # noqa: B018
        assert database.extent("default").generation == 0
        store.store(a_record(1))
        assert store.size() == 1


def test_tasks_and_generations_are_kept_by_session(tmp_path):
    database = Database(tmp_path / "bank.db")
    one, _two = FactStore(database, "one"), FactStore(database, "two")
    database.set_session("one", task="find \ud800 it\0")
    assert (
        database.get_session("one", "task"),
        database.get_session("two", "task"),
        database.get_session("no", "task"),
    ) == (
        "find \ud800 it\0",
        "",
        "",
    )
    one.clear()
    assert (
        database.extent("one").generation,
        database.extent("two").generation,
        database.extent("no").generation,
    ) == (1, 0, 0)
    assert bank_embedder(database) is None


def test_syncing_is_full_unless_the_url_says_otherwise(tmp_path):
    levels = []
    for url in (f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db?synchronous=normal"):
        database = Database(url)
        with database.read() as c:
            levels.append(c.exec_driver_sql("PRAGMA synchronous").scalar())
    assert levels == [2, 1]
    for wrong in ("synchronous=off", "cache=shared", "synchronous=normal&mode=ro"):
        with pytest.raises(DatabaseOpenError, match="takes one option"):
            Database(f"sqlite:///{tmp_path}/c.db?{wrong}")


def test_what_a_session_holds_is_read_without_its_rows():
    """However many there are: a step asks for it."""
    read: list[str] = []
    database = Database("")
    FactStore(database, "task").store_many([a_record(n) for n in range(3)])
    with database.read() as c:
        c.connection.driver_connection.set_trace_callback(read.append)
    assert database.extent("task").records == 3
    assert read
    assert not any("FROM records" in statement for statement in read)


def test_the_driver_runs_statements_as_sqlalchemy_does(bank):
    database = bank.database()
    odd = replace(a_record(1), call_id=None, output_text="half of a pair \ud83d\0", raw_output=None)
    facts = FactStore(database, "s")
    facts.store_many([odd, a_record(2)])
    ids = [odd.trace_id, "none", a_record(2).trace_id]
    both = sa.select(records, records.c.mark.is_(None).label("bare"), sa.literal("x").label("constant"))
    both = both.where(of_session(records), records.c.trace_id.in_(IDS)).order_by(records.c.seq)
    with database.read() as c:
        fetched = database.fetch(c, both, session="s", ids=ids)
        assert fetched == Database.fetch(database, c, both, session="s", ids=ids)
    assert [row[1:3] for row in fetched] == [("s", odd.trace_id), ("s", ids[2])]
    assert facts.get(odd.trace_id).output_text == odd.output_text
    with database.write() as c:
        renamed = SET_SESSION.values(title=sa.bindparam("new"), control=True)
        changes = [{"session": name, "new": "\udc00"} for name in ("s", "none")]
        assert database.change(c, renamed, changes[0]) == database.change(c, renamed, changes) == 1
    with database.read() as c:
        [row] = database.fetch(c, sa.select(sessions.c.title, sessions.c.control))
        assert row == ("\udc00", True)
        assert row[1] is True


def test_an_error_of_the_driver_is_ours_and_undoes_the_write(bank):
    database = bank.database()
    database.open_session("s")
    twice = sa.update(records).values(seq=1)
    FactStore(database, "s").store_many([a_record(1), a_record(2)])

    def write(c):
        database.change(c, SET_SESSION.values(title="lost"), {"session": "s"})
        database.change(c, twice, {})

    with pytest.raises(StorageError, match="nothing was changed"):
        database.submit(write, "s")
    with database.read() as c:
        assert database.fetch(c, sa.select(sessions.c.title)) == [(None,)]


def test_a_write_that_can_be_made_again_does_not_wait_for_the_disk(tmp_path):
    """With others in its transaction it does where one of these has to."""

    def level(c):
        return c.exec_driver_sql("PRAGMA synchronous").scalar()

    database, normal = Database(tmp_path / "a.db"), Database(f"sqlite:///{tmp_path}/b.db?synchronous=normal")
    durable = [True, False, False, True]
    assert [database.submit(level, "s", durable=d) for d in durable] == [2, 1, 1, 2]
    assert [normal.submit(level, "s", durable=d) for d in durable] == [1] * 4
    with database.write(durable=False) as c:
        assert level(c) == 1
    with database.write() as c:
        assert level(c) == 2
    writer, held = database._writer, threading.Event()
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(database.submit, lambda _: held.wait(60), "s")
        while writer.free:
            time.sleep(0.01)
        others = [threads.submit(database.submit, level, "s", durable=d) for d in (False, True)]
        while len(writer.waiting) < 2:
            time.sleep(0.01)
        held.set()
        assert first.result()
        assert [other.result() for other in others] == [2, 2]
    database.close()
    normal.close()
