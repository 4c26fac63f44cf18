"""Copies a SQLite bank to a file while it is in use, and puts such a copy in the place of a bank."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from memory_bank.bank.database import Database, first_line
from memory_bank.bank.schema import metadata, triggers
from memory_bank.bank.sqlite import has_foreign_journal, number_anew
from memory_bank.errors import ConfigError, StorageError
from memory_bank.faults import fault_point


def backup(database: Database, to: Path, place: Callable[[str], object] | None = None) -> None:
    """Copy a SQLite bank, as it is at one moment, to a new file of mode 0600; writers go on meanwhile.

    The file is there once it is complete: ``place`` is called with the copy, and moves it. Raises StorageError, and
    ConfigError if there is a file already.
    """
    if place is None and (to.exists() or to.is_symlink()):
        raise ConfigError(f"{to} exists: name a new file, a backup overwrites nothing.")
    copy = ""
    try:
        handle, copy = tempfile.mkstemp(prefix=f"{to.name}.", suffix=".part", dir=to.parent)
        os.close(handle)
        with database.read() as c, closing(sqlite3.connect(copy)) as target:
            c.connection.driver_connection.backup(target)  # type: ignore[union-attr]
            number_anew(target)
        fault_point("backup.executed")
        os.replace(copy, to) if place is None else place(copy)
    except (OSError, sqlite3.Error) as e:
        raise StorageError(
            f"{to} cannot be written ({first_line(e)}): make room, or name another file."
        ) from e
    finally:
        for end in ("", "-wal", "-shm", "-journal"):
            Path(f"{copy}{end}").unlink(missing_ok=True) if copy else None


def restore(source: Path, to: Path) -> Path | None:
    """Put a copy of a bank at ``to``; the new name of the bank that was there, None if there was none.

    Either is there as a whole at every moment. Where ``to`` is a link, the bank that it leads to is replaced, and the
    link stays. Raises ConfigError, and StorageError if ``source`` is no sound bank of this version or has triggers or
    views of its own, or a process has the bank at ``to`` open.
    """
    to = to.resolve()
    if not source.is_file() or not source.stat().st_size or (to.exists() and to.samefile(source)):
        raise ConfigError(f"{source} is no backup of a bank, or that bank itself: check the name.")
    _check_objects(source)
    database = Database(source, must_exist=True)
    former = Path(f"{to}.{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() // 1_000_000 % 1_000:03}")

    def place(copy: str) -> None:
        sound = to.exists() and not has_foreign_journal(to)
        with closing(sqlite3.connect(to if sound else "", isolation_level=None)) as c:
            try:  # no other process may have it open: its journal is written into it
                c.executescript("PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=DELETE; BEGIN EXCLUSIVE")
            except sqlite3.DatabaseError as e:  # a damaged file is kept as it is
                if "locked" in str(e):
                    raise StorageError(
                        f"{to} is open in a process: stop what uses it, and restore then."
                    ) from e
            with suppress(FileNotFoundError):
                os.link(to, former)
                os.chown(copy, to.stat().st_uid, to.stat().st_gid)
            fault_point("restore.executed")
            with suppress(FileNotFoundError):  # the journal of another file, or of a damaged one
                os.rename(f"{to}-wal", f"{former}-wal")
            os.replace(copy, to)

    try:
        with database.read() as c:
            if c.exec_driver_sql("PRAGMA quick_check(1)").scalar() != "ok":
                raise StorageError(f"{source} is damaged, nothing was changed: restore another backup.")
        backup(database, to, place)
    finally:
        database.close()
    return former if former.exists() else None


def _check_objects(source: Path) -> None:
    """Raise StorageError for a file with triggers, views or tables of its own, before anything in it may run."""
    uri = f"{source.absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as c:
            objects = c.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    except sqlite3.Error:  # opening it says what is wrong
        return
    tables, ours = {*metadata.tables, "models", "sqlite_sequence"}, {*triggers("sqlite")}
    for kind, name, sql in objects:
        is_own = name in tables and "VIRTUAL" not in str(sql).upper()[:20]
        if kind == "view" or (kind == "trigger" and sql not in ours) or (kind == "table" and not is_own):
            raise StorageError(
                f"{source} has the {kind} {name[:80]!r}, which no bank has: nothing was changed, restore another one."
            )
