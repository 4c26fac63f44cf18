"""The connection to the model's API: headers in each direction, answers as streams, the usage that they report."""

from __future__ import annotations

import hashlib
import json
import re
import ssl
import time
import urllib.request
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from urllib.parse import urlsplit

from anyio import CancelScope

from memory_bank.config import is_url
from memory_bank.errors import (
    ConfigError,
    MissingExtraError,
    NotAuthorizedError,
    NotFoundError,
    UpstreamError,
)
from memory_bank.models.usage import NO_USAGE, ReportedUsage, merge_usage, read_usage, usages_of
from memory_bank.service.proxy.body import JsonObject, as_object
from memory_bank.service.proxy.events import MOST_BYTES
from memory_bank.service.security.access import is_loopback, own_key

try:
    import httpx2
except ImportError:
    raise MissingExtraError("the service's HTTP client (httpx2)", "service") from None

Headers = list[tuple[bytes, bytes]]
"""Lower-case names and values, in order; a name may occur several times."""

_DOT_SEGMENT = re.compile(rb"(?:^|/|%2f|\\|%5c)(?:\.|%2e){1,2}(?:/|%2f|\\|%5c|$)", re.IGNORECASE)
_OWN_HEADER = b"x-memory-"
_AT_ONCE = 4  # requests in one pool
_NO_BODY = (204, 304)  # statuses without a body; what follows them is none of ours
_HOP_BY_HOP = frozenset(  # RFC 9110, section 7.6.1
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer"
    b" transfer-encoding upgrade".split()
)


async def after(first: bytes, rest: AsyncIterable[bytes] | None = None) -> AsyncIterator[bytes]:
    """Some bytes, and the rest of a stream after them."""
    if first:
        yield first
    if rest is not None:
        async for chunk in rest:
            yield chunk


async def _nothing() -> None:
    pass


@dataclass(slots=True, eq=False)
class UpstreamAnswer:
    """An answer that has begun.

    ``headers`` are those for the client. ``body`` is read once: the bytes as they arrive, encoded as the
    headers say; it raises UpstreamError when the answer breaks off. ``aclose`` releases the connection.
    ``is_readable``: it is a success and not compressed.
    """

    status: int
    headers: Headers
    body: AsyncIterator[bytes]
    aclose: Callable[[], Awaitable[None]] = _nothing
    is_readable: bool = True

    async def hold(self) -> bytes | None:
        """Read the whole body and release the connection; None for a body of more than ``MOST_BYTES``.

        ``body`` gives the same bytes then. Raises UpstreamError.
        """
        chunks = bytearray()
        try:
            async for chunk in self.body:
                chunks += chunk
                if len(chunks) > MOST_BYTES:
                    self.body = after(bytes(chunks), self.body)
                    return None
        except BaseException:
            await self.aclose()
            raise
        await self.aclose()
        self.aclose = _nothing
        self.body = after(data := bytes(chunks))
        return data

    @property
    def kind(self) -> bytes:
        """Its content-type in lower case; empty without one."""
        return next((value.strip().lower() for n, value in self.headers if n == b"content-type"), b"")

    @property
    def is_stream(self) -> bool:
        """Whether it is readable events."""
        return self.is_readable and self.kind.startswith(b"text/event-stream")

    def replace_body(self, body: bytes | AsyncIterator[bytes]) -> None:
        """Give it another body, with its length if that is known."""
        self.headers = [(n, v) for n, v in self.headers if n != b"content-length"]
        if isinstance(body, bytes):
            self.headers.append((b"content-length", str(len(body)).encode()))
        self.body = after(body) if isinstance(body, bytes) else body


@cache
def certificates() -> ssl.SSLContext:
    """The certificates of outgoing connections; loading them takes some 30 ms and a megabyte, so it is done once.

    Raises ConfigError where the environment names a file that holds no certificates.
    """
    try:
        return httpx2.create_ssl_context()
    except OSError:  # also ssl.SSLError
        raise ConfigError(
            "the certificates that SSL_CERT_FILE names cannot be read: name a PEM file, or unset it."
        ) from None


