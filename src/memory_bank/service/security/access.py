"""Callers: their keys, their rate limits, and the namespace that separates their sessions."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from memory_bank.bank.database import Database
from memory_bank.bank.keys import ApiKey, Keys, digest_of, key_id_of
from memory_bank.errors import ConfigError, NotAuthorizedError, StorageError, TooManyRequestsError
from memory_bank.records import NAMESPACE_END
from memory_bank.service.security.secrets import known_form

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

log = logging.getLogger("memory_bank.Service")

LONGEST_NAME = 180
"""Characters of a session's name."""
NO_KEY = "no valid key: send Authorization: Bearer mb_… (or x-memory-key: mb_…)."
_UNKNOWN = ApiKey("", "", None, False, 0.0, digest=digest_of(""))  # what an unknown key is compared with


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
