"""Records in outline: listed, found by number or by the words in them, their texts read a piece at a time.

Nothing here takes a whole output into memory, and nothing is parsed: an output may have 100 MB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa

from memory_bank.bank.database import Database
from memory_bank.bank.rows import is_trace_id
from memory_bank.bank.schema import insights, jobs, records

PIECE = 2**20
"""Bytes of a stored text that are read at once."""
_HEAD = 2_000  # bytes of arguments and output that an outline has
_LONG = 2**16  # bytes; the head of a longer text is read by itself
_AT_ONCE = 500

Text = Literal["input", "output"]


@dataclass(frozen=True, slots=True)
class Outline:
    """A record without its texts, but with where they begin.

    ``number`` is its place in its session (1 is the oldest). ``input_head`` and ``output_head`` are the first
    bytes of the stored texts, ``input_bytes`` and ``output_bytes`` the lengths of these; verbatim texts are
    as they came, others JSON of a value. ``summary``, ``source`` and ``redo`` are its insight's, None without
    one; ``attempts`` and ``error`` its job's, where it waits for a model.
    """

    session_id: str
    seq: int
    number: int
    trace_id: str
    step_id: int
    tool_name: str
    call_id: str | None
    timestamp: float
    input_verbatim: bool
    output_verbatim: bool
    input_bytes: int
    output_bytes: int
    input_head: bytes
    output_head: bytes
    summary: str | None
    source: str | None
    redo: str | None
    attempts: int | None
    error: str | None


# Statements are built once: building one costs more than running it.
_r, _i, _j = records.c, insights.c, jobs.c
_mine = _r.session_id == sa.bindparam("session")


def _bytes(column: sa.Column[Any]) -> sa.ColumnElement[bytes]:
    return sa.type_coerce(column, sa.LargeBinary)


def _head(column: sa.Column[Any]) -> sa.ColumnElement[bytes | None]:
    """The first bytes; not of a long value, which SQLite would read whole for them."""
    head = sa.func.substr(_bytes(column), 1, _HEAD, type_=sa.LargeBinary)
    return sa.case((sa.func.length(_bytes(column)) <= _LONG, head), else_=sa.null())


_same = (_i.session_id == _r.session_id) & (_i.trace_id == _r.trace_id)
_waits = (_j.session_id == _r.session_id) & (_j.trace_id == _r.trace_id)
_outline = sa.select(
    _r.session_id, _r.seq, _r.trace_id, _r.step_id, _r.tool_name, _r.call_id, _r.timestamp,
    _r.input_verbatim, _r.output_verbatim,
    sa.func.length(_bytes(_r.input)).label("input_bytes"),
    sa.func.length(_bytes(_r.output)).label("output_bytes"),
    _head(_r.input).label("input_head"), _head(_r.output).label("output_head"),
    _i.summary, _i.source, _i.redo, _j.attempts, _j.error,
).select_from(records.outerjoin(insights, _same).outerjoin(jobs, _waits))  # fmt: skip
_page = (
    sa.select(_r.seq).where(_mine).order_by(_r.seq).limit(sa.bindparam("n")).offset(sa.bindparam("after"))
).subquery()
_PAGE = _outline.where(_r.seq.in_(sa.select(_page.c.seq))).order_by(_r.seq)
_BY_IDS = _outline.where(_mine, _r.trace_id.in_(sa.bindparam("ids", expanding=True)))
_older = records.alias()
_NUMBERS = sa.select(
    _r.seq,
    sa.select(sa.func.count())
    .select_from(_older)
    .where(_older.c.session_id == _r.session_id, _older.c.seq <= _r.seq)
    .scalar_subquery(),
).where(_r.seq.in_(sa.bindparam("seqs", expanding=True)))
_COUNT = sa.select(sa.func.count()).select_from(records).where(_mine)
_NUMBERED = sa.select(_r.trace_id).where(_mine).order_by(_r.seq).limit(1).offset(sa.bindparam("before"))
_BEGINNING = (
    sa.select(_r.trace_id)
    .where(_mine, sa.func.lower(_r.trace_id).like(sa.bindparam("like"), escape="/"))
    .order_by(_r.seq.desc())
    .limit(sa.bindparam("n"))
)
_THERE = sa.select(_r.trace_id).where(_mine, _r.trace_id.in_(sa.bindparam("ids", expanding=True)))


def list_outlines(database: Database, session_id: str, limit: int, after: int = 0) -> list[Outline]:
    """The records of a session after that number, the oldest first. May raise StorageError."""
    with database.read() as c:
        rows = c.execute(_PAGE, {"session": session_id, "n": limit, "after": after}).all()
    return [_made(database, row, n) for n, row in enumerate(rows, after + 1)]


def outlines(database: Database, session_id: str, trace_ids: Sequence[str]) -> list[Outline]:
    """The records found, in the order asked for; missing ids are skipped. May raise StorageError."""
    found: dict[str, Outline] = {}
    wanted = [t for t in dict.fromkeys(trace_ids) if is_trace_id(t)]
    for start in range(0, len(wanted), _AT_ONCE):
        with database.snapshot() as c:
            asked = {"session": session_id, "ids": wanted[start : start + _AT_ONCE]}
            rows = c.execute(_BY_IDS, asked).all()
            numbers = dict(c.execute(_NUMBERS, {"seqs": [row.seq for row in rows]}).all()) if rows else {}
        found.update((row.trace_id, _made(database, row, numbers[row.seq])) for row in rows)
    return [found[t] for t in wanted if t in found]


def holding(
    database: Database, session_id: str, texts: Sequence[Sequence[str]], limit: int, before: int | None = None
) -> list[Outline]:
    """The records whose outputs have one of each of some groups of texts in them, the newest first.

    To the letter, but for the case of ASCII letters. ``before``: only records of a lower ``seq``. The outputs
    are read by the database. May raise StorageError.
    """
    conditions = [sa.or_(*(database.holds(_r.output, text) for text in group)) for group in texts]
    if before is not None:
        conditions.append(_r.seq < before)
    query = sa.select(_r.trace_id).where(_mine, *conditions).order_by(_r.seq.desc()).limit(limit)
    with database.read() as c:
        ids = list(c.execute(query, {"session": session_id}).scalars())
    return outlines(database, session_id, ids)


def _made(database: Database, row: Any, number: int) -> Outline:
    values = row._asdict()
    for text in ("input", "output"):
        head = values[f"{text}_head"]
        if head is None:
            head = database.read_bytes(records.c[text], row.seq, 0, _HEAD)
        values[f"{text}_head"] = bytes(head)
    return Outline(number=number, **values)


def count_records(database: Database, session_id: str) -> int:
    """How many records a session has. May raise StorageError."""
    with database.read() as c:
        return c.execute(_COUNT, {"session": session_id}).scalar() or 0


def numbered(database: Database, session_id: str, number: int) -> str | None:
    """The trace_id of a session's record of that number. May raise StorageError."""
    if number < 1:
        return None
    with database.read() as c:
        return c.execute(_NUMBERED, {"session": session_id, "before": number - 1}).scalar()


