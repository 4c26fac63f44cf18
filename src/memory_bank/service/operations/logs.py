"""The service's log: one line per event, as text or JSON, without stored content.

Every request has an id, a line, metrics and a span.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import traceback
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memory_bank.errors import MemoryBankError
from memory_bank.service.operations.metrics import Metrics
from memory_bank.service.operations.telemetry import Telemetry

log = logging.getLogger("memory_bank.Service")
requests = logging.getLogger("memory_bank.Requests")

request_id: ContextVar[str] = ContextVar("memory_bank_request_id", default="")
"""The id of the current request."""

OURS = "memory_bank"
_LONGEST = 2_000
_LONGEST_FOREIGN = 300
_FRAMES = 30
_OWN_KEYS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
STATUSES = frozenset({"rebuilt", "unchanged", "passed", "failed", "answered"})
"""The values of ``x-memory-status``."""
GONE = 499
"""The status of a request whose client disconnected before the response."""
QUIET = frozenset({"/health", "/healthz", "/readyz", "/metrics"})
"""Routes that monitors poll: their successes are logged with ``--verbose`` only."""

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def set_up(form: Literal["text", "json"], *, verbose: bool = False) -> None:
    """Write this process's logs to standard error: INFO of ours (``verbose``: DEBUG), WARNING of other packages."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    handler.addFilter(RepeatLimit())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(OURS).setLevel(logging.DEBUG if verbose else logging.INFO)
    logging.getLogger("opentelemetry.baggage").setLevel(logging.ERROR)  # it warns with a client's header
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = name != "uvicorn.access"
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    logging.raiseExceptions = False  # otherwise a failing handler prints the values of its line


