"""Several processes at one socket: figures of all, one that dies, and the end of all."""

from __future__ import annotations

import http.client
import os
import signal
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.service.processes import Process, serve, until
from tests.service.proxied import Held

pytestmark = pytest.mark.long


@pytest.fixture
def two(tmp_path: Path) -> Any:
    with serve("--db", tmp_path / "b.db", "--workers", "2", TMPDIR=str(tmp_path)) as service:
        yield service


def answered(service: Process) -> float:
    """Requests for the health that all workers together have answered."""
    lines = service.ask("/metrics").body.decode().splitlines()
    return sum(
        float(x.split()[1]) for x in lines if x.startswith("memory_bank_requests_total") and "/health" in x
    )


def connections(pid: int) -> int:
    """The sockets that a process has open."""
    return sum(os.readlink(handle).startswith("socket:") for handle in Path(f"/proc/{pid}/fd").iterdir())


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_one_that_dies_is_replaced_and_its_figures_stay(two: Process) -> None:
    assert ", 2 workers\n" in two.log
    for _ in range(10):
        assert two.ask("/health?live").status == 200
    assert answered(two) == 10
    first = two.children()
    assert len(first) == 2
    os.kill(first[0], signal.SIGKILL)
    until(lambda: "a worker stopped and is replaced: by SIGKILL" in two.log)
    until(lambda: len(set(two.children()) - {first[0]}) == 2)
    for _ in range(10):
        assert two.ask("/health?live").status == 200
    assert answered(two) == 20
    lines = two.ask("/metrics").body.decode().splitlines()
    running = [x for x in lines if x.startswith("memory_bank_requests_running")]
    assert running == ["memory_bank_requests_running 1.0"]
    assert two.end() == 0


@pytest.mark.short
def test_connections_are_shared_and_one_that_hangs_gets_none(two: Process) -> None:
    first, second = two.children()
    with ExitStack() as stack:

        def connect() -> None:
            for _ in range(10):
                address = urlsplit(two.address).netloc
                connection = stack.enter_context(closing(http.client.HTTPConnection(address, timeout=60)))
                connection.request("GET", "/health?live")
                assert connection.getresponse().read()

        before = connections(first), connections(second)
        os.kill(first, signal.SIGSTOP)
        try:
            connect()
        finally:
            os.kill(first, signal.SIGCONT)
        assert (connections(first), connections(second) - before[1]) == (before[0], 10)
        connect()
        assert connections(first) - before[0] >= 5  # all ten, unless it slept for a moment


def test_the_end_of_all(two: Process, tmp_path: Path) -> None:
    workers = two.children()
    assert list(tmp_path.glob("memory-bank-figures-*"))
    for pid in workers:  # as a terminal sends it: to all
        os.kill(pid, signal.SIGINT)
    time.sleep(0.3)
    assert two.ask("/health?live").status == 200
    assert two.end(signal.SIGINT) == 130
    assert not any(map(alive, workers))
    assert two.log.count("stopped\n") == 3
    assert list(tmp_path.glob("memory-bank-figures-*")) == []


def test_a_worker_ends_when_its_supervisor_is_gone(two: Process, tmp_path: Path) -> None:
    workers = two.children()
    two.process.kill()
    until(lambda: not any(map(alive, workers)), 30)
    until(lambda: "the supervisor is gone" in two.log)
    until(lambda: list(tmp_path.glob("memory-bank-figures-*")) == [], 10)


def test_open_requests_of_all_end_and_ctrl_c_again_ends_them_at_once(tmp_path: Path, held: Held) -> None:
    options = "--db", tmp_path / "b.db", "--workers", "2", "--upstream", held.base_url
    with serve(*options, MEMORY_BANK_SERVICE__SHUTDOWN_TIMEOUT="600") as service:
        workers = service.children()
        connection = http.client.HTTPConnection(urlsplit(service.address).netloc, timeout=30)
        connection.request("GET", "/v1/models")
        until(lambda: held.got)
        service.process.send_signal(signal.SIGINT)
        until(lambda: "shutting down" in service.log)
        until(service.refuses)
        service.process.send_signal(signal.SIGINT)
        assert service.wait() == 130
        with pytest.raises((http.client.HTTPException, OSError)):
            connection.getresponse()
        until(lambda: not any(map(alive, workers)))


def test_without_workers_to_share_with_figures_are_not_shared(tmp_path: Path) -> None:
    with serve("--db", tmp_path / "b.db", TMPDIR=str(tmp_path)) as service:
        assert list(tmp_path.glob("memory-bank-figures-*")) == []
        assert service.children() == []
        service.ask("/health?live")
        assert answered(service) == 1
