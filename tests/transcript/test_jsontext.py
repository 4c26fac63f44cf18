"""JSON as tools write it: values and back."""

import json
import math

import pytest
from hypothesis import given
from tests.chats import JSON

from memory_bank.errors import RecordError
from memory_bank.transcript.jsontext import dump_value, flat_text, parse_output, plain


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
