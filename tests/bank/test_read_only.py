"""A bank that can only be read: reading, verify and export work, a write says why it does not."""

import ctypes
import json
import os
import shutil
import subprocess
import sys

import pytest
from tests.bank.test_erasing import filled

from memory_bank.bank.database import Database
from memory_bank.bank.sqlite import Sqlite
from memory_bank.errors import StorageError

SCRIPT = """
import json, sys
from memory_bank.bank.database import Database
from memory_bank.bank.sqlite import Sqlite
from memory_bank.bank.listing import list_sessions
from memory_bank.bank.maintenance import purge, verify
from memory_bank.bank.stores import FactStore
from memory_bank.bank.transfer import export_lines
from memory_bank.errors import StorageError
told = []
try:
    database = Database(sys.argv[1])
    told.append(len(list_sessions(database)))
    told.append(FactStore(database, "s").size())
    told.append(len(list(export_lines(database))))
    told.append(len(list(verify(database))))
    for write in (lambda: list(purge(database, session_id="s")), database.check_writing):
        try:
            write()
        except StorageError as e:
            told.append(str(e))
except StorageError as e:
    told.append(str(e))
print(json.dumps(told))
"""


def bound_by_modes():
    """From here on the modes of files hold for root, too."""
    if os.geteuid() == 0 and ctypes.CDLL(None).prctl(24, 1) != 0:  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE
        os._exit(77)


def read(path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)],
        preexec_fn=bound_by_modes if sys.platform == "linux" else None,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode == 77:
        pytest.skip("root cannot be bound by the modes of files here")
    assert done.returncode == 0, done.stderr
    told: list[object] = json.loads(done.stdout)
    return told


@pytest.fixture
def folder(tmp_path):
    """A folder that becomes read-only by ``closed``."""
    made = tmp_path / "shelf"
    made.mkdir()
    yield made
    made.chmod(0o700)


def closed(folder):
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)
    return folder / "bank.db"


def test_all_that_reads_works(folder):
    filled(folder / "bank.db").close()
    *counts, refused, checked = read(closed(folder))
    assert counts == [1, 3, 4, 0]  # one line of an export is the session
    assert refused == checked
    assert "can only be read here: allow writing" in str(refused)
    assert len(list(folder.iterdir())) == 1


def test_writes_that_are_in_the_log_alone_are_not_left_out(folder, tmp_path):
    state = filled(tmp_path / "bank.db")
    for file in tmp_path.glob("bank.db*"):  # as after a crash
        shutil.copy(file, folder)
    state.close()
    (folder / "bank.db-shm").unlink(missing_ok=True)
    (told,) = read(closed(folder))
    assert "bank.db-wal: copy both files" in str(told)


class Filling(Sqlite):
    """A bank on a disk that other programs fill."""

    free: int | None = None

    def room(self):
        return super().room() if self.free is None else self.free


def test_a_nearly_full_disk_is_told(tmp_path):
    database = Filling(tmp_path / "bank.db")
    database.check_writing()
    database.free = 2**20
    with pytest.raises(StorageError, match=r"1\.0 MiB left: make room"):
        database.check_writing()
    database.close()


def test_a_failed_write_is_told_until_records_are_written(tmp_path):
    def fails(c):
        raise StorageError("the disk is full")

    database = Database(tmp_path / "bank.db")
    with pytest.raises(StorageError):
        database.submit(fails, "s")
    with database.write():  # as a worker that finds no jobs: what is written needs no room
        pass
    with pytest.raises(StorageError, match="the disk is full"):
        database.check_writing()
    database.submit(lambda c: None, "s")
    database.check_writing()
    database.close()
