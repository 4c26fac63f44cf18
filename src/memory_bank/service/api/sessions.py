"""The API's routes on sessions and their steps: listed, in figures, reset, deleted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, astuple
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from memory_bank.bank import steps
from memory_bank.bank.listing import SessionInfo, Tokens, list_page, namespace_totals, session_details
from memory_bank.errors import InvalidRequestError, NotFoundError
from memory_bank.pricing import Usage, cost, price_of
from memory_bank.service.api.models import (
    Curve,
    CurveQuery,
    SessionDetail,
    SessionPage,
    SessionsQuery,
    Stats,
    StepDetail,
    StepPage,
    StepsQuery,
)
from memory_bank.service.api.openapi import errors
from memory_bank.service.api.requests import Api, ApiContext, SessionName, json_response
from memory_bank.service.security.access import stored_id
from memory_bank.service.threads import in_thread
from memory_bank.transcript.shortening import cut_at_edge

router = APIRouter(prefix="/v1", tags=["sessions"])
steps_router = APIRouter(prefix="/v1/sessions/{name}", tags=["steps"])

_TASK_CHARS = 300  # of a task in a list
_FIGURES = ("created", "last_written", "task", "records", "steps", "insights")

Manifest = dict[str, Any]
StepNumber = Annotated[int, Path(ge=1, le=2**31 - 1, description="the step's number")]


@router.get(
    "/sessions",
    summary="List sessions, newest first",
    response_model=SessionPage,
    responses=errors(422),
)
async def list_sessions(api: Api, request: Request, query: Annotated[SessionsQuery, Query()]) -> Response:
    """The caller's sessions, a page at a time."""
    rebuilder = request.app.state.service.proxy.rebuilder
    told = {"notice": rebuilder.notice(api.namespace), "trouble": rebuilder.trouble(api.namespace)}
    return await json_response(_session_page, api, query, told)


def _session_page(api: ApiContext, query: SessionsQuery, told: dict[str, str | None]) -> dict[str, Any]:
    after = None if query.after is None else stored_id(api.namespace, query.after)
    found = list_page(api.database, api.namespace, query.limit, after, query.q.strip(), api.prefix)
    if found is None:
        raise InvalidRequestError("after names no session of the list: omit it to begin at the first page.")
    lines, more = found
    rows = [
        {
            **_session(api, line),
            "task": cut_at_edge(line.task, _TASK_CHARS, marked=True),
            "jobs": line.jobs,
            "failing": line.failing,
        }
        for line in lines
    ]
    return {"sessions": rows, "next": rows[-1]["name"] if more else None, **told}


def _session(api: ApiContext, line: SessionInfo) -> dict[str, Any]:
    return {
        "name": api.public(line.session_id),
        "agent": api.public_or_none(line.agent_id),
        "forked_from": api.public_or_none(line.forked_from),
        **{name: getattr(line, name) for name in _FIGURES},
    }


@router.get(
    "/sessions/{name}",
    summary="Get one session",
    response_model=SessionDetail,
    responses=errors(404),
)
async def get_session(api: Api, name: SessionName) -> Response:
    """Its counts, the Observer's queue and cost, and the tokens of its contexts."""
    return await json_response(_session_detail, api, name)


def _session_detail(api: ApiContext, name: str) -> dict[str, Any]:
    found = session_details(api.database, api.namespace, api.known(name))
    if found is None:
        raise NotFoundError("the session has just been deleted.")
    return {
        **_session(api, found),
        "unobserved": found.unobserved,
        "to_redo": found.to_redo,
        "queue": {"open": found.jobs, "failing": found.failing, "attempts": found.attempts},
        "spend": asdict(found.spent),
        "tokens": _tokens(found.tokens),
        "control": api.sessions.is_control(found.session_id),
        "cost": _costs(api, steps.usage_of_session(api.database, found.session_id)),
    }


