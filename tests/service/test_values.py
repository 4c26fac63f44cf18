"""JSON as the API gives it: any value, valid UTF-8, the same value again."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from tests.chats import JSON, TEXT

from memory_bank.service.values import Ready, written


@given(st.dictionaries(TEXT, JSON, max_size=4))
def test_what_is_written_reads_back_as_the_same(value):
    data = b"".join(written(value))
    data.decode("utf-8", "strict")
    expected = json.loads(json.dumps(value))  # two lone surrogates side by side are one letter
    assert json.dumps(json.loads(data)) == json.dumps(expected)


def test_a_member_that_is_json_already_goes_out_as_it_is():
    data = b"".join(written({"a": Ready('[1.10, "\ud800"]'), "b": []}))
    assert data == b'{"a":[1.10, "\\ud800"],"b":[]}'


def test_values_nest_as_deep_as_they_like():
    deep: list[object] = []
    for _ in range(5_000):
        deep = [deep]
    assert b"".join(written({"deep": deep, "in a list": [deep]})).count(b"[") == 10_003
