"""The reference store in plain memory keeps the contract too."""

from __future__ import annotations

from typing import Any

from tests.contracts.insights import InsightStoreContract
from tests.contracts.reference import InMemoryInsightStore


class TestReferenceInsights(InsightStoreContract):
    def make_store(self, embedder: Any, session_id: str = "default") -> InMemoryInsightStore:
        return InMemoryInsightStore(embedder)
