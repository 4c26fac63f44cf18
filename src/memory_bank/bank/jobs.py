"""The Observer's tables: the queue of records that wait for a summary by a model, and what its calls cost.

Whatever uses the database may raise StorageError.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from memory_bank.bank.database import Database
from memory_bank.bank.schema import (
    HAS_CONTENT,
    INSIGHT_OF_RECORD,
    JOB_OF_RECORD,
    count_of,
    first_bytes,
    in_parts,
    insights,
    jobs,
    of_session,
    records,
    spending,
    sum_of,
)
from memory_bank.records import Spent
from memory_bank.transcript.messages import MARKS, is_memory_tool

AHEAD = 5.0
"""Seconds by which a stored time may be in the future before the clock counts as having jumped back."""
LONGEST_WAIT = 3600.0
"""Seconds; no retry waits longer, so a later due time comes from a clock that has jumped back."""

STEP = "step:"
"""How the owner of a job begins that a step holds for a record whose summary it makes itself."""
STEP_LEASE = 120.0
"""Seconds after which a step that holds a job counts as dead."""

_t, _r, _i, _p = jobs.c, records.c, insights.c, spending.c
_free: dict[str, Any] = {"owner": None, "leased": None, "expires": None}


@dataclass(frozen=True, slots=True)
class Job:
    """One record to be observed; ``attempts`` includes the current one."""

    seq: int
    session_id: str
    trace_id: str
    attempts: int


class JobQueue:
    """The jobs of one session, or of all if none is named.

    Times are Unix seconds by the clock of the database server if there is one, or by ``clock``. A job is
    taken under a lease; when it expires, or was taken by a clock that has jumped back since, the job is free
    again.
    """

    def __init__(
        self, database: Database, session_id: str | None = None, *, clock: Callable[[], float] | None = None
    ) -> None:
        self.database = database
        self.session_id = session_id
        self._clock = clock
        self._mine = sa.true() if session_id is None else _t.session_id == session_id

    def add(self, trace_ids: Sequence[str], owner: str | None = None) -> None:
        """Add jobs for records of the session, leased to an owner if one is given; existing ones are not changed."""
        if self.session_id is None:
            raise ValueError("jobs are added to one session")
        if trace_ids:
            with self.database.write() as c:
                add_jobs(c, self.database, self.session_id, trace_ids, owner)

    def take(self, owner: str, limit: int, lease: float) -> list[Job]:
        """Lease up to ``limit`` free jobs that are due, the longest due first, for ``lease`` seconds."""
        if not self.open_count():  # no write for an empty queue
            return []
        with self.database.write() as c:
            now = self._now(c)
            free = sa.select(*_t).where(self._mine, _is_free(now), _is_due(now)).order_by(_t.due, _t.seq)
            found = c.execute(free.limit(limit).with_for_update(skip_locked=True)).all()
            leased = {"owner": owner, "leased": now, "expires": now + lease, "attempts": _t.attempts + 1}
            c.execute(sa.update(jobs).where(_t.seq.in_([r.seq for r in found])).values(leased))
        return [Job(r.seq, r.session_id, r.trace_id, r.attempts + 1) for r in found]

    def renew(self, owner: str, held: Collection[Job], lease: float) -> None:
        """Extend the leases of jobs to ``lease`` seconds from now."""
        self._change(owner, held, lambda now: {"leased": now, "expires": now + lease})

    def give_back(self, owner: str, job: Job, error: str, delay: float) -> None:
        """End an attempt that failed: the job is due again after ``delay`` seconds, at most an hour."""
        delay = min(delay, LONGEST_WAIT)
        self._change(owner, [job], lambda now: {**_free, "due": now + delay, "error": error})

    def release(self, owner: str, held: Collection[Job]) -> None:
        """End the leases of jobs that were not tried; the attempt does not count."""
        attempts = sa.case((_t.attempts > 0, _t.attempts - 1), else_=0)
        self._change(owner, held, lambda _: {**_free, "attempts": attempts})

    def of_steps(self, *, ended: bool) -> list[str]:
        """The trace_ids of the jobs that steps hold, oldest first; ``ended``: those whose lease has ended."""
        with self.database.read() as c:
            which = _is_free(self._now(c)) if ended else sa.true()
            held = sa.select(_t.trace_id).where(self._mine, _t.owner.startswith(STEP), which)
            return list(c.execute(held.order_by(_t.seq)).scalars())

    def ids(self) -> set[str]:
        """The trace_ids of the session's jobs, leased ones included."""
        return set(self.database.column(sa.select(_t.trace_id).where(self._mine)))

    def open_count(self) -> int:
        """The number of jobs, leased ones included."""
        return self.database.value(count_of(jobs).where(self._mine)) or 0

    def wait(self) -> float | None:
        """Seconds until the next job may be taken, 0 if one may now, None without jobs."""
        with self.database.read() as c:
            now = self._now(c)
            free, at = _is_free(now), sa.literal(now, sa.Float)
            next_ = sa.func.min(sa.case((free & _is_due(now), at), (free, _t.due), else_=_t.expires))
            due = c.execute(sa.select(next_).where(self._mine)).scalar()
        return None if due is None else min(max(0.0, due - now), LONGEST_WAIT)

    def _change(self, owner: str, held: Collection[Job], values: Callable[[float], dict[str, Any]]) -> None:
        """Update those of the jobs that ``owner`` still leases; ``values`` returns the new columns at a time."""
        mine = _t.seq.in_([job.seq for job in held]), _t.owner == owner
        with self.database.write() as c:
            c.execute(sa.update(jobs).where(*mine).values(values(self._now(c))))

    def _now(self, c: Connection) -> float:
        return self.database.now(c) if self._clock is None else self._clock()


