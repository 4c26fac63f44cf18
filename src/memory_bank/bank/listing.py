"""Lists of a bank's sessions and records, with counts and sums, and without reading long texts.

Records are listed as outlines; their texts are read in pieces, since an output may have 100 MB. Every function
may raise StorageError.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from memory_bank.bank.database import Database
from memory_bank.bank.rows import from_row, insight_of, is_session_id, is_trace_id
from memory_bank.bank.schema import (
    HAS_CONTENT,
    IDS,
    IDS_AT_ONCE,
    INSIGHT_OF_RECORD,
    JOB_OF_RECORD,
    SESSION,
    N,
    byte_length,
    count_of,
    first_bytes,
    in_parts,
    insights,
    jobs,
    like_prefix,
    of_namespace,
    of_session,
    records,
    sessions,
    spending,
    steps,
    sum_of,
)
from memory_bank.bank.usage import SPENT_BY_SESSION, SPENT_SUMS, spent_of
from memory_bank.records import Insight, InteractionRecord, Spent
from memory_bank.transcript.messages import MARKS, is_memory_tool

_TASK_BYTES = 4_000  # of a task, in lists

_s, _r, _i, _j, _p, _t = sessions.c, records.c, insights.c, jobs.c, spending.c, steps.c

# Sessions


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session in a list. ``task`` is what the user asked for (in pages its beginning); times are Unix
    seconds.

    ``steps`` is the step_id of the latest record, ``jobs`` counts the records that wait for a model and
    ``failing`` those of them that have failed before.
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
    """What contexts cost: the number of steps, tokens of the full histories, tokens that were sent."""

    steps: int = 0
    full: int = 0
    sent: int = 0


@dataclass(frozen=True, slots=True)
class SessionDetails(SessionInfo):
    """A session with its whole task and what takes longer to count.

    ``unobserved`` counts records without an insight (answers of our own tools need none), ``to_redo`` the
    insights to be made again; ``attempts`` is how often the job that fails most was tried.
    """

    unobserved: int = 0
    to_redo: int = 0
    attempts: int = 0
    spent: Spent = field(default_factory=Spent)
    tokens: Tokens = field(default_factory=Tokens)


@dataclass(frozen=True, slots=True)
class NamespaceTotals:
    """The sums of a namespace. ``spent`` includes deleted sessions."""

    sessions: int = 0
    records: int = 0
    insights: int = 0
    jobs: int = 0
    failing: int = 0
    spent: Spent = field(default_factory=Spent)
    tokens: Tokens = field(default_factory=Tokens)


_SessionRow: TypeAlias = "Row[str, float, str | None, str | None, str | bytes | None]"


_columns = (_s.session_id, _s.created, _s.agent_id, _s.forked_from)
_ALL = sa.select(*_columns, _s.task)
_AT = sa.bindparam("at", type_=sa.Float)
_PAGE = {
    named: sa.select(*_columns, first_bytes(_s.task, _TASK_BYTES).label("task"))
    .where(of_namespace(named), _s.deleted.is_(None))
    .order_by(_s.created.desc(), _s.session_id.desc())
    .limit(N)
    for named in (False, True)
}
_PAGE_AFTER = {
    named: page.where(_s.created <= _AT, (_s.created < _AT) | (_s.session_id < sa.bindparam("last")))
    for named, page in _PAGE.items()
}
_PLACE = {
    named: sa.select(_s.created).where(_s.session_id == SESSION, of_namespace(named))
    for named in (False, True)
}
_ONE = {
    named: _ALL.where(_s.session_id == SESSION, of_namespace(named), _s.deleted.is_(None))
    for named in (False, True)
}
_EXISTS = sa.select(_s.session_id).where(_s.session_id == SESSION)
_RECORDS = (
    sa.select(_r.session_id, sa.func.count(), sa.func.max(_r.seq))
    .where(_r.session_id.in_(IDS))
    .group_by(_r.session_id)
)
_LATEST = sa.select(_r.session_id, _r.step_id, _r.timestamp).where(
    _r.seq.in_(sa.bindparam("seqs", expanding=True))
)
_INSIGHTS = sa.select(_i.session_id, sa.func.count()).where(_i.session_id.in_(IDS)).group_by(_i.session_id)
_JOBS = (
    sa.select(_j.session_id, sa.func.count(), sa.func.count(_j.error))
    .where(_j.session_id.in_(IDS))
    .group_by(_j.session_id)
)
_TO_REDO = (
    sa.select(_i.session_id, sa.func.count(_i.redo)).where(_i.session_id.in_(IDS)).group_by(_i.session_id)
)
_ATTEMPTS = (
    sa.select(_j.session_id, sa.func.max(_j.attempts))
    .where(_j.session_id.in_(IDS), _j.error.is_not(None))
    .group_by(_j.session_id)
)
_bare = (  # a subquery: PostgreSQL does not see that two expressions with parameters are equal
    sa.select(
        _r.session_id,
        _r.tool_name,
        sa.or_(
            ~_r.output_verbatim,
            *(first_bytes(_r.output, len(m)) == sa.literal(m.encode(), sa.LargeBinary) for m in MARKS),
        ).label("marked"),
    )
    .select_from(records.outerjoin(insights, INSIGHT_OF_RECORD))
    .where(_r.session_id.in_(IDS), _i.seq.is_(None), HAS_CONTENT)
    .subquery()
)
_BARE = sa.select(*_bare.c, sa.func.count().label("n")).group_by(*_bare.c)
_token_sums = (sa.func.count(), sum_of(_t.full_tokens), sum_of(_t.tokens))
_SPENT = SPENT_BY_SESSION.where(_p.session_id.in_(IDS))
_TOKENS = sa.select(_t.session_id, *_token_sums).where(_t.session_id.in_(IDS)).group_by(_t.session_id)


def _totals(named: bool) -> tuple[sa.Select[*tuple[Any, ...]], ...]:
    ever = sa.select(_s.session_id).where(of_namespace(named))
    present = ever.where(_s.deleted.is_(None))
    return (
        sa.select(sa.func.count()).select_from(present.subquery()),
        count_of(records).where(_r.session_id.in_(present)),
        count_of(insights).where(_i.session_id.in_(present)),
        sa.select(sa.func.count(), sa.func.count(_j.error)).where(_j.session_id.in_(present)),
        sa.select(*SPENT_SUMS).where(_p.session_id.in_(ever)),
        sa.select(*_token_sums).where(_t.session_id.in_(present)),
    )


_TOTALS = {named: _totals(named) for named in (False, True)}


def has_session(database: Database, session_id: str) -> bool:
    """Whether a bank has this session."""
    return is_session_id(session_id) and database.value(_EXISTS, session=session_id) is not None


def list_sessions(database: Database) -> list[SessionDetails]:
    """All sessions of a bank, deleted ones included, the most recently written first."""
    with database.snapshot() as c:
        found = _details(c, c.execute(_ALL).all())
    return sorted(found, key=lambda info: (-(info.last_written or 0.0), info.session_id))


def session_details(database: Database, namespace: str | None, session_id: str) -> SessionDetails | None:
    """A session of a namespace; None if it does not exist."""
    values = {"session": session_id} | ({} if namespace is None else {"namespace": namespace})
    with database.snapshot() as c:
        return next(iter(_details(c, c.execute(_ONE[namespace is not None], values).all())), None)


def list_page(
    database: Database,
    namespace: str | None,
    limit: int,
    after: str | None = None,
    text: str = "",
    prefix: str = "",
) -> tuple[list[SessionInfo], bool] | None:
    """Up to ``limit`` sessions of a namespace, the newest first, and whether there are more.

    ``after`` is the session_id of the last one of the page before; returns None if the namespace never had
    it. ``text``: only sessions whose id (without ``prefix``) or task contains it, ignoring case.
    """
    named = namespace is not None
    values: dict[str, object] = {"namespace": namespace} if named else {}
    statement = _PAGE[named]
    with database.snapshot() as c:
        if after is not None:
            place = c.execute(_PLACE[named], {**values, "session": after}).scalar()
            if place is None:
                return None
            values |= {"at": place, "last": after}
            statement = _PAGE_AFTER[named]
        wanted = text.casefold()
        found: list[_SessionRow] = []
        while True:
            n = limit + 1 if not wanted else IDS_AT_ONCE
            rows = c.execute(statement, {**values, "n": n}).all()
            found += [row for row in rows if not wanted or _contains(row, wanted, prefix)]
            if len(rows) < n or len(found) > limit:
                break
            values |= {"at": rows[-1].created, "last": rows[-1].session_id}
            statement = _PAGE_AFTER[named]
        return _infos(c, found[:limit]), len(found) > limit


def namespace_totals(database: Database, namespace: str | None) -> NamespaceTotals:
    """The sums of a namespace."""
    values = {} if namespace is None else {"namespace": namespace}
    with database.snapshot() as c:
        there, facts, summaries, waiting, spent, tokens = (
            c.execute(q, values).one() for q in _TOTALS[namespace is not None]
        )
    return NamespaceTotals(
        there[0], facts[0], summaries[0], waiting[0], waiting[1], spent_of(spent), Tokens(*map(int, tokens))
    )


def _contains(row: _SessionRow, wanted: str, prefix: str) -> bool:
    name = str(row.session_id).removeprefix(prefix)
    return wanted in name.casefold() or wanted in _task(row.task).casefold()


def _task(task: str | bytes | None) -> str:
    """A task, or the text of its first bytes without an incomplete character at the end."""
    return task or "" if isinstance(task, str | None) else bytes(task).decode("utf-8", "ignore")


def _infos(c: Connection, rows: Sequence[_SessionRow]) -> list[SessionInfo]:
    if not rows:
        return []
    ids = {"ids": [row.session_id for row in rows]}
    counted = {sid: (n, seq) for sid, n, seq in c.execute(_RECORDS, ids)}
    seqs = {"seqs": [seq for _, seq in counted.values()]}
    latest = {sid: (step, when) for sid, step, when in c.execute(_LATEST, seqs)} if counted else {}
    summaries: dict[str, int] = dict(c.execute(_INSIGHTS, ids).all())
    waiting = {sid: (n, failing) for sid, n, failing in c.execute(_JOBS, ids)}
    found = []
    for sid, created, agent_id, forked_from, task in rows:
        step, when = latest.get(sid, (0, None))
        n_jobs, failing = waiting.get(sid, (0, 0))
        found.append(
            SessionInfo(
                sid, created, when, _task(task), agent_id, forked_from,
                counted.get(sid, (0, 0))[0], step, summaries.get(sid, 0), n_jobs, failing,
            )
        )  # fmt: skip
    return found


def _details(c: Connection, rows: Sequence[_SessionRow]) -> list[SessionDetails]:
    found = []
    for start in range(0, len(rows), IDS_AT_ONCE):
        infos = _infos(c, rows[start : start + IDS_AT_ONCE])
        ids = {"ids": [info.session_id for info in infos]}
        to_redo: dict[str, int] = dict(c.execute(_TO_REDO, ids).all())
        attempts = dict(c.execute(_ATTEMPTS, ids).all())
        spent = {row[0]: spent_of(row[1:]) for row in c.execute(_SPENT, ids)}
        tokens = {row[0]: Tokens(*map(int, row[1:])) for row in c.execute(_TOKENS, ids)}
        unobserved: Counter[str] = Counter()
        for row in c.execute(_BARE, ids):
            unobserved[row.session_id] += 0 if row.marked and is_memory_tool(row.tool_name) else row.n
        found += [
            SessionDetails(
                **asdict(info),
                unobserved=unobserved[info.session_id],
                to_redo=to_redo.get(info.session_id, 0),
                attempts=attempts.get(info.session_id, 0),
                spent=spent.get(info.session_id, Spent()),
                tokens=tokens.get(info.session_id, Tokens()),
            )
            for info in infos
        ]
    return found


# Records

PIECE = 2**20
"""How many bytes of a stored text are read at once."""
_HEAD = 2_000  # bytes of arguments and output in an outline
_LONG = 2**16  # bytes; the head of a longer text is read separately

Text = Literal["input", "output"]


@dataclass(frozen=True, slots=True)
class Outline:
    """A record with the beginnings of its texts only.

    ``number`` is its place in its session (1 is the oldest). ``input_head`` and ``output_head`` are the first
    bytes of the stored texts, ``input_bytes`` and ``output_bytes`` their lengths; a verbatim text is the one
    received, any other is JSON of the value. ``summary``, ``source`` and ``redo`` are those of its insight,
    ``attempts`` and ``error`` those of its job; None without one. ``mark``: see ``FactStore.marks``.
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
    mark: str | None = None


