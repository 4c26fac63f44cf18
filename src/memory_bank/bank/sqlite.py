"""SQLite, in a file (WAL, ``synchronous=FULL``) or in memory: how it is opened, locked and set up.

A bank's file is known by its inode and a random number in its header, which Linux keeps with its journal (FILE-wal).
"""

from __future__ import annotations

import functools
import logging
import os
import secrets
import shutil
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import StaticPool
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.util import LRUCache

from memory_bank.bank.database import READ_VERSION, Database, Values, first_line
from memory_bank.bank.schema import VERSION, metadata, triggers
from memory_bank.errors import DatabaseOpenError, StorageError

logger = logging.getLogger("memory_bank.Database")

KEPT_ROOM = 8 * 2**20
"""Bytes of a disk, at most an eighth of it, that are left for deletions: other writes are refused below."""
_TIGHT = 64 * 2**20  # bytes of a disk below which deleted content is cut off instead of overwritten
_JOURNAL = 256 * 2**10  # bytes of a disk below which deletions are written without a journal on it
_LEVEL = "synchronous"  # of a connection, where it is not that of the URL
_INCREMENTAL, _PAGES = 2, 256  # the number of that auto_vacuum; pages that are cut off at a time
BUSY_TIMEOUT_MS = 5_000
CREATION_TIMEOUT_MS = 60_000


