"""Verbs on a service's keys: create, list, revoke."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from memory_bank.cli.bank import JSON, open_bank
from memory_bank.cli.output import one_line, print_json, table, tell, when
from memory_bank.errors import ConfigError

app = typer.Typer(help="Who may use the service: create, list and revoke API keys.", rich_markup_mode=None)
_DB = typer.Option(None, "--db", help="Database: a file name or URL; default: the one that `serve` uses.")
_CONFIG = typer.Option(None, "--config", help="Configuration file of the service; default: the shipped one.")


@app.command()
def create(
    name: str = typer.Argument(..., help="What you call it: the agent or person it is for."),
    db: str | None = _DB,
    config: Path | None = _CONFIG,
    namespace: str | None = typer.Option(
        None,
        help="Share the sessions of the keys of this namespace, as for rotation; `default`: those of a "
        "service without keys. Default: a namespace of its own.",
    ),
    operator: bool = typer.Option(False, "--operator", help="It may see how the service as a whole does."),
    requests_per_minute: int | None = typer.Option(
        None, min=0, help="Its limit of requests, 0 for none; default: the service's."
    ),
    max_body_bytes: int | None = typer.Option(
        None, min=1024, help="Its longest request body; default: the service's."
    ),
    as_json: bool = JSON,
) -> None:
    """Make a key and print it, this once. From the first one on the service answers to keys only."""
    from memory_bank.bank.keys import Keys
    from memory_bank.service.server.places import open_database

    database = open_database(_settings(db, config))
    if database.in_memory:
        raise ConfigError("a key in memory is gone at once: give --db the database that the service uses.")
    made, key = Keys(database).create(
        name,
        namespace=namespace,
        operator=operator,
        requests_per_minute=requests_per_minute,
        max_body_bytes=max_body_bytes,
    )
    database.close()
    if as_json:
        print_json({"key": key, **_told(made)})
        return
    print(key)
    tell("this is the key, and it is stored nowhere: keep it now.")


@app.command("list")
def list_(db: str | None = _DB, config: Path | None = _CONFIG, as_json: bool = JSON) -> None:
    """List the keys there are and were. The keys themselves are nowhere stored."""
    from memory_bank.bank.keys import DEFAULT, Keys
    from memory_bank.service.server.places import database_of

    found = Keys(open_bank(database_of(_settings(db, config)))).all()
    if as_json:
        print_json({"keys": [_told(k) for k in found]})
        return
    rows = [
        [k.key_id, one_line(k.name, 100), k.namespace or DEFAULT, "yes" if k.operator else "",
         _limit(k.requests_per_minute), _limit(k.max_body_bytes), when(k.created),
         when(k.revoked) if k.revoked else ""]
        for k in found
    ]  # fmt: skip
    head = ["key_id", "name", "namespace", "operator", "requests/min", "body bytes", "created", "revoked"]
    table(head, rows, right=frozenset({4, 5}), whole=frozenset({0}))


@app.command()
def revoke(
    key: str = typer.Argument(..., metavar="KEY_ID_OR_NAME", help="As `keys list` shows it."),
    db: str | None = _DB,
    config: Path | None = _CONFIG,
    as_json: bool = JSON,
) -> None:
    """Make a key invalid for good, in running services within two seconds. What it stored stays."""
    from memory_bank.bank.keys import Keys
    from memory_bank.service.server.places import database_of

    database = open_bank(database_of(_settings(db, config)))
    gone = Keys(database).revoke(key)
    database.close()
    if as_json:
        print_json(_told(gone))
        return
    print(f"revoked {gone.key_id} ({one_line(gone.name, 100)}).")


def _settings(db: str | None, config: Path | None) -> Any:
    from memory_bank.config import load_config

    settings = load_config(config).service
    return settings if db is None else settings.model_copy(update={"database": db})


def _told(key: Any) -> dict[str, Any]:
    """A key's row without what tells whether a key is it."""
    from memory_bank.bank.keys import DEFAULT

    told = asdict(key)
    del told["digest"]
    return told | {"namespace": key.namespace or DEFAULT}


def _limit(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
