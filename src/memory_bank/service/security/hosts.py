"""Host names and web pages that may call the service: protection against DNS rebinding and foreign pages.

A name server can point an attacker's name at this machine, so that a page in the user's browser reaches what
listens on loopback. The browser then sends the attacker's name as ``Host``; therefore only known names are
accepted, with and without keys.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence

from memory_bank.config import ServiceSettings
from memory_bank.errors import ConfigError, OriginError

_PORT = {"http": 80, "https": 443}
_HOST = re.compile(r"(?:\[([0-9a-f:.]{2,45})\]|([a-z0-9_](?:[a-z0-9._-]{0,253})))(?::(\d{0,5}))?")
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]{0,40})://([^/\s@]{1,260})")

HOST_REFUSED = (
    "this host name is not allowed: use the service's address or localhost, or add the name to allowed_hosts."
)
PAGE_REFUSED = "this web page may not call the service: add its origin to allowed_origins."


def host_and_port(text: str) -> tuple[str, int | None] | None:
    """Parse a ``Host`` header into (normalised name or address, port or None); None if it is invalid.

    >>> host_and_port("LOCALHOST.:8767"), host_and_port("[0:0:0:0:0:0:0:1]:80")
    (('localhost', 8767), ('::1', 80))
    """
    found = _HOST.fullmatch(text.lower())
    if found is None:
        return None
    address, name, port = found.groups()
    if port and int(port) > 65_535:
        return None
    number = int(port) if port else None
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


def origin_of(text: str) -> tuple[str, str, int | None] | None:
    """Parse an ``Origin`` into (scheme, host, port); None for ``null`` and invalid ones."""
    found = _ORIGIN.fullmatch(text.lower())
    where = host_and_port(found[2]) if found else None
    if found is None or where is None:
        return None
    return found[1], where[0], where[1] or _PORT.get(found[1])


class AllowedHosts:
    """The host names and origins that the settings allow. Raises ConfigError for invalid ones."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._hosts: set[tuple[str, int | None]] = set()
        for name in settings.allowed_hosts:
            try:
                known = host_and_port(name if name.isascii() else name.encode("idna").decode())
            except UnicodeError:
                known = None
            if known is None:
                raise ConfigError(f"allowed_hosts: {name!r} is no host name such as bank.example .")
            self._hosts.add(known)
        bound = address_of(settings.host) or settings.host.lower().removesuffix(".")
        self._bound = str(bound)
        self._origins = {}
        for origin in settings.allowed_origins:
            page = origin_of(origin.removesuffix("/"))
            if page is None:
                raise ConfigError(
                    f"allowed_origins: {origin!r} is no origin: write it like  https://tools.example ."
                )
            self._origins[page] = origin.removesuffix("/")

    def check_host(self, hosts: Sequence[str], server: str | None) -> str:
        """The ``Host`` of a request that arrived at the address ``server``. Raises OriginError."""
        if len(hosts) != 1:
            raise OriginError("a request must have exactly one Host header.")
        if not self._is_allowed(hosts[0], server):
            raise OriginError(HOST_REFUSED)
        return hosts[0]

    def _is_allowed(self, host: str, server: str | None) -> bool:
        known = host_and_port(host)
        if known is None:
            return False
        name, _ = known
        if is_loopback(name) or name == self._bound or known in self._hosts or (name, None) in self._hosts:
            return True
        return server is not None and name == str(address_of(server) or server)

    def check_page(self, origins: Sequence[str], host: str, scheme: str, fetch: dict[str, str]) -> str | None:
        """The origin of an allowed page of another site; None if no such page makes the request.

        ``fetch`` has the request's ``Sec-Fetch-`` headers, its ``method`` and its ``path``. A link of another
        site leads to the page alone. Raises OriginError.
        """
        if origins:
            page = origin_of(origins[0]) if len(origins) == 1 else None
            if page is not None and page in self._origins:
                return origins[0]
            if page is None or not _is_same(page, host, scheme):
                raise OriginError(PAGE_REFUSED)
            return None
        if fetch.get("site") in ("cross-site", "same-site"):  # another port of localhost is the same site
            followed = fetch.get("mode") == "navigate" and fetch.get("dest") == "document"
            if not followed or fetch.get("method") not in ("GET", "HEAD") or fetch.get("path") != "/":
                raise OriginError(PAGE_REFUSED)
        return None


def _is_same(page: tuple[str, str, int | None], host: str, scheme: str) -> bool:
    """Whether a page is the service's own. A proxy may terminate TLS, so https is accepted for http."""
    known = host_and_port(host)
    if known is None or page[0] not in (scheme, "https"):
        return False
    return (known[0], known[1] or _PORT[page[0]]) == page[1:]


def check_loopback(host: str) -> bool:
    """Whether ``host`` is only reachable from this machine. Raises ConfigError for an unknown name."""
    known = address_of(host)
    if known is not None:
        return known.is_loopback
    try:
        if "\0" in host:  # the C library would read it up to there
            raise ValueError
        found = {str(info[4][0]).partition("%")[0] for info in socket.getaddrinfo(host, None)}
    except (OSError, ValueError):
        raise ConfigError(f"the host {host!r} is unknown: give an address such as 127.0.0.1.") from None
    return all(is_loopback(address) for address in found)
