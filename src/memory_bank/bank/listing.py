"""Lists of a bank's sessions and records, with counts and sums, and without reading long texts.

Records are listed as outlines; their texts are read in pieces, since an output may have 100 MB. Every function
may raise StorageError.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from memory_bank.bank.database import Database
from memory_bank.bank.rows import from_row, insight_of, is_session_id, is_trace_id
from memory_bank.bank.schema import (
    HAS_CONTENT,
    IDS,
    INSIGHT_OF_RECORD,
    byte_length,
    calls,
    count_of,
    first_bytes,
    in_parts,
    insights,
    like_prefix,
    of_namespace,
    of_session,
    records,
    rows_by_id,
    sessions,
    steps,
    sum_of,
    sums,
    waits,
)
from memory_bank.records import Brief, Insight, InteractionRecord
from memory_bank.transcript.messages import MARKS, is_memory_tool

PREFIX = 6
"""Characters of a trace_id that are enough to name a record."""
PIECE = 2**20
"""How many bytes of a stored text are read at once."""
_HEAD = 2_000  # bytes of arguments and output in an outline
_AT_ONCE = 500  # sessions

_s, _r, _i, _t = sessions.c, records.c, insights.c, steps.c


@dataclass(frozen=True, slots=True)
class Tokens:
    """The size of contexts: the number of steps, tokens of the full histories, tokens that were sent."""

    steps: int = 0
    full: int = 0
    sent: int = 0


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session. ``task`` is what the user asked for (in pages its beginning); times are Unix seconds.

    ``steps`` is the step_id of the latest record, ``waiting`` counts the records that wait for the Observer's model,
    ``failing`` those of them for which it has failed before. Pages leave out what takes longer to count:
    ``unobserved`` records without an insight (answers of our own tools need none) and all that follows; ``attempts``
    are of the record for which it fails most, ``calls`` all of the Observer's model, ``model`` and ``last_step``
    (Unix seconds) of the latest step.
    """

    session_id: str
    created: float
    last_written: float | None
    title: str | None
    task: str
    project: str | None
    forked_from: str | None
    records: int = 0
    steps: int = 0
    insights: int = 0
    waiting: int = 0
    failing: int = 0
    unobserved: int = 0
    to_redo: int = 0
    attempts: int = 0
    model: str | None = None
    last_step: float | None = None
    calls: int = 0
    tokens: Tokens = field(default_factory=Tokens)


@dataclass(frozen=True, slots=True)
class NamespaceTotals:
    """The sums of a namespace. ``calls`` includes deleted sessions."""

    sessions: int
    records: int
    insights: int
    waiting: int
    failing: int
    calls: int
    tokens: Tokens


def _of_each(
    table: sa.Table, value: sa.ColumnElement[Any], *where: sa.ColumnElement[bool], newest: bool = False
) -> sa.ScalarSelect[Any]:
    mine = sa.select(value).where(table.c.session_id == _s.session_id, *where).correlate(sessions)
    if newest:
        mine = mine.order_by((table.c.number if table is steps else table.c.seq).desc()).limit(1)
    return mine.scalar_subquery()


_BASE = sa.select(
    _s.session_id, _s.created, _s.project, _s.forked_from, _s.title, _s.task,
    _of_each(records, _r.timestamp, newest=True).label("last_written"),
    sa.func.coalesce(_of_each(records, _r.step_id, newest=True), 0).label("steps"),
)  # fmt: skip
_DETAILS = _BASE.add_columns(
    _of_each(steps, _t.model, newest=True).label("model"),
    _of_each(steps, _t.created, newest=True).label("last_step"),
)


def _by_session(
    table: sa.Table, where: sa.ColumnElement[bool] | None = None, /, **figures: sa.ColumnElement[Any]
) -> sa.Select[Any]:
    """Figures of all sessions, in one pass over their rows."""
    named = (value.label(name) for name, value in figures.items())
    query = sa.select(table.c.session_id, *named).group_by(table.c.session_id)
    return query if where is None else query.where(where)


