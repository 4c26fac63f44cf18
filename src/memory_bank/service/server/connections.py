"""What a client's connection may cost: how many there are, and how long a request may take to arrive.

uvicorn closes a connection that is idle after an answer, and no other: a client could hold all handles of the
process by connections that never send a whole request.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, cast

import h11
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from memory_bank.service import failures

RESERVE = 32
"""Connections above the limit on which ``/health`` alone is answered."""
_LEAST, _MOST = 64, 8_192
_OTHER_HANDLES = 128  # files, the database, the listening socket


def handle_limit() -> int:
    """How many handles this process may open; the soft limit is raised to the hard one where that is allowed."""
    wanted = 2 * _MOST + _OTHER_HANDLES + RESERVE
    try:
        import resource
    except ImportError:  # Windows
        return wanted
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (wanted if n == resource.RLIM_INFINITY else n for n in limits)
    if soft < min(hard, wanted):
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, wanted), limits[1]))
            soft = min(hard, wanted)
    return soft


def most_connections(handles: int) -> int:
    """The connections that a process serves: each may need a second handle, for the model's API."""
    return max(_LEAST, min(_MOST, (handles - _OTHER_HANDLES - RESERVE) // 2))


def protocol(most: int) -> type[BoundedProtocol]:
    """The protocol for a server with at most so many connections.

    It parses with h11: httptools, which uvicorn prefers where it is installed, takes headers of any length.
    """
    return type("BoundedProtocol", (BoundedProtocol,), {"most": most})


class BoundedProtocol(H11Protocol):
    """A connection with deadlines for what must arrive, one of at most ``most``.

    At the limit a new connection takes the place of the one that has waited longest without a request. If
    all have requests, ``RESERVE`` more are taken, on which only ``/health`` is answered.
    """

    most = _MOST
    head_seconds = 20.0
    """Seconds in which the head of a request must arrive, from the connection or from its first byte."""
    body_pause = 30.0
    """Seconds without a byte after which an incomplete body is given up."""
    body_seconds = 600.0
    """Seconds in which a body must arrive."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timer: asyncio.TimerHandle | None = None
        self._waits_for = ""  # "head" or "body" of a request that has to arrive
        self._since = self._last_byte = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection if there is room, or room can be made."""
        connections = cast("set[BoundedProtocol]", self.connections)
        if len(connections) >= self.most:
            idle = [c for c in connections if isinstance(c, BoundedProtocol) and c._is_idle()]
            if idle:
                min(idle, key=lambda c: c._since)._give_up()
            elif len(connections) >= self.most + RESERVE:
                self.transport = transport
                transport.abort()
                return
            else:
                self.app = cast("Any", _health_only(self.app))
        super().connection_made(transport)
        self._note()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """As the base class."""
        if self._timer is not None:
            self._timer.cancel()
        if self.flow is not None:  # else it was never taken
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """As the base class."""
        super().data_received(data)
        self._note()

    def on_response_complete(self) -> None:
        """As the base class."""
        super().on_response_complete()
        self._waits_for, self._since = "", self.loop.time()
        self._note()

    def _is_idle(self) -> bool:
        """Whether no request is being received or answered."""
        return self.conn.their_state is h11.IDLE and (self.cycle is None or self.cycle.response_complete)

    def _give_up(self) -> None:
        """Close the connection at once."""
        if self._timer is not None:
            self._timer.cancel()
        self.connections.discard(self)
        self.transport.abort()

    def _note(self) -> None:
        """Note what must arrive next, and since when."""
        self._last_byte = self.loop.time()
        waits_for = ""
        if self.conn.their_state is h11.SEND_BODY:
            waits_for = "body"
        elif self._is_idle() and self.timeout_keep_alive_task is None:
            waits_for = "head"
        if waits_for != self._waits_for:
            self._waits_for, self._since = waits_for, self._last_byte

    def _look(self) -> None:
        """Give the connection up where a deadline has passed; otherwise look again when the next one may have."""
        now = self.loop.time()
        left = soon = min(self.head_seconds, self.body_pause, self.body_seconds)
        if self._waits_for == "head":  # single bytes do not prolong it
            left = self._since + self.head_seconds - now
        elif self._waits_for == "body":
            if self.flow.read_paused:  # the service is slow, not the client
                self._last_byte = now
            left = min(self._last_byte + self.body_pause, self._since + self.body_seconds) - now
        if left <= 0 and not self.transport.is_closing():
            self._give_up()
        else:
            self._timer = self.loop.call_later(min(max(left, 0.01), soon), self._look)


def _health_only(app: Any) -> Any:
    """An application that answers ``/health`` as ``app`` does, and everything else with 503."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/health":
            await app(scope, receive, send)
            return
        body = failures.body("the service has too many connections: try again later.", "busy", 503)
        headers = {"retry-after": "5", "connection": "close"}
        await JSONResponse(body, 503, headers)(scope, receive, send)

    return answer
