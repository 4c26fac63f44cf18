"""A model's turn, as it is read where the proxy answers calls itself: its calls, what follows, the usage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from memory_bank.service.events import Event
from memory_bank.tools import GET_RECORD, LIST_RECORDS, SEARCH_MEMORY
from memory_bank.transcript.jsontext import parse_arguments

OURS = frozenset({SEARCH_MEMORY, GET_RECORD, LIST_RECORDS})

NOT_YET = (
    "Not executed yet: in this turn only the memory tools were answered. Make this call again if it is still "
    "needed."
)
"""The result of a call that is the client's to answer, made in one turn with calls that are ours."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that somebody has to answer: the client, or we. ``made``: the call as the model made it."""

    name: str
    arguments: Any = field(repr=False)
    ours: bool
    made: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Spoken:
    """What the model said in one turn; ``said`` is what stands for it in the next request, results apart."""

    calls: Sequence[Call] = ()
    said: Sequence[Any] = field(default=(), repr=False)
    usage: Mapping[str, Any] | None = None

    @property
    def is_ours(self) -> bool:
        """Whether one of the calls is ours to answer."""
        return any(call.ours for call in self.calls)


class Kind(Enum):
    """What an event of a streamed turn is to somebody who may have to hide the turn."""

    SHOWN = 1
    """Meant for the client at once."""
    SILENT = 2
    """Shows nothing by itself: it waits until something is shown."""
    TIED = 3
    """Belongs to what follows, which may be a call: it waits for that, even when others were shown."""
    CALL = 4
    """A call to be answered by the client or by us: with it all waits until the turn is over."""


class Stream:
    """The events of a request's turns as one stream: a turn that calls our tools leaves no trace of that.

    ``feed`` gives the bytes that go to the client now. What is shown passes as it comes. From the first call
    on all waits for the turn's end: then it goes out just as it came, or, where a call is ours, it is
    dropped, what was said after the call with it. Nothing is hidden of a turn that failed. While nothing of
    an earlier turn was shown, the bytes are upstream's own, but for the usage, which is of all turns; else a
    turn's events are written anew to go on where the one before ended.
    """

    def __init__(self) -> None:
        self.usage: Mapping[str, Any] | None = None  # of the hidden turns
        self.has_sent = False
        self.is_raw = True
        self._held: list[Event] = []
        self._is_holding = False

    def feed(self, event: Event) -> bytes:
        """The next event of a turn; the bytes that it lets out."""
        kind = self.read(event)
        self._is_holding = self._is_holding or kind is Kind.CALL
        waits = kind is Kind.TIED or (kind is Kind.SILENT and (self._held or not self.has_sent))
        self._held.append(event)
        return b"" if self._is_holding or waits else self._let_out()

    def end(self, may_hide: bool) -> tuple[bytes, Spoken | None]:
        """The turn is over: the last of its bytes, and the turn itself where it is hidden and must go on."""
        spoken = self.spoken()
        if not (may_hide and self._is_holding and spoken.is_ours):
            return self._let_out(), None
        self.usage = total(self.usage, spoken.usage)
        self._held.clear()
        self._is_holding = False
        self.is_raw = not self.has_sent
        self.begin()
        return b"", spoken

    def broken(self) -> bytes:
        """The stream broke off within a turn: what the client can still be given of it."""
        return b"" if self.spoken().is_ours else self._let_out()

    def _let_out(self) -> bytes:
        out = b"".join(self.write(event) for event in self._held)
        self._held.clear()
        self.has_sent = self.has_sent or bool(out)
        return out

    # what a dialect knows

    def begin(self) -> None:
        """Another turn begins."""
        raise NotImplementedError

    def read(self, event: Event) -> Kind:
        """Note what an event of the present turn says, and tell what it is."""
        raise NotImplementedError

    def write(self, event: Event) -> bytes:
        """The event's bytes for the client."""
        raise NotImplementedError

    def spoken(self) -> Spoken:
        """The present turn as far as it was read."""
        raise NotImplementedError


class Speech(Protocol):
    """How one route's requests offer tools, and how its answers call them."""

    key: str

    def offer(self, body: Mapping[str, Any]) -> list[Any] | None:
        """The tools of a request with ours among them; None where they cannot be offered."""

    def spoken(self, value: Mapping[str, Any], body: Mapping[str, Any]) -> Spoken:
        """The turn in a whole answer to a request."""

    def result(self, call: Call, text: str) -> Any | None:
        """What answers a call in the next request; None where a text cannot, and the call was left out."""

    def stream(self, body: Mapping[str, Any]) -> Stream:
        """A reader of the streamed answers to a request."""


def total(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The usage of two calls together: numbers are added, also those of details."""
    if one is None or other is None:
        return dict(one or other or {}) or None
    added = dict(one)
    for key, value in other.items():
        old = added.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            added[key] = total(old, value)
        elif _is_number(old) and _is_number(value):
            added[key] = old + value
        elif value is not None:
            added[key] = value
    return added


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def sound(arguments: Any) -> str:
    """A call's arguments as a provider takes them back: broken JSON, which some refuse, becomes ``{}``."""
    if not isinstance(arguments, str) or not arguments.strip() or "_raw" in parse_arguments(arguments):
        return "{}"
    return arguments
