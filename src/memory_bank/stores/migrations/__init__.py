"""Numbered, append-only migrations, run by alembic from within the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy.engine import Engine


def _config(connection: Any = None) -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def upgrade(engine: Engine) -> None:
    """Bring a database to the newest revision, in one transaction."""
    from alembic import command

    with engine.begin() as connection:
        command.upgrade(_config(connection), "head")


def known_revisions() -> set[str]:
    """The revisions this version knows."""
    from alembic.script import ScriptDirectory

    return {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
