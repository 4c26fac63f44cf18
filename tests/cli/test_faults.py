"""What may happen to a bank from outside: no room, a lock, a broken file, Ctrl-C in the middle."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.cli.conftest import COMMAND, environment, line, run_of, write
from tests.contracts.stores import a_record
from tests.embedding_server import EmbeddingServer
from tests.examples import first_short

from memory_bank.bank.database import Database
from memory_bank.bank.embedder import bank_embedder
from memory_bank.bank.listing import list_sessions
from memory_bank.bank.stores import FactStore
from memory_bank.bank.transfer import export_lines


def run(*args: Any, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, args)], env=environment(**more), capture_output=True, text=True, timeout=60
    )


def one_sentence(err: str) -> str:
    assert err.startswith("memory-bank: ")
    assert len(err.splitlines()) == 1, err
    return err


@pytest.fixture
def filled(cli: Any, tmp_path: Path, bank_url: str) -> str:
    """A bank with the sessions a, b, c."""
    runs = write(tmp_path / "runs.jsonl", *(line(name, run_of(name)) for name in "abc"))
    assert cli("lab", "replay", runs, "--db", bank_url).code == 0
    return bank_url


def content(url: str) -> list[str]:
    database = Database(url)
    try:
        return [json.dumps(value) for value in export_lines(database)]
    finally:
        database.close()


def sizes(url: str) -> dict[str, int]:
    database = Database(url)
    try:
        return {s.session_id: s.records for s in list_sessions(database)}
    finally:
        database.close()


# Ctrl-C, and a kill, in the middle


@pytest.mark.parametrize("how", first_short(["SIGKILL", "SIGINT"]))
def test_purge_in_the_middle(filled: str, how: str) -> None:
    database = Database(filled)
    with database.write() as c:
        c.execute(sa.text('UPDATE records SET "timestamp" = "timestamp" - 60'))
    database.close()
    done = run(
        "bank",
        "purge",
        "--db",
        filled,
        "--older-than",
        "30s",
        "--json",
        MEMORY_BANK_FAULT=f"purge.executed:2:{how}",
    )
    assert sizes(filled) == {"a": 0, "b": 4, "c": 4}  # the first transaction, and nothing of the second
    if how == "SIGKILL":
        assert done.returncode == -signal.SIGKILL
        return
    assert (done.returncode, done.stderr) == (130, "memory-bank: stopped.\n")
    told = json.loads(done.stdout)
    assert (told["complete"], [s["session_id"] for s in told["sessions"]]) == (False, ["a"])


@pytest.mark.long
@pytest.mark.parametrize("how", ["SIGINT", "SIGKILL"])
def test_import_in_the_middle(filled: str, tmp_path: Path, how: str) -> None:
    file, db = tmp_path / "out.jsonl", tmp_path / "new.db"
    file.write_text("\n".join(content(filled)))
    done = run("bank", "import", file, "--db", db, MEMORY_BANK_FAULT=f"import.executed:2:{how}")
    assert sizes(str(db)) == {"a": 4}
    if how == "SIGINT":
        assert (done.returncode, done.stderr) == (130, "memory-bank: stopped.\n")
        assert "imported 4 records with 4 insights of 1 sessions" in done.stdout
        assert "stopped" in done.stdout
    assert run("bank", "import", file, "--db", db).returncode == 0
    assert content(str(db)) == content(filled)


@pytest.mark.long
@pytest.mark.parametrize("how", ["SIGINT", "SIGKILL"])
def test_re_embed_in_the_middle_of_its_write(filled: str, how: str) -> None:
    before = content(filled)
    with EmbeddingServer() as server:
        more = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "k"}
        done = run(
            "bank", "re-embed", "--db", filled, "--embedding-model", "openai:m",
            MEMORY_BANK_FAULT=f"re_embed.executed:1:{how}", **more,
        )  # fmt: skip
        if how == "SIGINT":
            assert (done.returncode, done.stdout, done.stderr) == (130, "", "memory-bank: stopped.\n")
        assert content(filled) == before
        assert (
            run("bank", "re-embed", "--db", filled, "--embedding-model", "openai:m", **more).returncode == 0
        )
    database = Database(filled)
    assert bank_embedder(database) == ("openai:m", 64)
    database.close()


@pytest.mark.long
def test_re_embed_while_it_asks_the_model(filled: str) -> None:
    before = content(filled)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes a call and never answers
        silent.settimeout(30)
        env = environment(
            OPENAI_BASE_URL=f"http://127.0.0.1:{silent.getsockname()[1]}/v1", OPENAI_API_KEY="k"
        )
        running = subprocess.Popen(
            [*COMMAND, "bank", "re-embed", "--db", filled, "--embedding-model", "openai:m"],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        asked, _ = silent.accept()
        time.sleep(0.2)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
        asked.close()
    assert (running.returncode, out, err) == (130, "", "memory-bank: stopped.\n")
    assert content(filled) == before


# a lock


@pytest.mark.long
def test_a_database_that_another_process_keeps_locked(cli: Any, bank: Path, tmp_path: Path) -> None:
    before = content(str(bank))
    (tmp_path / "out.jsonl").write_text("\n".join(before).replace('"session_id": "one"', '"session_id": "x"'))
    held = subprocess.Popen(
        [sys.executable, "-c", "import sqlite3, sys, time\nc = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
         "c.execute('BEGIN IMMEDIATE')\nprint('held', flush=True)\ntime.sleep(120)", str(bank)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert held.stdout is not None
    assert held.stdout.readline() == "held\n"
    try:
        assert cli.bank(bank, "sessions").code == 0  # reading goes on
        assert cli.bank(bank, "verify").code == 0
        verbs = [
            ["bank", "purge", "--db", bank, "--session", "one", "--json"],
            ["bank", "import", tmp_path / "out.jsonl", "--db", bank, "--json"],
            ["bank", "re-embed", "--db", bank, "--embedding-model", "lexical"],
        ]
        running = [
            subprocess.Popen([*COMMAND, *map(str, v)], env=environment(), stdout=-1, stderr=-1, text=True)
            for v in verbs
        ]
        for process in running:
            out, err = process.communicate(timeout=60)
            assert process.returncode == 1
            assert "locked" in one_sentence(err)
            assert out == ""
    finally:
        held.kill()
        held.wait()
    assert content(str(bank)) == before
    assert cli.bank(bank, "purge", "--session", "one").code == 0


# a broken file


def test_a_truncated_file(cli: Any, bank: Path) -> None:
    with Database(bank).write() as c:
        c.exec_driver_sql("UPDATE sessions SET generation = 0")
    FactStore(Database(bank), "one").store_many([a_record(n, output_text="x" * 5_000) for n in range(100)])
    with sqlite3.connect(bank) as c:
        c.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    c.close()
    whole = bank.read_bytes()
    for suffix in ("-wal", "-shm"):
        Path(f"{bank}{suffix}").unlink(missing_ok=True)
    for share in (0.9, 0.5, 0.05):
        bank.write_bytes(whole[: int(len(whole) * share)])
        for verb in (
            ["bank", "verify"],
            ["bank", "verify", "--repair"],
            ["bank", "sessions"],
            ["bank", "export"],
            ["bank", "purge", "--older-than", "1s"],
        ):
            done = cli(*verb, "--db", bank)
            if verb == ["bank", "verify"]:
                assert done.code == 1
            if done.code:
                assert all(told.startswith("memory-bank: ") for told in done.err.splitlines())


@pytest.mark.parametrize(
    "verb",
    [
        ["bank", "verify"],
        ["bank", "purge", "--older-than", "1d"],
        ["bank", "observe", "--once"],
        ["bank", "export"],
    ],
)
def test_what_is_no_bank_or_a_newer_one(cli: Any, tmp_path: Path, bank: Path, verb: list[str]) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("secret notes\n" * 500)
    done = cli(*verb, "--db", text)
    assert (done.code, "no database" in done.sentence() or "not a database" in done.sentence()) == (1, True)
    assert text.read_text() == "secret notes\n" * 500
    (tmp_path / "empty.jsonl").touch()
    done = cli.bank(text, "import", tmp_path / "empty.jsonl")
    assert (done.code, bool(done.sentence())) == (1, True)
    with sqlite3.connect(bank) as c:
        c.execute("UPDATE schema_version SET version_num = '9999'")
    done = cli(*verb, "--db", bank)
    assert (done.code, "open it with that version" in done.sentence()) == (1, True)
    assert cli.bank(bank, "import", tmp_path / "empty.jsonl").code == 1


# no room


def limited(size: int, *args: Any) -> subprocess.CompletedProcess[str]:
    """The command in a process whose files cannot grow beyond ``size``, as on a full disk."""
    import resource

    return subprocess.run(
        [*COMMAND, *map(str, args)], env=environment(), capture_output=True, text=True, timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix", reason="needs POSIX limits")
def test_an_import_that_finds_no_room(tmp_path: Path, bank: Path) -> None:
    big = tmp_path / "big.db"
    database = Database(big)
    FactStore(database, "a small one").store(a_record(1))
    FactStore(database, "big").store_many([a_record(n, output_text="x" * 20_000) for n in range(100)])
    lines = content(str(big))
    file, db = tmp_path / "out.jsonl", tmp_path / "new.db"
    file.write_text("\n".join(lines))
    Database(db).close()
    done = limited(400_000, "bank", "import", file, "--db", db)
    assert done.returncode == 1
    one_sentence(done.stderr)
    assert "imported 1 records" in done.stdout
    assert sizes(str(db)) == {"a small one": 1}
    assert run("bank", "verify", "--db", db).returncode == 0
    assert run("bank", "import", file, "--db", db).returncode == 0  # there is room again
    assert content(str(db)) == lines
    done = limited(100_000, "bank", "export", "--db", db, "--out", tmp_path / "again.jsonl")
    assert done.returncode == 1
    one_sentence(done.stderr)
