"""What sessions use: the cost of the Observer's model with its limits, and the figures of every step.

Whatever uses the database may raise StorageError.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from memory_bank.bank.database import Database
from memory_bank.bank.schema import (
    LAST,
    SESSION,
    N,
    of_namespace,
    of_session,
    sessions,
    spending,
    steps,
    sum_of,
)
from memory_bank.config import ObserverBudget
from memory_bank.pricing import Usage
from memory_bank.records import Spent

# The cost of the Observer's model

_p = spending.c
_DAY: sa.BindParameter[str] = sa.bindparam("of")
_SPENT = (_p.calls, _p.prompt_tokens, _p.completion_tokens, _p.cost)  # the fields of Spent
_ADD = (
    sa.update(spending)
    .where(of_session(spending), _p.day == _DAY, _p.model == sa.bindparam("by"))
    .values({column: column + sa.bindparam(f"more_{column.name}") for column in _SPENT})
)
SPENT_SUMS = tuple(map(sum_of, _SPENT))
SPENT_BY_SESSION = sa.select(_p.session_id, *SPENT_SUMS).group_by(_p.session_id)
_OF_SESSION = sa.select(*SPENT_SUMS).where(of_session(spending))
_OF_DAY = sa.select(*SPENT_SUMS).where(_p.day == _DAY)


class Spending:
    """The account of one session's Observer."""

    def __init__(
        self, database: Database, session_id: str, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.database = database
        self.session_id = session_id
        self.clock = clock
        self._reserved = threading.local()  # the day of this thread's call, which may end on the next day

    def reserve(self, model: str, expected: Spent, limits: ObserverBudget) -> str | None:
        """Book a call before it is made. Returns why a limit forbids it, or None; then nothing is booked.

        ``expected`` is the most that the call can cost: concurrent callers never exceed a limit together.
        """
        day = self._reserved.day = self._today()
        refused = None
        with self.database.write() as c:
            if _has_limit(limits):  # without limits there is no need for the lock
                self.database.lock_bank(c, exclusive=True)
                refused = _exceeded(self._spent_by_session(c), expected, limits, "session")
                refused = refused or _exceeded(self._spent_today(c), expected, limits, "day")
            if refused is None:
                self._add(c, day, model, expected)
        return refused

    def settle(self, model: str, expected: Spent, actual: Spent) -> None:
        """Replace the expected cost of a booked call by the actual cost."""
        with self.database.write() as c:
            self._add(c, getattr(self._reserved, "day", None) or self._today(), model, actual.less(expected))

    def of_session(self) -> Spent:
        """The cost of the session."""
        with self.database.read() as c:
            return self._spent_by_session(c)

    def of_day(self) -> Spent:
        """The cost of all sessions today (UTC)."""
        with self.database.read() as c:
            return self._spent_today(c)

    def _today(self) -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(self.clock()))

    def _spent_by_session(self, c: Connection) -> Spent:
        return spent_of(c.execute(_OF_SESSION, {"session": self.session_id}).one())

    def _spent_today(self, c: Connection) -> Spent:
        return spent_of(c.execute(_OF_DAY, {"of": self._today()}).one())

    def _add(self, c: Connection, day: str, model: str, more: Spent) -> None:
        key = {"session_id": self.session_id, "day": day, "model": model[:255]}
        c.execute(self.database.insert_or_ignore(spending), {**key, **asdict(Spent())})
        added = {f"more_{name}": amount for name, amount in asdict(more).items()}
        c.execute(_ADD, {"session": self.session_id, "of": day, "by": model[:255], **added})


def spent_of(sums: Iterable[Any]) -> Spent:
    """The values of ``SPENT_SUMS``."""
    calls, prompt, completion, cost = sums
    return Spent(int(calls), int(prompt), int(completion), float(cost))


_LIMITED = ("calls", "tokens", "cost")


def _has_limit(limits: ObserverBudget) -> bool:
    return any(getattr(limits, f"{k}_per_{p}") is not None for k in _LIMITED for p in ("session", "day"))


def _exceeded(spent: Spent, more: Spent, limits: ObserverBudget, period: str) -> str | None:
    """The limit that the sum exceeds, in words, or None."""
    for name in _LIMITED:
        limit = getattr(limits, f"{name}_per_{period}")
        if limit is not None and getattr(spent, name) + getattr(more, name) > limit:
            return f"the Observer's budget is used up ({limit:,g} {name} a {period})"
    return None


