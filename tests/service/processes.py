"""``memory-bank serve`` as a process of its own, and plain requests to it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.cli.conftest import COMMAND, environment


def until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """What a condition gives once that is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.02)
    return found


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Service:
    """A service that runs at an address."""

    address: str

    def ask(
        self, path: str, method: str = "GET", body: Any = None, timeout: float = 60, **headers: str
    ) -> Answer:
        """One request on a connection of its own; names of headers are given with ``_`` for ``-``."""
        connection = http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=timeout)
        try:
            data = None if body is None else json.dumps(body)
            named = {k.replace("_", "-"): v for k, v in headers.items()}
            connection.request(method, path, data, {"content-type": "application/json", **named})
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()


@dataclass
class Process(Service):
    """A service that runs in a process; ``lines`` is what it has written to standard error."""

    process: subprocess.Popen[str]
    address: str = ""
    lines: list[str] = field(default_factory=list)

    @property
    def log(self) -> str:
        return "".join(self.lines)

    def refuses(self) -> bool:
        """Whether nobody listens there any longer."""
        try:
            self.ask("/health?live")
        except ConnectionRefusedError:
            return True
        except (http.client.HTTPException, OSError):  # its connection was not taken any more
            return False
        return False

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self, timeout: float = 60) -> int:
        code = self.process.wait(timeout)
        self._reader.join(10)
        return code

    def children(self) -> list[int]:
        """Its worker processes (not the helper that multiprocessing starts)."""
        found = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                command = (folder / "cmdline").read_text()
            except OSError:
                continue
            if parent == self.process.pid and "spawn_main" in command:
                found.append(int(folder.name))
        return found

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            workers = self.children()
            self.process.kill()
            for pid in workers:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        self.process.wait(30)
        self._reader.join(10)

    def __post_init__(self) -> None:
        def read() -> None:
            assert self.process.stderr is not None
            with self.process.stderr:
                self.lines.extend(self.process.stderr)

        self._reader = threading.Thread(target=read, daemon=True)
        self._reader.start()


def start(*options: Any, port: int | None = 0, **env: str) -> Process:
    """Start a service, on a free port unless another is given; does not wait for it."""
    at = [] if port is None else ["--port", str(port)]
    return Process(
        subprocess.Popen(
            [*COMMAND, "serve", *at, *map(str, options)],
            env=environment(**env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
    )  # fmt: skip


FOLDING = {
    f"MEMORY_BANK_MEMORY_STRATEGIES__memory_bank__{name}": value
    for name, value in (("HISTORY_BUDGET", "4000"), ("REFRESH_AFTER", "0"))
}
"""The environment of a service that folds at every step."""


def serve(*options: Any, port: int | None = 0, **env: str) -> Process:
    """Start a service and wait until it answers: it says its address on a line of its own."""
    started = start(*options, port=port, **env)
    assert started.process.stdout is not None
    started.address = started.process.stdout.readline().strip()
    if not started.address:
        started.process.wait(30)
        started._reader.join(10)
    assert started.address, started.log
    told = (f"page      {started.address}/\n", '"message": "serving"')
    until(lambda: any(t in started.log for t in told))  # told before the address; read later
    return started
