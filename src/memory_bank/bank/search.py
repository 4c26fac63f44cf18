"""Ranking insights by similarity, for one session or a wider scope: with FAISS, or by the database itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from memory_bank.bank.database import Database
from memory_bank.bank.embedder import is_known, mismatch
from memory_bank.bank.schema import LAST, SESSION, Embedding, N, bank, insights, sessions
from memory_bank.ports import Scope
from memory_bank.records import Ranking

Vectors = npt.NDArray[Any]
Key = tuple[str | None, str]
"""Session_id and trace_id of an insight; None for the session that searches."""

_ROWS_AT_ONCE = 2_000
_MANY = 2**31  # a higher limit is no limit
_TIE = 1e-6  # scores this close to the next better one are equal
_GAP = 1e-4  # scores further apart than this are in different groups of ties
_SPARE = 16
_DEAD = 64  # up to this many replaced rows never cause a rebuild

# Which sessions a search includes

_own = sessions.alias()
_agent = sa.select(_own.c.agent_id).where(_own.c.session_id == SESSION).scalar_subquery()
_namespace = sa.select(_own.c.namespace).where(_own.c.session_id == SESSION).scalar_subquery()
_in_namespace = sessions.c.namespace.is_not_distinct_from(_namespace)  # NULL is one namespace
_IN_NAMESPACE = sa.select(sessions.c.session_id).where(_in_namespace)
_OF_AGENT = sa.select(sessions.c.session_id).where(  # without an agent: NULL equals nothing
    (sessions.c.session_id == SESSION) | ((sessions.c.agent_id == _agent) & _in_namespace)
)


def within(session_id: sa.ColumnElement[str], scope: Scope) -> sa.ColumnElement[bool]:
    """The condition that a session_id is in the scope of the session of the parameter ``session``."""
    if scope == "all":
        return session_id.in_(_IN_NAMESPACE)
    return session_id.in_(_OF_AGENT) if scope == "agent" else session_id == SESSION


_t = insights.c
_embedder, _dimension = (
    sa.select(bank.c.value).where(bank.c.key == key).scalar_subquery().label(key)
    for key in ("embedder", "dimension")
)
_distance = _t.embedding.op("<#>", return_type=sa.Float)(sa.bindparam("query", type_=Embedding))


def _new_rows(scope: Scope) -> sa.Select[Any]:
    """The rows after ``last``, with the sum of the generations: one statement, so that both belong together.

    Generations only grow, and so does their sum, also when a session gets its agent and joins a scope.
    """
    new = (
        sa.select(_t.seq, _t.session_id, _t.trace_id, _t.embedding)
        .where(within(_t.session_id, scope), _t.seq > LAST)
        .order_by(_t.seq)
        .limit(_ROWS_AT_ONCE)
        .subquery()
    )
    generations = (
        sa.select(sa.func.coalesce(sa.func.sum(sessions.c.generation), 0).label("generation"))
        .where(within(sessions.c.session_id, scope))
        .subquery()
    )
    joined = generations.outerjoin(new, sa.true())
    return sa.select(*generations.c, *new.c).select_from(joined).order_by(new.c.seq)


def _ranked(scope: Scope) -> sa.Select[Any]:
    """The rows by distance, each with the embedder of the bank."""
    return (
        sa.select(_embedder, _dimension, _t.seq, _t.session_id, _t.trace_id, _distance.label("distance"))
        .where(
            within(_t.session_id, scope), sa.func.vector_dims(_t.embedding) == sa.bindparam("dimension_asked")
        )
        .order_by(sa.text("distance"), _t.seq.desc())
    )


_SCOPES: tuple[Scope, ...] = ("session", "agent", "all")
_NEW_ROWS = {scope: _new_rows(scope) for scope in _SCOPES}
_RANKED = {scope: _ranked(scope) for scope in _SCOPES}
_BEST = {scope: statement.limit(N) for scope, statement in _RANKED.items()}
_ANY = {
    s: sa.select(_embedder, _dimension).where(
        sa.exists().select_from(insights).where(within(_t.session_id, s))
    )
    for s in _SCOPES
}


def best_first(scores: Vectors, rows: Vectors) -> tuple[Vectors, Vectors]:
    """Rows and scores, best first; among scores within 1e-6 of one another the larger row, the newer, first.

    Neighbours are compared instead of rounded values: equal vectors differ in the last bit, and some of them
    would be on the other side of a rounding edge.
    """
    order = np.argsort(-scores, kind="stable")
    ties = np.zeros(len(order), dtype=np.intp)
    np.cumsum(np.diff(scores[order].astype(np.float64)) < -_TIE, out=ties[1:])
    order = order[np.lexsort((-rows[order], ties))]
    return rows[order], scores[order]


def _first(limit: int | None, hidden: int, fetch: Callable[[int | None], tuple[Ranking, bool]]) -> Ranking:
    """The first ``limit`` of a ranking, which is fetched as far as ties require.

    ``fetch(n)`` ranks the ``n`` nearest rows (None: all), of which it may leave out ``hidden``, and says
    whether these are all rows.
    """
    if limit is None:
        return fetch(None)[0]
    wanted = limit + hidden + _SPARE
    while True:
        found, complete = fetch(wanted)
        # After a clear gap nothing is tied with the last one returned.
        if complete or (
            len(found) > limit and (limit == 0 or found.scores[limit - 1] - found.scores[-1] > _GAP)
        ):
            return found[:limit]
        wanted *= 4


class VectorIndex:
    """A flat inner-product index in FAISS with the key of each row.

    ``generation`` is the sum of the sessions' when the rows were read, ``last_seq`` the number of the newest
    row. A replaced row stays as dead until there are enough of them for a rebuild (``rebuilds``).
    """

    def __init__(self, generation: int = -1) -> None:
        self.generation = generation
        self.last_seq = -1
        self.dimension = 0
        self.rebuilds = 0
        self._faiss: Any = None
        self._rows: dict[Key, int] = {}  # those that are not dead
        self._count = 0  # of all rows
        self._keys: Vectors = np.empty((64, 2), dtype=object)
        self._alive: Vectors = np.zeros(64, dtype=bool)

    @property
    def size(self) -> int:
        """How many rows a search can return."""
        return len(self._rows)

    @property
    def dead(self) -> int:
        """How many rows were replaced and are still in the index."""
        return self._count - len(self._rows)

    def extend(self, rows: Sequence[tuple[int, Key, bytes]]) -> None:
        """Add rows ``(seq, key, embedding)`` in the order of ``seq``; earlier rows of their keys die."""
        if not rows:
            return
        vectors = np.frombuffer(b"".join(e for _, _, e in rows), dtype="<f4").reshape(len(rows), -1)
        if self._faiss is None:
            self.dimension = vectors.shape[1]
            self._faiss = _flat_index(self.dimension)
        self._faiss.add(np.ascontiguousarray(vectors, dtype=np.float32))
        while self._count + len(rows) > len(self._keys):
            self._keys = np.concatenate([self._keys, np.empty_like(self._keys)])
            self._alive = np.concatenate([self._alive, np.zeros_like(self._alive)])
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
        """Remove the dead rows; the others keep their order."""
        alive = np.flatnonzero(self._alive[: self._count])
        vectors = self._faiss.reconstruct_n(0, self._count)[alive]
        self._faiss = _flat_index(self.dimension)
        self._faiss.add(np.ascontiguousarray(vectors))
        self._count = len(alive)
        self._keys[: self._count] = self._keys[alive]
        self._keys[self._count :] = None
        self._alive[:] = False
        self._alive[: self._count] = True
        self._rows = {(s, t): row for row, (s, t) in enumerate(self._keys[: self._count])}
        self.rebuilds += 1

    def rank(self, query: Vectors, exclude: Collection[str], limit: int | None, *, wider: bool) -> Ranking:
        """At most ``limit`` rows, best first, for a query of shape (1, dimension).

        ``exclude`` are trace_ids of the session that searches. With ``wider`` the hits name their session.
        """

        def fetch(n: int | None) -> tuple[Ranking, bool]:
            k = self._count if n is None else min(n, self._count)
            return self._nearest(query, exclude, k, wider), k == self._count

        return _first(limit, len(exclude) + min(self.dead, limit or 0), fetch)

    def _nearest(self, query: Vectors, exclude: Collection[str], k: int, wider: bool) -> Ranking:
        scores, found = (column[0] for column in self._faiss.search(query, k))
        if self.dead:  # before ties are resolved: a dead row must not connect two groups
            alive = self._alive[found]
            scores, found = scores[alive], found[alive]
        order, scores = best_first(scores, found)
        if exclude:
            hidden = np.zeros(self._count, dtype=bool)
            hidden[[self._rows[None, t] for t in exclude if (None, t) in self._rows]] = True
            shown = ~hidden[order]
            order, scores = order[shown], scores[shown]
        keys = self._keys[order]
        return Ranking(keys[:, 1].tolist(), scores.tolist(), keys[:, 0].tolist() if wider else None)


def _flat_index(dimension: int) -> Any:
    import faiss

    return faiss.IndexFlatIP(dimension)


class InsightSearch(ABC):
    """Ranks the insights in the scope of a session. Not thread-safe: the InsightStore holds a lock."""

    def __init__(
        self, database: Database, session_id: str, embedder_name: str, scope: Scope = "session"
    ) -> None:
        self.database = database
        self.session_id = session_id
        self.embedder_name = embedder_name
        self.scope = scope
        self.wider = scope != "session"
        self.forget()

    @abstractmethod
    def rank(self, query: Callable[[], Vectors], exclude: Collection[str], limit: int | None) -> Ranking:
        """The insights but the excluded, best first; ``query`` is called only if there are any.

        ``exclude`` are trace_ids of the session itself. Raises EmbedderMismatchError.
        """

    def forget(self) -> None:  # noqa: B027  a search without a cache has nothing to drop
        """Drop what is cached: the session was cleared."""

    def _key(self, session_id: str, trace_id: str) -> Key:
        return None if session_id == self.session_id else session_id, trace_id


def open_search(
    database: Database, session_id: str, embedder_name: str, scope: Scope = "session"
) -> InsightSearch:
    """The search for this kind of database."""
    kind = DatabaseSearch if database.ranks else IndexSearch
    return kind(database, session_id, embedder_name, scope)


class IndexSearch(InsightSearch):
    """Searches a FAISS index that is derived from the rows and follows them."""

    _index: VectorIndex

    def rank(self, query: Callable[[], Vectors], exclude: Collection[str], limit: int | None) -> Ranking:
        index = self._refresh()
        if not index.size:
            return Ranking([], [])
        vector = query()
        if vector.shape[1] != index.dimension:
            name = self.embedder_name
            raise mismatch(self.database.name, name, index.dimension, name, vector.shape[1])
        return index.rank(vector, exclude, limit, wider=self.wider)

    def forget(self) -> None:
        self._index = VectorIndex()

    def _refresh(self) -> VectorIndex:
        """The index with the rows that this or another process has added since."""
        while True:
            index = self._index
            with self.database.read() as c:
                values = {"session": self.session_id, "last": index.last_seq}
                rows = c.execute(_NEW_ROWS[self.scope], values).all()
                generation = rows[0].generation
                if generation != index.generation:  # a session was cleared or re-embedded: begin again
                    self._index = VectorIndex(generation)
                    continue
                if rows[0].seq is None:  # the outer join found no new row
                    return index
                if not index.size:
                    is_known(c, self.database.name, self.embedder_name, None)
            index.extend([(seq, self._key(s, t), vector) for _, seq, s, t, vector in rows])
            if len(rows) < _ROWS_AT_ONCE:
                return index


class DatabaseSearch(InsightSearch):
    """Exact inner products by pgvector over the rows of the scope."""

    def rank(self, query: Callable[[], Vectors], exclude: Collection[str], limit: int | None) -> Ranking:
        if not self._has_insights(None):
            return Ranking([], [])
        vector = query()
        dimension = vector.shape[1]
        values = {
            "session": self.session_id,
            "query": vector.astype("<f4").tobytes(),
            "dimension_asked": dimension,
        }
        hidden = {(None, t) for t in exclude}

        def fetch(n: int | None) -> tuple[Ranking, bool]:
            n = n if n is None or n < _MANY else None
            with self.database.read() as c:
                if n is None:
                    rows = c.execute(_RANKED[self.scope], values).all()
                else:
                    rows = c.execute(_BEST[self.scope], {**values, "n": n}).all()
            if not rows:
                self._has_insights(dimension)
                return Ranking([], []), True
            self._check(rows[0].embedder, rows[0].dimension, dimension)
            keys = {row.seq: self._key(row.session_id, row.trace_id) for row in rows}
            order, scores = best_first(
                np.array([-row.distance for row in rows]), np.array(list(keys), dtype=np.intp)
            )
            shown = [k for k, seq in enumerate(order.tolist()) if keys[seq] not in hidden]
            found = [keys[int(order[k])] for k in shown]
            ranking = Ranking(
                [t for _, t in found], scores[shown].tolist(), [s for s, _ in found] if self.wider else None
            )
            return ranking, n is None or len(rows) < n

        return _first(limit, len(hidden), fetch)

    def _has_insights(self, dimension: int | None) -> bool:
        """Whether there are insights in the scope. Raises EmbedderMismatchError for another embedder's."""
        with self.database.read() as c:
            known = c.execute(_ANY[self.scope], {"session": self.session_id}).first()
        if known is not None:
            self._check(known.embedder, known.dimension, dimension)
        return known is not None

    def _check(self, name: str | None, known: str | None, dimension: int | None) -> None:
        ours = self.embedder_name
        if name is not None and (name != ours or (dimension is not None and known != str(dimension))):
            raise mismatch(self.database.name, name, known, ours, dimension)
