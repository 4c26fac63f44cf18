"""What the Observer's model was asked and what that cost: counted in the bank, so that limits hold."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from memory_bank.bank.database import Database
from memory_bank.bank.schema import spending
from memory_bank.ports import SpendingLimits
from memory_bank.records import Spent

_t = spending.c
_key = (
    (_t.session_id == sa.bindparam("session"))
    & (_t.day == sa.bindparam("of"))
    & (_t.model == sa.bindparam("by"))
)
_ADD = (
    sa.update(spending)
    .where(_key)
    .values(
        calls=_t.calls + sa.bindparam("more_calls"),
        prompt_tokens=_t.prompt_tokens + sa.bindparam("more_prompt"),
        completion_tokens=_t.completion_tokens + sa.bindparam("more_completion"),
        cost=_t.cost + sa.bindparam("more_cost"),
    )
)
_sums = (
    sa.func.coalesce(sa.func.sum(_t.calls), 0),
    sa.func.coalesce(sa.func.sum(_t.prompt_tokens), 0),
    sa.func.coalesce(sa.func.sum(_t.completion_tokens), 0),
    sa.func.coalesce(sa.func.sum(_t.cost), 0.0),
)
_OF_SESSION = sa.select(*_sums).where(_t.session_id == sa.bindparam("session"))
_OF_DAY = sa.select(*_sums).where(_t.day == sa.bindparam("of"))


class Spending:
    """The account of one session's Observer in a bank. Every call may raise StorageError."""

    def __init__(
        self, database: Database, session_id: str, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.database = database
        self.session_id = session_id
        self.clock = clock
        self._reserved = threading.local()  # the day of this thread's call, which may end on the next one

    def reserve(self, model: str, expected: Spent, limits: SpendingLimits) -> str | None:
        """Book a call before it is made; the reason when a limit forbids it, and nothing is booked then.

        ``expected`` is what the call may cost at most: concurrent callers never pass a limit together.
        """
        day = self._reserved.day = self._day()
        refused = None
        with self.database.write() as c:
            if _any(limits):  # else nobody need wait
                self.database.lock_bank(c, exclusive=True)
                refused = _refused(self._read(c, _OF_SESSION), expected, limits, "session")
                refused = refused or _refused(self._read(c, _OF_DAY), expected, limits, "day")
            if refused is None:
                self._add(c, day, model, expected)
        return refused

    def settle(self, model: str, expected: Spent, actual: Spent) -> None:
        """Put in place of what a booked call was expected to cost what it did cost."""
        with self.database.write() as c:
            self._add(c, getattr(self._reserved, "day", None) or self._day(), model, actual.less(expected))

    def of_session(self) -> Spent:
        """What the session has cost."""
        with self.database.read() as c:
            return self._read(c, _OF_SESSION)

    def of_day(self) -> Spent:
        """What all sessions have cost today (UTC)."""
        with self.database.read() as c:
            return self._read(c, _OF_DAY)

    def _day(self) -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(self.clock()))

    def _read(self, c: Connection, statement: sa.Select[Any]) -> Spent:
        asked = {"session": self.session_id} if statement is _OF_SESSION else {"of": self._day()}
        calls, prompt, completion, cost = c.execute(statement, asked).one()
        return Spent(int(calls), int(prompt), int(completion), float(cost))

    def _add(self, c: Connection, day: str, model: str, more: Spent) -> None:
        key = {"session_id": self.session_id, "day": day, "model": model[:255]}
        empty = {"calls": 0, "prompt_tokens": 0, "completion_tokens": 0, "cost": 0.0}
        c.execute(self.database.insert_or_ignore(spending), {**key, **empty})
        c.execute(
            _ADD,
            {
                "session": self.session_id,
                "of": day,
                "by": model[:255],
                "more_calls": more.calls,
                "more_prompt": more.prompt_tokens,
                "more_completion": more.completion_tokens,
                "more_cost": more.cost,
            },
        )


def spent_by_session(database: Database) -> dict[str, Spent]:
    """What every session has cost, those without spending left out."""
    query = sa.select(_t.session_id, *_sums).group_by(_t.session_id)
    with database.read() as c:
        rows = c.execute(query).all()
    return {sid: Spent(int(n), int(p), int(k), float(cost)) for sid, n, p, k, cost in rows}


def _any(limits: SpendingLimits) -> bool:
    """Whether there is a limit at all."""
    kinds = ("calls", "tokens", "cost")
    return any(getattr(limits, f"{k}_per_{p}") is not None for k in kinds for p in ("session", "day"))


def _refused(spent: Spent, more: Spent, limits: SpendingLimits, period: str) -> str | None:
    """Which limit the two together pass, in words."""
    for name, have, add in (
        ("calls", spent.calls, more.calls),
        ("tokens", spent.tokens, more.tokens),
        ("cost", spent.cost, more.cost),
    ):
        limit = getattr(limits, f"{name}_per_{period}")
        if limit is not None and have + add > limit:
            return f"the Observer's budget is used up ({limit:,g} {name} a {period})"
    return None
