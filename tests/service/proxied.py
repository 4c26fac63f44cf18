"""The service before an upstream, for tests: both are real servers over loopback, byte by byte."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.service import serving

from memory_bank.config import Config
from memory_bank.service.app import Service, create_app
from memory_bank.service.proxy.exchange import Exchange
from memory_bank.testing import ScriptedServer

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def configured(strategies: Any = None, prices: Any = None, **service: Any) -> Config:
    return serving.configured(strategies, prices, **{"memory_timeout": 60.0, **service})


@dataclass
class Proxied:
    """A running service: where it is, its parts, what it logged and what became of its requests."""

    port: int
    service: Service
    lines: list[str] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def told(self, count: int = 1) -> list[Exchange]:
        """What became of the first so many requests, once that is known."""
        until = time.monotonic() + 30
        while len(self.exchanges) < count:
            assert time.monotonic() < until, self.exchanges
            time.sleep(0.005)
        return self.exchanges[:count]

    def ask(self, path: str, method: str = "GET", body: Any = None) -> Came:
        """A request of its own API."""
        data = b"" if body is None else json.dumps(body).encode()
        return request(self.port, head_of(method, path, data, b"Content-Type: application/json"), data)


class _Lines(logging.Handler):
    """What a service logs, tracebacks included."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@contextmanager
def proxied(
    upstream: str, database: str | Path, config: Config | None = None, **service: Any
) -> Iterator[Proxied]:
    """The service in a thread, on a free port."""
    config = config or configured(upstream=upstream, database=str(database), **service)
    app = create_app(config)
    lines: list[str] = []
    handler = _Lines(lines)
    loggers = [logging.getLogger(name) for name in ("memory_bank", "uvicorn", "asyncio", "httpx2")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with serving.running(app) as port:
            made = Proxied(port, app.state.service, lines)
            made.service.exchanges.append(made.exchanges.append)
            yield made
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


@contextmanager
def scripted(
    script: Any,
    folder: Path,
    strategies: Any = None,
    *,
    strict: bool = True,
    prices: Any = None,
    **service: Any,
) -> Iterator[tuple[ScriptedServer, Proxied]]:
    """A scripted upstream of every API, and the service before it: it uses the first of ``strategies``, or folds."""
    folder.mkdir(exist_ok=True)
    with ScriptedServer(script, strict=strict) as server:
        settings = {
            "upstream": server.base_url,
            "upstream_anthropic": server.base_url.removesuffix("/v1"),
            "database": str(folder / "bank.db"),
            "strategy": next(iter(strategies or ["folding"])),
            **service,
        }
        with proxied("", "", configured(strategies, prices, **settings)) as p:
            yield server, p


# an upstream that answers with exactly these bytes


@dataclass(frozen=True)
class Got:
    """A request as its bytes arrived: the head, and the body without its chunks."""

    head: bytes
    body: bytes

    @property
    def line(self) -> bytes:
        return self.head.split(b"\r\n", 1)[0]

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        lines = self.head.split(b"\r\n")[1:]
        return [(n.lower(), v.strip()) for n, _, v in (line.partition(b":") for line in lines)]

    def header(self, name: bytes) -> bytes | None:
        found = [v for n, v in self.headers if n == name]
        assert len(found) <= 1, found
        return found[0] if found else None


Pieces = Iterable[bytes | float | None]
"""Bytes to be sent, seconds to wait, None to hang up hard."""


class RawUpstream:
    """``answer`` gives the pieces of the answer to each request; ``got`` lists those; ``gone`` the hang-ups' times."""

    def __init__(self, answer: Callable[[Got], Pieces], port: int = 0) -> None:
        self.answer = answer
        self.got: list[Got] = []
        self.gone: list[float] = []
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError):
                    while (got := _read(self.rfile)) is not None:
                        outer.got.append(got)
                        if not outer._answer(self.connection, got):
                            return

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True
            request_queue_size = 128

        self._server = Server(("127.0.0.1", port), Handler)
        self.base_url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> RawUpstream:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, connection: socket.socket, got: Got) -> bool:
        for piece in self.answer(got):
            if piece is None:
                connection.close()
                return False
            if isinstance(piece, bytes):
                connection.sendall(piece)
            elif not self._wait(connection, piece):
                return False
        return True

    def _wait(self, connection: socket.socket, seconds: float) -> bool:
        """Wait; whether the client is still there then."""
        connection.settimeout(seconds)
        try:
            there = bool(connection.recv(1, socket.MSG_PEEK))
        except TimeoutError:
            there = True
        except OSError:
            there = False
        connection.settimeout(None)
        if not there:
            self.gone.append(time.monotonic())
        return there


