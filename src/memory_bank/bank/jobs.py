"""The queue of records that wait for a summary by a model: leases and retries, in the bank's own database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from memory_bank.bank.database import Database
from memory_bank.bank.schema import (
    HAS_CONTENT,
    INSIGHT_OF_RECORD,
    JOB_OF_RECORD,
    LAST,
    N,
    count_of,
    first_bytes,
    insights,
    jobs,
    of_session,
    records,
)
from memory_bank.transcript.messages import MARKS, is_memory_tool

AHEAD = 5.0
"""Seconds by which a stored time may be in the future before the clock counts as having jumped back."""
LONGEST_WAIT = 3600.0
"""Seconds; no retry waits longer, so a later due time comes from a clock that has jumped back."""

_t, _r, _i = jobs.c, records.c, insights.c
_NOW = sa.bindparam("now", type_=sa.Float)
_is_free = (
    _t.owner.is_(None)
    | (_t.expires <= _NOW)
    | (_t.leased > _NOW + AHEAD)  # leased in the future: the clock has jumped back
)
_is_due = (
    (_t.due <= _NOW)
    | (_t.attempts == 0)  # never tried
    | _t.owner.is_not(None)  # its holder died: it was due then
    | (_t.due > _NOW + LONGEST_WAIT + AHEAD)
)
_FREE = sa.select(*_t).where(_is_free, _is_due).order_by(_t.due, _t.seq).limit(N)
_FREE = _FREE.with_for_update(skip_locked=True)
_LEASE = (
    sa.update(jobs)
    .where(_t.seq == sa.bindparam("row"))
    .values(
        owner=sa.bindparam("by"),
        leased=sa.bindparam("at"),
        expires=sa.bindparam("until"),
        attempts=_t.attempts + 1,
    )
)
_held = (_t.seq == sa.bindparam("row")) & (_t.owner == sa.bindparam("by"))
_RENEW = sa.update(jobs).where(_held).values(leased=sa.bindparam("at"), expires=sa.bindparam("until"))
_not_held: dict[str, None] = {"owner": None, "leased": None, "expires": None}
_GIVE_BACK = (
    sa.update(jobs).where(_held).values(**_not_held, due=sa.bindparam("next"), error=sa.bindparam("why"))
)
_RELEASE = (
    sa.update(jobs)
    .where(_held)
    .values(**_not_held, attempts=sa.case((_t.attempts > 0, _t.attempts - 1), else_=0))
)
_DONE = sa.delete(jobs).where(_held)
_CLEAR = sa.delete(jobs).where(of_session(jobs))
_OPEN = count_of(jobs)
_OLDEST = sa.select(sa.func.count(), sa.func.min(_t.created)).select_from(jobs)
_ORPHANED = count_of(jobs).where(~sa.exists(_r.seq).where(JOB_OF_RECORD))
_NEXT = sa.select(sa.func.min(sa.case((_is_free & _is_due, _NOW), (_is_free, _t.due), else_=_t.expires)))
_FREE_HERE, _OPEN_HERE, _NEXT_HERE = (s.where(of_session(jobs)) for s in (_FREE, _OPEN, _NEXT))
_head = first_bytes(_r.output, max(map(len, MARKS)))
_BARE = (
    sa.select(_r.trace_id, _r.tool_name, _r.output_verbatim, _head)
    .outerjoin(insights, INSIGHT_OF_RECORD)
    .where(of_session(records), _i.seq.is_(None), HAS_CONTENT)
    .order_by(_r.seq)
)
_UNMADE = (
    sa.select(_r.seq, _r.session_id, _r.trace_id, _r.tool_name, _r.output_verbatim, _head)
    .select_from(records.outerjoin(insights, INSIGHT_OF_RECORD).outerjoin(jobs, JOB_OF_RECORD))
    .where(_r.seq > LAST, _i.seq.is_(None) | _i.redo.is_not(None), _t.seq.is_(None), HAS_CONTENT)
    .order_by(_r.seq)
    .limit(N)
)
_UNMADE_HERE = _UNMADE.where(of_session(records))


@dataclass(frozen=True, slots=True)
class Job:
    """One record to be observed; ``attempts`` includes the current one."""

    seq: int
    session_id: str
    trace_id: str
    attempts: int
    error: str | None = None


class JobQueue:
    """The jobs of one session, or of all if none is named.

    Times are Unix seconds by the clock of the database server if there is one, or by ``clock``. A job is
    taken under a lease; when it expires, or was taken by a clock that has jumped back since, the job is free
    again. Every method may raise StorageError.
    """

    def __init__(
        self,
        database: Database,
        session_id: str | None = None,
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.database = database
        self.session_id = session_id
        self._clock = clock
        self._session = {} if session_id is None else {"session": session_id}

    def add(self, trace_ids: Sequence[str]) -> None:
        """Add jobs for records of the session; existing ones are not changed."""
        if self.session_id is None:
            raise ValueError("jobs are added to one session")
        if trace_ids:
            with self.database.write() as c:
                add_jobs(c, self.database, self.session_id, trace_ids, self._now(c))

    def take(self, owner: str, limit: int, lease: float) -> list[Job]:
        """Lease up to ``limit`` free jobs that are due, the longest due first, for ``lease`` seconds."""
        if not self.open_count():  # no write for an empty queue
            return []
        with self.database.write() as c:
            now = self._now(c)
            statement = _FREE_HERE if self._session else _FREE
            found = c.execute(statement, {"now": now, "n": limit, **self._session}).all()
            if found:
                until = now + lease
                c.execute(_LEASE, [{"row": r.seq, "by": owner, "at": now, "until": until} for r in found])
        return [Job(r.seq, r.session_id, r.trace_id, r.attempts + 1, r.error) for r in found]

    def renew(self, owner: str, held: Collection[Job], lease: float) -> None:
        """Extend the leases of jobs to ``lease`` seconds from now."""
        if held:
            with self.database.write() as c:
                now = self._now(c)
                until = now + lease
                c.execute(_RENEW, [{"row": j.seq, "by": owner, "at": now, "until": until} for j in held])

    def give_back(self, owner: str, job: Job, error: str, delay: float) -> None:
        """End an attempt that failed: the job is due again after ``delay`` seconds, at most an hour."""
        with self.database.write() as c:
            due = self._now(c) + min(delay, LONGEST_WAIT)
            c.execute(_GIVE_BACK, {"row": job.seq, "by": owner, "next": due, "why": error})

    def release(self, owner: str, held: Collection[Job]) -> None:
        """End the leases of jobs that were not tried; the attempt does not count."""
        if held:
            with self.database.write() as c:
                c.execute(_RELEASE, [{"row": j.seq, "by": owner} for j in held])

    def open_count(self) -> int:
        """The number of jobs, leased ones included."""
        return self.database.value(_OPEN_HERE if self._session else _OPEN, **self._session) or 0

    def wait(self) -> float | None:
        """Seconds until the next job may be taken, 0 if one may now, None without jobs."""
        with self.database.read() as c:
            now = self._now(c)
            statement = _NEXT_HERE if self._session else _NEXT
            due = c.execute(statement, {"now": now, **self._session}).scalar()
        return None if due is None else min(max(0.0, due - now), LONGEST_WAIT)

    def _now(self, c: Connection) -> float:
        return self.database.now(c) if self._clock is None else self._clock()


def add_jobs(
    c: Connection, database: Database, session_id: str, trace_ids: Sequence[str], now: float | None = None
) -> None:
    """Within a write, add jobs for records; existing ones are not changed."""
    now = database.now(c) if now is None else now
    c.execute(
        database.insert_or_ignore(jobs),
        [
            {"session_id": session_id, "trace_id": t, "created": now, "due": now, "attempts": 0}
            for t in trace_ids
        ],
    )


def clear_jobs(c: Connection, session_id: str) -> None:
    """Within a write, delete a session's jobs; a worker that holds one cannot finish it."""
    c.execute(_CLEAR, {"session": session_id})


