"""LlamaIndex agents with a model with memory: 25 steps, parallel calls, streams, two sessions at once."""

from __future__ import annotations

import asyncio

import pytest
from tests.integrations.gemini import SMALL, TASK, get_account, settle
from tests.integrations.pages import ANSWER, run_example
from tests.integrations.shop import SHOPS, STEPS, SYSTEM, Model, answer, check, get_order, get_parcel, task

from memory_bank.errors import MessagesError
from memory_bank.testing import ScriptedServer

pytest.importorskip("llama_index.llms.openai", reason="needs llama-index-core and llama-index-llms-openai")

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, TextBlock, ThinkingBlock, ToolCallBlock
from llama_index.llms.openai import OpenAI

from memory_bank.integrations.llama_index import WIRE, function_tools, with_memory

CALLS = STEPS + 5 + 1


async def run(server, shop, stream, database):
    model = OpenAI("gpt-4.1-mini", api_base=server.base_url, api_key="k", max_retries=0)
    llm, bridge = with_memory(model, session_id=shop, database=database)
    agent = FunctionAgent(
        tools=[get_order, get_parcel, *function_tools(bridge, shop)], llm=llm, system_prompt=SYSTEM,
        streaming=stream, timeout=None,
    )  # fmt: skip
    result = await agent.run(task(shop), max_iterations=100)
    assert len(result.tool_calls) >= 1
    assert bridge.state(shop).fact_store.size() == CALLS
    bridge.close()
    return str(result)


@pytest.mark.parametrize("stream", [False, True])
def test_two_long_tasks_at_once(stream, tmp_path):
    async def both():
        return await asyncio.gather(*(run(server, s, stream, tmp_path / "bank.db") for s in SHOPS))

    model = Model()
    with ScriptedServer(model) as server:
        assert asyncio.run(both()) == [answer(shop) for shop in SHOPS]
        check(server, model)


def test_a_turn_of_parallel_calls_keeps_its_signature(gemini):
    genai = pytest.importorskip("llama_index.llms.google_genai", reason="needs llama-index-llms-google-genai")
    model = genai.GoogleGenAI(
        "gemini-3-pro-preview", api_key="k", http_options={"base_url": gemini.address}, context_window=10**6
    )
    llm, bridge = with_memory(model, config=SMALL)
    agent = FunctionAgent(tools=[get_account, settle], llm=llm, streaming=False, timeout=None)

    async def go():
        return str(await agent.run(TASK, max_iterations=100))

    assert asyncio.run(go()) == "All is settled."
    bridge.close()


def test_the_signatures_of_blocks_go_with_them():
    blocks = [TextBlock(text="Now."), *(ToolCallBlock(tool_call_id=f"c{n}", tool_name="f") for n in range(2))]
    made = ChatMessage(
        role="assistant", blocks=blocks, additional_kwargs={"thought_signatures": [None, b"x"]}
    )
    assert [part.signed for part in WIRE.read(made).values()] == [False, True, False]
    changed = WIRE.write(made, {0: None, 2: None})
    assert (changed.blocks, changed.additional_kwargs["thought_signatures"]) == ([blocks[1]], [b"x"])


def test_thinking_of_anthropic_is_signed():
    thinking = ThinkingBlock(content="so", additional_information={"signature": "s"})
    made = ChatMessage(
        role="assistant", blocks=[thinking, ThinkingBlock(content="so"), TextBlock(text="Now.")]
    )
    assert WIRE.bound(made) == [0]


def test_calls_are_read_and_changed_in_blocks():
    made = ChatMessage(
        role="assistant", blocks=[TextBlock(text="Now."), ToolCallBlock(tool_call_id="c1", tool_name="f", tool_kwargs={"n": "1"})]
    )  # fmt: skip
    said, call = WIRE.read(made).values()
    assert (said.value, call.call_id, call.name, call.value) == ("Now.", "c1", "f", '{"n":"1"}')
    changed = WIRE.write(made, {1: '{"n":"…"}'})
    assert (changed.blocks[1].tool_kwargs, made.blocks[1].tool_kwargs) == ({"n": "…"}, {"n": "1"})
    with pytest.raises(MessagesError, match="dict is not a ChatMessage"):
        WIRE.read({"role": "user"})


def test_the_example_of_llama_index(monkeypatch, capsys):
    run_example("test_the_example_of_llama_index", monkeypatch)
    assert ANSWER in capsys.readouterr().out
