"""What a client's connection may cost: how many there are, and how long a request may take to arrive.

uvicorn closes a connection that is idle after an answer, and no other: a client could hold all handles of the
process by connections that never send a whole request.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import h11
import orjson
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from memory_bank.service import failures

HEAD_SECONDS = 20.0
"""Seconds in which the head of a request must arrive, from the connection or from its first byte."""
BODY_PAUSE = 30.0
"""Seconds without a byte after which an incomplete body is given up."""
BODY_SECONDS = 600.0
"""Seconds in which a body must arrive."""
RESERVE = 32
"""Connections above the limit on which ``/health`` alone is answered."""
_LEAST, _MOST = 64, 8_192
_OTHER_HANDLES = 128  # files, the database, the listening socket


def handle_limit() -> int:
    """How many handles this process may open; the soft limit is raised to the hard one where that is allowed."""
    try:
        import resource
    except ImportError:  # Windows
        return 2 * _MOST
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * _MOST + _OTHER_HANDLES + RESERVE
    ceiling = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < ceiling:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (ceiling, hard))
            soft = ceiling
        except (OSError, ValueError):
            pass
    return wanted if soft == resource.RLIM_INFINITY else soft


def most_connections(handles: int) -> int:
    """The connections that a process serves: each may need a second handle, for the model's API."""
    return max(_LEAST, min(_MOST, (handles - _OTHER_HANDLES - RESERVE) // 2))


class BoundedProtocol(H11Protocol):
    """A connection with deadlines for what must arrive, one of at most ``most``.

    At the limit a new connection takes the place of the one that has waited longest without a request. If
    all have requests, ``RESERVE`` more are taken, on which only ``/health`` is answered.
    """

    most = _MOST
    head_seconds = HEAD_SECONDS
    body_pause = BODY_PAUSE
    body_seconds = BODY_SECONDS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None
        self._waits_for = ""
        self._body_left = 0.0
        self._armed_at = 0.0
        self._waiting_since = time.monotonic()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection if there is room, or room can be made."""
        connections = cast("set[BoundedProtocol]", self.connections)
        if len(connections) >= self.most:
            idle = [c for c in connections if isinstance(c, BoundedProtocol) and c.is_idle]
            if idle:
                min(idle, key=lambda c: c._waiting_since).give_up()
            elif len(connections) >= self.most + RESERVE:
                self.transport = transport
                transport.abort()
                return
            else:
                self.app = cast("Any", HealthOnly(cast("ASGIApp", self.app)))
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """As the base class."""
        self._cancel()
        if self.flow is not None:  # else it was never taken
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """As the base class."""
        super().data_received(data)
        self._watch(progress=True)

    def on_response_complete(self) -> None:
        """As the base class."""
        super().on_response_complete()
        self._waiting_since = time.monotonic()
        self._watch()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being received or answered."""
        return self.conn.their_state is h11.IDLE and (self.cycle is None or self.cycle.response_complete)

    def give_up(self) -> None:
        """Close the connection at once."""
        self._cancel()
        self.connections.discard(self)
        self.transport.abort()

    def _watch(self, *, progress: bool = False) -> None:
        """Set the deadline for what must arrive next."""
        if self.transport.is_closing():
            self._cancel()
            return
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            if self._waits_for != "body":
                self._body_left = self.body_seconds
            elif not progress:
                return
            self._arm("body", min(self.body_pause, self._body_left))
        elif self.is_idle and self.timeout_keep_alive_task is None:
            if self._waits_for != "head":  # single bytes do not prolong it
                self._arm("head", self.head_seconds)
        else:
            self._cancel()

    def _arm(self, what: str, seconds: float) -> None:
        if self._deadline is not None:
            if self._waits_for == "body":
                self._body_left -= self.loop.time() - self._armed_at
            self._deadline.cancel()
        self._waits_for = what
        self._armed_at = self.loop.time()
        self._deadline = self.loop.call_later(max(0.0, seconds), self._expired)

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline, self._waits_for = None, ""

    def _expired(self) -> None:
        if self._waits_for == "body" and self.flow.read_paused:  # the service is slow, not the client
            self._deadline = None
            self._arm("body", self.body_pause)
            return
        self.give_up()


def protocol(most: int) -> type[BoundedProtocol]:
    """The protocol for a server with at most so many connections.

    It parses with h11: httptools, which uvicorn prefers where it is installed, takes headers of any length.
    """
    return type("BoundedProtocol", (BoundedProtocol,), {"most": most})


class HealthOnly:
    """ASGI application that answers ``/health``, and everything else with 503."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/health":
            await self.app(scope, receive, send)
            return
        body = failures.body("the service has too many connections: try again later.", "busy", 503)
        data = orjson.dumps(body)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(data)).encode()),
            (b"retry-after", b"5"),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": data})
