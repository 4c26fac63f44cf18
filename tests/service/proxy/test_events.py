"""Server-sent events: not a byte is lost, and it is all one how they were cut on the way."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_bank.service.proxy.events import MOST_BYTES, EventSplitter, read_event, rewrite_event

ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
LINES = st.sampled_from(
    [b'data: {"a":1}', b"data:x", b": ping", b"event: message", b"data", b"id: 7", "data: é".encode()]
)


@st.composite
def streams(draw):
    """Lines with line ends of every kind, also mixed, whole events or not."""
    parts = draw(st.lists(st.one_of(LINES, st.just(b"")), max_size=12))
    return b"".join(part + draw(ENDS) for part in parts) + draw(st.sampled_from([b"", b"data: rest"]))


def cut(data, places):
    edges = [0, *sorted(p % (len(data) + 1) for p in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def split(chunks):
    splitter = EventSplitter()
    return [event for chunk in chunks for event in splitter.feed(chunk)] + splitter.close()


@given(streams(), st.lists(st.integers(0, 200), max_size=8))
def test_wherever_chunks_end_the_events_are_the_same(data, places):
    events = split(cut(data, places))
    assert events == split([data])
    assert b"".join(e.raw for e in events) == data


def test_an_event_is_there_as_soon_as_it_is_whole():
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\n") == []
    assert [e.data for e in splitter.feed(b"\nda")] == ["1"]
    assert [e.data for e in splitter.feed(b"ta: 2\r\n\r\n: c\n\n")] == ["2", None]
    assert splitter.close() == []


@pytest.mark.parametrize(
    ("raw", "data", "value"),
    [
        (b'event: x\ndata: {"a": 1}\n\n', '{"a": 1}', {"a": 1}),
        (b'data: {"a":\ndata: 1}\n\n', '{"a":\n1}', {"a": 1}),
        (b"data: [DONE]\n\n", "[DONE]", None),
        (b"data: {broken\n\n", "{broken", None),
        (b"data: " + b"[" * 100_000 + b"\n\n", "[" * 100_000, None),
        (b"data: \xff{}\n\n", "\ufffd{}", None),
        (b": comment\n\n", None, None),
        (b"\n", None, None),
        (b"dataset: 1\n\n", None, None),
    ],
)
def test_what_an_event_says(raw, data, value):
    event = read_event(raw)
    assert (event.raw, event.data, event.value) == (raw, data, value)


def test_an_event_says_something_else_and_keeps_its_other_lines():
    event = read_event(b'event: x\r\ndata: {"a":\r\ndata: 1}\r\nid: 3\r\n\r\n')
    assert rewrite_event(event, {"é": "\n"}) == b'event: x\r\ndata: {"\\u00e9":"\\n"}\r\nid: 3\r\n\r\n'
    assert json.loads(read_event(rewrite_event(event, {"b": [2]})).data) == {"b": [2]}


def test_a_megabyte_in_small_pieces():
    data = b"data: " + b"x" * 1_000_000 + b"\n\n"
    events = split([data[i : i + 1_000] for i in range(0, len(data), 1_000)] * 2)
    assert [len(e.raw) for e in events] == [len(data)] * 2


@pytest.mark.parametrize("size", [2**20, 2**16 + 1])
def test_an_event_without_an_end_is_held_up_to_a_bound(size):
    """From there on every chunk comes out as it is, whatever it says."""
    splitter, out, held = EventSplitter(), 0, 0
    for n in range(2 * MOST_BYTES // size):
        found = splitter.feed(b"x" * size)
        out += sum(len(e.raw) for e in found)
        held = max(held, (n + 1) * size - out)
        assert all(e.value is None for e in found)
    assert held <= MOST_BYTES < out
    assert [e.raw for e in splitter.feed(b'data: {"a": 1}\n\n')] == [b'data: {"a": 1}\n\n']
    assert splitter.close() == []
