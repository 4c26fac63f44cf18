"""Lists of sessions and records, on every database: paged, counted, found, and read in pieces."""

import time
from dataclasses import replace

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from tests.chats import TEXT
from tests.contracts.insights import NumbersEmbedder
from tests.contracts.stores import a_record, let_wait

from memory_bank.bank import listing as module
from memory_bank.bank.database import Database
from memory_bank.bank.listing import (
    PIECE,
    Tokens,
    find_record,
    has_session,
    list_outlines,
    list_page,
    list_sessions,
    namespace_totals,
    outlines,
    pieces,
    records_named,
    session_details,
    whole,
)
from memory_bank.bank.schema import calls, sessions, steps
from memory_bank.bank.stores import FactStore, InsightStore
from memory_bank.errors import StorageError
from memory_bank.records import Insight, InteractionRecord


class Plain:
    """An embedder of two dimensions."""

    name = "plain"

    def encode(self, texts):
        return [[len(t) + 1.0, 1.0] for t in texts]


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
    assert session_details(database, None, "n/theirs") is None
    assert session_details(database, "n", "mine") is None


def test_a_deleted_session_is_not_listed_but_still_a_place_to_go_on_from(database):
    opened(database, "a", "b", "c")
    database.set_session("b", deleted=time.time())
    assert names_of(list_page(database, None, 10)) == ["c", "a"]
    assert names_of(list_page(database, None, 10, "b")) == ["a"]
    assert session_details(database, None, "b") is None
    assert namespace_totals(database, None).sessions == 2


def test_sessions_are_found_by_name_and_task_in_any_case(database):
    opened(database, *(f"n/s{n}" for n in range(40)), namespace="n")
    database.set_session("n/s7", task="Find the LATE Märchen")
    database.set_session("n/s31", task="late again \ud800")
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
    let_wait(database, [records[1].trace_id])
    let_wait(database, [records[0].trace_id], 1, "no answer")
    (full, empty), _ = list_page(database, None, 10)
    assert (full.records, full.steps, full.insights, full.waiting, full.failing) == (5, 5, 4, 2, 1)
    assert full.last_written == records[-1].timestamp
    assert (empty.records, empty.steps, empty.insights, empty.waiting, empty.last_written) == (
        0,
        0,
        0,
        0,
        None,
    )


def note(database, session_id, number, full, sent):
    row = {
        "session_id": session_id, "number": number, "created": 1.0, "full_tokens": full, "tokens": sent,
        "messages": 3, "records": 1, "status": "rebuilt", "strategy": "s", "milliseconds": 1.0,
    }  # fmt: skip
    with database.write() as c:
        c.execute(sa.insert(steps), row)


def ask(database, session_id):
    with database.write() as c:
        c.execute(sa.insert(calls), {"session_id": session_id, "day": "2026-01-01", "calls": 1})


def test_figures_of_a_session_and_the_sums_of_a_namespace(database):
    opened(database, "n/a", "n/b", namespace="n")
    opened(database, "mine")
    for session in ("n/a", "n/b", "mine"):
        FactStore(database, session).store_many([InteractionRecord.create(1, "t", {}, n) for n in range(3)])
        ask(database, session)
        note(database, session, 1, 2**40, 100)
    note(database, "n/a", 2, 50, 50)
    database.set_session("n/a", task="the whole \ud800 task" + "x" * 10_000)
    found = session_details(database, "n", "n/a")
    assert found.task.startswith("the whole \ud800 task")
    assert len(found.task) > 10_000
    assert (found.unobserved, found.to_redo, found.attempts) == (3, 0, 0)
    assert found.calls == 1
    assert found.tokens == Tokens(2, 2**40 + 50, 150)
    totals = namespace_totals(database, "n")
    assert (totals.sessions, totals.records, totals.insights, totals.waiting) == (2, 6, 0, 0)
    assert totals.calls == 2
    assert totals.tokens == Tokens(3, 2**41 + 50, 250)
    database.set_session("n/b", deleted=time.time())
    totals = namespace_totals(database, "n")
    assert (totals.sessions, totals.records, totals.tokens.steps) == (1, 3, 2)
    assert totals.calls == 2  # those of deleted sessions count
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


# all sessions of a bank


def test_sessions_are_counted(database):
    one, two = FactStore(database, "one"), FactStore(database, "two")
    FactStore(database, "empty")
    database.set_session("one", task="find it")
    one.store_many([a_record(n) for n in range(7)])
    two.store_many([a_record(n) for n in range(100, 103)])
    insights = InsightStore(NumbersEmbedder(), database, "one")
    insights.add_many([Insight(f"trace-{n:05}", "1 0", redo="failed" if n < 2 else None) for n in range(4)])
    insights.add_many([Insight(f"by hand {n}", "1 0") for n in range(3)])  # insights without a record
    InsightStore(NumbersEmbedder(), database, "two").add("trace-00000", "1 0")  # a record of another session
    found = [
        (s.session_id, s.records, s.steps, s.insights, s.unobserved, s.to_redo, s.last_written, s.task)
        for s in list_sessions(database)
    ]
    assert found == [
        ("two", 3, 35, 1, 3, 0, 1_700_000_102.0, ""),
        ("one", 7, 3, 7, 3, 2, 1_700_000_006.0, "find it"),
        ("empty", 0, 0, 0, 0, 0, None, ""),
    ]
    uncounted = {"unobserved": 0, "to_redo": 0}
    assert list_sessions(database, is_short=True) == [
        replace(s, **uncounted) for s in list_sessions(database)
    ]
    assert has_session(database, "empty")
    assert not any(has_session(database, name) for name in ("no", "\udcff", "a\0b", "", "x" * 300))


