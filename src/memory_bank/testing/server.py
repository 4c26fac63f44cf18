"""An OpenAI-compatible HTTP server on loopback with a script, strict checks and faults."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from memory_bank.closing import Closing
from memory_bank.testing.apis import (
    CHAT,
    COUNT,
    MESSAGES,
    RESPONSES,
    ScriptedChat,
    ScriptedMessages,
    ScriptedResponses,
)
from memory_bank.testing.replies import JsonObject, Reply, as_json, fail, say

SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "api-key", "x-api-key", "cookie"})


_Sent = tuple[Reply, str, Sequence[bytes]]  # a reply, its content type, and its body in pieces


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A request: header names in lower case, keys redacted, ``body`` parsed (None: not JSON) and ``data``."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    data: bytes = field(default=b"", repr=False)


class ScriptedServer(Closing):
    """``with ScriptedServer([call("search", query="x"), say("done")]) as server: … server.base_url``.

    Serves POST /v1/chat/completions, /v1/responses and /v1/messages (also with ``stream: true``), POST
    /v1/messages/count_tokens and GET /v1/models; a subclass may ``answer`` more.
    ``requests`` lists all requests in order of arrival; ``replies`` are those that are left, in an iterator.

    - ``script``: an iterable of replies, or a function from the request's body to a reply; it answers chats
      and responses. A reply is a ``Reply``, a str, a dict (the JSON body) or a function of the request's
      body. When the script fails or has ended, the answer is a 500 that the openai client does not retry.
    - ``strict``: messages and items with a broken pair are refused with 400, as providers do, without taking
      a reply; ``refused`` lists the errors.
    - ``models``: the names that GET /v1/models returns.
    - ``api_key``: requests with another key are refused with 401.
    """

    def __init__(
        self,
        script: Iterable[Any] | Callable[[JsonObject], Any] = (),
        *,
        strict: bool = True,
        models: Sequence[str] = ("scripted",),
        api_key: str | None = None,
    ) -> None:
        self.requests: list[LoggedRequest] = []
        self.refused: list[str] = []
        self.strict = strict
        self.models = tuple(models)
        self.api_key = api_key
        self.replies = itertools.repeat(script) if callable(script) else iter(script)
        self._taken = 0
        self._lock = threading.Lock()
        self._numbers: Counter[str] = Counter()
        messages, responses = ScriptedMessages(self._number), ScriptedResponses(self._number)
        self._apis: dict[str, ScriptedChat | ScriptedResponses | ScriptedMessages] = {
            CHAT: ScriptedChat(self._number), RESPONSES: responses, MESSAGES: messages, COUNT: messages,
        }  # fmt: skip
        self._listener: _Listener | None = None

    @property
    def base_url(self) -> str:
        """``http://127.0.0.1:PORT/v1``. Raises RuntimeError when the server is not running."""
        if self._listener is None:
            raise RuntimeError("the scripted server is not running: use it in a with statement")
        return f"http://127.0.0.1:{self._listener.server_address[1]}/v1"

    def start(self) -> ScriptedServer:
        """Listen on a free loopback port."""
        self._listener = self._listener or _Listener(self._respond)
        return self

    def close(self) -> None:
        """Stop at once: connections are closed, unfinished answers dropped. ``requests`` stays."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.stop()

    def __enter__(self) -> ScriptedServer:
        return self.start()

    def _respond(self, method: str, path: str, headers: dict[str, str], data: bytes) -> _Sent:
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            body = None
        redacted = headers | {k: "REDACTED" for k in headers if k in SECRET_HEADERS}
        with self._lock:
            self.requests.append(LoggedRequest(method, path, redacted, body, data))
            number = len(self.requests)
        path = path.partition("?")[0].rstrip("/")
        keys = (headers.get("authorization"), headers.get("x-api-key"))
        reply = fail(401, "Incorrect API key provided.", code="invalid_api_key")
        if self.api_key is None or f"Bearer {self.api_key}" in keys or self.api_key in keys:
            try:
                reply = self.answer(method, path, body)
            except BaseException as error:  # a failing script is answered too
                reply = _broken("the script failed", error)
        try:
            kind, pieces = self.render(reply, path, body, len(data))
        except Exception as error:
            reply = _broken("the reply cannot be sent", error)
            kind, pieces = self.render(reply, path, body, len(data))
        return replace(reply, headers={"x-request-id": f"req_{number}", **reply.headers}), kind, pieces

    def answer(self, method: str, path: str, body: Any) -> Reply:
        """The reply to a request. What it raises is answered as a failing script."""
        if (method, path) == ("GET", "/v1/models"):
            data = [{"id": m, "object": "model", "created": 0, "owned_by": "me"} for m in self.models]
            return as_json({"object": "list", "data": data})
        api = self._apis.get(path)
        if method != "POST" or api is None:
            return fail(404, f"Unknown request URL: {method} {path}")
        if not isinstance(body, dict):
            return fail(400, "We could not parse the JSON body of your request.")
        if not isinstance(body.get("model"), str) or not body["model"]:
            return fail(400, "you must provide a model parameter")
        if (refusal := api.refusal(body, path)) is not None:
            return refusal
        if self.strict and (errors := api.errors(body)):
            self.refused.extend(errors)
            return fail(400, api.prefix + "; ".join(errors[: api.most]), param=api.param)
        if path == COUNT:
            return as_json({"input_tokens": len(json.dumps(body)) // 4})
        return self._scripted(body)

    def _scripted(self, body: JsonObject) -> Reply:
        with self._lock:
            try:
                reply = next(self.replies)
            except StopIteration:
                raise IndexError(f"it has ended after {self._taken} replies") from None
            self._taken += 1
        while callable(reply) and not isinstance(reply, type):
            reply = reply(body)
        if isinstance(reply, Reply):
            return reply
        if isinstance(reply, str):
            return say(reply)
        if isinstance(reply, dict):
            return as_json(reply)
        if isinstance(reply, BaseException):
            raise reply
        raise TypeError(f"{type(reply).__name__} is no Reply, str, dict or function")

    def render(self, reply: Reply, path: str, body: Any, size: int) -> tuple[str, list[bytes]]:
        """The content type and the body of a reply, in several pieces when it is streamed."""
        streamed = isinstance(body, dict) and bool(body.get("stream")) and reply.status < 400
        kind = "text/event-stream" if streamed else "application/json"
        if reply.raw is not None:
            pieces = [reply.raw] if isinstance(reply.raw, (str, bytes)) else reply.raw
            return kind, [p if isinstance(p, bytes) else p.encode("utf-8", "surrogatepass") for p in pieces]
        api = self._apis.get(path, self._apis[CHAT])
        return kind, [api.error_body(reply)] if reply.status >= 400 else api.render(
            reply, body, size, streamed
        )

    def _number(self, prefix: str) -> str:
        with self._lock:
            self._numbers[prefix] += 1
            return f"{prefix}{self._numbers[prefix]:04d}"


def _broken(part: str, error: BaseException) -> Reply:
    """The answer to a failing script: a 500 that the openai client does not retry."""
    return Reply(f"{part}: {type(error).__name__}: {error}", status=500, headers={"x-should-retry": "false"})


class _Listener(ThreadingHTTPServer):
    """A server on a free port; ``stop`` closes all its connections."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, respond: Callable[[str, str, dict[str, str], bytes], _Sent]) -> None:
        self.respond = respond
        self.closing = threading.Event()
        self.open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

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


class _Handler(BaseHTTPRequestHandler):
    server: _Listener
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
        with contextlib.suppress(OSError):
            whole = self._wait(reply.delay) and reply.cut != 0 and self._send(reply, kind, pieces)
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
        """Send a reply, a stream in a chunk a piece; False if the client has gone or the reply was cut."""
        chunked = kind == "text/event-stream"
        framing = {"transfer-encoding": "chunked"} if chunked else {"content-length": sum(map(len, pieces))}
        self.send_response(reply.status)
        headers_of_reply = {name.lower(): value for name, value in reply.headers.items()}
        for name, value in ({"content-type": kind} | framing | headers_of_reply).items():
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
        """Wait; returns whether the server is still running."""
        return not self.server.closing.wait(seconds)


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
