"""Pydantic AI with the capability MemoryBank: 25 steps, parallel calls, streams, async, two sessions at once."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.integrations.pages import ANSWER, run_example
from tests.integrations.shop import SHOPS, STEPS, SYSTEM, Model, answer, check, get_order, get_parcel, task

from memory_bank.errors import MessagesError
from memory_bank.testing import ScriptedServer

pytest.importorskip("pydantic_ai", reason="needs pydantic-ai-slim[openai]")

from pydantic_ai import Agent
from pydantic_ai.messages import ModelRequest, ToolReturnPart, UserPromptPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

from memory_bank.integrations.pydantic_ai import WIRE, MemoryBank

CALLS = STEPS + 5 + 1
LIMITS = UsageLimits(request_limit=None)


def agent_of(server, api, memory):
    kind = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}[api]
    model = kind("scripted", provider=OpenAIProvider(base_url=server.base_url, api_key="k"))
    return Agent(model, instructions=SYSTEM, tools=[get_order, get_parcel], capabilities=[memory])


async def arun(server, api, memory, shop, stream):
    agent = agent_of(server, api, memory)
    if not stream:
        return await agent.run(task(shop), usage_limits=LIMITS)
    async with agent.iter(task(shop), usage_limits=LIMITS) as run:
        async for node in run:
            if Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as events:
                    async for _ in events:
                        pass
    return run.result


@pytest.mark.parametrize(
    ("mode", "api"), [("sync", "chat"), ("async", "responses"), ("stream", "chat"), ("stream", "responses")]
)
def test_two_long_tasks_at_once(mode, api):
    async def both():
        return await asyncio.gather(*(arun(server, api, memory, shop, mode == "stream") for shop in SHOPS))

    model = Model()
    with ScriptedServer(model) as server:
        memory = MemoryBank()
        if mode == "sync":
            with ThreadPoolExecutor(2) as pool:
                results = list(
                    pool.map(
                        lambda shop: agent_of(server, api, memory).run_sync(task(shop), usage_limits=LIMITS),
                        SHOPS,
                    )
                )
        else:
            results = asyncio.run(both())
        for shop, result in zip(SHOPS, results, strict=True):
            assert result.output == answer(shop)
            history = result.all_messages()
            parts = [p for m in history for p in m.parts]
            assert sum(isinstance(p, ToolReturnPart) for p in parts) == CALLS  # whole
            state = memory.bridge.state(history[-1].conversation_id)
            assert state.fact_store.size() == CALLS
        check(server, model)
        memory.bridge.close()


def test_a_request_with_results_and_words_is_divided():
    request = ModelRequest(
        parts=[ToolReturnPart("f", "one", "c1"), ToolReturnPart("f", "two", "c2"), UserPromptPart("And?")]
    )
    first, second, words = WIRE.read(request)
    assert WIRE.rewrite(request, [None, None, words]).parts == [request.parts[2]]
    changed = WIRE.rewrite(request, [{**first, "content": "o …"}, second, None])
    assert [p.content for p in changed.parts] == ["o …", "two"]
    assert [p.content for p in request.parts] == ["one", "two", "And?"]
    with pytest.raises(MessagesError, match="dict is not a message"):
        WIRE.read({"role": "user"})


def test_the_example_of_pydantic_ai(monkeypatch, capsys):
    run_example("test_the_example_of_pydantic_ai", monkeypatch)
    assert ANSWER in capsys.readouterr().out
