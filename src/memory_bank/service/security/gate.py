"""What every request passes before a handler sees it: who asks, and whether it may."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import traceback
from typing import Any

import orjson

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
from memory_bank.service.security.access import LOCAL, NOBODY, Caller
from memory_bank.service.security.hosts import Doors, address_of, check_loopback
from memory_bank.service.security.keyring import NO_KEY, Keyring
from memory_bank.service.security.limits import Limits

log = logging.getLogger("memory_bank.Service")

_OPEN = ("/", "/health", "/openapi.json")  # and what is below /static/: for everyone, read only
_GIVEN_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_KEYLESS = (
    "without keys the service answers over loopback only: run  memory-bank keys create NAME , or bind it to "
    "127.0.0.1."
)
_TOLD = b", ".join(  # what a page elsewhere may read of the headers
    (
        b"x-request-id", b"x-memory-request-id", b"x-memory-status", b"x-memory-reason", b"x-memory-session",
        b"x-memory-tokens", b"x-memory-fetched", b"retry-after",
    )
)  # fmt: skip


def check_binding(settings: ServiceSettings, database: Database) -> None:
    """Refuse to listen beyond loopback for a service without keys. Raises ConfigError."""
    if not check_loopback(settings.host) and not Keys(database).all():
        raise ConfigError(
            f"without keys only loopback is served, and {settings.host} is not: run  memory-bank keys create "
            "NAME  first, or bind 127.0.0.1."
        )


class Gate:
    """ASGI middleware, the outermost: host, page, key, rate and size are looked at.

    Leaves in the scope's state: ``caller`` (Caller), ``request_id``, and ``key_header``, the header that
    brought a key of ours (None: none did). Every answer gets the request's id: as ``x-request-id``, or as
    ``x-memory-request-id`` where it has one already.
    """

    def __init__(self, app: Any, settings: ServiceSettings, doors: Doors) -> None:
        self.app = app
        self.settings = settings
        self._doors = doors
        self._limits = Limits(settings.workers)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":  # there is none here
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        asked = _Asked(scope["headers"])
        state = scope.setdefault("state", {})
        state.setdefault("request_id", asked.request_id)  # unless who notes requests has given one
        state["key_header"] = None
        answer = _Answer(send, state["request_id"])
        try:
            if await self._admitted(scope, asked, answer):
                body = _Body(receive, answer, self._longest(state["caller"]))
                body.check(asked.length)
                await self.app(scope, body.receive, answer.send)
                if answer.instead is not None:
                    raise answer.instead
        except MemoryBankError as e:
            await answer.tell(*failures.failure(e))
        except (asyncio.CancelledError, BrokenOff):
            raise
        except Exception as e:
            log.error("an unforeseen %s at %s", type(e).__name__, _places(e))  # its words may be contents
            said = f"an unforeseen {type(e).__name__}: see the log."
            await answer.tell(500, failures.body(said, "unforeseen", 500))

    async def _admitted(self, scope: Any, asked: _Asked, answer: _Answer) -> bool:
        """Whether the request goes on; else it is answered. Raises ServiceError."""
        method = scope["method"]
        server = scope.get("server")
        local = server[0] if server else None
        host = self._doors.check_host(asked.hosts, local)
        page = self._doors.check_page(asked.origins, host, scope["scheme"], {**asked.fetch, "method": method})
        if page is not None:
            answer.page = page.encode("latin-1")
            if method == "OPTIONS" and asked.preflight:
                await answer.preflight(asked.wanted_headers)
                return False
        scope["state"]["caller"] = await self._caller(scope, asked, local)
        return True

    async def _caller(self, scope: Any, asked: _Asked, local: str | None) -> Caller:
        keyring: Keyring = scope["app"].state.service.keyring
        await keyring.refresh()
        keys, scope["state"]["key_header"] = asked.keys()
        if len(keys) > 1:
            raise NotAuthorizedError(NO_KEY)
        if keyring.required and not keys and _is_open(scope):
            return NOBODY
        caller = keyring.caller(keys[0] if keys else None)
        if caller is LOCAL:
            address = address_of(local or "")
            if address is not None and not address.is_loopback:
                raise OriginError(_KEYLESS)
        if not _is_open(scope):
            own = caller.requests_per_minute
            self._limits.take(caller.key_id, self.settings.requests_per_minute if own is None else own)
        return caller

    def _longest(self, caller: Caller) -> int:
        return self.settings.max_body_bytes if caller.max_body_bytes is None else caller.max_body_bytes


class BrokenOff(Exception):
    """An answer that cannot be ended: the connection is closed, so that the client notices."""


class _Asked:
    """What the gate looks at in a request's headers."""

    __slots__ = (
        "_bearer", "_own", "fetch", "hosts", "length", "origins", "preflight", "request_id", "wanted_headers",
    )  # fmt: skip

    def __init__(self, headers: Any) -> None:
        self.hosts: list[str] = []
        self.origins: list[str] = []
        self.fetch: dict[str, str] = {}
        self.length = 0
        self.preflight = False
        self.wanted_headers = b""
        self.request_id = ""
        self._own: list[str] = []
        self._bearer: list[str] = []
        for name, value in headers:
            if name == b"host":
                self.hosts.append(value.decode("latin-1"))
            elif name == b"authorization":
                scheme, _, key = value.decode("latin-1").strip().partition(" ")
                if scheme.lower() == "bearer" and key.strip().startswith("mb_"):
                    self._bearer.append(key.strip())
            elif name == b"x-memory-key":
                self._own.append(value.decode("latin-1").strip())
            elif name == b"content-length":
                self.length = int(value) if value.isdigit() and len(value) < 20 else 0
            elif name == b"origin":
                self.origins.append(value.decode("latin-1"))
            elif name == b"x-request-id":
                self.request_id = value.decode() if _GIVEN_ID.fullmatch(value) else ""
            elif name.startswith(b"sec-fetch-"):
                self.fetch[name[10:].decode("latin-1")] = value.decode("latin-1").lower()
            elif name == b"access-control-request-method":
                self.preflight = True
            elif name == b"access-control-request-headers":
                self.wanted_headers = value
        self.request_id = self.request_id or secrets.token_hex(16)

    def keys(self) -> tuple[list[str], str | None]:
        """The service keys that are presented, and in which header: ``x-memory-key`` before others."""
        if self._own:
            return self._own, "x-memory-key"
        return self._bearer, "authorization" if self._bearer else None


