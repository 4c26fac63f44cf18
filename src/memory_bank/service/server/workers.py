"""Several processes that serve one socket, with a supervisor.

uvicorn's Multiprocess does not fit: it does not say when all workers serve, restarts a dead worker without a
pause, stops the service if a restarted one cannot start, and leaves workers behind when it is killed.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType

from memory_bank.config import Config
from memory_bank.errors import MemoryBankError, ServiceError
from memory_bank.service.operations import logs
from memory_bank.service.operations.metrics import SHARED, forget_worker
from memory_bank.service.server.process import GRACE, STOPPED, at_once, serve_here

log = logging.getLogger("memory_bank.Service")

_TICK = 0.2  # seconds between checks for signals
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0  # seconds before a worker that died early is replaced
_SOON = 5.0


class _WorkerProcess:
    """One process. Its pipe says when it serves, or why it cannot."""

    def __init__(self, config: Config, sock: socket.socket, verbose: bool) -> None:
        context = multiprocessing.get_context("spawn")  # inherits no threads and no connections
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(
            target=work, args=(config, sock, theirs, verbose), name="memory-bank-worker"
        )
        self.process.start()
        theirs.close()
        self.began = time.monotonic()
        self.serves = False
        self.trouble = ""

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def listen(self) -> None:
        """Read its messages."""
        try:
            while self.pipe.poll():
                self.trouble = self.pipe.recv()
                self.serves = not self.trouble
        except (EOFError, OSError):
            return


class Workers:
    """The supervisor: starts workers, replaces dead ones, and stops all on a signal.

    If a replacement cannot start (the database is unavailable), the next one follows after a growing pause.
    A worker whose supervisor is gone stops by itself.
    """

    def __init__(self, config: Config, sock: socket.socket, *, verbose: bool = False) -> None:
        self._config = config
        self._sock = sock
        self._verbose = verbose
        self._workers: list[_WorkerProcess] = []
        self._signals: list[int] = []
        self._pause = _FIRST_PAUSE
        self._folder = ""

    def run(self, started: Callable[[], None]) -> int:
        """Serve until a signal; returns 0, or 130 after Ctrl-C. Raises ServiceError if no worker starts."""
        self._folder = tempfile.mkdtemp(prefix="memory-bank-figures-")
        shared = os.environ.get(SHARED)
        os.environ[SHARED] = self._folder
        before = {s: signal.signal(s, self._on_signal) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._begin()
            if not self._signals:
                started()
            while not self._signals:
                self._watch()
            return self._end()
        finally:
            for worker in self._workers:
                worker.process.kill()
            for number, handler in before.items():
                signal.signal(number, handler)
            if shared is None:
                del os.environ[SHARED]
            else:
                os.environ[SHARED] = shared
            shutil.rmtree(self._folder, ignore_errors=True)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._signals and number == signal.SIGINT:
            for worker in self._workers:
                worker.process.kill()
            shutil.rmtree(self._folder, ignore_errors=True)
            at_once(STOPPED)
        self._signals.append(number)

    def _new(self) -> _WorkerProcess:
        return _WorkerProcess(self._config, self._sock, self._verbose)

    def _begin(self) -> None:
        """Start all workers, or none."""
        self._workers = [self._new() for _ in range(self._config.service.workers)]
        while not all(w.serves for w in self._workers) and not self._signals:
            self._wait()
            for worker in self._workers:
                if worker.trouble or not worker.process.is_alive():
                    worker.listen()
                    raise ServiceError(
                        worker.trouble or "a worker process stopped while starting: see the log."
                    )

    def _wait(self) -> None:
        """Wait until a worker dies or a moment has passed, and read the messages."""
        wait([w.process.sentinel for w in self._workers], _TICK)
        for worker in self._workers:
            worker.listen()

    def _watch(self) -> None:
        """Replace dead workers."""
        self._wait()
        for i, worker in enumerate(self._workers):
            if worker.process.is_alive():
                continue
            worker.process.join()
            forget_worker(worker.pid, self._folder)
            lived = time.monotonic() - worker.began
            log.warning(
                "a worker stopped and is replaced: %s",
                worker.trouble or _exit_reason(worker.process.exitcode),
            )
            if lived < _SOON:
                until = time.monotonic() + self._pause
                self._pause = min(_LONGEST_PAUSE, 2 * self._pause)
                while time.monotonic() < until and not self._signals:
                    time.sleep(_TICK)
            else:
                self._pause = _FIRST_PAUSE
            if not self._signals:
                self._workers[i] = self._new()

    def _end(self) -> int:
        """Shut all workers down gracefully; ``run`` kills those that do not stop."""
        seconds = self._config.service.shutdown_timeout
        log.info("shutting down: open requests have %g s", seconds)
        self._sock.close()
        for worker in self._workers:
            worker.process.terminate()
        until = time.monotonic() + seconds + 2 * GRACE
        for worker in self._workers:
            worker.process.join(max(0.0, until - time.monotonic()))
        log.info("stopped")
        return STOPPED if self._signals[0] == signal.SIGINT else 0


def _exit_reason(code: int | None) -> str:
    if code is not None and code < 0:
        return f"by {signal.Signals(-code).name}"
    return f"with exit code {code}"


def work(config: Config, sock: socket.socket, pipe: Connection, verbose: bool) -> None:
    """The worker process: serves until its supervisor stops it or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: the supervisor decides
    logs.set_up(config.service.log_format, verbose=verbose)
    orphaned = threading.Event()
    threading.Thread(target=_follow, args=(pipe, orphaned), name="memory-bank-pipe", daemon=True).start()
    try:
        serve_here(config, sock, lambda: pipe.send(""), ends_on=(signal.SIGTERM,))
    except MemoryBankError as e:
        pipe.send(str(e))
        raise SystemExit(1) from None
    if orphaned.is_set():  # otherwise the supervisor removes it
        shutil.rmtree(os.environ[SHARED], ignore_errors=True)


def _follow(pipe: Connection, orphaned: threading.Event) -> None:
    """Stop this process when the supervisor is gone, which closes its end of the pipe."""
    try:
        pipe.recv()
    except (EOFError, OSError):
        orphaned.set()
        log.warning("the supervisor is gone: this worker stops")
        os.kill(os.getpid(), signal.SIGTERM)
