"""Whether a bank is what it should be: every fact readable, every insight with its fact, no orphaned job."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from memory_bank.bank.database import Database
from memory_bank.bank.deriving import derivation, is_derived
from memory_bank.bank.embedder import KEYS
from memory_bank.bank.jobs import add_jobs
from memory_bank.bank.payload import from_row, is_session_id, is_trace_id
from memory_bank.bank.schema import bank, insights, jobs, records, sessions, spending
from memory_bank.errors import StorageError

_BATCH = 256
_EXTRACTIVE = "extractive"

Report = Callable[[str, int, int], None]
Row = Mapping[Any, Any]

_r, _i, _j = records.c, insights.c, jobs.c
_last: Any = sa.bindparam("last")
_n: Any = sa.bindparam("n")


def _bytes(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """A text as its bytes: what is broken in it is to be found, not raised."""
    return sa.type_coerce(column, sa.LargeBinary).label(column.name)


_TEXTS = ("call_id", "tool_name", "input", "output")
_RECORDS = (
    sa.select(*(_bytes(c) if c.name in _TEXTS else c for c in _r), _i.seq.label("insight"))
    .outerjoin(insights, (_i.trace_id == _r.trace_id) & (_i.session_id == _r.session_id))
    .where(_r.seq > _last).order_by(_r.seq).limit(_n)
)  # fmt: skip
_no_record = ~sa.exists().where(_r.session_id == _j.session_id, _r.trace_id == _j.trace_id)
_ORPHANS = (
    sa.select(_j.seq, _j.session_id, _j.trace_id, _r.seq.label("record"))
    .outerjoin(records, (_r.trace_id == _j.trace_id) & (_r.session_id == _j.session_id))
    .where(_j.seq > _last).order_by(_j.seq).limit(_n)
)  # fmt: skip
_MISSING = sa.union(
    *(
        sa.select(t.c.session_id).where(~sa.exists().where(sessions.c.session_id == t.c.session_id))
        for t in (records, insights, jobs, spending)
    )
)
_NEXT_GENERATION = (
    sa.update(sessions)
    .where(sessions.c.session_id == sa.bindparam("session"))
    .values(generation=sessions.c.generation + 1)
)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it should be; ``mended``: it was. ``kind`` is a word for programs."""

    kind: str
    what: str
    session_id: str | None = None
    trace_id: str | None = None
    mended: bool = False


@dataclass(slots=True)
class Counts:
    """What was looked at. ``checked_ids``: trace_ids found to be the hash of their record's content;
    ``unobserved``: records without an insight, which is no problem."""

    records: int = 0
    checked_ids: int = 0
    unobserved: int = 0
    insights: int = 0
    jobs: int = 0
    sessions: int = 0


def verify(
    database: Database, counts: Counts | None = None, *, repair: bool = False, report: Report | None = None
) -> Iterator[Problem]:
    """Look at everything in a bank, a batch at a time, and tell what is wrong, filling ``counts`` meanwhile.

    ``repair`` mends what needs no guessing: sessions that are missing are made, insights without a record and
    orphaned jobs removed, unusable insights removed and their records left to be observed again. A record is
    never touched. Raises StorageError only for what stops a repair.
    """
    look = _Look(database, counts if counts is not None else Counts(), repair, report or (lambda *_: None))
    parts = (look.file, look.sessions, look.embedder, look.records, look.insights, look.jobs, look.spending)
    for part in parts:
        try:
            yield from part()
        except (StorageError, TypeError, ValueError) as e:
            told = str(e) if isinstance(e, StorageError) else type(e).__name__
            told = told.split("; nothing was changed")[0]
            yield Problem("unreadable", f"{part.__name__}: cannot be read to the end ({told.rstrip('.')})")


