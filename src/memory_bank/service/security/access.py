"""Who may call the service: hosts, web pages, keys and limits, and the namespace that separates callers' sessions.

``Gate`` is the outermost middleware. Starlette's TrustedHostMiddleware and CORSMiddleware do not fit: the first does
not know the address at which a request arrived, and the second lets requests of foreign pages through and only omits
headers.

A name server can point an attacker's name at this machine, so that a page in the user's browser reaches what
listens on loopback. The browser then sends the attacker's name as ``Host``; therefore only known names are
accepted, with and without keys.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import re
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, unquote_to_bytes

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memory_bank.bank.database import Database
from memory_bank.bank.keys import ApiKey, Keys, digest_of, key_id_of
from memory_bank.config import ServiceSettings
from memory_bank.errors import (
    ConfigError,
    MemoryBankError,
    NotAuthorizedError,
    OriginError,
    StorageError,
    TooLargeError,
    TooManyRequestsError,
)
from memory_bank.records import NAMESPACE_END
from memory_bank.service import failures
from memory_bank.service.security.secrets import known_form

log = logging.getLogger("memory_bank.Service")

LONGEST_NAME = 180
"""Characters of a session's name."""
NO_KEY = "no valid key: send Authorization: Bearer mb_… (or x-memory-key: mb_…)."
_UNKNOWN = ApiKey("", "", None, False, 0.0, digest=digest_of(""))  # what an unknown key is compared with

SESSIONS_PATH = "/v1/sessions/"
_PORT = {"http": 80, "https": 443}
_HOST = re.compile(r"(?:\[([0-9a-f:.]{2,45})\]|([a-z0-9_](?:[a-z0-9._-]{0,253})))(?::(\d{0,5}))?")
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]{0,40})://([^/\s@]{1,260})")

_Origin = tuple[str, str, int | None]  # scheme, host, port
MOST_HEAD = 65_536
"""The most bytes of a request line with its headers; a request with more is refused with status 431."""
_OPEN_PATHS = (
    "/",
    "/health",
    "/healthz",
    "/readyz",
    "/openapi.json",
)  # and /static/…: readable without a key


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a request. ``namespace`` is None in a service without keys.

    ``operator``: may see health details and metrics. ``requests_per_minute`` and ``max_body_bytes`` are the
    key's own limits; None: those of the settings apply.
    """

    namespace: str | None = None
    key_id: str | None = None
    operator: bool = False
    requests_per_minute: int | None = None
    max_body_bytes: int | None = None


LOCAL = Caller(operator=True)
"""The caller in a service without keys: the user of this machine."""
NOBODY = Caller(namespace="")
"""The caller without a key on a route that needs none; no session is in this namespace."""


def caller_of(request: HTTPConnection) -> Caller:
    """The caller of a request, as the gate has determined it."""
    caller: Caller = request.state.caller
    return caller


def stored_id(namespace: str | None, name: str) -> str:
    """The session_id in the database of the session that a caller names. Raises ConfigError."""
    if not name or len(name) > LONGEST_NAME or not name.isprintable() or NAMESPACE_END in name:
        raise ConfigError(f"a session's name (or a project's) is 1 to {LONGEST_NAME} printable characters.")
    if name in (".", ".."):  # no path of the API could name it
        raise ConfigError("a session cannot be named . or .. : choose another name.")
    return name if namespace is None else f"{namespace}{NAMESPACE_END}{name}"


def writable_id(namespace: str | None, name: str) -> str:
    """``stored_id`` of a new session or agent. Raises ConfigError, also for a name with a secret of a known form."""
    if kind := known_form(name[:LONGEST_NAME]):
        raise ConfigError(f"a name holds what looks like a secret ({kind}): choose another name.")
    return stored_id(namespace, name)


def project_named(namespace: str | None, headers: Mapping[str, str]) -> str | None:
    """The project that a request names. Raises ConfigError for a name that is none."""
    if "x-memory-agent" in headers:
        raise ConfigError("there is no header x-memory-agent: name the project by x-memory-project.")
    named = unquote(headers.get("x-memory-project") or "").strip()
    if named:
        writable_id(namespace, named)
    return named or None


def public_name(namespace: str | None, session_id: str) -> str:
    """The name by which a caller knows the session with this id."""
    return session_id if namespace is None else session_id.removeprefix(f"{namespace}{NAMESPACE_END}")


def own_key(name: bytes, value: bytes) -> str:
    """The key of this service in a header in which clients send keys; "" without one."""
    key = value.decode("latin-1").strip()
    if name == b"x-memory-key":
        return key
    if name == b"authorization":
        scheme, _, key = key.partition(" ")
        key = key.strip() if scheme.lower() == "bearer" else ""
    elif name != b"x-api-key":
        return ""
    return key if key.startswith("mb_") else ""


class Keyring:
    """The keys in the database, read again every second. For one event loop.

    The constructor reads them and may raise StorageError. If the database fails later, the known keys stay
    valid.
    """

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.required = False
        self._stored = Keys(database)
        self._clock = clock
        self._valid: dict[str, ApiKey] = {}
        self._read_at = -math.inf
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="memory-bank-keys")
        self._reading: asyncio.Future[None] | None = None
        self._failing = False
        self._read()

    async def refresh(self) -> None:
        """Read the keys again if they are older than half a second; waits for it if they are older than one."""
        age = self._clock() - self._read_at
        if age > 0.5:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.get_running_loop().run_in_executor(self._thread, self._read)
            if age > 1.0:
                await asyncio.wait({self._reading}, timeout=1.0)

    def caller(self, key: str | None) -> Caller:
        """The caller with this key; ``LOCAL`` if no key was ever created. Raises NotAuthorizedError."""
        if not self.required:
            return LOCAL
        stored = self._valid.get(key_id_of(key or "") or "", _UNKNOWN)
        if not stored.fits(key or "") or stored is _UNKNOWN:
            raise NotAuthorizedError(NO_KEY)
        limits = stored.requests_per_minute, stored.max_body_bytes
        return Caller(stored.namespace, stored.key_id, stored.operator, *limits)

    def close(self) -> None:
        """Stop the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _read(self) -> None:
        began = self._clock()
        try:
            every = self._stored.all()
        except StorageError:
            if self._read_at == -math.inf:  # the constructor's
                raise
            if not self._failing:
                log.warning("the keys cannot be read from the database: the known ones stay valid.")
            self._failing = True
            return
        self._failing = False
        self._valid = {k.key_id: k for k in every if k.revoked is None}
        self.required = self.required or bool(every)  # a database that loses its keys opens nothing
        self._read_at = began


