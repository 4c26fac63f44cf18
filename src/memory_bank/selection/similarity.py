"""Similarity of segments to what the agent is at: one more feature, where an embedder is at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from memory_bank.selection.session import Session
from memory_bank.selection.tables import Array

Encode = Callable[[Sequence[str]], Array]
"""Texts to unit vectors, float32 of shape (n, d)."""
MOST_OF_ONE = 200
"""Segments of one output that are embedded at most; later ones count as of mean similarity."""
QUERY_CHARS = 2_000


class Similarity:
    """Cosine similarity of every segment to the step's query; a segment is embedded once in its life.

    ``weight`` is added to a value's log-odds for each standard deviation by which its segment lies nearer to
    the query than the mean of the older segments.
    """

    def __init__(self, documents: Encode, queries: Encode, weight: float) -> None:
        self._documents, self._queries, self.weight = documents, queries, weight
        self._vectors: Array = np.zeros((0, 0), np.float32)
        self._size = 0  # rows in use
        self._segments: list[int] = []  # the segment of each row
        self._records = 0  # records that were embedded
        self._asked: tuple[str, Array] | None = None  # the latest query: a step is explained by the same one

    def by_segment(self, session: Session, query: str, older: int) -> Array:
        """The log-odds to add, float32, shape (segments,); 0 for what is not embedded.

        ``older``: records before the tail; only these are compared. Raises EmbeddingError.
        """
        self._embed(session, older)
        out = np.zeros(session.segments.size, np.float32)
        if not self._size or not query.strip():
            return out
        found = self._vectors[: self._size] @ self._vector_of(query[-QUERY_CHARS:])
        spread = float(found.std())
        if spread > 1e-6:
            out[self._segments] = self.weight * (found - found.mean()) / spread
        return out

    def _vector_of(self, query: str) -> Array:
        if self._asked is None or self._asked[0] != query:
            self._asked = query, self._queries([query])[0]
        return self._asked[1]

    def _embed(self, session: Session, older: int) -> None:
        texts: list[str] = []
        for record in range(self._records, older):
            first = session.first_segment[record]
            pieces = session.prepared[record].pieces
            for place, segment in enumerate(pieces.segments[:MOST_OF_ONE]):
                head = pieces.blocks[segment.block].head
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
