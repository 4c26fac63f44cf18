"""The database of a bank: opening, migrating, transactions, sessions; driver errors become ours."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping, make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from memory_bank.bank.backend import Backend
from memory_bank.bank.group_commit import GroupWriter
from memory_bank.bank.rows import is_session_id
from memory_bank.bank.schema import (
    HEAD,
    SESSION,
    bank,
    count_of,
    of_session,
    records,
    sessions,
)
from memory_bank.bank.sqlite import Sqlite
from memory_bank.errors import ConfigError, DatabaseOpenError, DatabaseVersionError, StorageError
from memory_bank.faults import fault_point
from memory_bank.records import NAMESPACE_END

T = TypeVar("T")
_WIPE_SECONDS = 1.0
_RECENT = 60.0  # seconds for which a failed write is remembered
_ROOM = 16 * 2**20  # bytes that a disk should have left: a step may be that long
ANY: Any = object()
"""Any namespace, as an argument."""

_s = sessions.c
_mine = _s.session_id == SESSION
_GENERATION = sa.select(_s.generation).where(_mine)
_EXTENT = sa.select(
    _GENERATION.scalar_subquery(),
    count_of(records).where(of_session(records)).scalar_subquery(),
)
_AGENT = sa.select(_s.agent_id).where(_mine)
_OWNERS = sa.select(_s.agent_id, _s.namespace, _s.deleted).where(_mine)
_REVIVE = sa.update(sessions).where(_mine, _s.deleted.is_not(None)).values(deleted=None)
_DELETE = sa.update(sessions).where(_mine).values(deleted=sa.bindparam("at"))
_SET_AGENT = (  # with a new generation, so that searches over the agent's sessions notice
    sa.update(sessions)
    .where(_mine, _s.agent_id.is_(None))
    .values(agent_id=sa.bindparam("new_agent"), generation=_s.generation + 1)
)
_TOUCH = sa.text("UPDATE alembic_version SET version_num = version_num")
_TASK = sa.select(_s.task).where(_mine)
_SET_TASK = sa.update(sessions).where(_mine).values(task=sa.bindparam("new_task"))


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
            "the database URL cannot be read: use  sqlite:///FILE , a file name, or  "
            "postgresql://USER@HOST/DATABASE ."
        ) from None


class _CompiledInsert(NamedTuple):
    """An INSERT as SQL; the order of its positional parameters, None if they are named; their converters."""

    sql: str
    order: list[str] | None
    processors: dict[str, Callable[[object], object] | None]


def as_database(given: Database | str | Path | None) -> Database:
    """A database as it is, the one of a file name or URL, or one in memory for None.

    Raises ConfigError for anything else, and what Database raises.
    """
    if isinstance(given, Database):
        return given
    if given is not None and not isinstance(given, (str, Path)):
        raise ConfigError(
            f"a {type(given).__name__} was given as a database: pass a file name, a URL or a Database."
        )
    return Database(given or "")


class Database:
    """The database of a bank: SQLite in a file (WAL, ``synchronous=FULL``) or in memory, or PostgreSQL.

    Thread-safe: writes wait up to 5 s for one another; with SQLite, those of one process take turns.
    Raises DatabaseOpenError if it cannot be opened or is not a bank, DatabaseVersionError if a newer
    memory_bank wrote it, and StorageError if an operation fails later.
    """

    def __init__(self, where: str | Path = "", *, must_exist: bool = False) -> None:
        self.url = database_url(where)
        self.write_lock = threading.RLock()
        self._backend = self._backend_of(self.url)
        self.name = self._backend.name
        self.in_memory = self._backend.in_memory
        self.ranks = self._backend.ranks
        self._backend.check(must_exist)
        self.failed: Callable[[], None] | None = None  # called at every operation that fails
        self._closed = False
        self._failed_write: tuple[float, str] | None = None  # when, and the error, if the latest one failed
        self._inserts: dict[str, sa.Insert] = {}
        self._compiled: dict[tuple[str, bool, tuple[str, ...]], _CompiledInsert] = {}
        self._open_session = self._backend.insert_or_ignore(sessions)
        self._engine = self._backend.create_engine()
        self._reader = self._backend.reading(self._engine)
        leaders = self._backend.leaders
        self._writer = GroupWriter(self._transaction, self._backend.hold, leaders) if leaders else None
        try:
            with self._opening():
                self._migrate(must_exist)
            self._wipe(0)  # after a crash the log still holds what had been deleted
        except BaseException:
            self._engine.dispose()
            raise

    def _backend_of(self, url: sa.URL) -> Backend:
        if url.drivername in ("sqlite", "sqlite+pysqlite"):
            return Sqlite(url, self.write_lock)
        if url.drivername in ("postgres", "postgresql", "postgresql+psycopg"):
            from memory_bank.bank.postgres import Postgres

            return Postgres(url)
        raise DatabaseOpenError(
            f"a {url.drivername} database cannot be opened: use  sqlite:///FILE , a file name, or  "
            "postgresql://USER@HOST/DATABASE ."
        )

    def _migrate(self, must_exist: bool) -> None:
        """Run the missing migrations, in one transaction, in one process at a time."""
        if self.in_memory:
            return
        with self._reader.connect() as connection:
            revision = self._revision(connection)
        if revision == HEAD:
            return
        if must_exist and revision is None and self.url.get_backend_name() != "sqlite":
            raise DatabaseOpenError(f"{self.name} holds no bank yet: check the URL given by --db.")
        from memory_bank.bank.migrations import known_revisions, upgrade

        with self._transaction(migrating=True) as connection:
            revision = self._revision(connection)  # another process may have migrated meanwhile
            if revision is not None and revision not in known_revisions():
                raise DatabaseVersionError(
                    f"{self.name} was written by a newer memory_bank (schema {revision}, this one "
                    f"knows {HEAD}): upgrade agent-memory-bank."
                )
            if revision is None:
                self._backend.prepare(connection)
            upgrade(connection)

    def _revision(self, connection: Connection) -> str | None:
        """The schema's revision, None for an empty database."""
        tables = self._backend.tables(connection)
        if not tables:
            return None
        if not {"alembic_version", bank.name} <= tables:
            raise DatabaseOpenError(
                f"{self.name} is a database of another program: {self._backend.elsewhere}."
            )
        version = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
        return None if version is None else str(version)

    @contextmanager
    def _opening(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, ValueError, OSError) as e:
            raise DatabaseOpenError(f"{self.name} cannot be opened: {self._backend.say_unopened(e)}.") from e

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection for reading."""
        with self._mapped(), self._guard(), self._reader.connect() as connection:
            yield connection

    def value(self, statement: sa.Select[T, *tuple[Any, ...]], **values: object) -> T | None:
        """The first value of the first row; None if there is no row."""
        with self.read() as c:
            return c.execute(statement, values).scalar()

    def column(self, statement: sa.Select[T, *tuple[Any, ...]], **values: object) -> list[T]:
        """The first values of all rows."""
        with self.read() as c:
            return list(c.execute(statement, values).scalars())

    def rows(self, statement: sa.Select[*tuple[Any, ...]], **values: object) -> Sequence[RowMapping]:
        """All rows, by the names of their columns."""
        with self.read() as c:
            return c.execute(statement, values).mappings().all()

    def read_bytes(self, column: sa.Column[Any], seq: int, start: int, size: int) -> bytes:
        """``size`` bytes of a value of the row ``seq`` from ``start`` on, without reading the rest.

        Raises StorageError, also if the row was deleted.
        """
        with self.read() as c:
            return self._backend.read_bytes(c, column, seq, start, size)

    def holds(self, column: sa.Column[Any], text: str) -> sa.ColumnElement[bool]:
        """The condition that a stored text contains a text, ignoring the case of ASCII letters."""
        return self._backend.holds(column, text)

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """A connection for several reads of one state of the bank."""
        with self._mapped(), self._guard(), self._engine.connect() as connection:
            self._backend.begin_snapshot(connection)
            try:
                yield connection
            finally:
                connection.rollback()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A connection in a transaction, committed at the end and rolled back on any error."""
        with self._writing(), self._transaction() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with self._mapped():
                yield
        except StorageError as e:
            self._failed_write = time.monotonic(), str(e)
            raise

    def check_writing(self) -> None:
        """Raise StorageError if the database can only be read, its disk is nearly full, or writes fail.

        Writes nothing unless a write of this process failed over a minute ago, and no records were written since
        then. A shorter write does not count: there may be room for it and none for a record.
        """
        room = self._backend.room()
        if room is not None and room < _ROOM:
            raise StorageError(f"{self.name}: its disk has {room / 2**20:.1f} MiB left: make room on it.")
        failed = self._failed_write
        if failed is not None and time.monotonic() - failed[0] < _RECENT:
            raise StorageError(failed[1])
        if self._backend.read_only or (failed is not None and not self.in_memory):
            with self.write() as c:
                c.execute(_TOUCH)
            self._failed_write = None

    @contextmanager
    def erase(self) -> Iterator[Connection]:
        """As ``write``, for deleting content: what is deleted is overwritten.

        With SQLite the deleted pages are overwritten, and the write-ahead log is emptied. While another
        process reads the bank, the log is emptied by the next deletion or when the bank is opened again.
        """
        with self.write() as connection:
            if self.url.get_backend_name() == "sqlite":
                connection.exec_driver_sql("PRAGMA secure_delete=ON")
            yield connection
        self._wipe(_WIPE_SECONDS)

    def _wipe(self, seconds: float) -> None:
        with suppress(SQLAlchemyError):  # the deletion itself is committed
            self._backend.wipe(self._engine, seconds)

    def submit(self, operation: Callable[[Connection], T], session_id: str) -> T:
        """Run a write to a session and return its result once it is committed.

        Waiting writes of this process's threads share a transaction; one that fails undoes only its own
        changes. A write must not roll back itself, and may be run again after it was rolled back.
        """
        with self._writing():
            if self._writer is not None:
                result = self._writer.run(operation, session_id)
            else:
                with self._transaction() as connection:
                    result = operation(connection)
        self._failed_write = None
        return result

    def now(self, c: Connection) -> float:
        """Unix seconds, by the clock of the server if there is one."""
        return self._backend.now(c)

    @contextmanager
    def _transaction(self, migrating: bool = False) -> Iterator[Connection]:
        with self._backend.turn(), self._engine.connect() as connection:
            if migrating:
                self._backend.begin_migration(connection)
            else:
                self._backend.begin_write(connection)
            fault_point("write.begun")
            try:
                yield connection
                fault_point("write.executed")
            except BaseException:
                with suppress(Exception):  # the first error is the one to raise
                    connection.rollback()
                raise
            try:
                connection.commit()
            except DBAPIError as e:
                if not e.connection_invalidated:
                    raise
                raise StorageError(
                    f"{self.name}: {self._backend.say(e)} while a write was being committed: make the same "
                    "call again, what was kept is not stored twice."
                ) from e
            fault_point("write.committed")

    def insert_or_ignore(self, table: sa.Table) -> sa.Insert:
        """An INSERT that skips existing rows; its ``rowcount`` is the number of inserted ones."""
        found = self._inserts.get(table.name)
        if found is None:
            found = self._backend.insert_or_ignore(table).execution_options(preserve_rowcount=True)
            self._inserts[table.name] = found
        return found

    def insert_new(
        self,
        c: Connection,
        table: sa.Table,
        rows: Sequence[Mapping[str, object]],
        session_id: str | None = None,
    ) -> int:
        """Insert rows of the same columns, skip existing ones, and return how many were inserted.

        ``session_id``: locks this session first (``lock_session``), in one round trip where possible. The
        statement is compiled once: at every step, SQLAlchemy would take as much time as the database.
        """
        locking = None
        if session_id is not None:
            locking = self._backend.locking_insert(c, table, rows, session_id)
            if locking is None:
                self.lock_session(c, session_id)
        key = (table.name, locking is not None, tuple(rows[0]))
        found = self._compiled.get(key)
        if found is None:
            statement = self._backend.insert_or_ignore(table) if locking is None else locking()
            compiled: Any = statement.compile(dialect=self._engine.dialect, column_keys=list(rows[0]))
            processors = {k: compiled._bind_processors.get(k) for k in rows[0]}
            found = _CompiledInsert(str(compiled), compiled.positiontup, processors)
            self._compiled[key] = found
        sql, order, processors = found
        values: list[Any] = [
            {k: v if (p := processors[k]) is None else p(v) for k, v in row.items()} for row in rows
        ]
        if order is not None:
            values = [tuple([value[k] for k in order]) for value in values]
        parameters = values if len(values) > 1 else values[0]
        return c.exec_driver_sql(sql, parameters, execution_options={"preserve_rowcount": True}).rowcount

    def lock_bank(self, c: Connection, *, exclusive: bool = False) -> bool:
        """Within a write, lock the bank's embedder: shared, or exclusively to change it.

        False if every write is exclusive anyway. Must come before ``lock_session``, or two writes deadlock.
        """
        return self._backend.lock_bank(c, exclusive=exclusive)

    def lock_session(self, c: Connection, session_id: str | None) -> None:
        """Within a write, lock a session (None: all), so that ``seq`` is the order of commits in it."""
        self._backend.lock_session(c, session_id)

    def lock_name(self, c: Connection, name: str) -> None:
        """Within a write, and before its other locks: lock a name."""
        self._backend.lock_name(c, name)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """In memory, reads and writes of all threads take turns on the one connection."""
        with self.write_lock if self.in_memory else nullcontext():
            yield

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        if self._closed:
            raise StorageError(
                "the bank was in memory and has been closed, its contents are lost: open a new one."
            )
        try:
            yield
        except (SQLAlchemyError, OverflowError) as e:
            if self.failed is not None:
                self.failed()
            raise StorageError(
                f"{self.name}: {self._backend.say(e)}; nothing was changed, the same call can be made again."
            ) from e

    def close(self) -> None:
        """Close all connections; later use opens them again, but a bank in memory is lost."""
        with self.write_lock:
            self._closed = self.in_memory
            self._engine.dispose()

    # sessions

    def open_session(self, session_id: str, agent_id: str | None = None, namespace: str | None = ANY) -> None:
        """Create a session if it does not exist; set its agent if it has none.

        Raises ConfigError for an invalid id, and for a session of another agent or namespace.
        """
        names = {"a session_id": session_id} | ({} if agent_id is None else {"an agent_id": agent_id})
        for what, name in names.items():
            if not is_session_id(name):
                raise ConfigError(
                    f"{what} must be a text of 1 to 255 characters without NUL and lone surrogates."
                )
        with self.read() as c:
            known = c.execute(_OWNERS, {"session": session_id}).first()
        if known is None or (agent_id is not None and known[0] is None) or known[2] is not None:
            with self.write() as c:
                new = {"session_id": session_id, "created": time.time(), "generation": 0, "task": None}
                made_in = None if namespace is ANY else namespace
                c.execute(self._open_session, {**new, "agent_id": agent_id, "namespace": made_in})
                known = c.execute(_OWNERS, {"session": session_id}).one()
                if namespace in (ANY, known[1]):
                    self.revive(c, session_id)
                    if agent_id is not None:  # an existing session may have none
                        c.execute(_SET_AGENT, {"session": session_id, "new_agent": agent_id})
                        known = c.execute(_OWNERS, {"session": session_id}).one()
        if namespace not in (ANY, known[1]):
            raise ConfigError(f"there can be no session {session_id!r} here: choose another session_id.")
        if agent_id is not None and known[0] != agent_id:
            session, owner, other = (
                str(x).rpartition(NAMESPACE_END)[2] for x in (session_id, known[0], agent_id)
            )
            raise ConfigError(
                f"the session {session!r} belongs to the agent {owner!r}, not to {other!r}: "
                "open it with its own agent_id, or give this agent another session_id."
            )

    def revive(self, c: Connection, session_id: str) -> None:
        """Within a write, list a deleted session again."""
        c.execute(_REVIVE, {"session": session_id})

    def mark_deleted(self, session_id: str) -> None:
        """Mark a session as deleted; its row, and what its Observer spent, stay."""
        with self.write() as c:
            c.execute(_DELETE, {"session": session_id, "at": time.time()})

    def agent_of(self, session_id: str) -> str | None:
        """The agent of a session, or None."""
        return self.value(_AGENT, session=session_id)

    def generation(self, session_id: str) -> int:
        """The generation of a session: it grows whenever rows are deleted."""
        return self.value(_GENERATION, session=session_id) or 0

    def extent(self, session_id: str) -> tuple[int, int]:
        """The generation of a session, and the number of its records."""
        with self._mapped(), self._guard():
            row = self._backend.first(self._reader, _EXTENT, {"session": session_id})
            assert row is not None  # it has no FROM clause
            return row[0] or 0, row[1]

    def generation_within(self, c: Connection, session_id: str) -> int:
        """Return the generation of a session, read on a connection that is in a write transaction."""
        return c.execute(_GENERATION, {"session": session_id}).scalar() or 0

    def set_task(self, session_id: str, task: str) -> None:
        """Store what the session's user asked for."""
        with self.write() as c:
            c.execute(_SET_TASK, {"session": session_id, "new_task": task})

    def get_task(self, session_id: str) -> str:
        """What the session's user asked for."""
        return self.value(_TASK, session=session_id) or ""
