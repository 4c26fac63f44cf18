"""The API's routes on memory: build a context, store conversations or tool outputs, search a session."""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query
from pydantic import AfterValidator, ConfigDict, Field, StrictBool, WithJsonSchema

from memory_bank.bank.retrieval import records_of
from memory_bank.bank.session import MemoryBankState
from memory_bank.errors import BodyError, InvalidRequestError, MessagesError
from memory_bank.ports import Scope
from memory_bank.records import InteractionRecord, derive_trace_id
from memory_bank.service.api.openapi import TRACE_ID, Count, Json, RequestModel, ResponseModel
from memory_bank.service.api.records import RecordItem, beginning, record_input
from memory_bank.service.api.requests import Api, ApiContext, JsonBody, OfProject, SessionName, route
from memory_bank.service.proxy.body import render_array
from memory_bank.service.security.access import LONGEST_NAME
from memory_bank.tools import search
from memory_bank.tools.handlers import LONGEST_ARGUMENTS
from memory_bank.transcript.jsontext import compact
from memory_bank.transcript.messages import Pair, call_entry, calls_of, check_messages, result_of
from memory_bank.transcript.tokens import approximate_counter
from memory_bank.transcript.transcript import Transcript

router = APIRouter(prefix="/v1", tags=["memory"])

_EXCERPT_CHARS = 700
_WORDS = 12  # of a query that a hit names
_OF_BODIES = (404, 409, 413, 415, 422, 501, 502)
_FUNCTION = {"name": "get_order", "arguments": '{"id": "ORD-7"}'}
_MESSAGES: list[Any] = [
    {"role": "user", "content": "Is order ORD-7 late?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": _FUNCTION}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": '{"id": "ORD-7", "due": "2026-03-01"}'},
]
_OUTPUT: dict[str, Any] = {
    "tool_name": "get_order",
    "raw_input": {"id": "ORD-7"},
    "raw_output": _MESSAGES[-1]["content"],
    "call_id": "call_1",
}


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("must be text")
    return value


def _nonempty(value: Any) -> Any:
    if not _text(value):
        raise ValueError("must not be empty")
    return value


def _project(value: Any) -> Any:
    if not _text(value) or len(value) > LONGEST_NAME or not value.isprintable():
        raise ValueError(f"must be 1 to {LONGEST_NAME} printable characters")
    return value


# pydantic's str refuses lone surrogates, which agents do send.
Text = Annotated[Any, AfterValidator(_text), WithJsonSchema({"type": "string"})]
Name = Annotated[Any, AfterValidator(_nonempty), WithJsonSchema({"type": "string", "minLength": 1})]
Project = Annotated[
    Any,
    AfterValidator(_project),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": LONGEST_NAME}),
]
Words = Annotated[
    str,
    Query(
        min_length=1, max_length=LONGEST_ARGUMENTS["query"], description="words, or an exact identifier",
        examples=["ORD-7 due"],
    ),
]  # fmt: skip
TopK = Annotated[int, Query(ge=1, le=50, description="maximum number of hits")]
_PROJECT = Field(None, description="the project that the session belongs to, whose sessions a search reaches")
Message = Annotated[
    Any,
    WithJsonSchema(
        {
            "type": "object",
            "description": "a chat message with its role, or an item of the Responses API with its type",
            "anyOf": [
                {"required": [key], "properties": {key: {"type": "string"}}} for key in ("role", "type")
            ],
        }
    ),
]


class ContextRequest(RequestModel):
    """Body of ``build_context``."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"messages": _MESSAGES}, {"messages": _MESSAGES, "plan": False}]}
    )
    messages: list[Message] = Field(description="the whole conversation, as it would be sent to the model")
    strategy: str | None = Field(None, description="key of a strategy in the configuration")
    project: Project | None = _PROJECT
    plan: StrictBool = Field(True, description="false omits the plan, which is long after thousands of calls")
    tools: list[Any] | None = Field(
        None, description="the tools of the call: the context names get_record where it is among them"
    )


class BuiltContext(ResponseModel):
    """The messages to send to the model instead of the full conversation."""

    messages: list[Message] = Field(examples=[_MESSAGES])
    tokens: Count
    full_tokens: Count = Field(description="of the messages in the request")
    strategy: str = Field(description="key of the strategy")
    unchanged: bool = Field(description="whether the messages are those of the request")
    records: Count = Field(description="records of the session")
    plan: dict[str, Any] | None = Field(description="what became of every past interaction, and why")
    report: dict[str, Any] | None = Field(description="tokens of the step, its budget, why it is unchanged")


class ToolOutput(RequestModel):
    """The output of one tool call."""

    tool_name: Name = Field(examples=["get_order"])
    raw_input: Json = Field(None, description="its arguments: JSON text as the model wrote it, or an object")
    raw_output: Json = Field(description="text is stored exactly, any other JSON value as a value")
    call_id: Name | None = Field(
        None, description="the call's id: equal outputs with different ids are different calls"
    )


class IngestRequest(RequestModel):
    """Body of ``ingest``: ``messages``, or ``tool_outputs`` of one step."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"task": "Is order ORD-7 late?", "tool_outputs": [_OUTPUT]},
                {"messages": _MESSAGES},
            ],
            "oneOf": [{"required": ["messages"]}, {"required": ["tool_outputs"]}],
        }
    )
    messages: list[Message] = Field(
        default_factory=list,
        description="a conversation, or its latest part; open calls are not stored",
    )
    tool_outputs: list[ToolOutput] = Field(default_factory=list, description="the outputs of one step")
    task: Text = Field("", description="the user's task, with tool_outputs")
    project: Project | None = _PROJECT


