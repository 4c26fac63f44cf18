"""The Messages API of Anthropic for the proxy, and its counting of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from memory_bank.errors import HistoryError
from memory_bank.plan import Context
from memory_bank.service import failures
from memory_bank.service.proxy.body import Body, JsonObject
from memory_bank.service.proxy.dialect import (
    MEMORY_TOOLS,
    EventKind,
    ModelToolCall,
    ModelTurn,
    NotRebuiltError,
    Provider,
    RequestHistory,
    TurnStream,
    add_usage,
    as_object,
    with_memory_tools,
)
from memory_bank.service.proxy.events import Event, rewrite_event
from memory_bank.tools import TOOL_SCHEMAS, ToolAnswer
from memory_bank.transcript.anthropic import (
    THINKING,
    Thinking,
    answered_turn,
    drops_blocks,
    from_anthropic,
    strip_thinking,
    thinking_rule,
    with_cache_marks,
)
from memory_bank.transcript.jsontext import parse_arguments

_SCHEMAS = [
    {
        "name": schema["function"]["name"],
        "description": schema["function"]["description"],
        "input_schema": schema["function"]["parameters"],
    }
    for schema in TOOL_SCHEMAS
]


class MessagesDialect:
    """See Dialect."""

    route = "messages"
    path = "/messages"
    key = "messages"
    provider: Provider = "anthropic"
    counts_only = False

    def history(self, body: Body) -> RequestHistory:
        """See Dialect. Not where the provider holds a part of the conversation (``thread``)."""
        request = body.value
        if request.get("thread"):
            raise NotRebuiltError("thread")
        messages = request.get(self.key)
        if not isinstance(messages, list) or not messages:
            raise NotRebuiltError("no messages")
        rule = thinking_rule(request.get("thinking"))
        chat = from_anthropic(messages, request.get("system"), body.derive, rule)

        def to_request(context: Context) -> Sequence[object]:
            try:
                return chat.write(context.entries)
            except HistoryError as e:
                raise NotRebuiltError(str(e).partition(":")[0]) from None

        def read(messages: Sequence[object]) -> Sequence[object]:
            return from_anthropic(messages, request.get("system"), body.derive).messages

        return RequestHistory([*chat.messages], to_request, read)

    def is_compaction(self, request: JsonObject) -> bool:
        """See Dialect."""
        return bool(request.get("compaction"))

    def without_thinking(self, request: JsonObject) -> list[object] | None:
        """See Dialect."""
        messages = request.get(self.key)
        if not isinstance(messages, list):
            return None
        stripped = strip_thinking(messages, thinking_rule(request.get("thinking")))
        return None if all(a is b for a, b in zip(stripped, messages, strict=False)) else stripped

    def mark_cache(self, request: JsonObject, conversation: Sequence[object]) -> list[object] | None:
        """See Dialect."""
        return with_cache_marks(request, conversation)

    def offer_tools(self, request: JsonObject) -> list[object] | None:
        """See Dialect. Not where the model thinks: a signature may be bound to the tools and to hidden turns."""
        thinking = as_object(request.get("thinking"))
        if thinking is not None and thinking.get("type") != "disabled" and not drops_blocks(thinking):
            return None
        if any(_is_thinking(b) for m in request.get(self.key) or () for b in _content_of(m)):
            return None
        choice = as_object(request.get("tool_choice"))
        kind = (
            None
            if choice is None
            else {"auto": "auto", "any": "required"}.get(str(choice.get("type")), "none")
        )
        return with_memory_tools({**request, "tool_choice": kind}, _SCHEMAS)

    def read_answer(self, answer: JsonObject, request: JsonObject) -> ModelTurn:  # noqa: ARG002
        """See Dialect."""
        content = answer.get("content")
        blocks = content if isinstance(content, list) and answer.get("type") != "error" else []
        return _turn_of(blocks, as_object(answer.get("usage")))

    def result(self, call: ModelToolCall, answer: ToolAnswer) -> JsonObject | None:
        """See Dialect. User messages in a row count as one."""
        own = [p for p in answer.parts if p.get("type") in ("image", "document") and "source" in p]
        content: object = [{"type": "text", "text": answer.text}, *own] if own else answer.text
        block = {"type": "tool_result", "tool_use_id": call.item.get("id"), "content": content}
        return {"role": "user", "content": [block]}

    def open_stream(self, request: JsonObject) -> TurnStream:  # noqa: ARG002
        """See Dialect."""
        return MessageStream()

    def error_body(self, message: str, code: str, status: int) -> JsonObject:  # noqa: ARG002
        """See Dialect."""
        return failures.messages_body(message, status)


class CountTokensDialect(MessagesDialect):
    """The counting of a request's tokens: what is counted is the rebuilt context, and nothing is recorded."""

    route = "count_tokens"
    path = "/messages/count_tokens"
    counts_only = True


