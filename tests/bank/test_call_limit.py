"""The Observer's calls are counted before they are made, so that callers at once never pass the limit together."""

from functools import partial

import pytest
from tests.contracts.stores import together

from memory_bank.bank.listing import list_sessions
from memory_bank.bank.worker import book_call

DAY = 86_400.0


@pytest.mark.parametrize("sessions", [1, 3])
def test_the_limit_holds_under_threads(database, sessions):
    for k in range(sessions):
        database.open_session(f"s{k}")
    book = [partial(book_call, database, f"s{k % sessions}", 5, lambda: DAY * 20_000) for k in range(8)]
    allowed = []
    together(*[lambda b=b: allowed.extend(not b() for _ in range(3)) for b in book])
    assert sum(allowed) == 5
    assert sum(s.calls for s in list_sessions(database)) == 5
    assert book[0]() == "the Observer's limit is reached (5 calls a day)"


def test_a_new_day_has_its_own_limit(database):
    now = [DAY * 20_000 - 1.0]
    book = partial(book_call, database, "s", clock=lambda: now[0])
    assert book(1) is None
    assert book(1)
    now[0] += 2
    assert book(1) is None
    assert book(0)
    assert book(None) is None
