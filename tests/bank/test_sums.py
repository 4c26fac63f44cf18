"""The kept sums of sessions are what counting their rows would give, whatever was written, deleted and by whom."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import sqlalchemy as sa
from hypothesis import Phase, example, given
from hypothesis import strategies as st
from tests.bank.test_database import drop_triggers
from tests.contracts.stores import a_record, before_statements
from tests.examples import examples, first_short

from memory_bank.bank.database import Database
from memory_bank.bank.lineage import ForkPoint, Lineage, LineageEntry
from memory_bank.bank.listing import namespace_totals
from memory_bank.bank.maintenance import purge, verify
from memory_bank.bank.schema import (
    count_of,
    insights,
    records,
    recount,
    schema_version,
    sessions,
    steps,
    sums,
)
from memory_bank.bank.steps import CONTROL, StepFigures, StepToStore, add_steps, usage_sums
from memory_bank.bank.stores import FactStore, InsightStore
from memory_bank.bank.transfer import export_lines, import_lines
from memory_bank.pricing import Usage
from memory_bank.records import Insight

SESSIONS = ["a", "b", "n/c"]


def kept(database):
    """All kept sums but those of nothing."""
    rows = [dict(r) for r in database.rows(sa.select(sums))]
    numbers = {c.name for c in sums.c} - {*sums.primary_key.columns.keys(), "last"}
    for row in rows:
        row["billed"] = round(row["billed"], 6)
        if not row["steps"]:
            row["last"] = None
    return sorted((r for r in rows if any(r[n] for n in numbers)), key=repr)


def comparable(used):
    return sorted((replace(u, last=0.0, billed=round(u.billed or 0.0, 6)) for u in used), key=repr)


def assert_as_counted(database):
    for name in database.column(sa.select(sessions.c.session_id)):
        counted = [database.value(count_of(t).where(t.c.session_id == name)) for t in (records, insights)]
        assert [*database.extent(name)[1:3]] == counted
        assert {type(n) for n in database.extent(name)[1:3]} == {int}
    before, totals = kept(database), [namespace_totals(database, n) for n in (None, "n")]
    used = (usage_sums(database, None, "session"), usage_sums(database, None, "session", since=0.0))
    counts = [n for of in used for s in of for n in (s.steps, s.reported, s.errors, s.without_memory)]
    assert {*map(type, counts)} <= {int}  # PostgreSQL's sums are Decimals, which no JSON has
    assert comparable(used[0]) == comparable(used[1])
    for since in database.column(sa.select(steps.c.created)):
        later = count_of(steps.join(sessions, sessions.c.session_id == steps.c.session_id))
        later = later.where(sessions.c.namespace.is_(None), sessions.c.deleted.is_(None))
        found = usage_sums(database, None, "period", since=since)
        assert sum(s.steps for s in found) == database.value(later.where(steps.c.created >= since))
    assert [d for d in verify(database) if d.kind == "sums"] == []
    with database.write() as c:
        recount(c)
    after = kept(database)
    latest = [[r.pop("last") for r in rows] for rows in (before, after)]
    assert before == after
    assert max(filter(None, latest[0]), default=0) == max(filter(None, latest[1]), default=0)
    assert totals == [namespace_totals(database, n) for n in (None, "n")]


def a_step(session, made, kind):
    usage = Usage(100 + kind, 50, 10, 5)
    figures = StepFigures(
        session, made, 2**33 + kind, 90, 3, 1, ["rebuilt", CONTROL, "failed", "refused"][kind % 4], "s", 1.0,
        model=[None, "m", "other", "m"][kind % 4], sent=usage if kind % 3 else None, full=usage if kind % 3 else None,
        billed=0.1 * kind if kind % 5 == 1 else None, untold="no usage" if kind % 3 == 0 else None,
        error="wrong" if kind % 7 == 0 else None,
    )  # fmt: skip
    return StepToStore(figures)


def insights_of(numbers):
    return [Insight(a_record(n).trace_id, f"It is late {n}.") for n in numbers]


numbers = st.lists(st.integers(1, 8), min_size=1, max_size=4, unique=True)
session = st.sampled_from(SESSIONS)
kinds = st.integers(0, 11)
operation = st.one_of(
    st.tuples(st.just("records"), session, numbers), st.tuples(st.just("insights"), session, numbers),
    st.tuples(st.just("step"), session, kinds), st.tuples(st.just("two steps"), session, kinds),
    st.tuples(st.just("forget"), session, st.integers(1, 8)),
    st.tuples(st.sampled_from(["clear", "purge", "delete", "fork", "leave", "copy"]), session, st.just(None)),
)  # fmt: skip


def do(database, clock, number, what, name, value):
    facts = FactStore(database, name)
    if what == "records":
        facts.store_many([a_record(n) for n in value])
    elif what == "insights":
        InsightStore("lexical", database, name).add_many(insights_of(value))
    elif what == "step":
        clock[name] = 10.0 * number
        add_steps(database, [a_step(name, clock[name], value)], 2)
    elif what == "two steps":
        clock[name] = time.time()  # newer than a deletion
        add_steps(database, [a_step(name, clock[name], k) for k in (value, value + 1)], 2)
    elif what == "forget":
        facts.forget(a_record(value).trace_id)
    elif what == "clear":
        facts.clear()
        InsightStore("lexical", database, name).clear()
    elif what == "purge":
        list(purge(database, session_id=name))
    elif what == "delete":
        database.set_session(name, deleted=time.time())
    elif what in ("fork", "leave"):
        newest = Lineage(database).newest(name)
        point = ForkPoint(name, newest, 0, takes=newest if what == "leave" else 0)
        Lineage(database).begin(f"fork{number}", None, LineageEntry(f"d{number}", (), f"h{number}"), point)
    elif what == "copy":
        lines = [
            json.dumps(line).replace(f'"{name}"', f'"copy of {name}"')
            for line in export_lines(database, name)
        ]
        list(import_lines(database, enumerate(lines, 1)))


@examples(100, phases=[Phase.explicit, Phase.generate])
@example([("step", "a", 7), ("records", "a", [1]), ("forget", "a", 1)])
@given(st.lists(operation, max_size=14))
def test_sums_are_as_counted_after_any_writes(operations):
    database, clock = Database(), {}
    for name in SESSIONS:
        database.open_session(name, namespace="n" if "/" in name else None)
    for number, each in enumerate(operations, 1):
        do(database, clock, number, *each)
    assert_as_counted(database)


def test_sums_are_as_counted_when_several_write_at_once(bank_url):
    databases = [Database(bank_url) for _ in range(3)]
    databases[0].open_session("s")

    def write(of):
        for n in range(12):
            FactStore(databases[of], "s").store_many([a_record(m) for m in range(1 + n, 4 + n)])
            InsightStore("lexical", databases[of], "s").add_many(insights_of(range(1 + n, 3 + n)))
            add_steps(databases[of], [a_step("s", 100.0 * of + n, n), a_step("s", 100.0 * of + n, n + 1)], 2)
            if n == 6 and of == 1:
                FactStore(databases[of], "s").clear()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, range(3)))
    left = namespace_totals(databases[1], None)
    assert left.records > 0
    assert left.tokens.steps == 72
    assert_as_counted(databases[2])
    for database in databases:
        database.close()


def test_many_rows_of_one_transaction_change_the_sums_a_few_times(bank_url):
    """Each change of a row in a transaction leaves one more that PostgreSQL reads at the next."""
    database, many = Database(bank_url), range(1, 2_001)
    changed = sa.text("SELECT cmin::text::int FROM sums")  # commands before the latest change
    FactStore(database, "s").store_many([a_record(n) for n in many])
    assert not database.ranks or database.value(changed) < 50
    InsightStore("lexical", database, "s").add_many(insights_of(many))
    assert not database.ranks or database.value(changed) < 50
    totals = namespace_totals(database, None)
    assert (totals.records, totals.insights) == (2_000, 2_000)
    assert_as_counted(database)
    FactStore(database, "s").store_many([a_record(n) for n in range(1, 2_101)])  # of which most exist
    assert namespace_totals(database, None).records == 2_100
    database.close()


@pytest.mark.long
def test_long_rows_are_not_all_in_one_statement(postgres_url, tmp_path):
    """PostgreSQL ends a connection by which more than 1 GiB comes at once."""
    sizes = []

    def send(_c, _cursor, statement, parameters, *_):
        if statement.startswith("INSERT INTO records"):
            values = parameters.values() if isinstance(parameters, dict) else ()
            sizes.append(sum(len(v.obj) for v in values if hasattr(v, "obj")))  # of bytes

    database, other = Database(postgres_url), Database(tmp_path / "other.db")
    long = [replace(a_record(n), raw_output="x" * 900_000, output_text=None) for n in range(1, 51)]
    with before_statements(send):
        FactStore(database, "s").store_many(long)
    assert list(FactStore(database, "s").steps()) == [r.trace_id for r in long]
    FactStore(other, "imported").store_many(long)
    with before_statements(send):
        list(import_lines(database, enumerate(map(json.dumps, export_lines(other)), 1)))
    assert 16e6 < max(sizes) < 36e6
    assert namespace_totals(database, None).records == 100
    assert_as_counted(database)
    database.close()
    other.close()


@pytest.mark.short  # also on PostgreSQL
def test_an_answer_is_forgotten_beside_its_steps_sums(bank_url):
    """A trigger that runs before an update decides what PostgreSQL stores."""
    database = Database(bank_url)
    facts = FactStore(database, "s")
    facts.store_many([a_record(1)])
    ended = {"model": "m", "sent": Usage(9, 2), "full": Usage(10, 2), "http_status": 500, "error": "wrong"}
    step = StepFigures("s", 5.0, 10, 5, 1, 0, "rebuilt", "memory_bank", 1.0, **ended)
    add_steps(database, [StepToStore(step, answer=b"text")])
    read = sa.select(steps.c["model", "http_status", "error", "answer"])
    assert [tuple(row.values()) for row in database.rows(read)] == [("m", 500, "wrong", b"text")]
    facts.forget(a_record(1).trace_id)
    assert [tuple(row.values()) for row in database.rows(read)] == [("m", 500, None, None)]
    assert_as_counted(database)
    database.close()


@pytest.mark.parametrize("point", first_short(["purge.executed", "facts.executed", "insights.executed"]))
def test_a_process_that_is_killed_within_a_write_leaves_the_sums_right(bank_url, point):
    database = Database(bank_url)
    database.open_session("s")
    FactStore(database, "s").store_many([a_record(1)])
    InsightStore("lexical", database, "s").add_many(insights_of([1]))
    writes = (
        "import sys; from tests.bank.test_sums import *; d = Database(sys.argv[1]);"
        "FactStore(d, 's').store_many([a_record(2)]);"
        "InsightStore('lexical', d, 's').add_many(insights_of([2])); list(purge(d, session_id='s'))"
    )
    env = {**os.environ, "MEMORY_BANK_FAULT": f"{point}:1"}
    done = subprocess.run([sys.executable, "-c", writes, bank_url], env=env, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert namespace_totals(database, None).records == (1 if point == "facts.executed" else 2)
    assert_as_counted(database)
    database.close()


def write_as_schema_9(database):
    """Write a record, an insight, and a step, as a process does that knows of no sums."""
    with database.write() as c:
        c.exec_driver_sql(
            "INSERT INTO records (session_id, trace_id, step_id, tool_name, input, input_verbatim, output,"
            " output_verbatim, timestamp) SELECT session_id, 'old', 2, tool_name, input, input_verbatim, output,"
            " output_verbatim, timestamp FROM records"
        )
        c.exec_driver_sql(
            "INSERT INTO insights (session_id, trace_id, summary, source, terms) SELECT session_id, 'old', output,"
            " 'extractive', output FROM records WHERE trace_id = 'old'"
        )
        c.exec_driver_sql(
            "INSERT INTO steps (session_id, number, created, full_tokens, tokens, messages, records, status, strategy,"
            " milliseconds) VALUES ('s', 7, 5, 90, 80, 3, 1, 'failed', 's', 1)"
        )
        c.exec_driver_sql(
            "UPDATE steps SET model = strategy_bytes, full_input_tokens = 90, billed = 0.5 FROM "
            "(SELECT output AS strategy_bytes FROM records WHERE trace_id = 'old') AS m WHERE number = 7"
        )
        c.exec_driver_sql("UPDATE steps SET status = 'rebuilt' WHERE number = 7")


@pytest.mark.short
def test_rows_that_a_process_of_an_older_schema_writes_are_counted(bank_url):
    database = Database(bank_url)
    FactStore(database, "s").store_many([a_record(1)])
    write_as_schema_9(database)
    totals = namespace_totals(database, None)
    assert (totals.records, totals.tokens.steps) == (2, 1)
    assert_as_counted(database)
    database.close()


def test_sums_of_schema_10_beside_an_older_process_are_right_once_the_bank_is_opened(bank_url):
    database = Database(bank_url)
    FactStore(database, "s").store_many([a_record(1)])
    with database.write() as c:
        drop_triggers(c)
    write_as_schema_9(database)
    assert namespace_totals(database, None).records == 1
    with database.write() as c:
        c.execute(sa.update(schema_version).values(version_num="10"))
    database.close()
    database = Database(bank_url)
    assert namespace_totals(database, None).records == 2
    FactStore(database, "s").store_many([a_record(2)])
    assert_as_counted(database)
    database.close()


def test_sums_that_are_wrong_are_found_and_mended(bank_url):
    database = Database(bank_url)
    database.open_session("s")
    FactStore(database, "s").store_many([a_record(1)])
    with database.write() as c:
        c.execute(sa.update(sums).values(records=6))
    assert [(d.kind, d.session_id) for d in verify(database)] == [("sums", "s")]
    assert namespace_totals(database, None).records == 6
    assert [d.mended for d in verify(database, repair=True)] == [True]
    assert namespace_totals(database, None).records == 1
    assert list(verify(database)) == []
    database.close()
