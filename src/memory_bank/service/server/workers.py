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
from contextlib import suppress
from multiprocessing.connection import Connection, wait
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


class _Worker:
    """One process. Its pipe says when it serves, or why it cannot."""

    def __init__(self, config: Config, sock: socket.socket, verbose: bool) -> None:
        context = multiprocessing.get_context("spawn")  # inherits no threads and no connections
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(config, sock, theirs, verbose))
        self.process.start()
        theirs.close()
        self.began = time.monotonic()
        self.serves = False
        self.trouble = ""

    def listen(self) -> None:
        """Read its messages."""
        with suppress(EOFError, OSError):
            while self._pipe.poll():
                self.trouble = self._pipe.recv()
                self.serves = not self.trouble


class Workers:
    """The supervisor: starts workers, replaces dead ones, and stops all on a signal.

    If a replacement cannot start (the database is unavailable), the next one follows after a growing pause.
    A worker whose supervisor is gone stops by itself.
    """

    def __init__(self, config: Config, sock: socket.socket, *, verbose: bool = False) -> None:
        self._given = config, sock, verbose
        self._workers: list[_Worker] = []
        self._signals: list[int] = []
        self._pause = _FIRST_PAUSE
        self._folder = ""

    def run(self, started: Callable[[], None]) -> int:
        """Serve until a signal; returns 0, or 130 after Ctrl-C. Raises ServiceError if no worker starts."""
        config, sock, _ = self._given
        self._folder = os.environ[SHARED] = tempfile.mkdtemp(prefix="memory-bank-figures-")
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        try:
            self._workers = [_Worker(*self._given) for _ in range(config.service.workers)]
            while not all(w.serves for w in self._workers) and not self._signals:
                self._wait()
                for worker in self._workers:
                    if worker.trouble or not worker.process.is_alive():
                        worker.listen()
                        raise ServiceError(
                            worker.trouble or "a worker process stopped while starting: see the log."
                        )
            if not self._signals:
                started()
            while not self._signals:
                self._wait()
                for i, worker in enumerate(self._workers):
                    if not worker.process.is_alive():
                        self._replace(i, worker)
            seconds = config.service.shutdown_timeout
            log.info("shutting down: open requests have %g s", seconds)
            sock.close()
            for worker in self._workers:
                worker.process.terminate()
            until = time.monotonic() + seconds + 2 * GRACE
            for worker in self._workers:
                worker.process.join(max(0.0, until - time.monotonic()))
            log.info("stopped")
            return STOPPED if self._signals[0] == signal.SIGINT else 0
        finally:
            self._kill()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._signals and number == signal.SIGINT:
            self._kill()
            at_once(STOPPED)
        self._signals.append(number)

    def _kill(self) -> None:
        for worker in self._workers:
            worker.process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait(self) -> None:
        """Wait until a worker dies or a moment has passed, and read the messages."""
        wait([w.process.sentinel for w in self._workers], _TICK)
        for worker in self._workers:
            worker.listen()

    def _replace(self, i: int, worker: _Worker) -> None:
        """Start another worker in the place of a dead one; after a pause if it has died early."""
        worker.process.join()
        code = worker.process.exitcode or 0
        forget_worker(worker.process.pid or 0, self._folder)
        reason = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        log.warning("a worker stopped and is replaced: %s", worker.trouble or reason)
        if time.monotonic() - worker.began < _SOON:
            until = time.monotonic() + self._pause
            self._pause = min(_LONGEST_PAUSE, 2 * self._pause)
            while time.monotonic() < until and not self._signals:
                time.sleep(_TICK)
        else:
            self._pause = _FIRST_PAUSE
        if not self._signals:
            self._workers[i] = _Worker(*self._given)


def work(config: Config, sock: socket.socket, pipe: Connection, verbose: bool) -> None:
    """The worker process: serves until its supervisor stops it or is gone, which closes its end of the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: the supervisor decides
    logs.set_up(config.service.log_format, verbose=verbose)
    orphaned = threading.Event()

    def follow() -> None:
        with suppress(EOFError, OSError):
            pipe.recv()
            return
        orphaned.set()
        log.warning("the supervisor is gone: this worker stops")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()
    try:
        serve_here(config, sock, lambda: pipe.send(""), ends_on=(signal.SIGTERM,))
    except MemoryBankError as e:
        pipe.send(str(e))
        raise SystemExit(1) from None
    if orphaned.is_set():  # otherwise the supervisor removes it
        shutil.rmtree(os.environ[SHARED], ignore_errors=True)
