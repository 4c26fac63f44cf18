"""Requests for a summary of the conversation, and what clients send after it, on the routes of OpenAI's APIs."""

from __future__ import annotations

import pytest
from tests import items
from tests.chats import rounds, user
from tests.service.proxied import post, proxied

from memory_bank.testing import ScriptedServer, say

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
CODEX = [
    b"session-id: 0199aaaa-bbbb-cccc-dddd-eeeeffff0000",
    b"thread-id: 0199aaaa-bbbb-cccc-dddd-eeeeffff0000",
]
HANDOFF = "You are performing a CONTEXT CHECKPOINT COMPACTION. Write it down."


def long_items():
    out = [items.user()]
    for i in range(12):
        out += [
            items.call(f"call_{i}"),
            items.output(f"call_{i}", text=f"order {i}: " + f"PAY-{i:05} " * 300),
        ]
    return out


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [*rounds(12, size=2000), user(HANDOFF)]}),
        ("/v1/responses", {"input": [*long_items(), items.user(HANDOFF)]}),
        ("/v1/responses", {"input": [*long_items(), {"type": "compaction_trigger"}]}),
        (
            "/v1/responses",
            {"input": long_items(), "instructions": "You are tasked with summarizing conversations."},
        ),
    ],
)
def test_a_request_for_a_summary_passes_untouched(tmp_path, path, body):
    with (
        ScriptedServer(lambda _: say("a summary"), strict=False) as server,
        proxied(server.base_url, tmp_path / "bank.db", strategy="folding") as p,
    ):
        came = post(p.port, path, {"model": "m", **body}, *CODEX)
        assert (came.header(b"x-memory-status"), came.header(b"x-memory-reason")) == (
            b"passed",
            b"compaction request",
        )
        key = "messages" if "messages" in body else "input"
        assert server.requests[0].body[key] == body[key]
        with p.service.sessions.reading(None, p.told()[0].session) as state:
            assert state.fact_store.size() == 12


def test_codex_keeps_its_session_though_it_keeps_no_call(tmp_path):
    with (
        ScriptedServer(lambda _: say("ok")) as server,
        proxied(server.base_url, tmp_path / "bank.db", strategy="folding") as p,
    ):
        body = {"model": "m", "tools": TOOLS, "prompt_cache_key": "0199aaaa-bbbb-cccc-dddd-eeeeffff0000"}
        first = post(p.port, "/v1/responses", {**body, "input": long_items()}, *CODEX)
        summary = "Another language model started to solve this problem. It found the orders."
        kept = [items.user(), items.user(summary)]
        later = post(p.port, "/v1/responses", {**body, "input": kept}, *CODEX)
        assert later.header(b"x-memory-session") == first.header(b"x-memory-session")
        assert later.header(b"x-memory-status") == b"rebuilt"
        assert "PAY-00001" in str(server.requests[-1].body["input"])
        kept += [items.call("call_x"), items.output("call_x")]
        again = post(p.port, "/v1/responses", {**body, "input": kept}, *CODEX)
        assert again.header(b"x-memory-session") == first.header(b"x-memory-session")
        assert "PAY-00001" in str(server.requests[-1].body["input"])
