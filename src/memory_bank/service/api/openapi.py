"""The OpenAPI document of the API."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from memory_bank.service.api.models import ContextRequest, Failure, IngestRequest, MarkRequest

_REFS = "#/components/schemas/{model}"
_DESCRIPTION = """\
Memory for agents that call tools: sessions, their records, and the contexts built from them.

Every error has the form of OpenAI's API, `{"error": {"message", "type", "param", "code"}}`. Every response
has an `x-request-id`. Sessions of another key return the same 404 as unknown ones.

**Pass-through.** `POST /v1/chat/completions` and `POST /v1/responses` are forwarded to the model's API with a
context instead of their messages, and every other path under `/v1` is forwarded unchanged. Bodies are those
of the model's API; responses have its status, headers and bytes, and also `x-memory-status`,
`x-memory-session`, `x-memory-tokens` and `x-memory-reason`.
"""
_SCHEMES = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "description": "a service key, mb_…; required once a key exists",
    },
    "memory_key": {
        "type": "apiKey",
        "in": "header",
        "name": "x-memory-key",
        "description": "the service key, if Authorization has that of the model's API",
    },
}
_STATUSES = {
    401: "no valid key",
    403: "not allowed for this key, or called from a web page that is not allowed",
    404: "no such session or record of this caller",
    409: "conflict with the session: a loop was detected, or the record exists with other contents",
    413: "the body is too long",
    415: "the body is not JSON",
    422: "a parameter or the body is invalid",
    429: "too many requests; retry after `retry-after` seconds",
    500: "unexpected error; the log has it under the request's id",
    501: "an optional dependency is not installed",
    502: "the Observer's model failed",
    503: "the database or the embedder is unavailable; retry after `retry-after` seconds",
}
_ALWAYS = (401, 403, 429, 500)  # of every route
_FAILURE = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Failure"}}}}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route that uses the database; those of every route are added later."""
    return {s: {"model": Failure, "description": _STATUSES[s]} for s in sorted({*statuses, 503})}


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """The ``openapi_extra`` of a route that parses its body itself."""
    schema = {"$ref": _REFS.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def describe(app: FastAPI) -> None:
    """Make this document the application's."""

    @cache
    def document() -> dict[str, Any]:
        made = get_openapi(
            title=app.title,
            version=app.version,
            openapi_version="3.1.0",
            description=_DESCRIPTION,
            routes=app.routes,
            tags=[
                {"name": "sessions", "description": "the sessions of agents, one per task"},
                {"name": "memory", "description": "storing, searching, building contexts"},
                {"name": "records", "description": "every tool call, exactly as it was"},
            ],
        )
        parts = made.setdefault("components", {})
        bodies = (ContextRequest, IngestRequest, MarkRequest)
        _, schemas = models_json_schema([(b, "validation") for b in bodies], ref_template=_REFS)
        parts.setdefault("schemas", {}).update(schemas["$defs"])
        parts["securitySchemes"] = _SCHEMES
        made["security"] = [{}, *({name: []} for name in _SCHEMES)]
        for unused in ("HTTPValidationError", "ValidationError"):  # FastAPI's own, never sent
            parts["schemas"].pop(unused, None)
        for operations in made["paths"].values():
            for operation in operations.values():
                answers = operation["responses"]
                if "HTTPValidationError" in str(answers.get("422")):
                    del answers["422"]
                for status in _ALWAYS:
                    answers.setdefault(str(status), _FAILURE | {"description": _STATUSES[status]})
        return made

    app.openapi = document  # type: ignore[method-assign]
