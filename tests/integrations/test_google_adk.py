"""Google ADK with MemoryBankPlugin: 25 steps, parallel calls, streams, two sessions at once."""

from __future__ import annotations

import asyncio
import os

import pytest
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
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types

from memory_bank.integrations.google_adk import MemoryBankPlugin, read_contents
from memory_bank.transcript.turns import WHOLE

CALLS = STEPS + 5 + 1


def content(role, *parts):
    return types.Content(role=role, parts=list(parts))


async def run(runner, shop, stream):
    session = await runner.session_service.create_session(app_name="shop", user_id=shop, session_id="1")
    said = content("user", types.Part(text=task(shop)))
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
