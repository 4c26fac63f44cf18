"""The objects that all requests of the proxy share, and the seals of its compaction items."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cachetools import LRUCache

from memory_bank.bank.database import Database
from memory_bank.service.proxy.api import Provider
from memory_bank.service.proxy.body import SEAL, MessageCache
from memory_bank.service.proxy.exchange import MOST_SESSIONS, Exchange, SessionRefusals
from memory_bank.service.proxy.rebuild import Rebuilder
from memory_bank.service.proxy.upstream import Headers, Upstream

_NONCE, _TAG = 12, 16  # bytes


class Seals:
    """Makes and reads ``encrypted_content``: values that nobody else can read, change or make."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @cached_property
    def _secret(self) -> bytes:
        return self.database.secret()

    def seal(self, *values: object) -> str:
        """The values (JSON) as a text."""
        nonce = secrets.token_bytes(_NONCE)
        data = self._masked(nonce, json.dumps(values, separators=(",", ":")).encode())
        return SEAL + base64.urlsafe_b64encode(nonce + self._tag(nonce + data) + data).decode()

    def read(self, sealed: str) -> list[Any] | None:
        """The values of a text; None for one that this bank has not made. Raises StorageError."""
        try:
            raw = base64.b64decode(sealed.removeprefix(SEAL), b"-_", validate=True)
        except ValueError:
            return None
        nonce, tag, data = raw[:_NONCE], raw[_NONCE : _NONCE + _TAG], raw[_NONCE + _TAG :]
        if not hmac.compare_digest(tag, self._tag(nonce + data)):
            return None
        values: list[Any] = json.loads(self._masked(nonce, data))
        return values

    def _tag(self, data: bytes) -> bytes:
        return hmac.digest(self._secret, b"tag" + data, "sha256")[:_TAG]

    def _masked(self, nonce: bytes, data: bytes) -> bytes:
        stream = hashlib.shake_256(b"stream" + self._secret + nonce).digest(len(data))
        return bytes(a ^ b for a, b in zip(data, stream, strict=True))


@dataclass(slots=True, eq=False)
class Proxy:
    """The objects that all proxied requests share.

    ``upstreams`` are the model APIs by provider. ``cache`` keeps parsed messages. ``seals`` encrypts the contents of
    compaction items. ``add_trace`` adds trace headers to a request for upstream. ``record`` is called with every
    finished exchange.
    """

    upstreams: Mapping[Provider, Upstream]
    rebuilder: Rebuilder
    cache: MessageCache
    seals: Seals
    add_trace: Callable[[Headers], Headers]
    record: Callable[[Exchange], None]
    refusals: LRUCache[tuple[str | None, str | None, str], SessionRefusals] = field(
        default_factory=lambda: LRUCache(MOST_SESSIONS)
    )
