"""Which conversations, identified by digests, belong to which session; continuing and forking sessions."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from memory_bank.bank.database import Database, Operation
from memory_bank.bank.rows import rederived
from memory_bank.bank.schema import (
    SET_SESSION,
    content_deleted,
    in_parts,
    insights,
    like_prefix,
    lineage,
    of_session,
    records,
    sessions,
)
from memory_bank.bank.words import copy_words, delete_insights
from memory_bank.faults import fault_point
from memory_bank.records import derive_trace_id
from memory_bank.transcript.transcript import View

KEPT = 512
"""How many of a session's newest digests are kept; a request adds one or two."""
_AT_ONCE = 256  # rows copied at once
_ASKED = 8  # calls at each end of a list by which its session is found


class Offer(StrEnum):
    """The memory tools that a session is offered, as stored with its lineage. Of several stored, the first counts."""

    NONE = "memory's tools are not offered"
    EARLIER = "memory's tools tell of earlier sessions"
    OWN = "memory's tools are offered"


_l, _s, _r = lineage.c, sessions.c, records.c
_NEWEST = sa.select(sa.func.max(_r.seq)).where(of_session(records))
_LAST = sa.select(
    sa.select(sa.func.max(_l.number)).where(of_session(lineage)).scalar_subquery(), _NEWEST.scalar_subquery()
)
_HEAD = sa.select(_s.head).where(of_session(sessions))
_KNOWN = (
    sa.select(*_l, _s.head, _s.head_calls, _s.forked_from, _s.namespace)
    .join(sessions, _s.session_id == _l.session_id)
    .where(_l.digest.in_(sa.bindparam("digests", expanding=True)))
    .order_by(_s.created, _s.session_id)
)
# what a fork has of its session; what that one paid and saved goes over to it, so that it is spent once
_INHERITED = (_s.task, _s.control, _s.asked, _s.sent, _s.came, _s.cache, _s.paid, _s.would_pay)
_GIVE = SET_SESSION.values({k: _s[k] - sa.bindparam(f"its_{k}") for k in ("paid", "would_pay")})
_OLD = sa.bindparam("old", type_=_s.head.type)
_MOVE = SET_SESSION.where(_s.head.is_not_distinct_from(_OLD)).values(head=sa.bindparam("new"))
_MOVE_WITH_CALLS = _MOVE.values(head_calls=sa.bindparam("calls"))
_OUTPUTS = sa.select(_r.call_id, _r.output).where(
    of_session(records), _r.call_id.in_(sa.bindparam("calls", expanding=True))
)
_OFFER = sa.select(_l.digest).where(of_session(lineage), _l.digest.in_(Offer))
_DROP = sa.delete(lineage).where(of_session(lineage), _l.number.between(1, sa.bindparam("last")))


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """Where a fork leaves a session.

    The fork gets copies of the records with a ``seq`` of at most ``upto``, and of the digests up to ``number``.
    ``takes``: the session itself loses its records up to this ``seq``, and these digests; 0: it keeps them.
    """

    session_id: str
    upto: int
    number: int
    takes: int = 0


class KnownDigest(NamedTuple):
    """A digest in the lineage of a session; ``number`` is its position there, 0 for a ``LineageEntry.kept`` one.

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
    """The addition of a request to the lineage of its session.

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


