"""The Observer's calls are counted before they are made, so that callers at once never pass the limit together."""

import pytest
from tests.contracts.stores import together

from memory_bank.bank.jobs import Spending
from memory_bank.records import Spent

DAY = 86_400.0
CALL = Spent(1, 60, 40, 0.25)


@pytest.mark.parametrize("sessions", [1, 3])
def test_the_limit_holds_under_threads(database, sessions):
    accounts = [Spending(database, f"s{k % sessions}", clock=lambda: DAY * 20_000) for k in range(8)]
    allowed = []
    together(*[lambda a=a: allowed.extend(not a.reserve("m", CALL, 5) for _ in range(3)) for a in accounts])
    assert sum(allowed) == 5
    assert sum(Spending(database, f"s{k}").of_session().calls for k in range(sessions)) == 5
    assert accounts[0].reserve("m", CALL, 5) == "the Observer's limit is reached (5 calls a day)"


def test_what_a_call_did_cost_takes_the_place_of_what_it_might(database):
    account = Spending(database, "s")
    account.reserve("m", CALL, None)
    account.settle("m", CALL, Spent(1, 30, 10, 0.125))
    assert account.of_session() == Spent(1, 30, 10, 0.125)


def test_a_new_day_has_its_own_limit(database):
    now = [DAY * 20_000 - 1.0]
    account = Spending(database, "s", clock=lambda: now[0])
    assert account.reserve("m", CALL, 1) is None
    assert account.reserve("m", CALL, 1)
    now[0] += 2
    assert account.reserve("m", CALL, 1) is None
    assert account.reserve("m", CALL, 0)


def test_a_call_over_midnight_is_settled_on_the_day_it_was_booked(database):
    now = [DAY * 20_000 - 1.0]
    account = Spending(database, "s", clock=lambda: now[0])
    account.reserve("m", CALL, None)
    now[0] += 2
    account.settle("m", CALL, Spent(1, 6, 4, 0.0))
    assert account.reserve("m", CALL, 1) is None  # nothing was spent on the new day
    now[0] -= 2
    assert account.reserve("m", CALL, 1)
