"""The outermost middleware: checks host, web page, key, rate limit and body size of every request.

Starlette's TrustedHostMiddleware and CORSMiddleware do not fit: the first does not know the address at which
a request arrived, and the second lets requests of foreign pages through and only omits headers.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memory_bank.bank.database import Database
from memory_bank.bank.keys import Keys
from memory_bank.config import ServiceSettings
from memory_bank.errors import (
    ConfigError,
    MemoryBankError,
    NotAuthorizedError,
    OriginError,
    ServiceError,
    TooLargeError,
)
from memory_bank.service import failures
from memory_bank.service.security.access import LOCAL, NO_KEY, NOBODY, Caller, Keyring, RateLimits
from memory_bank.service.security.hosts import AllowedHosts, address_of, check_loopback

log = logging.getLogger("memory_bank.Service")

Headers = Iterable[tuple[bytes, bytes]]

MESSAGES = "/v1/messages"
_OPEN_PATHS = ("/", "/health", "/openapi.json")  # and /static/…: readable without a key
_NO_KEYS = (
    "without keys the service answers on loopback addresses only: create one with  memory-bank keys create "
    "NAME , or bind 127.0.0.1."
)
_TWO_LENGTHS = "a request has either Content-Length or Transfer-Encoding: send one of them, once."
_CLOSE = {"connection": "close"}
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
        headers = _RequestHeaders(scope["headers"])
        scope.setdefault("state", {})["key_header"] = None
        response = _Response(send)
        try:
            if headers.lengths > 1:
                await response.send_error(400, failures.body(_TWO_LENGTHS, "invalid_request", 400), _CLOSE)
                return
            if await self._admitted(scope, headers, response):
                body = _LimitedBody(receive, response, self._max_body(scope["state"]["caller"]))
                body.check(headers.length)
                await self.app(scope, body.receive, response.send)
                if response.replaced_by is not None:
                    raise response.replaced_by
        except MemoryBankError as e:
            status, content, added = failures.failure(e)
            if scope["path"] == MESSAGES or scope["path"].startswith(f"{MESSAGES}/"):
                content = failures.messages_body(str(e), status)
            await response.send_error(status, content, added)
        except (asyncio.CancelledError, ResponseAborted):
            raise
        except Exception as e:
            log.error("unexpected %s at %s", type(e).__name__, _locations(e))  # its text may have content
            message = f"unexpected {type(e).__name__}: see the log."
            await response.send_error(500, failures.body(message, "unforeseen", 500))

    async def _admitted(self, scope: Scope, headers: _RequestHeaders, response: _Response) -> bool:
        """Whether the request goes on; if not, it has been answered. Raises ServiceError."""
        server = scope.get("server")
        local = server[0] if server else None
        host = self._hosts.check_host(headers.hosts, local)
        fetch = {**headers.fetch, "method": scope["method"], "path": scope["path"]}
        page = self._hosts.check_page(headers.origins, host, scope["scheme"], fetch)
        if page is not None:
            response.page = page.encode("latin-1")
            if scope["method"] == "OPTIONS" and headers.preflight:
                await response.send_preflight(headers.wanted_headers)
                return False
        scope["state"]["caller"] = await self._caller(scope, headers, local)
        return True

    async def _caller(self, scope: Scope, headers: _RequestHeaders, local: str | None) -> Caller:
        keyring: Keyring = scope["app"].state.service.keyring
        await keyring.refresh()
        keys, scope["state"]["key_header"] = headers.keys()
        if len(keys) > 1:
            raise NotAuthorizedError(NO_KEY)
        is_open = _is_open(scope)
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

    def _max_body(self, caller: Caller) -> int:
        return self.settings.max_body_bytes if caller.max_body_bytes is None else caller.max_body_bytes


class ResponseAborted(Exception):
    """A response that cannot be completed: the server closes the connection, so that the client notices."""


class _RequestHeaders:
    """The headers that the gate reads."""

    __slots__ = (
        "_api_key", "_bearer", "_own", "fetch", "hosts", "length", "lengths", "origins", "preflight",
        "wanted_headers",
    )  # fmt: skip

    def __init__(self, headers: Headers) -> None:
        self.hosts: list[str] = []
        self.origins: list[str] = []
        self.fetch: dict[str, str] = {}
        self.length = 0
        self.lengths = 0
        self.preflight = False
        self.wanted_headers = b""
        self._own: list[str] = []
        self._bearer: list[str] = []
        self._api_key: list[str] = []
        for name, value in headers:
            if name == b"host":
                self.hosts.append(value.decode("latin-1"))
            elif name == b"authorization":
                scheme, _, key = value.decode("latin-1").strip().partition(" ")
                if scheme.lower() == "bearer" and key.strip().startswith("mb_"):
                    self._bearer.append(key.strip())
            elif name == b"x-api-key":
                if (key := value.decode("latin-1").strip()).startswith("mb_"):
                    self._api_key.append(key)
            elif name == b"x-memory-key":
                self._own.append(value.decode("latin-1").strip())
            elif name == b"content-length":
                self.lengths += 1
                self.length = int(value) if value.isdigit() and len(value) < 20 else 0
            elif name == b"transfer-encoding":
                self.lengths += 1
            elif name == b"origin":
                self.origins.append(value.decode("latin-1"))
            elif name.startswith(b"sec-fetch-"):
                self.fetch[name[10:].decode("latin-1")] = value.decode("latin-1").lower()
            elif name == b"access-control-request-method":
                self.preflight = True
            elif name == b"access-control-request-headers":
                self.wanted_headers = value

    def keys(self) -> tuple[list[str], str | None]:
        """The keys of this service and the header that has them; ``x-memory-key`` has precedence."""
        if self._own:
            return self._own, "x-memory-key"
        if self._api_key and not self._bearer:
            return self._api_key, "x-api-key"
        return self._bearer, "authorization" if self._bearer else None


class _LimitedBody:
    """A request's body, read up to a maximum size."""

    __slots__ = ("_left", "_max", "_receive", "_response")

    def __init__(self, receive: Receive, response: _Response, max_bytes: int) -> None:
        self._receive = receive
        self._response = response
        self._max = max_bytes
        self._left = max_bytes

    def check(self, length: int) -> None:
        if length > self._max:
            raise self._too_large()

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                raise self._too_large()
        return message

    def _too_large(self) -> TooLargeError:
        error = TooLargeError(f"the request's body is longer than {self._max:,} bytes: send less.")
        self._response.replaced_by = error
        return error


