"""One serving process or several: start, graceful shutdown, an immediate stop on a second Ctrl-C; connections.

A connection has deadlines: uvicorn closes one that is idle after an answer, and no other, so that a client could hold
all handles of the process by connections that never send a whole request. uvicorn's Multiprocess does not fit: it
does not say when all workers serve, restarts a dead worker without a pause, stops the service if a restarted one
cannot start, and leaves workers behind when it is killed.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, MutableSequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any, NoReturn, cast

from memory_bank.config import Config
from memory_bank.errors import MemoryBankError, MissingExtraError, ServiceError
from memory_bank.service import failures
from memory_bank.service.app import create_app
from memory_bank.service.operations import logs
from memory_bank.service.operations.metrics import SHARED, forget_worker

try:
    import h11
    import uvicorn
    from starlette.responses import JSONResponse
    from starlette.types import Receive, Scope, Send
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError:
    raise MissingExtraError("the service (uvicorn)", "service") from None

log = logging.getLogger("memory_bank.Service")

GRACE = 5.0
"""Seconds after ``shutdown_timeout`` when a process that still runs is killed."""
STOPPED = 130
"""The exit code after Ctrl-C."""
RESERVE = 32
"""Connections above the limit on which ``/health`` alone is answered."""
_LEAST, _MOST = 64, 8_192
_OTHER_HANDLES = 128  # files, the database, the listening socket
_TICK = 0.2  # seconds between checks for signals
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0  # seconds before a worker that died early is replaced
_SOON = 5.0
_SPAWN = multiprocessing.get_context("spawn")  # inherits no threads and no connections
_LOOK, _LOOKS = 0.005, 50  # seconds until a worker with more connections looks for one again, and how often

Shares = tuple["MutableSequence[int]", int]
"""The number of open connections of each worker, and the index of this worker in that list."""


def serve_here(
    config: Config,
    sock: socket.socket,
    started: Callable[[], None],
    *,
    ends_on: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM),
    shares: Shares | None = None,
) -> int:
    """Serve in this process until a signal; returns 0, or 130 after Ctrl-C. Raises what the start raises."""
    return_large_blocks()
    app = create_app(config)
    failed: list[Exception] = []

    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except Exception as e:
            if scope["type"] == "lifespan":
                failed.append(e)
            raise

    settings = uvicorn.Config(
        watched,
        lifespan="on",
        log_config=None,
        access_log=False,
        workers=1,  # not WEB_CONCURRENCY
        server_header=False,
        proxy_headers=False,
        ws="none",
        http=protocol(most_connections(handle_limit())),
        timeout_keep_alive=75,
        timeout_graceful_shutdown=config.service.shutdown_timeout,  # type: ignore[arg-type]
    )
    server = _Server(settings)
    server.ends_on, server.on_started, server.shares = ends_on, started, shares
    server.on_shutdown = lambda seconds: app.state.service.end(seconds)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # a failed start is reported once, by us
    try:
        server.run([sock])
    except SystemExit:
        if not failed:
            raise
    if failed:
        raise failed[0]
    return server.code


class _Server(uvicorn.Server):
    """uvicorn's server with the service's own shutdown."""

    ends_on: tuple[signal.Signals, ...]
    on_started: Callable[[], None]
    on_shutdown: Callable[[float], None]
    shares: Shares | None = None
    code = 0
    _arriving: set[asyncio.Task[Any]]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets if self.shares is None else [])
        if self.started:
            if self.shares is not None and sockets:
                self._arriving = set()
                sockets[0].setblocking(False)
                self._accept(sockets[0])
            logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
            gc.collect()
            gc.freeze()  # what is loaded so far is never collected, and collections are rarer than by default
            gc.set_threshold(20_000, 20, 50)
            self.on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        seconds = float(self.config.timeout_graceful_shutdown or 0.0)
        log.info("shutting down: open requests have %g s", seconds)
        timer = threading.Timer(seconds + GRACE, self._kill)
        timer.daemon = True
        timer.start()
        self.on_shutdown(seconds)
        if self.shares is not None and sockets:
            asyncio.get_running_loop().remove_reader(sockets[0])
        await super().shutdown(sockets)
        log.info("stopped")

    def _accept(self, sock: socket.socket, looks: int = 0) -> None:
        """Take the connections that wait; those that a worker with fewer takes soon are left to it."""
        if self.should_exit or self.shares is None:
            return
        loop = asyncio.get_running_loop()
        counts, mine = self.shares
        loop.remove_reader(sock)
        while True:
            counts[mine] = len(self.server_state.connections) + len(self._arriving)
            if counts[mine] > min(counts) and looks < _LOOKS:
                loop.call_later(_LOOK, self._accept, sock, looks + 1)
                return
            try:
                connection, _ = sock.accept()
            except BlockingIOError:  # none, or another worker has taken it
                loop.add_reader(sock, self._accept, sock)
                return
            except OSError:  # no handle is free
                loop.call_later(_TICK, self._accept, sock)
                return
            connection.setblocking(False)
            arrival = loop.create_task(loop.connect_accepted_socket(self._protocol, connection))
            self._arriving.add(arrival)
            arrival.add_done_callback(self._arriving.discard)

    def _protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """The first signal shuts down gracefully; Ctrl-C after it stops at once."""
        if sig not in self.ends_on:
            return
        if not self.should_exit:
            self.code = STOPPED if sig == signal.SIGINT else 0
        elif sig == signal.SIGINT:
            at_once(STOPPED)
        self.should_exit = True

    def _kill(self) -> None:
        """End a process that does not stop. Transactions keep what is stored complete."""
        log.warning("shutdown took too long: the process is killed")
        at_once(self.code)


def at_once(code: int) -> NoReturn:
    """Exit this process immediately."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


