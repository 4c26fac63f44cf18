"""Pydantic AI with the capability MemoryBank: 25 steps, parallel calls, streams, async, two sessions at once."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.integrations.gemini import SMALL, TASK, get_account, settle
from tests.integrations.pages import ANSWER, run_example
from tests.integrations.shop import SHOPS, STEPS, SYSTEM, Model, answer, check, get_order, get_parcel, task

from memory_bank.errors import MessagesError
from memory_bank.testing import ScriptedServer

pytest.importorskip("pydantic_ai", reason="needs pydantic-ai-slim[openai]")

from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

from memory_bank.integrations.pydantic_ai import WIRE, MemoryBank
from memory_bank.transcript.anthropic import thinking_rule, without_thinking

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


def test_a_turn_of_parallel_calls_keeps_its_signature(gemini):
    google = pytest.importorskip(
        "pydantic_ai.models.google", reason="needs pydantic-ai-slim[google]", exc_type=ImportError
    )
    from pydantic_ai.providers.google import GoogleProvider

    provider = GoogleProvider(api_key="k", base_url=gemini.address)
    memory = MemoryBank(config=SMALL)
    model = google.GoogleModel("gemini-3-pro-preview", provider=provider)
    agent = Agent(model, tools=[get_account, settle], capabilities=[memory])
    assert agent.run_sync(TASK, usage_limits=LIMITS).output == "All is settled."
    memory.bridge.close()


@pytest.mark.parametrize("name", ["extra_content", "thought_signature"])
def test_calls_that_are_signed_are_read_so(name):
    signed = ToolCallPart("f", {}, "c1", provider_details={name: "x"}, provider_name="google")
    details = [
        ThinkingPart("", id="c2", signature="x", provider_name="openrouter"),
        ToolCallPart("f", {}, "c2"),
    ]
    read = WIRE.read(ModelResponse(parts=[signed, *details, ToolCallPart("f", {}, "c3")]))
    assert [part.signed for part in read.values()] == [True, False, True, False]


def test_a_request_with_results_and_words_is_divided():
    request = ModelRequest(
        parts=[ToolReturnPart("f", "one", "c1"), ToolReturnPart("f", "two", "c2"), UserPromptPart("And?")]
    )
    assert WIRE.write(request, {0: None, 1: None}).parts == [request.parts[2]]
    changed = WIRE.write(request, {0: "o …", 2: None})
    assert [p.content for p in changed.parts] == ["o …", "two"]
    assert [p.content for p in request.parts] == ["one", "two", "And?"]
    with pytest.raises(MessagesError, match="dict is not a message"):
        WIRE.read({"role": "user"})


def test_the_example_of_pydantic_ai(monkeypatch, capsys):
    run_example("test_the_example_of_pydantic_ai", monkeypatch)
    assert ANSWER in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["adaptive", "enabled"])
def test_thinking_of_anthropic_goes_from_the_first_difference_on(kind):
    def turn(n, provider="anthropic"):
        thinking = ThinkingPart("so", signature=f"s{n}", provider_name=provider)
        made = ModelResponse(parts=[thinking, ToolCallPart("f", {}, f"c{n}")])
        return made, ModelRequest(parts=[ToolReturnPart("f", "x", f"c{n}")])

    natives = [ModelRequest(parts=[UserPromptPart("go")]), *turn(0), *turn(1), *turn(2, "google"), *turn(3)]
    rebuilt = [*natives[:3], ModelRequest(parts=[UserPromptPart("memory")]), *natives[5:]]
    sent = without_thinking(rebuilt, thinking_rule({"type": kind}), natives, WIRE)
    thinks = [isinstance(m.parts[0], ThinkingPart) for m in sent if isinstance(m, ModelResponse)]
    assert thinks == [True, True, kind == "enabled"]
    assert WIRE.write(ModelResponse(parts=[natives[1].parts[0]]), {0: None}) is None


def test_a_model_of_anthropic_that_thinks_gets_no_thinking_that_does_not_fit():
    anthropic = pytest.importorskip(
        "pydantic_ai.models.anthropic", reason="needs pydantic-ai-slim[anthropic]", exc_type=ImportError
    )
    from pydantic_ai.providers.anthropic import AnthropicProvider

    model = Model()
    with ScriptedServer(lambda body: dataclasses.replace(model(body), reasoning="so")) as server:
        provider = AnthropicProvider(base_url=server.base_url.removesuffix("/v1"), api_key="k")
        claude = anthropic.AnthropicModel("claude-opus-4-8", provider=provider)
        memory = MemoryBank()
        agent = Agent(claude, instructions=SYSTEM, tools=[get_order, get_parcel], capabilities=[memory])
        settings = {"anthropic_thinking": {"type": "adaptive"}, "max_tokens": 1024}
        result = agent.run_sync(task("ash"), usage_limits=LIMITS, model_settings=settings)
        assert result.output == answer("ash")
        assert server.refused == []
        sizes = [len(json.dumps(r.body)) for r in server.requests]
        assert sizes[-1] < len(result.all_messages_json())
        assert any('"thinking"' in json.dumps(r.body["messages"]) for r in server.requests)
        memory.bridge.close()