class _Response:
    """The response: adds headers, and sends errors in the one form."""

    __slots__ = ("_begun", "_send", "page", "replaced_by")

    def __init__(self, send: Send) -> None:
        self.page: bytes | None = None  # the allowed origin of a page that may read the response
        self.replaced_by: ServiceError | None = None  # sent instead of whatever the handler sends
        self._send = send
        self._begun = False

    async def send(self, message: Message) -> None:
        if self.replaced_by is not None:
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
        self.replaced_by = None
        if self._begun:
            raise ResponseAborted(f"a response was aborted with status {status}") from None
        body = orjson.dumps(content)
        sent = [(k.encode(), v.encode()) for k, v in (headers or {}).items()]
        sent += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self.send({"type": "http.response.start", "status": status, "headers": sent})
        await self.send({"type": "http.response.body", "body": body})

    async def send_preflight(self, wanted: bytes) -> None:
        """Allow a browser to send the request that it asks for."""
        headers = [
            (b"access-control-allow-methods", b"GET, POST, PUT, PATCH, DELETE, HEAD"),
            (b"access-control-allow-headers", wanted or b"authorization, content-type"),
            (b"access-control-allow-private-network", b"true"),
            (b"access-control-max-age", b"600"),
        ]
        await self.send({"type": "http.response.start", "status": 204, "headers": headers})
        await self.send({"type": "http.response.body", "body": b""})

    def _headers(self, headers: Headers) -> list[tuple[bytes, bytes]]:
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


def _is_open(scope: Scope) -> bool:
    """Whether a request needs no key."""
    path: str = scope["path"]
    return scope["method"] in ("GET", "HEAD") and (path in _OPEN_PATHS or path.startswith("/static/"))


def _locations(error: Exception) -> str:
    """The innermost frames of an error, without its text."""
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    return " < ".join(f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}" for frame in reversed(frames))
