"""The application: its parts, middleware and routes, start and shutdown."""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import takewhile
from typing import Any
from urllib.parse import urlsplit

from anyio import to_thread

from memory_bank import __version__
from memory_bank.bank.database import Database
from memory_bank.bank.schema import WITHOUT
from memory_bank.bank.steps import CONTROL, StepFigures
from memory_bank.config import ANTHROPIC, Config, ServiceSettings, upstreams_of
from memory_bank.errors import (
    ConfigError,
    InvalidRequestError,
    MemoryBankError,
    MissingExtraError,
    NotFoundError,
)
from memory_bank.models.usage import NO_USAGE
from memory_bank.pricing import Price, StepTokens, Usage, costs
from memory_bank.service import failures
from memory_bank.service.api import memory, records, sessions
from memory_bank.service.api.openapi import describe, validation_message
from memory_bank.service.api.requests import JSON, json_bytes
from memory_bank.service.operations import health
from memory_bank.service.operations.background import ServiceObserver, chat_of
from memory_bank.service.operations.logs import RequestLog
from memory_bank.service.operations.metrics import Metrics
from memory_bank.service.operations.telemetry import Telemetry, has_sdk
from memory_bank.service.page import files
from memory_bank.service.page.recorder import Answer, Recorder
from memory_bank.service.proxy.api import Provider
from memory_bank.service.proxy.body import MessageCache
from memory_bank.service.proxy.exchange import REFUSED, THINKING_LEFT_OUT, Exchange
from memory_bank.service.proxy.flow import DIALECTS, handle
from memory_bank.service.proxy.identity import Identity
from memory_bank.service.proxy.rebuild import CONTINUED, Rebuilder
from memory_bank.service.proxy.shared import Proxy, Seals
from memory_bank.service.proxy.upstream import Upstream
from memory_bank.service.security.access import AllowedHosts, Gate, Keyring, stored_id
from memory_bank.service.security.redaction import Redaction
from memory_bank.service.server.database import open_database
from memory_bank.service.sessions import Rebuilt, Sessions

try:
    from fastapi import FastAPI, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import Response
    from starlette.exceptions import HTTPException
    from starlette.routing import Match, Route
    from starlette.types import Receive, Scope, Send
except ImportError:
    raise MissingExtraError("the service (FastAPI, uvicorn)", "service") from None

log = logging.getLogger("memory_bank.Service")

NO_PRICE = "no price of the model is known: add it to [prices] in the configuration"


