"""``GET /health``, which checks each part of the service, and ``GET /metrics`` for Prometheus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
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
from memory_bank.service.operations.metrics import CONTENT_TYPE, Metrics, QueueState
from memory_bank.service.operations.observer import ServiceObserver
from memory_bank.service.security.access import Caller, caller_of
from memory_bank.service.sessions import Sessions

try:
    import httpx2
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import JSONResponse
except ImportError:
    raise MissingExtraError("the service (FastAPI, httpx2)", "service") from None

PATIENCE = 2.0
"""Seconds that a check may take."""
_FRESH = {"database": 1.0, "storage": 1.0, "upstream": 5.0}  # seconds for which a result is reused

Check = Callable[[], dict[str, Any]]
"""Runs in a thread. Returns details for operators; an exception means that the part is unavailable."""


@dataclass(slots=True, eq=False)
class _CheckedPart:
    """One part of the service with its latest result."""

    check: Check
    fresh: float
    limiter: anyio.CapacityLimiter
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    checked_at: float = float("-inf")
    latest: dict[str, Any] = field(default_factory=dict)

    async def result(self) -> dict[str, Any]:
        """``{"ok": …, "ms": …}`` and the details of the check."""
        async with self.lock:
            if time.monotonic() - self.checked_at > self.fresh:
                began = time.perf_counter()
                found: dict[str, Any] = {"ok": False, "trouble": f"no answer within {PATIENCE:g} s"}
                try:
                    with anyio.move_on_after(PATIENCE):
                        found = await to_thread.run_sync(
                            self.check, abandon_on_cancel=True, limiter=self.limiter
                        )
                except Exception as e:
                    trouble = str(e) if isinstance(e, MemoryBankError) else type(e).__name__
                    found = {"ok": False, "trouble": trouble}
                self.latest = {"ok": True, "ms": round(1000 * (time.perf_counter() - began), 1)} | found
                self.checked_at = time.monotonic()
        return self.latest


class Operations:
    """Health checks and metrics of a service. For one event loop."""

    def __init__(
        self,
        database: Database,
        sessions: Sessions,
        observing: ServiceObserver,
        metrics: Metrics,
        upstream: str,
    ) -> None:
        self._database = database
        self._sessions = sessions
        self._observing = observing
        self._metrics = metrics
        self._upstream = upstream
        # a new connection for each check: what follows the answer to HEAD must not be read as the next answer
        limits = httpx2.Limits(max_keepalive_connections=0)
        self._client = httpx2.Client(timeout=PATIENCE, follow_redirects=False, limits=limits)
        self._limiter = anyio.CapacityLimiter(4)  # so that a check that hangs blocks no request
        self._parts: dict[str, _CheckedPart] = {}
        for name in ("database", "storage", "upstream", "embedder", "observer"):
            self.add(name, getattr(self, f"_check_{name}"))

    def add(self, name: str, check: Check) -> None:
        """Add a part to check."""
        self._parts[name] = _CheckedPart(check, _FRESH.get(name, 2.0), self._limiter)

    async def health(self, *, details: bool) -> tuple[int, dict[str, Any]]:
        """Return status and body: 503 if the database is unavailable, else 200.

        Without details only the database is checked, and whether it can be written. Upstream is asked without
        a key.
        """
        names = list(self._parts) if details else ["database", "storage"]
        results = await asyncio.gather(*(self._parts[name].result() for name in names))
        found = dict(zip(names, results, strict=True))
        well = all(part["ok"] for part in found.values())
        body: dict[str, Any] = {"status": "ok" if well else "degraded", "version": __version__}
        return (200 if found["database"]["ok"] else 503), body | ({"parts": found} if details else {})

    async def scrape(self) -> bytes:
        """The metrics of all workers in Prometheus' text format."""
        waiting: QueueState | None = None
        with anyio.move_on_after(PATIENCE):
            waiting = await to_thread.run_sync(self._waiting, abandon_on_cancel=True, limiter=self._limiter)
        self._metrics.sessions.set(self._sessions.held)
        return await to_thread.run_sync(self._metrics.scrape, waiting, limiter=self._limiter)

    def close(self) -> None:
        """Close the connection to upstream."""
        self._client.close()

    def _waiting(self) -> QueueState | None:
        try:
            return QueueState(*oldest_job(self._database))
        except StorageError:
            return None

    def _check_database(self) -> dict[str, Any]:
        with self._database.read() as c:
            c.execute(sa.text("SELECT 1")).all()
        return {"name": self._database.name}

    def _check_storage(self) -> dict[str, Any]:
        self._database.check_writing()
        return {}

    def _check_upstream(self) -> dict[str, Any]:
        try:
            answer = self._client.head(self._upstream)
        except httpx2.HTTPError as e:
            return {"ok": False, "trouble": type(e).__name__}
        return {"status": answer.status_code}  # any status means that it is reachable

    def _check_embedder(self) -> dict[str, Any]:
        model = load_embedder(self._sessions.bank_settings().embedding_model)
        check_embedder(self._database, model.name, None)
        return {"name": model.name}

    def _check_observer(self) -> dict[str, Any]:
        jobs, oldest = oldest_job(self._database)
        well = self._observing.settings is None or self._observing.works
        return {"ok": well, "name": self._observing.name, "jobs": jobs, "oldest_seconds": round(oldest, 1)}


def add_operations(app: FastAPI) -> None:
    """The routes ``/health`` and ``/metrics``."""

    @app.get("/health", tags=["operations"], summary="Health of the service")
    async def health(request: Request, live: str | None = None) -> JSONResponse:
        """With ``?live`` nothing is checked except that the process answers. Operators see each part."""
        if live is not None:
            return JSONResponse({"status": "ok", "version": __version__})
        operations: Operations = request.app.state.service.operations
        caller: Caller = caller_of(request)
        status, body = await operations.health(details=caller.operator)
        return JSONResponse(body, status, {"cache-control": "no-store"})

    @app.get("/metrics", tags=["operations"], summary="Metrics for Prometheus", response_class=Response)
    async def metrics(request: Request) -> Response:
        """For operators: once a key exists, a key created with ``--operator`` is required."""
        if not caller_of(request).operator:
            raise NotAuthorizedError("metrics are for operators: send a key created with --operator.")
        operations: Operations = request.app.state.service.operations
        return Response(await operations.scrape(), media_type=CONTENT_TYPE)
