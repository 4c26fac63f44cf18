"""An InsightStore in plain memory: the reference that every backend must agree with."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from memory_bank.bank.rows import (
    latest_insights,
)
from memory_bank.bank.search import best_first
from memory_bank.errors import EmbedderMismatchError
from memory_bank.ports import Embedder
from memory_bank.records import Hit, Insight
from memory_bank.vectors import encode_documents, encode_queries


class InMemoryInsightStore:
    """An InsightStore that compares the query with every vector."""

    def __init__(self, embedding_model: Embedder) -> None:
        self.embedding_model = embedding_model
        self._insights: dict[str, tuple[Insight, Any]] = {}
        self._lock = threading.RLock()

    def add(self, trace_id: str, summary: str) -> None:
        self.add_many([Insight(trace_id, summary)])

    def add_many(self, batch: Sequence[Insight]) -> None:
        latest = latest_insights(batch)
        if not latest:
            return
        vectors = encode_documents(self.embedding_model, [i.summary for i in latest])
        with self._lock:
            self._check_dimension(vectors.shape[1])
            for insight, vector in zip(latest, vectors, strict=True):
                self._insights.pop(insight.trace_id, None)
                self._insights[insight.trace_id] = (insight, vector)

    def search(self, query: str, top_k: int = 3) -> list[str]:
        return [hit.trace_id for hit in self.rank(query, limit=max(0, top_k))]

    def rank(self, query: str, exclude: Collection[str] = (), limit: int | None = None) -> list[Hit]:
        with self._lock:
            ids = list(self._insights)
            if not ids:
                return []
            vector = encode_queries(self.embedding_model, [query])[0]
            self._check_dimension(len(vector))
            scores = np.array(
                [float(np.dot(v, vector)) for _, v in self._insights.values()], dtype=np.float32
            )
        order, scores = best_first(scores, np.arange(len(ids)))
        hidden = set(exclude)
        keep = [k for k, i in enumerate(order) if ids[i] not in hidden][:limit]
        return [Hit(ids[order[k]], float(scores[k])) for k in keep]

    def get_summary(self, trace_id: str) -> str | None:
        insight = self.get_insight(trace_id)
        return None if insight is None else insight.summary

    def get_insight(self, trace_id: str) -> Insight | None:
        found = self._insights.get(trace_id)
        return None if found is None else found[0]

    def get_insights(self, trace_ids: Sequence[str]) -> dict[str, Insight]:
        return {t: insight for t in trace_ids if (insight := self.get_insight(t)) is not None}

    def trace_ids(self) -> list[str]:
        with self._lock:
            return list(self._insights)

    def to_redo(self) -> list[Insight]:
        with self._lock:
            return [insight for insight, _ in self._insights.values() if insight.redo is not None]

    def clear(self) -> None:
        with self._lock:
            self._insights.clear()

    def is_empty(self) -> bool:
        return not self._insights

    def size(self) -> int:
        return len(self._insights)

    def _check_dimension(self, dimension: int) -> None:
        """Raise EmbedderMismatchError unless all vectors have this dimension."""
        known = next((len(vector) for _, vector in self._insights.values()), dimension)
        if known != dimension:
            raise EmbedderMismatchError(
                f"the embedder gave {dimension} dimensions, but the insights have {known}: clear the store, "
                "or use the embedder that made them."
            )
