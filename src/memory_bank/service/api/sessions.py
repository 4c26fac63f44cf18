"""The API's routes on sessions and their steps: listed, in figures, reset, deleted."""

from __future__ import annotations

from dataclasses import astuple
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field

from memory_bank.bank import steps
from memory_bank.bank.listing import (
    NamespaceTotals,
    SessionInfo,
    list_page,
    namespace_totals,
    session_details,
)
from memory_bank.bank.steps import StepFigures, StepRange, UsageSums
from memory_bank.errors import InvalidRequestError, NotFoundError
from memory_bank.pricing import Usage, cost, price_of
from memory_bank.records import Spent
from memory_bank.service.api.openapi import Count, NextNumber, RequestModel, ResponseModel, Time
from memory_bank.service.api.requests import AfterNumber, Api, ApiContext, Limit, SessionName, route
from memory_bank.service.security.access import stored_id
from memory_bank.transcript.shortening import cut_at_edge

router = APIRouter(prefix="/v1", tags=["sessions"])
steps_router = APIRouter(prefix="/v1/sessions/{name}", tags=["steps"])

_TASK_CHARS = 300  # of a task in a list


class Queue(ResponseModel):
    """Records that wait for the Observer's model."""

    open: Count
    failing: Count = Field(description="of these, those whose last attempt failed")
    attempts: Count | None = Field(default=None, description="attempts of the job that failed most")


class TokenSums(ResponseModel):
    """Tokens of the contexts built so far."""

    steps: Count = Field(description="contexts built")
    full: Count = Field(description="tokens of the requests as they came, tools included")
    sent: Count = Field(description="of all that was sent for them, hidden turns and added tools included")
    compared: str = Field(description='in words, such as "21% more than without memory"')


class ModelCost(ResponseModel):
    """Calls of one model, as the provider reported them."""

    model: str
    calls: Count
    sent: Usage
    full: Usage = Field(description="of the full histories with the provider's cache, estimated")
    sent_cost: float | None = Field(description="null: the configuration has no price for the model")
    full_cost: float | None


class CallCosts(ResponseModel):
    """What model calls cost by the provider's usage and the configured prices, and with the full histories."""

    sent: float | None = Field(description="null: no model called has a price in the configuration")
    full: float | None
    compared: str = Field(description='in words, such as "14% less than without memory"')
    unpriced: list[str] = Field(description="models without a price: their calls are not in the sums")
    models: list[ModelCost]


class Group(ResponseModel):
    """The steps of the sessions with memory, or of those that ``holdout`` leaves without."""

    sessions: Count
    steps: Count
    tokens_per_step: float
    full_tokens_per_step: float
    input_per_step: float | None = Field(description="as the provider counts; null without usage")
    cost_per_step: float | None = Field(description="of the steps with usage and a price; null without")


class SessionFigures(ResponseModel):
    """What a list of sessions and one session have in common."""

    name: str = Field(examples=["refunds-17"])
    created: Time
    last_written: Time | None
    task: str = Field(description="the user's task; in a list its beginning")
    agent: str | None
    forked_from: str | None = Field(description="the session that it was forked from")
    records: Count
    steps: Count = Field(description="number of the latest step with records")
    insights: Count


class SessionRow(SessionFigures):
    """A session in a list."""

    jobs: Count = Field(description="records that wait for the Observer's model")
    failing: Count


class SessionPage(ResponseModel):
    """Sessions, newest first."""

    sessions: list[SessionRow]
    next: str | None = Field(description="value of `after` for the next page; null on the last page")
    notice: str | None = Field(description="if many requests in a row had no tool call: a sentence on it")
    trouble: str | None = Field(description="why memory fails, once three requests in a row have failed")


class SessionDetail(SessionFigures):
    """One session with its counts, cost and tokens."""

    unobserved: Count = Field(description="records without a summary that should have one")
    to_redo: Count = Field(description="summaries that will be made again")
    queue: Queue
    spend: Spent
    tokens: TokenSums
    control: bool = Field(description="left without memory as a control (`holdout`)")
    cost: CallCosts


class Stats(ResponseModel):
    """Totals of all sessions of the caller."""

    sessions: Count
    records: Count
    insights: Count
    queue: Queue
    spend: Spent = Field(description="deleted sessions included")
    tokens: TokenSums
    cost: CallCosts
    groups: dict[Literal["memory", "control"], Group] | None = Field(
        description="null without a control group"
    )
    without_memory: dict[str, Count] = Field(
        description="requests that memory failed for, by reason, since the process started; each worker has its own"
    )


class SessionsQuery(RequestModel):
    """Query of ``list_sessions``."""

    limit: Limit = 50
    after: str | None = Field(None, description="`next` of the previous page", min_length=1, max_length=180)
    q: str = Field("", max_length=1000, description="text that the name or task contains, ignoring case")


