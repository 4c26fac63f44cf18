"""pairing_errors: silent on whole pairs, loud on broken ones, quiet-tempered on garbage."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.growth import LINEAR, growth

from memory_bank.testing import pairing_errors

USER = {"role": "user", "content": "hi"}


def turn(*ids: str, **more: Any) -> dict[str, Any]:
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls, **more}


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "ok"}


def legacy(name: str) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "function_call": {"name": name, "arguments": "{}"}}


def function(name: str) -> dict[str, Any]:
    return {"role": "function", "name": name, "content": "ok"}


TEXT = st.text("ab é\ud800\x00{", max_size=3)  # few letters: ids of different turns often meet
NAMES = TEXT.filter(bool)
IDS = st.lists(NAMES, min_size=1, max_size=4, unique=True)


@st.composite
def interactions(draw: st.DrawFn) -> list[dict[str, Any]]:
    kind = draw(st.sampled_from(["words", "calls", "legacy"]))
    if kind == "words":
        role = draw(st.sampled_from(["user", "system", "developer", "assistant"]))
        return [{"role": role, "content": draw(st.sampled_from(["x", None, "", []])), "tool_calls": None}]
    if kind == "legacy":
        name = draw(NAMES)
        return [legacy(name), function(name)]
    ids = draw(IDS)
    return [turn(*ids), *map(result, draw(st.permutations(ids)))]


CHATS = st.lists(interactions(), max_size=8).map(lambda parts: [m for part in parts for m in part])


@given(CHATS)
def test_whole_pairs_are_no_error(messages: list[dict[str, Any]]) -> None:
    before = copy.deepcopy(messages)
    assert pairing_errors(messages) == []
    assert messages == before


@given(CHATS, st.data())
def test_a_missing_message_of_a_pair_is_an_error(messages: list[dict[str, Any]], data: st.DataObject) -> None:
    paired = [i for i, m in enumerate(messages) if m["role"] in ("tool", "function")]
    opened = [i for i, m in enumerate(messages) if m.get("tool_calls") or m.get("function_call")]
    if not paired:
        return
    gone = data.draw(st.sampled_from(paired))
    assert pairing_errors(messages[:gone] + messages[gone + 1 :])
    gone = data.draw(st.sampled_from(opened))
    # The results of a removed turn may happen to answer one directly before it, never by themselves.
    if gone == 0 or messages[gone - 1]["role"] not in ("tool", "function"):
        assert pairing_errors(messages[:gone] + messages[gone + 1 :])


@given(CHATS, st.data())
def test_anything_between_a_call_and_its_result_is_an_error(
    messages: list[dict[str, Any]], data: st.DataObject
) -> None:
    paired = [i for i, m in enumerate(messages) if m["role"] in ("tool", "function")]
    if paired:
        at = data.draw(st.sampled_from(paired))
        assert pairing_errors([*messages[:at], USER, *messages[at:]])


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([turn("a")], ["messages[0]: no tool message directly after it answers 'a'"]),
        (
            [turn("a"), USER, result("a")],
            ["messages[0]: no tool", "messages[2]: tool_call_id 'a' answers no"],
        ),
        ([USER, result("a")], ["messages[1]: tool_call_id 'a' answers no call"]),
        ([turn("a"), result("a"), result("a")], ["messages[2]: tool_call_id 'a' is answered a second time"]),
        ([turn("a", "a"), result("a")], ["messages[0]: tool_calls[1] repeats the id 'a'"]),
        ([turn("a"), result("b")], ["messages[1]: tool_call_id 'b' answers", "messages[0]: no tool message"]),
        ([turn(""), USER], ["messages[0]: tool_calls[0] has no id"]),
        ([turn("a"), {"role": "tool"}, result("a")], ["messages[1]: a tool result without a tool_call_id"]),
        ([turn("a"), result("a"), turn("a")], ["messages[2]: no tool message"]),
        ([legacy("f"), USER], ["messages[0]: no function message answers 'f'"]),
        ([function("f")], ["messages[0]: the function result 'f' answers no function_call"]),
        ([legacy("f"), function("f"), function("f")], ["messages[2]: the function_call 'f' is answered a"]),
        ([legacy("f"), function("g")], ["messages[1]: the function result 'g'", "messages[0]: no function"]),
        (
            [{"role": "assistant", "tool_calls": {"id": 1}}],
            ["messages[0]: tool_calls is not a list but dict"],
        ),
        ([None, {}], ["messages[0]: is no object but NoneType", "messages[1]: has no role"]),
        ("text", ["messages: not a list but str"]),
    ],
)
def test_each_error_names_its_message(messages: Any, said: list[str]) -> None:
    errors = pairing_errors(messages)
    assert len(errors) == len(said)
    for error, start in zip(errors, said, strict=True):
        assert error.startswith(start)


def test_an_id_may_come_again_in_a_later_turn_and_one_turn_may_use_both_ways() -> None:
    assert pairing_errors([turn("a"), result("a"), turn("a"), result("a")]) == []
    both = {**turn("a"), "function_call": {"name": "f", "arguments": ""}}
    assert pairing_errors((both, function("f"), result("a"))) == []


def test_sdk_objects_count_as_what_they_dump_to() -> None:
    message = SimpleNamespace(model_dump=lambda: turn("a"))
    assert pairing_errors([message, result("a")]) == []
    assert len(pairing_errors([message])) == 1


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
KEYS = ["role", "tool_calls", "tool_call_id", "function_call", "name", "id", "content"]
GARBLED = st.dictionaries(
    st.sampled_from(KEYS), JUNK | st.sampled_from(["tool", "assistant", "function", "user"]), max_size=5
)


@given(st.lists(GARBLED | JUNK, max_size=6) | JUNK)
def test_garbage_never_raises(messages: Any) -> None:
    errors = pairing_errors(messages)
    assert all(isinstance(e, str) and "\n" not in e and e.isascii() for e in errors)


def test_hostile_ids_are_shown_short_and_escaped() -> None:
    [error] = pairing_errors([turn("\ud800\x00" + "x" * 1_000_000)])
    assert len(error) < 200
    error.encode()


def test_a_long_chat_takes_linear_time() -> None:
    def check(n: int) -> None:
        many = [str(i) for i in range(n)]
        assert pairing_errors([turn(*many), *map(result, many)]) == []
        assert len(pairing_errors([turn(*many), USER])) == 1
        assert len(pairing_errors([turn("a"), *[result("b")] * n])) == n + 1

    assert growth(check, 100_000) < LINEAR
