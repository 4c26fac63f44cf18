"""The steps of sessions, as a service notes them: figures of all, what the latest were made of."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from memory_bank.bank.database import Database
from memory_bank.bank.schema import sessions, steps

_SWEEP = 256
"""After so many steps of a session all old manifests go; between, those that the newest pushed out."""

# Statements are built once: building one costs more than running it.
_t = steps.c
_mine = _t.session_id == sa.bindparam("session")
_FIGURES = (
    _t.number, _t.created, _t.full_tokens, _t.tokens, _t.messages, _t.records, _t.status, _t.strategy,
    _t.milliseconds, _t.manifest.is_not(None).label("detailed"),
)  # fmt: skip
_SESSION = sa.select(sessions.c.generation, sessions.c.deleted).where(
    sessions.c.session_id == sa.bindparam("session")
)
_LAST = sa.select(sa.func.max(_t.number)).where(_mine)
_FIRST = sa.select(sa.func.min(_t.number)).where(_mine)
_ENDS = sa.select(_FIRST.scalar_subquery(), _LAST.scalar_subquery())
_INSERT = sa.insert(steps)
_FORGET = (
    sa.update(steps)
    .where(
        _mine,
        _t.number > sa.bindparam("above"),
        _t.number <= sa.bindparam("upto"),
        _t.manifest.is_not(None),
    )
    .values(manifest=None)
)
_PAGE = (
    sa.select(*_FIGURES)
    .where(_mine, _t.number > sa.bindparam("last"))
    .order_by(_t.number)
    .limit(sa.bindparam("n"))
)
_ONE = sa.select(*_FIGURES, _t.manifest).where(_mine, _t.number == sa.bindparam("wanted"))
_SUMS = sa.select(
    sa.func.min(_t.number),
    sa.func.max(_t.number),
    sa.func.count(),
    sa.func.coalesce(sa.func.sum(_t.tokens), 0),
    sa.func.coalesce(sa.func.sum(_t.full_tokens), 0),
).where(_mine)
_bucket = (_t.number - sa.bindparam("from", type_=sa.Integer)) // sa.bindparam("width", type_=sa.Integer)
_BUCKETS = sa.select(  # numbered first: a database need not see that two expressions with parameters are one
    _bucket.label("bucket"), _t.number, _t.tokens, _t.full_tokens
).where(_mine)
_b = _BUCKETS.subquery().c
_CURVE = (
    sa.select(
        sa.func.max(_b.number), sa.func.count(), sa.func.max(_b.tokens), sa.func.min(_b.tokens),
        sa.func.max(_b.full_tokens),
    )
    .group_by(_b.bucket)
    .order_by(_b.bucket)
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NewStep:
    """A step to be noted. ``created`` in Unix seconds; ``manifest`` as ``packed`` makes it, or None.

    ``generation`` is the session's by which it was made; None where that is not known.
    """

    session_id: str
    created: float
    full_tokens: int
    tokens: int
    messages: int
    records: int
    status: str
    strategy: str
    milliseconds: float
    manifest: bytes | None = None
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """A step in figures. ``messages`` are those of the full history, ``records`` those stored by then.

    ``detailed``: what it was made of is still there.
    """

    number: int
    created: float
    full_tokens: int
    tokens: int
    messages: int
    records: int
    status: str
    strategy: str
    milliseconds: float
    detailed: bool


@dataclass(frozen=True, slots=True)
class Point:
    """So many steps up to ``number`` as one point of a curve: their most tokens, and the least sent."""

    number: int
    steps: int
    tokens: int
    least_tokens: int
    full_tokens: int


@dataclass(frozen=True, slots=True)
class Totals:
    """All steps of a session: the first and the last (None: there are none), how many, tokens in all."""

    first: int | None
    last: int | None
    steps: int
    tokens: int
    full_tokens: int


def packed(manifest: Mapping[str, Any]) -> bytes:
    """A manifest as it is stored: JSON in ASCII, so that lone surrogates stay, compressed."""
    return zlib.compress(json.dumps(manifest, separators=(",", ":")).encode("ascii"), 3)


def unpacked(stored: bytes) -> dict[str, Any]:
    """The manifest again."""
    values: dict[str, Any] = json.loads(zlib.decompress(stored))
    return values


def add_steps(database: Database, new: Sequence[NewStep], kept: int) -> None:
    """Note steps, each session's in their order, numbered on from its last one, in one transaction.

    Only the latest ``kept`` of a session keep their manifests. A session that was deleted is there again,
    unless the step came before; a manifest goes where the session was emptied since. Raises StorageError.
    """
    by_session: dict[str, list[NewStep]] = {}
    for step in new:
        by_session.setdefault(step.session_id, []).append(step)
    with database.write() as c:
        for session_id in sorted(by_session):  # in one order, so that no two writers wait for each other
            _add(c, database, session_id, by_session[session_id], kept)


def _add(c: Connection, database: Database, session_id: str, new: Sequence[NewStep], kept: int) -> None:
    database.lock_session(c, session_id)
    asked = {"session": session_id}
    known = c.execute(_SESSION, asked).first()
    if known is None:
        return
    generation, deleted = known
    new = [s for s in new if deleted is None or s.created > deleted]
    if not new:
        return
    before = c.execute(_LAST, asked).scalar() or 0
    last = before + len(new)
    rows = []
    for number, s in enumerate(new, before + 1):
        whole = number > last - kept and s.generation in (None, generation)
        rows.append(
            {
                "session_id": session_id, "number": number, "created": s.created,
                "full_tokens": s.full_tokens, "tokens": s.tokens, "messages": s.messages,
                "records": s.records, "status": s.status[:32], "strategy": s.strategy[:255],
                "milliseconds": s.milliseconds, "manifest": s.manifest if whole else None,
            }
        )  # fmt: skip
    c.execute(_INSERT, rows)
    above = 0 if before // _SWEEP != last // _SWEEP else before - kept
    c.execute(_FORGET, {**asked, "above": above, "upto": last - kept})
    database.revive(c, session_id)


def list_steps(database: Database, session_id: str, after: int = 0, limit: int = 100) -> list[Step]:
    """Up to ``limit`` steps after that number, oldest first. Raises StorageError."""
    with database.read() as c:
        rows = c.execute(_PAGE, {"session": session_id, "last": after, "n": limit}).all()
    return [Step(*row) for row in rows]


def ends_of(database: Database, session_id: str) -> tuple[int, int] | None:
    """The numbers of a session's first and last step; None where there is none. Raises StorageError."""
    with database.read() as c:
        first, last = c.execute(_ENDS, {"session": session_id}).one()
    return None if first is None else (first, last)


def get_step(database: Database, session_id: str, number: int) -> tuple[Step, dict[str, Any] | None] | None:
    """A step with its manifest, where that is still there; None for no such step. Raises StorageError."""
    with database.read() as c:
        row = c.execute(_ONE, {"session": session_id, "wanted": number}).first()
    if row is None:
        return None
    return Step(*row[:-1]), None if row.manifest is None else unpacked(row.manifest)


def token_curve(database: Database, session_id: str, points: int) -> tuple[Totals, list[Point]]:
    """All steps of a session as at most so many points, oldest first, and their totals.

    Raises StorageError.
    """
    with database.snapshot() as c:
        first, last, count, tokens, full = c.execute(_SUMS, {"session": session_id}).one()
        totals = Totals(first, last, count, int(tokens), int(full))
        if first is None:
            return totals, []
        width = -(-(last - first + 1) // points)
        rows = c.execute(_CURVE, {"session": session_id, "from": first, "width": width}).all()
    return totals, [Point(*row) for row in rows]
