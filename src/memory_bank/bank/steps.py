"""The recorded steps of sessions: sizes and composition of their contexts, and what the provider reported.

Whatever uses the database may raise StorageError.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import RowMapping

from memory_bank.bank.database import ANY, REVIVE, Database
from memory_bank.bank.folds import FoldReasons
from memory_bank.bank.schema import (
    USED,
    WITHOUT,
    of_namespace,
    of_session,
    records,
    sessions,
    steps,
    sum_of,
    sums,
)
from memory_bank.plan import Fate
from memory_bank.pricing import Usage
from memory_bank.transcript.messages import runs_of

CONTROL = "control"
"""The status of steps of a session that is left without memory to compare with."""
AS_IT_CAME = ("unchanged", CONTROL, "failed", "refused")
"""The statuses of steps whose messages were sent as they came."""
_SWEEP = 256
"""Steps between two deletions of all old answers; in between, only those that the newest replace go."""

_AS_SENT = "the messages were sent as they came"
_GONE = "its messages are no longer in the list that the client sends"
_REASONS = {
    Fate.KEPT: "one of the latest calls, or kept whole",
    Fate.PART: "its output is shortened",
    Fate.LISTED: "summarised in the memory message",
    Fate.LEFT_OUT: "older than what the strategy keeps",
}

_t = steps.c
_REPORTED = _t.full_input_tokens  # NULL without usage
_without = _t.status.in_(sa.literal_column(f"'{status}'") for status in WITHOUT)
_LISTED = tuple(c for c in _t if c.name not in ("fates", "answer"))
_LAST = sa.select(sa.func.max(_t.number)).where(of_session(steps)).scalar_subquery()
_SESSION = sa.select(sessions.c.generation, sessions.c.deleted, _LAST).where(of_session(sessions))
_INSERT = sa.insert(steps)
_old = _t.number > sa.bindparam("above"), _t.number <= sa.bindparam("to"), _t.answer.is_not(None)
_DROP_ANSWERS = sa.update(steps).where(of_session(steps), *_old).values(answer=sa.null())


@dataclass(frozen=True, slots=True)
class StepFigures:
    """The figures of a step. ``number`` counts a session's steps, 0 before it is stored; ``created`` in Unix seconds.

    ``tokens`` of all that was sent, ``full_tokens`` of the request as it came; ``messages`` counts the full history,
    ``records`` those stored at that time. ``status``: "rebuilt", "unchanged", "passed" (a request for a summary),
    "answered" (one that the bank answered), "failed" (memory failed, for the ``reason``),
    "refused" (sent as it came, since upstream refused a context of the session) or CONTROL. ``changed_at`` is the
    position of the first message that is not that of the step before, where the provider's prefix cache ends, and
    ``changed`` what that message is: "memory", or its role; None where the context begins as the one before.
    ``sent``: the usage that the provider reported, ``full``: that of the full history (estimated); None without
    one, and then ``untold`` says why. ``billed``: the cost that the provider named, in dollars. ``seconds`` until the
    end of the answer, its ``http_status``, and the ``error`` that it or the connection brought. ``fold``: the number
    of the fold that the context shows; None without one, 0 where that is not stored.
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
    changed_at: int | None = None
    changed: str | None = None
    model: str | None = None
    sent: Usage | None = None
    full: Usage | None = None
    billed: float | None = None
    untold: str | None = None
    seconds: float | None = None
    http_status: int | None = None
    error: str | None = None
    reason: str | None = None
    fold: int | None = None
    number: int = 0


@dataclass(frozen=True, slots=True)
class StepToStore:
    """Figures to store. ``fates``: by fate, the numbers of the records that the context shows, but for those of the
    fold. ``answer`` as ``packed`` makes it; ``generation`` is the session's when the step was made.
    """

    figures: StepFigures
    fates: Mapping[str, Sequence[int]] | None = None
    answer: bytes | None = None
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class StepRange:
    """Some steps in a row: how many, the last one's ``number``, and the extremes of their tokens."""

    number: int
    steps: int
    tokens: int
    least_tokens: int
    full_tokens: int


@dataclass(frozen=True, slots=True)
class UsageSums:
    """Steps with one model (None: not known).

    ``of``: the session or the number of the period that was asked by. ``reported``: steps with the provider's usage;
    ``sent`` and ``full`` are their sums. ``billed``: the sum that the provider named for these steps; None for steps
    that are priced by their tokens. ``untold``: why the tokens of these steps are not known. ``tokens`` and
    ``full_tokens`` as memory counts them. ``errors``: steps with an error, ``without_memory``:
    those of WITHOUT. ``last``: when the latest began.
    """

    of: str | int | None
    model: str | None
    untold: str | None
    billed: float | None
    steps: int
    reported: int
    errors: int
    without_memory: int
    last: float
    sent: Usage
    full: Usage
    tokens: int
    full_tokens: int


