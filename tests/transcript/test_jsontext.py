"""JSON as tools write it: values and back."""

import json
import math

import pytest
from hypothesis import given
from tests.chats import JSON

from memory_bank.errors import RecordError
from memory_bank.transcript.jsontext import (
    PATH_CHARS,
    dump_value,
    flat_text,
    inner_json,
    leaves,
    parse_output,
    plain,
)


@given(JSON)
def test_dumped_values_come_back(value):
    back = json.loads(dump_value(value))
    assert repr(back) == repr(value)  # repr tells 1 from True and knows NaN


@given(JSON)
def test_flat_text_is_json(value):
    assert repr(json.loads(flat_text(value))) == repr(value)


def test_flat_text_of_any_depth():
    deep = []
    for _ in range(50_000):
        deep = [deep]
    assert flat_text(deep) == "[" * 50_001 + "]" * 50_001
    while deep:
        deep = deep.pop()


@pytest.mark.parametrize("value", [{1, 2}, b"x", {1: "a"}, object(), {"a": [b"x"]}])
def test_what_json_cannot_hold_is_refused(value):
    with pytest.raises(RecordError, match="pass JSON values only"):
        dump_value(value)


def test_nan_and_huge_integers():
    assert math.isnan(parse_output("NaN"))
    assert parse_output("123456789012345678901234567890") == 123456789012345678901234567890


def test_plain_takes_sdk_objects_and_tuples():
    class Part:
        def model_dump(self, exclude_none=False):
            return {"type": "text", "text": "x"}

    assert plain({"a": (1, Part()), 3: object}) == {"a": [1, {"type": "text", "text": "x"}], "3": str(object)}


NESTED = {"id": 7, "items": [{"sku": "A-1"}, {"sku": "A-2", "odd key": None}], "empty": {}, "last": True}


def test_leaves_are_the_scalars_in_order_with_their_paths():
    assert [(leaf.path, leaf.key, leaf.depth, leaf.value) for leaf in leaves(NESTED)] == [
        ("id", "id", 1, 7),
        ("items[0].sku", "sku", 3, "A-1"),
        ("items[1].sku", "sku", 3, "A-2"),
        ('items[1]["odd key"]', "odd key", 3, None),
        ("last", "last", 1, True),
    ]
    assert [(leaf.path, leaf.value) for leaf in leaves("text")] == [("", "text")]


def test_leaves_breadth_first_are_the_shallow_ones_first():
    found = [leaf.path for leaf in leaves(NESTED, breadth_first=True)]
    assert found == ["id", "last", "items[0].sku", "items[1].sku", 'items[1]["odd key"]']


def test_leaves_of_json_in_a_text_take_its_place_where_it_is_opened():
    value = {"content": [{"text": '{"total": 3}'}, {"text": "plain"}]}
    assert [leaf.value for leaf in leaves(value)] == ['{"total": 3}', "plain"]
    opened = [(leaf.path, leaf.value) for leaf in leaves(value, opened=inner_json)]
    assert opened == [("content[0].text.total", 3), ("content[1].text", "plain")]


def test_leaves_of_any_depth():
    deep = "end"
    for _ in range(50_000):
        deep = [deep]
    (leaf,) = leaves(deep)
    assert (leaf.value, leaf.depth) == ("end", 50_000)
    assert leaf.path.startswith("…")  # a long path is cut
    assert leaf.path.endswith("[0]" * 100)
    assert len(leaf.path) <= PATH_CHARS
    while isinstance(deep, list):
        deep = deep.pop()
