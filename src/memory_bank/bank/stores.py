"""The FactStore and the InsightStore of a session in SQL, and what wider scopes read of other sessions."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from memory_bank.bank.database import Database, as_database
from memory_bank.bank.embedder import bind, check_embedder
from memory_bank.bank.jobs import Job, add_jobs, clear_jobs, finish_job
from memory_bank.bank.learned import forget_model, lock_model
from memory_bank.bank.listing import Outline, count_records, list_outlines
from memory_bank.bank.rows import (
    FORGOTTEN,
    check_same,
    from_row,
    insight_of,
    is_trace_id,
    latest_insights,
    to_rows,
)
from memory_bank.bank.schema import (
    IDS,
    INSIGHT_OF_RECORD,
    NEXT_GENERATION,
    SESSION,
    count_of,
    in_parts,
    insights,
    jobs,
    like_prefix,
    of_session,
    records,
    steps,
)
from memory_bank.bank.search import DatabaseSearch, IndexSearch, InsightSearch, Vectors, within
from memory_bank.errors import ConfigError
from memory_bank.faults import fault_point
from memory_bank.models.embedding import load_embedder
from memory_bank.ports import Embedder, Scope
from memory_bank.records import Hit, Insight, InteractionRecord
from memory_bank.vectors import embedder_name, encode_documents, encode_queries

FORGOTTEN_OUTPUT = "[forgotten]"
_QUERIES_KEPT = 64  # cached query vectors: the fixed query is asked at every step
_LONGEST_QUERY_KEPT = 8_000  # characters
_AT_MOST = 20  # places returned for a trace_id or its beginning

_r, _i = records.c, insights.c
_BY_IDS = sa.select(*_r).where(of_session(records), _r.trace_id.in_(IDS))
_STEPS = sa.select(_r.trace_id, _r.step_id).where(of_session(records)).order_by(_r.seq)
_CALLS = (
    sa.select(_r.call_id, _r.trace_id).where(of_session(records), _r.call_id.is_not(None)).order_by(_r.seq)
)
_MARKS = sa.select(_r.trace_id, _r.mark).where(of_session(records), _r.mark.is_not(None)).order_by(_r.seq)
_OF_TOOLS = (
    sa.select(_r.trace_id, _r.tool_name)
    .where(of_session(records), _r.tool_name.in_(sa.bindparam("names", expanding=True)))
    .order_by(_r.seq)
)
_OF: sa.BindParameter[str] = sa.bindparam("of")
_MARK = (
    sa.update(records)
    .where(of_session(records), _r.trace_id == _OF, _r.mark.is_distinct_from(FORGOTTEN))
    .values(mark=sa.bindparam("new_mark", type_=sa.String))
)
_FORGET = (
    sa.update(records)
    .where(of_session(records), _r.trace_id == _OF)
    .values(
        mark=FORGOTTEN,
        call_id=None,
        input="{}",
        input_verbatim=False,
        output=FORGOTTEN_OUTPUT,
        output_verbatim=True,
    )
)
_FORGET_TOO = (
    sa.delete(insights).where(of_session(insights), _i.trace_id == _OF),
    sa.delete(jobs).where(of_session(jobs), jobs.c.trace_id == _OF),
    sa.update(steps).where(of_session(steps)).values(manifest=None),
)
_CLEAR_RECORDS = sa.delete(records).where(of_session(records))


class FactStore:
    """The raw records of one session; without a database they live in memory.

    ``database`` is a Database, a file name or a URL. Every method that uses it may raise StorageError. Raises
    ConfigError for an invalid session_id or database.
    """

    def __init__(self, database: Database | str | Path | None = None, session_id: str = "default") -> None:
        self.database = as_database(database)
        self.session_id = session_id
        self.database.open_session(session_id)

    def store(self, record: InteractionRecord) -> None:
        """Store a record durably; storing an equal one again changes nothing.

        Raises RecordConflictError, RecordError, StorageError.
        """
        self.store_many([record])

    def store_many(self, batch: Sequence[InteractionRecord], to_observe: Collection[str] = ()) -> None:
        """Store records in one transaction: all or none. Raises as ``store``.

        ``to_observe``: trace_ids of records for which jobs are added in the same transaction.
        """
        rows = to_rows(batch, self.session_id)
        if not rows:
            return
        self.database.submit(lambda c: self.insert(c, rows, to_observe), self.session_id)
        fault_point("facts.stored")

    def insert(
        self, c: Connection, rows: dict[str, dict[str, Any]], to_observe: Collection[str] = ()
    ) -> None:
        """Within a write, insert the rows of ``to_rows`` that do not exist. Raises RecordConflictError."""
        self.database.lock_session(c, self.session_id)
        if self.database.insert_new(c, records, list(rows.values())) != len(rows):  # some exist already
            for old in self._rows_of(c, list(rows)):
                if old["mark"] != FORGOTTEN:
                    check_same(rows[old["trace_id"]], old)
        if to_observe:
            add_jobs(c, self.database, self.session_id, list(to_observe))
        fault_point("facts.executed")

    def get(self, trace_id: str) -> InteractionRecord | None:
        """The record, or None."""
        return next(iter(self.get_many([trace_id])), None)

    def get_many(self, trace_ids: Sequence[str]) -> list[InteractionRecord]:
        """The records with these ids, in their order; missing ones are skipped."""
        wanted = [t for t in dict.fromkeys(trace_ids) if is_trace_id(t)]
        if not wanted:
            return []
        with self.database.read() as c:
            found = {row["trace_id"]: row for row in self._rows_of(c, wanted)}
        return [from_row(found[t]) for t in trace_ids if t in found]

    def _rows_of(self, c: Connection, ids: list[str]) -> Iterator[RowMapping]:
        for part in in_parts(ids):
            yield from c.execute(_BY_IDS, {"session": self.session_id, "ids": part}).mappings().all()

    def steps(self) -> dict[str, int]:
        """The step_id of every record by trace_id, oldest first."""
        with self.database.read() as c:
            return dict(c.execute(_STEPS, {"session": self.session_id}).all())

    def of_tools(self, names: Sequence[str]) -> dict[str, str]:
        """The records of some tools, oldest first: trace_id to the tool's name."""
        with self.database.read() as c:
            return dict(c.execute(_OF_TOOLS, {"session": self.session_id, "names": names}).all())

    def marks(self) -> dict[str, str]:
        """The marks that persons have given to records, by trace_id: "pinned", "excluded", "forgotten"."""
        with self.database.read() as c:
            return dict(c.execute(_MARKS, {"session": self.session_id}).all())

    def mark(self, trace_id: str, mark: Literal["pinned", "excluded"] | None) -> bool:
        """Pin a record, exclude it from contexts, or take its mark away (None).

        Open sessions notice at their next step. False: there is no such record, or it is forgotten.
        """
        with self.database.write() as c:
            self.database.lock_session(c, self.session_id)
            found = c.execute(_MARK, {"session": self.session_id, "of": trace_id, "new_mark": mark}).rowcount
            if found:
                c.execute(NEXT_GENERATION, {"session": self.session_id})
        return found == 1

    def forget(self, trace_id: str) -> bool:
        """Delete the content of a record for good: arguments, output, summary, and recorded contexts with it.

        Its row stays without them, so that the numbers of other records stay, and the record is not stored again
        from messages that still have it. False: there is no such record.
        """
        values = {"session": self.session_id, "of": trace_id}
        with self.database.erase() as c:
            model = lock_model(self.database, c, self.session_id)
            self.database.lock_session(c, self.session_id)
            found = c.execute(_FORGET, values).rowcount
            if found:
                for statement in _FORGET_TOO:
                    c.execute(statement, values)
                forget_model(c, model)
                c.execute(NEXT_GENERATION, {"session": self.session_id})
        return found == 1

    def by_call(self) -> dict[str, list[str]]:
        """The trace_ids of the session's records by the id of their call, oldest first."""
        found: dict[str, list[str]] = {}
        with self.database.read() as c:
            for call_id, trace_id in c.execute(_CALLS, {"session": self.session_id}).all():
                found.setdefault(call_id, []).append(trace_id)
        return found

    def page(self, after: int = 0, limit: int = 50, tool: str | None = None) -> list[Outline]:
        """The records with a number above ``after``, oldest first; of one tool, if given."""
        return list_outlines(self.database, self.session_id, limit, after, tool)

    def clear(self) -> None:
        """Delete every record of the session and its jobs."""
        with self.database.erase() as c:
            model = lock_model(self.database, c, self.session_id)
            self.database.lock_session(c, self.session_id)
            c.execute(_CLEAR_RECORDS, {"session": self.session_id})
            forget_model(c, model)
            clear_jobs(c, self.session_id)
            c.execute(NEXT_GENERATION, {"session": self.session_id})

    def size(self) -> int:
        """The number of records."""
        return count_records(self.database, self.session_id)


