"""The outermost middleware: checks host, web page, key, rate limit and body size of every request.

Starlette's TrustedHostMiddleware and CORSMiddleware do not fit: the first does not know the address at which
a request arrived, and the second lets requests of foreign pages through and only omits headers.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import traceback
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memory_bank.bank.database import Database
from memory_bank.bank.keys import Keys
from memory_bank.config import ServiceSettings
from memory_bank.errors import (
    ConfigError,
    MemoryBankError,
    NotAuthorizedError,
    OriginError,
    TooLargeError,
)
from memory_bank.service import failures
from memory_bank.service.security.access import LOCAL, NO_KEY, NOBODY, Caller, Keyring, RateLimits, own_key
from memory_bank.service.security.hosts import AllowedHosts, address_of, is_loopback

log = logging.getLogger("memory_bank.Service")

_OPEN_PATHS = ("/", "/health", "/openapi.json")  # and /static/…: readable without a key
_EXPOSED = b", ".join(  # headers that an allowed page of another origin may read
    (
        b"x-request-id", b"x-memory-request-id", b"x-memory-status", b"x-memory-reason", b"x-memory-session",
        b"x-memory-tokens", b"x-memory-fetched", b"retry-after",
    )
)  # fmt: skip
_CORS = frozenset(b"access-control-" + n for n in (b"allow-origin", b"allow-credentials", b"expose-headers"))


def check_binding(settings: ServiceSettings, database: Database) -> None:
    """Raise ConfigError if a service without keys would listen beyond this machine, and for an unknown host."""
    host = settings.host
    try:
        if "\0" in host:  # the C library would read it up to there
            raise ValueError
        own = [host] if address_of(host) else [str(i[4][0]) for i in socket.getaddrinfo(host, None)]
    except (OSError, ValueError):
        raise ConfigError(f"the host {host!r} is unknown: give an address such as 127.0.0.1.") from None
    if not all(is_loopback(address.partition("%")[0]) for address in own) and not Keys(database).all():
        raise ConfigError(
            f"without keys the service listens on loopback only, and {host} is not: create a key with  "
            "memory-bank keys create NAME , or bind 127.0.0.1."
        )


class Gate:
    """ASGI middleware that admits a request or answers it with an error.

    Sets ``caller`` (Caller) in the scope's state, and ``key_header``, the header with a key of this service
    or None.
    """

    def __init__(self, app: ASGIApp, settings: ServiceSettings, hosts: AllowedHosts) -> None:
        self.app = app
        self.settings = settings
        self._hosts = hosts
        self._limits = RateLimits(settings.workers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # there is none
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        scope.setdefault("state", {})["key_header"] = None
        guarded = _Guarded(receive, send)
        lengths = headers.getlist("content-length")
        try:
            if len(lengths) + len(headers.getlist("transfer-encoding")) > 1:
                message = "a request has either Content-Length or Transfer-Encoding: send one of them, once."
                body = failures.body(message, "invalid_request", 400)
                await guarded.send_error(400, body, {"connection": "close"})
                return
            guarded.page = self._hosts.check(scope, headers)
            is_preflight = scope["method"] == "OPTIONS" and "access-control-request-method" in headers
            if guarded.page is not None and is_preflight:
                await guarded.send_preflight(headers)
                return
            caller = scope["state"]["caller"] = await self._caller(scope, headers)
            own = caller.max_body_bytes
            guarded.limit(self.settings.max_body_bytes if own is None else own, lengths)
            await self.app(scope, guarded.receive, guarded.send)
            if guarded.too_large is not None:
                raise guarded.too_large
        except MemoryBankError as e:
            await guarded.send_error(*failures.failure(e, scope["path"]))
        except (asyncio.CancelledError, ResponseAborted):
            raise
        except Exception as e:  # its text may have content
            frames = reversed(traceback.extract_tb(e.__traceback__)[-6:])
            where = " < ".join(f"{f.filename.rsplit('/', 1)[-1]}:{f.lineno}" for f in frames)
            log.error("unexpected %s at %s", type(e).__name__, where)
            message = f"unexpected {type(e).__name__}: see the log."
            await guarded.send_error(500, failures.body(message, "unforeseen", 500))

    async def _caller(self, scope: Scope, headers: Headers) -> Caller:
        """Who makes the request, counted against the rate limit. Raises NotAuthorizedError and others."""
        keyring: Keyring = scope["app"].state.service.keyring
        await keyring.refresh()
        keys: list[str] = []
        for name in ("x-memory-key", "authorization", "x-api-key"):
            keys = [k for v in headers.getlist(name) if (k := own_key(name.encode(), v.encode("latin-1")))]
            if keys:
                scope["state"]["key_header"] = name
                break
        if len(keys) > 1:
            raise NotAuthorizedError(NO_KEY)
        path: str = scope["path"]
        is_open = scope["method"] in ("GET", "HEAD") and (path in _OPEN_PATHS or path.startswith("/static/"))
        if keyring.required and not keys and is_open:
            return NOBODY
        caller = keyring.caller(keys[0] if keys else None)
        if caller is LOCAL:
            address = address_of(scope["server"][0] or "") if scope.get("server") else None
            if address is not None and not address.is_loopback:
                raise OriginError(
                    "without keys the service answers on loopback addresses only: create one with  memory-bank "
                    "keys create NAME , or bind 127.0.0.1."
                )
        if not is_open:
            own = caller.requests_per_minute
            self._limits.take(caller.key_id, self.settings.requests_per_minute if own is None else own)
        return caller


class ResponseAborted(Exception):
    """A response that cannot be completed: the server closes the connection, so that the client notices."""


class _Guarded:
    """The two directions of a request: reads its body up to a maximum, adds headers to its response.

    ``page``: the allowed origin of a page that may read the response. ``too_large``: the error that is sent instead
    of whatever the handler sends, since the body is too long.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self.page: str | None = None
        self.too_large: TooLargeError | None = None
        self._receive = receive
        self._send = send
        self._max = self._left = 0
        self._begun = False

    def limit(self, most: int, lengths: list[str]) -> None:
        """Set the maximum of the body. Raises TooLargeError for a length above it."""
        self._max = self._left = most
        if lengths and lengths[0].isdigit() and len(lengths[0]) < 20 and int(lengths[0]) > most:
            raise self._too_large()

    async def receive(self) -> Message:
        """The next message of the request. Raises TooLargeError."""
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                raise self._too_large()
        return message

    def _too_large(self) -> TooLargeError:
        self.too_large = TooLargeError(f"the request's body is longer than {self._max:,} bytes: send less.")
        return self.too_large

    async def send(self, message: Message) -> None:
        """Send a message of the response."""
        if self.too_large is not None:
            if self._begun:
                raise ResponseAborted("a response was aborted: the request's body is too long")
            return
        if message["type"] == "http.response.start":
            self._begun = True
            headers = list(message.get("headers", ()))
            names = {name.lower() for name, _ in headers}
            if b"x-content-type-options" not in names:
                headers.append((b"x-content-type-options", b"nosniff"))
            if b"cache-control" not in names and b"x-memory-status" not in names:
                headers.append((b"cache-control", b"no-store"))
            if self.page is not None:
                headers = [(name, value) for name, value in headers if name.lower() not in _CORS]
                headers += [
                    (b"access-control-allow-origin", self.page.encode("latin-1")),
                    (b"access-control-expose-headers", _EXPOSED),
                    (b"vary", b"origin"),
                ]
            message = {**message, "headers": headers}
        await self._send(message)

    async def send_error(
        self, status: int, content: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> None:
        """Answer with an error. Raises ResponseAborted if a response has begun."""
        self.too_large = None
        if self._begun:
            raise ResponseAborted(f"a response was aborted with status {status}") from None
        await JSONResponse(content, status, headers)({"type": "http"}, self.receive, self.send)

    async def send_preflight(self, asked: Headers) -> None:
        """Allow a browser to send the request that it asks for."""
        headers = {
            "access-control-allow-methods": "GET, POST, PUT, PATCH, DELETE, HEAD",
            "access-control-allow-headers": "authorization, content-type",
            "access-control-allow-private-network": "true",
            "access-control-max-age": "600",
        }
        if wanted := asked.getlist("access-control-request-headers")[-1:]:
            headers["access-control-allow-headers"] = wanted[0] or headers["access-control-allow-headers"]
        await Response(None, 204, headers)({"type": "http"}, self.receive, self.send)
