"""Prices by the beginning of a model's name; tokens with a prefix cache; the full history is never overstated."""

import json
from datetime import date

import pytest

from memory_bank.config import Price
from memory_bank.pricing import (
    LEAST_STANDING,
    MISSES,
    RETRY_AFTER,
    Charge,
    PrefixCache,
    Usage,
    cached_tokens,
    cost,
    full_usage,
    list_prices,
    price_of,
)
from tests.chats import report

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
    wholly = full_usage(
        sent, 5_000, 5_000, 4_800, caches=True
    )  # it was the full history, which no cache held
    assert wholly == Usage(5_500, 5_280, 0, 70)
    full = full_usage(sent, 5_000, 30_000, 29_000, caches=True)
    assert full == Usage(33_000, 31_900, 0, 70)  # this provider counts a tenth more, of both
    assert full_usage(sent, 5_000, 30_000, 29_000, caches=False) == Usage(33_000, 0, 0, 70)
    wrote = Usage(input=5_500, cached=4_000, written=1_000, output=70)
    assert full_usage(wrote, 5_000, 30_000, 29_000, caches=True) == Usage(33_000, 31_900, 1_100, 70)
    hidden = Usage(input=45_000, output=90)  # four requests, which sent more than the full history has
    assert full_usage(hidden, 36_000, 30_000, 29_000, caches=False).input == 37_500


# what is known of a prefix cache


def missed(cache, times=MISSES):
    for _ in range(times):
        report(cache, LEAST_STANDING, 0)
    return cache.read


def test_some_misses_in_a_row_mean_no_cache_and_one_hit_means_one():
    cache = PrefixCache()
    assert missed(cache, MISSES - 1) == 0.1
    report(cache, LEAST_STANDING, None)  # an answer without usage is none of them, and does not end the row
    report(cache, LEAST_STANDING - 1, 0)  # nor is one to a prefix that is too short to be kept
    assert missed(cache, 1) == 1.0
    report(cache, 0, 128)
    assert cache.read == 0.1
    assert missed(cache, MISSES - 1) == 0.1


def test_a_cache_is_assumed_again_after_some_answers():
    cache = PrefixCache()
    found = []
    for _ in range(3):
        assert missed(cache) == 1.0
        found.append(0)
        while cache.read == 1.0:
            report(cache, 0, 0)
            found[-1] += 1
    assert found == [RETRY_AFTER] * 3
    report(cache, 0, 128)
    assert missed(cache) == 1.0
    for _ in range(RETRY_AFTER):
        report(cache, 0, 0)
    assert cache.read == 0.1


def test_another_model_begins_anew():
    cache = PrefixCache()
    cache.take_price(None, "claude-x")
    assert missed(cache) == 1.0
    cache.take_price(None, "claude-x")
    assert cache.read == 1.0
    cache.take_price(PRICES["gpt-4.1"], "gpt-4.1")
    assert (cache.read, cache.write) == (0.25, 1.0)


def test_what_an_answer_says_depends_on_the_request_before():
    """It must have had its answer, of the same model, and the messages of both must begin alike."""
    cache, charge = PrefixCache(), Charge(1.0, 1.0, LEAST_STANDING)

    def missed(standing=LEAST_STANDING, answered=True):
        charge = Charge(1.0, 1.0, standing)
        cache.ask(1.0, charge)
        if answered:
            cache.answered(charge, 0)
        return json.loads(cache.told)[1]

    assert [missed() for _ in range(3)] == [0, 1, 2]
    assert missed(LEAST_STANDING - 1) == 2
    assert [missed(answered=False), missed(), missed()] == [2, 2, 3]
    cache.take_price(None, "n")
    assert [missed(), missed()] == [0, 1]
    other = PrefixCache()
    other.take_price(None, "n")
    other.tell(cache.told)  # what another process stored goes on
    other.ask(1.0, charge)
    other.answered(charge, 0)
    assert (json.loads(other.told)[1], charge.before) == (2, [0, 0])
    other.tell(json.dumps([other.key, 1, {}]))  # as a bank of an older version has it
    _, misses, _, answered, _ = json.loads(other.told)
    assert (misses, answered) == (1, None)


def test_where_only_marks_are_cached_a_changed_context_says_nothing():
    cache = PrefixCache()
    for _ in range(3 * MISSES):
        charge = Charge(1.0, 1.0, standing=LEAST_STANDING)
        cache.ask(1.0, charge)
        cache.answered(charge, 0, by_marks=True)
    assert cache.read == 0.1


def test_how_both_counts_grew_is_their_ratio():
    """Tools, whose tokens the provider counts otherwise, stand in both requests."""
    cache, ratios = PrefixCache(), []
    for n in range(5):
        charge = Charge(1.0, 1.0, is_longer=n != 3)
        cache.ask(1.0, charge)
        ratios.append(cache.ratio(charge, 1_000 + 1_500 * n, 9_000 + 3_000 * n, whole=True))
        cache.answered(charge, None)
        told, cache = cache.told, PrefixCache()
        cache.tell(told)
    assert ratios == [9, 4.8, 2, 2, 2]
    first = Charge(1.0, 1.0)
    assert PrefixCache().ratio(first, 9_000, 18_000, whole=True) == 2
    cache = PrefixCache()
    assert cache.ratio(first, 9_000, 18_000, whole=True, plain=True) == 2
    assert (
        cache.ratio(Charge(1.0, 1.0), 5_000, 15_000, whole=True) == 2
    )  # a fold is counted otherwise than messages


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ("gpt-4.1", "gpt-4-1"),
        ("openai/gpt-4.1-mini-2025-04-14", "gpt-4-1-mini"),
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("claude-sonnet-4-20250514", "claude-sonnet-4"),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5"),
        ("gemini-2.5-pro", "gemini-2-5-pro"),
        ("gpt-5.99", None),  # a newer model is not priced as an older one
        ("claude-sonnet-4-99", None),
        ("my-model", None),
        ("", None),
    ],
)
def test_shipped_prices_are_found_by_the_whole_name(model, known):
    prices = list_prices()
    assert prices.price(model) == (None if known is None else prices.models[known])


def test_shipped_prices_have_a_source_a_date_and_all_kinds_of_tokens():
    prices = list_prices()
    assert prices.source.startswith("genai-prices ") and date.fromisoformat(prices.date) > date(2026, 1, 1)
    assert len(prices.models) > 100
    claude = prices.models["claude-sonnet-4-5"]
    assert claude.cached < claude.prompt < claude.cache_write < claude.completion