class _Compiled(LRUCache[Any, Any]):
    """The compiled statements of all databases of a process; their keys begin with each engine's own dialect."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key[1:], default)

    def __setitem__(self, key: Any, statement: Any) -> None:
        super().__setitem__(key[1:], statement)


_compiled = _Compiled(500)


class Sqlite(Database):
    """See Database. Writers of one process take turns and wait up to 5 s for those of other processes.

    ``?synchronous=normal`` in the URL omits the sync at each commit: after a loss of power (not of the
    process) the latest commits may be lost; the file stays consistent. A file that may only be read, or is on a
    read-only file system, is opened for reading; writes raise StorageError.
    """

    exclusive = True
    elsewhere = "give another file name"
    insert = staticmethod(sqlite.insert)
    _place: tuple[int, int] | None = None  # device and inode of the open file
    _number = _looked = 0  # in its header, and the file's time when it was looked at
    _overwritten = False

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
        self._synchronous = str(query.pop("synchronous", "full")).upper()
        if query or self._synchronous not in ("FULL", "NORMAL"):
            raise DatabaseOpenError(
                "a SQLite URL takes one option: use  sqlite:///FILE  or  sqlite:///FILE?synchronous=normal ."
            )
        options: dict[str, Any] = {"connect_args": {"check_same_thread": False}, "hide_parameters": True}
        if self.in_memory:
            options["poolclass"] = StaticPool
        else:
            mode = self._check_file(must_exist)
            self.read_only = mode != ""
            options["creator"] = functools.partial(self._open, f"{self._file.as_uri()}?{mode or 'mode=rw'}")
        engine = sa.create_engine(self.url, **options)
        engine.update_execution_options(compiled_cache=_compiled)

        @event.listens_for(engine, "connect")
        def _configure(connection: sqlite3.Connection, _record: object) -> None:
            connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
            if self.in_memory:
                connection.executescript(schema_script())
                return
            if not self.read_only:
                if self._is_full():
                    _write_in_place(connection)
                else:
                    _write_ahead(connection)
                connection.execute(f"PRAGMA synchronous={self._synchronous}")
                _write_owner(self._file, connection.execute("PRAGMA user_version").fetchone()[0])

        return engine

    def _open(self, uri: str) -> sqlite3.Connection:
        """A connection to the file that is known, which it does not create."""
        self.check_place()
        return sqlite3.connect(uri, uri=True, check_same_thread=False)

    def close(self) -> None:
        with suppress(SQLAlchemyError, StorageError), self.read():  # a file that was replaced is noticed
            pass
        super().close()
        self._place, self._number, self._overwritten = None, 0, False

    def check_place(self, c: Connection | None = None) -> None:
        """See Database. The journal is then written into its own file, or emptied if that was overwritten."""
        if self.in_memory:
            return
        place, same = None, False
        with suppress(OSError):
            stat = self._file.stat()
            place = stat.st_dev, stat.st_ino
            self._place = self._place or place
            same = place == self._place
            if same and stat.st_mtime_ns != self._looked:
                self._looked, number = stat.st_mtime_ns, _number_in(self._file) or 0
                self._number = self._number or number
                self._overwritten = number not in (0, self._number)
        if self._place is None or (same and not self._overwritten):
            return
        if c is not None and not self.read_only and _owner_of(self._file)[0] in (0, self._place[1]):
            with suppress(SQLAlchemyError, OSError):
                if same:
                    os.truncate(f"{self._file}-wal", 0)
                else:
                    c.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        raise StorageError(
            f"{self.name} was deleted or replaced while it was open: put that file back, or stop every process that "
            "uses it and start again with the file that is there. Nothing is stored until then."
        )

    @functools.cached_property
    def _file(self) -> Path:
        return Path(str(self.url.database)).absolute()

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
                    with closing(sqlite3.connect(file)) as c:
                        c.execute("PRAGMA auto_vacuum=INCREMENTAL")
                        number_anew(c)
            if _number_in(file) is not None:  # the mode of another program's file is not changed
                for each in (file, log, index):
                    _make_private(each)
            if has_foreign_journal(file):
                raise DatabaseOpenError(
                    f"{self.name}: its journal {log.name} belongs to another file, which was here before, and would "
                    f"damage this one: put that file back, or move {log.name} and {index.name} away."
                )
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

    def begin_write(
        self, c: Connection, creating: bool = False, erasing: bool = False, durable: bool = True
    ) -> str:
        if self.read_only:
            raise StorageError(
                f"{self.name} can only be read here: allow writing to the file and its folder, or use a copy."
            )
        if self.in_memory:
            return VERSION
        if erasing:  # FAST: pages that become free are not written; ``shrink`` cuts them off
            c.exec_driver_sql(f"PRAGMA secure_delete={'FAST' if self._is_tight() else 'ON'}")
        elif not creating:
            disk, log = shutil.disk_usage(self._file.parent), 0
            with suppress(OSError):  # the log may yet have to be copied into the file
                log = os.stat(f"{self._file}-wal").st_size
            if disk.free < min(KEPT_ROOM, disk.total // 8) + log:
                left = f"{disk.free / 2**20:.1f} MiB left, which are kept for deletions"
                raise StorageError(
                    f"{self.name}: its disk has {left}: make room, or delete with `memory-bank bank purge`."
                )
        with self._waiting(c, CREATION_TIMEOUT_MS) if creating else nullcontext():
            driver: sqlite3.Connection = c.connection.driver_connection  # type: ignore[assignment]
            level = self._synchronous if durable else "NORMAL"
            if c.info.get(_LEVEL, self._synchronous) != level:
                driver.execute(f"PRAGMA synchronous={level}")
                c.info[_LEVEL] = level
            # the write lock at once, so that two readers cannot deadlock; by the driver: half the time
            driver.execute("BEGIN IMMEDIATE")
            return VERSION if creating else str(driver.execute(READ_VERSION).fetchone()[0])

    def fetch(
        self, c: Connection, statement: sa.Select[*tuple[Any, ...]], **values: object
    ) -> Sequence[tuple[Any, ...]]:
        cursor, read = _run(c, statement, [values], many=False)
        if not any(read):
            return cursor.fetchall()
        return [tuple(f(v) if f else v for f, v in zip(read, row, strict=True)) for row in cursor]

    def change(self, c: Connection, statement: sa.UpdateBase, values: Values) -> int:
        if isinstance(values, Mapping):
            return _run(c, statement, [values], many=False)[0].rowcount
        return _run(c, statement, values, many=True)[0].rowcount

    def wipe(self, seconds: float) -> None:
        """See Database. Empties the write-ahead log, which holds pages from before a deletion.

        Waits so long for readers and writers of other connections.
        """
        if not (self.in_memory or self.read_only):
            if self._is_tight():
                self.shrink()
            with self.write_lock, self._engine.connect() as c, self._waiting(c, int(1000 * seconds)):
                c.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    def shrink(self) -> None:
        """See Database. Pages are moved to the beginning of the file some at a time, so that it needs little room."""
        if self.in_memory or self.read_only:
            return
        with (
            suppress(SQLAlchemyError, sqlite3.Error),
            self.write_lock,
            self._engine.connect() as c,
            self._waiting(c, 200),
        ):
            driver: sqlite3.Connection = c.connection.driver_connection  # type: ignore[assignment]

            pages = _PAGES if self._is_tight() else 16 * _PAGES

            def figure(name: str) -> int:
                return int(driver.execute(f"PRAGMA {name}").fetchone()[0])

            while figure("auto_vacuum") == _INCREMENTAL and (free := figure("freelist_count")):
                driver.executescript(f"PRAGMA incremental_vacuum({pages})")  # execute() stops after one page
                is_read = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[
                    0
                ]  # by others, meanwhile
                if is_read or figure("freelist_count") >= free:
                    return

    def _is_full(self) -> bool:
        """Return whether the disk has no room for a journal and its index, and no process has made them before."""
        room = self.room()
        return room is not None and room < _JOURNAL and not os.path.exists(f"{self._file}-shm")

    def _is_tight(self) -> bool:
        """Return whether the disk may not have the room that overwriting deleted content needs."""
        room = self.room()
        return room is not None and room < _TIGHT

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

    def create_tables(self, c: Connection) -> None:
        for statement in schema_script().split(";\n"):
            c.exec_driver_sql(statement)

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


def number_anew(c: sqlite3.Connection) -> None:
    """Give a file a random number of its own."""
    c.execute(f"PRAGMA user_version={1 + secrets.randbelow(2**31 - 1)}")


def _number_in(file: Path) -> int | None:
    """The number in a file's header; 0 if it has none, None if the file cannot be read or is of another format."""
    uri = f"{file.as_uri()}?mode=ro&immutable=1"  # not open(): closing it would release SQLite's locks
    with suppress(sqlite3.Error), closing(sqlite3.connect(uri, uri=True)) as c:
        return int(c.execute("PRAGMA user_version").fetchone()[0])
    return None


