"""The OpenAPI document of the API, and the base of the models that it describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, Self

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.json_schema import models_json_schema

from memory_bank.config import message_of
from memory_bank.errors import InvalidRequestError

TRACE_ID = "0f8fad5b-d9cb-569f-a165-70867728950e"
Json = Annotated[Any, Field(description="any JSON value")]
Count = Annotated[int, Field(ge=0)]
Time = Annotated[float, Field(description="Unix seconds")]
NextNumber = Annotated[
    int | None, Field(description="value of `after` for the next page; null on the last page")
]

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
_TAGS = {
    "sessions": "the sessions of agents, one per task",
    "memory": "storing, searching, building contexts",
    "records": "every tool call, exactly as it was",
}
_SCHEMES = {
    "key": {
        "type": "http", "scheme": "bearer", "description": "a service key, mb_…; required once a key exists",
    },
    "memory_key": {
        "type": "apiKey", "in": "header", "name": "x-memory-key",
        "description": "the service key, if Authorization has that of the model's API",
    },
}  # fmt: skip
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
_bodies: set[type[BaseModel]] = set()  # models of bodies, which FastAPI does not see


class ResponseModel(BaseModel):
    """Base of all responses."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def of(cls, *values: object, **members: Any) -> Self:
        """The response with ``members``, and for its other members the attributes of ``values`` with their names.

        It is not validated: pydantic refuses texts with lone surrogates, which tools do return.
        """
        for name in cls.model_fields.keys() - members:
            members[name] = getattr(next(v for v in values if hasattr(v, name)), name)
        return cls.model_construct(**members)


class RequestModel(BaseModel):
    """Base of bodies and queries; unknown members are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Self:
        """Validate a body. Raises InvalidRequestError, which never quotes the body."""
        try:
            return cls.model_validate(value)
        except ValidationError as e:
            errors = e.errors(include_input=False, include_context=False)
            raise InvalidRequestError(validation_message(errors)) from None


def validation_message(errors: Sequence[Any]) -> str:
    """The first of pydantic's errors as a sentence: which member, and what it must be."""
    first = errors[0]
    place = ".".join(str(p) for p in first["loc"] if p not in ("query", "header", "path", "body"))
    if first["type"] == "extra_forbidden":
        return f"{place!r} is unknown: remove it or correct its name."
    return f"{place}: {message_of(first)}"


class ErrorDetail(ResponseModel):
    """The error, and what to do about it."""

    message: str = Field(description="one sentence, no content", examples=["there is no such session."])
    type: Literal["invalid_request_error", "server_error"]
    param: None = None
    code: str = Field(description="machine-readable", examples=["not_found"])


class Failure(ResponseModel):
    """The body of every error, in the form of OpenAI's API."""

    error: ErrorDetail


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route that uses the database; those of every route are added later."""
    return {s: {"model": Failure, "description": _STATUSES[s]} for s in sorted({*statuses, 503})}


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """The ``openapi_extra`` of a route that parses its body itself."""
    _bodies.add(model)
    schema = {"$ref": _REFS.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def describe(app: FastAPI) -> None:
    """Make this document the application's."""

    @cache
    def document() -> dict[str, Any]:
        schema = get_openapi(
            title=app.title,
            version=app.version,
            openapi_version="3.1.0",
            description=_DESCRIPTION,
            routes=app.routes,
            tags=[{"name": name, "description": text} for name, text in _TAGS.items()],
        )
        parts = schema.setdefault("components", {})
        bodies = sorted(_bodies, key=lambda model: model.__name__)
        _, schemas = models_json_schema([(b, "validation") for b in bodies], ref_template=_REFS)
        parts.setdefault("schemas", {}).update(schemas["$defs"])
        parts["securitySchemes"] = _SCHEMES
        schema["security"] = [{}, *({name: []} for name in _SCHEMES)]
        for unused in ("HTTPValidationError", "ValidationError"):  # FastAPI's own, never sent
            parts["schemas"].pop(unused, None)
        failure = {"content": {"application/json": {"schema": {"$ref": _REFS.format(model="Failure")}}}}
        for operation in (o for operations in schema["paths"].values() for o in operations.values()):
            answers = operation["responses"]
            if "HTTPValidationError" in str(answers.get("422")):
                del answers["422"]
            for status in _ALWAYS:
                answers.setdefault(str(status), failure | {"description": _STATUSES[status]})
        return schema

    app.openapi = document  # type: ignore[method-assign]