# The steps of a session

_LONGEST_MODEL = 255
_SWEEP = 256
"""Steps between two deletions of all old manifests; in between, only those that the newest replace go."""

_t = steps.c
CONTROL = "control"
"""The status of steps of a session that is left without memory to compare with."""

_USED = (
    _t.input_tokens, _t.cached_tokens, _t.written_tokens, _t.output_tokens,
    _t.full_input_tokens, _t.full_cached_tokens, _t.full_written_tokens,
)  # fmt: skip
_FIGURES = (
    _t.number, _t.created, _t.full_tokens, _t.tokens, _t.messages, _t.records, _t.status, _t.strategy,
    _t.milliseconds, _t.manifest.is_not(None).label("detailed"), _t.changed_at, _t.changed, _t.model, *_USED,
)  # fmt: skip
_SESSION = sa.select(sessions.c.generation, sessions.c.deleted).where(sessions.c.session_id == SESSION)
_LAST_NUMBER = sa.select(sa.func.max(_t.number)).where(of_session(steps))
_FIRST_NUMBER = sa.select(sa.func.min(_t.number)).where(of_session(steps))
_ENDS = sa.select(_FIRST_NUMBER.scalar_subquery(), _LAST_NUMBER.scalar_subquery())
_INSERT = sa.insert(steps)
_OUTCOME = (_t.tokens, _t.full_tokens, _t.status, _t.model, *_USED)
_SET_OUTCOME = (
    sa.update(steps)
    .where(of_session(steps), _t.created == sa.bindparam("at", type_=sa.Float(53)))
    .values({c: sa.bindparam(f"new_{c.name}", type_=c.type) for c in _OUTCOME})
)
_FORGET = (
    sa.update(steps)
    .where(
        of_session(steps),
        _t.number > sa.bindparam("above"),
        _t.number <= sa.bindparam("upto"),
        _t.manifest.is_not(None),
    )
    .values(manifest=None)
)
_PAGE = sa.select(*_FIGURES).where(of_session(steps), _t.number > LAST).order_by(_t.number).limit(N)
_ONE = sa.select(*_FIGURES, _t.manifest).where(of_session(steps), _t.number == sa.bindparam("wanted"))
_SUMS = sa.select(
    sa.func.min(_t.number),
    sa.func.max(_t.number),
    sa.func.count(),
    sum_of(_t.tokens),
    sum_of(_t.full_tokens),
).where(of_session(steps))
_bucket = (_t.number - sa.bindparam("from", type_=sa.Integer)) // sa.bindparam("width", type_=sa.Integer)
_b = (  # a subquery: PostgreSQL does not see that two expressions with parameters are equal
    sa.select(_bucket.label("bucket"), _t.number, _t.tokens, _t.full_tokens)
    .where(of_session(steps))
    .subquery()
    .c
)
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
    """A step to store. ``created`` in Unix seconds; ``manifest`` as ``packed`` makes it, or None.

    ``status``: "rebuilt", "unchanged", "passed" (a request for a summary), "refused" (sent as it came, since upstream
    refused a context of the session) or CONTROL.
    ``generation`` is the session's when the step was made; None if unknown. ``changed_at`` is the position of
    the first message that is not that of the step before, where the provider's prefix cache ends, and
    ``changed`` what that message is: "memory", or its role; None where the context begins as the one before.
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
    changed_at: int | None = None
    changed: str | None = None


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What the request of the step made at a time came to.

    ``tokens`` of all that was sent for it, ``full_tokens`` and ``status``: as in ``NewStep``. ``sent``: the usage
    that the provider reported, ``full``: that of the full history (estimated); None with their ``model`` without one.
    """

    session_id: str
    created: float
    tokens: int
    full_tokens: int
    status: str
    model: str | None = None
    sent: Usage | None = None
    full: Usage | None = None


