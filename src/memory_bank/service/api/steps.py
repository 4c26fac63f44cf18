"""The steps of a session over HTTP: the figures of each, its token curve, what a step was made of."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response
from pydantic import ConfigDict, Field

from memory_bank.bank import usage
from memory_bank.errors import NotFoundError
from memory_bank.service.api.asking import Asking, Asks, SessionName
from memory_bank.service.api.openapi import failing
from memory_bank.service.api.shapes import Count, Shape, Time
from memory_bank.service.api.taken import CurveQuery, StepsQuery
from memory_bank.service.api.values import answer

router = APIRouter(prefix="/v1/sessions/{name}", tags=["steps"])

_LARGEST = 2**31 - 1

_STEP: dict[str, Any] = {
    "number": 12,
    "created": 1790000000.5,
    "tokens": 4213,
    "full_tokens": 31004,
    "messages": 57,
    "records": 31,
    "status": "rebuilt",
    "strategy": "memory_bank",
    "milliseconds": 18.4,
    "detailed": True,
}
_PIECE: dict[str, Any] = {
    "trace_id": "edb71e0a-d3e2-59d8-a4e5-9d0eeff7b2e2",
    "number": 6,
    "tool": "get_order",
    "text": "order_id: ORD-50128; tracking: KP3020267685",
    "score": 0.61,
    "values": [{"value": "KP3020267685", "probability": 0.42, "features": {"age_used": 0.8}}],
}
_MANIFEST: dict[str, Any] = {
    "context": [
        {
            "part": "anchor",
            "step": None,
            "new": False,
            "role": "user",
            "parts": [{"text": "Refund what was charged twice."}],
            "calls": [],
            "tool": None,
        }
    ],
    "context_messages": 1,
    "plan": {
        "memory_tokens": 2102,
        "fates": {"left out": {"interactions": 4, "tokens": 2210}},
        "decisions": [
            {
                "step": 1,
                "trace_ids": ["edb71e0a-d3e2-59d8-a4e5-9d0eeff7b2e2"],
                "numbers": [6],
                "tools": ["get_order"],
                "fate": "left out",
                "score": None,
                "reason": "#6 left out",
                "tokens": 710,
            }
        ],
        "decisions_omitted": 0,
        "pieces": [{**_PIECE, "new": True}],
        "near_misses": [],
        "gone": [],
    },
}


class StepFigures(Shape):
    """A step in figures; ``detailed``: what it was made of is still there."""

    model_config = ConfigDict(json_schema_extra={"examples": [_STEP]})
    number: Count = Field(description="1 is the session's first step")
    created: Time
    tokens: Count = Field(description="of the context that was sent")
    full_tokens: Count = Field(description="of the full history")
    messages: Count = Field(description="of the full history")
    records: Count = Field(description="stored by then")
    status: str = Field(description="rebuilt or unchanged")
    strategy: str
    milliseconds: float = Field(description="what the memory took")
    detailed: bool


class StepPage(Shape):
    """Steps, oldest first; ``next`` goes on as ``after``, null at the end."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"steps": [_STEP], "next": 12, "first": 1, "last": 40}]}
    )
    steps: list[StepFigures]
    next: int | None
    first: int | None = Field(description="number of the first step that is there")
    last: int | None = Field(description="number of the last one")


class CurvePoint(Shape):
    """So many steps up to ``number`` in one point."""

    number: int
    steps: int
    tokens: int = Field(description="the most that was sent")
    least_tokens: int
    full_tokens: int = Field(description="the longest full history")


