"""Ranking insights, for one session or a wider scope: by the words of their records, and by similarity.

Words are compared by BM25, over summary, tool, arguments and output. Where the embedder compares meanings, too, both
rankings are joined by reciprocal ranks (Cormack and others, 2009); similarity is computed by FAISS (by numpy without
it), or by the database.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from memory_bank.bank.database import Database
from memory_bank.bank.embedder import check_embedder, is_known, mismatch
from memory_bank.bank.schema import (
    INSIGHT_OF_RECORD,
    LAST,
    SESSION,
    Embedding,
    count_of,
    insights,
    of_session,
    records,
    sessions,
    sum_of,
)
from memory_bank.bank.terms import CallState, TermIndex, call_state, terms_of_query
from memory_bank.ports import Scope
from memory_bank.records import Hit

Vectors = npt.NDArray[Any]
Key = tuple[str, str]
"""Session_id and trace_id of an insight."""

NEIGHBOUR = 0.2  # of the score of each record beside it in its session
RECENT = 0.5  # by how much more the newest record of the searching session counts
OLDER = 0.9  # what is left of that one record earlier
_RANK = 60  # of reciprocal ranks
_ROWS_AT_ONCE = 10_000
_TIE = 1e-6  # similarities this close to the next better one are equal
_GAP = 1e-4  # similarities further apart than this are in different groups of ties
_SPARE = 1_000  # rows more than asked for that are ranked by similarity

_t = insights.c
_own = sessions.alias()
_mine = sa.select(_own.c.agent_id, _own.c.namespace).where(_own.c.session_id == SESSION)
_agent, _namespace = (_mine.with_only_columns(c).scalar_subquery() for c in _mine.selected_columns)
_IN_NAMESPACE = sessions.c.namespace.is_not_distinct_from(_namespace)  # NULL is one namespace
# Without an agent: NULL equals nothing.
_OF_AGENT = (sessions.c.session_id == SESSION) | ((sessions.c.agent_id == _agent) & _IN_NAMESPACE)

_old, _older = insights.alias(), records.alias()
_call, _output, _old_call, _old_output = (
    sa.func.substr(table.c.terms, first, 8, type_=sa.LargeBinary)  # see ``terms.CallState``
    for table in (insights, _old)
    for first in (5, 13)
)
_latest = (
    sa.select(_t.trace_id, (_output != _old_output).label("differs"))
    .select_from(insights.join(records, INSIGHT_OF_RECORD))
    .join(_older, (_older.c.session_id == _t.session_id) & (_older.c.tool_name == records.c.tool_name))
    .join(_old, (_old.c.session_id == _t.session_id) & (_old.c.trace_id == _older.c.trace_id))
    .where(of_session(insights), _older.c.trace_id == sa.bindparam("trace_id"), records.c.seq > _older.c.seq)
    .where(_call == _old_call, _call != bytes(8))
    .order_by(records.c.seq.desc())
    .limit(1)
    .subquery()
)
_SUPERSEDING = sa.select(_latest.c.trace_id).where(_latest.c.differs)


def within(session_id: sa.ColumnElement[str], scope: Scope) -> sa.ColumnElement[bool]:
    """The condition that a session_id is in the scope of the session of the parameter ``session``."""
    if scope == "session":
        return session_id == SESSION
    included = _IN_NAMESPACE if scope == "all" else _OF_AGENT
    return session_id.in_(sa.select(sessions.c.session_id).where(included))


def _new_rows(scope: Scope, counts: bool, *columns: sa.Column[bytes]) -> sa.Select[Any]:
    """The rows after ``last``, the sum of the generations and, if it ``counts``, the number of rows, at one moment.

    Generations only grow, and so does their sum, also when a session gets its agent and joins a scope.
    """
    all_rows = count_of(insights).where(within(_t.session_id, scope)).scalar_subquery()
    count: sa.ColumnElement[Any] = all_rows if counts else sa.literal(0)
    new = (
        sa.select(_t.seq, _t.session_id, _t.trace_id, _t.terms, records.c.seq.label("record"), *columns)
        .select_from(insights.outerjoin(records, INSIGHT_OF_RECORD))
        .where(within(_t.session_id, scope), _t.seq > LAST)
        .order_by(_t.seq)
        .limit(_ROWS_AT_ONCE)
        .subquery()
    )
    generations = (
        sa.select(sum_of(sessions.c.generation).label("generation"), count.label("count"))
        .where(within(sessions.c.session_id, scope))
        .subquery()
    )
    joined = generations.outerjoin(new, sa.true())
    return sa.select(*generations.c, *new.c).select_from(joined).order_by(new.c.seq)


def best_first(scores: Vectors, rows: Vectors) -> tuple[Vectors, Vectors]:
    """Rows and similarities, best first; among those within 1e-6 of one another the larger row, the newer, first."""
    order = np.argsort(-scores, kind="stable")
    # neighbours are compared: equal vectors differ in the last bit, perhaps across a rounding edge
    ties = np.zeros(len(order), dtype=np.intp)
    np.cumsum(np.diff(scores[order].astype(np.float64)) < -_TIE, out=ties[1:])
    order = order[np.lexsort((-rows[order], ties))]
    return rows[order], scores[order]


def superseding(database: Database, session_id: str, trace_id: str) -> str | None:
    """The trace_id of the latest record of the same call in a session, if that returned something else, or None."""
    return database.value(_SUPERSEDING, session=session_id, trace_id=trace_id)


class InsightSearch:
    """Ranks the insights in the scope of a session by indices in memory that follow their rows. Thread-safe.

    ``compares``: the embedder compares more than words, so its similarities count as well.
    """

    def __init__(
        self, database: Database, session_id: str, embedder_name: str, scope: Scope, compares: bool
    ) -> None:
        self.database = database
        self.session_id = session_id
        self.embedder_name = embedder_name
        self.compares = compares
        self._keeps_vectors = compares and not database.ranks
        # sessions that write at once to PostgreSQL may commit a lower ``seq`` after a higher one
        self._has_late_rows = database.ranks and scope != "session"
        self._new_rows = _new_rows(
            scope, self._has_late_rows, *([_t.embedding] if self._keeps_vectors else [])
        )
        self._nearest_rows = _nearest_rows(scope)
        self._lock = threading.RLock()
        self.forget()

    def forget(self, generation: int = -1) -> None:
        """Drop what is cached. ``generation``: the sum of those of the sessions that are read next."""
        with self._lock:
            self._forget(generation)

    def _forget(self, generation: int) -> None:
        self._generation = generation
        self._last_seq = -1
        self._vectors: Any = None
        self._terms = TermIndex()
        self._keys: list[Key] = []  # of each row; a replaced row stays, and is no longer present
        self._rows: dict[Key, int] = {}
        self._seqs = np.zeros(0, np.int64)  # ascending
        self._places = np.zeros((0, 2), np.int64)  # the number of its session here, and of its record there
        self._order: Vectors | None = None  # the rows that are present, by place
        self._sessions: dict[str, int] = {}
        self._present = np.zeros(0, bool)
        self._states: list[CallState] = []
        self._latest: dict[tuple[int, int], int] = {}  # the latest row of a call, by session and call

    def rank(
        self,
        query: str,
        vector: Callable[[], Vectors] | None,
        own: str,
        exclude: Collection[str],
        limit: int | None,
        least: float = -1.0,
    ) -> list[Hit]:
        """The insights but the excluded, best first, also those that do not fit; among equals the newer first.

        ``own`` is the session that searches, of which ``exclude`` are trace_ids; ``vector`` gives the query's, and is
        called only if it is needed; None: only words are compared. A similarity below ``least`` is no reason.
        Raises EmbedderMismatchError.
        """
        with self._lock:
            if not self._update():
                return []
            words, near, most = self._compare_words(query, own)
            shown = self._present.copy()
            shown[[self._rows[own, t] for t in exclude if (own, t) in self._rows]] = False
            scores, alike = near / most, np.zeros(len(near), bool)
            if self.compares and vector is not None:
                scores = np.zeros(len(near))
                count = None if limit is None else limit + len(exclude)
                by_words = np.lexsort((-np.arange(len(near)), -near))[: np.count_nonzero(near)]
                nearest, similarities = self._nearest(vector(), count)
                alike[nearest] = similarities >= least
                for rows in (by_words, nearest):
                    scores[rows] += (_RANK + 1) / 2 / (_RANK + 1 + np.arange(len(rows)))
            rows = np.flatnonzero(shown)
            rows = rows[np.lexsort((-rows, -scores[rows]))][:limit]
            reasons = np.select([words > 0, near > 0, alike], ["words", "neighbour", "similarity"], "")
            return [self._hit(row, own, scores[row], reasons[row]) for row in rows.tolist()]

    def _hit(self, row: int, own: str, score: float, why: Any) -> Hit:
        def place(row: int) -> tuple[str | None, str]:
            session_id, trace_id = self._keys[row]
            return None if session_id == own else session_id, trace_id

        call, output = self._states[row]
        latest = self._latest.get((int(self._places[row, 0]), call), row)
        newer = place(latest) if self._states[latest].output != output else None
        session_id, trace_id = place(row)
        return Hit(trace_id, float(score), session_id, str(why), newer)

    def _compare_words(self, query: str, own: str) -> tuple[Vectors, Vectors, float]:
        """BM25 of each row; the same with the neighbours' and more for the latest; the most that a row can have."""
        words, most = self._terms.scores(terms_of_query(query), self._present)
        if self._order is None:
            order = np.lexsort((self._places[:, 1], self._places[:, 0]))
            self._order = order[self._present[order]]
        order = self._order
        session = self._places[order, 0]
        in_order, near = words[order], words.copy()
        together = np.diff(session) == 0
        near[order[1:]] += NEIGHBOUR * in_order[:-1] * together
        near[order[:-1]] += NEIGHBOUR * in_order[1:] * together
        mine = order[session == self._sessions.get(own, -1)]
        near[mine] *= 1 + RECENT * OLDER ** np.arange(len(mine))[::-1]
        return words, near, max(most, 1e-9) * (1 + 2 * NEIGHBOUR) * (1 + RECENT)

    def _update(self) -> bool:
        """Add the rows that this or another process has stored since; whether there are any."""
        was_read_again = False
        while True:
            with self.database.read() as c:
                values = {"session": self.session_id, "last": self._last_seq}
                rows = c.execute(self._new_rows, values).all()
                generation = rows[0].generation
                if generation != self._generation:  # a session was cleared or re-embedded: begin again
                    self._forget(generation)
                    continue
                if rows[0].seq is not None and not self._keys:
                    is_known(c, self.database.name, self.embedder_name, None)
            if rows[0].seq is not None:  # else the outer join found no new row
                self._extend(rows)
            if len(rows) == _ROWS_AT_ONCE:
                continue
            present = np.count_nonzero(self._present)
            is_late = self._has_late_rows and present != rows[0].count
            if was_read_again or not (is_late or len(self._keys) > 64 + 2 * present):  # most were replaced
                return bool(self._keys)
            was_read_again = True
            self._forget(generation)

    def _extend(self, rows: Sequence[sa.Row[Any]]) -> None:
        """Add rows in the order of ``seq``; they replace earlier rows of their keys."""
        self._terms.add([row.terms for row in rows])
        first = len(self._keys)
        self._present = np.append(self._present, np.ones(len(rows), bool))
        places = [
            (self._sessions.setdefault(row.session_id, len(self._sessions)), row.record or row.seq)
            for row in rows
        ]
        self._places = np.concatenate((self._places, np.array(places, np.int64)))
        self._order = None
        for number, row in enumerate(rows, first):
            key = row.session_id, row.trace_id
            if key in self._rows:
                self._present[self._rows[key]] = False
            self._rows[key] = number
            self._keys.append(key)
            state = call_state(row.terms)
            self._states.append(state)
            session, place = places[number - first]
            latest = self._latest.get((session, state.call), number)
            if state.call and self._places[latest, 1] <= place:
                self._latest[session, state.call] = number
        self._seqs = np.append(self._seqs, [row.seq for row in rows])
        self._last_seq = rows[-1].seq
        if self._keeps_vectors:
            vectors = np.frombuffer(b"".join(row.embedding for row in rows), "<f4").reshape(len(rows), -1)
            if self._vectors is None:
                self._vectors = _flat_index(vectors.shape[1])
            self._vectors.add(np.ascontiguousarray(vectors, dtype=np.float32))

    def _nearest(self, vector: Vectors, count: int | None) -> tuple[Vectors, Vectors]:
        """The rows of the most similar summaries and their similarities: the best ``count``, and some more."""
        replaced = len(self._keys) - int(np.count_nonzero(self._present))
        wanted = len(self._keys) if count is None else count + replaced + _SPARE
        while True:
            wanted = min(wanted, len(self._keys))
            rows, scores = best_first(*self._similar(vector, wanted)[::-1])
            shown = self._present[rows]
            rows, scores = rows[shown], scores[shown]
            # after a clear gap nothing is tied with the last one that counts
            if (
                wanted == len(self._keys)
                or not count
                or (len(rows) > count and scores[count - 1] - scores[-1] > _GAP)
            ):
                return rows, scores
            wanted *= 4

    def _similar(self, vector: Vectors, count: int) -> tuple[Vectors, Vectors]:
        """The ``count`` most similar rows and their similarities. Rows stored since ``_update`` are left out."""
        if self._vectors is not None:
            if vector.shape[1] != self._vectors.d:
                name = self.embedder_name
                raise mismatch(self.database.name, name, self._vectors.d, name, vector.shape[1])
            scores, rows = self._vectors.search(vector, count)
            return rows[0], scores[0]
        check_embedder(self.database, self.embedder_name, vector.shape[1])
        values = {"session": self.session_id, "vector": vector.astype("<f4").tobytes(), "count": count}
        with self.database.read() as c:
            found = c.execute(self._nearest_rows, values).all()
        seqs, distances = (np.array([row[i] for row in found]) for i in (0, 1))
        rows = np.minimum(np.searchsorted(self._seqs, seqs), len(self._seqs) - 1)
        known = self._seqs[rows] == seqs
        return rows[known], -distances[known]