@dataclass(frozen=True, slots=True)
class StepFigures:
    """A stored step. ``messages`` counts the full history, ``records`` those stored at that time.

    ``detailed``: its manifest is stored. ``changed_at``, ``changed``: see ``NewStep``. ``model`` and the usage
    are None where the provider reported none.
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
    changed_at: int | None = None
    changed: str | None = None
    model: str | None = None
    sent: Usage | None = None
    full: Usage | None = None


@dataclass(frozen=True, slots=True)
class StepRange:
    """``steps`` steps up to ``number``: the most tokens of a full history, the most and the least sent."""

    number: int
    steps: int
    tokens: int
    least_tokens: int
    full_tokens: int


@dataclass(frozen=True, slots=True)
class StepSums:
    """All steps of a session: the numbers of the first and the last (None: there are none), and sums."""

    first: int | None
    last: int | None
    steps: int
    tokens: int
    full_tokens: int


def packed(manifest: Mapping[str, object]) -> bytes:
    """A manifest as it is stored: ASCII JSON, which keeps lone surrogates, compressed."""
    return zlib.compress(json.dumps(manifest, separators=(",", ":")).encode("ascii"), 3)


def unpacked(stored: bytes) -> dict[str, Any]:
    """The manifest of its stored form."""
    values: dict[str, Any] = json.loads(zlib.decompress(stored))
    return values


def add_steps(database: Database, new: Sequence[NewStep | StepOutcome], kept: int) -> None:
    """Store steps in one transaction, numbered on from the last step of their session, and what stored steps came to.

    Only the latest ``kept`` steps of a session keep their manifests. A step newer than the deletion of its
    session revives the session, an older one is dropped; a manifest is dropped if the session was emptied
    since.
    """
    by_session: dict[str, list[NewStep]] = {}
    ended: dict[str, list[StepOutcome]] = {}
    for step in new:
        by_session.setdefault(step.session_id, [])
        if isinstance(step, NewStep):
            by_session[step.session_id].append(step)
        else:
            ended.setdefault(step.session_id, []).append(step)
    with database.write() as c:
        for session_id in sorted(by_session):  # one order, so that two processes cannot deadlock
            database.lock_session(c, session_id)
            _add_steps(database, c, session_id, by_session[session_id], kept)
            for outcome in ended.get(session_id, ()):
                c.execute(_SET_OUTCOME, _outcome_values(outcome))


def _storable(text: str, length: int) -> str:
    """The first ``length`` characters of a text, with ``?`` for NUL and lone surrogates, which databases refuse."""
    return text[:length].replace("\0", "?").encode("utf-8", "replace").decode("utf-8")


def _outcome_values(outcome: StepOutcome) -> dict[str, Any]:
    sent, full = outcome.sent, outcome.full
    counts: Sequence[object] = [None] * len(_USED)
    if sent is not None and full is not None:
        counts = (sent.input, sent.cached, sent.written, sent.output, full.input, full.cached, full.written)
    model = None if outcome.model is None else _storable(outcome.model, _LONGEST_MODEL)
    values = (outcome.tokens, outcome.full_tokens, outcome.status, model, *counts)
    named = {f"new_{c.name}": v for c, v in zip(_OUTCOME, values, strict=True)}
    return {"session": outcome.session_id, "at": outcome.created, **named}


def _add_steps(database: Database, c: Connection, session_id: str, new: Sequence[NewStep], kept: int) -> None:
    session = {"session": session_id}
    known = c.execute(_SESSION, session).first()
    if known is None:
        return
    generation, deleted = known
    new = [s for s in new if deleted is None or s.created > deleted]
    if not new:
        return
    before = c.execute(_LAST_NUMBER, session).scalar() or 0
    last = before + len(new)
    rows = []
    for number, s in enumerate(new, before + 1):
        whole = number > last - kept and s.generation in (None, generation)
        row = asdict(s)
        del row["generation"]
        shortened = {
            "status": _storable(s.status, 32),
            "strategy": _storable(s.strategy, 255),
            "changed": s.changed and _storable(s.changed, 16),
        }
        rows.append(row | shortened | {"number": number, "manifest": s.manifest if whole else None})
    c.execute(_INSERT, rows)
    above = 0 if before // _SWEEP != last // _SWEEP else before - kept
    c.execute(_FORGET, {**session, "above": above, "upto": last - kept})
    database.revive(c, session_id)


def list_steps(database: Database, session_id: str, after: int = 0, limit: int = 100) -> list[StepFigures]:
    """Up to ``limit`` steps with a number above ``after``, oldest first."""
    with database.read() as c:
        rows = c.execute(_PAGE, {"session": session_id, "last": after, "n": limit}).all()
    return [_figures(row) for row in rows]


def _both(counts: Sequence[int]) -> tuple[Usage, Usage]:
    """Usage of the context that was sent, and of the full history, from the values of the columns ``_USED``.

    The output tokens are the same for both.
    """
    total, cached, written, output, full, full_cached, full_written = counts
    return Usage(total, cached, written, output), Usage(full, full_cached, full_written, output)


def _figures(row: Sequence[Any]) -> StepFigures:
    """The figures of a row of ``_FIGURES``."""
    known, used = row[: -len(_USED)], row[-len(_USED) :]
    if known[-1] is None:
        return StepFigures(*known)
    sent, full = _both(used)
    return replace(StepFigures(*known), sent=sent, full=full)


def ends_of(database: Database, session_id: str) -> tuple[int, int] | None:
    """The numbers of a session's first and last step; None without steps."""
    with database.read() as c:
        first, last = c.execute(_ENDS, {"session": session_id}).one()
    return None if first is None else (first, last)


