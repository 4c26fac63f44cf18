"""The service's database: where it is, and opening it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from memory_bank.errors import DatabaseOpenError

if TYPE_CHECKING:
    from memory_bank.bank.database import Database
    from memory_bank.config import ServiceSettings


def default_database() -> Path:
    """``bank.db`` in the user's data directory (XDG base directory specification)."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "memory-bank" / "bank.db"


def database_of(settings: ServiceSettings) -> str:
    """The file name or URL of the database that the settings name."""
    return settings.database or str(default_database())


def open_database(settings: ServiceSettings) -> Database:
    """Open the database of the settings, creating it if necessary. Raises DatabaseOpenError, DatabaseVersionError."""
    from memory_bank.bank.database import Database  # what it imports takes time

    if not settings.database:
        try:
            default_database().parent.mkdir(
                mode=0o700, parents=True, exist_ok=True
            )  # tool outputs are private
        except (OSError, RuntimeError) as e:  # RuntimeError: nobody knows the user's home
            raise DatabaseOpenError(
                f"the folder of your own bank cannot be made ({getattr(e, 'strerror', e)}): name a file with --db."
            ) from None
    return Database(database_of(settings))
