"""The protocol by which the proxy reads and edits a model API; each supported API implements it in one file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, Protocol

from memory_bank.plan import Context
from memory_bank.service.proxy.body import Body, JsonObject
from memory_bank.service.proxy.events import Event
from memory_bank.tools import GET_RECORD, LIST_RECORDS, SEARCH_MEMORY, ToolAnswer
from memory_bank.transcript.jsontext import parse_arguments
from memory_bank.transcript.messages import is_memory_tool
from memory_bank.transcript.responses import item_type

MEMORY_TOOLS = frozenset({SEARCH_MEMORY, GET_RECORD, LIST_RECORDS})


Provider = Literal["openai", "anthropic"]


class NotRebuiltError(Exception):
    """A request for which memory has nothing to do, with the reason. The request passes unchanged."""


@dataclass(frozen=True, slots=True)
class RequestHistory:
    """The conversation in a request as chat ``messages``.

    ``to_request`` writes a context of them as the array for the request's member ``Dialect.key``;
    ``read`` gives the chat messages of such an array.
    """

    messages: list[object]
    to_request: Callable[[Context], Sequence[object]]
    read: Callable[[Sequence[object]], Sequence[object]]


@dataclass(frozen=True, slots=True)
class ModelToolCall:
    """A tool call in a model's answer; ``item`` is the call as it goes into the next request.

    ``is_memory`` tells that it calls a memory tool, which the proxy answers; the client answers all others.
    """

    name: str
    arguments: object = field(repr=False)
    is_memory: bool
    item: JsonObject = field(repr=False)


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """One answer of the model; ``messages`` represent it in the next request, without tool results."""

    calls: Sequence[ModelToolCall] = ()
    messages: Sequence[object] = field(default=(), repr=False)
    usage: JsonObject | None = None

    @property
    def calls_memory(self) -> bool:
        """Whether it calls a memory tool."""
        return any(call.is_memory for call in self.calls)


class Dialect(Protocol):
    """A model API: where its requests hold the conversation and the tools, how its answers call tools."""

    route: str
    """Its name in metrics and traces."""
    path: str
    """The path after ``/v1``; requests with POST are rebuilt."""
    key: str
    """The member of a request that holds the conversation as an array."""
    provider: Provider
    """Whose API it is: requests go to the upstream of that provider."""
    counts_only: bool
    """Whether a request only counts tokens: its context is rebuilt, and nothing is recorded."""

    def history(self, body: Body) -> RequestHistory:
        """Return the conversation in a request's body. Raises NotRebuiltError for one that cannot be rebuilt."""

    def is_compaction(self, request: JsonObject) -> bool:
        """Whether a member of the request asks the provider for a summary of the conversation."""

    def without_thinking(self, request: JsonObject) -> list[object] | None:
        """The conversation of a request without what an API binds to the messages before it; None without any.

        That is thinking whose signature no longer fits because an earlier request was rebuilt.
        """

    def mark_cache(self, request: JsonObject, conversation: Sequence[object]) -> list[object] | None:
        """The conversation to be sent with marks for the provider's prefix cache; None where it needs none."""

    def offer_tools(self, request: JsonObject) -> list[object] | None:
        """The tools of a request followed by the memory tools; None where these cannot be offered."""

    def read_answer(self, answer: JsonObject, request: JsonObject) -> ModelTurn:
        """The turn in a complete answer to a request."""

    def result(self, call: ModelToolCall, answer: ToolAnswer) -> JsonObject | None:
        """The message that answers a call, with the parts that it can carry; None where text cannot answer."""

    def open_stream(self, request: JsonObject) -> TurnStream:
        """A reader of the streamed answers to a request."""

    def error_body(self, message: str, code: str, status: int) -> JsonObject:
        """The body of an error in the shape that clients of this API read."""


class EventKind(Enum):
    """How an event is treated while its turn may still have to be hidden."""

    SHOWN = "sent at once"
    SILENT = "sent with the next event that is shown, once something was sent"
    TIED = "held until the next event, which it belongs to"
    CALL = "held, with all that follows, until the turn ends"