@dataclass(slots=True, eq=False)
class _Pool:
    """The connections of at most ``_AT_ONCE`` requests: each request looks at all connections of its pool."""

    transport: httpx2.AsyncHTTPTransport
    running: set[httpx2.Request] = field(default_factory=set)
    used: float = 0.0


class Upstream:
    """A model API at ``base_url`` with pools of connections, which are kept for ``kept`` seconds without a request.

    ``key`` is the service's own key there; ``timeout`` is in seconds without a byte; ``name`` is a digest of the URL.
    Requests are sent as given: no cookies, no retries, no redirects. A proxy that the environment names is used,
    except for loopback.

    Raises ConfigError for a URL that is not one, for a key that no header can hold, and for a proxy or certificates
    that cannot be used.
    """

    def __init__(
        self, base_url: str, *, timeout: float = 600.0, key: str | None = None, kept: float = 60.0
    ) -> None:
        self.key = key and key.strip()
        if self.key and not (self.key.isascii() and self.key.isprintable()):
            raise ConfigError(
                f"the service's own key for {base_url} cannot be sent: copy it again, in plain ASCII."
            )
        try:
            self._base = httpx2.URL(base_url)
        except (httpx2.InvalidURL, UnicodeError):
            raise ConfigError("the upstream is not a valid URL: check --upstream.") from None
        self.name = hashlib.sha256(base_url.encode()).hexdigest()[:8]
        self._path = self._base.raw_path.rstrip(b"/")
        self._timeout = timeout
        self._timeouts = httpx2.Timeout(timeout, connect=min(30.0, timeout)).as_dict()
        self._kept, self._proxy = kept, proxy_for(base_url)
        self._pools = [self._pool()]

    def _pool(self) -> _Pool:
        limits = httpx2.Limits(max_keepalive_connections=_AT_ONCE, keepalive_expiry=self._kept)
        return _Pool(httpx2.AsyncHTTPTransport(verify=certificates(), limits=limits, proxy=self._proxy))

    async def _pool_for(self, request: httpx2.Request) -> _Pool:
        """The first pool with room for a request; the last ones are closed when they have long been idle."""
        now = time.monotonic()
        while len(self._pools) > 1 and not (last := self._pools[-1]).running and now - last.used > self._kept:
            self._pools.pop()
            await last.transport.aclose()
        pool = next((p for p in self._pools if len(p.running) < _AT_ONCE), None)
        if pool is None:
            self._pools.append(pool := self._pool())
        pool.running.add(request)
        pool.used = now
        return pool

    async def send(
        self,
        method: str,
        path: bytes,
        headers: Headers,
        body: bytes | AsyncIterable[bytes] = b"",
        *,
        query: bytes = b"",
        usage: UsageReader | None = None,
    ) -> UpstreamAnswer:
        """Send a request and return when its answer begins; the caller closes the answer.

        ``path`` follows the base URL and is sent as it is. ``headers`` are those of ``request_headers``; the
        length of a body of bytes is set here. ``usage`` reads the answer as it passes.

        Raises UpstreamError without an answer, NotFoundError for a path with dot segments, and whatever
        reading the body raises.
        """
        if _DOT_SEGMENT.search(path):
            raise NotFoundError("there is no such path: dot segments are not allowed.")
        if isinstance(body, bytes):
            headers = [(n, v) for n, v in headers if n != b"content-length"]
        if method == "HEAD":
            headers = [*headers, (b"connection", b"close")]
        target = self._path + path + (b"?" + query if query else b"")
        request = httpx2.Request(
            method,
            self._base,
            headers=headers,
            content=body,
            extensions={"timeout": self._timeouts, "target": target},
        )
        pool = await self._pool_for(request)
        try:
            response = await pool.transport.handle_async_request(request)
        except BaseException as e:
            pool.running.discard(request)
            if not isinstance(e, httpx2.TransportError):
                raise
            closed = isinstance(e, (httpx2.RemoteProtocolError, httpx2.NetworkError))
            passing = not closed or isinstance(e, httpx2.ConnectError)
            raise UpstreamError(self._describe(e), passing=passing) from None
        stream = response.stream
        assert isinstance(stream, httpx2.AsyncByteStream)
        # a body that should not be there, or bytes behind the answer, would be read as the answer to another request
        reusable = method != "HEAD" and response.status_code not in _NO_BODY

        async def close() -> None:
            """Release the connection; it is closed if bytes are still to come."""
            pool.running.discard(request)
            with CancelScope(shield=True):
                if not reusable or _has_more(stream):
                    await response.extensions["network_stream"].aclose()  # the pool drops it then
                await stream.aclose()

        raw = (
            response.headers.raw
        )  # our own server adds ``date`` and ``server``; a browser would keep the next two
        dropped = {b"date", b"server", b"set-cookie", b"service-worker-allowed"}
        if any(name.lower() == b"transfer-encoding" for name, _ in raw):
            dropped.add(b"content-length")  # which contradicts it
        passed = [(n, v) for n, v in _end_to_end(raw) if n not in dropped and not n.startswith(_OWN_HEADER)]
        passed.append((b"content-security-policy", b"sandbox"))
        is_plain = response.headers.get("content-encoding", "").strip().lower() in ("", "identity")
        is_readable = is_plain and 200 <= response.status_code < 300
        if usage is not None:
            usage.is_readable = is_readable
        answer = UpstreamAnswer(response.status_code, passed, _chunks(stream, usage), close, is_readable)
        if not 200 <= answer.status <= 599:
            await answer.aclose()
            raise UpstreamError(f"the model's API answered with the invalid status {answer.status}.")
        return answer

    async def aclose(self) -> None:
        """Close all connections."""
        for pool in self._pools:
            await pool.transport.aclose()

    def _describe(self, error: httpx2.TransportError) -> str:
        where = f"the model's API at {self._base.netloc.decode('ascii')}"
        if isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout)):
            return f"{where} cannot be reached: check --upstream, or try again later."
        if isinstance(error, httpx2.TimeoutException):
            return f"{where} has sent nothing for {self._timeout:g} seconds: try again later."
        if isinstance(error, httpx2.ProxyError):
            return f"the proxy to {where} refuses the connection: check HTTPS_PROXY."
        if isinstance(error, (httpx2.RemoteProtocolError, httpx2.NetworkError)):
            return f"{where} closed the connection without an answer: try again."
        return f"the request cannot be sent to {where} as it is ({type(error).__name__})."


