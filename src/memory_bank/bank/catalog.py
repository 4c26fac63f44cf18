"""A bank seen as a whole: its sessions, a record wherever it is, and a new embedder for all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from memory_bank.bank.database import Database
from memory_bank.bank.rows import from_row, is_session_id, is_trace_id
from memory_bank.bank.schema import insights, jobs, records, sessions
from memory_bank.bank.usage import spent_by_session
from memory_bank.records import Insight, InteractionRecord, Spent
from memory_bank.transcript.messages import MARKS, is_memory_tool

_BATCH = 256


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One session: how much it holds, when it was last written to (Unix seconds), what its task is.

    ``unobserved`` counts records without an insight (answers of our own tools need none), ``to_redo``
    insights that are to be made again, ``jobs`` what waits for a model. Of these ``failing`` have failed
    before, up to ``attempts`` times. ``spent`` is what the session's Observer has cost.
    """

    session_id: str
    records: int
    steps: int
    insights: int
    unobserved: int
    to_redo: int
    last_written: float | None
    task: str
    jobs: int = 0
    failing: int = 0
    attempts: int = 0
    spent: Spent = field(default_factory=Spent)


def list_sessions(database: Database) -> list[SessionInfo]:
    """Every session of a bank, the most recently written first."""
    r, i = records.c, insights.c
    facts = (
        sa.select(
            r.session_id,
            sa.func.count().label("n"),
            sa.func.max(r.step_id).label("steps"),
            sa.func.max(r.timestamp).label("last"),
        )
        .group_by(r.session_id)
        .subquery()
    )
    bare = (  # an insight may be there without a record, so the two counts do not tell
        sa.select(r.session_id, sa.func.count().label("n"))
        .outerjoin(insights, (i.session_id == r.session_id) & (i.trace_id == r.trace_id))
        .where(i.seq.is_(None))
        .group_by(r.session_id)
        .subquery()
    )
    made = (
        sa.select(i.session_id, sa.func.count().label("n"), sa.func.count(i.redo).label("redo"))
        .group_by(i.session_id)
        .subquery()
    )
    j = jobs.c
    waiting = (
        sa.select(
            j.session_id,
            sa.func.count().label("n"),
            sa.func.count(j.error).label("failing"),
            sa.func.max(sa.case((j.error.is_not(None), j.attempts), else_=0)).label("attempts"),
        )
        .group_by(j.session_id)
        .subquery()
    )
    s = sessions.c
    query = (
        sa.select(
            s.session_id, s.task, facts.c.n, facts.c.steps, facts.c.last, made.c.n, made.c.redo, bare.c.n,
            waiting.c.n, waiting.c.failing, waiting.c.attempts,
        )
        .outerjoin(facts, facts.c.session_id == s.session_id)
        .outerjoin(made, made.c.session_id == s.session_id)
        .outerjoin(bare, bare.c.session_id == s.session_id)
        .outerjoin(waiting, waiting.c.session_id == s.session_id)
    )  # fmt: skip
    with database.read() as c:
        rows = c.execute(query).all()
        own = _own_answers(c)
    spent = spent_by_session(database)
    found = [
        SessionInfo(
            sid, n or 0, steps or 0, m or 0, max(0, (bare_ or 0) - own[sid]), redo or 0, last, task or "",
            open_ or 0, failing or 0, attempts or 0, spent.get(sid, Spent()),
        )
        for sid, task, n, steps, last, m, redo, bare_, open_, failing, attempts in rows
    ]  # fmt: skip
    return sorted(found, key=lambda info: (-(info.last_written or 0.0), info.session_id))


def _own_answers(c: Connection) -> Counter[str]:
    """How many answers of our own tools have no insight, by session."""
    r, i = records.c, insights.c
    output = sa.type_coerce(r.output, sa.LargeBinary)
    marked = [
        sa.func.substr(output, 1, len(m), type_=sa.LargeBinary) == sa.literal(m.encode(), sa.LargeBinary)
        for m in MARKS
    ]
    query = (
        sa.select(r.session_id, r.tool_name, sa.func.count())
        .outerjoin(insights, (i.session_id == r.session_id) & (i.trace_id == r.trace_id))
        .where(i.seq.is_(None), sa.or_(~r.output_verbatim, *marked))
        .group_by(r.session_id, r.tool_name)
    )
    found: Counter[str] = Counter()
    for session_id, tool, n in c.execute(query):
        if is_memory_tool(tool):
            found[session_id] += n
    return found


def has_session(database: Database, session_id: str) -> bool:
    """Whether a bank has such a session."""
    if not is_session_id(session_id):
        return False
    query = sa.select(sessions.c.session_id).where(sessions.c.session_id == session_id)
    with database.read() as c:
        return c.execute(query).first() is not None


def find_record(database: Database, trace_id: str) -> tuple[str, InteractionRecord, Insight | None] | None:
    """``(session_id, record, insight)`` of a trace_id, in whichever session it is; None when nowhere."""
    if not is_trace_id(trace_id):
        return None
    return next(_entries(database, records.c.trace_id == trace_id), None)


def export_records(
    database: Database, session_id: str | None = None
) -> Iterator[tuple[str, InteractionRecord, Insight | None]]:
    """Every record with its session and insight, oldest first; of one session or of all."""
    return _entries(database, sa.true() if session_id is None else records.c.session_id == session_id)


def _entries(database: Database, condition: Any) -> Iterator[tuple[str, InteractionRecord, Insight | None]]:
    i = insights.c
    joined = records.outerjoin(
        insights, (i.trace_id == records.c.trace_id) & (i.session_id == records.c.session_id)
    )
    last = -1
    while True:
        query = (
            sa.select(*records.c, i.summary, i.source, i.redo)
            .select_from(joined)
            .where(condition, records.c.seq > last)
            .order_by(records.c.seq)
            .limit(_BATCH)
        )
        with database.read() as c:
            rows = c.execute(query).mappings().all()
        for row in rows:
            insight = None
            if row["summary"] is not None:
                insight = Insight(row["trace_id"], row["summary"], row["source"], row["redo"])
            yield row["session_id"], from_row(row), insight
        if len(rows) < _BATCH:
            return
        last = rows[-1]["seq"]
