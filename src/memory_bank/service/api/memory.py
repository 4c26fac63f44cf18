"""The API's routes on memory: build a context, store conversations or tool outputs, search a session."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query

from memory_bank.bank.retrieval import records_of
from memory_bank.errors import BodyError, InvalidRequestError, MessagesError
from memory_bank.records import InteractionRecord, content_key, derive_trace_id
from memory_bank.service.api import models
from memory_bank.service.api.records import beginning, record_input
from memory_bank.service.api.requests import Api, ApiContext, JsonBody, RawJson, SessionName, route
from memory_bank.service.api.sessions import with_public_names
from memory_bank.service.proxy.body import render_array
from memory_bank.tools import search
from memory_bank.transcript.jsontext import dump_value, parse_output
from memory_bank.transcript.messages import Call, check_messages
from memory_bank.transcript.tokens import approximate_counter
from memory_bank.transcript.transcript import Transcript

router = APIRouter(prefix="/v1", tags=["memory"])

_EXCERPT_CHARS = 700
_OF_BODIES = (404, 409, 413, 415, 422, 501, 502)


@route(
    router,
    "POST",
    "/sessions/{name}/context",
    "Build the context of the next model call",
    *_OF_BODIES,
    body=models.ContextRequest,
)
def build_context(api: Api, name: SessionName, body: JsonBody) -> models.BuiltContext:
    """Store what is new in a conversation and return the messages to send to the model instead.

    The session is created if it does not exist. The same conversation again stores nothing twice.
    """
    query = models.ContextRequest.parse(body.value)
    step = api.sessions.rebuild(
        api.namespace,
        name,
        _checked(query.messages),
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
    try:  # messages of the request go out in the bytes in which they came
        messages: Any = RawJson(render_array(body, "messages", step.context))
    except BodyError:  # a new message is nested deeper than the encoder goes
        messages = step.context
    report = step.plan.figures() if step.plan is not None else None
    return models.BuiltContext.of(step, messages=messages, plan=plan, report=report)


def _checked(messages: list[Any]) -> list[Any]:
    """The messages, if a model's API could accept them. Raises MessagesError, which names the first other."""
    for i, message in enumerate(check_messages(messages)):
        if not isinstance(message, dict):
            raise MessagesError(f"messages[{i}] must be an object with a role.")
        if not any(isinstance(message.get(key), str) for key in ("role", "type")):
            raise MessagesError(f'messages[{i}] needs a role ("system", "user", "assistant" or "tool").')
    return messages


Key = Header(
    min_length=1,
    max_length=200,
    description="distinguishes equal tool outputs without call_id; the same key again stores nothing",
)


@route(
    router,
    "POST",
    "/sessions/{name}/ingest",
    "Store a conversation, or tool outputs",
    *_OF_BODIES,
    body=models.IngestRequest,
)
def ingest(
    api: Api, name: SessionName, body: JsonBody, idempotency_key: Annotated[str | None, Key] = None
) -> models.Ingested:
    """Store records and summaries without building a context. The session is created if it does not exist.

    A trace_id is derived from call id, tool, input and output: the same request again stores nothing. Without
    `call_id`, equal outputs in one request are several calls, and equal outputs in another request are the
    same calls again; give each request its own `idempotency-key` if they are not.
    """
    query = models.IngestRequest.parse(body.value)
    given = query.model_fields_set & {"messages", "tool_outputs"}
    if len(given) != 1:
        raise InvalidRequestError("give either messages or tool_outputs.")
    if given == {"tool_outputs"}:
        return _keep_outputs(api, name, query, idempotency_key)
    if query.task:
        raise InvalidRequestError(
            "task goes with tool_outputs: with messages the first user message is the task."
        )
    seen = [api.sessions.redacted(m) for m in _checked(query.messages)]
    with api.sessions.writing(api.namespace, name, agent_id=query.agent_id) as state:
        view = Transcript(state.session_id, approximate_counter()).update(seen)  # its tokens are not used
        ids = [t for interaction in view.interactions for t in interaction.trace_ids if t]
        records, _ = records_of(view.interactions, state.steps, state.step_count)
        return models.Ingested(trace_ids=ids, new=state.add(records, task=view.task))


