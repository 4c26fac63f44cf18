"""InsightStores, in memory, in a file and in PostgreSQL: they rank as a comparison with every vector does."""

import random
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bank.conftest import Bank
from tests.contracts.insights import NumbersEmbedder, NumbersStore, score_at
from tests.contracts.reference import InMemoryInsightStore
from tests.contracts.stores import to_redo, together
from tests.examples import first_short

from memory_bank.bank import search
from memory_bank.bank.database import Database
from memory_bank.errors import EmbedderMismatchError, EmbeddingError, RecordError
from memory_bank.records import Insight


@pytest.fixture
def store(bank):
    return bank.store()


def fill(store):
    store.add("east", "1 0")
    store.add_many([Insight("north", "0 1"), Insight("northeast", "1 1"), Insight("west", "-1 0")])


def test_the_best_come_first(store):
    fill(store)
    assert store.search("2 1") == ["northeast", "east", "north"]
    assert store.search("0 1", top_k=1) == ["north"]
    ranking = store.rank("1 0")
    assert [h.trace_id for h in ranking] == ["east", "northeast", "north", "west"]
    assert [h.score for h in ranking] == pytest.approx([score_at(n) for n in range(4)])


@pytest.mark.parametrize(("k", "n"), [(0, 0), (-1, 0), (-5, 0), (1, 1), (4, 4), (5, 4), (10**9, 4)])
def test_any_k_is_taken(store, k, n):
    fill(store)
    assert len(store.search("1 0", top_k=k)) == n


def test_an_empty_store_finds_nothing_and_asks_no_model(store):
    assert store.search("1 0") == []
    assert len(store.rank("1 0")) == 0
    assert (store.is_empty(), store.size(), store.trace_ids()) == (True, 0, [])
    store.add_many([])
    assert store.is_empty()
    assert store.embedding_model.count == 0


def test_ties_newer_first_every_time(store):
    for n in range(50):
        store.add(f"{n:02}", f"{n % 2 + 1} {n % 2 + 1} {'word' * n}")  # one direction, two lengths
    newest_first = [f"{n:02}" for n in range(49, -1, -1)]
    for _ in range(3):
        assert store.search("1 0", top_k=50) == newest_first
    store.add("07", "1 1")
    assert store.search("1 0", top_k=2) == ["07", "49"]


def test_a_zero_vector_is_like_nothing(store):
    fill(store)
    store.add("zero", "0 0")
    assert store.search("1 0", top_k=9) == ["east", "northeast", "zero", "north", "west"]
    assert store.search("0 0", top_k=9) == ["zero", "west", "northeast", "north", "east"]


def test_adding_again_replaces(store):
    fill(store)
    store.search("1 0")
    store.add("east", "0 -1 turned")
    assert store.size() == 4
    assert store.get_summary("east") == "0 -1 turned"
    assert store.search("0 -1", top_k=1) == ["east"]
    assert store.trace_ids() == ["north", "northeast", "west", "east"]


def test_in_a_batch_the_last_of_an_id_counts(store):
    store.add_many([Insight("a", "1 0 old"), Insight("b", "1 0"), Insight("a", "1 0 new")])
    assert store.size() == 2
    assert store.get_summary("a") == "1 0 new"
    assert store.search("1 0") == store.trace_ids()[::-1] == ["a", "b"]


def test_insights_come_back_whole(store):
    text = "1 0 " + "\ud800\0\ufeff".join("日本 ")
    store.embedding_model.encode = lambda texts: [[1.0, 0.0]] * len(texts)
    whole = [
        Insight("a", text, "llm:gpt", "\ud800 the model failed"),
        Insight("b", ""),
        Insight("c", "x" * 1_000_000),
    ]
    store.add_many(whole)
    assert [store.get_insight(t) for t in "abc"] == whole
    assert store.get_summary("a") == text
    assert store.get_insights(["c", "no", "a", "c", ""]) == {"c": whole[2], "a": whole[0]}
    assert list(store.get_insights(["c", "a"])) == ["c", "a"]
    assert store.get_insights([]) == {}
    many = [Insight(f"{n:04}", "s") for n in range(1100)]
    store.add_many(many)
    assert list(store.get_insights([i.trace_id for i in many]).values()) == many


@pytest.mark.parametrize("trace_id", ["", "unknown", "\ud800", "\0", None])
def test_what_is_not_there_is_none(store, trace_id):
    fill(store)
    assert store.get_insight(trace_id) is None
    assert store.get_summary(trace_id) is None


def test_marked_insights_are_told_oldest_first(store):
    a, b, c = Insight("a", "1 0", redo="failed"), Insight("b", "1 0"), Insight("c", "0 1", redo="")
    store.add_many([a, b, c])
    assert to_redo(store) == [a, c]
    store.add_many([Insight("a", "1 0", "llm:x")])
    assert to_redo(store) == [c]


