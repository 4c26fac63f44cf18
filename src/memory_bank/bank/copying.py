"""The beginning of a session copied into another one: records, their insights, what is to be observed."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from memory_bank.bank.database import Database
from memory_bank.bank.deriving import Rederiving
from memory_bank.bank.jobs import add_jobs
from memory_bank.bank.payload import from_row
from memory_bank.bank.schema import insights, jobs, records

_AT_ONCE = 256
_r, _i, _j = records.c, insights.c, jobs.c
_session: Any = sa.bindparam("session")
_last: Any = sa.bindparam("last")
_PAGE = (
    sa.select(*_r)
    .where(_r.session_id == _session, _r.seq > _last, _r.seq <= sa.bindparam("upto"))
    .order_by(_r.seq)
    .limit(_AT_ONCE)
)
_INSIGHTS = sa.select(*_i).where(_i.session_id == _session, _i.seq > _last).order_by(_i.seq).limit(_AT_ONCE)
_WAITING = sa.select(_j.trace_id).where(_j.session_id == _session).order_by(_j.seq)


def copy_beginning(c: Connection, database: Database, session_id: str, upto: int, other: str) -> int:
    """Within a write that holds the bank (``lock_bank``): copy what a session had stored by then.

    Records up to the ``seq`` of ``upto`` come into the session ``other``, which must be new, in their order
    and under trace_ids of its own, so that the same messages store none of them again. Returns how many.
    """
    own: dict[str, str] = {}
    rederive = Rederiving(session_id, other)
    last = 0
    while rows := c.execute(_PAGE, {"session": session_id, "last": last, "upto": upto}).mappings().all():
        made = []
        for row in rows:
            trace_id = own[row["trace_id"]] = rederive(from_row(row), row["output"])
            made.append(_moved(row, other, trace_id))
        c.execute(sa.insert(records), made)
        last = rows[-1]["seq"]
    last = 0
    while own and (rows := c.execute(_INSIGHTS, {"session": session_id, "last": last}).mappings().all()):
        made = [_moved(row, other, own[row["trace_id"]]) for row in rows if row["trace_id"] in own]
        if made:
            c.execute(sa.insert(insights), made)
        last = rows[-1]["seq"]
    waiting = [own[t] for t in c.execute(_WAITING, {"session": session_id}).scalars() if t in own]
    if waiting:
        add_jobs(c, database, other, waiting)
    return len(own)


def _moved(row: Any, other: str, trace_id: str) -> dict[str, Any]:
    return {**{k: v for k, v in row.items() if k != "seq"}, "session_id": other, "trace_id": trace_id}
