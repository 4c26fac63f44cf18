"""Group commit: the writes of one process's threads go to disk together, in one transaction.

Whoever comes first leads: it runs all writes that are waiting, commits once, and hands the lead to the next
in line. A write alone pays nothing for it. Where one of several fails, all are run again, each within a
savepoint, so that it undoes only itself: failures are rare, savepoints are not cheap.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from sqlalchemy.engine import Connection

from memory_bank.errors import StorageError

MOST = 256
"""Writes in one transaction."""

T = TypeVar("T")
Operation = Callable[[Connection], Any]


class Mergeable(Protocol):
    """An operation that concerns its session's rows only, and of which several are cheaper done as one."""

    def __call__(self, c: Connection) -> Any: ...

    def merged(self, c: Connection, operations: Sequence[Any]) -> None:
        """Do several at once, this one among them; raises where they had better be done one by one."""


class _Write:
    """One write in line: what it does, what came of it."""

    __slots__ = ("alone", "done", "error", "operation", "result", "session_id", "turn")

    def __init__(self, operation: Operation, session_id: str) -> None:
        self.operation = operation
        self.session_id = session_id
        self.turn = threading.Event()  # set when it is done, or when it is to lead
        self.done = False
        self.alone = False  # it is to run by itself: its session is another's just now
        self.result: Any = None
        self.error: BaseException | None = None


class GroupWriter:
    """Runs writes in shared transactions; ``transaction()`` opens one and commits it at its end.

    ``hold(c, sessions, bank)``, called first where there are several writes, locks their sessions for the
    transaction without waiting for any, and says which it got; ``bank``: they may concern its embedder.
    ``leaders``: transactions at a time.
    """

    def __init__(
        self,
        transaction: Callable[[], AbstractContextManager[Connection]],
        hold: Callable[[Connection, Collection[str], bool], Collection[str]],
        leaders: int = 1,
    ) -> None:
        self._transaction = transaction
        self._hold = hold
        self._lock = threading.Lock()
        self._line: deque[_Write] = deque()
        self._free = leaders

    def run(self, operation: Callable[[Connection], T], session_id: str) -> T:
        """What ``operation`` returns, once it is on disk; what it raises, and then nothing of it is there.

        It may be run a second time, after the first was rolled back.
        """
        write = _Write(operation, session_id)
        leads = False
        try:
            with self._lock:
                self._line.append(write)
                if self._free:
                    self._free -= 1
                    leads = True
                    write.turn.set()  # so that no other leader takes it
            if not leads:
                write.turn.wait()
                leads = not write.done
        except BaseException:
            self._leave(write, leads)
            raise
        if leads:
            self._lead(write)
        if write.alone:
            with self._transaction() as c:
                return operation(c)
        if write.error is not None:
            raise write.error
        result: T = write.result
        return result

    def _leave(self, write: _Write, leads: bool) -> None:
        """An impatient one goes away; if the lead was just handed to it, the next one leads."""
        with self._lock:
            if write in self._line:
                self._line.remove(write)
                if leads or write.turn.is_set():
                    self._hand_over()

    def _hand_over(self) -> None:
        """Let the next in line that does not lead yet lead. Under the lock."""
        for write in self._line:
            if not write.turn.is_set():
                write.turn.set()
                return
        self._free += 1

    def _lead(self, own: _Write) -> None:
        batch: list[_Write] = []
        try:
            with self._lock:  # who was told to lead takes itself along
                waiting = [w for w in self._line if w is not own and not w.turn.is_set()]
                batch = [own, *waiting[: MOST - 1]]
                taken = set(batch)
                self._line = deque(w for w in self._line if w not in taken)
            self._commit(batch)
        finally:
            with self._lock:
                if own in self._line:
                    self._line.remove(own)
                self._hand_over()
            for write in batch:
                write.done = True
                if write is not own:
                    write.turn.set()

    def _commit(self, batch: list[_Write]) -> None:
        try:
            if len(batch) > 1 and self._together(batch):
                return
            self._guarded([w for w in batch if not w.alone])
        except Exception as e:
            _fail(batch, e)
        except BaseException as e:  # Ctrl-C in the leader is nobody else's
            told = StorageError(
                "a write was interrupted that others shared a transaction with: make the same call again, "
                "what was kept is not stored twice."
            )
            told.__cause__ = e
            _fail(batch, told)
            raise

    def _together(self, batch: list[_Write]) -> bool:
        """Run the writes in one transaction; False when one failed, so that nothing is written."""
        failed = False
        try:
            with self._transaction() as c:
                merging: dict[type, list[Operation]] = {}
                plain: list[_Write] = []
                bank = any(not hasattr(w.operation, "merged") for w in batch)
                held = self._hold(c, {w.session_id for w in batch}, bank)
                for write in batch:
                    write.alone = write.session_id not in held
                    if write.alone:
                        continue
                    if hasattr(write.operation, "merged"):
                        merging.setdefault(type(write.operation), []).append(write.operation)
                    else:
                        plain.append(write)
                failed = True
                for operations in merging.values():
                    operations[0].merged(c, operations)  # type: ignore[attr-defined]
                for write in plain:
                    write.result = write.operation(c)
                failed = False
        except Exception:
            if failed:
                return False
            raise
        return True

    def _guarded(self, batch: list[_Write]) -> None:
        """The same; where one fails alone, the others of its transaction stand."""
        with self._transaction() as c:
            if len(batch) > 1:
                held = self._hold(c, {w.session_id for w in batch}, True)
                for write in batch:
                    write.alone = write.session_id not in held
            for write in batch:
                if len(batch) == 1:
                    write.result = write.operation(c)
                elif not write.alone:
                    _within_a_savepoint(c, write)


def _fail(batch: list[_Write], error: BaseException) -> None:
    for write in batch:
        write.alone = False
        write.error = write.error or error


def _within_a_savepoint(c: Connection, write: _Write) -> None:
    point = c.begin_nested()
    try:
        write.result = write.operation(c)
    except Exception as e:
        try:
            point.rollback()
        except Exception as gone:  # a full disk: SQLite has rolled back the whole transaction
            raise e from gone
        write.error = e
    else:
        point.commit()
