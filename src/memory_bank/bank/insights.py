"""The InsightStore in SQL: summaries and embeddings in rows, ranked by what the database is made for."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from memory_bank.bank.database import Database
from memory_bank.bank.embedder import bind, check_embedder
from memory_bank.bank.jobs import Job, finish_job
from memory_bank.bank.rows import InsightRow, is_trace_id, latest_insights
from memory_bank.bank.schema import insights, sessions
from memory_bank.bank.search import SessionSearch, open_search
from memory_bank.faults import fault_point
from memory_bank.ports import Embedder, Scope
from memory_bank.records import Insight, Ranking
from memory_bank.vectors import embedder_name, encode_documents, encode_queries

log = logging.getLogger("memory_bank.InsightStore")

_QUERIES_KEPT = 64  # query vectors remembered: the fixed query is asked at every step
_IDS_AT_ONCE = 500

# Statements are built once: building one costs more than running it.
_t = insights.c
_mine = _t.session_id == sa.bindparam("session")
_asked = _t.trace_id.in_(sa.bindparam("ids", expanding=True))
_COLUMNS = sa.select(_t.trace_id, _t.summary, _t.source, _t.redo).where(_mine)
_BY_IDS = _COLUMNS.where(_asked)
_TO_REDO = _COLUMNS.where(_t.redo.is_not(None)).order_by(_t.seq)
_TRACE_IDS = sa.select(_t.trace_id).where(_mine).order_by(_t.seq)
_FIRST = sa.select(_t.seq).where(_mine).limit(1)
_SIZE = sa.select(sa.func.count()).select_from(insights).where(_mine)
_INSERT = sa.insert(insights)
_REMOVE = sa.delete(insights).where(_mine, _asked)
_CLEAR = sa.delete(insights).where(_mine)
_NEXT_GENERATION = (
    sa.update(sessions)
    .where(sessions.c.session_id == sa.bindparam("session"))
    .values(generation=sessions.c.generation + 1)
)


@dataclass(frozen=True, slots=True)
class PreparedInsights:
    """Rows with their embeddings, and the dimension of these."""

    rows: list[InsightRow]
    dimension: int


class InsightStore:
    """Summaries of one session, searchable by cosine similarity; without a database they live in memory.

    ``embedding_model`` is anything with ``encode(list[str]) -> array (n, d)``. A bank remembers the name and
    the dimension of its embedder: another one raises EmbedderMismatchError, which names the way out. Every
    call that touches the database may raise StorageError.
    """

    def __init__(
        self, embedding_model: Embedder, database: Database | None = None, session_id: str = "default"
    ) -> None:
        self.embedding_model = embedding_model
        self.embedder_name = embedder_name(embedding_model)
        self.database = database or Database()
        self.session_id = session_id
        self.database.open_session(session_id)
        self._lock = threading.RLock()
        self._search = open_search(self.database, session_id, self.embedder_name)
        self._wider: dict[Scope, SessionSearch] = {}
        self._queries: OrderedDict[str, np.ndarray[Any, Any]] = OrderedDict()
        check_embedder(self.database, self.embedder_name, None)

    def add(self, trace_id: str, summary: str) -> None:
        """Embed a summary and store it; an existing insight of that trace_id is replaced.

        Raises RecordError, EmbeddingError, EmbedderMismatchError; nothing is stored then.
        """
        self.add_many([Insight(trace_id, summary)])

    def add_many(self, batch: Sequence[Insight], *, generation: int | None = None) -> None:
        """Embed and store several insights, in one batch and one transaction. Raises as ``add``.

        ``generation``: that of the session they are for; where it was reset since, nothing is stored.
        """
        prepared = self.prepare(batch)
        if prepared.rows:
            with self._lock:
                self.database.submit(lambda c: self.insert(c, prepared, generation), self.session_id)
            fault_point("insights.stored")

    def prepare(self, batch: Sequence[Insight]) -> PreparedInsights:
        """Embed some insights, ready to be inserted. Raises RecordError, EmbeddingError."""
        latest = latest_insights(batch)
        if not latest:
            return PreparedInsights([], 0)
        vectors = encode_documents(self.embedding_model, [i.summary for i in latest])
        rows: list[InsightRow] = [
            {
                "session_id": self.session_id,
                "trace_id": i.trace_id,
                "summary": i.summary,
                "embedding": vector.astype("<f4").tobytes(),
                "source": i.source,
                "redo": i.redo,
            }
            for i, vector in zip(latest, vectors, strict=True)
        ]
        return PreparedInsights(rows, vectors.shape[1])

    def insert(self, c: sa.Connection, prepared: PreparedInsights, generation: int | None = None) -> None:
        """Within a write that holds no session yet: the insights, in place of those that are there.

        ``generation``: see ``add_many``. Raises EmbedderMismatchError.
        """
        rows = prepared.rows
        if not rows:
            return
        bind(c, self.database, self.embedder_name, prepared.dimension)
        self.database.lock_session(c, self.session_id)
        if generation is not None and self.database.generation_within(c, self.session_id) != generation:
            return
        if self.database.insert_new(c, insights, rows) != len(rows):  # some are there already
            ids = [r["trace_id"] for r in rows]
            for start in range(0, len(ids), _IDS_AT_ONCE):
                part = ids[start : start + _IDS_AT_ONCE]
                c.execute(_REMOVE, {"session": self.session_id, "ids": part})
            c.execute(_INSERT, rows)
        fault_point("insights.executed")

    def finish(self, owner: str, ended: Sequence[tuple[Job, Insight | None]]) -> None:
        """End jobs of the session and store what they brought, in one transaction.

        A job that is no longer ``owner``'s brings nothing: it was taken over, or its session was reset.
        """
        prepared = self.prepare([i for _, i in ended if i is not None])

        def write(c: sa.Connection) -> None:
            if prepared.rows:
                bind(c, self.database, self.embedder_name, prepared.dimension)
            self.database.lock_session(c, self.session_id)
            ours = {job.trace_id for job, _ in ended if finish_job(c, owner, job)}
            rows = [r for r in prepared.rows if r["trace_id"] in ours]
            self.insert(c, PreparedInsights(rows, prepared.dimension))

        with self._lock:
            self.database.submit(write, self.session_id)

    def search(self, query: str, top_k: int = 3) -> list[str]:
        """The trace_ids of the ``top_k`` most similar summaries, best first; ties: the newer first."""
        return [hit.trace_id for hit in self.rank(query, limit=max(0, top_k))]

    def rank(
        self,
        query: str,
        exclude: Collection[str] = (),
        limit: int | None = None,
        *,
        scope: Scope = "session",
    ) -> Ranking:
        """The insights but the excluded, best first, at most ``limit``; ties (1e-6): the newer first.

        ``scope``: ``"agent"`` and ``"all"`` rank those of other sessions too, whose hits then name theirs.

        Raises EmbeddingError, EmbedderMismatchError.
        """
        with self._lock:
            return self._search_in(scope).rank(lambda: self._query_vector(query), exclude, limit)

    def get_summary(self, trace_id: str) -> str | None:
        """The summary, or None."""
        insight = self.get_insight(trace_id)
        return None if insight is None else insight.summary

    def get_insight(self, trace_id: str) -> Insight | None:
        """The summary with its source and its mark, or None."""
        return self.get_insights([trace_id]).get(trace_id)

    def get_insights(self, trace_ids: Sequence[str]) -> dict[str, Insight]:
        """The insights found, by trace_id, in the order asked for; missing ids are left out."""
        wanted = [t for t in dict.fromkeys(trace_ids) if is_trace_id(t)]
        if not wanted:
            return {}
        found: dict[str, Insight] = {}
        with self.database.read() as c:
            for start in range(0, len(wanted), _IDS_AT_ONCE):
                asked = {"session": self.session_id, "ids": wanted[start : start + _IDS_AT_ONCE]}
                found.update((row[0], Insight(*row)) for row in c.execute(_BY_IDS, asked))
        return {t: found[t] for t in wanted if t in found}

    def trace_ids(self) -> list[str]:
        """All ids that have an insight, oldest first."""
        with self.database.read() as c:
            return list(c.execute(_TRACE_IDS, {"session": self.session_id}).scalars())

    def to_redo(self) -> list[Insight]:
        """The insights that are to be made again, oldest first."""
        with self.database.read() as c:
            return [Insight(*row) for row in c.execute(_TO_REDO, {"session": self.session_id})]

    def clear(self) -> None:
        """Remove every insight of the session; the embedding model stays loaded."""
        with self._lock:
            clear_session(self.database, self.session_id)
            self._search.forget()

    def is_empty(self) -> bool:
        """Whether there is no insight."""
        with self.database.read() as c:
            return c.execute(_FIRST, {"session": self.session_id}).first() is None

    def size(self) -> int:
        """How many insights there are."""
        with self.database.read() as c:
            return c.execute(_SIZE, {"session": self.session_id}).scalar() or 0

    # ------------------------------------------------------------------

    def _search_in(self, scope: Scope) -> SessionSearch:
        if scope == "session":
            return self._search
        found = self._wider.get(scope)
        if found is None:
            found = open_search(self.database, self.session_id, self.embedder_name, scope)
            self._wider[scope] = found
        return found

    def _query_vector(self, query: str) -> np.ndarray[Any, Any]:
        vector = self._queries.get(query)
        if vector is None:
            vector = encode_queries(self.embedding_model, [query])
            self._queries[query] = vector
            if len(self._queries) > _QUERIES_KEPT:
                self._queries.popitem(last=False)
        else:
            self._queries.move_to_end(query)
        return vector


def clear_session(database: Database, session_id: str) -> None:
    """Remove a session's insights; no model is needed for it."""
    with database.write() as c:
        database.lock_session(c, session_id)
        c.execute(_CLEAR, {"session": session_id})
        c.execute(_NEXT_GENERATION, {"session": session_id})
