"""When something is tried that has hung lately."""

from memory_bank.service.proxy.rebuild import CircuitBreaker


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def opened(clock):
    breaker = CircuitBreaker(hangs=2, pause=10, clock=clock)
    for _ in range(2):
        assert breaker.allows()
        breaker.hung()
    return breaker


def test_it_lets_through_what_works():
    breaker = CircuitBreaker(hangs=2, pause=10, clock=Clock())
    for hangs in (0, 1, 1, 1):
        for _ in range(hangs):
            breaker.hung()
        assert breaker.allows()
        breaker.worked()


def test_after_two_hangs_one_tries_when_the_pause_is_over():
    clock = Clock()
    breaker = opened(clock)
    assert not breaker.allows()
    clock.now += 9.9
    assert not breaker.allows()
    clock.now += 0.2
    assert [breaker.allows() for _ in range(3)] == [True, False, False]
    breaker.worked()
    assert [breaker.allows() for _ in range(3)] == [True] * 3


def test_a_try_that_hangs_begins_a_new_pause():
    clock = Clock()
    breaker = opened(clock)
    clock.now += 11
    assert breaker.allows()
    breaker.hung()
    assert not breaker.allows()
    clock.now += 11
    assert breaker.allows()


def test_a_try_that_is_given_up_leaves_the_next():
    clock = Clock()
    breaker = opened(clock)
    clock.now += 11
    assert breaker.allows()
    breaker.abandoned()
    assert breaker.allows()
    assert not breaker.allows()
