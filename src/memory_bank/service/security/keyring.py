"""The keys of a database as one worker knows them: read again every second, beside the requests."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from memory_bank.bank.database import Database
from memory_bank.bank.keys import ApiKey, Keys, digest_of, key_id_of
from memory_bank.errors import NotAuthorizedError, StorageError
from memory_bank.service.security.access import LOCAL, Caller

log = logging.getLogger("memory_bank.Service")

NO_KEY = "no valid key: send Authorization: Bearer mb_… (or x-memory-key: mb_…)."
_NONE = ApiKey("", "", None, False, 0.0, digest=digest_of(""))  # what an unknown key is compared with
_SOON = 0.5  # seconds after which the keys are read again, while the known ones hold
_LATE = 1.0  # seconds after which a request waits for that
_PATIENCE = 1.0  # seconds that it waits


class Keyring:
    """Tells callers by their keys. Reads the keys when it is made, which may raise StorageError.

    Later a database that does not answer leaves the keys that are known in force: what cannot be reached
    cannot be changed either. For one event loop.
    """

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.required = False
        self._stored = Keys(database)
        self._clock = clock
        self._valid: dict[str, ApiKey] = {}
        self._read_at = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="memory-bank-keys")
        self._reading: asyncio.Future[None] | None = None
        self._failing = False
        self._read()

    async def refresh(self) -> None:
        """Know the keys as they were a second ago or later."""
        age = self._clock() - self._read_at
        if age > _SOON:
            reading = self._begin()
            if age > _LATE:
                await asyncio.wait({reading}, timeout=_PATIENCE)

    def caller(self, key: str | None) -> Caller:
        """Who presents this key; while no key was ever made, everyone is the machine's user.

        Raises NotAuthorizedError, with one sentence for whatever is wrong.
        """
        if not self.required:
            return LOCAL
        presented = key or ""
        known = self._valid.get(key_id_of(presented) or "", _NONE)
        if not known.fits(presented) or known is _NONE:
            raise NotAuthorizedError(NO_KEY)
        return Caller(
            namespace=known.namespace,
            key_id=known.key_id,
            operator=known.operator,
            requests_per_minute=known.requests_per_minute,
            max_body_bytes=known.max_body_bytes,
        )

    def close(self) -> None:
        """Let go of the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> asyncio.Future[None]:
        if self._reading is None or self._reading.done():
            loop = asyncio.get_running_loop()
            self._reading = loop.run_in_executor(self._thread, self._read_again)
        return self._reading

    def _read_again(self) -> None:
        try:
            self._read()
        except StorageError:
            if not self._failing:
                log.warning("the keys cannot be read from the database: those known before stay in force.")
            self._failing = True

    def _read(self) -> None:
        began = self._clock()
        every = self._stored.all()
        self._valid = {k.key_id: k for k in every if k.revoked is None}
        self.required = self.required or bool(every)  # a database that loses its keys opens nothing
        self._read_at = began
        self._failing = False
