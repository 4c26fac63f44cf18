"""JSON and names as the API takes and gives them: any value, valid UTF-8, the same value again."""

from __future__ import annotations

import json
import threading
from urllib.parse import quote, unquote

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chats import JSON, TEXT

from memory_bank.errors import ConfigError
from memory_bank.service.api.requests import decoded, in_thread, json_object, json_utf8
from memory_bank.service.security.access import path_by_segments, stored_id


@given(st.dictionaries(TEXT, JSON, max_size=4))
def test_what_is_written_reads_back_as_the_same(value):
    data = b"".join(json_object(value))
    data.decode("utf-8", "strict")
    expected = json.loads(json.dumps(value))  # two lone surrogates side by side are one letter
    assert json.dumps(json.loads(data)) == json.dumps(expected)


def test_a_member_that_is_json_already_goes_out_as_it_is():
    data = b"".join(json_object({"a": map(json_utf8, ("[1.10, ", '"\ud800"]')), "b": []}))
    assert data == b'{"a":[1.10, "\\ud800"],"b":[]}'


def test_values_nest_as_deep_as_they_like():
    deep: list[object] = []
    for _ in range(5_000):
        deep = [deep]
    assert b"".join(json_object({"deep": deep, "in a list": [deep]})).count(b"[") == 10_003


def test_the_proxy_never_waits_for_the_api():
    """However many requests to the API wait for something, other work finds a thread at once."""
    blocked = threading.Event()

    async def run() -> int:
        async with anyio.create_task_group() as tasks:
            for _ in range(60):
                tasks.start_soon(in_thread, "api", blocked.wait)
            await anyio.sleep(0.2)
            with anyio.fail_after(20):
                found = await anyio.to_thread.run_sync(lambda: 7)
            blocked.set()
        return found

    assert anyio.run(run) == 7


# names in paths: whatever is in a name stays in its segment


SEGMENT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@given(SEGMENT, SEGMENT)
def test_each_segment_is_what_was_quoted(name, record):
    raw = f"/v1/sessions/{quote(name, safe='')}/records/{quote(record, safe='')}"
    path = path_by_segments({"path": unquote(raw), "raw_path": raw.encode()})
    assert [decoded(s) for s in path.split("/")] == ["", "v1", "sessions", name, "records", record]


def test_a_path_that_does_not_begin_as_its_bytes_is_taken_as_it_is():
    scope = {"path": "/v1/sessions/a%2Fb", "raw_path": b"/v1%2Fsessions/a%252Fb"}
    assert path_by_segments(scope) == "/v1/sessions/a%252Fb"


@pytest.mark.parametrize("name", [".", ".."])
def test_names_that_no_path_can_name_are_refused(name):
    with pytest.raises(ConfigError, match="choose another name"):
        stored_id("ns", name)
