"""``memory-bank serve``: the service, started from the command line."""

from __future__ import annotations

import logging
from pathlib import Path

import typer

from memory_bank.errors import MissingExtraError


def serve(
    host: str | None = typer.Option(None, help="Address to listen on; default 127.0.0.1."),
    port: int | None = typer.Option(None, min=0, max=65535, help="Port; default 8767; 0 takes a free one."),
    db: str | None = typer.Option(None, "--db", help="Database: a file name or URL; default: your own bank."),
    upstream: str | None = typer.Option(None, help="Base URL of the model's API; default OPENAI_BASE_URL."),
    config: Path | None = typer.Option(None, help="Configuration file; default: the shipped one."),
    workers: int | None = typer.Option(None, min=1, max=64, help="Processes side by side; default 1."),
    inject_tools: bool | None = typer.Option(
        None,
        "--inject-tools/--no-inject-tools",
        help="Offer the memory tools to agents and answer them; default: they are not.",
    ),
    log_format: str | None = typer.Option(None, help="Lines of the log: text or json; default text."),
) -> None:
    """Serve the HTTP API, the proxy and the page. Point an agent's base_url at it.

    Its address is written to standard output once it answers, the log to standard error. Ctrl-C and SIGTERM
    let open requests end; Ctrl-C again ends it at once.
    """
    from memory_bank.config import load_config

    try:
        from memory_bank.service.server.process import STOPPED
        from memory_bank.service.server.running import serve as run
        from memory_bank.service.server.running import with_options
    except ModuleNotFoundError as e:
        if e.name is None or e.name.startswith("memory_bank"):
            raise
        raise MissingExtraError(f"the service ({e.name.split('.')[0]})", "service") from None

    given = {
        "host": host, "port": port, "database": db, "upstream": upstream, "workers": workers,
        "inject_tools": inject_tools, "log_format": log_format,
    }  # fmt: skip
    loaded = with_options(load_config(config), {k: v for k, v in given.items() if v is not None})
    verbose = logging.getLogger("memory_bank").level == logging.DEBUG
    code = run(loaded, verbose=verbose)
    if code == STOPPED:
        raise SystemExit(code)
    raise typer.Exit(code)