def beginning_with(database: Database, session_id: str, text: str, limit: int) -> list[str]:
    """The trace_ids of a session that begin with a text, in any case, the newest first.

    May raise StorageError.
    """
    if not is_trace_id(text):
        return []
    like = text.lower().replace("/", "//").replace("%", "/%").replace("_", "/_") + "%"
    with database.read() as c:
        return list(c.execute(_BEGINNING, {"session": session_id, "like": like, "n": limit}).scalars())


def stored_ids(database: Database, session_id: str, trace_ids: Sequence[str]) -> set[str]:
    """Which of some trace_ids a session has a record of. May raise StorageError."""
    wanted = list(dict.fromkeys(trace_ids))
    found: set[str] = set()
    with database.read() as c:
        for start in range(0, len(wanted), _AT_ONCE):
            asked = {"session": session_id, "ids": wanted[start : start + _AT_ONCE]}
            found.update(c.execute(_THERE, asked).scalars())
    return found


def pieces(database: Database, outline: Outline, text: Text) -> Iterator[bytes]:
    """A stored text from its beginning to its end, in pieces of 1 MiB; no read lasts longer than its piece.

    May raise StorageError, also half-way when the record is removed meanwhile.
    """
    size = outline.input_bytes if text == "input" else outline.output_bytes
    for start in range(0, size, PIECE):
        yield database.read_bytes(records.c[text], outline.seq, start, min(PIECE, size - start))


def whole(database: Database, outline: Outline, text: Text) -> str:
    """A stored text. May raise StorageError."""
    return b"".join(pieces(database, outline, text)).decode("utf-8", "surrogatepass")
