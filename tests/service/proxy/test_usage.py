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
    return tail.tokens()[:2]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (json.dumps({"choices": ["x" * 50_000], **CHAT}), (12, 3)),
        (json.dumps({"choices": [], **CHAT, "service_tier": "default"}, indent=2), (12, 3)),
        (f'data: {{"usage":null}}\n\ndata: {json.dumps(CHAT)}\n\ndata: [DONE]\n\n', (12, 3)),
        (f"event: response.completed\ndata: {json.dumps(RESPONSE)}\n\n", (4, 5)),
        (f'data: {json.dumps(CHAT)}\n\ndata: {{"usage": null}}\n\ndata: [DONE]\n\n', (12, 3)),
        ('{"usage": {"prompt_tokens": 9}}', (9, None)),
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


@pytest.mark.parametrize(
    ("usage", "found"),
    [
        (
            {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}},
            (9, 1, 4, None),
        ),
        (
            {"input_tokens": 9, "output_tokens": 1, "input_tokens_details": {"cached_tokens": 0}},
            (9, 1, 0, None),
        ),
        (
            {
                "input_tokens": 9,
                "output_tokens": 1,
                "cache_read_input_tokens": 5,
                "cache_creation_input_tokens": 2,
            },
            (16, 1, 5, 2),
        ),
        ({"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": None}, (9, 1, None, None)),
    ],
)
def test_what_was_read_from_a_cache(usage, found):
    reader = UsageReader()
    reader.feed(json.dumps({"usage": usage}).encode())
    assert reader.tokens() == found