def thinking_turn(request: JsonObject) -> Literal["begins", "goes on"] | None:
    """Whether a request with ``thinking.type: enabled`` begins a turn, or answers calls; None without ``enabled``.

    A request that begins a turn is accepted with any context, but a provider may bind the thinking of its answer to
    that context. The later requests of the turn have to send the thinking back and could have no other context then.
    """
    messages = request.get("messages")
    if thinking_rule(request.get("thinking")) is not Thinking.KEEP_LAST or not isinstance(messages, list):
        return None
    return "begins" if answered_turn(messages) is None else "goes on"


def _content_of(message: object) -> list[Any]:
    content = message.get("content") if isinstance(message, dict) else None
    return content if isinstance(content, list) else []


def _is_thinking(block: object) -> bool:
    return isinstance(block, dict) and str(block.get("type")) in THINKING


def _turn_of(blocks: Sequence[object], usage: JsonObject | None) -> ModelTurn:
    """A turn from its blocks."""
    calls: list[ModelToolCall] = []
    kept: list[JsonObject] = []
    for block in blocks:
        if not isinstance(block, dict):
            continue
        if block.get("type") == "tool_use":
            name, arguments = block.get("name"), block.get("input")
            if isinstance(arguments, str):  # a stream's arguments are text
                parsed = parse_arguments(arguments or "{}")
                block = {
                    **block,
                    "input": parsed if isinstance(parsed, dict) and "_raw" not in parsed else {},
                }
            is_memory = isinstance(name, str) and name in MEMORY_TOOLS
            calls.append(ModelToolCall(str(name or ""), arguments, is_memory, block))
        elif block.get("type") == "text" and not block.get("text"):
            continue
        kept.append(block)
    return ModelTurn(calls, [{"role": "assistant", "content": kept}] if kept else [], usage)


class MessageStream(TurnStream):
    """See TurnStream. The events are those of a message; the message is the one that was begun first."""

    def __init__(self) -> None:
        super().__init__()
        self._next_index = 0
        self.begin()

    def begin(self) -> None:
        """See TurnStream."""
        self._first_index = self._next_index
        self._blocks: dict[int, JsonObject] = {}
        self._usage: JsonObject | None = None
        self._has_failed = False

    def read(self, event: Event) -> EventKind:
        """See TurnStream. Thinking belongs to what follows it."""
        value = event.value
        if value is None:
            return EventKind.SILENT if event.data is None else EventKind.SHOWN
        kind, index = value.get("type"), value.get("index")
        if kind == "message_start":
            message = as_object(value.get("message")) or {}
            self._usage = as_object(message.get("usage"))
            return EventKind.SILENT
        if kind == "ping":
            return EventKind.SILENT
        if kind == "error":
            self._has_failed = True
            return EventKind.SHOWN
        if kind == "message_delta":
            self._usage = {**(self._usage or {}), **(as_object(value.get("usage")) or {})}
            return EventKind.SHOWN
        if not isinstance(index, int):
            return EventKind.SHOWN
        if kind == "content_block_start":
            self._blocks[index] = dict(as_object(value.get("content_block")) or {})
            if self._blocks[index].get("type") == "tool_use":
                self._blocks[index]["input"] = ""
        block = self._blocks.get(index, {})
        if kind == "content_block_delta":
            _add_delta(block, as_object(value.get("delta")) or {})
        if block.get("type") == "tool_use":
            return EventKind.CALL
        return EventKind.TIED if str(block.get("type")) in THINKING else EventKind.SHOWN

    def write(self, event: Event) -> bytes:
        """See TurnStream."""
        value = event.value
        if value is None:
            return event.raw
        kind, index = value.get("type"), value.get("index")
        if kind == "message_start" and not self.is_raw:
            return b""
        changed = dict(value)
        if isinstance(index, int):
            changed["index"] = self._first_index + index
            self._next_index = max(self._next_index, self._first_index + index + 1)
        if self.usage is not None and kind == "message_delta":
            changed["usage"] = add_usage(self.usage, self._usage)
        return event.raw if changed == value else rewrite_event(event, changed)

    def turn(self) -> ModelTurn:
        """See TurnStream."""
        if self._has_failed:
            return ModelTurn()
        return _turn_of([block for _, block in sorted(self._blocks.items())], self._usage)


_DELTAS = {
    "text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature", "input_json_delta": "input",
}  # fmt: skip


def _add_delta(block: JsonObject, delta: JsonObject) -> None:
    """Add a delta to the block that it belongs to."""
    member = _DELTAS.get(str(delta.get("type")))
    if member is None:
        return
    piece = delta.get("partial_json" if member == "input" else member)
    if isinstance(piece, str):
        old = block.get(member)
        block[member] = old + piece if isinstance(old, str) else piece
