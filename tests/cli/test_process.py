"""The command as a process: how it is started, stopped and cut off."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tests.cli.conftest import COMMAND, environment, line, run_of, shell, write
from tests.examples import first_short

from memory_bank.cli.app import app

ROOT = Path(__file__).parents[2]
VERBS = {
    "": [
        "run",
        "serve",
        "connect",
        "handoff",
        "saved",
        "demo",
        "audit",
        "config",
        "doctor",
        "mcp",
        "keys",
        "bank",
        "lab",
    ],
    "keys": ["create", "list", "revoke"],
    "bank": [
        "sessions",
        "show",
        "search",
        "backup",
        "restore",
        "export",
        "import",
        "purge",
        "verify",
        "observe",
        "re-embed",
    ],
    "lab": ["replay", "explain"],
}


def test_help_and_version(cli):
    assert re.fullmatch(r"memory-bank \d+\.\d+\.\d+\n", cli("--version").out)
    for group, verbs in VERBS.items():
        listed = cli(*filter(None, [group]), "--help")
        assert (listed.code, listed.err) == (0, "")
        assert re.findall(r"^  ([a-z-]+) ", listed.out.partition("Commands:")[2], re.MULTILINE) == verbs
        for verb in verbs if group else []:
            own = cli(group, verb, "--help")
            assert (own.code, own.err) == (0, "")
            assert "--json" in own.out


def test_help_is_whole_and_fits_80_columns(cli):
    pages = [cli(*filter(None, [group]), "--help").out for group in VERBS]
    pages += [
        cli(*filter(None, [group]), verb, "--help").out
        for group in VERBS
        for verb in VERBS[group]
        if verb not in VERBS
    ]
    for page in pages:
        assert max(map(len, page.splitlines())) <= 80, page
        assert "..." not in page.partition("Options:")[2].replace("s... <", ""), page
        assert "…" not in page, page


@pytest.mark.parametrize("name", first_short(["bash", "zsh", "fish"]))
def test_a_shell_completes_verbs_and_options(name):
    words = {
        "COMP_WORDS": "memory-bank bank se",
        "COMP_CWORD": "2",
        "_TYPER_COMPLETE_ARGS": "memory-bank bank se",
    }
    more = {"_TYPER_COMPLETE_FISH_ACTION": "get-args", "_MEMORY_BANK_COMPLETE": f"complete_{name}"}
    done = shell("$MB", **words, **more)
    assert "sessions" in done.stdout
    assert "search" in done.stdout
    assert "verify" not in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", ["lab replay", "audit", "lab explain", "bank import --db x.db"])
def test_a_file_of_nothing_but_broken_lines_is_a_failure_in_one_sentence(cli, tmp_path, verb):
    file = write(tmp_path / "broken.jsonl", "no json", '{"a": 1}', "[7]")
    done = cli(*verb.replace("x.", f"{tmp_path}/x.").split(), file)
    assert done.code == 1
    said = [line for line in done.err.splitlines() if "skipped" not in line]
    assert len(said) == 1
    assert "not imported" in said[0] if "import" in verb else f"no run was read from {file}" in said[0]


def test_tables_fit_80_columns_also_in_a_pipe(cli, bank):
    audit = shell(f"$MB audit {ROOT}/examples/log-hunt.jsonl | cat").stdout
    for text in (audit, cli.bank(bank, "sessions").out, cli.bank(bank, "search", "alpha-1").out):
        assert text
        assert max(map(len, text.splitlines())) <= 80, text


def test_a_long_sentence_is_folded_by_words_at_a_terminal_alone(tmp_path):
    folder = tmp_path / "/".join(["folder"] * 12)
    verb = [*COMMAND, "bank", "sessions", "--db", str(folder / "bank.db")]
    plain = subprocess.run(verb, env=environment(), capture_output=True, text=True)
    assert plain.stderr.count("\n") == 1
    pty = pytest.importorskip("pty")
    ours, terminal = pty.openpty()
    subprocess.run(verb, env=environment(COLUMNS="80"), stderr=terminal, stdout=subprocess.DEVNULL)
    shown = os.read(ours, 65_536).decode().replace("\r\n", "\n")
    assert shown.count("\n") > 1
    assert " ".join(shown.split()) == " ".join(plain.stderr.split())
    assert all(len(each) <= 80 or " " not in each for each in shown.splitlines())


def test_no_verb_shows_the_help(cli):
    done = cli()
    assert (done.code, done.out) == (2, "")
    assert "Usage: memory-bank" in done.err


def test_a_bug_is_a_sentence_too(cli):
    @app.command("broken")
    def broken():
        raise ZeroDivisionError("of all\nthings")

    try:
        done = cli("broken")
    finally:
        app.registered_commands.pop()
    assert done.code == 1
    assert "ZeroDivisionError" in done.sentence()


def test_as_a_module_and_as_a_program(tmp_path):
    done = subprocess.run(
        [*COMMAND, "--version"], env=environment(), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("memory-bank ")


def test_outputs_that_end_early(two, bank):
    done = shell(
        f"""
        $MB bank export --db {bank} | head -1 >/dev/null; echo "pipe ${{PIPESTATUS[0]}}"
        $MB bank sessions --db {bank} --json >/dev/full; echo "full $?"
        $MB bank sessions --db {bank} >&-; echo "closed $?"
        $MB bogus 2>&-; echo "silent $?"
        """
    )
    assert done.stdout.split("\n") == ["pipe 0", "full 1", "closed 1", "silent 2", ""]
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_pipe_is_read_as_a_file(two):
    done = shell(f"$MB lab replay <(cat {two}) --json")
    assert json.loads(done.stdout)["traces"] == 2


@pytest.mark.long
def test_ctrl_c_keeps_what_was_written(tmp_path):
    many = write(tmp_path / "many.jsonl", *(line(f"t{i}", run_of(f"p{i}")) for i in range(4_000)))
    out = tmp_path / "out.jsonl"
    running = subprocess.Popen(
        [*COMMAND, "lab", "replay", str(many), "--out", str(out), "--json"],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + 60
    while time.monotonic() < until and (not out.exists() or out.stat().st_size == 0):
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=30)
    assert (running.returncode, err) == (130, "memory-bank: stopped.\n")
    steps = [json.loads(each) for each in out.read_text().splitlines()]
    assert steps[0]["id"] == "t0"


def test_ctrl_c_while_a_connection_is_given_back_shows_no_traceback(bank):
    """SQLAlchemy logs whatever stops it there."""
    script = """
        import os, signal
        from sqlalchemy import Pool, event
        from memory_bank.cli import main
        event.listen(Pool, "reset", lambda *_: os.kill(os.getpid(), signal.SIGINT))
        main()
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), "bank", "sessions", "--db", str(bank)],
        env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "memory-bank: stopped.\n")


