"""The Responses API."""

from __future__ import annotations

from dataclasses import dataclass, field

from memory_bank.models.usage import add_usage
from memory_bank.plan import Form
from memory_bank.service.proxy.api import (
    Dialect,
    EventKind,
    ModelToolCall,
    ModelTurn,
    NotRebuiltError,
    RequestHistory,
    Schemas,
    TurnStream,
    valid_arguments,
    with_memory_tools,
)
from memory_bank.service.proxy.body import Body, JsonObject, as_object, objects_of
from memory_bank.tools import TOOL_SCHEMAS, ToolAnswer
from memory_bank.transcript.responses import OUTPUT_OF, from_items, item_type, stands_alone

_STARTED = ("message_start", "ping", "response.created", "response.queued", "response.in_progress")
_ENDED = ("response.completed", "response.incomplete", "response.failed")


@dataclass(eq=False)
class ResponseStream(TurnStream):
    """The events are those of a response.

    Reasoning waits until the item that it led to: reasoning of a hidden call is hidden too, because a
    request must not have one without the other. The stream is one response, whose id is that of the first
    turn that was sent. So ``previous_response_id`` can name it if only the last turn was sent; otherwise the
    provider knows that id as a response whose calls were not answered.
    """

    _identity: JsonObject = field(default_factory=dict)  # id and created_at of the response
    _earlier: list[object] = field(default_factory=list)  # items of hidden turns that were sent
    _sent: list[object] = field(default_factory=list)  # items of the present turn that were sent
    _sequence: int = 0

    place = "output_index"

    def begin(self) -> None:
        super().begin()
        self._earlier = [*self._earlier, *self._sent]
        self._items: dict[int, object] = {}
        self._sent = []
        self._response: JsonObject = {}

    def read(self, value: JsonObject) -> EventKind:
        kind, index = value.get("type"), value.get("output_index")
        if kind in _STARTED:
            return EventKind.SILENT
        if kind in _ENDED:
            self._response = as_object(value.get("response"))
            self._has_failed = self._response.get("status") == "failed"
            return EventKind.SENT
        self._has_failed = self._has_failed or kind == "error"
        if not isinstance(index, int):
            return EventKind.SENT
        if kind in ("response.output_item.added", "response.output_item.done"):
            self._items[index] = value.get("item")
        item = item_type(self._items.get(index))
        if item in OUTPUT_OF:
            return EventKind.CALL
        return EventKind.TIED if item == "reasoning" else EventKind.SENT

    def write(self, value: JsonObject) -> JsonObject | None:
        kind, item, number = value.get("type"), value.get("item"), value.get("sequence_number")
        if kind in _STARTED and not self.is_raw:
            return None
        if kind == "response.output_item.done" and not self._passes and item not in self._earlier:
            self._sent.append(item)
        changed = self._moved(value)
        if isinstance(number, int):
            if self._earlier or not self.is_raw:
                changed["sequence_number"] = self._sequence
            self._sequence = changed["sequence_number"] + 1
        response = as_object(value.get("response"))
        self._identity = self._identity or {k: response[k] for k in ("id", "created_at") if k in response}
        if response and kind in _ENDED:
            joined = changed["response"] = {**response, **self._identity}
            if self._earlier and isinstance(response.get("output"), list):
                joined["output"] = [*self._earlier, *response["output"]]
            if self.usage:
                joined["usage"] = add_usage(self.usage, as_object(response.get("usage")))
        return changed

    def answer(self) -> JsonObject:
        output = self._response.get("output")
        items = output if isinstance(output, list) and output else [i for _, i in sorted(self._items.items())]
        return {**self._response, "output": items}


class ResponsesDialect(Dialect):
    """The Responses API."""

    route = "responses"
    path = "/responses"
    key = "input"
    answer_key = "output"
    stream = ResponseStream

    def history(self, body: Body) -> RequestHistory:
        """See Dialect. Not where the provider holds a part of the conversation."""
        if (reason := stands_alone(body.value)) is not None:
            raise NotRebuiltError(reason)
        instructions = body.value.get("instructions")
        items, memo = self.conversation(body.value), body.memo
        memo.chat = chat = from_items(items, instructions, body.derive, memo.chat)
        form = Form(chat, lambda written: from_items(written, instructions, body.derive, chat).messages)
        return RequestHistory(chat.messages, form, memo)

    def is_compaction(self, request: JsonObject) -> bool:
        items = request.get(self.key)
        last = items[-1] if isinstance(items, list) and items else None
        return self.route == "compact" or item_type(last) == "compaction_trigger"

    def offer_tools(self, request: JsonObject, schemas: Schemas = TOOL_SCHEMAS) -> list[object] | None:
        """See Dialect. Not for a response in the background, nor for a stored prompt, which has tools."""
        if request.get("background") or (request.get("prompt") is not None and not request.get("tools")):
            return None
        tools = [{"type": "function", **s["function"]} for s in schemas]
        return with_memory_tools(request, request.get("tool_choice"), tools)

    def read_answer(self, answer: JsonObject, request: JsonObject) -> ModelTurn:
        """See Dialect. A call that text cannot answer is left out: the model makes it again."""
        calls: list[ModelToolCall] = []
        items: list[object] = []
        for item in objects_of(answer.get("output")) if answer.get("status") != "failed" else ():
            kind = item_type(item)
            if request.get("store") is False:  # the provider knows none of its own ids
                if kind == "reasoning" and not item.get("encrypted_content"):
                    continue
                if kind != "reasoning":
                    item = {k: v for k, v in item.items() if k != "id"}
            if kind == "function_call":
                arguments = item.get("arguments")
                item = {**item, "arguments": valid_arguments(arguments)}
                calls.append(ModelToolCall(item.get("name"), arguments, item))
            elif kind in OUTPUT_OF:
                calls.append(ModelToolCall("", None, item))
            if kind in _TEXT_ANSWERED or kind not in OUTPUT_OF:
                items.append(item)
        return ModelTurn(calls, items, as_object(answer.get("usage")))

    def result(self, call: ModelToolCall, answer: ToolAnswer) -> JsonObject | None:
        kind = item_type(call.item)
        if kind not in _TEXT_ANSWERED:
            return None
        own = [p for p in answer.parts if p.get("type") in ("input_image", "input_file")]
        output: object = [{"type": "input_text", "text": answer.text}, *own] if own else answer.text
        return {"type": OUTPUT_OF[kind], "call_id": call.item.get("call_id"), "output": output}


_TEXT_ANSWERED = ("function_call", "custom_tool_call")
