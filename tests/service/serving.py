"""A real server of the application over loopback, and requests to it that say exactly what they are told to."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from tests.chats import FOLDING
from tests.service.processes import Service

from memory_bank.config import Config, load_config
from memory_bank.service.app import create_app


def configured(
    strategies: Mapping[str, Any] | None = None, prices: Mapping[str, Any] | None = None, **service: Any
) -> Config:
    """The shipped configuration with some settings of the service, the strategy "folding", and other strategies."""
    shipped = load_config().model_dump(exclude={"service"})
    shipped["memory_strategies"].update({"folding": FOLDING, **(strategies or {})})
    return Config(**shipped | ({"prices": prices} if prices else {}), service=service)


class _Server(uvicorn.Server):
    """uvicorn's server, which ends at once: its own looks whether to end, and for open connections, every 0.1 s."""

    async def main_loop(self) -> None:
        await self.on_tick(0)
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self.ready.set()
        await self._ended.wait()

    async def shutdown(self, sockets: Any = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        while self.server_state.connections or self.server_state.tasks:
            await asyncio.sleep(0.002)
        await self.lifespan.shutdown()

    def serve_in_thread(self) -> threading.Thread:
        """The thread that serves until ``end``; it serves already."""
        self.ready = threading.Event()
        thread = threading.Thread(target=self.run, daemon=True)
        thread.start()
        while not self.ready.wait(0.5):
            assert thread.is_alive(), "the server did not start"
        return thread

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)


@contextmanager
def running(app: Any, **options: Any) -> Iterator[int]:
    """Serve an application in a thread, on a free port, which is given; ``options`` are uvicorn's."""
    server = _Server(uvicorn.Config(app, port=0, log_config=None, access_log=False, **options))
    thread = server.serve_in_thread()
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.end()
        thread.join(30)


@dataclass
class Reply:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """The one header of this name; None where there is none."""
        found = [v for k, v in self.headers if k.lower() == name]
        assert len(found) <= 1, found
        return found[0] if found else None

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def said(self) -> str:
        return str(self.json()["error"]["message"])


@dataclass
class Served:
    port: int
    app: Any

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=180, trust_env=False)

    def ask(
        self,
        method: str,
        path: str,
        *headers: tuple[str, str],
        body: bytes | Iterable[bytes] | None = None,
        host: str | None = "localhost",
    ) -> Reply:
        """One request over a connection of its own. Header lines go out as they are, also twice."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in (*([("Host", host)] if host is not None else []), *headers):
                connection.putheader(name, value.encode("utf-8"))
            if isinstance(body, bytes) or body is None:
                connection.putheader("Content-Length", str(len(body or b"")))
                connection.endheaders(body)
            else:
                connection.putheader("Transfer-Encoding", "chunked")
                connection.endheaders()
                try:
                    for part in body:
                        connection.send(b"%x\r\n%b\r\n" % (len(part), part))
                    connection.send(b"0\r\n\r\n")
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the answer came first
            answer = connection.getresponse()
            return Reply(answer.status, answer.getheaders(), answer.read())
        finally:
            connection.close()


@contextmanager
def serving(config: Config, host: str = "127.0.0.1", prepare: Any = None) -> Iterator[Served]:
    """The application, served in a thread. ``prepare`` may add routes of a test to it."""
    app = create_app(config)
    if prepare is not None:
        prepare(app)
    with running(app, host=host) as port:
        yield Served(port, app)


@contextmanager
def serve_here(bank: Path, **strategy: Any) -> Iterator[Service]:
    """The service in a thread, for what is the same in a process; its strategy has these settings instead."""
    shipped = load_config().model_dump()["memory_strategies"]["memory_bank"]
    with serving(configured({"memory_bank": shipped | strategy}, database=str(bank))) as served:
        service = Service()
        service.address = served.url
        yield service


def bearer(key: str) -> tuple[str, str]:
    return ("Authorization", f"Bearer {key}")
