"""What every request passes before a handler sees it: who asks, and whether it may."""

from __future__ import annotations

from typing import Any

from memory_bank.service.access import LOCAL


class Gate:
    """ASGI middleware: finds out the caller."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            scope.setdefault("state", {})["caller"] = LOCAL
        await self.app(scope, receive, send)
