"""openai-agents with MemoryBankFilter: 25 steps, parallel calls, streams, two sessions at once; delta inputs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from tests.integrations.pages import ANSWER, run_example
from tests.integrations.shop import SHOPS, STEPS, SYSTEM, Model, answer, check, get_order, get_parcel, task

from memory_bank.errors import ConfigError
from memory_bank.testing import ScriptedServer

pytest.importorskip("agents", reason="needs openai-agents")

import agents
from openai import AsyncOpenAI

from memory_bank.integrations.openai_agents import MemoryBankFilter, read_items
from memory_bank.transcript.messages import calls_of

CALLS = STEPS + 5 + 1


async def run(server, memory, shop, api, stream, named):
    kind = {"chat": agents.OpenAIChatCompletionsModel, "responses": agents.OpenAIResponsesModel}[api]
    async with AsyncOpenAI(base_url=server.base_url, api_key="k") as client:
        agent = agents.Agent(
            name="checker",
            instructions=SYSTEM,
            tools=[*(agents.function_tool(f) for f in (get_order, get_parcel)), *memory.tools],
            model=kind(model="scripted", openai_client=client),
        )
        config = agents.RunConfig(tracing_disabled=True, call_model_input_filter=memory)
        options = {
            "max_turns": 100,
            "run_config": config,
            "context": SimpleNamespace(session_id=shop) if named else None,
        }
        if not stream:
            return await agents.Runner.run(agent, task(shop), **options)
        result = agents.Runner.run_streamed(agent, task(shop), **options)
        async for _ in result.stream_events():
            pass
        return result


@pytest.mark.parametrize(
    ("api", "stream", "named"),
    [
        ("responses", True, True),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (("chat", False, True), ("chat", True, False), ("responses", False, False))
        ),
    ],
)
def test_two_long_tasks_at_once(api, stream, named, tmp_path):
    async def both():
        return await asyncio.gather(*(run(server, memory, shop, api, stream, named) for shop in SHOPS))

    model = Model()
    with ScriptedServer(model) as server:
        memory = MemoryBankFilter(database=tmp_path / "bank.db")
        for shop, result in zip(SHOPS, asyncio.run(both()), strict=True):
            assert result.final_output == answer(shop)
            history = result.to_input_list()
            assert sum(item.get("type") == "function_call_output" for item in history) == CALLS  # whole
            state = memory.bridge.state(shop if named else None, history[:-1])
            assert state.fact_store.size() == CALLS
        check(server, model)
        memory.bridge.close()


def test_a_history_that_the_provider_holds_is_refused():
    model = Model()
    with ScriptedServer(model) as server:
        memory = MemoryBankFilter()

        async def go():
            async with AsyncOpenAI(base_url=server.base_url, api_key="k") as client:
                agent = agents.Agent(
                    name="checker",
                    tools=[agents.function_tool(f) for f in (get_order, get_parcel)],
                    model=agents.OpenAIResponsesModel(model="scripted", openai_client=client),
                )
                config = agents.RunConfig(tracing_disabled=True, call_model_input_filter=memory)
                await agents.Runner.run(agent, task("ash"), run_config=config, auto_previous_response_id=True)

        with pytest.raises(ConfigError, match="auto_previous_response_id"):
            asyncio.run(go())
        memory.bridge.close()


def test_a_call_with_a_signature_of_gemini_is_read_so():
    """The SDK's models of LiteLLM and of chats put it there."""
    items = [{"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": "{}"} for n in range(2)]
    items[0]["provider_data"] = {"model": "gemini-3", "thought_signature": "x"}
    items += [{"type": "function_call_output", "call_id": f"c{n}", "output": "x"} for n in range(2)]
    assert [call.signed for call in calls_of(read_items(items, None).messages[0])] == [True, False]


def test_the_example_of_openai_agents(monkeypatch, capsys):
    agents.set_tracing_disabled(True)  # traces would go to OpenAI
    run_example("test_the_example_of_openai_agents", monkeypatch)
    assert ANSWER in capsys.readouterr().out
