"""Buckets of requests: what comes at once, what comes later, and what a worker's share is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_bank.errors import TooManyRequestsError
from memory_bank.service.security.access import RateLimits


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def taken(limits, key, per_minute, times):
    done = 0
    for _ in range(times):
        try:
            limits.take(key, per_minute)
        except TooManyRequestsError:
            break
        done += 1
    return done


def test_a_bucket_is_emptied_at_once_and_filled_by_and_by():
    clock = Clock()
    limits = RateLimits(clock=clock)
    assert taken(limits, "a", 60, 100) == 60
    with pytest.raises(TooManyRequestsError) as refused:
        limits.take("a", 60)
    assert refused.value.retry_after == pytest.approx(1)
    assert taken(limits, "b", 60, 100) == 60  # every key has its own
    clock.now = 1.01
    assert taken(limits, "a", 60, 100) == 1
    clock.now = 1e6
    assert taken(limits, "a", 60, 100) == 60


def test_workers_share_a_limit():
    assert [taken(RateLimits(4, clock=Clock()), "a", 60, 100) for _ in range(4)] == [15] * 4
    assert taken(RateLimits(64, clock=Clock()), "a", 2, 100) == 1


def test_no_limit_and_one_that_changed():
    limits = RateLimits(clock=Clock())
    assert taken(limits, "a", 0, 10_000) == 10_000
    assert taken(limits, "a", 3, 10) == 3
    assert taken(limits, "a", 5, 10) == 5


@given(st.integers(1, 600), st.integers(1, 8), st.lists(st.floats(0, 30), min_size=1, max_size=60))
def test_never_more_than_a_bucket_and_what_flows_in(per_minute, workers, pauses):
    clock = Clock()
    limits = RateLimits(workers, clock=clock)
    came = 0
    for pause in pauses:
        clock.now += pause
        came += taken(limits, None, per_minute, 50)
    share = per_minute / workers
    assert came <= max(1, share) + share * clock.now / 60 + 1e-6
    taken(limits, None, per_minute, 10_000)
    with pytest.raises(TooManyRequestsError) as refused:
        limits.take(None, per_minute)
    clock.now += refused.value.retry_after + 1e-6
    limits.take(None, per_minute)  # who waits as long as told is let in
