"""The Messages API of Anthropic for the proxy, and its counting of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from memory_bank.service.proxy.body import Body, JsonObject
from memory_bank.service.proxy.dialect import (
    Dialect,
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
from memory_bank.tools import TOOL_SCHEMAS, ToolAnswer
from memory_bank.transcript.anthropic import (
    THINKING,
    Thinking,
    answered_turn,
    drops_blocks,
    from_anthropic,
    thinking_rule,
    with_cache_marks,
    without_thinking,
)
from memory_bank.transcript.jsontext import parse_arguments

_SCHEMAS = [
    {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}
    for f in (schema["function"] for schema in TOOL_SCHEMAS)
]
_CHOICES = {"None": None, "auto": "auto", "any": "required"}  # in the words of the other APIs


class MessagesDialect(Dialect):
    """See Dialect."""

    route = "messages"
    path = "/messages"
    provider: Provider = "anthropic"

    def history(self, body: Body) -> RequestHistory:
        """See Dialect. Not where the provider holds a part of the conversation (``thread``)."""
        request = body.value
        if request.get("thread"):
            raise NotRebuiltError("thread")
        rule = thinking_rule(request.get("thinking"))
        chat = from_anthropic(self.conversation(request), request.get("system"), body.derive, rule)

        def read(messages: Sequence[object]) -> Sequence[object]:
            return from_anthropic(messages, request.get("system"), body.derive).messages

        return RequestHistory([*chat.messages], lambda context: chat.write(context.entries), read)

    def is_compaction(self, request: JsonObject) -> bool:
        """See Dialect."""
        return bool(request.get("compaction"))

    def thinking_turn(self, request: JsonObject) -> Literal["begins", "goes on"] | None:
        """See Dialect. It is that of a request with ``thinking.type: enabled``."""
        messages = request.get(self.key)
        if thinking_rule(request.get("thinking")) is not Thinking.KEEP_LAST or not isinstance(messages, list):
            return None
        return "begins" if answered_turn(messages) is None else "goes on"

    def without_thinking(self, request: JsonObject) -> list[object] | None:
        """See Dialect."""
        messages = request.get(self.key)
        if not isinstance(messages, list):
            return None
        stripped = without_thinking(messages, thinking_rule(request.get("thinking")))
        return None if all(a is b for a, b in zip(stripped, messages, strict=False)) else stripped

    def mark_cache(self, request: JsonObject, conversation: Sequence[object]) -> list[object] | None:
        """See Dialect."""
        return with_cache_marks(request, conversation)

    def offer_tools(self, request: JsonObject) -> list[object] | None:
        """See Dialect. Not where the model thinks: a signature may be bound to the tools and to hidden turns."""
        thinking = as_object(request.get("thinking"))
        if thinking and thinking.get("type") != "disabled" and not drops_blocks(thinking):
            return None
        for message in map(as_object, request.get(self.key) or ()):
            content = message.get("content")
            if isinstance(content, list) and any(_is_thinking(b) for b in content):
                return None
        choice = _CHOICES.get(str(as_object(request.get("tool_choice")).get("type")), "none")
        return with_memory_tools({**request, "tool_choice": choice}, _SCHEMAS)

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


class CountTokensDialect(MessagesDialect):
    """The counting of a request's tokens: what is counted is the rebuilt context, and nothing is recorded."""

    route = "count_tokens"
    path = "/messages/count_tokens"
    counts_only = True


def _is_thinking(block: object) -> bool:
    return str(as_object(block).get("type")) in THINKING


def _turn_of(blocks: Sequence[object], usage: JsonObject) -> ModelTurn:
    """A turn from its blocks."""
    calls: list[ModelToolCall] = []
    kept: list[JsonObject] = []
    for block in blocks:
        if not isinstance(block, dict) or (block.get("type") == "text" and not block.get("text")):
            continue
        if block.get("type") == "tool_use":
            arguments = block.get("input")
            if isinstance(arguments, str):  # a stream's arguments are text
                parsed = as_object(parse_arguments(arguments or "{}"))
                block = {**block, "input": {} if "_raw" in parsed else parsed}
            calls.append(ModelToolCall(block.get("name"), arguments, block))
        kept.append(block)
    return ModelTurn(calls, [{"role": "assistant", "content": kept}] if kept else [], usage)


class MessageStream(TurnStream):
    """See TurnStream. The events are those of a message; the message is the one that was begun first."""

    def begin(self) -> None:
        """See TurnStream."""
        super().begin()
        self._blocks: dict[int, JsonObject] = {}
        self._usage: JsonObject = {}
        self._has_failed = False

    def read(self, value: JsonObject) -> EventKind:
        """See TurnStream. Thinking belongs to what follows it."""
        kind, index = value.get("type"), value.get("index")
        if kind == "message_start":
            self._usage = as_object(as_object(value.get("message")).get("usage"))
        if kind in ("message_start", "ping"):
            return EventKind.SILENT
        self._has_failed = self._has_failed or kind == "error"
        if kind == "message_delta":
            self._usage = {**self._usage, **as_object(value.get("usage"))}
        if not isinstance(index, int):
            return EventKind.SHOWN
        block = self._blocks.get(index, {})
        if kind == "content_block_start":
            block = self._blocks[index] = dict(as_object(value.get("content_block")))
            if block.get("type") == "tool_use":
                block["input"] = ""
        elif kind == "content_block_delta":
            delta = as_object(value.get("delta"))
            into, piece = _DELTAS.get(str(delta.get("type")), ("", ""))
            if isinstance(text := delta.get(piece), str):
                old = block.get(into)
                block[into] = old + text if isinstance(old, str) else text
        if block.get("type") == "tool_use":
            return EventKind.CALL
        return EventKind.TIED if _is_thinking(block) else EventKind.SHOWN

    def write(self, value: JsonObject) -> JsonObject | None:
        """See TurnStream."""
        kind, index = value.get("type"), value.get("index")
        if kind == "message_start" and not self.is_raw:
            return None
        changed = dict(value)
        if isinstance(index, int):
            changed["index"] = self._index(index)
        if self.usage and kind == "message_delta":
            changed["usage"] = add_usage(self.usage, self._usage)
        return changed

    def turn(self) -> ModelTurn:
        """See TurnStream."""
        if self._has_failed:
            return ModelTurn()
        return _turn_of([block for _, block in sorted(self._blocks.items())], self._usage)


_DELTAS = {  # by type: the member of the block, and that of the delta
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
    "input_json_delta": ("input", "partial_json"),
}
