"""The Responses API for the proxy."""

from __future__ import annotations

from collections.abc import Sequence

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
    valid_arguments,
    with_memory_tools,
)
from memory_bank.service.proxy.events import Event, rewrite_event
from memory_bank.tools import TOOL_SCHEMAS, ToolAnswer
from memory_bank.transcript.responses import OUTPUT_OF, from_items, item_type, stands_alone

_STARTED = frozenset({"response.created", "response.queued", "response.in_progress"})
_ENDED = frozenset({"response.completed", "response.incomplete", "response.failed"})
_TEXT_ANSWERED = ("function_call", "custom_tool_call")
_SCHEMAS = [{"type": "function", **schema["function"]} for schema in TOOL_SCHEMAS]


class ResponsesDialect:
    """See Dialect."""

    route = "responses"
    path = "/responses"
    key = "input"
    provider: Provider = "openai"
    counts_only = False
    error_body = staticmethod(failures.body)

    def history(self, body: Body) -> RequestHistory:
        """See Dialect. Not where the provider holds a part of the conversation."""
        request = body.value
        held = stands_alone(request)
        if held is not None:
            raise NotRebuiltError(held)
        items = request.get(self.key)
        if not isinstance(items, list) or not items:
            raise NotRebuiltError("no list of items")
        chat = from_items(items, request.get("instructions"))
        return RequestHistory(
            [*chat.messages],
            lambda context: chat.write(context.entries),
            lambda written: from_items(written, request.get("instructions")).messages,
        )

    def is_compaction(self, request: JsonObject) -> bool:
        """See Dialect."""
        items = request.get(self.key)
        return isinstance(items, list) and any(item_type(i) == "compaction_trigger" for i in items[-1:])

    def without_thinking(self, request: JsonObject) -> list[object] | None:  # noqa: ARG002
        """See Dialect. Reasoning of this API is not bound to other messages."""
        return None

    def mark_cache(self, request: JsonObject, conversation: Sequence[object]) -> None:
        """See Dialect. The API has no marks."""

    def offer_tools(self, request: JsonObject) -> list[object] | None:
        """See Dialect. Not for a response in the background, nor for a stored prompt, which has tools."""
        if request.get("background") or (request.get("prompt") is not None and not request.get("tools")):
            return None
        return with_memory_tools(request, _SCHEMAS)

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


def _turn_of(items: Sequence[object], usage: JsonObject | None, request: JsonObject) -> ModelTurn:
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
        name = item.get("name")
        if kind == "function_call":
            arguments = item.get("arguments")
            item = {**item, "arguments": valid_arguments(arguments)}
            is_memory = isinstance(name, str) and name in MEMORY_TOOLS
            calls.append(ModelToolCall(str(name or ""), arguments, is_memory, item))
        elif kind in OUTPUT_OF:
            calls.append(ModelToolCall(str(name or ""), item.get("input"), False, item))
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
        super().__init__()
        self._request = request
        self._identity: JsonObject = {}  # id and created_at of the response
        self._earlier: list[object] = []  # items of hidden turns that were sent
        self._sent: list[object] = []  # items of the present turn that were sent
        self._sequence = 0
        self._next_index = 0
        self.begin()

    def begin(self) -> None:
        """See TurnStream."""
        self._earlier += self._sent
        self._first_index = self._next_index
        self._kinds: dict[int, EventKind] = {}
        self._items: dict[int, object] = {}
        self._sent = []
        self._response: JsonObject = {}

    def read(self, event: Event) -> EventKind:
        """See TurnStream."""
        value = event.value
        if value is None:
            return EventKind.SILENT if event.data is None else EventKind.SHOWN
        kind, index = value.get("type"), value.get("output_index")
        if kind in _STARTED:
            return EventKind.SILENT
        if kind in _ENDED:
            self._response = as_object(value.get("response")) or {}
            return EventKind.SHOWN
        if kind == "error":
            self._response = {"status": "failed"}
        if kind in ("response.output_item.added", "response.output_item.done") and isinstance(index, int):
            self._items[index] = value.get("item")
            self._kinds.setdefault(index, _event_kind(value.get("item")))
        return self._kinds.get(index, EventKind.SHOWN) if isinstance(index, int) else EventKind.SHOWN

    def write(self, event: Event) -> bytes:
        """See TurnStream."""
        value = event.value
        if value is None:
            return event.raw
        kind, index, number = value.get("type"), value.get("output_index"), value.get("sequence_number")
        if kind in _STARTED and not self.is_raw:
            return b""
        if kind == "response.output_item.done":
            self._sent.append(value.get("item"))
        changed = dict(value)
        if isinstance(index, int):
            changed["output_index"] = self._first_index + index
            self._next_index = max(self._next_index, self._first_index + index + 1)
        if isinstance(number, int):
            changed["sequence_number"] = number if self.is_raw else self._sequence
            self._sequence = changed["sequence_number"] + 1
        response = as_object(value.get("response"))
        if response is not None:
            self._identity = self._identity or {k: response[k] for k in ("id", "created_at") if k in response}
            if kind in _ENDED:
                changed["response"] = self._joined(response)
        return event.raw if changed == value else rewrite_event(event, changed)

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
        if self.usage is not None:
            joined["usage"] = add_usage(self.usage, response.get("usage"))
        return joined


def _event_kind(item: object) -> EventKind:
    kind = item_type(item)
    if kind in OUTPUT_OF:
        return EventKind.CALL
    return EventKind.TIED if kind == "reasoning" else EventKind.SHOWN
