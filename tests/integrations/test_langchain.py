"""LangChain agents with MemoryBankMiddleware: 25 steps, parallel calls, streams, async, two sessions at once."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.integrations.gemini import SMALL, TASK, get_account, settle
from tests.integrations.pages import ANSWER, run_example
from tests.integrations.shop import SHOPS, STEPS, SYSTEM, Model, answer, check, get_order, get_parcel, task

from memory_bank.errors import HistoryError
from memory_bank.testing import ScriptedServer

pytest.importorskip("langchain_openai", reason="needs langchain and langchain-openai")

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from memory_bank.integrations.langchain import WIRE, MemoryBankMiddleware
from memory_bank.transcript.anthropic import thinking_rule, without_thinking

CALLS = STEPS + 5 + 1


def agent_of(server, threads, api, **options):
    model = ChatOpenAI(
        model="scripted", base_url=server.base_url, api_key="k", use_responses_api=api == "responses",
        max_retries=0,
    )  # fmt: skip
    middleware = MemoryBankMiddleware(**options)
    saver = InMemorySaver() if threads else None
    agent = create_agent(
        model, [get_order, get_parcel], system_prompt=SYSTEM, middleware=[middleware], checkpointer=saver
    )
    return agent, middleware


def given(shop, threads):
    config = {"recursion_limit": 200, "configurable": {"thread_id": shop} if threads else {}}
    return {"messages": [{"role": "user", "content": task(shop)}]}, config


async def arun(agent, shop, threads, stream):
    inputs, config = given(shop, threads)
    if not stream:
        return await agent.ainvoke(inputs, config)
    async for kind, chunk in agent.astream(inputs, config, stream_mode=["messages", "values"]):
        if kind == "values":
            last = chunk
    return last


async def both(agent, threads, stream):
    return await asyncio.gather(*(arun(agent, shop, threads, stream) for shop in SHOPS))


@pytest.mark.parametrize(
    ("mode", "threads", "api"),
    [
        ("sync", True, "chat"),
        ("sync", False, "responses"),
        ("async", False, "chat"),
        ("stream", True, "responses"),
        ("stream", False, "chat"),
    ],
)
def test_two_long_tasks_at_once(mode, threads, api):
    model = Model()
    with ScriptedServer(model) as server:
        agent, middleware = agent_of(server, threads, api)
        if mode == "sync":
            with ThreadPoolExecutor(2) as pool:
                results = list(pool.map(lambda shop: agent.invoke(*given(shop, threads)), SHOPS))
        else:
            results = asyncio.run(both(agent, threads, mode == "stream"))
        for shop, result in zip(SHOPS, results, strict=True):
            messages = result["messages"]
            assert messages[-1].text == answer(shop)
            assert sum(isinstance(m, ToolMessage) for m in messages) == CALLS  # the state is whole
            state = middleware.bridge.state(shop if threads else None, messages[:-1])
            assert state.fact_store.size() == CALLS
        check(server, model)
        middleware.bridge.close()


@pytest.mark.parametrize("version", [None, "v1"])
def test_a_turn_of_parallel_calls_keeps_its_signature(gemini, version):
    genai = pytest.importorskip("langchain_google_genai", reason="needs langchain-google-genai")
    model = genai.ChatGoogleGenerativeAI(
        model="gemini-3-pro-preview", base_url=gemini.address, api_key="k", output_version=version
    )
    middleware = MemoryBankMiddleware(config=SMALL)
    agent = create_agent(model, [get_account, settle], middleware=[middleware])
    result = agent.invoke({"messages": [("user", TASK)]}, {"recursion_limit": 200})
    assert result["messages"][-1].text == "All is settled."
    middleware.bridge.close()


def test_the_signature_of_a_text_stays_with_it_in_short_form():
    alone = {"type": "text", "text": "", "extras": {"signature": "YQ=="}}
    text = {"type": "text", "text": "Let me see the order.", "extras": {"signature": "dA=="}}
    made = AIMessage(content=[text, alone], tool_calls=[{"id": "c", "name": "f", "args": {}}])
    assert [part.kind.name for part in WIRE.read(made).values()] == ["SAY", "REASONING", "CALL"]
    assert WIRE.write(made, {0: "…"}).content == [text | {"text": "…"}, alone]
    assert WIRE.write(made, {0: None}).content == [alone]


def test_two_deep_agents_at_once():
    deepagents = pytest.importorskip("deepagents", reason="needs deepagents")
    model = Model()
    with ScriptedServer(model) as server:
        middleware = MemoryBankMiddleware()
        agent = deepagents.create_deep_agent(
            model=ChatOpenAI(model="scripted", base_url=server.base_url, api_key="k", max_retries=0),
            tools=[get_order, get_parcel],
            system_prompt=SYSTEM,
            middleware=[middleware],
        )
        for shop, result in zip(SHOPS, asyncio.run(both(agent, True, False)), strict=True):
            assert result["messages"][-1].text == answer(shop)
            assert middleware.bridge.state(shop).fact_store.size() == CALLS
        check(server, model)
        middleware.bridge.close()


def test_the_example_of_langchain(monkeypatch, capsys):
    run_example("test_the_example_of_langchain", monkeypatch)
    assert ANSWER in capsys.readouterr().out


def test_the_example_of_a_graph(monkeypatch, capsys):
    run_example("test_the_example_of_a_graph", monkeypatch)
    assert ANSWER in capsys.readouterr().out


def thinking(signature, **more):
    content = [
        {"type": "thinking", "thinking": "so", "signature": signature},
        {"type": "text", "text": "Now."},
    ]
    return AIMessage(content=content, **more)


@pytest.mark.parametrize("kind", ["adaptive", "enabled", "drop"])
def test_thinking_goes_from_the_first_difference_on(kind):
    given = {"type": "adaptive"} if kind != "enabled" else {"type": "enabled", "budget_tokens": 1024}
    if kind == "drop":
        given["block_binding"] = {"prefix_mismatch_behavior": "drop_block"}
    turns = [
        (
            thinking(f"s{n}", tool_calls=[{"id": f"c{n}", "name": "f", "args": {}}]),
            ToolMessage("x", tool_call_id=f"c{n}"),
        )
        for n in range(4)
    ]
    natives = [HumanMessage("go"), *(m for turn in turns for m in turn)]
    rebuilt = [*natives[:3], HumanMessage("memory"), *natives[5:]]
    sent = without_thinking(rebuilt, thinking_rule(given), natives, WIRE)
    thinks = [any(p.signed for p in WIRE.read(m).values()) for m in sent if isinstance(m, AIMessage)]
    assert (
        thinks == {"adaptive": [True, False, False], "enabled": [True, False, True], "drop": [True] * 3}[kind]
    )
    assert sent[1] is natives[1]
    assert [c["id"] for m in sent if isinstance(m, AIMessage) for c in m.tool_calls] == ["c0", "c2", "c3"]
    assert without_thinking(natives, thinking_rule(given), natives, WIRE) == natives


def test_a_turn_that_must_begin_with_its_thinking_and_does_not():
    calls = [AIMessage("", tool_calls=[{"id": f"c{n}", "name": "f", "args": {}}]) for n in range(2)]
    results = [ToolMessage("x", tool_call_id=f"c{n}") for n in range(2)]
    natives = [HumanMessage("go"), thinking("s"), calls[0], results[0], calls[1], results[1]]
    rebuilt = [HumanMessage("memory"), *natives[4:]]
    with pytest.raises(HistoryError, match="no thinking block of its own"):
        without_thinking(rebuilt, thinking_rule({"type": "enabled"}), natives, WIRE)
    assert without_thinking(rebuilt, thinking_rule({"type": "adaptive"}), natives, WIRE) == rebuilt


def test_a_model_of_anthropic_that_thinks_gets_no_thinking_that_does_not_fit():
    anthropic = pytest.importorskip("langchain_anthropic", reason="needs langchain-anthropic")
    model = Model()
    with ScriptedServer(lambda body: dataclasses.replace(model(body), reasoning="so")) as server:
        claude = anthropic.ChatAnthropic(
            model="claude-opus-4-8", base_url=server.base_url.removesuffix("/v1"), api_key="k",
            thinking={"type": "adaptive"}, max_tokens=1024, max_retries=0,
        )  # fmt: skip
        middleware = MemoryBankMiddleware()
        agent = create_agent(claude, [get_order, get_parcel], system_prompt=SYSTEM, middleware=[middleware])
        result = agent.invoke(*given("ash", False))
        assert answer("ash") in str(result["messages"][-1].content)
        assert server.refused == []
        sizes = [len(json.dumps(r.body)) for r in server.requests]
        assert sizes[-1] < max(sizes) < sum(len(str(m.content)) for m in result["messages"])
        assert any('"thinking"' in json.dumps(r.body["messages"]) for r in server.requests)
        middleware.bridge.close()
