"""One process that serves: begun whole or not at all, ended in order, and at once when it is asked again."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from memory_bank.config import Config
from memory_bank.errors import MemoryBankError, MissingExtraError
from memory_bank.service.app import create_app

try:
    import uvicorn
except ImportError:
    raise MissingExtraError("the service (uvicorn)", "service") from None

log = logging.getLogger("memory_bank.Service")

GRACE = 5.0
"""Seconds beyond ``shutdown_timeout`` after which a process that has not ended is ended."""
STOPPED = 130
"""The exit code after Ctrl-C."""


def serve_here(
    config: Config,
    sock: socket.socket,
    started: Callable[[], None],
    *,
    ends_on: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM),
) -> int:
    """Serve in this process until a signal ends it; 0, or 130 after Ctrl-C. Raises what the start raises."""
    watched = _Watched(create_app(config))
    settings = uvicorn.Config(
        watched,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=config.service.shutdown_timeout,  # type: ignore[arg-type]
    )
    server = _Server(settings, watched, started, ends_on)
    quiet = logging.getLogger("uvicorn.error")
    quiet.setLevel(logging.CRITICAL)  # why it does not start is told once, by us
    try:
        server.run([sock])
    except SystemExit:
        if watched.failure is None:
            raise
    if watched.failure is not None:
        raise watched.failure
    return server.code


class _Watched:
    """The application, whose failure to start is kept as it is."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.failure: MemoryBankError | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self.app(scope, receive, send)
        except MemoryBankError as e:
            if scope["type"] == "lifespan":
                self.failure = e
            raise


class _Server(uvicorn.Server):
    """uvicorn's, ended by signals as the service ends: in order once, at once when asked again."""

    def __init__(
        self,
        config: uvicorn.Config,
        watched: _Watched,
        started: Callable[[], None],
        ends_on: tuple[signal.Signals, ...],
    ) -> None:
        super().__init__(config)
        self._watched = watched
        self._told = started
        self._ends_on = ends_on
        self.code = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
            _collect_less()
            self._told()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        seconds = float(self.config.timeout_graceful_shutdown or 0.0)
        log.info("ending: open requests have %g s", seconds)
        end_by(seconds + GRACE, self.code)
        self._watched.app.state.service.end(seconds)
        await super().shutdown(sockets)
        log.info("ended")

    def handle_exit(self, sig: int, frame: Any) -> None:  # noqa: ARG002
        """The first signal ends in order; Ctrl-C after it at once."""
        if sig not in self._ends_on:
            return
        if self.should_exit and sig == signal.SIGINT:
            at_once(STOPPED)
        if not self.should_exit:
            self.code = STOPPED if sig == signal.SIGINT else 0
        self.should_exit = True


def _collect_less() -> None:
    """What was loaded by now stays: it is not looked at again, and what is new less often than by default."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def end_by(seconds: float, code: int) -> None:
    """End this process after so many seconds, whatever still runs in it: what is stored is stored whole."""

    def end() -> None:
        log.warning("what still runs is ended")
        at_once(code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def at_once(code: int) -> NoReturn:
    """End this process here and now."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue
    os._exit(code)