def _read(c: Connection, figures: sa.Select[Any], ids: Sequence[str] | None) -> Any:
    """Figures of some sessions, or of all (None)."""
    return c.execute(figures) if ids is None else c.execute(_of_ids(figures), {"ids": ids})


@cache
def _of_ids(figures: sa.Select[Any]) -> sa.Select[Any]:
    return figures.where(figures.selected_columns.session_id.in_(IDS))


_kept = {n: sum_of(sums.c[n]) for n in ("records", "insights", "steps", "full_tokens", "tokens")}
_most = sa.func.coalesce(sa.func.max(sa.case((_i.redo.is_not(None), _i.attempts))), 0)
_WAIT = _by_session(insights, waits, waiting=sa.func.count(), failing=sa.func.count(_i.redo), attempts=_most)
_FIGURES = (
    _WAIT,
    _by_session(insights, _i.redo.is_not(None), to_redo=sa.func.count()),
    _by_session(calls, calls=sum_of(calls.c.calls)),
)
_KEPT_EACH = _by_session(sums, **_kept)


def has_session(database: Database, session_id: str) -> bool:
    """Return whether a bank has this session."""
    mine = sa.select(_s.session_id).where(of_session(sessions))
    return is_session_id(session_id) and database.value(mine, session=session_id) is not None


def list_sessions(database: Database, *, is_short: bool = False) -> list[SessionInfo]:
    """All sessions, deleted ones included, the last written first; ``is_short``: without counts of rows that wait."""
    with database.snapshot() as c:
        infos = _details(c, _DETAILS, () if is_short else _FIGURES, every=True)
    return sorted(infos, key=lambda info: (-(info.last_written or 0.0), info.session_id))


def session_details(database: Database, namespace: str | None, session_id: str) -> SessionInfo | None:
    """A session of a namespace; None if it does not exist."""
    one = _DETAILS.where(_s.session_id == session_id, of_namespace(namespace), _s.deleted.is_(None))
    with database.snapshot() as c:
        return next(iter(_details(c, one)), None)


def latest_used(database: Database, projects: Sequence[str]) -> str | None:
    """The id of the session with the newest record, of some projects, else of those without one; None for neither."""
    newest = sa.select(_r.session_id).join(sessions, _s.session_id == _r.session_id).order_by(_r.seq.desc())
    latest: Iterator[str | None] = (
        database.value(newest.where(of).limit(1)) for of in (_s.project.in_(projects), _s.project.is_(None))
    )
    return next(filter(None, latest), None)


def newest_searchable(database: Database, namespace: str | None, project: str | None = None) -> str | None:
    """The id of the newest session with records of a namespace, or of a project in it; None without one."""
    has_records = sa.exists().where(_r.session_id == _s.session_id)
    query = sa.select(_s.session_id).where(of_namespace(namespace), has_records)
    if project is not None:
        query = query.where(_s.project == project)
    return database.value(query.order_by(_s.created.desc(), _s.session_id.desc()).limit(1))


def newest_of_namespaces(database: Database) -> list[str]:
    """The ids of the newest sessions with records, one for each namespace."""
    namespaces = database.column(sa.select(_s.namespace).distinct().order_by(_s.namespace))
    return [s for n in namespaces if (s := newest_searchable(database, n)) is not None]


