"""Agents' files in the care of a bank: deleted by project, namespace and age, exported and imported, verified."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.contracts.stores import a_record

from memory_bank.bank.database import Database
from memory_bank.bank.files import MemoryFiles
from memory_bank.bank.listing import list_sessions
from memory_bank.bank.maintenance import verify
from memory_bank.bank.schema import files
from memory_bank.bank.session import MemoryBankState
from memory_bank.bank.stores import FactStore
from memory_bank.bank.transfer import RefusedSession, export_lines, import_lines

OLD = time.time() - 40 * 86_400


@pytest.fixture
def database(bank_url: str) -> Any:
    """Two files, one of them old, and a folder in each of three projects; a session of each of two namespaces."""
    database = Database(bank_url)
    for project, namespace in (("default", None), ("shop", None), ("default", "team")):
        mine = MemoryFiles(database, project, namespace=namespace)
        mine.run({"command": "create", "path": "/memories/new.md", "file_text": "é"})
        mine.run({"command": "create", "path": "/memories/a/old.md", "file_text": "12345"})
    with database.write() as c:
        c.execute(sa.update(files).where(files.c.path.contains("/a")).values(changed=OLD))
    for session, namespace in (("one", None), ("team\u241ftwo", "team")):
        database.open_session(session, namespace=namespace)
        FactStore(database, session).store(a_record(1))
    yield database
    database.close()


def rows(database: Database) -> list[dict[str, Any]]:
    return [dict(row) for row in database.rows(sa.select(files).order_by(*files.primary_key))]


@pytest.mark.parametrize(
    ("arguments", "deleted", "left", "sessions"),
    [
        (["--project", "shop"], (2, 7), 6, [1, 1]),
        (["--project", "default", "--namespace", "default"], (2, 7), 6, [1, 1]),
        (["--namespace", "team"], (2, 7), 6, [1, 0]),
        (["--older-than", "30d"], (3, 15), 6, [0, 0]),
        (["--older-than", "30d", "--project", "shop"], (1, 5), 8, [1, 1]),
        (["--session", "one"], (0, 0), 9, [0, 1]),
        (["--namespace", "nobody"], (0, 0), 9, [1, 1]),
    ],
)
def test_purge(
    cli: Any, database: Database, bank_url: str, arguments: list[str], deleted: Any, left: int, sessions: Any
) -> None:
    would = cli.bank(bank_url, "purge", *arguments, "--dry-run", "--json").json()
    assert len(rows(database)) == 9
    done = cli.bank(bank_url, "purge", *arguments, "--json").json()
    assert done == {**would, "dry_run": False}
    assert ((done["files"], done["file_bytes"]), len(rows(database))) == (deleted, left)
    assert [s.records for s in sorted(list_sessions(database), key=lambda s: s.session_id)] == sessions


def test_purge_needs_to_know_what(cli: Any, database: Database, bank_url: str) -> None:
    assert "--project NAME" in cli.bank(bank_url, "purge").err
    both = cli.bank(bank_url, "purge", "--session", "one", "--project", "shop")
    assert both.code and "files belong to no session" in both.err


def test_a_reset_leaves_the_files(database: Database) -> None:
    state = MemoryBankState.open(database, "one")
    state.reset()
    assert len(rows(database)) == 9
    assert state.files is not None
    assert "new.md" in state.files.run({"command": "view", "path": "/memories"})


def test_export_and_import_are_exact_and_change_nothing_that_is_there(
    cli: Any, database: Database, bank_url: str, tmp_path: Path
) -> None:
    out, other = tmp_path / "out.jsonl", tmp_path / "other.db"
    assert "wrote 2 records and 6 files." in cli.bank(bank_url, "export", "--out", out).err
    assert cli.bank(other, "import", out, "--json").json()["files"] == 9
    copy = Database(other)
    assert rows(copy) == rows(database)
    mine = MemoryFiles(copy, "shop")
    mine.run({"command": "insert", "path": "/memories/new.md", "insert_line": 0, "insert_text": "changed"})
    assert cli.bank(other, "import", out, "--json").json()["files"] == 0
    assert "\tchanged" in mine.run({"command": "view", "path": "/memories/new.md"})
    assert not any("file" in line for line in export_lines(database, "one"))
    copy.close()


def test_a_broken_line_costs_its_file_alone(database: Database) -> None:
    good = next(line for line in export_lines(database) if "file" in line)["file"]
    good |= {"path": "/memories/x", "content": "x", "project": "new"}
    broken = [
        7, {}, good | {"path": "/memories/../x"}, good | {"path": "/etc/x"}, good | {"path": "/memories"},
        good | {"content": 7}, good | {"content": "x" * 1_100_000}, good | {"changed": "now"}, good | {"project": ""},
        good | {"project": "shop", "path": "/memories/new.md/below"},
    ]  # fmt: skip
    numbered = [(n, json.dumps({"file": value})) for n, value in enumerate([*broken, good], 1)]
    results = list(import_lines(database, numbered))
    assert [r.line for r in results if isinstance(r, RefusedSession)] == list(range(1, len(broken) + 1))
    assert results[-1] is True and list(import_lines(database, numbered[-1:])) == [False]


def test_verify_reads_every_file(cli: Any, database: Database, bank_url: str) -> None:
    assert cli.bank(bank_url, "verify", "--json").json()["files"] == 6
    broken = sa.type_coerce(b"\xff\xfe", sa.LargeBinary)
    new = files.c.path == "/memories/new.md"
    with database.write() as c:
        c.execute(sa.update(files).where(new, files.c.project == "shop").values(path="/x"))
        c.execute(sa.delete(files).where(files.c.path == "/memories/a", files.c.namespace == "team"))
        c.execute(sa.update(files).where(new, files.c.namespace == "team").values(content=broken))
    assert sorted(d.what for d in verify(database) if d.kind == "file") == [
        "/memories/a/old.md of namespace team, project default: its folder is missing",
        "/memories/new.md of namespace team, project default: its content is not readable",
        "/x of namespace default, project shop: its folder is missing",
    ]
