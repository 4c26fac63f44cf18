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
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from memory_bank.config import Config
from memory_bank.errors import MemoryBankError, MissingExtraError
from memory_bank.service.app import create_app

try:
    import uvicorn
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
    app = create_app(config)
    failed: list[MemoryBankError] = []

    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except MemoryBankError as e:
            if scope["type"] == "lifespan":
                failed.append(e)
            raise

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
    server = _Server(settings)
    server.ends_on, server.on_started = ends_on, started
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
    code = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
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
        await super().shutdown(sockets)
        log.info("stopped")

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
