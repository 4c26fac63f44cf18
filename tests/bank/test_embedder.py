"""The embedder of a bank: another one is refused, re-embedding changes all summaries or none."""

import pytest
from tests.contracts.insights import NumbersEmbedder

from memory_bank.bank.embedder import bank_embedder, check_embedder, re_embed
from memory_bank.bank.stores import InsightStore, clear_insights
from memory_bank.errors import EmbedderMismatchError, EmbeddingError, StorageError
from memory_bank.records import Insight


class Turned(NumbersEmbedder):
    """The same numbers backwards, with one dimension more; may fail after some batches."""

    def __init__(self, good_batches=10**9):
        super().__init__("turned")
        self.good_batches = good_batches

    def encode(self, texts):
        self.good_batches -= 1
        if self.good_batches < 0:
            raise OSError("the GPU is gone")
        return [[*row[::-1], 0.0] for row in super().encode(texts)]


@pytest.fixture
def database(bank):
    return bank.database()


def fill(database, n=600):
    stores = [InsightStore(NumbersEmbedder(), database, s) for s in ("one", "two")]
    for store in stores:
        store.add_many([Insight(f"{store.session_id}-{i:03}", f"{i} 1") for i in range(n)])
    return stores


def test_another_embedder_is_refused_with_the_way_out(database):
    store = fill(database, 3)[0]
    assert bank_embedder(database) == ("numbers", 2)
    for other in (Turned(), NumbersEmbedder("m3")):
        with pytest.raises(EmbedderMismatchError, match=r"numbers \(2 dimensions\)") as caught:
            InsightStore(other, database, "three")
        command = f"memory-bank bank re-embed --db {database.name} --embedding-model {other.name}"
        assert command in str(caught.value)
    with pytest.raises(EmbedderMismatchError, match="not of numbers \\(3 dimensions\\)"):
        store.add("x", "1 2 3")
    assert store.size() == 3


def test_a_bank_without_insights_takes_another(database):
    late = InsightStore(Turned(), database, "three")  # opened while there was nothing
    for store in fill(database, 3):
        store.clear()
    other = InsightStore(Turned(), database, "one")
    other.add("a", "1 0")
    assert bank_embedder(database) == ("turned", 3)
    assert late.search("1 0") == []
    late.add("b", "1 0")
    with pytest.raises(EmbedderMismatchError):
        check_embedder(database, "numbers", 2)


def test_two_embedders_on_an_empty_bank_do_not_mix(database):
    numbers, turned = InsightStore(NumbersEmbedder(), database), InsightStore(Turned(), database)
    turned.add("a", "1 0")
    for attempt in (
        lambda: numbers.add("b", "1 0"),
        lambda: numbers.search("1 0"),
        lambda: numbers.search("1 0 0"),
    ):
        with pytest.raises(EmbedderMismatchError):
            attempt()
    assert turned.trace_ids() == ["a"]


def test_a_bank_is_embedded_anew(database):
    one, two = fill(database)
    before = one.search("1 0")
    two.search("0 1")
    told = []
    assert re_embed(database, Turned(), lambda done, total: told.append((done, total))) == 1200
    assert told[-1] == (1200, 1200)
    assert bank_embedder(database) == ("turned", 3)
    for old in (one, two):  # open stores notice, also where nothing else has changed
        for attempt in (lambda s=old: s.search("1 0"), lambda s=old: s.add("x", "1 0")):
            with pytest.raises(EmbedderMismatchError, match="turned"):
                attempt()
    again = InsightStore(Turned(), database, "one")
    assert again.search("1 0") == before
    again.add("new", "0 1")
    assert again.get_summary("one-000") == "0 1"
    assert re_embed(database, NumbersEmbedder()) == 1201
    assert one.search("0 1", top_k=2) == ["new", "one-000"]  # and go on where their embedder is back


def test_an_embedder_that_fails_half_way_changes_nothing(database):
    one, _ = fill(database)
    before = [(h.trace_id, h.score) for h in one.rank("3 2")]
    for good in (0, 1, 3):
        with pytest.raises(EmbeddingError):
            re_embed(database, Turned(good_batches=good))
        assert bank_embedder(database) == ("numbers", 2)
        after = InsightStore(NumbersEmbedder(), database, "one").rank("3 2")
        assert [(h.trace_id, h.score) for h in after] == before


def test_an_embedder_that_changes_its_mind_changes_nothing(database):
    class Fickle(NumbersEmbedder):
        def encode(self, texts):
            self.count += 1
            return [[1.0] * self.count] * len(texts)

    fill(database)
    with pytest.raises(EmbeddingError, match="dimensions"):
        re_embed(database, Fickle("fickle"))
    assert bank_embedder(database) == ("numbers", 2)


@pytest.mark.parametrize("change", ["add", "replace", "clear"])
def test_who_writes_meanwhile_is_not_overwritten(database, change):
    one, _ = fill(database, 3)

    def write(done, total):
        if change == "clear":
            clear_insights(database, "one")
        else:
            one.add("new" if change == "add" else "one-002", "1 1")

    with pytest.raises(StorageError, match="nothing was changed"):
        re_embed(database, Turned(), write)
    assert bank_embedder(database) == ("numbers", 2)


def test_an_empty_bank_is_embedded_anew(database):
    assert re_embed(database, Turned()) == 0
    assert bank_embedder(database) is None
    fill(database, 1)[0].clear()
    clear_insights(database, "two")
    assert re_embed(database, Turned()) == 0
    InsightStore(NumbersEmbedder(), database).add("a", "1 0")
    assert bank_embedder(database) == ("numbers", 2)
