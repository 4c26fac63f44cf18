"""How often a key may ask: a bucket for each, filled as time goes by."""

from __future__ import annotations

import time
from collections.abc import Callable

from memory_bank.errors import TooManyRequestsError


class Limits:
    """Requests a minute of each key, in one of ``workers`` processes: each gives out its share.

    A bucket holds a minute's share: so many may come at once, and as many a minute from then on. Not safe
    under threads: one event loop asks.
    """

    def __init__(self, workers: int = 1, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.workers = workers
        self.clock = clock
        self._buckets: dict[str | None, tuple[float, float, float]] = {}  # what is in it, when, its size

    def take(self, key: str | None, per_minute: int) -> None:
        """Count a request; 0 a minute is no limit. Raises TooManyRequestsError."""
        if not per_minute:
            return
        share = per_minute / self.workers
        size = max(1.0, share)
        now = self.clock()
        left, then, had = self._buckets.get(key, (size, now, size))
        left = min(size, left + (now - then) * share / 60) if had == size else size
        if left < 1:
            self._buckets[key] = (left, now, size)
            raise TooManyRequestsError(
                f"more than {per_minute:,} requests a minute: wait and ask again.", (1 - left) * 60 / share
            )
        self._buckets[key] = (left - 1, now, size)
