"""memory-bank run: a command with memory, through a service that runs or is started for it."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import pytest
from tests.cli.conftest import COMMAND, environment, run_of
from tests.service.caching import Cached

from memory_bank.cli.run import pointed
from memory_bank.testing import ScriptedServer, fail, say

pytest.importorskip("fastapi", reason="needs the extra service")

AGENT = """
import json, os, sys, urllib.request
messages = json.loads(sys.argv[1])
for end in range(4, len(messages) + 1, 2):
    body = {"model": "gpt-4.1-mini", "messages": messages[:end], "tools": [{"type": "function", "function": {"name": "t"}}]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    try:
        urllib.request.urlopen(request).read()
    except urllib.error.HTTPError as e:
        print(e.code)
print(os.environ["OPENAI_BASE_URL"])
"""
HISTORY = run_of("alpha", 12, "order 1234567 was shipped to the harbour on time. " * 200)[:-1]
USES = [sys.executable, "-c", AGENT, json.dumps(HISTORY)]
SAVED = re.compile(
    r"memory-bank: 12 model requests; ([\d,]+) tokens sent, ([\d,]+) without memory \(\d\d% less\); "
    r"\$(\S+) paid, \$(\S+) without memory \(\d\d% less\)\.\n"
)


@pytest.fixture
def variables(tmp_path, port):
    with ScriptedServer(lambda body: say("done")) as upstream:
        own = {"XDG_DATA_HOME": str(tmp_path / "data"), "MEMORY_BANK_SERVICE__PORT": str(port)}
        yield environment(OPENAI_BASE_URL=upstream.base_url, **own)


@pytest.fixture
def here(cli, monkeypatch, variables):
    """The verb in this process, which starts a service less slowly than one more process does."""

    def call(*command, **more):
        with monkeypatch.context() as m:
            for name, value in {**variables, **more}.items():
                m.setenv(name, value)
            return cli("run", *command)

    return call


def run(variables, *command, **more):
    return subprocess.run(
        [*COMMAND, "run", *command], env=variables, capture_output=True, text=True, timeout=60, **more
    )


def address(done) -> str:
    told = getattr(done, "err", "") or done.stderr
    found = re.search(r"go through (http://127.0.0.1:\d+)", told)
    assert found, told
    return found[1]


def is_served(url: str) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) == 0


def test_a_service_is_started_and_what_was_saved_is_printed(cli, variables, port, tmp_path):
    """Within a point, in tokens and in dollars, of what an upstream with a prefix cache counts."""
    own, without = Cached(), Cached()
    tools = [{"type": "function", "function": {"name": "t"}}]
    for end in range(4, len(HISTORY) + 1, 2):
        without({"model": "gpt-4.1-mini", "messages": HISTORY[:end], "tools": tools})
    with ScriptedServer(own) as upstream:
        done = run(variables | {"OPENAI_BASE_URL": upstream.base_url}, "--", *USES)
    assert (done.returncode, done.stdout) == (0, f"{address(done)}/v1\n")
    saved = SAVED.search(done.stderr)
    assert saved, done.stderr
    assert "12 model requests;" in done.stderr
    assert "whose page shows each step, later `memory-bank serve`." in done.stderr
    sent, full, paid, instead = (float(n.replace(",", "")) for n in saved.groups())
    (tokens, dollars), (full_tokens, in_full) = own.paid("gpt-4.1-mini"), without.paid("gpt-4.1-mini")
    assert sent == tokens < full
    assert sent / full == pytest.approx(tokens / full_tokens, abs=0.01)
    assert paid == pytest.approx(dollars, rel=0.001)
    assert paid < instead
    assert paid / instead == pytest.approx(dollars / in_full, abs=0.01)
    assert not is_served(address(done))
    assert (tmp_path / "data" / "memory-bank" / "bank.db").exists()
    page = re.search(r"its page, while `memory-bank serve` runs: (http://\S+)/#/s/(\S+)\n", done.stderr)
    assert page, done.stderr
    assert page[1] == f"http://127.0.0.1:{port}"
    today, sessions = (cli(*v).out for v in (["saved", "--today"], ["bank", "sessions"]))
    assert re.match(
        r"today: 12 requests in 1 session; \$\S+ paid, \$\S+ without memory \(\d\d% less\); ", today
    )
    assert page[2] in sessions


@pytest.mark.long
def test_a_share_of_sessions_goes_without_memory(variables):
    done = run(variables, "--holdout", "1", "--", *USES)
    assert done.returncode == 0
    assert "12 model requests;" in done.stderr and "(0% less)" in done.stderr
    saved = subprocess.run([*COMMAND, "saved"], env=variables, capture_output=True, text=True)
    assert (
        "; measured beside sessions without memory: 0 of about 30 sessions with memory needed."
        in saved.stdout
    )
    done = run(variables, "--holdout", "0", "--", *USES)  # the session stays as it was drawn
    assert "(0% less)" in done.stderr


@pytest.mark.parametrize("share", ["1.5", "-0.1", "ten", "nan"])
def test_a_share_that_is_none_starts_nothing(cli, share):
    done = cli("run", "--holdout", share, "--", *USES)
    assert (done.code, done.out) == (2, "")
    assert done.sentence().startswith("Invalid value for '--holdout': Input should be ")


def test_claude_gets_no_changing_header_where_the_upstream_is_not_anthropic():
    command, _ = pointed(["claude", "-p"], "http://127.0.0.1:1", elsewhere=True)
    assert json.loads(command[2])["env"]["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"
    command, _ = pointed(["claude", "-p"], "http://127.0.0.1:1")
    assert "CLAUDE_CODE_ATTRIBUTION_HEADER" not in json.loads(command[2])["env"]


def test_a_running_service_is_used_and_goes_on(here, variables, tmp_path, port):
    serve = subprocess.Popen(
        [*COMMAND, "serve", "--db", str(tmp_path / "own.db")], env=variables, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        url = serve.stdout.readline().strip()
        first, second = here(*USES), here(*USES, OPENAI_BASE_URL=f"{url}/v1")
        assert address(first) == address(second) == url == f"http://127.0.0.1:{port}"
        assert "12 model requests of all clients of the service" in first.err
        assert "12 model requests of all clients of the service" in second.err
        assert "whose page shows each step.\n" in first.err
        other = here("--db", str(tmp_path / "other.db"), "true")
        assert address(other) != url
        same = here("--db", str(tmp_path / "own.db"), "true")
        assert address(same) == url
        share = here("--holdout", "0.1", "--", *USES)
        assert (share.code, share.out) == (2, "")
        assert f"the service at {url} decides its own share of sessions without memory: set " in share.err
    finally:
        serve.terminate()
        serve.wait(20)


@pytest.mark.long
def test_two_at_once_and_a_port_of_another_program(variables, port):
    with socket.create_server(("127.0.0.1", port)) as other:
        other.settimeout(0.1)
        two = [
            subprocess.Popen(
                [*COMMAND, "run", *USES],
                env=variables,
                stderr=subprocess.PIPE,
                text=True,
                stdout=subprocess.DEVNULL,
            )
            for _ in range(2)
        ]
        said = [each.communicate(timeout=60)[1] for each in two]
    assert [each.returncode for each in two] == [0, 0]
    assert all(SAVED.search(text) for text in said), said
    assert len({re.search(r":(\d+)", text)[1] for text in said} | {str(port)}) == 3


def test_the_exit_code_and_the_arguments_are_the_commands(variables):
    loads = {
        "PYTHONPROFILEIMPORTTIME": "1"
    }  # prints what this process loads, of which the service is no part
    done = run(variables | loads, "sh", "-c", 'read line; echo "$0 $line"; exit 7', "--db", input="typed\n")
    assert (done.returncode, done.stdout) == (7, "--db typed\n")
    assert "memory_bank.cli.run" in done.stderr and "memory_bank.service.app" not in done.stderr
    assert "no model request came through" in done.stderr
    assert "memory-bank doctor" in done.stderr


def test_a_command_that_is_not_there_or_cannot_be_run(cli, here, tmp_path):
    done = cli("run", "--", "no-such-command", "--help")
    assert (done.code, done.out) == (127, "")
    assert done.sentence() == "there is no command 'no-such-command': check its name, or install it."
    odd = tmp_path / "odd"
    odd.write_bytes(b"\x00\x01")
    for given in (odd, tmp_path):
        done = cli("run", given)
        assert (done.code, done.out) == (126, "")
        assert done.sentence().startswith(f"{given} cannot be run: make it executable")
    odd.chmod(0o755)
    done = here(str(odd))
    assert done.code == 126
    assert "cannot be run (Exec format error)" in done.err
    assert cli("run").code == 2


def test_why_no_service_starts_is_one_sentence(here, variables, tmp_path):
    (tmp_path / "uvicorn.py").write_text("raise ModuleNotFoundError('uvicorn', name='uvicorn')")
    path = os.pathsep.join(filter(None, (str(tmp_path), variables.get("PYTHONPATH"))))
    done = here(*USES, PYTHONPATH=path)
    assert (done.code, done.out) == (1, "")
    assert re.search(r"pip install '\.\[service\]'", done.sentence())
    done = here("--db", str(tmp_path / "no" / "bank.db"), *USES)
    assert (done.code, done.out) == (1, "")
    assert "create it first" in done.sentence()


@pytest.mark.long
def test_answers_with_errors_are_counted(variables):
    with ScriptedServer([fail(401, "no key")] * 20) as upstream:
        done = run(variables | {"OPENAI_BASE_URL": upstream.base_url}, *USES)
    assert "12 of them answered with 401" in done.stderr


@pytest.mark.long
def test_an_address_that_a_service_left_is_no_upstream(variables, port):
    """It is not used as the service's upstream: each request would go round and round, or nowhere."""
    left = variables | {"OPENAI_BASE_URL": f"http://localhost:{port}/v1"}
    done = run(left, sys.executable, "-c", "import os; print(os.environ['OPENAI_BASE_URL'])")
    assert done.stdout == f"{address(done)}/v1\n"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("gpt-4.1-mini", "a-model-of-tomorrow", "no price of the model is known: add it to [prices] in the configuration"),
        pytest.param('"tools":', '"stream": True, "tools":', "the stream has no usage: the client has to ask for it by stream_options.include_usage", marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_calls_without_a_cost_are_counted_with_the_reason(here, old, new, reason):
    done = here(sys.executable, "-c", AGENT.replace(old, new), json.dumps(HISTORY))
    told = re.search(r"less\); the cost of (\d+) of them is not known: (.*)\.\n", done.err)
    assert told, done.err
    assert (int(told[1]), told[2]) == (12, reason)
    assert "$" not in done.err


@contextlib.contextmanager
def impostor(port):
    """A process that answers ``/health`` as a service does, and keeps what else comes to it."""
    got = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def answer(self, body):
            self.send_response(200)
            self.send_header("x-memory-proof", "0" * 64)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            got.append((self.path, dict(self.headers), b""))
            self.answer(b'{"status":"ok","version":"0.1.0"}' if self.path == "/health" else b"")

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append((self.path, dict(self.headers), body))
            self.answer(b"{}")

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield got
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.long
def test_what_only_answers_as_a_service_gets_no_key_and_no_prompt(variables, port, tmp_path):
    with impostor(port) as got:
        for more in ([], ["--db", str(tmp_path / "own.db")]):
            done = run(variables, *more, "--", *USES)
            assert address(done) != f"http://127.0.0.1:{port}"
            assert (
                "does not show that it is a service of yours: this command gets one of its own" in done.stderr
            )
            assert SAVED.search(done.stderr)
        named = run(variables | {"OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1"}, *USES)
        assert (named.returncode, named.stdout) == (2, "")
        assert "unset OPENAI_BASE_URL" in named.stderr
    assert {path for path, _, _ in got} == {"/health"}
    assert {name.lower() for _, headers, _ in got for name in headers} <= {
        "host", "accept-encoding", "user-agent", "connection", "x-memory-challenge"
    }  # fmt: skip


@pytest.mark.long
def test_an_upstream_that_the_running_service_does_not_send_to(variables, port, tmp_path):
    with ScriptedServer(lambda body: say("other")) as other:
        serve = subprocess.Popen(
            [*COMMAND, "serve"], env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            url = serve.stdout.readline().strip()
            theirs = other.base_url.removesuffix("/v1")
            for more in (
                {"OPENAI_BASE_URL": other.base_url},
                {"OPENAI_BASE_URL": "", "OPENAI_API_BASE": other.base_url},
                {"MEMORY_BANK_SERVICE__UPSTREAM": other.base_url, "OPENAI_BASE_URL": ""},
                {"ANTHROPIC_BASE_URL": theirs},
            ):
                done = run(variables | more, *(USES if "OPENAI_API_BASE" in more else ["true"]))
                assert address(done) != url, more
                assert "does not send to the upstream that" in done.stderr
            assert [r.method for r in other.requests].count("POST") == 12
            mixed = run(variables | {"OPENAI_BASE_URL": f"{url}/v1", "ANTHROPIC_BASE_URL": theirs}, "true")
            assert (mixed.returncode, mixed.stdout) == (2, "")
            assert "unset OPENAI_BASE_URL or ANTHROPIC_BASE_URL" in mixed.stderr
            same = run(variables | {"OPENAI_BASE_URL": variables["OPENAI_BASE_URL"] + "/"}, "true")
            assert address(same) == url
            unnamed = run({k: v for k, v in variables.items() if k != "OPENAI_BASE_URL"}, "true")
            assert address(unnamed) == url
        finally:
            serve.terminate()
            serve.wait(20)


@pytest.mark.parametrize("other", ["OPENAI_API_BASE", "MEMORY_BANK_SERVICE__UPSTREAM"])
def test_two_upstreams_for_one_provider_are_an_error(cli, monkeypatch, port, other):
    monkeypatch.setenv("MEMORY_BANK_SERVICE__PORT", str(port))
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8/v1")
    monkeypatch.setenv(other, "http://127.0.0.1:9/v1")
    done = cli("run", "true")
    assert done.code == 2
    assert "name two upstreams: unset one of them" in done.sentence()


HANDLES = """
import signal, sys, time
got = []
signal.signal(signal.SIGINT, lambda *_: got.append("int"))
signal.signal(signal.SIGTERM, lambda *_: got.append("term"))
print("ready", sys.stdin.isatty(), flush=True)
until = time.monotonic() + 60
while not got and time.monotonic() < until:
    time.sleep(0.01)
time.sleep(0.5)
print(got, flush=True)
sys.exit(9)
"""


def test_the_terminal_is_the_commands_and_ctrl_c_reaches_it_once(variables):
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [*COMMAND, "run", sys.executable, "-c", HANDLES], variables)
    shown = b""
    while b"ready True" not in shown:
        shown += os.read(terminal, 1024)
    os.write(terminal, b"\x03")
    while b"]" not in shown.partition(b"ready True")[2]:
        shown += os.read(terminal, 1024)
    assert b"['int']" in shown
    try:
        while os.read(terminal, 1024):
            pass
    except OSError:  # the other end is closed
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9


@pytest.mark.parametrize(
    ("number", "name"),
    [(signal.SIGTERM, "term"), (signal.SIGINT, "int")],
)
@pytest.mark.long
def test_a_signal_is_passed_on(variables, number, name):
    running = subprocess.Popen(
        [*COMMAND, "run", sys.executable, "-c", HANDLES], env=variables, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert running.stdout.readline().startswith("ready")
    running.send_signal(number)
    out, err = running.communicate(timeout=30)
    assert (running.returncode, out) == (9, f"['{name}']\n"), err


@pytest.mark.long
def test_a_command_that_a_signal_ends(variables):
    assert run(variables, "sh", "-c", "kill -TERM $$").returncode == 128 + signal.SIGTERM


def test_the_service_ends_with_a_killed_run(variables):
    running = subprocess.Popen(
        [*COMMAND, "run", sys.executable, "-c", HANDLES], env=variables, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert running.stdout.readline().startswith("ready")
    url = re.search(r"http://\S+?:\d+", running.stderr.readline())[0]
    assert is_served(url)
    running.kill()
    until = time.monotonic() + 30
    while is_served(url) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_served(url)


# what each client needs

URL = "http://127.0.0.1:4711"


def test_every_command_gets_the_addresses(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "example.com")
    command, variables = pointed(["python", "my_agent.py"], URL)
    assert command == ["python", "my_agent.py"]
    assert variables["OPENAI_BASE_URL"] == variables["OPENAI_API_BASE"] == f"{URL}/v1"
    assert variables["ANTHROPIC_BASE_URL"] == URL
    assert variables["NO_PROXY"] == "example.com,127.0.0.1,localhost"
    provider = json.loads(variables["OPENCODE_CONFIG_CONTENT"])["provider"]
    assert {p: v["options"]["baseURL"] for p, v in provider.items()} == dict.fromkeys(
        ("openai", "anthropic"), f"{URL}/v1"
    )


def test_claude_gets_settings_above_those_of_its_files():
    command, _ = pointed(["/usr/bin/claude", "-p", "x"], URL)
    assert command[:2] == ["/usr/bin/claude", "--settings"]
    assert json.loads(command[2]) == {"env": {"ANTHROPIC_BASE_URL": URL}}
    assert command[3:] == ["-p", "x"]


@pytest.mark.parametrize("key", ["sk-1", ""])
def test_codex_gets_a_provider_and_needs_no_key(monkeypatch, key):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    command, _ = pointed(["codex", "exec", "x"], URL)
    assert command[::2] == ["codex", 'model_provider="memory_bank"', command[4], "x"]
    assert command[1] == command[3] == "-c"
    provider = tomllib.loads(command[4])["model_providers"]["memory_bank"]
    assert provider["base_url"] == f"{URL}/v1"
    assert provider.get("env_key") == ("OPENAI_API_KEY" if key else None)
    assert provider.get("requires_openai_auth", False) is not bool(key)


@pytest.mark.long
def test_no_file_of_a_client_is_changed(variables, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    names = Path(tmp_path / "bin")
    names.mkdir()
    for client in ("claude", "codex", "opencode"):
        (names / client).write_text('#!/bin/sh\necho "$0" "$@"\n')
        (names / client).chmod(0o755)
        done = run(
            variables | {"HOME": str(home), "PATH": f"{names}:{os.environ['PATH']}"}, client, "--version"
        )
        assert done.stdout.endswith("--version\n")
    assert [*home.rglob("*")] == []
