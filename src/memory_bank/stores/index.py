"""The FAISS index of one session: derived from its rows, exact, thrown away when they change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from memory_bank.records import Ranking

Array = np.ndarray[Any, Any]
_TIE = 1e-6  # a score this close to the next better one is its equal
_GAP = 1e-4  # scores further apart than this are no part of one run of ties
_SPARE = 16


def best_first(scores: Array, rows: Array) -> tuple[Array, Array]:
    """Rows and scores, best first; among scores within 1e-6 of one another the larger row, the newer, first.

    Neighbours are compared, not rounded values: equal vectors differ in the last bit, and wherever a
    rounding has its edge some of them fall on either side.
    """
    order = np.argsort(-scores, kind="stable")
    ties = np.zeros(len(order), dtype=np.intp)
    np.cumsum(np.diff(scores[order].astype(np.float64)) < -_TIE, out=ties[1:])
    order = order[np.lexsort((-rows[order], ties))]
    return rows[order], scores[order]


def first_of(limit: int | None, hidden: int, fetch: Callable[[int | None], tuple[Ranking, bool]]) -> Ranking:
    """The first ``limit`` of a ranking that is fetched as far as ties ask for it.

    ``fetch(n)`` ranks the ``n`` nearest rows (None: all), ``hidden`` of which it may leave out, and says
    whether these are all there are.
    """
    if limit is None:
        return fetch(None)[0]
    wanted = limit + hidden + _SPARE
    while True:
        found, complete = fetch(wanted)
        # Beyond a clear gap there is no tie of the last one shown.
        if complete or (
            len(found) > limit and (limit == 0 or found.scores[limit - 1] - found.scores[-1] > _GAP)
        ):
            return found[:limit]
        wanted *= 4


class SessionIndex:
    """A flat inner-product index with the trace_id of each row.

    ``generation`` is the session's when its rows were read, ``last_seq`` the number of the newest of them.
    """

    def __init__(self, generation: int = -1) -> None:
        self.generation = generation
        self.last_seq = -1
        self.size = 0
        self.dimension = 0
        self._faiss: Any = None
        self._rows: dict[str, int] = {}
        self._ids: Any = np.empty(64, dtype=object)

    def extend(self, rows: Sequence[tuple[int, str, bytes]]) -> bool:
        """Take over new rows ``(seq, trace_id, embedding)``; False, when one replaces a row that is here."""
        if not rows:
            return True
        if any(trace_id in self._rows for _, trace_id, _ in rows):
            return False
        vectors = np.frombuffer(b"".join(e for _, _, e in rows), dtype="<f4").reshape(len(rows), -1)
        if self._faiss is None:
            import faiss

            self.dimension = vectors.shape[1]
            self._faiss = faiss.IndexFlatIP(self.dimension)
        self._faiss.add(np.ascontiguousarray(vectors, dtype=np.float32))
        while self.size + len(rows) > len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty(len(self._ids), dtype=object)])
        for _, trace_id, _ in rows:
            self._rows[trace_id] = self.size
            self._ids[self.size] = trace_id
            self.size += 1
        self.last_seq = rows[-1][0]
        return True

    def rank(self, query: Array, exclude: Collection[str], limit: int | None = None) -> Ranking:
        """The rows but the excluded, best first, for a query of shape (1, dimension); ``limit`` of them."""

        def fetch(n: int | None) -> tuple[Ranking, bool]:
            k = self.size if n is None else min(n, self.size)
            return self._rank(query, exclude, k), k == self.size

        return first_of(limit, len(exclude), fetch)

    def _rank(self, query: Array, exclude: Collection[str], k: int) -> Ranking:
        scores, found = self._faiss.search(query, k)
        order, scores = best_first(scores[0], found[0])
        if exclude:
            hidden = np.zeros(self.size, dtype=bool)
            hidden[[self._rows[t] for t in exclude if t in self._rows]] = True
            shown = ~hidden[order]
            order, scores = order[shown], scores[shown]
        return Ranking(self._ids[order], scores)
