"""The service on a real port of loopback, in a thread, and requests to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from fastapi import FastAPI
from tests.chats import FOLDING

from memory_bank.config import Config, load_config
from memory_bank.service.app import create_app


def configured(database: str | Path, **more: Any) -> Config:
    """The shipped configuration with another database and a fold at every step; ``more``: settings of the service."""
    shipped = load_config().model_dump(exclude={"service"})
    shipped["memory_strategies"]["memory_bank"] = FOLDING
    service = {"database": str(database), "redact_secrets": False, **more}
    return Config(**shipped, service=service)


@contextmanager
def serving(config: Config, changed: Callable[[FastAPI], None] | None = None) -> Iterator[str]:
    """The base URL of a service while it runs; ``changed`` does something to the application before."""
    app = create_app(config)
    if changed is not None:
        changed(app)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until = time.monotonic() + 30
        while not server.started and time.monotonic() < until:
            time.sleep(0.01)
        assert server.started
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)


def client(base_url: str) -> httpx2.Client:
    return httpx2.Client(base_url=base_url, timeout=180, trust_env=False)
