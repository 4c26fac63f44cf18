"""The reverse proxy: requests for the model's API go on to it, with a rebuilt context where there is one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from anyio import CancelScope, to_thread
from starlette.datastructures import Headers as HeaderView
from starlette.requests import Request
from starlette.routing import Match, Route

from memory_bank.errors import BodyError, MemoryBankError, UpstreamError
from memory_bank.service.bodies import Body, render_body
from memory_bank.service.dialects import DIALECTS, Dialect, read_body
from memory_bank.service.exchange import Exchange, Outcome, Tail
from memory_bank.service.failures import failure
from memory_bank.service.forwarding import Headers, bearer_of, replaced, request_headers
from memory_bank.service.incoming import ClientGone, Incoming
from memory_bank.service.memory import Memory, Remembered
from memory_bank.service.security.access import Caller, caller_of
from memory_bank.service.seen import Seen
from memory_bank.service.upstream import Answer, Upstream

log = logging.getLogger("memory_bank.Service")

PREFIX = "/v1"
LARGE = 65_536
"""Bytes from which a body is parsed beside the event loop."""

_PLAIN = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) != "%")


@dataclass(frozen=True, slots=True)
class Asked:
    """A chat or response asked for.

    ``data``: its body as it came; ``body``: the same parsed, None where it cannot be.
    """

    dialect: Dialect
    caller: Caller
    data: bytes = field(repr=False)
    body: Body | None = field(repr=False)
    memory: Remembered

    def render(self, arrays: Mapping[str, Sequence[Any]] | None = None) -> bytes:
        """The body that goes upstream: with memory's context, and these arrays in the place of members.

        Raises BodyError when one cannot be written.
        """
        if self.body is None or not arrays:
            return self.memory.data or self.data
        return render_body(self.body, {**self.memory.arrays, **arrays})


Send = Callable[[bytes], Awaitable[Answer]]
"""Sends a body upstream, with method, path and headers of the request that is answered."""

Turn = Callable[[Asked, Send], Awaitable[Answer]]
"""How a chat or response is answered: may send several times, closes every answer but the one it returns."""


async def direct(asked: Asked, send: Send) -> Answer:
    """The answer of upstream, as it is."""
    return await send(asked.render())


class Proxy:
    """An ASGI application for everything under ``/v1`` that is not our own.

    The body of a chat or response gets the context that memory has for it; all else, and the answer, passes
    byte by byte. ``turn`` says how chats and responses are answered, ``seen`` remembers their messages,
    ``carry`` gives the headers of a request that goes upstream its trace, ``tell`` is told what became of it.
    """

    def __init__(
        self,
        upstream: Upstream,
        memory: Memory,
        *,
        turn: Turn = direct,
        seen: Seen | None = None,
        carry: Callable[[Headers], Headers] = lambda headers: headers,
        tell: Callable[[Exchange], None] = lambda _: None,
    ) -> None:
        self.upstream = upstream
        self.memory = memory
        self.turn = turn
        self.seen = seen
        self.carry = carry
        self.tell = tell

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await _Passage(self, scope, receive, send).run()


def model_routes() -> list[Route]:
    """Routes for what agents ask most, with any method: to the proxy of the service."""
    return [_Onward(PREFIX + path) for path in DIALECTS]


def upstream_routes() -> list[Route]:
    """A route for what no route before it has taken, with any method: to the proxy of the service."""
    return [_Onward(PREFIX + "/{path:path}")]


class _Onward(Route):
    """A route that logs and figures know a request by."""

    def __init__(self, path: str) -> None:
        super().__init__(path, _ToProxy(), include_in_schema=False)

    def matches(self, scope: Any) -> tuple[Match, Any]:
        """As the base class."""
        found, told = super().matches(scope)
        return found, {**told, "route": self}


class _ToProxy:
    """ASGI application."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await scope["app"].state.service.proxy(scope, receive, send)