_OWNER = "user.memory_bank.owner"


def _write_owner(file: Path, number: int) -> None:
    """Write to a journal the inodes of its file and of itself, which a copy has not, and the file's number."""
    with suppress(OSError, AttributeError):  # not every system has such attributes
        inodes = f"{file.stat().st_ino} {os.stat(f'{file}-wal').st_ino}"
        os.setxattr(f"{file}-wal", _OWNER, f"{inodes} {number}".encode())


def _owner_of(file: Path) -> tuple[int, int]:
    """The inode and the number of the file that the journal beside a file belongs to; 0 where that is not known."""
    with suppress(OSError, AttributeError):
        owner, log, number = map(int, os.getxattr(f"{file}-wal", _OWNER).split())
        if log == os.stat(f"{file}-wal").st_ino:
            return owner, number
    return 0, 0


def has_foreign_journal(file: Path) -> bool:
    """Return whether beside an existing file there is a journal with content that belongs to another one."""
    (owner, number), file = _owner_of(file), file.absolute()
    if not owner or not file.exists() or not Path(f"{file}-wal").stat().st_size:
        return False
    return owner != file.stat().st_ino or (number > 0 and _number_in(file) not in (None, 0, number))


def _make_private(file: Path) -> None:
    """Take the rights of others from a file, or warn where that is its owner's to do."""
    mode = stat.S_IMODE(file.stat().st_mode) if os.name == "posix" and file.exists() else 0
    if mode & 0o077:
        with suppress(OSError):
            file.chmod(mode & 0o700)
        still = file.stat().st_mode & 0o077
        done = "can, until its owner changes that with chmod 600," if still else "could"
        logger.warning("others %s read %s, which holds tool outputs (mode %o)", done, file, mode)


