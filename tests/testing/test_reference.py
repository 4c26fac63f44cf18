"""The reference stores in plain memory keep the contracts too."""

from __future__ import annotations

from typing import Any

from memory_bank.testing.insight_contract import InsightStoreContract
from memory_bank.testing.reference import InMemoryFactStore, InMemoryInsightStore
from memory_bank.testing.store_contracts import FactStoreContract


class TestReferenceFacts(FactStoreContract):
    sessions = False

    def make_store(self, session_id: str = "default") -> InMemoryFactStore:
        return InMemoryFactStore()


class TestReferenceInsights(InsightStoreContract):
    def make_store(self, embedder: Any, session_id: str = "default") -> InMemoryInsightStore:
        return InMemoryInsightStore(embedder)