def _costs(api: ApiContext, sums: list[steps.UsageSums]) -> dict[str, Any]:
    """What the calls of some steps cost, by model and in all."""
    by_model: dict[str, list[steps.UsageSums]] = {}
    for s in sums:
        if s.model is not None:
            by_model.setdefault(s.model, []).append(s)
    models: list[dict[str, Any]] = []
    for model, own in by_model.items():
        sent, full = _total(s.sent for s in own), _total(s.full for s in own)
        calls = sum(s.steps for s in own)
        figures = {"model": model, "calls": calls, "sent": asdict(sent), "full": asdict(full)}
        models.append(figures | _priced(api, model, sent, full))
    priced = [m for m in models if m["sent_cost"] is not None]
    paid, in_full = sum(m["sent_cost"] for m in priced), sum(m["full_cost"] for m in priced)
    return {
        "sent": paid if priced else None,
        "full": in_full if priced else None,
        "compared": _compared(paid, in_full),
        "unpriced": sorted(m["model"] for m in models if m["sent_cost"] is None),
        "models": sorted(models, key=lambda m: (-m["calls"], m["model"])),
    }


def _tokens(tokens: Tokens) -> dict[str, Any]:
    return asdict(tokens) | {"compared": _compared(tokens.sent, tokens.full)}


def _compared(sent: float, full: float) -> str:
    """How much memory saved, or cost, in words; "" where there is nothing to compare."""
    share = round(100 * (sent / full - 1)) if full else 0
    word = "more" if share > 0 else "less"
    return (
        f"{abs(share)}% {word} than without memory" if share else "as much as without memory" if full else ""
    )


def _total(usages: Iterable[Usage]) -> Usage:
    return Usage(*map(sum, zip(*map(astuple, usages), strict=True)))


def _priced(api: ApiContext, model: str | None, sent: Usage | None, full: Usage | None) -> dict[str, Any]:
    """The costs of a model's calls; None without usage or a price."""
    price = None if model is None else price_of(api.sessions.config.prices, model)
    return {
        "sent_cost": None if price is None or sent is None else cost(sent, price),
        "full_cost": None if price is None or full is None else cost(full, price),
    }


def _group(api: ApiContext, sums: list[steps.UsageSums], sessions: int) -> dict[str, Any]:
    """The figures of the sessions with memory, or of the control group."""
    count = sum(s.steps for s in sums)
    used = [s for s in sums if s.model is not None]
    calls = sum(s.steps for s in used)
    costs = _costs(api, sums)
    priced = sum(m["calls"] for m in costs["models"] if m["sent_cost"] is not None)
    return {
        "sessions": sessions,
        "steps": count,
        "tokens_per_step": sum(s.tokens for s in sums) / max(1, count),
        "full_tokens_per_step": sum(s.full_tokens for s in sums) / max(1, count),
        "input_per_step": sum(s.sent.input for s in used) / calls if calls else None,
        "cost_per_step": costs["sent"] / priced if priced else None,
    }


@router.post(
    "/sessions/{name}/reset",
    summary="Empty a session",
    status_code=204,
    responses=errors(404),
)
async def reset_session(api: Api, name: SessionName) -> Response:
    """Delete the session's records and insights; the session itself and its cost stay."""
    await in_thread("api", api.sessions.reset, api.namespace, name)
    return Response(status_code=204)


@router.delete(
    "/sessions/{name}",
    summary="Delete a session",
    status_code=204,
    responses=errors(404),
)
async def delete_session(api: Api, name: SessionName) -> Response:
    """Delete the session with its records. A later request with its name creates a new one."""
    await in_thread("api", api.sessions.delete, api.namespace, name)
    return Response(status_code=204)


@router.get(
    "/stats",
    summary="Get the totals of all sessions",
    response_model=Stats,
    responses=errors(),
)
async def get_stats(api: Api) -> Response:
    """Totals of all sessions of the caller."""
    return await json_response(_stats, api)


