"""An HTTP server on loopback: one function answers, bodies are sent in pieces, disconnects are counted."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from memory_bank.testing.replies import Reply

LOOK = 0.02
"""Seconds between two checks whether a waiting client is still connected."""

Answer = tuple[Reply, str, Sequence[bytes]]
"""A reply, its content type, and its body in pieces."""


class LoopbackServer(ThreadingHTTPServer):
    """A server on a free port; ``stop`` closes all its connections.

    ``respond`` gets the method, the path with the query, the headers (names in lower case) and the body of a request.
    ``hangups`` counts the clients that disconnected before their answer was complete.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, respond: Callable[[str, str, dict[str, str], bytes], Answer]) -> None:
        self.respond = respond
        self.closing = threading.Event()
        self.open: set[socket.socket] = set()
        self.hangups = 0
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)
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
        reply, kind, pieces = self.server.respond(self.command, self.path, headers, body)
        whole = False
        try:
            whole = self._wait(reply.delay) and reply.cut != 0 and self._send(reply, kind, pieces)
        except OSError:
            self.server.count_hangup()
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

    def _send(self, reply: Reply, kind: str, pieces: Sequence[bytes]) -> bool:
        """Send a reply: a stream of events as one chunk for each piece, other replies as one body.

        False if the client has gone, or if the reply was cut short on purpose (``Reply.cut``).
        """
        chunked = kind == "text/event-stream"
        framing = {"transfer-encoding": "chunked"} if chunked else {"content-length": sum(map(len, pieces))}
        self.send_response(reply.status)
        own = {name.lower(): value for name, value in reply.headers.items()}
        for name, value in ({"content-type": kind} | framing | own).items():
            self.send_header(name, str(value))
        self.end_headers()
        sent = 0
        for i, piece in enumerate(pieces):
            if not self._wait(reply.pause if i else 0):
                return False
            part = piece if reply.cut is None else piece[: max(0, reply.cut - sent)]
            sent += len(part)
            if part:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
        if reply.cut is None and chunked:
            self.wfile.write(b"0\r\n\r\n")
        return reply.cut is None

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
