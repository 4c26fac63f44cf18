"""Request and response models of the API, as the OpenAPI document describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    WithJsonSchema,
)

from memory_bank.bank.steps import StepRange
from memory_bank.config import message_of
from memory_bank.errors import InvalidRequestError
from memory_bank.pricing import Usage
from memory_bank.records import Spent
from memory_bank.service.security.access import LONGEST_NAME
from memory_bank.tools.handlers import LONGEST_ARGUMENTS

TRACE_ID = "0f8fad5b-d9cb-569f-a165-70867728950e"
_FUNCTION = {"name": "get_order", "arguments": '{"id": "ORD-7"}'}
MESSAGES: list[Any] = [
    {"role": "user", "content": "Is order ORD-7 late?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": _FUNCTION}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": '{"id": "ORD-7", "due": "2026-03-01"}'},
]
Json = Annotated[Any, Field(description="any JSON value")]
Message = Annotated[
    Any,
    WithJsonSchema(
        {
            "type": "object",
            "description": "a chat message with its role, or an item of the Responses API with its type",
            "anyOf": [
                {"required": ["role"], "properties": {"role": {"type": "string"}}},
                {"required": ["type"], "properties": {"type": {"type": "string"}}},
            ],
        }
    ),
]
Count = Annotated[int, Field(ge=0)]
Time = Annotated[float, Field(description="Unix seconds")]


class ResponseModel(BaseModel):
    """Base of all responses."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def of(cls, *values: object, **more: Any) -> Self:
        """The response with ``more``, and for its other members the attributes of ``values`` with their names.

        It is not validated: pydantic refuses texts with lone surrogates, which tools do return.
        """
        for name in cls.model_fields.keys() - more:
            more[name] = getattr(next(v for v in values if hasattr(v, name)), name)
        return cls.model_construct(**more)


class ErrorDetail(ResponseModel):
    """What went wrong, and what to do about it."""

    message: str = Field(description="one sentence, no content", examples=["there is no such session."])
    type: Literal["invalid_request_error", "server_error"]
    param: None = None
    code: str = Field(description="machine-readable", examples=["not_found"])


class Failure(ResponseModel):
    """The body of every error, in the form of OpenAI's API."""

    error: ErrorDetail


# sessions


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


# memory


class BuiltContext(ResponseModel):
    """The messages to send to the model instead of the full conversation."""

    messages: list[Message] = Field(examples=[MESSAGES])
    tokens: Count
    full_tokens: Count = Field(description="of the messages in the request")
    strategy: str = Field(description="key of the strategy")
    unchanged: bool = Field(description="whether the messages are those of the request")
    records: Count = Field(description="records of the session")
    plan: dict[str, Any] | None = Field(description="what became of every past interaction, and why")
    report: dict[str, Any] | None = Field(description="tokens of the step, its budget, why it is unchanged")


class Ingested(ResponseModel):
    """The stored calls."""

    trace_ids: list[str] = Field(description="of every call, in order", examples=[[TRACE_ID]])
    new: Count = Field(description="how many of them are new")


# records


class RecordFigures(ResponseModel):
    """What a list of records and one record have in common."""

    trace_id: str = Field(examples=[TRACE_ID])
    number: Count = Field(description="position in its session, from 1; contexts call it #1")
    step_id: int
    tool_name: str
    timestamp: Time
    mark: str | None = Field(description="pinned, excluded or forgotten, by a person")
    output_bytes: Count = Field(description="length of the output in UTF-8")


class RecordItem(RecordFigures):
    """A record in a list."""

    summary: str | None
    source: str | None = Field(description="what made the summary", examples=["llm:gpt-4.1-mini"])
    input: str = Field(description="the beginning of its arguments")


class SearchHit(RecordItem):
    """A record that was found."""

    session: str = Field(description="the session that has it")
    score: float | None = Field(description="similarity of its summary, -1 to 1; null without one")
    holds: str | None = Field(description="the text that its output contains exactly")
    place: str | None = Field(description="where: a JSON path or a line", examples=["items[3].sku"])
    excerpt: str = Field(description="the beginning of its output")


