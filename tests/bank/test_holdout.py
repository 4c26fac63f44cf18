"""What sessions with memory and without cost: the ratio, its interval, and when there are too few."""

from __future__ import annotations

import math
import random
from contextlib import closing
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bank.test_steps import a_step

from memory_bank.bank.database import Database
from memory_bank.bank.holdout import LEAST, SessionDollars, _t975, compared, comparison
from memory_bank.bank.steps import add_steps
from memory_bank.config import Price
from memory_bank.pricing import Usage

PRICES = {"m": Price(prompt=1.0, completion=0.0, cached=0.1)}


def week(
    sessions: int, share: float, effect: float, seed: int
) -> tuple[list[SessionDollars], list[SessionDollars]]:
    """Sessions of a skewed length, whose dollars grow with its square, drawn by chance."""
    chance, memory, control = random.Random(seed), [], []
    for _ in range(sessions):
        calls = 1 + int(chance.lognormvariate(3, 0.6))
        full = 1e-3 * calls * (10 + calls)
        if chance.random() < share:
            control.append(SessionDollars(full, full, calls))
        else:
            memory.append(SessionDollars(effect * full, full, calls))
    return memory, control


@pytest.mark.parametrize(("freedom", "quantile"), [(10, 2.228), (30, 2.042), (100, 1.984), (math.inf, 1.960)])
def test_the_quantile_is_that_of_the_table(freedom, quantile):
    assert _t975(freedom) == pytest.approx(quantile, abs=0.005)


@pytest.mark.parametrize("effect", [1.0, 0.6])
def test_the_interval_has_the_true_ratio_in_95_of_100_weeks(effect):
    found = [compared(*week(500, 0.5, effect, seed)) for seed in range(300)]
    for ratios in ([f.per_session for f in found], [f.per_call for f in found]):
        covered = sum(r.low <= effect <= r.high for r in ratios)
        assert 0.93 <= covered / len(ratios) <= 0.99
        assert sorted(r.share for r in ratios)[150] == pytest.approx(effect, rel=0.05)


@pytest.mark.parametrize(("sessions", "share"), [(400, 0.1), (1000, 0.1), (300, 0.5)])
def test_a_small_group_that_has_none_of_the_dear_sessions_is_told_no_narrower(sessions, share):
    """One session in 150 has ten times the dollars a call; the smaller group has it or not."""

    def week(seed):
        chance, groups = random.Random(seed), ([], [])
        for _ in range(sessions):
            calls = 1 + int(chance.lognormvariate(3, 0.6))
            paid = calls * (10.0 if chance.random() < 1 / 150 else 1.0) * chance.lognormvariate(0, 0.5)
            groups[chance.random() < share].append(SessionDollars(paid, paid, calls))
        return compared(*groups)

    told = [f.per_call for f in map(week, range(150)) if f.per_call]
    assert sum(r.low <= 1 <= r.high for r in told) / len(told) >= 0.94


def test_too_few_sessions_tell_how_many_are_needed():
    few = compared(*week(100, 0.1, 0.6, 1))
    assert few.control < LEAST <= few.needed < 400
    assert few.per_session is few.per_call is None
    assert few.compared == f"{few.control} of about {few.needed} sessions without memory needed"
    many = compared(*week(3_000, 0.5, 0.6, 1))
    assert many.needed < min(many.memory, many.control)
    assert many.compared.startswith(f"${many.per_session.memory:.3g} a session with memory, $")
    assert many.compared.endswith(f"; {many.memory:,} sessions with memory, {many.control:,} without")
    assert "less (95% interval: " in many.compared
    assert compared(*week(3_000, 0.5, 0.98, 1)).needed > few.needed  # a small saving is seen late
    assert (
        compared([], [SessionDollars(1.0, 1.0, 3)]).compared
        == f"0 of about {LEAST} sessions with memory needed"
    )


