"""The rule of the prefix cache: any earlier request."""

import pytest

from memory_bank.audit.costs import ScriptedCache
from memory_bank.pricing import Usage
from memory_bank.transcript import open_counter

COUNTER = open_counter("approximate")
A, B, C, D = (f"{name} " * 2_000 for name in ("alpha", "beta", "gamma", "delta"))


def parts(*texts):
    return [(text, COUNTER.count_text(text)) for text in texts]


def size(*texts):
    return sum(tokens for _, tokens in parts(*texts))


def test_a_prefix_of_any_earlier_request_is_read_and_the_rest_written():
    cache = ScriptedCache(COUNTER)
    assert cache.add(parts(A, B)) == Usage(size(A, B), 0, size(A, B))
    assert cache.add(parts(A, C)).cached == size(A)
    assert cache.add(parts(A, B, D)) == Usage(size(A, B, D), size(A, B), size(D))
    assert cache.add(parts(B, A)).cached == 0


def test_the_beginning_of_a_part_counts_and_a_short_prefix_does_not():
    cache = ScriptedCache(COUNTER)
    cache.add(parts(A + B, "end"))
    assert cache.add(parts(A + C)).cached == pytest.approx(size(A), abs=20)
    assert ScriptedCache(COUNTER).add(parts("short")) == Usage(size("short"), 0, 0)
    cache.add(parts("short", A))
    assert cache.add(parts("short", B)).cached == 0
