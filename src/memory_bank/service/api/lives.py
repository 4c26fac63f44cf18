"""The API's route on the life of a record: what the contexts of its session showed of it, step by step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import APIRouter
from pydantic import Field

from memory_bank.bank.folds import FoldReasons, stored_folds
from memory_bank.bank.steps import AS_IT_CAME, StepShown, steps_shown
from memory_bank.plan import Fate, Piece
from memory_bank.service.api.openapi import Count, ResponseModel
from memory_bank.service.api.records import named_record
from memory_bank.service.api.requests import Api, RecordId, SessionName, route

router = APIRouter(prefix="/v1", tags=["records"])

_LIKELIER = 3
_BESIDE = ("passed", "answered")  # requests that do not go on with the task


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
        description="of its pieces at the first of these steps; null: too little to be noted"
    )
    least: float | None = Field(description="the least that was shown then was worth so much")
    likelier: list[Likelier] = Field(description="what was shown instead, the likeliest first")


class Life(ResponseModel):
    """The steps since a record was stored, in spans, oldest first."""

    spans: list[Span]


@route(
    router,
    "GET",
    "/sessions/{name}/records/{trace_id}/life",
    "Get what contexts showed of a record",
    404,
    422,
)
def get_life(api: Api, name: SessionName, trace_id: RecordId) -> Life:
    """What every context since it was stored showed of a record, and why no more."""
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
    """What a record was worth to a fold beside what the fold shows."""
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