Convert = Callable[[Any], Any] | None
"""The functions that make a value one of the driver's and read one; None: it is as it is."""


def _run(
    c: Connection, statement: Any, rows: Sequence[Mapping[str, Any]], *, many: bool
) -> tuple[sqlite3.Cursor, list[Convert]]:
    """Run a statement with the driver, which is faster than SQLAlchemy. Returns the cursor and column readers."""
    shape = tuple([(k, len(v) if isinstance(v, (list, tuple)) else None) for k, v in rows[0].items()])
    text, places, constants, read = _compile(statement, shape, many)
    ordered = []
    for row in rows:
        row_values = {**constants, **row}
        values = [(row_values[k] if n is None else row_values[k][n], binds) for k, n, binds in places]
        ordered.append([binds(v) if binds else v for v, binds in values])
    driver: sqlite3.Connection = c.connection.driver_connection  # type: ignore[assignment]
    try:
        return driver.executemany(text, ordered) if many else driver.execute(text, ordered[0]), read
    except sqlite3.Error as e:
        raise sa.exc.OperationalError(text, None, e) from e


@functools.lru_cache(256)
def _compile(
    statement: Any, shape: tuple[tuple[str, int | None], ...], many: bool
) -> tuple[str, list[tuple[str, int | None, Convert]], dict[str, Any], list[Convert]]:
    """Compile a statement once for each ``shape``: the names of its parameters, with the lengths of lists.

    Returns the text; the name, index in its list and conversion of each parameter; constants; column readers.
    """
    dialect, shapes = sqlite.dialect(), {name: n if n is None else [None] * n for name, n in shape}
    compiled = statement.compile(dialect=dialect, column_keys=[*shapes], for_executemany=many)
    state = compiled.construct_expanded_state(shapes)
    lists = {p: (name, n) for name, ps in state.parameter_expansion.items() for n, p in enumerate(ps)}
    places: list[tuple[str, int | None, Convert]] = []
    for name in state.positiontup:
        key, n = lists.get(name, (name, None))
        binds = compiled.binds[key].type.dialect_impl(dialect).bind_processor(dialect)
        places.append((key, n, binds) if key in shapes else (name, None, binds))
    constants = {name: v for name, v in state.parameters.items() if name not in shapes}
    columns = statement.selected_columns if isinstance(statement, sa.Select) else ()
    read: Any = [col.type.dialect_impl(dialect).result_processor(dialect, None) for col in columns]
    return state.statement, places, constants, read


@functools.cache
def schema_script() -> str:
    """The schema as one SQL script, made once for all databases of a process."""
    tables = metadata.sorted_tables
    indexes = (i for t in tables for i in sorted(t.indexes, key=lambda i: str(i.name)))
    parts: list[CreateTable | CreateIndex] = [*map(CreateTable, tables), *map(CreateIndex, indexes)]
    statements = [str(part.compile(dialect=sqlite.dialect())).strip() for part in parts]
    return ";\n".join([*statements, *triggers("sqlite")]) + ";"


def _write_in_place(connection: sqlite3.Connection) -> None:
    """Leave WAL, with a journal in memory: for deletions on a full disk, where the next connection goes back to WAL.

    A process that is killed within such a deletion may damage the file. Exclusive: without an index beside the file.
    """
    connection.execute("PRAGMA locking_mode=EXCLUSIVE")
    connection.execute("PRAGMA journal_mode=MEMORY")
    connection.execute("PRAGMA temp_store=MEMORY")
    connection.execute("PRAGMA locking_mode=NORMAL")
    connection.execute("SELECT 1 FROM sqlite_master").fetchone()  # gives the lock back


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
