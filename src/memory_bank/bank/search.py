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
    IDS,
    INSIGHT_OF_RECORD,
    LAST,
    SESSION,
    Embedding,
    in_parts,
    insights,
    of_session,
    records,
    sessions,
    sum_of,
)
from memory_bank.bank.terms import bm25, terms_of_query
from memory_bank.bank.words import DAMAGED, Indexed, namespace_of, read_index, settle
from memory_bank.errors import StorageError
from memory_bank.models.lexical import Hashes
from memory_bank.ports import Scope
from memory_bank.records import Hit

Vectors = npt.NDArray[Any]

# Chosen on the even parts of ``benchmarks/search.py``: runs, shells, talks and facts that change.
NEIGHBOUR = 0.2  # of the score of each record beside it in its session; each further one counts as much less
REACH = 5  # how far a neighbour is, at most
RECENT = 0.5  # by how much more the newest record of the searching session counts
OLDER = 0.9  # what is left of that one record earlier
_RANK = 60  # of reciprocal ranks
_ROWS_AT_ONCE = 10_000
_TIE = 1e-6  # similarities this close to the next better one are equal
_GAP = 1e-4  # similarities further apart than this are in different groups of ties
_ALL = 2**31 - 1  # rows, as PostgreSQL's LIMIT takes them
_SPARE = 1_000  # rows more than asked for that are ranked by similarity

_t = insights.c
_own = sessions.alias()
_mine = sa.select(_own.c.project, _own.c.namespace).where(_own.c.session_id == SESSION)
_project, _namespace = (_mine.with_only_columns(c).scalar_subquery() for c in _mine.selected_columns)
_IN_NAMESPACE = sessions.c.namespace.is_not_distinct_from(_namespace)  # NULL is one namespace
# Without a project: NULL equals nothing.
_OF_PROJECT = (sessions.c.session_id == SESSION) | ((sessions.c.project == _project) & _IN_NAMESPACE)

