"""The API's routes on sessions and their steps: listed, in figures, reset, deleted."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal

from anyio import to_thread
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import Field

from memory_bank.bank import steps
from memory_bank.bank.folds import stored_folds
from memory_bank.bank.holdout import Comparison, comparison, is_control
from memory_bank.bank.listing import (
    NamespaceTotals,
    SessionInfo,
    list_page,
    namespace_totals,
    origins,
    session_details,
    session_ids,
)
from memory_bank.bank.session import MemoryBankState
from memory_bank.bank.steps import StepFigures, StepRange, UsageSums
from memory_bank.bank.transfer import export_lines
from memory_bank.context import handed_on
from memory_bank.errors import InvalidRequestError, NotFoundError
from memory_bank.pricing import Price, Usage, costs, known_price
from memory_bank.service.api.openapi import Count, NextNumber, RequestModel, ResponseModel, Time, errors
from memory_bank.service.api.requests import (
    AfterNumber,
    Api,
    ApiContext,
    JsonBody,
    Limit,
    OfProject,
    SessionName,
    route,
    streamed,
)
from memory_bank.service.security.access import LONGEST_NAME, stored_id
from memory_bank.service.threads import in_thread
from memory_bank.transcript import open_counter
from memory_bank.transcript.shortening import cut_at_edge

router = APIRouter(prefix="/v1", tags=["sessions"])
steps_router = APIRouter(prefix="/v1/sessions/{name}", tags=["steps"])

_TASK_CHARS = 300  # of a task in a list
_MOST_CALLS = 2_000  # of a step, the newest


class Queue(ResponseModel):
    """Records that wait for the Observer's model."""

    open: Count
    model: str | None = Field(
        description="that this service asks for them; null: none, they wait for another service or `bank observe`"
    )
    failing: Count = Field(description="of these, those whose last attempt failed")
    attempts: Count | None = Field(default=None, description="attempts of the record that failed most")
    calls: Count = Field(description="of the Observer's model so far, also for sessions deleted since")


BILL = "the provider's bill"
"""Where the cost of calls is from that the provider names itself."""


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
    sent_cost: float | None = Field(description="null: there is no price for the model")
    full_cost: float | None
    price: Price | None = Field(description="of a million tokens")
    price_from: str | None = Field(description="where the price is from, and of what date")


class Untold(ResponseModel):
    """Calls whose tokens are not known."""

    reason: str = Field(examples=["the answer has no usage"])
    calls: Count


class CallCosts(ResponseModel):
    """The cost of model calls by the provider's usage and the prices, and with the full histories."""

    sent: float | None = Field(description="null: no model called has a price")
    full: float | None
    compared: str = Field(description='in words, such as "14% less than without memory"')
    unpriced: list[str] = Field(description="models without a price: their calls are not in the sums")
    untold: list[Untold] = Field(description="calls that are not in the sums, and why")
    models: list[ModelCost]


class StepTotals(ResponseModel):
    """Sums of some steps."""

    tokens: TokenSums
    sent_cost: float | None = Field(description="null: no model called has a price")
    full_cost: float | None
    errors: Count = Field(description="steps that the provider or the connection to it failed")
    without_memory: Count = Field(description="steps for which memory failed or was paused")


class SessionFigures(ResponseModel):
    """The members that a list of sessions and one session have in common."""

    name: str = Field(examples=["refunds-17"])
    title: str | None = Field(description="the name that a person gave it")
    created: Time
    last_written: Time | None
    task: str = Field(description="the user's task; in a list its beginning")
    project: str | None
    forked_from: str | None = Field(description="the session that it was forked from")
    records: Count
    steps: Count = Field(description="number of the latest step with records")
    insights: Count


class SessionRow(StepTotals, SessionFigures):
    """A session in a list."""

    waiting: Count = Field(description="records that wait for the Observer's model")
    failing: Count
    last_used: Time = Field(description="when its latest step began, or its latest record was written")
    models: list[str] = Field(description="that its steps were for, the most used first")


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
    tokens: TokenSums
    control: bool = Field(description="left without memory as a control (`holdout`)")
    cost: CallCosts


