"""The OpenAPI document: what each route takes, gives and refuses."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from memory_bank.service.api.shapes import Failure
from memory_bank.service.api.taken import ContextRequest, IngestRequest

_TAKEN: tuple[type[BaseModel], ...] = (ContextRequest, IngestRequest)
_REFS = "#/components/schemas/{model}"
_DESCRIPTION = """\
Memory for agents that call tools: sessions, their records, and the contexts built from them.

Every error has one shape, `{"error": {"message", "type", "param", "code"}}`, that of OpenAI's API. Every
answer carries `x-request-id`. What belongs to another key's sessions does not exist: 404.

**Pass-through.** Besides what is listed here, `POST /v1/chat/completions` and `POST /v1/responses` go on to
the model's API with a context in the place of their messages, and every other path under `/v1` goes on as it
came. Their bodies are those of the API behind; they answer with its status, headers and bytes, and with
`x-memory-status`, `x-memory-session`, `x-memory-tokens` and `x-memory-reason` beside them.
"""
_SCHEMES = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "description": "a service key, mb_…; needed as soon as there is one",
    },
    "memory_key": {
        "type": "apiKey",
        "in": "header",
        "name": "x-memory-key",
        "description": "the same key, where Authorization carries that of the model's API",
    },
}
_SAID = {
    401: "no valid key",
    403: "not allowed to this key, or called from a web page that is not allowed",
    404: "no such session or record, as far as this caller may know",
    409: "the session's own state forbids it: a loop was detected, or a record is there with other contents",
    413: "the body is too long",
    415: "the body is no JSON",
    422: "a parameter or the body is not what the route takes",
    429: "too many requests; `retry-after` says how long to wait",
    500: "an unforeseen error; the log has it, under the request's id",
    501: "an optional dependency is not installed",
    502: "the Observer's model failed",
    503: "the database or the embedder is not there; `retry-after` says how long to wait",
}
_ALWAYS = (401, 403, 429, 500)  # where the route itself says nothing else
_FAILED = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Failure"}}}}


def failing(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The failures of a route that asks the database; those of every route are added in the document."""
    return {s: {"model": Failure, "description": _SAID[s]} for s in sorted({*statuses, 503})}


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """A request body that a route reads itself, for the document."""
    schema = {"$ref": _REFS.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def describe(app: FastAPI) -> None:
    """Let the application give this document as its own."""

    @cache
    def document() -> dict[str, Any]:
        made = get_openapi(
            title=app.title,
            version=app.version,
            openapi_version="3.1.0",
            description=_DESCRIPTION,
            routes=app.routes,
            tags=[
                {"name": "sessions", "description": "what an agent's tasks have left"},
                {"name": "memory", "description": "what goes in, and what comes out of it"},
                {"name": "records", "description": "every tool call, to the letter"},
            ],
        )
        parts = made.setdefault("components", {})
        _, taken = models_json_schema([(model, "validation") for model in _TAKEN], ref_template=_REFS)
        parts.setdefault("schemas", {}).update(taken["$defs"])
        parts["securitySchemes"] = _SCHEMES
        made["security"] = [{}, *({name: []} for name in _SCHEMES)]
        for unused in ("HTTPValidationError", "ValidationError"):  # FastAPI's own, in another shape
            parts["schemas"].pop(unused, None)
        for operations in made["paths"].values():
            for operation in operations.values():
                answers = operation["responses"]
                if "HTTPValidationError" in str(answers.get("422")):
                    del answers["422"]
                for status in _ALWAYS:
                    answers.setdefault(str(status), _FAILED | {"description": _SAID[status]})
        return made

    app.openapi = document  # type: ignore[method-assign]
