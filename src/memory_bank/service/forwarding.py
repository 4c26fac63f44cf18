"""Which headers of a request go upstream, and which of an answer come back."""

from __future__ import annotations

from collections.abc import Iterable

from memory_bank.errors import NotAuthorizedError

Headers = list[tuple[bytes, bytes]]
"""Names in lower case with their values, in order; a name may come several times."""

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""What concerns one connection only (RFC 9110, section 7.6.1)."""

_OURS = b"x-memory-"
_KEY = b"mb_"


def request_headers(headers: Iterable[tuple[bytes, bytes]], upstream_key: str | None) -> Headers:
    """The headers of a request as they go upstream.

    What concerns this service stays here: the headers that begin with ``x-memory-``, and its own key, in
    whose place ``upstream_key`` goes. Raises NotAuthorizedError where there is none to put there.
    """
    passed = []
    for name, value in _end_to_end(headers):
        if name in (b"host", b"expect") or name.startswith(_OURS):
            continue
        if name == b"authorization" and is_own_key(value):
            if not upstream_key:
                raise NotAuthorizedError(
                    "the service has no key of its own for the model's API: set OPENAI_API_KEY where it "
                    "runs, or send the API's key as Authorization and the service's as x-memory-key."
                )
            value = f"Bearer {upstream_key}".encode()
        passed.append((name, value))
    return passed


def answer_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers of an answer as they come back; ``date`` and ``server`` are said by our own server."""
    return [
        (name, value)
        for name, value in _end_to_end(headers)
        if name not in (b"date", b"server") and not name.startswith(_OURS)
    ]


def is_own_key(authorization: bytes) -> bool:
    """Whether an Authorization header bears a key of this service, and not one of the model's API."""
    scheme, _, token = authorization.strip().partition(b" ")
    return scheme.lower() == b"bearer" and token.lstrip().startswith(_KEY)


def bearer_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Who pays upstream: what the headers authorize with; None where they do not."""
    for name, value in headers:
        if name in (b"authorization", b"api-key"):
            return value.decode("latin-1")
    return None


def replaced(headers: Iterable[tuple[bytes, bytes]], name: bytes, value: bytes) -> Headers:
    """The headers with one of that name."""
    return [*((n, v) for n, v in headers if n != name), (name, value)]


def _end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Names in lower case, without those that concern one connection only or that ``Connection`` names."""
    lowered = [(name.lower(), value) for name, value in headers]
    named = {
        token.strip().lower()
        for name, value in lowered
        if name == b"connection"
        for token in value.split(b",")
    }
    return [(n, v) for n, v in lowered if n not in _HOP_BY_HOP and n not in named]