class Curve(Shape):
    """All steps as a curve of a bounded number of points, and their sums."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "points": [
                        {"number": 1, "steps": 1, "tokens": 310, "least_tokens": 310, "full_tokens": 310}
                    ],
                    "first": 1,
                    "last": 1,
                    "steps": 1,
                    "tokens": 310,
                    "full_tokens": 310,
                }
            ]
        }
    )
    points: list[CurvePoint]
    first: int | None
    last: int | None
    steps: int
    tokens: int = Field(description="sent in all steps together")
    full_tokens: int = Field(description="of the full histories of all steps together")


class StepDetail(Shape):
    """A step with what it was made of; ``manifest`` is null where only the figures are kept.

    ``manifest.context`` are the messages as sent, secrets hidden, long texts cut (``left_out`` tells how
    much). Their ``part`` is anchor, memory, past, tail or other; a part of memory text that shows a piece or
    names a call has its ``fate`` and ``trace_id``. ``manifest.plan``, null where nobody planned, has every
    decision on past interactions (the newest of each fate; ``fates`` counts all), the pieces that are shown,
    those that nearly were, and those gone since the step before. ``changes`` are past interactions whose
    fate was another one a step before, null where that step is not known in full.
    """

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"step": _STEP, "manifest": _MANIFEST, "changes": []}]}
    )
    step: StepFigures
    manifest: dict[str, Any] | None
    changes: list[dict[str, Any]] | None


Number = Annotated[int, Path(ge=1, le=_LARGEST, description="the step's number")]


@router.get(
    "/steps",
    operation_id="list_steps",
    summary="List a session's steps, the oldest first",
    response_model=StepPage,
    responses=failing(404, 422),
)
async def list_steps(asking: Asks, name: SessionName, asked: Annotated[StepsQuery, Query()]) -> Response:
    """What every context cost, in figures; a page at a time."""
    return await answer(_steps, asking, name, asked.after, asked.limit)


def _steps(asking: Asking, name: str, after: int, limit: int) -> dict[str, Any]:
    session_id = asking.known(name)
    found = usage.list_steps(asking.database, session_id, after, limit)
    first, last = usage.ends_of(asking.database, session_id) or (None, None)
    more = len(found) == limit and last is not None and found[-1].number < last
    return {
        "steps": [asdict(s) for s in found],
        "next": found[-1].number if more else None,
        "first": first,
        "last": last,
    }


@router.get(
    "/curve",
    operation_id="get_curve",
    summary="Get the tokens of all steps as a curve",
    response_model=Curve,
    responses=failing(404, 422),
)
async def get_curve(asking: Asks, name: SessionName, asked: Annotated[CurveQuery, Query()]) -> Response:
    """What was sent, and what the full histories had; however many steps there are."""
    return await answer(_curve, asking, name, asked.points)


def _curve(asking: Asking, name: str, points: int) -> dict[str, Any]:
    totals, found = usage.token_curve(asking.database, asking.known(name), points)
    return {"points": [asdict(p) for p in found], **asdict(totals)}


@router.get(
    "/steps/{number}",
    operation_id="get_step",
    summary="Get what a step was made of",
    response_model=StepDetail,
    responses=failing(404, 422),
)
async def get_step(asking: Asks, name: SessionName, number: Number) -> Response:
    """Its context as sent, what became of every past call and why, what changed since the step before."""
    return await answer(_step, asking, name, number)


def _step(asking: Asking, name: str, number: int) -> dict[str, Any]:
    session_id = asking.known(name)
    found = usage.get_step(asking.database, session_id, number)
    if found is None:
        raise NotFoundError("this session has no such step: GET …/steps lists those there are.")
    figures, manifest = found
    before = usage.get_step(asking.database, session_id, number - 1) if manifest else None
    for decision in _decisions(manifest):
        if "session_id" in decision:  # another session's, of the same namespace
            decision["session_id"] = asking.public(decision["session_id"])
    return {
        "step": asdict(figures),
        "manifest": manifest,
        "changes": _changes(manifest, before[1] if before else None),
    }


def _decisions(manifest: dict[str, Any] | None) -> list[dict[str, Any]]:
    plan = (manifest or {}).get("plan")
    return plan["decisions"] if plan else []


def _changes(now: dict[str, Any] | None, before: dict[str, Any] | None) -> list[dict[str, Any]] | None:
    """The past interactions whose fate was another one a step before; None where one is not known in full."""
    if not (now and now["plan"] and before and before["plan"]):
        return None
    was = {tuple(d["trace_ids"]): d["fate"] for d in _decisions(before) if d["trace_ids"]}
    return [
        {
            "step": d["step"],
            "trace_ids": d["trace_ids"],
            "tools": d["tools"],
            "before": fate,
            "now": d["fate"],
        }
        for d in _decisions(now)
        if (fate := was.get(tuple(d["trace_ids"]))) is not None and fate != d["fate"]
    ]