def test_excluded_ones_are_not_ranked(store):
    fill(store)
    for excluded in (["east", "unknown"], {"east"}, ("east", "east")):
        assert [h.trace_id for h in store.rank("1 0", exclude=excluded)] == ["northeast", "north", "west"]
    assert len(store.rank("1 0", exclude=store.trace_ids())) == 0
    assert len(store.rank("1 0")) == 4


def test_clear_keeps_the_model(store):
    fill(store)
    model = store.embedding_model
    store.search("1 0")
    store.clear()
    assert (store.is_empty(), store.size(), store.search("1 0"), store.get_insight("east")) == (
        True,
        0,
        [],
        None,
    )
    store.add("south", "0 -1")
    assert store.search("1 0") == ["south"]
    assert store.embedding_model is model
    assert not store.is_empty()


@pytest.mark.parametrize("summary", ["nan 1", "1 nan", "inf 0"])
def test_vectors_that_are_no_numbers_store_nothing(store, summary):
    store.add("east", "1 0")
    with pytest.raises(EmbeddingError):
        store.add_many([Insight("a", "1 0"), Insight("east", summary.replace("inf", "1e999"))])
    with pytest.raises(EmbeddingError):
        store.search("nan nan")
    assert (store.size(), store.get_summary("east"), store.search("1 0")) == (1, "1 0", ["east"])


def test_another_dimension_stores_nothing(store):
    store.add("east", "1 0")
    with pytest.raises(EmbedderMismatchError):
        store.add_many([Insight("a", "1 0 0"), Insight("b", "1 0 0")])
    with pytest.raises(EmbeddingError):
        store.add_many([Insight("a", "1 0"), Insight("b", "1 0 0")])
    with pytest.raises(EmbedderMismatchError):
        store.search("1 0 0")
    assert (store.size(), store.search("1 0")) == (1, ["east"])
    store.clear()
    store.add("a", "1 0 0")
    assert store.search("1 0 0") == ["a"]


def test_an_embedder_that_fails_stores_nothing(store):
    def fail(texts):
        raise OSError(f"no weights for {len(texts)} texts")

    fill(store)
    good, store.embedding_model.encode = store.embedding_model.encode, fail
    with pytest.raises(EmbeddingError):
        store.add_many([Insight("a", "1 0"), Insight("east", "1 0")])
    store.embedding_model.encode = good
    assert store.size() == 4


@pytest.mark.parametrize(
    "insight",
    [
        *(Insight(trace_id, "1 0") for trace_id in ("", "x" * 65, "\0", "\ud800", 5)),
        Insight("a", None),
        Insight("a", "1 0", "x" * 256),
        Insight("a", "1 0", redo=5),
        ("a", "1 0"),
    ],
    ids=lambda i: ascii(i)[:50],
)  # fmt: skip
def test_what_no_store_takes_is_refused(store, insight):
    with pytest.raises(RecordError):
        store.add_many([Insight("good", "1 0"), insight])
    assert store.is_empty()


def test_sessions_never_see_each_other(store, bank):
    other = bank.store("other")
    fill(store)
    other.add("east", "0 -1 other")
    assert other.search("1 0") == ["east"]
    assert store.search("1 0", top_k=1) == ["east"]
    assert (store.get_summary("east"), other.get_summary("east")) == ("1 0", "0 -1 other")
    assert (store.size(), other.size(), other.get_insight("north")) == (4, 1, None)
    store.clear()
    assert other.search("1 0") == ["east"]


def test_two_writers_and_a_reader(store):
    def read():
        for _ in range(40):
            ids = [h.trace_id for h in store.rank("1 0")]
            assert len(ids) == len(set(ids))
            store.trace_ids(), to_redo(store), store.size()

    together(
        read,
        lambda: [store.add(f"{n}", f"1 {n}") for n in range(40)],
        lambda: [store.add_many([Insight(f"{n}", f"1 {n}"), Insight(f"x{n}", "1 0")]) for n in range(20, 60)],
    )
    assert store.size() == len(store.rank("1 0")) == len(store.trace_ids()) == 100


def test_reset_while_reading(store):
    done = threading.Event()

    def read():
        while not done.is_set():
            assert len(store.search("1 0", top_k=99)) in (0, 30)

    def write():
        try:
            for _ in range(15):
                store.add_many([Insight(f"{n}", f"1 {n}") for n in range(30)])
                store.clear()
        finally:
            done.set()

    together(read, write)


def test_two_stores_see_each_other(store, bank):
    other = bank.store()
    fill(store)
    assert other.search("1 0", top_k=1) == store.search("1 0", top_k=1) == ["east"]
    other.add("west", "1 0")  # replaces the newest row, which both know
    assert store.search("1 0", top_k=2) == ["west", "east"]
    other.add("north", "1 0")  # and an older one
    assert store.search("1 0", top_k=2) == ["north", "west"]
    other.clear()
    assert store.search("1 0") == []
    other.add("west", "0 1")  # takes the place of what was cleared
    assert store.search("1 0") == ["west"]
    assert [h.why for h in store.rank("0 1")] == ["similarity"]
    together(
        lambda: [store.add(f"{n}", f"1 {n}") for n in range(30)],
        lambda: [other.add(f"{n}", f"1 {n}") for n in range(15, 45)],
    )
    assert store.size() == other.size() == 46
    assert store.search("1 1", 99) == other.search("1 1", 99) == bank.store().search("1 1", 99)


