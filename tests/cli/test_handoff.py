"""memory-bank handoff, and run --from: a session goes on in another client."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.cli.conftest import COMMAND, environment, shell

from memory_bank.bank.database import Database
from memory_bank.cli.run import begun
from memory_bank.service.project import projects_of
from memory_bank.testing import ScriptedServer, say


def test_the_latest_session_is_told_with_what_to_do(cli, bank):
    done = cli("handoff", "latest", "--db", bank)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(
        "<earlier-session>\nThis work was begun in another session, with 4 calls of tools. "
    )
    assert "- beta\n" in done.out
    assert '"beta-3"' in done.out
    assert done.out.endswith("</earlier-session>\nGo on with this work.\n")
    assert cli("handoff", "two", "--db", bank).out == done.out
    assert "- alpha\n" in cli("handoff", "one", "--db", bank, "--to", "codex").out


def test_the_latest_is_one_of_the_folders_project(cli, bank, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    database = Database(bank)
    database.set_session("one", project=projects_of()[-1])
    assert "- alpha\n" in cli("handoff", "latest", "--db", bank).out
    for name in ("one", "two"):
        database.set_session(name, project="another")
    assert (
        "has no session with tool calls of this folder's project"
        in cli("handoff", "latest", "--db", bank).sentence()
    )
    database.close()


def test_a_budget_is_kept(cli, bank):
    long, short = (cli("handoff", "one", "--db", bank, "--budget", n).out for n in (4_000, 500))
    assert len(short) < len(long)


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        (["never"], 1, "has no session 'never': `memory-bank bank sessions` lists them."),
        (["one", "--budget", "100"], 2, "greater than or equal to 500"),
        (["one", "--budget", "many"], 2, "valid integer"),
        (["one", "--to", "vim"], 2, "is not one of 'claude', 'codex', 'opencode'"),
        ([], 2, "Missing argument"),
        (["\ud800"], 1, "has no session"),
    ],
)
def test_wrong_use_is_one_sentence(cli, bank, args, code, sentence):
    done = cli("handoff", *args, "--db", bank)
    assert (done.code, done.out) == (code, "")
    assert sentence in done.sentence()


def test_no_bank_and_none_with_calls(cli, tmp_path, bank):
    done = cli("handoff", "latest", "--db", tmp_path / "missing.db")
    assert (done.code, "there is no bank" in done.sentence()) == (2, True)
    for name in ("one", "two"):
        assert cli.bank(bank, "purge", "--session", name).code == 0
    done = cli("handoff", "latest", "--db", bank)
    assert (done.code, "has no session with tool calls of this folder's project" in done.sentence()) == (
        1,
        True,
    )
    done = cli("handoff", "one", "--db", bank)
    assert (done.code, done.sentence()) == (
        1,
        "the session 'one' has no tool calls: nothing to hand on.",
    )


def test_a_bank_in_use_by_a_service(bank, cli, port):
    pytest.importorskip("fastapi", reason="needs the extra service")
    command = [*COMMAND, "serve", "--db", str(bank), "--port", str(port)]
    with ScriptedServer(lambda _: say("done")) as upstream:
        service = subprocess.Popen(
            command, env=environment(OPENAI_BASE_URL=upstream.base_url), stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            assert service.stdout.readline()
            assert cli("handoff", "latest", "--db", bank).code == 0
        finally:
            service.terminate()
            service.communicate(timeout=20)


def test_postgres(cli, two, postgres_url):
    assert cli("lab", "replay", two, "--db", postgres_url).code == 0
    assert "- beta\n" in cli("handoff", "latest", "--db", postgres_url).out


def test_a_closed_pipe_and_ctrl_c(bank):
    done = shell(f"$MB handoff latest --db {bank} | true; echo ${{PIPESTATUS[0]}}")
    assert (done.stdout, done.stderr) == ("0\n", "")
    interrupted = (
        "import sys, os, signal, memory_bank.context as context, memory_bank.cli as cli\n"
        "context.handed_on = lambda *a, **k: os.kill(os.getpid(), signal.SIGINT) or ''\n"
        f"sys.argv = ['memory-bank', 'handoff', 'latest', '--db', {str(bank)!r}]\ncli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", interrupted], env=environment(), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "memory-bank: stopped.\n")


TEXT = "T\n"
GO_ON = "T\nGo on with this work."
PROMPT = "T\nfix it"


@pytest.mark.parametrize(
    ("command", "begins"),
    [
        (["claude"], ["claude", GO_ON]),
        (["claude", "fix it"], ["claude", PROMPT]),
        (["claude", "-p", "fix it", "--model", "opus"], ["claude", "-p", PROMPT, "--model", "opus"]),
        (["claude", "--model", "opus"], ["claude", GO_ON, "--model", "opus"]),
        (["claude", "-p"], ["claude", "-p", GO_ON]),
        (["codex"], ["codex", GO_ON]),
        (["/bin/codex", "exec", "fix it", "--json"], ["/bin/codex", "exec", PROMPT, "--json"]),
        (["codex", "exec", "--json"], ["codex", "exec", GO_ON, "--json"]),
        (["opencode"], ["opencode", "--prompt", GO_ON]),
        (["opencode", "folder"], ["opencode", "folder", "--prompt", GO_ON]),
        (["opencode", "run", "fix it", "--agent", "x"], ["opencode", "run", "--agent", "x"]),
    ],
)
def test_a_client_begins_with_it_before_a_prompt(command, begins):
    assert begun(command, lambda _: TEXT) == (begins, PROMPT if "run" in command else "")


def test_clients_and_prompts_that_are_not_known(cli, bank):
    done = cli("run", "--db", bank, "--from", "latest", "--", sys.executable, "agent.py")
    assert (done.code, "give python" in done.sentence()) == (2, True)
    done = cli("run", "--db", bank, "--budget", "900", "--", sys.executable, "agent.py")
    assert (done.code, "name a session with --from" in done.sentence()) == (2, True)
    for words in (["codex", "exec", "--json", "fix it"], ["claude", "--model", "opus", "fix it"]):
        with pytest.raises(Exception, match="--from adds to a prompt that comes first: write"):
            begun(words, lambda _: TEXT)


def test_run_begins_a_client_with_the_session(cli, tmp_path, bank, port, monkeypatch):
    pytest.importorskip("fastapi", reason="needs the extra service")
    client, got = tmp_path / "codex", tmp_path / "got"
    client.write_text(
        f"#!{sys.executable}\nimport json, sys\nopen({str(got)!r}, 'w').write(json.dumps(sys.argv[-2:]))\n"
    )
    client.chmod(0o700)
    with ScriptedServer(lambda _: say("done")) as upstream:
        monkeypatch.setenv("OPENAI_BASE_URL", upstream.base_url)
        monkeypatch.setenv("MEMORY_BANK_SERVICE__PORT", str(port))
        command = ["run", "--db", bank, "--from", "one", "--", client, "exec", "fix it"]
        assert cli(*command).code == 0
        verb, prompt = json.loads(got.read_text())
        assert verb == "exec"
        assert prompt.startswith("<earlier-session>\n")
        assert "Rules of the project may also stand in CLAUDE.md" in prompt
        assert prompt.endswith("\nfix it")
        command[command.index("--from") : command.index("--from")] = ["--budget", "500"]
        assert cli(*command).code == 0
        short = json.loads(got.read_text())[1]
        assert len(short) < len(prompt)
        assert short.endswith("\nfix it")
        got.unlink()
        command[command.index("one")] = "never"
        done = cli(*command)
    assert done.code == 1
    assert "has no session 'never'" in done.sentence()  # nothing was started
    assert not got.exists()
