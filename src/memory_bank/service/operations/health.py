"""``GET /health``, which checks each part of the service, and ``GET /metrics`` for Prometheus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
from anyio import to_thread

from memory_bank import __version__
from memory_bank.bank.database import Database
from memory_bank.bank.embedder import check_embedder
from memory_bank.bank.worker import waiting_since
from memory_bank.errors import MemoryBankError, MissingExtraError, NotAuthorizedError, StorageError
from memory_bank.models.embedding import load_embedder
from memory_bank.service.operations.background import ServiceObserver
from memory_bank.service.operations.metrics import CONTENT_TYPE, Metrics
from memory_bank.service.proxy.upstream import certificates, proxy_for
from memory_bank.service.security.access import caller_of
from memory_bank.service.security.proof import CHALLENGE, PROOF, address_of, prove, upstream_claim
from memory_bank.service.sessions import Sessions

try:
    import httpx2
    from fastapi import APIRouter, Request, Response
    from fastapi.responses import JSONResponse
except ImportError:
    raise MissingExtraError("the service (FastAPI, httpx2)", "service") from None

router = APIRouter(tags=["operations"])

PATIENCE = 2.0
"""Seconds that a check may take."""
_FRESH = {"database": 1.0, "storage": 1.0, "upstream": 5.0}  # seconds for which a result is reused; others: 2

Check = Callable[[], dict[str, Any] | None]
"""Runs in a thread. Returns details for operators; an exception means that the part is unavailable."""


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
        self._client = httpx2.Client(
            verify=certificates(), timeout=PATIENCE, limits=limits, proxy=proxy_for(upstream), trust_env=False
        )
        self._limiter = anyio.CapacityLimiter(4)  # so that a check that hangs blocks no request
        self._checks: dict[str, Check] = {
            "database": self._check_database, "storage": database.check_writing, "upstream": self._check_upstream,
            "embedder": self._check_embedder, "observer": self._check_observer,
        }  # fmt: skip
        self._locks: dict[str, anyio.Lock] = {}
        self._latest: dict[str, tuple[float, dict[str, Any]]] = {}  # by part: until when, its result

    def add(self, name: str, check: Check) -> None:
        """Add a part to check."""
        self._checks[name] = check

    async def health(self, *, details: bool) -> tuple[int, dict[str, Any]]:
        """Return status and body: 503 if the database is unavailable, else 200.

        Without details only the database is checked, and whether it can be written. Upstream is asked without
        a key.
        """
        names = list(self._checks) if details else ["database", "storage"]
        results = dict(zip(names, await asyncio.gather(*map(self._result, names)), strict=True))
        well = all(part["ok"] for part in results.values())
        body: dict[str, Any] = {"status": "ok" if well else "degraded", "version": __version__}
        return (200 if results["database"]["ok"] else 503), body | ({"parts": results} if details else {})

    async def _result(self, name: str) -> dict[str, Any]:
        """``{"ok": …, "ms": …}`` of a part, and the details of its check."""
        async with self._locks.setdefault(name, anyio.Lock()):
            until, latest = self._latest.get(name, (0.0, {}))
            if time.monotonic() < until:
                return latest
            began = time.perf_counter()
            result: dict[str, Any] = {"ok": False, "trouble": f"no answer within {PATIENCE:g} s"}
            try:
                with anyio.move_on_after(PATIENCE):
                    result = await self._in_thread(self._checks[name]) or {}
            except Exception as e:
                result["trouble"] = str(e) if isinstance(e, MemoryBankError) else type(e).__name__
            latest = {"ok": True, "ms": round(1000 * (time.perf_counter() - began), 1)} | result
            self._latest[name] = time.monotonic() + _FRESH.get(name, 2.0), latest
            return latest

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._limiter)

    async def scrape(self) -> bytes:
        """The metrics of all workers in Prometheus' text format."""
        waiting: tuple[int, float] | None = None
        with anyio.move_on_after(PATIENCE), suppress(StorageError):
            waiting = await self._in_thread(partial(waiting_since, self._database))
        self._metrics.sessions.set(self._sessions.held)
        return await to_thread.run_sync(self._metrics.scrape, waiting, limiter=self._limiter)

    def close(self) -> None:
        """Close the connection to upstream."""
        self._client.close()

    def _check_database(self) -> dict[str, Any]:
        self._database.check_schema()
        return {"name": self._database.name}

    def _check_upstream(self) -> dict[str, Any]:
        return {"status": self._client.head(self._upstream).status_code}  # any one means that it is reachable

    def _check_embedder(self) -> dict[str, Any]:
        model = load_embedder(self._sessions.bank_settings().embedding_model)
        check_embedder(self._database, model.name, None)
        return {"name": model.name}

    def _check_observer(self) -> dict[str, Any]:
        waiting, oldest = waiting_since(self._database)
        ok, name = self._observing.settings is None or self._observing.works, self._observing.name
        return {"ok": ok, "name": name, "waiting": waiting, "oldest_seconds": round(oldest, 1)}


@router.get("/healthz", summary="Whether the process answers, as /health?live")
async def healthz() -> dict[str, str]:
    """Nothing else is checked."""
    return {"status": "ok", "version": __version__}


@router.get("/readyz", summary="Whether the bank can be used, as /health", operation_id="readyz")
@router.get("/health", summary="Health of the service")
async def health(request: Request, live: str | None = None) -> JSONResponse:
    """With ``?live`` nothing is checked except that the process answers. Operators see each part."""
    if live is not None:
        return JSONResponse(await healthz())
    operations: Operations = request.app.state.service.operations
    status, body = await operations.health(details=caller_of(request).operator)
    headers = {"cache-control": "no-store"}
    challenge, server = request.headers.get(CHALLENGE), request.scope.get("server")
    if challenge and server:
        claims = [upstream_claim(p, url) for p, url in request.app.state.service.urls.items()]
        proof = await to_thread.run_sync(prove, challenge, address_of(*server), claims)
        headers |= {PROOF: proof} if proof else {}
    return JSONResponse(body, status, headers)


@router.get("/metrics", summary="Metrics for Prometheus", response_class=Response)
async def metrics(request: Request) -> Response:
    """For operators: once a key exists, a key created with ``--operator`` is required."""
    if not caller_of(request).operator:
        raise NotAuthorizedError("metrics are for operators: send a key created with --operator.")
    operations: Operations = request.app.state.service.operations
    return Response(await operations.scrape(), media_type=CONTENT_TYPE)
