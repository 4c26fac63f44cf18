"""Ranking insights by similarity, for one session or a wider scope: with FAISS, or by the database itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
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


class InsightSearch:
    """Ranks the insights in the scope of a session by a FAISS index that follows their rows.

    Not thread-safe: the InsightStore holds a lock.
    """

    def __init__(self, database: Database, session_id: str, embedder_name: str, scope: Scope) -> None:
        self.database = database
        self.session_id = session_id
        self.embedder_name = embedder_name
        self.scope = scope
        self._new_rows = _new_rows(scope)
        self.forget()

    def forget(self, generation: int = -1) -> None:
        """Drop what is cached. ``generation``: the sum of those of the sessions that are read next."""
        self._generation = generation
        self._last_seq = -1
        self._faiss: Any = None
        self._rows: dict[Key, int] = {}
        self._keys: Any = []  # the key of each row

    def rank(self, query: Callable[[], Vectors], exclude: Collection[str], limit: int | None) -> list[Hit]:
        """The insights but the excluded, best first; ``query`` is called only if there are any.

        ``exclude`` are trace_ids of the session itself. Raises EmbedderMismatchError.
        """
        if not self._update():
            return []
        vector = query()
        self._check(vector.shape[1])
        wanted = None if limit is None else limit + len(exclude) + _SPARE
        while True:
            rows, scores, complete = self._nearest(vector, wanted)
            rows, scores = best_first(scores, rows)
            if hidden := [self._rows[None, t] for t in exclude if (None, t) in self._rows]:
                shown = ~np.isin(rows, hidden)
                rows, scores = rows[shown], scores[shown]
            # After a clear gap nothing is tied with the last one returned.
            if (
                complete
                or limit is None
                or wanted is None
                or (len(rows) > limit and (limit == 0 or scores[limit - 1] - scores[-1] > _GAP))
            ):
                found = zip(rows[:limit].tolist(), scores[:limit].tolist(), strict=True)
                keys: Mapping[int, Key] = self._keys
                return [Hit(keys[row][1], score, keys[row][0]) for row, score in found]
            wanted *= 4

    def _update(self) -> bool:
        """Add the rows that this or another process has stored since; whether there are any."""
        while True:
            with self.database.read() as c:
                values = {"session": self.session_id, "last": self._last_seq}
                rows = c.execute(self._new_rows, values).all()
                generation = rows[0].generation
                if generation != self._generation:  # a session was cleared or re-embedded: begin again
                    self.forget(generation)
                    continue
                if rows[0].seq is None:  # the outer join found no new row
                    return bool(self._keys)
                if not self._keys:
                    is_known(c, self.database.name, self.embedder_name, None)
            self._extend(rows)
            if len(rows) < _ROWS_AT_ONCE:
                return True

    def _extend(self, rows: Sequence[sa.Row[Any]]) -> None:
        """Add rows in the order of ``seq``; they replace earlier rows of their keys."""
        import faiss

        vectors = np.frombuffer(b"".join(row.embedding for row in rows), dtype="<f4").reshape(len(rows), -1)
        if self._faiss is None:
            self._faiss = faiss.IndexFlatIP(vectors.shape[1])
        keys = [self._key(row) for row in rows]
        replaced = {self._rows[key] for key in keys if key in self._rows}
        if replaced:  # the others keep their order
            self._faiss.remove_ids(np.array(sorted(replaced), dtype=np.int64))
            self._keys = [key for row, key in enumerate(self._keys) if row not in replaced]
            self._rows = {key: row for row, key in enumerate(self._keys)}
        self._faiss.add(np.ascontiguousarray(vectors, dtype=np.float32))
        self._rows.update((key, len(self._keys) + i) for i, key in enumerate(keys))
        self._keys += keys
        self._last_seq = rows[-1].seq

    def _key(self, row: Any) -> Key:
        return None if row.session_id == self.session_id else row.session_id, row.trace_id

    def _check(self, dimension: int) -> None:
        if dimension != self._faiss.d:
            name = self.embedder_name
            raise mismatch(self.database.name, name, self._faiss.d, name, dimension)

    def _nearest(self, vector: Vectors, n: int | None) -> tuple[Vectors, Vectors, bool]:
        """The ``n`` nearest rows (None: all) and their scores, and whether these are all rows."""
        size = len(self._keys)
        k = size if n is None else min(n, size)
        scores, rows = (column[0] for column in self._faiss.search(vector, k))
        return rows, scores, k == size


class DatabaseSearch(InsightSearch):
    """Exact inner products by pgvector over the rows of the scope; a row is its ``seq``."""

    def _update(self) -> bool:
        self._rows, self._keys = {}, {}
        one = sa.select(_t.seq).where(within(_t.session_id, self.scope)).limit(1)
        return self.database.value(one, session=self.session_id) is not None

    def _check(self, dimension: int) -> None:
        check_embedder(self.database, self.embedder_name, dimension)

    def _nearest(self, vector: Vectors, n: int | None) -> tuple[Vectors, Vectors, bool]:
        n = n if n is None or n < 2**31 else None  # the most that a LIMIT takes
        asked = sa.literal(vector.astype("<f4").tobytes(), Embedding)
        distance = _t.embedding.op("<#>", return_type=sa.Float)(asked).label("distance")
        ranked = (
            sa.select(_t.seq, _t.session_id, _t.trace_id, distance)
            .where(within(_t.session_id, self.scope), sa.func.vector_dims(_t.embedding) == vector.shape[1])
            .order_by(sa.text("distance"), _t.seq.desc())
        )
        with self.database.read() as c:
            rows = c.execute(ranked.limit(n), {"session": self.session_id}).all()
        self._keys.update((row.seq, self._key(row)) for row in rows)
        self._rows.update((key, seq) for seq, key in self._keys.items())
        seqs = np.array([row.seq for row in rows], dtype=np.intp)
        return seqs, np.array([-row.distance for row in rows]), len(rows) != n
