"""How insights are ranked, one session's or more: by a FAISS index beside the rows, or by the database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import numpy as np
import sqlalchemy as sa

from memory_bank.bank.database import Database
from memory_bank.bank.embedder import is_known, mismatch
from memory_bank.bank.index import Array, SessionIndex, best_first, first_of
from memory_bank.bank.schema import Embedding, bank, insights, sessions
from memory_bank.bank.scope import within
from memory_bank.ports import Scope
from memory_bank.records import Ranking

_ROWS_AT_ONCE = 2_000
_MANY = 2**31  # more than this is all

# Statements are built once: building one costs more than running it. Those of one session name no sessions.
_t = insights.c
_NEW_ROWS = (  # with the session's generation in the same statement: what is read belongs together
    sa.select(sessions.c.generation, _t.seq, _t.trace_id, _t.embedding)
    .select_from(
        sessions.outerjoin(
            insights, (_t.session_id == sessions.c.session_id) & (_t.seq > sa.bindparam("last"))
        )
    )
    .where(sessions.c.session_id == sa.bindparam("session"))
    .order_by(_t.seq)
    .limit(_ROWS_AT_ONCE)
)
_embedder, _dimension = (
    sa.select(bank.c.value).where(bank.c.key == key).scalar_subquery().label(key)
    for key in ("embedder", "dimension")
)
_distance = _t.embedding.op("<#>", return_type=sa.Float)(sa.bindparam("query", type_=Embedding))
_N = sa.bindparam("n", type_=sa.BigInteger)


def _new_rows(scope: Scope) -> sa.Select[Any]:
    """As ``_NEW_ROWS``, of all sessions of a scope. Their generations only grow, and so does the sum: also
    where a session joins, as one that is given its agent later gets a new generation."""
    news = sa.select(_t.seq, _t.trace_id, _t.embedding, _t.session_id).where(
        within(_t.session_id, scope), _t.seq > sa.bindparam("last")
    )
    n = news.order_by(_t.seq).limit(_ROWS_AT_ONCE).subquery()
    generations = sa.select(sa.func.coalesce(sa.func.sum(sessions.c.generation), 0).label("generation"))
    s = generations.where(within(sessions.c.session_id, scope)).subquery()
    joined = s.outerjoin(n, sa.true())
    columns = (s.c.generation, n.c.seq, n.c.trace_id, n.c.embedding, n.c.session_id)
    return sa.select(*columns).select_from(joined).order_by(n.c.seq)


def _ranked(scope: Scope) -> sa.Select[Any]:
    """The rows by distance, again with what tells whose vectors these are."""
    columns = [_embedder, _dimension, _t.seq, _t.trace_id, _distance.label("distance")]
    if scope != "session":
        columns.append(_t.session_id)
    return (
        sa.select(*columns)
        .where(
            within(_t.session_id, scope), sa.func.vector_dims(_t.embedding) == sa.bindparam("dimension_asked")
        )
        .order_by(sa.text("distance"), _t.seq.desc())
    )


_SCOPES: tuple[Scope, ...] = ("session", "agent", "all")
_NEWS = {scope: _NEW_ROWS if scope == "session" else _new_rows(scope) for scope in _SCOPES}
_FACTS = {
    s: sa.select(_embedder, _dimension).where(
        sa.exists().select_from(insights).where(within(_t.session_id, s))
    )
    for s in _SCOPES
}
_RANKED = {scope: _ranked(scope) for scope in _SCOPES}
_BEST = {scope: statement.limit(_N) for scope, statement in _RANKED.items()}


class SessionSearch(Protocol):
    """Ranks the insights that one session may find. Not safe under threads: the store takes care of that."""

    def rank(self, query: Callable[[], Array], exclude: Collection[str], limit: int | None) -> Ranking:
        """The insights but the excluded, best first; ``query`` is asked for only where there are any.

        ``exclude`` are trace_ids of the session itself, also where others are searched.

        Raises EmbedderMismatchError.
        """

    def forget(self) -> None:
        """The session was cleared."""


def open_search(
    database: Database, session_id: str, embedder_name: str, scope: Scope = "session"
) -> SessionSearch:
    """The search that a database is made for."""
    kind = DatabaseSearch if database.ranks else IndexSearch
    return kind(database, session_id, embedder_name, scope)


def _named(keys: Sequence[tuple[str, str]], scores: Sequence[float], own: str) -> Ranking:
    """A ranking of ``(session_id, trace_id)`` as hits that name their session where it is another."""
    return Ranking([t for _, t in keys], scores, [None if s == own else s for s, _ in keys])


class IndexSearch:
    """Rows are the truth, a FAISS index is derived from them and follows them."""

    def __init__(
        self, database: Database, session_id: str, embedder_name: str, scope: Scope = "session"
    ) -> None:
        self.database = database
        self.session_id = session_id
        self.embedder_name = embedder_name
        self.scope = scope
        self._index = SessionIndex()

    def rank(self, query: Callable[[], Array], exclude: Collection[str], limit: int | None) -> Ranking:
        """See SessionSearch."""
        index = self._refresh()
        if not index.size:
            return Ranking([], [])
        vector = query()
        if vector.shape[1] != index.dimension:
            name = self.embedder_name
            raise mismatch(self.database.name, name, index.dimension, name, vector.shape[1])
        if self.scope == "session":
            return index.rank(vector, exclude, limit)
        own = self.session_id
        found = index.rank(vector, {(own, t) for t in exclude}, limit)
        return _named(found.trace_ids, found.scores, own)  # type: ignore[arg-type]

    def forget(self) -> None:
        """See SessionSearch."""
        self._index = SessionIndex()

    def _refresh(self) -> SessionIndex:
        """The index, with the rows that this or another process has added since."""
        while True:
            index = self._index
            asked = {"session": self.session_id, "last": index.last_seq}
            with self.database.read() as c:
                rows = c.execute(_NEWS[self.scope], asked).all()
                generation = rows[0][0] if rows else 0
                if generation != index.generation:  # a session was cleared or embedded anew: nothing holds
                    self._index = SessionIndex(generation)
                    continue
                if rows and rows[0][1] is None:  # the join's way to say: no new row
                    return index
                if rows and not index.size:
                    is_known(c, self.database.name, self.embedder_name, None)
            if self.scope == "session":
                index.extend([row[1:] for row in rows])
            else:
                index.extend([(row[1], (row[4], row[2]), row[3]) for row in rows])
            if len(rows) < _ROWS_AT_ONCE:
                return index


class DatabaseSearch:
    """Exact inner products by pgvector; a session's rows are found by a b-tree, nothing is kept here."""

    def __init__(
        self, database: Database, session_id: str, embedder_name: str, scope: Scope = "session"
    ) -> None:
        self.database = database
        self.session_id = session_id
        self.embedder_name = embedder_name
        self.scope = scope

    def rank(self, query: Callable[[], Array], exclude: Collection[str], limit: int | None) -> Ranking:
        """See SessionSearch."""
        if not self._any(None):
            return Ranking([], [])
        vector = query()
        dimension = vector.shape[1]
        asked = {
            "session": self.session_id,
            "query": vector.astype("<f4").tobytes(),
            "dimension_asked": dimension,
        }
        own, wider = self.session_id, self.scope != "session"
        hidden: set[Any] = {(own, t) for t in exclude} if wider else set(exclude)

        def fetch(n: int | None) -> tuple[Ranking, bool]:
            n = n if n is None or n < _MANY else None
            with self.database.read() as c:
                if n is None:
                    rows = c.execute(_RANKED[self.scope], asked).all()
                else:
                    rows = c.execute(_BEST[self.scope], {**asked, "n": n}).all()
            if not rows:
                self._any(dimension)
                return Ranking([], []), True
            self._check(rows[0][0], rows[0][1], dimension)
            ids: dict[int, Any] = {row[2]: (row[5], row[3]) if wider else row[3] for row in rows}
            order, scores = best_first(
                np.array([-row[4] for row in rows]), np.array(list(ids), dtype=np.intp)
            )
            shown = [k for k, seq in enumerate(order.tolist()) if ids[seq] not in hidden]
            keys, kept = [ids[int(order[k])] for k in shown], scores[shown].tolist()
            found = _named(keys, kept, own) if wider else Ranking(keys, kept)
            return found, n is None or len(rows) < n

        return first_of(limit, len(hidden), fetch)

    def forget(self) -> None:
        """See SessionSearch."""

    def _any(self, dimension: int | None) -> bool:
        """Whether there are insights in scope; those of another embedder raise."""
        with self.database.read() as c:
            known = c.execute(_FACTS[self.scope], {"session": self.session_id}).first()
        if known is not None:
            self._check(known[0], known[1], dimension)
        return known is not None

    def _check(self, name: str | None, known: str | None, dimension: int | None) -> None:
        ours = self.embedder_name
        if name is not None and (name != ours or (dimension is not None and known != str(dimension))):
            raise mismatch(self.database.name, name, known, ours, dimension)