class _Look:
    def __init__(self, database: Database, counts: Counts, repair: bool, report: Report) -> None:
        self.database = database
        self.counts = counts
        self.repair = repair
        self.report = report
        self.dimension: int | None = None
        # What is read of an embedding: its bytes, or where the server keeps it, its size.
        self.vector: sa.ColumnElement[Any] = _bytes(_i.embedding)
        if database.ranks:
            self.vector = sa.func.vector_dims(_i.embedding, type_=sa.Integer).label("embedding")

    def file(self) -> Iterator[Problem]:
        """What SQLite itself can check."""
        if self.database.url.get_backend_name() != "sqlite":
            return
        with self.database.read() as c:
            said = [str(row[0]) for row in c.exec_driver_sql("PRAGMA integrity_check(20)")]
        for what in said:
            if what != "ok":
                first = " ".join(what.split())[:300]
                yield Problem("damaged", f"SQLite finds the file damaged ({first})")

    def sessions(self) -> Iterator[Problem]:
        """Every session that something belongs to has its row."""
        with self.database.read() as c:
            self.counts.sessions = c.execute(sa.select(sa.func.count()).select_from(sessions)).scalar() or 0
            missing = sorted(c.execute(_MISSING).scalars())
        for name in missing:
            mended = self.repair and is_session_id(name)
            if mended:
                with self.database.write() as c:
                    new = {"session_id": name, "created": time.time(), "generation": 1}
                    c.execute(self.database.insert_or_ignore(sessions), new)
            yield Problem("session", "its session is missing", name, mended=mended)

    def embedder(self) -> Iterator[Problem]:
        """Where there are insights, the bank knows whose they are."""
        with self.database.read() as c:
            self.dimension = _dimension(c)
            some = c.execute(sa.select(_i.seq).limit(1)).first() is not None
        if some and self.dimension is None:
            yield Problem("embedder", "the bank does not know its embedder: run  memory-bank re-embed")

    def records(self) -> Iterator[Problem]:
        """Every record is readable, and where its id is a hash of its content, it is that hash."""
        for row in self._pages("records", records, _RECORDS):
            self.counts.records += 1
            self.counts.unobserved += row["insight"] is None
            what = self._fault_of_record(row)
            if what:
                yield Problem("record", what, _name(row["session_id"]), _name(row["trace_id"]))

    def _fault_of_record(self, row: Row) -> str:
        try:
            texts = {name: _text(row[name]) for name in _TEXTS}
        except (TypeError, ValueError):
            return "its text is not readable"
        if not (is_session_id(row["session_id"]) and is_trace_id(row["trace_id"])):
            return "its id is none"
        if None in (texts["tool_name"], texts["input"], texts["output"]):
            return "a part of it is missing"
        if not isinstance(row["step_id"], int) or not _is_time(row["timestamp"]):
            return "its step or time is no number"
        for side in ("input", "output"):
            if not row[f"{side}_verbatim"] and not _is_json(str(texts[side])):
                return f"its {side} should be JSON and is not"
        record = from_row({**row, **texts})
        if is_derived(record.trace_id) and record.call_id is not None:
            if derivation(str(row["session_id"]), record, str(texts["output"])) is None:
                return "its content is not what its id was made of"
            self.counts.checked_ids += 1
        return ""

    def insights(self) -> Iterator[Problem]:
        """Every insight has its record and a usable embedding."""
        bad: list[int] = []
        for row in self._pages("insights", insights, self._insights(_i.seq > _last).limit(_n)):
            self.counts.insights += 1
            problem = self._fault_of_insight(row)
            if problem is not None and not self.repair:
                yield problem
            elif problem is not None:
                bad.append(row["seq"])
                if len(bad) >= _BATCH:
                    yield from self._mend_insights(bad)
                    bad = []
        if bad:
            yield from self._mend_insights(bad)

    def _insights(self, condition: Any) -> sa.Select[Any]:
        joined = insights.outerjoin(records, (_r.trace_id == _i.trace_id) & (_r.session_id == _i.session_id))
        columns = (_i.seq, _i.session_id, _i.trace_id, _i.source, _r.seq.label("record"), self.vector)
        query = sa.select(*columns, _bytes(_i.summary), _bytes(_i.redo)).select_from(joined)
        return query.where(condition).order_by(_i.seq)

    def _fault_of_insight(self, row: Row) -> Problem | None:
        where = _name(row["session_id"]), _name(row["trace_id"])
        if row["record"] is None:
            return Problem("insight", "it has no record", *where)
        try:
            _text(row["summary"]), _text(row["redo"])
        except (TypeError, ValueError):
            return Problem("insight", "its summary is not readable", *where)
        vector = row["embedding"]
        if self.dimension is None:
            return None  # told once, for all
        if self.database.ranks:
            size = vector
        elif isinstance(vector, bytes):
            size = len(vector) / 4
        else:
            return Problem("embedding", "its embedding is not readable", *where)
        if size != self.dimension:
            return Problem("embedding", f"its embedding has {size:g} of {self.dimension} dimensions", *where)
        if not self.database.ranks and not np.isfinite(np.frombuffer(vector, "<f4")).all():
            return Problem("embedding", "its embedding holds what is no number", *where)
        return None

    def _mend_insights(self, seqs: list[int]) -> list[Problem]:
        """Remove them if they are still unusable, and let their records be observed again."""
        mended: list[Problem] = []
        with self.database.write() as c:
            self.database.lock_bank(c)
            self.database.lock_session(c, None)
            self.dimension = _dimension(c)
            for row in c.execute(self._insights(_i.seq.in_(seqs))).mappings().all():
                problem = self._fault_of_insight(row)
                if problem is None:
                    continue
                c.execute(sa.delete(insights).where(_i.seq == row["seq"]))
                if row["record"] is not None and row["source"] != _EXTRACTIVE:
                    add_jobs(c, self.database, row["session_id"], [row["trace_id"]])
                where = problem.session_id, problem.trace_id
                mended.append(Problem(problem.kind, problem.what, *where, mended=True))
            for name in {p.session_id for p in mended}:
                c.execute(_NEXT_GENERATION, {"session": name})
        return mended

    def jobs(self) -> Iterator[Problem]:
        """No job is for a record that is not there."""
        for row in self._pages("jobs", jobs, _ORPHANS):
            self.counts.jobs += 1
            if row["record"] is not None:
                continue
            if self.repair:
                with self.database.write() as c:
                    c.execute(sa.delete(jobs).where(_j.seq == row["seq"], _no_record))
            yield Problem("job", "its record is missing", row["session_id"], row["trace_id"], self.repair)

    def spending(self) -> Iterator[Problem]:
        """What was spent is no less than nothing."""
        t = spending.c
        wrong = (t.calls < 0) | (t.prompt_tokens < 0) | (t.completion_tokens < 0) | (t.cost < -1e-6)
        with self.database.read() as c:
            rows = c.execute(sa.select(t.session_id, t.day).where(wrong)).all()
        for session_id, day in rows:
            yield Problem("spending", f"what it spent on {day} is less than nothing", session_id)

    def _pages(self, what: str, table: sa.Table, query: sa.Select[Any]) -> Iterator[Row]:
        """All rows, a batch at a time, each with a connection of its own."""
        with self.database.read() as c:
            total = c.execute(sa.select(sa.func.count()).select_from(table)).scalar() or 0
        seen, last = 0, -(2**62)
        while True:
            with self.database.read() as c:
                rows = c.execute(query, {"last": last, "n": _BATCH}).mappings().all()
            yield from rows
            seen += len(rows)
            self.report(what, seen, max(seen, total))
            if len(rows) < _BATCH:
                return
            last = rows[-1]["seq"]


def _dimension(c: Connection) -> int | None:
    """Of the bank's embedder; None where that is not known."""
    known = dict(c.execute(sa.select(bank.c.key, bank.c.value).where(bank.c.key.in_(KEYS))).all())
    told = known.get("dimension") or ""
    return int(told) if told.isascii() and told.isdecimal() and known.get("embedder") else None


def _name(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)[:80]


def _text(value: Any) -> str | None:
    """Raises TypeError, ValueError."""
    if value is not None and not isinstance(value, (bytes, memoryview)):
        raise TypeError
    return None if value is None else bytes(value).decode("utf-8", "surrogatepass")


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except RecursionError:  # deeper than the parser goes: kept as text
        return True
    except ValueError:
        return False
    return True
