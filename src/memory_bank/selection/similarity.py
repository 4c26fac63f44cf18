"""Similarity of segments to the task and the latest messages, by embeddings: an optional feature."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from memory_bank.selection.tables import Array, EvidenceTables

Encode = Callable[[Sequence[str]], Array]
"""Texts to unit vectors, float32 of shape (n, d)."""
MOST_OF_ONE = 200
"""Segments of one output that are embedded; the others count as of mean similarity."""
QUERY_CHARS = 2_000


class Similarity:
    """Cosine similarity of every segment to the step's query; a segment is embedded once.

    `weight` is added to a value's log-odds for each standard deviation by which its segment lies nearer to
    the query than the mean of the older segments.
    """

    def __init__(self, documents: Encode, queries: Encode, weight: float) -> None:
        self._documents, self._queries, self.weight = documents, queries, weight
        self._vectors: Array = np.zeros((0, 0), np.float32)
        self._size = 0  # rows in use
        self._segments: list[int] = []  # the segment of each row
        self._records = 0  # records that were embedded
        self._query: tuple[str, Array] | None = None  # the latest query, which `explain` repeats

    def by_segment(self, tables: EvidenceTables, query: str, older: int) -> Array:
        """Return the log-odds to add, float32, shape (segments,); 0 for segments that are not embedded.

        Only the first `older` records are compared. Raises EmbeddingError.
        """
        self._embed(tables, older)
        out = np.zeros(tables.segments.size, np.float32)
        if not self._size or not query.strip():
            return out
        found = self._vectors[: self._size] @ self._vector_of(query[-QUERY_CHARS:])
        spread = float(found.std())
        if spread > 1e-6:
            out[self._segments] = self.weight * (found - found.mean()) / spread
        return out

    def _vector_of(self, query: str) -> Array:
        if self._query is None or self._query[0] != query:
            self._query = query, self._queries([query])[0]
        return self._query[1]

    def _embed(self, tables: EvidenceTables, older: int) -> None:
        texts: list[str] = []
        for record in range(self._records, older):
            first = tables.first_segment[record]
            cut = tables.parsed[record].cut
            for place, segment in enumerate(cut.segments[:MOST_OF_ONE]):
                head = cut.heads[segment.block]
                texts.append(f"{head} {segment.text}" if head else segment.text)
                self._segments.append(first + place)
        self._records = max(self._records, older)
        if not texts:
            return
        vectors = self._documents(texts)
        need = self._size + len(vectors)
        if need > len(self._vectors):
            grown = np.zeros((max(need, 2 * len(self._vectors)), vectors.shape[1]), np.float32)
            if self._size:
                grown[: self._size] = self._vectors[: self._size]
            self._vectors = grown
        self._vectors[self._size : need] = vectors
        self._size = need
