"""The options that verbs share, and what they name: a bank, its session, its embedder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from memory_bank.cli.output import one_line
from memory_bank.errors import ConfigError, EmbedderMismatchError, StorageError

if TYPE_CHECKING:
    from memory_bank.bank.database import Database
    from memory_bank.config import ServiceSettings
    from memory_bank.ports import NamedEmbedder

DB = typer.Option(None, "--db", help="The bank: a file name or URL; default: the one that `serve` uses.")
CONFIG = typer.Option(None, "--config", help="Configuration file; default: the shipped one.")
JSON = typer.Option(False, "--json", help="Print JSON.")
SESSION = typer.Option(None, "--session", help="The session; may be left out when there is only one.")
ONE_SESSION = typer.Option(None, "--session", help="Only this session; default: all.")
EMBEDDER = typer.Option(None, "--embedding-model", help="Default: the embedder the bank was built with.")


def service_settings(db: str | None, config: Path | None = None) -> ServiceSettings:
    """The service's settings, with the bank that --db names in the place of their own."""
    from memory_bank.config import load_config

    settings = load_config(config).service
    return settings if db is None else settings.model_copy(update={"database": db})


def open_bank(db: str | None, config: Path | None = None, session: str | None = None) -> Database:
    """The existing bank that --db names, else the one that `serve` uses.

    Raises ConfigError when there is none, StorageError when it has no such session.
    """
    from memory_bank.bank.database import Database, database_url
    from memory_bank.bank.listing import has_session
    from memory_bank.service.server.database import database_of

    name = database_of(service_settings(db, config))
    url = database_url(name)
    if url.get_backend_name() == "sqlite":
        if url.database in (None, "", ":memory:"):
            raise ConfigError("a bank in memory holds nothing yet: give --db the file of one.")
        if not Path(url.database).is_file():
            raise ConfigError(f"there is no bank {url.database}: give the path of yours with --db.")
    database = Database(name, must_exist=True)
    if session is not None and not has_session(database, session):
        raise StorageError(
            f"{database.name} has no session {one_line(session, 80)!r}: `memory-bank bank sessions` lists them."
        )
    return database


def new_bank(db: str | None, config: Path | None, what: str) -> Database:
    """The bank, made when there is none. Raises ConfigError for one in memory, where ``what`` would be lost."""
    from memory_bank.service.server.database import open_database

    database = open_database(service_settings(db, config))
    if database.in_memory:
        raise ConfigError(f"{what} in memory would be lost at once: give --db the file of a bank.")
    return database


def bank_embedder_of(database: Database, wanted: str | None) -> NamedEmbedder:
    """The named embedder, else the one that the bank was built with."""
    from memory_bank.bank.embedder import bank_embedder
    from memory_bank.models.embedding import load_embedder

    if wanted is not None:
        return load_embedder(wanted)
    known = bank_embedder(database)
    model = load_embedder("lexical" if known is None or known[0].startswith("lexical") else known[0])
    if known is not None and model.name != known[0]:
        raise EmbedderMismatchError(
            f"the bank was built with {known[0]}: name that model or its folder with --embedding-model."
        )
    return model