class RateLimits:
    """A token bucket a key, refilled over a minute; each of ``workers`` grants its share. For one event loop."""

    def __init__(self, workers: int = 1, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.workers = workers
        self.clock = clock
        self._buckets: dict[str | None, tuple[float, float, float]] = {}  # requests left, when, size

    def take(self, key: str | None, per_minute: int) -> None:
        """Count a request; 0 per minute is unlimited. Raises TooManyRequestsError."""
        if not per_minute:
            return
        share, now = per_minute / self.workers, self.clock()
        size = max(1.0, share)
        left, then, had = self._buckets.get(key, (size, now, size))
        left = min(size, left + (now - then) * share / 60) if had == size else size
        self._buckets[key] = (left - 1 if left >= 1 else left, now, size)
        if left < 1:
            raise TooManyRequestsError(
                f"more than {per_minute:,} requests per minute: wait, then send it again.",
                (1 - left) * 60 / share,
            )


# hosts and web pages


@lru_cache(maxsize=64)
def host_and_port(text: str) -> tuple[str, int | None] | None:
    """Parse a ``Host`` header into (normalised name or address, port or None); None if it is invalid.

    >>> host_and_port("LOCALHOST.:8767"), host_and_port("[0:0:0:0:0:0:0:1]:80")
    (('localhost', 8767), ('::1', 80))
    """
    match = _HOST.fullmatch(text.lower())
    if match is None:
        return None
    address, name, port = match.groups()
    number = int(port) if port else None
    if number is not None and number > 65_535:
        return None
    if address is not None:
        ip = address_of(address)
        return None if ip is None or ":" not in address else (str(ip), number)
    name = name.removesuffix(".")
    ip = address_of(name)
    if ip is not None:
        return str(ip), number
    return None if not name or ".." in name else (name, number)


@lru_cache(maxsize=64)
def address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an IP address, an IPv4-mapped one as IPv4; None for a name."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address or ``localhost``."""
    address = address_of(host)
    return host == "localhost" if address is None else address.is_loopback


def _origin_of(text: str) -> _Origin | None:
    """Parse an ``Origin``; None for ``null`` and invalid ones."""
    match = _ORIGIN.fullmatch(text.lower())
    where = host_and_port(match[2]) if match else None
    if match is None or where is None:
        return None
    return match[1], where[0], where[1] or _PORT.get(match[1])


class AllowedHosts:
    """The host names that the settings allow. Raises ConfigError for invalid ones."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._bound = str(address_of(settings.host) or settings.host.lower().removesuffix("."))
        self._hosts: set[tuple[str, int | None]] = set()
        for name in settings.allowed_hosts:
            try:
                host = host_and_port(name if name.isascii() else name.encode("idna").decode())
            except UnicodeError:
                host = None
            if host is None:
                raise ConfigError(f"allowed_hosts: {name!r} is no host name such as bank.example .")
            self._hosts.add(host)

    def check(self, scope: Scope, headers: Headers) -> None:
        """Raise OriginError for a request of another web page than the service's own, and for another host.

        A link of another site leads to the page at ``/`` alone.
        """
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1:
            raise OriginError("a request must have exactly one Host header.")
        host = host_and_port(hosts[0])
        server = scope["server"][0] if scope.get("server") else None
        if host is None or not (
            is_loopback(host[0])
            or host[0] == self._bound
            or not self._hosts.isdisjoint((host, (host[0], None)))
            or (server is not None and host[0] == str(address_of(server) or server))
        ):
            raise OriginError(
                "this host name is not allowed: use the service's address or localhost, or add the name to "
                "allowed_hosts."
            )
        if origins:
            page = _origin_of(origins[0]) if len(origins) == 1 else None
            # the service's own page; a proxy may terminate TLS, so https is accepted for http
            refused = page not in [(s, host[0], host[1] or _PORT.get(s)) for s in (scope["scheme"], "https")]
        else:
            fetch = {name[10:]: v.lower() for name, v in headers.items() if name.startswith("sec-fetch-")}
            is_link = fetch.get("mode") == "navigate" and fetch.get("dest") == "document"
            is_link = is_link and scope["method"] in ("GET", "HEAD") and scope["path"] == "/"
            # another port of localhost is the same site
            refused = fetch.get("site") in ("cross-site", "same-site") and not is_link
        if refused:
            raise OriginError("this web page may not call the service: only the service's own may.")


def check_binding(settings: ServiceSettings, database: Database) -> None:
    """Raise ConfigError if a service without keys would listen beyond this machine, and for an unknown host."""
    host = settings.host
    try:
        if "\0" in host:  # the C library would read it up to there
            raise ValueError
        addresses = [host] if address_of(host) else [str(i[4][0]) for i in socket.getaddrinfo(host, None)]
    except (OSError, ValueError):
        raise ConfigError(f"the host {host!r} is unknown: give an address such as 127.0.0.1.") from None
    if not all(is_loopback(address.partition("%")[0]) for address in addresses) and not Keys(database).all():
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
            # its first line and headers, as most clients write them
            line = len(scope["method"]) + len(scope.get("raw_path") or b"") + len(scope["query_string"]) + 16
            if line + sum(len(name) + len(value) + 4 for name, value in scope["headers"]) > MOST_HEAD:
                body = failures.body(f"a request's head has up to {MOST_HEAD:,} bytes.", "too_large", 431)
                await guarded.send_error(431, body, {"connection": "close"})
                return
            if scope["method"] == "CONNECT":  # its 200 would mean a tunnel
                body = failures.body("this is no forward proxy: CONNECT is not allowed.", "http_error", 405)
                await guarded.send_error(405, body, {"connection": "close", "allow": "GET, POST"})
                return
            self._hosts.check(scope, headers)
            caller = scope["state"]["caller"] = await self._caller(scope, headers)
            most = caller.max_body_bytes
            guarded.limit(self.settings.max_body_bytes if most is None else most, lengths)
            if scope["path"].startswith(SESSIONS_PATH):
                scope["path"] = path_by_segments(scope)
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
            most = caller.requests_per_minute
            self._limits.take(caller.key_id, self.settings.requests_per_minute if most is None else most)
        return caller


def path_by_segments(scope: Scope) -> str:
    """Return the path by which a route is matched: an encoded slash (%2F) in a session's name stays encoded.

    Servers decode the whole path before routes are matched. This decodes each segment by itself and encodes its
    slashes and percent signs again; handlers decode them.
    """
    raw = scope.get("raw_path") or b""
    if raw.startswith(SESSIONS_PATH.encode()):
        segments = [unquote_to_bytes(s).decode("utf-8", "surrogateescape") for s in raw.split(b"/")]
    else:
        segments = scope["path"].split("/")
    return "/".join(s.replace("%", "%25").replace("/", "%2F") for s in segments)


class ResponseAborted(Exception):
    """Raised when a response has begun and cannot be finished: the server then closes the client's connection."""


@dataclass(slots=True, eq=False)
class _Guarded:
    """The ``receive`` and ``send`` of a request: limits its body, and adds headers to its response."""

    _receive: Receive
    _send: Send
    too_large: TooLargeError | None = None
    _max: int = 0
    _left: int = 0
    _begun: bool = False

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
