"""SQLite, in a file (WAL, ``synchronous=FULL``) or in memory: how it is opened, locked and set up."""

from __future__ import annotations

import functools
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.pool import StaticPool
from sqlalchemy.schema import CreateIndex, CreateTable

from memory_bank.bank.database import Database, first_line
from memory_bank.bank.schema import metadata
from memory_bank.errors import DatabaseOpenError, StorageError

BUSY_TIMEOUT_MS = 5_000
CREATION_TIMEOUT_MS = 60_000


class Sqlite(Database):
    """See Database. Writers of one process take turns and wait up to 5 s for those of other processes.

    ``?synchronous=normal`` in the URL omits the sync at each commit: after a loss of power (not of the
    process) the latest commits may be lost; the file stays consistent. A file that may only be read, or is on a
    read-only file system, is opened for reading; writes raise StorageError.
    """

    exclusive = True
    elsewhere = "give another file name"
    insert = staticmethod(sqlite.insert)

    def open_engine(self, must_exist: bool) -> Engine:
        query = dict(self.url.query)
        self.url = self.url.set(query={})
        self.name = self.url.render_as_string(hide_password=True)
        self.in_memory = self.url.database in (None, "", ":memory:")
        self.leaders = 0 if self.in_memory else 1
        if self.url.host or self.url.username or self.url.password:
            raise DatabaseOpenError(
                "a SQLite URL has no host and no user: use  sqlite:///FILE  or a file name."
            )
        synchronous = str(query.pop("synchronous", "full")).upper()
        if query or synchronous not in ("FULL", "NORMAL"):
            raise DatabaseOpenError(
                "a SQLite URL takes one option: use  sqlite:///FILE  or  sqlite:///FILE?synchronous=normal ."
            )
        options: dict[str, Any] = {"connect_args": {"check_same_thread": False}, "hide_parameters": True}
        if self.in_memory:
            options["poolclass"] = StaticPool
        elif mode := self._check_file(must_exist):
            self.read_only = True
            uri = f"{self._file.absolute().as_uri()}?{mode}"
            options["creator"] = functools.partial(sqlite3.connect, uri, uri=True, check_same_thread=False)
        engine = sa.create_engine(self.url, **options)

        @event.listens_for(engine, "connect")
        def _configure(connection: sqlite3.Connection, _record: object) -> None:
            connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
            if self.in_memory:
                connection.executescript(schema_script())
            elif not self.read_only:
                _write_ahead(connection)
                connection.execute(f"PRAGMA synchronous={synchronous}")

        return engine

    @property
    def _file(self) -> Path:
        return Path(str(self.url.database))

    def _check_file(self, must_exist: bool) -> str:
        """Create the file if it is missing; return the parameters of its URI if it can only be read, else ""."""
        file = self._file
        log, index = (Path(f"{file}{end}") for end in ("-wal", "-shm"))
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
            if not file.exists():  # tool outputs are private: the log and the index get the same mode
                with suppress(FileExistsError, PermissionError):
                    os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            if os.access(file, os.W_OK) and (os.access(file.parent, os.W_OK) or index.exists()):
                return ""
            if not log.exists() or not log.stat().st_size:
                return "mode=ro&immutable=1"  # nobody writes it: no log, and no index of one
            if index.exists():
                return "mode=ro"
        except (OSError, ValueError) as e:  # a name too long, a folder that may not be entered, NUL
            raise DatabaseOpenError(f"{self.name!r} cannot be opened: {first_line(e)}.") from e
        raise DatabaseOpenError(
            f"{self.name} cannot be read here, because its latest writes are in {log.name}: copy both files to a "
            "folder that can be written, and open the copy."
        )

    def begin_snapshot(self, c: Connection) -> None:
        if not self.in_memory:
            c.exec_driver_sql("BEGIN")

    def begin_write(self, c: Connection, creating: bool = False) -> None:
        if self.read_only:
            raise StorageError(
                f"{self.name} can only be read here: allow writing to the file and its folder, or use a copy."
            )
        if self.in_memory:
            return
        with self._waiting(c, CREATION_TIMEOUT_MS) if creating else nullcontext():
            try:  # the write lock at once, so that two readers cannot deadlock; by the driver: half the time
                c.connection.driver_connection.execute("BEGIN IMMEDIATE")  # type: ignore[union-attr]
            except sqlite3.Error as e:
                raise sa.exc.OperationalError("BEGIN IMMEDIATE", None, e) from e

    def wipe(self, seconds: float) -> None:
        """See Database. Empties the write-ahead log, which holds pages from before a deletion.

        Waits so long for readers and writers of other connections.
        """
        if not (self.in_memory or self.read_only):
            with self.write_lock, self._engine.connect() as c, self._waiting(c, int(1000 * seconds)):
                c.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextmanager
    def _waiting(self, c: Connection, milliseconds: int) -> Iterator[None]:
        """Wait this long for the locks of other connections, instead of ``BUSY_TIMEOUT_MS``."""
        c.exec_driver_sql(f"PRAGMA busy_timeout={milliseconds}")
        try:
            yield
        finally:
            c.exec_driver_sql(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")

    def room(self) -> int | None:
        return None if self.in_memory else shutil.disk_usage(self._file.absolute().parent).free

    def tables(self, c: Connection) -> set[str]:
        return set(c.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'").scalars())

    def read_bytes(self, column: sa.Column[Any], seq: int, start: int, size: int) -> bytes:
        """See Database. By blobopen: a SELECT would read the whole value; ``seq`` is the rowid."""
        with self.read() as c:
            driver: sqlite3.Connection = c.connection.driver_connection  # type: ignore[assignment]
            try:
                with driver.blobopen(column.table.name, column.name, seq, readonly=True) as blob:
                    blob.seek(start)
                    return blob.read(size)
            except sqlite3.Error as e:
                raise sa.exc.OperationalError("blobopen", None, e) from e


@functools.cache
def schema_script() -> str:
    """The schema as one SQL script, for databases in memory."""
    tables = metadata.sorted_tables
    indexes = (i for t in tables for i in sorted(t.indexes, key=lambda i: str(i.name)))
    parts: list[CreateTable | CreateIndex] = [*map(CreateTable, tables), *map(CreateIndex, indexes)]
    return ";\n".join(str(part.compile(dialect=sqlite.dialect())).strip() for part in parts) + ";"


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch to WAL, and wait if another process does the same: SQLite itself does not wait then."""
    deadline = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as e:
            if "locked" not in str(e) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
