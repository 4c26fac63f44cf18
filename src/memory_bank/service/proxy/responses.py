"""The Responses API for the proxy."""

from __future__ import annotations

from collections.abc import Sequence

from memory_bank.service.proxy.body import Body, JsonObject
from memory_bank.service.proxy.dialect import (
    Dialect,
    EventKind,
    ModelToolCall,
    ModelTurn,
    NotRebuiltError,
    RequestHistory,
    TurnStream,
    add_usage,
    as_object,
    valid_arguments,
    with_memory_tools,
)
from memory_bank.tools import TOOL_SCHEMAS, ToolAnswer
from memory_bank.transcript.responses import OUTPUT_OF, from_items, item_type, stands_alone

_STARTED = ("response.created", "response.queued", "response.in_progress")
_ENDED = ("response.completed", "response.incomplete", "response.failed")
_TEXT_ANSWERED = ("function_call", "custom_tool_call")


class ResponsesDialect(Dialect):
    """See Dialect."""

    route = "responses"
    path = "/responses"
    key = "input"

    def history(self, body: Body) -> RequestHistory:
        """See Dialect. Not where the provider holds a part of the conversation."""
        if (held := stands_alone(body.value)) is not None:
            raise NotRebuiltError(held)
        items, instructions = self.conversation(body.value), body.value.get("instructions")
        chat = from_items(items, instructions)
        return RequestHistory(
            [*chat.messages],
            lambda context: chat.write(context.entries),
            lambda written: from_items(written, instructions).messages,
        )

    def is_compaction(self, request: JsonObject) -> bool:
        """See Dialect."""
        items = request.get(self.key)
        return isinstance(items, list) and any(item_type(i) == "compaction_trigger" for i in items[-1:])

    def offer_tools(self, request: JsonObject) -> list[object] | None:
        """See Dialect. Not for a response in the background, nor for a stored prompt, which has tools."""
        if request.get("background") or (request.get("prompt") is not None and not request.get("tools")):
            return None
        return with_memory_tools(request, [{"type": "function", **s["function"]} for s in TOOL_SCHEMAS])

    def read_answer(self, answer: JsonObject, request: JsonObject) -> ModelTurn:
        """See Dialect."""
        output = answer.get("output")
        items = output if isinstance(output, list) and answer.get("status") != "failed" else []
        return _turn_of(items, as_object(answer.get("usage")), request)

    def result(self, call: ModelToolCall, answer: ToolAnswer) -> JsonObject | None:
        """See Dialect."""
        kind = item_type(call.item)
        if kind not in _TEXT_ANSWERED:
            return None
        own = [p for p in answer.parts if p.get("type") in ("input_image", "input_file")]
        output: object = [{"type": "input_text", "text": answer.text}, *own] if own else answer.text
        return {"type": OUTPUT_OF[kind], "call_id": call.item.get("call_id"), "output": output}

    def open_stream(self, request: JsonObject) -> TurnStream:
        """See Dialect."""
        return ResponseStream(request)


def _turn_of(items: Sequence[object], usage: JsonObject, request: JsonObject) -> ModelTurn:
    """A turn from its items. A call that text cannot answer is left out: the model makes it again."""
    calls: list[ModelToolCall] = []
    kept: list[object] = []
    for item in items:
        if not isinstance(item, dict):
            continue
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
            kept.append(item)
    return ModelTurn(calls, kept, usage)


class ResponseStream(TurnStream):
    """See TurnStream. The events are those of a response.

    Reasoning is held until the item that it led to: reasoning of a hidden call is hidden too, because a
    request must not have one without the other. The stream is one response, whose id is that of the first
    turn that was sent. So ``previous_response_id`` can name it if only the last turn was sent; otherwise the
    provider knows that id as a response whose calls were not answered.
    """

    def __init__(self, request: JsonObject) -> None:
        self._request = request
        self._identity: JsonObject = {}  # id and created_at of the response
        self._earlier: list[object] = []  # items of hidden turns that were sent
        self._sent: list[object] = []  # items of the present turn that were sent
        self._sequence = 0
        super().__init__()

    def begin(self) -> None:
        """See TurnStream."""
        super().begin()
        self._earlier += self._sent
        self._items: dict[int, object] = {}
        self._sent = []
        self._response: JsonObject = {}

    def read(self, value: JsonObject) -> EventKind:
        """See TurnStream."""
        kind, index = value.get("type"), value.get("output_index")
        if kind in _STARTED:
            return EventKind.SILENT
        if kind in _ENDED:
            self._response = as_object(value.get("response"))
            return EventKind.SHOWN
        if kind == "error":
            self._response = {"status": "failed"}
        if not isinstance(index, int):
            return EventKind.SHOWN
        if kind in ("response.output_item.added", "response.output_item.done"):
            self._items[index] = value.get("item")
        item = item_type(self._items.get(index))
        if item in OUTPUT_OF:
            return EventKind.CALL
        return EventKind.TIED if item == "reasoning" else EventKind.SHOWN

    def write(self, value: JsonObject) -> JsonObject | None:
        """See TurnStream."""
        kind, index, number = value.get("type"), value.get("output_index"), value.get("sequence_number")
        if kind in _STARTED and not self.is_raw:
            return None
        if kind == "response.output_item.done":
            self._sent.append(value.get("item"))
        changed = dict(value)
        if isinstance(index, int):
            changed["output_index"] = self._index(index)
        if isinstance(number, int):
            changed["sequence_number"] = number if self.is_raw else self._sequence
            self._sequence = changed["sequence_number"] + 1
        response = as_object(value.get("response"))
        self._identity = self._identity or {k: response[k] for k in ("id", "created_at") if k in response}
        if response and kind in _ENDED:
            changed["response"] = self._joined(response)
        return changed

    def turn(self) -> ModelTurn:
        """See TurnStream."""
        if self._response.get("status") == "failed":
            return ModelTurn()
        output = self._response.get("output")
        items = output if isinstance(output, list) and output else [i for _, i in sorted(self._items.items())]
        return _turn_of(items, as_object(self._response.get("usage")), self._request)

    def _joined(self, response: JsonObject) -> JsonObject:
        """The response at its end, with the items sent of earlier turns and the usage of all."""
        joined, output = {**response, **self._identity}, response.get("output")
        if self._earlier and isinstance(output, list):
            joined["output"] = [*self._earlier, *output]
        if self.usage:
            joined["usage"] = add_usage(self.usage, as_object(response.get("usage")))
        return joined