def test_what_was_stored_is_there_after_reopening(store, bank):
    if bank.url:
        fill(store)
        bank.close()
        again = bank.store()
        assert again.search("2 1") == ["northeast", "east", "north"]
        assert again.embedding_model.count == 1  # the query; summaries are not embedded again


@pytest.mark.parametrize("seed", first_short(range(12)))
def test_it_agrees_with_the_reference(store, seed):
    random_ = random.Random(seed)
    reference = InMemoryInsightStore(NumbersEmbedder())

    def text():
        return " ".join(str(random_.choice([-1, 0, 0, 1, 2])) for _ in range(4))

    for n in range(60):
        verb = random_.choice(["add", "add", "add_many", "add_many", "rank", "rank", "rank", "clear"])
        batch = [Insight(f"t{random_.randrange(60)}", text()) for _ in range(random_.randrange(8))]
        query, hidden = (
            text(),
            {f"t{random_.randrange(60)}" for _ in range(random_.choice([0, 0, 3, 30]))},
        )
        rankings = []
        for one in (store, reference):
            if verb == "add" and batch:
                one.add(batch[0].trace_id, batch[0].summary)
            elif verb == "add_many":
                one.add_many(batch)
            elif verb == "clear" and query[0] == "2":
                one.clear()
            rankings.append(one.rank(query, exclude=hidden))
            limit = (0, 1, 3, 10_000)[n % 4]
            first = one.rank(query, exclude=hidden, limit=limit)
            assert [h.trace_id for h in first] == [h.trace_id for h in rankings[-1][:limit]]
        got, expected = ([h.trace_id for h in r] for r in rankings)
        assert got == expected
        scores, wanted = ([h.score for h in r] for r in rankings)
        assert scores == pytest.approx(wanted, abs=1e-6)
        assert store.trace_ids() == reference.trace_ids()


@pytest.mark.parametrize("seed", first_short(range(3)))
def test_without_faiss_it_agrees_with_the_reference_too(monkeypatch, tmp_path, seed):
    monkeypatch.setitem(sys.modules, "faiss", None)
    bank = Bank(f"sqlite:///{tmp_path / 'bank.db'}")
    test_it_agrees_with_the_reference(bank.store(), seed)
    bank.close()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 60), st.integers(0, 99))
def test_numpy_finds_what_faiss_finds(sizes, k, seed):
    faiss = pytest.importorskip("faiss", reason="needs faiss-cpu")
    numbers = np.random.default_rng(seed)
    theirs, ours = faiss.IndexFlatIP(5), search.FlatIndex(5)
    for size in sizes:
        rows = numbers.standard_normal((size, 5), np.float32)
        theirs.add(rows)
        ours.add(rows)
    k, query = min(k, theirs.ntotal), numbers.standard_normal((2, 5), np.float32)
    for (expected, places), (scores, rows) in zip(
        *(zip(*i.search(query, k), strict=True) for i in (theirs, ours)), strict=True
    ):
        order = np.argsort(-scores)
        assert rows[order].tolist() == places.tolist()
        assert scores[order] == pytest.approx(expected, abs=1e-5)


def test_an_index_is_built_page_by_page():
    database = Database()
    NumbersStore(NumbersEmbedder(), database).add_many([Insight(f"{n}", f"1 {n}") for n in range(10_001)])
    store = NumbersStore(NumbersEmbedder(), database)
    assert store.search("0 1", top_k=2) == ["10000", "9999"]
    assert len(store.rank("0 1")) == 10_001


def test_a_query_is_embedded_once():
    model = NumbersEmbedder()
    store = NumbersStore(model)
    store.add("a", "1 0")
    for _ in range(5):
        store.search("1 0")
    assert model.count == 2


NUMBER = st.sampled_from(["-1", "0", "1", "2", "0.9999999"])
VECTOR = st.lists(NUMBER, min_size=3, max_size=3).map(" ".join)
BATCH = st.lists(st.tuples(st.integers(0, 12), VECTOR), max_size=25)


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_replaced_insights_in_front_hide_nothing(limit):
    store = NumbersStore(NumbersEmbedder())
    store.add_many([Insight(f"{n:03}", "1 0 0") for n in range(200)])
    store.search("1 0 0")
    store.add_many([Insight(f"{n:03}", "-1 0 0") for n in range(199)])
    assert store.search("1 0 0", top_k=limit) == ["199", "198", "197"][:limit]


@given(st.lists(st.tuples(BATCH, VECTOR, st.sets(st.integers(0, 12)), st.integers(0, 4)), max_size=30))
def test_any_adding_and_replacing_agrees_with_the_reference(steps):
    database = Database()
    one, other = (NumbersStore(NumbersEmbedder(), database) for _ in range(2))
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
