"""The API's routes on memory: build a context, store conversations or tool outputs, search a session."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response

from memory_bank.errors import BodyError, InvalidRequestError, MessagesError
from memory_bank.service.api.ingesting import Kept, keep_messages, keep_outputs
from memory_bank.service.api.models import (
    BuiltContext,
    ContextRequest,
    Hits,
    Ingested,
    IngestRequest,
    SearchQuery,
)
from memory_bank.service.api.openapi import errors, json_body
from memory_bank.service.api.records import beginning, record_row
from memory_bank.service.api.requests import (
    Api,
    ApiContext,
    RawJson,
    SessionName,
    body_of,
    json_response,
)
from memory_bank.service.api.sessions import with_public_names
from memory_bank.service.proxy.body import Body, render_array
from memory_bank.tools import search
from memory_bank.transcript.messages import check_messages

router = APIRouter(prefix="/v1", tags=["memory"])

_EXCERPT_CHARS = 700


@router.post(
    "/sessions/{name}/context",
    summary="Build the context of the next model call",
    response_model=BuiltContext,
    responses=errors(404, 409, 413, 415, 422, 501, 502),
    openapi_extra=json_body(ContextRequest),
)
async def build_context(api: Api, name: SessionName, request: Request) -> Response:
    """Store what is new in a conversation and return the messages to send to the model instead.

    The session is created if it does not exist. The same conversation again stores nothing twice.
    """
    body = await body_of(request, "messages")
    return await json_response(_context, api, name, body)


def _context(api: ApiContext, name: str, body: Body) -> dict[str, Any]:
    query = ContextRequest.parse(body.value)
    messages = _checked(query.messages)
    step = api.sessions.rebuild(
        api.namespace,
        name,
        messages,
        agent_id=query.agent_id,
        strategy=query.strategy,
        size=len(body.data),
        tools=query.tools,
    )
    plan = None
    if step.plan is not None and step.state is not None and query.plan:
        with step.state.lock:  # the manifest reads the session's evidence
            plan = step.plan.manifest()
        with_public_names(api, plan["decisions"])
    api.sessions.finish(step)  # so that a search finds what this request has stored
    return {
        "messages": _rendered(body, step.messages),
        "tokens": step.tokens,
        "full_tokens": step.full_tokens,
        "strategy": step.strategy,
        "unchanged": step.unchanged,
        "records": step.record_count,
        "plan": plan,
        "report": step.plan.figures() if step.plan is not None else None,
    }


def _rendered(body: Body, messages: list[Any]) -> RawJson | list[Any]:
    """The messages; those of the request in the bytes in which they were sent."""
    try:
        return RawJson(render_array(body, "messages", messages))
    except BodyError:  # a new message is nested deeper than the encoder goes
        return messages


def _checked(messages: list[Any]) -> list[Any]:
    """The messages, if a model's API could accept them. Raises MessagesError, which names the first other."""
    for i, message in enumerate(check_messages(messages)):
        if not isinstance(message, dict):
            raise MessagesError(f"messages[{i}] must be an object with a role.")
        if not any(isinstance(message.get(key), str) for key in ("role", "type")):
            raise MessagesError(f'messages[{i}] needs a role ("system", "user", "assistant" or "tool").')
    return messages


@router.post(
    "/sessions/{name}/ingest",
    summary="Store a conversation, or tool outputs",
    response_model=Ingested,
    responses=errors(404, 409, 413, 415, 422, 501, 502),
    openapi_extra=json_body(IngestRequest),
)
async def ingest(
    api: Api,
    name: SessionName,
    request: Request,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=200,
            description="distinguishes equal tool outputs without call_id; the same key again stores nothing",
        ),
    ] = None,
) -> Response:
    """Store records and summaries without building a context. The session is created if it does not exist.

    A trace_id is derived from call id, tool, input and output: the same request again stores nothing. Without
    `call_id`, equal outputs in one request are several calls, and equal outputs in another request are the
    same calls again; give each request its own `idempotency-key` if they are not.
    """
    body = await body_of(request, "messages", "tool_outputs")
    return await json_response(_ingest, api, name, body, idempotency_key)


def _ingest(api: ApiContext, name: str, body: Body, key: str | None) -> Kept:
    query = IngestRequest.parse(body.value)
    given = query.model_fields_set & {"messages", "tool_outputs"}
    if len(given) != 1:
        raise InvalidRequestError("give either messages or tool_outputs.")
    if given == {"messages"}:
        if query.task:
            raise InvalidRequestError(
                "task goes with tool_outputs: with messages the first user message is the task."
            )
        messages = _checked(query.messages)
        return keep_messages(api.sessions, api.namespace, name, messages, agent_id=query.agent_id)
    outputs, agent_id = query.tool_outputs, query.agent_id
    return keep_outputs(
        api.sessions, api.namespace, name, outputs, task=query.task, agent_id=agent_id, key=key
    )


@router.get(
    "/sessions/{name}/search",
    summary="Search a session",
    response_model=Hits,
    responses=errors(404, 422, 501),
)
async def search_session(api: Api, name: SessionName, query: Annotated[SearchQuery, Query()]) -> Response:
    """Records whose output contains the words, or an identifier in them, exactly; then similar records."""
    return await json_response(_search, api, name, query)


def _search(api: ApiContext, name: str, query: SearchQuery) -> dict[str, Any]:
    words = query.q.strip()
    if not words:
        raise InvalidRequestError("q is empty: give words, or an id to search for.")
    with (
        api.sessions.reading(api.namespace, name) as state,
        api.sessions.traced("search_memory", state.session_id),
    ):
        found = search.search_session(state, words, query.top_k)
    note = None if found.trouble is None else f"only exact words were searched: {found.trouble}"
    return {"hits": [_hit(api, m) for m in found.matches], "note": note}


def _hit(api: ApiContext, match: search.SearchMatch) -> dict[str, Any]:
    o = match.outline
    return {
        **record_row(o),
        "session": api.public(o.session_id),
        "score": None if match.score is None else round(match.score, 6),
        "holds": match.holds,
        "place": match.place or None,
        "excerpt": beginning(o.output_head, o.output_bytes, _EXCERPT_CHARS),
    }
