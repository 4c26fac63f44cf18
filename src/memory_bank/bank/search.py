"""Ranking insights by similarity, for one session or a wider scope: with FAISS, or by the database itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from memory_bank.bank.database import Database
from memory_bank.bank.embedder import check_embedder, is_known, mismatch
from memory_bank.bank.schema import LAST, SESSION, Embedding, insights, sessions
from memory_bank.ports import Scope
from memory_bank.records import Hit

Vectors = npt.NDArray[Any]
Key = tuple[str | None, str]
"""Session_id and trace_id of an insight; None for the session that searches."""

_ROWS_AT_ONCE = 2_000
_MANY = 2**31  # a higher limit is no limit
_TIE = 1e-6  # scores this close to the next better one are equal
_GAP = 1e-4  # scores further apart than this are in different groups of ties
_SPARE = 16

_t = insights.c
_own = sessions.alias()
_mine = sa.select(_own.c.agent_id, _own.c.namespace).where(_own.c.session_id == SESSION)
_agent, _namespace = (_mine.with_only_columns(c).scalar_subquery() for c in _mine.selected_columns)
_IN_NAMESPACE = sessions.c.namespace.is_not_distinct_from(_namespace)  # NULL is one namespace
# Without an agent: NULL equals nothing.
_OF_AGENT = (sessions.c.session_id == SESSION) | ((sessions.c.agent_id == _agent) & _IN_NAMESPACE)


def within(session_id: sa.ColumnElement[str], scope: Scope) -> sa.ColumnElement[bool]:
    """The condition that a session_id is in the scope of the session of the parameter ``session``."""
    if scope == "session":
        return session_id == SESSION
    included = _IN_NAMESPACE if scope == "all" else _OF_AGENT
    return session_id.in_(sa.select(sessions.c.session_id).where(included))


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


def best_first(scores: Vectors, rows: Vectors) -> tuple[Vectors, Vectors]:
    """Rows and scores, best first; among scores within 1e-6 of one another the larger row, the newer, first."""
    order = np.argsort(-scores, kind="stable")
    # neighbours are compared: equal vectors differ in the last bit, perhaps across a rounding edge
    ties = np.zeros(len(order), dtype=np.intp)
    np.cumsum(np.diff(scores[order].astype(np.float64)) < -_TIE, out=ties[1:])
    order = order[np.lexsort((-rows[order], ties))]
    return rows[order], scores[order]


def _first(
    limit: int | None, hidden: int, fetch: Callable[[int | None], tuple[Vectors, Vectors, bool]]
) -> tuple[list[Any], list[float]]:
    """The first ``limit`` rows of a ranking and their scores; it is fetched as far as ties require.

    ``fetch(n)`` ranks the ``n`` nearest rows (None: all), of which it may leave out ``hidden``, and says
    whether these are all rows.
    """
    wanted = None if limit is None else limit + hidden + _SPARE
    while True:
        rows, scores, complete = fetch(wanted)
        # After a clear gap nothing is tied with the last one returned.
        if (
            complete
            or limit is None
            or wanted is None
            or (len(rows) > limit and (limit == 0 or scores[limit - 1] - scores[-1] > _GAP))
        ):
            return rows[:limit].tolist(), scores[:limit].tolist()
        wanted *= 4


class VectorIndex:
    """A flat inner-product index in FAISS with the key of each row.

    ``generation`` is the sum of the sessions' when the rows were read, ``last_seq`` the number of the newest
    row.
    """

    def __init__(self, generation: int = -1) -> None:
        self.generation = generation
        self.last_seq = -1
        self.dimension = 0
        self._faiss: Any = None
        self._keys: list[Key] = []
        self._rows: dict[Key, int] = {}

    @property
    def size(self) -> int:
        """How many rows a search can return."""
        return len(self._keys)

    def extend(self, rows: Sequence[tuple[int, Key, bytes]]) -> None:
        """Add rows ``(seq, key, embedding)`` in the order of ``seq``; they replace earlier rows of their keys."""
        if not rows:
            return
        import faiss

        vectors = np.frombuffer(b"".join(e for _, _, e in rows), dtype="<f4").reshape(len(rows), -1)
        if self._faiss is None:
            self.dimension = vectors.shape[1]
            self._faiss = faiss.IndexFlatIP(self.dimension)
        replaced = {self._rows[key] for _, key, _ in rows if key in self._rows}
        if replaced:  # the others keep their order
            self._faiss.remove_ids(np.array(sorted(replaced), dtype=np.int64))
            self._keys = [key for row, key in enumerate(self._keys) if row not in replaced]
            self._rows = {key: row for row, key in enumerate(self._keys)}
        self._faiss.add(np.ascontiguousarray(vectors, dtype=np.float32))
        for _, key, _ in rows:
            self._rows[key] = len(self._keys)
            self._keys.append(key)
        self.last_seq = rows[-1][0]

    def rank(self, query: Vectors, exclude: Collection[str], limit: int | None) -> list[Hit]:
        """At most ``limit`` rows, best first, for a query of shape (1, dimension).

        ``exclude`` are trace_ids of the session that searches.
        """
        hidden = [self._rows[None, t] for t in exclude if (None, t) in self._rows]

        def fetch(n: int | None) -> tuple[Vectors, Vectors, bool]:
            k = self.size if n is None else min(n, self.size)
            scores, found = (column[0] for column in self._faiss.search(query, k))
            rows, scores = best_first(scores, found)
            if hidden:
                shown = ~np.isin(rows, hidden)
                rows, scores = rows[shown], scores[shown]
            return rows, scores, k == self.size

        rows, scores = _first(limit, len(exclude), fetch)
        keys = map(self._keys.__getitem__, rows)
        return [Hit(t, score, s) for (s, t), score in zip(keys, scores, strict=True)]


class InsightSearch(ABC):
    """Ranks the insights in the scope of a session. Not thread-safe: the InsightStore holds a lock."""

    def __init__(
        self, database: Database, session_id: str, embedder_name: str, scope: Scope = "session"
    ) -> None:
        self.database = database
        self.session_id = session_id
        self.embedder_name = embedder_name
        self.scope = scope
        self.forget()

    @abstractmethod
    def rank(self, query: Callable[[], Vectors], exclude: Collection[str], limit: int | None) -> list[Hit]:
        """The insights but the excluded, best first; ``query`` is called only if there are any.

        ``exclude`` are trace_ids of the session itself. Raises EmbedderMismatchError.
        """

    def forget(self) -> None:  # noqa: B027  a search without a cache has nothing to drop
        """Drop what is cached: the session was cleared."""

    def _key(self, session_id: str, trace_id: str) -> Key:
        return None if session_id == self.session_id else session_id, trace_id


class IndexSearch(InsightSearch):
    """Searches a FAISS index that is derived from the rows and follows them."""

    def rank(self, query: Callable[[], Vectors], exclude: Collection[str], limit: int | None) -> list[Hit]:
        index = self._refresh()
        if not index.size:
            return []
        vector = query()
        if vector.shape[1] != index.dimension:
            name = self.embedder_name
            raise mismatch(self.database.name, name, index.dimension, name, vector.shape[1])
        return index.rank(vector, exclude, limit)

    def forget(self) -> None:
        self._index = VectorIndex()
        self._statement = _new_rows(self.scope)

    def _refresh(self) -> VectorIndex:
        """The index with the rows that this or another process has added since."""
        while True:
            index = self._index
            with self.database.read() as c:
                values = {"session": self.session_id, "last": index.last_seq}
                rows = c.execute(self._statement, values).all()
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

    def rank(self, query: Callable[[], Vectors], exclude: Collection[str], limit: int | None) -> list[Hit]:
        mine = {"session": self.session_id}
        here = within(_t.session_id, self.scope)
        if self.database.value(sa.select(_t.seq).where(here).limit(1), **mine) is None:
            return []
        vector = query()
        check_embedder(self.database, self.embedder_name, vector.shape[1])
        asked = sa.literal(vector.astype("<f4").tobytes(), Embedding)
        distance = _t.embedding.op("<#>", return_type=sa.Float)(asked).label("distance")
        ranked = (
            sa.select(_t.seq, _t.session_id, _t.trace_id, distance)
            .where(here, sa.func.vector_dims(_t.embedding) == vector.shape[1])
            .order_by(sa.text("distance"), _t.seq.desc())
        )
        hidden = {(None, t) for t in exclude}
        keys: dict[int, Key] = {}

        def fetch(n: int | None) -> tuple[Vectors, Vectors, bool]:
            n = n if n is None or n < _MANY else None
            with self.database.read() as c:
                rows = c.execute(ranked.limit(n), mine).all()
            keys.update((row.seq, self._key(row.session_id, row.trace_id)) for row in rows)
            scores = np.array([-row.distance for row in rows])
            order, scores = best_first(scores, np.array([row.seq for row in rows], dtype=np.intp))
            shown = np.array([keys[seq] not in hidden for seq in order.tolist()], dtype=bool)
            return order[shown], scores[shown], len(rows) != n

        found, scores = _first(limit, len(hidden), fetch)
        return [Hit(keys[seq][1], score, keys[seq][0]) for seq, score in zip(found, scores, strict=True)]
