"""smolagents with memory: 25 steps, parallel calls, streams, two sessions at once; steps both ways."""

from __future__ import annotations

import copy
import dataclasses
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from tests.integrations.pages import ANSWER, run_example
from tests.integrations.shop import SHOPS, STEPS, Model, answer, check, get_order, get_parcel, task

from memory_bank.errors import HistoryError, MessagesError
from memory_bank.testing import Reply, ScriptedServer

pytest.importorskip("smolagents", reason="needs smolagents[openai]")

from PIL import Image
from smolagents import CodeAgent, LogLevel, OpenAIModel, ToolCallingAgent, tool
from smolagents import Model as SilentModel
from smolagents.memory import ActionStep, FinalAnswerStep, PlanningStep, SystemPromptStep, TaskStep, ToolCall
from smolagents.models import ChatMessage
from smolagents.monitoring import Timing, TokenUsage
from smolagents.utils import AgentToolExecutionError

from memory_bank import MemoryBankState
from memory_bank import history as typed
from memory_bank.history import MemoryManager, keep_last_n_steps, typed_steps
from memory_bank.integrations.smolagents import WIRE, HistoryMemory, add_memory, native_step, use_history


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
    _, call, result = WIRE.read(step).values()
    assert (call.name, result.call_id, result.value) == ("get_order+get_parcel", "a", "one\ntwo")
    changed = WIRE.write(step, {2: "one …"})
    assert (changed.observations, step.observations, changed.tool_calls) == (
        "one …",
        "one\ntwo",
        step.tool_calls,
    )
    assert WIRE.write(step, {0: None, 1: None, 2: None}) is None
    with pytest.raises(MessagesError, match="FinalAnswerStep"):
        WIRE.read(FinalAnswerStep("done"))


def test_the_example_of_smolagents(monkeypatch, capsys):
    run_example("test_the_example_of_smolagents", monkeypatch, final="final_answer")
    assert ANSWER in capsys.readouterr().out


def natives():
    """Steps of smolagents with every field set."""
    said = ChatMessage("assistant", "I look.", token_usage=TokenUsage(30, 4), raw=object())
    parts = ChatMessage("assistant", [{"type": "text", "text": "both"}])
    seen = [ChatMessage("user", [{"type": "text", "text": "go on"}])]
    picture = Image.new("RGB", (3, 2), "red")
    code = ToolCall("python_interpreter", "print(1)", "c0")
    pair = [ToolCall("get_order", {"number": 1}, "a"), ToolCall("get_parcel", {"number": 1}, "b")]
    times = Timing(1.0, 2.5)
    failed = AgentToolExecutionError("no such order", SimpleNamespace(log_error=print))
    return [
        TaskStep("Find them.", [picture]),
        PlanningStep(seen, said, "Look.", times, TokenUsage(5, 6)),
        ActionStep(
            1,
            times,
            seen,
            [code],
            None,
            said,
            "I run.",
            "print(1)",
            "1",
            [picture],
            [1, {"a": 2}],
            TokenUsage(1, 2),
        ),
        ActionStep(2, times, seen, pair, failed, parts, [{"type": "text", "text": "both"}], None, "one\ntwo"),
        ActionStep(3, times, model_output="done", action_output="ORD-7", is_final_answer=True),
        FinalAnswerStep("ORD-7"),
    ]


def fields_of(step):
    """The fields of a step in a form that can be compared."""
    found = {f.name: getattr(step, f.name) for f in dataclasses.fields(step)}
    for name in ("task_images", "observations_images"):
        if found.get(name):
            found[name] = [(i.size, i.convert("RGB").tobytes()) for i in found[name]]
    for name in ("model_input_messages", "model_output_message"):
        given = found.get(name) or []
        messages = given if isinstance(given, list) else [given]
        found[name] = [dataclasses.replace(m, raw=None) for m in messages]
    error = found.get("error")
    return {**found, "error": error and (type(error), error.message)}


