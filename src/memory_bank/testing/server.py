"""An OpenAI-compatible HTTP server on loopback with a script, strict checks and faults."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import math
import re
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from memory_bank.testing.loopback import Answer, LoopbackServer
from memory_bank.testing.replies import JsonObject, Reply, as_json, fail, in_pieces, say
from memory_bank.testing.server_messages import COUNT, MESSAGES, ScriptedMessages, error_of
from memory_bank.testing.server_responses import RESPONSES, ScriptedResponses
from memory_bank.transcript.messages import call_entry
from memory_bank.transcript.pairing import pairing_errors

CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "api-key", "x-api-key", "cookie"})


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A request: header names in lower case, keys redacted, ``body`` parsed (None: not JSON) and ``data``."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    data: bytes = field(default=b"", repr=False)


class ScriptedServer:
    """``with ScriptedServer([call("search", query="x"), say("done")]) as server: … server.base_url``.

    Serves POST /v1/chat/completions, /v1/responses and /v1/messages (also with ``stream: true``), POST
    /v1/messages/count_tokens, /v1/embeddings (floats and base64) and GET /v1/models. Responses can be fetched,
    deleted and continued, also in conversations. ``requests`` lists all requests in order of arrival.

    - ``script``: an iterable of replies, or a function from the request's body to a reply; it answers chats
      and responses. A reply is a ``Reply``, a str, a dict (the JSON body) or a function of the request's
      body. When the script fails or has ended, the answer is a 500 that the openai client does not retry.
    - ``strict``: messages and items with a broken pair are refused with 400, as providers do, without taking
      a reply; ``refused`` lists the errors.
    - ``embed``: a function from texts to vectors of one length, or to a Reply.
    - ``models``: the names that GET /v1/models returns.
    - ``api_key``: requests with another key are refused with 401.
    """

    def __init__(
        self,
        script: Iterable[Any] | Callable[[JsonObject], Any] = (),
        *,
        strict: bool = True,
        embed: Callable[[list[str]], Any] | None = None,
        models: Sequence[str] = ("scripted", "scripted-embedding"),
        api_key: str | None = None,
    ) -> None:
        self.requests: list[LoggedRequest] = []
        self.refused: list[str] = []
        self.strict = strict
        self.embed = embed or hashed_embedding
        self.models = tuple(models)
        self.api_key = api_key
        self._replies = itertools.repeat(script) if callable(script) else iter(script)
        self._taken = 0
        self._lock = threading.Lock()
        self._numbers: Counter[str] = Counter()
        self._responses = ScriptedResponses(self._number)
        self._messages = ScriptedMessages(self._number)
        self._listener: LoopbackServer | None = None
        self._hangups = 0

    @property
    def base_url(self) -> str:
        """``http://127.0.0.1:PORT/v1``. Raises RuntimeError when the server is not running."""
        if self._listener is None:
            raise RuntimeError("the scripted server is not running: use it in a with statement")
        return f"http://127.0.0.1:{self._listener.server_address[1]}/v1"

    @property
    def hangups(self) -> int:
        """How many clients disconnected before their answer was complete; noticed within about 0.05 s."""
        return self._hangups + (self._listener.hangups if self._listener else 0)

    def start(self) -> ScriptedServer:
        """Listen on a free loopback port."""
        self._listener = self._listener or LoopbackServer(self._respond)
        return self

    def close(self) -> None:
        """Stop at once: connections are closed, unfinished answers dropped. ``requests`` stays."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.stop()
            self._hangups += listener.hangups

    def __enter__(self) -> ScriptedServer:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _respond(self, method: str, path: str, headers: dict[str, str], data: bytes) -> Answer:
        """Log a request and make its answer."""
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            body = None
        shown = headers | {k: "REDACTED" for k in headers if k in SECRET_HEADERS}
        with self._lock:
            self.requests.append(LoggedRequest(method, path, shown, body, data))
            number = len(self.requests)
        path = path.partition("?")[0].rstrip("/")
        keys = (headers.get("authorization"), headers.get("x-api-key"))
        reply = fail(401, "Incorrect API key provided.", code="invalid_api_key")
        if self.api_key is None or f"Bearer {self.api_key}" in keys or self.api_key in keys:
            reply = self.answer(method, path, body)
        try:
            kind, pieces = self.render(reply, path, body, len(data))
        except Exception as error:
            reply = _broken("the reply cannot be sent", error)
            kind, pieces = self.render(reply, path, body, len(data))
        return replace(reply, headers={"x-request-id": f"req_{number}", **reply.headers}), kind, pieces

    def answer(self, method: str, path: str, body: Any) -> Reply:
        """The reply to a request."""
        try:
            if (method, path) == ("GET", "/v1/models"):
                data = [{"id": m, "object": "model", "created": 0, "owned_by": "me"} for m in self.models]
                return as_json({"object": "list", "data": data})
            if (reply := self._responses.answer(method, path)) is not None:
                return reply
            if method != "POST" or path not in (CHAT, RESPONSES, MESSAGES, COUNT, EMBEDDINGS):
                return fail(404, f"Unknown request URL: {method} {path}")
            if not isinstance(body, dict):
                return fail(400, "We could not parse the JSON body of your request.")
            if not isinstance(body.get("model"), str) or not body["model"]:
                return fail(400, "you must provide a model parameter")
            if path == EMBEDDINGS:
                return self._embeddings(body)
            refusal = self._refusal(body, path)
            if path == COUNT:
                return refusal or as_json({"input_tokens": len(json.dumps(body)) // 4})
            return refusal or self._scripted(body)
        except BaseException as error:  # a failing script is answered too
            return _broken("the script failed", error)

    def _refusal(self, body: JsonObject, path: str) -> Reply | None:
        """The error for a request that is not valid; None for a valid one."""
        param, prefix = "messages", ""
        if path == CHAT:
            messages = body.get("messages")
            if not isinstance(messages, list) or not messages:
                return fail(400, "Invalid 'messages': expected an array with minimum length 1", param=param)
            errors, prefix = pairing_errors(messages), "Invalid 'messages': "
        else:
            api = self._responses if path == RESPONSES else self._messages
            if (refusal := api.refusal(body, path)) is not None:
                return refusal
            errors, param = api.errors(body), "input" if path == RESPONSES else ""
        if not self.strict or not errors:
            return None
        self.refused.extend(errors)
        return fail(400, prefix + "; ".join(errors[: 5 if prefix else 1]), param=param or None)

    def _scripted(self, body: JsonObject) -> Reply:
        """The next reply of the script."""
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
            return as_json(reply)
        if isinstance(reply, BaseException):
            raise reply
        raise TypeError(f"{type(reply).__name__} is no Reply, str, dict or function")

    def _embeddings(self, body: JsonObject) -> Reply:
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
        return as_json({"object": "list", "data": data, "model": body["model"], "usage": usage})

    def render(self, reply: Reply, path: str, body: Any, size: int) -> tuple[str, list[bytes]]:
        """The content type and the body of a reply, in several pieces when it is streamed."""
        streamed = isinstance(body, dict) and bool(body.get("stream")) and reply.status < 400
        kind = "text/event-stream" if streamed else "application/json"
        if reply.raw is not None:
            given = [reply.raw] if isinstance(reply.raw, (str, bytes)) else reply.raw
            return kind, [p if isinstance(p, bytes) else p.encode("utf-8", "surrogatepass") for p in given]
        if reply.status >= 400:
            return "application/json", [error_of(reply) if path in (MESSAGES, COUNT) else _error_body(reply)]
        if path in (MESSAGES, RESPONSES):
            api = self._messages if path == MESSAGES else self._responses
            return kind, api.render(reply, body, size, streamed)
        head = {"id": self._number("chatcmpl-"), "created": 0, "model": body["model"]}
        tool_calls = [self._tool_call(*given) for given in reply.tool_calls]
        said = len(reply.content or "") + sum(len(c["function"]["arguments"]) for c in tool_calls)
        into, out = reply.usage or (size // 4, said // 4)
        usage: JsonObject = {"prompt_tokens": into, "completion_tokens": out, "total_tokens": into + out}
        if reply.cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": reply.cached[0]}
        reason = "tool_calls" if tool_calls else "stop"
        if not streamed:
            message: JsonObject = {"role": "assistant", "content": reply.content, "refusal": None}
            if reply.reasoning is not None:
                message["reasoning_content"] = reply.reasoning
            if tool_calls:
                message["tool_calls"] = tool_calls
            choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
            whole = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
            return kind, [json.dumps(whole).encode()]
        head["object"] = "chat.completion.chunk"
        deltas: list[tuple[Any, Any]] = [*((d, None) for d in _deltas(reply, tool_calls)), ({}, reason)]
        chunks = [{**head, "choices": [{"index": 0, "delta": d, "finish_reason": r}]} for d, r in deltas]
        options = body.get("stream_options")
        if isinstance(options, dict) and options.get("include_usage"):
            chunks = [{**chunk, "usage": None} for chunk in chunks]
            chunks.append({**head, "choices": [], "usage": usage})
        return kind, [f"data: {c}\n\n".encode() for c in [*map(json.dumps, chunks), "[DONE]"]]

    def _tool_call(self, name: str, arguments: Any, call_id: str | None = None) -> JsonObject:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        return call_entry(self._number("call_") if call_id is None else call_id, name, text)

    def _number(self, prefix: str) -> str:
        """The next id with a prefix: ``call_0001``."""
        with self._lock:
            self._numbers[prefix] += 1
            return f"{prefix}{self._numbers[prefix]:04d}"


def hashed_embedding(texts: list[str], dimension: int = 64) -> list[list[float]]:
    """Unit vectors of hashed words: similar for texts that share words, equal in every process."""
    vectors = []
    for text in texts:
        vector = [0.0] * dimension
        for word in re.findall(r"\w+", text.lower()) or [""]:
            h = int.from_bytes(hashlib.sha256(word.encode("utf-8", "replace")).digest()[:8], "big")
            vector[h % dimension] += 1.0 if h >> 63 else -1.0
        norm = math.sqrt(sum(x * x for x in vector))
        vectors.append([x / norm for x in vector] if norm else [1.0, *vector[1:]])
    return vectors


def _deltas(reply: Reply, tool_calls: list[JsonObject]) -> Iterator[JsonObject]:
    yield {"role": "assistant", "content": None if reply.content is None else ""}
    for piece in in_pieces(reply.reasoning or ""):
        yield {"reasoning_content": piece}
    for piece in in_pieces(reply.content or ""):
        yield {"content": piece}
    for i, made in enumerate(tool_calls):
        first = {**made, "function": {"name": made["function"]["name"], "arguments": ""}}
        yield {"tool_calls": [{"index": i, **first}]}
        for piece in in_pieces(made["function"]["arguments"]):
            yield {"tool_calls": [{"index": i, "function": {"arguments": piece}}]}


def _broken(what: str, error: BaseException) -> Reply:
    """The answer to a failing script: a 500 that the openai client does not retry."""
    return Reply(f"{what}: {type(error).__name__}: {error}", status=500, headers={"x-should-retry": "false"})


def _error_body(reply: Reply) -> bytes:
    """The JSON of an error in OpenAI's shape."""
    kind = "server_error" if reply.status >= 500 else "invalid_request_error"
    kind, code = ("requests", "rate_limit_exceeded") if reply.status == 429 else (kind, None)
    error = {"message": reply.content or "", "type": kind, "param": reply.param, "code": reply.code or code}
    return json.dumps({"error": error}).encode()


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(t) is int for t in value)
