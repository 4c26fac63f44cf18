"""InsightStores in SQL with FAISS: the contract in memory and in a file, and the index's peculiarities."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.insights import InsightStoreContract, NumbersEmbedder

from memory_bank.bank import search
from memory_bank.bank.database import Database
from memory_bank.bank.stores import InsightStore
from memory_bank.records import Insight


class TestInsightsInMemory(InsightStoreContract):
    shared = True

    @pytest.fixture(autouse=True)
    def _bank(self) -> Iterator[None]:
        self.database = Database()
        yield
        self.database.close()

    def make_store(self, embedder: Any, session_id: str = "default") -> InsightStore:
        return InsightStore(embedder, self.database, session_id)

    def second(self, store: InsightStore) -> InsightStore:
        return InsightStore(NumbersEmbedder(), self.database, store.session_id)


class TestInsightsInAFile(InsightStoreContract):
    durable = shared = True

    @pytest.fixture(autouse=True)
    def _bank(self, tmp_path: Path) -> Iterator[None]:
        self.file = tmp_path / "bank.db"
        self.open = [Database(self.file)]
        yield
        for database in self.open:
            database.close()

    def make_store(self, embedder: Any, session_id: str = "default") -> InsightStore:
        return InsightStore(embedder, self.open[0], session_id)

    def second(self, store: InsightStore) -> InsightStore:
        self.open.append(Database(self.file))
        return InsightStore(NumbersEmbedder(), self.open[-1], store.session_id)

    def reopen(self, store: InsightStore) -> InsightStore:
        store.database.close()
        return self.second(store)


def test_an_index_is_built_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    assert search._ROWS_AT_ONCE == 2_000
    database = Database()
    InsightStore(NumbersEmbedder(), database).add_many([Insight(f"{n}", f"1 {n}") for n in range(4_001)])
    store = InsightStore(NumbersEmbedder(), database)
    assert store.search("0 1", top_k=2) == ["4000", "3999"]
    assert len(store.rank("0 1")) == 4_001


def test_a_query_is_embedded_once() -> None:
    model = NumbersEmbedder()
    store = InsightStore(model)
    store.add("a", "1 0")
    for _ in range(5):
        store.search("1 0")
    assert model.count == 2
