"""Turns of POST /v1/chat/completions: tools offered, calls read, hidden turns joined into one stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memory_bank.service.events import Event, rewritten
from memory_bank.service.turns import OURS, Call, Kind, Spoken, Stream, sound, total
from memory_bank.tools import TOOL_SCHEMAS
from memory_bank.transcript.own import is_memory_tool

_HEAD = ("id", "created", "model")
_CALLS = ("tool_calls", "function_call")


class ChatSpeech:
    """See Speech."""

    key = "messages"

    def offer(self, body: Mapping[str, Any]) -> list[Any] | None:
        """See Speech. Not with several answers at once, nor with ``functions``, the older form of tools."""
        if body.get("n") not in (None, 1) or body.get("functions") or body.get("function_call"):
            return None
        return offered(body, TOOL_SCHEMAS)

    def spoken(self, value: Mapping[str, Any], body: Mapping[str, Any]) -> Spoken:  # noqa: ARG002  one is enough
        """See Speech."""
        choices = value.get("choices")
        choice = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
        message = choice.get("message") if isinstance(choice, dict) else None
        usage = value.get("usage")
        usage = usage if isinstance(usage, dict) else None
        return _spoken(message, usage) if isinstance(message, dict) else Spoken(usage=usage)

    def result(self, call: Call, text: str) -> Any | None:
        """See Speech."""
        return {"role": "tool", "tool_call_id": call.made["id"], "content": text}

    def stream(self, body: Mapping[str, Any]) -> Stream:  # noqa: ARG002
        """See Speech."""
        return ChatStream()


def offered(body: Mapping[str, Any], ours: list[dict[str, Any]]) -> list[Any] | None:
    """A request's tools with ours after them; None where it has tools of these names or must not choose."""
    tools, choice = body.get("tools"), body.get("tool_choice")
    if tools is not None and not isinstance(tools, list):
        return None
    if choice not in (None, "auto") and not (choice == "required" and tools):
        return None
    return None if any(is_memory_tool(_name(t)) for t in tools or ()) else [*(tools or ()), *ours]


def _name(tool: Any) -> str:
    if not isinstance(tool, dict):
        return ""
    inner = tool.get("function") or tool.get("custom")
    name = inner.get("name") if isinstance(inner, dict) else tool.get("name")
    return name if isinstance(name, str) else ""


def _spoken(message: Mapping[str, Any], usage: Mapping[str, Any] | None) -> Spoken:
    """A turn from its message, whole or put together from deltas."""
    calls: list[Call] = []
    made = message.get("tool_calls")
    for i, one in enumerate(made if isinstance(made, list) else ()):
        if not isinstance(one, dict):
            continue
        inner = one.get("function")
        name = inner.get("name") if isinstance(inner, dict) else None
        ours = name in OURS
        arguments = inner.get("arguments") if isinstance(inner, dict) else None
        one = {**one, "id": one.get("id") or f"call_memory_{i}"}
        if isinstance(inner, dict):
            one["function"] = {**inner, "arguments": sound(arguments)}
        calls.append(Call(name if isinstance(name, str) else "", arguments, ours, one))
    said = {k: v for k, v in message.items() if v is not None}
    said = {
        **said,
        "role": "assistant",
        "content": message.get("content"),
        "tool_calls": [c.made for c in calls],
    }
    return Spoken(calls, [said], usage)


