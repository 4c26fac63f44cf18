"""The service as a process: it begins whole or not at all, and ends in order."""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import urlsplit

from memory_bank import __version__
from memory_bank.config import Config, MemoryBankSettings
from memory_bank.errors import ConfigError, MemoryBankError, MissingExtraError, ServiceError
from memory_bank.service import logs
from memory_bank.service.app import create_app, open_database, upstream_of
from memory_bank.service.gate import check_binding
from memory_bank.service.observing import chat_of

try:
    import uvicorn
except ImportError:
    raise MissingExtraError("the service (uvicorn)", "service") from None

log = logging.getLogger("memory_bank.Service")

GRACE = 5.0
"""Seconds beyond ``shutdown_timeout`` after which a process that has not ended is ended."""
STOPPED = 130
"""The exit code after Ctrl-C."""
BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class Serving:
    """What a service that has begun tells of itself."""

    address: str
    database: str
    upstream: str
    strategy: str
    observer: str
    workers: int

    def text(self) -> str:
        """For a person at a terminal."""
        workers = f", {self.workers} workers" if self.workers > 1 else ""
        return (
            f"memory-bank {__version__} serves at {self.address}{workers}\n"
            f"  database  {self.database}\n"
            f"  upstream  {self.upstream}\n"
            f"  strategy  {self.strategy}, summaries: {self.observer}\n"
            f"  agents    OPENAI_BASE_URL={self.address}/v1\n"
            f"  page      {self.address}/"
        )


def serve(config: Config, *, verbose: bool = False) -> int:
    """Serve until a signal ends it; 0, or 130 after Ctrl-C.

    The address goes to standard output, on a line of its own, once requests are answered; all else that is
    told goes to standard error.

    Raises, before anything is served: ConfigError, ServiceError for an address that cannot be listened on,
    StorageError for the database, EmbeddingError.
    """
    with listening(config) as sock:
        config = _at(config, sock)
        serving = checked(config)
        sock_listen(sock, config)
        logs.set_up(config.service.log_format, verbose=verbose)
        if config.service.workers == 1:
            return serve_here(config, sock, lambda: announce(serving, config))
        from memory_bank.service.workers import Workers

        return Workers(config, sock, verbose=verbose).run(lambda: announce(serving, config))


def listening(config: Config) -> socket.socket:
    """A socket at the address of the settings; nobody can connect to it yet. Raises ServiceError."""
    host, port = config.service.host, config.service.port
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise ConfigError(f"the host {host!r} leads nowhere: give an address such as 127.0.0.1.") from None
    sock = socket.socket(family, kind, proto)
    try:
        if os.name == "posix":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
    except OSError as e:
        sock.close()
        raise _unbound(host, port, e) from None
    return sock


def sock_listen(sock: socket.socket, config: Config) -> None:
    """From now on clients can connect. Raises ServiceError where another was faster."""
    try:
        sock.listen(BACKLOG)
    except OSError as e:
        raise _unbound(config.service.host, config.service.port, e) from None


def _unbound(host: str, port: int, error: OSError) -> ServiceError:
    what = f"{_bracketed(host)}:{port}"
    if error.errno == errno.EADDRINUSE:
        return ServiceError(f"{what} is in use: end what listens there, or choose another --port.")
    if error.errno == errno.EACCES:
        return ServiceError(f"{what} may not be listened on: choose a --port over 1023.")
    return ServiceError(f"{what} cannot be listened on ({error.strerror}): choose another --host or --port.")


def _at(config: Config, sock: socket.socket) -> Config:
    """The configuration with the port that the system gave."""
    service = config.service.model_copy(update={"port": sock.getsockname()[1]})
    return config.model_copy(update={"service": service})


def address_of(config: Config) -> str:
    """The base URL for a client on this machine, or on another where the service listens to all."""
    host = config.service.host
    if host in ("0.0.0.0", "::", ""):
        host = "127.0.0.1" if host != "::" else "::1"
    return f"http://{_bracketed(host)}:{config.service.port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def checked(config: Config) -> Serving:
    """See that everything is there that a service needs, and say what it is.

    Makes the database, or brings it up to date, so that several workers find it ready. Raises ConfigError,
    StorageError.
    """
    settings = config.service
    name = settings.strategy or config.default_strategy
    strategy = config.strategy(name)
    upstream = upstream_of(settings)
    _check_upstream(config, upstream)
    chat = chat_of(config, upstream)
    database = open_database(settings)
    try:
        if database.in_memory and settings.workers > 1:
            raise ConfigError("a database in memory is for one process: set workers to 1, or name a file.")
        check_binding(settings, database)
        where = database.name
    finally:
        database.close()
    observer = "by extraction"
    if chat is not None and isinstance(strategy, MemoryBankSettings) and strategy.observer_mode != "off":
        model = strategy.observer_model
        observer = observer if model == "extractive" else f"by {model}"
    return Serving(address_of(config), where, upstream, name, observer, settings.workers)


def _check_upstream(config: Config, upstream: str) -> None:
    """Refuse a service that would forward to itself, as where its clients' OPENAI_BASE_URL is set for it."""
    parts = urlsplit(upstream)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if port != config.service.port:
        return
    own = {config.service.host, "localhost", "127.0.0.1", "::1"}
    if parts.hostname in own or parts.hostname in (socket.gethostname(), socket.getfqdn()):
        raise ConfigError(
            f"the upstream {upstream} is this service itself: give the model's API with --upstream, or unset "
            "OPENAI_BASE_URL where the service is started."
        )


def announce(serving: Serving, config: Config) -> None:
    """Say that requests are answered, and how to make some."""
    if config.service.log_format == "json":
        told = {f: getattr(serving, f) for f in serving.__dataclass_fields__}
        log.info("serving", extra={"version": __version__, **told})
    else:
        _write(sys.stderr, serving.text())
    _write(sys.stdout, serving.address)


def _write(stream: Any, text: str) -> None:
    try:
        print(text, file=stream, flush=True)
    except (OSError, ValueError, AttributeError):  # closed: there is nobody to tell
        return


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
