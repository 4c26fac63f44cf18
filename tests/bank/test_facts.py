"""FactStores, in memory, in a file and in PostgreSQL: whatever is stored comes back, once, in its session."""

import threading
from dataclasses import astuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.stores import a_record, together

from memory_bank.bank.rows import from_row, to_row
from memory_bank.bank.stores import FactStore
from memory_bank.errors import ConfigError, RecordConflictError, RecordError
from memory_bank.records import InteractionRecord

VALUES = [
    None, True, False, 0, -1, 2**63, -(2**200), 0.1, -0.0, 1e308, 5e-324, float("inf"),
    "", " ", "text", "\ud800", "\udfff\ud800", "\ud83d\ude00", "👩‍👩‍👧", "\0", "\x1b[31m", "\ufeff", "\u2028",
    [], {}, [[]], {"": ""}, {"_raw": "x"}, {"a": [1, {"b": None}], "\ud800": "\0"}, [1, 1.0, True, "1"],
    {"k" * 1000: list(range(500))},
]  # fmt: skip

TEXTS = [
    "", " ", "\n", "not JSON", "{", '{"a": 1, "a": 2}', "1.0", "1.00", "1", "NaN", "-Infinity",
    "1e999", '{"a": NaN}', "9" * 30, "9" * 5000, "\ufeff{}", '"\\ud800"', "\ud800 \udfff", "\ud83d\ude00",
    "nul \0 nul", "\r\n\t", "[" * 5000 + "]" * 5000, "<|endoftext|>", "' OR 1=1 --", "日本語", "null",
]  # fmt: skip

NO_VALUES = [{1, 2}, b"bytes", {1: "x"}, {"a": [object()]}, {None: 1}, 1j, 10**5000]


@pytest.fixture
def store(bank):
    return bank.facts()


@pytest.mark.parametrize("value", VALUES, ids=lambda v: ascii(v)[:30])
def test_every_json_value_comes_back(store, value):
    record = a_record(1, raw_input={"value": value}, raw_output=value)
    store.store(record)
    assert store.get(record.trace_id) == record
    assert repr(astuple(store.get(record.trace_id))) == repr(
        astuple(record)
    )  # 1, 1.0 and True are equal, but not the same


def test_not_a_number_comes_back(store):
    store.store(a_record(1, raw_output=[float("nan")]))
    assert repr(store.get("trace-00001").raw_output) == "[nan]"


@pytest.mark.parametrize("text", TEXTS, ids=lambda t: ascii(t)[:30])
def test_text_comes_back_to_the_letter(store, text):
    store.store(a_record(1, input_text=text, output_text=text, tool_name=text, call_id=text))
    found = store.get("trace-00001")
    assert [found.input_text, found.output_text, found.tool_name, found.call_id] == [text] * 4


def test_text_also_comes_back_as_the_value_it_is(store):
    store.store(a_record(1, input_text='{"a": 1.50}', output_text="no JSON"))
    assert store.get("trace-00001").raw_input == {"a": 1.5}
    assert store.get("trace-00001").raw_output == {"_raw": "no JSON"}


def test_a_megabyte_comes_back(store):
    text = "ä\0\ud800x" * 250_000
    store.store(a_record(1, raw_output=text))
    store.store(a_record(2, output_text=text))
    assert store.get("trace-00001").raw_output == text
    assert store.get("trace-00002").output_text == text


def test_every_field_comes_back(store):
    for record in (a_record(1), a_record(2, call_id=None, step_id=0, timestamp=0.5, tool_name="")):
        store.store(record)
        assert store.get(record.trace_id) == record


def test_nothing_mutable_is_shared(store):
    value = {"list": [1]}
    store.store(a_record(1, raw_output=value))
    value["list"].append(2)
    one, two = store.get_many(["trace-00001", "trace-00001"])
    one.raw_output["list"].append(3)
    assert two.raw_output == store.get("trace-00001").raw_output == {"list": [1]}


@pytest.mark.parametrize("trace_id", ["", "unknown", "\ud800", "\0", "x" * 1000, None, 7])
def test_what_is_not_there_is_none(store, trace_id):
    store.store(a_record(1))
    assert store.get(trace_id) is None
    assert store.get_many([trace_id]) == []