def test_a_record_is_found_in_whichever_session_it_is(database):
    FactStore(database, "one").store_many([a_record(1), a_record(2)])
    FactStore(database, "two").store_many([a_record(1, raw_output="other"), a_record(3)])
    InsightStore(NumbersEmbedder(), database, "two").add_many(
        [Insight("trace-00003", "1 0", "llm:x", "again")]
    )
    assert find_record(database, "trace-00003") == (
        "two",
        a_record(3),
        Insight("trace-00003", "1 0", "llm:x", "again"),
    )
    assert find_record(database, "trace-00001") == ("one", a_record(1), None)
    assert find_record(database, "no") is find_record(database, "\udcff") is None


# records


def record(n, output, **more):
    raw = {"_raw": output} if isinstance(output, str) else output
    text = output if isinstance(output, str) else None
    return InteractionRecord.create(n, f"tool_{n}", {"n": n}, raw, output_text=text, **more)


def store(database, *outputs, session="s"):
    records = [record(n, output) for n, output in enumerate(outputs, 1)]
    facts = FactStore(database, session)
    for r in records:
        facts.store(r)
    return records


def test_an_outline_says_how_much_there_is_and_what_became_of_it(database):
    records = store(database, "é" * 10, {"a": [1, 2]}, "plain")
    ids = [r.trace_id for r in records]
    made = [Insight(ids[0], "short", redo="again"), Insight(ids[1], "short")]
    InsightStore(Plain(), database, "s").add_many(made, waiting=[ids[1]])
    first, second, third = outlines(database, "s", [r.trace_id for r in records])
    assert (first.output_bytes, first.output_head, first.output_verbatim) == (20, ("é" * 10).encode(), True)
    assert (first.summary, first.source, first.redo, first.attempts) == ("short", "extractive", "again", None)
    assert (second.output_verbatim, second.output_head, second.attempts) == (False, b'{"a": [1, 2]}', 0)
    assert second.input_head == b'{"n": 2}'
    assert (third.summary, third.attempts) == (None, None)


def test_outlines_come_in_the_order_asked_for_of_one_session_only(database):
    a, b = store(database, "a", "b")
    other = store(database, "c", session="other")[0]
    found = outlines(database, "s", [b.trace_id, "no such", other.trace_id, a.trace_id, b.trace_id, "\0"])
    assert [(o.trace_id, o.number) for o in found] == [(b.trace_id, 2), (a.trace_id, 1)]


def test_a_record_is_named_by_its_id_the_beginning_of_it_or_its_number(database):
    facts = FactStore(database, "s")
    for trace_id in ("abcdef_1-x", "abcdefg%2", "ABCDEFe", "short"):
        facts.store(InteractionRecord(trace_id, 1, "t", {}, 1))

    def named(name, limit=5):
        return [o.trace_id for o in records_named(database, "s", name, limit)]

    assert named("abcdef") == ["ABCDEFe", "abcdefg%2", "abcdef_1-x"]
    assert named("ABCDEF_") == ["abcdef_1-x"]
    assert named("abcdefg%") == ["abcdefg%2"]
    assert named("short") == named("#4") == named("4") == ["short"]
    assert [named(name) for name in ("abcde", "%%%%%%", "\0" * 6, "#0", "#5", "", "\ud800" * 6)] == [[]] * 7
    assert len(named("abcdef", 2)) == 2


LONG = "0123456789abcdé" * 150_000  # over 2 MiB


def test_a_long_text_is_read_in_pieces_to_the_letter(database):
    store(database, "small", LONG)
    _, outline = list_outlines(database, "s", 5)
    read = list(pieces(database, outline, "output"))
    assert max(map(len, read)) == PIECE
    assert b"".join(read) == LONG.encode()
    assert whole(database, outline, "output") == LONG
    assert whole(database, outline, "input") == '{"n": 2}'
    assert outline.output_head == LONG.encode()[: len(outline.output_head)]
    assert 0 < len(outline.output_head) < 5_000


def test_a_record_that_goes_while_it_is_read_is_an_error(database):
    store(database, LONG)
    (outline,) = list_outlines(database, "s", 5)
    reading = pieces(database, outline, "output")
    next(reading)
    FactStore(database, "s").clear()
    with pytest.raises(StorageError):
        list(reading)


@given(st.lists(TEXT, min_size=1, max_size=4), st.integers(1, 7))
def test_any_text_comes_back_whatever_the_pieces(texts, size):
    database = Database()
    store(database, *texts)
    before = module.PIECE
    module.PIECE = size
    try:
        for outline, text in zip(list_outlines(database, "s", 9), texts, strict=True):
            assert whole(database, outline, "output") == text
    finally:
        module.PIECE = before