class Stats(ResponseModel):
    """Totals of all sessions of the caller."""

    sessions: Count
    records: Count
    insights: Count
    queue: Queue
    tokens: TokenSums
    cost: CallCosts
    holdout: Comparison | None = Field(
        description="dollars of sessions with memory and of those `holdout` leaves without; null without any. "
        "`needed`: sessions of the smaller group for which the saving as estimated would show"
    )
    errors: Count = Field(description="steps that the provider or the connection to it failed")
    steps_without_memory: Count = Field(description="steps for which memory failed or was paused")
    without_memory: dict[str, Count] = Field(
        description="requests that memory failed for, by reason, since the process started; each worker has its own"
    )


Only = Annotated[Literal["errors", "without_memory"] | None, Query(description="only those with such steps")]
Since = Annotated[
    float, Query(ge=0, le=1e11, description="only steps that began since then, in Unix seconds")
]


Sort = Annotated[
    Literal["created", "used", "saved", "lost", "cost", "errors", "steps"],
    Query(description="what is greatest comes first; saved, lost: dollars, then tokens"),
]


class TitleRequest(RequestModel):
    """Body of ``rename_session``."""

    title: str | None = Field(
        description='what lists show beside the name; null or "" for none', max_length=120
    )


class Day(StepTotals):
    """The steps of a day, or of an hour."""

    day: str = Field(examples=["2026-11-25", "2026-11-25 13:00"])
    start: Time


class Days(ResponseModel):
    """The days with steps, oldest first."""

    days: list[Day]


class NamedGroup(StepTotals):
    """The steps of the sessions of a project, or of a client."""

    name: str | None = Field(description="null: of sessions that name none")
    sessions: Count
    last_used: Time


class NamedGroups(ResponseModel):
    """The groups, those that saved most first."""

    groups: list[NamedGroup]


@route(router, "GET", "/sessions", "List sessions, newest first", 422)
def list_sessions(
    api: Api, request: Request, limit: Limit = 50,
    after: Annotated[
        str | None, Query(description="`next` of the previous page", min_length=1, max_length=180)] = None,
    q: Annotated[
        str, Query(max_length=1000, description="text that the name, title or task contains, ignoring case")] = "",
    sort: Sort = "created", only: Only = None, since: Since | None = None,
    model: Annotated[
        str | None, Query(max_length=255, description="only sessions with steps for this model")] = None,
    project: OfProject = None,
) -> SessionPage:  # fmt: skip
    """The caller's sessions, a page at a time."""
    last = None if after is None else stored_id(api.namespace, after)
    prefix = stored_id(api.namespace, "x")[:-1]
    plain = (sort, only, since, model, project) == ("created", *[None] * 4)
    ranked = None if plain else _ranked(api, sort, only, since, model, project)
    page = list_page(api.database, api.namespace, limit, last, q.strip(), prefix, ranked)
    if page is None:
        raise InvalidRequestError("after names no session of the list: omit it to begin at the first page.")
    lines, has_next = page
    rebuilder = request.app.state.service.proxy.rebuilder
    ids = [s.session_id for s in lines]
    used = _by(steps.usage_sums(api.database, api.namespace, "session", session_ids=ids, since=since))
    rows = []
    for s in lines:
        sums, task = used[s.session_id], cut_at_edge(s.task, _TASK_CHARS, marked=True)
        row = _totals(api, sums) | _names(api, s)
        row["last_used"] = max(s.last_written or s.created, *(u.last for u in sums), 0.0)
        row["models"] = list(dict.fromkeys(u.model for u in sorted(sums, key=lambda u: -u.steps) if u.model))
        rows.append(SessionRow.of(s, task=task, **row))
    return SessionPage.of(
        sessions=rows,
        next=api.public(lines[-1].session_id) if has_next else None,
        notice=rebuilder.notice(api.namespace),
        trouble=rebuilder.trouble(api.namespace),
    )


def _by(sums: Iterable[UsageSums]) -> dict[Any, list[UsageSums]]:
    """Sums by what they are of."""
    groups: dict[Any, list[UsageSums]] = defaultdict(list)
    for s in sums:
        groups[s.of].append(s)
    return groups


def _totals(api: ApiContext, sums: Sequence[UsageSums]) -> dict[str, Any]:
    """The members that rows of sessions and days share."""
    sent, full = sum(s.tokens for s in sums), sum(s.full_tokens for s in sums)
    tokens = TokenSums(steps=sum(s.steps for s in sums), full=full, sent=sent, compared=_compared(sent, full))
    bill = _costs(api, sums)
    counts = {"errors": sum(s.errors for s in sums), "without_memory": sum(s.without_memory for s in sums)}
    return {"tokens": tokens, "sent_cost": bill.sent, "full_cost": bill.full, **counts}