def _head(column: sa.Column[Any]) -> sa.ColumnElement[bytes | None]:
    """The first bytes; NULL for a long value, which SQLite would read as a whole for them."""
    return sa.case((byte_length(column) <= _LONG, first_bytes(column, _HEAD)), else_=sa.null())


_with_insight = records.outerjoin(insights, INSIGHT_OF_RECORD)
_outline = sa.select(
    _r.session_id, _r.seq, _r.trace_id, _r.step_id, _r.tool_name, _r.call_id, _r.timestamp,
    _r.input_verbatim, _r.output_verbatim,
    byte_length(_r.input).label("input_bytes"), byte_length(_r.output).label("output_bytes"),
    _head(_r.input).label("input_head"), _head(_r.output).label("output_head"),
    _i.summary, _i.source, _i.redo, _j.attempts, _j.error, _r.mark,
)  # fmt: skip
_sources = _with_insight.outerjoin(jobs, JOB_OF_RECORD)
_numbered = (
    sa.select(_r.seq, sa.func.row_number().over(order_by=_r.seq).label("number"))
    .where(of_session(records))
    .subquery()
)
_numbers = (
    sa.select(*_numbered.c)
    .where(_numbered.c.number > sa.bindparam("after"))
    .order_by(_numbered.c.number)
    .limit(N)
)
_of_tool = _numbers.join(records, _r.seq == _numbered.c.seq).where(_r.tool_name == sa.bindparam("tool"))
_OUTLINES, _OUTLINES_OF_TOOL = (
    _outline.add_columns(page.c.number)
    .select_from(_sources.join(page, page.c.seq == _r.seq))
    .order_by(page.c.number)
    for page in (_numbers.subquery(), _of_tool.subquery())
)
_older = records.alias()
_number = (
    count_of(_older)
    .where(_older.c.session_id == _r.session_id, _older.c.seq <= _r.seq)
    .correlate(records)
    .scalar_subquery()
)
_BY_IDS = (
    _outline.add_columns(_number.label("number"))
    .select_from(_sources)
    .where(of_session(records), _r.trace_id.in_(IDS))
)
_COUNT = count_of(records).where(of_session(records))
_NUMBERED = (
    sa.select(_r.trace_id).where(of_session(records)).order_by(_r.seq).limit(1).offset(sa.bindparam("before"))
)
_BEGINNING = (
    sa.select(_r.trace_id)
    .where(of_session(records), sa.func.lower(_r.trace_id).like(sa.bindparam("like"), escape="/"))
    .order_by(_r.seq.desc())
    .limit(N)
)
_ANYWHERE = (
    sa.select(*_r, _i.summary, _i.source, _i.redo)
    .select_from(_with_insight)
    .where(_r.trace_id == sa.bindparam("wanted"))
    .order_by(_r.seq)
    .limit(1)
)


