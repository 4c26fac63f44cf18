"""What the API takes: bodies and queries in which nothing is ignored, so nothing unknown is taken."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, ValidationError, WithJsonSchema

from memory_bank.errors import InvalidRequestError
from memory_bank.service.api.shapes import MESSAGES, Json, Message
from memory_bank.service.security.access import LONGEST_NAME


def _is_text(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("must be text")
    return value


def _is_named(value: Any) -> Any:
    if not _is_text(value):
        raise ValueError("must not be empty")
    return value


def _is_agent(value: Any) -> Any:
    if not _is_text(value) or len(value) > LONGEST_NAME or not value.isprintable():
        raise ValueError(f"must be 1 to {LONGEST_NAME} printable characters")
    return value


# Any text: pydantic's own str refuses lone surrogates, which agents write.
Text = Annotated[Any, AfterValidator(_is_text), WithJsonSchema({"type": "string"})]
AgentId = Annotated[
    Any,
    AfterValidator(_is_agent),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": LONGEST_NAME}),
]
Name = Annotated[Any, AfterValidator(_is_named), WithJsonSchema({"type": "string", "minLength": 1})]


class Given(BaseModel):
    """A body or a query."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def of(cls, value: dict[str, Any]) -> Any:
        """The body in this shape. Raises InvalidRequestError, which says what is wrong, not what was sent."""
        try:
            return cls.model_validate(value)
        except ValidationError as e:
            raise InvalidRequestError(
                sentence(e.errors(include_input=False, include_context=False))
            ) from None


def sentence(errors: Any) -> str:
    """The first of some validation errors: where it is, and what is to be there."""
    first = errors[0]
    place = ".".join(str(p) for p in first["loc"] if p not in ("query", "header", "path", "body"))
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        return f"there is no {place!r}: leave it out or correct its name."
    return f"{place}: {message[:1].lower()}{message[1:]}."


class SessionsQuery(Given):
    """Which sessions."""

    limit: Annotated[int, Field(ge=1, le=500, description="how many at most")] = 50
    after: str | None = Field(None, description="`next` of the page before", min_length=1, max_length=180)
    q: str = Field("", max_length=1000, description="only those whose name or task holds this, in any case")


class RecordsQuery(Given):
    """Which records."""

    limit: Annotated[int, Field(ge=1, le=500, description="how many at most")] = 50
    after: Annotated[int, Field(ge=0, le=10**9, description="`next` of the page before: a number")] = 0


class StepsQuery(Given):
    """Which steps."""

    limit: Annotated[int, Field(ge=1, le=500, description="how many at most")] = 100
    after: Annotated[int, Field(ge=0, le=2**31 - 1, description="`next` of the page before: a number")] = 0


class CurveQuery(Given):
    """How fine a curve is."""

    points: Annotated[int, Field(ge=1, le=1_000, description="how many points at most")] = 400


class SearchQuery(Given):
    """What is looked for."""

    q: str = Field(
        min_length=1,
        max_length=8000,
        description="words, or an identifier to the letter",
        examples=["ORD-7 due"],
    )
    top_k: Annotated[int, Field(ge=1, le=50, description="how many hits at most")] = 10


class RecordQuery(Given):
    """The whole record, or what of its output."""

    raw: bool = Field(False, description="the output alone, byte for byte, as a download")
    path: str | None = Field(
        None, max_length=1000, description='a JSON path: items[3].sku, items[*].sku, items[2:5], ["odd key"]'
    )
    lines: str | None = Field(None, max_length=1000, description="lines: 10-25, 7, or -20 for the last 20")
    pattern: str | None = Field(
        None, max_length=1000, description="a regular expression; matching lines come with one line around"
    )
    max_chars: Annotated[int, Field(ge=1, le=10_000_000, description="longest part that is given")] = 100_000


class ContextRequest(Given):
    """A conversation whose next context is wanted."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"messages": MESSAGES}, {"messages": MESSAGES, "plan": False}]}
    )
    messages: list[Message] = Field(description="the whole conversation, as it would go to the model")
    strategy: str | None = Field(None, description="key of a strategy in the configuration")
    agent_id: AgentId | None = Field(None, description="whose session it is, where searches cross sessions")
    plan: StrictBool = Field(
        True, description="false leaves the plan out; with thousands of calls it is long"
    )


class ToolOutput(Given):
    """What one tool call gave back."""

    tool_name: Name = Field(examples=["get_order"])
    raw_input: Json = Field(None, description="its arguments: JSON text as the model wrote it, or an object")
    raw_output: Json = Field(description="text is kept to the letter, any other JSON value as a value")
    call_id: Name | None = Field(None, description="the call's id; with it an equal call is another call")


class IngestRequest(Given):
    """What is to be remembered: ``messages``, or ``tool_outputs`` of one step."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "task": "Is order ORD-7 late?",
                    "tool_outputs": [
                        {
                            "tool_name": "get_order",
                            "raw_input": {"id": "ORD-7"},
                            "raw_output": '{"id": "ORD-7", "due": "2026-03-01"}',
                            "call_id": "call_1",
                        }
                    ],
                },
                {"messages": MESSAGES},
            ],
            "oneOf": [{"required": ["messages"]}, {"required": ["tool_outputs"]}],
        }
    )
    messages: list[Message] = Field(
        default_factory=list, description="a conversation, or its latest part; calls without results wait"
    )
    tool_outputs: list[ToolOutput] = Field(default_factory=list, description="the outputs of one step")
    task: Text = Field("", description="what the user asked for, beside tool_outputs")
    agent_id: AgentId | None = Field(None, description="whose session it is, where searches cross sessions")