class Hits(ResponseModel):
    """Search results: exact matches first, then similar records, best first."""

    hits: list[SearchHit]
    note: str | None = Field(description="which part of the search failed")


class RecordPage(ResponseModel):
    """Records, oldest first."""

    records: list[RecordItem]
    next: int | None = Field(description="value of `after` for the next page; null on the last page")


class RecordInsight(ResponseModel):
    """The summary of a record."""

    summary: str
    source: str
    redo: str | None = Field(description="why it will be made again; null if it is final")


class RecordJob(ResponseModel):
    """The job of the Observer's model that will summarise the record."""

    attempts: Count
    error: str | None = Field(description="why the last attempt failed")


class RecordHead(RecordFigures):
    """A record without its arguments and output."""

    session: str
    call_id: str | None
    insight: RecordInsight | None
    job: RecordJob | None
    input_bytes: Count


class Record(RecordHead):
    """One tool call with its arguments and output.

    If arguments or output arrived as text, ``input_text`` and ``output_text`` are exactly that text and the
    raw values are the parsed text (``{"_raw": text}`` if it is not JSON); otherwise they are null.
    """

    raw_input: Json
    input_text: str | None
    raw_output: Json = Field(description="null if output_text is over 2 MiB: parse that, or select by path")
    output_text: str | None


class SelectedValue(ResponseModel):
    """A value and its path."""

    path: str = Field(examples=["items[3].sku"])
    value: Json


class SelectedLine(ResponseModel):
    """A line and its number, from 1."""

    number: Count
    text: str
    matches: bool = Field(description="false: it is next to a line that matches")


class RecordPart(ResponseModel):
    """A part of a record's output."""

    trace_id: str = Field(examples=[TRACE_ID])
    text: str
    values: list[SelectedValue] | None = Field(description="null without a path, or if incomplete")
    lines: list[SelectedLine] | None = Field(description="JSON on one line has one line per value")
    count: Count = Field(description="all lines of the output, or all values at the path")
    complete: bool = Field(description="false: cut at max_chars")
    next: str | None = Field(description="value of `lines` for the rest")


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
    next: int | None = Field(description="value of `after` for the next page; null on the last page")
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


# requests


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("must be text")
    return value


def _nonempty(value: Any) -> Any:
    if not _text(value):
        raise ValueError("must not be empty")
    return value


def _agent_id(value: Any) -> Any:
    if not _text(value) or len(value) > LONGEST_NAME or not value.isprintable():
        raise ValueError(f"must be 1 to {LONGEST_NAME} printable characters")
    return value


# pydantic's str refuses lone surrogates, which agents do send.
Text = Annotated[Any, AfterValidator(_text), WithJsonSchema({"type": "string"})]
AgentId = Annotated[
    Any,
    AfterValidator(_agent_id),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": LONGEST_NAME}),
]
Name = Annotated[Any, AfterValidator(_nonempty), WithJsonSchema({"type": "string", "minLength": 1})]
Limit = Annotated[int, Field(ge=1, le=500, description="maximum number")]
After = Field(0, ge=0, le=10**9, description="`next` of the previous page")


class RequestModel(BaseModel):
    """Base of bodies and queries; unknown members are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Self:
        """Validate a body. Raises InvalidRequestError, which never quotes the body."""
        try:
            return cls.model_validate(value)
        except ValidationError as e:
            errors = e.errors(include_input=False, include_context=False)
            raise InvalidRequestError(validation_message(errors)) from None


def validation_message(errors: Sequence[Any]) -> str:
    """The first of pydantic's errors as a sentence: which member, and what it must be."""
    first = errors[0]
    place = ".".join(str(p) for p in first["loc"] if p not in ("query", "header", "path", "body"))
    if first["type"] == "extra_forbidden":
        return f"{place!r} is unknown: remove it or correct its name."
    return f"{place}: {message_of(first)}"


