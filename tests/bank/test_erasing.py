"""What is deleted is gone from the files of a SQLite bank, also after a crash."""

import shutil
import stat

import pytest

from memory_bank import InteractionRecord, MemoryBankState
from memory_bank.bank.database import Database
from memory_bank.bank.maintenance import purge

MARKER = "MARKER-7f3c9a"


def filled(path):
    state = MemoryBankState.open(path, "s", "lexical")
    for i in range(3):
        text = f"{MARKER} {i} " * 40_000
        state.fact_store.store(
            InteractionRecord.create(i, "t", {"q": MARKER}, {"_raw": text}, output_text=text)
        )
    return state


def left(path):
    return sum(f.read_bytes().count(MARKER.encode()) for f in path.parent.iterdir() if f.is_file())


@pytest.mark.parametrize("way", ["reset", "purge"])
def test_deleted_content_is_in_no_file(tmp_path, way):
    path = tmp_path / "bank.db"
    state = filled(path)
    assert left(path)
    if way == "reset":
        state.reset()
    else:
        assert list(purge(state.database, session_id="s"))
    assert left(path) == 0
    state.close()


def test_after_a_crash_the_log_is_emptied_when_the_bank_is_opened(tmp_path):
    path, crashed = tmp_path / "bank.db", tmp_path / "crashed" / "bank.db"
    state = filled(path)
    with state.database.snapshot() as reader:  # another reader keeps the log
        reader.exec_driver_sql("SELECT 1 FROM records").all()
        assert list(purge(state.database, session_id="s"))
        crashed.parent.mkdir()
        for file in tmp_path.glob("bank.db*"):
            shutil.copy(file, crashed.parent)
    state.close()
    assert left(crashed)
    Database(crashed).close()
    assert left(crashed) == 0


def test_a_new_database_is_private(tmp_path):
    path = tmp_path / "bank.db"
    state = filled(path)
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    state.close()
