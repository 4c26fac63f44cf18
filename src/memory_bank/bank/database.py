"""The database of a bank: opening, transactions, sessions; driver errors become ours.

Group commit: the waiting writes of one process's threads share a transaction. The first in line leads: it runs all
waiting writes and commits once. If one of several fails, all are run again, each within a savepoint, so that it
undoes only itself: failures are rare and savepoints cost time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, cast

import sqlalchemy as sa
from cachetools import LRUCache
from sqlalchemy.engine import Connection, Engine, RowMapping, make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.schema import CreateColumn

from memory_bank.bank.rows import is_session_id
from memory_bank.bank.schema import (
    MIGRATIONS,
    SESSION,
    SET_SESSION,
    VERSION,
    bank,
    count_of,
    folds,
    insights,
    keep_sums,
    metadata,
    of_namespace,
    of_session,
    schema_version,
    sessions,
    sum_of,
    sums,
    waits,
)
from memory_bank.errors import ConfigError, DatabaseOpenError, DatabaseVersionError, StorageError
from memory_bank.faults import fault_point
from memory_bank.records import NAMESPACE_END

log = logging.getLogger("memory_bank.Database")
T = TypeVar("T")
_ROOM = 16 * 2**20  # bytes that a disk should have left: a step may be that long
_KEPT = 6 * 2**20  # bytes of words that a process keeps after a search
_SQLITE, _POSTGRES = ("sqlite", "Sqlite"), ("postgres", "Postgres")  # modules and classes, imported when used
_KINDS = {
    "sqlite": _SQLITE, "sqlite+pysqlite": _SQLITE,
    "postgres": _POSTGRES, "postgresql": _POSTGRES, "postgresql+psycopg": _POSTGRES,
}  # fmt: skip
_USE = "use  sqlite:///FILE , a file name, or  postgresql://USER@HOST/DATABASE ."
READ_VERSION = "SELECT version_num FROM schema_version"
MOST_REQUESTS = 60
"""The messages of a session's user that are kept: the newest."""
Values = Mapping[str, object] | Sequence[Mapping[str, object]]
"""The parameters of a statement, or those of each of its runs."""
ANY: Any = object()
"""Any namespace, as an argument."""
Operation = Callable[[Connection], T]
"""A write within a transaction."""
MOST = 256
"""The most writes in one transaction."""

_s = sessions.c
# searches over the project's sessions notice the new generation
_JOINS = SET_SESSION.where(_s.project.is_(None)).values(generation=_s.generation + 1)
GENERATION = sa.select(_s.generation).where(of_session(sessions))
_COUNT, _INSIGHTS = (
    sa.select(sa.func.coalesce(sum_of(c), 0)).where(of_session(sums))
    for c in (sums.c.records, sums.c.insights)
)
# few wait: they are found by their own index, not among all insights of the session
_WAITING = count_of(insights).where(waits, sa.func.coalesce(insights.c.session_id, "") == SESSION)
_FOLD, _FOLDED = (
    sa.select(sa.func.max(c)).where(of_session(folds)) for c in (folds.c.number, folds.c.created)
)
LEDGER = (_s.asked, _s.paid, _s.would_pay, _s.sent, _s.came, _s.in_vain, _s.cache)
_COUNTS = (q.scalar_subquery() for q in (_COUNT, _INSIGHTS, _WAITING, _FOLD, _FOLDED))
_EXTENT = sa.select(sa.func.coalesce(_s.generation, 0), *_COUNTS, *LEDGER).select_from(
    sa.select(sa.literal(1)).subquery().outerjoin(sessions, of_session(sessions))
)
_SETTLE = SET_SESSION.values(
    paid=sa.func.coalesce(_s.paid, 0.0) + sa.bindparam("more_paid"),
    would_pay=sa.func.coalesce(_s.would_pay, 0.0) + sa.bindparam("more_full"),
    cache=sa.case((sa.bindparam("is_told", type_=sa.Boolean), sa.bindparam("told")), else_=_s.cache),
)
_CHARGE = _SETTLE.values(
    asked=sa.bindparam("now"), **{k: sa.bindparam(f"new_{k}") for k in ("sent", "came", "in_vain")}
)
_OWNERS = sa.select(_s.project, _s.namespace, _s.deleted).where(of_session(sessions))
REVIVE = SET_SESSION.where(_s.deleted.is_not(None)).values(deleted=sa.null())
"""The statement by which a deleted session is listed again, as when it gets a new step."""


