"""Steps of smolagents as typed steps, from dicts of its log and from look-alikes; the real ones: tests/integrations."""

import datetime as dt
import logging
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest

from memory_bank.errors import HistoryError
from memory_bank.history import (
    ActionStep,
    FinalAnswerStep,
    MemoryManager,
    PlanningStep,
    TaskStep,
    TokenUsage,
    ToolCall,
    typed_steps,
)

SAID: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "get_order", "arguments": {"id": "ORD-7"}}}
    ],
    "token_usage": {"input_tokens": 30, "output_tokens": 4, "total_tokens": 34},
}
LOG: list[dict[str, Any]] = [
    {"task": "Which orders are late?", "task_images": None},
    {
        "model_input_messages": [{"role": "user", "content": [{"type": "text", "text": "plan"}]}],
        "model_output_message": {"role": "assistant", "content": "Look them up."},
        "plan": "Look them up.",
        "timing": {"start_time": 1.0, "end_time": 2.0, "duration": 1.0},
        "token_usage": None,
    },
    {
        "step_number": 1,
        "timing": {"start_time": 2.0, "end_time": 3.5, "duration": 1.5},
        "model_input_messages": None,
        "tool_calls": SAID["tool_calls"],
        "error": {"type": "AgentToolExecutionError", "message": "late"},
        "model_output_message": SAID,
        "model_output": "I look.",
        "code_action": None,
        "observations": "ORD-7 is late",
        "observations_images": None,
        "action_output": {"orders": ["ORD-7"]},
        "token_usage": {"input_tokens": 30, "output_tokens": 4, "total_tokens": 34},
        "is_final_answer": True,
    },
    {"output": "ORD-7"},
]


def test_a_log_gives_all_its_fields_back(tmp_path):
    steps = typed_steps(LOG)
    assert [type(s) for s in steps] == [TaskStep, PlanningStep, ActionStep, FinalAnswerStep]
    history = MemoryManager(step_callbacks=[])
    history.extend(steps)
    history.save(tmp_path / "run.jsonl")
    _, plan, action, answer = MemoryManager.load(tmp_path / "run.jsonl").steps
    assert plan.model_output_message == {"role": "assistant", "content": "Look them up."}
    assert plan.model_input_messages[0]["content"][0]["text"] == "plan"
    assert action.model_output_message == SAID and action.action_output == {"orders": ["ORD-7"]}
    assert (action.error, action.error_type) == ("late", "AgentToolExecutionError")
    assert (action.token_usage.input_tokens, action.token_usage.output_tokens) == (30, 4)
    assert (action.timing.start, action.timing.end, action.timestamp) == (2.0, 3.5, 3.5)
    assert (action.thought, action.is_final, answer.output) == ("I look.", True, "ORD-7")
    call, result = action.to_messages()
    assert call["tool_calls"][0]["id"] == "c1" and result["content"].startswith("ORD-7 is late")


class Said(Enum):
    UNCERTAIN = 1


@dataclass(frozen=True)
class Signal:
    """As tinyAgent's signals: an object whose text is what it says."""

    signal_type: Said
    message: str

    def __str__(self):
        return f"[{self.signal_type.name}] {self.message}"


def test_code_without_a_call_and_signals_are_kept_and_never_sent(tmp_path):
    [step] = typed_steps([{**LOG[2], "tool_calls": None, "error": None, "code_action": "print('Hello')"}])
    assert step.code_action == "print('Hello')"
    called = [{"id": "c1", "function": {"name": "python_interpreter", "arguments": "print(1)"}}]
    [same] = typed_steps([{**LOG[2], "tool_calls": called, "code_action": "print(1)"}])
    assert same.code_action is None and same.tool_calls[0].arguments == "print(1)"
    told = ActionStep(
        "I look.", code_action="x = 1", signals=[Signal(Said.UNCERTAIN, "a list?"), "[COMMIT] yes"]
    )
    assert told.signals == ("[UNCERTAIN] a list?", "[COMMIT] yes")
    assert told.to_messages() == [{"role": "assistant", "content": "I look."}]
    history = MemoryManager()
    history.extend([step, told])
    history.save(tmp_path / "run.jsonl")
    assert MemoryManager.load(tmp_path / "run.jsonl").steps == history.steps
    page = history.visualize()
    assert all(text in page for text in ("Hello", "[UNCERTAIN] a list?", "x = 1"))
    assert len(told.truncate(4).code_action) <= 4


