"""The command line, run in this process or in one of its own, and trace files to run it on."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port

from memory_bank.cli import main

ODD = "lone \ud800 nul \x00 crlf\r\n bell \x07 esc \x1b[31mred [bold]markup[/bold] \u202eend\n"


@dataclass
class Result:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def sentence(self) -> str:
        """The error: one line, no traceback."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("memory-bank: ")
        return lines[0].removeprefix("memory-bank: ")


class Cli:
    """``cli("lab", "replay", path)`` and ``cli.bank(db, "sessions")`` run a verb in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *args: Any) -> Result:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*map(str, args)])
        out, err = self._capsys.readouterr()
        assert "Traceback" not in err
        return Result(int(ended.value.code or 0), out, err)

    def bank(self, db: Any, verb: str, *args: Any) -> Result:
        return self("bank", verb, "--db", db, *args)


@pytest.fixture
def port():
    """A port that nothing listens on."""
    return free_port()


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """The command line, with a data directory of the test's own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return Cli(capsys)


# Loopback has no TLS. Clients would load all of the system's certificates, which takes 30 ms for each of them.
NO_CERTIFICATES = {"SSL_CERT_FILE": "", "SSL_CERT_DIR": str(Path(__file__).parent)}


def environment(**more: str) -> dict[str, str]:
    """A subprocess's environment in which nothing but loopback can be reached."""
    dead = "http://127.0.0.1:9"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MEMORY_BANK_", "OPENAI_"))}
    proxies = {f"{k}_PROXY": dead for k in ("HTTP", "HTTPS", "ALL")} | {"NO_PROXY": "127.0.0.1,localhost"}
    return env | proxies | NO_CERTIFICATES | {"HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"} | more


COMMAND = [sys.executable, "-m", "memory_bank"]


def shell(script: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A shell script in which ``$MB`` is the command."""
    mb = " ".join(COMMAND)
    return subprocess.run(
        ["bash", "-c", script], env=environment(MB=mb, **more), capture_output=True, text=True, timeout=120
    )


def run_of(name: str, calls: int = 4, output: str | None = None) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "s"}, {"role": "user", "content": name}]
    for i in range(calls):
        function = {"name": f"tool_{name}", "arguments": json.dumps({"i": i})}
        messages += [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"c{i}", "type": "function", "function": function}],
            },
            {
                "role": "tool",
                "tool_call_id": f"c{i}",
                "content": json.dumps({"order": f"{name}-{i}"}) if output is None else output,
            },
        ]
    return [*messages, {"role": "assistant", "content": "done"}]


def line(trace_id: Any, messages: Any, **more: Any) -> str:
    return json.dumps({"id": trace_id, "messages": messages, **more})


def write(path: Path, *lines: str) -> Path:
    data = "".join(f"{each}\n" for each in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A file of two runs, alpha and beta."""
    return write(tmp_path / "two.jsonl", line("one", run_of("alpha")), line("two", run_of("beta")))


@pytest.fixture
def bank(cli: Cli, two: Path, tmp_path: Path) -> Path:
    """A bank with the sessions one and two."""
    db = tmp_path / "bank.db"
    assert cli("lab", "replay", two, "--db", db).code == 0
    return db
