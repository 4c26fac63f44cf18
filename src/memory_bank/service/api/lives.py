"""The API's route on the life of a record: what the contexts of its session showed of it, step by step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import APIRouter
from pydantic import Field

from memory_bank.bank.steps import CONTROL, WITHOUT, StepShown, steps_since
from memory_bank.plan import Fate
from memory_bank.service.api.openapi import Count, ResponseModel
from memory_bank.service.api.records import named_record
from memory_bank.service.api.requests import Api, RecordId, SessionName, route

router = APIRouter(prefix="/v1", tags=["records"])

_LIKELIER = 3
_AS_IT_CAME = ("unchanged", CONTROL, *WITHOUT)
_GONE = "its messages are no longer in the list that the client sends"
_BESIDE = ("passed", "answered")  # requests that do not go on with the task


class Likelier(ResponseModel):
    """A piece of another record that was shown then."""

    trace_id: str | None
    number: int | None
    tool: str
    value: str = Field(description="the likeliest of its values to be needed, or how it begins")
    worth: float


class Span(ResponseModel):
    """Steps in a row whose contexts showed the same of a record."""

    first: Count
    last: Count
    fate: str | None = Field(description="kept, shown in part, listed or left out; null: not known")
    as_it_came: bool = Field(description="the messages were sent as they came")
    reason: str = Field(description="in the words of the plan of the first of these steps")
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
    found = steps_since(api.database, record.session_id, record.number)
    return Life.of(spans=spans_of(found, record.number, record.trace_id))


def spans_of(found: Iterable[StepShown], number: int, trace_id: str) -> list[Span]:
    """The life of a record, of the steps since it was stored."""
    spans: list[dict[str, Any]] = []
    for step in found:
        if step.status in _BESIDE:
            continue
        told: dict[str, Any] = {
            "fate": None, "as_it_came": step.status in _AS_IT_CAME, "reason": "", "worth": None, "least": None,
            "likelier": [],
        }  # fmt: skip
        if step.manifest is not None and step.manifest["plan"] is not None:
            told |= _told(step, step.manifest["plan"], number, trace_id)
        elif told["as_it_came"] or not spans:  # the latest calls are always whole
            told["fate"] = str(Fate.KEPT)
        elif step.changed is None:  # it begins as the one before
            told = {k: spans[-1][k] for k in told}
        if spans and all(spans[-1][k] == told[k] for k in ("fate", "as_it_came")):
            spans[-1]["last"] = step.number
        else:
            spans.append({"first": step.number, "last": step.number, **told})
    return [Span.of(**span) for span in spans]


def _told(step: StepShown, plan: Mapping[str, Any], number: int, trace_id: str) -> dict[str, Any]:
    """What a plan made of a record, and why."""
    decision = next((d for d in plan["decisions"] if trace_id in d["trace_ids"]), None)
    if decision is None:  # of the latest calls nothing is decided
        context = (step.manifest or {})["context"]
        latest = sum(len(m.get("calls") or ()) for m in context if m.get("part") == "tail")
        if number > step.records - latest:
            return {"fate": str(Fate.KEPT)}
        return {"fate": None} if plan["decisions_omitted"] else {"fate": str(Fate.LEFT_OUT), "reason": _GONE}
    fate, reason, pieces = decision["fate"], decision["reason"], plan["pieces"]
    if step.status in _AS_IT_CAME:
        return {"fate": str(Fate.KEPT)}
    own = [p["score"] for p in pieces if p["trace_id"] == trace_id]
    if fate == str(Fate.PART) and pieces and not own:  # of a call made beside it
        fate = str(Fate.LEFT_OUT if f"#{number} counted" in reason else Fate.LISTED)
    if fate == str(Fate.KEPT) or not pieces:
        return {"fate": fate, "reason": reason}
    near = re.search(rf"#{number}\b[^#]*nearly shown: worth ([\d.]+)", reason)
    best: dict[object, Mapping[str, Any]] = {}  # the likeliest piece of each other record
    for piece in sorted(pieces, key=lambda p: -p["score"]):
        if piece["trace_id"] != trace_id:
            best.setdefault(piece["trace_id"], piece)
    return {
        "fate": fate,
        "reason": reason,
        "worth": max(own) if own else None if near is None else float(near[1]),
        "least": min(p["score"] for p in pieces),
        "likelier": [
            Likelier.of(
                **{k: p[k] for k in ("trace_id", "number", "tool")},
                value=_value(p),
                worth=p["score"],
            )
            for p in [*best.values()][:_LIKELIER]
        ],
    }


def _value(piece: Mapping[str, Any]) -> str:
    """The likeliest value of a piece as its text writes it, or how the text begins."""
    text = " ".join(piece["text"].split())
    if not piece["values"]:
        return text[:60]
    value: str = piece["values"][0]["value"]
    found = re.search(re.escape(value), text, re.IGNORECASE)
    return value if found is None else found[0]
