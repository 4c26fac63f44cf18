"""A circuit breaker: what hung twice in a row is left alone for a while, then tried by one."""

from __future__ import annotations

import time
from collections.abc import Callable

HANGS = 2
PAUSE = 10.0


class Breaker:
    """After ``hangs`` in a row nobody is let through for ``pause`` seconds; then one is, to see how it goes.

    Who is let through says afterwards how it went: ``worked``, ``hung``, or ``left`` when nobody knows. For
    one event loop.
    """

    def __init__(
        self, hangs: int = HANGS, pause: float = PAUSE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._hangs = hangs
        self._pause = pause
        self._clock = clock
        self._in_a_row = 0
        self._until = 0.0
        self._probing = False

    def lets(self) -> bool:
        """Whether to try."""
        if self._in_a_row < self._hangs:
            return True
        if self._probing or self._clock() < self._until:
            return False
        self._probing = True
        return True

    def worked(self) -> None:
        """It answered in time, with success or not."""
        self._in_a_row = 0
        self._probing = False

    def hung(self) -> None:
        """It did not answer in time."""
        self._in_a_row += 1
        self._until = self._clock() + self._pause
        self._probing = False

    def left(self) -> None:
        """The one who tried went away before it was known."""
        self._probing = False