def list_page(
    database: Database,
    namespace: str | None,
    limit: int,
    after: str | None = None,
    text: str = "",
    prefix: str = "",
    ranked: Sequence[str] | None = None,
) -> tuple[list[SessionInfo], bool] | None:
    """Up to ``limit`` sessions of a namespace, the newest first, and whether there are more.

    ``after`` is the session_id of the last one of the page before; returns None if the namespace never had
    it. ``text``: only sessions whose id (without ``prefix``), title or task contains it, ignoring case.
    ``ranked``: only these sessions, in this order.
    """
    wanted, tasks = text.casefold(), dict[str, str]()  # session_id to the beginning of its task
    heads = sa.select(_s.session_id, first_bytes(_s.task, 4_000).label("task"), _s.title)
    first = None if wanted or after is not None else limit + 1
    ids = session_ids(database, namespace, first) if ranked is None else ranked
    if after is not None and after not in ids:
        return None
    rest = ids[0 if after is None else ids.index(after) + 1 :]
    with database.snapshot() as c:
        for part in in_parts(rest, _AT_ONCE if wanted else limit + 1):
            present = heads.where(_s.session_id.in_(part), _s.deleted.is_(None))
            rows = {row.session_id: row for row in c.execute(present)}
            for row in (rows[i] for i in part if i in rows):
                # the last character may be incomplete
                task = bytes(row.task or b"").decode("utf-8", "ignore")
                texts = row.session_id.removeprefix(prefix), task, row.title or ""
                if any(wanted in t.casefold() for t in texts):
                    tasks[row.session_id] = task
            if len(tasks) > limit:
                break
        ids = list(tasks)[:limit]
        columns = (column for column in _BASE.selected_columns if column.name != "task")  # which may be long
        page = sa.select(*columns).where(_s.session_id.in_(ids))
        of_id = {i.session_id: replace(i, task=tasks[i.session_id]) for i in _details(c, page, [_WAIT])}
    return [of_id[session_id] for session_id in ids], len(tasks) > limit


def session_ids(database: Database, namespace: str | None, first: int | None = None) -> list[str]:
    """The ids of all sessions that a namespace has had, the newest first; or of the ``first`` that it has."""
    mine = sa.select(_s.session_id).where(of_namespace(namespace))
    mine = mine if first is None else mine.where(_s.deleted.is_(None)).limit(first)
    return database.column(mine.order_by(_s.created.desc(), _s.session_id.desc()))


def origins(database: Database, namespace: str | None) -> dict[str, tuple[str | None, str | None]]:
    """The project and the client of each session of a namespace."""
    columns = _s.session_id, _s.project, _s.client
    query = sa.select(*columns).where(of_namespace(namespace), _s.deleted.is_(None))
    return {row["session_id"]: (row["project"], row["client"]) for row in database.rows(query)}


def namespace_totals(database: Database, namespace: str | None) -> NamespaceTotals:
    """The sums of a namespace."""
    mine, present = of_namespace(namespace), _s.deleted.is_(None)
    of_waiting, of_calls = (sa.exists().where(_s.session_id == t.session_id, mine) for t in (_i, calls.c))
    wait = sa.select(sa.func.count(), sa.func.count(_i.redo)).where(waits, of_waiting.where(present))
    with database.snapshot() as c:
        there = c.execute(count_of(sessions).where(mine, present)).scalar_one()
        of_present = sa.select(*_kept.values()).join_from(sessions, sums, sums.c.session_id == _s.session_id)
        facts, summaries, *tokens = c.execute(of_present.where(mine, present)).one()
        waiting, failing = c.execute(wait).one()
        asked = c.execute(sa.select(sum_of(calls.c.calls)).where(of_calls)).scalar_one()
    counts = there, int(facts), int(summaries), waiting, failing, int(asked)
    return NamespaceTotals(*counts, Tokens(*map(int, tokens)))


def _details(
    c: Connection, query: sa.Select[Any], figures: Sequence[sa.Select[Any]] = _FIGURES, *, every: bool = False
) -> list[SessionInfo]:
    """The sessions of a query; ``every``: nearly all of the bank, whose figures are read in one pass each."""
    each = {row["session_id"]: {**row, "task": row.get("task") or ""} for row in c.execute(query).mappings()}
    for part in [None] if every else in_parts(list(each), _AT_ONCE):
        for figure in figures:
            for row in _read(c, figure, part).mappings():
                each.get(row["session_id"], {}).update(row)
        for session_id, facts, summaries, *tokens in _read(c, _KEPT_EACH, part):
            sums = {"records": int(facts), "insights": int(summaries), "tokens": Tokens(*map(int, tokens))}
            each.get(session_id, {}).update(sums)
        for session_id, count in _unobserved(c, part).items() if figures is _FIGURES else ():
            each.get(session_id, {})["unobserved"] = count
    return [SessionInfo(**{**row, "calls": int(row.get("calls", 0))}) for row in each.values()]


