"""The API's routes on records: listed, whole, as bytes, or a part of one, and what contexts showed of one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import Field

from memory_bank.bank import listing
from memory_bank.bank.folds import FoldReasons, stored_folds
from memory_bank.bank.search import superseding
from memory_bank.bank.steps import AS_IT_CAME, StepShown, steps_shown
from memory_bank.errors import InvalidRequestError, NotFoundError
from memory_bank.plan import Fate, Piece
from memory_bank.service.api.openapi import (
    TRACE_ID,
    Count,
    Json,
    NextNumber,
    ResponseModel,
    Time,
    errors,
)
from memory_bank.service.api.requests import (
    JSON,
    AfterNumber,
    Api,
    ApiContext,
    Limit,
    RecordId,
    SessionName,
    json_bytes,
    json_object,
    json_response,
    json_utf8,
    route,
    streamed,
)
from memory_bank.service.threads import in_thread
from memory_bank.tools.handlers import LONGEST_ARGUMENTS
from memory_bank.tools.selection import RefusedCall, at_path, lay_out, select_lines, written
from memory_bank.transcript.jsontext import parse_arguments, parse_output
from memory_bank.transcript.shortening import cut_at_edge

router = APIRouter(prefix="/v1", tags=["records"])

_ARGUMENT_CHARS = 300  # of arguments in a list
_MAX_PARSED = 2 * 2**20  # bytes of a text whose parsed value is included
_MOST_IDS = 5
_LONG_OUTPUT = 2**20  # bytes of an output from which few parts are selected at once
_MAX_VALUES = 10_000  # values that are listed with their paths
_LIKELIER = 3
_BESIDE = ("passed", "answered")  # requests that do not go on with the task


class RecordFigures(ResponseModel):
    """The members that a list of records and one record have in common."""

    trace_id: str = Field(examples=[TRACE_ID])
    number: Count = Field(description="position in its session, from 1; contexts call it #1")
    step_id: int
    tool_name: str
    timestamp: Time
    mark: str | None = Field(description="forgotten: a person had its content deleted; else null")
    output_bytes: Count = Field(description="length of the output in UTF-8")


class RecordItem(RecordFigures):
    """A record in a list."""

    summary: str | None
    source: str | None = Field(description="what made the summary", examples=["llm:gpt-4.1-mini"])
    input: str = Field(description="the beginning of its arguments")


class RecordPage(ResponseModel):
    """Records, oldest first."""

    records: list[RecordItem]
    next: NextNumber


class RecordInsight(ResponseModel):
    """The summary of a record."""

    summary: str
    source: str
    redo: str | None = Field(description="why it will be made again; null if it is final")
    attempts: Count | None = Field(
        description="how often the Observer's model was asked for the one it waits for; null: it waits for none"
    )


class RecordHead(RecordFigures):
    """A record without its arguments and output."""

    session: str
    call_id: str | None
    insight: RecordInsight | None
    newer: str | None = Field(
        description="trace_id of the latest record of the same call, which returned something else"
    )
    input_bytes: Count


class Record(RecordHead):
    """One tool call with its arguments and output.

    If arguments or output arrived as text, ``input_text`` and ``output_text`` are exactly that text and the
    raw values are the parsed text (``{"_raw": text}`` if it is not JSON); otherwise they are null.
    """

    raw_input: Json
    input_text: str | None
    raw_output: Json = Field(description="null if output_text is over 2 MiB: parse that, or select by path")
    output_text: str | None


class SelectedValue(ResponseModel):
    """A value and its path."""

    path: str = Field(examples=["items[3].sku"])
    value: Json


class SelectedLine(ResponseModel):
    """A line and its number, from 1."""

    number: Count
    text: str
    matches: bool = Field(description="false: it is next to a line that matches")


class RecordPart(ResponseModel):
    """A part of a record's output."""

    trace_id: str = Field(examples=[TRACE_ID])
    text: str
    values: list[SelectedValue] | None = Field(description="null without a path, or if incomplete")
    lines: list[SelectedLine] | None = Field(description="JSON on one line has one line per value")
    count: Count = Field(description="all lines of the output, or all values at the path")
    complete: bool = Field(description="false: cut at max_chars")
    next: str | None = Field(description="value of `lines` for the rest")


class Likelier(ResponseModel):
    """A piece of another record that was shown then."""

    trace_id: str
    tool: str
    value: str = Field(description="the likeliest of its values to be needed, or how it begins")
    worth: float


class Span(ResponseModel):
    """Steps in a row whose contexts showed the same of a record."""

    first: Count
    last: Count
    fate: str | None = Field(description="kept, shown in part, listed or left out; null: not known")
    as_it_came: bool = Field(description="the messages were sent as they came")
    reason: str = Field(description="at the first of these steps")
    worth: float | None = Field(
        description="of its pieces at the first of these steps; null: too little to be stored"
    )
    least: float | None = Field(description="the least that was shown then was worth so much")
    likelier: list[Likelier] = Field(description="what was shown instead, the likeliest first")


class Life(ResponseModel):
    """The steps since a record was stored, in spans, oldest first."""

    spans: list[Span]