def list_outlines(
    database: Database, session_id: str, limit: int, after: int = 0, tool: str | None = None
) -> list[Outline]:
    """Up to ``limit`` records of a session numbered above ``after``, oldest first; of one tool, if given."""
    values: dict[str, object] = {"session": session_id, "n": limit, "after": after}
    statement, of_tool = (_OUTLINES, {}) if tool is None else (_OUTLINES_OF_TOOL, {"tool": tool})
    with database.read() as c:
        rows = c.execute(statement, {**values, **of_tool}).all()
    return [_outline_of(database, row) for row in rows]


def outlines(database: Database, session_id: str, trace_ids: Sequence[str]) -> list[Outline]:
    """The records with these ids, in their order; missing ones are skipped."""
    wanted = [t for t in dict.fromkeys(trace_ids) if is_trace_id(t)]
    found: dict[str, Outline] = {}
    for part in in_parts(wanted):
        with database.read() as c:
            rows = c.execute(_BY_IDS, {"session": session_id, "ids": part}).all()
        found.update((row.trace_id, _outline_of(database, row)) for row in rows)
    return [found[t] for t in wanted if t in found]


def holding(
    database: Database, session_id: str, texts: Sequence[Sequence[str]], limit: int, before: int | None = None
) -> list[Outline]:
    """The records whose outputs contain a text of each group, the newest first.

    The case of ASCII letters is ignored. ``before``: only records with a lower ``seq``. The database reads
    the outputs.
    """
    conditions = [sa.or_(*(database.holds(_r.output, text) for text in group)) for group in texts]
    if before is not None:
        conditions.append(_r.seq < before)
    query = (
        sa.select(_r.trace_id).where(of_session(records), *conditions).order_by(_r.seq.desc()).limit(limit)
    )
    return outlines(database, session_id, database.column(query, session=session_id))


