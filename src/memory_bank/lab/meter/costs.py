"""What messages cost in tokens, each text counted once."""

from __future__ import annotations

from typing import Any

from memory_bank.lab.meter.needs import message_texts
from memory_bank.ports import TokenCounter
from memory_bank.transcript.tokens import ENCODING, FRAME_TOKENS, open_counter

REFERENCE = "reference"
"""The name of the reference meter's counting rule."""

_REFERENCE_ENCODING, _REFERENCE_CHUNK = "cl100k_base", 4_000


class ReferenceCounter:
    """Counts as the reference meter does (``evbench.text``): 4 a message and its texts by cl100k_base.

    A call is one text, name and arguments with a blank between; texts are encoded 4,000 characters at a time.
    """

    name = REFERENCE

    def __init__(self) -> None:
        self._counter = open_counter(_REFERENCE_ENCODING)
        self.approximate = self._counter.approximate

    def count_text(self, text: str) -> int:
        """Tokens of a text."""
        pieces = range(0, len(text), _REFERENCE_CHUNK)
        return sum(self._counter.count_text(text[i : i + _REFERENCE_CHUNK]) for i in pieces)

    def count_message(self, message: Any) -> int:
        """Tokens of a message."""
        return FRAME_TOKENS + sum(map(self.count_text, message_texts(message)))


def named_counter(name: str = ENCODING) -> TokenCounter:
    """A counter by a name that can travel: an encoding, ``approximate`` or ``reference``."""
    return ReferenceCounter() if name == REFERENCE else open_counter(name)


class Costs:
    """The tokens of messages by a counter; what was counted once is known."""

    def __init__(self, counter: TokenCounter, most: int = 100_000) -> None:
        self.counter = counter
        self._most = most
        self._known: dict[Any, int] = {}

    def of(self, message: Any) -> int:
        """Tokens of one message."""
        key = _key(message)
        if key is None:
            return self.counter.count_message(message)
        tokens = self._known.get(key)
        if tokens is None:
            if len(self._known) >= self._most:
                self._known.clear()
            tokens = self._known[key] = self.counter.count_message(message)
        return tokens

    def total(self, messages: list[Any]) -> int:
        """Tokens of several messages."""
        return sum(map(self.of, messages))


def _key(message: Any) -> tuple[Any, ...] | None:
    """What a plain message is counted by, or None where its shape is another."""
    if not isinstance(message, dict) or message.get("role") is None or message.get("function_call"):
        return None
    content, calls = message.get("content"), message.get("tool_calls")
    if not (content is None or isinstance(content, str)):
        return None
    if not calls:
        return (content,)
    try:
        bodies = tuple((c["function"]["name"], c["function"]["arguments"]) for c in calls)
        hash(bodies)
    except (KeyError, TypeError):
        return None
    return (content, bodies)
