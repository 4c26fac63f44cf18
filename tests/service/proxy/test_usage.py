"""The usage at the end of an answer, found while its bytes pass."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_bank.service.proxy.upstream import UsageReader

CHAT = {"usage": {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15, "details": {"x": 1}}}
RESPONSE = {
    "type": "response.completed",
    "response": {"usage": {"input_tokens": 4, "output_tokens": 5}, "user": None},
}


def read(*chunks):
    tail = UsageReader()
    for chunk in chunks:
        tail.feed(chunk)
    return tail.report()[:2]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (json.dumps({"choices": ["x" * 50_000], **CHAT}), (12, 3)),
        (json.dumps({"choices": [], **CHAT, "service_tier": "default"}, indent=2), (12, 3)),
        (f'data: {{"usage":null}}\n\ndata: {json.dumps(CHAT)}\n\ndata: [DONE]\n\n', (12, 3)),
        (f"event: response.completed\ndata: {json.dumps(RESPONSE)}\n\n", (4, 5)),
        (f'data: {json.dumps(CHAT)}\n\ndata: {{"usage": null}}\n\ndata: [DONE]\n\n', (12, 3)),
        ('{"usage": {"prompt_tokens": 9}}', (9, None)),
        ('{"usage": {"prompt_tokens": "9", "completion_tokens": 2.0}}', (9, 2)),
        ('{"usage": {"prompt_tokens": "9", "completion_tokens": true}}', (None, None)),
        ('{"usage": {"prompt_tok', (None, None)),
        ('{"usage":' + "[" * 5000, (None, None)),
        ('{"usage": 3}', (None, None)),
        ("", (None, None)),
    ],
)
def test_the_last_usage(text, found):
    data = text.encode()
    assert read(data) == found
    assert read(*(data[i : i + 7] for i in range(0, len(data), 7))) == found


@given(st.lists(st.binary(max_size=20_000), max_size=8))
def test_any_bytes_are_only_looked_at(chunks):
    read(*chunks)
    end = json.dumps(CHAT).encode()
    assert read(*chunks, end) == (12, 3)


def events(*values):
    return "".join(f"data: {json.dumps(v)}\n\n" for v in values)


START = {
    "input_tokens": 50,
    "cache_creation_input_tokens": 4000,
    "cache_read_input_tokens": 16000,
    "output_tokens": 1,
}


@pytest.mark.parametrize(
    "end",
    [
        {},
        dict.fromkeys(START, 0),
        {"input_tokens": 0},
        dict.fromkeys(START),
        START,
        {"input_tokens": 50},
        {"cache_creation": {"ephemeral_1h_input_tokens": 0}},
    ],
)
def test_the_end_of_a_stream_takes_nothing_away_from_its_beginning(end):
    begun = {"type": "message_start", "message": {"usage": START}}
    text = events(begun, {"type": "message_delta", "usage": {**end, "output_tokens": 100}})
    assert read(text.encode()) == (20_050, 100)


def test_an_estimate_at_the_beginning_is_replaced_at_the_end():
    begun = {"type": "message_start", "message": {"usage": {"input_tokens": 5_000, "output_tokens": 0}}}
    end = {"input_tokens": 200, "cache_read_input_tokens": 4_700, "output_tokens": 9}
    assert read(events(begun, {"type": "message_delta", "usage": end}).encode()) == (4_900, 9)


@pytest.mark.parametrize(
    "last",
    [
        {"choices": [], **CHAT},
        {"choices": [{"delta": {}, "finish_reason": "stop"}], "x_groq": {"id": "r", **CHAT}},
        {"choices": [{"delta": {}, "finish_reason": "stop", **CHAT}]},
    ],
)
def test_the_places_of_a_usage_in_a_stream(last):
    counted = {
        "choices": [{"delta": {"content": "a"}}],
        "usage": {"prompt_tokens": 12, "completion_tokens": 1},
    }
    for text in (events(last), events(counted, last), events(last).replace("\n", "\r\n")):
        assert read(text.encode()) == (12, 3)


def test_a_usage_in_what_the_model_wrote_is_none():
    call = {
        "type": "tool_use",
        "id": "t",
        "name": "f",
        "input": {"usage": {"input_tokens": 7, "output_tokens": 7}},
    }
    answer = {"type": "message", "usage": {"input_tokens": 4, "output_tokens": 5}, "content": [call]}
    assert read(json.dumps(answer).encode()) == (4, 5)
    assert read(events({"type": "content_block_start", "content_block": call}).encode()) == (None, None)


def test_a_compressed_answer_says_so():
    reader = UsageReader(is_readable=False)
    assert reader.report().untold == "the answer is compressed"