dollars = st.floats(0, 1e6)
groups = st.lists(st.builds(SessionDollars, dollars, dollars, st.integers(1, 500)), max_size=60)


@given(groups, groups)
def test_any_sessions_can_be_compared(memory, control):
    found = compared(memory, control)
    assert found.compared
    assert found.needed >= LEAST
    for ratio in (found.per_session, found.per_call):
        if ratio is not None:
            assert all(map(math.isfinite, astuple(ratio)[:3]))
            assert 0 <= ratio.low <= ratio.share <= ratio.high


@pytest.mark.parametrize("bill", [1e200, 1e-200])
def test_bills_that_no_provider_sends_are_compared_too(bill):
    odd, usual = [SessionDollars(bill, bill, 2)] * LEAST, [SessionDollars(1.0, 2.0, 3)] * LEAST
    assert compared(odd, usual).per_session.memory == pytest.approx(bill)


@pytest.mark.parametrize(
    ("memory", "control", "says"),
    [
        (40, 0, "0 of about 30 sessions without memory needed"),
        (40, 1, "1 of about 30 sessions without memory needed"),
        (40, 3, "3 of about 30 sessions without memory needed"),
        (3, 40, "3 of about 30 sessions with memory needed"),
        (0, 3, "0 of about 30 sessions with memory needed"),
        (40, 30, "$1 a session with memory, $2 without: 50% less (95% interval: 50% less to 50% less); a call: "
                 "50% less (95% interval: 50% less to 50% less); 40 sessions with memory, 30 without"),
    ],
)  # fmt: skip
def test_the_sentence_of_a_service_by_how_many_sessions_it_has(memory, control, says):
    groups = [SessionDollars(1.0, 2.0, 4)] * memory, [SessionDollars(2.0, 2.0, 4)] * control
    assert compared(*groups).compared == says


def test_sessions_that_cost_nothing_have_no_ratio():
    nothing, usual = SessionDollars(0.0, 0.0, 4), SessionDollars(2.0, 2.0, 4)
    for memory, control in ((nothing, nothing), (nothing, usual), (usual, nothing)):
        found = compared([memory] * 40, [control] * 35)
        assert found.per_session is found.per_call is None
        assert found.compared == "nothing was paid in one of the groups: 40 sessions with memory, 35 without"
    few = compared([nothing] * 40, [nothing] * 3)
    assert few.compared == "3 of about 30 sessions without memory needed"
    some = compared([nothing, usual] * 40, [nothing, usual] * 40)  # some cost nothing
    assert some.per_session.share == 1.0


def test_forks_count_to_their_session_and_what_has_no_price_to_none(bank_url):
    with closing(Database(bank_url)) as bank:

        def paid(name, tokens, *, control, model="m", **values):
            bank.open_session(name, namespace=values.pop("namespace", None))
            bank.set_session(name, control=control, **values)
            add_steps(bank, [a_step(name, model=model, usage=Usage(tokens, 0, 0, 0))])

        assert comparison(bank, PRICES) is None
        paid("memory", 10**6, control=False)
        assert comparison(bank, PRICES) is None  # nothing to compare it with
        paid("control", 10**6, control=True)
        paid("fork", 10**6, control=True, forked_from="control")
        paid("fork of the fork", 10**6, control=True, forked_from="fork")
        paid("older", 10**6, control=None)
        paid("no price", 10**6, control=True, model="house")
        paid("deleted", 10**6, control=True)
        bank.set_session("deleted", deleted=6e9)
        paid("another's", 10**6, control=True, namespace="ns")
        found = comparison(bank, PRICES, None)
        assert (found.memory, found.control) == (1, 1)
        assert found.compared == (
            "1 of about 30 sessions without memory needed; the price of 1 more is not known"
        )
        assert comparison(bank, PRICES, "ns").control == 1
        assert comparison(bank, PRICES).control == 2
        assert comparison(bank, PRICES, since=6e9).control == 0
