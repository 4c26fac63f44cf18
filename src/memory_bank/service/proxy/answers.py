"""A model's answers: the turns in them, and the events of streamed turns joined into one stream."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from memory_bank.models.usage import add_usage, merge_usage, usages_of
from memory_bank.service.proxy.body import JsonObject
from memory_bank.tools import GET_RECORD, LIST_RECORDS, MEMORY_FILES, SEARCH_MEMORY
from memory_bank.transcript.anthropic import THINKING
from memory_bank.transcript.responses import OUTPUT_OF, item_type

MEMORY_TOOLS = frozenset({SEARCH_MEMORY, GET_RECORD, LIST_RECORDS})
MOST_BYTES = 16 * 2**20
"""Bytes of an answer, of a turn in a stream or of one event that are held; what is longer passes as it comes."""


@dataclass(frozen=True, slots=True)
class ModelToolCall:
    """A tool call in a model's answer.

    ``name``: the function's name; "" for a call of another kind. ``item``: the JSON object that stands for the call
    in the messages of the next request.
    """

    name: object
    arguments: object = field(repr=False)
    item: JsonObject = field(repr=False)

    @property
    def is_memory(self) -> bool:
        """Whether it calls a memory tool, which the proxy answers; the client answers all others."""
        return self.name in (*MEMORY_TOOLS, MEMORY_FILES)


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """One answer of the model. ``messages``: what the next request repeats of it; tool results are not included."""

    calls: Sequence[ModelToolCall] = ()
    messages: Sequence[object] = field(default=(), repr=False)
    usage: JsonObject = field(default_factory=dict)

    @property
    def calls_memory(self) -> bool:
        """Whether it calls a memory tool."""
        return any(call.is_memory for call in self.calls)


def as_object(value: object) -> JsonObject:
    """The value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def parse_object(data: bytes) -> JsonObject:
    """The JSON object in an answer, an empty one where there is none."""
    try:
        return as_object(json.loads(data))
    except (ValueError, RecursionError):
        return {}


def objects_of(value: object) -> list[JsonObject]:
    """The JSON objects in a value, if it is a list."""
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


# Server-sent events as bytes

_EOL = rb"(?:\r\n|\n|\r(?!\n))"
_END = re.compile(_EOL + _EOL)
_LINES = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r|\Z)")
_DATA = re.compile(rb"data(?::[ ]?|(?=[\r\n]|\Z))")


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its bytes, its data (None for a comment), and the JSON object in the data, if any."""

    raw: bytes = field(repr=False)
    data: str | None
    value: JsonObject | None


class EventSplitter:
    """Splits a stream into events, wherever its chunks begin and end; no byte is lost.

    From an event of more than ``MOST_BYTES`` on, the bytes are events without a value as they come.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._searched = 0
        self._passes = False

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that end with this chunk."""
        if self._passes:
            return [Event(chunk, "", None)]
        self._rest += chunk
        found: list[Event] = []
        start = 0
        while (match := _END.search(self._rest, max(start, self._searched - 3))) is not None:
            if match.end() == len(self._rest) and self._rest.endswith(b"\r"):
                break  # a line feed may follow
            found.append(read_event(bytes(self._rest[start : match.end()])))
            start = match.end()
        del self._rest[:start]
        self._searched = len(self._rest)
        if self._searched > MOST_BYTES:
            self._passes = True
            found += self.close()
        return found

    def close(self) -> list[Event]:
        """The incomplete event at the end of the stream, if any."""
        rest, self._rest = bytes(self._rest), bytearray()
        return [Event(rest, "", None) if self._passes else read_event(rest)] if rest else []


async def read_events(body: AsyncIterable[bytes]) -> AsyncIterator[list[Event]]:
    """The events of a stream, those that end with one chunk together."""
    splitter = EventSplitter()
    async for chunk in body:
        if found := splitter.feed(chunk):
            yield found
    if found := splitter.close():
        yield found


async def rewritten(
    body: AsyncIterable[bytes], write: Callable[[Event], Awaitable[bytes]]
) -> AsyncIterator[bytes]:
    """A stream with other bytes for its events."""
    async for found in read_events(body):
        yield b"".join([await write(event) for event in found])


def read_event(raw: bytes) -> Event:
    """Read the bytes of one event. Never raises."""
    matches = ((line, _DATA.match(line)) for line in _LINES.findall(raw))
    data = [line[match.end() :].rstrip(b"\r\n") for line, match in matches if match]
    if not data:
        return Event(raw, None, None)
    text = b"\n".join(data).decode("utf-8", "replace")
    try:
        value = json.loads(text) if text.lstrip()[:1] == "{" else None
    except (ValueError, RecursionError):
        value = None
    return Event(raw, text, value if isinstance(value, dict) else None)


def rewrite_event(event: Event, value: JsonObject) -> bytes:
    """The event's bytes with another object as its data; its other lines stay."""
    text: bytes | None = json.dumps(value, separators=(",", ":")).encode()
    lines: list[bytes] = []
    for line in _LINES.findall(event.raw):
        if not _DATA.match(line):
            lines.append(line)
        elif text is not None:
            lines.append(b"data: " + text + line[len(line.rstrip(b"\r\n")) :])
            text = None
    return b"".join(lines)