def get_step(
    database: Database, session_id: str, number: int
) -> tuple[StepFigures, dict[str, Any] | None] | None:
    """A step and its manifest, if that is stored; None for an unknown step."""
    with database.read() as c:
        row = c.execute(_ONE, {"session": session_id, "wanted": number}).first()
    if row is None:
        return None
    return _figures(row[:-1]), None if row.manifest is None else unpacked(row.manifest)


def token_curve(database: Database, session_id: str, points: int) -> tuple[StepSums, list[StepRange]]:
    """The sums of a session's steps, and the steps in at most ``points`` ranges, oldest first."""
    with database.snapshot() as c:
        first, last, count, tokens, full = c.execute(_SUMS, {"session": session_id}).one()
        sums = StepSums(first, last, count, int(tokens), int(full))
        if first is None:
            return sums, []
        width = -(-(last - first + 1) // points)
        rows = c.execute(_CURVE, {"session": session_id, "from": first, "width": width}).all()
    return sums, [StepRange(*row) for row in rows]


# What model calls cost

_is_control = (_t.status == sa.literal_column(f"'{CONTROL}'")).label("control")
_counts = tuple(map(sum_of, (*_USED, _t.tokens, _t.full_tokens)))
_USAGE_SUMS = sa.select(_is_control, _t.model, sa.func.count(), *_counts).group_by(_is_control, _t.model)
_SESSION_COUNTS = sa.select(_is_control, sa.func.count(sa.distinct(_t.session_id))).group_by(_is_control)
_PRESENT = {
    named: sa.select(sessions.c.session_id).where(of_namespace(named), sessions.c.deleted.is_(None))
    for named in (False, True)
}


@dataclass(frozen=True, slots=True)
class UsageSums:
    """Steps with one model (None: the provider reported no usage) of sessions with memory, or of control ones.

    ``tokens`` and ``full_tokens`` as memory counts them; ``sent`` and ``full`` as in StepUsage.
    """

    control: bool
    model: str | None
    steps: int
    sent: Usage
    full: Usage
    tokens: int
    full_tokens: int


def usage_of_session(database: Database, session_id: str) -> list[UsageSums]:
    """The sums of a session's steps by model."""
    with database.read() as c:
        return _usage_sums(c, _USAGE_SUMS.where(of_session(steps)), {"session": session_id})


def usage_of_namespace(database: Database, namespace: str | None) -> tuple[list[UsageSums], dict[bool, int]]:
    """The sums of the steps of a namespace by model, and the number of sessions: of control ones under True."""
    values = {} if namespace is None else {"namespace": namespace}
    here = _t.session_id.in_(_PRESENT[namespace is not None])
    with database.snapshot() as c:
        counts: dict[bool, int] = {bool(k): n for k, n in c.execute(_SESSION_COUNTS.where(here), values)}
        return _usage_sums(c, _USAGE_SUMS.where(here), values), counts


def _usage_sums(c: Connection, query: sa.Select[Any], values: Mapping[str, object]) -> list[UsageSums]:
    found = []
    for control, model, count, *counts in c.execute(query, values).all():
        n = [int(x) for x in counts]
        found.append(UsageSums(bool(control), model, count, *_both(n[:7]), *n[7:]))
    return found