class Service:
    """The objects that the handlers of one process share. ``exchanges`` are called after each proxied request."""

    def __init__(
        self, config: Config, database: Database, metrics: Metrics, telemetry: Telemetry | None = None
    ) -> None:
        self.config = config
        self.settings: ServiceSettings = config.service
        self.database = database
        self.metrics = metrics
        self.telemetry = telemetry
        urls = self.urls = upstreams_of(self.settings)
        chat = chat_of(config, urls["openai"])
        self.observing = ServiceObserver(database, config, chat)
        redaction = Redaction.of(self.settings)
        self.recorder = Recorder(
            database, self.settings.steps_kept, redact=redaction.text if redaction else str
        )
        self.sessions = Sessions(
            database,
            config,
            chat,
            redact=redaction.message if redaction else None,
            rebuilt=self._stepped,
            queued=self.observing.wake,
            traced=None if telemetry is None else telemetry.memory,
        )
        self.keyring = Keyring(database)
        self.operations = health.Operations(database, self.sessions, self.observing, metrics, urls["openai"])
        self.exchanges: list[Callable[[Exchange], None]] = [self._exchanged]
        if telemetry is not None:
            self.exchanges.insert(0, telemetry.exchanged)
        self.upstreams = connections(urls, self.settings.upstream_timeout)
        known = urlsplit(urls["anthropic"]).hostname == urlsplit(ANTHROPIC).hostname
        passes: dict[str, set[Provider]] = {"pass": {"openai", "anthropic"}, "remove": set()}
        rebuilder = Rebuilder(
            self.sessions,
            Identity(database),
            self.settings.memory_timeout,
            marks_cache=self.settings.cache_markers == "auto",
            inject=self.settings.inject_tools,
            passes=passes.get(self.settings.context_management, passes["pass"] if known else {"openai"}),
        )
        self.operations.add("memory", rebuilder.check)
        self.proxy = Proxy(
            self.upstreams,
            rebuilder,
            cache=MessageCache(),
            seals=Seals(database),
            add_trace=list if telemetry is None else telemetry.carry,
            record=self.tell,
        )
        database.failed = metrics.database_errors.inc
        self.ending = threading.Event()
        """Set at the beginning of a shutdown: endless streams stop."""
        self._until: float | None = None

    def tell(self, exchange: Exchange) -> None:
        """Report a finished request to ``exchanges``, its model redacted; an error of one of them is logged."""
        exchange.model = exchange.model and self.recorder.redact(exchange.model)
        for listener in self.exchanges:
            try:
                listener(exchange)
            except Exception as e:
                log.error("an observer of the proxy failed: %s", type(e).__name__)

    def end(self, seconds: float) -> None:
        """Begin a shutdown: no further records are observed, and ``close`` may take ``seconds``."""
        self._until = time.monotonic() + seconds
        self.ending.set()
        self.observing.end()

    def close(self) -> None:
        """Finish current calls and steps, close sessions and the database; records go on waiting in it."""
        until = self._until or time.monotonic() + self.settings.shutdown_timeout
        self.observing.close(max(0.0, until - time.monotonic()))
        self.recorder.close(max(1.0, until - time.monotonic()))
        self.operations.close()
        self.keyring.close()
        self.sessions.close()
        self.database.close()

    def _exchanged(self, exchange: Exchange) -> None:
        if exchange.outcome in ("unreachable", "broken_off"):
            self.metrics.upstream_errors.inc()
        if exchange.memory == "failed":
            self.metrics.without.labels(exchange.reason).inc()
        step, tokens, full_tokens = exchange.step, exchange.tokens, exchange.full_tokens
        failed = exchange.status is not None and exchange.status >= 400
        ended: dict[str, Any] = {
            "model": exchange.model,
            "seconds": exchange.seconds,
            "http_status": exchange.status,
            "error": exchange.trouble or (f"status {exchange.status}" if failed else None),
        }
        answer = bytes(exchange.kept), exchange.api
        if exchange.memory == "failed" or (exchange.reason or "").endswith(CONTINUED):
            self._record_without(exchange, ended, answer)
        if step is None or tokens is None or full_tokens is None:
            return
        paid, by_marks = _paid(exchange), exchange.api.route == "messages"
        sent = full = paid["sent"]
        first, prefix = sent, step.state.prefix_cache
        if sent is not None and sent.input:
            own = exchange.answered_tokens
            if exchange.hidden:  # what they cost no fold can spare, and none waits for it
                first = exchange.readers[0].report().tokens or sent
                own = (exchange.context_tokens or 0) + exchange.tool_tokens
            counts = StepTokens(
                own, step.tokens, full_tokens, step.known_tokens, step.beside_tokens, step.unchanged
            )
            tells = exchange.usage.cached is not None
            settled = step.state.ledger.account(
                prefix, step.charge, counts, first, by_marks=by_marks, tells=tells
            )
            full = replace(settled, output=sent.output)
        is_whole = exchange.outcome == "complete" and exchange.status is not None and exchange.status < 300
        is_as_built = exchange.memory == ("unchanged" if step.unchanged else "rebuilt")
        if is_whole and is_as_built and step.charge is not None:
            cached = exchange.usage.cached if exchange.usage.untold is None else None
            prefix.answered(step.charge, cached, by_marks=by_marks, written=first.written if first else 0)
        refused = exchange.reason in (REFUSED, THINKING_LEFT_OUT)
        status = "refused" if refused else "failed" if step.broke else exchange.memory
        ended |= {"status": CONTROL if step.status == CONTROL else status}
        ended |= {"reason": exchange.reason if status in WITHOUT else step.reason, **paid, "full": full}
        self._stepped(step, answer, tokens=tokens, full_tokens=full_tokens, **ended)
        if sent is not None and full is not None:
            self._count_usage(sent, full, prefix.price, exchange.usage.billed)
        elif paid.get("untold") and not failed:
            self.metrics.untold.labels(paid["untold"]).inc()

    def _count_usage(self, sent: Usage, full: Usage, price: Price | None, billed: float | None) -> None:
        """Count a model call whose usage was reported; its cost if that is ``billed`` or its model has a price."""
        metrics = self.metrics
        for kind in ("input", "cached", "written", "output"):
            metrics.usage.labels(kind).inc(getattr(sent, kind))
        metrics.usage.labels("full_input").inc(full.input)
        pair = costs(sent, full, price, billed)
        if pair is None:
            metrics.untold.labels(NO_PRICE).inc()
        for kind, cost in zip(("sent", "full"), pair or (), strict=False):
            metrics.cost.labels(kind).inc(cost)

    def _record_without(self, exchange: Exchange, ended: dict[str, Any], answer: Answer) -> None:
        """Record a request that memory failed for, where its session is known; no tokens count as saved."""
        exchange.answered_tokens = tokens = exchange.usage.input or exchange.received_bytes // 4
        paid = _paid(exchange)
        ended |= {**paid, "full": paid["sent"], "reason": exchange.reason}
        began = time.time() - exchange.seconds
        with suppress(ConfigError):  # no name of a session
            session_id = stored_id(exchange.namespace, exchange.session or "")
            figures = StepFigures(session_id, began, tokens, tokens, 0, 0, "failed", "", 0.0, **ended)
            self.recorder.take(figures, answer)

    def _stepped(self, step: Rebuilt, answer: Answer | None = None, **ended: Any) -> None:
        """Report a context: the API's as it is built, the proxy's with its ``answer`` and its figures.

        ``ended``: fields of StepFigures.
        """
        self.metrics.step_seconds.observe(step.milliseconds / 1000)
        if step.broke:
            self.metrics.without.labels(step.broke).inc()
        self.metrics.sessions.set(self.sessions.held)
        if self.telemetry is not None:
            self.telemetry.stepped(step)
        step = replace(step, **ended)
        self.metrics.tokens.labels("full").inc(step.full_tokens)
        self.metrics.tokens.labels("sent").inc(step.tokens)
        self.recorder.take(step, answer)