class TurnStream:
    """Joins the streamed turns of one request into one stream without the turns that call memory tools.

    ``feed`` returns the bytes that go to the client now. From the first tool call on everything is held until
    the turn ends; then it is sent as it came, or, if a memory tool is called, dropped. A turn that failed is
    never dropped. As long as nothing of an earlier turn was sent (``is_raw``), the bytes are those of
    upstream, except for the usage, which is that of all turns; after that, events are rewritten to continue
    the earlier turn. Each API implements the last four methods.
    """

    def __init__(self) -> None:
        self.usage: JsonObject | None = None
        """The usage of the hidden turns."""
        self.has_sent = False
        self.is_raw = True
        self._held: list[Event] = []
        self._has_call = False

    def feed(self, event: Event) -> bytes:
        """Take the next event of a turn; returns the bytes to send."""
        kind = self.read(event)
        self._has_call = self._has_call or kind is EventKind.CALL
        waits = kind is EventKind.TIED or (kind is EventKind.SILENT and (self._held or not self.has_sent))
        self._held.append(event)
        return b"" if self._has_call or waits else self._release()

    def end(self, may_hide: bool) -> tuple[bytes, ModelTurn | None]:
        """End a turn: the bytes to send, and the turn if it is hidden and another has to follow."""
        turn = self.turn()
        if not (may_hide and self._has_call and turn.calls_memory):
            return self._release(), None
        self.usage = add_usage(self.usage, turn.usage)
        self._held.clear()
        self._has_call = False
        self.is_raw = not self.has_sent
        self.begin()
        return b"", turn

    def break_off(self) -> bytes:
        """The bytes to send when the stream breaks off within a turn."""
        return b"" if self.turn().calls_memory else self._release()

    def _release(self) -> bytes:
        out = b"".join(map(self.write, self._held))
        self._held.clear()
        self.has_sent = self.has_sent or bool(out)
        return out

    def begin(self) -> None:
        """Begin another turn."""
        raise NotImplementedError

    def read(self, event: Event) -> EventKind:
        """Take in an event of the present turn."""
        raise NotImplementedError

    def write(self, event: Event) -> bytes:
        """The bytes of an event for the client."""
        raise NotImplementedError

    def turn(self) -> ModelTurn:
        """The present turn as far as it was read."""
        raise NotImplementedError


def with_memory_tools(request: JsonObject, schemas: Sequence[JsonObject]) -> list[object] | None:
    """A request's tools and these; None where it has tools of these names or the model must not choose."""
    tools, choice = request.get("tools"), request.get("tool_choice")
    if tools is not None and not isinstance(tools, list):
        return None
    if choice not in (None, "auto") and not (choice == "required" and tools):
        return None
    return None if any(is_memory_tool(_tool_name(t)) for t in tools or ()) else [*(tools or ()), *schemas]


def own_tools(request: JsonObject) -> list[object]:
    """What holds the tools that a request brings, also functions of a chat and items of the Responses API."""
    items = request.get("input")
    added = [i for i in items if item_type(i) == "additional_tools"] if isinstance(items, list) else []
    return [{"tools": request.get("tools")}, {"tools": request.get("functions")}, *added]


def _tool_name(tool: object) -> str:
    if not isinstance(tool, dict):
        return ""
    inner = tool.get("function") or tool.get("custom")
    name = inner.get("name") if isinstance(inner, dict) else tool.get("name")
    return name if isinstance(name, str) else ""


def valid_arguments(arguments: object) -> str:
    """A call's arguments for the next request; ``{}`` for invalid JSON, which some providers refuse."""
    if not isinstance(arguments, str) or not arguments.strip() or "_raw" in parse_arguments(arguments):
        return "{}"
    return arguments


def add_usage(one: Mapping[str, object] | None, other: Mapping[str, object] | None) -> JsonObject | None:
    """The sum of two usages, including that of their details."""
    if one is None or other is None:
        return dict(one or other or {}) or None
    added = dict(one)
    for key, value in other.items():
        old = added.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            added[key] = add_usage(old, value)
        elif _is_number(old) and _is_number(value):
            added[key] = old + value  # type: ignore[operator]
        elif value is not None:
            added[key] = value
    return added


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def as_object(value: object) -> JsonObject | None:
    """The value if it is a JSON object, else None."""
    return value if isinstance(value, dict) else None
