"""How one session's insights are ranked: by a FAISS index beside the rows, or by the database itself."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

import numpy as np
import sqlalchemy as sa

from memory_bank.records import Ranking
from memory_bank.stores.database import Database
from memory_bank.stores.embedder import is_known, mismatch
from memory_bank.stores.index import Array, SessionIndex, best_first, first_of
from memory_bank.stores.schema import Embedding, bank, insights, sessions

_ROWS_AT_ONCE = 2_000
_MANY = 2**31  # more than this is all

# Statements are built once: building one costs more than running it.
_t = insights.c
_mine = _t.session_id == sa.bindparam("session")
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
_FACTS = sa.select(_embedder, _dimension).where(sa.exists().where(_mine))
_distance = _t.embedding.op("<#>", return_type=sa.Float)(sa.bindparam("query", type_=Embedding))
_RANKED = (  # again with what tells whose vectors these are
    sa.select(_embedder, _dimension, _t.seq, _t.trace_id, _distance.label("distance"))
    .where(_mine, sa.func.vector_dims(_t.embedding) == sa.bindparam("dimension_asked"))
    .order_by(sa.text("distance"), _t.seq.desc())
)
_BEST = _RANKED.limit(sa.bindparam("n", type_=sa.BigInteger))


class SessionSearch(Protocol):
    """Ranks the insights of one session. Not safe under threads: the store takes care of that."""

    def rank(self, query: Callable[[], Array], exclude: Collection[str], limit: int | None) -> Ranking:
        """The insights but the excluded, best first; ``query`` is asked for only where there are any.

        Raises EmbedderMismatchError.
        """

    def forget(self) -> None:
        """The session was cleared."""


def open_search(database: Database, session_id: str, embedder_name: str) -> SessionSearch:
    """The search that a database is made for."""
    kind = DatabaseSearch if database.ranks else IndexSearch
    return kind(database, session_id, embedder_name)


class IndexSearch:
    """Rows are the truth, a FAISS index is derived from them and follows them."""

    def __init__(self, database: Database, session_id: str, embedder_name: str) -> None:
        self.database = database
        self.session_id = session_id
        self.embedder_name = embedder_name
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
        return index.rank(vector, exclude, limit)

    def forget(self) -> None:
        """See SessionSearch."""
        self._index = SessionIndex()

    def _refresh(self) -> SessionIndex:
        """The index, with the rows that this or another process has added since."""
        while True:
            index = self._index
            asked = {"session": self.session_id, "last": index.last_seq}
            with self.database.read() as c:
                rows = c.execute(_NEW_ROWS, asked).all()
                generation = rows[0][0] if rows else 0
                if generation != index.generation:  # cleared or embedded anew: nothing of it holds
                    self._index = SessionIndex(generation)
                    continue
                if rows and rows[0][1] is None:  # the join's way to say: no new row
                    return index
                if rows and not index.size:
                    is_known(c, self.database.name, self.embedder_name, None)
            index.extend([row[1:] for row in rows])
            if len(rows) < _ROWS_AT_ONCE:
                return index


class DatabaseSearch:
    """Exact inner products by pgvector over the session's rows, found by a b-tree; nothing is kept here."""

    def __init__(self, database: Database, session_id: str, embedder_name: str) -> None:
        self.database = database
        self.session_id = session_id
        self.embedder_name = embedder_name

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
        hidden = set(exclude)

        def fetch(n: int | None) -> tuple[Ranking, bool]:
            n = n if n is None or n < _MANY else None
            with self.database.read() as c:
                rows = c.execute(
                    _RANKED if n is None else _BEST, asked if n is None else {**asked, "n": n}
                ).all()
            if not rows:
                self._any(dimension)
                return Ranking([], []), True
            self._check(rows[0][0], rows[0][1], dimension)
            ids = {row[2]: row[3] for row in rows}
            order, scores = best_first(
                np.array([-row[4] for row in rows]), np.array(list(ids), dtype=np.intp)
            )
            shown = [k for k, seq in enumerate(order.tolist()) if ids[seq] not in hidden]
            found = Ranking([ids[int(order[k])] for k in shown], scores[shown].tolist())
            return found, n is None or len(rows) < n

        return first_of(limit, len(hidden), fetch)

    def forget(self) -> None:
        """See SessionSearch."""

    def _any(self, dimension: int | None) -> bool:
        """Whether the session has insights; those of another embedder raise."""
        with self.database.read() as c:
            known = c.execute(_FACTS, {"session": self.session_id}).first()
        if known is not None:
            self._check(known[0], known[1], dimension)
        return known is not None

    def _check(self, name: str | None, known: str | None, dimension: int | None) -> None:
        ours = self.embedder_name
        if name is not None and (name != ours or (dimension is not None and known != str(dimension))):
            raise mismatch(self.database.name, name, known, ours, dimension)
