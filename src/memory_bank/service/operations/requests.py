"""What is noted of every request, whoever answers it: an id, a line in the log, figures, a span."""

from __future__ import annotations

import logging
import re
import time
import uuid
from typing import Any

from memory_bank.service.operations.logs import request_id, requests
from memory_bank.service.operations.metrics import Metrics
from memory_bank.service.operations.telemetry import Telemetry

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
STATUSES = frozenset({"rebuilt", "unchanged", "passed", "failed"})
"""What ``x-memory-status`` may say."""
GONE = 499
"""The status of a request whose client went away before there was an answer."""
QUIET = frozenset({"/health", "/metrics"})
"""Routes that machines ask all the time: what is well with them is told with ``--verbose`` only."""

_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class Noted:
    """ASGI: the outermost layer of the application.

    It changes nothing but one header: ``x-request-id`` is ours where upstream gave none, else
    ``x-memory-request-id`` is. It is that of the client where it may stand in a
    log, and in the scope's state.
    """

    def __init__(self, app: Any, metrics: Metrics, telemetry: Telemetry) -> None:
        self.app = app
        self.metrics = metrics
        self.telemetry = telemetry

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in METHODS else "OTHER"
        note = _Note(send, _given_id(scope["headers"]) or uuid.uuid4().hex)
        scope.setdefault("state", {})["request_id"] = note.id
        known = request_id.set(note.id)
        self.metrics.running.inc()
        try:
            with self.telemetry.request(method, scope["headers"]) as span:
                try:
                    await self.app(scope, receive, note.send)
                except Exception:
                    note.status = note.status or 500
                    if not note.complete:  # else it has been answered, and logged where that was done
                        raise
                finally:
                    route = _route(scope)
                    note.status = note.status or GONE
                    self.telemetry.answered(span, method, route, note.status)
                    self._tell(note, method, route, scope)
        finally:
            self.metrics.running.dec()
            request_id.reset(known)

    def _tell(self, note: _Note, method: str, route: str, scope: Any) -> None:
        seconds = time.perf_counter() - note.began
        m = self.metrics
        m.requests.labels(method, route, str(note.status)).inc()
        m.request_seconds.labels(route).observe(seconds)
        if note.first is not None:
            m.first_byte_seconds.labels(route).observe(note.first)
        if note.memory:
            m.memory.labels(note.memory).inc()
        level = logging.DEBUG if route in QUIET and note.status < 400 else logging.INFO
        if not requests.isEnabledFor(level):
            return
        told: dict[str, Any] = {
            "method": method,
            "route": route,
            "status": note.status,
            "ms": round(1000 * seconds, 1),
            "bytes": note.bytes,
        }
        if not note.complete:
            told["cut"] = True
        if note.memory:
            told["memory"] = note.memory
        if note.upstream_id:
            told["upstream_id"] = note.upstream_id
        key = getattr(scope["state"].get("caller"), "key_id", None)
        if key:
            told["key"] = key
        requests.log(level, "request", extra=told)


class _Note:
    """One request's answer, as it goes by."""

    __slots__ = ("_send", "began", "bytes", "complete", "first", "id", "memory", "status", "upstream_id")

    def __init__(self, send: Any, own_id: str) -> None:
        self._send = send
        self.id = own_id
        self.began = time.perf_counter()
        self.first: float | None = None
        self.status = 0  # none was sent yet
        self.bytes = 0
        self.complete = False
        self.memory = ""
        self.upstream_id = ""

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": self._headers(list(message.get("headers", ())))}
        elif message["type"] == "http.response.body":
            if self.first is None:
                self.first = time.perf_counter() - self.began
            self.bytes += len(message.get("body", b""))
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.complete = True

    def _headers(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """With our id, by which the log can be searched."""
        given, told = b"", False
        for name, value in headers:
            lowered = name.lower()
            if lowered == b"x-request-id":
                given = value
            elif lowered == b"x-memory-request-id":
                told = True
            elif lowered == b"x-memory-status":
                word = value.decode("latin-1")
                self.memory = word if word in STATUSES else "other"
        own = self.id.encode("ascii")
        if not given:
            return [*headers, (b"x-request-id", own)]
        if given == own:
            return headers
        self.upstream_id = given.decode("ascii") if _ID.fullmatch(given) else "odd"
        return headers if told else [*headers, (b"x-memory-request-id", own)]


def _given_id(headers: Any) -> str:
    """The id that the client gave its request, if it may stand in a log."""
    for name, value in headers:
        if name == b"x-request-id":
            return value.decode("ascii") if _ID.fullmatch(value) else ""
    return ""


def _route(scope: Any) -> str:
    """The template of the route, not the path: that holds names. Of a mounted application its place."""
    route = scope.get("route")
    if route is None and (endpoint := scope.get("endpoint")) is not None:  # FastAPI tells its own routes only
        routes = scope["app"].router.routes
        route = next((r for r in routes if endpoint in (_of(r, "endpoint"), _of(r, "app"))), None)
    path = _of(route, "path_format") or _of(route, "path")
    return str(path) if path else "(none)"


def _of(route: Any, name: str) -> Any:
    return getattr(route, name, None)
