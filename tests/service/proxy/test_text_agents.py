"""Agents that write calls as text, through the proxy: their histories shrink, and what is not known is told."""

from __future__ import annotations

import json
from itertools import pairwise

import openai
import pytest
from tests.examples import first_short
from tests.service.proxied import scripted
from tests.service.tasks import get_order
from tests.transcript.test_textcalls import FORMS, START

from memory_bank.service.proxy.rebuild import UNSEEN

STEPS = 25


@pytest.mark.parametrize("form", first_short(FORMS))
def test_the_history_shrinks_and_stays_text_with_alternating_roles(form, tmp_path):
    messages = list(START)
    with scripted(lambda _: "so it is", tmp_path) as (server, p):
        client = openai.OpenAI(base_url=p.base_url, api_key="k")
        for step in range(STEPS):
            messages += FORMS[form](step, get_order(step))
            client.chat.completions.create(model="scripted", messages=messages)
        told = p.told(STEPS)
        assert p.lines == []
        session = told[0].session
        assert {e.session for e in told} == {session}
        assert {e.memory for e in told[15:]} == {"rebuilt"}
        with p.service.sessions.reading(None, session) as state:
            records = state.fact_store.get_many(list(state.steps))
        assert len(records) == STEPS
        assert {r.tool_name for r in records} == {"bash" if form == "bash" else "get_order"}
        assert get_order(0) in (records[0].output_text or "")
        last = server.requests[-1].body["messages"]
        roles = [m["role"] for m in last]
        assert roles[:2] == ["system", "user"]
        assert all(a != b for a, b in pairwise(roles))
        assert not any("tool_calls" in m for m in last)
        assert len(json.dumps(last)) < len(json.dumps(messages)) / 2
        assert last[-2:] == messages[-2:]


def test_an_agent_of_an_unknown_form_is_told_so(tmp_path):
    """By a header, once in the log, and with the list of sessions that the page shows; calls end it."""
    with scripted(lambda _: "so it is", tmp_path) as (_, p):
        client = openai.OpenAI(base_url=p.base_url, api_key="k")

        def ask(messages):
            answer = client.chat.completions.with_raw_response.create(model="scripted", messages=messages)
            return answer.headers.get("x-memory-reason")

        def notice():
            return client.get("/sessions", cast_to=openai.BaseModel).notice

        said = [ask([*START, {"role": "user", "content": f"TOOL look {n}"}]) for n in range(UNSEEN + 2)]
        assert said[: UNSEEN - 1] == ["nothing to remember yet"] * (UNSEEN - 1)
        assert said[UNSEEN - 1 :] == [f"no tool calls seen in {UNSEEN + n} requests" for n in range(3)]
        assert [line[:35] for line in p.lines] == ["no tool calls seen in 10 requests: "]
        assert notice() == f"no tool calls seen in {UNSEEN + 2} requests"
        ask([*START, *FORMS["react"](1, "x")])
        assert ask(START) == "nothing to remember yet"
        assert notice() is None


def test_a_long_conversation_without_calls_is_told_so_beside_others(tmp_path):
    talk = [{"role": r, "content": "LOOK at it"} for _ in range(UNSEEN) for r in ("user", "assistant")]
    with scripted(lambda _: "so it is", tmp_path) as (_, p):
        client = openai.OpenAI(base_url=p.base_url, api_key="k")
        for messages in ([*START, *FORMS["react"](1, "x")], [*talk, {"role": "user", "content": "go on"}]):
            answer = client.chat.completions.with_raw_response.create(model="scripted", messages=messages)
        assert answer.headers["x-memory-reason"] == f"no tool calls seen in {UNSEEN + 1} requests"


def test_requests_without_calls_are_counted_for_each_client(tmp_path):
    """By its key for the upstream, its program and its session: they neither add up nor end each other's count."""
    with scripted(lambda _: "so it is", tmp_path) as (_, p):

        def asking(key, **headers):
            client = openai.OpenAI(base_url=p.base_url, api_key=key, default_headers=headers)
            create = client.chat.completions.with_raw_response.create
            return lambda messages: create(model="m", messages=messages).headers.get("x-memory-reason")

        ids = [f"0194-conversation-{n:04}" for n in range(2)]
        clients = [
            asking("one"),
            asking("two"),
            asking("one", **{"User-Agent": "another/1.0"}),
            *(asking("one", **{"x-session-id": i}) for i in ids),
        ]
        for n in range(UNSEEN - 1):
            for ask in clients:
                assert (
                    ask([*START, {"role": "user", "content": f"TOOL look {n}"}]) == "nothing to remember yet"
                )
            asking("three")([*START, *FORMS["react"](1, "x")])  # an agent whose calls are seen
        assert p.service.proxy.rebuilder.notice(None) is None
        assert clients[1](START) == f"no tool calls seen in {UNSEEN} requests"
        clients[0]([*START, *FORMS["react"](1, "y")])
        assert clients[0](START) == "nothing to remember yet"
        assert p.service.proxy.rebuilder.notice(None) == f"no tool calls seen in {UNSEEN} requests"
        assert [line for line in p.lines if "no tool calls" in line] == p.lines != []