def _keep_outputs(
    api: ApiContext, name: str, query: models.IngestRequest, key: str | None
) -> models.Ingested:
    """Store tool outputs as one step.

    The same outputs again store nothing: a trace_id is made of call id, name, input, output and the ordinal
    among equals in the list. ``key`` tells equal outputs without a call id apart that come from different
    calls.
    """
    outputs = [_redacted(api, output) for output in query.tool_outputs]
    task = query.task and api.sessions.redacted({"role": "user", "content": query.task})["content"]
    with api.sessions.writing(api.namespace, name, agent_id=query.agent_id) as state:
        occurred: Counter[bytes] = Counter()
        records = []
        for output in outputs:
            raw, call = output.raw_output, Call(output.call_id, output.tool_name, output.raw_input)
            text = raw if isinstance(raw, str) else dump_value(raw, "raw_output")
            # as of a call in a message list
            parts = [output.call_id or "", output.tool_name, call.text, text]
            if key is not None and output.call_id is None:
                parts.append(key)
            identity = content_key(*parts)
            record = InteractionRecord(
                trace_id=derive_trace_id(state.session_id, identity, occurred[identity]),
                step_id=state.step_count + 1,
                tool_name=output.tool_name,
                raw_input=call.raw_input,
                raw_output=parse_output(raw) if isinstance(raw, str) else raw,
                call_id=output.call_id,
                input_text=output.raw_input if isinstance(output.raw_input, str) else None,
                output_text=raw if isinstance(raw, str) else None,
            )
            occurred[identity] += 1
            records.append(record)
        return models.Ingested(trace_ids=[r.trace_id for r in records], new=state.add(records, task=task))


def _redacted(api: ApiContext, output: models.ToolOutput) -> models.ToolOutput:
    """The output as it may be stored, hidden in it what would be in the messages of its call."""
    function: Any = {"name": output.tool_name, "arguments": output.raw_input}
    calls = [{"id": output.call_id, "type": "function", "function": function}]
    said: Any = api.sessions.redacted({"role": "assistant", "tool_calls": calls})
    result = {"role": "tool", "tool_call_id": output.call_id, "content": output.raw_output}
    raw_output = api.sessions.redacted(result)["content"]
    function = said["tool_calls"][0]["function"]
    hidden = {"tool_name": function["name"], "raw_input": function["arguments"], "raw_output": raw_output}
    return output.model_copy(update=hidden)


@route(router, "GET", "/sessions/{name}/search", "Search a session", 404, 422, 501)
def search_session(api: Api, name: SessionName, query: Annotated[models.SearchQuery, Query()]) -> models.Hits:
    """Records whose output contains the words, or an identifier in them, exactly; then similar records."""
    words = query.q.strip()
    if not words:
        raise InvalidRequestError("q is empty: give words, or an id to search for.")
    with (
        api.sessions.reading(api.namespace, name) as state,
        api.sessions.traced("search_memory", state.session_id),
    ):
        found = search.search_session(state, words, query.top_k)
    note = None if found.trouble is None else f"only exact words were searched: {found.trouble}"
    return models.Hits.of(hits=[_hit(api, m) for m in found.matches], note=note)


def _hit(api: ApiContext, match: search.SearchMatch) -> models.SearchHit:
    o = match.outline
    return models.SearchHit.of(
        o,
        match,
        input=record_input(o),
        session=api.public(o.session_id),
        score=None if match.score is None else round(match.score, 6),
        place=match.place or None,
        excerpt=beginning(o.output_head, o.output_bytes, _EXCERPT_CHARS),
    )
