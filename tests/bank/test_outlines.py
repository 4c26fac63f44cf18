"""Records in outline, on every database: listed, found, and their texts read in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chats import TEXT

from memory_bank.bank import outlines as module
from memory_bank.bank.database import Database
from memory_bank.bank.facts import FactStore
from memory_bank.bank.insights import InsightStore
from memory_bank.bank.jobs import JobQueue
from memory_bank.bank.outlines import (
    PIECE,
    beginning_with,
    count_records,
    holding,
    list_outlines,
    numbered,
    outlines,
    pieces,
    stored_ids,
    whole,
)
from memory_bank.errors import StorageError
from memory_bank.records import Insight, InteractionRecord


@pytest.fixture
def database(bank_url):
    database = Database(bank_url)
    yield database
    database.close()


def record(n, output, **more):
    raw = {"_raw": output} if isinstance(output, str) else output
    text = output if isinstance(output, str) else None
    return InteractionRecord.create(n, f"tool_{n}", {"n": n}, raw, output_text=text, **more)


def stored(database, *outputs, session="s"):
    records = [record(n, output) for n, output in enumerate(outputs, 1)]
    facts = FactStore(database, session)
    for r in records:
        facts.store(r)
    return records


class Plain:
    name = "plain"

    def encode(self, texts):
        return [[1.0, 0.0] for _ in texts]


def test_records_are_numbered_from_the_oldest_on_page_by_page(database):
    mine = stored(database, *(f"out {n}" for n in range(1, 6)))
    stored(database, "theirs", session="other")
    more = record(6, "late")
    FactStore(database, "s").store(more)
    mine.append(more)
    assert [(o.number, o.trace_id) for o in list_outlines(database, "s", 10)] == [
        (n, r.trace_id) for n, r in enumerate(mine, 1)
    ]
    assert [o.number for o in list_outlines(database, "s", 2, 3)] == [4, 5]
    assert list_outlines(database, "s", 2, 6) == []
    assert count_records(database, "s") == 6
    assert [numbered(database, "s", n) for n in (0, 1, 6, 7)] == [None, mine[0].trace_id, more.trace_id, None]


def test_an_outline_says_how_much_there_is_and_what_became_of_it(database):
    records = stored(database, "é" * 10, {"a": [1, 2]}, "plain")
    InsightStore(Plain(), database, "s").add_many([Insight(records[0].trace_id, "short", redo="again")])
    JobQueue(database, "s").add([records[1].trace_id])
    first, second, third = outlines(database, "s", [r.trace_id for r in records])
    assert (first.output_bytes, first.output_head, first.output_verbatim) == (20, ("é" * 10).encode(), True)
    assert (first.summary, first.source, first.redo, first.attempts) == ("short", "extractive", "again", None)
    assert (second.output_verbatim, second.output_head, second.attempts) == (False, b'{"a": [1, 2]}', 0)
    assert second.input_head == b'{"n": 2}'
    assert (third.summary, third.error) == (None, None)


def test_outlines_come_in_the_order_asked_for_of_one_session_only(database):
    a, b = stored(database, "a", "b")
    other = stored(database, "c", session="other")[0]
    found = outlines(database, "s", [b.trace_id, "no such", other.trace_id, a.trace_id, b.trace_id, "\0"])
    assert [(o.trace_id, o.number) for o in found] == [(b.trace_id, 2), (a.trace_id, 1)]
    assert stored_ids(database, "s", [a.trace_id, other.trace_id, "x"]) == {a.trace_id}


def test_a_record_is_found_by_the_beginning_of_its_id(database):
    facts = FactStore(database, "s")
    for trace_id in ("abc_1-x", "abcd%2", "ABCe"):
        facts.store(InteractionRecord(trace_id, 1, "t", {}, 1))
    assert beginning_with(database, "s", "abc", 5) == ["ABCe", "abcd%2", "abc_1-x"]
    assert beginning_with(database, "s", "ABC_", 5) == ["abc_1-x"]
    assert beginning_with(database, "s", "abcd%", 5) == ["abcd%2"]
    assert beginning_with(database, "s", "%", 5) == beginning_with(database, "s", "\0", 5) == []
    assert len(beginning_with(database, "s", "abc", 2)) == 2


LONG = "0123456789abcdé" * 150_000  # over 2 MiB


def test_a_long_text_is_read_in_pieces_to_the_letter(database):
    stored(database, "small", LONG)
    _, outline = list_outlines(database, "s", 5)
    read = list(pieces(database, outline, "output"))
    assert max(map(len, read)) == PIECE
    assert b"".join(read) == LONG.encode()
    assert whole(database, outline, "output") == LONG
    assert whole(database, outline, "input") == '{"n": 2}'
    assert outline.output_head == LONG.encode()[: len(outline.output_head)]
    assert 0 < len(outline.output_head) < 5_000


def test_a_record_that_goes_while_it_is_read_is_an_error(database):
    stored(database, LONG)
    (outline,) = list_outlines(database, "s", 5)
    reading = pieces(database, outline, "output")
    next(reading)
    FactStore(database, "s").clear()
    with pytest.raises(StorageError):
        list(reading)


def test_the_database_finds_words_in_outputs(database):
    stored(
        database, "Order ORD-1001 is late\0 and NUL", {"order": "ord-1002", "umlaut": "Straße"},
        'escaped \\u00e4 and "quoted"', "lone \ud800 surrogate, ORD-1001 again", "nothing here", "Ärger",
    )  # fmt: skip

    def numbers(*groups, **more):
        return [o.number for o in holding(database, "s", groups, 10, **more)]

    assert numbers(["ORD-1001"]) == [4, 1]
    assert numbers(["ord-100"]) == [4, 2, 1]
    assert numbers(["nul"]) == [1]  # after a NUL
    assert numbers(["straße"]) == [2]
    assert numbers(["straSSe", "straße"]) == [2]
    assert numbers(["\\u00e4"]) == [3]
    assert numbers(['"quoted"']) == [3]
    assert numbers(["Ärger"]) == [6]
    assert numbers(["ord-1001"], ["again"]) == [4]
    assert numbers(["%"]) == numbers(["ORD_1001"]) == []
    before = holding(database, "s", [["ord"]], 10)[0].seq
    assert numbers(["ord-1001"], before=before) == [1]
    assert [o.number for o in holding(database, "s", [["ord"]], 1)] == [4]


def test_words_are_found_in_one_session_only(database):
    stored(database, "secret-17", session="other")
    stored(database, "plain")
    assert holding(database, "s", [["secret-17"]], 10) == []


@given(st.lists(TEXT, min_size=1, max_size=4), st.integers(1, 7))
def test_any_text_comes_back_whatever_the_pieces(texts, size):
    database = Database()
    stored(database, *texts)
    before = module.PIECE
    module.PIECE = size
    try:
        for outline, text in zip(list_outlines(database, "s", 9), texts, strict=True):
            assert whole(database, outline, "output") == text
    finally:
        module.PIECE = before
