"""Numbered, append-only migrations, run by alembic from within the package."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from sqlalchemy.engine import Connection

_ALEMBIC = threading.Lock()  # its ``op`` and ``context`` are one for all threads


def _config(connection: Connection | None = None) -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def upgrade(connection: Connection) -> None:
    """Bring a database to the newest revision within the transaction that ``connection`` is in.

    The caller begins it (pysqlite begins none for DDL) and commits it, so that a migration that is killed
    leaves nothing behind.
    """
    from alembic import command

    if not connection.in_transaction():
        raise RuntimeError("a migration needs a transaction around it")
    with _ALEMBIC:
        command.upgrade(_config(connection), "head")


def known_revisions() -> set[str]:
    """The revisions this version knows."""
    from alembic.script import ScriptDirectory

    with _ALEMBIC:
        return {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
