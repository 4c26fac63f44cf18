"""Budgets: counted before a call is made, so that callers at once never pass a limit together."""

import pytest
from tests.contracts.stores import together

from memory_bank.bank.jobs import Spending
from memory_bank.config import ObserverBudget
from memory_bank.records import Spent

DAY = 86_400.0
CALL = Spent(1, 60, 40, 0.25)


@pytest.mark.parametrize(("kind", "limit", "calls"), [("calls", 5, 5), ("tokens", 799, 7), ("cost", 1.5, 6)])
@pytest.mark.parametrize("period", ["session", "day"])
def test_limits_hold_under_threads(database, kind, limit, calls, period):
    budget = ObserverBudget(**{f"{kind}_per_{period}": limit})
    sessions = [f"s{k % 3}" if period == "day" else "s" for k in range(8)]
    accounts = [Spending(database, s, clock=lambda: DAY * 20_000) for s in sessions]
    allowed = []
    together(
        *[lambda a=a: allowed.extend(not a.reserve("m", CALL, budget) for _ in range(3)) for a in accounts]
    )
    assert sum(allowed) == calls
    assert sum(Spending(database, s).of_session().calls for s in set(sessions)) == calls
    refused = accounts[0].reserve("m", CALL, budget)
    assert refused
    assert refused.startswith(f"the Observer's budget is used up ({limit:g} {kind} a {period})")


def test_what_a_call_did_cost_takes_the_place_of_what_it_might(database):
    account = Spending(database, "s")
    account.reserve("m", CALL, ObserverBudget())
    account.settle("m", CALL, Spent(1, 30, 10, 0.125))
    assert account.of_session() == Spent(1, 30, 10, 0.125)


def test_a_new_day_has_its_own_limit_and_the_session_keeps_its(database):
    now = [DAY * 20_000 - 1.0]
    account = Spending(database, "s", clock=lambda: now[0])
    budget = ObserverBudget(calls_per_day=1, calls_per_session=2)
    assert account.reserve("m", CALL, budget) is None
    assert "a day" in (account.reserve("m", CALL, budget) or "")
    now[0] += 2
    assert account.reserve("m", CALL, budget) is None
    now[0] += DAY
    assert "a session" in (account.reserve("m", CALL, budget) or "")


def test_a_call_over_midnight_is_settled_on_the_day_it_was_booked(database):
    now = [DAY * 20_000 - 1.0]
    account = Spending(database, "s", clock=lambda: now[0])
    account.reserve("m", CALL, ObserverBudget())
    now[0] += 2
    account.settle("m", CALL, Spent(1, 6, 4, 0.0))
    budget = ObserverBudget(tokens_per_day=100)
    assert account.reserve("m", CALL, budget) is None  # nothing was spent on the new day
    now[0] -= 2
    assert account.reserve("m", CALL, budget)
    assert account.reserve("m", Spent(1, 60, 30, 0.0), budget) is None
