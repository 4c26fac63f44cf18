"""The model APIs: how the proxy reads and edits their requests, and reads a turn of the model in their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from memory_bank.plan import Form
from memory_bank.ports import ToolSchema
from memory_bank.service.proxy.answers import (
    ChatStream,
    MessageStream,
    ModelToolCall,
    ModelTurn,
    ResponseStream,
    TurnStream,
    as_object,
    objects_of,
)
from memory_bank.service.proxy.body import Body, JsonObject
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
from memory_bank.transcript.messages import is_memory_tool
from memory_bank.transcript.responses import OUTPUT_OF, from_items, item_type, stands_alone
from memory_bank.transcript.textcalls import read_text_calls

Provider = Literal["openai", "anthropic"]
Schemas = Sequence[ToolSchema]


class NotRebuiltError(Exception):
    """A request for which memory has nothing to do, with the reason. The request passes unchanged."""


@dataclass(frozen=True, slots=True)
class RequestHistory:
    """The conversation in a request as chat ``messages``.

    ``form``: in which a context rebuilt from them is the array for the request's member ``Dialect.key``; None where
    the context is that array.
    """

    messages: list[Any]
    form: Form | None = None


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
        """Whether a member of the request asks the provider for a summary of the conversation."""
        return False

    def without_thinking(self, request: JsonObject) -> JsonObject | None:  # noqa: ARG002
        """The members of a request that send none of what an API binds to the messages before it; None without any.

        That is thinking whose signature no longer fits because an earlier request was rebuilt.
        """
        return None

    def mark_cache(
        self,
        request: JsonObject,  # noqa: ARG002
        conversation: Sequence[object],  # noqa: ARG002
        *,
        stands: bool,  # noqa: ARG002
    ) -> list[object] | None:
        """The conversation to be sent with marks for the provider's prefix cache; None where it needs none.

        ``stands``: the next one will begin with it.
        """
        return None

    def offer_tools(self, request: JsonObject, schemas: Schemas = TOOL_SCHEMAS) -> list[object] | None:
        """The tools of a request followed by memory tools; None where these cannot be offered."""
        raise NotImplementedError

    def binds_tools(self, request: JsonObject) -> bool | None:  # noqa: ARG002
        """Whether the model's thinking may be bound to the tools and to hidden turns; None where it never is."""
        return None

    def read_answer(self, answer: JsonObject, request: JsonObject) -> ModelTurn:
        """The turn in a complete answer to a request."""
        raise NotImplementedError

    def result(self, call: ModelToolCall, answer: ToolAnswer) -> JsonObject | None:
        """The message that answers a call, with the parts that it can carry; None where text cannot answer."""
        raise NotImplementedError

    def open_stream(self, request: JsonObject, **more: Any) -> TurnStream:
        """A reader of the streamed answers to a request; ``more`` as in TurnStream."""
        return self.stream(lambda answer: self.read_answer(answer, request), **more)


class ChatDialect(Dialect):
    """The Chat Completions API."""

    route = "chat"
    path = "/chat/completions"
    stream = ChatStream

    def history(self, body: Body) -> RequestHistory:
        """See Dialect. Calls that an agent writes as text count as calls."""
        messages = self.conversation(body.value)
        chat = read_text_calls(messages, body.derive)
        if chat is None:
            return RequestHistory(messages)

        def read(written: Sequence[object]) -> Sequence[object]:
            again = read_text_calls(written, body.derive)
            return written if again is None else again.messages

        return RequestHistory(chat.messages, Form(chat, read))

    def offer_tools(self, request: JsonObject, schemas: Schemas = TOOL_SCHEMAS) -> list[object] | None:
        """See Dialect. Not with several answers, nor with ``functions``, the older form of tools."""
        if request.get("n") not in (None, 1) or request.get("functions") or request.get("function_call"):
            return None
        return _with_memory_tools(request, request.get("tool_choice"), schemas)

    def read_answer(self, answer: JsonObject, request: JsonObject) -> ModelTurn:  # noqa: ARG002
        choices = answer.get("choices")
        choice = as_object(choices[0]) if isinstance(choices, list) and len(choices) == 1 else {}
        message = as_object(choice.get("message"))
        calls: list[ModelToolCall] = []
        for i, call in enumerate(objects_of(message.get("tool_calls"))):
            function, item = as_object(call.get("function")), {**call}
            item["id"] = call.get("id") or f"call_memory_{i}"
            if function:
                item["function"] = {**function, "arguments": valid_arguments(function.get("arguments"))}
            calls.append(ModelToolCall(function.get("name"), function.get("arguments"), item))
        said = {k: v for k, v in message.items() if v is not None} | {
            "role": "assistant",
            "content": message.get("content"),
            "tool_calls": [c.item for c in calls],
        }
        return ModelTurn(calls, [said], as_object(answer.get("usage")))

    def result(self, call: ModelToolCall, answer: ToolAnswer) -> JsonObject | None:
        """See Dialect. Results of this API are text."""
        return {"role": "tool", "tool_call_id": call.item["id"], "content": answer.text}


