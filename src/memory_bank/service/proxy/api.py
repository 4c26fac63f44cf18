"""The interface of the model APIs to the proxy: requests, turns in answers, and streams joined into one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from memory_bank.models.usage import add_usage
from memory_bank.plan import Form
from memory_bank.ports import ToolSchema
from memory_bank.service.proxy.body import Body, JsonObject, Memo, as_object, objects_of
from memory_bank.service.proxy.events import MOST_BYTES, Event, read_event, rewrite_event
from memory_bank.tools import GET_RECORD, LIST_RECORDS, MEMORY_FILES, SEARCH_MEMORY, TOOL_SCHEMAS, ToolAnswer
from memory_bank.transcript.jsontext import parse_arguments
from memory_bank.transcript.messages import MessageKind, is_memory_tool, kind_of

MEMORY_TOOLS = frozenset({SEARCH_MEMORY, GET_RECORD, LIST_RECORDS})


@dataclass(frozen=True, slots=True)
class ModelToolCall:
    """A tool call in a model's answer.

    ``name``: the function's name; "" for a call of another kind. ``item``: the JSON object that stands for the call
    in the messages of the next request.
    """

    name: object
    arguments: object = field(repr=False)
    item: JsonObject = field(repr=False)

    @property
    def is_memory(self) -> bool:
        """Whether it calls a memory tool, which the proxy answers; the client answers all others."""
        return self.name in (*MEMORY_TOOLS, MEMORY_FILES)


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """One answer of the model. ``messages``: what the next request repeats of it; tool results are not included."""

    calls: Sequence[ModelToolCall] = ()
    messages: Sequence[object] = field(default=(), repr=False)
    usage: JsonObject = field(default_factory=dict)

    @property
    def calls_memory(self) -> bool:
        """Whether it calls a memory tool."""
        return any(call.is_memory for call in self.calls)


class EventKind(Enum):
    """How an event is treated while its turn may still have to be hidden."""

    SENT = "sent at once"
    SILENT = "sent with the next event that is sent, once something was"
    TIED = "buffered until the next event, which it belongs to"
    CALL = "buffered, with all that follows, until the turn ends"


@dataclass(eq=False)
class TurnStream:
    """Joins the streamed turns of one request into one stream without the turns that call memory tools.

    ``feed`` returns the bytes that go to the client now. Where a turn may be hidden (``hides``), everything is
    buffered from the first tool call on until the turn ends; then it is sent as it came, or, if a memory tool is
    called, dropped. A turn that failed or is longer than ``MOST_BYTES`` is never dropped. As long as nothing of an
    earlier turn was sent (``is_raw``), the bytes are those of upstream, except for the usage, which is that of all
    turns; after that, events are rewritten to continue the earlier turn. ``usage``: that of the hidden turns.
    Each API implements ``read``, ``write`` and ``answer``; ``read_turn`` reads a complete answer.
    """

    read_turn: Callable[[JsonObject], ModelTurn]
    usage: JsonObject = field(default_factory=dict)
    has_sent: bool = False
    hides: bool = True
    is_raw: bool = True
    _buffered: list[bytes] = field(default_factory=list)
    _next_index: int = 0

    place = "index"
    """The member of an event that says which part of the answer it belongs to."""

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin another turn, whose indices follow those that were sent."""
        self._first_index = self._next_index
        self._turn_usage: JsonObject = {}
        self._has_failed = self._has_call = False
        self._size = 0

    @property
    def _passes(self) -> bool:
        """Whether the turn is too long to be read."""
        return self._size > MOST_BYTES

    def feed(self, event: Event) -> bytes:
        """Take the next event of a turn; returns the bytes to send."""
        self._size += len(event.raw)
        if event.value is None or self._passes:
            kind = EventKind.SILENT if event.data is None else EventKind.SENT
        else:
            kind = self.read(event.value)
        if self._passes or not self.hides:
            return self._release(event)
        self._has_call = self._has_call or kind is EventKind.CALL
        waits = kind is EventKind.TIED or (kind is EventKind.SILENT and (self._buffered or not self.has_sent))
        if not (self._has_call or waits):
            return self._release(event)
        self._buffered.append(event.raw)
        return b""

    def end(self, may_hide: bool) -> tuple[bytes, ModelTurn | None]:
        """End a turn: the bytes to send, and the turn if it is hidden and another has to follow."""
        turn = self._turn()
        if self._passes or not (may_hide and self._has_call and turn.calls_memory):
            return self._release(), None
        self.usage = add_usage(self.usage, turn.usage)
        self._buffered.clear()
        self.is_raw = not self.has_sent
        self.begin()
        return b"", turn

    def break_off(self) -> bytes:
        """The bytes to send when the stream breaks off within a turn."""
        return b"" if self._turn().calls_memory else self._release()

    def _turn(self) -> ModelTurn:
        return ModelTurn() if self._has_failed else self.read_turn(self.answer())

    def _release(self, *last: Event) -> bytes:
        sent: list[bytes] = []
        for event in (*map(read_event, self._buffered), *last):
            value = None if event.value is None else self.write(event.value)
            if event.value == value:
                sent.append(event.raw)
            elif value is not None:
                sent.append(rewrite_event(event, value))
        self._buffered.clear()
        out = b"".join(sent)
        self.has_sent = self.has_sent or bool(out)
        return out

    def _moved(self, value: JsonObject) -> JsonObject:
        """The object of an event with its place in the joined stream."""
        index = value.get(self.place)
        if not isinstance(index, int):
            return dict(value)
        self._next_index = max(self._next_index, self._first_index + index + 1)
        return {**value, self.place: self._first_index + index}

    def read(self, value: JsonObject) -> EventKind:
        """Take in the object of an event of the present turn."""
        raise NotImplementedError

    def write(self, value: JsonObject) -> JsonObject | None:
        """The object of an event for the client; None for an event that it does not get."""
        raise NotImplementedError

    def answer(self) -> JsonObject:
        """The present turn as far as it was read, as a complete answer."""
        raise NotImplementedError