def _is_free(now: float) -> sa.ColumnElement[bool]:
    return _t.owner.is_(None) | (_t.expires <= now) | (_t.leased > now + AHEAD)  # the clock has jumped back


def _is_due(now: float) -> sa.ColumnElement[bool]:
    return (
        (_t.due <= now)
        | (_t.attempts == 0)  # never tried
        | _t.owner.is_not(None)  # its holder died: it was due then
        | (_t.due > now + LONGEST_WAIT + AHEAD)
    )


def add_jobs(
    c: Connection, database: Database, session_id: str, trace_ids: Collection[str], owner: str | None = None
) -> None:
    """Within a write, add jobs for records, leased to an owner if one is given; existing ones are not changed."""
    if not trace_ids:
        return
    now = database.now(c)
    new: dict[str, Any] = {"session_id": session_id, "created": now, "due": now, "attempts": 0}
    if owner is not None:
        new |= {"owner": owner, "leased": now, "expires": now + STEP_LEASE}
    database.insert_new(c, jobs, [{**new, "trace_id": t} for t in trace_ids])


def finish_job(c: Connection, owner: str, job: Job) -> bool:
    """Within a write, delete a finished job; False if ``owner`` does not hold it any more."""
    return c.execute(sa.delete(jobs).where(_t.seq == job.seq, _t.owner == owner)).rowcount == 1


def finish_step_jobs(c: Connection, session_id: str, trace_ids: Sequence[str]) -> set[str]:
    """Within a write, delete the jobs whose summaries a step makes; the trace_ids that had a job of any kind."""
    mine = _t.session_id == session_id
    found: set[str] = set()
    for part in in_parts(trace_ids):
        found.update(c.execute(sa.select(_t.trace_id).where(mine, _t.trace_id.in_(part))).scalars())
        c.execute(sa.delete(jobs).where(mine, _t.trace_id.in_(part), _t.owner.startswith(STEP)))
    return found


def oldest_job(database: Database) -> tuple[int, float]:
    """The number of jobs, leased ones included, and the age of the oldest in seconds."""
    with database.read() as c:
        count, created = c.execute(sa.select(sa.func.count(), sa.func.min(_t.created))).one()
        return int(count), max(0.0, database.now(c) - created) if count else 0.0


_WITH_INSIGHT = (
    sa.select(
        _r.seq, _r.session_id, _r.trace_id, _r.tool_name, _r.output_verbatim,
        first_bytes(_r.output, max(map(len, MARKS))).label("head"),
    )
    .outerjoin(insights, INSIGHT_OF_RECORD)
    .where(HAS_CONTENT)
    .order_by(_r.seq)
)  # fmt: skip


