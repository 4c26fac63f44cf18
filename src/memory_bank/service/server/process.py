"""One serving process: start, graceful shutdown, and an immediate stop on a second Ctrl-C."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from memory_bank.config import Config
from memory_bank.errors import MemoryBankError, MissingExtraError
from memory_bank.service.app import create_app

try:
    import uvicorn
    from fastapi import FastAPI
    from starlette.types import Receive, Scope, Send

    from memory_bank.service.server.connections import handle_limit, most_connections, protocol
except ImportError:
    raise MissingExtraError("the service (uvicorn)", "service") from None

log = logging.getLogger("memory_bank.Service")

GRACE = 5.0
"""Seconds after ``shutdown_timeout`` when a process that still runs is killed."""
STOPPED = 130
"""The exit code after Ctrl-C."""


def serve_here(
    config: Config,
    sock: socket.socket,
    started: Callable[[], None],
    *,
    ends_on: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM),
) -> int:
    """Serve in this process until a signal; returns 0, or 130 after Ctrl-C. Raises what the start raises."""
    watched = _StartupRecorder(create_app(config))
    settings = uvicorn.Config(
        watched,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        http=protocol(most_connections(handle_limit())),
        timeout_keep_alive=75,
        timeout_graceful_shutdown=config.service.shutdown_timeout,  # type: ignore[arg-type]
    )
    server = _Server(settings, watched, started, ends_on)
    quiet = logging.getLogger("uvicorn.error")
    quiet.setLevel(logging.CRITICAL)  # a failed start is reported once, by us
    try:
        server.run([sock])
    except SystemExit:
        if watched.failure is None:
            raise
    if watched.failure is not None:
        raise watched.failure
    return server.code


class _StartupRecorder:
    """The application; keeps the error of a failed start."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app
        self.failure: MemoryBankError | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.app(scope, receive, send)
        except MemoryBankError as e:
            if scope["type"] == "lifespan":
                self.failure = e
            raise


class _Server(uvicorn.Server):
    """uvicorn's server with the service's own shutdown."""

    def __init__(
        self,
        config: uvicorn.Config,
        watched: _StartupRecorder,
        started: Callable[[], None],
        ends_on: tuple[signal.Signals, ...],
    ) -> None:
        super().__init__(config)
        self._watched = watched
        self._started_callback = started
        self._ends_on = ends_on
        self.code = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
            _collect_less()
            self._started_callback()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        seconds = float(self.config.timeout_graceful_shutdown or 0.0)
        log.info("shutting down: open requests have %g s", seconds)
        end_by(seconds + GRACE, self.code)
        self._watched.app.state.service.end(seconds)
        await super().shutdown(sockets)
        log.info("stopped")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """The first signal shuts down gracefully; Ctrl-C after it stops at once."""
        if sig not in self._ends_on:
            return
        if self.should_exit and sig == signal.SIGINT:
            at_once(STOPPED)
        if not self.should_exit:
            self.code = STOPPED if sig == signal.SIGINT else 0
        self.should_exit = True


def _collect_less() -> None:
    """Exempt everything loaded so far from garbage collection, and collect less often than by default."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def end_by(seconds: float, code: int) -> None:
    """Kill this process after ``seconds``. Transactions keep what is stored complete."""

    def end() -> None:
        log.warning("shutdown took too long: the process is killed")
        at_once(code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def at_once(code: int) -> NoReturn:
    """Exit this process immediately."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue
    os._exit(code)
