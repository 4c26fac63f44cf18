"""The file of a bank: deleted or replaced while it is open, copied and put back, killed in the middle, read by others."""

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading

import pytest
from tests.examples import first_short

from memory_bank import InteractionRecord
from memory_bank.bank.backup import backup, restore
from memory_bank.bank.database import Database
from memory_bank.bank.maintenance import verify
from memory_bank.bank.stores import FactStore
from memory_bank.errors import ConfigError, DatabaseOpenError, StorageError

KILLED = """
import os, sys
from tests.bank.test_backup import put
from memory_bank.bank.database import Database
put(Database(sys.argv[1]), "killed", 5)
os.kill(os.getpid(), 9)
"""
STOP = """
import sys
from pathlib import Path
from memory_bank.bank import backup
from memory_bank.bank.database import Database
{}
"""


def put(database, session, count, start=0):
    for i in range(start, start + count):
        FactStore(database, session).store(InteractionRecord.create(i, "t", {"q": i}, {"_raw": "x"}))


def records(path):
    database = Database(path, must_exist=True)
    try:
        assert not list(verify(database))
        query = "SELECT session_id, count(*) FROM records GROUP BY 1"
        with database.read() as c:
            return dict(c.exec_driver_sql(query).all())
    finally:
        database.close()


def python(code, *args, **more):
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.run(command, env={**os.environ, **more}, timeout=60, check=False).returncode


@pytest.fixture
def bank(tmp_path):
    """A bank with three records, open."""
    database = Database(tmp_path / "bank.db")
    put(database, "ours", 3)
    yield database
    database.close()


@pytest.fixture
def saved(tmp_path):
    """A backup of another bank, with fifty records."""
    database = Database(tmp_path / "other.db")
    put(database, "saved", 50)
    backup(database, tmp_path / "saved.db")
    database.close()
    return tmp_path / "saved.db"


def replaced(way, path, saved):
    if way == "deleted":
        path.unlink()
    elif way == "renamed":
        path.rename(f"{path}.old")
    elif way == "overwritten":
        shutil.copyfile(saved, path)
    else:
        shutil.copyfile(saved, f"{path}.tmp")
        os.replace(f"{path}.tmp", path)


@pytest.mark.parametrize("way", ["deleted", "renamed", "replaced", "overwritten"])
def test_a_file_that_is_not_ours_is_neither_read_nor_written(tmp_path, bank, saved, way):
    path = tmp_path / "bank.db"
    second = Database(path)  # as in another process, and of it too
    replaced(way, path, saved)
    for database in (bank, second, bank):
        for use in (lambda d: put(d, "ours", 1, 3), lambda d: FactStore(d, "ours").size()):
            with pytest.raises(StorageError, match="deleted or replaced while it was open"):
                use(database)
        with pytest.raises(StorageError):
            database.check_writing()
    assert path.exists() == (way in ("replaced", "overwritten"))  # nothing makes an empty one
    bank.close()
    second.close()
    if path.exists():
        assert records(path) == {"saved": 50}
    if way == "renamed":  # what was in the journal has followed it
        assert records(f"{path}.old") == {"ours": 3}


def test_a_file_that_is_put_back_is_used_again(tmp_path, bank):
    path = tmp_path / "bank.db"
    path.rename(tmp_path / "away.db")
    with pytest.raises(StorageError):
        put(bank, "ours", 1, 3)
    (tmp_path / "away.db").rename(path)
    put(bank, "ours", 1, 3)
    bank.close()
    assert records(path) == {"ours": 4}


@pytest.mark.skipif(sys.platform != "linux", reason="notes are attributes of files")
@pytest.mark.parametrize("way", first_short(["replaced", "overwritten"]))
def test_the_journal_of_a_killed_process_is_not_written_into_another_file(tmp_path, saved, way):
    path = tmp_path / "killed.db"
    assert python(KILLED, path) == -signal.SIGKILL
    replaced(way, path, saved)
    with pytest.raises(DatabaseOpenError, match=r"its journal killed\.db-wal belongs to another file"):
        Database(path)
    for end in ("-wal", "-shm"):
        os.rename(f"{path}{end}", tmp_path / f"aside{end}")
    assert records(path) == {"saved": 50}


