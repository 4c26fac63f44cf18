"""What a kind of database does in its own way; ``sqlite`` and ``postgres`` are the two there are."""

from __future__ import annotations

import string
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError


class Backend(Protocol):
    """A kind of database. ``name`` is its URL without secrets.

    ``in_memory``: one connection for all threads, gone when closed. ``ranks``: similarity is computed by the
    database, not by an index beside it. ``leaders``: how many transactions the writes of a process's
    threads share at a time, 0: each has its own. ``elsewhere``: what to do where the database is somebody
    else's.
    """

    name: str
    elsewhere: str
    in_memory: bool
    ranks: bool
    leaders: int

    def check(self, must_exist: bool) -> None:
        """Refuse what can be seen to fail, in better words than a driver's. Raises DatabaseOpenError."""

    def create_engine(self) -> Engine:
        """An engine whose connections are set up. Raises DatabaseOpenError when the driver is missing."""

    def reading(self, engine: Engine) -> Engine:
        """The engine for connections that only read."""

    def first(self, reader: Engine, statement: sa.Select[Any], values: Mapping[str, Any]) -> Any:
        """The first row of a statement that every step asks."""

    def turn(self) -> AbstractContextManager[Any]:
        """What a writer holds among the threads of its process."""

    def begin_snapshot(self, c: Connection) -> None:
        """Begin a transaction that reads, and sees what was there at its first statement."""

    def begin_write(self, c: Connection) -> None:
        """Begin a transaction that writes."""

    def begin_migration(self, c: Connection) -> None:
        """As ``begin_write``, and alone: others who want to migrate wait until it has ended."""

    def prepare(self, c: Connection) -> None:
        """Make what the first migration needs. Raises DatabaseOpenError where that is not allowed."""

    def tables(self, c: Connection) -> set[str]:
        """The names of all tables. Raises DatabaseOpenError where there is no place for any."""

    def now(self, c: Connection) -> float:
        """Unix seconds by the clock that all users of the database share."""

    def insert_or_ignore(self, table: sa.Table) -> sa.Insert:
        """An INSERT that leaves alone what is there already."""

    def lock_bank(self, c: Connection, *, exclusive: bool) -> bool:
        """Keep the bank's embedder as it is (or others from knowing it) to the end of a transaction.

        False where every write is alone anyway. Taken before ``lock_session``.
        """

    def lock_session(self, c: Connection, session_id: str | None) -> None:
        """Let one writer at a time into a session (None: into all): ``seq`` is then the order of commits."""

    def lock_name(self, c: Connection, name: str) -> None:
        """Let one writer at a time do what goes under a name, to the end of a transaction; taken first."""

    def hold(self, c: Connection, session_ids: Collection[str], bank: bool) -> Collection[str]:
        """As ``lock_session``, and ``lock_bank`` where ``bank``, for several writes at once.

        Waits for no session that another transaction holds, and says which it got. Both are free then.
        """

    def locking_insert(
        self, c: Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]], session_id: str
    ) -> Callable[[], sa.Insert] | None:
        """``insert_or_ignore`` of a row that locks its session as well; None: there is no such short way."""

    def read_bytes(self, c: Connection, column: sa.Column[Any], seq: int, start: int, size: int) -> bytes:
        """So many bytes of one row's value, from ``start`` on; the rest of it is not taken into memory."""

    def holds(self, column: sa.Column[Any], text: str) -> sa.ColumnElement[bool]:
        """Whether a stored text has a text in it, to the letter, but for the case of ASCII letters."""

    def say(self, error: BaseException) -> str:
        """What went wrong with a statement, on one line and without contents."""

    def say_unopened(self, error: BaseException) -> str:
        """Why a database cannot be opened, and what to do about it, on one line."""


_LOWER = {ord(c): c.lower() for c in string.ascii_uppercase}


def ascii_lower(text: str) -> str:
    """A text with its ASCII letters in lower case, all others as they are."""
    return text.translate(_LOWER)


def first_line(error: BaseException) -> str:
    """What a driver said, without the statement and its parameters: those hold contents."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return str(cause).strip().split("\n", 1)[0].rstrip(".") or type(cause).__name__
