"""The service as a process: how it begins, what it says, how it is told what to do, and how it ends."""

from __future__ import annotations

import http.client
import json
import logging
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.cli.conftest import COMMAND, cli, environment  # noqa: F401
from tests.examples import first_short
from tests.ports import free_port
from tests.service.processes import Process, serve, start, until
from tests.service.proxied import Held

from memory_bank.bank.database import Database
from memory_bank.bank.maintenance import verify
from memory_bank.config import load_config
from memory_bank.errors import DatabaseOpenError
from memory_bank.testing import Reply, ScriptedServer


def test_without_any_configuration(tmp_path: Path) -> None:
    """It begins, says where it is and how to point an agent at it, and ends in order."""
    others = {"WEB_CONCURRENCY": "many", "HTTPS_PROXY": "proxy:3128"}  # of other servers
    with serve(XDG_DATA_HOME=str(tmp_path), OPENAI_BASE_URL="http://127.0.0.1:9/v1", **others) as service:
        assert service.ask("/health?live").json()["status"] == "ok"
        assert service.end() == 0
        out = service.process.stdout.read()
    assert out == ""  # the address was the only line
    bank = tmp_path / "memory-bank" / "bank.db"
    for said in (
        f"serves at {service.address}\n", f"database  sqlite:///{bank}\n", "upstream  http://127.0.0.1:9/v1\n",
        "strategy  memory_bank, summaries: by extraction\n", f"OPENAI_BASE_URL={service.address}/v1\n",
        f"page      {service.address}/\n", "shutting down: open requests have 10 s\n", "stopped\n",
    ):  # fmt: skip
        assert said in service.log
    assert list(verify(Database(bank))) == []


def test_file_environment_options_and_ctrl_c(tmp_path: Path) -> None:
    """The environment wins over the file, value by value, and an option over both."""
    ports = [free_port() for _ in range(2)]
    file = tmp_path / "config.toml"
    file.write_text(
        f'[service]\nport = {ports[0]}\ndatabase = "{tmp_path}/file.db"\nupstream = "http://127.0.0.1:9/file"\n'
        'log_format = "json"\n[memory_strategies.memory_bank]\ntype = "memory_bank"\nobserver_model = "extractive"\n'
    )
    env = {"MEMORY_BANK_SERVICE__PORT": str(ports[1]), "MEMORY_BANK_SERVICE__DATABASE": f"{tmp_path}/env.db"}
    with serve("--config", file, "--db", tmp_path / "given.db", port=None, **env) as service:
        assert service.address == f"http://127.0.0.1:{ports[1]}"
        assert service.end(signal.SIGINT) == 130  # by Ctrl-C
    told = [json.loads(line) for line in service.lines]  # nothing on standard error but JSON
    told = [t for t in told if not t["message"].startswith("the vocabulary")]  # where it cannot be loaded
    assert [t["message"] for t in told] == ["serving", "shutting down: open requests have 10 s", "stopped"]
    assert (told[0]["address"], told[0]["workers"]) == (service.address, 1)
    assert told[0]["upstream"] == "http://127.0.0.1:9/file"
    assert told[0]["database"].endswith("/given.db")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"SSL_CERT_FILE": __file__}, "SSL_CERT_FILE"),
        ({"SSL_CERT_FILE": "/no/such.pem"}, "SSL_CERT_FILE"),
        ({"HTTPS_PROXY": "socks5://proxy:1"}, "HTTPS_PROXY"),
    ],
)
@pytest.mark.long
def test_what_the_environment_names_is_one_sentence_with_any_workers(
    tmp_path: Path, env: dict[str, str], says: str, workers: int
) -> None:
    options = ["--db", tmp_path / "b.db", "--upstream", "https://api.example/v1", "--workers", str(workers)]
    started = start(*options, **env)
    assert started.wait() == 2
    assert len(started.lines) == 1
    assert says in started.log
    assert not (tmp_path / "b.db").exists()


@pytest.fixture
def _logging_as_it_was() -> Any:
    root, raising = logging.getLogger(), logging.raiseExceptions
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.raiseExceptions = raising


