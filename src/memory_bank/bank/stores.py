"""The FactStore and the InsightStore of a session in SQL, and what wider scopes read of other sessions."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from memory_bank.bank.database import Database, Operation, as_database
from memory_bank.bank.embedder import bind, check_embedder, dimension_of
from memory_bank.bank.listing import Outline, list_outlines, stored_rows
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
    HAS_CONTENT,
    HEAD_BYTES,
    IDS,
    INSIGHT_OF_RECORD,
    NEXT_GENERATION,
    NO_LEDGER,
    SESSION,
    SET_SESSION,
    content_deleted,
    count_of,
    first_bytes,
    in_parts,
    insights,
    like_prefix,
    of_session,
    records,
    rows_by_id,
    sessions,
    steps,
    waits,
)
from memory_bank.bank.search import InsightSearch, open_search, within
from memory_bank.bank.terms import terms_of
from memory_bank.bank.words import add_insights, delete_insights, settle
from memory_bank.config import MemoryBankSettings
from memory_bank.errors import ConfigError
from memory_bank.faults import fault_point
from memory_bank.models.embedding import load_embedder
from memory_bank.models.lexical import LexicalEmbedder
from memory_bank.ports import Embedder, Scope
from memory_bank.records import Hit, Insight, InteractionRecord
from memory_bank.vectors import embedder_name, encode_documents, encode_queries

EMBEDDING_MODEL: str = MemoryBankSettings.model_fields["embedding_model"].default
Place = tuple[str, str]
"""``(session_id, trace_id)`` of a record."""
Call = tuple[int, str, str]
"""``seq`` of a record, its tool, and the first 16 KiB of its arguments."""
_r, _i = records.c, insights.c
_BY_IDS = sa.select(*_r).where(of_session(records), _r.trace_id.in_(IDS))
_INSIGHTS = sa.select(_i.trace_id, _i.summary, _i.source, _i.redo).where(
    of_session(insights), _i.trace_id.in_(IDS)
)
_WANTED = (
    sa.select(_r.trace_id, _i.seq.is_not(None).label("waits"))
    .outerjoin(insights, INSIGHT_OF_RECORD)
    .where(of_session(records), _r.trace_id.in_(IDS), HAS_CONTENT, _i.seq.is_(None) | waits)
)
_OTHER_THINGS = (  # what no agent's records are about: a query is as similar to them as to anything
    "The weather in the mountains changes within hours.", "A recipe for bread with olives.",
    "The orchestra played a symphony.", "How tall is the tallest tree?", "Rules of a card game for four players.",
    "A poem about autumn and the sea.", "The history of a medieval castle.", "Training plan for a marathon.",
)  # fmt: skip
_FIRST = sa.select(_i.seq).where(of_session(insights)).limit(1)


class FactStore:
    """The raw records of one session; without a database they live in memory.

    ``database`` is a Database, a file name or a URL. Raises ConfigError; methods that use it, StorageError.

    Example:
        >>> facts = FactStore()
        >>> record = InteractionRecord.create(1, "get_order", {"order": "ORD-1"}, {"due": "2026-03-01"})
        >>> facts.store(record)  # or facts.store_many([record])
        >>> facts.get(record.trace_id) == record == facts.get_many([record.trace_id])[0]
        True
        >>> list(facts.steps().values()), facts.page(limit=10)[0].tool_name, facts.size()
        ([1], 'get_order', 1)
        >>> facts.forget(record.trace_id), facts.page()[0].mark
        (True, 'forgotten')
        >>> facts.clear()
    """

    def __init__(self, database: Database | str | Path | None = None, session_id: str = "default") -> None:
        self.database = as_database(database)
        self.session_id = session_id
        self._mine = {"session": session_id}
        self.database.open_session(session_id)

    def store(self, record: InteractionRecord) -> None:
        """Store a record unless an equal one is stored. Raises RecordConflictError, RecordError, StorageError."""
        self.store_many([record])

    def store_many(self, batch: Sequence[InteractionRecord]) -> None:
        """Store records in one transaction: all or none. Raises as ``store``."""
        rows = to_rows(batch, self.session_id)
        if rows:
            self.database.submit(partial(self.insert, rows=rows), self.session_id)
            fault_point("facts.stored")

    def insert(self, c: Connection, rows: dict[str, Any], first: Operation[None] | None = None) -> None:
        """Within a write, insert the rows of ``to_rows`` that do not exist, after what is to be done ``first``.

        Raises RecordConflictError.
        """
        self.database.lock_session(c, self.session_id)
        if first is not None:
            first(c)
        new = self.database.insert_new(c, records, list(rows.values()))
        if new != len(rows):  # some exist already
            for old in rows_by_id(c, _BY_IDS, self.session_id, list(rows)).values():
                if old["mark"] != FORGOTTEN:
                    check_same(rows[old["trace_id"]], old)
        fault_point("facts.executed")

    def get(self, trace_id: str) -> InteractionRecord | None:
        """The record, or None."""
        return next(iter(self.get_many([trace_id])), None)

    def get_many(self, trace_ids: Sequence[str]) -> list[InteractionRecord]:
        """The records with these ids, in their order; missing ones are skipped."""
        rows = stored_rows(self.database, _BY_IDS, self.session_id, trace_ids)
        return [from_row(rows[t]) for t in trace_ids if t in rows]

    def steps(self) -> dict[str, int]:
        """The step_id of every record by trace_id, oldest first."""
        return self._pairs(_r.step_id)

    def by_call(self) -> dict[str, list[str]]:
        """The trace_ids of the session's records by the id of their call, oldest first."""
        ids: dict[str, list[str]] = {}
        for trace_id, call_id in self._pairs(_r.call_id, _r.call_id.is_not(None)).items():
            ids.setdefault(call_id, []).append(trace_id)
        return ids

    def _pairs(self, column: sa.Column[Any], *where: sa.ColumnElement[bool]) -> dict[str, Any]:
        """A column of the session's records by trace_id, oldest first."""
        query = sa.select(_r.trace_id, column).where(of_session(records), *where).order_by(_r.seq)
        with self.database.read() as c:
            return dict(c.execute(query, self._mine).all())

    def forget(self, trace_id: str) -> bool:
        """Delete the content of a record for good: arguments, output, summary; folds and answers of its session, too.

        Its row stays without them, so that the numbers of other records stay, and the record is not stored again
        from messages that still have it. False: there is no such record.
        """
        emptied = {
            "mark": FORGOTTEN, "call_id": None, "input": "{}", "input_verbatim": False,
            "output": "[forgotten]", "output_verbatim": True,
        }  # fmt: skip
        empty = sa.update(records).where(of_session(records), _r.trace_id == trace_id).values(emptied)
        with self.database.erase() as c:
            self.database.lock_session(c, self.session_id)
            exists = c.execute(empty, self._mine).rowcount == 1
            if exists:
                delete_insights(c, of_session(insights) & (_i.trace_id == trace_id), **self._mine)
                contents = {"answer": None, "error": None}
                c.execute(sa.update(steps).where(of_session(steps)).values(contents), self._mine)
                content_deleted(c, self._mine)
        return exists

    def page(self, after: int = 0, limit: int = 50, tool: str | None = None) -> list[Outline]:
        """The records with a number above ``after``, oldest first; of one tool, if given."""
        return list_outlines(self.database, self.session_id, limit, after, tool)

    def clear(self) -> None:
        """Delete every record of the session."""
        with self.database.erase() as c:
            self.database.lock_session(c, self.session_id)
            c.execute(sa.delete(records).where(of_session(records)), self._mine)
            c.execute(SET_SESSION.values(NO_LEDGER), self._mine)
            content_deleted(c, self._mine)

    def size(self) -> int:
        """The number of records."""
        return self.database.extent(self.session_id).records


