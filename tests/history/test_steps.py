"""Steps: immutable values, two wire forms, conversations and files back to the letter."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chats import JSON, TEXT, any_chats, good_chats
from tests.examples import examples

from memory_bank.errors import HistoryError, ImageError
from memory_bank.history import (
    ActionStep,
    FinalAnswerStep,
    Observation,
    PlanningStep,
    ScratchpadStep,
    Step,
    SystemPromptStep,
    TaskStep,
    Timing,
    TokenUsage,
    ToolCall,
    steps_from_messages,
)
from memory_bank.transcript.pairing import pairing_errors

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 40
CALLS = (ToolCall("get_order", {"id": 7}, "a"), ToolCall("find", '{"q": "x"}'))


@st.composite
def actions(draw: st.DrawFn) -> ActionStep:
    n = draw(st.integers(0, 3))
    return ActionStep(
        draw(st.none() | TEXT),
        tuple(ToolCall("find", draw(TEXT | JSON), draw(st.none() | st.just(f"c{i}"))) for i in range(n)),
        tuple(draw(st.lists(TEXT.map(Observation), max_size=n))),
        draw(st.none() | TEXT),
        draw(st.none() | st.just(Timing(1.0, 2.5))),
        draw(st.none() | st.just(TokenUsage(10, 2))),
        draw(st.booleans()),
    )


STEPS = st.lists(
    actions()
    | TEXT.map(PlanningStep)
    | TEXT.map(ScratchpadStep)
    | (TEXT | JSON).map(FinalAnswerStep)
    | TEXT.map(lambda t: TaskStep(t, (PNG,))),
    max_size=8,
)


def text_pairs(messages):
    """(calls announced, observations directly after them) for each text-form turn."""
    out = []
    for m in messages:
        said = m["content"] if isinstance(m["content"], str) else m["content"][0]["text"]
        if m["role"] == "assistant" and said.startswith("Calling tools:\n"):
            out.append([len(json.loads(said.split("\n", 1)[1])), 0])
        elif m["role"] == "user" and said.startswith(("Observation:\n", "Error:\n")) and out:
            out[-1][1] += 1
        elif out and out[-1][1] < out[-1][0]:
            out[-1][1] = -1_000
    return out


def test_steps_cannot_be_changed_and_hold_copies():
    arguments = {"ids": [1, 2]}
    step = ActionStep("t", [ToolCall("f", arguments)], ["seen"])
    arguments["ids"].append(3)
    assert step.tool_calls[0].arguments == {"ids": [1, 2]}
    with pytest.raises(dataclasses.FrozenInstanceError):
        step.thought = "other"
    step.to_messages(wire="tools")[1]["content"] = "other"
    assert step.to_messages()[1]["content"] == "seen"
    assert step == dataclasses.replace(step)


def test_the_tool_form_answers_every_call():
    step = ActionStep("think", CALLS, [Observation("seven", "a")], "timed out", step_number=4)
    messages = step.to_messages()
    assert pairing_errors(messages) == []
    assert [m.get("content") for m in messages] == ["think", "seven", "Error:\ntimed out"]
    assert messages[0]["tool_calls"][1]["id"] == "call_4_2"


def test_the_text_form_says_calls_and_observations():
    messages = ActionStep("think", CALLS, ["seven", "found"], "late").to_messages(wire="text")
    assert [m["role"] for m in messages] == ["assistant", "assistant", "user", "user"]
    assert messages[1]["content"].startswith("Calling tools:\n[{")
    answers = ["Observation:\nseven", "Observation:\nfound\n\nError:\nlate"]
    assert [m["content"] for m in messages[2:]] == answers


def test_in_summary_mode_system_prompt_plans_and_thoughts_fall_away():
    assert SystemPromptStep("be careful").to_messages(summary_mode=True) == []
    assert PlanningStep("first this").to_messages(summary_mode=True) == []
    assert PlanningStep("first this").to_messages()[1]["role"] == "user"
    assert ActionStep("a thought").to_messages(summary_mode=True) == []
    assert ActionStep("t", CALLS).to_messages(True)[0]["content"] is None
    assert len(TaskStep("do").to_messages(True)) == 1


class Drawn:
    """An image as PIL's are: it writes itself."""

    def save(self, file, format):
        file.write(PNG)


