"""The interface to a kind of database; ``sqlite`` and ``postgres`` implement it."""

from __future__ import annotations

import string
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError


class Backend(Protocol):
    """A kind of database; methods with a body are those of one whose writes are exclusive and that has no server.

    ``name`` is its URL without secrets.

    ``in_memory``: all threads share one connection, and closing it deletes the data. ``ranks``: the database
    computes similarities itself. ``leaders``: how many shared transactions a process runs at a time; with 0
    every write has its own. ``read_only``: it cannot be written here. ``elsewhere``: advice for a database
    that belongs to another program.
    """

    name: str
    elsewhere: str
    in_memory: bool
    ranks: bool
    leaders: int
    read_only: bool

    def check(self, must_exist: bool) -> None:
        """Check the URL before a driver does. Raises DatabaseOpenError."""

    def create_engine(self) -> Engine:
        """An engine with configured connections. Raises DatabaseOpenError if the driver is missing."""

    def reading(self, engine: Engine) -> Engine:
        """The engine for connections that only read."""
        return engine

    def first(
        self, reader: Engine, statement: sa.Select[*tuple[Any, ...]], values: Mapping[str, object]
    ) -> Sequence[Any] | None:
        """The first row of a statement that every step executes."""

    def wipe(self, engine: Engine, seconds: float) -> None:
        """Remove copies of deleted content that the database keeps beside its tables, if others let it."""
        return

    def turn(self) -> AbstractContextManager[object]:
        """The lock that a writer holds among the threads of its process."""
        return nullcontext()

    def begin_snapshot(self, c: Connection) -> None:
        """Begin a transaction that only reads, all of it from the state at its first statement."""

    def begin_write(self, c: Connection) -> None:
        """Begin a transaction that writes. Raises StorageError if the database can only be read."""

    def room(self) -> int | None:
        """The bytes that are free where the database is stored; None where that is not known."""
        return None

    def begin_migration(self, c: Connection) -> None:
        """As ``begin_write``; other migrations wait until it has ended."""

    def prepare(self, c: Connection) -> None:
        """Create what the first migration needs. Raises DatabaseOpenError if that is not permitted."""
        return

    def tables(self, c: Connection) -> set[str]:
        """The names of all tables. Raises DatabaseOpenError if tables cannot be created."""

    def now(self, c: Connection) -> float:
        """Unix seconds by the clock that all processes share."""

    def insert_or_ignore(self, table: sa.Table) -> sa.Insert:
        """An INSERT that skips existing rows."""

    def lock_bank(self, c: Connection, *, exclusive: bool) -> bool:
        """Lock the bank's embedder until the end of a transaction: shared, or exclusively to change it.

        False if every write is exclusive anyway. Taken before ``lock_session``.
        """
        return False

    def lock_session(self, c: Connection, session_id: str | None) -> None:
        """Lock a session (None: all) for writing, so that ``seq`` is the order of commits."""
        return

    def lock_name(self, c: Connection, name: str) -> None:
        """Lock a name until the end of a transaction; taken before the other locks."""
        return

    def hold(self, c: Connection, session_ids: Collection[str], bank: bool) -> Collection[str]:
        """As ``lock_session`` for several sessions, and as ``lock_bank`` if ``bank``.

        Skips sessions that another transaction holds and returns those that it locked; for these,
        ``lock_session`` and ``lock_bank`` then have nothing to do.
        """
        return session_ids

    def locking_insert(
        self, c: Connection, table: sa.Table, rows: Sequence[Mapping[str, object]], session_id: str
    ) -> Callable[[], sa.Insert] | None:
        """An ``insert_or_ignore`` of one row that locks its session too; None if that is not possible."""
        return None

    def read_bytes(self, c: Connection, column: sa.Column[Any], seq: int, start: int, size: int) -> bytes:
        """``size`` bytes of one row's value from ``start`` on, without reading the rest into memory."""

    def holds(self, column: sa.Column[Any], text: str) -> sa.ColumnElement[bool]:
        """The condition that a stored text contains a text, ignoring the case of ASCII letters."""

    def say(self, error: BaseException) -> str:
        """The reason why a statement failed, on one line and without values."""
        return first_line(error)

    def say_unopened(self, error: BaseException) -> str:
        """The reason why a database cannot be opened, and what to do, on one line."""
        return first_line(error)


_LOWER = {ord(c): c.lower() for c in string.ascii_uppercase}


def ascii_lower(text: str) -> str:
    """A text with its ASCII letters in lower case."""
    return text.translate(_LOWER)


def first_line(error: BaseException) -> str:
    """The first line of a driver's error, without the statement and its parameters, which hold contents."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return str(cause).strip().split("\n", 1)[0].rstrip(".") or type(cause).__name__