class Ingested(ResponseModel):
    """The stored calls."""

    trace_ids: list[str] = Field(description="of every call, in order", examples=[[TRACE_ID]])
    new: Count = Field(description="how many of them are new")


class SearchHit(RecordItem):
    """A record that was found."""

    session: str = Field(description="the session that has it")
    score: float = Field(description="how well it fits, 0 to 1; only scores of one answer can be compared")
    why: Literal["holds", "words", "neighbour", "similarity"] = Field(
        description="its output holds a text exactly; it has words of the query; a record near it has; "
        "its summary is similar in meaning"
    )
    reason: str = Field(description="the same in words", examples=['holds "ORD-7" at order.id'])
    newer: str | None = Field(
        description="trace_id of the latest record of the same call in the session, which returned something else, "
        "or of the latest message that tells a change of what is asked"
    )
    holds: str | None = Field(description="the text that its output contains exactly")
    place: str | None = Field(description="where: a JSON path or a line", examples=["items[3].sku"])
    words: list[str] = Field(description="words of the query that it has, of its first 2 MiB")
    excerpt: str = Field(description="the beginning of its output")


class Hits(ResponseModel):
    """Search results, best first; empty where nothing fits."""

    hits: list[SearchHit]
    note: str | None = Field(description="which part of the search failed")


@route(
    router, "POST", "/sessions/{name}/context", "Build the context of the next model call", *_OF_BODIES,
    body=ContextRequest,
)  # fmt: skip
def build_context(api: Api, name: SessionName, body: JsonBody) -> BuiltContext:
    """Store what is new in a conversation and return the messages to send to the model instead.

    The session is created if it does not exist. The same conversation again stores nothing twice.
    """
    query = ContextRequest.parse(body.value)
    options = {member: getattr(query, member) for member in ("project", "strategy", "tools")}
    step = api.sessions.rebuild(api.namespace, name, _checked(query.messages), size=len(body.data), **options)
    plan = step.plan.manifest() if step.plan is not None and query.plan else None
    api.sessions.finish(step)  # so that a search finds what this request has stored
    try:  # messages of the request go out in the bytes in which they came
        messages: Any = iter([render_array(body, "messages", step.context)])
    except BodyError:  # a new message is nested deeper than the encoder goes
        messages = step.context
    report = step.plan.figures() if step.plan is not None else None
    return BuiltContext.of(step, messages=messages, plan=plan, report=report)


def _checked(messages: list[Any]) -> list[Any]:
    """The messages, if a model's API could accept them. Raises MessagesError, which names the first other."""
    for i, message in enumerate(check_messages(messages)):
        if not isinstance(message, dict):
            raise MessagesError(f"messages[{i}] must be an object with a role.")
        if not any(isinstance(message.get(key), str) for key in ("role", "type")):
            raise MessagesError(f'messages[{i}] needs a role ("system", "user", "assistant" or "tool").')
    return messages


