"""A real agent framework, openai-agents, runs a long task through the proxy and knows nothing of it."""

from __future__ import annotations

import asyncio

import pytest
from tests.examples import first_short
from tests.service.proxied import scripted
from tests.service.proxy.test_clients import CALLS, MEMORY, sent
from tests.service.tasks import STEPS, SYSTEM, TASK, check_budget, get_order, get_parcel, script

agents = pytest.importorskip("agents", reason="needs openai-agents")


def tools():
    return [agents.function_tool(f) for f in (get_order, get_parcel)]


async def run(base_url, api, stream, headers):
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=base_url, api_key="k", default_headers=headers) as client:
        kind = {"chat": agents.OpenAIChatCompletionsModel, "responses": agents.OpenAIResponsesModel}[api]
        agent = agents.Agent(
            name="checker",
            instructions=SYSTEM,
            tools=tools(),
            model=kind(model="scripted", openai_client=client),
        )
        config = agents.RunConfig(tracing_disabled=True)
        if not stream:
            return await agents.Runner.run(agent, TASK, max_turns=100, run_config=config)
        result = agents.Runner.run_streamed(agent, TASK, max_turns=100, run_config=config)
        async for _ in result.stream_events():
            pass
        return result


@pytest.mark.parametrize("stream", first_short([False, True]))
@pytest.mark.parametrize("api", first_short(["chat", "responses"]))
def test_a_long_task(tmp_path, api, stream):
    with scripted(script(), tmp_path) as (server, p):
        result = asyncio.run(run(p.base_url, api, stream, MEMORY))
        assert result.final_output == "All is well."
        assert server.refused == []
        assert len(server.requests) == STEPS + 1
        assert sum(i.type == "tool_call_item" for i in result.new_items) == CALLS
        check_budget(p.service, sent(server))
        assert {e.memory for e in p.told(STEPS + 1)[10:]} == {"rebuilt"}
        assert {(e.api.route, e.streamed) for e in p.exchanges} == {(api, stream)}
        with p.service.sessions.reading(None, "task") as state:
            assert state.fact_store.size() == CALLS
        assert p.lines == []
