"""An HTTP server on loopback: one function answers, bodies are sent in pieces, disconnects are counted."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LOOK = 0.02
"""Seconds between two checks whether a waiting client is still connected."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request: the path with the query, header names in lower case, the body as bytes."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer; ``delay`` is in seconds before the first byte, ``pause`` between two pieces.

    ``chunked``: one chunk for each piece. ``cut``: close the connection after that many bytes of the body.
    """

    status: int
    pieces: Sequence[bytes]
    headers: Mapping[str, str] = field(default_factory=dict)
    chunked: bool = False
    delay: float = 0
    pause: float = 0
    cut: int | None = None


class LoopbackServer(ThreadingHTTPServer):
    """A server on a free port; ``stop`` closes all its connections.

    ``hangups`` counts the clients that disconnected before their answer was complete.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, respond: Callable[[HttpRequest], HttpAnswer]) -> None:
        self.respond = respond
        self.closing = threading.Event()
        self.open: set[socket.socket] = set()
        self.hangups = 0
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    def start(self) -> None:
        """Serve in a thread."""
        threading.Thread(target=self.serve_forever, args=(LOOK,), daemon=True).start()

    def stop(self) -> None:
        """Close everything at once; unfinished answers are dropped."""
        self.closing.set()
        self.shutdown()
        self.server_close()
        for connection in list(self.open):
            _hang_up(connection)

    def server_bind(self) -> None:
        """As the base class, without its DNS lookup of the host name."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "localhost", self.server_address[1]

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self.open.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self.open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""

    def count_hangup(self) -> None:
        """Count a client that disconnected, unless this server is closing."""
        if not self.closing.is_set():
            with self._lock:
                self.hangups += 1


class _Handler(BaseHTTPRequestHandler):
    """One connection, whose requests are answered one after the other."""

    server: LoopbackServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing to stderr."""

    def do_POST(self) -> None:
        body = self._read_body()
        if body is None:
            self.close_connection = True
            return
        headers = {k.lower(): v for k, v in self.headers.items()}
        answer = self.server.respond(HttpRequest(self.command, self.path, headers, body))
        if not self._wait(answer.delay) or answer.cut == 0:
            _hang_up(self.connection)
            return
        try:
            whole = self._send(answer)
        except OSError:
            self.server.count_hangup()
            whole = False
        if not whole:
            _hang_up(self.connection)
            self.close_connection = True

    do_GET = do_DELETE = do_PUT = do_PATCH = do_POST  # noqa: N815 (names of the base class)

    def _read_body(self) -> bytes | None:
        """The request's body, also if it is chunked; None when the client disconnected before its end."""
        if "chunked" not in self.headers.get("transfer-encoding", "").lower():
            size = int(self.headers.get("content-length") or 0)
            body = self.rfile.read(size)
            return body if len(body) == size else None
        parts: list[bytes] = []
        while line := self.rfile.readline():
            size = int(line.partition(b";")[0], 16)
            parts.append(self.rfile.read(size))
            self.rfile.readline()
            if not size:
                return b"".join(parts)
        return None

    def _send(self, answer: HttpAnswer) -> bool:
        """Send an answer; returns whether it was sent completely."""
        size = str(sum(map(len, answer.pieces)))
        framing = {"transfer-encoding": "chunked"} if answer.chunked else {"content-length": size}
        self.send_response(answer.status)
        for name, value in (framing | {k.lower(): v for k, v in answer.headers.items()}).items():
            self.send_header(name, value)
        self.end_headers()
        sent = 0
        for i, piece in enumerate(answer.pieces):
            if not self._wait(answer.pause if i else 0):
                return False
            part = piece if answer.cut is None else piece[: max(0, answer.cut - sent)]
            sent += len(part)
            if part:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part) if answer.chunked else part)
        if answer.cut is not None:
            return False
        if answer.chunked:
            self.wfile.write(b"0\r\n\r\n")
        return True

    def _wait(self, seconds: float) -> bool:
        """Wait; returns whether the client is still connected and the server running."""
        until = time.monotonic() + seconds
        while not self.server.closing.is_set():
            if self._is_gone():
                self.server.count_hangup()
                return False
            left = until - time.monotonic()
            if left <= 0:
                return True
            self.server.closing.wait(min(left, LOOK))
        return False

    def _is_gone(self) -> bool:
        """Whether the client has closed the connection."""
        self.connection.setblocking(False)
        try:
            return not self.connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            with contextlib.suppress(OSError):
                self.connection.setblocking(True)


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