def database_url(where: str | Path) -> sa.URL:
    """A database URL of a URL or a file name; ``""`` or ``:memory:`` mean memory. Raises DatabaseOpenError."""
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
        raise DatabaseOpenError(f"the database URL cannot be read: {_USE}") from None


def as_database(value: Database | str | Path | None) -> Database:
    """A Database as it is, that of a file name or URL, or one in memory; raises ConfigError for anything else."""
    if isinstance(value, Database):
        return value
    if value is None or isinstance(value, (str, Path)):
        return Database(value or "")
    kind = type(value).__name__
    raise ConfigError(
        f"a value of type {kind} was given as a database: pass a file name, a URL or a Database."
    )


class Database:
    """The database of a bank: SQLite in a file (WAL, ``synchronous=FULL``) or in memory, or PostgreSQL.

    Thread-safe: writes wait up to 5 s for one another (PostgreSQL: 15); with SQLite, those of one process take turns.
    Raises DatabaseOpenError if it cannot be opened or is not a bank, DatabaseVersionError if a newer
    memory_bank wrote it, and StorageError if an operation fails later.

    ``name`` is its URL without secrets. ``in_memory``: all threads share one connection, and closing it deletes the
    data. ``ranks``: the database computes similarities itself. ``read_only``: it cannot be written here.
    """

    name: str
    in_memory = False
    ranks = False
    read_only = False
    is_silent = False  # whether the server is known not to answer
    exclusive = False  # whether the writers of a process take turns
    leaders = 1  # how many shared transactions a process runs at a time; with 0 every write has its own
    reading: ClassVar[Mapping[str, Any]] = {}  # options of connections that only read
    elsewhere = ""  # advice for a database that belongs to another program
    insert: Callable[[sa.Table], Any]  # the INSERT of the dialect

    def __new__(cls, where: str | Path = "", *, must_exist: bool = False) -> Database:  # noqa: ARG004
        if cls is not Database:
            return object.__new__(cls)
        driver = database_url(where).drivername
        if driver not in _KINDS:
            raise DatabaseOpenError(f"a {driver} database cannot be opened: {_USE}")
        module, kind = _KINDS[driver]
        return cast(Database, object.__new__(getattr(import_module(f"memory_bank.bank.{module}"), kind)))

    def __init__(self, where: str | Path = "", *, must_exist: bool = False) -> None:
        self.url = database_url(where)
        self.write_lock = threading.RLock()
        self.failed: Callable[[], None] | None = None  # called at every operation that fails
        self.searches: LRUCache[Hashable, object] = LRUCache(16)  # vectors of namespaces
        self.kept_words: LRUCache[Hashable, Any] = LRUCache(_KEPT, lambda rows: rows.bytes)  # see ``words``
        self.block_size = 4_096  # insights of a block of words
        self.loose_words = 0  # stored since it was last looked whether they make a block
        self.is_lost = False
        self._failed_write: tuple[float, str] | None = None  # when, and the error, if the latest one failed
        self._engine = self.open_engine(must_exist)
        self._reader = self._engine.execution_options(**self.reading)
        self._writer = GroupWriter(self._transaction, self.hold, self.leaders) if self.leaders else None
        try:
            try:
                self._create(must_exist)
            except (SQLAlchemyError, ValueError, OSError) as e:
                if re.search("is locked|lock timeout", first_line(e)):
                    raise DatabaseOpenError(
                        f"{self.name}: another process has been bringing it to another schema for a minute: start "
                        "again when that has ended."
                    ) from e
                raise DatabaseOpenError(f"{self.name} cannot be opened: {self.say(e, opening=True)}.") from e
            self._wipe(0)  # after a crash the log still holds what had been deleted
        except BaseException:
            self._engine.dispose()
            raise

    # what SQLite and PostgreSQL do each in its own way

    def open_engine(self, must_exist: bool) -> Engine:
        """An engine for ``url``, checked; sets ``name``. Raises DatabaseOpenError, also without its driver."""
        raise NotImplementedError

    def begin_snapshot(self, c: Connection) -> None:
        """Begin a transaction that only reads, all of it from the state at its first statement."""
        raise NotImplementedError

    def begin_write(
        self, c: Connection, creating: bool = False, erasing: bool = False, durable: bool = True
    ) -> str:
        """Begin a transaction that writes, creates tables or erases. Raises StorageError, DatabaseOpenError.

        Returns the schema that the bank has now, and until the end of the write: who changes it waits for that.
        """
        raise NotImplementedError

    def tables(self, c: Connection) -> set[str]:
        """The names of all tables. Raises DatabaseOpenError if tables cannot be created."""
        raise NotImplementedError

    def create_tables(self, c: Connection) -> None:
        """Create all tables, indexes and triggers."""
        metadata.create_all(c, checkfirst=False)
        keep_sums(c)

    def room(self) -> int | None:
        """The bytes that are free where the database is stored; None where that is not known."""
        return None

    def shrink(self) -> None:
        """Give the space of deleted content back to the disk, where the database can."""

    def wipe(self, seconds: float) -> None:
        """Remove copies of deleted content outside the tables (SQLite's log), unless another process prevents it."""

    def check_place(self, c: Connection) -> None:
        """Raise StorageError if the file of the bank was deleted or replaced since it was opened."""

    def now(self, c: Connection) -> float:
        """Unix seconds by the clock that all processes share."""
        return time.time()

    def lock_bank(self, c: Connection, *, exclusive: bool = False) -> bool:
        """Within a write, lock the bank's embedder: shared, or exclusively to change it.

        False if every write is exclusive anyway. Must come before ``lock_session``, or two writes deadlock.
        """
        return False

    def lock_session(self, c: Connection, session_id: str | None) -> None:
        """Within a write, lock a session (None: all), so that ``seq`` is the order of commits in it."""

    def lock_name(self, c: Connection, name: str) -> None:
        """Within a write, and before its other locks: lock a name."""

    def hold(self, c: Connection, session_ids: Collection[str]) -> Collection[str]:
        """Lock the bank and several sessions; skip sessions that another transaction holds, and return the others."""
        return session_ids

    def read_bytes(self, column: sa.Column[Any], seq: int, start: int, size: int) -> bytes:
        """Read ``size`` bytes of a stored text from byte ``start``, in the row of a ``seq``. Raises StorageError."""
        raise NotImplementedError

    def say(self, error: BaseException, opening: bool = False) -> str:
        """Describe an error on one line, without values: why a statement or the opening failed, and what to do."""
        return first_line(error)

    def _create(self, must_exist: bool) -> None:
        """Create the tables, or bring an older bank to this version, in one transaction; other processes wait."""
        if self.in_memory:
            return
        with self._reader.connect() as connection:
            version = self._version(connection)
        if version == VERSION:
            return
        if version is None and must_exist and self.url.get_backend_name() != "sqlite":
            raise DatabaseOpenError(f"{self.name} holds no bank yet: check the URL given by --db.")
        with self._transaction(creating=True) as connection:
            version = self._version(connection)  # another process may have created it meanwhile
            if version not in (None, VERSION):
                log.info(
                    "%s is brought from schema %s to schema %s; others wait", self.name, version, VERSION
                )
            if version is None:
                self.create_tables(connection)
                connection.execute(sa.insert(schema_version), {"version_num": VERSION})
            elif version != VERSION:
                created: set[object] = set()
                for step in (
                    step for v, steps in MIGRATIONS.items() if int(v) >= int(version) for step in steps
                ):
                    if isinstance(step, (sa.Table, sa.Index)):
                        step.create(connection)
                        created.add(step)
                        continue
                    if not isinstance(step, (str, sa.Column)):
                        step(connection)
                        continue
                    if not isinstance(step, str):
                        if step.table in created:  # with all its columns
                            continue
                        added = CreateColumn(step).compile(dialect=connection.dialect)
                        step = f"ALTER TABLE {step.table} ADD COLUMN {added}"
                    connection.exec_driver_sql(step)
                connection.execute(sa.update(schema_version).values(version_num=VERSION))
        if version is not None:
            self.shrink()

    def _version(self, connection: Connection) -> str | None:
        tables = self.tables(connection)
        if not tables:
            return None
        table = next((t for t in (schema_version.name, "alembic_version") if {t, bank.name} <= tables), None)
        if table is None:
            raise DatabaseOpenError(f"{self.name} is a database of another program: {self.elsewhere}.")
        version = str(connection.exec_driver_sql(f"SELECT version_num FROM {table}").scalar())
        if table == "alembic_version" or version not in (VERSION, *MIGRATIONS):
            other = "an unreleased" if table == "alembic_version" else "a newer"
            raise DatabaseVersionError(
                f"{self.name} was written by {other} memory_bank (schema {version}, this one knows {VERSION}): "
                "open it with that version."
            )
        return version

    def check_schema(self, version: str | None = None) -> None:
        """Raise StorageError unless the bank's schema (``version``, or as read now) is the one of this process."""
        if not self.in_memory and (now := version or self.value(sa.select(schema_version))) != VERSION:
            raise StorageError(
                f"{self.name} has schema {now} by now, which another version of memory_bank has made: start this "
                "process again with that version. Nothing is stored until then."
            )

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection for reading."""
        with self._mapped(), self._reader.connect() as connection:
            self.check_place(connection)
            yield connection

    def rows(self, statement: sa.Select[*tuple[Any, ...]], **values: object) -> Sequence[RowMapping]:
        """All rows, by the names of their columns."""
        with self.read() as c:
            return c.execute(statement, values).mappings().all()

    def column(self, statement: sa.Select[T, *tuple[Any, ...]], **values: object) -> list[T]:
        """The first values of all rows."""
        with self.read() as c:
            return list(c.execute(statement, values).scalars())

    def value(self, statement: sa.Select[T, *tuple[Any, ...]], **values: object) -> T | None:
        """The first value of the first row; None if there is no row."""
        with self.read() as c:
            return c.execute(statement, values).scalar()

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """A connection for several reads of one state of the bank."""
        with self._mapped(), self._engine.connect() as connection:
            self.check_place(connection)
            self.begin_snapshot(connection)
            try:
                yield connection
            finally:
                connection.rollback()

    @contextmanager
    def write(self, *, erasing: bool = False, durable: bool = True) -> Iterator[Connection]:
        """A connection in a transaction, committed at the end and rolled back on any error.

        ``erasing``: also on a disk on which there is room for deletions alone. ``durable``: see ``submit``.
        """
        with self._mapped(writing=True), self._transaction(erasing=erasing, durable=durable) as connection:
            yield connection

    @contextmanager
    def erase(self) -> Iterator[Connection]:
        """As ``write``, for deleting content: SQLite overwrites deleted pages and empties the write-ahead log.

        While another process reads the bank, the log is emptied by the next deletion or at the next opening. It needs
        no room on a disk that other writes have filled: deleted pages are cut off the file there.
        """
        with self.write(erasing=True) as connection:
            yield connection
        self._wipe(1.0)

    def submit(
        self,
        operation: Operation[T],
        session_id: str,
        *,
        is_small: bool = False,
        durable: bool = True,
    ) -> T:
        """Run a write to a session and return its result once it is committed.

        Waiting writes of this process's threads share a transaction; one that fails undoes only its own
        changes. A write must not roll back itself, and may be run again after it was rolled back.
        ``is_small``: that it succeeds does not show that there is room for others. ``durable``: with SQLite, a loss
        of power (not of the process) may take back one that is not, until the next one that is.
        """
        with self._mapped(writing=True):
            if self._writer is not None:
                result = self._writer.run(operation, session_id, durable)
            else:
                with self._transaction(durable=durable) as connection:
                    result = operation(connection)
        if not is_small:
            self._failed_write = None
        return result

    def fetch(
        self, c: Connection, statement: sa.Select[*tuple[Any, ...]], **values: object
    ) -> Sequence[tuple[Any, ...]]:
        """Run a query and return all rows. For queries that are built once and run at every step."""
        return c.execute(statement, values).all()

    def change(self, c: Connection, statement: sa.UpdateBase, values: Values) -> int:
        """Run a change within a write, once for each mapping in ``values``. Returns the number of changed rows."""
        return c.execute(statement, values).rowcount

    def insert_new(self, c: Connection, table: sa.Table, rows: Sequence[Mapping[str, object]]) -> int:
        """Within a write, insert rows, skip existing ones, and return how many were inserted."""
        return self.change(c, _insert_new(type(self).insert, table), rows)

    def check_writing(self) -> None:
        """Raise StorageError if the database can only be read, its disk is nearly full, or a write has failed."""
        with self.read():
            room = self.room()
        if room is not None and room < _ROOM:
            raise StorageError(f"{self.name}: its disk has {room / 2**20:.1f} MiB left: make room on it.")
        failed = self._failed_write
        if failed is not None and time.monotonic() - failed[0] < 60.0:
            raise StorageError(failed[1])
        if self.read_only or (failed is not None and not self.in_memory):
            with self.write() as c:
                c.execute(sa.update(schema_version).values(version_num=schema_version.c.version_num))
            self._failed_write = None

    def close(self) -> None:
        """Close all connections; later use opens them again, but a bank in memory is lost (``is_lost``)."""
        with self.write_lock:
            self.is_lost = self.in_memory
            self._engine.dispose()

    def _wipe(self, seconds: float) -> None:
        with suppress(SQLAlchemyError):  # the deletion itself is committed
            self.wipe(seconds)

    @contextmanager
    def _transaction(
        self, creating: bool = False, *, erasing: bool = False, durable: bool = True
    ) -> Iterator[Connection]:
        with self.write_lock if self.exclusive else nullcontext(), self._engine.connect() as connection:
            self.check_place(connection)
            connection.begin()
            try:
                now = self.begin_write(connection, creating, erasing, durable)
            except connection.dialect.loaded_dbapi.Error as e:  # of the driver, which is asked directly
                raise sa.exc.OperationalError("BEGIN", None, e) from e
            if now != VERSION:
                self.check_schema(now)
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
                    f"{self.name}: {self.say(e)} while a write was being committed: make the same "
                    "call again, what was kept is not stored twice."
                ) from e
            fault_point("write.committed")

    @contextmanager
    def _mapped(self, writing: bool = False) -> Iterator[None]:
        """Raise errors of the driver as ours. In memory, all threads take turns on the one connection."""
        try:
            if self.is_lost:
                raise StorageError(
                    "the bank was in memory and has been closed, its contents are lost: open a new one."
                )
            if self.is_silent:
                raise StorageError(
                    f"{self.name}: the server does not answer; the same call can be made again."
                )
            try:
                with self.write_lock if self.in_memory else nullcontext():
                    yield
            except (SQLAlchemyError, OverflowError) as e:
                if self.failed is not None:
                    self.failed()
                if not self.in_memory and re.search("no such|does not exist", first_line(e)):
                    with suppress(SQLAlchemyError), self._reader.connect() as c:
                        self.check_schema(str(c.exec_driver_sql(READ_VERSION).scalar()))
                raise StorageError(
                    f"{self.name}: {self.say(e)}; nothing was changed, the same call can be made again."
                ) from e
        except StorageError as e:
            if writing:
                self._failed_write = time.monotonic(), str(e)
            raise

    def open_session(self, session_id: str, project: str | None = None, namespace: str | None = ANY) -> None:
        """Create a session if it is missing. Raises ConfigError for a bad name, or a session of another project."""
        for kind, name in (("a session_id", session_id), ("a project", project)):
            if not is_session_id(name) and not (kind == "a project" and name is None):
                raise ConfigError(
                    f"{kind} must be a text of 1 to 255 characters without NUL and lone surrogates."
                )
        mine = {"session": session_id}
        with self.read() as c:
            owner = c.execute(_OWNERS, mine).first()
        if owner is None or (project is not None and owner[0] is None) or owner[2] is not None:
            with self.write() as c:
                new = {"session_id": session_id, "created": time.time(), "generation": 0}
                new |= {"project": project, "namespace": None if namespace is ANY else namespace}
                self.insert_new(c, sessions, [new])
                owner = c.execute(_OWNERS, mine).one()
                if namespace in (ANY, owner[1]):
                    self.change(c, REVIVE, mine)
                    if project is not None:
                        c.execute(_JOINS.values(project=project), mine)
                        owner = c.execute(_OWNERS, mine).one()
        if namespace not in (ANY, owner[1]):
            raise ConfigError(f"there can be no session {session_id!r} here: choose another session_id.")
        if project is not None and owner[0] != project:
            session = session_id.rpartition(NAMESPACE_END)[2]
            raise ConfigError(
                f"the session {session!r} belongs to the project {owner[0]!r}, not to {project!r}: "
                "open it with its own project, or give this project another session_id."
            )

    def set_session(self, session_id: str, **values: object) -> None:
        """Store the ``task`` or the ``title`` of a session, or when it was ``deleted`` (its row stays)."""
        with self.write(erasing=True) as c:
            c.execute(SET_SESSION.values(values), {"session": session_id})

    def set_origin(self, session_id: str, project: str | None, client: str) -> None:
        """Store a session's ``project`` and ``client`` where none is stored yet."""
        mine = {"session": session_id}
        with self.read() as c:
            origin = c.execute(sa.select(_s.project, _s.client).where(of_session(sessions)), mine).one()
        if (project and origin[0] is None) or (client and origin[1] is None):
            with self.write() as c:
                c.execute(SET_SESSION.where(_s.client.is_(None)).values(client=client or None), mine)
                if project:
                    c.execute(_JOINS.values(project=project), mine)

    def get_session(self, session_id: str, what: Literal["task", "client", "note"]) -> str:
        """The user's task, the program that sent the first request, or a model's note at the latest fold; or ""."""
        return self.value(sa.select(_s[what]).where(of_session(sessions)), session=session_id) or ""

    def set_note(self, session_id: str, note: str, generation: int | None) -> None:
        """Store a session's note; nothing happens where content was deleted since ``generation``."""
        same = SET_SESSION.where(_s.generation == (generation or 0))
        with self.write() as c:
            c.execute(same.values(note=note), {"session": session_id})

    def set_requests(self, session_id: str, requests: Mapping[str, int], generation: int | None) -> None:
        """Store what a session's user said, each with the number of records before it. See ``set_note``."""
        same = SET_SESSION.where(_s.generation == (generation or 0))
        values = same.values(requests=json.dumps([*requests.items()][-MOST_REQUESTS:]))
        self.submit(lambda c: c.execute(values, {"session": session_id}), session_id, is_small=True)

    def get_requests(self, session_id: str) -> dict[str, int]:
        """What the user said in a session, oldest first: each message with the number of records stored before it."""
        stored = self.value(sa.select(_s.requests).where(of_session(sessions)), session=session_id)
        with suppress(ValueError, TypeError, OverflowError, RecursionError):  # of an export written by hand
            return {str(text): int(n) for text, n in json.loads(stored or "[]")}
        return {}

    def charge(
        self,
        c: Connection,
        session_id: str,
        sums: tuple[float, float],
        told: tuple[str | None] | None,
        step: Mapping[str, object],
    ) -> None:
        """Within a write, add a step to the session's two sums: what it paid, and what the full history would cost.

        ``told``: what its provider now tells of the prefix cache; ``step``: ``sent``, ``came``, ``in_vain`` of one.
        """
        values = {"session": session_id, "more_paid": sums[0], "more_full": sums[1]}
        values |= {"is_told": told is not None, "told": told and told[0]}
        if step:
            values |= {"now": self.now(c), **{f"new_{k}": v for k, v in step.items()}}
        self.change(c, _CHARGE if step else _SETTLE, values)

    def add_summary(self, session_id: str, text: str, generation: int | None) -> str:
        """Store a text that replaces a conversation; the latest eight stay. Returns its digest. See ``set_note``."""
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        with self.write() as c:
            self.lock_session(c, session_id)
            session = {"session": session_id}
            stored = c.execute(sa.select(_s.summaries).where(of_session(sessions)), session).scalar()
            texts = {**dict([*json.loads(stored or "{}").items()][-7:]), digest: text}
            where = SET_SESSION.where(_s.generation == (generation or 0))
            c.execute(where.values(summaries=json.dumps(texts)), session)
        return digest

    def get_summary(self, namespace: str | None, session_id: str, digest: str) -> str | None:
        """A text that was kept for a session of a namespace; None where it was deleted."""
        query = sa.select(_s.summaries).where(of_session(sessions), of_namespace(namespace))
        text = json.loads(self.value(query, session=session_id) or "{}").get(digest)
        return text if isinstance(text, str) else None

    def secret(self) -> bytes:
        """32 random bytes that only this bank has, made at the first call."""
        query = sa.select(bank.c.value).where(bank.c.key == "secret")
        if (secret := self.value(query)) is None:
            with self.write() as c:
                self.insert_new(c, bank, [{"key": "secret", "value": secrets.token_hex(32)}])
            secret = self.value(query)
        return bytes.fromhex(secret or "")

    def counter(self, encoding: str) -> str | None:
        """The name of the token counter that decides the bank's folds, for an encoding; None before the first one."""
        return self.value(sa.select(bank.c.value).where(bank.c.key == f"counter:{encoding}"[:64]))

    def keep_counter(self, encoding: str, name: str) -> str:
        """Store the name of a token counter if none is stored yet; returns the stored one."""
        with self.write() as c:
            self.insert_new(c, bank, [{"key": f"counter:{encoding}"[:64], "value": name}])
        return self.counter(encoding) or name

    def project_of(self, session_id: str) -> str | None:
        """The project of a session, or None."""
        return self.value(sa.select(_s.project).where(of_session(sessions)), session=session_id)

    def extent(self, session_id: str) -> Extent:
        """The numbers of stored rows of a session, and its ledger."""
        with self.read() as c:
            [row] = self.fetch(c, _EXTENT, session=session_id)
            generation, count, insights, waiting, fold, folded, asked, *ledger = row
            idle = 0.0 if asked is None else max(0.0, self.now(c) - asked)
        last_fold = LastFold(fold or 0, folded or 0.0)
        # a sum of PostgreSQL is a Decimal
        return Extent(generation, int(count), int(insights), waiting, last_fold, idle, *ledger)


class LastFold(NamedTuple):
    """The number of a session's newest fold, and when it was made; 0 where there is none."""

    number: int = 0
    created: float = 0.0


class Extent(NamedTuple):
    """The numbers stored of a session: generation, numbers of records and insights, newest fold, ledger.

    ``waiting``: insights that wait for the Observer's model. ``idle``: seconds since its latest context; all else as
    in the table.
    """

    generation: int
    records: int
    insights: int
    waiting: int
    fold: LastFold
    idle: float
    paid: float | None
    would_pay: float | None
    sent: bytes | None
    came: bytes | None
    in_vain: int | None
    cache: str | None


@cache
def _insert_new(insert: Callable[[sa.Table], Any], table: sa.Table) -> sa.Insert:
    return insert(table).on_conflict_do_nothing().execution_options(preserve_rowcount=True)  # type: ignore[no-any-return]


def first_line(error: BaseException) -> str:
    """The first line of a driver's error, without the statement and its parameters, which hold contents."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return str(cause).strip().split("\n", 1)[0].rstrip(".") or type(cause).__name__


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
        """Run the writes in one transaction. A write that fails rolls back all; with savepoints only itself."""
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
