"""What the API gives, as the OpenAPI document describes it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

TRACE_ID = "0f8fad5b-d9cb-569f-a165-70867728950e"
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "get_order", "arguments": '{"id": "ORD-7"}'},
        }
    ],
}
MESSAGES: list[Any] = [
    {"role": "user", "content": "Is order ORD-7 late?"},
    CALL,
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


class Shape(BaseModel):
    """What is given back."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Problem(Shape):
    """What went wrong, and what to do about it."""

    message: str = Field(description="one sentence; never contents", examples=["there is no such session."])
    type: Literal["invalid_request_error", "server_error"]
    param: None = None
    code: str = Field(description="a word for programs", examples=["not_found"])


class Failure(Shape):
    """The one shape of every error; OpenAI's clients show its sentence."""

    error: Problem


class Queue(Shape):
    """What waits for a language model to summarise it."""

    open: Count
    failing: Count = Field(description="of these, what has failed before")
    attempts: Count | None = Field(None, description="how often the worst was tried")


class Spend(Shape):
    """What the Observer's model has cost."""

    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: float = Field(description="by the configured prices")


class TokenSums(Shape):
    """What the contexts built so far cost."""

    steps: Count = Field(description="contexts built")
    full: Count = Field(description="tokens of the full histories")
    sent: Count = Field(description="tokens of the contexts in their place")


class SessionRow(Shape):
    """A session in a list."""

    name: str = Field(examples=["refunds-17"])
    created: Time
    last_written: Time | None
    task: str = Field(description="the beginning of what the user asked for")
    agent: str | None
    forked_from: str | None = Field(description="the session that it was cut off from")
    records: Count
    steps: Count = Field(description="steps of the agent that brought records")
    insights: Count
    jobs: Count = Field(description="records that wait for a language model")
    failing: Count


class SessionPage(Shape):
    """Sessions, the newest first."""

    sessions: list[SessionRow]
    next: str | None = Field(description="what `after` takes for the next page; null: this was the last")


class SessionDetail(Shape):
    """One session in figures."""

    name: str = Field(examples=["refunds-17"])
    created: Time
    last_written: Time | None
    task: str
    agent: str | None
    forked_from: str | None
    records: Count
    steps: Count
    insights: Count
    unobserved: Count = Field(description="records that should have a summary and have none")
    to_redo: Count = Field(description="summaries that are to be made again")
    queue: Queue
    spend: Spend
    tokens: TokenSums


class Stats(Shape):
    """The sums of all sessions that the caller may see."""

    sessions: Count
    records: Count
    insights: Count
    queue: Queue
    spend: Spend = Field(description="deleted sessions included")
    tokens: TokenSums


class Context(Shape):
    """What to send to the model in place of the messages."""

    messages: list[Message] = Field(examples=[MESSAGES])
    tokens: Count
    full_tokens: Count = Field(description="of the messages as they came")
    strategy: str = Field(description="key of the strategy")
    unchanged: bool = Field(description="whether the messages came back as they were")
    records: Count = Field(description="records known of the session")
    plan: dict[str, Any] | None = Field(
        description="the fate of every past interaction, and why; null where the strategy makes none"
    )
    report: dict[str, Any] | None = Field(
        description="a step in figures, from strategies that make no plan but have a budget"
    )


class Ingested(Shape):
    """What is remembered now."""

    trace_ids: list[str] = Field(description="of every call, in their order", examples=[[TRACE_ID]])
    new: Count = Field(description="how many of them were not stored before")


class Hit(Shape):
    """A record found."""

    trace_id: str = Field(examples=[TRACE_ID])
    session: str = Field(description="the session that has it: another one where the scope is wider")
    number: Count = Field(description="its place in its session, from 1; contexts call it #1")
    step_id: int
    tool_name: str
    timestamp: Time
    score: float | None = Field(description="similarity of its summary, -1 to 1; null: it has no summary")
    holds: str | None = Field(description="the text that its output holds to the letter")
    place: str | None = Field(description="where: a JSON path or a line", examples=["items[3].sku"])
    summary: str | None
    source: str | None = Field(
        description="who wrote the summary", examples=["extractive", "llm:gpt-4.1-mini"]
    )
    input: str = Field(description="the beginning of its arguments")
    excerpt: str = Field(description="the beginning of its output")
    output_bytes: Count


class Hits(Shape):
    """What was found: what holds the words to the letter, then what is similar, best first."""

    hits: list[Hit]
    note: str | None = Field(description="what could not be searched")


class RecordRow(Shape):
    """A record in a list."""

    trace_id: str = Field(examples=[TRACE_ID])
    number: Count = Field(description="its place in its session, from 1; contexts call it #1")
    step_id: int
    tool_name: str
    timestamp: Time
    summary: str | None
    source: str | None
    input: str = Field(description="the beginning of its arguments")
    output_bytes: Count = Field(description="length of the output in UTF-8")


class RecordPage(Shape):
    """Records, the oldest first."""

    records: list[RecordRow]
    next: int | None = Field(description="what `after` takes for the next page; null: this was the last")


class InsightOf(Shape):
    """The summary of a record."""

    summary: str
    source: str
    redo: str | None = Field(description="why it is to be made again")


class JobOf(Shape):
    """A record's place in the queue of what a language model is to summarise."""

    attempts: Count
    error: str | None = Field(description="why the last attempt failed")


class Record(Shape):
    """One tool call: what was asked and what came back.

    Where arguments or output came as text, ``input_text`` and ``output_text`` are that text to the letter,
    and the raw values what it parses to (``{"_raw": text}`` where it is no JSON); else they are null.
    """

    trace_id: str = Field(examples=[TRACE_ID])
    session: str
    number: Count
    step_id: int
    tool_name: str
    call_id: str | None
    timestamp: Time
    insight: InsightOf | None
    job: JobOf | None
    input_bytes: Count
    output_bytes: Count
    raw_input: Json
    input_text: str | None
    raw_output: Json = Field(
        description="null beside a text of over 2 MiB: parse that, or ask for a part by path"
    )
    output_text: str | None


class FoundValue(Shape):
    """A value and its path."""

    path: str = Field(examples=["items[3].sku"])
    value: Json


class FoundLine(Shape):
    """A line and its number, from 1."""

    number: Count
    text: str
    matches: bool = Field(description="false: it stands beside one that the pattern matches")


class Part(Shape):
    """A part of a record's output."""

    trace_id: str = Field(examples=[TRACE_ID])
    text: str
    values: list[FoundValue] | None = Field(
        description="what a path found; null without one, or if incomplete"
    )
    lines: list[FoundLine] | None = Field(
        description="what lines and pattern found; of JSON on one line each value is a line under its path"
    )
    count: Count = Field(description="lines in all, or values at the path")
    complete: bool = Field(description="false: max_chars cut it")
    next: str | None = Field(description="the lines to go on with")
