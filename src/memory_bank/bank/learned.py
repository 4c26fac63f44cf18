"""The evidence model fitted to a namespace's own sessions: what it is fitted to, stored, deleted with its content."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from memory_bank.bank.database import Database
from memory_bank.bank.rows import from_row
from memory_bank.bank.schema import (
    HAS_CONTENT,
    NEXT_GENERATION,
    count_of,
    in_parts,
    models,
    of_session,
    records,
    sessions,
)
from memory_bank.records import InteractionRecord

MOST_SESSIONS = 500
"""A model is fitted to at most so many sessions, the newest."""
MOST_CALLS = 5_000
"""Their records at most, so that fitting takes minutes."""

_m, _s = models.c, sessions.c
_key = sa.func.coalesce(_s.namespace, "")


@dataclass(frozen=True, slots=True)
class Learned:
    """The evidence model of a namespace.

    ``fitted``: when it was last fitted, in Unix seconds; ``sessions``: how many sessions the namespace had then.
    ``model`` is JSON; None: the shipped model was better, or content of a session was deleted since.
    """

    fitted: float
    sessions: int
    model: str | None


@dataclass(frozen=True, slots=True)
class OwnSession:
    """A session that a model is fitted to. ``generation`` grows when its content is deleted."""

    session_id: str
    generation: int
    task: str


def learned_of(database: Database, namespace: str | None) -> Learned | None:
    """What is known of a namespace's own model; None before the first time it was fitted."""
    known = sa.select(_m.fitted, _m.sessions, _m.model).where(_m.namespace == (namespace or ""))
    return next((Learned(**row) for row in database.rows(known)), None)


def model_of_session(database: Database, session_id: str) -> str | None:
    """The model of the namespace that a session belongs to, JSON; None where there is none."""
    of = sa.select(_key).where(of_session(sessions)).scalar_subquery()
    return database.value(sa.select(_m.model).where(_m.namespace == of), session=session_id)


def newest_sessions(database: Database, namespace: str | None) -> list[OwnSession]:
    """The sessions that a model of the namespace is fitted to, oldest first: the newest, within both limits."""
    mine = count_of(records).where(records.c.session_id == _s.session_id)
    calls = mine.correlate(sessions).scalar_subquery()
    newest = (  # forks repeat the calls of another session
        sa.select(_s.session_id, _s.generation, _s.task, calls)
        .where(_key == (namespace or ""), _s.deleted.is_(None), _s.forked_from.is_(None), calls > 1)
        .order_by(_s.created.desc(), _s.session_id)
        .limit(MOST_SESSIONS)
    )
    found: list[OwnSession] = []
    total = 0
    with database.read() as c:
        for session_id, generation, task, count in c.execute(newest):
            total += count
            if found and total > MOST_CALLS:
                break
            found.append(OwnSession(session_id, generation, task or ""))
    return found[::-1]


def records_of_session(database: Database, session_id: str) -> list[InteractionRecord]:
    """The records of a session in the order of storing, without those that were forgotten."""
    mine = sa.select(records).where(of_session(records), HAS_CONTENT).order_by(records.c.seq)
    return [from_row(row) for row in database.rows(mine, session=session_id)]


def namespaces_due(database: Database, new_sessions: int) -> Iterator[str | None]:
    """The namespaces that have so many more sessions than when a model was fitted last; each is claimed once.

    Several processes may ask: each namespace is returned to one of them.
    """
    before = sa.func.coalesce(sa.func.max(_m.sessions), 0)
    counts = sa.select(_key, sa.func.count(), before).outerjoin(models, _m.namespace == _key).group_by(_key)
    with database.read() as c:
        found = c.execute(counts).all()
    for key, count, known in found:
        if count - known < new_sessions:
            continue
        with database.write() as c:
            claimed = _keep(c, database, key, _m.sessions == known, sessions=count)
        if claimed:
            yield key or None


def keep_model(
    database: Database, namespace: str | None, fitted_to: Mapping[str, int], model: str | None
) -> bool:
    """Store a namespace's model in the place of the one before; None: the shipped one is to be used.

    ``fitted_to`` are the generations of the sessions that it was fitted to. If content of one of them was
    deleted since, nothing is stored and False is returned. Raises StorageError.
    """
    key = namespace or ""
    with database.erase() as c:
        database.lock_name(c, f"model {key}")
        now: dict[str, int] = {}
        for part in in_parts(list(fitted_to)):
            there = _s.session_id.in_(part), _s.deleted.is_(None)
            now.update(c.execute(sa.select(_s.session_id, _s.generation).where(*there)).all())
        if now != dict(fitted_to):
            return False
        count = c.execute(count_of(sessions).where(_key == key)).scalar() or 0
        return _keep(c, database, key, sa.true(), sessions=count, model=model)


def _keep(c: Connection, database: Database, key: str, if_: sa.ColumnElement[bool], **values: object) -> bool:
    database.insert_new(c, models, [{"namespace": key, "fitted": 0.0, "sessions": 0}])
    change = sa.update(models).where(_m.namespace == key, if_).values(**values, fitted=time.time())
    return c.execute(change).rowcount == 1


def delete_model(database: Database, namespace: str | None) -> bool:
    """Delete a namespace's model, so that the shipped one is used; False if it has none."""
    key = namespace or ""
    with database.erase() as c:
        database.lock_name(c, f"model {key}")
        change = sa.update(models).where(_m.namespace == key, _m.model.is_not(None)).values(model=None)
        return c.execute(change).rowcount == 1


def lock_content(c: Connection, database: Database, session_id: str) -> None:
    """Lock a session and the model of its namespace; the first locks of a write that deletes content."""
    key = c.execute(sa.select(_key).where(of_session(sessions)), {"session": session_id}).scalar()
    database.lock_name(c, f"model {key or ''}")
    database.lock_session(c, session_id)


def content_deleted(c: Connection, session_id: str) -> None:
    """Within a write that deletes content: delete what was made of it, and raise the session's generation.

    That is the namespace's model, which may have been fitted to it, and the session's note. Processes that hold the
    session in memory, or are fitting a model to it, compare generations and discard what they have.
    """
    key = sa.select(_key).where(of_session(sessions)).scalar_subquery()
    c.execute(sa.update(models).where(_m.namespace == key).values(model=None), {"session": session_id})
    c.execute(NEXT_GENERATION.values(note=None, summaries=None), {"session": session_id})


def is_model_text(text: bytes) -> bool:
    """Whether a stored model is JSON with a finite weight for each of its features."""
    try:
        data = json.loads(text)
        weights = [float(w) for w in data["weights"]]
        return len(weights) == len(data["features"]) and all(map(math.isfinite, weights))
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
