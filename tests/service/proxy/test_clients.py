"""The real openai client runs a long task through the proxy: it ends, and its context stays under its budget."""

from __future__ import annotations

import json
import re
import threading

import openai
import pytest
from tests import chats
from tests.examples import first_short
from tests.replies import run_agent
from tests.service.proxied import scripted
from tests.service.tasks import HANDLERS, STEPS, SYSTEM, TASK, TOOLS, check_budget, script

from memory_bank.testing import say
from memory_bank.transcript.responses import from_items

ITEM_TOOLS = [{"type": "function", **tool["function"]} for tool in TOOLS]
CALLS = STEPS + STEPS // 4
START = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
MEMORY = {"x-memory-session": "task"}


@pytest.fixture
def long_task(tmp_path):
    """A proxy before the strict upstream with the long script."""
    with scripted(script(), tmp_path) as (server, p):
        yield server, p
        assert server.refused == []
        assert p.lines == []


def sent(server):
    """What went upstream, as chat messages."""
    bodies = [r.body for r in server.requests]
    return [
        b["messages"] if "messages" in b else from_items(b["input"], b.get("instructions")).messages
        for b in bodies
    ]


def output(call):
    return HANDLERS[call.function.name](**json.loads(call.function.arguments))


def done(server, p, conversation, answer):
    """The task ended with all its calls made once, and memory saw to it."""
    assert answer == "All is well."
    assert sum(len(m.get("tool_calls") or ()) for m in conversation) == CALLS
    assert len(server.requests) == STEPS + 1
    check_budget(p.service, sent(server))
    told = p.told(STEPS + 1)
    assert {e.session for e in told} == {"task"}
    assert {e.memory for e in told[10:]} == {"rebuilt"}
    left = {"client_gone"} if all(e.streamed for e in told) else set()  # at [DONE], before the last byte
    assert {e.outcome for e in told} - left == {"complete"}
    with p.service.sessions.reading(None, "task") as state:
        assert state.fact_store.size() == CALLS


def test_the_reference_agent(long_task):
    server, p = long_task
    client = openai.OpenAI(base_url=p.base_url, api_key="k", default_headers=MEMORY)
    told = run_agent(client, "scripted", START, TOOLS, HANDLERS, max_steps=100)
    done(server, p, told, told[-1]["content"])


def test_a_stream(long_task):
    server, p = long_task
    client = openai.OpenAI(base_url=p.base_url, api_key="k", default_headers=MEMORY)
    messages = list(START)
    while True:
        with client.chat.completions.stream(model="scripted", messages=messages, tools=TOOLS) as stream:
            said = stream.get_final_completion().choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        if not said.tool_calls:
            break
        for call in said.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": output(call)})
    done(server, p, messages, said.content)
    assert all(e.streamed for e in p.exchanges)


@pytest.mark.parametrize("stream", first_short([True, False]))
def test_responses(long_task, stream):
    server, p = long_task
    client = openai.OpenAI(base_url=p.base_url, api_key="k", default_headers=MEMORY)
    items, made = [{"role": "user", "content": TASK}], 0
    while True:
        given = client.responses.create(
            model="scripted", instructions=SYSTEM, input=items, tools=ITEM_TOOLS, store=False, stream=stream
        )
        if stream:
            given = [e.response for e in given if e.type == "response.completed"][0]
        items += [item.model_dump(exclude_none=True) for item in given.output]
        asked = [item for item in given.output if item.type == "function_call"]
        made += len(asked)
        if not asked:
            break
        for call in asked:
            text = HANDLERS[call.name](**json.loads(call.arguments))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": text})
    done(server, p, [{"tool_calls": range(made)}], given.output_text)
    assert {e.api.route for e in p.exchanges} == {"responses"}


def test_what_the_provider_holds_passes_and_is_flagged(tmp_path):
    with scripted([say("a"), say("b"), say("c")], tmp_path) as (_, p):
        client = openai.OpenAI(base_url=p.base_url, api_key="k", default_headers=MEMORY)
        ask = client.responses.with_raw_response.create
        first = ask(model="scripted", input="hello")
        second = ask(model="scripted", input="go on", previous_response_id=first.parse().id)
        third = ask(model="scripted", input=[{"role": "user", "content": "x"}], conversation="conv_1")
    reasons = [(r.headers["x-memory-status"], r.headers["x-memory-reason"]) for r in (first, second, third)]
    assert reasons == [
        ("passed", "no list of items"),
        ("passed", "previous_response_id"),
        ("passed", "conversation"),
    ]


def rounds_of(mark, count):
    """A conversation whose every output bears a mark."""
    outputs = (chats.result(f"c{k}", f"{mark} {k} " + "of many words " * 400) for k in range(count))
    return [
        *START,
        *(m for k, output in enumerate(outputs) for m in (chats.call((f"c{k}", "look", {})), output)),
    ]


@pytest.mark.long
def test_a_hundred_streams_at_once(tmp_path):
    """Each has its own session, its own answer, and its own memory."""
    with scripted(
        lambda body: say(body["messages"][-1]["content"].split()[0]), tmp_path, memory_timeout=60
    ) as (server, p):
        answers = {}
        client = openai.OpenAI(base_url=p.base_url, api_key="k")

        def ask(n):
            messages, named = rounds_of(f"own{n}", 9), {"x-memory-session": f"s{n}"}
            with client.chat.completions.stream(
                model="scripted", messages=messages, extra_headers=named
            ) as stream:
                answers[n] = stream.get_final_completion().choices[0].message.content

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert answers == {n: f"own{n}" for n in range(100)}
        assert {e.memory for e in p.told(100)} == {"rebuilt"}
        for request in server.requests:
            assert len(set(re.findall("own[0-9]+", json.dumps(request.body)))) == 1
