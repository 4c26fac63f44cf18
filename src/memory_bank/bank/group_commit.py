"""Group commit: the waiting writes of one process's threads share a transaction.

The first writer leads: it runs all waiting writes, commits once, and hands the lead to the next in the queue.
A single write has no overhead. If one of several fails, all are run again, each within a savepoint, so that
it undoes only itself: failures are rare and savepoints cost time.
"""

from __future__ import annotations

import threading
from collections import deque
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
    """A write in the queue and its result."""

    operation: Operation[T]
    session_id: str
    turn: threading.Event = field(default_factory=threading.Event)  # set when it is done, or has to lead
    done: bool = False
    alone: bool = False  # another transaction holds its session: it runs by itself
    result: T = field(init=False)
    error: BaseException | None = None


class GroupWriter:
    """Runs writes in shared transactions; ``transaction()`` opens one and commits it at its end.

    ``hold(c, sessions)`` is called first if there are several writes. It locks those sessions that no other
    transaction holds, without waiting, and returns them. ``leaders``: how many transactions run at a time.
    """

    def __init__(
        self,
        transaction: Callable[[], AbstractContextManager[Connection]],
        hold: Callable[[Connection, Collection[str]], Collection[str]],
        leaders: int = 1,
    ) -> None:
        self._transaction = transaction
        self._hold = hold
        self._lock = threading.Lock()
        self._queue: deque[_Write[Any]] = deque()
        self._free = leaders

    def run(self, operation: Operation[T], session_id: str) -> T:
        """The result of ``operation`` once it is committed; if it raises, nothing of it is stored.

        The operation may be run a second time after the first was rolled back.
        """
        write = _Write(operation, session_id)
        leads = False
        try:
            with self._lock:
                self._queue.append(write)
                if self._free:
                    self._free -= 1
                    leads = True
                    write.turn.set()  # so that no other leader takes it
            if not leads:
                write.turn.wait()
                leads = not write.done
        except BaseException:
            self._withdraw(write, leads)
            raise
        if leads:
            self._lead(write)
        if write.alone:
            with self._transaction() as c:
                return operation(c)
        if write.error is not None:
            raise write.error
        return write.result

    def _withdraw(self, write: _Write[T], leads: bool) -> None:
        """Remove an interrupted write; if it had to lead, the next one leads."""
        with self._lock:
            if write in self._queue:
                self._queue.remove(write)
                if leads or write.turn.is_set():
                    self._hand_over()

    def _hand_over(self) -> None:
        """Let the next write lead that does not lead yet. Called under the lock."""
        for write in self._queue:
            if not write.turn.is_set():
                write.turn.set()
                return
        self._free += 1

    def _lead(self, own: _Write[T]) -> None:
        batch: list[_Write[Any]] = []
        try:
            with self._lock:  # other leaders take themselves
                waiting = [w for w in self._queue if w is not own and not w.turn.is_set()]
                batch = [own, *waiting[: MOST - 1]]
                taken = set(batch)
                self._queue = deque(w for w in self._queue if w not in taken)
            self._commit(batch)
        finally:
            with self._lock:
                if own in self._queue:
                    self._queue.remove(own)
                self._hand_over()
            for write in batch:
                write.done = True
                if write is not own:
                    write.turn.set()

    def _commit(self, batch: list[_Write[Any]]) -> None:
        try:
            try:
                self._run(batch, savepoints=False)
            except _OneFailed:
                self._run([w for w in batch if not w.alone], savepoints=True)
        except Exception as e:
            _fail(batch, e)
        except BaseException as e:  # Ctrl-C in the leader: the others get a StorageError
            error = StorageError(
                "a write was interrupted that others shared a transaction with: make the same call again, "
                "what was kept is not stored twice."
            )
            error.__cause__ = e
            _fail(batch, error)
            raise

    def _run(self, batch: list[_Write[Any]], *, savepoints: bool) -> None:
        """Run the writes in one transaction; one that fails undoes all, or only itself with savepoints."""
        with self._transaction() as c:
            if len(batch) == 1:
                batch[0].result = batch[0].operation(c)
                return
            held = self._hold(c, {w.session_id for w in batch})
            for write in batch:
                write.alone = write.session_id not in held
            for write in (w for w in batch if not w.alone):
                if savepoints:
                    _run_within_savepoint(c, write)
                    continue
                try:
                    write.result = write.operation(c)
                except Exception as e:
                    raise _OneFailed from e


def _fail(batch: list[_Write[Any]], error: BaseException) -> None:
    """Set the error of the writes in the failed transaction, not of those that run in their own."""
    for write in batch:
        if not write.alone:
            write.error = write.error or error


def _run_within_savepoint(c: Connection, write: _Write[T]) -> None:
    savepoint = c.begin_nested()
    try:
        write.result = write.operation(c)
    except Exception as e:
        try:
            savepoint.rollback()
        except Exception as failed:  # a full disk: SQLite has rolled back the whole transaction
            raise e from failed
        write.error = e
    else:
        savepoint.commit()
