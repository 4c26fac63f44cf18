"""The API's routes on sessions and their steps: listed, in figures, reset, deleted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request

from memory_bank.bank import steps
from memory_bank.bank.listing import (
    NamespaceTotals,
    SessionInfo,
    list_page,
    namespace_totals,
    session_details,
)
from memory_bank.bank.steps import UsageSums
from memory_bank.errors import InvalidRequestError, NotFoundError
from memory_bank.pricing import Usage, cost, price_of
from memory_bank.service.api import models
from memory_bank.service.api.requests import Api, ApiContext, SessionName, route
from memory_bank.service.security.access import stored_id
from memory_bank.transcript.shortening import cut_at_edge

router = APIRouter(prefix="/v1", tags=["sessions"])
steps_router = APIRouter(prefix="/v1/sessions/{name}", tags=["steps"])

_TASK_CHARS = 300  # of a task in a list

Manifest = dict[str, Any]
StepNumber = Annotated[int, Path(ge=1, le=2**31 - 1, description="the step's number")]


@route(router, "GET", "/sessions", "List sessions, newest first", 422)
def list_sessions(
    api: Api, request: Request, query: Annotated[models.SessionsQuery, Query()]
) -> models.SessionPage:
    """The caller's sessions, a page at a time."""
    after = None if query.after is None else stored_id(api.namespace, query.after)
    prefix = stored_id(api.namespace, "x")[:-1]
    found = list_page(api.database, api.namespace, query.limit, after, query.q.strip(), prefix)
    if found is None:
        raise InvalidRequestError("after names no session of the list: omit it to begin at the first page.")
    lines, more = found
    rebuilder = request.app.state.service.proxy.rebuilder
    return models.SessionPage.of(
        sessions=[
            models.SessionRow.of(s, task=cut_at_edge(s.task, _TASK_CHARS, marked=True), **_names(api, s))
            for s in lines
        ],
        next=api.public(lines[-1].session_id) if more else None,
        notice=rebuilder.notice(api.namespace),
        trouble=rebuilder.trouble(api.namespace),
    )


def _names(api: ApiContext, info: Any) -> dict[str, str | None]:
    ids = {"name": info.session_id, "agent": info.agent_id, "forked_from": info.forked_from}
    return {key: None if id_ is None else api.public(id_) for key, id_ in ids.items()}


@route(router, "GET", "/sessions/{name}", "Get one session", 404)
def get_session(api: Api, name: SessionName) -> models.SessionDetail:
    """Its counts, the Observer's queue and cost, and the tokens of its contexts."""
    found = session_details(api.database, api.namespace, api.known(name))
    if found is None:
        raise NotFoundError("the session has just been deleted.")
    return models.SessionDetail.of(
        found,
        **_names(api, found),
        **_sums(api, found, steps.usage_of_session(api.database, found.session_id)),
        queue=models.Queue(open=found.jobs, failing=found.failing, attempts=found.attempts),
        control=api.sessions.is_control(found.session_id),
    )


def _sums(api: ApiContext, found: SessionInfo | NamespaceTotals, used: list[UsageSums]) -> dict[str, Any]:
    """What a session and all sessions of a caller have in common."""
    tokens = models.TokenSums.of(found.tokens, compared=_compared(found.tokens.sent, found.tokens.full))
    return {"spend": found.spent, "tokens": tokens, "cost": _costs(api, used)}


def _costs(api: ApiContext, sums: list[UsageSums]) -> models.CallCosts:
    """What the calls of some steps cost, by model and in all."""
    by_model: dict[str, list[UsageSums]] = {}
    for s in sums:
        if s.model is not None:
            by_model.setdefault(s.model, []).append(s)
    used = []
    for model, own in by_model.items():
        sent, full = _total(s.sent for s in own), _total(s.full for s in own)
        calls, priced = sum(s.steps for s in own), _priced(api, model, sent, full)
        used.append(models.ModelCost.of(model=model, calls=calls, sent=sent, full=full, **priced))
    costs = [(m.sent_cost, m.full_cost) for m in used if m.sent_cost is not None and m.full_cost is not None]
    paid, in_full = sum(c[0] for c in costs), sum(c[1] for c in costs)
    return models.CallCosts.of(
        sent=paid if costs else None,
        full=in_full if costs else None,
        compared=_compared(paid, in_full),
        unpriced=sorted(m.model for m in used if m.sent_cost is None),
        models=sorted(used, key=lambda m: (-m.calls, m.model)),
    )


def _compared(sent: float, full: float) -> str:
    """How much memory saved, or cost, in words; "" where there is nothing to compare."""
    share = round(100 * (sent / full - 1)) if full else 0
    if not share:
        return "as much as without memory" if full else ""
    return f"{abs(share)}% {'more' if share > 0 else 'less'} than without memory"


