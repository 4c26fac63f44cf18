"""What every request passes before a handler sees it: who asks, and whether it may."""

from __future__ import annotations

import ipaddress
from typing import Any

import sqlalchemy as sa

from memory_bank.config import ServiceSettings
from memory_bank.errors import ConfigError
from memory_bank.service.access import LOCAL
from memory_bank.stores.database import Database
from memory_bank.stores.schema import api_keys


def check_binding(settings: ServiceSettings, database: Database) -> None:
    """Refuse to listen beyond loopback without keys. Raises ConfigError, StorageError."""
    if settings.host == "localhost":
        return
    try:
        if ipaddress.ip_address(settings.host).is_loopback:
            return
    except ValueError:
        pass
    with database.read() as c:
        known = c.execute(sa.select(api_keys.c.key_id).where(api_keys.c.revoked.is_(None))).first()
    if known is None:
        raise ConfigError(
            f"without keys only this machine is served, and {settings.host} is open to others: make one with "
            "`memory-bank keys create`, or listen on 127.0.0.1."
        )


class Gate:
    """ASGI middleware: finds out the caller."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            scope.setdefault("state", {})["caller"] = LOCAL
        await self.app(scope, receive, send)