def test_a_killed_bank_is_recovered_where_it_is_and_as_a_copy(tmp_path):
    path, copy = tmp_path / "killed.db", tmp_path / "copy"
    assert python(KILLED, path) == -signal.SIGKILL
    copy.mkdir()
    for file in tmp_path.glob("killed.db*"):
        shutil.copy2(file, copy)
    assert records(copy / "killed.db") == records(path) == {"killed": 5}


def test_a_backup_is_one_moment_of_a_bank_that_is_being_written(tmp_path, bank):
    stop = threading.Event()

    def write():
        for n in range(3, 100_000):
            put(bank, "ours", 1, n)
            if stop.is_set():
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for n in range(3):
            backup(bank, tmp_path / f"{n}.db")
    finally:
        stop.set()
        writer.join()
    assert stat.S_IMODE((tmp_path / "0.db").stat().st_mode) == 0o600
    sizes = [records(tmp_path / f"{n}.db")["ours"] for n in range(3)]
    assert 3 <= sizes[0] <= sizes[1] <= sizes[2] <= FactStore(bank, "ours").size()
    with pytest.raises(ConfigError, match="overwrites nothing"):
        backup(bank, tmp_path / "0.db")


def test_restore_keeps_the_bank_that_was_there(tmp_path, bank, saved):
    path = tmp_path / "bank.db"
    with pytest.raises(StorageError, match="is open in a process"):
        restore(saved, path)
    put(bank, "ours", 1, 3)
    bank.close()
    kept = restore(saved, path)
    assert (records(path), records(kept), records(saved)) == ({"saved": 50}, {"ours": 4}, {"saved": 50})
    assert restore(saved, tmp_path / "new.db") is None
    with pytest.raises(ConfigError, match="no backup of a bank, or that bank itself"):
        restore(path, path)


@pytest.mark.long
def test_restore_after_a_kill_and_over_a_damaged_bank(tmp_path, saved):
    killed, damaged = tmp_path / "killed.db", tmp_path / "damaged.db"
    assert python(KILLED, killed) == -signal.SIGKILL
    for end in ("-wal", "-shm"):  # a journal whose bank is gone
        shutil.copy2(f"{killed}{end}", tmp_path / f"gone.db{end}")
    assert records(restore(saved, killed)) == {"killed": 5}
    damaged.write_bytes(b"no database" * 1_000)
    for path in (killed, damaged, tmp_path / "gone.db"):
        restore(saved, path)
        assert records(path) == {"saved": 50}