def session_of(database: Database, name: str, view: View) -> str | None:
    """The session of a name (the name itself, or ``NAME~…``) that has recorded most calls of a view; None: none has.

    One call is enough in a session of the view's task. The first and the last calls of the list are looked up in the
    newest 200 sessions of the name.
    """
    named = sa.select(_s.session_id, _s.task).where(
        (_s.session_id == name) | _s.session_id.like(like_prefix(f"{name}~"), escape="/")
    )
    rows = database.rows(named.order_by(_s.created.desc()).limit(200))
    names = {row["session_id"]: view.task in ("", row["task"]) for row in rows}
    equals: Counter[bytes] = Counter()
    keys: list[tuple[bytes, int]] = []
    for interaction in view.interactions:
        for key in [pair.content_key() for pair in interaction.pairs if pair.result is not None]:
            keys.append((key, equals[key]))
            equals[key] += 1
    ids = {derive_trace_id(each, *key): each for each in names for key in {*keys[:_ASKED], *keys[-_ASKED:]}}
    rows_of = (
        database.rows(sa.select(_r.trace_id).where(_r.trace_id.in_(part))) for part in in_parts(list(ids))
    )
    counts = Counter(ids[row["trace_id"]] for rows in rows_of for row in rows)
    likely = [each for each, is_task in names.items() if counts[each] > (0 if is_task else 1)]
    return max(likely, key=lambda each: (counts[each], names[each]), default=None)


class Lineage:
    """The lineage of all sessions of a database. Every method may raise StorageError."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def known(self, digests: Collection[str]) -> list[KnownDigest]:
        """The sessions that have these digests; of up to 500 digests, the oldest session first."""
        with self.database.read() as c:
            parts = [self.database.fetch(c, _KNOWN, digests=part) for part in in_parts(list(digests))]
        return [KnownDigest._make(row) for rows in parts for row in rows]

    def head(self, session_id: str) -> str | None:
        """The head of a session."""
        with self.database.read() as c:
            return next((head for [head] in self.database.fetch(c, _HEAD, session=session_id)), None)

    def newest(self, session_id: str) -> int:
        """The ``seq`` of a session's newest record, 0 for none."""
        return self.database.value(_NEWEST, session=session_id) or 0

    def outputs(self, session_id: str, calls: Sequence[str]) -> dict[str, list[str]]:
        """The recorded outputs of the calls with these ids in a session."""
        rows = self.database.rows(_OUTPUTS, session=session_id, calls=calls)
        return {i: [r["output"] for r in rows if r["call_id"] == i] for i in {r["call_id"] for r in rows}}

    def going_on(self, session_id: str, head: str | None, entry: LineageEntry) -> Operation[bool]:
        """The write that adds a request to a session; it returns False and changes nothing if its head is another."""

        def write(c: Connection) -> bool:
            new = {"session": session_id, "old": head, "new": entry.head}
            move = _MOVE if entry.same_calls else _MOVE_WITH_CALLS
            if not entry.same_calls:
                new["calls"] = entry.head_calls
            if self.database.change(c, move, new) != 1:
                return False
            self._add(c, session_id, entry)
            fault_point("lineage.executed")
            return True

        return write

    def begin(
        self, session_id: str, namespace: str | None, entry: LineageEntry, fork: ForkPoint | None = None
    ) -> bool:
        """Create a session, with what ``fork`` had at its point; False if it, or one with this head, exists."""
        forked_from = None if fork is None else fork.session_id
        with self.database.write() as c:
            self.database.lock_name(c, entry.whole)
            twin = sa.select(_s.session_id).join(lineage, _s.session_id == _l.session_id)
            if c.execute(twin.where(_l.digest == entry.whole, _s.head == entry.head).limit(1)).first():
                return False
            of_parent = sa.select(*_INHERITED).where(_s.session_id == forked_from)
            parent = c.execute(of_parent).mappings().first() or dict[str, Any]()
            row = {  # its project is set by the step that follows
                **parent,
                "session_id": session_id, "created": time.time(), "generation": 0, "namespace": namespace,
                "head": entry.head, "head_calls": entry.head_calls, "forked_from": forked_from,
            }  # fmt: skip
            if fork is not None and fork.upto:
                self.database.lock_bank(c)
            if self.database.insert_new(c, sessions, [row]) != 1:
                return False
            if parent and parent["would_pay"] is not None:
                its = {f"its_{k}": parent[k] for k in ("paid", "would_pay")}
                c.execute(_GIVE, {"session": forked_from, **its})
            if fork is not None:
                if fork.upto:
                    _copy_beginning(self.database, c, fork, session_id)
                # a fork at one of these digests is a fork of the older session
                inherited = sa.select(_l.digest, sa.literal(session_id), _l.number, sa.literal(0))
                inherited = inherited.where(_l.session_id == fork.session_id, _l.number <= fork.number)
                names = ["digest", "session_id", "number", "before"]
                c.execute(sa.insert(lineage).from_select(names, inherited))
                if fork.takes:
                    _leave(c, fork)
            self._add(c, session_id, entry)
            fault_point("lineage.executed")
        return True

    def offer(self, session_id: str) -> Offer | None:
        """The memory tools that a session is offered. Its first request decides; None before that."""
        offers = self.database.column(_OFFER, session=session_id)
        return next((offer for offer in Offer if offer in offers), None)

    def keep_offer(self, session_id: str, offer: Offer, wanted: Callable[[], bool] = lambda: True) -> Offer:
        """Store which memory tools a session is offered, unless that is stored; returns what is. A fork inherits it.

        ``wanted``: whether somebody still waits for it; else nothing is stored.
        """
        with self.database.write() as c:
            self.database.lock_name(c, session_id)  # its row may not be there yet
            if wanted() and not c.execute(_OFFER, {"session": session_id}).first():
                row = {"digest": offer, "session_id": session_id, "number": 0, "before": 0}
                self.database.insert_new(c, lineage, [row])
        return self.offer(session_id) or offer

    def _add(self, c: Connection, session_id: str, entry: LineageEntry) -> None:
        """Within a write that holds the session, insert the digests of a request and delete the oldest."""
        [[last, newest]] = self.database.fetch(c, _LAST, session=session_id)
        number, before = 1 + (last or 0), newest or 0
        since = 0 if entry.begins else before
        new = [(d, number + i, before) for i, d in enumerate(dict.fromkeys([*entry.calls, entry.whole]))]
        last = new[-1][1]
        rows = [
            {"digest": digest, "session_id": session_id, "number": n, "before": seq}
            for digest, n, seq in [*new, *((digest, 0, since) for digest in entry.kept)]
        ]
        self.database.insert_new(c, lineage, rows)
        if number > KEPT:
            self.database.change(c, _DROP, {"session": session_id, "last": last - KEPT})


