"""``memory-bank keys``, as its user meets it."""

import re
import shlex
from pathlib import Path

from tests.cli.conftest import shell

from memory_bank.bank.database import Database
from memory_bank.bank.keys import Keys

KEY = r"mb_[0-9a-f]{12}_[A-Za-z0-9_-]{43}"

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()


def test_a_key_is_printed_once_and_alone(cli, tmp_path):
    db = tmp_path / "bank.db"
    made = cli("keys", "create", "agent one", "--db", db)
    assert made.code == 0
    assert re.fullmatch(KEY + "\n", made.out)
    assert "stored nowhere" in made.sentence()
    listed = cli("keys", "list", "--db", db)
    secret = made.out.split("_", 2)[2].strip()
    for shown in (
        listed.out,
        cli("keys", "list", "--db", db, "--json").out,
        cli("keys", "revoke", "agent one", "--db", db).out,
    ):
        assert "agent one" in shown
        assert secret not in shown


def test_everything_of_a_key_as_json(cli, tmp_path):
    db = tmp_path / "bank.db"
    options = ("--operator", "--namespace", "team", "--requests-per-minute", "60", "--max-body-bytes", "2000")
    made = cli("keys", "create", "a", "--db", db, *options, "--json").json()
    assert re.fullmatch(KEY, made.pop("key"))
    listed = cli("keys", "list", "--db", db, "--json").json()["keys"]
    assert listed == [made]
    told = {
        k: made[k]
        for k in ("name", "namespace", "operator", "requests_per_minute", "max_body_bytes", "revoked")
    }
    assert told == {
        "name": "a", "namespace": "team", "operator": True, "requests_per_minute": 60, "max_body_bytes": 2000, "revoked": None,
    }  # fmt: skip
    gone = cli("keys", "revoke", made["key_id"], "--db", db, "--json").json()
    assert gone == {**made, "revoked": gone["revoked"]} and gone["revoked"]
    local = cli("keys", "create", "b", "--db", db, "--namespace", "default", "--json").json()
    assert local["namespace"] == "default"


def test_a_key_that_is_not_there(cli, tmp_path):
    db = tmp_path / "bank.db"
    cli("keys", "create", "a", "--db", db)
    done = cli("keys", "revoke", "b", "--db", db)
    assert (done.code, "keys list" in done.sentence()) == (1, True)


def test_the_database_is_the_one_that_serve_uses(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    cli("keys", "create", "own")
    folder = tmp_path / "home" / "memory-bank"
    assert folder.stat().st_mode & 0o077 == 0  # what tools said is the user's own
    file = tmp_path / "service.toml"
    file.write_text(f'[service]\ndatabase = "{tmp_path}/of-config.db"\n')
    cli("keys", "create", "of config", "--config", file)
    monkeypatch.setenv("MEMORY_BANK_SERVICE__DATABASE", str(tmp_path / "of-environment.db"))
    cli("keys", "create", "of environment")
    for where, name in (
        (folder / "bank.db", "own"),
        (tmp_path / "of-config.db", "of config"),
        (tmp_path / "of-environment.db", "of environment"),
    ):
        assert [k.name for k in Keys(Database(where)).all()] == [name]


def test_a_shell_takes_the_key(tmp_path):
    done = shell(f'KEY=$($MB keys create agent --db {tmp_path}/bank.db 2>/dev/null) && echo "<$KEY>"')
    assert re.fullmatch(f"<{KEY}>\n", done.stdout)


def test_the_commands_of_the_page_on_keys_run(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.S)
    lines = [shlex.split(line[2:], comments=True) for block in blocks for line in block.splitlines()]
    answers = [cli(*line[1:]) for line in lines if line[0] == "memory-bank"]
    assert [(a.code, a.err.count("error")) for a in answers] == [(0, 0)] * len(lines)
    assert (
        answers[0].out.startswith("mb_")
        and "support-agent" in answers[2].out
        and "dashboard" in answers[2].out
    )
    assert not [a for a in answers[1:] if answers[0].out.strip() in a.out]
