"""The InsightStore in SQL and FAISS: rows are the truth, the index of a session is derived from them."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from memory_bank.errors import EmbedderMismatchError
from memory_bank.ports import Embedder
from memory_bank.records import Insight, Ranking
from memory_bank.stores.database import Database
from memory_bank.stores.schema import bank, insights, sessions
from memory_bank.vectors import embedder_name, encode_documents, encode_queries, order_by_score

log = logging.getLogger("memory_bank.InsightStore")

_QUERIES_KEPT = 64  # query vectors remembered: the fixed query is asked at every step
_ROWS_AT_ONCE = 2_000


class InsightStore:
    """Summaries of one session, searchable by cosine similarity; without a database they live in memory.

    ``embedding_model`` is anything with ``encode(list[str]) -> array (n, d)``. A bank remembers the name and
    the dimension of its embedder: another one raises EmbedderMismatchError, which names the way out.
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
        self._index = _Index()
        self._queries: OrderedDict[str, np.ndarray[Any, Any]] = OrderedDict()
        check_embedder(self.database, self.embedder_name, None)

    def add(self, trace_id: str, summary: str) -> None:
        """Embed a summary and store it; an existing insight of that trace_id is replaced."""
        self.add_many([Insight(trace_id, summary)])

    def add_many(self, batch: Sequence[Insight]) -> None:
        """Embed and store several insights, in one batch and one transaction."""
        if not batch:
            return
        latest = {i.trace_id: i for i in batch}
        vectors = encode_documents(self.embedding_model, [i.summary for i in latest.values()])
        rows = [
            {
                "session_id": self.session_id,
                "trace_id": i.trace_id,
                "summary": i.summary,
                "embedding": vector.astype("<f4").tobytes(),
                "source": i.source,
                "redo": i.redo,
            }
            for i, vector in zip(latest.values(), vectors, strict=True)
        ]
        with self._lock, self.database.write() as c:
            _remember_embedder(c, self.database.name, self.embedder_name, vectors.shape[1])
            mine = insights.c.session_id == self.session_id
            for start in range(0, len(rows), _ROWS_AT_ONCE):
                ids = [r["trace_id"] for r in rows[start : start + _ROWS_AT_ONCE]]
                c.execute(sa.delete(insights).where(mine, insights.c.trace_id.in_(ids)))
            c.execute(sa.insert(insights), rows)

    def search(self, query: str, top_k: int = 3) -> list[str]:
        """The trace_ids of the ``top_k`` most similar summaries, best first; ties: the newer first."""
        return [hit.trace_id for hit in self.rank(query)[: max(0, top_k)]]

    def rank(self, query: str, exclude: Collection[str] = ()) -> Ranking:
        """All insights but the excluded, best first; scores within 1e-6 are ties: the newer first."""
        with self._lock:
            index = self._refresh()
            if not index.size:
                return Ranking([], [])
            return index.rank(self._query_vector(query), exclude)

    def get_summary(self, trace_id: str) -> str | None:
        """The summary, or None."""
        insight = self.get_insight(trace_id)
        return None if insight is None else insight.summary

    def get_insight(self, trace_id: str) -> Insight | None:
        """The summary with its source and its mark, or None."""
        found = self._insights(insights.c.trace_id == trace_id)
        return found[0] if found else None

    def trace_ids(self) -> list[str]:
        """All ids that have an insight, oldest first."""
        query = (
            sa.select(insights.c.trace_id)
            .where(insights.c.session_id == self.session_id)
            .order_by(insights.c.seq)
        )
        with self.database.read() as c:
            return list(c.execute(query).scalars())

    def to_redo(self) -> list[Insight]:
        """The insights that are to be made again, oldest first."""
        return self._insights(insights.c.redo.is_not(None))

    def clear(self) -> None:
        """Remove every insight of the session; the embedding model stays loaded."""
        with self._lock:
            clear_session(self.database, self.session_id)
            self._index = _Index()

    def is_empty(self) -> bool:
        """Whether there is no insight."""
        query = sa.select(insights.c.seq).where(insights.c.session_id == self.session_id).limit(1)
        with self.database.read() as c:
            return c.execute(query).first() is None

    def size(self) -> int:
        """How many insights there are."""
        query = (
            sa.select(sa.func.count()).select_from(insights).where(insights.c.session_id == self.session_id)
        )
        with self.database.read() as c:
            return c.execute(query).scalar() or 0

    # ------------------------------------------------------------------

    def _insights(self, condition: Any) -> list[Insight]:
        t = insights.c
        query = (
            sa.select(t.trace_id, t.summary, t.source, t.redo)
            .where(t.session_id == self.session_id, condition)
            .order_by(t.seq)
        )
        with self.database.read() as c:
            return [Insight(*row) for row in c.execute(query)]

    def _refresh(self) -> _Index:
        """The index, with the rows that this or another process has added since."""
        generation = self.database.generation(self.session_id)
        if generation != self._index.generation:
            self._index = _Index(generation)
        t = insights.c
        while True:
            query = (
                sa.select(t.seq, t.trace_id, t.embedding)
                .where(t.session_id == self.session_id, t.seq > self._index.last_seq)
                .order_by(t.seq)
                .limit(_ROWS_AT_ONCE)
            )
            with self.database.read() as c:
                rows = c.execute(query).all()
            if not self._index.extend(rows):  # a row was replaced: build it anew
                self._index = _Index(generation)
                continue
            if len(rows) < _ROWS_AT_ONCE:
                return self._index

    def _query_vector(self, query: str) -> np.ndarray[Any, Any]:
        vector = self._queries.get(query)
        if vector is None:
            vector = encode_queries(self.embedding_model, [query])
            check_embedder(self.database, self.embedder_name, vector.shape[1])
            self._queries[query] = vector
            if len(self._queries) > _QUERIES_KEPT:
                self._queries.popitem(last=False)
        else:
            self._queries.move_to_end(query)
        return vector