def _unobserved(c: Connection, session_ids: Sequence[str] | None) -> Counter[str]:
    """The number of records that need an insight and have none, by session; None: of all."""
    heads = (first_bytes(_r.output, len(m)) == sa.literal(m.encode(), sa.LargeBinary) for m in MARKS)
    bare = (  # a subquery: PostgreSQL does not see that two expressions with parameters are equal
        sa.select(_r.session_id, _r.tool_name, sa.or_(~_r.output_verbatim, *heads).label("may_be_answer"))
        .select_from(records.outerjoin(insights, INSIGHT_OF_RECORD))
        .where(sa.true() if session_ids is None else _r.session_id.in_(session_ids))
        .where(_i.seq.is_(None), HAS_CONTENT)
        .subquery()
    )
    counts: Counter[str] = Counter()
    for row in c.execute(sa.select(*bare.c, sa.func.count().label("n")).group_by(*bare.c)):
        counts[row.session_id] += 0 if row.may_be_answer and is_memory_tool(row.tool_name) else row.n
    return counts


_BARE = (
    sa.select(_r.trace_id, _r.timestamp, _r.tool_name, _r.output_verbatim,
              first_bytes(_r.output, max(map(len, MARKS))).label("head"))
    .outerjoin(insights, INSIGHT_OF_RECORD)
    .where(of_session(records), HAS_CONTENT, _i.seq.is_(None))
    .order_by(_r.seq)
)  # fmt: skip


def without_insight(database: Database, session_id: str) -> dict[str, float]:
    """The records of a session that need an insight and have none, oldest first: trace_id to timestamp."""
    with database.read() as c:
        rows = c.execute(_BARE, {"session": session_id})
        return {
            r.trace_id: r.timestamp for r in rows if not is_own_answer(r.tool_name, r.output_verbatim, r.head)
        }


def is_own_answer(tool_name: str, verbatim: bool, head: bytes | None) -> bool:
    """Return whether a record is an answer of our own tools, by the beginning of its output."""
    return is_memory_tool(tool_name, bytes(head or b"").decode("utf-8", "replace") if verbatim else None)


Text = Literal["input", "output"]


