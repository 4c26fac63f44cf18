"""Helpers of the API's routes: the caller's sessions, names in paths, JSON bodies and JSON responses."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response
from pydantic import AfterValidator
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from memory_bank.bank.database import Database
from memory_bank.errors import BodyError, InvalidRequestError
from memory_bank.service.api.openapi import TRACE_ID, RequestModel, errors, json_body
from memory_bank.service.proxy.body import Body, parse_body
from memory_bank.service.security.access import LONGEST_NAME, caller_of, public_name
from memory_bank.service.sessions import Sessions
from memory_bank.service.threads import in_thread
from memory_bank.transcript.jsontext import flat_text

Handler = TypeVar("Handler", bound=Callable[..., Any])

JSON = "application/json"
_MAX_PARAMETERS = 100
_CHUNK = 2**16  # bytes of a chunk of a streamed response, at least
_IS_JSON = re.compile(r"application/(?:[\w.+-]+\+)?json\s*(?:;.*)?\Z", re.I)


@dataclass(frozen=True, slots=True)
class ApiContext:
    """The sessions that a request may use: those of its caller's ``namespace`` and no others."""

    namespace: str | None
    sessions: Sessions

    @property
    def database(self) -> Database:
        """The bank."""
        return self.sessions.database

    def known(self, name: str) -> str:
        """The session_id of an existing session. Raises NotFoundError."""
        return self.sessions.known(self.namespace, name)

    def public(self, session_id: str) -> str:
        """The name by which the caller knows a session of the namespace."""
        return public_name(self.namespace, session_id)


def api_context(request: Request) -> ApiContext:
    """The context of a request. Raises InvalidRequestError for unknown, repeated, and very many query parameters."""
    pairs = request.query_params.multi_items()
    if len(pairs) > _MAX_PARAMETERS:  # FastAPI looks at each of them once for each
        raise InvalidRequestError(
            f"the query has {len(pairs):,} parameters, and a request takes at most {_MAX_PARAMETERS}: send fewer."
        )
    for key, times in Counter(key for key, _ in pairs).items():
        if times > 1:
            raise InvalidRequestError(f"{key[:80]} is given more than once: give it once.")
    declared = [parameter.alias for parameter in request.scope["route"].dependant.query_params]
    if declared and (unknown := next((key for key, _ in pairs if key not in declared), None)) is not None:
        raise InvalidRequestError(f"{unknown[:80]!r} is unknown: remove it or correct its name.")
    return ApiContext(caller_of(request).namespace, request.app.state.service.sessions)


def decoded(segment: str) -> str:
    """The text of a path segment, in which the gate has encoded slashes."""
    return segment.replace("%2F", "/").replace("%25", "%")


def _segment(description: str, example: str, longest: int) -> Any:
    """A segment of a path, as OpenAPI describes it."""
    schema = {"minLength": 1, "maxLength": longest, "pattern": r"^[^\x00-\x1f\x7f-\x9f]+$"}
    return Path(description=description, examples=[example], json_schema_extra=schema)


Api = Annotated[ApiContext, Depends(api_context)]
SessionName = Annotated[
    str,
    AfterValidator(decoded),
    _segment("the session's name; a slash in it is written %2F", "refunds-17", LONGEST_NAME),
]
RecordId = Annotated[
    str,
    AfterValidator(decoded),
    _segment("the record's trace_id, 6 or more characters of it, or its number: 12 (or %2312)", TRACE_ID, 64),
]
Limit = Annotated[int, Query(ge=1, le=500, description="entries on a page, at most")]
AfterNumber = Annotated[int, Query(ge=0, le=10**9, description="`next` of the previous page")]
OfProject = Annotated[
    str | None, Query(min_length=1, max_length=LONGEST_NAME, description="only sessions of this project")
]


# JSON: NaN, lone surrogates and integers of any length are accepted and returned unchanged


async def body_of(request: Request) -> Body:
    """Parse a body; items of ``messages`` keep their bytes. Raises InvalidRequestError, HTTPException (415, 400)."""
    if not _IS_JSON.match(request.headers.get("content-type", JSON)):
        raise HTTPException(415, "the body must be JSON: send it with  content-type: application/json .")
    try:
        data = await request.body()
    except ClientDisconnect:
        raise HTTPException(400, "the client disconnected before its body was complete.") from None
    try:
        return await in_thread("api", parse_body, data, "messages", "tool_outputs")
    except BodyError as e:
        raise InvalidRequestError(await in_thread("api", _why_invalid, data, e)) from None


