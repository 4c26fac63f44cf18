"""An OpenAI-compatible HTTP server on loopback that answers from a script, is strict and can fail."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import json
import math
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from memory_bank.history.pairing import pairing_errors

SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "api-key", "x-api-key", "cookie"})


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of the server, or one fault.

    ``tool_calls`` are ``(name, arguments)`` or ``(name, arguments, id)``; arguments are a dict, or text that
    is sent to the letter; an id that is not given is made, unique on this server. ``usage`` is (prompt,
    completion) tokens; None gives a quarter of the characters. A ``status`` of 400 or more sends ``content``
    as the message of an error in OpenAI's shape. ``delay`` is in seconds, before the first byte; closing the
    server ends it. ``raw`` replaces the body. ``cut`` closes the connection after so many bytes of the body;
    0 sends nothing at all.
    """

    content: str | None = None
    tool_calls: Sequence[tuple[str, Any] | tuple[str, Any, str]] = ()
    usage: tuple[int, int] | None = None
    status: int = 200
    delay: float = 0
    raw: str | bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None


def say(text: str | None) -> Reply:
    """An answer in words."""
    return Reply(content=text)


def call(_tool: str, /, **arguments: Any) -> Reply:
    """A turn that calls one tool: ``call("search", query="x")``."""
    return Reply(tool_calls=((_tool, arguments),))


def calls(*tool_calls: tuple[str, Any] | tuple[str, Any, str], content: str | None = None) -> Reply:
    """A turn that calls several tools at once: ``calls(("search", {"query": "x"}), ("now", {}))``."""
    return Reply(content=content, tool_calls=tool_calls)


def fail(status: int, message: str = "scripted failure", retry_after: float | None = None) -> Reply:
    """An HTTP error in OpenAI's shape; ``retry_after`` in seconds becomes the header Retry-After."""
    headers = {} if retry_after is None else {"Retry-After": f"{retry_after:g}"}
    return Reply(content=message, status=status, headers=headers)


def raw(body: str | bytes, status: int = 200, **headers: str) -> Reply:
    """A body sent as it is: ``raw("")`` is an empty one, ``raw('{"choices": []}')`` has no choices."""
    return Reply(raw=body, status=status, headers={k.replace("_", "-"): v for k, v in headers.items()})


def half() -> Reply:
    """A complete HTTP answer whose JSON stops in the middle."""
    return raw('{"id": "chatcmpl-half", "object": "chat.completion", "choices": [{"index": 0, "mess')


def cut(after: int = 0) -> Reply:
    """A connection closed after so many bytes of the body; 0: before anything was answered."""
    return Reply(content="this answer is not sent to its end " * 20, cut=after)


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A request as it came: header names in lower case, keys redacted, body parsed (None: no JSON)."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