def test_a_task_carries_images(tmp_path: Path):
    (tmp_path / "a.png").write_bytes(PNG)
    step = TaskStep("what is this?", [PNG, tmp_path / "a.png", "https://example.org/a.png"])
    parts = step.to_messages()[0]["content"]
    assert [p["type"] for p in parts] == ["text", "image_url", "image_url", "image_url"]
    assert TaskStep("x", [Drawn()]).images == (parts[1]["image_url"]["url"],)
    assert parts[1] == parts[2] and parts[1]["image_url"]["url"].startswith("data:image/png;base64,")


@pytest.mark.parametrize(
    "image",
    [
        b"hello",
        "hello",
        "data:image/png;base64,AAAA",
        "data:text/html,x",
        7,
        Path("/no/such.png"),
        "https://",
    ],
)
def test_an_image_that_is_none_is_refused(image):
    with pytest.raises(ImageError, match="image 1 of the task"):
        TaskStep("what is this?", [image])


@pytest.mark.parametrize(
    "bad",
    [
        lambda: TaskStep(7),
        lambda: TaskStep("x", step_number=-1),
        lambda: TaskStep("x", timestamp=float("nan")),
        lambda: ActionStep(tool_calls=[ToolCall("a", {}, "x"), ToolCall("b", {}, "x")]),
        lambda: ActionStep(tool_calls=[{"nonsense": 1}]),
        lambda: ActionStep(is_final="yes"),
        lambda: Timing(2, 1),
        lambda: TokenUsage(-1),
        lambda: ScratchpadStep("x", "odd"),
        lambda: TaskStep("x").truncate(0),
        lambda: TaskStep("x").to_messages(wire="smoke"),
        lambda: Step.from_dict({"type": "dream"}),
        lambda: Step.from_dict({"type": "task", "task": "x", "odd": 1}),
        lambda: Step.from_dict(7),
        lambda: TaskStep.from_dict({"type": "planning", "plan": "x"}),
    ],
)
def test_what_makes_no_step_is_one_clear_error(bad):
    with pytest.raises(HistoryError, match=r"^[^\n]+: [^\n]+\.$"):
        bad()


@given(STEPS)
def test_dicts_are_the_steps_again(steps):
    for step in steps:
        text = json.dumps(step.dict())
        assert json.dumps(Step.from_dict(step.dict()).dict()) == text
        assert type(step).from_dict(json.loads(text)).dict().keys() == step.dict().keys()


@given(STEPS, st.integers(1, 60))
def test_truncated_steps_are_short_and_their_pairs_whole(steps, n):
    for step in steps:
        short = step.truncate(n)
        assert pairing_errors(short.to_messages()) == []
        assert all(calls == seen for calls, seen in text_pairs(short.to_messages(wire="text")))
        if isinstance(step, ActionStep):
            assert all(len(o.text) <= n for o in short.observations)
            assert len(short.tool_calls) == len(step.tool_calls)
        assert short.truncate(n).to_messages() == short.to_messages()


@examples(60)
@given(any_chats() | good_chats(), st.sampled_from(["tools", "text"]))
def test_any_list_at_all_becomes_steps_and_is_given_back(messages, wire):
    before = repr(messages)
    steps = steps_from_messages(messages, wire=wire)
    assert repr([m for s in steps for m in s.to_messages(wire=wire)]) == before == repr(messages)
    for step in steps:
        assert repr(Step.from_dict(step.dict()).dict()) == repr(step.dict())
        mended = dataclasses.replace(step, source=None)
        assert pairing_errors(mended.to_messages()) == []
        pairs = text_pairs(mended.to_messages(wire="text"))
        assert all(calls <= seen for calls, seen in pairs)  # a result without a call is an observation more


@given(STEPS)
def test_the_text_form_is_read_back_as_steps(steps):
    messages = [m for s in steps for m in s.to_messages(wire="text")]
    back = steps_from_messages(messages, wire="text")
    assert [m for s in back for m in s.to_messages(wire="text")] == messages


def test_a_chat_in_text_form_has_typed_steps():
    made = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": {"q": "it"}}}
    chat = [
        {"role": "user", "content": "Find it"},
        {"role": "assistant", "content": "I look."},
        {"role": "assistant", "content": f"Calling tools:\n{[made]}"},
        {"role": "user", "content": "Observation:\nhere"},
        {"role": "assistant", "content": "Found."},
    ]
    steps = steps_from_messages(chat, wire="text")
    assert [type(s) for s in steps] == [TaskStep, ActionStep, FinalAnswerStep]
    assert steps[1].thought == "I look."
    assert steps[1].tool_calls == (ToolCall("find", {"q": "it"}, "c1"),)
    assert steps[1].observations[0].text == "here"
    assert pairing_errors([m for s in steps for m in s.to_messages(wire="tools")]) == []
