"""What messages cost: tokens by a counter, and money with and without a provider's prefix cache."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from memory_bank.lab.meter.copies import shared_length
from memory_bank.lab.traces import message_texts
from memory_bank.pricing import Price, Usage, cached_tokens, cost
from memory_bank.transcript import ENCODING, TokenCounter, compact, open_counter, read

REFERENCE = "reference"
"""The name of the reference meter's counting rule."""


class ReferenceCounter:
    """Counts as the reference meter does (``evbench.text``): 4 a message and its texts by cl100k_base.

    A call is one text, its name and arguments separated by a space; texts are encoded 4,000 characters at a
    time.
    """

    name = REFERENCE
    _CHUNK = 4_000

    def __init__(self) -> None:
        self._counter = open_counter("cl100k_base")
        self.approximate = self._counter.approximate

    def count_text(self, text: str) -> int:
        """Tokens of a text."""
        chunks = (text[i : i + self._CHUNK] for i in range(0, len(text), self._CHUNK))
        return sum(map(self._counter.count_text, chunks))

    def count_message(self, message: object) -> int:
        """Tokens of a message."""
        return 4 + sum(map(self.count_text, message_texts(message)))


@lru_cache(maxsize=4)
def named_counter(name: str = ENCODING) -> TokenCounter:
    """The counter of a tiktoken encoding, or the one named ``approximate`` or ``reference``."""
    return ReferenceCounter() if name == REFERENCE else open_counter(name)


class Costs:
    """Counts the tokens of messages; remembers the counts of up to ``most`` different messages."""

    def __init__(self, counter: TokenCounter, most: int = 100_000) -> None:
        self.counter = counter
        self._most = most
        self._known: dict[Hashable, int] = {}

    def of(self, message: object) -> int:
        """Tokens of one message."""
        key = _cache_key(message)
        if key is None:
            return self.counter.count_message(message)
        tokens = self._known.get(key)
        if tokens is None:
            if len(self._known) >= self._most:
                self._known.clear()
            tokens = self._known[key] = self.counter.count_message(message)
        return tokens

    def total(self, messages: Sequence[object]) -> int:
        """Tokens of several messages."""
        return sum(map(self.of, messages))


def _cache_key(message: object) -> Hashable | None:
    """Everything that a plain message's count depends on; None for a message of any other shape."""
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


@dataclass(frozen=True, slots=True)
class Bill:
    """Of one run: input tokens, those of them that a prefix cache holds, the plain and the cached cost."""

    tokens: int
    cached: int
    plain: float
    priced: float


def bill(
    contexts: Sequence[Sequence[object]],
    costs: Costs,
    price_per_million: float,
    cached_discount: float,
    cache_minimum: int,
) -> tuple[Bill, list[int]]:
    """The bill of successive requests, and the cached tokens of each.

    The cached tokens of a request are those of the longest prefix that it shares with the request before:
    whole messages, and the beginning of the first message that differs. A prefix shorter than
    ``cache_minimum`` counts as 0. Output tokens are not counted: they are the same under every strategy.
    """
    tokens, cached = 0, []
    before: Sequence[object] = ()
    for context in contexts:
        tokens += costs.total(context)
        cached.append(cached_tokens(common_prefix(before, context, costs), cache_minimum))
        before = context
    price = Price(prompt=price_per_million, completion=0, cached=price_per_million * (1 - cached_discount))
    known = sum(cached)
    return Bill(tokens, known, cost(Usage(tokens), price), cost(Usage(tokens, known), price)), cached


def common_prefix(before: Sequence[object], now: Sequence[object], costs: Costs) -> int:
    """Tokens of the longest prefix that two requests share."""
    total = 0
    for old, new in zip(before, now, strict=False):
        if old is not new and old != new:
            if read(old, "role") == read(new, "role"):
                a, b = _request_text(old), _request_text(new)
                total += costs.counter.count_text(a[: shared_length(a, b)])
            return total
        total += costs.of(new)
    return total


def _request_text(message: object) -> str:
    content, calls = read(message, "content"), read(message, "tool_calls")
    text = content if isinstance(content, str) else "" if content is None else compact(content)
    return text + compact(calls) if calls else text