async def _chunks(stream: httpx2.AsyncByteStream, usage: UsageReader | None) -> AsyncIterator[bytes]:
    """The bytes of an answer as they arrive, which ``usage`` reads. Raises UpstreamError."""
    try:
        async for chunk in stream:
            if usage is not None and usage.is_readable:
                usage.feed(chunk)
            yield chunk
    except httpx2.TimeoutException:
        raise UpstreamError("the model's API stopped sending within its answer.", passing=True) from None
    except httpx2.TransportError:
        raise UpstreamError("the model's API broke off within its answer.") from None


def _has_more(stream: object) -> bool:
    """Return whether bytes behind the end of an answer have been read; True if that cannot be known."""
    # the HTTP client has no public way to ask: its parser holds them until the next answer
    inner = getattr(getattr(stream, "_httpcore_stream", None), "_stream", None)
    parser = getattr(getattr(inner, "_connection", None), "_h11_state", None)
    return parser is None or bool(parser.trailing_data[0])


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for a URL. Raises ConfigError for one that cannot be used."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host) or urllib.request.proxy_bypass(host):
        return None
    proxies = urllib.request.getproxies()
    name = parts.scheme if proxies.get(parts.scheme) else "all"
    proxy = proxies.get(name)
    if not proxy:
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not (is_url(proxy) and proxy.isascii()):
        raise ConfigError(
            f"the proxy in {name.upper()}_PROXY cannot be used for {url}: set one such as http://host:3128, unset "
            "it, or list the host in NO_PROXY."
        )
    return proxy


