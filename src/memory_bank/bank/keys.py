"""API keys of the service: creating, listing and revoking them. Only hashes of the keys are stored."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from dataclasses import dataclass, field, replace

import sqlalchemy as sa

from memory_bank.bank.database import Database
from memory_bank.bank.schema import api_keys
from memory_bank.errors import ConfigError, NotFoundError

DEFAULT = "default"
"""The name of the namespace of a service without keys."""

_SECRET_BYTES = 32
_LONGEST = 200  # characters of what may be a key at all
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_k = api_keys.c


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A stored API key. ``namespace`` None: the namespace of a service without keys. Times are Unix seconds.

    ``requests_per_minute`` and ``max_body_bytes`` None: as the service's settings say.
    """

    key_id: str
    name: str
    namespace: str | None
    operator: bool
    created: float
    revoked: float | None = None
    requests_per_minute: int | None = None
    max_body_bytes: int | None = None
    digest: str = field(default="", repr=False)

    def fits(self, key: str) -> bool:
        """Return whether ``key`` is this one, compared in constant time."""
        return hmac.compare_digest(digest_of(key), self.digest)


_EVERY = sa.select(*(_k[name] for name in ApiKey.__dataclass_fields__)).order_by(_k.created, _k.key_id)


def digest_of(key: str) -> str:
    """The SHA-256 of a key, in hex, as stored: 256 random bits cannot be guessed, so no slow hash is needed."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def key_id_of(key: str) -> str | None:
    """The key_id that a key names; None for what cannot be a key."""
    parts = key.split("_", 2) if len(key) <= _LONGEST else []
    return parts[1] if len(parts) == 3 and parts[0] == "mb" and parts[1] and parts[2] else None


class Keys:
    """The keys in a database. Every call may raise StorageError."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def create(
        self,
        name: str,
        *,
        namespace: str | None = None,
        operator: bool = False,
        requests_per_minute: int | None = None,
        max_body_bytes: int | None = None,
    ) -> tuple[ApiKey, str]:
        """Create a key: its row, and the key itself, which is not stored and cannot be read again.

        ``namespace`` None makes one of its own; one that is named is shared with the other keys that name it.
        Raises ConfigError for a name that a valid key has, and for a namespace that cannot be one.
        """
        if not 0 < len(name) <= 100 or not name.isprintable() or name != name.strip():
            raise ConfigError("the name of a key is 1 to 100 printable characters.")
        if namespace is not None and not _NAMESPACE.fullmatch(namespace):
            raise ConfigError("a namespace is 1 to 64 letters, digits, dots, dashes and underscores.")
        key_id = secrets.token_hex(6)
        key = f"mb_{key_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
        space = f"ns-{secrets.token_hex(8)}" if namespace is None else namespace
        stored = ApiKey(
            key_id=key_id,
            name=name,
            namespace=None if space == DEFAULT else space,
            operator=operator,
            created=time.time(),
            requests_per_minute=requests_per_minute,
            max_body_bytes=max_body_bytes,
            digest=digest_of(key),
        )
        with self.database.write() as c:
            stored_keys = [ApiKey(*row) for row in self.database.fetch(c, _EVERY)]
            if any(k.name == name and k.revoked is None for k in stored_keys):
                raise ConfigError(f"there is a key {name!r}: give this one another name, or revoke that one.")
            c.execute(sa.insert(api_keys), {f: getattr(stored, f) for f in ApiKey.__dataclass_fields__})
        return stored, key

    def all(self) -> list[ApiKey]:
        """All keys, revoked ones included, oldest first."""
        with self.database.read() as c:
            return [ApiKey(*row) for row in self.database.fetch(c, _EVERY)]

    def revoke(self, which: str) -> ApiKey:
        """Revoke a key, named by key_id or name; a revoked key stays revoked. Raises NotFoundError."""
        with self.database.write() as c:
            every = [ApiKey(*row) for row in self.database.fetch(c, _EVERY)]
            named = [k for k in every if k.key_id == which] or [k for k in every if k.name == which]
            if not named:
                raise NotFoundError("there is no such key: `memory-bank keys list` shows those there are.")
            key = next((k for k in named if k.revoked is None), named[-1])
            if key.revoked is None:
                key = replace(key, revoked=time.time())
                c.execute(sa.update(api_keys).where(_k.key_id == key.key_id).values(revoked=key.revoked))
        return key
