"""The HTTP API on memory: a context built, things to remember brought, a session searched."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response

from memory_bank.context.plan import Plan
from memory_bank.errors import BodyError, InvalidRequestError, MessagesError
from memory_bank.service.api.asking import Asking, Asks, SessionName
from memory_bank.service.api.ingesting import Kept, Output, keep_messages, keep_outputs
from memory_bank.service.api.openapi import failing, json_body
from memory_bank.service.api.records import beginning
from memory_bank.service.api.searching import Match, search_session
from memory_bank.service.api.shapes import Context, Hits, Ingested
from memory_bank.service.api.taken import ContextRequest, IngestRequest, SearchQuery
from memory_bank.service.api.values import Ready, answer, body_of
from memory_bank.service.bodies import Body, render_array
from memory_bank.transcript.parsing import check_messages

router = APIRouter(prefix="/v1", tags=["memory"])

_EXCERPT = 700


@router.post(
    "/sessions/{name}/context",
    operation_id="build_context",
    summary="Build the context of the next model call",
    response_model=Context,
    responses=failing(404, 409, 413, 415, 422, 501, 502),
    openapi_extra=json_body(ContextRequest),
)
async def build_context(asking: Asks, name: SessionName, request: Request) -> Response:
    """Store what is new in a conversation; get the messages to send in its place.

    The session is made if it is not there. The same conversation again stores nothing twice.
    """
    body = await body_of(request, "messages")
    return await answer(_context, asking, name, body)


def _context(asking: Asking, name: str, body: Body) -> dict[str, Any]:
    asked: ContextRequest = ContextRequest.of(body.value)
    step = asking.sessions.rebuild(
        asking.namespace,
        name,
        _checked(asked.messages),
        agent_id=asked.agent_id,
        strategy=asked.strategy,
    )
    plan = None
    if step.plan is not None and asked.plan:
        with step.state.lock:  # it is read from the session's evidence
            plan = _plan(asking, step.plan)
    asking.sessions.finish(step)  # so that a search finds what was given just now
    return {
        "messages": _rendered(body, step.messages),
        "tokens": step.tokens,
        "full_tokens": step.full_tokens,
        "strategy": step.strategy,
        "unchanged": step.unchanged,
        "records": step.record_count,
        "plan": plan,
        "report": step.report.as_dict() if step.report is not None and step.plan is None else None,
    }


def _rendered(body: Body, messages: list[Any]) -> Any:
    """The messages, those that are as they came in the bytes in which they came."""
    try:
        return Ready(render_array(body, "messages", messages))
    except BodyError:  # a new one is nested deeper than the encoder goes
        return messages


def _plan(asking: Asking, plan: Plan) -> dict[str, Any]:
    manifest = plan.manifest()
    for decision in manifest["decisions"]:
        if "session_id" in decision:  # another session's, of the same namespace
            decision["session_id"] = asking.public(decision["session_id"])
    return manifest


def _checked(messages: list[Any]) -> list[Any]:
    """Messages that a model's API could take. Raises MessagesError, which names the first that none could."""
    for i, message in enumerate(check_messages(messages)):
        if not isinstance(message, dict):
            raise MessagesError(f"messages[{i}] must be an object with a role.")
        if not any(isinstance(message.get(key), str) for key in ("role", "type")):
            raise MessagesError(f'messages[{i}] needs a role ("system", "user", "assistant" or "tool").')
    return messages


@router.post(
    "/sessions/{name}/ingest",
    operation_id="ingest",
    summary="Remember a conversation, or tool outputs",
    response_model=Ingested,
    responses=failing(404, 409, 413, 415, 422, 501, 502),
    openapi_extra=json_body(IngestRequest),
)
async def ingest(
    asking: Asks,
    name: SessionName,
    request: Request,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=200,
            description="tells equal tool outputs without call_id apart; the same key again stores nothing",
        ),
    ] = None,
) -> Response:
    """Store facts and summaries without building a context. The session is made if it is not there.

    A trace_id is made of call id, tool, input and output: the same request again stores nothing. Without
    `call_id`, equal outputs in one request are several calls, and in another request the same calls again;
    give an `idempotency-key` for each request where they are not.
    """
    body = await body_of(request, "messages", "tool_outputs")
    return await answer(_ingest, asking, name, body, idempotency_key)


def _ingest(asking: Asking, name: str, body: Body, key: str | None) -> dict[str, Any]:
    asked: IngestRequest = IngestRequest.of(body.value)
    given = asked.model_fields_set & {"messages", "tool_outputs"}
    if len(given) != 1:
        raise InvalidRequestError("give either messages or tool_outputs.")
    kept: Kept
    if given == {"messages"}:
        if asked.task:
            raise InvalidRequestError(
                "task goes with tool_outputs: in messages the first user message tells."
            )
        messages = _checked(asked.messages)
        kept = keep_messages(asking.sessions, asking.namespace, name, messages, agent_id=asked.agent_id)
    else:
        outputs = [Output(o.tool_name, o.raw_input, o.raw_output, o.call_id) for o in asked.tool_outputs]
        kept = keep_outputs(
            asking.sessions,
            asking.namespace,
            name,
            outputs,
            task=asked.task,
            agent_id=asked.agent_id,
            key=key,
        )
    return {"trace_ids": kept.trace_ids, "new": kept.new}


@router.get(
    "/sessions/{name}/search",
    operation_id="search_session",
    summary="Search a session",
    response_model=Hits,
    responses=failing(404, 422, 501),
)
async def search(asking: Asks, name: SessionName, asked: Annotated[SearchQuery, Query()]) -> Response:
    """Records whose output holds the words (or an identifier among them) to the letter; then similar ones."""
    return await answer(_search, asking, name, asked)


def _search(asking: Asking, name: str, asked: SearchQuery) -> dict[str, Any]:
    query = asked.q.strip()
    if not query:
        raise InvalidRequestError("q is empty: give words, or an id that you look for.")
    with (
        asking.sessions.reading(asking.namespace, name) as state,
        asking.sessions.traced("search_memory", state.session_id),
    ):
        found = search_session(state, query, asked.top_k)
    return {"hits": [_hit(asking, m) for m in found.matches], "note": found.note or None}


def _hit(asking: Asking, match: Match) -> dict[str, Any]:
    o = match.outline
    return {
        "trace_id": o.trace_id,
        "session": asking.public(o.session_id),
        "number": o.number,
        "step_id": o.step_id,
        "tool_name": o.tool_name,
        "timestamp": o.timestamp,
        "score": None if match.score is None else round(match.score, 6),
        "holds": match.holds,
        "place": match.place or None,
        "summary": o.summary,
        "source": o.source,
        "input": beginning(o.input_head, o.input_bytes),
        "excerpt": beginning(o.output_head, o.output_bytes, _EXCERPT),
        "output_bytes": o.output_bytes,
    }
