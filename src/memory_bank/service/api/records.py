"""The API's routes on records: listed, whole, as bytes, or a part of one."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import Response, StreamingResponse

from memory_bank.bank import listing
from memory_bank.errors import InvalidRequestError, NotFoundError
from memory_bank.service.api import models
from memory_bank.service.api.openapi import errors
from memory_bank.service.api.record_parts import LONG_OUTPUT, part_of, part_of_long
from memory_bank.service.api.requests import (
    JSON,
    Api,
    ApiContext,
    JsonBody,
    RecordId,
    SessionName,
    json_bytes,
    json_response,
    json_utf8,
    route,
)
from memory_bank.service.threads import in_thread
from memory_bank.tools.handlers import PREFIX
from memory_bank.tools.selection import RefusedCall
from memory_bank.transcript.jsontext import parse_arguments, parse_output
from memory_bank.transcript.shortening import cut_at_edge

router = APIRouter(prefix="/v1", tags=["records"])

_ARGUMENT_CHARS = 300  # of arguments in a list
_MAX_PARSED = 2 * 2**20  # bytes of a text whose parsed value is included
_CHUNK = 2**16  # bytes of a chunk of a streamed response, at least
_IDS_SHOWN = 5
_NOT_IN_FILE_NAMES = re.compile(r"[^\w.-]+")
_NUMBER = re.compile(r"#?(\d{1,9})\Z", re.ASCII)


@route(router, "GET", "/sessions/{name}/records", "List a session's records, oldest first", 404, 422)
def list_records(
    api: Api, name: SessionName, query: Annotated[models.RecordsQuery, Query()]
) -> models.RecordPage:
    """The call, its summary and the size of its output; a page at a time."""
    found = listing.list_outlines(api.database, api.known(name), query.limit + 1, query.after)
    shown = found[: query.limit]
    rows = [models.RecordItem.of(o, input=record_input(o)) for o in shown]
    return models.RecordPage.of(records=rows, next=shown[-1].number if len(found) > len(shown) else None)


def record_input(o: listing.Outline) -> str:
    """The arguments of a record as lists and search results show them."""
    return beginning(o.input_head, o.input_bytes, _ARGUMENT_CHARS)


def beginning(head: bytes, size: int, room: int) -> str:
    """At most ``room`` characters of a text of ``size`` bytes that begins with ``head``; " …" if cut."""
    text = head.decode("utf-8", "ignore")
    if len(head) == size:
        return cut_at_edge(text, room, marked=True)
    return f"{cut_at_edge(text, room - 2)} …"


_SCHEMA = [{"$ref": "#/components/schemas/Record"}, {"$ref": "#/components/schemas/RecordPart"}]
_RECORD_OR_PART: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The record; with `path`, `lines` or `pattern` a part of it; with `raw` its bytes.",
        "content": {
            "application/json": {"schema": {"anyOf": _SCHEMA}},
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


@router.get(
    "/sessions/{name}/records/{trace_id}",
    summary="Get a record, or a part of its output",
    response_model=models.Record | models.RecordPart,
    responses={**_RECORD_OR_PART, **errors(404, 422)},
)
async def get_record(
    api: Api, name: SessionName, trace_id: RecordId, query: Annotated[models.RecordQuery, Query()]
) -> Response:
    """Everything a tool returned. A record is named by its trace_id, at least six characters of it, or its
    number (`12` or `%2312`, as contexts call it).

    `raw=1` returns the output alone, as bytes. `path`, `lines` and `pattern` select a part, also together.
    """
    partly = query.path is not None or query.lines is not None or query.pattern is not None
    if query.raw and partly:
        raise InvalidRequestError("raw returns the whole output: omit path, lines and pattern, or raw.")
    if "max_chars" in query.model_fields_set and not partly:
        raise InvalidRequestError("max_chars limits a part: give it with path, lines or pattern.")
    outline = await in_thread("api", _outline, api, name, trace_id)
    if partly:
        return await json_response(_part, api, outline, query, long=outline.output_bytes > LONG_OUTPUT)
    if not query.raw:
        return StreamingResponse(await _streamed(_record_json(api, outline)), media_type=JSON)
    file = _NOT_IN_FILE_NAMES.sub("_", outline.trace_id).encode("ascii", "replace").decode()
    headers = {  # a download, which no browser shows as a page of this service
        "content-length": str(outline.output_bytes),
        "content-disposition": f'attachment; filename="{file}.txt"',
        "x-content-type-options": "nosniff",
    }
    stored = await _streamed(listing.pieces(api.database, outline, "output"))
    return StreamingResponse(stored, headers=headers, media_type="application/octet-stream")


def _outline(api: ApiContext, name: str, wanted: str) -> listing.Outline:
    """The record with a trace_id, a number, or the beginning of a trace_id. Raises NotFoundError."""
    session_id = api.known(name)
    wanted = wanted.strip()
    if found := listing.outlines(api.database, session_id, [wanted]):
        return found[0]
    number = _NUMBER.match(wanted)
    fitting: list[str] = []
    if len(wanted) >= PREFIX and not wanted.startswith("#"):
        fitting = listing.beginning_with(api.database, session_id, wanted, _IDS_SHOWN + 1)
    if number and not fitting:
        nth = int(number[1])
        if nth and (found := listing.list_outlines(api.database, session_id, 1, nth - 1)):
            return found[0]
    if len(fitting) > 1:
        ids = ", ".join(fitting[:_IDS_SHOWN]) + (" and others" if len(fitting) > _IDS_SHOWN else "")
        raise NotFoundError(f"several trace_ids begin with that ({ids}): give more of it.")
    if found := listing.outlines(api.database, session_id, fitting):
        return found[0]
    if number:
        count = listing.count_records(api.database, session_id)
        there = f"it has #1 to #{count}" if count else "it has none yet"
        raise NotFoundError(f"this session has no record of that number: {there}.")
    raise NotFoundError(
        "this session has no such record: give a trace_id, at least its first 6 characters, or a number."
    )


@route(
    router,
    "PUT",
    "/sessions/{name}/records/{trace_id}/mark",
    "Pin a record, or exclude it from contexts",
    *(404, 413, 415, 422),
    body=models.MarkRequest,
)
def mark_record(api: Api, name: SessionName, trace_id: RecordId, body: JsonBody) -> None:
    """A pinned record is in every context, within the budget; an excluded one in none, and is still returned here.

    The session's next step uses it.
    """
    _mark(api, name, trace_id, models.MarkRequest.parse(body.value).mark)


@route(router, "DELETE", "/sessions/{name}/records/{trace_id}", "Forget a record", 404)
def forget_record(api: Api, name: SessionName, trace_id: RecordId) -> None:
    """Delete its arguments, output and summary for good, and the recorded contexts of its session.

    Its number stays, and it is not stored again from a conversation that still has it.
    """
    _mark(api, name, trace_id, "forgotten")


def _mark(
    api: ApiContext, name: str, wanted: str, mark: Literal["pinned", "excluded", "forgotten"] | None
) -> None:
    outline = _outline(api, name, wanted)
    if not api.sessions.mark(api.namespace, name, outline.trace_id, mark):
        raise NotFoundError("this record is forgotten: there is nothing left to mark.")


async def _streamed(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Produce chunks in a thread, joined to larger ones: each costs a switch of threads.

    The first is read now, so that an error before it has its own status.
    """

    def joined() -> bytes:
        data = b""
        while len(data) < _CHUNK and (more := next(chunks, None)) is not None:
            data += more
        return data

    first = await in_thread("api", joined)

    async def stream() -> AsyncIterator[bytes]:
        chunk = first
        while chunk:
            yield chunk
            chunk = await in_thread("api", joined)

    return stream()


