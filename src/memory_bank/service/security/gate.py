"""The outermost middleware: checks host, web page, key, rate limit and body size of every request.

Starlette's TrustedHostMiddleware and CORSMiddleware do not fit: the first does not know the address at which
a request arrived, and the second lets requests of foreign pages through and only omits headers.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
from memory_bank.service.security.hosts import AllowedHosts, address_of, check_loopback

log = logging.getLogger("memory_bank.Service")

_OPEN_PATHS = ("/", "/health", "/openapi.json")  # and /static/…: readable without a key
_NO_KEYS = (
    "without keys the service answers on loopback addresses only: create one with  memory-bank keys create "
    "NAME , or bind 127.0.0.1."
)
_TWO_LENGTHS = "a request has either Content-Length or Transfer-Encoding: send one of them, once."
_EXPOSED = b", ".join(  # headers that an allowed page of another origin may read
    (
        b"x-request-id", b"x-memory-request-id", b"x-memory-status", b"x-memory-reason", b"x-memory-session",
        b"x-memory-tokens", b"x-memory-fetched", b"retry-after",
    )
)  # fmt: skip
_CORS = frozenset(
    {b"access-control-allow-origin", b"access-control-allow-credentials", b"access-control-expose-headers"}
)


def check_binding(settings: ServiceSettings, database: Database) -> None:
    """Raise ConfigError if a service without keys would listen on an address that is not loopback."""
    if not check_loopback(settings.host) and not Keys(database).all():
        raise ConfigError(
            f"without keys the service listens on loopback only, and {settings.host} is not: create a key "
            "with  memory-bank keys create NAME , or bind 127.0.0.1."
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
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        scope.setdefault("state", {})["key_header"] = None
        guarded = _Guarded(receive, send)
        lengths = headers.get("content-length", [])
        try:
            if len(lengths) + len(headers.get("transfer-encoding", ())) > 1:
                body = failures.body(_TWO_LENGTHS, "invalid_request", 400)
                await guarded.send_error(400, body, {"connection": "close"})
                return
            if await self._admitted(scope, headers, guarded):
                own = scope["state"]["caller"].max_body_bytes
                guarded.limit(self.settings.max_body_bytes if own is None else own, lengths)
                await self.app(scope, guarded.receive, guarded.send)
                if guarded.too_large is not None:
                    raise guarded.too_large
        except MemoryBankError as e:
            status, content, added = failures.failure(e, scope["path"])
            await guarded.send_error(status, content, added)
        except (asyncio.CancelledError, ResponseAborted):
            raise
        except Exception as e:
            log.error("unexpected %s at %s", type(e).__name__, _locations(e))  # its text may have content
            message = f"unexpected {type(e).__name__}: see the log."
            await guarded.send_error(500, failures.body(message, "unforeseen", 500))

    async def _admitted(self, scope: Scope, headers: dict[str, list[str]], guarded: _Guarded) -> bool:
        """Whether the request goes on; if not, it has been answered. Raises ServiceError."""
        local = scope["server"][0] if scope.get("server") else None
        host = self._hosts.check_host(headers.get("host", []), local)
        fetch = {n[10:]: v[-1].lower() for n, v in headers.items() if n.startswith("sec-fetch-")}
        fetch |= {"method": scope["method"], "path": scope["path"]}
        page = self._hosts.check_page(headers.get("origin", []), host, scope["scheme"], fetch)
        if page is not None:
            guarded.page = page.encode("latin-1")
            if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                await guarded.send_preflight(headers.get("access-control-request-headers", [""])[-1])
                return False
        scope["state"]["caller"] = await self._caller(scope, headers, local)
        return True

    async def _caller(self, scope: Scope, headers: dict[str, list[str]], local: str | None) -> Caller:
        keyring: Keyring = scope["app"].state.service.keyring
        await keyring.refresh()
        keys: list[str] = []
        for name in ("x-memory-key", "authorization", "x-api-key"):
            keys = [k for v in headers.get(name, ()) if (k := own_key(name.encode(), v.encode("latin-1")))]
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
            address = address_of(local or "")
            if address is not None and not address.is_loopback:
                raise OriginError(_NO_KEYS)
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
        self.page: bytes | None = None
        self.too_large: TooLargeError | None = None
        self._receive = receive
        self._send = send
        self._max = self._left = 0
        self._begun = False

    def limit(self, most: int, lengths: Sequence[str]) -> None:
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
            message = {**message, "headers": self._headers(message.get("headers", ()))}
        await self._send(message)

    async def send_error(
        self, status: int, content: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> None:
        """Answer with an error. Raises ResponseAborted if a response has begun."""
        self.too_large = None
        if self._begun:
            raise ResponseAborted(f"a response was aborted with status {status}") from None
        await JSONResponse(content, status, headers)({"type": "http"}, self.receive, self.send)

    async def send_preflight(self, wanted: str) -> None:
        """Allow a browser to send the request that it asks for."""
        headers = {
            "access-control-allow-methods": "GET, POST, PUT, PATCH, DELETE, HEAD",
            "access-control-allow-headers": wanted or "authorization, content-type",
            "access-control-allow-private-network": "true",
            "access-control-max-age": "600",
        }
        await Response(None, 204, headers)({"type": "http"}, self.receive, self.send)

    def _headers(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        out = list(headers)
        names = {name.lower() for name, _ in out}
        if b"x-content-type-options" not in names:
            out.append((b"x-content-type-options", b"nosniff"))
        if b"cache-control" not in names and b"x-memory-status" not in names:
            out.append((b"cache-control", b"no-store"))
        if self.page is not None:
            out = [(k, v) for k, v in out if k.lower() not in _CORS]
            out += [
                (b"access-control-allow-origin", self.page),
                (b"access-control-expose-headers", _EXPOSED),
                (b"vary", b"origin"),
            ]
        return out


def _locations(error: Exception) -> str:
    """The innermost frames of an error, without its text."""
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    return " < ".join(f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}" for frame in reversed(frames))