@pytest.mark.usefixtures("_logging_as_it_was")
@pytest.mark.parametrize(
    ("options", "env", "code", "says"),
    [
        (["--host", "0.0.0.0"], {}, 2, "keys create"),
        (["--host", "no.such.host.invalid"], {}, 2, "is unknown"),
        (["--host", "203.0.113.1"], {}, 1, "cannot be used"),
        (["--host", ""], {}, 2, "--host: "),
        (["--db", "/no/such/folder/b.db"], {}, 1, "its folder does not exist"),
        (["--db", "mysql://x@y/z"], {}, 1, "a mysql database cannot be opened"),
        (["--db", "postgresql://u:secret@127.0.0.1:9/z"], {}, 1, "check the URL's host and port"),
        (["--db", ":memory:", "--workers", "2"], {}, 2, "workers"),
        (["--upstream", "api.openai.com"], {}, 2, "--upstream"),
        (["--upstream", "https://user:secret@api.example/v1"], {}, 2, "--upstream"),
        (["--upstream", "https://api.example/v1?key=secret"], {}, 2, "--upstream"),
        (["--upstream", "http://[::1"], {}, 2, "--upstream"),
        ([], {"OPENAI_BASE_URL": "ftp://secret"}, 2, "OPENAI_BASE_URL"),
        (["--config", "/no/such/file"], {}, 2, "/no/such/file cannot be read"),
        (["--log-format", "xml"], {}, 2, "--log-format: input should be 'text' or 'json'"),
        (["--workers", "0"], {}, 2, "--workers"),
        (["--port", "99999"], {}, 2, "--port"),
        ([], {"MEMORY_BANK_SERVICE__PORT": "many"}, 2, "MEMORY_BANK_SERVICE__PORT"),
        ([], {"MEMORY_BANK_SERVICE__PROT": "1"}, 2, "did you mean port?"),
        ([], {"MEMORY_BANK_SERVICE__STRATEGY": "memory_bnak"}, 2, "did you mean 'memory_bank'?"),
        ([], {"MEMORY_BANK_SERVICE__STRATEGY": "memory_bank_classic"}, 2, "OPENAI_API_KEY"),
        ([], {"MEMORY_BANK_SERVICE__ALLOWED_HOSTS": '["a b"]'}, 2, "allowed_hosts"),
        ([], {"OPENAI_API_KEY": "secret\r\nX-Evil: 1"}, 2, "key"),
        ([], {"XDG_DATA_HOME": __file__}, 1, "--db"),
        (["--db", f"{__file__}/b.db"], {}, 1, "its folder does not exist"),
        (["--db", __file__], {}, 1, "cannot be opened"),
        *(
            (["--upstream", "https://api.example/v1"], {"HTTPS_PROXY": proxy}, 2, "HTTPS_PROXY")
            for proxy in (
                "socks5://u:secret@proxy:1",
                "ftp://proxy",
                "http://",
                "http://u:secret@proxy:99999",
                "http://proxy:0",
                "http://proxy:port",
                "http://[::1",
                "http://proxy\nx",
                "proxy:port",
            )
        ),
        (
            ["--upstream", "http://127.0.0.1:9/v1", "--upstream-anthropic", "http://127.0.0.1:9"],
            {"OPENAI_API_KEY": "k", "ALL_PROXY": "socks5://u:secret@proxy:1", "NO_PROXY": "127.0.0.1"},
            2,
            "ALL_PROXY",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(
    request: pytest.FixtureRequest,
    monkeypatch: Any,
    tmp_path: Path,
    options: Any,
    env: Any,
    code: int,
    says: str,
) -> None:
    run = request.getfixturevalue("cli")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    defaults = [] if "--port" in options else ["--port", "0"]
    done = run("serve", *defaults, *options)
    assert (done.code, done.out) == (code, "")
    assert says in done.sentence()
    assert "secret" not in done.err


@pytest.mark.usefixtures("_logging_as_it_was")
@pytest.mark.parametrize(("content", "says"), [(None, "there is no file"), ("[]", "evidence model")])
def test_an_evidence_model_that_cannot_be_read_ends_the_start(
    request: pytest.FixtureRequest, tmp_path: Path, content: Any, says: str
) -> None:
    run = request.getfixturevalue("cli")
    config, model = tmp_path / "config.toml", tmp_path / "model.json"
    if content is not None:
        model.write_text(content)
    written = f'[memory_strategies.other]\ntype = "memory_bank"\nevidence_model = "{model}"\n'
    config.write_text((Path(__file__).parents[2] / "config.toml").read_text() + written)
    done = run("serve", "--port", "0", "--db", tmp_path / "b.db", "--config", config)
    assert (done.code, done.out) == (2, "")
    assert says in done.sentence()
    assert not (tmp_path / "b.db").exists()


@pytest.mark.usefixtures("_logging_as_it_was")
def test_a_port_that_is_taken(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The second one says so, makes no database, and leaves the first alone; the same file is no trouble."""
    with serve("--db", tmp_path / "b.db") as first:
        port = urlsplit(first.address).port
        second = request.getfixturevalue("cli")("serve", "--db", tmp_path / "never.db", "--port", port)
        assert (second.code, second.out) == (1, "")
        told = f"127.0.0.1:{port} is in use: stop what listens there, or choose another --port."
        assert second.sentence() == told
        assert not (tmp_path / "never.db").exists()
        with serve("--db", tmp_path / "b.db") as third:
            assert third.ask("/health?live").status == first.ask("/health?live").status == 200
            assert third.end() == 0
        assert first.ask("/health?live").status == 200


@pytest.mark.usefixtures("_logging_as_it_was")
def test_a_service_that_would_forward_to_itself(request: pytest.FixtureRequest, monkeypatch: Any) -> None:
    port = free_port()
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://localhost:{port}/v1")
    done = request.getfixturevalue("cli")("serve", "--port", port)
    assert done.code == 2
    assert "is this service itself" in done.sentence()


@pytest.mark.parametrize(
    "package", first_short(["fastapi", "uvicorn", "httpx2", "prometheus_client", "opentelemetry"])
)
def test_without_the_extra(tmp_path: Path, package: str) -> None:
    script = f"import sys; sys.modules[{package!r}] = None; sys.argv = ['memory-bank', 'serve']\n"
    done = subprocess.run(
        [sys.executable, "-c", script + "from memory_bank.cli import main; main()"],
        env=environment(XDG_DATA_HOME=str(tmp_path)), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "pip install '.[service]'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def asked(service: Process, upstream: Held) -> http.client.HTTPConnection:
    """A request that upstream has, and does not answer yet."""
    connection = http.client.HTTPConnection(urlsplit(service.address).netloc, timeout=60)
    connection.request("GET", "/v1/models")
    until(lambda: upstream.got)
    return connection


def test_open_requests_end_and_new_ones_are_refused(tmp_path: Path, held: Held) -> None:
    with serve("--db", tmp_path / "b.db", "--upstream", held.base_url) as service:
        open_ = asked(service, held)
        service.process.send_signal(signal.SIGTERM)
        until(lambda: "shutting down" in service.log)
        until(service.refuses)
        held.go.set()
        answer = open_.getresponse()
        assert (answer.status, answer.read()) == (200, b"{}")
        assert service.wait() == 0


@pytest.mark.long
def test_after_the_time_set_open_requests_are_cut(tmp_path: Path, held: Held) -> None:
    env = {"MEMORY_BANK_SERVICE__SHUTDOWN_TIMEOUT": "0.2"}
    with serve("--db", tmp_path / "b.db", "--upstream", held.base_url, **env) as service:
        open_ = asked(service, held)
        service.process.send_signal(signal.SIGTERM)
        assert open_.getresponse().status == 500  # it had not begun to answer
        assert service.wait() == 0


def streamed(service: Process) -> http.client.HTTPResponse:
    """A chat whose answer has begun."""
    connection = http.client.HTTPConnection(urlsplit(service.address).netloc, timeout=30)
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    assert (answer.status, answer.read1(1)) == (200, b"d")
    return answer


def test_a_stream_goes_on_to_its_end(tmp_path: Path) -> None:
    with (
        ScriptedServer(lambda body: Reply("words " * 20, pause=0.15)) as upstream,  # two seconds and more
        serve("--db", tmp_path / "b.db", "--upstream", upstream.base_url) as service,
    ):
        answer = streamed(service)
        service.process.send_signal(signal.SIGTERM)
        until(lambda: "shutting down" in service.log)
        assert answer.read().endswith(b"data: [DONE]\n\n")
        assert service.wait() == 0


@pytest.mark.long
def test_a_stream_that_takes_longer_is_cut(tmp_path: Path) -> None:
    env = {"MEMORY_BANK_SERVICE__SHUTDOWN_TIMEOUT": "0.5"}
    with (
        ScriptedServer(lambda body: Reply("words " * 200, pause=1.0)) as upstream,
        serve("--db", tmp_path / "b.db", "--upstream", upstream.base_url, **env) as service,
    ):
        answer = streamed(service)
        service.process.send_signal(signal.SIGTERM)
        with pytest.raises((http.client.HTTPException, OSError)):
            answer.read()
        assert service.wait() == 0
    assert "Traceback" not in service.log


@pytest.mark.long
def test_ctrl_c_again_ends_it_at_once(tmp_path: Path, held: Held) -> None:
    env = {"MEMORY_BANK_SERVICE__SHUTDOWN_TIMEOUT": "600"}
    with serve("--db", tmp_path / "b.db", "--upstream", held.base_url, **env) as service:
        open_ = asked(service, held)
        service.process.send_signal(signal.SIGINT)
        until(lambda: "shutting down" in service.log)
        service.process.send_signal(signal.SIGTERM)  # once more from a supervisor: nothing is cut for that
        time.sleep(0.3)
        assert service.process.poll() is None
        service.process.send_signal(signal.SIGINT)
        assert service.wait() == 130
        with pytest.raises((http.client.HTTPException, OSError)):
            open_.getresponse()
    assert "stopped" not in service.log


@pytest.mark.long
def test_what_hangs_in_a_thread_does_not_keep_it_alive(tmp_path: Path) -> None:
    """A thread that never ends is left behind after the time set and five seconds more."""
    script = (
        "import sys, threading\n"
        "from memory_bank.config import load_config\n"
        "from memory_bank.service.server import process, startup\n"
        "process.GRACE = 0.5\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "config = load_config()\n"
        "service = config.service.model_copy(update={'port': 0, 'database': sys.argv[1], 'shutdown_timeout': 0.1})\n"
        "sys.exit(startup.serve(config.model_copy(update={'service': service})))\n"
    )
    process = Process(
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "b.db")],
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
    )  # fmt: skip
    with process:
        assert process.process.stdout.readline().startswith("http://127.0.0.1:")
        assert process.end() == 0
    assert "shutdown took too long" in process.log


@pytest.mark.long
def test_nobody_listens_to_what_it_says(tmp_path: Path) -> None:
    """Closed streams end no service."""
    port = free_port()
    running = subprocess.Popen(
        ["bash", "-c", f"exec {' '.join(COMMAND)} serve --port {port} --db {tmp_path}/b.db 1>&- 2>&-"],
        env=environment(),
    )
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

        def answers() -> bool:
            try:
                connection.request("GET", "/health?live")
                return connection.getresponse().read() != b""
            except OSError:
                connection.close()
                return False

        assert running.poll() is None
        until(lambda: running.poll() is not None or answers())
        if running.poll() is None:
            running.send_signal(signal.SIGTERM)
        assert running.wait(30) in (0, 1)
    finally:
        running.kill()
        running.wait()


@pytest.mark.long
def test_a_database_that_goes_away_while_it_begins(tmp_path: Path) -> None:
    """What the application itself cannot begin with is one sentence, too."""
    from memory_bank.service.server import process, startup

    config = load_config()
    gone = config.service.model_copy(update={"database": str(tmp_path / "gone" / "b.db"), "port": 0})
    config = config.model_copy(update={"service": gone})
    told: list[str] = []
    with startup.listening(config) as sock, pytest.raises(DatabaseOpenError, match="folder"):
        process.serve_here(config, sock, lambda: told.append("started"))
    assert told == []


@pytest.mark.long
def test_services_that_begin_together_on_a_new_database(bank_url: str) -> None:
    """Each migrates or waits for the one that does."""
    started = [start("--db", bank_url) for _ in range(4)]
    try:
        for service in started:
            service.address = service.process.stdout.readline().strip()
            assert service.address, service.log
            assert service.ask("/health?live").status == 200
        for service in started:
            service.process.send_signal(signal.SIGTERM)
        assert [s.wait() for s in started] == [0] * 4
    finally:
        for service in started:
            service.process.kill()
            service.process.wait()
    database = Database(bank_url)
    assert list(verify(database)) == []
    database.close()
