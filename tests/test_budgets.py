"""Choosing under a budget: what is chosen fits, and one more would not."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memory_bank.transcript.shortening import fit_text
from memory_bank.transcript.tokens import newest_within
from memory_bank.vectors import choose_diverse

COSTS = st.lists(st.integers(0, 9), max_size=12)


@given(COSTS, st.integers(-2, 40), st.none() | st.integers(0, 12))
def test_the_newest_that_fit(costs, budget, most):
    n = newest_within(costs, budget, most)
    limit = len(costs) if most is None else min(most, len(costs))
    assert n == 0 or sum(costs[-n:]) <= budget
    assert n == limit or sum(costs[-n - 1 :]) > budget


VECTORS = np.array([[1.0, 0.0], [1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
RELEVANCE = VECTORS @ np.array([1.0, 0.0])


def test_relevance_alone_takes_the_last_of_equals_first():
    assert choose_diverse(VECTORS, RELEVANCE, 0.0, [1] * 4, 1) == [1]
    assert choose_diverse(VECTORS, RELEVANCE, 0.0, [1] * 4, 3) == [0, 1, 2]


def test_diversity_avoids_what_is_alike():
    assert choose_diverse(VECTORS, RELEVANCE, 0.5, [1] * 4, 2) == [1, 3]
    assert choose_diverse(VECTORS, RELEVANCE, 0.4, [1] * 4, 2) == [0, 1]


@given(st.lists(st.integers(0, 9), min_size=4, max_size=4), st.integers(0, 30), st.floats(0, 1))
def test_the_chosen_fit_and_nothing_else_would(costs, budget, diversity):
    chosen = choose_diverse(VECTORS, RELEVANCE, diversity, costs, budget)
    left = budget - sum(costs[i] for i in chosen)
    assert left >= 0 and chosen == sorted(set(chosen))
    assert all(costs[i] > left for i in range(4) if i not in chosen)


@given(st.text(st.sampled_from("ab \n"), max_size=300), st.integers(-1, 80))
def test_a_text_fits_its_budget(text, budget):
    fit = fit_text(text, budget, lambda t: len(t.split()) + t.count("\n"))
    assert len(fit.split()) + fit.count("\n") <= max(0, budget)
    assert budget <= 0 or fit == text or len(text.split()) + text.count("\n") > budget
