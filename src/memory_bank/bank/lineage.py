"""Which conversations, identified by digests, belong to which session; continuing and forking sessions."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from memory_bank.bank.database import Database
from memory_bank.bank.jobs import add_jobs
from memory_bank.bank.rows import Rederiving, from_row
from memory_bank.bank.schema import (
    LAST,
    NEXT_GENERATION,
    SESSION,
    in_parts,
    insights,
    jobs,
    lineage,
    of_session,
    records,
    sessions,
)
from memory_bank.faults import fault_point

KEPT = 512
"""How many of a session's newest digests are kept; a request adds one or two."""
_AT_ONCE = 256  # rows copied at once

_l, _s, _r, _i = lineage.c, sessions.c, records.c, insights.c
_KNOWN = (
    sa.select(
        _l.digest, _l.session_id, _l.number, _l.before, _s.head, _s.head_calls, _s.forked_from, _s.namespace
    )
    .select_from(lineage.join(sessions, _s.session_id == _l.session_id))
    .where(_l.digest.in_(sa.bindparam("digests", expanding=True)))
    .order_by(_s.created, _s.session_id)
)
_MOVE = (
    sa.update(sessions)
    .where(_s.session_id == SESSION, _s.head.is_not_distinct_from(sa.bindparam("old", type_=sa.String)))
    .values(head=sa.bindparam("new"))
)
_MOVE_WITH_CALLS = _MOVE.values(head_calls=sa.bindparam("calls"))
_NEXT = sa.select(sa.func.coalesce(sa.func.max(_l.number), 0) + 1).where(of_session(lineage))
_NEWEST = sa.select(sa.func.coalesce(sa.func.max(_r.seq), 0)).where(of_session(records))
_TRIM = sa.delete(lineage).where(of_session(lineage), _l.number.between(1, sa.bindparam("first") - 1))
_INHERIT = sa.insert(lineage).from_select(  # a fork at one of these digests is a fork of the older session
    ["digest", "session_id", "number", "before"],
    sa.select(_l.digest, sa.bindparam("other", type_=sa.String), _l.number, sa.literal(0)).where(
        of_session(lineage), _l.number <= sa.bindparam("number")
    ),
)
_TWIN = (
    sa.select(_s.session_id)
    .select_from(lineage.join(sessions, _s.session_id == _l.session_id))
    .where(_l.digest == sa.bindparam("digest"), _s.head == sa.bindparam("head"))
    .limit(1)
)
_HEAD = sa.select(_s.head).where(_s.session_id == SESSION)
_TASK = sa.select(_s.task).where(_s.session_id == SESSION)
_RECORDS = (
    sa.select(*_r)
    .where(of_session(records), _r.seq > LAST, _r.seq <= sa.bindparam("upto"))
    .order_by(_r.seq)
    .limit(_AT_ONCE)
)
_INSIGHTS = sa.select(*_i).where(of_session(insights), _i.seq > LAST).order_by(_i.seq).limit(_AT_ONCE)
_TAKEN = sa.select(_r.trace_id).where(of_session(records), _r.seq <= sa.bindparam("upto"))
_JOBS = sa.select(jobs.c.trace_id).where(of_session(jobs)).order_by(jobs.c.seq)


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """Where a fork leaves a session: it gets the records up to the ``seq`` of ``upto`` and the digests up to
    ``number``. ``takes``: those up to this ``seq``, and the digests, are the fork's alone from then on."""

    session_id: str
    upto: int
    number: int
    takes: int = 0


@dataclass(frozen=True, slots=True)
class KnownDigest:
    """A digest in the lineage of a session, as the ``number``-th of it.

    ``before`` is the ``seq`` of the newest record that the session had when the digest was added, 0 for none.
    The other values are the session's.
    """

    digest: str
    session_id: str
    number: int
    before: int
    head: str | None
    head_calls: str | None
    forked_from: str | None
    namespace: str | None


@dataclass(frozen=True, slots=True)
class LineageEntry:
    """What a request adds to the lineage of its session.

    ``whole`` is the digest of all its messages, ``calls`` are those of its newest call ids. ``head`` and
    ``head_calls`` replace the session's; with ``same_calls`` the session's ``head_calls`` stay. ``kept`` are
    digests that stay with the session; with ``begins``, nothing was recorded before them.
    """

    whole: str
    calls: Sequence[str]
    head: str
    head_calls: str | None = None
    same_calls: bool = False
    kept: Sequence[str] = ()
    begins: bool = False