_COLUMNS = sa.select(_i.trace_id, _i.summary, _i.source, _i.redo).where(of_session(insights))
_SUMMARIES = _COLUMNS.where(_i.trace_id.in_(IDS))
_TO_REDO = _COLUMNS.where(_i.redo.is_not(None)).order_by(_i.seq)
_TRACE_IDS = sa.select(_i.trace_id).where(of_session(insights)).order_by(_i.seq)
_FIRST = sa.select(_i.seq).where(of_session(insights)).limit(1)
_SIZE = count_of(insights).where(of_session(insights))
_INSERT = sa.insert(insights)
_DELETE = sa.delete(insights).where(of_session(insights), _i.trace_id.in_(IDS))
_CLEAR_INSIGHTS = sa.delete(insights).where(of_session(insights))


@dataclass(frozen=True, slots=True)
class PreparedInsights:
    """Rows with their embeddings, and the dimension of these."""

    rows: list[dict[str, Any]]
    dimension: int


class InsightStore:
    """The summaries of one session, searchable by cosine similarity; without a database they live in memory.

    ``embedding_model`` is anything with ``encode(list[str]) -> array (n, d)``, or a name as in the settings, such
    as ``"lexical"``. ``database`` is a Database, a file name or a URL. A bank stores the name and the
    dimension of its embedder: another one raises EmbedderMismatchError, which says how to re-embed. Every
    method that uses the database may raise StorageError.
    """

    def __init__(
        self,
        embedding_model: Embedder | str,
        database: Database | str | Path | None = None,
        session_id: str = "default",
    ) -> None:
        if isinstance(embedding_model, str):
            embedding_model = load_embedder(embedding_model)
        if isinstance(embedding_model, type) or not callable(getattr(embedding_model, "encode", None)):
            raise ConfigError(
                f"an InsightStore was given {embedder_name(embedding_model)} as its embedding model, which has no "
                "encode: pass an object with encode(list of texts), or a name such as 'lexical'."
            )
        self.embedding_model = embedding_model
        self.embedder_name = embedder_name(embedding_model)
        self.database = as_database(database)
        self.session_id = session_id
        self.database.open_session(session_id)
        self._lock = threading.RLock()
        self._searches: dict[Scope, InsightSearch] = {}
        self._queries: OrderedDict[str, Vectors] = OrderedDict()
        check_embedder(self.database, self.embedder_name, None)

    def add(self, trace_id: str, summary: str) -> None:
        """Embed a summary and store it; an existing insight of that trace_id is replaced.

        Raises RecordError, EmbeddingError, EmbedderMismatchError; nothing is stored then.
        """
        self.add_many([Insight(trace_id, summary)])

    def add_many(self, batch: Sequence[Insight], *, generation: int | None = None) -> None:
        """Embed and store several insights, in one batch and one transaction. Raises as ``add``.

        ``generation``: the session's when the insights were made; nothing is stored if it was reset since.
        """
        prepared = self.prepare(batch)
        if prepared.rows:
            with self._lock:
                self.database.submit(lambda c: self.insert(c, prepared, generation), self.session_id)
            fault_point("insights.stored")

    def prepare(self, batch: Sequence[Insight]) -> PreparedInsights:
        """Embed insights for ``insert``. Raises RecordError, EmbeddingError."""
        latest = latest_insights(batch)
        if not latest:
            return PreparedInsights([], 0)
        vectors = encode_documents(self.embedding_model, [i.summary for i in latest])
        rows: list[dict[str, Any]] = [
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

    def insert(self, c: Connection, prepared: PreparedInsights, generation: int | None = None) -> None:
        """Within a write that holds no session yet, insert the insights and replace existing ones.

        ``generation``: see ``add_many``. Raises EmbedderMismatchError.
        """
        rows = prepared.rows
        if not rows:
            return
        bind(c, self.database, self.embedder_name, prepared.dimension)
        self.database.lock_session(c, self.session_id)
        if generation is not None and self.database.generation(self.session_id, c) != generation:
            return
        if self.database.insert_new(c, insights, rows) != len(rows):  # some exist already
            for part in in_parts([r["trace_id"] for r in rows]):
                c.execute(_DELETE, {"session": self.session_id, "ids": part})
            c.execute(_INSERT, rows)
        fault_point("insights.executed")

    def finish(self, owner: str, ended: Sequence[tuple[Job, Insight | None]]) -> None:
        """Delete jobs of the session and store their insights, in one transaction.

        The insight of a job that ``owner`` no longer holds is dropped: another worker has the job, or the
        session was reset.
        """
        prepared = self.prepare([i for _, i in ended if i is not None])

        def write(c: Connection) -> None:
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
    ) -> list[Hit]:
        """At most ``limit`` insights but the excluded, best first; ties (1e-6): the newer first.

        ``scope``: ``"agent"`` and ``"all"`` include other sessions, whose hits then name their session.

        Raises EmbeddingError, EmbedderMismatchError.
        """
        with self._lock:
            search = self._searches.get(scope)
            if search is None:
                kind = DatabaseSearch if self.database.ranks else IndexSearch
                search = self._searches[scope] = kind(
                    self.database, self.session_id, self.embedder_name, scope
                )
            return search.rank(lambda: self._query_vector(query), exclude, limit)

    def get_summary(self, trace_id: str) -> str | None:
        """The summary, or None."""
        insight = self.get_insight(trace_id)
        return None if insight is None else insight.summary

    def get_insight(self, trace_id: str) -> Insight | None:
        """The summary with its source and its mark, or None."""
        return self.get_insights([trace_id]).get(trace_id)

    def get_insights(self, trace_ids: Sequence[str]) -> dict[str, Insight]:
        """The insights of these trace_ids, in their order; missing ones are left out."""
        wanted = [t for t in dict.fromkeys(trace_ids) if is_trace_id(t)]
        if not wanted:
            return {}
        found: dict[str, Insight] = {}
        with self.database.read() as c:
            for part in in_parts(wanted):
                rows = c.execute(_SUMMARIES, {"session": self.session_id, "ids": part})
                found.update((row[0], Insight(*row)) for row in rows)
        return {t: found[t] for t in wanted if t in found}

    def trace_ids(self) -> list[str]:
        """All ids that have an insight, oldest first."""
        return self.database.column(_TRACE_IDS, session=self.session_id)

    def to_redo(self) -> list[Insight]:
        """The insights that are to be made again, oldest first."""
        with self.database.read() as c:
            return [Insight(*row) for row in c.execute(_TO_REDO, {"session": self.session_id})]

    def clear(self) -> None:
        """Delete every insight of the session; the embedding model stays loaded."""
        with self._lock:
            clear_session(self.database, self.session_id)
            for search in self._searches.values():
                search.forget()

    def is_empty(self) -> bool:
        """Whether there is no insight."""
        return self.database.value(_FIRST, session=self.session_id) is None

    def size(self) -> int:
        """The number of insights."""
        return self.database.value(_SIZE, session=self.session_id) or 0

    def _query_vector(self, query: str) -> Vectors:
        vector = self._queries.get(query)
        if vector is None:
            vector = encode_queries(self.embedding_model, [query])
            if len(query) <= _LONGEST_QUERY_KEPT:
                self._queries[query] = vector
            if len(self._queries) > _QUERIES_KEPT:
                self._queries.popitem(last=False)
        else:
            self._queries.move_to_end(query)
        return vector


