"""smolagents with memory: 25 steps, parallel calls, streams, two sessions at once; steps both ways."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.integrations.pages import ANSWER, run_example
from tests.integrations.shop import SHOPS, STEPS, Model, answer, check, get_order, get_parcel, task

from memory_bank.errors import MessagesError
from memory_bank.testing import Reply, ScriptedServer

pytest.importorskip("smolagents", reason="needs smolagents[openai]")

from smolagents import CodeAgent, LogLevel, OpenAIModel, ToolCallingAgent, tool
from smolagents.memory import ActionStep, FinalAnswerStep, ToolCall
from smolagents.monitoring import Timing

from memory_bank.integrations.smolagents import WIRE, add_memory


class SmolModel(Model):
    """The model of the task, in the ways of smolagents: a final answer is a tool or code."""

    def __init__(self, code: bool) -> None:
        super().__init__(pattern="order")  # two outputs are one text here
        self._code = code

    def __call__(self, body):
        reply = super().__call__(body)
        if reply.tool_calls and self._code:
            lines = [
                f"print({name}({', '.join(f'{k}={v!r}' for k, v in given.items())}))"
                for name, given in reply.tool_calls
            ]
            return Reply(content="Thought: on.\n<code>\n" + "\n".join(lines) + "\n</code>")
        if reply.tool_calls:
            return reply
        if self._code:
            return Reply(content=f"Thought: done.\n<code>\nfinal_answer({reply.content!r})\n</code>")
        return Reply(tool_calls=(("final_answer", {"answer": reply.content}),))


def run(server, shop, code, stream):
    model = OpenAIModel("scripted", api_base=server.base_url, api_key="k")
    kind = CodeAgent if code else ToolCallingAgent
    agent = kind(
        tools=[tool(get_order), tool(get_parcel)], model=model, max_steps=60, verbosity_level=LogLevel.OFF,
        stream_outputs=stream,
    )  # fmt: skip
    bridge = add_memory(agent)
    result = agent.run(task(shop))
    actions = [s for s in agent.memory.steps if isinstance(s, ActionStep)]
    assert len(actions) == STEPS + 2
    assert [s.observations for s in actions if s.error] == []
    state = bridge.state(None, agent.memory.steps[:-1])
    assert state.fact_store.size() == STEPS + 1  # a step is one record
    bridge.close()
    return result


@pytest.mark.parametrize(("code", "stream"), [(False, False), (False, True), (True, False)])
def test_two_long_tasks_at_once(code, stream):
    model = SmolModel(code)
    with ScriptedServer(model) as server, ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda shop: run(server, shop, code, stream), SHOPS))
        assert results == [answer(shop, 0) for shop in SHOPS]
        check(server, model, tools=not code)


def test_parallel_outputs_are_one_record():
    step = ActionStep(
        1,
        Timing(0.0),
        tool_calls=[ToolCall("get_order", {"number": 1}, "a"), ToolCall("get_parcel", {"number": 1}, "b")],
        observations="one\ntwo",
    )
    made, result = WIRE.read(step)
    [call] = made["tool_calls"]
    assert call["function"]["name"] == "get_order+get_parcel"
    assert result == {"role": "tool", "tool_call_id": "a", "content": "one\ntwo"}
    changed = WIRE.rewrite(step, [made, {**result, "content": "one …"}])
    assert (changed.observations, step.observations, changed.tool_calls) == (
        "one …",
        "one\ntwo",
        step.tool_calls,
    )
    assert WIRE.rewrite(step, [None, None]) is None
    with pytest.raises(MessagesError, match="FinalAnswerStep"):
        WIRE.read(FinalAnswerStep("done"))


def test_the_example_of_smolagents(monkeypatch, capsys):
    run_example("test_the_example_of_smolagents", monkeypatch, final="final_answer")
    assert ANSWER in capsys.readouterr().out
