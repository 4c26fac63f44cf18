"""Deleting the content of sessions on request (``purge``), and checking and repairing a bank (``verify``).

Records are never deleted automatically.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from memory_bank.bank.database import Database
from memory_bank.bank.embedder import bank_embedder
from memory_bank.bank.files import ROOT
from memory_bank.bank.folds import FoldContent, FoldReasons
from memory_bank.bank.keys import DEFAULT
from memory_bank.bank.rows import checks_of, derivation, from_row, is_derived, is_session_id, read_row
from memory_bank.bank.schema import (
    INSIGHT_OF_RECORD,
    NEXT_GENERATION,
    NO_LEDGER,
    SET_SESSION,
    ExactText,
    as_bytes,
    byte_length,
    calls,
    content_deleted,
    count_of,
    files,
    folds,
    in_parts,
    insights,
    lineage,
    of_session,
    records,
    recount,
    sessions,
    steps,
    sum_of,
    sums,
)
from memory_bank.bank.terms import terms_of
from memory_bank.bank.words import add_insights, delete_insights, delete_words, indexed
from memory_bank.errors import RecordError, StorageError
from memory_bank.faults import fault_point
from memory_bank.models.lexical import LexicalEmbedder

_BATCH = 256
_r, _i, _s = records.c, insights.c, sessions.c
_CHECKS = {table: checks_of(table.c) for table in (records, insights, files)}


@dataclass(frozen=True, slots=True)
class Purged:
    """How many rows of a session were deleted, the bytes of their texts, and whether it has no content left."""

    session_id: str
    records: int
    insights: int
    bytes: int
    emptied: bool


def purge(
    database: Database,
    *,
    session_id: str | None = None,
    namespace: str | None = None,
    before: float | None = None,
    dry_run: bool = False,
) -> Iterator[Purged]:
    """Delete a session's content, a namespace's, what was stored before a time (Unix seconds), or the intersection.

    One transaction a session: what is yielded is deleted. An emptied session keeps its row, its project and the
    number of its Observer's calls, so that other processes notice and the limit holds; its task is deleted.
    ``dry_run`` only counts. Raises StorageError.
    """
    if session_id is not None:
        names = [session_id]
    elif namespace is not None:
        owner = sa.func.coalesce(_s.namespace, DEFAULT)
        names = sorted(database.column(sa.select(_s.session_id).where(owner == namespace)))
    elif before is not None:
        names = sorted(database.column(sa.select(_r.session_id).where(_r.timestamp < before).distinct()))
    else:
        raise ValueError("name a session, a namespace or a time")
    for name in names:
        with database.read() if dry_run else database.erase() as c:
            if not dry_run:
                database.lock_session(c, name)
            counts = _purge(c, name, before, dry_run)
        if counts is not None:
            yield counts
    if not dry_run:
        database.shrink()


def purge_files(
    database: Database, *, before: float | None = None, dry_run: bool = False, **owner: str | None
) -> tuple[int, int]:
    """Delete agents' files: of the ``namespace`` and ``project`` that are given, and not changed since ``before``.

    Returns how many files there were, and their bytes. With ``before`` folders stay. Raises StorageError.
    """
    doomed = [files.c[name] == wanted for name, wanted in owner.items() if wanted is not None]
    if before is not None:
        doomed += [files.c.changed < before, files.c.content.is_not(None)]
    size = sa.cast(sum_of(byte_length(files.c.content)), sa.BigInteger)
    with database.read() if dry_run else database.erase() as c:
        count, total = c.execute(sa.select(sa.func.count(files.c.content), size).where(*doomed)).one()
        if not dry_run:
            c.execute(sa.delete(files).where(*doomed))
    return count, int(total)


def _purge(c: Connection, name: str, before: float | None, dry_run: bool) -> Purged | None:
    """Count the rows of a session, None for none, and delete them unless it is a ``dry_run``."""
    session = {"session": name}
    doomed = {table: of_session(table) for table in (insights, records, steps)}
    if before is not None:
        old = sa.select(_r.trace_id).where(of_session(records), _r.timestamp < before)
        doomed[insights] &= _i.trace_id.in_(old)
        doomed[records] &= _r.timestamp < before
        doomed[steps] &= steps.c.created < before

    def size(table: sa.Table, *texts: sa.Column[Any]) -> tuple[int, int]:
        length = sa.cast(sum_of(sum(map(byte_length, texts), sa.literal(0))), sa.BigInteger)
        count, total = c.execute(sa.select(sa.func.count(), length).where(doomed[table]), session).one()
        return count, int(total)

    def present(*tables: sa.Table) -> list[int | None]:
        return [c.execute(count_of(t).where(of_session(t)), session).scalar() for t in tables]

    facts, raw = size(records, _r.input, _r.output)
    summaries, short = size(insights, _i.summary)
    emptied = before is None or present(records, insights) == [facts, summaries]
    if not (facts or summaries):
        task = c.execute(sa.select(_s.task).where(of_session(sessions)), session).scalar()
        if before is not None or not (task or any(present(steps, lineage))):
            return None
    if not dry_run:
        delete_insights(c, doomed.pop(insights), **session)
        for table, which in doomed.items():
            c.execute(sa.delete(table).where(which), session)
        recount(c, name)
        fault_point("purge.executed")
        if emptied:
            c.execute(sa.delete(lineage).where(of_session(lineage)), session)
            c.execute(
                SET_SESSION.values(task=None, project=None, head=None, head_calls=None, **NO_LEDGER), session
            )
        content_deleted(c, session)
    return Purged(name, facts, summaries, raw + short, emptied)


Report = Callable[[str, int, int], None]
"""Called with the name of a table, the number of rows checked, and of all."""


@dataclass(frozen=True, slots=True)
class Defect:
    """Something wrong in a bank; ``mended``: it was repaired. ``kind`` is a word for programs."""

    kind: str
    what: str
    session_id: str | None = None
    trace_id: str | None = None
    mended: bool = False


@dataclass(slots=True)
class Counts:
    """How much was checked. ``checked_ids``: trace_ids that are the hash of their record's content;
    ``unobserved``: records without an insight, which is not a defect."""

    records: int = 0
    checked_ids: int = 0
    unobserved: int = 0
    insights: int = 0
    sessions: int = 0
    files: int = 0


def verify(
    database: Database, counts: Counts | None = None, *, repair: bool = False, report: Report | None = None
) -> Iterator[Defect]:
    """Check every row of a bank, a batch at a time, and yield the defects; ``counts`` is filled meanwhile.

    ``repair`` creates missing sessions and words, deletes insights without a record, damaged folds, and unusable
    insights, which are made anew when their session goes on. Records are never changed. Raises StorageError only if
    a repair fails.
    """
    counts = Counts() if counts is None else counts
    check = _Verification(database, counts, repair, report or (lambda *_: None))
    for part in (
        check.file, check.sessions, check.embedder, check.records, check.insights, check.words, check.folds,
         check.files, check.sums,
    ):  # fmt: skip
        try:
            yield from part()
        except (StorageError, TypeError, ValueError) as e:
            reason = str(e) if isinstance(e, StorageError) else type(e).__name__
            reason = reason.split("; nothing was changed")[0].rstrip(".")
            yield Defect("unreadable", f"{part.__name__}: cannot be read to the end ({reason})")


@dataclass(slots=True)
class _Verification:
    database: Database
    counts: Counts
    repair: bool
    report: Report
    dimension: int | None = None

    def file(self) -> Iterator[Defect]:
        """The integrity check of SQLite."""
        if self.database.url.get_backend_name() == "sqlite":
            with self.database.read() as c:
                lines = [str(row[0]) for row in c.exec_driver_sql("PRAGMA integrity_check(20)")]
            for line in lines:
                if line != "ok":
                    yield Defect("damaged", f"SQLite finds the file damaged ({' '.join(line.split())[:300]})")

    def sessions(self) -> Iterator[Defect]:
        """Every row belongs to an existing session."""
        self.counts.sessions = self.database.value(count_of(sessions)) or 0
        without = (
            sa.select(t.c.session_id).where(~sa.exists().where(_s.session_id == t.c.session_id))
            for t in (records, insights, calls)
        )
        with self.database.read() as c:
            missing = sorted(c.execute(sa.union(*without)).scalars())
        for name in missing:
            mended = self.repair and is_session_id(name)
            if mended:
                with self.database.write() as c:
                    row = {"session_id": name, "created": time.time(), "generation": 1}
                    self.database.insert_new(c, sessions, [row])
            yield Defect("session", "its session is missing", name, mended=mended)

    def embedder(self) -> Iterator[Defect]:
        """A bank with insights has an embedder."""
        embedder = bank_embedder(self.database)
        by_words = embedder is not None and embedder[0] == LexicalEmbedder.name  # no vectors are stored
        self.dimension = None if embedder is None else 0 if by_words else embedder[1]
        if embedder is None and self.database.value(sa.select(_i.seq).limit(1)) is not None:
            yield Defect("embedder", "the bank does not know its embedder: run  memory-bank bank re-embed")

    def records(self) -> Iterator[Defect]:
        """Every record is readable; an id derived from content is the hash of that content."""
        for row in self._pages(records, sa.select(*_stored(records))):
            self.counts.records += 1
            self.counts.unobserved += 1
            values, problem = _values(records, row)
            if not problem and is_derived(values["trace_id"]) and values["call_id"] is not None:
                if derivation(values, values["session_id"]) is None:
                    problem = "its id is not the hash of its content"
                else:
                    self.counts.checked_ids += 1
            if problem:
                yield Defect("record", problem, _name(row["session_id"]), _name(row["trace_id"]))

    def insights(self) -> Iterator[Defect]:
        """Every insight has a record and a usable embedding. Broken ones are deleted."""
        broken = self._broken_insights()
        while part := list(islice(broken, _BATCH)):
            if self.repair:
                with self.database.write() as c:
                    self.database.lock_session(c, None)
                    for row, _ in part:  # a row that another process has replaced has another number
                        delete_insights(c, _i.seq == row["seq"])
                    for name in {row["session_id"] for row, _ in part}:
                        c.execute(NEXT_GENERATION, {"session": name})
            yield from (defect for _, defect in part)

    def _broken_insights(self) -> Iterator[tuple[dict[str, Any], Defect]]:
        vector: sa.ColumnElement[Any] = as_bytes(_i.embedding)
        if self.database.ranks:
            vector = sa.func.coalesce(sa.func.vector_dims(_i.embedding), 0)
        columns = (c for c in _stored(insights) if c.name != "embedding")
        query = sa.select(*columns, vector.label("embedding"), _r.seq.label("record"))
        for row in self._pages(insights, query.outerjoin(records, INSIGHT_OF_RECORD)):
            self.counts.insights += 1
            kind, problem = "insight", "it has no record"
            if row["record"] is not None:
                self.counts.unobserved -= 1
                problem = _values(insights, {**row, "embedding": b""})[1]
            if not problem and self.dimension is not None:  # else reported once, by ``embedder``
                kind, problem = "embedding", _wrong_vector(row["embedding"], self.dimension)
            if problem:
                where = _name(row["session_id"]), _name(row["trace_id"])
                yield row, Defect(kind, problem, *where, mended=self.repair)

    def words(self) -> Iterator[Defect]:
        """Every insight has words, by which it is found, and nothing else has."""
        damaged, broken = list[tuple[str, int]](), list[int]()
        with self.database.snapshot() as c:
            there = np.fromiter(c.execute(sa.select(_i.seq)).scalars(), np.int64)
            entries = np.fromiter(indexed(c, damaged, broken), np.int64)
            missing, left = np.setdiff1d(there, entries).tolist(), np.setdiff1d(entries, there).tolist()
            parts = (sa.select(_i.session_id).where(_i.seq.in_(part)) for part in in_parts(missing))
            names = Counter(name for part in parts for name in c.execute(part).scalars())
        if self.repair and (left or damaged or broken):
            with self.database.write() as c:
                delete_words(c, [*left, *broken], damaged)
        joined = sa.select(*_r, _i.summary, _i.trace_id.label("of"), _i.session_id.label("in_session"))
        joined = joined.select_from(insights.outerjoin(records, INSIGHT_OF_RECORD))
        for part in in_parts(missing, _BATCH) if self.repair else ():
            with self.database.write() as c:
                for row in c.execute(joined.where(_i.seq.in_(part))).mappings().all():
                    terms = terms_of(row["summary"], None if row["seq"] is None else from_row(row))
                    new = {"trace_id": row["of"], "session_id": row["in_session"], "terms": terms}
                    add_insights(self.database, c, [new])
        for name, count in sorted(names.items()):
            yield Defect("words", f"{count:,} of its insights have no words", _name(name), mended=self.repair)
        if left or damaged:
            defects = f"{len(left):,} words of no insight, {len(damaged):,} damaged blocks"
            yield Defect("words", defects, mended=self.repair)

    def folds(self) -> Iterator[Defect]:
        """Every fold can be read; a later step makes another in the place of one that is deleted."""
        f, broken = folds.c, list[tuple[str, int, sa.Column[Any]]]()
        with self.database.snapshot() as c:
            query = sa.select(f.session_id, f.number, f.body, f.why)
            for name, number, body, why in c.execute(query, execution_options={"yield_per": _BATCH}):
                part = f.body
                try:
                    FoldContent.unpacked(body)
                    part = f.why
                    why and FoldReasons.unpacked(why)
                except ValueError:
                    broken.append((name, number, part))
        for name, number, part in broken:
            at = (f.session_id == name) & (f.number == number)
            if self.repair:
                change = sa.delete(folds) if part is f.body else sa.update(folds).values(why=None)
                with self.database.write() as c:
                    c.execute(change.where(at))
            noun = "it" if part is f.body else "why it shows what it does"
            yield Defect("fold", f"fold {number}: {noun} cannot be read", _name(name), mended=self.repair)

    def sums(self) -> Iterator[Defect]:
        """The kept sums of a session are those of its rows."""
        names = ("records", "insights", "steps", "tokens", "full_tokens")
        zero, one = (sa.literal_column(digit, sa.Integer) for digit in "01")
        less = [sa.select(sums.c.session_id, *(sums.c[name] for name in names))]
        for table in (records, insights, steps):
            row = {table.name: one} | ({n: steps.c[n] for n in names[3:]} if table is steps else {})
            figures = (-sa.func.sum(row.get(name, zero)) for name in names)
            less.append(sa.select(table.c.session_id, *figures).group_by(table.c.session_id))
        rest = sa.union_all(*less).subquery().c
        wrong = sa.or_(*(sa.func.sum(rest[name]) != 0 for name in names))
        for name in self.database.column(sa.select(rest.session_id).group_by(rest.session_id).having(wrong)):
            if self.repair:
                with self.database.write() as c:
                    self.database.lock_session(c, name)
                    recount(c, name)
            yield Defect("sums", "its sums are not those of its rows", _name(name), mended=self.repair)

    def files(self) -> Iterator[Defect]:
        """Every file of an agent is readable and in a folder."""
        f = files.c
        keys = sa.select(f.namespace, f.project, f.path)
        with self.database.snapshot() as c:  # a cursor of PostgreSQL needs a transaction
            folders = {tuple(row) for row in c.execute(keys.where(f.content.is_(None)))}
            rows = c.execute(sa.select(*_stored(files)), execution_options={"yield_per": _BATCH})
            for row in rows.mappings():
                self.counts.files += row["content"] is not None
                place, owner = row["path"], (row["namespace"], row["project"])
                problem = _values(files, row)[1]
                above = place.rpartition("/")[0]
                if above != ROOT and (*owner, above) not in folders:
                    problem = "its folder is missing"
                if problem:
                    where = f"{_name(place)} of namespace {owner[0]}, project {owner[1]}"
                    yield Defect("file", f"{where}: {problem}")

    def _pages(self, table: sa.Table, query: sa.Select[Any]) -> Iterator[dict[str, Any]]:
        """All rows, a batch at a time, each over a connection of its own."""
        total = self.database.value(count_of(table)) or 0
        done, last = 0, -(2**62)
        while True:
            with self.database.read() as c:
                page = c.execute(query.where(table.c.seq > last).order_by(table.c.seq).limit(_BATCH))
                rows = [
                    dict(zip(names, row, strict=True)) for names in [[*page.keys()]] for row in page.all()
                ]
            yield from rows
            done += len(rows)
            self.report(table.name, done, max(done, total))
            if len(rows) < _BATCH:
                return
            last = rows[-1]["seq"]


def _wrong_vector(vector: object, dimension: int) -> str:
    """The error in an embedding, or in its size alone where the database has read it; or ""."""
    if not isinstance(vector, int | bytes):
        return "its embedding is not readable"
    size = vector if isinstance(vector, int) else len(vector) / 4
    if size != dimension:
        return f"its embedding has {size:g} of {dimension} dimensions"
    if isinstance(vector, bytes) and not np.isfinite(np.frombuffer(vector, "<f4")).all():
        return "its embedding has values that are not finite"
    return ""


def _stored(table: sa.Table) -> list[sa.ColumnElement[Any]]:
    """The columns, texts as bytes: invalid text is to be reported, not raised."""
    return [as_bytes(c).label(c.name) if isinstance(c.type, ExactText) else c for c in table.c]


def _decoded(kind: Any, value: Any) -> Any:
    if value is None or not isinstance(kind, ExactText):
        return value
    return kind.process_result_value(value if type(value) is bytes else memoryview(value).tobytes(), None)


def _values(table: sa.Table, row: Mapping[Any, Any]) -> tuple[dict[str, Any], str]:
    """The values of a row that ``_stored`` read, and what is wrong with it, or ""."""

    try:
        return read_row(_CHECKS[table], row, _decoded), ""
    except RecordError as e:
        return {}, str(e)


def _name(value: object) -> str:
    return value if isinstance(value, str) else repr(value)[:80]
