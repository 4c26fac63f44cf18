"""``memory-bank serve``: the service, started from the command line."""

from __future__ import annotations

from pathlib import Path

import typer


def serve(
    host: str | None = typer.Option(None, help="Address to listen on; default 127.0.0.1."),
    port: int | None = typer.Option(None, min=0, max=65535, help="Port; default 8767; 0 takes a free one."),
    db: str | None = typer.Option(None, "--db", help="Database: a file name or URL; default: your own bank."),
    upstream: str | None = typer.Option(None, help="Base URL of the model's API; default OPENAI_BASE_URL."),
    config: Path | None = typer.Option(None, help="Configuration file; default: the shipped one."),
) -> None:
    """Serve the HTTP API, the proxy and the page. Point an agent's base_url at it."""
    import uvicorn

    from memory_bank.config import load_config
    from memory_bank.service.app import create_app

    loaded = load_config(config)
    given = {"host": host, "port": port, "database": db, "upstream": upstream}
    changed = {k: v for k, v in given.items() if v is not None}
    loaded = loaded.model_copy(update={"service": loaded.service.model_copy(update=changed)})
    settings = loaded.service
    uvicorn.run(create_app(loaded), host=settings.host, port=settings.port, log_level="warning")