def packed(answer: Mapping[str, object]) -> bytes:
    """An answer as it is stored: ASCII JSON, which keeps lone surrogates, compressed."""
    return zlib.compress(json.dumps(answer, separators=(",", ":")).encode("ascii"), 3)


def unpacked(stored: bytes) -> dict[str, Any]:
    """The answer of its stored form."""
    values: dict[str, Any] = json.loads(zlib.decompress(stored))
    return values


def add_steps(database: Database, new: Sequence[StepToStore], kept: int | None = None) -> None:
    """Store new steps, numbered after the last one of their session, all or none.

    Only the latest ``kept`` steps of a session keep their answers; None: all do. A step newer than the deletion of
    its session revives the session, an older one is dropped; so is what its context showed, if content was deleted
    since.
    """
    with database.write(durable=False) as c:
        for session_id in sorted({s.figures.session_id for s in new}):  # one order: no deadlock
            database.lock_session(c, session_id)
            known = database.fetch(c, _SESSION, session=session_id)
            generation, deleted, before = known[0] if known else (0, float("inf"), 0)
            mine = [s for s in new if s.figures.session_id == session_id]
            mine = [s for s in mine if deleted is None or s.figures.created > deleted]
            if not mine:
                continue
            before = before or 0
            last = before + len(mine)
            rows = []
            for number, step in enumerate(mine, before + 1):
                row = _row(step.figures) | {"number": number}
                row["answer"] = step.answer if kept is None or number > last - kept else None
                if step.generation not in (None, generation):
                    row["fold"] = None
                elif step.fates is not None:
                    fates = {fate: runs_of(sorted({*numbers})) for fate, numbers in step.fates.items()}
                    row["fates"] = json.dumps(fates)
                rows.append(row)
            database.change(c, _INSERT, rows)
            if kept is not None:
                above = 0 if before // _SWEEP != last // _SWEEP else before - kept
                database.change(c, _DROP_ANSWERS, {"session": session_id, "above": above, "to": last - kept})
            if deleted is not None:
                database.change(c, REVIVE, {"session": session_id})


def _row(step: StepFigures) -> dict[str, Any]:
    row: dict[str, Any] = {c.name: getattr(step, c.name, None) for c in _t}
    lengths = {"status": 32, "strategy": 255, "changed": 16, "model": 255, "reason": 255, "untold": 255}
    for name, length in lengths.items():
        if row[name]:  # without NUL and lone surrogates, which databases refuse
            row[name] = row[name][:length].replace("\0", "?").encode("utf-8", "replace").decode("utf-8")
    if (sent := step.sent) is not None and (full := step.full) is not None:
        counts = (
            sent.input, sent.cached, sent.written, sent.output, full.input, full.cached, full.written,
            sent.written_hour, full.written_hour,
        )  # fmt: skip
        row |= {c.name: n for c, n in zip(USED, counts, strict=True)}
    return row


def _figures(row: RowMapping) -> StepFigures:
    values = {k: row[k] for k in StepFigures.__dataclass_fields__ if k not in ("sent", "full")}
    counts = [row[c.name] for c in USED]
    sent, full = (None, None) if row[_REPORTED.name] is None else _both([n or 0 for n in counts])
    return StepFigures(**values, sent=sent, full=full)


def _both(counts: Sequence[int]) -> tuple[Usage, Usage]:
    """Usage of the context that was sent, and of the full history, which has the same output tokens."""
    total, cached, written, output, full, full_cached, full_written, hour, full_hour = counts
    return Usage(total, cached, written, output, hour), Usage(
        full, full_cached, full_written, output, full_hour
    )


def list_steps(
    database: Database,
    session_id: str,
    after: int = 0,
    limit: int = 100,
    only: Literal["errors", "without_memory"] | None = None,
) -> list[StepFigures]:
    """Up to ``limit`` steps with a number above ``after``, oldest first; ``only`` those with errors, or WITHOUT."""
    page = sa.select(*_LISTED).where(of_session(steps), _t.number > after).order_by(_t.number).limit(limit)
    if only is not None:
        page = page.where(_t.error.is_not(None) if only == "errors" else _without)
    return [_figures(row) for row in database.rows(page, session=session_id)]