def test_ctrl_c_while_python_ends_changes_no_exit_code():
    """Python has put its own handler away when it frees what modules hold."""
    script = """
        import os, signal
        from memory_bank.cli import main
        class Late:
            def __del__(self, kill=os.kill, process=os.getpid(), number=signal.SIGINT):
                kill(process, number)
        late = Late()
        main()
        """
    command = [sys.executable, "-c", textwrap.dedent(script), "--version"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_environment_sets_single_values(cli, two, monkeypatch):
    name = "MEMORY_BANK_MEMORY_STRATEGIES__memory_bank_local__"
    monkeypatch.setenv(f"{name}TOP_K", "1")
    assert cli("lab", "replay", two, "--json").json()["steps"] == 10
    monkeypatch.setenv(f"{name}TOPK", "1")
    typo = cli("lab", "replay", two)
    assert (typo.code, typo.out) == (2, "")
    assert f"{name}TOPK is no setting: did you mean top_k?" in typo.err


def test_demo_anywhere_offline_without_a_terminal(tmp_path):
    """Dollars of the default settings and of a window, the folds, the worst step, and an id the window has lost."""
    unread = {
        "MEMORY_BANK_MEMORY_STRATEGIES__memory_bank__HISTORY_BUDGET": "500",
        "MEMORY_BANK_NONSENSE": "1",
    }
    done = subprocess.run(
        [*COMMAND, "demo"], env=environment(HF_HOME=str(tmp_path), **unread), cwd=tmp_path, capture_output=True,
        stdin=subprocess.DEVNULL, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("A recorded run of an agent, 71 model calls and 166 tool calls: ")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "\x1b" not in done.stdout
    assert "memory-bank audit FILE" in done.stdout
    curves = [line.partition("|")[2] for line in done.stdout.splitlines() if "|" in line]
    assert 1 <= "".join(curves).count("F") <= 5  # rare folds, not one a step
    rows = {
        m[1]: m
        for m in re.finditer(r"^(\S.*?) +\$([\d.]+) +(\d+)% +(\d+)%.* (\d+) of (\d+)$", done.stdout, re.M)
    }
    assert list(rows) == ["no memory", "keep last 5", "memory_bank"]
    dollars, share, worst, shown, needed = (float(x) for x in rows["memory_bank"].groups()[1:])
    assert dollars < float(rows["no memory"][2]) < float(rows["keep last 5"][2])
    assert share == round(100 * dollars / float(rows["no memory"][2]))
    assert worst <= 105
    assert 0.8 * needed <= shown > 1.5 * int(rows["keep last 5"][5])
    value, line = re.search(
        r"^Call \d+ needs (\S+), .*\n.*memory_bank shows it:\n  (.*)$", done.stdout, re.M
    ).groups()
    assert value in line


@pytest.mark.long
def test_demo_at_the_prices_of_other_models(cli):
    shares = {}
    for model in ("claude-sonnet-5-5", "openai/gpt-4.1"):
        done = cli("demo", "--model", model)
        assert f"at the list price of {model} of " in done.out.replace("\n", " ")
        shares[model] = int(re.search(r"^memory_bank +\S+ +(\d+)%", done.out, re.M)[1])
    assert shares["openai/gpt-4.1"] < shares["claude-sonnet-5-5"]  # its cached tokens are dearer
    unknown = cli("demo", "--model", "no-such-model")
    assert (unknown.code, unknown.out) == (2, "")
    assert "'no-such-model' has no list price: name another model" in unknown.err


@pytest.mark.long
def test_demo_does_not_read_the_environment(cli, monkeypatch):
    printed = cli("demo").out
    monkeypatch.setenv("MEMORY_BANK_MEMORY_STRATEGIES__memory_bank__HISTORY_BUDGET", "500")
    monkeypatch.setenv("MEMORY_BANK_NONSENSE", "1")
    assert cli("demo").out == printed


@pytest.mark.long
def test_demo_in_ascii(tmp_path):
    done = shell("$MB demo", PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    assert done.returncode == 0
    assert "# memory_bank" in done.stdout
    assert "\\u" not in done.stdout.partition("\nCall ")[0]