@route(router, "GET", "/sessions", "List sessions, newest first", 422)
def list_sessions(api: Api, request: Request, query: Annotated[SessionsQuery, Query()]) -> SessionPage:
    """The caller's sessions, a page at a time."""
    after = None if query.after is None else stored_id(api.namespace, query.after)
    prefix = stored_id(api.namespace, "x")[:-1]
    found = list_page(api.database, api.namespace, query.limit, after, query.q.strip(), prefix)
    if found is None:
        raise InvalidRequestError("after names no session of the list: omit it to begin at the first page.")
    lines, more = found
    rebuilder = request.app.state.service.proxy.rebuilder
    return SessionPage.of(
        sessions=[
            SessionRow.of(s, task=cut_at_edge(s.task, _TASK_CHARS, marked=True), **_names(api, s))
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
def get_session(api: Api, name: SessionName) -> SessionDetail:
    """Its counts, the Observer's queue and cost, and the tokens of its contexts."""
    found = session_details(api.database, api.namespace, api.known(name))
    if found is None:
        raise NotFoundError("the session has just been deleted.")
    return SessionDetail.of(
        found,
        **_names(api, found),
        **_sums(api, found, steps.usage_of_session(api.database, found.session_id)),
        queue=Queue(open=found.jobs, failing=found.failing, attempts=found.attempts),
        control=api.sessions.is_control(found.session_id),
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
def get_stats(api: Api, request: Request) -> Stats:
    """Totals of all sessions of the caller."""
    totals = namespace_totals(api.database, api.namespace)
    sums, sessions = steps.usage_of_namespace(api.database, api.namespace)
    groups: dict[str, Group] | None = None
    if sessions.get(True):
        groups = {
            name: _group(api, [s for s in sums if s.control == control], sessions.get(control, 0))
            for name, control in (("memory", False), ("control", True))
        }
    queue = Queue(open=totals.jobs, failing=totals.failing)
    without = request.app.state.service.proxy.rebuilder.without(api.namespace)
    return Stats.of(totals, queue=queue, **_sums(api, totals, sums), groups=groups, without_memory=without)


def _sums(api: ApiContext, found: SessionInfo | NamespaceTotals, used: list[UsageSums]) -> dict[str, Any]:
    """The members that the answers on one session and on all sessions share."""
    tokens = TokenSums.of(found.tokens, compared=_compared(found.tokens.sent, found.tokens.full))
    return {"spend": found.spent, "tokens": tokens, "cost": _costs(api, used)}


def _compared(sent: float, full: float) -> str:
    """How much memory saved, or cost, in words; "" where there is nothing to compare."""
    share = round(100 * (sent / full - 1)) if full else 0
    if not share:
        return "as much as without memory" if full else ""
    return f"{abs(share)}% {'more' if share > 0 else 'less'} than without memory"


def _costs(api: ApiContext, sums: list[UsageSums]) -> CallCosts:
    """What the calls of some steps cost, by model and in all."""
    models = []
    for model in {s.model for s in sums if s.model is not None}:
        own = [s for s in sums if s.model == model]
        sent, full = (
            Usage(*map(sum, zip(*(astuple(u) for u in usages), strict=True)))
            for usages in ([s.sent for s in own], [s.full for s in own])
        )
        calls, priced = sum(s.steps for s in own), _priced(api, model, sent, full)
        models.append(ModelCost.of(model=model, calls=calls, sent=sent, full=full, **priced))
    costs = [(m.sent_cost, m.full_cost or 0.0) for m in models if m.sent_cost is not None]
    paid, in_full = sum(sent for sent, _ in costs), sum(full for _, full in costs)
    return CallCosts.of(
        sent=paid if costs else None,
        full=in_full if costs else None,
        compared=_compared(paid, in_full),
        unpriced=sorted(m.model for m in models if m.sent_cost is None),
        models=sorted(models, key=lambda m: (-m.calls, m.model)),
    )


def _priced(api: ApiContext, model: str | None, sent: Usage | None, full: Usage | None) -> dict[str, Any]:
    """The costs of a model's calls; None without usage or a price."""
    price = None if model is None else price_of(api.sessions.config.prices, model)
    return {
        "sent_cost": None if price is None or sent is None else cost(sent, price),
        "full_cost": None if price is None or full is None else cost(full, price),
    }


def _group(api: ApiContext, sums: list[UsageSums], sessions: int) -> Group:
    count = sum(s.steps for s in sums)
    used = [s for s in sums if s.model is not None]
    calls = sum(s.steps for s in used)
    costs = _costs(api, sums)
    priced = sum(m.calls for m in costs.models if m.sent_cost is not None)
    return Group(
        sessions=sessions,
        steps=count,
        tokens_per_step=sum(s.tokens for s in sums) / max(1, count),
        full_tokens_per_step=sum(s.full_tokens for s in sums) / max(1, count),
        input_per_step=sum(s.sent.input for s in used) / calls if calls else None,
        cost_per_step=None if costs.sent is None else costs.sent / priced,
    )


# steps


class StepItem(ResponseModel):
    """One step. ``detailed``: its manifest is still stored."""

    number: Count = Field(description="1 is the session's first step")
    created: Time
    tokens: Count = Field(description="of all that was sent, hidden turns and tools included")
    full_tokens: Count = Field(description="of the request as it came, tools included")
    messages: Count = Field(description="of the full history")
    records: Count = Field(description="stored by then")
    status: str = Field(description="rebuilt, unchanged, passed, refused (by upstream) or control")
    strategy: str
    milliseconds: float = Field(description="time that building the context took")
    detailed: bool
    changed_at: int | None = Field(description="position of the first message that is not the last step's")
    changed: str | None = Field(description='what that message is: "memory", its role, or "end"')
    model: str | None = Field(description="null where the provider reported no usage")
    sent: Usage | None = Field(description="as the provider reported")
    full: Usage | None = Field(description="of the full history with the provider's cache, estimated")
    sent_cost: float | None = Field(description="null without usage or a price")
    full_cost: float | None


class StepPage(ResponseModel):
    """Steps, oldest first."""

    steps: list[StepItem]
    next: NextNumber
    first: int | None = Field(description="number of the first stored step")
    last: int | None = Field(description="number of the last stored step")


class Curve(ResponseModel):
    """All steps as a curve with a bounded number of points, and their totals."""

    points: list[StepRange]
    first: int | None
    last: int | None
    steps: int
    tokens: int = Field(description="sent in all steps together")
    full_tokens: int = Field(description="of the full histories of all steps together")


class StepDetail(ResponseModel):
    """A step and its manifest, which is null if only the figures are stored.

    ``manifest.context`` has the messages as sent, with secrets redacted and long texts cut (``left_out`` says
    how much). The ``part`` of a message is anchor, memory, past, tail or other; a part of a memory text that
    shows a piece or names a call has its ``fate`` and ``trace_id``. ``manifest.plan`` has the decision on
    every past interaction (the newest of each fate; ``fates`` counts all), the pieces shown, those nearly
    shown, and those no longer shown. ``changes`` are past interactions whose fate differs from the step
    before, null if that step has no manifest.
    """

    step: StepItem
    manifest: dict[str, Any] | None
    changes: list[dict[str, Any]] | None


class StepsQuery(RequestModel):
    """Query of ``list_steps``."""

    limit: Limit = 100
    after: int = AfterNumber


class CurveQuery(RequestModel):
    """Query of ``get_curve``."""

    points: Annotated[int, Field(ge=1, le=1_000, description="maximum number of points")] = 400


StepNumber = Annotated[int, Path(ge=1, le=2**31 - 1, description="the step's number")]


@route(steps_router, "GET", "/steps", "List a session's steps, oldest first", 404, 422)
def list_steps(api: Api, name: SessionName, query: Annotated[StepsQuery, Query()]) -> StepPage:
    """The tokens of every context; a page at a time."""
    session_id = api.known(name)
    found = steps.list_steps(api.database, session_id, query.after, query.limit)
    first, last = steps.ends_of(api.database, session_id) or (None, None)
    more = len(found) == query.limit and last is not None and found[-1].number < last
    shown = [_step(api, s) for s in found]
    return StepPage.of(steps=shown, next=found[-1].number if more else None, first=first, last=last)


def _step(api: ApiContext, step: StepFigures) -> StepItem:
    return StepItem.of(step, **_priced(api, step.model, step.sent, step.full))


@route(steps_router, "GET", "/curve", "Get the tokens of all steps as a curve", 404, 422)
def get_curve(api: Api, name: SessionName, query: Annotated[CurveQuery, Query()]) -> Curve:
    """Tokens of the contexts and of the full histories, in a bounded number of points."""
    totals, points = steps.token_curve(api.database, api.known(name), query.points)
    return Curve.of(points=points, **totals)


@route(steps_router, "GET", "/steps/{number}", "Get one step with its context", 404, 422)
def get_step(api: Api, name: SessionName, number: StepNumber) -> StepDetail:
    """The context as sent, the decision on every past call and its reason, changes since the last step."""
    session_id = api.known(name)
    found = steps.get_step(api.database, session_id, number)
    if found is None:
        raise NotFoundError("this session has no such step: GET …/steps lists its steps.")
    figures, manifest = found
    before = steps.get_step(api.database, session_id, number - 1) if manifest else None
    with_public_names(api, (manifest or {}).get("plan"))
    changes = _changes(manifest, before[1] if before else None)
    return StepDetail.of(step=_step(api, figures), manifest=manifest, changes=changes)


def with_public_names(api: ApiContext, plan: dict[str, Any] | None) -> None:
    """Replace the session_ids in decisions on records of other sessions by their public names."""
    for decision in (plan or {}).get("decisions", ()):
        if "session_id" in decision:
            decision["session_id"] = api.public(decision["session_id"])


def _changes(now: dict[str, Any] | None, before: dict[str, Any] | None) -> list[dict[str, Any]] | None:
    """The past interactions whose fate differs from the step before; None if a manifest is missing."""
    if not (now and now["plan"] and before and before["plan"]):
        return None
    was = {tuple(d["trace_ids"]): d["fate"] for d in before["plan"]["decisions"] if d["trace_ids"]}
    return [
        {key: d[key] for key in ("step", "trace_ids", "tools")} | {"before": fate, "now": d["fate"]}
        for d in now["plan"]["decisions"]
        if (fate := was.get(tuple(d["trace_ids"]))) is not None and fate != d["fate"]
    ]
