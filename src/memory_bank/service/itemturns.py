"""Turns of POST /v1/responses: tools offered, calls read, hidden turns joined into one stream of events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memory_bank.service.chatturns import offered
from memory_bank.service.events import Event, rewritten
from memory_bank.service.turns import OURS, Call, Kind, Spoken, Stream, sound, total
from memory_bank.tools import TOOL_SCHEMAS
from memory_bank.transcript.items import OUTPUT_OF, item_type

_BEGUN = frozenset({"response.created", "response.queued", "response.in_progress"})
_OVER = frozenset({"response.completed", "response.incomplete", "response.failed"})
_ANSWERED = ("function_call", "custom_tool_call")  # their output is words
_SCHEMAS = [{"type": "function", **schema["function"]} for schema in TOOL_SCHEMAS]


class ItemSpeech:
    """See Speech."""

    key = "input"

    def offer(self, body: Mapping[str, Any]) -> list[Any] | None:
        """See Speech. Not with a response in the background, nor with a stored prompt, which has tools."""
        if body.get("background") or (body.get("prompt") is not None and not body.get("tools")):
            return None
        return offered(body, _SCHEMAS)

    def spoken(self, value: Mapping[str, Any], body: Mapping[str, Any]) -> Spoken:
        """See Speech."""
        output, usage = value.get("output"), value.get("usage")
        items = output if isinstance(output, list) and value.get("status") != "failed" else []
        return _spoken(items, usage if isinstance(usage, dict) else None, body)

    def result(self, call: Call, text: str) -> Any | None:
        """See Speech."""
        kind = item_type(call.made)
        if kind not in _ANSWERED:
            return None
        return {"type": OUTPUT_OF[kind], "call_id": call.made.get("call_id"), "output": text}

    def stream(self, body: Mapping[str, Any]) -> Stream:
        """See Speech."""
        return ItemStream(body)


def _spoken(items: list[Any], usage: Mapping[str, Any] | None, body: Mapping[str, Any]) -> Spoken:
    """A turn from its items. A call whose output is no words is left out: the model makes it again."""
    calls: list[Call] = []
    said: list[Any] = []
    for item in items:
        if not isinstance(item, dict):
            continue
        kind = item_type(item)
        if body.get("store") is False:
            if kind == "reasoning" and not item.get("encrypted_content"):
                continue  # the provider has forgotten it
            if kind != "reasoning":
                item = {k: v for k, v in item.items() if k != "id"}
        if kind == "function_call":
            arguments = item.get("arguments")
            item = {**item, "arguments": sound(arguments)}
            name = item.get("name")
            calls.append(Call(str(name or ""), arguments, name in OURS, item))
        elif kind in OUTPUT_OF:
            calls.append(Call(str(item.get("name") or ""), item.get("input"), False, item))
        if kind in _ANSWERED or kind not in OUTPUT_OF:
            said.append(item)
    return Spoken(calls, said, usage)


class ItemStream(Stream):
    """See Stream: events of responses.

    Reasoning waits for what it led to: with a hidden call it is hidden too, for no request may bring one
    without the other. A stream has one response, and its id, as clients check, is that of the turn whose
    events were the first to be shown. So ``previous_response_id`` can name it where nothing was said before
    the last turn; else the provider knows it as one whose calls nobody answered.
    """

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__()
        self._body = body
        self._id: dict[str, Any] = {}
        self._earlier: list[Any] = []  # items shown of hidden turns
        self._sequence = 0
        self._first = 0  # where the first item of this turn stands among those shown
        self._next = 0
        self.begin()

    def begin(self) -> None:
        """See Stream."""
        self._earlier = [*self._earlier, *getattr(self, "_shown", ())]
        self._first = self._next
        self._kinds: dict[Any, Kind] = {}
        self._items: dict[int, Any] = {}
        self._shown: list[Any] = []
        self._end: Mapping[str, Any] = {}

    def read(self, event: Event) -> Kind:
        """See Stream."""
        value = event.value
        if value is None:
            return Kind.SILENT if event.data is None else Kind.SHOWN
        kind, index = value.get("type"), value.get("output_index")
        if kind in _BEGUN:
            return Kind.SILENT
        if kind in _OVER:
            response = value.get("response")
            self._end = response if isinstance(response, dict) else {}
            return Kind.SHOWN
        if kind == "error":
            self._end = {"status": "failed"}
        if kind in ("response.output_item.added", "response.output_item.done") and isinstance(index, int):
            self._items[index] = value.get("item")
            self._kinds.setdefault(index, _kind_of(value.get("item")))
        return self._kinds.get(index, Kind.SHOWN)

    def write(self, event: Event) -> bytes:
        """See Stream."""
        value = event.value
        if value is None:
            return event.raw
        kind, index, number = value.get("type"), value.get("output_index"), value.get("sequence_number")
        if kind in _BEGUN and not self.is_raw:
            return b""
        if kind == "response.output_item.done":
            self._shown.append(value.get("item"))
        changed = dict(value)
        if isinstance(index, int):
            changed["output_index"] = self._first + index
            self._next = max(self._next, self._first + index + 1)
        if isinstance(number, int):
            changed["sequence_number"] = number if self.is_raw else self._sequence
            self._sequence = changed["sequence_number"] + 1
        response = value.get("response")
        if isinstance(response, dict):
            self._id = self._id or {k: response[k] for k in ("id", "created_at") if k in response}
            if kind in _OVER:
                changed["response"] = self._whole(response)
        return event.raw if changed == value else rewritten(event, changed)

    def spoken(self) -> Spoken:
        """See Stream."""
        if self._end.get("status") == "failed":
            return Spoken()
        output, usage = self._end.get("output"), self._end.get("usage")
        items = output if isinstance(output, list) and output else [i for _, i in sorted(self._items.items())]
        return _spoken(items, usage if isinstance(usage, dict) else None, self._body)

    def _whole(self, response: Mapping[str, Any]) -> dict[str, Any]:
        """The response at its end, with what was shown of the turns before and the usage of all."""
        whole, output = {**response, **self._id}, response.get("output")
        if self._earlier and isinstance(output, list):
            whole["output"] = [*self._earlier, *output]
        if self.usage is not None:
            whole["usage"] = total(self.usage, response.get("usage"))
        return whole


def _kind_of(item: Any) -> Kind:
    kind = item_type(item)
    if kind in OUTPUT_OF:
        return Kind.CALL
    return Kind.TIED if kind == "reasoning" else Kind.SHOWN
