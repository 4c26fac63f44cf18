"""The queue of records to be observed, in the bank's own database: leases, retries, nothing lost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from memory_bank.bank.database import Database
from memory_bank.bank.schema import insights, jobs, records
from memory_bank.transcript.messages import MARKS, is_memory_tool

AHEAD = 5.0
"""Seconds by which a time may lie ahead of the clock before the clock is taken to have jumped back."""
LONGEST_WAIT = 3600.0
"""No retry waits longer, so a due time further ahead comes from a clock that jumped back."""

# Statements are built once: building one costs more than running it.
_t = jobs.c
_mine = _t.session_id == sa.bindparam("session")
_now = sa.bindparam("now", type_=sa.Float)
_is_free = (
    _t.owner.is_(None)
    | (_t.expires <= _now)
    | (_t.leased > _now + AHEAD)  # taken in the future: the clock jumped back
)
_is_due = (
    (_t.due <= _now)
    | (
        _t.attempts == 0
    )  # never tried, or taken by one who died: it was due then, whatever the clock says now
    | _t.owner.is_not(None)
    | (_t.due > _now + LONGEST_WAIT + AHEAD)
)
_FREE = sa.select(*_t).where(_is_free, _is_due).order_by(_t.due, _t.seq).limit(sa.bindparam("n"))
_FREE = _FREE.with_for_update(skip_locked=True)
_FREE_HERE = (
    sa.select(*_t).where(_mine, _is_free, _is_due).order_by(_t.due, _t.seq).limit(sa.bindparam("n"))
).with_for_update(skip_locked=True)
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
_GIVE_BACK = (
    sa.update(jobs)
    .where(_held)
    .values(owner=None, leased=None, expires=None, due=sa.bindparam("next"), error=sa.bindparam("why"))
)
_RELEASE = (
    sa.update(jobs)
    .where(_held)
    .values(
        owner=None, leased=None, expires=None, attempts=sa.case((_t.attempts > 0, _t.attempts - 1), else_=0)
    )
)
_DONE = sa.delete(jobs).where(_held)
_CLEAR = sa.delete(jobs).where(_mine)
_OPEN = sa.select(sa.func.count()).select_from(jobs)
_OPEN_HERE = _OPEN.where(_mine)
_OLDEST = sa.select(sa.func.count(), sa.func.min(_t.created)).select_from(jobs)
_r, _i = records.c, insights.c
_head = sa.func.substr(
    sa.type_coerce(_r.output, sa.LargeBinary), 1, max(map(len, MARKS)), type_=sa.LargeBinary
)
_BARE = (
    sa.select(_r.trace_id, _r.tool_name, _r.output_verbatim, _head)
    .outerjoin(insights, (_i.trace_id == _r.trace_id) & (_i.session_id == _r.session_id))
    .where(_r.session_id == sa.bindparam("session"), _i.seq.is_(None))
    .order_by(_r.seq)
)
_UNMADE = (
    sa.select(_r.seq, _r.session_id, _r.trace_id, _r.tool_name, _r.output_verbatim, _head)
    .select_from(
        records.outerjoin(
            insights, (_i.trace_id == _r.trace_id) & (_i.session_id == _r.session_id)
        ).outerjoin(jobs, (_t.trace_id == _r.trace_id) & (_t.session_id == _r.session_id))
    )
    .where(_r.seq > sa.bindparam("last"), _i.seq.is_(None) | _i.redo.is_not(None), _t.seq.is_(None))
    .order_by(_r.seq)
    .limit(sa.bindparam("n"))
)
_UNMADE_HERE = _UNMADE.where(_r.session_id == sa.bindparam("session"))
_NEXT = sa.select(sa.func.min(sa.case((_is_free & _is_due, _now), (_is_free, _t.due), else_=_t.expires)))
_NEXT_HERE = _NEXT.where(_mine)


@dataclass(frozen=True, slots=True)
class Job:
    """One record to be observed; ``attempts`` counts the present one."""

    seq: int
    session_id: str
    trace_id: str
    attempts: int
    error: str | None = None


class JobQueue:
    """Jobs of one session, or of all where none is named.

    Times are Unix seconds, by the database server's clock where there is one, unless a ``clock`` is given.

    A job is taken under a lease; one whose holder died, or was taken by a clock that has jumped back since,
    is free again. Every call may raise StorageError.
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

    def add(self, trace_ids: Sequence[str]) -> None:
        """Note that records of the session are to be observed; those noted already stay as they are."""
        if self.session_id is None:
            raise ValueError("jobs are added to one session")
        if trace_ids:
            with self.database.write() as c:
                add_jobs(c, self.database, self.session_id, trace_ids, self._now(c))

    def take(self, owner: str, limit: int, lease: float) -> list[Job]:
        """Up to ``limit`` free jobs that are due, the longest due first, leased for so many seconds."""
        if not self.open_count():  # no write for an empty queue
            return []
        with self.database.write() as c:
            now = self._now(c)
            asked = {"now": now, "n": limit}
            if self.session_id is None:
                found = c.execute(_FREE, asked).all()
            else:
                found = c.execute(_FREE_HERE, {**asked, "session": self.session_id}).all()
            if found:
                until = now + lease
                c.execute(_LEASE, [{"row": r.seq, "by": owner, "at": now, "until": until} for r in found])
        return [Job(r.seq, r.session_id, r.trace_id, r.attempts + 1, r.error) for r in found]

    def renew(self, owner: str, held: Collection[Job], lease: float) -> None:
        """Go on holding jobs for so many seconds from now."""
        if held:
            with self.database.write() as c:
                now = self._now(c)
                until = now + lease
                c.execute(_RENEW, [{"row": j.seq, "by": owner, "at": now, "until": until} for j in held])

    def give_back(self, owner: str, job: Job, error: str, delay: float) -> None:
        """An attempt failed: the job is due again after ``delay`` seconds."""
        with self.database.write() as c:
            due = self._now(c) + min(delay, LONGEST_WAIT)
            c.execute(_GIVE_BACK, {"row": job.seq, "by": owner, "next": due, "why": error})

    def release(self, owner: str, held: Collection[Job]) -> None:
        """Let go of jobs that were not tried: free at once, the attempt does not count."""
        if held:
            with self.database.write() as c:
                c.execute(_RELEASE, [{"row": j.seq, "by": owner} for j in held])

    def open_count(self) -> int:
        """How many jobs there are, taken ones included."""
        with self.database.read() as c:
            if self.session_id is None:
                return c.execute(_OPEN).scalar() or 0
            return c.execute(_OPEN_HERE, {"session": self.session_id}).scalar() or 0

    def wait(self) -> float | None:
        """Seconds until the next job may be taken, 0 when one may now, None when there is none."""
        with self.database.read() as c:
            now = self._now(c)
            if self.session_id is None:
                due = c.execute(_NEXT, {"now": now}).scalar()
            else:
                due = c.execute(_NEXT_HERE, {"now": now, "session": self.session_id}).scalar()
        return None if due is None else min(max(0.0, due - now), LONGEST_WAIT)

    def _now(self, c: Connection) -> float:
        return self.database.now(c) if self._clock is None else self._clock()