@route(
    router, "POST", "/sessions/{name}/ingest", "Store a conversation, or tool outputs", *_OF_BODIES,
    body=IngestRequest,
)  # fmt: skip
def ingest(
    api: Api,
    name: SessionName,
    body: JsonBody,
    idempotency_key: Annotated[str | None, Header(include_in_schema=False)] = None,
) -> Ingested:
    """Store records and summaries without building a context. The session is created if it does not exist.

    A trace_id is derived from call id, tool, input and output: the same request again stores nothing. Without
    `call_id`, equal outputs in one request are several calls, and equal outputs in another request are the
    same calls again; give each its own `call_id` if they are not.
    """
    query = IngestRequest.parse(body.value)
    members = query.model_fields_set & {"messages", "tool_outputs"}
    if len(members) != 1:
        raise InvalidRequestError("give either messages or tool_outputs.")
    if query.task and "messages" in members:
        raise InvalidRequestError(
            "task goes with tool_outputs: with messages the first user message is the task."
        )
    if idempotency_key is not None and any(output.call_id is None for output in query.tool_outputs):
        raise InvalidRequestError(
            "the header idempotency-key tells equal outputs apart no more: give each output its call_id."
        )
    if "messages" in members:
        seen = [api.sessions.redacted(m) for m in _checked(query.messages)]
    else:
        pairs = [_pair(api, output) for output in query.tool_outputs]
        task = query.task and api.sessions.redacted_text(query.task)
    with api.sessions.writing(api.namespace, name, project=query.project) as state:
        if "messages" in members:
            view = Transcript(state.session_id, approximate_counter()).update(seen)  # its tokens are not used
            ids = [t for interaction in view.interactions for t in interaction.trace_ids if t]
            records, _ = records_of(view.interactions, state.steps, state.step_count)
            task = view.task
        else:
            records = _records_of(pairs, state.session_id, state.step_count + 1)
            ids = [r.trace_id for r in records]
        return Ingested(trace_ids=ids, new=state.add(records, task=task))


def _pair(api: ApiContext, output: ToolOutput) -> Pair:
    """A call with its output, as in the messages of the call, without their secrets."""
    entry = call_entry(output.call_id, output.tool_name, output.raw_input)
    call: Any = api.sessions.redacted({"role": "assistant", "tool_calls": [entry]})
    result = {"role": "tool", "tool_call_id": output.call_id, "content": output.raw_output}
    return Pair(calls_of(call)[0], result_of(api.sessions.redacted(result)))


def _records_of(pairs: list[Pair], session_id: str, step: int) -> list[InteractionRecord]:
    """The records of one step."""
    occurred: Counter[bytes] = Counter()
    records = []
    for pair in pairs:
        key = pair.content_key()
        records.append(pair.record(derive_trace_id(session_id, key, occurred[key]), step))
        occurred[key] += 1
    return records


@route(router, "GET", "/sessions/{name}/search", "Search a session", 404, 422, 501)
def search_session(api: Api, name: SessionName, q: Words, top_k: TopK = 10) -> Hits:
    """Search one session. Records whose output contains the whole query come first, then those that fit it best."""
    with api.sessions.reading(api.namespace, name) as state:
        return _hits(api, state, q, top_k)


@route(router, "GET", "/search", "Search all sessions", 422, 501)
def search_all(api: Api, q: Words, top_k: TopK = 10, project: OfProject = None) -> Hits:
    """Search all of your sessions at once. A record is found as soon as it has a summary."""
    with api.sessions.searching(api.namespace, project) as (state, scope):
        return _hits(api, state, q, top_k, scope)


def _hits(
    api: ApiContext, state: MemoryBankState | None, q: str, top_k: int, scope: Scope | None = None
) -> Hits:
    words = q.strip()
    if not words:
        raise InvalidRequestError("q is empty: give words, or an id to search for.")
    if state is None:
        return Hits(hits=[], note=None)
    with api.sessions.traced("search_memory", state.session_id):
        result = search.search_session(state, words, top_k, scope=scope, by_agent=False)
    trouble = None if result.trouble is None else f"only words were compared: {result.trouble}"
    hits = [
        SearchHit.of(
            match.outline,
            match,
            input=record_input(match.outline),
            session=api.public(match.outline.session_id),
            score=round(match.score, 6),
            place=match.place or None,
            words=_words_of(words, match),
            excerpt=beginning(match.outline.output_head, match.outline.output_bytes, _EXCERPT_CHARS),
        )
        for match in result.matches
    ]
    return Hits.of(hits=hits, note=trouble)


def _words_of(query: str, match: search.SearchMatch) -> list[str]:
    """The words of a query that a record, or its summary, has."""
    o, r = match.outline, match.record
    texts = (o.tool_name, o.summary or "", o.arguments if r is None else compact(r.raw_input))
    text = "\n".join((*texts, "" if r is None else r.output_text or compact(r.raw_output))).casefold()
    asked = dict.fromkeys(re.findall(r"\w[\w.@/-]*\w|\w", query))
    return [word for word in asked if word.casefold() in text][:_WORDS]
