"""The way to the model's API: requests go out as they are given, answers come back byte by byte."""

from __future__ import annotations

import ipaddress
import re
import urllib.request
from collections.abc import AsyncIterable, AsyncIterator

from anyio import CancelScope

from memory_bank.errors import ConfigError, MissingExtraError, NotFoundError, UpstreamError
from memory_bank.service.forwarding import Headers, answer_headers

try:
    import httpx2
except ImportError:
    raise MissingExtraError("the service's way upstream (httpx2)", "service") from None

CONNECT_TIMEOUT = 30.0
KEEP_ALIVE = 60.0
IDLE_CONNECTIONS = 100

_DOTS = re.compile(rb"(?:^|/|%2f|\\|%5c)(?:\.|%2e){1,2}(?:/|%2f|\\|%5c|$)", re.IGNORECASE)


class Answer:
    """An answer that has begun: ``status``, ``headers`` as they go to the client, ``body`` to be read once.

    ``body`` gives the bytes as they come, encoded as the headers say, and raises UpstreamError where they end
    too early. ``aclose`` lets go of what is held for it, at any point.
    """

    def __init__(self, status: int, headers: Headers, body: AsyncIterable[bytes]) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    async def aclose(self) -> None:
        """Nothing is held."""


class Upstream:
    """One model's API at ``base_url``, and the connections to it that are kept open.

    ``key`` is the service's own there; ``timeout`` the seconds without a byte after which it is given up.
    Nothing of a request stays: no cookies, no keys. There are no retries and no redirects: those are the
    client's. A proxy that the environment names is used, except towards loopback.

    Raises ConfigError for a URL that cannot be one.
    """

    def __init__(self, base_url: str, *, timeout: float = 600.0, key: str | None = None) -> None:
        self.key = key
        try:
            self._base = httpx2.URL(base_url)
        except (httpx2.InvalidURL, UnicodeError):
            raise ConfigError("the upstream is no URL that can be asked: check --upstream.") from None
        self._path = self._base.raw_path.rstrip(b"/")
        self._timeout = timeout
        self._timeouts = {"read": timeout, "write": timeout, "pool": timeout}
        self._timeouts["connect"] = min(CONNECT_TIMEOUT, timeout)
        limits = httpx2.Limits(max_keepalive_connections=IDLE_CONNECTIONS, keepalive_expiry=KEEP_ALIVE)
        try:
            self._transport = httpx2.AsyncHTTPTransport(limits=limits, proxy=_proxy_for(self._base))
        except (ImportError, ValueError):
            raise ConfigError(
                "the proxy that the environment names cannot be used: name an http:// one, or none."
            ) from None

    async def send(
        self,
        method: str,
        path: bytes,
        headers: Headers,
        body: bytes | AsyncIterable[bytes] = b"",
        *,
        query: bytes = b"",
    ) -> Answer:
        """Send a request and return when its answer begins; who calls closes the answer.

        ``path`` is what follows the base URL, sent as it is; ``headers`` are those that ``request_headers``
        gives, but for the length of a body given as bytes, which is set here. May be called again with
        another body.

        Raises UpstreamError when there is no answer, NotFoundError for a path that leads elsewhere, and what
        reading the body raises.
        """
        if _DOTS.search(path):
            raise NotFoundError("there is no such path: one with dots for folders goes nowhere.")
        request = httpx2.Request(
            method,
            self._base,
            headers=[(b"host", self._base.netloc), *_framed(headers, body)],
            stream=_Content(body),
            extensions={
                "timeout": self._timeouts,
                "target": self._path + path + (b"?" + query if query else b""),
            },
        )
        try:
            response = await self._transport.handle_async_request(request)
        except httpx2.TransportError as e:
            raise UpstreamError(self._why(e)) from None
        answer = _Streamed(response)
        if not 200 <= answer.status <= 599:
            await answer.aclose()
            raise UpstreamError(f"the model's API answered with a status {answer.status} that there is not.")
        return answer

    async def aclose(self) -> None:
        """Close all connections."""
        await self._transport.aclose()

    def _why(self, error: httpx2.TransportError) -> str:
        where = f"the model's API at {self._base.netloc.decode('ascii')}"
        if isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout)):
            return f"{where} cannot be reached: check --upstream, or try again later."
        if isinstance(error, httpx2.TimeoutException):
            return f"{where} has said nothing for {self._timeout:g} seconds: try again later."
        if isinstance(error, httpx2.ProxyError):
            return f"the proxy on the way to {where} refuses: check HTTPS_PROXY."
        if isinstance(error, (httpx2.RemoteProtocolError, httpx2.NetworkError)):
            return f"{where} closed the connection without an answer: try again."
        return f"the request cannot be sent to {where} as it is ({type(error).__name__})."


class _Streamed(Answer):
    """An answer whose bytes are on the way."""

    def __init__(self, response: httpx2.Response) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        self._stream = response.stream
        super().__init__(response.status_code, answer_headers(response.headers.raw), self._read())

    async def _read(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._stream:
                yield chunk
        except httpx2.TimeoutException:
            raise UpstreamError("the model's API fell silent within its answer.") from None
        except httpx2.TransportError:
            raise UpstreamError("the model's API broke off within its answer.") from None

    async def aclose(self) -> None:
        """Let go of the connection; it is closed if bytes are still on the way."""
        with CancelScope(shield=True):
            await self._stream.aclose()


class _Content(httpx2.AsyncByteStream):
    """A body to be sent."""

    def __init__(self, body: bytes | AsyncIterable[bytes]) -> None:
        self._body = body

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _once(self._body) if isinstance(self._body, bytes) else aiter(self._body)


async def _once(body: bytes) -> AsyncIterator[bytes]:
    if body:
        yield body


def _framed(headers: Headers, body: bytes | AsyncIterable[bytes]) -> Headers:
    """The headers with what says where the body ends."""
    told = any(name == b"content-length" for name, _ in headers)
    if isinstance(body, bytes):
        if not body and not told:
            return headers
        rest = [(n, v) for n, v in headers if n != b"content-length"]
        return [*rest, (b"content-length", str(len(body)).encode())]
    return headers if told else [*headers, (b"transfer-encoding", b"chunked")]


def _proxy_for(base: httpx2.URL) -> str | None:
    """The proxy that the environment names for a URL."""
    if _is_loopback(base.host) or urllib.request.proxy_bypass(base.host):
        return None
    proxies = urllib.request.getproxies()
    return proxies.get(base.scheme) or proxies.get("all") or None


def _is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its name or address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
