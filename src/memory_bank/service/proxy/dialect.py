"""How the proxy reads and edits requests and answers of a model API; each API is a subclass in its own file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from memory_bank.errors import HistoryError
from memory_bank.plan import Context
from memory_bank.service.proxy.body import Body, JsonObject
from memory_bank.service.proxy.events import Event, rewrite_event
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

    ``write`` converts a context rebuilt from them to the array for the request's member ``Dialect.key``;
    ``read`` gives the chat messages of such an array.
    """

    messages: list[object]
    write: Callable[[Context], Sequence[object]]
    read: Callable[[Sequence[object]], Sequence[object]]

    def to_request(self, context: Context) -> Sequence[object]:
        """The array that ``write`` makes of a context. Raises NotRebuiltError where it cannot be written."""
        try:
            return self.write(context)
        except HistoryError as e:
            raise NotRebuiltError(str(e).partition(":")[0]) from None


@dataclass(frozen=True, slots=True)
class ModelToolCall:
    """A tool call in a model's answer; ``item`` is the call as it goes into the next request.

    ``name`` is "" for a call that is no call of a function.
    """

    name: object
    arguments: object = field(repr=False)
    item: JsonObject = field(repr=False)

    @property
    def is_memory(self) -> bool:
        """Whether it calls a memory tool, which the proxy answers; the client answers all others."""
        return isinstance(self.name, str) and self.name in MEMORY_TOOLS


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """One answer of the model; ``messages`` represent it in the next request, without tool results."""

    calls: Sequence[ModelToolCall] = ()
    messages: Sequence[object] = field(default=(), repr=False)
    usage: JsonObject = field(default_factory=dict)

    @property
    def calls_memory(self) -> bool:
        """Whether it calls a memory tool."""
        return any(call.is_memory for call in self.calls)


class Dialect:
    """A model API: where its requests hold the conversation and the tools, how its answers call tools."""

    route: str
    """Its name in metrics and traces."""
    path: str
    """The path after ``/v1``; requests with POST are rebuilt."""
    key = "messages"
    """The member of a request that holds the conversation as an array."""
    provider: Provider = "openai"
    """Whose API it is: requests go to the upstream of that provider."""
    counts_only = False
    """Whether a request only counts tokens: its context is rebuilt, and nothing is recorded."""

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
        """Whether a member of the request asks the provider for a summary of the conversation."""
        return False

    def thinking_turn(self, request: JsonObject) -> Literal["begins", "goes on"] | None:  # noqa: ARG002
        """The place of a request in a turn whose thinking is bound to its context; None without such thinking.

        A request that begins a turn is accepted with any context, but a provider may bind the thinking of its answer
        to it. The later requests of the turn have to send the thinking back and could have no other context then.
        """
        return None

    def without_thinking(self, request: JsonObject) -> list[object] | None:  # noqa: ARG002
        """The conversation of a request without what an API binds to the messages before it; None without any.

        That is thinking whose signature no longer fits because an earlier request was rebuilt.
        """
        return None

    def mark_cache(self, request: JsonObject, conversation: Sequence[object]) -> list[object] | None:  # noqa: ARG002
        """The conversation to be sent with marks for the provider's prefix cache; None where it needs none."""
        return None

    def offer_tools(self, request: JsonObject) -> list[object] | None:
        """The tools of a request followed by the memory tools; None where these cannot be offered."""
        raise NotImplementedError

    def read_answer(self, answer: JsonObject, request: JsonObject) -> ModelTurn:
        """The turn in a complete answer to a request."""
        raise NotImplementedError

    def result(self, call: ModelToolCall, answer: ToolAnswer) -> JsonObject | None:
        """The message that answers a call, with the parts that it can carry; None where text cannot answer."""
        raise NotImplementedError

    def open_stream(self, request: JsonObject) -> TurnStream:
        """A reader of the streamed answers to a request."""
        raise NotImplementedError


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
    the earlier turn. Each API implements ``read``, ``write`` and ``turn``.
    """

    def __init__(self) -> None:
        self.usage: JsonObject = {}
        """The usage of the hidden turns."""
        self.has_sent = False
        self.is_raw = True
        self._held: list[Event] = []
        self._has_call = False
        self._next_index = 0
        self.begin()

    def begin(self) -> None:
        """Begin another turn, whose indices follow those that were sent."""
        self._first_index = self._next_index

    def feed(self, event: Event) -> bytes:
        """Take the next event of a turn; returns the bytes to send."""
        if event.value is None:
            kind = EventKind.SILENT if event.data is None else EventKind.SHOWN
        else:
            kind = self.read(event.value)
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
        sent = []
        for event in self._held:
            value = event.value and self.write(event.value)
            if value is not None:
                sent.append(event.raw if value == event.value else rewrite_event(event, value))
            elif event.value is None:
                sent.append(event.raw)
        self._held.clear()
        out = b"".join(sent)
        self.has_sent = self.has_sent or bool(out)
        return out

    def _index(self, index: int) -> int:
        """The index in the joined stream of what has this index in its turn."""
        self._next_index = max(self._next_index, self._first_index + index + 1)
        return self._first_index + index

    def read(self, value: JsonObject) -> EventKind:
        """Take in the object of an event of the present turn."""
        raise NotImplementedError

    def write(self, value: JsonObject) -> JsonObject | None:
        """The object of an event for the client; None for an event that it does not get."""
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
    for tool in map(as_object, tools or ()):
        name = (as_object(tool.get("function") or tool.get("custom")) or tool).get("name")
        if isinstance(name, str) and is_memory_tool(name):
            return None
    return [*(tools or ()), *schemas]


def own_tools(request: JsonObject) -> list[object]:
    """What holds the tools that a request brings, also functions of a chat and items of the Responses API."""
    items = request.get("input")
    added = [i for i in items if item_type(i) == "additional_tools"] if isinstance(items, list) else []
    return [{"tools": request.get("tools")}, {"tools": request.get("functions")}, *added]


def valid_arguments(arguments: object) -> str:
    """A call's arguments for the next request; ``{}`` for invalid JSON, which some providers refuse."""
    if not isinstance(arguments, str) or not arguments.strip() or "_raw" in parse_arguments(arguments):
        return "{}"
    return arguments


def add_usage(one: Mapping[str, Any], other: Mapping[str, Any]) -> JsonObject:
    """The sum of two usages, including that of their details."""
    added = dict(one)
    for key, value in other.items():
        old = added.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            added[key] = add_usage(old, value)
        elif type(old) in (int, float) and type(value) in (int, float):
            added[key] = old + value
        elif value is not None or key not in added:
            added[key] = value
    return added


def as_object(value: object) -> JsonObject:
    """The value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}