@contextmanager
def before(
    answer: Callable[[Got], Pieces], folder: Path, **service: Any
) -> Iterator[tuple[RawUpstream, Proxied]]:
    """An upstream that answers so, and the service before it, which folds at every step."""
    settings = {"strategy": "folding", **service}
    with RawUpstream(answer) as upstream, proxied(upstream.base_url, folder / "bank.db", **settings) as p:
        yield upstream, p


class Held(RawUpstream):
    """Takes requests, and answers them when ``go`` is set."""

    def __init__(self) -> None:
        self.go = threading.Event()
        super().__init__(self._held)

    def __exit__(self, *error: object) -> None:
        self.go.set()
        super().__exit__(*error)

    def _held(self, got: Got) -> Pieces:
        self.go.wait(120)
        return whole(b"{}")


def _read(file: Any) -> Got | None:
    got = read_head(file)
    return got and Got(got.head, b"".join(read_body(file, got)))


def read_head(file: Any) -> Got | None:
    """The head of a request; None where there is none."""
    head = b""
    while line := file.readline():
        if line == b"\r\n" and head:
            return Got(head.rstrip(b"\r\n"), b"")
        head += line
    return None


def read_body(file: Any, got: Got) -> Iterator[bytes]:
    """The body of a request in pieces, as they come."""
    if got.header(b"transfer-encoding") != b"chunked":
        left = int(got.header(b"content-length") or 0)
        while left and (piece := file.read1(left)):
            left -= len(piece)
            yield piece
        return
    while size := int(file.readline(), 16):
        yield file.read(size)
        file.readline()
    file.readline()


def whole(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> list[bytes]:
    """An answer of known length."""
    return [
        b"\r\n".join([b"HTTP/1.1 " + status, *headers, b"Content-Length: %d" % len(body), b"", b""]),
        body,
    ]


def chunked(*pieces: bytes | float | None, headers: tuple[bytes, ...] = (), end: bool = True) -> list[Any]:
    """A streamed answer."""
    head = b"\r\n".join([b"HTTP/1.1 200 OK", *headers, b"Transfer-Encoding: chunked", b"", b""])
    sent = [b"%x\r\n%b\r\n" % (len(p), p) if isinstance(p, bytes) else p for p in pieces]
    return [head, *sent, *([b"0\r\n\r\n"] if end else [])]


# what goes through it


@dataclass(frozen=True)
class Came:
    """An answer as its bytes came back to the client."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    whole: bool

    def header(self, name: bytes) -> bytes | None:
        found = [v for n, v in self.headers if n == name]
        assert len(found) <= 1, found
        return found[0] if found else None

    def json(self) -> Any:
        return json.loads(self.body)


def request(port: int, head: bytes, body: bytes | Iterable[bytes] = b"") -> Came:
    """Send exactly these bytes, and read what comes."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(head)
        for part in [body] if isinstance(body, bytes) else body:
            connection.sendall(part)
        return read_answer(connection)


def read_answer(connection: socket.socket) -> Came:
    """One answer, to its end or to where it breaks off."""
    with connection.makefile("rb") as file:
        lines = []
        while (line := file.readline()) not in (b"\r\n", b""):
            lines.append(line.rstrip(b"\r\n"))
        if not lines:
            return Came(0, [], b"", False)
        status = int(lines[0].split()[1])
        headers = [(n.lower(), v.strip()) for n, _, v in (row.partition(b":") for row in lines[1:])]
        told = dict(headers)
        if told.get(b"transfer-encoding") != b"chunked":
            size = int(told.get(b"content-length") or 0)
            body = file.read(size)
            return Came(status, headers, body, len(body) == size)
        body = b""
        while line := file.readline():
            size = int(line, 16)
            if not size:
                return Came(status, headers, body, True)
            body += file.read(size)
            file.readline()
        return Came(status, headers, body, False)


def post(port: int, path: str, body: Any, *headers: bytes, close: bool = True) -> Came:
    """A JSON body; text and bytes go as they are."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return request(port, head_of("POST", path, data, *headers, close=close), data)


def head_of(method: str, path: str, body: bytes, *headers: bytes, close: bool = True) -> bytes:
    """The head of a request."""
    lines = [f"{method} {path} HTTP/1.1".encode(), b"Host: localhost", *headers]
    lines += [b"Content-Length: %d" % len(body)] if body else []
    lines += [b"Connection: close"] if close else []
    return b"\r\n".join([*lines, b"", b""])
