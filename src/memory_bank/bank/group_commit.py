"""Group commit: the waiting writes of one process's threads share a transaction.

The first in line leads: it runs all waiting writes and commits once. If one of several fails, all are run again,
each within a savepoint, so that it undoes only itself: failures are rare and savepoints cost time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from sqlalchemy.engine import Connection

from memory_bank.errors import StorageError

MOST = 256
"""The most writes in one transaction."""

T = TypeVar("T")
Operation = Callable[[Connection], T]


class _OneFailed(Exception):
    """One of several writes failed."""


@dataclass(slots=True, eq=False)
class _Write(Generic[T]):
    operation: Operation[T]
    session_id: str
    durable: bool
    taken: bool = False  # a leader runs it
    done: bool = False
    alone: bool = False  # another transaction holds its session: it runs by itself
    result: T = field(init=False)
    error: BaseException | None = None


class GroupWriter:
    """Runs writes in shared transactions; ``transaction(durable=…)`` opens one and commits it at its end.

    ``hold(c, sessions)`` is called first if there are several writes. It locks those sessions that no other
    transaction holds, without waiting, and returns them. ``free``: how many more transactions may run now.
    """

    def __init__(
        self,
        transaction: Callable[..., AbstractContextManager[Connection]],
        hold: Callable[[Connection, Collection[str]], Collection[str]],
        leaders: int = 1,
    ) -> None:
        self._transaction = transaction
        self._hold = hold
        self._changed = threading.Condition()
        self.waiting: list[_Write[Any]] = []
        self.free = leaders

    def run(self, operation: Operation[T], session_id: str, durable: bool = True) -> T:
        """The result of ``operation`` once committed; if it raises, nothing is stored. It may run a second time."""
        write = _Write(operation, session_id, durable)
        with self._changed:
            self.waiting.append(write)
            try:
                self._changed.wait_for(
                    lambda: write.done or (self.free and not write.taken and self.waiting[0] is write)
                )
            except BaseException:
                if not write.taken:
                    self.waiting.remove(write)
                    self._changed.notify_all()
                raise
            if not write.done:
                batch = self.waiting[:MOST]
                del self.waiting[:MOST]
                for other in batch:
                    other.taken = True
                self.free -= 1
                if self.free and self.waiting:  # more than one transaction takes
                    self._changed.notify_all()
        if not write.done:
            try:
                if len(batch) > 1:
                    self._commit(batch)
                else:
                    with self._transaction(durable=durable) as c:
                        write.result = operation(c)
            finally:
                with self._changed:
                    self.free += 1
                    for other in batch:
                        other.done = True
                    self._changed.notify_all()
        if write.alone:
            with self._transaction(durable=durable) as c:
                return operation(c)
        if write.error is not None:
            raise write.error
        return write.result

    def _commit(self, batch: list[_Write[Any]]) -> None:
        try:
            try:
                self._run(batch, savepoints=False)
            except _OneFailed:
                self._run([w for w in batch if not w.alone], savepoints=True)
        except BaseException as e:
            error = e
            if not isinstance(e, Exception):  # Ctrl-C in the leader
                error = StorageError(
                    "a write was interrupted that others shared a transaction with: make the same call again, "
                    "what was kept is not stored twice."
                )
                error.__cause__ = e
            for write in batch:
                if not write.alone:
                    write.error = write.error or error
            if error is not e:
                raise

    def _run(self, batch: list[_Write[Any]], *, savepoints: bool) -> None:
        """Run the writes in one transaction; one that fails undoes all, or only itself with savepoints."""
        with self._transaction(durable=any(write.durable for write in batch)) as c:
            locked = self._hold(c, {w.session_id for w in batch})
            for write in batch:
                write.alone = write.session_id not in locked
            for write in (w for w in batch if not w.alone):
                savepoint = c.begin_nested() if savepoints else None
                try:
                    write.result = write.operation(c)
                except Exception as e:
                    if savepoint is None:
                        raise _OneFailed from e
                    try:
                        savepoint.rollback()
                    except Exception as failed:  # a full disk: SQLite has rolled back the whole transaction
                        raise e from failed
                    write.error = e
                else:
                    if savepoint is not None:
                        savepoint.commit()
