"""A request as its bytes come in, and the moment at which its client is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from anyio import CancelScope

from memory_bank.errors import MemoryBankError


class ClientGone(Exception):
    """The client went away before its request was whole."""


class Incoming:
    """The body of a request, to be read once, and whether there is still somebody to answer."""

    def __init__(self, receive: Any) -> None:
        self.size = 0
        self._receive = receive
        self._read = asyncio.Event()

    async def stream(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises ClientGone."""
        try:
            while True:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                if chunk := message.get("body", b""):
                    self.size += len(chunk)
                    yield chunk
                if not message.get("more_body", False):
                    return
        finally:
            self._read.set()

    async def whole(self) -> bytes:
        """The body, read to its end. Raises ClientGone."""
        return b"".join([chunk async for chunk in self.stream()])

    def is_read(self) -> None:
        """There is no body, or none that anybody wants."""
        self._read.set()

    async def watch(self, scope: CancelScope) -> None:
        """Cancel what is done for a client that goes away, from when its request has been read on."""
        await self._read.wait()
        with suppress(MemoryBankError):  # whoever limits the body may refuse what nobody reads
            while (await self._receive())["type"] != "http.disconnect":
                pass
        scope.cancel()
