"""What the Observer's model costs, by session, day and model, within the configured limits.

Every function may raise StorageError.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from memory_bank.bank.database import Database
from memory_bank.bank.schema import spending, sum_of
from memory_bank.config import ObserverBudget
from memory_bank.records import Spent

_p = spending.c
_COLUMNS = (_p.calls, _p.prompt_tokens, _p.completion_tokens, _p.cost)  # the fields of Spent
SPENT_SUMS = tuple(map(sum_of, _COLUMNS))


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
        with self.database.write() as c:
            if any(limit is not None for _, limit in limits):
                self.database.lock_bank(c, exclusive=True)
                for period, mine in (("session", _p.session_id == self.session_id), ("day", _p.day == day)):
                    if refused := _exceeded(_spent(c, mine), expected, limits, period):
                        return refused
            self._add(c, day, model, expected)
        return None

    def settle(self, model: str, expected: Spent, actual: Spent) -> None:
        """Correct a call that was booked with its expected cost to what it did cost."""
        with self.database.write() as c:
            self._add(c, getattr(self._reserved, "day", None) or self._today(), model, actual.less(expected))

    def of_session(self) -> Spent:
        """What the session's model calls have cost so far."""
        with self.database.read() as c:
            return _spent(c, _p.session_id == self.session_id)

    def of_day(self) -> Spent:
        """What the model calls of all sessions have cost today (UTC)."""
        with self.database.read() as c:
            return _spent(c, _p.day == self._today())

    def _today(self) -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(self.clock()))

    def _add(self, c: Connection, day: str, model: str, more: Spent) -> None:
        key = {"session_id": self.session_id, "day": day, "model": model[:255]}
        self.database.insert_new(c, spending, [{**key, **asdict(Spent())}])
        added = {
            column: column + amount for column, amount in zip(_COLUMNS, asdict(more).values(), strict=True)
        }
        c.execute(sa.update(spending).filter_by(**key).values(added))


def _spent(c: Connection, which: sa.ColumnElement[bool]) -> Spent:
    return spent_of(c.execute(sa.select(*SPENT_SUMS).where(which)).one())


def spent_of(sums: Iterable[Any]) -> Spent:
    """The values of ``SPENT_SUMS``."""
    calls, prompt, completion, cost = sums
    return Spent(int(calls), int(prompt), int(completion), float(cost))


def _exceeded(spent: Spent, more: Spent, limits: ObserverBudget, period: str) -> str | None:
    """The limit that the sum exceeds, in words, or None."""
    for name in ("calls", "tokens", "cost"):
        limit = getattr(limits, f"{name}_per_{period}")
        if limit is not None and getattr(spent, name) + getattr(more, name) > limit:
            return f"the Observer's budget is used up ({limit:,g} {name} a {period})"
    return None