def test_the_outputs_of_several_calls_are_one_and_none_is_missing():
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": {"n": i}}}
        for i, name in enumerate(["get_order", "get_parcel"])
    ]
    [step] = typed_steps([{**LOG[2], "error": None, "tool_calls": calls, "observations": "one\ntwo"}])
    made, result = step.to_messages()
    assert made["tool_calls"][0]["function"]["name"] == "get_order+get_parcel"
    assert result["content"] == "one\ntwo"
    assert "[no result]" not in str(step.to_messages(wire="text"))


def test_runs_that_count_from_one_again_are_numbered_on():
    assert [s.step_number for s in typed_steps([LOG[0], LOG[2], LOG[2], LOG[0], LOG[2]])] == [0, 1, 2, 2, 3]


@dataclass
class Usage:
    """As smolagents' TokenUsage."""

    input_tokens: int
    output_tokens: int


def test_a_step_takes_the_token_usage_of_another_library():
    usage = ActionStep(token_usage=Usage(30, 4)).token_usage
    assert type(usage) is TokenUsage and usage.total == 34


class Opaque:
    def __repr__(self):
        return "secret repr"


def test_an_object_that_is_not_json_is_named_and_not_kept(caplog):
    with caplog.at_level(logging.WARNING):
        [step, answer] = typed_steps([{**LOG[2], "action_output": Opaque()}, {"output": [1, Opaque()]}])
    assert step.action_output["_not_kept"].endswith("test_foreign.Opaque")
    assert answer.output[0] == 1 and "secret repr" not in str(answer.dict()) + caplog.text
    assert "is not kept" in caplog.text
    for wrong in (Opaque(), {"role": "user"}, 7):
        with pytest.raises(HistoryError, match="is no step of smolagents"):
            typed_steps([wrong])
    with pytest.raises(HistoryError, match="add a step"):
        MemoryManager().add(Opaque())
    own = ActionStep(
        tool_calls=[ToolCall("f", {"a": Opaque(), "day": dt.date(2026, 3, 1)})], observations=[[{1}]]
    )
    assert own.tool_calls[0].arguments["a"]["_not_kept"].endswith("test_foreign.Opaque")
    assert own.tool_calls[0].arguments["day"] == "2026-03-01" and own.observations[0].content == [[1]]


@dataclass
class ChatMessage:
    role: str
    content: Any = None
    tool_calls: Any = None
    raw: Any = None
    token_usage: Any = None


def text(role, said):
    return ChatMessage(role, [{"type": "text", "text": said}], raw=Opaque())


def test_chat_messages_of_smolagents_are_read_in_the_text_form():
    calling = (
        "Calling tools:\n[{'id': 'c1', 'type': 'function', 'function': {'name': 'f', 'arguments': {'n': 1}}}]"
    )
    chat = [
        text("system", "be careful"),
        text("user", "New task:\nfind"),
        text("assistant", "I look."),
        text("tool-call", calling),
        text("tool-response", "Observation:\nORD-7"),
        text("assistant", "It is ORD-7."),
    ]
    history = MemoryManager.from_messages(chat, wire="text")
    assert [s.type for s in history] == ["system_prompt", "task", "action", "final_answer"]
    action = history.steps[2]
    assert (action.thought, action.tool_calls[0].name) == ("I look.", "f")
    assert action.observations[0].text == "ORD-7"
    assert "Opaque" not in str(history.full_steps()) and "ChatMessage" not in str(history.full_steps())
