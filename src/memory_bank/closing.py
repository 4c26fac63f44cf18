"""Closing: what ``with`` and ``async with`` close at their end, and what the end of a process waits for."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

LAST_SECONDS = 10.0
"""Seconds that the end of a process waits at most for native code."""
_native = threading.Condition()
_at_work: set[int] = set()  # threads in native code
_ended = threading.Event()


class Closing:
    """A context manager, synchronous and asynchronous, with a method ``close``."""

    def close(self) -> None:
        """Release what it holds open."""

    async def aclose(self) -> None:
        """As ``close``, for asyncio."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.__exit__, *error)


@contextmanager
def native_code() -> Iterator[None]:
    """A block of native code, such as torch's: the process ends after it, because ending within it would abort.

    A daemon thread that comes here after that stays here. The exit code is the program's then.
    """
    me = threading.get_ident()
    with _native:
        parks = _ended.is_set() and threading.current_thread() is not threading.main_thread()
        if not parks:
            _at_work.add(me)
    if parks:
        threading.Event().wait()
    try:
        yield
    finally:
        with _native:
            _at_work.discard(me)
            _native.notify_all()


@atexit.register
def _wait_for_native_code() -> None:
    with _native:
        _ended.set()
        _native.wait_for(lambda: _at_work.isdisjoint(t.ident for t in threading.enumerate()), LAST_SECONDS)