class FlatIndex:
    """``faiss.IndexFlatIP`` by numpy, for where FAISS (the extra ``faiss``) is not installed: exact, too."""

    def __init__(self, d: int) -> None:
        self.d = d
        self.ntotal = 0
        self._space = np.empty((0, d), np.float32)

    def add(self, vectors: Vectors) -> None:
        """Add rows, float32 of shape (n, d)."""
        known, self.ntotal = self.ntotal, self.ntotal + len(vectors)
        if self.ntotal > len(self._space):  # doubled, so that rows are rarely copied
            self._space = np.concatenate((self._space[:known], np.empty((self.ntotal, self.d), np.float32)))
        self._space[known : self.ntotal] = vectors

    def search(self, queries: Vectors, k: int) -> tuple[Vectors, Vectors]:
        """The inner products with the best ``k`` rows for each query, and the numbers of these rows: (n, k) each."""
        scores = queries @ self._space[: self.ntotal].T
        rows = np.argpartition(-scores, min(k, self.ntotal) - 1)[:, :k]
        return np.take_along_axis(scores, rows, axis=1), rows


def _flat_index(dimension: int) -> Any:
    try:
        import faiss
    except ImportError:
        return FlatIndex(dimension)
    return faiss.IndexFlatIP(dimension)


_sharing = threading.Lock()


def shared_search(database: Database, session_id: str, embedder_name: str, compares: bool) -> InsightSearch:
    """The search over the namespace of a session: one for all its sessions."""
    namespace = database.value(sa.select(sessions.c.namespace).where(sessions.c.session_id == session_id))
    with _sharing:
        known = database.searches
        if (namespace, embedder_name) not in known:
            made = InsightSearch(database, session_id, embedder_name, "all", compares)
            known[namespace, embedder_name] = made
        return cast(InsightSearch, known[namespace, embedder_name])


def _nearest_rows(scope: Scope) -> sa.Select[Any]:
    """The ``count`` insights nearest to ``vector`` by pgvector: ``seq`` and the negative inner product."""
    asked = sa.bindparam("vector", type_=Embedding)
    distance = _t.embedding.op("<#>", return_type=sa.Float)(asked).label("distance")
    found = sa.select(_t.seq, distance).where(within(_t.session_id, scope))
    return found.order_by(sa.text("distance"), _t.seq.desc()).limit(sa.bindparam("count", type_=sa.Integer))
