"""The Chat Completions API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from memory_bank.models.usage import add_usage, merge_usage, usages_of
from memory_bank.plan import Form
from memory_bank.service.proxy.api import (
    Dialect,
    EventKind,
    ModelToolCall,
    ModelTurn,
    RequestHistory,
    Schemas,
    TurnStream,
    append,
    joined,
    valid_arguments,
    with_memory_tools,
)
from memory_bank.service.proxy.body import Body, JsonObject, as_object, objects_of
from memory_bank.tools import TOOL_SCHEMAS, ToolAnswer
from memory_bank.transcript.messages import MessageKind
from memory_bank.transcript.textcalls import read_text_calls


@dataclass(eq=False)
class ChatStream(TurnStream):
    """The events are chunks of a chat completion, with the id of the first turn that was sent."""

    _head: JsonObject = field(default_factory=dict)
    _has_text: bool = False

    def begin(self) -> None:
        super().begin()
        self._message: JsonObject = {}
        self._calls: list[JsonObject] = []
        self._needs_gap = self._has_text

    def read(self, value: JsonObject) -> EventKind:
        for usage in usages_of(value):
            self._turn_usage = merge_usage(self._turn_usage, usage)
        choices = value.get("choices")
        if not isinstance(choices, list):
            self._has_failed = self._has_failed or "error" in value
            return EventKind.SENT
        for delta in map(_delta, choices):
            self._add(delta)
            if delta.get("tool_calls") or delta.get("function_call"):
                return EventKind.CALL
        return EventKind.SENT if any(map(_shows, choices)) else EventKind.SILENT

    def write(self, value: JsonObject) -> JsonObject | None:
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

    def answer(self) -> JsonObject:
        calls = [{k: v for k, v in call.items() if k != "index"} for call in self._calls]
        message = joined({**self._message, "tool_calls": calls})
        return {"choices": [{"message": message}], "usage": self._turn_usage}

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
        for piece in objects_of(delta.get("tool_calls")):
            call = self._call_for(piece.get("index"), piece.get("id"))
            for name, part in piece.items():
                if name in ("function", "custom") and isinstance(part, dict):
                    for inner, text in part.items():
                        append(call.setdefault(name, {}), inner, text)
                elif part not in (None, ""):
                    call[name] = part
        for key, value in delta.items():
            if key != "tool_calls":
                append(self._message, key, value)

    def _call_for(self, index: object, call_id: object) -> JsonObject:
        """The call that a piece belongs to. Where all calls have the same index, the id tells them apart."""
        if isinstance(index, int):
            call = next((c for c in reversed(self._calls) if c.get("index") == index), None)
        else:
            call = self._calls[-1] if self._calls and not call_id else None
        if call is None or (call_id and call.get("id", call_id) != call_id):
            self._calls.append(call := {})
        return call


def _delta(choice: object) -> JsonObject:
    return as_object(as_object(choice).get("delta"))


def _shows(choice: object) -> bool:
    """Return whether a choice holds anything besides the role."""
    shows = any(v for k, v in _delta(choice).items() if k != "role")
    return shows or bool(as_object(choice).get("finish_reason"))


class ChatDialect(Dialect):
    """The Chat Completions API."""

    route = "chat"
    path = "/chat/completions"
    stream = ChatStream

    def history(self, body: Body) -> RequestHistory:
        """See Dialect. Calls that an agent writes as text count as calls."""
        history = RequestHistory(self.conversation(body.value), memo=body.memo)
        if MessageKind.CALL in history.kinds:
            return history
        chat = read_text_calls(history.messages, body.derive, history.kinds)
        if chat is None:
            return history

        def read(written: Sequence[object]) -> Sequence[object]:
            again = read_text_calls(written, body.derive)
            return written if again is None else again.messages

        return RequestHistory(chat.messages, Form(chat, read), body.memo)

    def offer_tools(self, request: JsonObject, schemas: Schemas = TOOL_SCHEMAS) -> list[object] | None:
        """See Dialect. Not with several answers, nor with ``functions``, the older form of tools."""
        if request.get("n") not in (None, 1) or request.get("functions") or request.get("function_call"):
            return None
        return with_memory_tools(request, request.get("tool_choice"), schemas)

    def read_answer(self, answer: JsonObject, request: JsonObject) -> ModelTurn:  # noqa: ARG002
        choices = answer.get("choices")
        choice = as_object(choices[0]) if isinstance(choices, list) and len(choices) == 1 else {}
        message = as_object(choice.get("message"))
        calls: list[ModelToolCall] = []
        for i, call in enumerate(objects_of(message.get("tool_calls"))):
            function, item = as_object(call.get("function")), {**call}
            item["id"] = call.get("id") or f"call_memory_{i}"
            if function:
                item["function"] = {**function, "arguments": valid_arguments(function.get("arguments"))}
            calls.append(ModelToolCall(function.get("name"), function.get("arguments"), item))
        turn = {k: v for k, v in message.items() if v is not None} | {
            "role": "assistant",
            "content": message.get("content"),
            "tool_calls": [c.item for c in calls],
        }
        return ModelTurn(calls, [turn], as_object(answer.get("usage")))

    def result(self, call: ModelToolCall, answer: ToolAnswer) -> JsonObject | None:
        """See Dialect. Results of this API are text."""
        return {"role": "tool", "tool_call_id": call.item["id"], "content": answer.text}
