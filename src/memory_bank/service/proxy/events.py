"""Server-sent events as bytes: split from a stream, read, and rewritten with other data."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from memory_bank.service.proxy.body import JsonObject

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
    """Splits a stream into events, wherever its chunks begin and end; no byte is lost."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._searched = 0

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that end with this chunk."""
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
        return found

    def close(self) -> list[Event]:
        """The incomplete event at the end of the stream, if any."""
        rest, self._rest = bytes(self._rest), bytearray()
        return [read_event(rest)] if rest else []


def read_event(raw: bytes) -> Event:
    """Read the bytes of one event. Never raises."""
    data: list[bytes] = []
    for line in _LINES.findall(raw):
        if match := _DATA.match(line):
            data.append(line[match.end() :].rstrip(b"\r\n"))
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
    text = json.dumps(value, separators=(",", ":")).encode()
    lines: list[bytes] = []
    written = False
    for line in _LINES.findall(event.raw):
        if not _DATA.match(line):
            lines.append(line)
        elif not written:
            lines.append(b"data: " + text + line[len(line.rstrip(b"\r\n")) :])
            written = True
    return b"".join(lines)