@dataclass(frozen=True, slots=True, repr=False)
class Outline(Brief):
    """A stored record with the beginnings of its texts only, and what its insight says of it.

    ``number`` is its place in its session (1 is the oldest). ``input_head`` and ``output_head`` are the first
    bytes of the stored texts, ``input_bytes`` and ``output_bytes`` their lengths; a verbatim text is the one
    received, any other is JSON of the value. ``attempts``: how often the Observer's model was asked for the
    summary that it waits for; None where it waits for none. ``mark``: "forgotten" or None.
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
    mark: str | None = None

    @property
    def arguments(self) -> str:
        """The beginning of the arguments as text."""
        return self.input_head.decode("utf-8", "replace")

    @property
    def is_own_answer(self) -> bool:
        """Whether it is an answer of our own tools."""
        return is_own_answer(self.tool_name, self.output_verbatim, self.output_head)


def _head(column: sa.Column[Any]) -> sa.ColumnElement[bytes | None]:
    """The first bytes; NULL for a long value, which SQLite would read as a whole for them."""
    return sa.case((byte_length(column) <= 2**16, first_bytes(column, _HEAD)), else_=sa.null())


_outline = sa.select(
    _r.session_id, _r.seq, _r.trace_id, _r.step_id, _r.tool_name, _r.call_id, _r.timestamp,
    _r.input_verbatim, _r.output_verbatim,
    byte_length(_r.input).label("input_bytes"), byte_length(_r.output).label("output_bytes"),
    _head(_r.input).label("input_head"), _head(_r.output).label("output_head"),
    _i.summary, _i.source, _i.redo, sa.case((waits, _i.attempts)).label("attempts"), _r.mark,
)  # fmt: skip
_with_insight = records.outerjoin(insights, INSIGHT_OF_RECORD)
_row_number = sa.func.row_number().over(order_by=_r.seq).label("number")
_numbered = sa.select(_r.seq, _row_number).where(of_session(records)).subquery()
_older = records.alias()
_until = count_of(_older).where(_older.c.session_id == _r.session_id, _older.c.seq <= _r.seq)
_number = _until.correlate(records).scalar_subquery().label("number")
_BY_IDS = (
    _outline.add_columns(_number).select_from(_with_insight).where(of_session(records), _r.trace_id.in_(IDS))
)


def list_outlines(
    database: Database, session_id: str, limit: int, after: int = 0, tool: str | None = None
) -> list[Outline]:
    """Up to ``limit`` records of a session numbered above ``after``, oldest first; of one tool, if given."""
    listed = sa.select(*_numbered.c).where(_numbered.c.number > after)
    listed = listed.order_by(_numbered.c.number).limit(limit)
    if tool is not None:
        listed = listed.join(records, _r.seq == _numbered.c.seq).where(_r.tool_name == tool)
    page = listed.subquery()
    query = _outline.add_columns(page.c.number).select_from(_with_insight.join(page, page.c.seq == _r.seq))
    rows = database.rows(query.order_by(page.c.number), session=session_id)
    return [_outline_of(database, row) for row in rows]


def outlines(database: Database, session_id: str, trace_ids: Sequence[str]) -> list[Outline]:
    """The records with these ids, in their order; missing ones are skipped."""
    rows = stored_rows(database, _BY_IDS, session_id, trace_ids)
    return [_outline_of(database, rows[t]) for t in dict.fromkeys(trace_ids) if t in rows]


def stored_rows(
    database: Database, query: sa.Select[Any], session_id: str, trace_ids: Sequence[str]
) -> dict[str, RowMapping]:
    """As ``rows_by_id``, over a connection of its own, for ids that may be anything."""
    wanted = [t for t in dict.fromkeys(trace_ids) if is_trace_id(t)]
    if not wanted:
        return {}
    with database.read() as c:
        return rows_by_id(c, query, session_id, wanted)


def _outline_of(database: Database, row: RowMapping) -> Outline:
    values = dict(row)
    for text in ("input", "output"):
        head = values[f"{text}_head"]
        head = database.read_bytes(_r[text], row["seq"], 0, _HEAD) if head is None else head
        values[f"{text}_head"] = bytes(head)
    return Outline(**values)


def find_record(database: Database, trace_id: str) -> tuple[str, InteractionRecord, Insight | None] | None:
    """``(session_id, record, insight)`` of a trace_id in any session; None if there is none."""
    columns = sa.select(*_r, _i.summary, _i.source, _i.redo).select_from(_with_insight)
    query = columns.where(_r.trace_id == trace_id).order_by(_r.seq).limit(1)
    for row in database.rows(query) if is_trace_id(trace_id) else ():
        return row["session_id"], from_row(row), insight_of(row)
    return None


def records_named(database: Database, session_id: str, name: str, limit: int = 20) -> list[Outline]:
    """Find records of a session by a trace_id, the beginning of one, or a number.

    Returns the record with the trace_id ``name``; else up to ``limit`` records, newest first, whose trace_ids begin
    with ``name`` (at least six characters, in any case); else the record of that number (``12`` or ``#12``).
    """
    matches = outlines(database, session_id, [name])
    if not matches and len(name) >= PREFIX and is_trace_id(name):
        fits = sa.func.lower(_r.trace_id).like(like_prefix(name.lower()), escape="/")
        query = sa.select(_r.trace_id).where(of_session(records), fits).order_by(_r.seq.desc()).limit(limit)
        matches = outlines(database, session_id, database.column(query, session=session_id))
    number = re.fullmatch(r"#?([0-9]{1,9})", name)
    if not matches and number and int(number[1]):
        matches = list_outlines(database, session_id, 1, int(number[1]) - 1)
    return matches


def pieces(database: Database, outline: Outline, text: Text) -> Iterator[bytes]:
    """A stored text in pieces of 1 MiB; raises StorageError also after some, if the record is deleted meanwhile."""
    size = outline.input_bytes if text == "input" else outline.output_bytes
    for start in range(0, size, PIECE):
        yield database.read_bytes(_r[text], outline.seq, start, min(PIECE, size - start))


def whole(database: Database, outline: Outline, text: Text) -> str:
    """A stored text."""
    return b"".join(pieces(database, outline, text)).decode("utf-8", "surrogatepass")
