"""The rule of the prefix cache: any earlier request, the marks of the Messages API."""

import pytest

from memory_bank.lab.costs import ScriptedCache
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


def test_with_marks_only_what_they_end_is_written_and_read():
    cache = ScriptedCache(COUNTER)
    assert cache.add(parts(A, B, C), ()) == Usage(size(A, B, C))
    assert cache.add(parts(A, B, C), (2,)) == Usage(size(A, B, C), 0, size(A, B))
    assert cache.add(parts(A, B, D), (1, 3)) == Usage(size(A, B, D), size(A, B), size(D))
    assert cache.add(parts(A, C), (2,)) == Usage(size(A, C), size(A), size(C))
    assert cache.add(parts(B, A), (2,)).cached == 0


def test_a_written_prefix_is_found_at_most_20_parts_before_a_mark():
    cache = ScriptedCache(COUNTER)
    cache.add(parts(A), (1,))
    more = [f"part {i}" for i in range(20)]
    assert cache.add(parts(A, *more[:19]), (20,)).cached == size(A)
    assert cache.add(parts(A, "other", *more), (22,)).cached == 0