class ResponsesDialect(Dialect):
    """The Responses API."""

    route = "responses"
    path = "/responses"
    key = "input"
    answer_key = "output"
    stream = ResponseStream

    def history(self, body: Body) -> RequestHistory:
        """See Dialect. Not where the provider holds a part of the conversation."""
        if (held := stands_alone(body.value)) is not None:
            raise NotRebuiltError(held)
        instructions = body.value.get("instructions")
        chat = from_items(self.conversation(body.value), instructions, body.derive)
        form = Form(chat, lambda written: from_items(written, instructions, body.derive).messages)
        return RequestHistory(chat.messages, form)

    def is_compaction(self, request: JsonObject) -> bool:
        last = objects_of(request.get(self.key))[-1:]
        return self.route == "compact" or any(item_type(i) == "compaction_trigger" for i in last)

    def offer_tools(self, request: JsonObject, schemas: Schemas = TOOL_SCHEMAS) -> list[object] | None:
        """See Dialect. Not for a response in the background, nor for a stored prompt, which has tools."""
        if request.get("background") or (request.get("prompt") is not None and not request.get("tools")):
            return None
        own = [{"type": "function", **s["function"]} for s in schemas]
        return _with_memory_tools(request, request.get("tool_choice"), own)

    def read_answer(self, answer: JsonObject, request: JsonObject) -> ModelTurn:
        """See Dialect. A call that text cannot answer is left out: the model makes it again."""
        calls: list[ModelToolCall] = []
        kept: list[object] = []
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
                kept.append(item)
        return ModelTurn(calls, kept, as_object(answer.get("usage")))

    def result(self, call: ModelToolCall, answer: ToolAnswer) -> JsonObject | None:
        kind = item_type(call.item)
        if kind not in _TEXT_ANSWERED:
            return None
        own = [p for p in answer.parts if p.get("type") in ("input_image", "input_file")]
        output: object = [{"type": "input_text", "text": answer.text}, *own] if own else answer.text
        return {"type": OUTPUT_OF[kind], "call_id": call.item.get("call_id"), "output": output}


_TEXT_ANSWERED = ("function_call", "custom_tool_call")


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
        chat = from_anthropic(self.conversation(request), prompt, body.derive, rule)
        form = Form(
            chat, lambda written: from_anthropic(written, prompt, body.derive).messages, thinking=rule
        )
        return RequestHistory(chat.messages, form)

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
        self, request: JsonObject, conversation: Sequence[object], *, stands: bool
    ) -> list[object] | None:
        return with_cache_marks(request, conversation, stands=stands)

    def offer_tools(self, request: JsonObject, schemas: Schemas = TOOL_SCHEMAS) -> list[object] | None:
        # its choices in the words of the other APIs
        choices = {"None": None, "auto": "auto", "any": "required"}
        choice = choices.get(str(as_object(request.get("tool_choice")).get("type")), "none")
        functions = [schema["function"] for schema in schemas]
        own = [
            {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}
            for f in functions
        ]
        return _with_memory_tools(request, choice, own)

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
        """See Dialect. User messages in a row count as one."""
        own = [p for p in answer.parts if p.get("type") in ("image", "document") and "source" in p]
        content: object = [{"type": "text", "text": answer.text}, *own] if own else answer.text
        block = {"type": "tool_result", "tool_use_id": call.item.get("id"), "content": content}
        return {"role": "user", "content": [block]}


DIALECTS: tuple[Dialect, ...] = (
    ChatDialect(),
    ResponsesDialect(),
    MessagesDialect(),
    ResponsesDialect("compact", "/responses/compact"),
    MessagesDialect("count_tokens", "/messages/count_tokens", counts_only=True),
    ResponsesDialect("input_tokens", "/responses/input_tokens", counts_only=True),
)


def _with_memory_tools(
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
    """What holds the tools that a request brings, also functions of a chat and items of the Responses API."""
    added = [i for i in objects_of(request.get("input")) if item_type(i) == "additional_tools"]
    return [{"tools": request.get("tools")}, {"tools": request.get("functions")}, *added]


def valid_arguments(arguments: object) -> str:
    """A call's arguments for the next request; ``{}`` for invalid JSON, which some providers refuse."""
    if not isinstance(arguments, str) or not arguments.strip() or "_raw" in parse_arguments(arguments):
        return "{}"
    return arguments
