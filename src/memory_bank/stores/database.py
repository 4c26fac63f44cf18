"""One database: opened, migrated, and every foreign error turned into ours."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from memory_bank.errors import DatabaseOpenError, DatabaseVersionError, StorageError
from memory_bank.stores.schema import HEAD, bank, metadata, sessions

BUSY_TIMEOUT_MS = 5_000


def database_url(where: str | Path) -> sa.URL:
    """A database URL of a URL or a file name; ``""`` or ``:memory:`` mean memory."""
    text = str(where)
    if text in ("", ":memory:"):
        return sa.URL.create("sqlite")
    if "://" not in text:
        return sa.URL.create("sqlite", database=text)
    try:
        return make_url(text)
    except ArgumentError:
        raise DatabaseOpenError(
            "the database URL cannot be read: use  sqlite:///FILE  or a file name."
        ) from None


class Database:
    """A bank's database: SQLite in a file (WAL, ``synchronous=FULL``) or in memory.

    Safe under threads: writes of one process take turns. Raises DatabaseOpenError when it cannot be opened
    or is no database, DatabaseVersionError when a newer memory_bank wrote it.
    """

    def __init__(self, where: str | Path = "", *, must_exist: bool = False) -> None:
        self.url = database_url(where)
        self.name = self.url.render_as_string(hide_password=True)
        if self.url.get_backend_name() != "sqlite":
            raise DatabaseOpenError(f"{self.name}: only SQLite databases can be opened by this version.")
        self.in_memory = self.url.database in (None, "", ":memory:")
        if must_exist and not self.in_memory and not Path(str(self.url.database)).exists():
            raise DatabaseOpenError(f"{self.name}: there is no such database; check the path given by --db.")
        self.write_lock = threading.RLock()
        self._engine = self._create_engine()
        try:
            self._migrate()
        except BaseException:
            self._engine.dispose()
            raise

    def _create_engine(self) -> Engine:
        options: dict[str, Any] = {"connect_args": {"check_same_thread": False}}
        if self.in_memory:
            options["poolclass"] = StaticPool
        try:
            engine = sa.create_engine(self.url, **options)
        except (ArgumentError, NoSuchModuleError, ImportError) as e:
            raise DatabaseOpenError(f"{self.name} cannot be opened: {_first_line(e)}") from e
        in_memory = self.in_memory

        @event.listens_for(engine, "connect")
        def _configure(connection: Any, _record: Any) -> None:
            cursor = connection.cursor()
            cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
            if not in_memory:
                cursor.execute("PRAGMA journal_mode=WAL")
                cursor.execute("PRAGMA synchronous=FULL")
            cursor.close()

        return engine

    def _migrate(self) -> None:
        try:
            revision = self._revision()
            if revision == HEAD:
                return
            if self.in_memory:
                metadata.create_all(self._engine)
                return
            from memory_bank.stores.migrations import known_revisions, upgrade

            if revision is not None and revision not in known_revisions():
                raise DatabaseVersionError(
                    f"{self.name} was written by a newer memory_bank (schema {revision}, this one knows {HEAD}): "
                    "upgrade memory-bank."
                )
            with self.write_lock:
                upgrade(self._engine)
        except SQLAlchemyError as e:
            raise DatabaseOpenError(f"{self.name} cannot be opened: {_first_line(e)}") from e

    def _revision(self) -> str | None:
        with self._engine.connect() as connection:
            tables = sa.inspect(connection).get_table_names()
            if "alembic_version" not in tables:
                if tables and not self.in_memory:
                    raise DatabaseOpenError(
                        f"{self.name} is a database of something else: give another file name."
                    )
                return None
            return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection for reading."""
        with self._mapped(), self._guard(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A connection in a transaction: committed at the end, rolled back on any error."""
        with self._mapped(), self.write_lock, self._engine.connect() as connection:
            if not self.in_memory:  # take the write lock at once: no deadlock between two readers-to-writers
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
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
        try:
            yield
        except (DBAPIError, SQLAlchemyError) as e:
            raise StorageError(f"{self.name}: {_first_line(e)}. Nothing was changed by this step.") from e

    def close(self) -> None:
        """Close all connections; a later use opens them again."""
        self._engine.dispose()

    # what concerns the bank as a whole

    def get_value(self, key: str) -> str | None:
        """A fact about the bank, or None."""
        with self.read() as c:
            return c.execute(sa.select(bank.c.value).where(bank.c.key == key)).scalar()

    def open_session(self, session_id: str) -> None:
        """Make sure that a session exists."""
        if not isinstance(session_id, str) or not 0 < len(session_id) <= 255:
            raise StorageError("a session_id must be a text of 1 to 255 characters.")
        if any(c == "\0" or "\ud800" <= c <= "\udfff" for c in session_id):
            raise StorageError("a session_id must not hold NUL or lone surrogates.")
        with self.read() as c:
            if c.execute(sa.select(sessions.c.generation).where(sessions.c.session_id == session_id)).first():
                return
        with self.write() as c:
            c.execute(
                sa.insert(sessions).prefix_with("OR IGNORE", dialect="sqlite"),
                {"session_id": session_id, "created": time.time(), "generation": 0, "task": None},
            )

    def generation(self, session_id: str) -> int:
        """How often a session was reset."""
        with self.read() as c:
            found = c.execute(
                sa.select(sessions.c.generation).where(sessions.c.session_id == session_id)
            ).scalar()
            return found or 0

    def set_task(self, session_id: str, task: str) -> None:
        """Write down what the session's user asked for."""
        with self.write() as c:
            c.execute(sa.update(sessions).where(sessions.c.session_id == session_id).values(task=task))

    def get_task(self, session_id: str) -> str:
        """What the session's user asked for."""
        with self.read() as c:
            found = c.execute(sa.select(sessions.c.task).where(sessions.c.session_id == session_id)).scalar()
            return found or ""


def _first_line(error: BaseException) -> str:
    """What a driver said, without the statement and its parameters: those hold contents."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return str(cause).strip().split("\n", 1)[0].rstrip(".") or type(cause).__name__