def clear_session(database: Database, session_id: str) -> None:
    """Delete a session's insights, without an embedding model."""
    with database.erase() as c:
        database.lock_session(c, session_id)
        c.execute(_CLEAR_INSIGHTS, {"session": session_id})
        c.execute(NEXT_GENERATION, {"session": session_id})


_wider: tuple[Scope, ...] = ("agent", "all")
_SIZES = {s: count_of(records).where(within(_r.session_id, s)) for s in _wider}
_ENTRIES = {
    s: sa.select(*_r, _i.summary, _i.source, _i.redo)
    .select_from(records.outerjoin(insights, INSIGHT_OF_RECORD))
    .where(
        within(_r.session_id, s),
        _r.trace_id.in_(IDS),
        _r.session_id.in_(sa.bindparam("sessions", expanding=True)),
    )
    for s in _wider
}
_OTHERS = {
    s: sa.select(_r.session_id, _r.trace_id)
    .where(within(_r.session_id, s), _r.session_id != SESSION)
    .order_by(_r.seq.desc())
    .limit(_AT_MOST)
    for s in _wider
}
_EQUAL = {s: statement.where(_r.trace_id == sa.bindparam("wanted")) for s, statement in _OTHERS.items()}
_BEGINNING = {
    s: statement.where(_r.trace_id.like(sa.bindparam("wanted"), escape="/"))
    for s, statement in _OTHERS.items()
}


