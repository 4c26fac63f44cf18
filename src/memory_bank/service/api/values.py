"""JSON as the API takes and gives it: NaN, lone surrogates and long integers come and go as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar
from fastapi import Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from memory_bank.errors import BodyError, InvalidRequestError
from memory_bank.service.bodies import Body, parse_body
from memory_bank.transcript.jsontext import compact

T = TypeVar("T")

JSON = "application/json"
_IS_JSON = re.compile(r"application/(?:[\w.+-]+\+)?json\s*(?:;.*)?\Z", re.I)
_SURROGATE = re.compile("[\ud800-\udfff]")


async def body_of(request: Request, *arrays: str) -> Body:
    """A request's body; of the members named, elements keep their bytes (see ``render_array``).

    Raises InvalidRequestError, HTTPException (415).
    """
    kind = request.headers.get("content-type", JSON)
    if not _IS_JSON.match(kind):
        raise HTTPException(415, "the body must be JSON: send it with  content-type: application/json .")
    try:
        data = await request.body()
    except ClientDisconnect:
        raise HTTPException(400, "the client went away before its body was complete.") from None
    return await in_thread(_parsed, data, arrays)


def _parsed(data: bytes, arrays: tuple[str, ...]) -> Body:
    try:
        return parse_body(data, *arrays)
    except BodyError as e:
        raise InvalidRequestError(_wrong(data, e)) from None


def _wrong(data: bytes, error: BodyError) -> str:
    """What is wrong with a body, and what to do about it; nothing of what it holds."""
    try:
        json.loads(data)
    except RecursionError:
        return "the body nests too deep: send what is in there as text."
    except UnicodeDecodeError:
        return "the body is no UTF-8: encode it as such."
    except json.JSONDecodeError as e:
        return f"the body is no JSON ({e.msg} at line {e.lineno} column {e.colno}): send a JSON object."
    except ValueError:  # an integer beyond Python's conversion limit
        return "the body holds a number of over 4,300 digits: send it as text."
    return f"the body is unclear ({error}): send one JSON object in UTF-8."


@dataclass(frozen=True, slots=True)
class Ready:
    """A member that is JSON text already."""

    text: str


async def in_thread(work: Callable[..., T], *args: Any) -> T:
    """Run what waits for a database, or computes, without holding up other requests."""
    return await to_thread.run_sync(work, *args, limiter=_limiter(_THREADS, 20))


async def answer(work: Callable[..., Any], *args: Any, long: bool = False) -> Response:
    """What ``work`` gives, as JSON; made and written in a thread. ``long``: it takes many seconds."""

    def made() -> bytes:
        return b"".join(written(work(*args)))

    limiter = _limiter(_LONG, 2) if long else _limiter(_THREADS, 20)
    return Response(await to_thread.run_sync(made, limiter=limiter), media_type=JSON)


# The API has threads of its own, so that the proxy never waits for it; each event loop has its own.
_THREADS: RunVar[CapacityLimiter] = RunVar("memory_bank.api.threads")
_LONG: RunVar[CapacityLimiter] = RunVar("memory_bank.api.long")


def _limiter(place: RunVar[CapacityLimiter], most: int) -> CapacityLimiter:
    try:
        return place.get()
    except LookupError:
        limiter = CapacityLimiter(most)
        place.set(limiter)
        return limiter


def written(value: dict[str, Any]) -> Iterator[bytes]:
    """An object as JSON in UTF-8, a member or the element of a list at a time: none holds up others long."""
    begin = b"{"
    for key, member in value.items():
        yield begin + text_of(key) + b":"
        begin = b","
        if isinstance(member, Ready):
            yield encoded(member.text)
        elif isinstance(member, list):
            between = b"["
            for element in member:
                yield between + text_of(element)
                between = b","
            yield b"[]" if between == b"[" else b"]"
        else:
            yield text_of(member)
    yield b"{}" if begin == b"{" else b"}"


def text_of(value: Any) -> bytes:
    """A JSON value in UTF-8; a lone surrogate, which UTF-8 has none of, is escaped."""
    return encoded(compact(value))


def encoded(text: str) -> bytes:
    """JSON text in UTF-8, lone surrogates escaped."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub(lambda m: f"\\u{ord(m[0]):04x}", text).encode()
