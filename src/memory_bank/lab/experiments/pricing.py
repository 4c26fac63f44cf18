"""What a run of requests costs: plain, and with the provider's cache of common prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memory_bank.lab.experiments.config import CostSettings
from memory_bank.lab.meter.costs import Costs
from memory_bank.transcript.content import read
from memory_bank.transcript.jsontext import compact, plain


@dataclass(frozen=True, slots=True)
class Bill:
    """Of one run: input tokens, those of them that a cache would have known, and both costs."""

    tokens: int
    cached: int
    plain: float
    priced: float


def bill(contexts: Sequence[Sequence[Any]], costs: Costs, prices: CostSettings) -> tuple[Bill, list[int]]:
    """The bill of successive requests, and the cached tokens of each.

    A request's cached tokens are those of the longest prefix that it shares with the request before: whole
    messages, and of the first that differs the beginning of its text. Shorter ones than ``cache_minimum``
    count for nothing. Output tokens are not counted: they are the same under every strategy.
    """
    tokens, cached = 0, []
    before: Sequence[Any] = ()
    for context in contexts:
        tokens += costs.total(list(context))
        shared = common_prefix(before, context, costs)
        cached.append(shared if shared >= prices.cache_minimum else 0)
        before = context
    per_token = prices.price_per_million / 1_000_000
    known = sum(cached)
    return Bill(
        tokens, known, tokens * per_token, (tokens - known * prices.cached_discount) * per_token
    ), cached


def common_prefix(before: Sequence[Any], now: Sequence[Any], costs: Costs) -> int:
    """Tokens at the beginning of a request that the one before began with too."""
    total = 0
    for old, new in zip(before, now, strict=False):
        if old is new or old == new:
            total += costs.of(new)
            continue
        return total + _begun(old, new, costs)
    return total


def _begun(old: Any, new: Any, costs: Costs) -> int:
    """Tokens that two different messages begin with."""
    if read(old, "role") != read(new, "role"):
        return 0
    a, b = _text(old), _text(new)
    return costs.counter.count_text(a[: _shared(a, b)])


def _text(message: Any) -> str:
    content = read(message, "content")
    said = content if isinstance(content, str) else "" if content is None else compact(plain(content))
    calls = read(message, "tool_calls")
    return said + compact(plain(calls)) if calls else said


def _shared(a: str, b: str) -> int:
    """How many characters two texts begin with alike, by halving."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
