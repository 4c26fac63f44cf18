"""A disk that is full is emptied with the bank's own deletions: on a file system of 12 MiB, which only root may mount."""

from __future__ import annotations

import os
import subprocess
from contextlib import closing, suppress

import pytest
import sqlalchemy as sa

from memory_bank import InteractionRecord, MemoryBankState
from memory_bank.bank.database import Database
from memory_bank.bank.maintenance import purge, verify
from memory_bank.bank.stores import FactStore
from memory_bank.errors import StorageError

MARKER = "MARKER-7f3c9a "


@pytest.fixture
def disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)]
    if os.name != "posix" or not hasattr(os, "getuid") or os.getuid() != 0:
        pytest.skip("only root may mount a file system")
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def free(disk):
    return os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize


def fill(disk, database, size):
    """Store records of two sessions until the disk is full, and then the rest of it with another file."""

    def store_all():
        for n in range(100_000):
            record = InteractionRecord.create(
                n, "t", {"n": n}, {"_raw": ""}, output_text=MARKER * (size // 14)
            )
            FactStore(database, "b" if n % 10 == 3 else "a").store(record)

    with pytest.raises(
        StorageError, match=r"disk has .* MiB left, which are kept for deletions|disk is full"
    ):
        store_all()
    with open(disk / "other", "wb", buffering=0) as other:
        try:
            while True:
                other.write(b"x" * 4096)
        except OSError:
            pass
    assert free(disk) == 0


@pytest.mark.parametrize("size", [20_000, 500_000, 1_200_000, 3_000_000])
def test_a_full_disk_is_emptied_by_a_purge(disk, size):
    database = Database(disk / "bank.db")
    fill(disk, database, size)
    gone = [*purge(database, session_id="a"), *purge(database, session_id="b")]
    assert sum(p.records for p in gone) > 0
    assert free(disk) > sum(p.bytes for p in gone) / 2
    assert (disk / "bank.db").stat().st_size < 400_000
    assert sum(f.read_bytes().count(MARKER.encode()) for f in disk.iterdir()) == 0
    assert list(verify(database)) == []
    FactStore(database, "a").store(InteractionRecord.create(1, "t", {}, {"_raw": "again"}))
    database.close()


def test_resets_and_forgotten_records_need_no_room_either(disk):
    database = Database(disk / "bank.db")
    fill(disk, database, 50_000)
    store = FactStore(database, "b")
    assert store.forget(store.page()[0].trace_id)
    with MemoryBankState("lexical", database=database, session_id="a") as state:
        state.reset()
    assert FactStore(database, "a").size() == 0
    assert free(disk) > 2**20
    database.set_session("b", title="Named")
    assert list(verify(database)) == []
    database.close()


def fill_up(disk):
    with open(disk / "other", "ab", buffering=0) as other, suppress(OSError):
        while True:
            other.write(b"x" * 4096)
    assert free(disk) == 0


@pytest.mark.parametrize("size", [20_000, 1_200_000])
def test_a_bank_that_was_closed_is_read_and_emptied_on_a_full_disk(disk, size):
    """With no byte left there is no room for the files that SQLite keeps beside a bank that is written."""
    with closing(Database(disk / "bank.db")) as database:
        fill(disk, database, size)
        rows = FactStore(database, "a").size(), FactStore(database, "b").size()
    fill_up(disk)
    with (
        closing(Database(disk / "bank.db", must_exist=True)) as database,
        closing(Database(disk / "bank.db")) as other,
    ):
        assert (FactStore(database, "a").size(), FactStore(other, "b").size()) == rows
        with pytest.raises(StorageError, match=r"make room, or delete with `memory-bank bank purge`"):
            FactStore(database, "a").store(InteractionRecord.create(1, "t", {}, {"_raw": "again"}))
        gone = [*purge(database, session_id="a")]
        assert sum(p.records for p in gone) == rows[0]
        assert FactStore(other, "b").size() == rows[1]
    assert free(disk) > 2**20
    with closing(Database(disk / "bank.db")) as database:
        assert list(verify(database)) == []
        [*purge(database, session_id="b")]
        FactStore(database, "a").store(InteractionRecord.create(1, "t", {}, {"_raw": "again"}))
        assert database.value(sa.text("PRAGMA journal_mode")) == "wal"
    assert sum(f.read_bytes().count(MARKER.encode()) for f in disk.iterdir()) == 0
