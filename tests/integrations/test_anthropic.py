"""Anthropic's SDK with MemoryBankTransport: 25 steps, parallel calls, streams, async, two sessions at once."""

from __future__ import annotations

import asyncio
import json
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.integrations.pages import ANSWER, run_example
from tests.integrations.shop import SHOPS, Model, answer, check, get_order, get_parcel, task

from memory_bank.testing import ScriptedServer, fail, say

pytest.importorskip("anthropic", reason="needs anthropic")

from anthropic import (
    Anthropic,
    AsyncAnthropic,
    DefaultAsyncHttpxClient,
    DefaultHttpxClient,
    beta_async_tool,
    beta_tool,
)

from memory_bank.integrations.anthropic import MemoryBankTransport

SYSTEM = "You check the orders of a shop."


def options(shop, tools, **more):
    said = [{"role": "user", "content": task(shop)}]
    return {
        "model": "scripted", "max_tokens": 100, "system": SYSTEM, "messages": said, "tools": tools,
        "thread": False, "extra_headers": {"x-memory-session": shop}, **more,
    }  # fmt: skip


def client_of(server, transport):
    http = DefaultHttpxClient(transport=transport)
    return Anthropic(
        base_url=server.base_url.removesuffix("/v1"), api_key="k", http_client=http, max_retries=0
    )


def run(server, shop, stream):
    transport = MemoryBankTransport()
    client = client_of(server, transport)
    tools = [*(beta_tool(f) for f in (get_order, get_parcel)), *transport.tools(shop)]
    runner = client.beta.messages.tool_runner(**options(shop, tools, stream=stream))
    for turn in runner:
        last = turn.get_final_message() if stream else turn
    assert transport.bridge.state(shop).fact_store.size() == 31
    transport.bridge.close()
    return last.content[-1].text


async def arun(server, shop, transport):
    http = DefaultAsyncHttpxClient(transport=transport)
    url = server.base_url.removesuffix("/v1")
    async with AsyncAnthropic(base_url=url, api_key="k", http_client=http, max_retries=0) as client:

        async def order(shop: str, number: int) -> str:
            return get_order(shop, number)

        async def parcel(shop: str, number: int) -> str:
            return get_parcel(shop, number)

        tools = [beta_async_tool(order, name="get_order"), beta_async_tool(parcel, name="get_parcel")]
        tools += transport.tools(asynchronous=True)
        given = options(shop, tools) | {"extra_headers": {}}
        last = await client.beta.messages.tool_runner(**given).until_done()
        return last.content[-1].text


@pytest.mark.parametrize("mode", ["sync", "stream", "async"])
def test_two_long_tasks_at_once(mode):
    async def both():
        return await asyncio.gather(*(arun(server, shop, MemoryBankTransport()) for shop in SHOPS))

    model = Model()
    with ScriptedServer(model) as server:
        if mode == "async":
            results = asyncio.run(both())
        else:
            with ThreadPoolExecutor(2) as pool:
                results = list(pool.map(lambda shop: run(server, shop, mode == "stream"), SHOPS))
        assert results == [answer(shop) for shop in SHOPS]
        check(server, model)
        assert all("x-memory-session" not in r.headers for r in server.requests)


def history(steps):
    messages = [{"role": "user", "content": task("ash")}]
    for n in range(steps):
        call = {"type": "tool_use", "id": f"c{n}", "name": "get_order", "input": {"shop": "ash", "number": n}}
        result = {"type": "tool_result", "tool_use_id": f"c{n}", "content": get_order("ash", n)}
        messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    return messages


def test_a_refused_context_is_followed_by_the_original(caplog):
    messages = history(25)
    size = len(json.dumps(messages))

    def model(body):
        return say("Done.") if len(json.dumps(body["messages"])) >= size else fail(400, "No.")

    with ScriptedServer(model) as server, caplog.at_level(logging.WARNING, "memory_bank.Integrations"):
        client = client_of(server, MemoryBankTransport())
        said = client.messages.create(model="scripted", max_tokens=9, messages=messages)
        assert said.content[0].text == "Done."
        assert [len(json.dumps(r.body["messages"])) < size for r in server.requests] == [True, False]
    assert "refused a rebuilt request" in caplog.text


def test_a_thread_is_sent_as_it_is_and_said_once(caplog):
    messages = history(25)
    with ScriptedServer(lambda body: say("Done.")) as server:
        client = client_of(server, MemoryBankTransport())
        for _ in range(2):
            client.messages.create(
                model="scripted", max_tokens=9, messages=messages, extra_body={"thread": {"id": "t"}}
            )
        assert all(r.body["messages"] == messages for r in server.requests)
    assert caplog.text.count("thread=False") == 1


def test_the_example_of_anthropic(monkeypatch, capsys):
    run_example("test_the_example_of_anthropic", monkeypatch)
    assert ANSWER in capsys.readouterr().out
