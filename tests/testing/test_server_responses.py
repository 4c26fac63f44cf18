"""The Responses API of ScriptedServer, through the real openai client."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter

pytest.importorskip("openai", reason="needs openai")
import openai
from openai.types import responses
from tests.testing.test_server import USER, client_of

from memory_bank.testing import Reply, ScriptedServer, call, calls, say

THINKING = Reply(
    "I look it up.", tool_calls=[("find", {"q": "a"}), ("find", {"q": "b"})], reasoning="Two searches."
)


def outputs_for(response: Any) -> list[dict[str, Any]]:
    return [
        {"type": "function_call_output", "call_id": i.call_id, "output": json.dumps({"found": i.arguments})}
        for i in response.output
        if i.type == "function_call"
    ]


def test_a_response_in_words() -> None:
    with (
        ScriptedServer([Reply("naïve — 数", usage=(7, 3)), say(None)]) as server,
        client_of(server) as client,
    ):
        answer = client.responses.create(model="m", input="q", instructions="Be brief.", metadata={"a": "b"})
        assert answer.output_text == "naïve — 数"
        assert (answer.status, answer.model, answer.instructions) == ("completed", "m", "Be brief.")
        assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (
            7,
            3,
            10,
        )
        assert answer.metadata == {"a": "b"}
        assert client.responses.create(model="m", input=[USER]).output == []
    responses.Response.model_validate(answer.model_dump())
    assert server.requests[0].body == {
        "model": "m", "input": "q", "instructions": "Be brief.", "metadata": {"a": "b"}}  # fmt: skip
    assert json.loads(server.requests[0].data) == server.requests[0].body


def test_reasoning_words_and_parallel_calls_are_items_in_this_order() -> None:
    with ScriptedServer([THINKING]) as server, client_of(server) as client:
        answer = client.responses.create(model="m", input="q")
    kinds = [item.type for item in answer.output]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]
    reasoning, _, first, second = answer.output
    assert reasoning.summary[0].text == "Two searches."
    assert reasoning.encrypted_content
    assert [json.loads(c.arguments) for c in (first, second)] == [{"q": "a"}, {"q": "b"}]
    assert len({first.call_id, second.call_id, first.id, second.id}) == 4
    assert answer.usage.output_tokens_details.reasoning_tokens > 0


@pytest.mark.parametrize("reply", [THINKING, say("a longer answer, in pieces — 数"), call("f", n=1), say("")])
def test_a_stream_has_the_events_of_the_api_and_ends_with_the_same_response(reply: Reply) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(responses.ResponseStreamEvent)
    with ScriptedServer([reply]) as whole_server, client_of(whole_server) as client:
        whole = client.responses.create(model="m", input="q")
    with ScriptedServer([reply, reply]) as server, client_of(server) as client:
        events = list(client.responses.create(model="m", input="q", stream=True))
        with client.responses.stream(model="m", input="q") as stream:
            parsed = stream.get_final_response()
    for event in events:
        adapter.validate_python(event.model_dump(by_alias=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert [e.type for e in events[:2]] == ["response.created", "response.in_progress"]
    assert events[0].response.status == "in_progress"
    assert events[-1].type == "response.completed"
    assert events[-1].response.output == whole.output
    assert parsed.output_text == whole.output_text
    assert [item.type for item in parsed.output] == [item.type for item in whole.output]
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == (reply.content or "")
    for i, item in enumerate(whole.output):
        mine = [e for e in events if getattr(e, "output_index", None) == i]
        assert (mine[0].type, mine[-1].type) == ("response.output_item.added", "response.output_item.done")
        assert mine[-1].item == item
        if item.type == "function_call":
            assert mine[0].item.arguments == ""
            pieces = [e.delta for e in mine if e.type == "response.function_call_arguments.delta"]
            done = next(e for e in mine if e.type == "response.function_call_arguments.done")
            assert "".join(pieces) == done.arguments == item.arguments


def test_custom_tools_are_called_with_text() -> None:
    tools: list[Any] = [{"type": "custom", "name": "patch"}]
    with ScriptedServer([calls(("patch", "*** Begin"))] * 2) as server, client_of(server) as client:
        (item,) = client.responses.create(model="m", input="q", tools=tools).output
        events = list(client.responses.create(model="m", input="q", tools=tools, stream=True))
        assert (item.type, item.name, item.input) == ("custom_tool_call", "patch", "*** Begin")
        assert "response.custom_tool_call_input.done" in [e.type for e in events]
        answer = {"type": "custom_tool_call_output", "call_id": item.call_id, "output": "ok"}
        server.replies = iter(["done"])
        final = client.responses.create(model="m", input=[USER, item.model_dump(exclude_none=True), answer])
        assert final.output_text == "done"


def test_custom_tools_may_stand_in_an_item_and_in_a_namespace() -> None:
    namespace = {"type": "namespace", "name": "functions", "tools": [{"type": "custom", "name": "exec"}]}
    items: Any = [{"type": "additional_tools", "role": "developer", "tools": [namespace]}, USER]
    with ScriptedServer([calls(("exec", "text(1)"), ("wait", {}))]) as server, client_of(server) as client:
        made = client.responses.create(model="m", input=items).output
    assert [item.type for item in made] == ["custom_tool_call", "function_call"]


@pytest.mark.parametrize("held", ["items", "previous_response_id"])
def test_a_loop_of_tools_by_the_whole_list_or_that_the_server_continues(held: str) -> None:
    script = [THINKING, Reply(tool_calls=[("find", {"q": "c"})], reasoning="One more."), "done"]
    items: list[Any] = [USER]
    state: dict[str, Any] = {}
    with ScriptedServer(script) as server, client_of(server) as client:
        answer = client.responses.create(model="m", input=items)
        while outputs := outputs_for(answer):
            items += [item.model_dump(exclude_none=True) for item in answer.output] + outputs
            state = {held: answer.id} if held == "previous_response_id" else state
            answer = client.responses.create(model="m", input=items if held == "items" else outputs, **state)
        assert answer.output_text == "done"
        assert server.refused == []
    assert [i.get("type", "message") for i in items] == [
        "message", "reasoning", "message", "function_call", "function_call", "function_call_output",
        "function_call_output", "reasoning", "function_call", "function_call_output"]  # fmt: skip


def refused(server: ScriptedServer, **body: Any) -> str:
    with client_of(server) as client, pytest.raises(openai.APIStatusError) as caught:
        client.responses.create(model="m", **body)
    assert caught.value.status_code in (400, 404)
    return str(caught.value.message)


CALL = {"type": "function_call", "call_id": "call_x", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_x", "output": "1"}


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ([USER, CALL], "No tool output found for function call call_x."),
        ([USER, OUTPUT], "No tool call found for function call output with call_id call_x."),
        ([USER, OUTPUT, CALL], "No tool call found for function call output with call_id call_x."),
        ([{"type": "reasoning", "id": "rs_1", "summary": []}, USER], "Item 'rs_1' of type 'reasoning' was provided"),
        ([{"role": "tool", "content": "x"}], "Invalid value: 'tool'."),
        ([{"role": "assistant", "content": "x", "tool_calls": []}], "Unknown parameter: 'input[0].tool_calls'."),
        ([{"role": "user", "content": [{"type": "text", "text": "x"}]}], "Invalid value: 'text'."),
        ([{"role": "user", "content": None}], "Invalid type for 'input[0].content'"),
    ],
)  # fmt: skip
def test_broken_items_are_refused_and_take_no_reply(items: list[Any], said: str) -> None:
    with ScriptedServer(["lax"]) as server:
        assert said in refused(server, input=items)
        assert said in server.refused[0]
        server.strict = False
        with client_of(server) as client:
            assert client.responses.create(model="m", input=items).output_text == "lax"


def test_an_item_is_refused_without_the_reasoning_it_was_made_with() -> None:
    with ScriptedServer([THINKING, "done"]) as server, client_of(server) as client:
        answer = client.responses.create(model="m", input="q")
        reasoning, message, *made = [i.model_dump(exclude_none=True) for i in answer.output]
        outputs = outputs_for(answer)
        said = refused(server, input=[USER, *made, *outputs])
        assert (
            f"'{made[0]['id']}' of type 'function_call' was provided without its required 'reasoning'" in said
        )
        references = [{"type": "item_reference", "id": i["id"]} for i in (reasoning, message, *made)]
        assert client.responses.create(model="m", input=[USER, *references, *outputs]).output_text == "done"


def test_an_input_that_is_none_is_refused() -> None:
    with ScriptedServer() as server:
        assert "'input'" in refused(server)
        assert "Invalid type for 'input'" in refused(server, input=7)
