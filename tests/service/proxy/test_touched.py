"""Of a request that goes on, only the new messages are looked at, on every API."""

from __future__ import annotations

import json
import random

import pytest
from benchmarks.workload import interaction, request_of
from tests.chats import say

from memory_bank.bank.database import Database
from memory_bank.config import load_config
from memory_bank.service.proxy.body import MessageCache
from memory_bank.service.proxy.exchange import Exchange
from memory_bank.service.proxy.flow import DIALECTS
from memory_bank.service.proxy.identity import Identity
from memory_bank.service.sessions import ProxiedRequest, Sessions


def react(calls: int) -> list[dict[str, object]]:
    """An agent that writes its calls as text."""
    turns = [
        (
            say(f"I look.\nAction: get\nAction Input: {{'n': {n}}}"),
            {"role": "user", "content": f"Observation: {n}"},
        )
        for n in range(calls)
    ]
    return [{"role": "user", "content": "Check the orders."}, *(m for turn in turns for m in turn)]


def native(calls: int) -> list[dict[str, object]]:
    rng = random.Random(0)
    turns = [interaction(n, rng) for n in range(calls)]
    return [{"role": "user", "content": "Check the orders."}, *(m for turn in turns for m in turn)]


@pytest.mark.parametrize("route", ["chat", "responses", "messages", "text"])
def test_a_step_looks_at_its_new_messages_alone(route):
    """Secrets are looked for once in every message, and its digest is made once."""
    dialect = next(d for d in DIALECTS if d.route == ("chat" if route == "text" else route))
    looked, database, cache = [], Database(""), MessageCache()
    sessions = Sessions(database, load_config(), redact=lambda m: looked.append(m) or m)
    identity = Identity(database)
    for calls in range(20, 40):
        members = {"messages": react(calls)} if route == "text" else request_of(route, native(calls))
        members |= {"instructions": "Be careful."} if route == "responses" else {"system": "Be careful."}
        body = cache.parse(json.dumps(members).encode(), dialect.key, "tools")
        history = dialect.history(body)
        before = len(looked)
        exchange = Exchange("POST", client_headers={"x-memory-session": "s"}, body=body)
        match = identity.session_of(exchange, history)
        request = ProxiedRequest(history=history)
        sessions.rebuild(None, match.name, history.messages, model="gpt-5", request=request)
        assert calls == 20 or len(looked) - before <= 3
    assert len(looked) <= len(history.messages) + 20
    sessions.close()
    database.close()