def finish_job(c: Connection, owner: str, job: Job) -> bool:
    """Within a write, delete a finished job; False if ``owner`` does not hold it any more."""
    return c.execute(_DONE, {"row": job.seq, "by": owner}).rowcount == 1


def queue_unmade(database: Database, session_id: str | None = None, at_once: int = 500) -> int:
    """Add jobs for all records without an insight or with one to be made again; returns how many were added.

    Answers of our own tools are left out: they are never summarised. May raise StorageError.
    """
    added, last = 0, -1
    while True:
        statement, here = (_UNMADE, {}) if session_id is None else (_UNMADE_HERE, {"session": session_id})
        with database.read() as c:
            rows = c.execute(statement, {"last": last, "n": at_once, **here}).all()
        wanted: dict[str, list[str]] = {}
        for _, session, trace_id, tool, verbatim, head in rows:
            if not _is_own(tool, verbatim, head):
                wanted.setdefault(session, []).append(trace_id)
        for session, trace_ids in wanted.items():
            JobQueue(database, session).add(trace_ids)
            added += len(trace_ids)
        if len(rows) < at_once:
            return added
        last = rows[-1][0]


def without_insight(database: Database, session_id: str) -> list[str]:
    """The trace_ids of a session's records that need an insight and have none, oldest first."""
    with database.read() as c:
        rows = c.execute(_BARE, {"session": session_id}).all()
    return [trace_id for trace_id, tool, verbatim, head in rows if not _is_own(tool, verbatim, head)]


def _is_own(tool: str, verbatim: bool, head: bytes) -> bool:
    """Whether a record is an answer of our own tools, by the beginning of its output."""
    return is_memory_tool(tool, bytes(head or b"").decode("ascii", "replace") if verbatim else None)


def oldest_job(database: Database) -> tuple[int, float]:
    """The number of jobs, leased ones included, and the age of the oldest in seconds."""
    with database.read() as c:
        count, created = c.execute(_OLDEST).one()
        return int(count), max(0.0, database.now(c) - created) if count else 0.0


def orphaned_jobs(database: Database) -> int:
    """The number of jobs without a record."""
    return database.value(_ORPHANED) or 0