def _paid(exchange: Exchange) -> dict[str, Any]:
    """The cost of a request that upstream reported, or why it is not known, as fields of StepFigures."""
    if not exchange.answered_tokens:
        return {"sent": None}
    usage = exchange.usage
    sent = Usage() if usage.tokens is None and usage.billed is not None else usage.tokens
    untold = usage.untold
    if untold == NO_USAGE.untold and exchange.outcome != "complete":
        untold = "the answer broke off before its usage"
    elif untold == NO_USAGE.untold and exchange.streamed and exchange.api.route == "chat":
        untold = "the stream has no usage: the client has to ask for it by stream_options.include_usage"
    return {"sent": sent, "billed": usage.billed, "untold": untold}


def connections(urls: Mapping[Provider, str], timeout: float = 600.0) -> dict[Provider, Upstream]:
    """The upstreams at these URLs, with the service's own keys of the environment. Raises what Upstream raises."""
    return {
        p: Upstream(u, timeout=timeout, key=os.environ.get(f"{p.upper()}_API_KEY")) for p, u in urls.items()
    }


class _Application(FastAPI):
    """FastAPI inside the request log, which also sees FastAPI's own 500."""

    metrics: Metrics
    tracing: Telemetry | None

    def build_middleware_stack(self) -> Any:
        return RequestLog(super().build_middleware_stack(), self.metrics, self.tracing)


