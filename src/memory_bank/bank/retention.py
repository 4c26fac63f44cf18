"""What is removed from a bank on request, a session at a time: nothing leaves by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from memory_bank.bank.database import Database
from memory_bank.bank.schema import insights, jobs, lineage, records, sessions, steps
from memory_bank.faults import fault_point

# Statements are built once: building one costs more than running it.
_r, _i, _j = records.c, insights.c, jobs.c
_session: Any = sa.bindparam("session")
_before = sa.bindparam("before", type_=sa.Float)
_old = (_r.session_id == _session) & (_r.timestamp < _before)
_old_ids = sa.select(_r.trace_id).where(_old)


def _bytes(size: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    return sa.cast(sa.func.coalesce(sa.func.sum(size), 0), sa.BigInteger)


def _length(text: sa.Column[Any]) -> sa.ColumnElement[int]:
    return sa.func.length(sa.type_coerce(text, sa.LargeBinary))


_raw = _bytes(_length(_r.input) + _length(_r.output))
# What goes, by table: its condition where everything goes, and where only what is old does.
_GOING: tuple[tuple[sa.Table, Any, Any, Any], ...] = (
    (insights, _i.session_id == _session, _i.trace_id.in_(_old_ids), _bytes(_length(_i.summary))),
    (jobs, _j.session_id == _session, _j.trace_id.in_(_old_ids), sa.literal(0)),
    (records, _r.session_id == _session, _r.timestamp < _before, _raw),
)
_COUNTS = {
    old: [
        sa.select(sa.func.count(), size).select_from(t).where(mine & aged if old else mine)
        for t, mine, aged, size in _GOING
    ]
    for old in (False, True)
}
_DELETES = {
    old: [sa.delete(t).where(mine & aged if old else mine) for t, mine, aged, _ in _GOING]
    for old in (False, True)
}
_TOTALS = [
    sa.select(sa.func.count()).select_from(t).where(t.c.session_id == _session) for t in (records, insights)
]
_NEXT_GENERATION = (
    sa.update(sessions).where(sessions.c.session_id == _session).values(generation=sessions.c.generation + 1)
)
_NO_TASK = (
    sa.update(sessions).where(sessions.c.session_id == _session).values(task=None, head=None, head_calls=None)
)
# What a service noted of a session: contexts hold pieces of records, lineage tells whose a request is.
_STEPS = steps.c.session_id == _session
_NO_STEPS = {
    False: sa.delete(steps).where(_STEPS),
    True: sa.delete(steps).where(_STEPS, steps.c.created < _before),
}
_NO_LINEAGE = sa.delete(lineage).where(lineage.c.session_id == _session)
_HAS_STEPS = sa.select(sa.func.count()).select_from(steps).where(_STEPS)
_HAS_LINEAGE = sa.select(sa.func.count()).select_from(lineage).where(lineage.c.session_id == _session)
_HAS_TASK = sa.select(sessions.c.task).where(sessions.c.session_id == _session)
_WITH_OLD = sa.select(_r.session_id).where(_r.timestamp < _before).distinct()


@dataclass(frozen=True, slots=True)
class Purged:
    """What went from one session. ``bytes`` are those of arguments, outputs and summaries.

    ``emptied``: no record and no insight is left in it.
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
    """Remove a session's content, or what was stored before some time (Unix seconds), or both together.

    One transaction a session: it has gone when it is told, and a process that ends in between leaves whole
    sessions. Of a session that is emptied its name, its agent and what its Observer spent stay, so that other
    processes notice and limits hold; its task goes. With ``dry_run`` nothing is changed.

    Raises StorageError.
    """
    if session_id is None and before is None:
        raise ValueError("name a session, a time, or both")
    for name in _sessions(database, session_id, before):
        if dry_run:
            with database.read() as c:
                found = _look(c, name, before)
        else:
            with database.write() as c:
                if database.url.get_backend_name() == "sqlite":
                    c.exec_driver_sql(
                        "PRAGMA secure_delete=ON"
                    )  # what is removed is overwritten, not only let go
                database.lock_session(c, name)
                found = _look(c, name, before)
                if found is not None:
                    _remove(c, name, before, found)
        if found is not None:
            yield found


def _sessions(database: Database, session_id: str | None, before: float | None) -> list[str]:
    if session_id is not None:
        return [session_id]
    with database.read() as c:
        return sorted(c.execute(_WITH_OLD, {"before": before}).scalars())


def _asked(name: str, before: float | None) -> dict[str, Any]:
    return {"session": name} if before is None else {"session": name, "before": before}


def _look(c: Connection, name: str, before: float | None) -> Purged | None:
    """What goes; None where there is nothing to go."""
    asked = _asked(name, before)
    (insights_, summaries), (jobs_, _), (records_, raw) = (
        c.execute(query, asked).one() for query in _COUNTS[before is not None]
    )
    noted = before is None and any(
        c.execute(query, {"session": name}).scalar() for query in (_HAS_TASK, _HAS_STEPS, _HAS_LINEAGE)
    )
    if not (records_ or insights_ or jobs_ or noted):
        return None
    emptied = before is None
    if not emptied:
        kept = [c.execute(query, {"session": name}).scalar() for query in _TOTALS]
        emptied = kept == [records_, insights_]
    return Purged(name, records_, insights_, jobs_, int(raw) + int(summaries), emptied)


def _remove(c: Connection, name: str, before: float | None, found: Purged) -> None:
    for statement in _DELETES[before is not None]:
        c.execute(statement, _asked(name, before))
    c.execute(_NO_STEPS[before is not None], _asked(name, before))
    fault_point("purge.executed")
    if found.emptied:
        c.execute(_NO_LINEAGE, {"session": name})
        c.execute(_NO_TASK, {"session": name})
    c.execute(_NEXT_GENERATION, {"session": name})
