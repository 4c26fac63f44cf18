"""Who calls the service by which name, and which web pages may: against rebinding and foreign pages.

A name that an attacker's name server points at this machine lets a web page in the user's browser talk to
what listens on loopback. The browser then sends the attacker's name as ``Host``; so only names that are known
to be ours are answered, with and without keys.
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

NOT_OURS = (
    "this service is not called by that name: use its address or localhost, or list the name in "
    "allowed_hosts."
)
NOT_THIS_PAGE = "this web page may not call the service: list its origin in allowed_origins."


def host_and_port(text: str) -> tuple[str, int | None] | None:
    """A ``Host`` header as (name or address in its one form, port or None); None where it is no host.

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
    """An IP address; one of IPv4 within IPv6 is that of IPv4. None for a name."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def is_loopback(host: str) -> bool:
    """Whether an address, or the name ``localhost``, is this machine's own."""
    known = address_of(host)
    return host == "localhost" if known is None else known.is_loopback


def origin_of(text: str) -> tuple[str, str, int | None] | None:
    """An ``Origin`` as (scheme, host, port); None for ``null`` and whatever else is none."""
    found = _ORIGIN.fullmatch(text.lower())
    where = host_and_port(found[2]) if found else None
    if found is None or where is None:
        return None
    return found[1], where[0], where[1] or _PORT.get(found[1])


class Doors:
    """The names and origins that a service's settings let in. Raises ConfigError for what can be neither."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._hosts: set[tuple[str, int | None]] = set()
        for name in settings.allowed_hosts:
            try:
                known = host_and_port(name if name.isascii() else name.encode("idna").decode())
            except UnicodeError:
                known = None
            if known is None:
                raise ConfigError(f"allowed_hosts: {name!r} is no host name: write  bank.example .")
            self._hosts.add(known)
        bound = address_of(settings.host) or settings.host.lower().removesuffix(".")
        self._bound = str(bound)
        self._origins = {}
        for origin in settings.allowed_origins:
            page = origin_of(origin.removesuffix("/"))
            if page is None:
                raise ConfigError(f"allowed_origins: {origin!r} is no origin: write  https://tools.example .")
            self._origins[page] = origin.removesuffix("/")
        self._seen: set[tuple[str, str | None]] = set()

    def check_host(self, hosts: Sequence[str], server: str | None) -> str:
        """The one ``Host`` of a request that came in at the address ``server``. Raises OriginError."""
        if len(hosts) != 1:
            raise OriginError("a request names its host once: send one Host header.")
        asked = (hosts[0], server)
        if asked not in self._seen:
            if not self._is_ours(*asked):
                raise OriginError(NOT_OURS)
            if len(self._seen) < 1_000:
                self._seen.add(asked)
        return hosts[0]

    def _is_ours(self, host: str, server: str | None) -> bool:
        known = host_and_port(host)
        if known is None:
            return False
        name, _ = known
        if is_loopback(name) or name == self._bound or known in self._hosts or (name, None) in self._hosts:
            return True
        return server is not None and name == str(address_of(server) or server)

    def check_page(self, origins: Sequence[str], host: str, scheme: str, fetch: dict[str, str]) -> str | None:
        """The origin of a page elsewhere that may call the service; None where no other page calls.

        ``fetch`` are the request's ``Sec-Fetch-`` headers, ``method`` among them. Raises OriginError.
        """
        if origins:
            page = origin_of(origins[0]) if len(origins) == 1 else None
            if page is not None and page in self._origins:
                return origins[0]
            if page is None or not _is_same(page, host, scheme):
                raise OriginError(NOT_THIS_PAGE)
            return None
        if fetch.get("site") in ("cross-site", "same-site"):  # another port of localhost is of the same site
            followed = fetch.get("mode") == "navigate" and fetch.get("dest") == "document"
            if not followed or fetch.get("method") not in ("GET", "HEAD"):
                raise OriginError(NOT_THIS_PAGE)
        return None


def _is_same(page: tuple[str, str, int | None], host: str, scheme: str) -> bool:
    """Whether a page comes from the service itself; TLS may end before it, so https counts as its http."""
    known = host_and_port(host)
    if known is None or page[0] not in (scheme, "https"):
        return False
    return (known[0], known[1] or _PORT[page[0]]) == page[1:]


def check_loopback(host: str) -> bool:
    """Whether everything that listens at ``host`` is reached from this machine only.

    Raises ConfigError for a name that leads nowhere.
    """
    known = address_of(host)
    if known is not None:
        return known.is_loopback
    try:
        found = {str(info[4][0]).partition("%")[0] for info in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        raise ConfigError(f"the host {host!r} leads nowhere: give an address such as 127.0.0.1.") from None
    return all(is_loopback(address) for address in found)
