"""memory-bank doctor: each thing that can be wrong, and the command that mends it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading

import pytest
from tests.cli.conftest import COMMAND, environment

from memory_bank.testing import ScriptedServer, say

pytest.importorskip("fastapi", reason="needs the extra service")


@pytest.fixture
def upstream():
    with ScriptedServer(lambda body: say("done")) as server:
        yield server.base_url


@pytest.fixture
def doctor(cli, monkeypatch, tmp_path, upstream, port):
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME", "OPENAI_API_BASE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OPENAI_BASE_URL", upstream)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", upstream.removesuffix("/v1"))
    monkeypatch.setenv("MEMORY_BANK_SERVICE__PORT", str(port))

    def run(*arguments, wrong=()):
        done = cli("doctor", *arguments, "--json")
        told = done.json()
        assert done.err == ""
        assert {c["name"] for c in told["checks"] if c["state"] == "wrong"} == set(wrong), told
        assert (done.code, told["ok"]) == (int(bool(wrong)), not wrong)
        assert all(c["command"] for c in told["checks"] if c["state"] == "wrong")
        return {c["name"]: c for c in told["checks"]}

    return run


def test_all_is_well_before_the_first_use_and_after_it(doctor, cli, bank, upstream):
    found = doctor()
    assert found["disk"]["state"] == found["embedder"]["state"] == found["upstream"]["state"] == "ok"
    assert found["database"]["state"] == found["service"]["state"] == "note"
    assert "the first request makes it" in found["database"]["says"]
    assert found["service"]["command"] == "memory-bank serve"
    assert upstream in found["OPENAI_BASE_URL"]["says"]
    found = doctor("--db", bank)
    assert found["database"]["state"] == "ok"
    assert "schema" in found["database"]["says"]
    text = cli("doctor", "--db", bank)
    assert text.code == 0
    assert text.out.startswith("ok     disk: ")
    assert max(map(len, text.out.splitlines())) <= 80 + len(str(bank))


def test_a_bank_that_others_could_read_and_a_file_that_is_none(doctor, bank, tmp_path):
    bank.chmod(0o644)  # opening it changes that
    assert "mode 600" in doctor("--db", bank)["database"]["says"]
    other = tmp_path / "other.db"
    other.write_text("no database at all, but long enough to be read as one by mistake")
    found = doctor("--db", other, wrong=["database"])
    assert found["database"]["command"] == f"memory-bank bank restore --db {other} BACKUP"
    found = doctor("--db", tmp_path / "no folder" / "bank.db", wrong=["database"])
    assert found["database"]["command"] == f"mkdir -p '{tmp_path / 'no folder'}'"


def test_an_embedder_that_is_not_the_banks(doctor, cli, bank, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text(
        'default_strategy = "mine"\n[memory_strategies.mine]\ntype = "memory_bank"\nembedding_model = "no/such-model"\n'
    )
    found = doctor("--db", bank, "--config", config, wrong=["embedder"])
    assert "no/such-model" in found["embedder"]["says"]
    config.write_text("[memory_strategies.mine]\ntype = 7\n")
    found = doctor("--config", config, wrong=["configuration"])
    assert found["configuration"]["command"] == f"memory-bank config {config}"


def test_an_upstream_that_does_not_answer(doctor, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    found = doctor(wrong=["upstream"])
    assert "--upstream-anthropic" in found["upstream"]["command"]


def test_a_service_whose_packages_are_not_installed(doctor, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    found = doctor(wrong=["service"])
    assert "'.[service]'" in found["service"]["command"]


def test_clients_that_point_nowhere_at_a_service_and_elsewhere(doctor, cli, tmp_path, port, upstream):
    url = f"http://127.0.0.1:{port}"
    clients = ("claude-code", "codex", "opencode")
    assert not {*clients} & doctor().keys()  # not installed
    for client in clients:
        assert cli("connect", client, "--write", "--url", url).code == 0
    found = doctor(wrong=clients)
    assert found["codex"]["command"] == f"memory-bank connect codex --undo --url {url}"
    service = subprocess.Popen(
        [*COMMAND, "serve"],
        env=environment(**os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert service.stdout.readline().strip() == url
        found = doctor()
        assert {found[c]["state"] for c in clients} == {"ok"}
        assert found["service"]["state"] == "ok"
        assert "upstream" in found["service"]["says"]
    finally:
        service.terminate()
        service.wait(20)
    for client in clients:
        command = doctor(wrong=[c for c in clients if c >= client])[client]["command"]
        assert cli(*command.split()[1:]).code == 0
    found = doctor()
    assert found["claude-code"]["command"] == "memory-bank run -- claude"
    (tmp_path / ".claude" / "settings.json").write_text("{")
    assert "cannot be read" in doctor()["claude-code"]["says"]


def test_the_variable_of_a_service_that_does_not_run(doctor, monkeypatch, port):
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://localhost:{port}/v1")
    found = doctor(wrong=["OPENAI_BASE_URL"])
    assert found["OPENAI_BASE_URL"]["command"] == "unset OPENAI_BASE_URL"


def test_a_port_that_another_program_uses(doctor, port):
    with socket.create_server(("127.0.0.1", port)) as other:
        threading.Thread(target=lambda: [other.accept()[0].close() for _ in range(20)], daemon=True).start()
        found = doctor(wrong=["service"])
    assert "in use by another program" in found["service"]["says"]
    assert found["service"]["command"] == "memory-bank serve --port 0"


def test_no_secret_is_printed(doctor, cli, monkeypatch, tmp_path):
    monkeypatch.setenv("OPENAI_BASE_URL", "https://me:hunter2@gateway.invalid/v1?key=hunter3")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-hunter4")
    settings = tmp_path / ".claude" / "settings.json"
    settings.parent.mkdir()
    settings.write_text(
        json.dumps({"env": {"ANTHROPIC_BASE_URL": "https://x:hunter5@gateway.invalid?hunter6"}})
    )
    found = doctor(wrong=["upstream"])
    assert "gateway.invalid" in found["claude-code"]["says"]
    assert "hunter" not in json.dumps(found)
    assert "hunter" not in cli("doctor").out