def _ranked(
    api: ApiContext, sort: Sort, only: Only, since: float | None, model: str | None, project: str | None
) -> list[str]:
    """The ids of the sessions that a query wants, in its order; the newest first among equals."""
    used = _by(steps.usage_sums(api.database, api.namespace, "session", since=since))
    of = None if project is None else origins(api.database, api.namespace)
    worth: dict[str, Callable[[list[UsageSums]], Any]] = {
        "used": lambda sums: max((s.last for s in sums), default=0.0),
        "saved": lambda sums: _saved(api, sums),
        "lost": lambda sums: tuple(-n for n in _saved(api, sums)),
        "cost": lambda sums: _costs(api, sums).sent or 0.0,
        "errors": lambda sums: sum(s.errors for s in sums),
        "steps": lambda sums: sum(s.steps for s in sums),
    }
    ids = [
        i for i in session_ids(api.database, api.namespace)
        if (since is None or used[i])
        and (only is None or any(getattr(s, only) for s in used[i]))
        and (model is None or any(s.model == model for s in used[i]))
        and (of is None or of[i][0] == project)
    ]  # fmt: skip
    return sorted(ids, key=lambda i: worth[sort](used[i]), reverse=True) if sort in worth else ids


def _saved(api: ApiContext, sums: Sequence[UsageSums]) -> tuple[float, float]:
    """The savings of steps: in dollars, in tokens."""
    bill = _costs(api, sums)
    return (bill.full or 0.0) - (bill.sent or 0.0), sum(s.full_tokens - s.tokens for s in sums)


def _names(api: ApiContext, info: Any) -> dict[str, str | None]:
    ids = {"name": info.session_id, "forked_from": info.forked_from}
    return {key: None if id_ is None else api.public(id_) for key, id_ in ids.items()}


class Handoff(ResponseModel):
    """The description of a session for a client; its prompt comes after it."""

    text: str


@route(router, "GET", "/sessions/{name}", "Get one session", 404)
def get_session(api: Api, request: Request, name: SessionName) -> SessionDetail:
    """Its counts, the Observer's queue, and the tokens of its contexts."""
    info = session_details(api.database, api.namespace, api.known(name))
    if info is None:
        raise NotFoundError("the session has just been deleted.")
    return SessionDetail.of(
        info,
        **_names(api, info),
        **_sums(api, info, steps.usage_sums(api.database, api.namespace, session_ids=[info.session_id])),
        queue=_queue(request, info).model_copy(update={"attempts": info.attempts}),
        control=is_control(api.database, info.session_id),
    )


@route(router, "PUT", "/sessions/{name}/title", "Name a session", 404, 415, 422, body=TitleRequest)
def rename_session(api: Api, name: SessionName, body: JsonBody) -> None:
    """Store what lists show beside the session's name; searches of the list find it."""
    title = TitleRequest.parse(body.value).title
    api.database.set_session(api.known(name), title=api.sessions.redacted_text((title or "").strip()) or None)


@route(router, "GET", "/sessions/{name}/handoff", "Hand a session on", 404, 422)
def hand_on(
    api: Api,
    name: SessionName,
    budget: Annotated[int, Query(ge=500, le=20_000, description="tokens of the text, at most")] = 4_000,
    to: Annotated[
        Literal["claude", "codex", "opencode"] | None,
        Query(description="the client that goes on: it is told which rules it does not read by itself"),
    ] = None,
) -> Handoff:
    """The text for a client that goes on, as ``memory-bank handoff`` prints it: the beginning of a user's message."""
    state = MemoryBankState(
        database=api.database, session_id=api.known(name), counter=open_counter(), fixed=True
    )
    text = handed_on(state, budget, to=to or "")
    if not text:
        raise NotFoundError("the session has no tool calls: nothing to hand on.")
    return Handoff(text=text)


