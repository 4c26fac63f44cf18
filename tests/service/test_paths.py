"""Names in paths: whatever is in a name stays in its segment."""

from __future__ import annotations

import asyncio
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_bank.errors import ConfigError
from memory_bank.service.api.requests import EncodedSlashes, decoded
from memory_bank.service.security.access import stored_id


def seen(path: str, raw: bytes | None, kind: str = "http") -> dict[str, object]:
    """The scope that comes out behind."""
    found: list[dict[str, object]] = []

    async def app(scope, receive, send):
        found.append(scope)

    scope = {"type": kind, "path": path, "raw_path": raw, "state": {}}
    asyncio.run(EncodedSlashes(app)(scope, None, None))
    return found[0]


SEGMENT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@given(SEGMENT, SEGMENT)
def test_each_segment_is_what_was_quoted(name, record):
    raw = f"/v1/sessions/{quote(name, safe='')}/records/{quote(record, safe='')}"
    path = seen(unquote(raw), raw.encode())["path"]
    assert isinstance(path, str)
    assert [decoded(s) for s in path.split("/")] == ["", "v1", "sessions", name, "records", record]


def test_other_paths_stay_as_they_are():
    for path, raw in (("/v1/files/a/b", b"/v1/files/a%2Fb"), ("/", b"/"), ("/v1/sessions", b"/v1/sessions")):
        assert seen(path, raw)["path"] == path
    assert seen("/v1/sessions/a/b", b"/v1/sessions/a%2Fb", "lifespan")["path"] == "/v1/sessions/a/b"
    assert seen("/v1/sessions/a%2Fb", b"/v1%2Fsessions/a%252Fb")["path"] == "/v1/sessions/a%252Fb"


@pytest.mark.parametrize("name", [".", ".."])
def test_names_that_no_path_can_name_are_refused(name):
    with pytest.raises(ConfigError, match="choose another name"):
        stored_id("ns", name)