Provider = Literal["openai", "anthropic"]
Schemas = Sequence[ToolSchema]


class NotRebuiltError(Exception):
    """A request for which memory has nothing to do, with the reason. The request passes unchanged."""


@dataclass(frozen=True, slots=True)
class RequestHistory:
    """The conversation in a request as chat ``messages``.

    ``form``: in which a context rebuilt from them is the array for the request's member ``Dialect.key``; None where
    the context is that array. ``memo``: what was computed of the messages of earlier requests.
    """

    messages: list[Any]
    form: Form | None = None
    memo: Memo = field(default_factory=Memo)

    @property
    def kinds(self) -> list[MessageKind]:
        """The kind of each message."""
        return self.memo.of_each("kind" if self.form is None else "kind in form", self.messages, kind_of)


class Dialect:
    """A model API: where its requests hold the conversation and the tools, how its answers call tools."""

    route = ""
    """Its name in metrics and traces."""
    path = ""
    """The path after ``/v1``; requests with POST are rebuilt."""
    key = "messages"
    """The member of a request that holds the conversation as an array."""
    provider: Provider = "openai"
    """Whose API it is: requests go to the upstream of that provider."""
    counts_only = False
    """Whether a request only counts tokens: its context is rebuilt, and nothing is recorded."""
    answer_key = "choices"
    """The member that every answer has."""
    stream: type[TurnStream]
    """Reads its streamed answers."""

    def __init__(self, route: str = "", path: str = "", *, counts_only: bool = False) -> None:
        self.route, self.path = route or self.route, path or self.path
        self.counts_only = counts_only
        self.answer_key = "input_tokens" if counts_only else self.answer_key

    def history(self, body: Body) -> RequestHistory:
        """Return the conversation in a request's body. Raises NotRebuiltError for one that cannot be rebuilt."""
        raise NotImplementedError

    def conversation(self, request: JsonObject) -> list[object]:
        """The array that holds the conversation. Raises NotRebuiltError where it is missing or empty."""
        messages = request.get(self.key)
        if not isinstance(messages, list) or not messages:
            raise NotRebuiltError("no list of items" if self.key == "input" else "no messages")
        return messages

    def is_compaction(self, request: JsonObject) -> bool:  # noqa: ARG002
        """Return whether a member of the request asks the provider for a summary of the conversation."""
        return False

    def without_thinking(self, request: JsonObject) -> JsonObject | None:  # noqa: ARG002
        """The members of a request that send none of what an API binds to the messages before it; None without any.

        That is thinking whose signature no longer fits because an earlier request was rebuilt.
        """
        return None

    def mark_cache(
        self,
        body: Body,
        conversation: Sequence[object],
        *,
        stands: bool,
        ends: Sequence[Sequence[object]] | None = None,
    ) -> list[object] | None:
        """Return the conversation with cache marks added, or None if it needs none; of Anthropic's API alone.

        ``stands``: the next request will begin with this conversation. ``ends``: see with_cache_marks.
        """
        raise NotImplementedError

    def marked_head(self, body: Body) -> int | None:
        """Return up to where the client marks a request to be cached, as ``Ledger.head``; of Anthropic's API alone.

        None where the client marks the last turn. ``history`` has to be called before.
        """
        raise NotImplementedError

    def offer_tools(self, request: JsonObject, schemas: Schemas = TOOL_SCHEMAS) -> list[object] | None:
        """The tools of a request followed by memory tools; None where these cannot be offered."""
        raise NotImplementedError

    def binds_tools(self, request: JsonObject) -> bool | None:  # noqa: ARG002
        """Return whether the model's thinking may be bound to tools and hidden turns; None where it never is."""
        return None

    def read_answer(self, answer: JsonObject, request: JsonObject) -> ModelTurn:
        """The turn in a complete answer to a request."""
        raise NotImplementedError

    def result(self, call: ModelToolCall, answer: ToolAnswer) -> JsonObject | None:
        """The message that answers a call, with the parts that it can carry; None where text cannot answer."""
        raise NotImplementedError

    def join_results(self, results: list[JsonObject]) -> list[JsonObject]:
        """Build the messages that answer a turn from the results of its calls."""
        return results

    def open_stream(self, request: JsonObject, **more: Any) -> TurnStream:
        """A reader of the streamed answers to a request; ``more`` as in TurnStream."""
        return self.stream(lambda answer: self.read_answer(answer, request), **more)