class _Worker:
    """One process. Its pipe says when it serves, or why it cannot."""

    def __init__(self, config: Config, sock: socket.socket, verbose: bool, shares: Shares) -> None:
        shares[0][shares[1]] = _MOST  # takes no connections until it serves
        self._pipe, theirs = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=work, args=(config, sock, theirs, verbose, shares))
        self.process.start()
        theirs.close()
        self.began = time.monotonic()
        self.serves = False
        self.trouble = ""

    def listen(self) -> None:
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
        self._counts: MutableSequence[int] = _SPAWN.RawArray("i", config.service.workers)

    def run(self, started: Callable[[], None]) -> int:
        """Serve until a signal; returns 0, or 130 after Ctrl-C. Raises ServiceError if no worker starts."""
        config, sock, _ = self._given
        self._folder = os.environ[SHARED] = tempfile.mkdtemp(prefix="memory-bank-figures-")
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        try:
            self._workers = [_Worker(*self._given, (self._counts, i)) for i in range(config.service.workers)]
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
        self._counts[i] = _MOST
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
            self._workers[i] = _Worker(*self._given, (self._counts, i))


def work(config: Config, sock: socket.socket, pipe: Connection, verbose: bool, shares: Shares) -> None:
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
        shared = shares if os.name == "posix" else None  # the event loop of Windows tells of no single socket
        serve_here(config, sock, lambda: pipe.send(""), ends_on=(signal.SIGTERM,), shares=shared)
    except Exception as e:
        pipe.send(
            str(e) if isinstance(e, MemoryBankError) else f"a worker met an unexpected {type(e).__name__}."
        )
        raise SystemExit(1) from None
    if orphaned.is_set():  # otherwise the supervisor removes it
        shutil.rmtree(os.environ[SHARED], ignore_errors=True)


def return_large_blocks() -> None:
    """Have glibc return freed blocks of a megabyte and more: it would keep those of up to 32 MB for later."""
    with suppress(OSError, AttributeError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(-3, 2**20)  # M_MMAP_THRESHOLD


def handle_limit() -> int:
    """How many handles this process may open; the soft limit is raised to the hard one where that is allowed."""
    wanted = 2 * _MOST + _OTHER_HANDLES + RESERVE
    try:
        import resource
    except ImportError:  # Windows
        return wanted
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (wanted if n == resource.RLIM_INFINITY else n for n in limits)
    if soft < min(hard, wanted):
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, wanted), limits[1]))
            soft = min(hard, wanted)
    return soft