def wrong_steps(
    database: Database,
    namespace: str | None,
    only: Literal["errors", "without_memory"] | None = None,
    *,
    session_id: str | None = None,
    since: float = 0.0,
    until: float | None = None,
    limit: int = 20,
) -> list[tuple[StepFigures, str | None]]:
    """The latest steps of a namespace with errors, or WITHOUT, each with its session's title; newest first."""
    wrong = {
        "errors": _t.error.is_not(None),
        "without_memory": _without,
        None: _t.error.is_not(None) | _without,
    }
    found = (
        sa.select(*_LISTED, sessions.c.title)
        .join_from(steps, sessions, _t.session_id == sessions.c.session_id)
        .where(of_namespace(namespace), sessions.c.deleted.is_(None), wrong[only], _t.created >= since)
        .order_by(_t.created.desc(), _t.session_id, _t.number.desc())
        .limit(limit)
    )
    found = found if session_id is None else found.where(_t.session_id == session_id)
    found = found if until is None else found.where(_t.created < until)
    return [(_figures(row), row["title"]) for row in database.rows(found)]


def ends_of(database: Database, session_id: str) -> tuple[int, int] | None:
    """The numbers of a session's first and last step; None without steps."""
    ends = sa.select(sa.func.min(_t.number), sa.func.max(_t.number)).where(of_session(steps))
    with database.read() as c:
        first, last = c.execute(ends, {"session": session_id}).one()
    return None if first is None else (first, last)


def get_step(
    database: Database, session_id: str, number: int
) -> tuple[StepFigures, dict[str, Any] | None] | None:
    """A step, and the model's answer where that is stored; None for an unknown step."""
    one = sa.select(*_LISTED, _t.answer).where(of_session(steps), _t.number == number)
    for row in database.rows(one, session=session_id):
        return _figures(row), None if row["answer"] is None else unpacked(row["answer"])
    return None


def agents_words(database: Database, session_id: str) -> dict[int, str]:
    """The agent's words in the answers that are stored, in order, by the number of records before it."""
    found = sa.select(_t.records, _t.answer).where(of_session(steps), _t.answer.is_not(None))
    rows = database.rows(found.order_by(_t.number), session=session_id)
    texts = {row["records"]: unpacked(row["answer"]).get("parts") or () for row in rows}
    return {n: "\n…\n".join(p["text"] for p in parts if "text" in p) for n, parts in texts.items()}


class StepShown(NamedTuple):
    """The stored facts of a step's context; ``fates``: first and last numbers of records, as in StepToStore."""

    number: int
    status: str
    changed: str | None
    records: int
    fold: int | None = None
    fates: Mapping[str, Sequence[Sequence[int]]] | None = None

    def of(self, number: int, why: FoldReasons | None) -> tuple[Fate | None, float | None, str]:
        """Fate, worth and reason of a record; None for a fate that is not known. ``why``: of the step's fold."""
        if self.fates is None:
            return None, None, ""
        if self.status in WITHOUT:  # the context was made, and not sent
            return Fate.KEPT, None, _AS_SENT
        for fate, runs in self.fates.items():
            if any(first <= number <= last for first, last in runs):
                return Fate(fate), None, _AS_SENT if self.status in AS_IT_CAME else _REASONS[Fate(fate)]
        if self.fold is not None and (why is None or number <= why.records):
            return (None, None, "") if why is None else why.of(number)
        gone = self.fold is not None or self.status in AS_IT_CAME
        return Fate.LEFT_OUT, None, _GONE if gone else _REASONS[Fate.LEFT_OUT]


def steps_shown(
    database: Database, session_id: str, *, since: int = 0, numbers: tuple[int, int] = (0, 2**31 - 1)
) -> list[StepShown]:
    """The steps with these first and last ``numbers``, ``since`` a session had so many records, oldest first."""
    columns = _t.number, _t.status, _t.changed, _t.records, _t.fold, _t.fates
    wanted = _t.records >= since, _t.number.between(*numbers)
    found = sa.select(*columns).where(of_session(steps), *wanted).order_by(_t.number)
    with database.read() as c:
        rows = c.execute(found, {"session": session_id}).all()
    return [StepShown(*row[:-1], None if row.fates is None else json.loads(row.fates)) for row in rows]


def calls_until(database: Database, session_id: str, count: int) -> list[tuple[str, str]]:
    """The trace_ids and tools of a session's first ``count`` records."""
    columns = records.c.trace_id, records.c.tool_name
    first = sa.select(*columns).where(of_session(records)).order_by(records.c.seq).limit(count)
    with database.read() as c:
        return [(trace_id, tool) for trace_id, tool in c.execute(first, {"session": session_id})]