class _Index:
    """A flat FAISS index of one session with the trace_id of each row."""

    def __init__(self, generation: int = -1) -> None:
        self.generation = generation
        self.last_seq = -1
        self.size = 0
        self._faiss: Any = None
        self._rows: dict[str, int] = {}
        self._ids = np.empty(64, dtype=object)

    def extend(self, rows: Sequence[Any]) -> bool:
        """Take over new rows; False when one replaces a row that is already here."""
        if not rows:
            return True
        if any(trace_id in self._rows for _, trace_id, _ in rows):
            return False
        vectors = np.frombuffer(b"".join(e for _, _, e in rows), dtype="<f4").reshape(len(rows), -1)
        if self._faiss is None:
            import faiss

            self._faiss = faiss.IndexFlatIP(vectors.shape[1])
        self._faiss.add(np.ascontiguousarray(vectors, dtype=np.float32))
        while self.size + len(rows) > len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty(len(self._ids), dtype=object)])
        for _, trace_id, _ in rows:
            self._rows[trace_id] = self.size
            self._ids[self.size] = trace_id
            self.size += 1
        self.last_seq = rows[-1][0]
        return True

    def rank(self, query: np.ndarray[Any, Any], exclude: Collection[str]) -> Ranking:
        scores, found = self._faiss.search(query, self.size)
        order, scores = order_by_score(scores[0], found[0])
        if exclude:
            hidden = np.zeros(self.size, dtype=bool)
            hidden[[self._rows[t] for t in exclude if t in self._rows]] = True
            shown = ~hidden[order]
            order, scores = order[shown], scores[shown]
        return Ranking(self._ids[order], scores)


def clear_session(database: Database, session_id: str) -> None:
    """Remove a session's insights; no model is needed for it."""
    with database.write() as c:
        c.execute(sa.delete(insights).where(insights.c.session_id == session_id))
        c.execute(
            sa.update(sessions)
            .where(sessions.c.session_id == session_id)
            .values(generation=sessions.c.generation + 1)
        )


# the bank's embedder, one for all its sessions


def check_embedder(database: Database, name: str, dimension: int | None) -> None:
    """Raise EmbedderMismatchError when the bank holds embeddings of another embedder."""
    with database.read() as c:
        _check(c, database.name, name, dimension)


def _check(c: sa.Connection, where: str, name: str, dimension: int | None) -> bool:
    known = dict(c.execute(sa.select(bank.c.key, bank.c.value)).tuples().all())
    old_name, old_dimension = known.get("embedder"), known.get("dimension")
    if old_name is None or (old_name == name and (dimension is None or old_dimension == str(dimension))):
        return old_name is not None and dimension is not None
    if c.execute(sa.select(insights.c.seq).limit(1)).first() is None:
        return False  # nothing embedded yet: nothing to mix
    ours = f"{name} ({dimension} dimensions)" if dimension else name
    raise EmbedderMismatchError(
        f"{where} holds embeddings of {old_name} ({old_dimension} dimensions), not of {ours}: open it with "
        f"{old_name}, or run  memory-bank re-embed --db {where} --embedding-model {name}"
    )


def _remember_embedder(c: sa.Connection, where: str, name: str, dimension: int) -> None:
    if _check(c, where, name, dimension):
        return
    c.execute(sa.delete(bank).where(bank.c.key.in_(["embedder", "dimension"])))
    c.execute(
        sa.insert(bank),
        [{"key": "embedder", "value": name}, {"key": "dimension", "value": str(dimension)}],
    )
