"""Requests for a summary of the conversation, on the routes of every API."""

from __future__ import annotations

import pytest
from tests import blocks
from tests.chats import user
from tests.service.proxied import post, scripted
from tests.service.requests import PATHS, body_of

from memory_bank.testing import say

OUTPUTS = [f"order {n}: " + f"PAY-{n:05} " * 300 for n in range(12)]
CODEX = user("You are performing a CONTEXT CHECKPOINT COMPACTION. Write it down.")
CLAUDE = blocks.user("Your task is to create a detailed summary of the conversation so far.")


@pytest.mark.parametrize(
    ("api", "last", "members"),
    [
        ("chat", CODEX, {}),
        ("responses", CODEX, {}),
        ("responses", {"type": "compaction_trigger"}, {}),
        ("responses", None, {"instructions": "You are tasked with summarizing conversations."}),
        ("messages", CLAUDE, {}),
        (
            "messages",
            None,
            {"system": "You are a helpful AI assistant tasked with summarizing conversations."},
        ),
        ("messages", None, {"compaction": {"instructions": "keep ids"}}),
    ],
)
def test_a_request_for_a_summary_passes_untouched_and_is_recorded(tmp_path, api, last, members):
    body, key = {**body_of(api, OUTPUTS), **members}, "input" if api == "responses" else "messages"
    body[key] += [last] if last else []
    with scripted(lambda _: say("a summary"), tmp_path, strict=False) as (server, p):
        came = post(p.port, PATHS[api], body, b"x-memory-session: s")
        assert came.header(b"x-memory-status") == b"passed"
        assert came.header(b"x-memory-reason") == b"compaction request"
        assert server.requests[0].body[key] == body[key]
        with p.service.sessions.reading(None, "s") as state:
            assert state.fact_store.size() == 12
