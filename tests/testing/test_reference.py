"""The reference stores in plain memory keep the contracts too."""

from __future__ import annotations

from typing import Any

from tests.contracts.insights import InsightStoreContract
from tests.contracts.reference import InMemoryFactStore, InMemoryInsightStore
from tests.contracts.stores import FactStoreContract


class TestReferenceFacts(FactStoreContract):
    sessions = False

    def make_store(self, session_id: str = "default") -> InMemoryFactStore:
        return InMemoryFactStore()


class TestReferenceInsights(InsightStoreContract):
    def make_store(self, embedder: Any, session_id: str = "default") -> InMemoryInsightStore:
        return InMemoryInsightStore(embedder)