def token_curve(
    database: Database, session_id: str, points: int
) -> tuple[dict[str, int | None], list[StepRange]]:
    """A session's step sums (also ``first``, ``last``), and its steps in at most ``points`` ranges, oldest first."""
    ends = sa.func.min(_t.number), sa.func.max(_t.number), sa.func.count()
    with database.snapshot() as c:
        of_all = sa.select(*ends, sum_of(_t.tokens), sum_of(_t.full_tokens)).where(of_session(steps))
        first, last, count, *tokens = c.execute(of_all, {"session": session_id}).one()
        names = ("first", "last", "steps", "tokens", "full_tokens")
        sums = dict(zip(names, (first, last, count, *map(int, tokens)), strict=True))
        if first is None:
            return sums, []
        bucket = (_t.number - first) // -(-(last - first + 1) // points)
        b = (  # a subquery: PostgreSQL does not see that two expressions with parameters are equal
            sa.select(bucket.label("bucket"), _t.number, _t.tokens, _t.full_tokens)
            .where(of_session(steps))
            .subquery()
            .c
        )
        most, least = sa.func.max, sa.func.min
        figures = most(b.number), sa.func.count(), most(b.tokens), least(b.tokens), most(b.full_tokens)
        curve = sa.select(*figures).group_by(b.bucket).order_by(b.bucket)
        return sums, [StepRange(*row) for row in c.execute(curve, {"session": session_id})]


# What model calls cost

_is_billed = _t.billed.is_not(None).label("is_billed")
_counted_by: tuple[Any, ...] = _t.model, _t.untold, _is_billed
_counted = (
    sum_of(_t.billed), sa.func.count(), sa.func.count(_REPORTED), sa.func.count(_t.error),
    sum_of(sa.case((_without, 1), else_=0)), sa.func.max(_t.created),
    *map(sum_of, (*USED, _t.tokens, _t.full_tokens)),
)  # fmt: skip
_kept_by = tuple(sums.c[name] for name in ("model", "untold", "is_billed"))
_kept = (
    *(sum_of(sums.c[name]) for name in ("billed", "steps", "reported", "errors", "without_memory")),
    sa.func.max(sums.c.last), *(sum_of(sums.c[c.name]) for c in (*USED, _t.tokens, _t.full_tokens)),
)  # fmt: skip


def _period(seconds: int, offset: int) -> sa.ColumnElement[Any]:
    """The number of the period in which a step began."""
    exact = (_t.created + sa.literal_column(f"{offset:d}.0")) / sa.literal_column(f"{seconds:d}.0")
    nearest = sa.func.round(exact)  # not every SQLite can round down, and databases round halves differently
    return sa.case((nearest > exact, nearest - sa.literal_column("1")), else_=nearest)


def usage_sums(
    database: Database,
    namespace: str | None,
    by: Literal["all", "session", "period"] = "all",
    *,
    session_ids: Collection[str] | None = None,
    since: float | None = None,
    period: int = 86_400,
    offset: int = 0,
) -> list[UsageSums]:
    """The sums of a namespace's steps (ANY: of all) by model, and session or period; of these sessions, or ``since``.

    ``period`` in seconds; the first one begins ``offset`` seconds before 1970 (UTC). Steps that the provider named
    the cost of are apart, and those without usage by the reason.
    """
    here = sa.true() if namespace is ANY else of_namespace(namespace)
    mine = sa.select(sessions.c.session_id).where(here, sessions.c.deleted.is_(None))
    ids = mine if session_ids is None else session_ids
    if by == "period" or since is not None:
        table, keys, figures, here = steps, _counted_by, _counted, _t.created >= (since or 0.0)
        here &= _t.session_id.in_(sa.select(sums.c.session_id).where(sums.c.last >= (since or 0.0)))
    else:
        table, keys, figures, here = sums, _kept_by, _kept, sums.c.steps > 0
    places = {"all": sa.null(), "session": table.c.session_id, "period": _period(period, offset)}
    of = places[by].label("of")
    query = sa.select(of, *keys, *figures).where(table.c.session_id.in_(ids), here)
    query = query.group_by(*keys) if by == "all" else query.group_by(of, *keys)
    found = []
    with database.read() as c:
        for of, model, untold, is_billed, billed, *numbers in c.execute(query).all():
            count, reported, errors, without, last, *tokens = numbers
            n = [int(x) for x in tokens]
            key, paid = int(of) if by == "period" else of, float(billed) if is_billed else None
            counts = int(count), int(reported), int(errors), int(without), last
            both = _both(n[: len(USED)])
            names = model or None, untold or None
            found.append(UsageSums(key, *names, paid, *counts, *both, *n[len(USED) :]))
    return found