class RepeatLimit(logging.Filter):
    """Passes at most ``most`` equal warnings and errors in ``seconds``; the next one says how many were left out.

    Lines are equal if they come from one place in the code: clients must not be able to fill a disk.
    """

    def __init__(
        self, most: int = 20, seconds: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._most, self._seconds, self._clock = most, seconds, clock
        self._places: dict[tuple[str, int, int], tuple[float, int]] = {}  # since when, how many

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is written."""
        if record.levelno < logging.WARNING:
            return True
        place, now = (record.pathname, record.lineno, record.levelno), self._clock()
        since, count = self._places.get(place, (now, 0))
        if now - since < self._seconds:
            self._places[place] = since, count + 1
            return count < self._most
        if count > self._most:
            record.msg = f"{record.getMessage()} ({count - self._most:,} more of these lines were left out)"
            record.args = None
        self._places[place] = now, 1
        return True


class JsonLines(logging.Formatter):
    """One ASCII JSON object per line: ``time``, ``level``, ``logger``, ``message``, then the extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Format as one line."""
        return json.dumps(_fields(record), default=str)


class TextLines(logging.Formatter):
    """``2026-01-31T12:00:00.123Z INFO Requests: request GET /health 200 key=value …``."""

    def format(self, record: logging.LogRecord) -> str:
        """Format as one line without control characters."""
        fields = _fields(record)
        line = "{time} {level} {logger}: {message}".format(**fields | {"level": record.levelname})
        trouble = fields.pop("trouble", None)
        for name in [*fields][4:]:
            text = str(fields[name])
            is_plain = text and " " not in text and '"' not in text
            line += f" {name}={text if is_plain else json.dumps(text, ensure_ascii=False)}"
        return escaped(line if trouble is None else f"{line} | {' < '.join(trouble)}")


def escaped(text: str) -> str:
    """The text with control characters, unusual spaces and lone surrogates escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """The members of a log line: those of every line, request id, ``extra``, error; one line of others' messages."""
    text, extra = record.getMessage(), {}
    if record.name == OURS or record.name.startswith(f"{OURS}."):
        text = text[:_LONGEST]
        extra = {k: v for k, v in vars(record).items() if k not in _OWN_KEYS}
    else:
        text = text.strip().split("\n", 1)[0][:_LONGEST_FOREIGN]
    if request := request_id.get():
        extra = {"id": request, **extra}
    if record.exc_info:
        extra["trouble"] = _error_chain(record.exc_info[1])
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    line = {"time": f"{when}.{int(record.msecs):03d}Z", "level": record.levelname.lower()}
    return {**line, "logger": record.name.removeprefix(f"{OURS}."), "message": text, **extra}


def _error_chain(error: BaseException | None) -> list[str]:
    """Describe an error by types and frames, innermost first; only the library's own messages are quoted."""
    chain: list[str] = []
    seen: set[int] = set()
    while error is not None and id(error) not in seen and len(chain) < _FRAMES:
        seen.add(id(error))
        kind = type(error).__name__
        chain.append(f"{kind}: {error}"[:_LONGEST] if isinstance(error, MemoryBankError) else kind)
        for frame in reversed(traceback.extract_tb(error.__traceback__, limit=-_FRAMES)):
            file = "/".join(frame.filename.replace("\\", "/").split("/")[-3:])
            chain.append(f"{file}:{frame.lineno} {frame.name}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return chain[: 2 * _FRAMES]


class RequestLog:
    """ASGI middleware around the whole application; the one place that makes request ids.

    The id is the client's ``x-request-id`` if it is safe to log, else a new one; it is in the scope's state.
    The response gets it as ``x-request-id``, or as ``x-memory-request-id`` if upstream has set an own
    ``x-request-id``.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, telemetry: Telemetry | None) -> None:
        self.app = app
        self.metrics = metrics
        self.telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in METHODS else "OTHER"
        came = Headers(scope=scope).get("x-request-id", "")
        answer = _ObservedResponse(send, came if _ID.fullmatch(came) else uuid.uuid4().hex)
        scope.setdefault("state", {})["request_id"] = answer.id
        token = request_id.set(answer.id)
        self.metrics.running.inc()
        traced = nullcontext() if self.telemetry is None else self.telemetry.request(method, scope["headers"])
        try:
            with traced as span:
                try:
                    await self.app(scope, receive, answer.send)
                except Exception:
                    answer.status = answer.status or 500
                    if not answer.complete:  # otherwise it was answered and logged further in
                        raise
                finally:
                    route = _route(scope)
                    answer.status = answer.status or GONE
                    if self.telemetry is not None and span is not None:
                        self.telemetry.answered(span, method, route, answer.status)
                    self._record(answer, method, route, scope)
        finally:
            self.metrics.running.dec()
            request_id.reset(token)

    def _record(self, answer: _ObservedResponse, method: str, route: str, scope: Scope) -> None:
        seconds = time.perf_counter() - answer.began
        m = self.metrics
        m.requests.labels(method, route, str(answer.status)).inc()
        m.request_seconds.labels(route).observe(seconds)
        if answer.first is not None:
            m.first_byte_seconds.labels(route).observe(answer.first)
        if answer.memory:
            m.memory.labels(answer.memory).inc()
        fields = {"method": method, "route": route, "status": answer.status}
        fields |= {"ms": round(1000 * seconds, 1), "bytes": answer.size}
        others = {"cut": not answer.complete, "memory": answer.memory, "upstream_id": answer.upstream_id}
        others |= {"key": getattr(scope["state"].get("caller"), "key_id", None)}
        level = logging.DEBUG if route in QUIET and answer.status < 400 else logging.INFO
        requests.log(level, "request", extra=fields | {k: v for k, v in others.items() if v})


@dataclass(slots=True, eq=False)
class _ObservedResponse:
    """The response to one request, and what is known of it so far."""

    _send: Send
    id: str
    began: float = field(default_factory=time.perf_counter)
    first: float | None = None
    status: int = 0  # not sent yet
    size: int = 0
    complete: bool = False
    memory: str = ""
    upstream_id: str = ""

    async def send(self, message: Message) -> None:
        """Pass a message on, and keep its status, size and times."""
        is_body = message["type"] == "http.response.body"
        if message["type"] == "http.response.start":
            self.status, headers = message["status"], MutableHeaders(raw=list(message.get("headers", ())))
            client_id = headers.get("x-request-id", "")
            if status := headers.get("x-memory-status"):
                self.memory = status if status in STATUSES else "other"
            if client_id and client_id != self.id:
                self.upstream_id = client_id if _ID.fullmatch(client_id) else "odd"
            name = "x-memory-request-id" if client_id else "x-request-id"
            if client_id != self.id and not headers.get(name):
                headers.append(name, self.id)
            message = {**message, "headers": headers.raw}
        elif is_body:
            if self.first is None:
                self.first = time.perf_counter() - self.began
            self.size += len(message.get("body", b""))
        await self._send(message)
        self.complete = self.complete or (is_body and not message.get("more_body", False))


def _route(scope: Scope) -> str:
    """The template of the route; the path itself has names in it."""
    route, endpoint = scope.get("route"), scope.get("endpoint")
    if route is None and endpoint is not None:  # set by FastAPI's own routes only
        routes = scope["app"].router.routes
        is_endpoint = (r for r in routes if endpoint in (getattr(r, "endpoint", 0), getattr(r, "app", 0)))
        route = next(is_endpoint, None)
    return str(getattr(route, "path_format", None) or getattr(route, "path", None) or "(none)")