def create_app(config: Config) -> FastAPI:
    """Create the application, whose start opens the database. Raises ConfigError for upstream, host or origin."""

    @asynccontextmanager
    async def lifespan(app: _Application) -> AsyncIterator[None]:
        database = await to_thread.run_sync(open_database, config.service)
        try:
            service = Service(config, database, app.metrics, app.tracing)
            service.observing.start()
            await to_thread.run_sync(service.sessions.load)  # before the address is told
        except BaseException:
            database.close()
            raise
        app.state.service = service
        try:
            yield
        finally:
            for upstream in service.upstreams.values():
                await upstream.aclose()
            await to_thread.run_sync(service.close)

    urls = upstreams_of(config.service)
    # FastAPI's own telemetry reports paths, which contain names, and the texts of errors
    otel: Any = dict.fromkeys(("tracing", "metrics", "logs", "operation_spans", "auto_configure"), False)
    app = _Application(
        title="memory_bank",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # its page loads scripts from another site
        redoc_url=None,
        telemetry=otel,
        generate_unique_id_function=lambda route: route.name,
    )
    app.metrics = Metrics()
    app.tracing = Telemetry(urls["openai"], urls["anthropic"]) if has_sdk() else None

    # expected errors are answered in the one form; the gate answers unexpected ones
    @app.exception_handler(MemoryBankError)
    async def ours(request: Request, error: Any) -> Response:
        status, body, headers = failures.failure(error, request.scope["path"])
        return Response(json_bytes(body), status, headers, JSON)

    @app.exception_handler(HTTPException)
    async def theirs(request: Request, error: Any) -> Response:  # noqa: ARG001
        body = failures.body(str(error.detail), "http_error", error.status_code)
        return Response(json_bytes(body), error.status_code, error.headers, JSON)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: Any) -> Response:
        return await ours(request, InvalidRequestError(validation_message(error.errors())))

    modules = (health, sessions, memory, records)
    for router in (*(m.router for m in modules), sessions.steps_router, files.router):
        app.include_router(router)
    for path in ("/v1/sessions", "/v1/search", "/v1/stats"):
        for rest in ("", "/{rest:path}"):
            app.router.routes.append(Route(path + rest, UnknownRoute(), include_in_schema=False))
    app.router.routes.append(Route("/mcp", McpEndpoint(), methods=["POST"]))
    app.router.routes.append(Route("/v1/{path:path}", ProxyEndpoint(), include_in_schema=False))
    # first, as they are called at every step
    app.router.routes[:0] = [
        Route(f"/v1{d.path}", ProxyEndpoint(), include_in_schema=False) for d in DIALECTS
    ]
    describe(app)
    # added last: it is before all
    app.add_middleware(Gate, settings=config.service, hosts=AllowedHosts(config.service))
    return app


class UnknownRoute:
    """Answers unknown paths and methods of the API with 404 or 405, instead of forwarding them."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        # later routes forward to the model's API
        before = takewhile(lambda r: getattr(r, "app", None) is not self, scope["app"].router.routes)
        own, methods = list(before), ("GET", "POST", "PUT", "PATCH", "DELETE")
        allowed = [m for m in methods if any(r.matches({**scope, "method": m})[0] is Match.FULL for r in own)]
        if allowed:
            message = f"this path does not support {scope['method']}: use {' or '.join(allowed)}."
            raise HTTPException(405, message, {"allow": ", ".join(allowed)})
        raise NotFoundError("there is no such route: GET /openapi.json lists the routes.")


class ProxyEndpoint:
    """The proxy as an endpoint; Starlette calls one that is not a function as an ASGI application."""

    __call__ = staticmethod(handle)


class McpEndpoint:
    """The MCP server as an endpoint; its packages are imported on the first request."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        mcp = await to_thread.run_sync(importlib.import_module, "memory_bank.service.mcp")
        service: Service = scope["app"].state.service
        async with mcp.over_http(service.sessions, service.settings.max_body_bytes) as manager:
            await manager.handle_request(scope, receive, send)