_old, _older = insights.alias(), records.alias()
_call, _output, _old_call, _old_output = (
    sa.func.substr(table.c.terms, first, 8, type_=sa.LargeBinary)  # see ``terms.HEAD``
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
_SEQS = sa.select(_t.seq).where(of_session(insights), _t.trace_id.in_(IDS))
_PLACES = sa.select(_t.seq, _t.session_id, _t.trace_id).where(
    _t.seq.in_(sa.bindparam("seqs", expanding=True))
)


def within(session_id: sa.ColumnElement[str], scope: Scope) -> sa.ColumnElement[bool]:
    """The condition that a session_id is in the scope of the session of the parameter ``session``."""
    if scope == "session":
        return session_id == SESSION
    included = _IN_NAMESPACE if scope == "all" else _OF_PROJECT
    return session_id.in_(sa.select(sessions.c.session_id).where(included))


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
    """Ranks the insights in the scope of a session. Thread-safe.

    Their words are read from the database, see ``words``. ``compares``: the embedder compares more than words, so
    its similarities count as well; SQLite's vectors are in memory then, in an index that follows the rows.
    """

    def __init__(
        self, database: Database, session_id: str, embedder_name: str, scope: Scope, compares: bool
    ) -> None:
        self.database = database
        self.session_id = session_id
        self.embedder_name = embedder_name
        self.compares = compares
        of = sessions.c.session_id
        self._sessions = None if scope == "all" else sa.select(of).where(within(of, scope))
        self._nearest_rows = _nearest_rows(scope)
        self._new_vectors = _new_vectors(scope)
        self._lock = threading.RLock()
        self.forget()

    def forget(self, generation: int = -1) -> None:
        """Drop what is cached. ``generation``: the sum of those of the sessions that are read next."""
        with self._lock:
            self._generation = generation
            self._vectors: Any = None
            self._seqs = np.zeros(0, np.int64)  # of the vectors, ascending

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
        terms = terms_of_query(query)
        with self.database.snapshot() as c:
            try:
                index = read_index(
                    c, self.database.kept_words, namespace_of(c, own), terms, self._sessions, own
                )
            except DAMAGED as e:
                reason = "its index of words is damaged: run  memory-bank bank verify --repair"
                raise StorageError(f"{self.database.name}: {reason} --db {self.database.name}") from e
            if not len(index.seqs):
                return []
            is_known(c, self.database, self.embedder_name, None)
            parts = in_parts(list(exclude))
            excluded = [seq for p in parts for seq in c.execute(_SEQS, {"session": own, "ids": p}).scalars()]
        if index.loose >= 2 * self.database.block_size:  # as after an import, or in a bank of an older form
            settle(self.database, own, index.loose, most=8)
        words, near, most = _compare_words(index, terms, own)
        allowed = ~np.isin(index.seqs, excluded)
        scores, alike = near / most, np.zeros(len(near), bool)
        if self.compares and vector is not None:
            scores = np.zeros(len(near))
            count = None if limit is None else limit + len(exclude)
            by_words = np.lexsort((-np.arange(len(near)), -near))[: np.count_nonzero(near)]
            nearest, similarities = self._nearest(vector(), count, index.seqs)
            alike[nearest] = similarities >= least
            for rows in (by_words, nearest):
                scores[rows] += (_RANK + 1) / 2 / (_RANK + 1 + np.arange(len(rows)))
        rows = np.flatnonzero(allowed)
        rows = rows[np.lexsort((-rows, -scores[rows]))][:limit]
        reasons = np.select([words > 0, near > 0, alike], ["words", "neighbour", "similarity"], "")
        return self._hits(index, own, [(row, float(scores[row]), str(reasons[row])) for row in rows.tolist()])

    def _hits(self, index: Indexed, own: str, found: Sequence[tuple[int, float, str]]) -> list[Hit]:
        """The hits of rows with their scores and reasons; those that were deleted meanwhile are left out."""
        newer = _superseded(index, [row for row, *_ in found], self._sessions is None)
        seqs = {row: int(index.seqs[row]) for row in (*(row for row, *_ in found), *newer.values())}
        with self.database.read() as c:
            places = {
                seq: (None if session_id == own else session_id, trace_id)
                for part in in_parts([*seqs.values()])
                for seq, session_id, trace_id in c.execute(_PLACES, {"seqs": part})
            }
        at = {row: places.get(seq) for row, seq in seqs.items()}
        return [
            Hit(place[1], score, place[0], why, at.get(newer.get(row, -1)))
            for row, score, why in found
            if (place := at[row]) is not None
        ]

    def _nearest(self, vector: Vectors, count: int | None, present: Vectors) -> tuple[Vectors, Vectors]:
        """The rows of the most similar summaries and their similarities: the best ``count``, and some more.

        ``present`` are the ``seq`` of all rows, ascending.
        """
        wanted = _ALL if count is None else min(count + _SPARE, _ALL)
        if len(self._seqs) > 64 + 2 * len(present):  # most were replaced
            self.forget()
        while True:
            seqs, scores = self._similar(vector, wanted)
            is_all = len(seqs) < wanted or wanted == _ALL
            rows = np.minimum(np.searchsorted(present, seqs), len(present) - 1)
            is_known = present[rows] == seqs
            rows, scores = best_first(scores[is_known], rows[is_known])
            gap = scores[count - 1] - scores[-1] if count and len(rows) > count else 0.0
            # after a clear gap nothing is tied with the last one that counts
            if is_all or not count or gap > _GAP:
                return rows, scores
            wanted = min(4 * wanted, _ALL)

    def _similar(self, vector: Vectors, count: int) -> tuple[Vectors, Vectors]:
        """The ``seq`` of the ``count`` most similar vectors and their similarities."""
        if self.database.ranks:
            check_embedder(self.database, self.embedder_name, vector.shape[1])
            values = {"session": self.session_id, "vector": vector.astype("<f4").tobytes(), "count": count}
            with self.database.read() as c:
                nearest = c.execute(self._nearest_rows, values).all()
            seqs, distances = (np.array([row[i] for row in nearest]) for i in (0, 1))
            return seqs, -distances
        with self._lock:
            self._update()
            if self._vectors is None:
                return np.zeros(0, np.int64), np.zeros(0, np.float32)
            if vector.shape[1] != self._vectors.d:
                name = self.embedder_name
                raise mismatch(self.database.name, name, self._vectors.d, name, vector.shape[1])
            scores, rows = self._vectors.search(vector, min(count, len(self._seqs)))
            return self._seqs[rows[0]], scores[0]

    def _update(self) -> None:
        """Add the vectors that this or another process has stored since."""
        while True:
            last = int(self._seqs[-1]) if len(self._seqs) else -1
            with self.database.read() as c:
                rows = c.execute(self._new_vectors, {"session": self.session_id, "last": last}).all()
            if rows[0].generation != self._generation:  # a session was cleared or re-embedded: begin again
                self.forget(rows[0].generation)
                continue
            if rows[0].seq is not None:  # else the outer join found no new row
                vectors = np.frombuffer(b"".join(row.embedding for row in rows), "<f4").reshape(len(rows), -1)
                if self._vectors is None:
                    self._vectors = _flat_index(vectors.shape[1])
                self._vectors.add(np.ascontiguousarray(vectors, dtype=np.float32))
                self._seqs = np.append(self._seqs, [row.seq for row in rows])
            if len(rows) < _ROWS_AT_ONCE:
                return


def _compare_words(index: Indexed, query: Hashes, session_id: str) -> tuple[Vectors, Vectors, float]:
    """BM25 of each row; what they are ranked by, with neighbours and age; the most that a row can have."""
    words, most = bm25(query, index.postings, index.heads["length"].astype(np.float64))
    order = np.lexsort((index.place, index.session))
    session = index.session[order]
    in_order, near = words[order], words.copy()
    for far in range(1, min(REACH, len(order) - 1) + 1):
        shares = NEIGHBOUR**far * (session[far:] == session[:-far])
        near[order[far:]] += shares * in_order[:-far]
        near[order[:-far]] += shares * in_order[far:]
    mine = order[session == (index.names.index(session_id) if session_id in index.names else -1)]
    near[mine] *= 1 + RECENT * OLDER ** np.arange(len(mine))[::-1]
    around = 2 * sum(NEIGHBOUR**far for far in range(1, REACH + 1))
    return words, near, max(most, 1e-9) * (1 + around) * (1 + RECENT)


def _superseded(index: Indexed, rows: Sequence[int], apart: bool) -> dict[int, int]:
    """The rows whose call was made again later and returned something else; each with the row of the latest call.

    ``apart``: only in the same session, as where the sessions are not of one project.
    """
    calls, outputs, newer = index.heads["call"], index.heads["output"], dict[int, int]()
    wanted = np.flatnonzero(np.isin(calls, calls[np.array(rows, np.intp)]) & (calls != 0))
    latest: dict[tuple[int, int], int] = {}
    for row in wanted[np.argsort(index.place[wanted], kind="stable")].tolist():
        latest[apart and int(index.session[row]), int(calls[row])] = row
    for row in rows:
        last = latest.get((apart and int(index.session[row]), int(calls[row])), row)
        if outputs[last] != outputs[row]:
            newer[row] = last
    return newer


class FlatIndex:
    """``faiss.IndexFlatIP`` by numpy, for where FAISS (the extra ``faiss``) is not installed: exact, too."""

    def __init__(self, d: int) -> None:
        self.d = d
        self.ntotal = 0
        self._space = np.empty((0, d), np.float32)

    def add(self, vectors: Vectors) -> None:
        """Add rows, float32 of shape (n, d)."""
        size, self.ntotal = self.ntotal, self.ntotal + len(vectors)
        if self.ntotal > len(self._space):  # doubled, so that rows are rarely copied
            self._space = np.concatenate((self._space[:size], np.empty((self.ntotal, self.d), np.float32)))
        self._space[size : self.ntotal] = vectors

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


def open_search(
    database: Database, session_id: str, embedder_name: str, scope: Scope, compares: bool
) -> InsightSearch:
    """The search in the scope of a session; that over its namespace is one for all sessions."""
    if scope != "all":
        return InsightSearch(database, session_id, embedder_name, scope, compares)
    namespace = database.value(sa.select(sessions.c.namespace).where(sessions.c.session_id == session_id))
    with _sharing:
        searches = database.searches
        if (namespace, embedder_name) not in searches:
            search = InsightSearch(database, session_id, embedder_name, "all", compares)
            searches[namespace, embedder_name] = search
        return cast(InsightSearch, searches[namespace, embedder_name])


def _nearest_rows(scope: Scope) -> sa.Select[Any]:
    """The ``count`` insights nearest to ``vector`` by pgvector: ``seq`` and the negative inner product."""
    asked = sa.bindparam("vector", type_=Embedding)
    distance = _t.embedding.op("<#>", return_type=sa.Float)(asked).label("distance")
    query = sa.select(_t.seq, distance).where(within(_t.session_id, scope))
    return query.order_by(sa.text("distance"), _t.seq.desc()).limit(sa.bindparam("count", type_=sa.Integer))


def _new_vectors(scope: Scope) -> sa.Select[Any]:
    """The vectors after ``last`` and the sum of the generations, at one moment.

    Generations only grow, and so does their sum, also when a session gets its project and joins a scope.
    """
    new = (
        sa.select(_t.seq, _t.embedding)
        .where(within(_t.session_id, scope), _t.seq > LAST)
        .order_by(_t.seq)
        .limit(_ROWS_AT_ONCE)
        .subquery()
    )
    generations = (
        sa.select(sum_of(sessions.c.generation).label("generation"))
        .where(within(sessions.c.session_id, scope))
        .subquery()
    )
    joined = generations.outerjoin(new, sa.true())
    return sa.select(*generations.c, *new.c).select_from(joined).order_by(new.c.seq)
