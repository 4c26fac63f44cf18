"""How the service does: ``GET /health`` with a ping of each part, ``GET /metrics`` for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import anyio
import sqlalchemy as sa
from anyio import to_thread

from memory_bank import __version__
from memory_bank.bank.database import Database
from memory_bank.bank.embedder import check_embedder
from memory_bank.bank.jobs import oldest_job
from memory_bank.errors import MemoryBankError, MissingExtraError, NotAuthorizedError, StorageError
from memory_bank.models.embedding import load_embedder
from memory_bank.service.operations.metrics import CONTENT_TYPE, Metrics, Waiting
from memory_bank.service.operations.observing import Observing
from memory_bank.service.security.access import Caller, caller_of
from memory_bank.service.sessions import Sessions

try:
    import httpx2
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import JSONResponse
except ImportError:
    raise MissingExtraError("the service (FastAPI, httpx2)", "service") from None

PATIENCE = 2.0
"""Seconds that a ping may take."""
_THREADS = 4  # of pings: one that hangs keeps up no request
_FRESH = {"database": 1.0, "upstream": 5.0}  # seconds for which a ping is believed
_FRESH_ELSE = 2.0

Ping = Callable[[], dict[str, Any]]
"""Runs in a thread; what it gives is told to operators, what it raises means that the part is away."""


class _Part:
    """One part of the service, asked at most every so many seconds, by one request at a time."""

    def __init__(self, name: str, ping: Ping, limiter: anyio.CapacityLimiter) -> None:
        self._ping = ping
        self._fresh = _FRESH.get(name, _FRESH_ELSE)
        self._limiter = limiter
        self._lock = anyio.Lock()
        self._asked = float("-inf")
        self._told: dict[str, Any] = {}

    async def ask(self) -> dict[str, Any]:
        """``{"ok": …, "ms": …}`` and what else the part tells of itself."""
        async with self._lock:
            if time.monotonic() - self._asked > self._fresh:
                self._told = await self._answer()
                self._asked = time.monotonic()
        return self._told

    async def _answer(self) -> dict[str, Any]:
        began = time.perf_counter()
        told: dict[str, Any] | None = None
        try:
            with anyio.move_on_after(PATIENCE):
                told = await to_thread.run_sync(self._ping, abandon_on_cancel=True, limiter=self._limiter)
        except MemoryBankError as e:
            told = {"ok": False, "trouble": str(e)}
        except Exception as e:
            told = {"ok": False, "trouble": type(e).__name__}
        if told is None:
            told = {"ok": False, "trouble": f"no answer within {PATIENCE:g} s"}
        return {"ok": True, "ms": round(1000 * (time.perf_counter() - began), 1)} | told


class Operations:
    """Asks the parts of a service how they do. For one event loop."""

    def __init__(
        self,
        database: Database,
        sessions: Sessions,
        observing: Observing,
        metrics: Metrics,
        upstream: str,
    ) -> None:
        self._database = database
        self._sessions = sessions
        self._observing = observing
        self._metrics = metrics
        self._upstream = upstream
        self._client = httpx2.Client(timeout=PATIENCE, follow_redirects=False)
        self._limiter = anyio.CapacityLimiter(_THREADS)
        self._parts: dict[str, _Part] = {}
        self.add("database", self._ask_database)
        self.add("upstream", self._ask_upstream)
        self.add("embedder", self._ask_embedder)
        self.add("observer", self._ask_observer)

    def add(self, name: str, ping: Ping) -> None:
        """One more part that tells how it does."""
        self._parts[name] = _Part(name, ping, self._limiter)

    async def health(self, *, details: bool) -> tuple[int, dict[str, Any]]:
        """Status and body. Without details the database alone is asked: it decides the status.

        503 while it is away. Upstream is asked for its name only, never with a key.
        """
        found: dict[str, dict[str, Any]] = {}

        async def ask(name: str) -> None:
            found[name] = await self._parts[name].ask()

        names = list(self._parts) if details else ["database"]
        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(ask, name)
        well = all(told["ok"] for told in found.values())
        body: dict[str, Any] = {"status": "ok" if well else "degraded", "version": __version__}
        if details:
            body["parts"] = {name: found[name] for name in names}
        return (200 if found["database"]["ok"] else 503), body

    async def scrape(self) -> bytes:
        """The figures of all workers, for Prometheus."""
        waiting: Waiting | None = None
        with anyio.move_on_after(PATIENCE):
            waiting = await to_thread.run_sync(self._waiting, abandon_on_cancel=True, limiter=self._limiter)
        self._metrics.sessions.set(self._sessions.held)
        return await to_thread.run_sync(self._metrics.scrape, waiting, limiter=self._limiter)

    def close(self) -> None:
        """Close the connection to upstream."""
        self._client.close()

    def _waiting(self) -> Waiting | None:
        try:
            return Waiting(*oldest_job(self._database))
        except StorageError:
            return None

    def _ask_database(self) -> dict[str, Any]:
        with self._database.read() as c:
            c.execute(sa.text("SELECT 1")).all()
        return {"name": self._database.name}

    def _ask_upstream(self) -> dict[str, Any]:
        try:
            answer = self._client.head(self._upstream)
        except httpx2.HTTPError as e:
            return {"ok": False, "trouble": type(e).__name__}
        return {"status": answer.status_code}  # whatever it says to a caller without a key, it is there

    def _ask_embedder(self) -> dict[str, Any]:
        model = load_embedder(self._sessions.bank_settings().embedding_model)
        check_embedder(self._database, model.name, None)
        return {"name": model.name}

    def _ask_observer(self) -> dict[str, Any]:
        jobs, oldest = oldest_job(self._database)
        well = self._observing.settings is None or self._observing.works
        return {"ok": well, "name": self._observing.name, "jobs": jobs, "oldest_seconds": round(oldest, 1)}


def add_operations(app: FastAPI) -> None:
    """The routes ``/health`` and ``/metrics``."""

    @app.get("/health", tags=["operations"], summary="How the service does")
    async def health(request: Request, live: str | None = None) -> JSONResponse:
        """``?live``: whether the process answers, nothing else is asked. Operators see each part."""
        if live is not None:
            return JSONResponse({"status": "ok", "version": __version__})
        operations: Operations = request.app.state.service.operations
        caller: Caller = caller_of(request)
        status, body = await operations.health(details=caller.operator)
        return JSONResponse(body, status, {"cache-control": "no-store"})

    @app.get("/metrics", tags=["operations"], summary="Figures for Prometheus", response_class=Response)
    async def metrics(request: Request) -> Response:
        """For operators: once there are keys, one made with ``--operator`` is needed."""
        if not caller_of(request).operator:
            raise NotAuthorizedError("these figures are for operators: send a key made with --operator.")
        operations: Operations = request.app.state.service.operations
        return Response(await operations.scrape(), media_type=CONTENT_TYPE)
