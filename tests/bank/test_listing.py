"""Sessions as a service lists them, on every database."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from memory_bank.bank.database import Database
from memory_bank.bank.facts import FactStore
from memory_bank.bank.insights import InsightStore
from memory_bank.bank.jobs import JobQueue
from memory_bank.bank.listing import Tokens, list_page, namespace_totals, session_figures
from memory_bank.bank.schema import sessions, spending, steps
from memory_bank.records import Insight, InteractionRecord, Spent


class Plain:
    """An embedder of two dimensions."""

    name = "plain"

    def encode(self, texts):
        return [[len(t) + 1.0, 1.0] for t in texts]


@pytest.fixture
def database(bank_url):
    database = Database(bank_url)
    yield database
    database.close()


def opened(database, *names, namespace=None, created=None):
    """Sessions in the order of their creation."""
    for i, name in enumerate(names):
        database.open_session(name, None, namespace)
        with database.write() as c:
            at = i + 1.0 if created is None else created
            c.execute(sa.update(sessions).where(sessions.c.session_id == name).values(created=at))


def names_of(found):
    assert found is not None
    return [line.session_id for line in found[0]]


def test_the_newest_comes_first_page_by_page(database):
    opened(database, *(f"s{n}" for n in range(7)))
    first = list_page(database, None, 3)
    assert names_of(first) == ["s6", "s5", "s4"]
    assert first[1]
    second = list_page(database, None, 3, "s4")
    assert names_of(second) == ["s3", "s2", "s1"]
    last = list_page(database, None, 3, "s1")
    assert names_of(last) == ["s0"]
    assert not last[1]
    assert list_page(database, None, 3, "s0") == ([], False)


def test_sessions_of_one_moment_are_all_listed_once(database):
    opened(database, *"abcdefg", created=5.0)
    seen, after = [], None
    while True:
        lines, more = list_page(database, None, 2, after)
        seen += [line.session_id for line in lines]
        if not more:
            break
        after = lines[-1].session_id
    assert seen == list("gfedcba")


def test_a_namespace_sees_its_own_sessions_only(database):
    opened(database, "mine", "one")
    opened(database, "n/theirs", namespace="n")
    assert names_of(list_page(database, None, 10)) == ["one", "mine"]
    assert names_of(list_page(database, "n", 10)) == ["n/theirs"]
    assert names_of(list_page(database, "other", 10)) == []
    for cursor in ("n/theirs", "nowhere"):
        assert list_page(database, None, 10, cursor) is None
    assert list_page(database, "n", 10, "mine") is None
    assert session_figures(database, None, "n/theirs") is None
    assert session_figures(database, "n", "mine") is None


def test_a_deleted_session_is_not_listed_but_still_a_place_to_go_on_from(database):
    opened(database, "a", "b", "c")
    database.mark_deleted("b")
    assert names_of(list_page(database, None, 10)) == ["c", "a"]
    assert names_of(list_page(database, None, 10, "b")) == ["a"]
    assert session_figures(database, None, "b") is None
    assert namespace_totals(database, None).sessions == 2


def test_sessions_are_found_by_name_and_task_in_any_case(database):
    opened(database, *(f"n/s{n}" for n in range(40)), namespace="n")
    database.set_task("n/s7", "Find the LATE Märchen")
    database.set_task("n/s31", "late again \ud800")
    assert names_of(list_page(database, "n", 10, text="late", prefix="n/")) == ["n/s31", "n/s7"]
    assert names_of(list_page(database, "n", 10, text="MÄRCHEN", prefix="n/")) == ["n/s7"]
    assert names_of(list_page(database, "n", 20, text="S1", prefix="n/"))[-1] == "n/s1"
    assert names_of(list_page(database, "n", 10, text="n/", prefix="n/")) == []
    found = list_page(database, "n", 1, text="late", prefix="n/")
    assert found[1]
    assert names_of(list_page(database, "n", 1, "n/s31", text="late", prefix="n/")) == ["n/s7"]


def test_a_line_has_the_figures_of_its_session(database):
    opened(database, "empty", "full")
    facts = FactStore(database, "full")
    records = [InteractionRecord.create(n, "t", {"n": n}, n) for n in range(1, 6)]
    facts.store_many(records)
    InsightStore(Plain(), database, "full").add_many(
        [Insight(r.trace_id, "s", redo="again" if r.step_id == 1 else None) for r in records[:4]]
    )
    queue = JobQueue(database, "full")
    queue.add([r.trace_id for r in records[:2]])
    job = queue.take("me", 1, 60)[0]
    queue.give_back("me", job, "no answer", 5.0)
    (full, empty), _ = list_page(database, None, 10)
    assert (full.records, full.steps, full.insights, full.jobs, full.failing) == (5, 5, 4, 2, 1)
    assert full.last_written == records[-1].timestamp
    assert (empty.records, empty.steps, empty.insights, empty.jobs, empty.last_written) == (0, 0, 0, 0, None)


def note(database, session_id, number, full, sent):
    row = {
        "session_id": session_id, "number": number, "created": 1.0, "full_tokens": full, "tokens": sent,
        "messages": 3, "records": 1, "status": "rebuilt", "strategy": "s", "milliseconds": 1.0,
    }  # fmt: skip
    with database.write() as c:
        c.execute(sa.insert(steps), row)


def spend(database, session_id, cost):
    row = {"session_id": session_id, "day": "2026-01-01", "model": "m", "calls": 1, "prompt_tokens": 10}
    with database.write() as c:
        c.execute(sa.insert(spending), {**row, "completion_tokens": 2, "cost": cost})


def test_figures_of_a_session_and_the_sums_of_a_namespace(database):
    opened(database, "n/a", "n/b", namespace="n")
    opened(database, "mine")
    for session in ("n/a", "n/b", "mine"):
        FactStore(database, session).store_many([InteractionRecord.create(1, "t", {}, n) for n in range(3)])
        spend(database, session, 0.5)
        note(database, session, 1, 2**40, 100)
    note(database, "n/a", 2, 50, 50)
    database.set_task("n/a", "the whole \ud800 task" + "x" * 10_000)
    found = session_figures(database, "n", "n/a")
    assert found.line.task.startswith("the whole \ud800 task")
    assert len(found.line.task) > 10_000
    assert (found.unobserved, found.to_redo, found.attempts) == (3, 0, 0)
    assert found.spent == Spent(1, 10, 2, 0.5)
    assert found.tokens == Tokens(2, 2**40 + 50, 150)
    totals = namespace_totals(database, "n")
    assert (totals.sessions, totals.records, totals.insights, totals.jobs) == (2, 6, 0, 0)
    assert totals.spent == Spent(2, 20, 4, 1.0)
    assert totals.tokens == Tokens(3, 2**41 + 50, 250)
    database.mark_deleted("n/b")
    totals = namespace_totals(database, "n")
    assert (totals.sessions, totals.records, totals.tokens.steps) == (1, 3, 2)
    assert totals.spent == Spent(2, 20, 4, 1.0)  # money does not come back
    assert namespace_totals(database, "nobody").records == 0


@given(st.lists(st.sampled_from("abcdefgh"), unique=True), st.integers(1, 4), st.data())
def test_pages_have_every_session_once_whatever_their_times(names, limit, data):
    database = Database()
    times = data.draw(st.lists(st.sampled_from([1.0, 2.0, 3.5]), min_size=len(names), max_size=len(names)))
    for name, at in zip(names, times, strict=True):
        opened(database, name, created=at)
    seen, after = [], None
    while True:
        lines, more = list_page(database, None, limit, after)
        seen += lines
        if not more:
            break
        after = lines[-1].session_id
    assert [(s.created, s.session_id) for s in seen] == sorted(zip(times, names, strict=True), reverse=True)
