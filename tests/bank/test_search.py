"""The vector index of a session: a replaced insight ranks by its new text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.insights import NumbersEmbedder
from tests.contracts.reference import InMemoryInsightStore

from memory_bank.bank.database import Database
from memory_bank.bank.stores import InsightStore
from memory_bank.records import Insight

NUMBER = st.sampled_from(["-1", "0", "1", "2", "0.9999999"])
VECTOR = st.lists(NUMBER, min_size=3, max_size=3).map(" ".join)
BATCH = st.lists(st.tuples(st.integers(0, 12), VECTOR), max_size=25)


def test_a_replaced_summary_ranks_by_its_new_text() -> None:
    store = InsightStore(NumbersEmbedder())
    store.add_many([Insight("draft", "1 0 0"), Insight("other", "0 1 0")])
    assert store.search("1 0 0") == ["draft", "other"]
    store.add("draft", "0 -1 0")
    assert store.search("1 0 0") == ["draft", "other"]  # a tie: both are at a right angle, the newer first
    assert store.search("0 -1 0") == ["draft", "other"]
    assert store.search("0 1 0") == ["other", "draft"]
    assert [round(h.score) for h in store.rank("1 0 0")] == [0, 0]


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_replaced_insights_in_front_hide_nothing(limit: int) -> None:
    store = InsightStore(NumbersEmbedder())
    store.add_many([Insight(f"{n:03}", "1 0 0") for n in range(200)])
    store.search("1 0 0")
    store.add_many([Insight(f"{n:03}", "-1 0 0") for n in range(199)])
    assert store.search("1 0 0", top_k=limit) == ["199", "198", "197"][:limit]


@given(st.lists(st.tuples(BATCH, VECTOR, st.sets(st.integers(0, 12)), st.integers(0, 4)), max_size=30))
def test_any_adding_and_replacing_agrees_with_the_reference(steps: list[Any]) -> None:
    database = Database()
    one, other = (InsightStore(NumbersEmbedder(), database) for _ in range(2))
    reference = InMemoryInsightStore(NumbersEmbedder())
    for n, (batch, query, hidden, limit) in enumerate(steps):
        insights = [Insight(f"{i}", text) for i, text in batch]
        (one, other)[n % 2].add_many(insights)
        reference.add_many(insights)
        exclude = {f"{i}" for i in hidden}
        expected = reference.rank(query, exclude)
        for store in (one, other)[: 1 + n % 3]:
            found = store.rank(query, exclude)
            assert [h.trace_id for h in found] == [h.trace_id for h in expected]
            assert [h.score for h in found] == pytest.approx([h.score for h in expected], abs=1e-6)
            first = store.rank(query, exclude, limit)
            assert [h.trace_id for h in first] == [h.trace_id for h in expected[:limit]]
    database.close()
