"""What model calls cost: prices by model, tokens with a provider's prefix cache, the full history's estimate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memory_bank.config import Price

__all__ = ["CACHE_MINIMUM", "Price", "Usage", "cached_tokens", "cost", "full_usage", "price_of"]

CACHE_MINIMUM = 1024
"""Tokens from which providers keep a prefix in their cache."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of model calls. ``input`` includes those ``cached`` and those that were ``written`` to the cache."""

    input: int = 0
    cached: int = 0
    written: int = 0
    output: int = 0


def cost(usage: Usage, price: Price) -> float:
    """What tokens cost, in the currency of the price."""
    cached = price.prompt if price.cached is None else price.cached
    written = price.prompt if price.cache_write is None else price.cache_write
    plain = usage.input - usage.cached - usage.written
    return (
        plain * price.prompt
        + usage.cached * cached
        + usage.written * written
        + usage.output * price.completion
    ) / 1e6


def price_of(prices: Mapping[str, Price], model: str) -> Price | None:
    """The price of a model: of the longest name in the table that its name begins with; None without one.

    A provider before a slash, as in ``openai/gpt-4.1``, is ignored where no name in the table has it.
    """
    for name in (model, model.rpartition("/")[2]):
        found = max((p for p in prices if name.startswith(p)), key=len, default=None)
        if found is not None:
            return prices[found]
    return None


def cached_tokens(shared: int, minimum: int = CACHE_MINIMUM) -> int:
    """Of a request that begins as the one before with ``shared`` tokens, those that a prefix cache holds."""
    return shared if shared >= minimum else 0


def full_usage(sent: Usage, tokens: int, full_tokens: int, known_tokens: int, *, caches: bool) -> Usage:
    """What the full history would have used in place of a context whose usage the provider reported.

    Args:
        sent: the reported usage of the context.
        tokens: of the context, as memory counts them.
        full_tokens: of the full history, counted in the same way.
        known_tokens: of its messages that the request before had too.
        caches: whether the provider has a prefix cache in use for these requests.

    The provider's tokens beyond those of the messages (the tools, for example) are added to both. The cache is
    taken to hold everything that the request before had, and the output to be the same, so that savings are
    not overstated.
    """
    if tokens == full_tokens:
        return sent
    beyond = max(0, sent.input - tokens)
    total = full_tokens + beyond
    cached = cached_tokens(known_tokens + beyond) if caches and known_tokens else 0
    written = total - cached if caches and sent.written else 0
    return Usage(total, cached, written, sent.output)
