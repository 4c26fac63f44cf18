"""Deleting the content of sessions on request (``purge``), and checking and repairing a bank (``verify``).

Records are never deleted automatically.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from memory_bank.bank.database import Database
from memory_bank.bank.embedder import embedder_of
from memory_bank.bank.jobs import add_jobs
from memory_bank.bank.learned import forget_model, is_model_text, lock_model
from memory_bank.bank.rows import (
    RecordRow,
    derivation,
    from_row,
    is_derived,
    is_session_id,
    is_time,
    is_trace_id,
)
from memory_bank.bank.schema import (
    INSIGHT_OF_RECORD,
    JOB_OF_RECORD,
    LAST,
    NEXT_GENERATION,
    SESSION,
    N,
    as_bytes,
    byte_length,
    count_of,
    insights,
    jobs,
    lineage,
    models,
    of_session,
    records,
    sessions,
    spending,
    steps,
    sum_of,
)
from memory_bank.errors import StorageError
from memory_bank.faults import fault_point

_BATCH = 256
_EXTRACTIVE = "extractive"

_r, _i, _j = records.c, insights.c, jobs.c

# Purging

_BEFORE: sa.BindParameter[float] = sa.bindparam("before", type_=sa.Float)
_old_ids = sa.select(_r.trace_id).where(of_session(records), _r.timestamp < _BEFORE)


def _sum(size: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    return sa.cast(sum_of(size), sa.BigInteger)


# What is deleted of each table: with ``before`` the old rows only, without it all; and how many bytes it has.
_TABLES: tuple[tuple[sa.Table, sa.ColumnElement[bool], sa.ColumnElement[int]], ...] = (
    (insights, _i.trace_id.in_(_old_ids), _sum(byte_length(_i.summary))),
    (jobs, _j.trace_id.in_(_old_ids), sa.literal(0)),
    (records, _r.timestamp < _BEFORE, _sum(byte_length(_r.input) + byte_length(_r.output))),
)
_conditions = {
    old: [of_session(t) & is_old if old else of_session(t) for t, is_old, _ in _TABLES]
    for old in (False, True)
}
_COUNTS = {
    old: [
        sa.select(sa.func.count(), size).select_from(t).where(condition)
        for (t, _, size), condition in zip(_TABLES, conditions, strict=True)
    ]
    for old, conditions in _conditions.items()
}
# A step's manifest has parts of records in it, so steps are deleted by age, too.
_DELETES = {
    old: [
        *(sa.delete(t).where(which) for (t, _, _), which in zip(_TABLES, conditions, strict=True)),
        sa.delete(steps).where(of_session(steps), *([steps.c.created < _BEFORE] if old else [])),
    ]
    for old, conditions in _conditions.items()
}
_SIZES = [count_of(t).where(of_session(t)) for t in (records, insights)]
_NO_TASK = (
    sa.update(sessions).where(sessions.c.session_id == SESSION).values(task=None, head=None, head_calls=None)
)
_NO_LINEAGE = sa.delete(lineage).where(of_session(lineage))
_OTHER_CONTENT = (
    sa.select(sessions.c.task).where(sessions.c.session_id == SESSION),
    count_of(steps).where(of_session(steps)),
    count_of(lineage).where(of_session(lineage)),
)
_WITH_OLD = sa.select(_r.session_id).where(_r.timestamp < _BEFORE).distinct()


@dataclass(frozen=True, slots=True)
class Purged:
    """How many rows of one session were deleted. ``bytes`` are those of arguments, outputs and summaries.

    ``emptied``: the session has neither records nor insights left.
    """

    session_id: str
    records: int
    insights: int
    jobs: int
    bytes: int
    emptied: bool


def purge(
    database: Database,
    *,
    session_id: str | None = None,
    before: float | None = None,
    dry_run: bool = False,
) -> Iterator[Purged]:
    """Delete a session's content, or what was stored before a time (Unix seconds), or the intersection.

    One transaction a session: what is yielded is deleted, and the evidence model that was fitted to the sessions
    of its namespace. An emptied session keeps its row, its agent and
    what its Observer spent, so that other processes notice and limits hold; its task is deleted. ``dry_run``
    only counts.

    Raises StorageError.
    """
    if session_id is None and before is None:
        raise ValueError("name a session, a time, or both")
    names = [session_id] if session_id is not None else []
    if session_id is None:
        names = sorted(database.column(_WITH_OLD, before=before))
    for name in names:
        values = {"session": name} if before is None else {"session": name, "before": before}
        if dry_run:
            with database.read() as c:
                found = _count(c, values)
        else:
            with database.erase() as c:
                model = lock_model(database, c, name)
                database.lock_session(c, name)
                found = _count(c, values)
                if found is not None:
                    _delete(c, values, found.emptied)
                    forget_model(c, model)
        if found is not None:
            yield found


def _count(c: Connection, values: dict[str, Any]) -> Purged | None:
    """What ``_delete`` would delete; None for nothing."""
    old, name = "before" in values, values["session"]
    (n_insights, summaries), (n_jobs, _), (n_records, raw) = (
        c.execute(query, values).one() for query in _COUNTS[old]
    )
    if not (n_records or n_insights or n_jobs) and (
        old or not any(c.execute(query, {"session": name}).scalar() for query in _OTHER_CONTENT)
    ):
        return None
    emptied = not old or [c.execute(query, {"session": name}).scalar() for query in _SIZES] == [
        n_records,
        n_insights,
    ]
    return Purged(name, n_records, n_insights, n_jobs, int(raw) + int(summaries), emptied)


def _delete(c: Connection, values: dict[str, Any], emptied: bool) -> None:
    session = {"session": values["session"]}
    for statement in _DELETES["before" in values]:
        c.execute(statement, values)
    fault_point("purge.executed")
    if emptied:
        c.execute(_NO_LINEAGE, session)
        c.execute(_NO_TASK, session)
    c.execute(NEXT_GENERATION, session)


# Verifying

Report = Callable[[str, int, int], None]
"""Called with the name of a table, the number of rows checked, and of all."""


def _raw(column: sa.Column[Any]) -> sa.ColumnElement[bytes]:
    """A text as bytes: invalid text is to be reported, not raised."""
    return as_bytes(column).label(column.name)


_TEXTS = ("call_id", "tool_name", "input", "output")
_RECORDS = (
    sa.select(*(_raw(c) if c.name in _TEXTS else c for c in _r), _i.seq.label("insight"))
    .outerjoin(insights, INSIGHT_OF_RECORD)
    .where(_r.seq > LAST).order_by(_r.seq).limit(N)
)  # fmt: skip
_no_record = ~sa.exists(_r.seq).where(JOB_OF_RECORD)
_JOBS = (
    sa.select(_j.seq, _j.session_id, _j.trace_id, _r.seq.label("record"))
    .outerjoin(records, JOB_OF_RECORD)
    .where(_j.seq > LAST).order_by(_j.seq).limit(N)
)  # fmt: skip
_WITHOUT_SESSION = sa.union(
    *(
        sa.select(t.c.session_id).where(~sa.exists().where(sessions.c.session_id == t.c.session_id))
        for t in (records, insights, jobs, spending)
    )
)
_p = spending.c
_NEGATIVE = sa.select(_p.session_id, _p.day).where(
    (_p.calls < 0) | (_p.prompt_tokens < 0) | (_p.completion_tokens < 0) | (_p.cost < -1e-6)
)
_MODELS = sa.select(
    models.c.namespace,
    _raw(models.c.model),
    sa.exists().where(sa.func.coalesce(sessions.c.namespace, "") == models.c.namespace).label("used"),
).where(models.c.model.is_not(None))


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
    jobs: int = 0
    sessions: int = 0


def verify(
    database: Database, counts: Counts | None = None, *, repair: bool = False, report: Report | None = None
) -> Iterator[Defect]:
    """Check every row of a bank, a batch at a time, and yield the defects; ``counts`` is filled meanwhile.

    ``repair`` creates missing sessions, deletes insights and jobs without a record, deletes unusable insights
    and queues their records to be observed again. Records are never changed. Raises StorageError only if a
    repair fails.
    """
    check = _Verification(
        database, Counts() if counts is None else counts, repair, report or (lambda *_: None)
    )
    for part in (
        check.file, check.sessions, check.embedder, check.records, check.insights, check.jobs, check.spending,
        check.models,
    ):  # fmt: skip
        try:
            yield from part()
        except (StorageError, TypeError, ValueError) as e:
            reason = str(e) if isinstance(e, StorageError) else type(e).__name__
            reason = reason.split("; nothing was changed")[0].rstrip(".")
            yield Defect("unreadable", f"{part.__name__}: cannot be read to the end ({reason})")


class _Verification:
    def __init__(self, database: Database, counts: Counts, repair: bool, report: Report) -> None:
        self.database = database
        self.counts = counts
        self.repair = repair
        self.report = report
        self.dimension: int | None = None
        # The bytes of an embedding; where the database ranks, its dimension.
        self.vector: sa.ColumnElement[Any] = _raw(_i.embedding)
        if database.ranks:
            self.vector = sa.func.vector_dims(_i.embedding, type_=sa.Integer).label("embedding")

    def file(self) -> Iterator[Defect]:
        """The integrity check of SQLite."""
        if self.database.url.get_backend_name() != "sqlite":
            return
        with self.database.read() as c:
            lines = [str(row[0]) for row in c.exec_driver_sql("PRAGMA integrity_check(20)")]
        for line in lines:
            if line != "ok":
                yield Defect("damaged", f"SQLite finds the file damaged ({' '.join(line.split())[:300]})")

    def sessions(self) -> Iterator[Defect]:
        """Every row belongs to an existing session."""
        self.counts.sessions = self.database.value(count_of(sessions)) or 0
        with self.database.read() as c:
            missing = sorted(c.execute(_WITHOUT_SESSION).scalars())
        for name in missing:
            mended = self.repair and is_session_id(name)
            if mended:
                with self.database.write() as c:
                    row = {"session_id": name, "created": time.time(), "generation": 1}
                    c.execute(self.database.insert_or_ignore(sessions), row)
            yield Defect("session", "its session is missing", name, mended=mended)

    def embedder(self) -> Iterator[Defect]:
        """A bank with insights has an embedder."""
        with self.database.read() as c:
            self.dimension = _dimension(c)
            some = c.execute(sa.select(_i.seq).limit(1)).first() is not None
        if some and self.dimension is None:
            yield Defect("embedder", "the bank does not know its embedder: run  memory-bank bank re-embed")

    def records(self) -> Iterator[Defect]:
        """Every record is readable; an id derived from content is the hash of that content."""
        for row in self._pages("records", records, _RECORDS):
            self.counts.records += 1
            self.counts.unobserved += row["insight"] is None
            what = self._check_record(row)
            if what:
                yield Defect("record", what, _name(row["session_id"]), _name(row["trace_id"]))

    def _check_record(self, row: RowMapping) -> str:
        try:
            texts = {name: _text(row[name]) for name in _TEXTS}
        except (TypeError, ValueError):
            return "its text is not readable"
        if not (is_session_id(row["session_id"]) and is_trace_id(row["trace_id"])):
            return "its id is not valid"
        if None in (texts["tool_name"], texts["input"], texts["output"]):
            return "a part of it is missing"
        if not isinstance(row["step_id"], int) or not is_time(row["timestamp"]):
            return "its step or time is not a number"
        for side in ("input", "output"):
            if not row[f"{side}_verbatim"] and not _is_json(str(texts[side])):
                return f"its {side} should be JSON and is not"
        record = from_row(cast(RecordRow, {**row, **texts}))
        if is_derived(record.trace_id) and record.call_id is not None:
            if derivation(str(row["session_id"]), record, str(texts["output"])) is None:
                return "its id is not the hash of its content"
            self.counts.checked_ids += 1
        return ""

    def insights(self) -> Iterator[Defect]:
        """Every insight has a record and a usable embedding."""
        broken: list[int] = []
        for row in self._pages("insights", insights, self._insights(_i.seq > LAST).limit(N)):
            self.counts.insights += 1
            defect = self._check_insight(row)
            if defect is not None and not self.repair:
                yield defect
            elif defect is not None:
                broken.append(row["seq"])
                if len(broken) >= _BATCH:
                    yield from self._mend_insights(broken)
                    broken = []
        if broken:
            yield from self._mend_insights(broken)

    def _insights(self, condition: sa.ColumnElement[bool]) -> sa.Select[Any]:
        columns = (_i.seq, _i.session_id, _i.trace_id, _i.source, _r.seq.label("record"), self.vector)
        query = sa.select(*columns, _raw(_i.summary), _raw(_i.redo))
        return (
            query.select_from(insights.outerjoin(records, INSIGHT_OF_RECORD))
            .where(condition)
            .order_by(_i.seq)
        )

    def _check_insight(self, row: RowMapping) -> Defect | None:
        where = _name(row["session_id"]), _name(row["trace_id"])
        if row["record"] is None:
            return Defect("insight", "it has no record", *where)
        try:
            _text(row["summary"]), _text(row["redo"])
        except (TypeError, ValueError):
            return Defect("insight", "its summary is not readable", *where)
        vector = row["embedding"]
        if self.dimension is None:
            return None  # reported once, by ``embedder``
        if self.database.ranks:
            size = vector
        elif isinstance(vector, bytes):
            size = len(vector) / 4
        else:
            return Defect("embedding", "its embedding is not readable", *where)
        if size != self.dimension:
            return Defect("embedding", f"its embedding has {size:g} of {self.dimension} dimensions", *where)
        if not self.database.ranks and not np.isfinite(np.frombuffer(vector, "<f4")).all():
            return Defect("embedding", "its embedding has values that are not finite", *where)
        return None

    def _mend_insights(self, seqs: list[int]) -> list[Defect]:
        """Delete those that are still unusable and queue their records."""
        mended: list[Defect] = []
        with self.database.write() as c:
            self.database.lock_bank(c)
            self.database.lock_session(c, None)
            self.dimension = _dimension(c)
            for row in c.execute(self._insights(_i.seq.in_(seqs))).mappings().all():
                defect = self._check_insight(row)
                if defect is None:
                    continue
                c.execute(sa.delete(insights).where(_i.seq == row["seq"]))
                if row["record"] is not None and row["source"] != _EXTRACTIVE:
                    add_jobs(c, self.database, row["session_id"], [row["trace_id"]])
                mended.append(
                    Defect(defect.kind, defect.what, defect.session_id, defect.trace_id, mended=True)
                )
            for name in {d.session_id for d in mended}:
                c.execute(NEXT_GENERATION, {"session": name})
        return mended

    def jobs(self) -> Iterator[Defect]:
        """Every job has a record."""
        for row in self._pages("jobs", jobs, _JOBS):
            self.counts.jobs += 1
            if row["record"] is not None:
                continue
            if self.repair:
                with self.database.write() as c:
                    c.execute(sa.delete(jobs).where(_j.seq == row["seq"], _no_record))
            yield Defect("job", "its record is missing", row["session_id"], row["trace_id"], self.repair)

    def spending(self) -> Iterator[Defect]:
        """No sum is negative."""
        with self.database.read() as c:
            rows = c.execute(_NEGATIVE).all()
        for session_id, day in rows:
            yield Defect("spending", f"the sum of what it spent on {day} is negative", session_id)

    def models(self) -> Iterator[Defect]:
        """Every evidence model is readable and belongs to a namespace with sessions."""
        with self.database.read() as c:
            rows = c.execute(_MODELS).all()
        for namespace, model, used in rows:
            if used and is_model_text(bytes(model)):
                continue
            what = "its evidence model cannot be read" if used else "it has an evidence model and no session"
            if self.repair:
                with self.database.erase() as c:
                    forget_model(c, namespace)
            yield Defect("model", f"namespace {namespace or 'default'}: {what}", mended=self.repair)

    def _pages(self, what: str, table: sa.Table, query: sa.Select[Any]) -> Iterator[RowMapping]:
        """All rows, a batch at a time, each over a connection of its own."""
        total = self.database.value(count_of(table)) or 0
        done, last = 0, -(2**62)
        while True:
            with self.database.read() as c:
                rows = c.execute(query, {"last": last, "n": _BATCH}).mappings().all()
            yield from rows
            done += len(rows)
            self.report(what, done, max(done, total))
            if len(rows) < _BATCH:
                return
            last = rows[-1]["seq"]


def _dimension(c: Connection) -> int | None:
    embedder = embedder_of(c)
    return None if embedder is None else embedder[1]


def _name(value: object) -> str:
    return value if isinstance(value, str) else repr(value)[:80]


def _text(value: object) -> str | None:
    """The text of stored bytes. Raises TypeError, ValueError."""
    if value is None:
        return None
    if not isinstance(value, (bytes, memoryview)):
        raise TypeError
    return bytes(value).decode("utf-8", "surrogatepass")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except RecursionError:  # nested deeper than the parser allows: kept as text
        return True
    except ValueError:
        return False
    return True
