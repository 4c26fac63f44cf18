"""PostgreSQL with pgvector: connecting, locking, and advice for its errors."""

from __future__ import annotations

import re
import select
import threading
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, InvalidatePoolError

from memory_bank.bank.database import READ_VERSION, Database, first_line
from memory_bank.bank.schema import VERSION, WAITING, bank, of_session, sessions, waits
from memory_bank.errors import INSTALL, DatabaseOpenError

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy.pool import ConnectionPoolEntry

WAITING.dialect_options["postgresql"]["where"] = waits  # here, as it loads SQLAlchemy's dialect
LOCK_TIMEOUT_MS = 15_000  # longer than a request waits: what is given up is stored all the same
CREATION_TIMEOUT_MS = 60_000
_CONNECTIONS = 15
_AT_ONCE = 32 * 2**20  # characters of rows in one statement
_ASKED_AFTER = 10.0  # seconds without use before a connection is tested by a query
_WAITS, _SILENCE = 0.5, 1.0
"""Seconds that a statement waits before it is asked whether the server still answers, and that this may take."""
_LOCKED, _USED, _POOLED = (
    "memory_bank.locked",
    "memory_bank.used",
    "memory_bank.pooled",
)  # keys of a connection's info
_CREATING = 0x6D656D62616E6B  # "membank": the advisory lock of those who create a bank
_LOCK_VERSION = f"SELECT pg_advisory_xact_lock_shared({_CREATING}); {READ_VERSION}"
_SECRETS = ("password", "sslpassword")

# Parameters of libpq that the URL may override: no call waits long for an unreachable server.
_CONNECT: dict[str, Any] = {
    "application_name": "memory_bank",
    "client_encoding": "utf8",  # without it psycopg returns bytes if the database has no encoding
    "connect_timeout": 2,
    "keepalives_idle": 30,
    "tcp_user_timeout": 30_000,  # ms
}

_PLACES = """
SELECT getdatabaseencoding(), current_schema(), to_regtype('vector') IS NOT NULL,
  (SELECT extnamespace::regnamespace FROM pg_extension WHERE extname = 'vector')
"""
_TABLES = """
SELECT t.relname FROM pg_class t JOIN pg_namespace n ON n.oid = t.relnamespace
WHERE n.nspname = current_schema() AND t.relkind IN ('r', 'p') AND NOT EXISTS (
  SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = t.oid AND d.deptype = 'e')
"""
_LOCK_SESSION = sa.select(sa.literal(1)).where(of_session(sessions)).with_for_update()
_LOCK = (
    sa.select(sessions.c.session_id)
    .where(sessions.c.session_id == sa.any_(sa.bindparam("wanted", type_=postgresql.ARRAY(sa.String))))
    .with_for_update(skip_locked=True)
)
_LOCK_NAME = sa.text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")
_LOCK_SESSIONS = sa.select(sessions.c.session_id).order_by(sessions.c.session_id).with_for_update()

# Patterns of connection errors, which have no SQLSTATE, and what to do.
_ADVICE = (
    (r"password|role .* does not exist|authentication", "check the URL's user and password"),
    (r"database .* does not exist", "create that database, or name another one"),
    (r"permission denied", "grant the URL's user all rights on that schema, its tables and sequences"),
    (r"host name|resolve|refused|timeout|timed out|No such file|unreachable|starting up|shutting down",
     "check the URL's host and port, and that the server runs"),
    (r"connection slots|too many", "raise the server's max_connections, or close some clients"),
)  # fmt: skip