def test_steps_go_both_ways_without_loss(tmp_path):
    history = MemoryManager("Be careful.")
    history.extend(typed_steps(natives()))
    history.save(tmp_path / "run.jsonl")
    back = [native_step(s) for s in MemoryManager.load(tmp_path / "run.jsonl").steps[1:]]
    for old, new in zip(natives(), back, strict=True):
        assert type(new) is type(old)
        assert fields_of(new) == fields_of(old)
    usage = typed.ActionStep(token_usage=TokenUsage(3, 4)).token_usage
    assert (usage.input_tokens, usage.output_tokens) == (3, 4)
    logged = typed_steps([s.dict() for s in natives()[2:5]])
    assert [s.action_output for s in logged] == [[1, {"a": 2}], None, "ORD-7"]


def remembering(n=4, pad=None, **options):
    """An agent whose memory is a typed history of a task and n actions, and that history."""
    agent = ToolCallingAgent([], SilentModel(), verbosity_level=LogLevel.OFF)
    history = MemoryManager(**options)
    use_history(agent, history, pad)
    agent.memory.steps.append(TaskStep("Find them."))
    for i in range(n):
        agent.memory.steps.append(observed(i))
    return agent, history


def observed(i):
    return ActionStep(i + 1, Timing(0.0, 1.0), observations=f"<out {i}>", model_output="m")


def sent(agent):
    """The texts of the next model call."""
    return [part["text"] for m in agent.write_memory_to_messages() for part in m.content]


def replace_all(agent):
    agent.memory.steps = [TaskStep("Another task."), observed(7)]


def change_in_place(agent):
    agent.memory.steps[1].observations = "CHANGED"


def drop_a_call_in_place(agent):
    agent.memory.steps[1].tool_calls = [ToolCall("f", {"a": [1]}, "c")]
    agent.memory.steps[1].tool_calls[0].arguments["a"].append(2)


def held(agent):
    steps = agent.memory.steps
    del steps[1]
    steps.append(observed(8))
    steps.pop()


def new_prompt(agent):
    agent.memory.system_prompt.system_prompt = "A new prompt."


EDITS = {
    "pop": lambda a: a.memory.steps.pop(),
    "pop first": lambda a: a.memory.steps.pop(0),
    "del": lambda a: a.memory.steps.__delitem__(1),
    "del slice": lambda a: a.memory.steps.__delitem__(slice(1, 3)),
    "insert": lambda a: a.memory.steps.insert(1, observed(9)),
    "set": lambda a: a.memory.steps.__setitem__(1, observed(9)),
    "set slice": lambda a: a.memory.steps.__setitem__(slice(1, 4), [TaskStep("Go on."), observed(9)]),
    "clear": lambda a: a.memory.steps.clear(),
    "remove": lambda a: a.memory.steps.remove(a.memory.steps[2]),
    "extend": lambda a: a.memory.steps.extend([TaskStep("Go on."), observed(9)]),
    "reverse": lambda a: a.memory.steps.reverse(),
    "sort": lambda a: a.memory.steps.sort(key=lambda s: -getattr(s, "step_number", 0)),
    "twice": lambda a: a.memory.steps.append(a.memory.steps[1]),
    "times": lambda a: a.memory.steps.__imul__(2),
    "slice": lambda a: setattr(a.memory, "steps", a.memory.steps[-2:]),
    "sum": lambda a: setattr(a.memory, "steps", [*a.memory.steps, TaskStep("Go on.")]),
    "all": replace_all,
    "held": held,
    "in place": change_in_place,
    "call in place": drop_a_call_in_place,
    "prompt in place": new_prompt,
    "prompt": lambda a: setattr(a.memory, "system_prompt", SystemPromptStep("A new prompt.")),
}


@pytest.mark.parametrize("reads_history_first", [False, True])
@pytest.mark.parametrize("name", EDITS)
def test_memory_can_be_edited_as_that_of_any_agent(name, reads_history_first, tmp_path):
    plain = ToolCallingAgent([], SilentModel(), verbosity_level=LogLevel.OFF)
    plain.memory.steps += [TaskStep("Find them."), *map(observed, range(4))]
    agent, history = remembering()
    assert sent(agent) == sent(plain)
    for each in (plain, agent):
        EDITS[name](each)
    if reads_history_first:
        history.save(tmp_path / "run.jsonl")
        saved = MemoryManager.load(tmp_path / "run.jsonl").steps
        assert [
            t for s in map(native_step, saved) for m in s.to_messages() for t in [m.content[0]["text"]]
        ] == sent(plain)
    assert sent(agent) == sent(plain)
    assert len(agent.memory.steps) == len(plain.memory.steps) == len(history) - 1
    numbers = [s.step_number for s in history.get_steps_by_type(typed.ActionStep)]
    assert numbers == sorted(set(numbers))
    history.prune(keep_last_n_steps(1))
    agent.memory.steps.append(observed(5))
    assert sent(agent)[-1].endswith("<out 5>") and len(agent.memory.steps) <= 4