@pytest.mark.parametrize("what", ["junk", "damaged", "newer", "empty"])
def test_what_is_no_sound_bank_is_not_restored(tmp_path, bank, saved, what):
    source = tmp_path / "source.db"
    shutil.copyfile(saved, source)
    if what == "newer":
        with sqlite3.connect(source) as c:
            c.execute("UPDATE schema_version SET version_num = '99'")
    elif what == "damaged":
        data = source.read_bytes()
        source.write_bytes(data[: len(data) // 2] + os.urandom(len(data) - len(data) // 2))
    else:
        source.write_bytes(b"junk" * 3_000 if what == "junk" else b"")
    bank.close()
    with pytest.raises((StorageError, ConfigError)):
        restore(source, tmp_path / "bank.db")
    assert records(tmp_path / "bank.db") == {"ours": 3}


@pytest.mark.parametrize("verb", first_short(["restore", "backup"]))
def test_a_kill_in_the_middle_leaves_the_old_or_the_new(tmp_path, bank, saved, verb):
    path, to = tmp_path / "bank.db", tmp_path / "to.db"
    bank.close()
    call = f"backup.backup(Database({str(path)!r}), Path({str(to)!r}))"
    if verb == "restore":
        call = f"backup.restore(Path({str(saved)!r}), Path({str(path)!r}))"
    ended = python(STOP.format(call), MEMORY_BANK_FAULT=f"{verb}.executed")
    assert ended == -signal.SIGKILL
    assert records(path) == {"ours": 3}
    assert not to.exists()
    assert python(STOP.format(call)) == 0
    assert records(to if verb == "backup" else path) == ({"ours": 3} if verb == "backup" else {"saved": 50})


def test_a_bank_that_others_could_read_is_made_private(tmp_path, caplog):
    path = tmp_path / "bank.db"
    assert python(KILLED, path) == -signal.SIGKILL
    files = sorted(tmp_path.glob("bank.db*"))
    for file, mode in zip(files, (0o644, 0o664, 0o640), strict=True):
        file.chmod(mode)
    Database(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len([r for r in caplog.records if "could read" in r.message]) == 3
    caplog.clear()
    database = Database(path)
    assert not caplog.records
    assert {stat.S_IMODE(f.stat().st_mode) for f in tmp_path.glob("bank.db*")} == {0o600}
    database.close()


def test_the_mode_of_a_file_that_is_no_bank_is_not_changed(tmp_path, caplog):
    path = tmp_path / "agent.py"
    path.write_text("import this\n" * 100)
    path.chmod(0o644)
    with pytest.raises(DatabaseOpenError, match="not a database"):
        Database(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert not caplog.records


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON records BEGIN DELETE FROM records; END",
        "CREATE TRIGGER t AFTER UPDATE ON schema_version BEGIN DELETE FROM records; END",
        "DROP TRIGGER sums_records_after_insert; CREATE TRIGGER sums_records_after_insert AFTER INSERT ON records"
        " BEGIN DELETE FROM records; END",
        "CREATE VIEW v AS SELECT * FROM records",
        "CREATE TABLE other (a)",
        "CREATE VIRTUAL TABLE f USING fts5(a)",
    ],
)
def test_a_file_with_objects_of_its_own_is_not_restored(tmp_path, statement):
    source, to = tmp_path / "source.db", tmp_path / "bank.db"
    for path, name in ((source, "new"), (to, "old")):
        database = Database(path)
        put(database, name, 2)
        database.close()
    with sqlite3.connect(source) as c:
        c.execute("UPDATE schema_version SET version_num = '4'")  # opening it would run what is in it
        c.executescript(statement)
    c.close()
    with pytest.raises(StorageError, match="which no bank has: nothing was changed"):
        restore(source, to)
    assert records(to) == {"old": 2}
    with sqlite3.connect(source) as c:
        assert c.execute("SELECT version_num FROM schema_version").fetchone() == ("4",)
        assert c.execute("SELECT count(*) FROM records").fetchone() == (2,)
    c.close()


def test_a_link_stays_and_the_bank_behind_it_is_replaced(tmp_path):
    (tmp_path / "disk").mkdir()
    source, bank_file, link = tmp_path / "source.db", tmp_path / "disk" / "real.db", tmp_path / "bank.db"
    for path, name in ((source, "new"), (bank_file, "old")):
        database = Database(path)
        put(database, name, 2)
        database.close()
    link.symlink_to(bank_file)
    kept = restore(source, link)
    assert link.is_symlink() and link.resolve() == bank_file
    assert records(link) == records(bank_file) == {"new": 2}
    assert kept is not None and kept.parent == bank_file.parent and records(kept) == {"old": 2}
    link.unlink()
    link.symlink_to(tmp_path / "nowhere.db")
    database = Database(source)
    with pytest.raises(ConfigError, match="a backup overwrites nothing"):
        backup(database, link)
    database.close()
    assert link.is_symlink() and not link.exists()
