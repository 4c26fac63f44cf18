"""The verbs of the service: serve, mcp, keys."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from memory_bank.cli.shared import (
    CONFIG,
    DB,
    JSON,
    answer,
    embedder_name_of,
    new_bank,
    one_line,
    open_bank,
    print_json,
    table,
    tell,
    when,
)  # fmt: skip
from memory_bank.errors import MissingExtraError

if TYPE_CHECKING:
    from mcp.server.lowlevel.server import Server

    from memory_bank.bank.database import Database
    from memory_bank.bank.keys import ApiKey
    from memory_bank.config import Config

_LONGEST_LINE = 16 * 2**20  # no MCP request has as many bytes


def serve(
    host: str | None = typer.Option(None, help="Address to listen on; default 127.0.0.1."),
    port: int | None = typer.Option(None, min=0, max=65535, help="Port; default 8767; 0 takes a free one."),
    db: str | None = typer.Option(None, "--db", help="Database: a file name or URL; default: your own bank."),
    upstream: str | None = typer.Option(None, help="Base URL of the model's API; default OPENAI_BASE_URL."),
    upstream_anthropic: str | None = typer.Option(
        None, help="Base URL of Anthropic's Messages API; default ANTHROPIC_BASE_URL, else Anthropic's own."),
    config: Path | None = CONFIG,
    workers: int | None = typer.Option(None, min=1, max=64, help="How many processes; default 1."),
    log_format: str | None = typer.Option(None, help="Format of the log: text or json; default text."),
) -> None:  # fmt: skip
    """Serve the HTTP API, the proxy and the page. Point an agent's base_url at it.

    Prints its address to standard output once it answers, the log to standard error. Ctrl-C and SIGTERM
    finish the current requests first; a second Ctrl-C stops at once.
    """
    from memory_bank.config import load_config

    try:
        from memory_bank.service.server.process import STOPPED
        from memory_bank.service.server.startup import serve as run
        from memory_bank.service.server.startup import with_options
    except ModuleNotFoundError as e:
        if e.name is None or e.name.startswith("memory_bank"):
            raise
        raise MissingExtraError(f"the service ({e.name.split('.')[0]})", "service") from None

    options = {
        "host": host, "port": port, "database": db, "upstream": upstream, "upstream_anthropic": upstream_anthropic,
        "workers": workers, "log_format": log_format,
    }  # fmt: skip
    loaded = with_options(load_config(config), {k: v for k, v in options.items() if v is not None})
    code = run(loaded, verbose=logging.getLogger("memory_bank").level == logging.DEBUG)
    if code == STOPPED:
        raise SystemExit(code)
    raise typer.Exit(code)


def mcp(
    db: str | None = DB,
    session: str | None = typer.Option(
        None, "--session", help="The session of requests that name none; default: the only one."),
    config: Path | None = CONFIG,
) -> None:  # fmt: skip
    """Serve get_record and the records to an MCP client over stdio.

    The client starts this; Ctrl-C, SIGTERM and a closed standard input stop it. `memory-bank serve` offers
    the same over HTTP, at /mcp.
    """
    import anyio

    from memory_bank.config import load_config
    from memory_bank.service.mcp import create_server
    from memory_bank.service.project import projects_of
    from memory_bank.service.sessions import Sessions

    loaded = load_config(config)
    database = open_bank(db, config)
    try:
        sessions = Sessions(database, loaded if config is not None else with_embedder_of(loaded, database))
        if session is not None and not sessions.exists(None, session):
            named = one_line(session, 80)
            tell(f"{database.name} has no session {named!r} yet: `memory-bank bank sessions` lists them.")
        signalled = anyio.run(_serve_stdio, create_server(sessions, session, projects_of()))
        sessions.close()
    finally:
        database.close()
    if signalled == signal.SIGINT:
        tell("stopped.")
    os._exit(130 if signalled == signal.SIGINT else 0)  # a thread may still wait for standard input


def with_embedder_of(config: Config, database: Database) -> Config:
    """The configuration with the embedder that the bank was built with in the service's strategy."""
    from memory_bank.service.sessions import Sessions

    model = embedder_name_of(database)
    if model is None:
        return config
    sessions = Sessions(database, config)
    settings = sessions.bank_settings().model_copy(update={"embedding_model": model})
    strategies = {**config.memory_strategies, sessions.strategy: settings}
    return config.model_copy(update={"memory_strategies": strategies})