def _outline_of(database: Database, row: Row[Any]) -> Outline:
    values = row._asdict()
    for text in ("input", "output"):
        head = values[f"{text}_head"]
        if head is None:
            head = database.read_bytes(_r[text], row.seq, 0, _HEAD)
        values[f"{text}_head"] = bytes(head)
    return Outline(**values)


def find_record(database: Database, trace_id: str) -> tuple[str, InteractionRecord, Insight | None] | None:
    """``(session_id, record, insight)`` of a trace_id in any session; None if there is none."""
    if not is_trace_id(trace_id):
        return None
    with database.read() as c:
        row = c.execute(_ANYWHERE, {"wanted": trace_id}).mappings().first()
    return None if row is None else (row["session_id"], from_row(row), insight_of(row))


def count_records(database: Database, session_id: str) -> int:
    """The number of records of a session."""
    return database.value(_COUNT, session=session_id) or 0


def numbered(database: Database, session_id: str, number: int) -> str | None:
    """The trace_id of the record with this number; None if there is none."""
    return database.value(_NUMBERED, session=session_id, before=number - 1) if number > 0 else None


def beginning_with(database: Database, session_id: str, text: str, limit: int) -> list[str]:
    """The trace_ids of a session that begin with a text, ignoring case, the newest first."""
    if not is_trace_id(text):
        return []
    return database.column(_BEGINNING, session=session_id, like=like_prefix(text.lower()), n=limit)


def pieces(database: Database, outline: Outline, text: Text) -> Iterator[bytes]:
    """A stored text in pieces of 1 MiB, each read over a connection of its own.

    May raise StorageError, also after some pieces if the record is deleted meanwhile.
    """
    size = outline.input_bytes if text == "input" else outline.output_bytes
    for start in range(0, size, PIECE):
        yield database.read_bytes(_r[text], outline.seq, start, min(PIECE, size - start))


def whole(database: Database, outline: Outline, text: Text) -> str:
    """A stored text."""
    return b"".join(pieces(database, outline, text)).decode("utf-8", "surrogatepass")
