"""An InsightStore in plain memory: the reference that every backend must agree with."""

from typing import Any

import numpy as np

from memory_bank.bank.rows import latest_insights
from memory_bank.bank.search import best_first
from memory_bank.records import Hit, Insight
from memory_bank.vectors import encode_documents, encode_queries
from tests.contracts.insights import score_at


class InMemoryInsightStore:
    """Compares the query with every vector."""

    def __init__(self, embedding_model):
        self.embedding_model = embedding_model
        self.vectors: dict[str, Any] = {}

    def add(self, trace_id, summary):
        self.add_many([Insight(trace_id, summary)])

    def add_many(self, batch):
        latest = latest_insights(batch)
        vectors = encode_documents(self.embedding_model, [i.summary for i in latest])
        for insight, vector in zip(latest, vectors, strict=True):
            self.vectors.pop(insight.trace_id, None)
            self.vectors[insight.trace_id] = vector

    def rank(self, query, exclude=(), limit=None):
        ids = self.trace_ids()
        if not ids:
            return []
        vector = encode_queries(self.embedding_model, [query])[0]
        scores = np.array([float(np.dot(v, vector)) for v in self.vectors.values()], dtype=np.float32)
        order, _ = best_first(scores, np.arange(len(ids)))
        hidden = set(exclude)
        keep = [k for k, i in enumerate(order) if ids[i] not in hidden][:limit]
        return [Hit(ids[order[k]], score_at(k)) for k in keep]

    def trace_ids(self):
        return list(self.vectors)

    def clear(self):
        self.vectors.clear()
