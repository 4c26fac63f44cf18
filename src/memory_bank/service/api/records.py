"""The HTTP API on records: listed, whole to the letter, as bare bytes, or a part of them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response, StreamingResponse

from memory_bank.bank.outlines import (
    Outline,
    Text,
    beginning_with,
    count_records,
    list_outlines,
    numbered,
    outlines,
    pieces,
    whole,
)
from memory_bank.errors import InvalidRequestError, NotFoundError
from memory_bank.service.api.asking import Asking, Asks, RecordId, SessionName
from memory_bank.service.api.openapi import failing
from memory_bank.service.api.parts import LONG, part_of, part_of_long
from memory_bank.service.api.shapes import Part, Record, RecordPage
from memory_bank.service.api.taken import RecordQuery, RecordsQuery
from memory_bank.service.api.values import JSON, answer, encoded, in_thread, text_of
from memory_bank.tools.selection import Refused
from memory_bank.transcript.jsontext import parse_arguments, parse_output
from memory_bank.transcript.shortening import cut_at_edge

router = APIRouter(prefix="/v1", tags=["records"])

_ARGUMENT_CHARS = 300  # of arguments in a list
_PARSED = 2 * 2**20  # bytes of a text up to which its value is given beside it
_CHUNK = 2**16  # bytes that are sent at once, at least
_PREFIX = 6
_TOLD = 5
_UNQUOTED = re.compile(r"[^\w.-]+")
_NUMBER = re.compile(r"#?(\d{1,9})\Z", re.ASCII)


@router.get(
    "/sessions/{name}/records",
    operation_id="list_records",
    summary="List a session's records, the oldest first",
    response_model=RecordPage,
    responses=failing(404, 422),
)
async def list_records(asking: Asks, name: SessionName, asked: Annotated[RecordsQuery, Query()]) -> Response:
    """What was called, what the summary says, how much came back; a page at a time."""
    return await answer(_records, asking, name, asked)


def _records(asking: Asking, name: str, asked: RecordsQuery) -> dict[str, Any]:
    session_id = asking.known(name)
    found = list_outlines(asking.database, session_id, asked.limit + 1, asked.after)
    shown = found[: asked.limit]
    return {
        "records": [
            {
                "trace_id": o.trace_id,
                "number": o.number,
                "step_id": o.step_id,
                "tool_name": o.tool_name,
                "timestamp": o.timestamp,
                "summary": o.summary,
                "source": o.source,
                "input": beginning(o.input_head, o.input_bytes),
                "output_bytes": o.output_bytes,
            }
            for o in shown
        ],
        "next": shown[-1].number if len(found) > len(shown) else None,
    }


def beginning(head: bytes, size: int, room: int = _ARGUMENT_CHARS) -> str:
    """The beginning of a text whose first bytes are given, marked where it goes on."""
    text = head.decode("utf-8", "ignore")
    if len(head) == size:
        return cut_at_edge(text, room, marked=True)
    return f"{cut_at_edge(text, room - 2)} …"


_GIVEN: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The record; with `path`, `lines`, `pattern` a part of it; with `raw` its bytes.",
        "content": {
            "application/json": {
                "schema": {
                    "anyOf": [
                        {"$ref": "#/components/schemas/Record"},
                        {"$ref": "#/components/schemas/Part"},
                    ]
                }
            },
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


@router.get(
    "/sessions/{name}/records/{trace_id}",
    operation_id="get_record",
    summary="Get a record, or a part of its output",
    response_model=Record | Part,
    responses={**_GIVEN, **failing(404, 422)},
)
async def get_record(
    asking: Asks, name: SessionName, trace_id: RecordId, asked: Annotated[RecordQuery, Query()]
) -> Response:
    """Every byte that a tool ever returned. A record is named by its trace_id, at least six characters of it,
    or its number (`12` or `%2312`, as contexts call it).

    `raw=1` gives the output alone, as bytes. `path`, `lines` and `pattern` select a part, also together.
    """
    partly = asked.path is not None or asked.lines is not None or asked.pattern is not None
    if asked.raw and partly:
        raise InvalidRequestError("raw gives the whole output: leave out path, lines and pattern, or raw.")
    if "max_chars" in asked.model_fields_set and not partly:
        raise InvalidRequestError("max_chars limits a part: give it with path, lines or pattern.")
    outline = await in_thread(_found, asking, name, trace_id)
    if asked.raw:
        return await _bytes(asking, outline)
    if partly:
        return await answer(_part, asking, outline, asked, long=outline.output_bytes > LONG)
    return StreamingResponse(await _streamed(_whole(asking, outline)), media_type=JSON)


def _found(asking: Asking, name: str, asked: str) -> Outline:
    """The record of a trace_id, a number, or the beginning of a trace_id. Raises NotFoundError."""
    session_id = asking.known(name)
    wanted = asked.strip()
    found = outlines(asking.database, session_id, [wanted])
    if found:
        return found[0]
    number = _NUMBER.match(wanted)
    fitting = []
    if len(wanted) >= _PREFIX and not wanted.startswith("#"):
        fitting = beginning_with(asking.database, session_id, wanted, _TOLD + 1)
    if number and not fitting:
        trace_id = numbered(asking.database, session_id, int(number[1]))
        fitting = [] if trace_id is None else [trace_id]
    if len(fitting) > 1:
        told = ", ".join(fitting[:_TOLD]) + (" and others" if len(fitting) > _TOLD else "")
        raise NotFoundError(f"that begins several trace_ids ({told}): give more of it.")
    found = outlines(asking.database, session_id, fitting)
    if found:
        return found[0]
    if number:
        count = count_records(asking.database, session_id)
        told = f"it has #1 to #{count}" if count else "it has none yet"
        raise NotFoundError(f"this session has no record of that number: {told}.")
    raise NotFoundError(
        "this session has no such record: give a trace_id, at least its first 6 characters, or a number."
    )


async def _streamed(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Chunks made in a thread; the first is there already: what fails at once is told with a status."""
    chunks = _gathered(chunks)
    first = await in_thread(next, chunks, b"")

    async def all_of_them() -> AsyncIterator[bytes]:
        chunk = first
        while chunk:
            yield chunk
            chunk = await in_thread(next, chunks, b"")

    return all_of_them()