def test_many_keep_the_order_asked_for(store):
    store.store_many([a_record(n) for n in range(1200)])
    asked = [a_record(n).trace_id for n in range(1199, -1, -1)]
    assert [r.trace_id for r in store.get_many(asked)] == asked
    few = ["trace-00003", "no", "trace-00001", "trace-00003"]
    assert [r.trace_id for r in store.get_many(few)] == ["trace-00003", "trace-00001", "trace-00003"]
    assert store.get_many([]) == []


def test_storing_twice_is_storing_once(store):
    store.store(a_record(1))
    store.store(a_record(1, timestamp=1.0, step_id=9))
    store.store_many([a_record(1), a_record(2), a_record(1), a_record(2)])
    store.store_many([])
    assert store.size() == 2
    assert store.get_many(["trace-00001", "trace-00002"]) == [a_record(1), a_record(2)]


@pytest.mark.parametrize(
    "change",
    [
        {"raw_output": 1},
        {"raw_input": {}},
        {"tool_name": "x"},
        {"call_id": None},
        {"output_text": '{"rows":[1,"1"]}'},
    ],
    ids=lambda c: next(iter(c)),
)
def test_a_fact_is_never_overwritten(store, change):
    store.store(a_record(1))
    with pytest.raises(RecordConflictError, match="trace-00001"):
        store.store_many([a_record(2), a_record(1, **change), a_record(3)])
    assert store.size() == 1
    assert store.get("trace-00001") == a_record(1)


def test_two_facts_of_one_id_in_a_batch_conflict(store):
    with pytest.raises(RecordConflictError):
        store.store_many([a_record(1), a_record(2), a_record(1, raw_output="other")])
    assert store.size() == 0


@pytest.mark.parametrize("value", NO_VALUES, ids=lambda v: type(v).__name__)
def test_what_json_cannot_hold_is_refused(store, value):
    for field in ("raw_input", "raw_output"):
        with pytest.raises(RecordError, match=r"tool_1.*pass .*\.$") as caught:
            store.store_many([a_record(2), a_record(1, **{field: value}), a_record(3)])
        assert "\n" not in str(caught.value)
    assert store.size() == 0


@pytest.mark.parametrize(
    "change",
    [
        {"trace_id": ""}, {"trace_id": "x" * 65}, {"trace_id": "\0"},
        {"trace_id": "\ud800"}, {"trace_id": 5}, {"step_id": 2**40}, {"step_id": "1"}, {"step_id": None},
        {"timestamp": float("nan")}, {"timestamp": None}, {"tool_name": None},
        {"call_id": 5}, {"input_text": b""}, {"output_text": {}},
    ],
    ids=lambda c: ascii(c)[:40],
)  # fmt: skip
def test_fields_that_no_store_takes_are_refused(store, change):
    with pytest.raises(RecordError):
        store.store_many([a_record(2), a_record(1, **change)])
    assert store.size() == 0


def test_what_is_no_record_is_refused(store):
    with pytest.raises(RecordError):
        store.store({"trace_id": "x"})


def test_steps_are_told_oldest_first(store):
    store.store_many([a_record(7), a_record(3), a_record(5), a_record(3)])
    store.store(a_record(1))
    assert list(store.steps().items()) == [
        ("trace-00007", 3),
        ("trace-00003", 2),
        ("trace-00005", 2),
        ("trace-00001", 1),
    ]


def test_a_page_numbers_records_from_the_oldest_on(store):
    long = '{"text": "' + "é" * 1_000 + '"}'
    records = [a_record(n, output_text="é" * n, input_text=long if n == 5 else None) for n in range(6)]
    store.store_many(records[3:] + records[:3])
    lines = store.page()
    assert [(x.number, x.trace_id) for x in lines] == list(enumerate(store.steps(), 1))
    assert [(x.step_id, x.tool_name) for x in lines[:2]] == [(2, "tool_3"), (2, "tool_0")]
    assert [x.output_bytes for x in lines] == [6, 8, 10, 0, 2, 4]
    assert lines[0].arguments.replace(" ", "") == '{"n":3}'
    assert 300 < len(lines[2].arguments) < len(long)
    assert long.startswith(lines[2].arguments[:300])
    assert [x.number for x in store.page(after=2, limit=3)] == [3, 4, 5]
    assert [x.number for x in store.page(after=1, tool="tool_0")] == [2, 4]
    assert store.page(after=6) == store.page(tool="none") == []


