"""Sessions as a service lists them: a page of a namespace, one in figures, the sums of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from memory_bank.bank.database import Database
from memory_bank.bank.jobs import without_insight
from memory_bank.bank.schema import insights, jobs, records, sessions, spending, steps
from memory_bank.records import Spent

_TASK_BYTES = 4_000  # of a task that are looked at in lists
_AT_ONCE = 500  # sessions that are looked through at once for a text


@dataclass(frozen=True, slots=True)
class SessionLine:
    """A session in a list. ``task`` is the beginning of what the user asked for; times are Unix seconds.

    ``steps`` is the step_id of the latest record, ``jobs`` counts what waits for a model, ``failing`` those
    of them that have failed before.
    """

    session_id: str
    created: float
    last_written: float | None
    task: str
    agent_id: str | None
    forked_from: str | None
    records: int = 0
    steps: int = 0
    insights: int = 0
    jobs: int = 0
    failing: int = 0


@dataclass(frozen=True, slots=True)
class Tokens:
    """What contexts cost: how many were built, tokens of the full histories, tokens that were sent."""

    steps: int = 0
    full: int = 0
    sent: int = 0


@dataclass(frozen=True, slots=True)
class SessionFigures:
    """One session, looked at closely; ``line.task`` is whole.

    ``unobserved`` counts records that should have an insight and have none, ``to_redo`` insights that are to
    be made again, ``attempts`` how often the job that fails most was tried.
    """

    line: SessionLine
    unobserved: int
    to_redo: int
    attempts: int
    spent: Spent
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class Totals:
    """A namespace in figures. What deleted sessions have cost is in ``spent``: money does not come back."""

    sessions: int = 0
    records: int = 0
    insights: int = 0
    jobs: int = 0
    failing: int = 0
    spent: Spent = field(default_factory=Spent)
    tokens: Tokens = field(default_factory=Tokens)


# Statements are built once: building one costs more than running it.
_s, _r, _i, _j, _p, _t = sessions.c, records.c, insights.c, jobs.c, spending.c, steps.c
_ids: Any = sa.bindparam("ids", expanding=True)
_one: Any = sa.bindparam("session")


def _of_namespace(named: bool) -> sa.ColumnElement[bool]:
    """Whether a session is of the namespace; an index knows either form."""
    return _s.namespace == sa.bindparam("namespace") if named else _s.namespace.is_(None)


_task_head = sa.func.substr(sa.type_coerce(_s.task, sa.LargeBinary), 1, _TASK_BYTES, type_=sa.LargeBinary)
_listed = sa.select(_s.session_id, _s.created, _s.agent_id, _s.forked_from, _task_head.label("task"))
_newest_first = (_s.created.desc(), _s.session_id.desc())
_PAGE = {
    named: _listed.where(_of_namespace(named), _s.deleted.is_(None))
    .order_by(*_newest_first)
    .limit(sa.bindparam("n"))
    for named in (False, True)
}
_at = sa.bindparam("at", type_=sa.Float)
_PAGE_AFTER = {
    named: page.where(_s.created <= _at, (_s.created < _at) | (_s.session_id < sa.bindparam("last")))
    for named, page in _PAGE.items()
}
_PLACE = {
    named: sa.select(_s.created).where(_s.session_id == _one, _of_namespace(named)) for named in (False, True)
}
_ONE = {
    named: sa.select(_s.session_id, _s.created, _s.agent_id, _s.forked_from, _s.task).where(
        _s.session_id == _one, _of_namespace(named), _s.deleted.is_(None)
    )
    for named in (False, True)
}
_RECORDS = (
    sa.select(_r.session_id, sa.func.count(), sa.func.max(_r.seq))
    .where(_r.session_id.in_(_ids))
    .group_by(_r.session_id)
)
_LATEST = sa.select(_r.session_id, _r.step_id, _r.timestamp).where(
    _r.seq.in_(sa.bindparam("seqs", expanding=True))
)
_INSIGHTS = sa.select(_i.session_id, sa.func.count()).where(_i.session_id.in_(_ids)).group_by(_i.session_id)
_JOBS = (
    sa.select(_j.session_id, sa.func.count(), sa.func.count(_j.error))
    .where(_j.session_id.in_(_ids))
    .group_by(_j.session_id)
)
_TO_REDO = sa.select(sa.func.count(_i.redo)).where(_i.session_id == _one)
_ATTEMPTS = sa.select(sa.func.max(_j.attempts)).where(_j.session_id == _one, _j.error.is_not(None))
_spent = [sa.func.coalesce(sa.func.sum(c), 0) for c in (_p.calls, _p.prompt_tokens, _p.completion_tokens)]
_SPENT = sa.select(*_spent, sa.func.coalesce(sa.func.sum(_p.cost), 0.0))
_TOKENS = sa.select(
    sa.func.count(),
    sa.func.coalesce(sa.func.sum(_t.full_tokens), 0),
    sa.func.coalesce(sa.func.sum(_t.tokens), 0),
)
_SPENT_HERE = _SPENT.where(_p.session_id == _one)
_TOKENS_HERE = _TOKENS.where(_t.session_id == _one)
_there = {
    named: sa.select(_s.session_id).where(_of_namespace(named), _s.deleted.is_(None))
    for named in (False, True)
}
_ever = {named: sa.select(_s.session_id).where(_of_namespace(named)) for named in (False, True)}
_SUMS = {
    named: (
        sa.select(sa.func.count()).select_from(there.subquery()),
        sa.select(sa.func.count()).select_from(records).where(_r.session_id.in_(there)),
        sa.select(sa.func.count()).select_from(insights).where(_i.session_id.in_(there)),
        sa.select(sa.func.count(), sa.func.count(_j.error)).where(_j.session_id.in_(there)),
        _SPENT.where(_p.session_id.in_(_ever[named])),
        _TOKENS.where(_t.session_id.in_(there)),
    )
    for named, there in _there.items()
}


def list_page(
    database: Database,
    namespace: str | None,
    limit: int,
    after: str | None = None,
    text: str = "",
    prefix: str = "",
) -> tuple[list[SessionLine], bool] | None:
    """The sessions of a namespace, the newest first, and whether there are more of them.

    ``after`` is the session_id of the last one of the page before; None is returned where the namespace never
    had it. ``text``: only those whose id (without ``prefix``) or task holds it, whatever its case. May raise
    StorageError.
    """
    named = namespace is not None
    asked: dict[str, Any] = {"namespace": namespace} if named else {}
    statement = _PAGE[named]
    with database.snapshot() as c:
        if after is not None:
            place = c.execute(_PLACE[named], {**asked, "session": after}).scalar()
            if place is None:
                return None
            asked |= {"at": place, "last": after}
            statement = _PAGE_AFTER[named]
        wanted = text.casefold()
        found: list[Any] = []
        while True:
            n = limit + 1 if not wanted else _AT_ONCE
            rows = c.execute(statement, {**asked, "n": n}).all()
            found += [row for row in rows if not wanted or _holds(row, wanted, prefix)]
            if len(rows) < n or len(found) > limit:
                break
            asked |= {"at": rows[-1].created, "last": rows[-1].session_id}
            statement = _PAGE_AFTER[named]
        return _lines(c, found[:limit]), len(found) > limit


def _holds(row: Any, wanted: str, prefix: str) -> bool:
    name = str(row.session_id).removeprefix(prefix)
    return wanted in name.casefold() or wanted in _text(row.task).casefold()


def _text(task: Any) -> str:
    """A task, or the text of its first bytes, where a character that was cut is left out."""
    return task or "" if isinstance(task, str | None) else bytes(task).decode("utf-8", "ignore")


def _lines(c: Connection, rows: Sequence[Any]) -> list[SessionLine]:
    ids = {"ids": [row.session_id for row in rows]}
    if not rows:
        return []
    counted = {sid: (n, seq) for sid, n, seq in c.execute(_RECORDS, ids)}
    seqs = {"seqs": [seq for _, seq in counted.values()]}
    latest = {sid: (step, when) for sid, step, when in c.execute(_LATEST, seqs)} if counted else {}
    made: dict[str, int] = dict(c.execute(_INSIGHTS, ids).all())
    waiting = {sid: (n, failing) for sid, n, failing in c.execute(_JOBS, ids)}
    lines = []
    for sid, created, agent_id, forked_from, task in rows:
        n, _ = counted.get(sid, (0, 0))
        step, when = latest.get(sid, (0, None))
        open_, failing = waiting.get(sid, (0, 0))
        lines.append(
            SessionLine(
                sid, created, when, _text(task), agent_id, forked_from,
                n, step, made.get(sid, 0), open_, failing,
            )
        )  # fmt: skip
    return lines


def session_figures(database: Database, namespace: str | None, session_id: str) -> SessionFigures | None:
    """One session of a namespace; None where it is not there. May raise StorageError."""
    named = namespace is not None
    asked = {"session": session_id} | ({"namespace": namespace} if named else {})
    with database.snapshot() as c:
        row = c.execute(_ONE[named], asked).first()
        if row is None:
            return None
        (line,) = _lines(c, [row])
        here = {"session": session_id}
        to_redo = c.execute(_TO_REDO, here).scalar() or 0
        attempts = c.execute(_ATTEMPTS, here).scalar() or 0
        spent = _as_spent(c.execute(_SPENT_HERE, here).one())
        tokens = Tokens(*map(int, c.execute(_TOKENS_HERE, here).one()))
    return SessionFigures(line, len(without_insight(database, session_id)), to_redo, attempts, spent, tokens)


def namespace_totals(database: Database, namespace: str | None) -> Totals:
    """The sums of a namespace. May raise StorageError."""
    named = namespace is not None
    asked = {"namespace": namespace} if named else {}
    with database.snapshot() as c:
        count, facts, made, waiting, spent, tokens = (c.execute(q, asked).one() for q in _SUMS[named])
    return Totals(
        count[0], facts[0], made[0], waiting[0], waiting[1], _as_spent(spent), Tokens(*map(int, tokens))
    )


def _as_spent(row: Any) -> Spent:
    calls, prompt, completion, cost = row
    return Spent(int(calls), int(prompt), int(completion), float(cost))