def _selecting(name: str, description: str) -> Any:
    return Query(None, max_length=LONGEST_ARGUMENTS[name], description=description)


@route(router, "GET", "/sessions/{name}/records", "List a session's records, oldest first", 404, 422)
def list_records(api: Api, name: SessionName, limit: Limit = 50, after: AfterNumber = 0) -> RecordPage:
    """The call, its summary and the size of its output; a page at a time."""
    outlines = listing.list_outlines(api.database, api.known(name), limit + 1, after)
    page = outlines[:limit]
    rows = [RecordItem.of(o, input=record_input(o)) for o in page]
    return RecordPage.of(records=rows, next=page[-1].number if len(outlines) > len(page) else None)


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
    response_model=Record | RecordPart,
    responses={**_RECORD_OR_PART, **errors(404, 422)},
)
async def get_record(
    api: Api, request: Request, name: SessionName, trace_id: RecordId,
    raw: Annotated[bool, Query(description="the output alone, byte for byte, as a download")] = False,
    path: str | None = _selecting("path", 'a JSON path: items[3].sku, items[*].sku, items[2:5], ["odd key"]'),
    lines: str | None = _selecting("lines", "lines: 10-25, 7, or -20 for the last 20"),
    pattern: str | None = _selecting("pattern", "a regular expression; lines around a match are included"),
    max_chars: Annotated[int, Query(ge=1, le=10_000_000, description="maximum length of the part")] = 100_000,
) -> Response:  # fmt: skip
    """Everything a tool returned. A record is named by its trace_id, at least six characters of it, or its
    number (`12` or `%2312`, as contexts call it).

    `raw=1` returns the output alone, as bytes. `path`, `lines` and `pattern` select a part, also together.
    """
    partly = (path, lines, pattern) != (None, None, None)
    if raw and partly:
        raise InvalidRequestError("raw returns the whole output: omit path, lines and pattern, or raw.")
    if "max_chars" in request.query_params and not partly:
        raise InvalidRequestError("max_chars limits a part: give it with path, lines or pattern.")
    outline = await in_thread("api", named_record, api, name, trace_id)
    if partly:
        asked = (path, lines, pattern, max_chars)
        return await json_response(_part, api, outline, *asked, long=outline.output_bytes > _LONG_OUTPUT)
    if not raw:
        return StreamingResponse(await streamed(_record_json(api, outline)), media_type=JSON)
    file = re.sub(r"[^\w.-]+", "_", outline.trace_id).encode("ascii", "replace").decode()
    headers = {  # a download, which no browser shows as a page of this service
        "content-length": str(outline.output_bytes),
        "content-disposition": f'attachment; filename="{file}.txt"',
        "x-content-type-options": "nosniff",
    }
    stored = await streamed(listing.pieces(api.database, outline, "output"))
    return StreamingResponse(stored, headers=headers, media_type="application/octet-stream")


def named_record(api: ApiContext, name: str, wanted: str) -> listing.Outline:
    """The record with a trace_id, a number, or the beginning of a trace_id. Raises NotFoundError."""
    bank, session_id, wanted = api.database, api.known(name), wanted.strip()
    outlines = listing.records_named(bank, session_id, wanted, _MOST_IDS + 1)
    if len(outlines) > 1:
        ids = ", ".join(o.trace_id for o in outlines[:_MOST_IDS])
        others = " and others" if len(outlines) > _MOST_IDS else ""
        raise NotFoundError(f"several trace_ids begin with that ({ids}{others}): give more of it.")
    if outlines:
        return outlines[0]
    if re.fullmatch(r"#?[0-9]{1,9}", wanted):
        count = bank.extent(session_id).records
        there = f"it has #1 to #{count}" if count else "it has none yet"
        raise NotFoundError(f"this session has no record of that number: {there}.")
    raise NotFoundError(
        "this session has no such record: give a trace_id, at least its first 6 characters, or a number."
    )


@route(router, "DELETE", "/sessions/{name}/records/{trace_id}", "Forget a record", 404)
def forget_record(api: Api, name: SessionName, trace_id: RecordId) -> None:
    """Delete its arguments, output and summary for good, and the folds and answers of its session.

    Its number stays, and it is not stored again from a conversation that still has it.
    """
    api.sessions.forget(api.namespace, name, named_record(api, name, trace_id).trace_id)


def _record_json(api: ApiContext, o: listing.Outline) -> Iterator[bytes]:
    head = RecordHead.of(
        o,
        session=api.public(o.session_id),
        insight=None if o.summary is None else RecordInsight.of(o),
        newer=superseding(api.database, o.session_id, o.trace_id),
    )
    members, texts = dict(head), tuple[listing.Text, listing.Text](("input", "output"))
    sizes = ((o.input_verbatim, o.input_bytes), (o.output_verbatim, o.output_bytes))
    for text, (is_verbatim, size) in zip(texts, sizes, strict=True):
        pieces = _text_pieces(api, o, text)
        if not is_verbatim:  # it is stored as JSON
            members |= {f"raw_{text}": map(json_utf8, pieces), f"{text}_text": None}
            continue
        parse = parse_arguments if text == "input" else parse_output
        value = parse(listing.whole(api.database, o, text)) if size <= _MAX_PARSED else None
        encoded = (json_bytes(piece)[1:-1] for piece in pieces)
        members |= {f"raw_{text}": value, f"{text}_text": chain([b'"'], encoded, [b'"'])}
    yield from json_object(members)


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


