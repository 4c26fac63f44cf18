"""One database: opened, migrated, and every foreign error turned into ours."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Connection, Engine, make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import StaticPool
from sqlalchemy.schema import CreateIndex, CreateTable

from memory_bank.errors import ConfigError, DatabaseOpenError, DatabaseVersionError, StorageError
from memory_bank.stores.payload import is_session_id
from memory_bank.stores.schema import HEAD, bank, metadata, sessions

BUSY_TIMEOUT_MS = 5_000

# Statements are built once: building one costs more than running it.
_s = sessions.c
_mine = _s.session_id == sa.bindparam("session")
_GENERATION = sa.select(_s.generation).where(_mine)
_TASK = sa.select(_s.task).where(_mine)
_SET_TASK = sa.update(sessions).where(_mine).values(task=sa.bindparam("new_task"))
_OPEN = sa.insert(sessions).prefix_with("OR IGNORE", dialect="sqlite")
_VALUE = sa.select(bank.c.value).where(bank.c.key == sa.bindparam("wanted"))


def database_url(where: str | Path) -> sa.URL:
    """A database URL of a URL or a file name; ``""`` or ``:memory:`` mean memory.

    Raises DatabaseOpenError.
    """
    text = str(where)
    if any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text):
        raise DatabaseOpenError("the name of the database holds NUL or is no valid text: give another one.")
    if text in ("", ":memory:"):
        return sa.URL.create("sqlite")
    if "://" not in text:
        return sa.URL.create("sqlite", database=text)
    try:
        return make_url(text)
    except (SQLAlchemyError, ValueError):
        raise DatabaseOpenError(
            "the database URL cannot be read: use  sqlite:///FILE  or a file name."
        ) from None


class Database:
    """A bank's database: SQLite in a file (WAL, ``synchronous=FULL``) or in memory.

    Safe under threads: writes of one process take turns, and wait up to 5 s for those of other processes.
    Raises DatabaseOpenError when it cannot be opened or is no bank, DatabaseVersionError when a newer
    memory_bank wrote it; StorageError when it later refuses an operation.
    """

    def __init__(self, where: str | Path = "", *, must_exist: bool = False) -> None:
        self.url = database_url(where)
        self.name = self.url.render_as_string(hide_password=True)
        self.in_memory = self.url.database in (None, "", ":memory:")
        self._check_url(must_exist)
        self.write_lock = threading.RLock()
        self._closed = False
        self._engine = self._create_engine()
        try:
            with self._opening():
                self._migrate()
        except BaseException:
            self._engine.dispose()
            raise

    def _check_url(self, must_exist: bool) -> None:
        """Refuse what can be seen to fail, in better words than a driver's."""
        if self.url.drivername not in ("sqlite", "sqlite+pysqlite"):
            raise DatabaseOpenError(f"{self.name}: only SQLite databases can be opened by this version.")
        if self.url.host or self.url.username or self.url.password or self.url.query:
            raise DatabaseOpenError(
                "a SQLite URL has no host, user or options: use  sqlite:///FILE  or a file name."
            )
        if self.in_memory:
            return
        file = Path(str(self.url.database))
        try:
            if file.is_dir():
                raise DatabaseOpenError(f"{self.name} is a folder: name a file in it.")
            if must_exist and not file.exists():
                raise DatabaseOpenError(
                    f"{self.name}: there is no such database; check the path given by --db."
                )
            if not file.parent.is_dir():
                raise DatabaseOpenError(
                    f"{self.name} cannot be opened: its folder does not exist, create it first."
                )
        except (OSError, ValueError) as e:  # a name too long, a folder that may not be entered, NUL
            raise DatabaseOpenError(f"{self.name!r} cannot be opened: {_first_line(e)}.") from e

    def _create_engine(self) -> Engine:
        options: dict[str, Any] = {"connect_args": {"check_same_thread": False}, "hide_parameters": True}
        if self.in_memory:
            options["poolclass"] = StaticPool
        engine = sa.create_engine(self.url, **options)
        in_memory = self.in_memory

        @event.listens_for(engine, "connect")
        def _configure(connection: Any, _record: Any) -> None:
            connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
            if in_memory:
                connection.executescript(schema_script())
            else:
                _write_ahead(connection)
                connection.execute("PRAGMA synchronous=FULL")

        return engine

    def _migrate(self) -> None:
        """Bring the schema of a file up to date, in one transaction, by one process at a time."""
        if self.in_memory:
            return
        with self._engine.connect() as connection:
            if self._revision(connection) == HEAD:
                return
        from memory_bank.stores.migrations import known_revisions, upgrade

        with self._transaction() as connection:
            revision = self._revision(connection)  # another process may have been faster
            if revision is not None and revision not in known_revisions():
                raise DatabaseVersionError(
                    f"{self.name} was written by a newer memory_bank (schema {revision}, this one "
                    f"knows {HEAD}): upgrade memory-bank."
                )
            upgrade(connection)

    def _revision(self, connection: Connection) -> str | None:
        """The schema's revision, None for an empty database."""
        found = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'")
        tables = {row[0] for row in found}
        if not tables:
            return None
        if not {"alembic_version", bank.name} <= tables:
            raise DatabaseOpenError(f"{self.name} is a database of something else: give another file name.")
        version = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
        return None if version is None else str(version)

    @contextmanager
    def _opening(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, ValueError, OSError) as e:
            raise DatabaseOpenError(f"{self.name} cannot be opened: {_first_line(e)}.") from e

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection for reading."""
        with self._mapped(), self._guard(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A connection in a transaction: committed at the end, rolled back on any error."""
        with self._mapped(), self._transaction() as connection:
            yield connection

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self.write_lock, self._engine.connect() as connection:
            if not self.in_memory:  # take the write lock at once: no deadlock between two readers-to-writers
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                with suppress(Exception):  # what led here says more than a rollback that fails, too
                    connection.rollback()
                raise
            connection.commit()

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """In memory there is one connection for all threads: reads take turns with writes."""
        if self.in_memory:
            with self.write_lock:
                yield
        else:
            yield

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        if self._closed:
            raise StorageError(
                "the bank was in memory and has been closed, what it held is gone: open a new one."
            )
        try:
            yield
        except (SQLAlchemyError, OverflowError) as e:
            raise StorageError(
                f"{self.name}: {_first_line(e)}; nothing was changed, the same call can be made again."
            ) from e

    def close(self) -> None:
        """Close all connections; a later use opens a file again, but what was in memory is gone."""
        with self.write_lock:
            self._closed = self.in_memory
            self._engine.dispose()

    # what concerns the bank as a whole

    def get_value(self, key: str) -> str | None:
        """A fact about the bank, or None."""
        with self.read() as c:
            return c.execute(_VALUE, {"wanted": key}).scalar()

    def open_session(self, session_id: str) -> None:
        """Make sure that a session exists. Raises ConfigError for an id that no database takes."""
        if not is_session_id(session_id):
            raise ConfigError(
                "a session_id must be a text of 1 to 255 characters without NUL and lone surrogates."
            )
        with self.read() as c:
            if c.execute(_GENERATION, {"session": session_id}).first():
                return
        with self.write() as c:
            new = {"session_id": session_id, "created": time.time(), "generation": 0, "task": None}
            c.execute(_OPEN, new)

    def generation(self, session_id: str) -> int:
        """How often a session was reset."""
        with self.read() as c:
            return c.execute(_GENERATION, {"session": session_id}).scalar() or 0

    def set_task(self, session_id: str, task: str) -> None:
        """Write down what the session's user asked for."""
        with self.write() as c:
            c.execute(_SET_TASK, {"session": session_id, "new_task": task})

    def get_task(self, session_id: str) -> str:
        """What the session's user asked for."""
        with self.read() as c:
            return c.execute(_TASK, {"session": session_id}).scalar() or ""


@functools.cache
def schema_script() -> str:
    """The newest schema as one SQL script, for databases in memory: what all migrations together make."""
    dialect = sqlite.dialect()
    parts: list[CreateTable | CreateIndex] = []
    for table in metadata.sorted_tables:
        parts.append(CreateTable(table))
        parts += [CreateIndex(index) for index in sorted(table.indexes, key=lambda i: str(i.name))]
    return ";\n".join(str(part.compile(dialect=dialect)).strip() for part in parts) + ";"


def _write_ahead(connection: Any) -> None:
    """Switch to WAL. SQLite does not wait where two processes do that to a fresh file, so it is done here."""
    import sqlite3

    deadline = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as e:
            if "locked" not in str(e) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _first_line(error: BaseException) -> str:
    """What a driver said, without the statement and its parameters: those hold contents."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return str(cause).strip().split("\n", 1)[0].rstrip(".") or type(cause).__name__
