"""The vector index of a session: a replaced insight ranks by its new text, and costs a dead row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.insights import NumbersEmbedder
from tests.contracts.reference import InMemoryInsightStore

from memory_bank.bank.database import Database
from memory_bank.bank.search import VectorIndex
from memory_bank.bank.stores import InsightStore
from memory_bank.records import Insight

NUMBER = st.sampled_from(["-1", "0", "1", "2", "0.9999999"])
VECTOR = st.lists(NUMBER, min_size=3, max_size=3).map(" ".join)
BATCH = st.lists(st.tuples(st.integers(0, 12), VECTOR), max_size=25)


def index_of(store: InsightStore) -> VectorIndex:
    store.rank("1 0 0")
    return store._searches["session"]._index  # type: ignore[attr-defined,no-any-return]


def test_a_replaced_summary_ranks_by_its_new_text() -> None:
    store = InsightStore(NumbersEmbedder())
    store.add_many([Insight("draft", "1 0 0"), Insight("other", "0 1 0")])
    assert store.search("1 0 0") == ["draft", "other"]
    first = index_of(store)
    store.add("draft", "0 -1 0")
    assert store.search("1 0 0") == ["draft", "other"]  # a tie: both are at a right angle, the newer first
    assert store.search("0 -1 0") == ["draft", "other"]
    assert store.search("0 1 0") == ["other", "draft"]
    assert [round(h.score) for h in store.rank("1 0 0")] == [0, 0]
    assert index_of(store) is first
    assert (first.size, first.dead, first.rebuilds) == (2, 1, 0)


def test_each_draft_replaced_by_the_models_summary_costs_few_rebuilds() -> None:
    """As a background observer does it: a draft at each step, the model's summary a few steps later."""
    store = InsightStore(NumbersEmbedder())
    for n in range(1_000):
        store.add(f"{n}", f"1 {n} 0")
        if n >= 3:
            store.add(f"{n - 3}", f"0 {n} 1")
        best = store.search("0 0 1", top_k=1)
        assert best == ["0" if n >= 3 else f"{n}"]
    index = index_of(store)
    assert (index.size, index.rebuilds) == (1_000, 0)


def test_rebuilds_stay_bounded_and_dead_rows_too() -> None:
    store = InsightStore(NumbersEmbedder())
    store.add_many([Insight(f"{n}", f"1 {n} 0") for n in range(100)])
    index = index_of(store)
    for n in range(1_000):
        store.add(f"{n % 100}", f"0 1 {n}")
        assert len(store.rank("1 0 0")) == index.size == 100
        assert index.dead <= 100
    assert index_of(store) is index
    assert index.rebuilds == 1_000 // 101


def test_few_dead_rows_are_kept() -> None:
    index = VectorIndex()
    vector = np.array([1, 0], dtype="<f4").tobytes()
    for seq in range(65):
        index.extend([(seq, (None, "only"), vector)])
    assert (index.size, index.dead, index.rebuilds) == (1, 64, 0)
    index.extend([(65, (None, "only"), vector)])
    assert (index.size, index.dead, index.rebuilds, index.last_seq) == (1, 0, 1, 65)


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_dead_rows_in_front_hide_nothing(limit: int) -> None:
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
            assert list(found.trace_ids) == list(expected.trace_ids)
            assert list(found.scores) == pytest.approx(list(expected.scores), abs=1e-6)
            first = store.rank(query, exclude, limit)
            assert list(first.trace_ids) == list(expected.trace_ids[:limit])
    database.close()


@given(st.lists(st.tuples(st.integers(0, 5), VECTOR), min_size=150, max_size=250), VECTOR)
def test_rebuilding_changes_no_ranking(rows: list[tuple[int, str]], query: str) -> None:
    index, fresh = VectorIndex(), VectorIndex()
    vectors = [np.array(text.split(), dtype="<f4") for _, text in rows]
    for seq, (key, _) in enumerate(rows):
        index.extend([(seq, (None, str(key)), vectors[seq].tobytes())])
    last = {key: seq for seq, (key, _) in enumerate(rows)}
    fresh.extend([(seq, (None, str(rows[seq][0])), vectors[seq].tobytes()) for seq in sorted(last.values())])
    asked = np.array([query.split()], dtype=np.float32)
    assert index.rebuilds >= 1
    for limit in (None, 0, 2):
        found, expected = (i.rank(asked, (), limit, wider=False).trace_ids for i in (index, fresh))
        assert list(found) == list(expected)