def without_insight(database: Database, session_id: str) -> list[str]:
    """The trace_ids of a session's records that need an insight and have none, oldest first."""
    bare = _WITH_INSIGHT.where(of_session(records), _i.seq.is_(None))
    with database.read() as c:
        rows = c.execute(bare, {"session": session_id})
        return [r.trace_id for r in rows if not is_own_answer(r.tool_name, r.output_verbatim, r.head)]


def queue_unmade(database: Database, session_id: str | None = None, at_once: int = 500) -> int:
    """Add jobs for all records that need an insight or a new one, ours left out; returns how many were added."""
    unmade = _WITH_INSIGHT.outerjoin(jobs, JOB_OF_RECORD).limit(at_once)
    unmade = unmade.where(_i.seq.is_(None) | _i.redo.is_not(None), _t.seq.is_(None))
    if session_id is not None:
        unmade = unmade.where(_r.session_id == session_id)
    added, last = 0, -1
    while True:
        with database.read() as c:
            rows = c.execute(unmade.where(_r.seq > last)).all()
        wanted: dict[str, list[str]] = {}
        for row in rows:
            if not is_own_answer(row.tool_name, row.output_verbatim, row.head):
                wanted.setdefault(row.session_id, []).append(row.trace_id)
        for session, trace_ids in wanted.items():
            JobQueue(database, session).add(trace_ids)
            added += len(trace_ids)
        if len(rows) < at_once:
            return added
        last = rows[-1].seq


def is_own_answer(tool_name: str, verbatim: bool, head: bytes | None) -> bool:
    """Whether a record is an answer of our own tools, by the beginning of its output."""
    return is_memory_tool(tool_name, bytes(head or b"").decode("utf-8", "replace") if verbatim else None)


# What the Observer's model costs, by session, day and model, within the configured limits

_COLUMNS = (_p.calls, _p.prompt_tokens, _p.completion_tokens, _p.cost)  # the fields of Spent
SPENT_SUMS = tuple(map(sum_of, _COLUMNS))


class Spending:
    """The account of one session's Observer."""

    def __init__(
        self, database: Database, session_id: str, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.database = database
        self.session_id = session_id
        self.clock = clock
        self._reserved = threading.local()  # the day of this thread's call, which may end on the next day

    def reserve(self, model: str, expected: Spent, calls_per_day: int | None) -> str | None:
        """Book the most that a call can cost before it is made, None; or why the limit forbids it, nothing booked."""
        day = self._reserved.day = self._today()
        with self.database.write() as c:
            if calls_per_day is not None:
                self.database.lock_bank(c, exclusive=True)
                if _spent(c, _p.day == day).calls >= calls_per_day:
                    return f"the Observer's limit is reached ({calls_per_day:,} calls a day)"
            self._add(c, day, model, expected)
        return None

    def settle(self, model: str, expected: Spent, actual: Spent) -> None:
        """Correct a call that was booked with its expected cost to what it did cost."""
        with self.database.write() as c:
            self._add(c, getattr(self._reserved, "day", None) or self._today(), model, actual.less(expected))

    def of_session(self) -> Spent:
        """What the session's model calls have cost so far."""
        with self.database.read() as c:
            return _spent(c, _p.session_id == self.session_id)

    def _today(self) -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(self.clock()))

    def _add(self, c: Connection, day: str, model: str, more: Spent) -> None:
        key = {"session_id": self.session_id, "day": day, "model": model[:255]}
        self.database.insert_new(c, spending, [{**key, **asdict(Spent())}])
        added = {column: column + asdict(more)[column.name] for column in _COLUMNS}
        c.execute(sa.update(spending).filter_by(**key).values(added))


def _spent(c: Connection, which: sa.ColumnElement[bool]) -> Spent:
    return spent_of(c.execute(sa.select(*SPENT_SUMS).where(which)).one())


def spent_of(sums: Iterable[Any]) -> Spent:
    """What was spent, from the columns that ``SPENT_SUMS`` selects."""
    calls, prompt, completion, cost = sums
    return Spent(int(calls), int(prompt), int(completion), float(cost))
