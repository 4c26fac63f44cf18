"""Prices by the beginning of a model's name; tokens with a prefix cache; the full history is never overstated."""

import pytest

from memory_bank.config import Price
from memory_bank.pricing import Usage, cached_tokens, cost, full_usage, price_of

PRICES = {
    "gpt-4.1": Price(prompt=2, completion=8, cached=0.5),
    "gpt-4.1-mini": Price(prompt=0.4, completion=1.6),
    "claude": Price(prompt=3, completion=15, cached=0.3, cache_write=3.75),
}


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ("gpt-4.1", "gpt-4.1"),
        ("gpt-4.1-2025-04-14", "gpt-4.1"),
        ("gpt-4.1-mini-2025", "gpt-4.1-mini"),
        ("anthropic/claude-sonnet", "claude"),
        ("gpt-4", None),
        ("", None),
    ],
)
def test_the_longest_beginning_counts(model, found):
    assert price_of(PRICES, model) == (PRICES[found] if found else None)


def test_cost_by_kind_of_token():
    usage = Usage(input=1_000_000, cached=600_000, written=100_000, output=10_000)
    assert cost(usage, PRICES["claude"]) == pytest.approx(0.3 * 3 + 0.6 * 0.3 + 0.1 * 3.75 + 0.01 * 15)
    assert cost(usage, PRICES["gpt-4.1-mini"]) == pytest.approx(0.4 + 0.016)  # no other price: as plain input


def test_a_short_prefix_is_not_cached():
    assert [cached_tokens(n) for n in (0, 1023, 1024, 5000)] == [0, 0, 1024, 5000]
    assert cached_tokens(10, minimum=5) == 10


def test_the_full_history_is_estimated_with_a_cache_that_holds_all():
    sent = Usage(input=5_500, cached=4_000, output=70)
    assert full_usage(sent, 5_000, 5_000, 4_800, caches=True) == sent  # it was the full history
    full = full_usage(sent, 5_000, 30_000, 29_000, caches=True)
    assert full == Usage(30_500, 29_500, 0, 70)  # 500 tokens of tools are in both
    assert full_usage(sent, 5_000, 30_000, 29_000, caches=False) == Usage(30_500, 0, 0, 70)
    wrote = Usage(input=5_500, cached=4_000, written=1_000, output=70)
    assert full_usage(wrote, 5_000, 30_000, 29_000, caches=True) == Usage(30_500, 29_500, 1_000, 70)