async def _serve_stdio(server: Server[Any]) -> int | None:
    """Serve one client on standard input and output; returns the signal that stopped it, or None."""
    import anyio
    from mcp.server.stdio import stdio_server

    signalled: list[int] = []
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for number in signals:
                    signalled.append(number)
                    group.cancel_scope.cancel()
                    return

        group.start_soon(watch)
        try:
            async with stdio_server(stdin=_stdin_lines()) as (read, write):  # type: ignore[arg-type]
                await server.run(read, write, server.create_initialization_options())
        except* (BrokenPipeError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the client went away
        group.cancel_scope.cancel()
    return signalled[0] if signalled else None


async def _stdin_lines() -> AsyncIterator[str]:
    """The lines of standard input, read by a thread that is left behind where the process ends first."""
    from anyio import to_thread

    while line := await to_thread.run_sync(sys.stdin.buffer.readline, _LONGEST_LINE, abandon_on_cancel=True):
        if line.strip():
            yield line.decode("utf-8", "replace")


def create_key(
    name: str = typer.Argument(..., help="The agent or person that the key is for."),
    db: str | None = DB,
    config: Path | None = CONFIG,
    namespace: str | None = typer.Option(
        None,
        help="Share the sessions of the keys in this namespace (for rotation); `default`: the sessions of a "
        "service without keys. Default: a namespace of its own.",
    ),
    operator: bool = typer.Option(False, "--operator", help="The key may read the service's state."),
    requests_per_minute: int | None = typer.Option(
        None, min=0, help="Limit of requests a minute, 0 for none; default: the service's."),
    max_body_bytes: int | None = typer.Option(
        None, min=1024, help="Limit of a request body in bytes; default: the service's."),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Create a key and print it once. As soon as there is a key, the service requires one."""
    from memory_bank.bank.keys import Keys

    database = new_bank(db, config, "a key")
    limits = {"requests_per_minute": requests_per_minute, "max_body_bytes": max_body_bytes}
    stored, key = Keys(database).create(name, namespace=namespace, operator=operator, **limits)
    database.close()
    answer({"key": key, **_as_json(stored)}, key, as_json)
    if not as_json:
        tell("this is the key; it is stored nowhere, so keep it now.")


def list_keys(db: str | None = DB, config: Path | None = CONFIG, as_json: bool = JSON) -> None:
    """List all keys, revoked ones too. The keys themselves are not stored."""
    from memory_bank.bank.keys import DEFAULT, Keys

    keys = Keys(open_bank(db, config)).all()
    if as_json:
        print_json({"keys": [_as_json(k) for k in keys]})
        return
    rows = [
        [k.key_id, one_line(k.name, 100), k.namespace or DEFAULT, k.operator, k.requests_per_minute, k.max_body_bytes,
         when(k.created), when(k.revoked) if k.revoked else ""]
        for k in keys
    ]  # fmt: skip
    head = ["key_id", "name", "namespace", "operator", "requests/min", "body bytes", "created", "revoked"]
    table(head, rows, right=(4, 5), whole=(0,))


def revoke_key(
    key: str = typer.Argument(..., metavar="KEY_ID_OR_NAME", help="As `keys list` shows it."),
    db: str | None = DB,
    config: Path | None = CONFIG,
    as_json: bool = JSON,
) -> None:
    """Revoke a key, in running services within two seconds. What it stored is kept."""
    from memory_bank.bank.keys import Keys

    database = open_bank(db, config)
    revoked = Keys(database).revoke(key)
    database.close()
    answer(_as_json(revoked), f"revoked {revoked.key_id} ({one_line(revoked.name, 100)}).", as_json)


def _as_json(key: ApiKey) -> dict[str, Any]:
    from memory_bank.bank.keys import DEFAULT

    values = asdict(key)
    del values["digest"]
    return values | {"namespace": key.namespace or DEFAULT}
