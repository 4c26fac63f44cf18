"""The cost of messages: tokens by a counter, and money with and without a provider's prefix cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from memory_bank.pricing import CACHE_MINIMUM, Usage, cached_tokens
from memory_bank.transcript import TokenCounter, compact, open_counter, read

named_counter = lru_cache(maxsize=4)(open_counter)
"""The counter of a tiktoken encoding, or the one named ``approximate``; opened once."""

Part = tuple[str, int]
"""A part of a request, such as a message: its text and its tokens."""


class Costs:
    """Counts the tokens of messages; remembers the counts of up to ``most`` different messages."""

    def __init__(self, counter: TokenCounter, most: int = 100_000) -> None:
        self.counter = counter
        self._most = most
        self._counts: dict[tuple[bool, str], int] = {}

    def part(self, message: object) -> Part:
        """One message as a part of a request."""
        content, calls = read(message, "content"), read(message, "tool_calls")
        plain = isinstance(content, str)
        text = content if plain else "" if content is None else compact(content)
        text = f"{read(message, 'role')} {text}{compact(calls) if calls else ''}"
        if read(message, "role") is None or read(message, "function_call"):
            return text, self.counter.count_message(message)
        tokens = self._counts.get((plain, text))
        if tokens is None:
            if len(self._counts) >= self._most:
                self._counts.clear()
            tokens = self._counts[plain, text] = self.counter.count_message(message)
        return text, tokens

    def parts(self, messages: Sequence[object]) -> list[Part]:
        """Messages as the parts of a request."""
        return list(map(self.part, messages))

    def of(self, message: object) -> int:
        """Tokens of one message."""
        return self.part(message)[1]

    def total(self, messages: Sequence[object]) -> int:
        """Tokens of several messages."""
        return sum(map(self.of, messages))


def shared_length(a: str, b: str) -> int:
    """How many leading characters two texts share, by bisection (slices compare faster than characters)."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class ScriptedCache:
    """A provider's prefix cache during one run: what its requests began with, from ``minimum`` tokens."""

    def __init__(self, counter: TokenCounter, minimum: int = CACHE_MINIMUM) -> None:
        self.minimum = minimum
        self._counter = counter
        self._parts: dict[str, Any] = {}  # a tree: the texts of the parts of all requests, by their place

    def add(self, parts: Sequence[Part]) -> Usage:
        """The input tokens of the next request, those read from the cache and those written to it.

        Read is the longest prefix that any earlier request has too (whole parts, and the beginning of the first part
        that differs), and all the rest is written.
        """
        total = shared = 0
        place, is_prefix = self._parts, True
        for text, tokens in parts:
            total += tokens
            if is_prefix and text not in place:
                is_prefix = False
                most = max((shared_length(text, other) for other in place), default=0)
                shared += min(tokens, self._counter.count_text(text[:most])) if most else 0
            elif is_prefix:
                shared += tokens
            place = place.setdefault(text, {})
        cached = cached_tokens(shared, self.minimum)
        return Usage(total, cached, total - cached if total >= self.minimum else 0)
