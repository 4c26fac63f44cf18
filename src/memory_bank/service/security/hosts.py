"""Host names and web pages that may call the service: protection against DNS rebinding and foreign pages.

A name server can point an attacker's name at this machine, so that a page in the user's browser reaches what
listens on loopback. The browser then sends the attacker's name as ``Host``; therefore only known names are
accepted, with and without keys.
"""

from __future__ import annotations

import ipaddress
import re

from starlette.datastructures import Headers
from starlette.types import Scope

from memory_bank.config import ServiceSettings
from memory_bank.errors import ConfigError, OriginError

_PORT = {"http": 80, "https": 443}
_HOST = re.compile(r"(?:\[([0-9a-f:.]{2,45})\]|([a-z0-9_](?:[a-z0-9._-]{0,253})))(?::(\d{0,5}))?")
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]{0,40})://([^/\s@]{1,260})")

_Origin = tuple[str, str, int | None]  # scheme, host, port


def host_and_port(text: str) -> tuple[str, int | None] | None:
    """Parse a ``Host`` header into (normalised name or address, port or None); None if it is invalid.

    >>> host_and_port("LOCALHOST.:8767"), host_and_port("[0:0:0:0:0:0:0:1]:80")
    (('localhost', 8767), ('::1', 80))
    """
    found = _HOST.fullmatch(text.lower())
    if found is None:
        return None
    address, name, port = found.groups()
    number = int(port) if port else None
    if number is not None and number > 65_535:
        return None
    if address is not None:
        known = address_of(address)
        return None if known is None or ":" not in address else (str(known), number)
    name = name.removesuffix(".")
    known = address_of(name)
    if known is not None:
        return str(known), number
    return None if not name or ".." in name else (name, number)


def address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an IP address, an IPv4-mapped one as IPv4; None for a name."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback address or ``localhost``."""
    known = address_of(host)
    return host == "localhost" if known is None else known.is_loopback


def _origin_of(text: str) -> _Origin | None:
    """Parse an ``Origin``; None for ``null`` and invalid ones."""
    found = _ORIGIN.fullmatch(text.lower())
    where = host_and_port(found[2]) if found else None
    if found is None or where is None:
        return None
    return found[1], where[0], where[1] or _PORT.get(found[1])


class AllowedHosts:
    """The host names and origins that the settings allow. Raises ConfigError for invalid ones."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._bound = str(address_of(settings.host) or settings.host.lower().removesuffix("."))
        self._hosts: set[tuple[str, int | None]] = set()
        for name in settings.allowed_hosts:
            try:
                known = host_and_port(name if name.isascii() else name.encode("idna").decode())
            except UnicodeError:
                known = None
            if known is None:
                raise ConfigError(f"allowed_hosts: {name!r} is no host name such as bank.example .")
            self._hosts.add(known)
        self._origins: set[_Origin] = set()
        for origin in settings.allowed_origins:
            page = _origin_of(origin.removesuffix("/"))
            if page is None:
                raise ConfigError(
                    f"allowed_origins: {origin!r} is no origin: write it like  https://tools.example ."
                )
            self._origins.add(page)

    def check(self, scope: Scope, headers: Headers) -> str | None:
        """The origin of an allowed page of another site; None if no such page makes the request.

        A link of another site leads to the page at ``/`` alone. Raises OriginError for other pages and for hosts that
        are not allowed.
        """
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1:
            raise OriginError("a request must have exactly one Host header.")
        host = host_and_port(hosts[0])
        if host is None or not self._is_allowed(host, scope):
            raise OriginError(
                "this host name is not allowed: use the service's address or localhost, or add the name to "
                "allowed_hosts."
            )
        if origins:
            page = _origin_of(origins[0]) if len(origins) == 1 else None
            if page in self._origins:
                return origins[0]
            # the service's own page; a proxy may terminate TLS, so https is accepted for http
            refused = page not in [(s, host[0], host[1] or _PORT.get(s)) for s in (scope["scheme"], "https")]
        else:
            fetch = {name[10:]: v.lower() for name, v in headers.items() if name.startswith("sec-fetch-")}
            is_link = fetch.get("mode") == "navigate" and fetch.get("dest") == "document"
            is_link = is_link and scope["method"] in ("GET", "HEAD") and scope["path"] == "/"
            # another port of localhost is the same site
            refused = fetch.get("site") in ("cross-site", "same-site") and not is_link
        if refused:
            raise OriginError("this web page may not call the service: add its origin to allowed_origins.")
        return None

    def _is_allowed(self, host: tuple[str, int | None], scope: Scope) -> bool:
        name = host[0]
        if is_loopback(name) or name == self._bound or host in self._hosts or (name, None) in self._hosts:
            return True
        server = scope["server"][0] if scope.get("server") else None
        return server is not None and name == str(address_of(server) or server)