@router.get(
    "/sessions/{name}/export",
    summary="Export a session",
    response_class=StreamingResponse,
    responses=errors(404),
)
async def export_session(api: Api, name: SessionName) -> Response:
    """The session as JSON lines, complete and exact, as ``memory-bank bank export`` writes it."""
    session_id = await in_thread("api", api.known, name)
    file = await to_thread.run_sync(tempfile.TemporaryFile)

    def write() -> None:
        file.writelines(json.dumps(line).encode() + b"\n" for line in export_lines(api.database, session_id))
        file.seek(0)

    await in_thread("long", write)
    pieces = await streamed(iter(partial(file.read, 2**18), b""))
    return StreamingResponse(
        pieces, media_type="application/x-ndjson", headers={"content-disposition": "attachment"}
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
    sums = steps.usage_sums(api.database, api.namespace)
    holdout = comparison(api.database, api.sessions.config.prices, api.namespace)
    without = request.app.state.service.proxy.rebuilder.without(api.namespace)
    counts = {
        "errors": sum(s.errors for s in sums),
        "steps_without_memory": sum(s.without_memory for s in sums),
    }
    groups = {"holdout": holdout, "without_memory": without, **counts, **_sums(api, totals, sums)}
    return Stats.of(totals, queue=_queue(request, totals), **groups)


def _queue(request: Request, info: SessionInfo | NamespaceTotals) -> Queue:
    observing = request.app.state.service.observing.settings
    return Queue(
        open=info.waiting,
        failing=info.failing,
        calls=info.calls,
        model=None if observing is None else observing.observer_model,
    )


@route(router, "GET", "/stats/days", "Get the totals of each day", 422)
def get_days(
    api: Api,
    days: Annotated[int, Query(ge=1, le=400, description="how many days, up to today")] = 30,
    unit: Literal["day", "hour"] = "day",
    offset: Annotated[
        int, Query(ge=-1440, le=1440, description="minutes of the days' time zone east of UTC")
    ] = 0,
) -> Days:
    """The steps of the caller's sessions by day, or by hour: tokens, costs, errors."""
    east = 60 * offset
    period, form = (86_400, "%Y-%m-%d") if unit == "day" else (3_600, "%Y-%m-%d %H:%M")
    first = 86_400 * ((time.time() + east) // 86_400 - days + 1) - east
    bank, namespace = api.database, api.namespace
    sums = _by(steps.usage_sums(bank, namespace, "period", since=first, period=period, offset=east))
    rows = []
    for n in sorted(sums):
        name = datetime.fromtimestamp(period * n, UTC).strftime(form)
        rows.append(Day(day=name, start=period * n - east, **_totals(api, sums[n])))
    return Days(days=rows)


@route(router, "GET", "/stats/groups", "Get the totals of each project or client", 422)
def get_groups(
    api: Api,
    by: Annotated[
        Literal["project", "client"],
        Query(description="the project of a session; the program that sent its first request"),
    ],
) -> NamedGroups:
    """The steps of the caller's sessions by project, or by client; those that saved most first."""
    of, grouped = origins(api.database, api.namespace), defaultdict[str | None, list[UsageSums]](list)
    for s in steps.usage_sums(api.database, api.namespace, "session"):
        project, client = of.get(str(s.of), (None, None))
        grouped[project if by == "project" else client].append(s)
    return NamedGroups.of(
        groups=[
            NamedGroup.of(
                name=name,
                sessions=len({s.of for s in sums}),
                last_used=max(s.last for s in sums),
                **_totals(api, sums),
            )
            for name, sums in sorted(grouped.items(), key=lambda g: _saved(api, g[1]), reverse=True)
        ]
    )


def _sums(api: ApiContext, info: SessionInfo | NamespaceTotals, used: list[UsageSums]) -> dict[str, Any]:
    """The members that the answers on one session and on all sessions share."""
    tokens = TokenSums.of(info.tokens, compared=_compared(info.tokens.sent, info.tokens.full))
    return {"tokens": tokens, "cost": _costs(api, used)}


def _compared(sent: float, full: float) -> str:
    """How much memory saved, or cost, in words; "" where there is nothing to compare."""
    share = round(100 * (sent / full - 1)) if full else 0
    if not share:
        return "as much as without memory" if full else ""
    return f"{abs(share)}% {'more' if share > 0 else 'less'} than without memory"


def _costs(api: ApiContext, sums: Sequence[UsageSums]) -> CallCosts:
    """The cost of the calls of some steps, by model and in all."""
    models, unpriced = [], []
    for model in {s.model for s in sums if s.model is not None}:
        priced = [s for s in sums if s.model == model and s.reported]
        if not priced:
            continue
        sent, full = (
            Usage(*map(sum, zip(*(astuple(u) for u in usages), strict=True)))
            for usages in ([s.sent for s in priced], [s.full for s in priced])
        )
        price, price_from = known_price(api.sessions.config.prices, model) or (None, None)
        pairs = [pair for s in priced if (pair := costs(s.sent, s.full, price, s.billed)) is not None]
        if len(pairs) < len(priced):
            unpriced.append(model)
        models.append(ModelCost.of(
            model=model, calls=sum(s.reported for s in priced), sent=sent, full=full, price=price,
            sent_cost=sum(paid for paid, _ in pairs) if pairs else None,
            full_cost=sum(in_full for _, in_full in pairs) if pairs else None,
            price_from=BILL if all(s.billed is not None for s in priced) else price_from,
        ))  # fmt: skip
    both = [(m.sent_cost, m.full_cost or 0.0) for m in models if m.sent_cost is not None]
    paid, in_full = sum(sent for sent, _ in both), sum(full for _, full in both)
    untold = Counter[str]()
    for s in sums:
        if s.untold is not None:
            untold[s.untold] += s.steps
    return CallCosts.of(
        sent=paid if both else None,
        full=in_full if both else None,
        compared=_compared(paid, in_full),
        unpriced=sorted(unpriced),
        untold=[Untold(reason=reason, calls=calls) for reason, calls in untold.most_common()],
        models=sorted(models, key=lambda m: (-m.calls, m.model)),
    )


# steps


@dataclass(frozen=True, slots=True)
class StepItem(StepFigures):
    """One step: its figures, the session as the caller names it, and dollars; null without usage or a price."""

    sent_cost: float | None = None
    full_cost: float | None = None


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


class CallShown(ResponseModel):
    """The part of an earlier call that the context of a step shows."""

    number: Count
    trace_id: str
    tool: str
    fate: str = Field(description="kept, shown in part, listed or left out")
    worth: float | None = Field(
        description="of its pieces; null: nothing of it was shown, or nothing is scored"
    )
    reason: str


class PieceShown(ResponseModel):
    """A piece of a record in a fold: its text, its worth, and its likeliest values, each with its probability."""

    trace_id: str
    tool: str
    text: str
    score: float
    values: list[dict[str, Any]]


class FoldShown(ResponseModel):
    """The fold that stands in a context for the older calls."""

    number: Count
    records: Count | None = Field(
        description="that it is about: the first so many; null: why it shows what it does is not known, or not yet"
    )
    text: str = Field(description="of the memory message")
    pieces: list[PieceShown] = Field(description="of past outputs, arguments and words, as they stand there")
    near_misses: list[PieceShown] = Field(description="what a larger budget would show next")


class CallChange(ResponseModel):
    """A call of which a step shows something else than the step before."""

    number: Count
    trace_id: str
    tool: str
    before: str
    now: str


class StepDetail(ResponseModel):
    """A step, what its context shows of the calls until then, and the model's answer.

    ``fold``: null where there is none, or where it is no longer stored. ``fates`` counts the calls by fate, ``calls``
    are the newest of them; null: not known. ``changes``, and ``new`` and ``gone`` pieces, are those since the step
    before; null where that is not known. ``answer``: ``parts`` of its text, ``calls`` with ``name`` and
    ``arguments``; null if it is not stored.
    """

    step: StepItem
    fold: FoldShown | None
    fates: dict[str, Count] | None
    calls: list[CallShown] | None
    changes: list[CallChange] | None
    new: list[PieceShown] | None
    gone: list[PieceShown] | None
    answer: dict[str, Any] | None


class WrongStep(ResponseModel):
    """A step with an error, or without memory."""

    session: str
    title: str | None = Field(description="of the session")
    step: StepItem


class WrongSteps(ResponseModel):
    """Such steps, the newest first."""

    steps: list[WrongStep]


StepNumber = Annotated[int, Path(ge=1, le=2**31 - 1, description="the step's number")]


@route(steps_router, "GET", "/steps", "List a session's steps, oldest first", 404, 422)
def list_steps(
    api: Api, name: SessionName, limit: Limit = 100, after: AfterNumber = 0, only: Only = None
) -> StepPage:
    """The tokens of every context; a page at a time."""
    session_id = api.known(name)
    page = steps.list_steps(api.database, session_id, after, limit, only)
    first, last = steps.ends_of(api.database, session_id) or (None, None)
    has_next = len(page) == limit and last is not None and page[-1].number < last
    items = [_step(api, s) for s in page]
    return StepPage.of(steps=items, next=page[-1].number if has_next else None, first=first, last=last)


def _step(api: ApiContext, step: StepFigures) -> StepItem:
    price, _ = known_price(api.sessions.config.prices, step.model or "") or (None, "")
    pair = None if step.sent is None or step.full is None else costs(step.sent, step.full, price, step.billed)
    sent_cost, full_cost = pair or (None, None)
    values = {f.name: getattr(step, f.name) for f in fields(step)} | {
        "session_id": api.public(step.session_id)
    }
    return StepItem(**values, sent_cost=sent_cost, full_cost=full_cost)


@route(router, "GET", "/stats/wrong", "Get the latest steps that went wrong", 404, 422)
def get_wrong_steps(
    api: Api,
    only: Only = None,
    session: Annotated[str | None, Query(max_length=LONGEST_NAME, description="only of this session")] = None,
    since: Since = 0.0,
    until: Annotated[
        float | None, Query(ge=0, le=1e11, description="only steps that began before then")
    ] = None,
    limit: Limit = 20,
) -> WrongSteps:
    """Steps that the provider failed, or that went without memory, of all sessions; the newest first."""
    of = None if session is None else api.known(session)
    rows = steps.wrong_steps(
        api.database, api.namespace, only, session_id=of, since=since, until=until, limit=limit
    )
    return WrongSteps.of(
        steps=[
            WrongStep.of(session=api.public(s.session_id), title=title, step=_step(api, s))
            for s, title in rows
        ]
    )


@route(steps_router, "GET", "/curve", "Get the tokens of all steps as a curve", 404, 422)
def get_curve(
    api: Api,
    name: SessionName,
    points: Annotated[int, Query(ge=1, le=1_000, description="maximum number of points")] = 400,
) -> Curve:
    """Tokens of the contexts and of the full histories, in a bounded number of points."""
    totals, ranges = steps.token_curve(api.database, api.known(name), points)
    return Curve.of(points=ranges, **totals)


@route(steps_router, "GET", "/steps/{number}", "Get one step with what its context shows", 404, 422)
def get_step(api: Api, name: SessionName, number: StepNumber) -> StepDetail:
    """Its fold, the fate of every call until then and the reason, changes since the last step."""
    session_id = api.known(name)
    stored = steps.get_step(api.database, session_id, number)
    shown = steps.steps_shown(api.database, session_id, numbers=(number - 1, number))
    if stored is None or not shown:  # or deleted meanwhile
        raise NotFoundError("this session has no such step: GET …/steps lists its steps.")
    *before, now = shown
    folds = stored_folds(api.database, session_id, [s.fold for s in shown])
    body, why = (None, None) if now.status in steps.AS_IT_CAME else folds.get(now.fold or 0, (None, None))
    pieces, near = (
        [PieceShown.of(**p.as_dict()) for p in some]
        for some in ((why.pieces, why.near_misses) if why else ((), ()))
    )
    fold = None
    if body is not None:
        text, count = (body.text + body.note).strip(), why.records if why else None
        fold = FoldShown(number=now.fold or 0, records=count, text=text, pieces=pieces, near_misses=near)
    parts: dict[str, Any] = dict.fromkeys(("fates", "calls", "changes", "new", "gone"))
    if now.fates is not None:
        calls = [
            CallShown(number=n, trace_id=trace_id, tool=tool, fate=str(fate), worth=worth, reason=reason)
            for n, (trace_id, tool) in enumerate(steps.calls_until(api.database, session_id, now.records), 1)
            for fate, worth, reason in [now.of(n, why)]
            if fate is not None
        ]
        parts["fates"], parts["calls"] = Counter(c.fate for c in calls), calls[-_MOST_CALLS:]
        explained = {None, *(n for n, (_, reasons) in folds.items() if reasons is not None)}
        are_known = all(s.fold in explained or s.status in steps.AS_IT_CAME for s in shown)
        if before and before[0].fates is not None and are_known:
            [last] = before
            earlier_why = folds[last.fold][1] if last.fold in folds else None
            parts["changes"] = [
                CallChange(
                    **c.model_dump(include={"number", "trace_id", "tool"}), before=str(then), now=c.fate
                )
                for c in calls[: last.records]
                if (then := last.of(c.number, earlier_why)[0]) is not None and then != c.fate
            ]
            earlier = (
                [] if earlier_why is None else [PieceShown.of(**p.as_dict()) for p in earlier_why.pieces]
            )
            parts["new"] = [p for p in pieces if p not in earlier]
            parts["gone"] = [p for p in earlier if p not in pieces]
    return StepDetail(step=_step(api, stored[0]), fold=fold, answer=stored[1], **parts)
