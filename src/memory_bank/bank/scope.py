"""Whose records a search may find: the session's own, those of all sessions of its agent, or all of its
namespace."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from memory_bank.bank.database import Database
from memory_bank.bank.rows import from_row, is_trace_id
from memory_bank.bank.schema import insights, records, sessions
from memory_bank.ports import Scope
from memory_bank.records import Insight, InteractionRecord, Ranking

_AT_ONCE = 500
_AT_MOST = 20  # records told of those that a trace_id's beginning fits

# Statements are built once: building one costs more than running it.
_own = sessions.alias()
_agent = sa.select(_own.c.agent_id).where(_own.c.session_id == sa.bindparam("session")).scalar_subquery()
_namespace = sa.select(_own.c.namespace).where(_own.c.session_id == sa.bindparam("session")).scalar_subquery()
_IN_NAMESPACE = sa.select(sessions.c.session_id).where(
    sessions.c.namespace.is_not_distinct_from(_namespace)  # two without one are of one
)
_OF_AGENT = sa.select(sessions.c.session_id).where(  # without an agent: NULL equals nothing
    (sessions.c.session_id == sa.bindparam("session"))
    | ((sessions.c.agent_id == _agent) & sessions.c.namespace.is_not_distinct_from(_namespace))
)


def within(session_id: sa.ColumnElement[str], scope: Scope) -> sa.ColumnElement[bool]:
    """Whether a column names a session in the scope of the one that the parameter ``session`` names."""
    if scope == "all":
        return session_id.in_(_IN_NAMESPACE)
    return session_id.in_(_OF_AGENT) if scope == "agent" else session_id == sa.bindparam("session")


_r, _i = records.c, insights.c
_wider: tuple[Scope, ...] = ("agent", "all")
_SIZE = {s: sa.select(sa.func.count()).select_from(records).where(within(_r.session_id, s)) for s in _wider}
_ENTRIES = {
    s: sa.select(*_r, _i.summary, _i.source, _i.redo)
    .select_from(records.outerjoin(insights, (_i.trace_id == _r.trace_id) & (_i.session_id == _r.session_id)))
    .where(
        within(_r.session_id, s),
        _r.trace_id.in_(sa.bindparam("ids", expanding=True)),
        _r.session_id.in_(sa.bindparam("sessions", expanding=True)),
    )
    for s in _wider
}
_OTHERS = {
    s: sa.select(_r.session_id, _r.trace_id)
    .where(within(_r.session_id, s), _r.session_id != sa.bindparam("session"))
    .order_by(_r.seq.desc())
    .limit(_AT_MOST)
    for s in _wider
}
_EQUAL = {s: statement.where(_r.trace_id == sa.bindparam("wanted")) for s, statement in _OTHERS.items()}
_BEGINNING = {
    s: statement.where(_r.trace_id.like(sa.bindparam("like"), escape="/")) for s, statement in _OTHERS.items()
}


class WiderScope:
    """What a scope of more than one session adds to the session's own stores. It only reads.

    A record elsewhere is named by ``(session_id, trace_id)``. Every call may raise StorageError.
    """

    def __init__(self, database: Database, session_id: str, scope: Scope, insight_store: Any = None) -> None:
        self.database = database
        self.session_id = session_id
        self.scope = scope
        self.insight_store = insight_store

    def rank(self, query: str, exclude: Collection[str] = (), limit: int | None = None) -> Ranking:
        """As an InsightStore's, over all sessions of the scope; hits of other sessions name theirs.

        ``exclude`` are trace_ids of the own session.
        """
        ranking: Ranking = self.insight_store.rank(query, exclude, limit, scope=self.scope)
        return ranking

    def entries(
        self, where: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], tuple[InteractionRecord, Insight | None]]:
        """Records with their insights, by ``(session_id, trace_id)``; those not found are left out."""
        found: dict[tuple[str, str], tuple[InteractionRecord, Insight | None]] = {}
        wanted = set(where)
        for start in range(0, len(where), _AT_ONCE):
            part = where[start : start + _AT_ONCE]
            asked = {
                "session": self.session_id,
                "sessions": sorted({s for s, _ in part}),
                "ids": sorted({t for _, t in part}),
            }
            with self.database.read() as c:
                rows = c.execute(_ENTRIES[self.scope], asked).mappings().all()
            for row in rows:
                at = (row["session_id"], row["trace_id"])
                if at in wanted:
                    made = (row["trace_id"], row["summary"], row["source"], row["redo"])
                    found[at] = from_row(row), None if row["summary"] is None else Insight(*made)
        return found

    def elsewhere(self, trace_id: str, *, beginning: bool = False) -> list[tuple[str, str]]:
        """Where other sessions have a record of this trace_id (or of one with this beginning), newest first.

        At most 20 of them.
        """
        if not is_trace_id(trace_id):
            return []
        asked = {"session": self.session_id}
        if beginning:
            asked["like"] = trace_id.replace("/", "//").replace("%", "/%").replace("_", "/_") + "%"
        else:
            asked["wanted"] = trace_id
        with self.database.read() as c:
            statements = _BEGINNING if beginning else _EQUAL
            return [(s, t) for s, t in c.execute(statements[self.scope], asked)]

    def size(self) -> int:
        """How many records the scope has, the session's own included."""
        with self.database.read() as c:
            return c.execute(_SIZE[self.scope], {"session": self.session_id}).scalar() or 0