# headers


def request_headers(
    headers: Iterable[tuple[bytes, bytes]], upstream_key: str | None, key_header: bytes = b"authorization"
) -> Headers:
    """The headers of a request that go upstream.

    Headers that begin with ``x-memory-`` are removed, and a key of this service is replaced by
    ``upstream_key`` in the header that this upstream reads: ``authorization`` or ``x-api-key``. Raises
    NotAuthorizedError when there is no such key.
    """
    passed: Headers = []
    for name, value in _end_to_end(headers):
        if name in (b"host", b"expect") or name.startswith(_OWN_HEADER):
            continue
        if own_key(name, value):
            if not upstream_key:
                variable = "OPENAI_API_KEY" if key_header == b"authorization" else "ANTHROPIC_API_KEY"
                raise NotAuthorizedError(
                    f"the service has no key of its own for the model's API: set {variable} where it "
                    "runs, or send the API's key as that API asks for it and the service's as x-memory-key."
                )
            name = key_header
            if any(n == name for n, _ in passed):  # sent in both headers
                continue
            value = (upstream_key if name == b"x-api-key" else f"Bearer {upstream_key}").encode()
        passed.append((name, value))
    return passed


def credential_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The credential for the upstream in these headers, of several all; None without one."""
    names = (b"authorization", b"api-key", b"x-api-key")
    keys = sorted((name, value) for name, value in headers if name in names and value.strip())
    return b"\n".join(value for _, value in keys).decode("latin-1") or None


def _end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Headers with lower-case names, without hop-by-hop headers and those that ``Connection`` names."""
    lowered = [(name.lower(), value) for name, value in headers]
    connection = {token.strip().lower() for n, v in lowered if n == b"connection" for token in v.split(b",")}
    return [(n, v) for n, v in lowered if n not in _HOP_BY_HOP and n not in connection]


# usage


@dataclass(slots=True, eq=False)
class UsageReader:
    """Finds the usage in an answer: it keeps a whole answer up to ``KEPT`` bytes, of a stream the last line."""

    is_readable: bool = True
    _data: bytes = b""
    _is_stream: bool | None = None
    _usage: JsonObject = field(default_factory=dict)

    KEPT = 262_144

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the answer."""
        self._data += chunk
        if self._is_stream is None and (begun := self._data.lstrip(b"\xef\xbb\xbf \t\r\n")):
            self._is_stream = not begun.startswith((b"{", b"["))
        if self._is_stream:
            *lines, self._data = self._data.replace(b"\r", b"\n").split(b"\n")
            for line in lines:
                self._read(line.removeprefix(b"data:"))
        if len(self._data) > 2 * self.KEPT:
            self._data = self._data[-self.KEPT :]

    def report(self) -> ReportedUsage:
        """The usage of the answer. Counts in a stream are those so far: the last that is not zero is taken."""
        if not self.is_readable:
            return ReportedUsage(untold="the answer is compressed")
        self._read(self._data.removeprefix(b"data:"))
        self._data = b""
        return read_usage(self._usage or None)

    def _read(self, text: bytes) -> None:
        if b"sage" not in text:  # usage, usageMetadata
            return
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            found = _last_usage(text)
        else:
            found = [dict(usage) for usage in usages_of(as_object(answer))]
        for usage in found:
            self._usage = merge_usage(self._usage, usage) if self._usage else usage


def _last_usage(text: bytes) -> list[JsonObject]:
    """The last usage in a text that is not whole, if there is one."""
    for end in reversed([match.end() for match in re.finditer(b'"usage":', text)]):
        try:
            usage, _ = json.JSONDecoder().raw_decode(text[end:].decode("utf-8", "replace").lstrip())
        except (ValueError, RecursionError):
            continue
        if isinstance(usage, dict) and read_usage(usage) != NO_USAGE:
            return [usage]
    return []