class _Passage:
    """One request on its way through."""

    def __init__(self, proxy: Proxy, scope: Any, receive: Any, send: Any) -> None:
        self.proxy = proxy
        self.scope = scope
        self.incoming = Incoming(receive)
        self.send = send
        self.caller = caller_of(Request(scope))
        self.route = "other"
        self.asked: Asked | None = None
        self.outcome: Outcome = "aborted"
        self.status: int | None = None
        self.first_byte: float | None = None
        self.tail = Tail()
        self.began = time.time()
        self.clock = time.perf_counter()

    async def run(self) -> None:
        """From the first byte of the request to the last of the answer, or until somebody gives up."""
        gone = CancelScope()
        watcher = asyncio.create_task(self.incoming.watch(gone))
        try:
            with gone:
                await self._pass()
            if gone.cancelled_caught:
                self.outcome = "client_gone"
        except ClientGone:
            self.outcome = "client_gone"
        except UpstreamError as e:
            if self.status is None:
                self.outcome, self.status = "unreachable", failure(e)[0]
                raise
            self.outcome = "broken_off"  # and so does the connection to the client, once this returns
            log.warning("%s", e)
        except MemoryBankError as e:
            self.outcome, self.status = "refused", failure(e)[0]
            raise
        finally:
            watcher.cancel()
            self.proxy.tell(self._exchange())

    async def _pass(self) -> None:
        path = self.scope["path"].removeprefix(PREFIX)
        dialect = DIALECTS.get(path) if self.scope["method"] == "POST" else None
        headers = request_headers(self.scope["headers"], self.proxy.upstream.key)
        if dialect is None:
            await self._relay(await self._send_on(headers, self._body()), [])
            return
        self.route = dialect.route
        asked = self.asked = await self._ask(dialect, await self.incoming.whole(), headers)
        headers = replaced(headers, b"accept-encoding", b"identity")

        async def send_on(body: bytes) -> Answer:
            return await self._send_on(headers, body)

        await self._relay(await self.proxy.turn(asked, send_on), _told(asked.memory))

    async def _ask(self, dialect: Dialect, data: bytes, headers: Headers) -> Asked:
        """The request with its memory."""
        try:
            if len(data) < LARGE:
                body = read_body(data, dialect, self.proxy.seen)
            else:
                body = await to_thread.run_sync(
                    read_body, data, dialect, self.proxy.seen, abandon_on_cancel=True
                )
        except BodyError as e:
            return Asked(dialect, self.caller, data, None, Remembered("passed", str(e)))
        given = HeaderView(raw=self.scope["headers"])
        memory = await self.proxy.memory.remember(self.caller, dialect, body, given, bearer_of(headers))
        return Asked(dialect, self.caller, data, body, memory)

    def _body(self) -> bytes | AsyncIterator[bytes]:
        """The body of a request that only passes, as it comes."""
        framed = any(name in (b"content-length", b"transfer-encoding") for name, _ in self.scope["headers"])
        if framed:
            return self.incoming.stream()
        self.incoming.is_read()
        return b""

    async def _send_on(self, headers: Headers, body: bytes | AsyncIterator[bytes]) -> Answer:
        return await self.proxy.upstream.send(
            self.scope["method"],
            _rest(self.scope),
            self.proxy.carry(headers),
            body,
            query=self.scope["query_string"],
        )

    async def _relay(self, answer: Answer, own: Headers) -> None:
        """Give the answer to the client as it comes."""
        try:
            self.status = answer.status
            start = {"type": "http.response.start", "status": answer.status, "headers": answer.headers + own}
            await self.send(start)
            async for chunk in answer.body:
                if self.first_byte is None:
                    self.first_byte = time.perf_counter() - self.clock
                self.tail.feed(chunk)
                await self.send({"type": "http.response.body", "body": chunk, "more_body": True})
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})
            self.outcome = "complete"
        finally:
            await answer.aclose()

    def _exchange(self) -> Exchange:
        """What it came to."""
        asked = self.asked
        value = asked.body.value if asked and asked.body else {}
        memory = asked.memory if asked else None
        usage = self.tail.usage() if asked else (None, None)
        model = value.get("model")
        return Exchange(
            method=self.scope["method"],
            route=self.route,
            outcome=self.outcome,
            status=self.status,
            began=self.began,
            seconds=time.perf_counter() - self.clock,
            first_byte=self.first_byte,
            model=model if isinstance(model, str) else None,
            streamed=value.get("stream") is True,
            namespace=self.caller.namespace,
            session=memory.session if memory else None,
            memory=memory.status if memory else "",
            reason=memory.reason if memory else None,
            memory_seconds=memory.seconds if memory else 0.0,
            tokens=memory.tokens if memory else None,
            full_tokens=memory.full_tokens if memory else None,
            input_tokens=usage[0],
            output_tokens=usage[1],
            received_bytes=self.incoming.size,
            sent_bytes=self.tail.size,
        )


def _rest(scope: Any) -> bytes:
    """The path after ``/v1``, as it was sent."""
    raw: bytes = scope.get("raw_path") or b""
    if not raw.startswith(b"/v1/"):
        raw = quote(scope["path"]).encode()
    return raw.removeprefix(b"/v1")


def _told(memory: Remembered) -> Headers:
    """The headers in which the client is told what memory did."""
    told = {
        "status": memory.status,
        "reason": memory.reason,
        "session": None if memory.session is None else quote(memory.session, safe=_PLAIN),
        "tokens": None if memory.tokens is None else f"{memory.tokens}/{memory.full_tokens}",
    }
    return [(f"x-memory-{name}".encode(), value.encode()) for name, value in told.items() if value]