def _total(usages: Iterable[Usage]) -> Usage:
    return Usage(*map(sum, zip(*map(astuple, usages), strict=True)))


def _priced(api: ApiContext, model: str | None, sent: Usage | None, full: Usage | None) -> dict[str, Any]:
    """The costs of a model's calls; None without usage or a price."""
    price = None if model is None else price_of(api.sessions.config.prices, model)
    return {
        "sent_cost": None if price is None or sent is None else cost(sent, price),
        "full_cost": None if price is None or full is None else cost(full, price),
    }


def _group(api: ApiContext, sums: list[UsageSums], sessions: int) -> models.Group:
    """The figures of the sessions with memory, or of the control group."""
    count = sum(s.steps for s in sums)
    used = [s for s in sums if s.model is not None]
    calls = sum(s.steps for s in used)
    costs = _costs(api, sums)
    priced = sum(m.calls for m in costs.models if m.sent_cost is not None)
    return models.Group(
        sessions=sessions,
        steps=count,
        tokens_per_step=sum(s.tokens for s in sums) / max(1, count),
        full_tokens_per_step=sum(s.full_tokens for s in sums) / max(1, count),
        input_per_step=sum(s.sent.input for s in used) / calls if calls else None,
        cost_per_step=None if costs.sent is None else costs.sent / priced,
    )


@route(router, "POST", "/sessions/{name}/reset", "Empty a session", 404)
def reset_session(api: Api, name: SessionName) -> None:
    """Delete the session's records and insights; the session itself and its cost stay."""
    api.sessions.reset(api.namespace, name)


@route(router, "DELETE", "/sessions/{name}", "Delete a session", 404)
def delete_session(api: Api, name: SessionName) -> None:
    """Delete the session with its records. A later request with its name creates a new one."""
    api.sessions.delete(api.namespace, name)


@route(router, "GET", "/stats", "Get the totals of all sessions")
def get_stats(api: Api) -> models.Stats:
    """Totals of all sessions of the caller."""
    totals = namespace_totals(api.database, api.namespace)
    sums, sessions = steps.usage_of_namespace(api.database, api.namespace)
    groups: dict[Literal["memory", "control"], models.Group] | None = None
    if sessions.get(True):
        without = {control: [s for s in sums if s.control == control] for control in (False, True)}
        groups = {
            "memory": _group(api, without[False], sessions.get(False, 0)),
            "control": _group(api, without[True], sessions[True]),
        }
    queue = models.Queue(open=totals.jobs, failing=totals.failing)
    return models.Stats.of(totals, queue=queue, **_sums(api, totals, sums), groups=groups)


@route(steps_router, "GET", "/steps", "List a session's steps, oldest first", 404, 422)
def list_steps(api: Api, name: SessionName, query: Annotated[models.StepsQuery, Query()]) -> models.StepPage:
    """The tokens of every context; a page at a time."""
    session_id = api.known(name)
    found = steps.list_steps(api.database, session_id, query.after, query.limit)
    first, last = steps.ends_of(api.database, session_id) or (None, None)
    more = len(found) == query.limit and last is not None and found[-1].number < last
    shown = [_step(api, s) for s in found]
    return models.StepPage.of(steps=shown, next=found[-1].number if more else None, first=first, last=last)


def _step(api: ApiContext, step: steps.StepFigures) -> models.StepItem:
    return models.StepItem.of(step, **_priced(api, step.model, step.sent, step.full))


@route(steps_router, "GET", "/curve", "Get the tokens of all steps as a curve", 404, 422)
def get_curve(api: Api, name: SessionName, query: Annotated[models.CurveQuery, Query()]) -> models.Curve:
    """Tokens of the contexts and of the full histories, in a bounded number of points."""
    totals, points = steps.token_curve(api.database, api.known(name), query.points)
    return models.Curve.of(totals, points=points)


@route(steps_router, "GET", "/steps/{number}", "Get one step with its context", 404, 422)
def get_step(api: Api, name: SessionName, number: StepNumber) -> models.StepDetail:
    """The context as sent, the decision on every past call and its reason, changes since the last step."""
    session_id = api.known(name)
    found = steps.get_step(api.database, session_id, number)
    if found is None:
        raise NotFoundError("this session has no such step: GET …/steps lists its steps.")
    figures, manifest = found
    before = steps.get_step(api.database, session_id, number - 1) if manifest else None
    with_public_names(api, _decisions(manifest))
    changes = _changes(manifest, before[1] if before else None)
    return models.StepDetail.of(step=_step(api, figures), manifest=manifest, changes=changes)


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
        {key: d[key] for key in ("step", "trace_ids", "tools")} | {"before": fate, "now": d["fate"]}
        for d in _decisions(now)
        if (fate := was.get(tuple(d["trace_ids"]))) is not None and fate != d["fate"]
    ]