def _record_json(api: ApiContext, outline: listing.Outline) -> Iterator[bytes]:
    """A record as JSON, its texts one piece at a time."""
    o = outline
    head = models.RecordHead.of(
        o,
        session=api.public(o.session_id),
        insight=None if o.summary is None else models.RecordInsight.of(o),
        job=None if o.attempts is None else models.RecordJob.of(o),
    )
    yield json_bytes(head)[:-1]
    yield from _value_and_text(api, outline, "input", o.input_verbatim, o.input_bytes)
    yield from _value_and_text(api, outline, "output", o.output_verbatim, o.output_bytes)
    yield b"}"


def _value_and_text(
    api: ApiContext, outline: listing.Outline, text: listing.Text, verbatim: bool, size: int
) -> Iterator[bytes]:
    """The members ``raw_input`` and ``input_text``, or those of the output."""
    name = text.encode()
    yield b',"raw_%b":' % name
    if not verbatim:  # it is stored as JSON
        yield from map(json_utf8, _text_pieces(api, outline, text))
        yield b',"%b_text":null' % name
        return
    if size <= _MAX_PARSED:
        stored = listing.whole(api.database, outline, text)
        yield json_bytes(parse_arguments(stored) if text == "input" else parse_output(stored))
    else:
        yield b"null"
    yield b',"%b_text":"' % name
    for piece in _text_pieces(api, outline, text):
        yield json_bytes(piece)[1:-1]
    yield b'"'


def _text_pieces(api: ApiContext, outline: listing.Outline, text: listing.Text) -> Iterator[str]:
    """A stored text in pieces that split no character. (An incremental decoder refuses lone surrogates.)"""
    rest = b""
    for piece in listing.pieces(api.database, outline, text):
        data = rest + piece
        end = len(data) - 1
        while end > 0 and data[end] & 0xC0 == 0x80:
            end -= 1  # the last character may go on in the next piece
        rest = data[end:]
        yield data[:end].decode("utf-8", "surrogatepass")
    yield rest.decode("utf-8", "surrogatepass")


def _part(api: ApiContext, outline: listing.Outline, query: models.RecordQuery) -> models.RecordPart:
    wanted = query.model_dump(exclude={"raw"})
    try:
        if outline.output_bytes > LONG_OUTPUT:
            part = part_of_long(listing.pieces(api.database, outline, "output"), wanted)
        else:
            part = part_of(listing.whole(api.database, outline, "output"), wanted)
    except RefusedCall as e:
        raise InvalidRequestError(str(e)) from None
    return models.RecordPart.of(trace_id=outline.trace_id, **part)
