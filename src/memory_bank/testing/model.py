"""A chat model that answers from a script and records its calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from memory_bank.errors import ModelError
from memory_bank.transcript import events
from memory_bank.transcript.transcript import copy_of


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a scripted model: a copy of the messages it was given, and the model name."""

    messages: tuple[dict[str, Any], ...]
    model: str


class ScriptedModel:
    """A ``ChatModel`` without a network: ``ScriptedModel(["first answer", "second"])``.

    ``script`` is a list of replies, or a function ``(messages, model) -> reply`` for all calls. A reply is

    - a str or None: the text of the answer;
    - a dict: a completion if it has ``choices``, else the assistant message;
    - an exception or its class: raised;
    - a function ``(messages, model) -> reply``, called without a lock, so it may block;
    - an object with ``choices``: returned unchanged.

    Answers have ``.choices[0].message.content`` like those of the openai client. ``calls`` lists the requests
    in the order of their replies. When a list has ended, ``generate_plain`` raises ModelError. Thread-safe.
    """

    def __init__(self, script: Iterable[Any] | Callable[..., Any]) -> None:
        if isinstance(script, (str, bytes, dict)):
            raise TypeError(f"a script is a list of replies or a function, not one {type(script).__name__}")
        self.calls: list[Request] = []
        self._script: list[Any] | Callable[..., Any] = script if callable(script) else list(script)
        self._lock = threading.Lock()

    def generate_plain(self, *, input_messages: list[dict[str, Any]], model: str) -> Any:
        """The next reply as a completion. Raises the script's exceptions, ModelError when it has ended."""
        request = Request(tuple(map(copy_of, input_messages)), model)
        with self._lock:
            self.calls.append(request)
            number, script = len(self.calls), self._script
            if callable(script):
                reply: Any = script
            elif number <= len(script):
                reply = script[number - 1]
            else:
                raise ModelError(
                    f"the scripted model has {len(script)} replies and was called {number} times: "
                    "give it more replies, or a function"
                )
        while callable(reply) and not isinstance(reply, type):
            reply = reply(list(map(copy_of, input_messages)), model)
        if isinstance(reply, BaseException) or (isinstance(reply, type) and issubclass(reply, BaseException)):
            raise reply
        return completion(reply, model=model, number=number)


def completion(reply: Any, *, model: str = "scripted", number: int = 1) -> Any:
    """A chat completion object around a text, None, a message dict or a whole completion dict.

    Raises TypeError for a reply that is none of these.
    """
    if isinstance(reply, dict) and "choices" in reply:
        return _namespace(reply)
    if reply is None or isinstance(reply, str):
        reply = {"content": reply}
    if not isinstance(reply, dict):
        if hasattr(reply, "choices"):
            return reply
        raise TypeError(
            f"a scripted reply is text, a dict, an exception or a function, not {type(reply).__name__}"
        )
    message = {"role": "assistant", "content": None, "tool_calls": None, **reply}
    answer = events.completion(f"chatcmpl-scripted-{number}", model, message, 0, 0)
    return _namespace(answer | {"usage": None})


def _namespace(value: Any) -> Any:
    if isinstance(value, dict):
        return SimpleNamespace(**{str(k): _namespace(v) for k, v in value.items()})
    return [_namespace(v) for v in value] if isinstance(value, list) else value
