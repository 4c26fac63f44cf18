"""The HTTP API on sessions: listed, looked at, summed up, emptied."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response

from memory_bank.bank.listing import (
    SessionLine,
    Tokens,
    list_page,
    namespace_totals,
    session_figures,
)
from memory_bank.errors import InvalidRequestError, NotFoundError
from memory_bank.records import Spent
from memory_bank.service.api.asking import Asking, Asks, SessionName
from memory_bank.service.api.openapi import failing
from memory_bank.service.api.shapes import SessionDetail, SessionPage, Stats
from memory_bank.service.api.taken import SessionsQuery
from memory_bank.service.api.values import answer, in_thread
from memory_bank.service.security.access import stored_id
from memory_bank.transcript.shortening import cut_at_edge

router = APIRouter(prefix="/v1", tags=["sessions"])

_TASK_CHARS = 300  # of a task in a list


@router.get(
    "/sessions",
    operation_id="list_sessions",
    summary="List sessions, the newest first",
    response_model=SessionPage,
    responses=failing(422),
)
async def list_sessions(asking: Asks, asked: Annotated[SessionsQuery, Query()]) -> Response:
    """The sessions that the caller may see, a page at a time."""
    return await answer(_sessions, asking, asked)


def _sessions(asking: Asking, asked: SessionsQuery) -> dict[str, Any]:
    after = None if asked.after is None else stored_id(asking.namespace, asked.after)
    found = list_page(asking.database, asking.namespace, asked.limit, after, asked.q.strip(), asking.prefix)
    if found is None:
        raise InvalidRequestError("after names no session that was listed: begin without it.")
    lines, more = found
    rows = [_row(asking, line) for line in lines]
    return {"sessions": rows, "next": rows[-1]["name"] if more else None}


def _row(asking: Asking, line: SessionLine) -> dict[str, Any]:
    return {
        **_head(asking, line),
        "task": cut_at_edge(line.task, _TASK_CHARS, marked=True),
        "insights": line.insights,
        "jobs": line.jobs,
        "failing": line.failing,
    }


def _head(asking: Asking, line: SessionLine) -> dict[str, Any]:
    return {
        "name": asking.public(line.session_id),
        "created": line.created,
        "last_written": line.last_written,
        "task": line.task,
        "agent": asking.public_or_none(line.agent_id),
        "forked_from": asking.public_or_none(line.forked_from),
        "records": line.records,
        "steps": line.steps,
    }


@router.get(
    "/sessions/{name}",
    operation_id="get_session",
    summary="Get a session in figures",
    response_model=SessionDetail,
    responses=failing(404),
)
async def get_session(asking: Asks, name: SessionName) -> Response:
    """What it holds, what waits for a model, what that has cost, and what its contexts saved."""
    return await answer(_session, asking, name)


def _session(asking: Asking, name: str) -> dict[str, Any]:
    found = session_figures(asking.database, asking.namespace, asking.known(name))
    if found is None:
        raise NotFoundError("the session was deleted just now.")
    line = found.line
    return {
        **_head(asking, line),
        "insights": line.insights,
        "unobserved": found.unobserved,
        "to_redo": found.to_redo,
        "queue": {"open": line.jobs, "failing": line.failing, "attempts": found.attempts},
        "spend": _spend(found.spent),
        "tokens": _tokens(found.tokens),
    }


def _spend(spent: Spent) -> dict[str, Any]:
    return {
        "calls": spent.calls,
        "prompt_tokens": spent.prompt_tokens,
        "completion_tokens": spent.completion_tokens,
        "cost": spent.cost,
    }


def _tokens(tokens: Tokens) -> dict[str, Any]:
    return {"steps": tokens.steps, "full": tokens.full, "sent": tokens.sent}


@router.post(
    "/sessions/{name}/reset",
    operation_id="reset_session",
    summary="Empty a session",
    status_code=204,
    responses=failing(404),
)
async def reset(asking: Asks, name: SessionName) -> Response:
    """The end of a task: what was remembered goes for good; the session stays, and what it has cost."""
    await in_thread(asking.sessions.reset, asking.namespace, name)
    return Response(status_code=204)


@router.delete(
    "/sessions/{name}",
    operation_id="delete_session",
    summary="Delete a session",
    status_code=204,
    responses=failing(404),
)
async def delete(asking: Asks, name: SessionName) -> Response:
    """As reset, and it is no longer there; a later request of that name begins it anew."""
    await in_thread(asking.sessions.delete, asking.namespace, name)
    return Response(status_code=204)


@router.get(
    "/stats",
    operation_id="get_stats",
    summary="Get the sums of all sessions",
    response_model=Stats,
    responses=failing(),
)
async def stats(asking: Asks) -> Response:
    """Of all sessions that the caller may see."""
    return await answer(_stats, asking)


def _stats(asking: Asking) -> dict[str, Any]:
    totals = namespace_totals(asking.database, asking.namespace)
    return {
        "sessions": totals.sessions,
        "records": totals.records,
        "insights": totals.insights,
        "queue": {"open": totals.jobs, "failing": totals.failing},
        "spend": _spend(totals.spent),
        "tokens": _tokens(totals.tokens),
    }
