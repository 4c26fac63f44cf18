"""LiteLLM with MemoryBankHook: 25 steps, parallel calls, streams, two sessions at once; the sync call says so."""

from __future__ import annotations

import asyncio
import json
import logging
import os

import pytest
from tests.integrations.pages import ANSWER, run_example
from tests.integrations.shop import SHOPS, STEPS, SYSTEM, Model, answer, check, get_order, get_parcel, task

from memory_bank.testing import ScriptedServer
from memory_bank.tools import TOOL_SCHEMAS, is_memory_tool

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # its import asks GitHub otherwise
pytest.importorskip("litellm", reason="needs litellm and mcp")
pytest.importorskip("mcp", reason="needs mcp: without it litellm.acompletion fails where there are tools")

import litellm

from memory_bank.integrations.litellm import WIRE, MemoryBankHook

CALLS = STEPS + 5 + 1
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f.__name__,
            "parameters": {
                "type": "object",
                "properties": {"shop": {"type": "string"}, "number": {"type": "integer"}},
            },
        },
    }
    for f in (get_order, get_parcel)
]
HANDLERS = {"get_order": get_order, "get_parcel": get_parcel}


@pytest.fixture
def callbacks():
    """LiteLLM's callbacks, which are none at first."""
    assert litellm.callbacks == []
    yield litellm.callbacks
    litellm.callbacks.clear()


@pytest.fixture
def memory(callbacks):
    hook = MemoryBankHook()
    callbacks.append(hook)
    yield hook
    hook.bridge.close()


async def run(server, memory, shop, stream, named):
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task(shop)}]
    options = {"metadata": {"session_id": shop}} if named else {}
    while True:
        response = await litellm.acompletion(
            "openai/scripted", messages=messages, api_base=server.base_url, api_key="k", tools=TOOLS + TOOL_SCHEMAS,
            stream=stream, **options,
        )  # fmt: skip
        if stream:
            response = litellm.stream_chunk_builder([chunk async for chunk in response])
        message = response.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content, messages
        for call in message.tool_calls:
            name, given = call.function.name, json.loads(call.function.arguments)
            if is_memory_tool(name):
                output = await memory.bridge.aanswer(name, given, shop if named else None, messages)
            else:
                output = HANDLERS[name](**given)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": output})


@pytest.mark.parametrize(("stream", "named"), [(False, False), (True, True)])
def test_two_long_tasks_at_once(memory, stream, named):
    async def both():
        return await asyncio.gather(*(run(server, memory, shop, stream, named) for shop in SHOPS))

    model = Model()
    with ScriptedServer(model) as server:
        for shop, (text, messages) in zip(SHOPS, asyncio.run(both()), strict=True):
            assert text == answer(shop)
            assert sum(m["role"] == "tool" for m in messages) == CALLS  # whole
            state = memory.bridge.state(shop if named else None, messages)
            assert state.fact_store.size() == CALLS
        check(server, model)


def test_the_synchronous_call_says_once_that_it_has_no_memory(memory, caplog):
    """LiteLLM keeps hooks of other tests, which may say it too."""
    said = "litellm.completion() was called"
    given = {
        "model": "openai/scripted",
        "messages": [{"role": "user", "content": task("ash")}],
        "api_key": "k",
    }
    with ScriptedServer(Model()) as server, caplog.at_level(logging.WARNING, "memory_bank.Integrations"):
        asyncio.run(litellm.acompletion(**given, api_base=server.base_url))
        assert said not in caplog.text
        litellm.completion(**given, api_base=server.base_url)
        count = caplog.text.count(said)
        litellm.completion(**given, api_base=server.base_url)
    assert 0 < count == caplog.text.count(said)
    assert "by position" not in caplog.text


def test_messages_by_position_are_said_once_to_have_no_memory(memory, caplog):
    async def twice():
        for _ in range(2):
            await litellm.acompletion(
                "openai/scripted",
                [{"role": "user", "content": task("ash")}],
                api_base=server.base_url,
                api_key="k",
            )

    with ScriptedServer(Model()) as server, caplog.at_level(logging.WARNING, "memory_bank.Integrations"):
        asyncio.run(twice())
    assert caplog.text.count("messages by position") == 1


def test_a_call_with_a_signature_of_gemini_is_read_so():
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for n in range(2)
    ]
    calls[0]["provider_specific_fields"] = {"thought_signature": "x"}
    made = litellm.Message(role="assistant", content=None, tool_calls=calls)
    assert [part.signed for part in WIRE.read(made).values()] == [True, False]


def test_the_example_of_litellm(callbacks, monkeypatch, capsys):
    run_example("test_the_example_of_litellm", monkeypatch)
    assert ANSWER in capsys.readouterr().out
