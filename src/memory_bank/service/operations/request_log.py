"""The id, log line, metrics and span of every request."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Iterable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memory_bank.service.operations.logs import request_id, requests
from memory_bank.service.operations.metrics import Metrics
from memory_bank.service.operations.telemetry import Telemetry

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
STATUSES = frozenset({"rebuilt", "unchanged", "passed", "failed"})
"""The values of ``x-memory-status``."""
GONE = 499
"""The status of a request whose client disconnected before the response."""
QUIET = frozenset({"/health", "/metrics"})
"""Routes that monitors poll: their successes are logged with ``--verbose`` only."""

_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class RequestLog:
    """ASGI middleware around the whole application; the one place that makes request ids.

    The id is the client's ``x-request-id`` if it is safe to log, else a new one; it is in the scope's state.
    The response gets it as ``x-request-id``, or as ``x-memory-request-id`` if upstream has set an own
    ``x-request-id``.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, telemetry: Telemetry) -> None:
        self.app = app
        self.metrics = metrics
        self.telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in METHODS else "OTHER"
        note = _ObservedResponse(send, _given_id(scope["headers"]) or uuid.uuid4().hex)
        scope.setdefault("state", {})["request_id"] = note.id
        known = request_id.set(note.id)
        self.metrics.running.inc()
        try:
            with self.telemetry.request(method, scope["headers"]) as span:
                try:
                    await self.app(scope, receive, note.send)
                except Exception:
                    note.status = note.status or 500
                    if not note.complete:  # otherwise it was answered and logged further in
                        raise
                finally:
                    route = _route(scope)
                    note.status = note.status or GONE
                    self.telemetry.answered(span, method, route, note.status)
                    self._record(note, method, route, scope)
        finally:
            self.metrics.running.dec()
            request_id.reset(known)

    def _record(self, note: _ObservedResponse, method: str, route: str, scope: Scope) -> None:
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
        fields: dict[str, Any] = {
            "method": method,
            "route": route,
            "status": note.status,
            "ms": round(1000 * seconds, 1),
            "bytes": note.bytes,
        }
        if not note.complete:
            fields["cut"] = True
        if note.memory:
            fields["memory"] = note.memory
        if note.upstream_id:
            fields["upstream_id"] = note.upstream_id
        key = getattr(scope["state"].get("caller"), "key_id", None)
        if key:
            fields["key"] = key
        requests.log(level, "request", extra=fields)


class _ObservedResponse:
    """One request's answer, as it goes by."""

    __slots__ = ("_send", "began", "bytes", "complete", "first", "id", "memory", "status", "upstream_id")

    def __init__(self, send: Send, own_id: str) -> None:
        self._send = send
        self.id = own_id
        self.began = time.perf_counter()
        self.first: float | None = None
        self.status = 0  # not sent yet
        self.bytes = 0
        self.complete = False
        self.memory = ""
        self.upstream_id = ""

    async def send(self, message: Message) -> None:
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
        """The headers with the request's id."""
        given, named = b"", False
        for name, value in headers:
            lowered = name.lower()
            if lowered == b"x-request-id":
                given = value
            elif lowered == b"x-memory-request-id":
                named = True
            elif lowered == b"x-memory-status":
                word = value.decode("latin-1")
                self.memory = word if word in STATUSES else "other"
        own = self.id.encode("ascii")
        if not given:
            return [*headers, (b"x-request-id", own)]
        if given == own:
            return headers
        self.upstream_id = given.decode("ascii") if _ID.fullmatch(given) else "odd"
        return headers if named else [*headers, (b"x-memory-request-id", own)]


def _given_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The client's ``x-request-id`` if it is safe to log, else ""."""
    for name, value in headers:
        if name == b"x-request-id":
            return value.decode("ascii") if _ID.fullmatch(value) else ""
    return ""


def _route(scope: Scope) -> str:
    """The template of the route; the path itself has names in it."""
    route, endpoint = scope.get("route"), scope.get("endpoint")
    if route is None and endpoint is not None:  # set by FastAPI's own routes only
        routes = scope["app"].router.routes
        route = next((r for r in routes if endpoint in (_get(r, "endpoint"), _get(r, "app"))), None)
    return str(_get(route, "path_format") or _get(route, "path") or "(none)")


def _get(route: object, name: str) -> object:
    return getattr(route, name, None)
