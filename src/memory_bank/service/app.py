"""The application: its parts put together, what every request passes, how it begins and ends."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from anyio import to_thread

from memory_bank import __version__
from memory_bank.config import Config, ServiceSettings
from memory_bank.errors import MemoryBankError, MissingExtraError
from memory_bank.service import api, failures, memory_routes, record_routes
from memory_bank.service.document import describe
from memory_bank.service.elsewhere import no_such_routes
from memory_bank.service.gate import Gate
from memory_bank.service.paths import NamesInPaths
from memory_bank.service.sessions import Sessions
from memory_bank.service.taken import sentence
from memory_bank.stores.database import Database

try:
    from fastapi import FastAPI, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse
    from starlette.exceptions import HTTPException
except ImportError:
    raise MissingExtraError("the service (FastAPI, uvicorn)", "service") from None

log = logging.getLogger("memory_bank.Service")

OPENAI = "https://api.openai.com/v1"


class Service:
    """What the handlers of one worker share: settings, database, sessions."""

    def __init__(self, config: Config, database: Database) -> None:
        self.config = config
        self.settings: ServiceSettings = config.service
        self.database = database
        self.sessions = Sessions(database, config)

    def close(self) -> None:
        """Close the sessions, then the database."""
        self.sessions.close()
        self.database.close()


def default_database() -> Path:
    """``bank.db`` in the user's data directory (XDG base directory specification)."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "memory-bank" / "bank.db"


def open_database(settings: ServiceSettings) -> Database:
    """The database that the settings name. Raises DatabaseOpenError, DatabaseVersionError."""
    if settings.database:
        return Database(settings.database)
    file = default_database()
    file.parent.mkdir(parents=True, exist_ok=True)
    return Database(file)


def upstream_of(settings: ServiceSettings) -> str:
    """The base URL that requests go on to, without a slash at its end."""
    return (settings.upstream or os.environ.get("OPENAI_BASE_URL") or OPENAI).rstrip("/")


def create_app(config: Config) -> FastAPI:
    """The application of a configuration; the database is opened when it starts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        database = await to_thread.run_sync(open_database, config.service)
        service = Service(config, database)
        app.state.service = service
        try:
            yield
        finally:
            await to_thread.run_sync(service.close)

    app = FastAPI(
        title="memory_bank", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )  # their pages load scripts from elsewhere
    _say_failures(app)
    app.include_router(api.router)
    app.include_router(memory_routes.router)
    app.include_router(record_routes.router)
    app.router.routes.extend(no_such_routes())  # after all others below /v1/sessions, before those that go on
    describe(app)
    app.add_middleware(NamesInPaths)
    app.add_middleware(Gate)
    return app


def service_of(request: Request) -> Service:
    """The parts that a request's handler works with."""
    service: Service = request.app.state.service
    return service


def _say_failures(app: FastAPI) -> None:
    """Every failure in the one shape; one that nobody foresaw is told without its contents."""

    async def ours(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001
        assert isinstance(error, MemoryBankError)
        status, told, headers = failures.failure(error)
        return JSONResponse(told, status, headers)

    async def theirs(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001
        assert isinstance(error, HTTPException)
        told = failures.body(str(error.detail), "http_error", error.status_code)
        return JSONResponse(told, error.status_code, error.headers)

    async def invalid(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001
        assert isinstance(error, RequestValidationError)
        return JSONResponse(failures.body(sentence(error.errors()), "invalid_request", 422), 422)

    async def unforeseen(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001
        log.exception("an unforeseen error")
        told = failures.body(f"an unforeseen {type(error).__name__}: see the log.", "unforeseen", 500)
        return JSONResponse(told, 500)

    app.add_exception_handler(MemoryBankError, ours)
    app.add_exception_handler(HTTPException, theirs)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, unforeseen)
