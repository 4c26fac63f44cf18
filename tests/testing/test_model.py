"""ScriptedModel, by its own contract and in its peculiarities."""

from __future__ import annotations

import threading
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from tests.contracts.chat import ChatModelContract

from memory_bank.errors import ModelError
from memory_bank.models.chat import reply_text, usage_of
from memory_bank.ports import ChatModel
from memory_bank.testing import Request, ScriptedModel


def ask(model: ScriptedModel, text: str = "q") -> Any:
    return model.generate_plain(input_messages=[{"role": "user", "content": text}], model="m")


class TestScriptedModel(ChatModelContract):
    failure = RuntimeError

    def make_model(self, replies: list[Any]) -> ScriptedModel:
        return ScriptedModel(replies)


class TestScriptedByFunction(ChatModelContract):
    failure = RuntimeError

    def make_model(self, replies: list[Any]) -> ScriptedModel:
        left, lock = list(replies), threading.Lock()

        def reply(messages: list[dict[str, Any]], model: str) -> Any:
            with lock:
                return left.pop(0)

        return ScriptedModel(reply)


def test_it_is_a_chat_model() -> None:
    assert isinstance(ScriptedModel([]), ChatModel)


def test_each_kind_of_reply() -> None:
    whole = {"choices": [{"message": {"content": "whole"}}], "usage": {"prompt_tokens": 3}}
    calls = [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]
    ready = ScriptedModel(["ready"]).generate_plain(input_messages=[], model="m")
    script = [
        whole,
        {"content": None, "tool_calls": calls},
        lambda messages, model: f"{model}: {messages[0]['content']}",
        ready,
        KeyError,
    ]
    model = ScriptedModel(script)
    first = ask(model)
    assert (reply_text(first), usage_of(first)[:2]) == ("whole", (3, None))
    second = ask(model).choices[0]
    assert second.finish_reason == "tool_calls"
    assert second.message.tool_calls[0].function.name == "f"
    assert reply_text(ask(model, "echo")) == "m: echo"
    assert ask(model) is ready
    with pytest.raises(KeyError):
        ask(model)


def test_a_script_that_ran_out_says_so() -> None:
    model = ScriptedModel(["one"])
    ask(model)
    with pytest.raises(ModelError, match="has 1 replies and was called 2 times"):
        ask(model)
    assert len(model.calls) == 2


def test_a_wrong_script_is_refused_at_once_and_a_wrong_reply_when_it_comes() -> None:
    with pytest.raises(TypeError, match="not one str"):
        ScriptedModel("text")
    with pytest.raises(TypeError, match="not int"):
        ask(ScriptedModel([7]))


def test_requests_are_kept_as_they_were() -> None:
    model = ScriptedModel(lambda messages, _: messages.clear() or "x")
    messages = [{"role": "user", "content": [{"type": "text", "text": "before"}]}]
    model.generate_plain(input_messages=messages, model="m")
    messages[0]["content"][0]["text"] = "after"  # type: ignore[index]
    assert model.calls == [Request(({"role": "user", "content": [{"type": "text", "text": "before"}]},), "m")]
    with pytest.raises(FrozenInstanceError):
        model.calls[0].model = "other"  # type: ignore[misc]
