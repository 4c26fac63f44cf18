"""Closing: what ``with`` and ``async with`` close at the end of their block."""

from __future__ import annotations

import asyncio
from typing import Self


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
