"""The Chat Completions API for the proxy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memory_bank.errors import HistoryError
from memory_bank.plan import Context
from memory_bank.service import failures
from memory_bank.service.proxy.body import Body, JsonObject
from memory_bank.service.proxy.dialect import (
    MEMORY_TOOLS,
    EventKind,
    ModelToolCall,
    ModelTurn,
    NotRebuiltError,
    Provider,
    RequestHistory,
    TurnStream,
    add_usage,
    as_object,
    valid_arguments,
    with_memory_tools,
)
from memory_bank.service.proxy.events import Event, rewrite_event
from memory_bank.tools import TOOL_SCHEMAS, ToolAnswer
from memory_bank.transcript.textcalls import read_text_calls


class ChatDialect:
    """See Dialect."""

    route = "chat"
    path = "/chat/completions"
    key = "messages"
    provider: Provider = "openai"
    counts_only = False
    error_body = staticmethod(failures.body)

    def history(self, body: Body) -> RequestHistory:
        """See Dialect. Calls that an agent writes as text count as calls."""
        messages = body.value.get(self.key)
        if not isinstance(messages, list) or not messages:
            raise NotRebuiltError("no messages")
        chat = read_text_calls(messages)
        if chat is None:
            return RequestHistory(messages, lambda context: context, lambda written: written)

        def to_request(context: Context) -> Sequence[object]:
            try:
                return chat.write(context.entries)
            except HistoryError as e:
                raise NotRebuiltError(str(e)) from None

        def read(written: Sequence[object]) -> Sequence[object]:
            again = read_text_calls(written)
            return written if again is None else again.messages

        return RequestHistory([*chat.messages], to_request, read)

    def is_compaction(self, request: JsonObject) -> bool:  # noqa: ARG002
        """See Dialect. This API has no such member."""
        return False

    def without_thinking(self, request: JsonObject) -> list[object] | None:  # noqa: ARG002
        """See Dialect. Reasoning of this API is not bound to other messages."""
        return None

    def mark_cache(self, request: JsonObject, conversation: Sequence[object]) -> None:
        """See Dialect. The API has no marks."""

    def offer_tools(self, request: JsonObject) -> list[object] | None:
        """See Dialect. Not with several answers, nor with ``functions``, the older form of tools."""
        if request.get("n") not in (None, 1) or request.get("functions") or request.get("function_call"):
            return None
        return with_memory_tools(request, TOOL_SCHEMAS)

    def read_answer(self, answer: JsonObject, request: JsonObject) -> ModelTurn:  # noqa: ARG002
        """See Dialect."""
        choices, usage = answer.get("choices"), as_object(answer.get("usage"))
        choice = as_object(choices[0]) if isinstance(choices, list) and len(choices) == 1 else None
        message = as_object(choice.get("message")) if choice else None
        return ModelTurn(usage=usage) if message is None else _turn_of(message, usage)

    def result(self, call: ModelToolCall, answer: ToolAnswer) -> JsonObject | None:
        """See Dialect. Results of this API are text."""
        return {"role": "tool", "tool_call_id": call.item["id"], "content": answer.text}

    def open_stream(self, request: JsonObject) -> TurnStream:  # noqa: ARG002
        """See Dialect."""
        return ChatStream()


def _turn_of(message: JsonObject, usage: JsonObject | None) -> ModelTurn:
    """A turn from its message."""
    calls: list[ModelToolCall] = []
    made = message.get("tool_calls")
    for i, call in enumerate(made if isinstance(made, list) else ()):
        if not isinstance(call, dict):
            continue
        function = as_object(call.get("function"))
        name = arguments = None
        item = {**call, "id": call.get("id") or f"call_memory_{i}"}
        if function is not None:
            name, arguments = function.get("name"), function.get("arguments")
            item["function"] = {**function, "arguments": valid_arguments(arguments)}
        is_memory = isinstance(name, str) and name in MEMORY_TOOLS
        calls.append(ModelToolCall(name if isinstance(name, str) else "", arguments, is_memory, item))
    said = {k: v for k, v in message.items() if v is not None} | {
        "role": "assistant",
        "content": message.get("content"),
        "tool_calls": [c.item for c in calls],
    }
    return ModelTurn(calls, [said], usage)


class ChatStream(TurnStream):
    """See TurnStream. The events are chunks of a chat completion."""

    def __init__(self) -> None:
        super().__init__()
        self._head: JsonObject = {}  # id, created and model of the first turn that was sent
        self._has_text = False
        self.begin()

    def begin(self) -> None:
        """See TurnStream."""
        self._message = _DeltaMessage()
        self._usage: JsonObject | None = None
        self._has_failed = False
        self._needs_gap = self._has_text

    def read(self, event: Event) -> EventKind:
        """See TurnStream."""
        value = event.value
        if value is None:
            return EventKind.SILENT if event.data is None else EventKind.SHOWN
        self._usage = as_object(value.get("usage")) or self._usage
        choices = value.get("choices")
        if not isinstance(choices, list):
            self._has_failed = self._has_failed or "error" in value
            return EventKind.SHOWN
        kind = EventKind.SILENT
        for choice in choices:
            delta = _delta(choice)
            self._message.add(delta)
            if delta.get("tool_calls") or delta.get("function_call"):
                return EventKind.CALL
            if _shows(choice):
                kind = EventKind.SHOWN
        return kind

    def write(self, event: Event) -> bytes:
        """See TurnStream."""
        value = event.value
        if value is None or not isinstance(value.get("choices"), list):
            return event.raw
        self._head = self._head or {k: value[k] for k in ("id", "created", "model") if k in value}
        usage = as_object(value.get("usage"))
        if usage is not None and self.usage is not None:
            value = {**value, "usage": add_usage(self.usage, usage)}
        if self.is_raw:
            self._has_text = self._has_text or any(_delta(c).get("content") for c in value["choices"])
            return event.raw if value is event.value else rewrite_event(event, value)
        choices = [self._continued(c) for c in value["choices"]]
        if usage is None and not any(map(_shows, choices)):
            return b""
        return rewrite_event(event, {**value, **self._head, "choices": choices})

    def turn(self) -> ModelTurn:
        """See TurnStream."""
        return ModelTurn() if self._has_failed else _turn_of(self._message.whole(), self._usage)

    def _continued(self, choice: object) -> object:
        """A stream choice of a later turn: its role is removed, and a blank line precedes its first text."""
        delta = {k: v for k, v in _delta(choice).items() if k != "role"}
        text = delta.get("content")
        if isinstance(text, str) and text:
            delta["content"] = f"\n\n{text}" if self._needs_gap else text
            self._needs_gap, self._has_text = False, True
        return {**choice, "delta": delta} if isinstance(choice, dict) else choice


def _delta(choice: object) -> JsonObject:
    return (as_object(choice.get("delta")) if isinstance(choice, dict) else None) or {}


def _shows(choice: object) -> bool:
    """Whether a choice holds anything besides the role."""
    return any(v for k, v in _delta(choice).items() if k != "role") or (
        isinstance(choice, dict) and bool(choice.get("finish_reason"))
    )


class _DeltaMessage:
    """An assistant message put together from its deltas."""

    def __init__(self) -> None:
        self._members: JsonObject = {}
        self._calls: list[JsonObject] = []
        self._by_index: dict[int, JsonObject] = {}

    def add(self, delta: JsonObject) -> None:
        """Add the next delta."""
        for key, value in delta.items():
            if key != "tool_calls":
                _append(self._members, key, value)
                continue
            for piece in value if isinstance(value, list) else ():
                if isinstance(piece, dict):
                    self._add_call(piece)

    def whole(self) -> JsonObject:
        """The message so far."""
        return {**self._members, "tool_calls": self._calls} if self._calls else self._members

    def _add_call(self, piece: JsonObject) -> None:
        call = self._call_for(piece.get("index"), piece.get("id"))
        for key, value in piece.items():
            if key in ("function", "custom") and isinstance(value, dict):
                inner = call.setdefault(key, {})
                for name, part in value.items():
                    _append(inner, name, part)
            elif key != "index" and value not in (None, ""):
                call[key] = value

    def _call_for(self, index: object, call_id: object) -> JsonObject:
        """The call that a piece belongs to. Where all calls have the same index, the id tells them apart."""
        call = self._by_index.get(index) if isinstance(index, int) else None
        if call is None and not isinstance(index, int) and not call_id and self._calls:
            call = self._calls[-1]
        if call is None or (call_id and call.get("id", call_id) != call_id):
            call = {}
            self._calls.append(call)
            if isinstance(index, int):
                self._by_index[index] = call
        return call


def _append(members: JsonObject, key: str, value: Any) -> None:
    """Append text or a list to a member; any other value replaces it."""
    old: Any = members.get(key)
    if type(value) is type(old) and isinstance(value, (str, list)) and key != "role":
        members[key] = old + value
    elif value is not None:
        members[key] = value
