"""Turns that every context keeps: with a provider's own tool. Nothing of them is said a second time."""

from __future__ import annotations

import json
import re

import pytest
from tests.blocks import SERVER_TOOL, answer, turn, use, user
from tests.chats import FOLDING
from tests.service.proxied import post, scripted

from memory_bank.testing import say
from memory_bank.transcript.quoting import INTRODUCTION

SESSION = b"x-memory-session: kept"
KEPT = (3, 6)


def output(n):
    return json.dumps([{"order": f"ORD-{n}{i:02}", "status": "open", "note": "x" * 40} for i in range(20)])


def messages_body(steps):
    """Some turns call a server tool and a tool of the client."""
    messages = [user("Check the orders and refund ORD-305 and ORD-607.")]
    for n in range(steps):
        hosted = [
            {**b, "id": f"srv_{n}"} if "id" in b else {**b, "tool_use_id": f"srv_{n}"} for b in SERVER_TOOL
        ]
        messages += [
            turn(*(hosted if n in KEPT else []), use(f"toolu_{n}", number=n, code=f"code-{n}")),
            user(answer(f"toolu_{n}", output(n))),
        ]
    return "/v1/messages", {"model": "m", "max_tokens": 9, "messages": messages}


def responses_body(steps):
    """The tools of an MCP server were listed between some calls and their results."""
    items = [{"role": "user", "content": "Check the orders and refund ORD-305 and ORD-607."}]
    for n in range(steps):
        function = {"name": "get_order", "arguments": json.dumps({"number": n, "code": f"code-{n}"})}
        listed = {"type": "mcp_list_tools", "id": f"mcp_{n}", "server_label": "s", "tools": []}
        items.append({"type": "function_call", "call_id": f"c{n}", **function})
        items += [listed] if n in KEPT else []
        items.append({"type": "function_call_output", "call_id": f"c{n}", "output": output(n)})
    return "/v1/responses", {"model": "m", "input": items}


@pytest.mark.parametrize("layout", ["native", "block"])
@pytest.mark.parametrize("body_of", [messages_body, responses_body])
def test_a_turn_with_a_providers_tool_is_not_quoted_besides(tmp_path, body_of, layout):
    with scripted(lambda _: say("ok"), tmp_path, {"s": FOLDING | {"layout": layout}}) as (server, p):
        for steps in (12, 13, 20):
            path, body = body_of(steps)
            assert post(p.port, path, body, SESSION).status == 200
        assert [e.memory for e in p.told(3)] == ["rebuilt"] * 3
        assert server.refused == []
    for request in server.requests:
        sent = json.dumps(request.body, ensure_ascii=False)
        for n in KEPT:  # they stand in the list of messages as they came
            assert sent.count(f"ORD-{n}19") == 1
            assert sent.count(f"code-{n}") == 1
        memory = next(t for t in re.findall(r'"((?:[^"\\]|\\.)*)"', sent) if INTRODUCTION[:40] in t)
        assert "no longer in the list" not in memory
        assert not re.search(r"#(?:4|7)\b", memory), memory
        assert "get_order" in memory or "[… #" in sent  # the others are told