def test_edits_keep_what_is_not_edited_and_refuse_what_is_no_step():
    heard = []
    agent, history = remembering(step_callbacks=[heard.append])
    before = history.steps
    agent.memory.steps[1].observations_images = None  # no change
    assert history.steps == before and all(a is b for a, b in zip(history.steps, before, strict=True))
    del agent.memory.steps[1]
    assert history.steps == (*before[:2], *before[3:]) and len(heard) == 4
    agent.memory.steps.insert(0, TaskStep("First of all."))
    agent.memory.steps += [observed(9)]
    assert [s.step_number for s in history] == [0, 0, 0, 2, 3, 4, 5] and len(heard) == 5
    for wrong in ("text", {"role": "user"}, None):
        with pytest.raises(HistoryError, match="is no step of smolagents"):
            agent.memory.steps.append(wrong)
        agent.memory.steps.insert(1, wrong)
        with pytest.raises(HistoryError, match="is no step of smolagents"):
            sent(agent)
        assert len(agent.memory.steps) == 6 == len(history) - 1
    assert type(copy.deepcopy(agent.memory.steps)) is list
    agent.memory.steps[1].observations = None
    history.prune(keep_last_n_steps(1))
    assert [type(s) for s in agent.memory.steps] == [TaskStep, TaskStep, ActionStep]


def test_a_callback_may_edit_and_a_pruning_works_on_what_was_edited():
    def callback(step, agent):
        for earlier in agent.memory.steps[:-1]:
            if isinstance(earlier, ActionStep):
                earlier.observations = "gone"
        if step.step_number == 2:
            agent.memory.steps.append(TaskStep("A note of the callback."))

    agent, history = remembering(step_callbacks=[callback])
    assert [t for t in sent(agent) if "<out" in t] == ["Observation:\n<out 3>"]
    assert sum("A note of the callback." in t for t in sent(agent)) == 1
    agent, history = remembering()
    agent.memory.steps[-1].observations = "NEW " * 100
    history.prune(typed.prune_old_observations(keep_last_n=1, max_length=10))
    agent.memory.steps.append(observed(6))
    history.prune(typed.prune_old_observations(keep_last_n=1, max_length=40))
    assert "NEW" in sent(agent)[-3] and len(sent(agent)[-3]) < 60 and "<out 3>" not in str(sent(agent))


def test_the_scratchpad_is_shown_once_whatever_is_done_to_the_steps():
    pad = typed.AgentMemory()
    pad.observe("refunds need a reason code")
    agent, history = remembering(pad=pad)
    agent.memory.steps = agent.memory.steps[-3:]
    agent.memory.steps.reverse()
    agent.memory.steps.append(observed(9))
    assert sum("a reason code" in t for t in sent(agent)) == 1
    assert history.get_steps_by_type(typed.ScratchpadStep) == [] and len(history) == 4


def test_code_is_kept_without_a_call():
    agent, history = remembering(0)
    codes = ["print('Hello')", None, "print('World')"]
    agent.memory.steps = [ActionStep(n, Timing(0.0, 1.0), code_action=c) for n, c in enumerate(codes, 1)]
    history.steps = tuple(typed.Step.from_dict(s.dict()) for s in history.steps)
    assert agent.memory.return_full_code() == "print('Hello')\n\nprint('World')"
    memory = HistoryMemory(MemoryManager("This is a system prompt."))
    assert (memory.system_prompt.system_prompt, memory.steps) == ("This is a system prompt.", [])


