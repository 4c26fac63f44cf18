"""The tests of smolagents' own memory (tests/test_memory.py of 1.26.0), with the names of the typed steps.

Each comment "differs" names where the steps differ; docs/howto/typed-histories.md lists these places.
"""

from __future__ import annotations

import json

import pytest

from memory_bank.errors import HistoryError
from memory_bank.history import (
    ActionStep,
    MemoryManager,
    PlanningStep,
    Step,
    SystemPromptStep,
    TaskStep,
    Timing,
    TokenUsage,
    ToolCall,
)

PNG = b"\x89PNG\r\n\x1a\n" + bytes(32)


@pytest.fixture
def action() -> ActionStep:
    return ActionStep(
        model_input_messages=[{"role": "user", "content": "Hello"}],
        tool_calls=[ToolCall("get_weather", {"location": "Paris"}, id="id")],
        timing=Timing(0.0, 1.0),
        step_number=1,
        error=None,
        model_output_message={"role": "assistant", "content": "Hi"},
        thought="Hi",  # differs: model_output there
        observations=["This is a nice observation"],  # differs: one for each call
        action_output="Output",
        token_usage=TokenUsage(input_tokens=10, output_tokens=20),
    )


def test_initialization_of_a_memory() -> None:
    memory = MemoryManager("This is a system prompt.")
    # differs: the system prompt is the first of the steps
    assert memory.steps[0].system_prompt == "This is a system prompt."  # type: ignore[attr-defined]
    assert memory.steps[1:] == ()


def test_return_all_code_actions() -> None:
    codes = ["print('Hello')", None, "print('World')"]
    memory = MemoryManager("This is a system prompt.")
    for code in codes:
        memory.add(ActionStep(timing=Timing(0.0, 1.0), code_action=code))
    # differs: there is no return_full_code, as each step keeps its code_action
    actions = memory.get_steps_by_type(ActionStep)
    assert "\n\n".join(s.code_action for s in actions if s.code_action) == "print('Hello')\n\nprint('World')"


def test_a_step_without_a_kind() -> None:
    # differs: a Step by itself is refused when it is asked for messages or its dict, there its dict is {}
    with pytest.raises((HistoryError, NotImplementedError)):
        Step().to_messages()


def test_action_step_dict(action: ActionStep) -> None:
    given = action.dict()
    assert given["model_input_messages"] == [{"role": "user", "content": "Hello"}]
    assert given["tool_calls"] == [{"name": "get_weather", "arguments": {"location": "Paris"}, "id": "id"}]
    assert {"start": 0.0, "end": 1.0}.items() <= given["timing"].items()
    assert (given["token_usage"]["input_tokens"], given["token_usage"]["output_tokens"]) == (10, 20)
    assert given["step_number"] == 1
    assert given.get("error") is None
    assert given["model_output_message"] == {"role": "assistant", "content": "Hi"}
    assert given["thought"] == "Hi"
    assert given["observations"][0]["content"] == "This is a nice observation"
    assert given["action_output"] == "Output"
    assert action.timing is not None
    assert (action.timing.seconds, action.token_usage and action.token_usage.total) == (1.0, 30)


def test_action_step_to_messages(action: ActionStep) -> None:
    # differs: three plain messages instead of four of parts, as an action has no observations_images
    thought, calling, seen = action.to_messages(wire="text")
    assert thought == {"role": "assistant", "content": "Hi"}
    assert calling["role"] == "assistant"  # differs: "tool-call" there
    assert "Calling tools:" in calling["content"]
    assert seen["role"] == "user"  # differs: "tool-response" there
    assert "Observation:\nThis is a nice observation" in seen["content"]


def test_action_step_to_messages_no_tool_calls_with_observations() -> None:
    step = ActionStep(observations=["This is an observation."], token_usage=TokenUsage(10, 20))
    [seen] = step.to_messages(wire="text")
    assert seen["role"] == "user"
    assert "Observation:\nThis is an observation." in seen["content"]


def test_planning_step_to_messages() -> None:
    step = PlanningStep(
        model_input_messages=[{"role": "user", "content": "Hello"}],
        model_output_message={"role": "assistant", "content": "Plan"},
        plan="This is a plan.",
        timing=Timing(0.0, 1.0),
    )
    plan, proceed = step.to_messages(summary_mode=False)
    assert (plan["role"], proceed["role"]) == ("assistant", "user")
    assert "This is a plan." in plan["content"]


def test_task_step_to_messages() -> None:
    [message] = TaskStep("This is a task.", images=[PNG]).to_messages(summary_mode=False)
    text, image = message["content"]
    assert (message["role"], text["type"]) == ("user", "text")
    assert image["type"] == "image_url"  # differs: "image" there, with an object of PIL


def test_system_prompt_step_to_messages() -> None:
    messages = SystemPromptStep("This is a system prompt.").to_messages(summary_mode=False)
    assert messages == [{"role": "system", "content": "This is a system prompt."}]  # differs: text, no parts


class Completion:
    """What a client's library returned, which JSON does not know."""


def test_memory_step_json_serialization() -> None:
    message = {"role": "assistant", "content": "Test response", "raw": Completion()}
    steps = [
        ActionStep(model_output_message=message, model_input_messages=[message]),
        PlanningStep("Test plan", model_output_message=message, model_input_messages=[message]),
    ]
    for step in steps:
        told = json.dumps(step.dict())
        assert "raw" in told
        assert "Completion" in told