def _part(api: ApiContext, outline: listing.Outline, *selected: Any) -> RecordPart:
    try:
        return _part_of(listing.whole(api.database, outline, "output"), outline.trace_id, *selected)
    except RefusedCall as e:
        raise InvalidRequestError(str(e)) from None


def _part_of(
    text: str, trace_id: str, path: str | None, lines: str | None, pattern: str | None, room: int
) -> RecordPart:
    """The part of a record's output that the parameters of ``get_record`` select. Raises RefusedCall."""
    chosen = at_path(text, path, written)
    hits, values, rest = chosen.values, None, None
    rows: list[dict[str, Any]] = []
    by_line = lines is not None or pattern is not None
    if by_line:
        layout = lay_out(chosen.text, chosen.value)
        selection = select_lines(layout, lines, pattern)
        count, complete, used = layout.count, True, 0
        for n, line, matches in selection:
            used += len(line) + 1
            if used > room and rows:
                complete, rest = False, f"{n}-{selection.last}"
                break
            part = cut_at_edge(line, room)
            complete = complete and len(part) == len(line)
            rows.append({"number": n, "text": part, "matches": matches})
        part = "\n".join(row["text"] for row in rows)
    else:
        count, part = 1 if hits is None else len(hits), cut_at_edge(chosen.text, room)
        complete = len(part) == len(chosen.text) and (hits is None or len(hits) <= _MAX_VALUES)
        values = [{"path": f.path, "value": f.value} for f in hits] if hits and complete else None
    return RecordPart.of(
        trace_id=trace_id, text=part, values=values, lines=rows if by_line else None, count=count,
        complete=complete, next=rest,
    )  # fmt: skip


@route(
    router,
    "GET",
    "/sessions/{name}/records/{trace_id}/life",
    "Get what contexts showed of a record",
    404,
    422,
)
def get_life(api: Api, name: SessionName, trace_id: RecordId) -> Life:
    """The part of a record that every context since it was stored showed, and why no more."""
    record = named_record(api, name, trace_id)
    steps = steps_shown(api.database, record.session_id, since=record.number)
    stored = stored_folds(api.database, record.session_id, [s.fold for s in steps])
    folds = {n: why for n, (_, why) in stored.items()}
    return Life.of(spans=spans_of(steps, folds, record.number, record.trace_id))


def spans_of(
    steps: Iterable[StepShown], folds: Mapping[int, FoldReasons | None], number: int, trace_id: str
) -> list[Span]:
    """The life of a record, of the steps since it was stored, and what their folds show."""
    spans: list[dict[str, Any]] = []
    for step in steps:
        if step.status in _BESIDE:
            continue
        why = folds.get(step.fold or 0)
        fate, _, reason = step.of(number, why)
        told: dict[str, Any] = {
            "fate": fate and str(fate), "as_it_came": step.status in AS_IT_CAME, "reason": reason, "worth": None,
            "least": None, "likelier": [],
        }  # fmt: skip
        if step.fates is None and (told["as_it_came"] or not spans):  # the latest calls are always whole
            told["fate"] = str(Fate.KEPT)
        elif step.fates is None and step.changed is None:  # it begins as the one before
            told = {k: spans[-1][k] for k in told}
        elif why is not None and why.pieces and number <= why.records and fate is not Fate.KEPT:
            told |= _compared(why, reason, number, trace_id)
        if spans and all(spans[-1][k] == told[k] for k in ("fate", "as_it_came")):
            spans[-1]["last"] = step.number
        else:
            spans.append({"first": step.number, "last": step.number, **told})
    return [Span.of(**span) for span in spans]


def _compared(why: FoldReasons, reason: str, number: int, trace_id: str) -> dict[str, Any]:
    """The worth of a record to a fold, beside the parts that the fold shows."""
    scores = [p.score for p in why.pieces if p.trace_id == trace_id]
    near = re.search(rf"#{number}\b[^#]*nearly shown: worth ([\d.]+)", reason)
    best: dict[str, Piece] = {}  # the likeliest piece of each other record
    for piece in sorted(why.pieces, key=lambda p: -p.score):
        if piece.trace_id != trace_id:
            best.setdefault(piece.trace_id, piece)
    return {
        "worth": max(scores) if scores else None if near is None else float(near[1]),
        "least": min(p.score for p in why.pieces),
        "likelier": [
            Likelier.of(trace_id=p.trace_id, tool=p.tool, value=_value(p), worth=p.score)
            for p in [*best.values()][:_LIKELIER]
        ],
    }


def _value(piece: Piece) -> str:
    """The likeliest value of a piece as its text writes it, or how the text begins."""
    text = " ".join(piece.text.split())
    if not piece.reasons:
        return text[:60]
    value = piece.reasons[0][0]
    match = re.search(re.escape(value), text, re.IGNORECASE)
    return value if match is None else match[0]
