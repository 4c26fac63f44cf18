"""A context names memory tools only where its request offers them: every API, every way to have them."""

from __future__ import annotations

import json
import re

import pytest
from tests.chats import FOLDING
from tests.examples import first_short
from tests.service.proxied import post, scripted
from tests.service.requests import PATHS
from tests.service.requests import body_of as request_of

from memory_bank.service.proxy.dialects import ChatDialect, MessagesDialect, ResponsesDialect
from memory_bank.testing import say

NAMED = re.compile("search_memory|get_record|list_records")
DIALECTS = {"chat": ChatDialect(), "responses": ResponsesDialect(), "messages": MessagesDialect()}
STRATEGIES = {
    "native": FOLDING,
    "kept": FOLDING | {"refresh_after": 100_000},
    "block": FOLDING | {"layout": "block", "history_budget": 1_000},
    "masking": {"type": "observation_masking", "max_length": 40},
    "progressive": {"type": "progressive_summarization", "compact_threshold": 3_000},
}


def output(n):
    return json.dumps([{"order": f"ORD-{n}{i:02}", "status": "open", "note": "x" * 40} for i in range(20)])


def body_of(way, steps=12, **more):
    return {**request_of(way, [output(n) for n in range(steps)]), **more}


def named_and_offered(body):
    """The memory tools that a request's context names, and those that it offers."""
    said = json.dumps([body.get("messages"), body.get("input")])
    tools = [*body.get("tools", ()), *(t for i in body.get("input", ()) for t in i.get("tools", ()))]
    return set(NAMED.findall(said)), set(
        NAMED.findall(json.dumps([t.get("function", t)["name"] for t in tools]))
    )


def requests_of(way):
    """Requests of one conversation, with the tools and choices that clients send."""
    own = DIALECTS[way].offer_tools(body_of(way))
    forbids = {"type": "none"} if way == "messages" else "none"
    forced = {
        "chat": {"type": "function", "function": {"name": "get_order"}},
        "responses": {"type": "function", "name": "get_order"},
        "messages": {"type": "tool", "name": "get_order"},
    }[way]
    return [
        body_of(way),
        body_of(way, tool_choice=forbids),
        body_of(way, tools=own),
        body_of(way, 13),
        body_of(way, 13, tool_choice=forced),
        body_of(way, 14, tools=own[:-3] + own[-2:-1]),
        body_of(way, 14, **({} if way == "messages" else {"tools": []})),
        body_of(way, 2),
    ]


@pytest.mark.parametrize("inject", first_short(["auto", True, False]))
@pytest.mark.parametrize("way", PATHS)
def test_every_tool_that_a_context_names_is_offered(tmp_path, way, inject):
    with scripted(lambda _: say("ok"), tmp_path, STRATEGIES, inject_tools=inject) as (server, p):
        for strategy in STRATEGIES:
            headers = f"x-memory-strategy: {strategy}".encode(), f"x-memory-session: {strategy}".encode()
            for body in requests_of(way):
                assert post(p.port, PATHS[way], body, *headers).status == 200
            if way == "messages":
                post(p.port, "/v1/messages/count_tokens", body_of(way), *headers)
        exchanges = p.told(len(server.requests))
        assert server.refused == []
    kinds = [e.memory for e in exchanges]
    found = [named_and_offered(r.body) for r in server.requests]
    assert [f for f in found if not f[0] <= f[1]] == []
    assert kinds.count("rebuilt") > 5 * len(STRATEGIES)
    with_tool = [
        named for (named, offered), kind in zip(found, kinds, strict=True) if kind == "rebuilt" and offered
    ]
    assert with_tool
    assert sum(named == {"get_record"} for named in with_tool) > len(with_tool) // 2


def test_tools_in_an_item_of_a_request_are_offered(tmp_path):
    function = {"type": "function", "name": "get_record", "parameters": {"type": "object"}}
    space = {"type": "namespace", "name": "mcp__memory_bank", "tools": [function]}
    for tools, wanted in (([space], {"get_record"}), ([{**function, "name": "other"}], set())):
        with scripted(lambda _: say("ok"), tmp_path / str(len(wanted))) as (server, p):
            body = body_of("responses")
            del body["tools"]
            body["input"] = [
                {"type": "additional_tools", "role": "developer", "tools": tools},
                *body["input"],
            ]
            assert post(p.port, "/v1/responses", body).status == 200
            assert [e.memory for e in p.told(1)] == ["rebuilt"]
        [request] = server.requests
        shown = json.dumps([i for i in request.body["input"] if i.get("type") != "additional_tools"])
        assert set(NAMED.findall(shown)) == wanted