def most_connections(handles: int) -> int:
    """The connections that a process serves: each may need a second handle, for the model's API."""
    return max(_LEAST, min(_MOST, (handles - _OTHER_HANDLES - RESERVE) // 2))


def protocol(most: int) -> type[BoundedProtocol]:
    """The protocol of at most so many connections, by h11: httptools takes headers of any length."""
    return type("BoundedProtocol", (BoundedProtocol,), {"most": most})


class BoundedProtocol(H11Protocol):
    """A connection with deadlines for what must arrive, one of at most ``most``.

    At the limit a new connection takes the place of the one that has waited longest without a request. If
    all have requests, ``RESERVE`` more are taken, on which only ``/health`` is answered.
    """

    most = _MOST
    head_seconds = 20.0
    """Seconds in which the head of a request must arrive, from the connection or from its first byte."""
    body_pause = 30.0
    """Seconds without a byte after which an incomplete body is given up."""
    body_seconds = 600.0
    """Seconds in which a body must arrive."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timer: asyncio.TimerHandle | None = None
        self._waits_for = ""  # "head" or "body" of a request that has to arrive
        self._since = self._last_byte = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection if there is room, or room can be made."""
        connections = cast("set[BoundedProtocol]", self.connections)
        if len(connections) >= self.most:
            idle = [c for c in connections if isinstance(c, BoundedProtocol) and c._is_idle()]
            if idle:
                min(idle, key=lambda c: c._since)._give_up()
            elif len(connections) >= self.most + RESERVE:
                self.transport = transport
                transport.abort()
                return
            else:
                self.app = cast("Any", _health_only(self.app))
        super().connection_made(transport)
        self._expect()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """As the base class."""
        if self._timer is not None:
            self._timer.cancel()
        if self.flow is not None:  # else it was never taken
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """As the base class."""
        super().data_received(data)
        self._expect()

    def on_response_complete(self) -> None:
        """As the base class."""
        super().on_response_complete()
        self._waits_for, self._since = "", self.loop.time()
        self._expect()

    def _is_idle(self) -> bool:
        """Return whether no request is being received or answered."""
        return self.conn.their_state is h11.IDLE and (self.cycle is None or self.cycle.response_complete)

    def _give_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.connections.discard(self)
        self.transport.abort()

    def _expect(self) -> None:
        """Set what must arrive next, and since when."""
        self._last_byte = self.loop.time()
        receives, idle = self.conn.their_state is h11.SEND_BODY, self.timeout_keep_alive_task is None
        waits_for = "body" if receives else "head" if idle and self._is_idle() else ""
        if waits_for != self._waits_for:
            self._waits_for, self._since = waits_for, self._last_byte

    def _look(self) -> None:
        """Close the connection if a deadline has passed; else check again at the next deadline."""
        now = self.loop.time()
        left = soon = min(self.head_seconds, self.body_pause, self.body_seconds)
        if self._waits_for == "head":  # single bytes do not prolong it
            left = self._since + self.head_seconds - now
        elif self._waits_for == "body":
            if self.flow.read_paused:  # the service is slow, not the client
                self._last_byte = now
            left = min(self._last_byte + self.body_pause, self._since + self.body_seconds) - now
        if left <= 0 and not self.transport.is_closing():
            self._give_up()
        else:
            self._timer = self.loop.call_later(min(max(left, 0.01), soon), self._look)


def _health_only(app: Any) -> Any:
    """An application that answers ``/health`` as ``app`` does, and everything else with 503."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/health":
            await app(scope, receive, send)
            return
        body = failures.body("the service has too many connections: try again later.", "busy", 503)
        headers = {"retry-after": "5", "connection": "close"}
        await JSONResponse(body, 503, headers)(scope, receive, send)

    return answer