class WiderScope:
    """Reads the records and insights of all sessions in a scope of more than one session.

    A record of another session is identified by ``(session_id, trace_id)``. Every method may raise
    StorageError.
    """

    def __init__(
        self, database: Database, session_id: str, scope: Scope, insight_store: InsightStore
    ) -> None:
        self.database = database
        self.session_id = session_id
        self.scope = scope
        self.insight_store = insight_store

    def rank(self, query: str, exclude: Collection[str] = (), limit: int | None = None) -> list[Hit]:
        """As ``InsightStore.rank``, over all sessions of the scope; hits of other sessions name theirs.

        ``exclude`` are trace_ids of the own session.
        """
        return self.insight_store.rank(query, exclude, limit, scope=self.scope)

    def entries(
        self, where: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], tuple[InteractionRecord, Insight | None]]:
        """Records with their insights, by ``(session_id, trace_id)``; missing ones are left out."""
        found: dict[tuple[str, str], tuple[InteractionRecord, Insight | None]] = {}
        wanted = set(where)
        for part in in_parts(where):
            values = {
                "session": self.session_id,
                "sessions": sorted({s for s, _ in part}),
                "ids": sorted({t for _, t in part}),
            }
            with self.database.read() as c:
                rows = c.execute(_ENTRIES[self.scope], values).mappings().all()
            for row in rows:
                at = (row["session_id"], row["trace_id"])
                if at in wanted:
                    found[at] = from_row(row), insight_of(row)
        return found

    def elsewhere(self, trace_id: str, *, beginning: bool = False) -> list[tuple[str, str]]:
        """The records of other sessions with this trace_id (or this beginning of one), newest first.

        At most 20.
        """
        if not is_trace_id(trace_id):
            return []
        statements, wanted = (_BEGINNING, like_prefix(trace_id)) if beginning else (_EQUAL, trace_id)
        with self.database.read() as c:
            rows = c.execute(statements[self.scope], {"session": self.session_id, "wanted": wanted})
            return [(s, t) for s, t in rows]

    def size(self) -> int:
        """The number of records in the scope, those of the own session included."""
        return self.database.value(_SIZES[self.scope], session=self.session_id) or 0
