"""The Chat Completions API: its messages with some parts changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memory_bank.transcript.messages import (
    MessageKind,
    calls_of,
    content_with,
    is_text_part,
    kind_of,
    read,
    result_of,
)
from memory_bank.transcript.responses import WIRE
from memory_bank.transcript.turns import ADDED, WHOLE, Change, Part, Wire


class ChatWire(Wire[Any]):
    """See Wire. Messages are dicts or SDK objects, also items of the Responses API."""

    def parts(self, native: Any) -> Iterator[Part]:
        """See Wire. Never raises. A content that is empty beside calls is no part."""
        kind, content = kind_of(native), read(native, "content")
        if kind is MessageKind.RESULT:
            result = result_of(native)
            yield Part(kind, result.content, result.call_id, result.name)
        elif kind is not MessageKind.CALL:
            yield Part(kind, content)
        else:
            if content:
                yield Part(MessageKind.SAY, content)
            for call in calls_of(native):
                yield Part(kind, call.arguments, call.call_id, call.name)

    def add(self, native: Any, text: str) -> Any:
        """See Wire."""
        return edited_message(native, {ADDED: text})


CHAT = ChatWire()


def edited_message(message: Any, change: Change) -> Any:
    """The chat message with other contents and arguments, as a dict; None where neither text nor call is left.

    A list stays a list, with one text part; a text that is ADDED leaves its parts as they are. ``message`` is not
    changed. It may be an item of the Responses API.
    """
    if not change:
        return message
    new = as_dict(message)
    if read(message, "role") is None:
        return WIRE.write(new, change)
    if ADDED in change:
        return new | {"content": content_with(read(message, "content"), change[ADDED])}
    if WHOLE in change:
        new["content"] = content_like(read(message, "content"), change[WHOLE])
    if change.keys() <= {WHOLE}:
        return new
    tool_calls = read(message, "tool_calls")
    calls = [*tool_calls] if isinstance(tool_calls, (list, tuple)) else []
    left = [
        _with_arguments(call, change[n]) if n in change else call
        for n, call in enumerate(map(_call, calls))
        if change.get(n, "") is not None
    ]
    legacy = change.get(len(calls), "")
    if left:
        new["tool_calls"] = left
    elif calls:
        del new["tool_calls"]
    gone = [read(call, "id") for n, call in enumerate(calls) if change.get(n, "") is None]  # may be any JSON
    details = new.get("reasoning_details")
    if gone and isinstance(details, list):  # signatures of calls have their ids
        ids = [read(detail, "id") for detail in details]
        new["reasoning_details"] = [
            d for d, i in zip(details, ids, strict=True) if i is None or i not in gone
        ]
    if legacy is None:
        del new["function_call"]
    elif legacy:
        new["function_call"] = {**as_dict(read(message, "function_call")), "arguments": legacy}
    return new if left or new.get("function_call") or new.get("content") else None


def content_like(content: Any, text: str | None) -> Any:
    """A text as a content: a list with one text part where ``content`` is a list."""
    if text is None or not isinstance(content, (list, tuple)):
        return text
    first = next((p for p in content if is_text_part(p) and not isinstance(p, str)), None)
    return [{"type": "text" if first is None else read(first, "type"), "text": text}]


def _call(call: Any) -> Any:
    """A call as a dict; what is no call stays as it came."""
    return call if isinstance(call, str | int | float | list | None) else as_dict(call)


def _with_arguments(call: Any, arguments: Any) -> Any:
    if not isinstance(call, dict):
        return call
    for key, member in (("function", "arguments"), ("custom", "input")):
        if (body := call.get(key)) is not None:
            return (
                {**call, key: {**body, member: arguments}} if isinstance(body := _call(body), dict) else call
            )
    return {**call, "arguments": arguments}


def as_dict(message: Any) -> dict[str, Any]:
    """A message or a call as a new dict: of a mapping, of a pydantic model, of any other object."""
    if isinstance(message, Mapping):
        return dict(message)
    dump = getattr(message, "model_dump", None)
    return dict(dump(exclude_none=True)) if callable(dump) else dict(vars(message))