class _Body:
    """A request's body as it comes in, up to its longest."""

    __slots__ = ("_answer", "_left", "_longest", "_receive")

    def __init__(self, receive: Any, answer: _Answer, longest: int) -> None:
        self._receive = receive
        self._answer = answer
        self._longest = longest
        self._left = longest

    def check(self, length: int) -> None:
        if length > self._longest:
            raise self._too_large()

    async def receive(self) -> Any:
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                raise self._too_large()
        return message

    def _too_large(self) -> TooLargeError:
        error = TooLargeError(f"the request's body is longer than {self._longest:,} bytes: send less.")
        self._answer.instead = error
        return error


class _Answer:
    """An answer on its way out: headers added, failures in the one shape."""

    __slots__ = ("_begun", "_id", "_send", "instead", "page")

    def __init__(self, send: Any, request_id: str) -> None:
        self.page: bytes | None = None  # the origin of a page elsewhere that may read the answer
        self.instead: ServiceError | None = None  # what is answered whatever the handler makes of it
        self._send = send
        self._id = request_id.encode()
        self._begun = False

    async def send(self, message: Any) -> None:
        if self.instead is not None:
            if self._begun:
                raise BrokenOff("an answer was broken off: its request went on too long")
            return
        if message["type"] == "http.response.start":
            self._begun = True
            message = {**message, "headers": self._completed(message.get("headers", ()))}
        await self._send(message)

    async def tell(self, status: int, told: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        """Answer with a failure. Raises BrokenOff where an answer has begun."""
        self.instead = None
        if self._begun:
            raise BrokenOff(f"an answer was broken off: {told['error']['code']}") from None
        body = orjson.dumps(told)
        sent = [(k.encode(), v.encode()) for k, v in (headers or {}).items()]
        sent += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self.send({"type": "http.response.start", "status": status, "headers": sent})
        await self.send({"type": "http.response.body", "body": body})

    async def preflight(self, wanted: bytes) -> None:
        """Tell a browser that the page may send what it asks to send."""
        headers = [
            (b"access-control-allow-methods", b"GET, POST, PUT, PATCH, DELETE, HEAD"),
            (b"access-control-allow-headers", wanted or b"authorization, content-type"),
            (b"access-control-allow-private-network", b"true"),
            (b"access-control-max-age", b"600"),
        ]
        await self.send({"type": "http.response.start", "status": 204, "headers": headers})
        await self.send({"type": "http.response.body", "body": b""})

    def _completed(self, headers: Any) -> list[tuple[bytes, bytes]]:
        out = list(headers)
        names = {name.lower() for name, _ in out}
        out.append((b"x-memory-request-id" if b"x-request-id" in names else b"x-request-id", self._id))
        if b"x-content-type-options" not in names:
            out.append((b"x-content-type-options", b"nosniff"))
        if b"cache-control" not in names and b"x-memory-status" not in names:
            out.append((b"cache-control", b"no-store"))
        if self.page is not None:
            out = [(k, v) for k, v in out if k.lower() not in _OF_PAGES]
            out += [
                (b"access-control-allow-origin", self.page),
                (b"access-control-expose-headers", _TOLD),
                (b"vary", b"origin"),
            ]
        return out


_OF_PAGES = frozenset(
    {b"access-control-allow-origin", b"access-control-allow-credentials", b"access-control-expose-headers"}
)


def _is_open(scope: Any) -> bool:
    """Whether a request needs no key."""
    path: str = scope["path"]
    return scope["method"] in ("GET", "HEAD") and (path in _OPEN or path.startswith("/static/"))


def _places(error: Exception) -> str:
    """Where an error came from, without its words."""
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    return " < ".join(f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}" for frame in reversed(frames))
