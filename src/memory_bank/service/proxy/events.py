"""Server-sent events as bytes."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from memory_bank.service.proxy.body import JsonObject

MOST_BYTES = 16 * 2**20
"""Bytes of an answer, of a turn in a stream or of one event that are buffered; what is longer passes as it comes."""


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
        events: list[Event] = []
        start = 0
        while (match := _END.search(self._rest, max(start, self._searched - 3))) is not None:
            if match.end() == len(self._rest) and self._rest.endswith(b"\r"):
                break  # a line feed may follow
            events.append(read_event(bytes(self._rest[start : match.end()])))
            start = match.end()
        del self._rest[:start]
        self._searched = len(self._rest)
        if self._searched > MOST_BYTES:
            self._passes = True
            events += self.close()
        return events

    def close(self) -> list[Event]:
        """The incomplete event at the end of the stream, if any."""
        rest, self._rest = bytes(self._rest), bytearray()
        return [Event(rest, "", None) if self._passes else read_event(rest)] if rest else []


async def read_events(body: AsyncIterable[bytes]) -> AsyncIterator[list[Event]]:
    """The events of a stream, those that end with one chunk together."""
    splitter = EventSplitter()
    async for chunk in body:
        if events := splitter.feed(chunk):
            yield events
    if events := splitter.close():
        yield events


async def rewritten(
    body: AsyncIterable[bytes], write: Callable[[Event], Awaitable[bytes]]
) -> AsyncIterator[bytes]:
    """A stream with other bytes for its events."""
    async for events in read_events(body):
        yield b"".join([await write(event) for event in events])


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
