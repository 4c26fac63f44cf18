"""Google ADK with MemoryBankPlugin: 25 steps, parallel calls, streams, two sessions at once."""

from __future__ import annotations

import asyncio
import dataclasses
import os

import pytest
from tests.integrations.gemini import SMALL, TASK, get_account, settle
from tests.integrations.pages import ANSWER, run_example
from tests.integrations.shop import SHOPS, STEPS, SYSTEM, Model, answer, check, get_order, get_parcel, task

from memory_bank.testing import ScriptedServer

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # its import asks GitHub otherwise
pytest.importorskip("google.adk", reason="needs google-adk")
pytest.importorskip("litellm", reason="needs litellm, by which google-adk speaks OpenAI's API")
pytest.importorskip("mcp", reason="needs mcp: without it litellm fails where there are tools")

from google.adk.agents import LlmAgent, RunConfig
from google.adk.agents.run_config import StreamingMode
from google.adk.apps import App
from google.adk.models.google_llm import Gemini
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types

from memory_bank.integrations.google_adk import MemoryBankPlugin, read_contents
from memory_bank.transcript.turns import WHOLE

CALLS = STEPS + 5 + 1


def content(role, *parts):
    return types.Content(role=role, parts=list(parts))


async def run(runner, shop, stream, said=None):
    session = await runner.session_service.create_session(app_name="shop", user_id=shop, session_id="1")
    said = content("user", types.Part(text=said or task(shop)))
    config = RunConfig(streaming_mode=StreamingMode.SSE if stream else StreamingMode.NONE)
    text = ""
    async for event in runner.run_async(
        user_id=shop, session_id=session.id, new_message=said, run_config=config
    ):
        if event.is_final_response() and event.content:
            text = "".join(p.text or "" for p in event.content.parts)
    session = await runner.session_service.get_session(app_name="shop", user_id=shop, session_id="1")
    return text, session


@pytest.mark.parametrize("stream", [False, True])
def test_two_long_tasks_at_once(stream):
    async def both():
        return await asyncio.gather(*(run(runner, shop, stream) for shop in SHOPS))

    model = Model()
    with ScriptedServer(model) as server:
        memory = MemoryBankPlugin()
        agent = LlmAgent(
            name="checker",
            model=LiteLlm("openai/scripted", api_base=server.base_url, api_key="k"),
            instruction=SYSTEM,
            tools=[get_order, get_parcel],
        )
        runner = InMemoryRunner(app=App(name="shop", root_agent=agent, plugins=[memory]))
        for shop, (text, session) in zip(SHOPS, asyncio.run(both()), strict=True):
            assert text == answer(shop)
            responses = [r for e in session.events for r in e.get_function_responses()]
            assert len(responses) == CALLS  # whole
            assert memory.bridge.state(f"shop/{shop}/1/checker").fact_store.size() == CALLS
        check(server, model)
        memory.bridge.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_of_parallel_calls_keeps_its_signature(gemini, stream):
    memory = MemoryBankPlugin(config=SMALL)
    model = Gemini(model="gemini-3-pro-preview", base_url=gemini.address)
    agent = LlmAgent(name="payer", model=model, tools=[get_account, settle])
    runner = InMemoryRunner(app=App(name="shop", root_agent=agent, plugins=[memory]))
    text, _ = asyncio.run(run(runner, "ash", stream, TASK))
    assert text == "All is settled."
    memory.bridge.close()


def test_a_signature_that_stands_alone_and_that_of_a_text_stay_where_they_are():
    texts = [
        types.Part(text="Let me see the order.", thought_signature=b"text"),
        types.Part(text="", thought_signature=b"alone"),
        types.Part(function_call=types.FunctionCall(name="f", args={}), thought_signature=b"call"),
    ]
    said, answered = (
        content("model", *texts),
        content("user", types.Part(function_response=types.FunctionResponse(name="f", response={}))),
    )
    chat = read_contents([said, answered], None)
    [short, same] = chat.write([(0, {WHOLE: "…"}), (1, {})])
    assert [p.thought_signature for p in short.parts] == [b"text", b"alone", b"call"]
    assert [p.text for p in short.parts] == ["…", "", None]
    assert same is answered


@pytest.mark.parametrize("budget", [-1, 4_096])
def test_a_model_of_anthropic_that_thinks_gets_no_thinking_that_does_not_fit(budget):
    anthropic = pytest.importorskip("anthropic", reason="needs anthropic")
    from google.adk.models.anthropic_llm import AnthropicLlm

    model = Model()
    with ScriptedServer(lambda body: dataclasses.replace(model(body), reasoning="so")) as server:
        server.strict = budget < 0  # signatures of older models, which think `enabled`, are bound to nothing
        address = server.base_url.removesuffix("/v1")
        claude = AnthropicLlm(
            model="claude-opus-4-8", client=anthropic.AsyncAnthropic(base_url=address, api_key="k")
        )
        memory = MemoryBankPlugin()
        thinks = types.GenerateContentConfig(
            max_output_tokens=8_192, thinking_config=types.ThinkingConfig(thinking_budget=budget)
        )
        agent = LlmAgent(
            name="checker", model=claude, tools=[get_order, get_parcel], generate_content_config=thinks
        )
        runner = InMemoryRunner(app=App(name="shop", root_agent=agent, plugins=[memory]))
        text, session = asyncio.run(run(runner, "ash", False))
        assert answer("ash") in text
        assert server.refused == []
        sizes = [len(r.data) for r in server.requests]
        assert sizes[-1] < max(sizes) < sum(len(e.model_dump_json()) for e in session.events)
        assert any(b'"thinking"' in r.data for r in server.requests)
        memory.bridge.close()


def test_calls_without_ids_are_paired_by_name_and_order():
    def call(name):
        return types.Part(function_call=types.FunctionCall(name=name, args={"n": 1}))

    def response(name, text):
        return types.Part(function_response=types.FunctionResponse(name=name, response={"result": text}))

    contents = [
        content("user", types.Part(text="Go.")),
        content("model", call("a"), call("b"), call("a")),
        content(
            "user",
            response("a", "one"),
            response("b", "two"),
            response("a", "three"),
            types.Part(text="And?"),
        ),
    ]
    chat = read_contents(contents, "Be brief.")
    assert [c["id"] for c in chat.messages[2]["tool_calls"]] == ["a-1", "b-1", "a-2"]
    assert [m.get("tool_call_id") for m in chat.messages[3:]] == ["a-1", "b-1", "a-2", None]
    assert chat.write([(p, {}) for p in range(len(chat.messages))]) == contents
    edits = [(p, {WHOLE: "t …"} if m["content"] == "three" else {}) for p, m in enumerate(chat.messages)]
    *same, changed = chat.write(edits)
    assert all(a is b for a, b in zip(same, contents, strict=False))
    assert changed.parts[2].function_response.response == {"result": "t …"}
    assert changed.parts[3] is contents[2].parts[3]
    assert contents[2].parts[2].function_response.response == {"result": "three"}


def test_the_example_of_google_adk(monkeypatch, capsys):
    run_example("test_the_example_of_google_adk", monkeypatch)
    assert ANSWER in capsys.readouterr().out