def with_memory_tools(
    request: JsonObject, choice: object, schemas: Sequence[Mapping[str, object]]
) -> list[object] | None:
    """A request's tools and these, whatever its choice among its own; None where it has tools of these names."""
    tools = request.get("tools")
    if tools is not None and not isinstance(tools, list):
        return None
    if choice not in (None, "auto") and not tools:
        return None
    named = (as_object(t.get("function") or t.get("custom")) or t for t in objects_of(tools))
    if any(isinstance(name := t.get("name"), str) and is_memory_tool(name) for t in named):
        return None
    return [*(tools or ()), *schemas]


def own_tools(request: JsonObject) -> list[object]:
    """The holders of the tools that a request brings, also functions of a chat and items of the Responses API."""
    added = [i for i in objects_of(request.get("input")) if i.get("type") == "additional_tools"]
    return [{"tools": request.get("tools")}, {"tools": request.get("functions")}, *added]


def error_in(value: JsonObject) -> JsonObject | None:
    """The error in an answer or an event, as an object; None without one."""
    response = as_object(value.get("response"))
    choices = value.get("choices")
    choice = as_object(choices[0]) if isinstance(choices, list) and choices else {}
    given: Any = value.get("error") or response.get("error") or choice.get("error")
    if given:
        return given if isinstance(given, dict) else {"message": str(given)}
    if "error" in (value.get("type"), value.get("object")):
        return value
    return {} if "failed" in (value.get("status"), response.get("status")) else None


def valid_arguments(arguments: object) -> str:
    """A call's arguments for the next request; ``{}`` for invalid JSON, which some providers refuse."""
    if not isinstance(arguments, str) or not arguments.strip() or "_raw" in parse_arguments(arguments):
        return "{}"
    return arguments


class Pieces(list[str]):
    """A text as it came: joined once, however many pieces there are."""


def append(members: JsonObject, key: str, value: Any) -> None:
    """Append text or a list to a member; any other value replaces it."""
    if isinstance(value, str) and key != "role":
        begun = members.get(key)
        if not isinstance(begun, Pieces):
            members[key] = begun = Pieces([begun] if isinstance(begun, str) else [])
        begun.append(value)
    elif isinstance(value, list) and type(members.get(key)) is list:
        members[key] += value
    elif value is not None:
        members[key] = value.copy() if isinstance(value, list) else value


def joined(value: Any) -> Any:
    """A value with its texts joined."""
    if isinstance(value, Pieces):
        return "".join(value)
    if isinstance(value, dict):
        return {k: joined(v) for k, v in value.items()}
    return [joined(v) for v in value] if isinstance(value, list) else value