class InsightStore:
    """The summaries of one session, to be searched by words and similarity; without a database they live in memory.

    ``embedding_model`` is anything with ``encode(list[str]) -> array (n, d)``, or a name such as ``"lexical"``, by
    default BAAI/bge-small-en-v1.5; ``database`` a Database, a file name or a URL. Another embedder than the bank's
    raises EmbedderMismatchError, which says how to re-embed. Every method that uses the database may raise
    StorageError.

    Example:
        >>> insights = InsightStore("lexical")
        >>> insights.add("t1", "Order ORD-1 is late.")
        >>> insights.add_many([Insight("t2", "The parcel has arrived."), Insight("t3", "Refund of ORD-9.")])
        >>> insights.search("late orders", top_k=1), insights.rank("parcel", limit=1)[0].why
        (['t1'], 'words')
        >>> insights.get_summary("t1"), insights.get_insight("t2").source
        ('Order ORD-1 is late.', 'extractive')
        >>> list(insights.get_insights(["t3"])) + insights.trace_ids()
        ['t3', 't1', 't2', 't3']
        >>> insights.clear()
        >>> insights.is_empty(), insights.size()
        (True, 0)
    """

    def __init__(
        self,
        embedding_model: Embedder | str = EMBEDDING_MODEL,
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
        self._mine = {"session": session_id}
        self.database.open_session(session_id)
        self._lock = threading.RLock()
        self._compares = self.embedder_name != LexicalEmbedder.name
        self._searches: dict[Scope, InsightSearch] = {}
        self._vector = lru_cache(64)(lambda query: encode_queries(embedding_model, [query]))
        self._unlike = cache(lambda: encode_documents(embedding_model, _OTHER_THINGS))
        check_embedder(self.database, self.embedder_name, None)

    def add(self, trace_id: str, summary: str) -> None:
        """Embed a summary and store it; an existing insight of that trace_id is replaced.

        Raises RecordError, EmbeddingError, EmbedderMismatchError; nothing is stored then.
        """
        self.add_many([Insight(trace_id, summary)])

    def add_many(
        self,
        batch: Sequence[Insight],
        *,
        records: Iterable[InteractionRecord] = (),
        waiting: Collection[str] = (),
        only_wanted: bool = False,
        beside: Operation[None] | None = None,
        durable: bool = True,
    ) -> None:
        """Embed and store several insights, in one batch and one transaction. Raises as ``add``.

        ``records`` are those of the insights; the others are read. ``waiting``: trace_ids of those for which the
        Observer's model is to be asked. ``only_wanted``: nothing is stored for a record that was deleted meanwhile,
        or that has another insight, unless that one waits and this one does not. ``beside`` is done after them.
        ``durable``: see ``Database.submit``.
        """
        rows = self.embed(batch, records, waiting)
        if rows:

            def write(c: Connection) -> None:
                self.insert(c, rows, only_wanted)
                if beside is not None:
                    beside(c)

            with self._lock:
                self.database.submit(write, self.session_id, durable=durable)
            fault_point("insights.stored")
            settle(self.database, self.session_id, len(rows))

    def embed(
        self,
        batch: Sequence[Insight],
        records: Iterable[InteractionRecord] = (),
        waiting: Collection[str] = (),
    ) -> list[dict[str, Any]]:
        """The rows that ``insert`` takes, see ``add_many``. Raises RecordError, EmbeddingError."""
        latest = latest_insights(batch)
        if not latest:
            return []
        vectors = [b""] * len(latest)
        if (
            type(self.embedding_model) is not LexicalEmbedder
        ):  # whose vectors are not stored: words are compared
            encoded = encode_documents(self.embedding_model, [i.summary for i in latest])
            vectors = [v.astype("<f4").tobytes() if self._compares else b"" for v in encoded]
        records_of = {r.trace_id: r for r in records}
        records_of |= self._records([i.trace_id for i in latest if i.trace_id not in records_of])
        return [
            {
                "session_id": self.session_id,
                "embedding": vector,
                "terms": terms_of(insight.summary, records_of.get(insight.trace_id)),
                "due": 0.0 if insight.trace_id in waiting else None,
                "attempts": 0 if insight.trace_id in waiting else None,
                **asdict(insight),
            }
            for insight, vector in zip(latest, vectors, strict=True)
        ]

    def _records(self, trace_ids: Sequence[str]) -> dict[str, InteractionRecord]:
        rows = stored_rows(self.database, _BY_IDS, self.session_id, trace_ids)
        return {trace_id: from_row(row) for trace_id, row in rows.items()}

    def insert(self, c: Connection, rows: list[dict[str, Any]], only_wanted: bool = False) -> None:
        """Within a write that holds no session yet, insert the insights and replace existing ones.

        ``only_wanted``: see ``add_many``. Raises EmbedderMismatchError.
        """
        if rows:
            bind(c, self.database, self.embedder_name, dimension_of(rows[0]["embedding"]))
        self.database.lock_session(c, self.session_id)
        if only_wanted:
            parts = in_parts([r["trace_id"] for r in rows])
            fetched = [self.database.fetch(c, _WANTED, session=self.session_id, ids=part) for part in parts]
            wanted = {trace_id: is_waiting for part in fetched for trace_id, is_waiting in part}
            bare = {trace_id for trace_id, is_waiting in wanted.items() if not is_waiting}
            rows = [r for r in rows if r["trace_id"] in (wanted if r["due"] is None else bare)]
        if not rows:
            return
        short = [{**r, "terms": r["terms"][:HEAD_BYTES]} for r in rows]
        new = self.database.insert_new(c, insights, short)
        if new != len(rows):  # some exist already
            for part in in_parts([r["trace_id"] for r in rows]):
                delete_insights(c, of_session(insights) & _i.trace_id.in_(part), **self._mine)
            c.execute(sa.insert(insights), short)
        add_insights(self.database, c, rows)
        fault_point("insights.executed")

    def search(self, query: str, top_k: int = 3) -> list[str]:
        """The trace_ids of the ``top_k`` insights that fit best, best first; among equals the newer first."""
        return [hit.trace_id for hit in self.rank(query, limit=max(0, top_k))]

    def rank(
        self,
        query: str,
        exclude: Collection[str] = (),
        limit: int | None = None,
        *,
        scope: Scope = "session",
        only_words: bool = False,
        only_alike: bool = False,
    ) -> list[Hit]:
        """At most ``limit`` insights without the session's excluded ones, best first; among equals the newer first.

        By words, and by similarity where the embedder compares more than words. ``"project"`` and ``"all"`` include
        other sessions, whose hits then name their session. ``only_alike``: a similarity is a reason only if
        above the query's to texts about other things. Raises EmbeddingError, EmbedderMismatchError.
        """
        # the vectors of long queries are not cached
        vector = self._vector if len(query) <= 8_000 else self._vector.__wrapped__
        query_vector = None if only_words else lambda: vector(query)
        least = -1.0
        if only_alike and self._compares:
            least = float((self._unlike() @ vector(query)[0]).max())
        return self._search(scope).rank(query, query_vector, self.session_id, exclude, limit, least)

    def _search(self, scope: Scope) -> InsightSearch:
        with self._lock:
            if scope not in self._searches:
                of = self.database, self.session_id, self.embedder_name
                self._searches[scope] = open_search(*of, scope, self._compares)
            return self._searches[scope]

    def get_summary(self, trace_id: str) -> str | None:
        """The summary, or None."""
        insight = self.get_insight(trace_id)
        return None if insight is None else insight.summary

    def get_insight(self, trace_id: str) -> Insight | None:
        """The summary with its source and why it is to be made again, or None."""
        return self.get_insights([trace_id]).get(trace_id)

    def get_insights(self, trace_ids: Sequence[str]) -> dict[str, Insight]:
        """The insights of these trace_ids, in their order; missing ones are left out."""
        rows = stored_rows(self.database, _INSIGHTS, self.session_id, trace_ids)
        return {t: Insight(**rows[t]) for t in dict.fromkeys(trace_ids) if t in rows}

    def trace_ids(self) -> list[str]:
        """All ids that have an insight, oldest first."""
        mine = sa.select(_i.trace_id).where(of_session(insights)).order_by(_i.seq)
        return self.database.column(mine, session=self.session_id)

    def clear(self) -> None:
        """Delete every insight of the session; the embedding model stays loaded."""
        with self._lock:
            clear_insights(self.database, self.session_id)
            for search in self._searches.values():
                search.forget()

    def is_empty(self) -> bool:
        """Return whether there is no insight."""
        return self.database.value(_FIRST, session=self.session_id) is None

    def size(self) -> int:
        """The number of insights."""
        mine = count_of(insights).where(of_session(insights))
        return self.database.value(mine, session=self.session_id) or 0


def clear_insights(database: Database, session_id: str) -> None:
    """Delete a session's insights, without an embedding model."""
    with database.erase() as c:
        database.lock_session(c, session_id)
        delete_insights(c, of_session(insights), session=session_id)
        c.execute(NEXT_GENERATION, {"session": session_id})


class WiderScope:
    """Reads the records and insights of all sessions in a scope. Every method may raise StorageError."""

    def __init__(self, database: Database, session_id: str, scope: Scope) -> None:
        self.database = database
        self.session_id = session_id
        self._scope, self._within = scope, within(_r.session_id, scope)

    def _named(self, part: Sequence[Place]) -> sa.ColumnElement[bool]:
        named = sa.select(sessions.c.session_id).where(sessions.c.session_id.in_({s for s, _ in part}))
        named = named.where(within(sessions.c.session_id, self._scope))
        # concatenated, or SQLite looks for each trace_id in each session of the scope
        return _r.trace_id.in_({t for _, t in part}) & _r.session_id.concat("").in_(named)

    def entries(self, where: Sequence[Place]) -> dict[Place, tuple[InteractionRecord, Insight | None]]:
        """Records with their insights; missing ones are left out."""
        records: dict[Place, tuple[InteractionRecord, Insight | None]] = {}
        entries = sa.select(*_r, _i.summary, _i.source, _i.redo).outerjoin(insights, INSIGHT_OF_RECORD)
        for part in in_parts(where):
            for row in self.database.rows(entries.where(self._named(part)), session=self.session_id):
                at = (row["session_id"], row["trace_id"])
                if at in part:
                    records[at] = from_row(row), insight_of(row)
        return records

    def calls(self, where: Sequence[Place]) -> dict[Place, Call]:
        """The calls of records; missing ones are left out."""
        heads = sa.select(
            _r.session_id, _r.trace_id, _r.seq, _r.tool_name, first_bytes(_r.input, 2**14).label("head")
        )
        calls_of: dict[Place, Call] = {}
        for part in in_parts(where):
            for row in self.database.rows(heads.where(self._named(part)), session=self.session_id):
                head = bytes(row["head"] or b"").decode("utf-8", "ignore")
                calls_of[row["session_id"], row["trace_id"]] = row["seq"], row["tool_name"], head
        return calls_of

    def elsewhere(self, trace_id: str, *, beginning: bool = False) -> list[Place]:
        """The newest 20 records of other sessions with this trace_id (or this beginning of one), newest first."""
        if not is_trace_id(trace_id):
            return []
        fits = _r.trace_id.like(like_prefix(trace_id), escape="/") if beginning else _r.trace_id == trace_id
        others = sa.select(_r.session_id, _r.trace_id).where(self._within, _r.session_id != SESSION, fits)
        with self.database.read() as c:
            places = c.execute(others.order_by(_r.seq.desc()).limit(20), {"session": self.session_id})
            return [(session_id, at) for session_id, at in places]

    def tasks(self, session_ids: Collection[str]) -> dict[str, str]:
        """The names of these sessions: their titles, else their tasks."""
        named = sa.select(sessions.c.session_id, sessions.c.title, sessions.c.task)
        rows = self.database.rows(named.where(sessions.c.session_id.in_(session_ids)))
        return {row["session_id"]: row["title"] or row["task"] or "" for row in rows}

    def size(self) -> int:
        """The number of records in the scope, those of the own session included."""
        return self.database.value(count_of(records).where(self._within), session=self.session_id) or 0
