"""The verbs backup and restore, and files with contents that others cannot read."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import line, run_of, write
from tests.cli.test_faults import one_sentence, run, sizes

from memory_bank.bank.database import Database


@pytest.fixture
def filled(cli: Any, tmp_path: Path) -> Path:
    """A bank with the sessions a and b."""
    runs = write(tmp_path / "runs.jsonl", *(line(name, run_of(name)) for name in "ab"))
    assert cli("lab", "replay", runs, "--db", tmp_path / "bank.db").code == 0
    return tmp_path / "bank.db"


def test_a_bank_is_copied_and_put_back(cli: Any, filled: Path, tmp_path: Path) -> None:
    saved = tmp_path / "monday.db"

    def said(code: int, *args: Any) -> str:
        done = run("bank", *args, "--db", filled)  # in a process of its own, which closes the bank
        assert done.returncode == code, done.stderr
        return done.stdout or one_sentence(done.stderr)

    told = json.loads(said(0, "backup", saved, "--json"))
    assert told == {"file": str(saved), "bytes": saved.stat().st_size}
    assert "overwrites nothing" in said(2, "backup", saved)
    more = write(tmp_path / "more.jsonl", line("c", run_of("c")))
    assert run("lab", "replay", more, "--db", filled).returncode == 0
    running = Database(filled)
    assert "is open in a process" in said(1, "restore", saved)
    running.close()
    told = json.loads(said(0, "restore", saved, "--json"))
    assert told["file"] == str(filled)
    assert sizes(told["kept"]) == {"a": 4, "b": 4, "c": 4}
    assert sizes(str(filled)) == {"a": 4, "b": 4}
    assert cli.bank(filled, "verify").code == 0
    done = cli.bank(filled, "restore", tmp_path / "none.db")
    assert (done.code, "is no backup" in done.sentence()) == (2, True)


def test_postgresql_is_copied_by_its_own_command(cli: Any, tmp_path: Path) -> None:
    url = "postgresql://user:secret@db.example:5433/bank?options=-csearch_path=x,public&sslpassword=hidden"
    address = "'postgresql://user@db.example:5433/bank?options=-csearch_path%3Dx%2Cpublic'"
    told = cli.bank(url, "backup", "my bank.dump")
    assert told.code == 2
    assert f"pg_dump --format=custom --file='my bank.dump' --dbname={address}" in told.sentence()
    assert (
        f"pg_restore --clean --if-exists x.dump --dbname={address}"
        in cli.bank(url, "restore", "x.dump").sentence()
    )
    assert "in memory" in cli.bank(":memory:", "backup", "x").sentence()


def test_an_export_is_its_owners_alone(cli: Any, filled: Path, tmp_path: Path) -> None:
    new, old = tmp_path / "new.jsonl", tmp_path / "old.jsonl"
    old.touch(0o644)
    for file in (new, old):
        assert cli.bank(filled, "export", "--out", file).code == 0
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
