"""The stores on PostgreSQL with pgvector: the contracts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from memory_bank.stores.database import Database
from memory_bank.stores.facts import FactStore
from memory_bank.stores.insights import InsightStore
from memory_bank.testing.insight_contract import InsightStoreContract, NumbersEmbedder
from memory_bank.testing.store_contracts import FactStoreContract


class TestFactsInPostgres(FactStoreContract):
    durable = shared = True

    @pytest.fixture(autouse=True)
    def _bank(self, postgres_url: str) -> Iterator[None]:
        self.url = postgres_url
        self.open = [Database(postgres_url)]
        yield
        for database in self.open:
            database.close()

    def make_store(self, session_id: str = "default") -> FactStore:
        return FactStore(self.open[0], session_id)

    def second(self, store: FactStore) -> FactStore:
        self.open.append(Database(self.url))
        return FactStore(self.open[-1], store.session_id)

    def reopen(self, store: FactStore) -> FactStore:
        store.database.close()
        return self.second(store)


class TestInsightsInPostgres(InsightStoreContract):
    durable = shared = True

    @pytest.fixture(autouse=True)
    def _bank(self, postgres_url: str) -> Iterator[None]:
        self.url = postgres_url
        self.open = [Database(postgres_url)]
        yield
        for database in self.open:
            database.close()

    def make_store(self, embedder: Any, session_id: str = "default") -> InsightStore:
        return InsightStore(embedder, self.open[0], session_id)

    def second(self, store: InsightStore) -> InsightStore:
        self.open.append(Database(self.url))
        return InsightStore(NumbersEmbedder(), self.open[-1], store.session_id)

    def reopen(self, store: InsightStore) -> InsightStore:
        store.database.close()
        return self.second(store)