class SessionsQuery(RequestModel):
    """Query of ``list_sessions``."""

    limit: Limit = 50
    after: str | None = Field(None, description="`next` of the previous page", min_length=1, max_length=180)
    q: str = Field("", max_length=1000, description="text that the name or task contains, ignoring case")


class RecordsQuery(RequestModel):
    """Query of ``list_records``."""

    limit: Limit = 50
    after: int = After


class StepsQuery(RecordsQuery):
    """Query of ``list_steps``."""

    limit: Limit = 100


class CurveQuery(RequestModel):
    """Query of ``get_curve``."""

    points: Annotated[int, Field(ge=1, le=1_000, description="maximum number of points")] = 400


class SearchQuery(RequestModel):
    """Query of ``search_session``."""

    q: str = Field(
        min_length=1,
        max_length=LONGEST_ARGUMENTS["query"],
        description="words, or an exact identifier",
        examples=["ORD-7 due"],
    )
    top_k: Annotated[int, Field(ge=1, le=50, description="maximum number of hits")] = 10


def _selecting(name: str, description: str) -> Any:
    return Field(None, max_length=LONGEST_ARGUMENTS[name], description=description)


class RecordQuery(RequestModel):
    """Query of ``get_record``."""

    raw: bool = Field(False, description="the output alone, byte for byte, as a download")
    path: str | None = _selecting("path", 'a JSON path: items[3].sku, items[*].sku, items[2:5], ["odd key"]')
    lines: str | None = _selecting("lines", "lines: 10-25, 7, or -20 for the last 20")
    pattern: str | None = _selecting("pattern", "a regular expression; lines around a match are included")
    max_chars: Annotated[int, Field(ge=1, le=10_000_000, description="maximum length of the part")] = 100_000


class MarkRequest(RequestModel):
    """Body of ``mark_record``."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"mark": "pinned"}]})
    mark: Literal["pinned", "excluded"] | None = Field(
        description="pinned: every context shows it, within the budget; excluded: none does; null: neither"
    )


_OWNER = Field(None, description="the agent that the session belongs to, for a wider scope")


class ContextRequest(RequestModel):
    """Body of ``build_context``."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"messages": MESSAGES}, {"messages": MESSAGES, "plan": False}]}
    )
    messages: list[Message] = Field(description="the whole conversation, as it would be sent to the model")
    strategy: str | None = Field(None, description="key of a strategy in the configuration")
    agent_id: AgentId | None = _OWNER
    plan: StrictBool = Field(True, description="false omits the plan, which is long after thousands of calls")
    tools: list[Any] | None = Field(
        None, description="the tools of the call: the context names get_record where it is among them"
    )


class ToolOutput(RequestModel):
    """The output of one tool call."""

    tool_name: Name = Field(examples=["get_order"])
    raw_input: Json = Field(None, description="its arguments: JSON text as the model wrote it, or an object")
    raw_output: Json = Field(description="text is stored exactly, any other JSON value as a value")
    call_id: Name | None = Field(
        None, description="the call's id: equal outputs with different ids are different calls"
    )


_OUTPUT: dict[str, Any] = {
    "tool_name": "get_order",
    "raw_input": {"id": "ORD-7"},
    "raw_output": MESSAGES[-1]["content"],
    "call_id": "call_1",
}


class IngestRequest(RequestModel):
    """Body of ``ingest``: ``messages``, or ``tool_outputs`` of one step."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"task": "Is order ORD-7 late?", "tool_outputs": [_OUTPUT]}, {"messages": MESSAGES}],
            "oneOf": [{"required": ["messages"]}, {"required": ["tool_outputs"]}],
        }
    )
    messages: list[Message] = Field(
        default_factory=list,
        description="a conversation, or its latest part; open calls are not stored",
    )
    tool_outputs: list[ToolOutput] = Field(default_factory=list, description="the outputs of one step")
    task: Text = Field("", description="the user's task, with tool_outputs")
    agent_id: AgentId | None = _OWNER
