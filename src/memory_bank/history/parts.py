"""What an action consists of: tool calls, observations, timing, token usage; values that check themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from memory_bank.errors import HistoryError
from memory_bank.history.frozen import Json, freeze, thaw
from memory_bank.transcript.content import content_text
from memory_bank.transcript.jsontext import compact, parse_arguments, parse_output
from memory_bank.transcript.shortening import cut_at_edge, shorten, shorten_text

P = TypeVar("P")


def positive(value: Any, name: str) -> int:
    """A limit, when it is a whole number of at least 1. Raises HistoryError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise HistoryError(f"{name} is {value!r}: give a whole number of at least 1.")
    return value


def is_amount(value: Any) -> bool:
    """Whether a value is a finite number of at least 0."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value >= 0


def cut(text: str, n: int) -> str:
    """At most ``n`` characters of a text, JSON by its structure, saying what is missing where room is."""
    if len(text) <= n:
        return text
    return shorten(parse_output(text), n, text=text).text


def made(cls: type[P], given: Any, what: str) -> P:
    """A part from its dict. Raises HistoryError for anything but a dict with the part's fields."""
    if isinstance(given, cls):
        return given
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    if not isinstance(given, Mapping) or not set(given) <= known:
        told = ", ".join(sorted(known))
        raise HistoryError(f"{what} is no {cls.__name__}: give one, or a dict with {told}.")
    try:
        return cls(**given)
    except TypeError as e:
        raise HistoryError(f"{what} lacks a field of a {cls.__name__}: {e}.") from e


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call: the tool's name, its arguments (a JSON value, or text to the letter), its id.

    Without an id, the messages carry one made of the step's number and the call's place.
    """

    name: str
    arguments: Any = None
    id: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not (self.id is None or isinstance(self.id, str)):
            raise HistoryError("a tool call needs a name, and its id is text or None.")
        object.__setattr__(self, "arguments", freeze(self.arguments))

    @property
    def text(self) -> str:
        """The arguments as text, ``{}`` for none."""
        if isinstance(self.arguments, str):
            return self.arguments
        return "{}" if self.arguments is None else compact(self.arguments)

    def truncate(self, n: int) -> ToolCall:
        """The call with each text in its arguments at most ``n`` characters; they stay a JSON object."""
        if len(self.text) <= positive(n, "n"):
            return self
        return ToolCall(self.name, _cut_leaves(parse_arguments(self.arguments), n), self.id)

    def dict(self) -> Json:
        """JSON values, as ``from_dict`` takes them."""
        return {"name": self.name, "arguments": thaw(self.arguments), "id": self.id}

    @classmethod
    def from_dict(cls, given: Any) -> ToolCall:
        """A call from ``dict()``, or from a provider's ``{"id", "function": {"name", "arguments"}}``."""
        if isinstance(given, Mapping) and isinstance(given.get("function"), Mapping):
            body = given["function"]
            given = {"name": body.get("name"), "arguments": body.get("arguments"), "id": given.get("id")}
        return made(cls, given, "a tool call")


def _cut_leaves(value: Any, n: int) -> Any:
    if isinstance(value, str):
        return shorten_text(value, n)
    if isinstance(value, dict):
        return {k: _cut_leaves(v, n) for k, v in value.items()}
    if isinstance(value, list):
        return [_cut_leaves(v, n) for v in value]
    return value


@dataclass(frozen=True, slots=True)
class Observation:
    """What came back for a call: text, or a list of content parts (text, image).

    ``call_id`` names the call; without it, observations answer the calls in their order. ``whole`` is False
    where it was shortened, ``trace_id`` the record that then holds all of it.
    """

    content: Any
    call_id: str | None = None
    whole: bool = True
    trace_id: str | None = None

    def __post_init__(self) -> None:
        for text in (self.call_id, self.trace_id):
            if not (text is None or isinstance(text, str)):
                raise HistoryError("an observation's call_id and trace_id are text or None.")
        object.__setattr__(self, "content", freeze(self.content))

    @property
    def text(self) -> str:
        """The readable text; parts that are not text are named."""
        return content_text(self.content)

    def truncate(self, n: int) -> Observation:
        """At most ``n`` characters; images become their names. One that names its record stays as it is."""
        positive(n, "n")
        if self.trace_id is not None or (isinstance(self.content, str) and len(self.content) <= n):
            return self
        return Observation(cut(self.text, n), self.call_id, False)

    def dict(self) -> Json:
        """JSON values, as ``from_dict`` takes them."""
        return {
            "content": thaw(self.content),
            "call_id": self.call_id,
            "whole": self.whole,
            "trace_id": self.trace_id,
        }

    @classmethod
    def from_dict(cls, given: Any) -> Observation:
        """An observation from ``dict()``; a text is one too."""
        return cls(given) if isinstance(given, (str, list, tuple)) else made(cls, given, "an observation")


@dataclass(frozen=True, slots=True)
class Timing:
    """When a step began and ended, in Unix seconds; ``end`` is None while it runs."""

    start: float
    end: float | None = None

    def __post_init__(self) -> None:
        if not is_amount(self.start) or not (self.end is None or is_amount(self.end)):
            raise HistoryError("a timing is in Unix seconds: give numbers of at least 0.")
        if self.end is not None and self.end < self.start:
            raise HistoryError("a timing ends before it starts: give start, then end.")

    @property
    def seconds(self) -> float | None:
        """How long the step took."""
        return None if self.end is None else self.end - self.start

    def dict(self) -> Json:
        """JSON values."""
        return {"start": self.start, "end": self.end}


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens that a model reported for a step."""

    input_tokens: int = 0
    output_tokens: int = 0

    def __post_init__(self) -> None:
        for n in (self.input_tokens, self.output_tokens):
            if not is_amount(n) or not isinstance(n, int):
                raise HistoryError(f"a token usage is {n!r}: give whole numbers of at least 0.")

    @property
    def total(self) -> int:
        """Both kinds."""
        return self.input_tokens + self.output_tokens

    def dict(self) -> Json:
        """JSON values."""
        return {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}


@dataclass(frozen=True, slots=True)
class Source:
    """The messages a step was read from, kept where rendering would not give them back to the letter."""

    messages: tuple[Any, ...]
    wire: str = "tools"

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", tuple(freeze(m) for m in self.messages))

    def dict(self) -> Json:
        """JSON values."""
        return {"messages": thaw(list(self.messages)), "wire": self.wire}


def one_line(text: str, room: int) -> str:
    """At most ``room`` characters of a text on one line, cut between words."""
    return cut_at_edge(" ".join(text[: 4 * room].split()), room)
