"""The FAISS index of one session or of several: derived from rows, exact, thrown away when they change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from memory_bank.records import Ranking

Array = np.ndarray[Any, Any]
_TIE = 1e-6  # a score this close to the next better one is its equal
_GAP = 1e-4  # scores further apart than this are no part of one run of ties
_SPARE = 16
_DEAD = 64  # so many replaced rows are never worth a rebuild


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
    """A flat inner-product index with the key of each row: its trace_id, or (session_id, trace_id).

    ``generation`` is the session's when its rows were read, ``last_seq`` the number of the newest of them. A
    row that is replaced stays behind, dead, until so many are that they are worth leaving out (``rebuilds``).
    """

    def __init__(self, generation: int = -1) -> None:
        self.generation = generation
        self.last_seq = -1
        self.dimension = 0
        self.rebuilds = 0
        self._faiss: Any = None
        self._rows: dict[Any, int] = {}  # those that live
        self._count = 0  # of all rows
        self._keys: Any = np.empty(64, dtype=object)
        self._alive: Array = np.zeros(64, dtype=bool)

    @property
    def size(self) -> int:
        """How many rows can be found."""
        return len(self._rows)

    @property
    def dead(self) -> int:
        """How many rows were replaced and are still here."""
        return self._count - len(self._rows)

    def extend(self, rows: Sequence[tuple[int, Any, bytes]]) -> None:
        """Take over new rows ``(seq, key, embedding)``, by ``seq``; what had their keys before dies."""
        if not rows:
            return
        vectors = np.frombuffer(b"".join(e for _, _, e in rows), dtype="<f4").reshape(len(rows), -1)
        if self._faiss is None:
            self.dimension = vectors.shape[1]
            self._faiss = _flat(self.dimension)
        self._faiss.add(np.ascontiguousarray(vectors, dtype=np.float32))
        while self._count + len(rows) > len(self._keys):
            self._keys = np.concatenate([self._keys, np.empty(len(self._keys), dtype=object)])
            self._alive = np.concatenate([self._alive, np.zeros(len(self._alive), dtype=bool)])
        for _, key, _ in rows:
            old = self._rows.get(key)
            if old is not None:
                self._alive[old] = False
            self._rows[key] = self._count
            self._keys[self._count] = key
            self._alive[self._count] = True
            self._count += 1
        self.last_seq = rows[-1][0]
        if self.dead > _DEAD and self.dead > self.size:
            self._rebuild()

    def _rebuild(self) -> None:
        """Leave the dead rows out; those that live keep their order."""
        alive = np.flatnonzero(self._alive[: self._count])
        vectors = self._faiss.reconstruct_n(0, self._count)[alive]
        self._faiss = _flat(self.dimension)
        self._faiss.add(np.ascontiguousarray(vectors))
        self._count = len(alive)
        self._keys[: self._count] = self._keys[alive]
        self._keys[self._count :] = None
        self._alive[:] = False
        self._alive[: self._count] = True
        self._rows = {key: row for row, key in enumerate(self._keys[: self._count])}
        self.rebuilds += 1

    def rank(self, query: Array, exclude: Collection[Any], limit: int | None = None) -> Ranking:
        """The keys but the excluded, best first, for a query of shape (1, dimension); ``limit`` of them."""

        def fetch(n: int | None) -> tuple[Ranking, bool]:
            k = self._count if n is None else min(n, self._count)
            return self._rank(query, exclude, k), k == self._count

        return first_of(limit, len(exclude) + min(self.dead, limit or 0), fetch)

    def _rank(self, query: Array, exclude: Collection[Any], k: int) -> Ranking:
        scores, found = (column[0] for column in self._faiss.search(query, k))
        if self.dead:  # before ties are sought: a dead row ties nothing together
            alive = self._alive[found]
            scores, found = scores[alive], found[alive]
        order, scores = best_first(scores, found)
        if exclude:
            hidden = np.zeros(self._count, dtype=bool)
            hidden[[self._rows[key] for key in exclude if key in self._rows]] = True
            shown = ~hidden[order]
            order, scores = order[shown], scores[shown]
        return Ranking(self._keys[order], scores)


def _flat(dimension: int) -> Any:
    import faiss

    return faiss.IndexFlatIP(dimension)