class Lineage:
    """The lineage of all sessions of a database. Every method may raise StorageError."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def known(self, digests: Collection[str]) -> list[KnownDigest]:
        """The sessions that have these digests; of up to 500 digests, the oldest session first."""
        found: list[KnownDigest] = []
        for part in in_parts(list(digests)):
            with self.database.read() as c:
                found += [KnownDigest(*row) for row in c.execute(_KNOWN, {"digests": part})]
        return found

    def head(self, session_id: str) -> str | None:
        """The head of a session."""
        return self.database.value(_HEAD, session=session_id)

    def newest(self, session_id: str) -> int:
        """The ``seq`` of a session's newest record, 0 for none."""
        with self.database.read() as c:
            return int(c.execute(_NEWEST, {"session": session_id}).scalar_one())

    def go_on(self, session_id: str, head: str | None, entry: LineageEntry) -> bool:
        """Add a request to a session. Returns False and changes nothing if its head is not ``head``."""

        def write(c: Connection) -> bool:
            values = {"session": session_id, "old": head, "new": entry.head}
            if entry.same_calls:
                moved = c.execute(_MOVE, values)
            else:
                moved = c.execute(_MOVE_WITH_CALLS, {**values, "calls": entry.head_calls})
            if moved.rowcount != 1:
                return False
            self._add(c, session_id, entry)
            fault_point("lineage.executed")
            return True

        return self.database.submit(write, session_id)

    def begin(
        self, session_id: str, namespace: str | None, entry: LineageEntry, fork: ForkPoint | None = None
    ) -> bool:
        """Create a session from a request; with ``fork``, with what the other session had at that point.

        Returns False and changes nothing if the session exists, or if there is one whose head is this request.
        """
        forked_from = None if fork is None else fork.session_id
        with self.database.write() as c:
            self.database.lock_name(c, entry.whole)
            if c.execute(_TWIN, {"digest": entry.whole, "head": entry.head}).first() is not None:
                return False
            row = {
                "session_id": session_id,
                "created": time.time(),
                "generation": 0,
                "task": None if fork is None else c.execute(_TASK, {"session": forked_from}).scalar(),
                "agent_id": None,  # set by the step that follows
                "namespace": namespace,
                "head": entry.head,
                "head_calls": entry.head_calls,
                "forked_from": forked_from,
            }
            if fork is not None and fork.upto:
                self.database.lock_bank(c)
            if c.execute(self.database.insert_or_ignore(sessions), [row]).rowcount != 1:
                return False
            if fork is not None:
                if fork.upto:
                    _copy_beginning(c, self.database, fork, session_id)
                values = {"session": fork.session_id, "other": session_id, "number": fork.number}
                c.execute(_INHERIT, values)
                if fork.takes:
                    _leave(c, fork)
            self._add(c, session_id, entry)
            fault_point("lineage.executed")
        return True

    def _add(self, c: Connection, session_id: str, entry: LineageEntry) -> None:
        """Within a write that holds the session, insert the digests of a request and delete the oldest."""
        number = c.execute(_NEXT, {"session": session_id}).scalar_one()
        before = c.execute(_NEWEST, {"session": session_id}).scalar_one()
        rows = [
            {"digest": d, "session_id": session_id, "number": number + i, "before": before}
            for i, d in enumerate(dict.fromkeys([*entry.calls, entry.whole]))
        ]
        since = 0 if entry.begins else before
        kept = [{"digest": d, "session_id": session_id, "number": 0, "before": since} for d in entry.kept]
        self.database.insert_new(c, lineage, rows + kept)
        if number > KEPT:
            c.execute(_TRIM, {"session": session_id, "first": number + len(rows) - KEPT})


def _copy_beginning(c: Connection, database: Database, fork: ForkPoint, other: str) -> None:
    """Within a write that holds the bank (``lock_bank``), copy records, insights and jobs into a new session.

    The copies keep their order and get the trace_ids that the new session derives from the same messages.
    """
    ids: dict[str, str] = {}
    rederive = Rederiving(fork.session_id, other)
    session = {"session": fork.session_id}
    last = 0
    while rows := c.execute(_RECORDS, {**session, "last": last, "upto": fork.upto}).mappings().all():
        copies = []
        for row in rows:
            trace_id = ids[row["trace_id"]] = rederive(from_row(row), row["output"])
            copies.append(_copied(row, other, trace_id))
        c.execute(sa.insert(records), copies)
        last = rows[-1]["seq"]
    last = 0
    while ids and (rows := c.execute(_INSIGHTS, {**session, "last": last}).mappings().all()):
        copies = [_copied(row, other, ids[row["trace_id"]]) for row in rows if row["trace_id"] in ids]
        if copies:
            c.execute(sa.insert(insights), copies)
        last = rows[-1]["seq"]
    waiting = [ids[t] for t in c.execute(_JOBS, session).scalars() if t in ids]
    if waiting:
        add_jobs(c, database, other, waiting)


def _leave(c: Connection, fork: ForkPoint) -> None:
    """Delete from a session what is its fork's alone."""
    session = {"session": fork.session_id, "upto": fork.takes}
    for table in (jobs, insights):
        c.execute(sa.delete(table).where(of_session(table), table.c.trace_id.in_(_TAKEN)), session)
    c.execute(sa.delete(records).where(of_session(records), _r.seq <= sa.bindparam("upto")), session)
    digests = sa.delete(lineage).where(of_session(lineage), _l.number.between(1, sa.bindparam("number")))
    c.execute(digests, {**session, "number": fork.number})
    c.execute(sa.update(sessions).where(_s.session_id == SESSION).values(task=None), session)
    c.execute(NEXT_GENERATION, session)


def _copied(row: RowMapping, other: str, trace_id: str) -> dict[str, object]:
    return {**{str(k): v for k, v in row.items() if k != "seq"}, "session_id": other, "trace_id": trace_id}