def add_jobs(
    c: Connection, database: Database, session_id: str, trace_ids: Sequence[str], now: float | None = None
) -> None:
    """Within a write, note that records are to be observed; those noted already stay as they are."""
    now = database.now(c) if now is None else now
    c.execute(
        database.insert_or_ignore(jobs),
        [
            {"session_id": session_id, "trace_id": t, "created": now, "due": now, "attempts": 0}
            for t in trace_ids
        ],
    )


def clear_jobs(c: Connection, session_id: str) -> None:
    """Within a write, forget a session's jobs; whoever holds one cannot end it any more."""
    c.execute(_CLEAR, {"session": session_id})


def finish_job(c: Connection, owner: str, job: Job) -> bool:
    """Within a write, end a job; False when it is no longer the owner's."""
    return c.execute(_DONE, {"row": job.seq, "by": owner}).rowcount == 1


def queue_unmade(database: Database, session_id: str | None = None, at_once: int = 500) -> int:
    """Note all records that have no insight, or one to be made again; how many were not noted before.

    Answers of our own tools are left out: they are never summarised. May raise StorageError.
    """
    added, last = 0, -1
    while True:
        asked = {"last": last, "n": at_once}
        with database.read() as c:
            if session_id is None:
                rows = c.execute(_UNMADE, asked).all()
            else:
                rows = c.execute(_UNMADE_HERE, {**asked, "session": session_id}).all()
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
    """The trace_ids of a session's records that have no insight and should, oldest first."""
    with database.read() as c:
        rows = c.execute(_BARE, {"session": session_id}).all()
    return [trace_id for trace_id, tool, verbatim, head in rows if not _is_own(tool, verbatim, head)]


def _is_own(tool: str, verbatim: bool, head: bytes) -> bool:
    """Whether a record, told by the beginning of its output, is an answer of our own tools."""
    return is_memory_tool(tool, bytes(head).decode("ascii", "replace") if verbatim else None)


def oldest_job(database: Database) -> tuple[int, float]:
    """How many jobs there are, taken ones included, and the age of the oldest in seconds."""
    with database.read() as c:
        count, created = c.execute(_OLDEST).one()
        return int(count), max(0.0, database.now(c) - created) if count else 0.0


def orphaned_jobs(database: Database) -> int:
    """How many jobs are for records that are not there."""
    r = records.c
    missing = ~sa.exists().where(r.session_id == _t.session_id, r.trace_id == _t.trace_id)
    with database.read() as c:
        return c.execute(sa.select(sa.func.count()).select_from(jobs).where(missing)).scalar() or 0