def _stats(api: ApiContext) -> dict[str, Any]:
    totals = namespace_totals(api.database, api.namespace)
    sums, sessions = steps.usage_of_namespace(api.database, api.namespace)
    groups = None
    if sessions.get(True):
        groups = {
            name: _group(api, [s for s in sums if s.control == control], sessions.get(control, 0))
            for name, control in (("memory", False), ("control", True))
        }
    return {
        "sessions": totals.sessions,
        "records": totals.records,
        "insights": totals.insights,
        "queue": {"open": totals.jobs, "failing": totals.failing},
        "spend": asdict(totals.spent),
        "tokens": _tokens(totals.tokens),
        "cost": _costs(api, sums),
        "groups": groups,
    }


@steps_router.get(
    "/steps",
    summary="List a session's steps, oldest first",
    response_model=StepPage,
    responses=errors(404, 422),
)
async def list_steps(api: Api, name: SessionName, query: Annotated[StepsQuery, Query()]) -> Response:
    """The tokens of every context; a page at a time."""
    return await json_response(_step_page, api, name, query)


def _step_page(api: ApiContext, name: str, query: StepsQuery) -> dict[str, Any]:
    session_id = api.known(name)
    found = steps.list_steps(api.database, session_id, query.after, query.limit)
    first, last = steps.ends_of(api.database, session_id) or (None, None)
    more = len(found) == query.limit and last is not None and found[-1].number < last
    return {
        "steps": [_step(api, s) for s in found],
        "next": found[-1].number if more else None,
        "first": first,
        "last": last,
    }


def _step(api: ApiContext, step: steps.StepFigures) -> dict[str, Any]:
    figures = asdict(step) | _priced(api, step.model, step.sent, step.full)
    del figures["session_id"]
    return figures


@steps_router.get(
    "/curve",
    summary="Get the tokens of all steps as a curve",
    response_model=Curve,
    responses=errors(404, 422),
)
async def get_curve(api: Api, name: SessionName, query: Annotated[CurveQuery, Query()]) -> Response:
    """Tokens of the contexts and of the full histories, in a bounded number of points."""
    return await json_response(_curve, api, name, query.points)


def _curve(api: ApiContext, name: str, points: int) -> dict[str, Any]:
    totals, found = steps.token_curve(api.database, api.known(name), points)
    return {"points": [asdict(p) for p in found], **asdict(totals)}


@steps_router.get(
    "/steps/{number}",
    summary="Get one step with its context",
    response_model=StepDetail,
    responses=errors(404, 422),
)
async def get_step(api: Api, name: SessionName, number: StepNumber) -> Response:
    """The context as sent, the decision on every past call and its reason, changes since the last step."""
    return await json_response(_step_detail, api, name, number)


def _step_detail(api: ApiContext, name: str, number: int) -> dict[str, Any]:
    session_id = api.known(name)
    found = steps.get_step(api.database, session_id, number)
    if found is None:
        raise NotFoundError("this session has no such step: GET …/steps lists its steps.")
    figures, manifest = found
    before = steps.get_step(api.database, session_id, number - 1) if manifest else None
    with_public_names(api, _decisions(manifest))
    return {
        "step": _step(api, figures),
        "manifest": manifest,
        "changes": _changes(manifest, before[1] if before else None),
    }


def with_public_names(api: ApiContext, decisions: list[dict[str, Any]]) -> None:
    """Replace the session_ids in decisions on records of other sessions by their public names."""
    for decision in decisions:
        if "session_id" in decision:
            decision["session_id"] = api.public(decision["session_id"])


def _decisions(manifest: Manifest | None) -> list[dict[str, Any]]:
    plan = (manifest or {}).get("plan")
    return plan["decisions"] if plan else []


def _changes(now: Manifest | None, before: Manifest | None) -> list[dict[str, Any]] | None:
    """The past interactions whose fate differs from the step before; None if a manifest is missing."""
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