def test_clear_empties(store):
    store.clear()
    store.store_many([a_record(1), a_record(2)])
    store.clear()
    assert (store.size(), store.steps(), store.get("trace-00001")) == (0, {}, None)
    store.store(a_record(1, raw_output="something else now"))
    assert store.size() == 1


def test_sessions_never_see_each_other(store, bank):
    other = bank.facts("other")
    store.store(a_record(1))
    other.store(a_record(1, raw_output="the other's"))  # the same id, another content
    other.store(a_record(2))
    assert store.get_many(["trace-00001", "trace-00002"]) == [a_record(1)]
    assert (store.size(), other.size(), list(store.steps())) == (1, 2, ["trace-00001"])
    store.clear()
    assert (store.size(), other.size()) == (0, 2)
    assert other.get("trace-00001").raw_output == "the other's"


def test_impossible_session_ids_are_refused(bank):
    for session_id in ("", "x" * 256, "a\0b", "\ud800", None, 5):
        with pytest.raises(ConfigError, match="session_id"):
            bank.facts(session_id)
    for session_id in ("x" * 255, "日本 / %s ' \" ;", " "):
        bank.facts(session_id).store(a_record(1))


def test_two_writers(store):
    together(
        lambda: [store.store(a_record(n)) for n in range(60)],
        lambda: [store.store_many([a_record(n), a_record(n + 1)]) for n in range(40, 100)],
    )
    assert sorted(store.steps()) == [a_record(n).trace_id for n in range(101)]


def test_reset_while_reading(store):
    ids = [a_record(n).trace_id for n in range(30)]
    done = threading.Event()

    def read():
        while not done.is_set():
            assert all(r == a_record(int(r.trace_id[-5:])) for r in store.get_many(ids))
            assert len(store.steps()) in (0, 30)
            assert store.size() in (0, 30)

    def write():
        try:
            for _ in range(15):
                store.store_many([a_record(n) for n in range(30)])
                store.clear()
        finally:
            done.set()

    together(read, read, write)


def test_two_stores_see_each_other(store, bank):
    other = bank.facts()
    store.store(a_record(1))
    assert other.get("trace-00001") == a_record(1)
    together(
        lambda: [store.store(a_record(n)) for n in range(30)],
        lambda: [other.store(a_record(n)) for n in range(15, 45)],
    )
    assert store.size() == other.size() == 45
    other.clear()
    assert store.get("trace-00001") is None


def test_what_was_stored_is_there_after_reopening(store, bank):
    if bank.url:
        store.store_many([a_record(n) for n in range(10)])
        bank.close()
        again = bank.facts()
        assert again.get_many(list(again.steps())) == [a_record(n) for n in range(10)]
        again.store_many([a_record(9), a_record(10)])
        bank.close()
        assert bank.facts().size() == 11


def test_a_store_alone_keeps_its_records_in_memory():
    one, two = FactStore(), FactStore()
    one.store(a_record(1))
    assert (one.size(), two.size()) == (1, 0)


any_text = st.text(st.characters(exclude_categories=()))  # lone surrogates too
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=12,
)


@given(json_values, json_values)
def test_any_json_value_survives_the_row(raw_input, raw_output):
    record = InteractionRecord("t", 1, "tool", raw_input, raw_output)
    assert repr(astuple(from_row(to_row(record, "s")))) == repr(astuple(record))


def test_values_nested_too_deep_for_the_parser_come_back_as_text():
    deep = []
    for _ in range(10_000):
        deep = [deep]
    store = FactStore()
    store.store(a_record(1, raw_output=deep))
    found = store.get("trace-00001")
    assert found.raw_output == {"_raw": "[" * 10_001 + "]" * 10_001}