class Postgres(Database):
    """A Database on PostgreSQL. A statement fails after 15 s of waiting for a lock; a stale connection is replaced.

    While the server is silent every operation fails at once; a server that is only slow is waited for. Behind a
    pooler (PgBouncer) nothing is kept in the server's session: no prepared statement, no SET. Options of the URL are
    ``pool_size``, ``prepare_threshold`` (after how many uses a statement is prepared, or "none") and those of libpq.
    """

    ranks = True
    # a read is one statement and needs no transaction
    reading: ClassVar[Mapping[str, Any]] = {"isolation_level": "AUTOCOMMIT"}
    insert = staticmethod(postgresql.insert)
    leaders = 4  # a transaction that waits for a session of another process does not block the others
    elsewhere = (
        "name an empty one, or give the bank a schema of its own by  ?options=-csearch_path=NAME,public"
    )

    def open_engine(self, must_exist: bool) -> Engine:  # noqa: ARG002  only the server knows
        self.url = self.url.set(drivername="postgresql+psycopg")
        self.name = self.url.difference_update_query(_SECRETS).render_as_string(hide_password=True)
        if "@" in (self.url.host or ""):
            raise DatabaseOpenError("the database URL has an @ in user or password: write it as %40.")
        self._size = _whole(self.url.query.get("pool_size", _CONNECTIONS), "pool_size", 1)
        threshold = self.url.query.get("prepare_threshold", 5)
        prepares = None if threshold == "none" else _whole(threshold, "prepare_threshold", 0)
        self.url = self.url.difference_update_query(("pool_size", "prepare_threshold"))
        options = {k: v for k, v in _CONNECT.items() if k not in self.url.query}
        try:
            engine = sa.create_engine(
                self.url,
                connect_args=options,
                hide_parameters=True,
                isolation_level="READ COMMITTED",
                pool_size=self._size,
                max_overflow=0,
                pool_use_lifo=True,
                pool_timeout=10,
            )
            self._line = _Line(lambda: _ask(engine, self.url, options))
            connection_class = _watched(self._line)
        except ImportError as e:  # psycopg or libpq
            raise DatabaseOpenError(
                f"{self.name} needs psycopg: run  {INSTALL.format(extra='postgres')}  in a checkout."
            ) from e

        @event.listens_for(engine, "do_connect")
        def _connect(_dialect: object, _record: object, args: list[Any], named: dict[str, Any]) -> object:
            if self._line.is_silent:  # of those that waited for a connection each would wait again
                raise engine.dialect.loaded_dbapi.OperationalError("it does not answer")
            return connection_class.connect(*args, **named)

        @event.listens_for(engine, "connect")
        def _configure(connection: psycopg.Connection, record: ConnectionPoolEntry) -> None:
            [number] = connection.execute("SELECT pg_backend_pid()").fetchone() or (None,)
            record.info[_POOLED] = number != connection.info.backend_pid
            connection.prepare_threshold = None if record.info[_POOLED] else prepares
            if not record.info[_POOLED]:
                connection.execute(f"SET lock_timeout = {LOCK_TIMEOUT_MS}")
                connection.execute("SET idle_in_transaction_session_timeout = 60000")  # a process that hangs
            connection.commit()

        # many rows in one statement, as each statement has its triggers
        engine.dialect.use_insertmanyvalues_wo_returning = True
        event.listen(engine, "checkout", _test)
        event.listen(engine, "checkin", lambda _, record: record.info.update({_USED: time.monotonic()}))
        return engine

    @property
    def is_silent(self) -> bool:  # type: ignore[override]
        return self._line.is_silent

    def close(self) -> None:
        """See Database."""
        self._line.rest()
        super().close()

    def begin_snapshot(self, c: Connection) -> None:
        """See Database. Without the timeout: the reader may be slow."""
        c.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        c.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")

    def begin_write(
        self,
        c: Connection,
        creating: bool = False,
        erasing: bool = False,  # noqa: ARG002
        durable: bool = True,  # noqa: ARG002
    ) -> str:
        """See Database. The version is read in one message: the second statement sees what was committed while the
        first one waited."""
        c.info.pop(_LOCKED, None)
        if not creating:
            if c.info.get(_POOLED):
                c.exec_driver_sql(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
            cursor = c.connection.driver_connection.execute(_LOCK_VERSION, prepare=False)  # type: ignore[union-attr]
            cursor.nextset()
            return str(cursor.fetchone()[0])
        c.exec_driver_sql(f"SET LOCAL lock_timeout = {CREATION_TIMEOUT_MS}")
        c.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_CREATING})")
        try:
            c.exec_driver_sql("CREATE EXTENSION IF NOT EXISTS vector")
        except DBAPIError as e:
            message = first_line(e)
            if _lost(e):
                raise
            if "permission denied" in message:
                raise DatabaseOpenError(
                    f"{self.name} lacks the extension vector, and the URL's user may not create it: let an "
                    "administrator run  CREATE EXTENSION vector  in that database."
                ) from e
            raise DatabaseOpenError(
                f"{self.name} cannot have the extension vector ({message}): install pgvector on the server."
            ) from e
        return VERSION

    def tables(self, c: Connection) -> set[str]:
        encoding, schema, has_vector, place = c.exec_driver_sql(_PLACES).one()
        if encoding != "UTF8":
            raise DatabaseOpenError(
                f"{self.name} has the encoding {encoding}: name a database made with  ENCODING 'UTF8' ."
            )
        if schema is None:
            raise DatabaseOpenError(
                f"{self.name} has no schema that the URL's user may use: create the one that its search_path "
                "names, and grant USAGE and CREATE on it."
            )
        if place is not None and not has_vector:
            raise DatabaseOpenError(
                f"{self.name} has the extension vector in the schema {place}: add that to its search_path."
            )
        return {row[0] for row in c.exec_driver_sql(_TABLES)}

    def now(self, c: Connection) -> float:
        return float(c.exec_driver_sql("SELECT extract(epoch FROM clock_timestamp())").scalar_one())

    def lock_bank(self, c: Connection, *, exclusive: bool = False) -> bool:
        """See Database. Neither mode blocks reads."""
        if exclusive or _LOCKED not in c.info:
            c.exec_driver_sql(f"LOCK TABLE {bank.name} IN {'EXCLUSIVE' if exclusive else 'ROW SHARE'} MODE")
        return True

    def lock_session(self, c: Connection, session_id: str | None) -> None:
        if session_id in c.info.get(_LOCKED, ()):
            return
        if session_id is None:
            c.execute(_LOCK_SESSIONS).all()
        else:
            c.execute(_LOCK_SESSION, {"session": session_id})

    def insert_new(self, c: Connection, table: sa.Table, rows: Sequence[Mapping[str, object]]) -> int:
        if len(rows) < 50:  # one statement for all is long
            return super().insert_new(c, table, rows)
        longest = max(sum(len(v) for v in row.values() if isinstance(v, (str, bytes))) for row in rows)
        new: Any = postgresql.insert(table).on_conflict_do_nothing().returning(sa.literal_column("1"))
        # a statement of more than 1 GiB ends the connection
        new = new.execution_options(insertmanyvalues_page_size=max(1, min(1_000, _AT_ONCE // (longest + 1))))
        return len(c.execute(new, rows).all())  # with "returning" SQLAlchemy puts many rows in one statement

    def lock_name(self, c: Connection, name: str) -> None:
        c.execute(_LOCK_NAME, {"name": name})

    def hold(self, c: Connection, session_ids: Collection[str]) -> Collection[str]:
        self.lock_bank(c)
        locked = set(c.execute(_LOCK, {"wanted": list(session_ids)}).scalars())
        c.info[_LOCKED] = locked
        return locked

    def read_bytes(self, column: sa.Column[Any], seq: int, start: int, size: int) -> bytes:
        part = sa.func.substr(sa.type_coerce(column, sa.LargeBinary), start + 1, size, type_=sa.LargeBinary)
        with self.read() as c:
            value = c.execute(sa.select(part).where(column.table.c.seq == seq)).scalar()
            if value is None:
                raise sa.exc.InvalidRequestError("the row is no longer there")
        return bytes(value)

    def say(self, error: BaseException, opening: bool = False) -> str:
        if isinstance(error, sa.exc.TimeoutError):
            return f"all {self._size} connections of this process are in use"
        # without the preamble of libpq
        message = re.sub(r"^connection failed: (?=connection )|(?<=failed: )FATAL:\s+", "", first_line(error))
        if not opening:
            return f"the server went away or cannot be reached ({message})" if _lost(error) else message
        advice = (todo for pattern, todo in _ADVICE if re.search(pattern, message, re.IGNORECASE))
        return f"{message}: {next(advice, 'check the URL, and that the server runs')}"


class _Line:
    """Checks over a separate connection whether the server still answers, while statements wait for their results.

    ``heard``: when the server last answered a statement on any connection. A busy server may delay a new connection.
    """

    def __init__(self, ask: Callable[[], bool]) -> None:
        self._ask = ask
        self.heard = 0.0
        self._lock = threading.Lock()
        self._asked: float | None = None  # since when the question is open
        self._asker: threading.Thread | None = None  # a process that was forked has none

    @property
    def is_silent(self) -> bool:
        """Whether the server has been asked and answers nobody."""
        asked = self._asked
        if asked is None or time.monotonic() - max(asked, self.heard) <= _SILENCE:
            return False
        return self._is_asking()

    def _is_asking(self) -> bool:
        return self._asker is not None and self._asker.is_alive()

    def ask(self) -> None:
        """Ask in the background, until there is an answer, unless the question is open."""
        with self._lock:
            if self._asked is not None and self._is_asking():
                return
            self._asker = threading.Thread(target=self._wait, name="memory-bank-server-asked", daemon=True)
            self._asked = time.monotonic()
            with suppress(RuntimeError):  # no thread can be started
                self._asker.start()

    def _wait(self) -> None:
        while not self._ask() and self._asked is not None:
            time.sleep(_WAITS)
        self.rest()

    def rest(self) -> None:
        """Ask no longer."""
        self._asked = None


def _ask(engine: Engine, url: sa.URL, options: Mapping[str, Any]) -> bool:
    """Return whether the server lets in, or refuses by an answer of its own, a connection within two seconds."""
    args, named = engine.dialect.create_connect_args(url)
    try:
        engine.dialect.connect(*args, **{**named, **options, "connect_timeout": 2}).close()
    except Exception as e:
        return "FATAL" in str(e)
    return True


def _watched(line: _Line) -> type[psycopg.Connection]:
    """A class of connections whose statements end when the server is silent, however long they may take otherwise."""
    from psycopg import Connection, OperationalError

    class Watched(Connection):
        def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
            return super().wait(self._watch(gen), *args, **options)

        def _watch(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
            began, asks_after, ready = time.monotonic(), _WAITS, None
            while True:
                try:
                    ready = yield gen.send(ready)
                except StopIteration as e:
                    line.heard = time.monotonic()
                    return e.value
                waited = 0.0 if ready else time.monotonic() - began
                if waited > asks_after:
                    line.ask()
                    asks_after = 2 * waited
                if waited and line.is_silent:
                    self.close()
                    raise OperationalError("it does not answer")

    return Watched


def _whole(value: object, name: str, least: int) -> int:
    if not str(value).isascii() or not str(value).isdigit() or not least <= int(str(value)) <= 1_000:
        raise DatabaseOpenError(f"{name} in the database URL is {str(value)[:40]!r}: give {least} to 1000.")
    return int(str(value))


def _test(connection: psycopg.Connection, record: ConnectionPoolEntry, _proxy: object) -> None:
    """Raise InvalidatePoolError for a lost connection: its socket is readable, or, after some time, a query fails."""
    quiet = time.monotonic() - record.info.get(_USED, 0.0) < _ASKED_AFTER
    if quiet and not connection.closed and hasattr(select, "poll"):
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        if not poll.poll(0):  # on a connection at rest only its end is to be read
            return
    try:
        connection.execute("SELECT 1")
        connection.rollback()
    except Exception as e:
        raise InvalidatePoolError("the server has closed the connection") from e


def _lost(error: BaseException) -> bool:
    return isinstance(error, DBAPIError) and (
        error.connection_invalidated
        or (isinstance(error, sa.exc.OperationalError) and error.statement is None)
    )