def _gathered(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes, in chunks that are worth a thread's while."""
    parts, size = [], 0
    for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size >= _CHUNK:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)


async def _bytes(asking: Asking, outline: Outline) -> Response:
    """The output as it is stored: a download, so that no browser ever shows it as a page of ours."""
    file = _UNQUOTED.sub("_", outline.trace_id).encode("ascii", "replace").decode()
    headers = {
        "content-length": str(outline.output_bytes),
        "content-disposition": f'attachment; filename="{file}.txt"',
        "x-content-type-options": "nosniff",
    }
    stored = pieces(asking.database, outline, "output")
    return StreamingResponse(await _streamed(stored), headers=headers, media_type="application/octet-stream")


def _whole(asking: Asking, outline: Outline) -> Iterator[bytes]:
    """The record as JSON, its texts a piece at a time."""
    o = outline
    insight = None
    if o.summary is not None:
        insight = {"summary": o.summary, "source": o.source, "redo": o.redo}
    head = {
        "trace_id": o.trace_id,
        "session": asking.public(o.session_id),
        "number": o.number,
        "step_id": o.step_id,
        "tool_name": o.tool_name,
        "call_id": o.call_id,
        "timestamp": o.timestamp,
        "insight": insight,
        "job": None if o.attempts is None else {"attempts": o.attempts, "error": o.error},
        "input_bytes": o.input_bytes,
        "output_bytes": o.output_bytes,
    }
    yield text_of(head)[:-1]
    yield from _both(asking, outline, "input", o.input_verbatim, o.input_bytes)
    yield from _both(asking, outline, "output", o.output_verbatim, o.output_bytes)
    yield b"}"


def _both(asking: Asking, outline: Outline, text: Text, verbatim: bool, size: int) -> Iterator[bytes]:
    """Value and text of arguments or output."""
    name = text.encode()
    yield b',"raw_%b":' % name
    if not verbatim:  # it is stored as JSON
        yield from map(encoded, _texts(asking, outline, text))
        yield b',"%b_text":null' % name
        return
    if size <= _PARSED:
        stored = whole(asking.database, outline, text)
        yield text_of(parse_arguments(stored) if text == "input" else parse_output(stored))
    else:
        yield b"null"
    yield b',"%b_text":"' % name
    for piece in _texts(asking, outline, text):
        yield text_of(piece)[1:-1]
    yield b'"'


def _texts(asking: Asking, outline: Outline, text: Text) -> Iterator[str]:
    """A stored text in pieces, none of which cuts a character."""
    rest = b""
    for piece in pieces(asking.database, outline, text):
        data = rest + piece
        end = len(data)
        while end and len(data) - end < 4 and data[end - 1] & 0xC0 == 0x80:
            end -= 1
        if end and data[end - 1] >= 0xC0:
            end -= 1
        else:
            end = len(data)
        rest = data[end:]
        yield data[:end].decode("utf-8", "surrogatepass")
    if rest:
        yield rest.decode("utf-8", "surrogatepass")


def _part(asking: Asking, outline: Outline, asked: RecordQuery) -> dict[str, Any]:
    wanted = asked.model_dump(include={"path", "lines", "pattern", "max_chars"})
    try:
        if outline.output_bytes > LONG:
            part = part_of_long(pieces(asking.database, outline, "output"), wanted)
        else:
            part = part_of(whole(asking.database, outline, "output"), wanted)
    except Refused as e:
        raise InvalidRequestError(str(e)) from None
    return {"trace_id": outline.trace_id, **part}
