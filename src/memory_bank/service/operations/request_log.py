"""The id, log line, metrics and span of every request."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Iterable

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
        given = _header(scope["headers"], b"x-request-id")
        answer = _ObservedResponse(send, given.decode() if _ID.fullmatch(given) else uuid.uuid4().hex)
        scope.setdefault("state", {})["request_id"] = answer.id
        known = request_id.set(answer.id)
        self.metrics.running.inc()
        try:
            with self.telemetry.request(method, scope["headers"]) as span:
                try:
                    await self.app(scope, receive, answer.send)
                except Exception:
                    answer.status = answer.status or 500
                    if not answer.complete:  # otherwise it was answered and logged further in
                        raise
                finally:
                    route = _route(scope)
                    answer.status = answer.status or GONE
                    self.telemetry.answered(span, method, route, answer.status)
                    self._record(answer, method, route, scope)
        finally:
            self.metrics.running.dec()
            request_id.reset(known)

    def _record(self, answer: _ObservedResponse, method: str, route: str, scope: Scope) -> None:
        seconds = time.perf_counter() - answer.began
        m = self.metrics
        m.requests.labels(method, route, str(answer.status)).inc()
        m.request_seconds.labels(route).observe(seconds)
        if answer.first is not None:
            m.first_byte_seconds.labels(route).observe(answer.first)
        if answer.memory:
            m.memory.labels(answer.memory).inc()
        fields = {
            "method": method,
            "route": route,
            "status": answer.status,
            "ms": round(1000 * seconds, 1),
            "bytes": answer.bytes,
        }
        more = {
            "cut": not answer.complete,
            "memory": answer.memory,
            "upstream_id": answer.upstream_id,
            "key": getattr(scope["state"].get("caller"), "key_id", None),
        }
        level = logging.DEBUG if route in QUIET and answer.status < 400 else logging.INFO
        requests.log(level, "request", extra=fields | {k: v for k, v in more.items() if v})


class _ObservedResponse:
    """The response to one request, and what is known of it so far."""

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
        """Pass a message on and note what it says."""
        is_body = message["type"] == "http.response.body"
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": self._headers(list(message.get("headers", ())))}
        elif is_body:
            if self.first is None:
                self.first = time.perf_counter() - self.began
            self.bytes += len(message.get("body", b""))
        await self._send(message)
        self.complete = self.complete or (is_body and not message.get("more_body", False))

    def _headers(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """The headers with the request's id."""
        own, given = self.id.encode("ascii"), _header(headers, b"x-request-id")
        if status := _header(headers, b"x-memory-status").decode("latin-1"):
            self.memory = status if status in STATUSES else "other"
        if given and given != own:
            self.upstream_id = given.decode("ascii") if _ID.fullmatch(given) else "odd"
        name = b"x-memory-request-id" if given else b"x-request-id"
        return headers if given == own or _header(headers, name) else [*headers, (name, own)]


def _header(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> bytes:
    return next((value for name, value in headers if name.lower() == wanted), b"")


def _route(scope: Scope) -> str:
    """The template of the route; the path itself has names in it."""
    route, endpoint = scope.get("route"), scope.get("endpoint")
    if route is None and endpoint is not None:  # set by FastAPI's own routes only
        routes = scope["app"].router.routes
        is_endpoint = (r for r in routes if endpoint in (getattr(r, "endpoint", 0), getattr(r, "app", 0)))
        route = next(is_endpoint, None)
    return str(getattr(route, "path_format", None) or getattr(route, "path", None) or "(none)")