class ChatStream(Stream):
    """See Stream: chunks of chat completions."""

    def __init__(self) -> None:
        super().__init__()
        self._head: dict[str, Any] = {}
        self._has_words = False
        self.begin()

    def begin(self) -> None:
        """See Stream."""
        self._message = _Message()
        self._usage: dict[str, Any] | None = None
        self._has_failed = False
        self._has_gap = self._has_words

    def read(self, event: Event) -> Kind:
        """See Stream."""
        value = event.value
        if value is None:
            return Kind.SILENT if event.data is None else Kind.SHOWN
        if isinstance(value.get("usage"), dict):
            self._usage = value["usage"]
        choices = value.get("choices")
        if not isinstance(choices, list):
            self._has_failed = self._has_failed or "error" in value
            return Kind.SHOWN
        kind = Kind.SILENT
        for choice in choices:
            delta = _delta(choice)
            self._message.add(delta)
            if any(delta.get(k) for k in _CALLS):
                return Kind.CALL
            if _shows(delta) or (isinstance(choice, dict) and choice.get("finish_reason")):
                kind = Kind.SHOWN
        return kind

    def write(self, event: Event) -> bytes:
        """See Stream."""
        value = event.value
        if value is None or not isinstance(value.get("choices"), list):
            return event.raw
        self._head = self._head or {k: value[k] for k in _HEAD if k in value}
        usage = value.get("usage")
        counts = isinstance(usage, dict) and self.usage is not None
        if counts:
            value = {**value, "usage": total(self.usage, usage)}
        if self.is_raw:
            self._has_words = self._has_words or any(_delta(c).get("content") for c in value["choices"])
            return rewritten(event, value) if counts else event.raw
        choices = [self._joined(c) for c in value["choices"]]
        shows = any(_shows(_delta(c)) or (isinstance(c, dict) and c.get("finish_reason")) for c in choices)
        if not shows and not isinstance(usage, dict):
            return b""
        return rewritten(event, {**value, **self._head, "choices": choices})

    def spoken(self) -> Spoken:
        """See Stream."""
        return Spoken() if self._has_failed else _spoken(self._message.whole(), self._usage)

    def _joined(self, choice: Any) -> Any:
        """A choice of a later turn: no second role, and a gap before its first words."""
        delta = {k: v for k, v in _delta(choice).items() if k != "role"}
        words = delta.get("content")
        if isinstance(words, str) and words:
            delta["content"] = f"\n\n{words}" if self._has_gap else words
            self._has_gap, self._has_words = False, True
        return {**choice, "delta": delta} if isinstance(choice, dict) else choice


def _delta(choice: Any) -> dict[str, Any]:
    delta = choice.get("delta") if isinstance(choice, dict) else None
    return delta if isinstance(delta, dict) else {}


def _shows(delta: Mapping[str, Any]) -> bool:
    return any(value for key, value in delta.items() if key != "role")


class _Message:
    """An assistant's message put together from its deltas."""

    def __init__(self) -> None:
        self._parts: dict[str, Any] = {}
        self._calls: list[dict[str, Any]] = []
        self._at: dict[int, dict[str, Any]] = {}

    def add(self, delta: Mapping[str, Any]) -> None:
        for key, value in delta.items():
            if key == "tool_calls":
                for piece in value if isinstance(value, list) else ():
                    if isinstance(piece, dict):
                        self._add_call(piece)
            else:
                _grow(self._parts, key, value)

    def _add_call(self, piece: Mapping[str, Any]) -> None:
        made = self._place(piece.get("index"), piece.get("id"))
        for key, value in piece.items():
            if key in ("function", "custom") and isinstance(value, dict):
                inner = made.setdefault(key, {})
                for name, part in value.items():
                    _grow(inner, name, part)
            elif key != "index" and value not in (None, ""):
                made[key] = value

    def _place(self, index: Any, call_id: Any) -> dict[str, Any]:
        """The call that a piece belongs to. Some servers give all calls one index: then the id tells."""
        made = self._at.get(index) if isinstance(index, int) else None
        if made is None and not isinstance(index, int) and not call_id and self._calls:
            made = self._calls[-1]
        if made is None or (call_id and made.get("id", call_id) != call_id):
            made = {}
            self._calls.append(made)
            if isinstance(index, int):
                self._at[index] = made
        return made

    def whole(self) -> dict[str, Any]:
        return {**self._parts, "tool_calls": self._calls} if self._calls else self._parts


def _grow(made: dict[str, Any], key: str, value: Any) -> None:
    old: Any = made.get(key)
    if type(value) is type(old) and isinstance(value, (str, list)) and key != "role":
        made[key] = old + value
    elif value is not None:
        made[key] = value