def _copy_beginning(database: Database, c: Connection, fork: ForkPoint, other: str) -> None:
    """Within a write that holds the bank (``lock_bank``), copy records and insights in order to a session."""
    session = {"session": fork.session_id}

    def rows_of(table: sa.Table, *which: sa.ColumnElement[bool]) -> Iterator[RowMapping]:
        last = 0
        query = sa.select(table).where(of_session(table), *which).order_by(table.c.seq).limit(_AT_ONCE)
        while rows := c.execute(query.where(table.c.seq > last), session).mappings().all():
            yield from rows
            last = rows[-1]["seq"]

    ids = dict(rederived(rows_of(records, _r.seq <= fork.upto), fork.session_id, other))
    for table in (records, insights):
        copies = (
            {
                **{str(k): v for k, v in row.items() if k != "seq"},
                "session_id": other,
                "trace_id": ids[trace_id],
            }
            for row in rows_of(table)
            if (trace_id := row["trace_id"]) in ids
        )
        while batch := list(islice(copies, _AT_ONCE)):
            c.execute(sa.insert(table), batch)
    copy_words(database, c, fork.session_id, other, ids)


def _leave(c: Connection, fork: ForkPoint) -> None:
    session = {"session": fork.session_id}
    taken = sa.select(_r.trace_id).where(of_session(records), _r.seq <= fork.takes)
    delete_insights(c, of_session(insights) & insights.c.trace_id.in_(taken), **session)
    c.execute(sa.delete(records).where(of_session(records), _r.seq <= fork.takes), session)
    c.execute(sa.delete(lineage).where(of_session(lineage), _l.number.between(1, fork.number)), session)
    c.execute(SET_SESSION.values(task=None), session)
    content_deleted(c, session)