@pytest.mark.parametrize("code", [False, True])
def test_a_typed_history_and_a_scratchpad_are_the_memory_of_an_agent(code):
    heard = []
    sent = []

    def model(body):
        sent.append(str(body["messages"]))
        n = len(sent)
        if n > 8:
            return (
                Reply(content="<code>\nfinal_answer('done')\n</code>")
                if code
                else Reply(tool_calls=(("final_answer", {"answer": "done"}),))
            )
        if code:
            return Reply(
                content=f"Thought: {n}.\n<code>\nmemory.store('n', {n})\nprint(get_order('ash', {n}))\n</code>"
            )
        return Reply(tool_calls=(("get_order", {"shop": "ash", "number": n}),))

    pad = typed.AgentMemory()
    pad.observe("refunds need a reason code")
    history = MemoryManager(
        None,
        keep_last_n_steps(3),
        4,
        step_callbacks=[lambda step, agent: heard.append((step.step_number, agent))],
    )
    with ScriptedServer(model) as server:
        kind = CodeAgent if code else ToolCallingAgent
        agent = kind(
            tools=[tool(get_order)], model=OpenAIModel("scripted", api_base=server.base_url, api_key="k"),
            max_steps=20, verbosity_level=LogLevel.OFF,
        )  # fmt: skip
        memory = use_history(agent, history, pad)
        assert agent.run("Check the orders.") == "done"
        assert server.refused == []
    assert agent.memory is memory and heard == [(n, agent) for n in range(1, 10)]
    assert "refunds need a reason code" in sent[-1]
    assert "<ash/8>" in sent[-1] and "<ash/1>" not in sent[-1] and "<ash/1>" in sent[1]
    assert history.steps[1].task == "Check the orders." and history.action_count <= 5
    assert [type(s).__name__ for s in history.steps[:2]] == ["SystemPromptStep", "TaskStep"]
    assert len(memory.get_full_steps()) == len(memory.steps)
    if code:
        assert pad.recall("n") == 8 and "get_order" in memory.return_full_code()
    assert agent.memory.system_prompt.system_prompt == history.steps[0].system_prompt
    agent.memory.reset()
    assert history.action_count == 0


class Listener(SilentModel):
    """Keeps what it is sent, and answers at once."""

    def generate(self, messages, **_):
        self.sent = str([m.content for m in messages])
        return ChatMessage(role="assistant", content="Thought: done.\n<code>\nfinal_answer('ok')\n</code>")


@pytest.mark.parametrize(
    "history", [None, typed.MemoryManager(), typed.HierarchicalMemory(MemoryBankState())]
)
def test_each_run_of_an_agent_begins_without_the_steps_of_the_one_before(history):
    """As without a typed history; ``reset=False`` goes on."""
    agent = CodeAgent(tools=[], model=Listener(), verbosity_level=LogLevel.OFF)
    memory = use_history(agent, history)
    held = memory.steps
    for customer in ("Ann", "Bob", "Cid"):
        agent.run(f"A refund for {customer}")
        assert [c for c in ("Ann", "Bob", "Cid") if c in agent.model.sent] == [customer]
        assert [s.task for s in memory.history.steps if isinstance(s, typed.TaskStep)] == [
            f"A refund for {customer}"
        ]
        assert [s.task for s in held if isinstance(s, TaskStep)] == [f"A refund for {customer}"]
    agent.run("And another", reset=False)
    assert "A refund for Cid" in agent.model.sent and "And another" in agent.model.sent
    agent.prompt_templates["system_prompt"] = "Another prompt"
    agent.run("A refund for Dan")
    assert "Cid" not in agent.model.sent and "Another prompt" in agent.model.sent
    memory.history.reset()
    held.append(TaskStep("Alone"))
    assert [s.task for s in memory.history.steps if isinstance(s, typed.TaskStep)] == ["Alone"]


def test_two_customers_with_agents_of_their_own():
    agents = [CodeAgent(tools=[], model=Listener(), verbosity_level=LogLevel.OFF) for _ in range(2)]
    for agent in agents:
        use_history(agent)
    for round_ in range(2):
        for agent, customer in zip(agents, ("Ann", "Bob"), strict=True):
            agent.run(f"Question {round_} of {customer}")
            assert [c for c in ("Ann", "Bob") if c in agent.model.sent] == [customer]
            assert "Question 0" not in agent.model.sent or round_ == 0
