"""Group commit: the writes of one process's threads go to disk together, in one transaction.

Whoever comes first leads: it runs all writes that are waiting, each within a savepoint of its own, commits
once, and hands the lead to the next in line. A write alone pays nothing for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from sqlalchemy.engine import Connection

MOST = 256
"""Writes in one transaction."""

T = TypeVar("T")
Operation = Callable[[Connection], Any]


class _Write:
    """One write in line: what it does, what came of it."""

    __slots__ = ("done", "error", "operation", "result", "turn")

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.turn = threading.Event()  # set when it is done, or when it is to lead
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None


class GroupWriter:
    """Runs writes in shared transactions; ``transaction()`` opens one and commits it at its end."""

    def __init__(self, transaction: Callable[[], AbstractContextManager[Connection]]) -> None:
        self._transaction = transaction
        self._lock = threading.Lock()
        self._line: deque[_Write] = deque()
        self._led = False

    def run(self, operation: Callable[[Connection], T]) -> T:
        """What ``operation`` returns, once it is on disk; what it raises, and then nothing of it is there."""
        write = _Write(operation)
        with self._lock:
            self._line.append(write)
            leads, self._led = not self._led, True
        try:
            if not leads:
                write.turn.wait()
                leads = not write.done
        except BaseException:
            self._leave(write)
            raise
        if leads:
            self._lead(write)
        if write.error is not None:
            raise write.error
        result: T = write.result
        return result

    def _leave(self, write: _Write) -> None:
        """An impatient one goes away; if the lead was just handed to it, the next one leads."""
        with self._lock:
            if write in self._line:
                self._line.remove(write)
                if write.turn.is_set():
                    self._hand_over()

    def _hand_over(self) -> None:
        """Let the next in line lead. Under the lock."""
        if self._line:
            self._line[0].turn.set()
        else:
            self._led = False

    def _lead(self, own: _Write) -> None:
        with self._lock:
            batch = [self._line.popleft() for _ in range(min(MOST, len(self._line)))]
        try:
            self._commit(batch)
        finally:
            with self._lock:
                self._hand_over()
            for write in batch:
                write.done = True
                if write is not own:
                    write.turn.set()

    def _commit(self, batch: list[_Write]) -> None:
        try:
            with self._transaction() as c:
                for write in batch:
                    _run(c, write, alone=len(batch) == 1)
        except Exception as e:
            for write in batch:
                write.error = write.error or e
        except BaseException as e:  # Ctrl-C in the leader: the others are told that nothing was written
            for write in batch:
                write.error = write.error or e
            raise


def _run(c: Connection, write: _Write, *, alone: bool) -> None:
    """Run one write; where it fails alone, the others of its transaction stand."""
    if alone:
        write.result = write.operation(c)
        return
    point = c.begin_nested()
    try:
        write.result = write.operation(c)
    except Exception as e:
        point.rollback()
        write.error = e
    else:
        point.commit()