JsonBody = Annotated[Body, Depends(body_of)]


def _why_invalid(data: bytes, error: BodyError) -> str:
    """The error in a body and how to correct it, without quoting it."""
    try:
        json.loads(data)
    except RecursionError:
        return "the body is nested too deeply: send the nested value as text."
    except UnicodeDecodeError:
        return "the body is not UTF-8: encode it as UTF-8."
    except json.JSONDecodeError as e:
        return f"the body is no JSON ({e.msg} at line {e.lineno} column {e.colno}): send a JSON object."
    except ValueError:  # an integer beyond Python's conversion limit
        return "the body has a number of over 4,300 digits: send it as text."
    return f"the body is invalid ({error}): send one JSON object in UTF-8."


def route(
    router: APIRouter,
    method: str,
    path: str,
    summary: str,
    *statuses: int,
    body: type[RequestModel] | None = None,
) -> Callable[[Handler], Handler]:
    """Add a handler to a router. It may block: it runs in a thread, and its response is sent as JSON, None as 204.

    Its return type and docstring, the model of its ``body`` and the ``statuses`` of its errors are in the OpenAPI
    document.
    """

    def added(handler: Handler) -> Handler:
        signature = inspect.signature(handler, eval_str=True)
        model = signature.return_annotation

        @wraps(handler)
        async def answer(**arguments: Any) -> Response:
            return await json_response(handler, **arguments)

        answer.__signature__ = signature.replace(return_annotation=Response)  # type: ignore[attr-defined]
        router.add_api_route(
            path,
            answer,
            methods=[method],
            summary=summary,
            status_code=200 if model else 204,
            response_model=model,
            responses=errors(*statuses),
            openapi_extra=json_body(body) if body else None,
        )
        return handler

    return added


async def json_response(
    work: Callable[..., object], *args: Any, long: bool = False, **named: Any
) -> Response:
    """Run ``work`` and encode its result in a thread. ``long``: it may take many seconds."""

    def encoded_result() -> bytes | None:
        result = work(*args, **named)
        return None if result is None else b"".join(json_object(result))

    data = await in_thread("long" if long else "api", encoded_result)
    return Response(status_code=204) if data is None else Response(data, media_type=JSON)


def json_object(value: object) -> Iterator[bytes]:
    """Encode an object, one member or list element at a time, so that other threads can run in between.

    A member that is an iterator has the pieces of a value that is JSON already.
    """
    comma = b""
    yield b"{"
    for key, member in _members(value).items():
        yield comma + json_bytes(key) + b":"
        comma = b","
        if isinstance(member, Iterator):
            yield from member
        elif isinstance(member, list):
            yield b"["
            for i, element in enumerate(member):
                yield (b"," if i else b"") + json_bytes(element)
            yield b"]"
        else:
            yield json_bytes(member)
    yield b"}"


def _members(value: Any) -> dict[str, Any]:
    """The members of a model, a dataclass or a dict."""
    if is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    return dict(value)


def json_bytes(value: object) -> bytes:
    """Encode a JSON value, or a model, in UTF-8, with lone surrogates escaped."""
    try:
        return json_utf8(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_members))
    except (RecursionError, ValueError):  # nested deeper than the encoder goes
        return json_utf8(flat_text(value))


def json_utf8(text: str) -> bytes:
    """Encode JSON text in UTF-8, with lone surrogates escaped."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return re.sub("[\ud800-\udfff]", lambda m: f"\\u{ord(m[0]):04x}", text).encode()


async def streamed(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Produce chunks in a thread, joined to larger ones; an error before the first still has its own status."""

    def joined() -> bytes:
        data = b""
        while len(data) < _CHUNK and (chunk := next(chunks, None)) is not None:
            data += chunk
        return data

    first = await in_thread("api", joined)

    async def stream() -> AsyncIterator[bytes]:
        chunk = first
        while chunk:
            yield chunk
            chunk = await in_thread("api", joined)

    return stream()
