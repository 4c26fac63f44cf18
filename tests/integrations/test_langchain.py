"""LangChain agents with MemoryBankMiddleware: 25 steps, parallel calls, streams, async, two sessions at once."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.integrations.pages import ANSWER, run_example
from tests.integrations.shop import SHOPS, STEPS, SYSTEM, Model, answer, check, get_order, get_parcel, task

from memory_bank.testing import ScriptedServer

pytest.importorskip("langchain_openai", reason="needs langchain and langchain-openai")

from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from memory_bank.integrations.langchain import MemoryBankMiddleware

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
        assert len(middleware.bridge._sessions) == 2
        middleware.bridge.close()


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
