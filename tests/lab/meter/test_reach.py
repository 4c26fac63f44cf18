"""Reachability: one exact fetch by an id that stands in the context."""

import json
import math

import pytest

from memory_bank.lab.meter.matching import Page, normalise
from memory_bank.lab.meter.measure import measure
from memory_bank.lab.meter.recall import shown_ids
from memory_bank.lab.strategies import parse_strategy
from memory_bank.lab.traces import Trace

IDS = ["1234abcd-0000-5000-8000-000000000001", "1234abcd-1111-5000-8000-000000000001", "deadbeef-0000-5000-8000-000000000003"]  # fmt: skip


def shown(text, ids=IDS):
    return [ids.index(t) for t in shown_ids(ids, [Page(normalise(text))])]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"whole: {IDS[0]}.", [0]),
        (f"whole, in capitals {IDS[2].upper()}", [2]),
        ("deadbeef", [2]),
        ("trace_deadbeef: more", [2]),
        ("deadbeef-0000-50", [2]),
        ("deadbeef-word", [2]),
        ("deadbeef0000", [2]),  # without its hyphens
        ("deadbee", []),  # seven digits
        ("deadbeefs", []),
        ("xdeadbeef", []),
        ("deadbeef1", []),
        ("1234abcd", []),  # two begin so
        ("1234abcd-1", [1]),
        ("", []),
    ],
)
def test_ids_in_a_text(text, found):
    assert shown(text) == found


OFFER = 'get_record("#n") gives one back whole'


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["#1 x, #3 y"], []),  # nothing says what a number is
        ([f"{OFFER}: #1, #3"], [0, 2]),
        ([f"{OFFER}: #1 to #3"], [0, 1, 2]),
        ([f"{OFFER}: #2–#3"], [1, 2]),
        ([f"{OFFER}: #2–3"], [1, 2]),
        ([f"{OFFER}: #1 - 3 rows"], [0]),
        ([f"{OFFER}: #2-#99"], [1, 2]),
        ([f"{OFFER}: look_up ×3 #1, …, #3"], [0, 1, 2]),
        ([f"{OFFER}: #1, #2 to #2, …, #3"], [0, 1, 2]),
        ([f"{OFFER}: #1, … and #3"], [0, 2]),
        ([OFFER, "first line\n[… #3]"], [2]),
        ([OFFER, '{"text": "first line [… #3]"}'], [2]),
        ([OFFER, "see issue #3"], []),
        (["first line\n[… #3]"], []),
    ],
)
def test_records_by_number(texts, found):
    pages = [Page(normalise(text)) for text in texts]
    assert [IDS.index(t) for t in shown_ids(IDS, pages)] == found


def test_ids_that_are_no_uuids_must_stand_whole():
    ids = ["rec-1", "rec-12"]
    assert shown("see rec-12", ids) == [1]
    assert shown("see rec", ids) == []


@pytest.mark.parametrize(
    ("toy", "reachable"),
    [
        ("lists_ids", 1.0),
        ("lists_ids?digits=8", 1.0),
        ("lists_ids?digits=7", 0.0),
        ("hides_ids", 0.0),
        ("keep_last", 0.0),
    ],
)
def test_left_out_values_and_the_ids_that_stand_in_the_context(traces, config, counter, toy, reachable):
    f = measure(traces, [parse_strategy(f"tests.lab.meter.toys:{toy}", config)], counter=counter)[0].figures
    assert (f.left_out, f.bound_old) == (14, 0)
    assert f.reachable == reachable


def test_only_the_record_that_yields_the_value_counts(traces, config, counter):
    # Without the first record: the address of "orders" is in no other, and the depots were in the first too.
    strategy = parse_strategy("tests.lab.meter.toys:lists_ids?skip=1", config)
    f = measure(traces, [strategy], counter=counter)[0].figures
    assert f.reachable == 4 / 14


def test_a_bank_that_says_where_the_rest_is(config, counter):
    def turn(i, **arguments):
        function = {"name": "f", "arguments": json.dumps(arguments)}
        return {"role": "assistant", "tool_calls": [{"id": i, "type": "function", "function": function}]}

    rows = json.dumps([{"row": i, "code": f"ROW-{i}7x"} for i in range(400)])
    messages = [
        {"role": "user", "content": "Find the row."},
        turn("a"), {"role": "tool", "tool_call_id": "a", "content": rows},
        turn("b", x=1), {"role": "tool", "tool_call_id": "b", "content": "ok"},
        turn("c", code="ROW-2007x"), {"role": "tool", "tool_call_id": "c", "content": "ok"},
        {"role": "assistant", "content": "Done."},
    ]  # fmt: skip
    names = ["local?max_chars_per_record=200", "local?top_k=0", "full"]
    strategies = [parse_strategy(n, config) for n in names]
    cut, none, full = (o.figures for o in measure([Trace("rows", messages)], strategies, counter=counter))
    assert (cut.left_out, cut.reachable) == (1, 1.0)
    assert (none.left_out, none.reachable) == (1, 0.0)
    assert math.isnan(full.reachable)
