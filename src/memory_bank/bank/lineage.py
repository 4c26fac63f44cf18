"""Which conversations, known by digests, belong to which session; how one goes on, begins, is forked."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from memory_bank.bank.copying import copy_beginning
from memory_bank.bank.database import Database
from memory_bank.bank.schema import lineage, records, sessions
from memory_bank.faults import fault_point

KEPT = 512
"""Rows of one session that are kept, the newest: a request makes one or two."""
_AT_ONCE = 500  # digests in one query

# Statements are built once: building one costs more than running it.
_l, _s = lineage.c, sessions.c
_session: Any = sa.bindparam("session")
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
    .where(_s.session_id == _session, _s.head == sa.bindparam("old"))
    .values(head=sa.bindparam("new"))
)
_MOVE_WITH_CALLS = _MOVE.values(head_calls=sa.bindparam("calls"))
_mine = _l.session_id == _session
_NEXT = sa.select(sa.func.coalesce(sa.func.max(_l.number), 0) + 1).where(_mine)
_NEWEST = sa.select(sa.func.coalesce(sa.func.max(records.c.seq), 0)).where(records.c.session_id == _session)
_TRIM = sa.delete(lineage).where(_mine, _l.number < sa.bindparam("first"))
_INHERIT = sa.insert(lineage).from_select(  # what is forked at one of these is a fork of the older session
    ["digest", "session_id", "number", "before"],
    sa.select(_l.digest, sa.bindparam("other", type_=sa.String), _l.number, sa.literal(0)).where(
        _mine, _l.number <= sa.bindparam("number")
    ),
)
_TWIN = (
    sa.select(_s.session_id)
    .select_from(lineage.join(sessions, _s.session_id == _l.session_id))
    .where(_l.digest == sa.bindparam("digest"), _s.head == sa.bindparam("head"))
    .limit(1)
)
_HEAD = sa.select(_s.head).where(_s.session_id == _session)
_TASK = sa.select(_s.task).where(_s.session_id == _session)


@dataclass(frozen=True, slots=True)
class Parting:
    """Where a fork parts from a session: with its records up to the ``seq`` of ``upto``, and with what it
    knew up to that ``number``."""

    session_id: str
    upto: int
    number: int


@dataclass(frozen=True, slots=True)
class Known:
    """That a session knows a digest: it was the ``number``-th that it came to know.

    ``before`` is the ``seq`` of the newest record that the session had when the digest came, 0 for none;
    the other values are the session's.
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
class Entry:
    """What a request leaves behind in its session.

    ``whole`` is the digest of all its messages, ``calls`` are those of its newest call ids. ``head`` becomes
    the session's, and so do ``head_calls``, unless ``same_calls``: then those it has stay.
    """

    whole: str
    calls: Sequence[str]
    head: str
    head_calls: str | None = None
    same_calls: bool = False


class Begun(StrEnum):
    """What came of beginning a session: ``KNOWN`` where another has just begun with the same request."""

    MADE = "made"
    KNOWN = "known"
    TAKEN = "taken"


class Lineage:
    """The lineage of all sessions of a database. Every call may raise StorageError."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def known(self, digests: Collection[str]) -> list[Known]:
        """Where these digests are known; of those asked for together, the oldest session first."""
        wanted = list(digests)
        found: list[Known] = []
        for start in range(0, len(wanted), _AT_ONCE):
            with self.database.read() as c:
                rows = c.execute(_KNOWN, {"digests": wanted[start : start + _AT_ONCE]})
                found += [Known(*row) for row in rows]
        return found

    def head(self, session_id: str) -> str | None:
        """The head of a session."""
        with self.database.read() as c:
            return c.execute(_HEAD, {"session": session_id}).scalar()

    def go_on(self, session_id: str, head: str, entry: Entry) -> bool:
        """A session goes on with a request; False, with nothing changed, where its head is another now."""

        def write(c: Connection) -> bool:
            asked = {"session": session_id, "old": head, "new": entry.head}
            if entry.same_calls:
                moved = c.execute(_MOVE, asked)
            else:
                moved = c.execute(_MOVE_WITH_CALLS, {**asked, "calls": entry.head_calls})
            if moved.rowcount != 1:
                return False
            self._note(c, session_id, entry)
            fault_point("lineage.executed")
            return True

        return self.database.submit(write, session_id)

    def begin(
        self, session_id: str, namespace: str | None, entry: Entry, parting: Parting | None = None
    ) -> Begun:
        """Make a session of a request; a fork has what the other session had where they part.

        Nothing is changed where there is a session of that name, or one whose head is this very request.
        """
        fork_of = None if parting is None else parting.session_id
        with self.database.write() as c:
            self.database.lock_name(c, entry.whole)
            twin = {"digest": entry.whole, "head": entry.head}
            if c.execute(_TWIN, twin).first() is not None:
                return Begun.KNOWN
            row = {
                "session_id": session_id,
                "created": time.time(),
                "generation": 0,
                "task": None if fork_of is None else c.execute(_TASK, {"session": fork_of}).scalar(),
                "agent_id": None,  # the step that follows says whose it is
                "namespace": namespace,
                "head": entry.head,
                "head_calls": entry.head_calls,
                "forked_from": fork_of,
            }
            if parting is not None and parting.upto:
                self.database.lock_bank(c)
            if c.execute(self.database.insert_or_ignore(sessions), [row]).rowcount != 1:
                return Begun.TAKEN
            if parting is not None:
                if parting.upto:
                    copy_beginning(c, self.database, parting.session_id, parting.upto, session_id)
                asked = {"session": parting.session_id, "other": session_id, "number": parting.number}
                c.execute(_INHERIT, asked)
            self._note(c, session_id, entry)
            fault_point("lineage.executed")
        return Begun.MADE

    def _note(self, c: Connection, session_id: str, entry: Entry) -> None:
        """Within a write that holds the session: its new digests in, those beyond what is kept out."""
        asked = {"session": session_id}
        number = c.execute(_NEXT, asked).scalar_one()
        before = c.execute(_NEWEST, asked).scalar_one()
        rows = [
            {"digest": d, "session_id": session_id, "number": number + i, "before": before}
            for i, d in enumerate(dict.fromkeys([*entry.calls, entry.whole]))
        ]
        self.database.insert_new(c, lineage, rows)
        if number > KEPT:
            c.execute(_TRIM, {"session": session_id, "first": number + len(rows) - KEPT})
