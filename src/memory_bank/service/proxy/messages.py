"""The Messages API of Anthropic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memory_bank.models.usage import add_usage, merge_usage
from memory_bank.plan import Form
from memory_bank.service.proxy.api import (
    Dialect,
    EventKind,
    ModelToolCall,
    ModelTurn,
    NotRebuiltError,
    Pieces,
    Provider,
    RequestHistory,
    Schemas,
    TurnStream,
    append,
    joined,
    with_memory_tools,
)
from memory_bank.service.proxy.body import Body, JsonObject, as_object, objects_of
from memory_bank.tools import TOOL_SCHEMAS, ToolAnswer
from memory_bank.transcript.anthropic import (
    THINKING,
    Thinking,
    answered_turn,
    cache_marks,
    drops_blocks,
    from_anthropic,
    marked_head,
    thinking_rule,
    with_cache_marks,
    without_thinking,
)
from memory_bank.transcript.jsontext import parse_arguments


class MessageStream(TurnStream):
    """The events are those of a message; the message is the one that was begun first."""

    def begin(self) -> None:
        super().begin()
        self._blocks: dict[int, JsonObject] = {}

    def read(self, value: JsonObject) -> EventKind:
        """See TurnStream. Thinking belongs to what follows it."""
        kind, index = value.get("type"), value.get("index")
        begun = as_object(value.get("message"))
        self._turn_usage = merge_usage(self._turn_usage, as_object((begun or value).get("usage")))
        if kind in ("message_start", "ping"):
            return EventKind.SILENT
        self._has_failed = self._has_failed or kind == "error"
        if not isinstance(index, int):
            return EventKind.SENT
        block = self._blocks.get(index, {})
        if kind == "content_block_start":
            block = self._blocks[index] = dict(as_object(value.get("content_block")))
            if block.get("type") == "tool_use":
                block["input"] = Pieces()
        for member, text in as_object(value.get("delta")).items():
            if member != "type" and isinstance(text, str):
                append(block, "input" if member == "partial_json" else member, text)
        if block.get("type") == "tool_use":
            return EventKind.CALL
        return EventKind.TIED if str(block.get("type")) in THINKING else EventKind.SENT

    def write(self, value: JsonObject) -> JsonObject | None:
        kind = value.get("type")
        if kind == "message_start" and not self.is_raw:
            return None
        changed = self._moved(value)
        if kind == "message_delta":
            usage = merge_usage(self._turn_usage, as_object(value.get("usage")))
            changed |= {"usage": add_usage(self.usage, usage)} if self.usage else {}
        return changed

    def answer(self) -> JsonObject:
        return {"content": [joined(b) for _, b in sorted(self._blocks.items())], "usage": self._turn_usage}


class MessagesDialect(Dialect):
    """The Messages API of Anthropic."""

    route = "messages"
    path = "/messages"
    provider: Provider = "anthropic"
    answer_key = "content"
    stream = MessageStream

    def history(self, body: Body) -> RequestHistory:
        """See Dialect. Not where the provider holds a part of the conversation (``thread``)."""
        request = body.value
        if request.get("thread"):
            raise NotRebuiltError("thread")
        rule, prompt = thinking_rule(request.get("thinking")), request.get("system")
        messages, memo = self.conversation(request), body.memo
        memo.chat = chat = from_anthropic(messages, prompt, body.derive, rule, memo.chat)

        def read(written: Sequence[Any]) -> Sequence[Any]:
            return from_anthropic(written, prompt, body.derive, earlier=chat).messages

        return RequestHistory(chat.messages, Form(chat, read, thinking=rule), memo)

    def is_compaction(self, request: JsonObject) -> bool:
        return bool(request.get("compaction"))

    def without_thinking(self, request: JsonObject) -> JsonObject | None:
        """See Dialect. Where the turn that is answered would have to have thinking, the model does not think."""
        messages, rule = request.get(self.key), thinking_rule(request.get("thinking"))
        if not isinstance(messages, list) or rule is Thinking.KEEP:
            return None
        stripped = without_thinking(messages, Thinking.DROP)
        if all(a is b for a, b in zip(stripped, messages, strict=False)):
            return None
        must_think = rule is Thinking.KEEP_LATER
        off = {"thinking": {"type": "disabled"}} if must_think and answered_turn(messages) is not None else {}
        return {self.key: stripped, **off}

    def mark_cache(
        self,
        body: Body,
        conversation: Sequence[object],
        *,
        stands: bool,
        ends: Sequence[Sequence[object]] | None = None,
    ) -> list[object] | None:
        counts = body.memo.of_each("marks", conversation, cache_marks)
        return with_cache_marks(body.value, conversation, counts, stands=stands, ends=ends)

    def marked_head(self, body: Body) -> int | None:
        counts = body.memo.of_each("marks that came", body.value[self.key], cache_marks)
        return marked_head(body.value, counts, body.memo.chat.places) if body.memo.chat else 0

    def offer_tools(self, request: JsonObject, schemas: Schemas = TOOL_SCHEMAS) -> list[object] | None:
        # its choices in the words of the other APIs
        choices = {"None": None, "auto": "auto", "any": "required"}
        choice = choices.get(str(as_object(request.get("tool_choice")).get("type")), "none")
        functions = [schema["function"] for schema in schemas]
        own = [
            {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}
            for f in functions
        ]
        return with_memory_tools(request, choice, own)

    def binds_tools(self, request: JsonObject) -> bool:
        thinking = as_object(request.get("thinking"))
        if drops_blocks(thinking):
            return False
        if thinking and thinking.get("type") != "disabled":
            return True
        contents = [m.get("content") for m in objects_of(request.get(self.key))]
        return any(str(block.get("type")) in THINKING for c in contents for block in objects_of(c))

    def read_answer(self, answer: JsonObject, request: JsonObject) -> ModelTurn:  # noqa: ARG002
        calls: list[ModelToolCall] = []
        kept: list[JsonObject] = []
        for block in objects_of(answer.get("content")) if answer.get("type") != "error" else ():
            if block.get("type") == "text" and not block.get("text"):
                continue
            if block.get("type") == "tool_use":
                arguments = block.get("input")
                if isinstance(arguments, str):  # a stream's arguments are text
                    parsed = as_object(parse_arguments(arguments or "{}"))
                    block = {**block, "input": {} if "_raw" in parsed else parsed}
                calls.append(ModelToolCall(block.get("name"), arguments, block))
            kept.append(block)
        said = [{"role": "assistant", "content": kept}] if kept else []
        return ModelTurn(calls, said, as_object(answer.get("usage")))

    def result(self, call: ModelToolCall, answer: ToolAnswer) -> JsonObject | None:
        own = [p for p in answer.parts if p.get("type") in ("image", "document") and "source" in p]
        content: object = [{"type": "text", "text": answer.text}, *own] if own else answer.text
        block = {"type": "tool_result", "tool_use_id": call.item.get("id"), "content": content}
        return {"role": "user", "content": [block]}

    def join_results(self, results: list[JsonObject]) -> list[JsonObject]:
        """See Dialect. All results go into one message: some gateways refuse two user messages in a row."""
        blocks = [block for message in results for block in objects_of(message["content"])]
        return [{"role": "user", "content": blocks}] if blocks else []