class ScriptedServer:
    """``with ScriptedServer([call("search", query="x"), say("done")]) as server: … server.base_url``.

    Serves POST /v1/chat/completions (plain and ``stream: true``), POST /v1/embeddings (floats and base64) and
    GET /v1/models. ``script`` is a list (or any iterable) of replies, or a function from the request's body
    to one; it answers chat requests only. A reply is a ``Reply``, a str, a dict (sent as the whole JSON
    body) or a function of the body. When the script fails or has ended, the answer is a 500 that says so and
    is not retried by the openai client.

    With ``strict``, messages with a broken pair are refused with 400, as providers do, without taking a
    reply; ``refused`` lists what was found. ``requests`` lists every request in order of arrival. ``embed``
    turns a list of texts into vectors of one length, or a Reply; ``models`` are the names that GET
    /v1/models gives.
    """

    def __init__(
        self,
        script: Iterable[Any] | Callable[[dict[str, Any]], Any] = (),
        *,
        strict: bool = True,
        embed: Callable[[list[str]], Any] | None = None,
        models: Sequence[str] = ("scripted", "scripted-embedding"),
    ) -> None:
        self.requests: list[LoggedRequest] = []
        self.refused: list[str] = []
        self.strict = strict
        self.embed = embed or hashed_embedding
        self.models = tuple(models)
        self._replies = itertools.repeat(script) if callable(script) else iter(script)
        self._taken = 0
        self._lock = threading.Lock()
        self._completions = itertools.count(1)
        self._calls = itertools.count(1)
        self._http: _Http | None = None

    @property
    def base_url(self) -> str:
        """``http://127.0.0.1:PORT/v1``. Raises RuntimeError when the server is not running."""
        if self._http is None:
            raise RuntimeError("the scripted server is not running: use it in a with statement")
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def start(self) -> ScriptedServer:
        """Listen on a free loopback port."""
        if self._http is None:
            self._http = _Http(self)
            threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def close(self) -> None:
        """Stop at once: connections are closed, hanging answers dropped. The log stays."""
        http, self._http = self._http, None
        if http is not None:
            http.stop()

    def __enter__(self) -> ScriptedServer:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    def answer(self, method: str, path: str, body: Any) -> Reply:
        """The reply to a request, to be rendered."""
        try:
            if (method, path) == ("GET", "/v1/models"):
                data = [{"id": m, "object": "model", "created": 0, "owned_by": "me"} for m in self.models]
                return _json({"object": "list", "data": data})
            if method != "POST" or path not in ("/v1/chat/completions", "/v1/embeddings"):
                return fail(404, f"Unknown request URL: {method} {path}")
            if not isinstance(body, dict):
                return fail(400, "We could not parse the JSON body of your request.")
            if not isinstance(body.get("model"), str) or not body["model"]:
                return fail(400, "you must provide a model parameter")
            return self._embeddings(body) if path == "/v1/embeddings" else self._chat(body)
        except BaseException as error:  # whatever a script does, its client gets an answer
            return _broken("the script failed", error)

    def _chat(self, body: dict[str, Any]) -> Reply:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            return fail(400, "Invalid 'messages': expected an array with minimum length 1")
        if self.strict and (errors := pairing_errors(messages)):
            self.refused.extend(errors)
            return fail(400, "Invalid 'messages': " + "; ".join(errors[:5]))
        with self._lock:
            try:
                reply = next(self._replies)
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
            return _json(reply)
        if isinstance(reply, BaseException):
            raise reply
        raise TypeError(f"{type(reply).__name__} is no Reply, str, dict or function")

    def _embeddings(self, body: dict[str, Any]) -> Reply:
        given = body.get("input")
        items = [given] if isinstance(given, str) or _is_tokens(given) else given
        if not isinstance(items, list) or not all(isinstance(t, str) or _is_tokens(t) for t in items or [0]):
            return fail(400, "Invalid 'input': expected text, tokens, or an array of them")
        texts = [t if isinstance(t, str) else " ".join(map(str, t)) for t in items]
        vectors = self.embed(texts)
        if isinstance(vectors, Reply):
            return vectors
        data = []
        for i, vector in enumerate(vectors):
            floats = [float(x) for x in vector][: body.get("dimensions")]
            packed = base64.b64encode(struct.pack(f"<{len(floats)}f", *floats)).decode()
            shown = packed if body.get("encoding_format") == "base64" else floats
            data.append({"object": "embedding", "index": i, "embedding": shown})
        tokens = sum(len(t) for t in texts) // 4
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return _json({"object": "list", "data": data, "model": body["model"], "usage": usage})

    def render(self, reply: Reply, body: Any, size: int) -> tuple[str, list[bytes]]:
        """The content type and the body of a reply, in pieces; several when it is streamed."""
        streamed = isinstance(body, dict) and bool(body.get("stream")) and reply.status < 400
        if reply.raw is not None:
            data = reply.raw if isinstance(reply.raw, bytes) else reply.raw.encode("utf-8", "surrogatepass")
            return ("text/event-stream" if streamed else "application/json"), [data]
        if reply.status >= 400:
            kind = "server_error" if reply.status >= 500 else "invalid_request_error"
            kind, code = ("requests", "rate_limit_exceeded") if reply.status == 429 else (kind, None)
            error = {"message": reply.content or "", "type": kind, "param": None, "code": code}
            return "application/json", [json.dumps({"error": error}).encode()]
        with self._lock:
            head = {"id": f"chatcmpl-{next(self._completions)}", "created": 0, "model": body["model"]}
            tool_calls = [self._tool_call(*given) for given in reply.tool_calls]
        said = len(reply.content or "") + sum(len(c["function"]["arguments"]) for c in tool_calls)
        prompt, completion = reply.usage or (size // 4, said // 4)
        usage = {"prompt_tokens": prompt, "completion_tokens": completion}
        usage["total_tokens"] = prompt + completion
        reason = "tool_calls" if tool_calls else "stop"
        if not streamed:
            message: dict[str, Any] = {"role": "assistant", "content": reply.content, "refusal": None}
            if tool_calls:
                message["tool_calls"] = tool_calls
            choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
            whole = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
            return "application/json", [json.dumps(whole).encode()]
        head["object"] = "chat.completion.chunk"
        options = body.get("stream_options")
        with_usage = isinstance(options, dict) and bool(options.get("include_usage"))
        deltas: list[tuple[Any, Any]] = [(d, None) for d in _deltas(reply.content, tool_calls)]
        chunks: list[dict[str, Any]] = [
            {**head, "choices": [{"index": 0, "delta": d, "finish_reason": r}]}
            for d, r in [*deltas, ({}, reason)]
        ]
        if with_usage:
            chunks = [{**chunk, "usage": None} for chunk in chunks]
            chunks.append({**head, "choices": [], "usage": usage})
        return "text/event-stream", [f"data: {c}\n\n".encode() for c in [*map(json.dumps, chunks), "[DONE]"]]

    def _tool_call(self, name: str, arguments: Any, call_id: str | None = None) -> dict[str, Any]:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call_id = call_id if call_id is not None else f"call_{next(self._calls):04d}"
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def hashed_embedding(texts: list[str], dimension: int = 64) -> list[list[float]]:
    """Unit vectors of hashed words: texts that share words are near; the same in every process."""
    vectors = []
    for text in texts:
        vector = [0.0] * dimension
        for word in re.findall(r"\w+", text.lower()) or [""]:
            h = int.from_bytes(hashlib.sha256(word.encode("utf-8", "replace")).digest()[:8], "big")
            vector[h % dimension] += 1.0 if h >> 63 else -1.0
        norm = math.sqrt(sum(x * x for x in vector))
        vectors.append([x / norm for x in vector] if norm else [1.0, *vector[1:]])
    return vectors


def _deltas(content: str | None, tool_calls: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": None if content is None else ""}
    for piece in _pieces(content or ""):
        yield {"content": piece}
    for i, made in enumerate(tool_calls):
        first = {**made, "function": {"name": made["function"]["name"], "arguments": ""}}
        yield {"tool_calls": [{"index": i, **first}]}
        for piece in _pieces(made["function"]["arguments"]):
            yield {"tool_calls": [{"index": i, "function": {"arguments": piece}}]}


def _pieces(text: str) -> list[str]:
    """At most 64 pieces, of 8 characters where that is enough."""
    size = max(8, -(-len(text) // 64))
    return [text[i : i + size] for i in range(0, len(text), size)]


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(t) is int for t in value)


def _json(body: Any) -> Reply:
    return Reply(raw=json.dumps(body))


def _broken(what: str, error: BaseException) -> Reply:
    return Reply(f"{what}: {type(error).__name__}: {error}", status=500, headers={"x-should-retry": "false"})


class _Http(ThreadingHTTPServer):
    """The listening socket, and the open connections, so that all can be closed at once."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, scripted: ScriptedServer) -> None:
        self.scripted = scripted
        self.closing = threading.Event()
        self.open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

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
        """A client that went away is no news."""

    def stop(self) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()
        for connection in list(self.open):
            _hang_up(connection)


class _Handler(BaseHTTPRequestHandler):
    """One connection; requests on it are read, logged, answered from the script, in turn."""

    server: _Http
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on stderr: the log is ``ScriptedServer.requests``."""

    def do_POST(self) -> None:
        scripted = self.server.scripted
        received = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            body = json.loads(received)
        except (ValueError, RecursionError):
            body = None
        headers = {k.lower(): v for k, v in self.headers.items()}
        headers.update({k: "REDACTED" for k in headers if k in SECRET_HEADERS})
        scripted.requests.append(LoggedRequest(self.command, self.path, headers, body))
        reply = scripted.answer(self.command, self.path.partition("?")[0].rstrip("/"), body)
        try:
            kind, pieces = scripted.render(reply, body, len(received))
        except Exception as error:
            reply = _broken("the reply cannot be sent", error)
            kind, pieces = scripted.render(reply, body, len(received))
        if reply.delay > 0:
            self.server.closing.wait(reply.delay)
        if self.server.closing.is_set() or reply.cut == 0:
            _hang_up(self.connection)
        else:
            self._send(reply, kind, pieces)

    def do_GET(self) -> None:
        self.do_POST()

    def _send(self, reply: Reply, kind: str, pieces: list[bytes]) -> None:
        chunked = kind == "text/event-stream"
        headers = {"content-type": kind, "x-request-id": f"req_{len(self.server.scripted.requests)}"}
        size = ("transfer-encoding", "chunked") if chunked else ("content-length", str(sum(map(len, pieces))))
        headers |= {size[0]: size[1]} | {k.lower(): v for k, v in reply.headers.items()}
        self.send_response(reply.status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        sent = 0
        for piece in pieces:
            part = piece if reply.cut is None else piece[: max(0, reply.cut - sent)]
            sent += len(part)
            if part:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
        if reply.cut is not None:
            _hang_up(self.connection)
        elif chunked:
            self.wfile.write(b"0\r\n\r\n")


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
