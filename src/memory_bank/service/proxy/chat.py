"""The Chat Completions API for the proxy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memory_bank.service.proxy.body import Body, JsonObject
from memory_bank.service.proxy.dialect import (
    Dialect,
    EventKind,
    ModelToolCall,
    ModelTurn,
    RequestHistory,
    TurnStream,
    add_usage,
    as_object,
    valid_arguments,
    with_memory_tools,
)
from memory_bank.tools import TOOL_SCHEMAS, ToolAnswer
from memory_bank.transcript.textcalls import read_text_calls


class ChatDialect(Dialect):
    """See Dialect."""

    route = "chat"
    path = "/chat/completions"

    def history(self, body: Body) -> RequestHistory:
        """See Dialect. Calls that an agent writes as text count as calls."""
        messages = self.conversation(body.value)
        chat = read_text_calls(messages)
        if chat is None:
            return RequestHistory(messages, lambda context: context, lambda written: written)

        def read(written: Sequence[object]) -> Sequence[object]:
            again = read_text_calls(written)
            return written if again is None else again.messages

        return RequestHistory([*chat.messages], lambda context: chat.write(context.entries), read)

    def offer_tools(self, request: JsonObject) -> list[object] | None:
        """See Dialect. Not with several answers, nor with ``functions``, the older form of tools."""
        if request.get("n") not in (None, 1) or request.get("functions") or request.get("function_call"):
            return None
        return with_memory_tools(request, TOOL_SCHEMAS)

    def read_answer(self, answer: JsonObject, request: JsonObject) -> ModelTurn:  # noqa: ARG002
        """See Dialect."""
        choices = answer.get("choices")
        choice = as_object(choices[0]) if isinstance(choices, list) and len(choices) == 1 else {}
        return _turn_of(as_object(choice.get("message")), as_object(answer.get("usage")))

    def result(self, call: ModelToolCall, answer: ToolAnswer) -> JsonObject | None:
        """See Dialect. Results of this API are text."""
        return {"role": "tool", "tool_call_id": call.item["id"], "content": answer.text}

    def open_stream(self, request: JsonObject) -> TurnStream:  # noqa: ARG002
        """See Dialect."""
        return ChatStream()


def _turn_of(message: JsonObject, usage: JsonObject) -> ModelTurn:
    """A turn from its message."""
    calls: list[ModelToolCall] = []
    made = message.get("tool_calls")
    for i, call in enumerate(made if isinstance(made, list) else ()):
        if isinstance(call, dict):
            function, item = as_object(call.get("function")), {**call}
            item["id"] = call.get("id") or f"call_memory_{i}"
            if function:
                item["function"] = {**function, "arguments": valid_arguments(function.get("arguments"))}
            calls.append(ModelToolCall(function.get("name"), function.get("arguments"), item))
    said = {k: v for k, v in message.items() if v is not None} | {
        "role": "assistant",
        "content": message.get("content"),
        "tool_calls": [c.item for c in calls],
    }
    return ModelTurn(calls, [said], usage)


class ChatStream(TurnStream):
    """See TurnStream. The events are chunks of a chat completion."""

    def __init__(self) -> None:
        self._head: JsonObject = {}  # id, created and model of the first turn that was sent
        self._has_text = False
        super().__init__()

    def begin(self) -> None:
        """See TurnStream."""
        self._message: JsonObject = {}
        self._calls: list[JsonObject] = []
        self._usage: JsonObject = {}
        self._has_failed = False
        self._needs_gap = self._has_text

    def read(self, value: JsonObject) -> EventKind:
        """See TurnStream."""
        self._usage = as_object(value.get("usage")) or self._usage
        choices = value.get("choices")
        if not isinstance(choices, list):
            self._has_failed = self._has_failed or "error" in value
            return EventKind.SHOWN
        for choice in choices:
            delta = _delta(choice)
            self._add(delta)
            if delta.get("tool_calls") or delta.get("function_call"):
                return EventKind.CALL
        return EventKind.SHOWN if any(map(_shows, choices)) else EventKind.SILENT

    def write(self, value: JsonObject) -> JsonObject | None:
        """See TurnStream."""
        choices = value.get("choices")
        if not isinstance(choices, list):
            return value
        self._head = self._head or {k: value[k] for k in ("id", "created", "model") if k in value}
        usage = as_object(value.get("usage"))
        if usage and self.usage:
            value = {**value, "usage": add_usage(self.usage, usage)}
        if self.is_raw:
            self._has_text = self._has_text or any(_delta(c).get("content") for c in choices)
            return value
        choices = [self._continued(c) for c in choices]
        return {**value, **self._head, "choices": choices} if usage or any(map(_shows, choices)) else None

    def turn(self) -> ModelTurn:
        """See TurnStream."""
        if self._has_failed:
            return ModelTurn()
        calls = [{k: v for k, v in call.items() if k != "index"} for call in self._calls]
        return _turn_of({**self._message, "tool_calls": calls}, self._usage)

    def _continued(self, choice: object) -> object:
        """A stream choice of a later turn: its role is removed, and a blank line precedes its first text."""
        delta = {k: v for k, v in _delta(choice).items() if k != "role"}
        text = delta.get("content")
        if isinstance(text, str) and text:
            delta["content"] = f"\n\n{text}" if self._needs_gap else text
            self._needs_gap, self._has_text = False, True
        return {**choice, "delta": delta} if isinstance(choice, dict) else choice

    def _add(self, delta: JsonObject) -> None:
        """Add the next delta to the message."""
        for key, value in delta.items():
            if key != "tool_calls":
                _append(self._message, key, value)
                continue
            for piece in value if isinstance(value, list) else ():
                if not isinstance(piece, dict):
                    continue
                call = self._call_for(piece.get("index"), piece.get("id"))
                for name, part in piece.items():
                    if name in ("function", "custom") and isinstance(part, dict):
                        for inner, text in part.items():
                            _append(call.setdefault(name, {}), inner, text)
                    elif part not in (None, ""):
                        call[name] = part

    def _call_for(self, index: object, call_id: object) -> JsonObject:
        """The call that a piece belongs to. Where all calls have the same index, the id tells them apart."""
        if isinstance(index, int):
            call = next((c for c in reversed(self._calls) if c.get("index") == index), None)
        else:
            call = self._calls[-1] if self._calls and not call_id else None
        if call is None or (call_id and call.get("id", call_id) != call_id):
            call = {}
            self._calls.append(call)
        return call


def _delta(choice: object) -> JsonObject:
    return as_object(as_object(choice).get("delta"))


def _shows(choice: object) -> bool:
    """Whether a choice holds anything besides the role."""
    said = any(v for k, v in _delta(choice).items() if k != "role")
    return said or bool(as_object(choice).get("finish_reason"))


def _append(members: JsonObject, key: str, value: Any) -> None:
    """Append text or a list to a member; any other value replaces it."""
    old: Any = members.get(key)
    if type(value) is type(old) and isinstance(value, (str, list)) and key != "role":
        members[key] = old + value
    elif value is not None:
        members[key] = value
