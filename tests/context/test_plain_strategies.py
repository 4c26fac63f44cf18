"""The plain strategies under one contract: pairs whole, nothing mutated, users and system kept."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chats import any_chats, good_chats, rounds, say, system, user
from tests.examples import examples

from memory_bank import MemoryProcessor, handle_tool_call
from memory_bank.transcript.pairing import pairing_errors
from memory_bank.transcript.tokens import open_counter

KEYS = ["no_strategy", "truncation", "keep_last_n", "observation_masking"]


@pytest.fixture(scope="module")
def processor():
    return MemoryProcessor()


@examples(40)
@given(good_chats(), st.sampled_from(KEYS))
def test_whole_pairs_stay_whole_and_nothing_is_changed(processor, messages, key):
    before = copy.deepcopy(messages)
    context, tokens = processor.apply_strategy(messages, key)
    if not pairing_errors(messages):
        assert pairing_errors(context) == []
    assert json.dumps(messages) == json.dumps(before)
    said = [
        m
        for m in messages
        if m["role"] in ("system", "developer") or (m["role"] == "user" and isinstance(m["content"], str))
    ]
    assert [m for m in context if m in said] == said
    assert tokens == sum(map(open_counter().count_message, context))
    assert processor.apply_strategy(messages, key) == (context, tokens)


@given(any_chats(), st.sampled_from(KEYS))
@examples(40)
def test_any_list_goes_through(processor, messages, key):
    processor.apply_strategy(messages, key)


@pytest.mark.parametrize("key", KEYS)
def test_without_history_nothing_changes(processor, key):
    for messages in ([], [system(), user()], [user(), *rounds(1)]):
        assert processor.apply_strategy(messages, key)[0] == messages


def test_what_each_keeps(processor):
    messages = [system(), user(), *rounds(4), say("hm"), user("go on"), *rounds(4, size=400, start=4)]
    last = lambda key: processor.apply_strategy(messages, key)[0]  # noqa: E731
    assert last("truncation") == [*messages[:2], say("hm"), user("go on"), *messages[-2:]]
    kept = last("keep_last_n")
    assert kept == [*messages[:2], say("hm"), user("go on"), *messages[8:10], *messages[-8:]]
    masked = last("observation_masking")
    assert len(masked) == len(messages)
    assert masked[-6:] == messages[-6:]
    text = messages[13]["content"]
    head, place = masked[13]["content"].rsplit("\n", 1)
    assert text.startswith(head) and len(head) <= 100
    assert place.startswith(f"[masked: {len(text)} characters")
    trace_id = place.removesuffix("]").split()[-1]
    state = processor.state("observation_masking")
    assert state.fact_store.get(trace_id).output_text == text
    assert json.loads(text)["note"] in handle_tool_call(state, "get_record", {"trace_id": trace_id})