# Streamed turns


class EventKind(Enum):
    """How an event is treated while its turn may still have to be hidden."""

    SHOWN = "sent at once"
    SILENT = "sent with the next event that is shown, once something was sent"
    TIED = "held until the next event, which it belongs to"
    CALL = "held, with all that follows, until the turn ends"


@dataclass(eq=False)
class TurnStream:
    """Joins the streamed turns of one request into one stream without the turns that call memory tools.

    ``feed`` returns the bytes that go to the client now. Where a turn may be hidden (``hides``), everything is held
    from the first tool call on until the turn ends; then it is sent as it came, or, if a memory tool is called,
    dropped. A turn that failed or is longer than ``MOST_BYTES`` is never dropped. As long as nothing of an earlier
    turn was sent (``is_raw``), the bytes are those of upstream, except for the usage, which is that of all turns;
    after that, events are rewritten to continue the earlier turn. ``usage``: that of the hidden turns.
    Each API implements ``read``, ``write`` and ``answer``; ``read_turn`` reads a complete answer.
    """

    read_turn: Callable[[JsonObject], ModelTurn]
    usage: JsonObject = field(default_factory=dict)
    has_sent: bool = False
    hides: bool = True
    is_raw: bool = True
    _held: list[bytes] = field(default_factory=list)
    _next_index: int = 0

    place = "index"
    """The member of an event that says which part of the answer it belongs to."""

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin another turn, whose indices follow those that were sent."""
        self._first_index = self._next_index
        self._turn_usage: JsonObject = {}
        self._has_failed = self._has_call = False
        self._size = 0

    @property
    def _passes(self) -> bool:
        """Whether the turn is too long to be read."""
        return self._size > MOST_BYTES

    def feed(self, event: Event) -> bytes:
        """Take the next event of a turn; returns the bytes to send."""
        self._size += len(event.raw)
        if event.value is None or self._passes:
            kind = EventKind.SILENT if event.data is None else EventKind.SHOWN
        else:
            kind = self.read(event.value)
        if self._passes or not self.hides:
            return self._release(event)
        self._has_call = self._has_call or kind is EventKind.CALL
        waits = kind is EventKind.TIED or (kind is EventKind.SILENT and (self._held or not self.has_sent))
        if not (self._has_call or waits):
            return self._release(event)
        self._held.append(event.raw)
        return b""

    def end(self, may_hide: bool) -> tuple[bytes, ModelTurn | None]:
        """End a turn: the bytes to send, and the turn if it is hidden and another has to follow."""
        turn = self._turn()
        if self._passes or not (may_hide and self._has_call and turn.calls_memory):
            return self._release(), None
        self.usage = add_usage(self.usage, turn.usage)
        self._held.clear()
        self.is_raw = not self.has_sent
        self.begin()
        return b"", turn

    def break_off(self) -> bytes:
        """The bytes to send when the stream breaks off within a turn."""
        return b"" if self._turn().calls_memory else self._release()

    def _turn(self) -> ModelTurn:
        return ModelTurn() if self._has_failed else self.read_turn(self.answer())

    def _release(self, *last: Event) -> bytes:
        sent: list[bytes] = []
        for event in (*map(read_event, self._held), *last):
            value = None if event.value is None else self.write(event.value)
            if event.value == value:
                sent.append(event.raw)
            elif value is not None:
                sent.append(rewrite_event(event, value))
        self._held.clear()
        out = b"".join(sent)
        self.has_sent = self.has_sent or bool(out)
        return out

    def _moved(self, value: JsonObject) -> JsonObject:
        """The object of an event with its place in the joined stream."""
        index = value.get(self.place)
        if not isinstance(index, int):
            return dict(value)
        self._next_index = max(self._next_index, self._first_index + index + 1)
        return {**value, self.place: self._first_index + index}

    def read(self, value: JsonObject) -> EventKind:
        """Take in the object of an event of the present turn."""
        raise NotImplementedError

    def write(self, value: JsonObject) -> JsonObject | None:
        """The object of an event for the client; None for an event that it does not get."""
        raise NotImplementedError

    def answer(self) -> JsonObject:
        """The present turn as far as it was read, as a complete answer."""
        raise NotImplementedError


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
            return EventKind.SHOWN
        for delta in map(_delta, choices):
            self._add(delta)
            if delta.get("tool_calls") or delta.get("function_call"):
                return EventKind.CALL
        return EventKind.SHOWN if any(map(_shows, choices)) else EventKind.SILENT

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
        message = _joined({**self._message, "tool_calls": calls})
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
                        _append(call.setdefault(name, {}), inner, text)
                elif part not in (None, ""):
                    call[name] = part
        for key, value in delta.items():
            if key != "tool_calls":
                _append(self._message, key, value)

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
    """Whether a choice holds anything besides the role."""
    said = any(v for k, v in _delta(choice).items() if k != "role")
    return said or bool(as_object(choice).get("finish_reason"))


class _Pieces(list[str]):
    """A text as it came: joined once, however many pieces there are."""


def _append(members: JsonObject, key: str, value: Any) -> None:
    """Append text or a list to a member; any other value replaces it."""
    if isinstance(value, str) and key != "role":
        begun = members.get(key)
        if not isinstance(begun, _Pieces):
            members[key] = begun = _Pieces([begun] if isinstance(begun, str) else [])
        begun.append(value)
    elif isinstance(value, list) and type(members.get(key)) is list:
        members[key] += value
    elif value is not None:
        members[key] = value.copy() if isinstance(value, list) else value


def _joined(value: Any) -> Any:
    """A value with its texts joined."""
    if isinstance(value, _Pieces):
        return "".join(value)
    if isinstance(value, dict):
        return {k: _joined(v) for k, v in value.items()}
    return [_joined(v) for v in value] if isinstance(value, list) else value


class MessageStream(TurnStream):
    """The events are those of a message; the message is the one that was begun first."""

    def begin(self) -> None:
        super().begin()
        self._blocks: dict[int, JsonObject] = {}

    def read(self, value: JsonObject) -> EventKind:
        """See TurnStream. Thinking belongs to what follows it."""
        kind, index = value.get("type"), value.get("index")
        begun = as_object(value.get("message"))
        self._turn_usage = merge_usage(self._turn_usage, as_object((begun or value).get("usage")))
        if kind in ("message_start", "ping"):
            return EventKind.SILENT
        self._has_failed = self._has_failed or kind == "error"
        if not isinstance(index, int):
            return EventKind.SHOWN
        block = self._blocks.get(index, {})
        if kind == "content_block_start":
            block = self._blocks[index] = dict(as_object(value.get("content_block")))
            if block.get("type") == "tool_use":
                block["input"] = _Pieces()
        for member, text in as_object(value.get("delta")).items():
            if member != "type" and isinstance(text, str):
                _append(block, "input" if member == "partial_json" else member, text)
        if block.get("type") == "tool_use":
            return EventKind.CALL
        return EventKind.TIED if str(block.get("type")) in THINKING else EventKind.SHOWN

    def write(self, value: JsonObject) -> JsonObject | None:
        kind = value.get("type")
        if kind == "message_start" and not self.is_raw:
            return None
        changed = self._moved(value)
        if kind == "message_delta":
            usage = merge_usage(self._turn_usage, as_object(value.get("usage")))
            changed |= {"usage": add_usage(self.usage, usage)} if self.usage else {}
        return changed

    def answer(self) -> JsonObject:
        return {"content": [_joined(b) for _, b in sorted(self._blocks.items())], "usage": self._turn_usage}


@dataclass(eq=False)
class ResponseStream(TurnStream):
    """The events are those of a response.

    Reasoning is held until the item that it led to: reasoning of a hidden call is hidden too, because a
    request must not have one without the other. The stream is one response, whose id is that of the first
    turn that was sent. So ``previous_response_id`` can name it if only the last turn was sent; otherwise the
    provider knows that id as a response whose calls were not answered.
    """

    _identity: JsonObject = field(default_factory=dict)  # id and created_at of the response
    _earlier: list[object] = field(default_factory=list)  # items of hidden turns that were sent
    _sent: list[object] = field(default_factory=list)  # items of the present turn that were sent
    _sequence: int = 0

    place = "output_index"

    def begin(self) -> None:
        super().begin()
        self._earlier = [*self._earlier, *self._sent]
        self._items: dict[int, object] = {}
        self._sent = []
        self._response: JsonObject = {}

    def read(self, value: JsonObject) -> EventKind:
        kind, index = value.get("type"), value.get("output_index")
        if kind in _STARTED:
            return EventKind.SILENT
        if kind in _ENDED:
            self._response = as_object(value.get("response"))
            self._has_failed = self._response.get("status") == "failed"
            return EventKind.SHOWN
        self._has_failed = self._has_failed or kind == "error"
        if not isinstance(index, int):
            return EventKind.SHOWN
        if kind in ("response.output_item.added", "response.output_item.done"):
            self._items[index] = value.get("item")
        item = item_type(self._items.get(index))
        if item in OUTPUT_OF:
            return EventKind.CALL
        return EventKind.TIED if item == "reasoning" else EventKind.SHOWN

    def write(self, value: JsonObject) -> JsonObject | None:
        kind, item, number = value.get("type"), value.get("item"), value.get("sequence_number")
        if kind in _STARTED and not self.is_raw:
            return None
        if kind == "response.output_item.done" and not self._passes and item not in self._earlier:
            self._sent.append(item)
        changed = self._moved(value)
        if isinstance(number, int):
            if self._earlier or not self.is_raw:
                changed["sequence_number"] = self._sequence
            self._sequence = changed["sequence_number"] + 1
        response = as_object(value.get("response"))
        self._identity = self._identity or {k: response[k] for k in ("id", "created_at") if k in response}
        if response and kind in _ENDED:
            joined = changed["response"] = {**response, **self._identity}
            if self._earlier and isinstance(response.get("output"), list):
                joined["output"] = [*self._earlier, *response["output"]]
            if self.usage:
                joined["usage"] = add_usage(self.usage, as_object(response.get("usage")))
        return changed

    def answer(self) -> JsonObject:
        output = self._response.get("output")
        items = output if isinstance(output, list) and output else [i for _, i in sorted(self._items.items())]
        return {**self._response, "output": items}


_STARTED = ("message_start", "ping", "response.created", "response.queued", "response.in_progress")
_ENDED = ("response.completed", "response.incomplete", "response.failed")
