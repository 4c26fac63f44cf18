"""Pydantic AI: MemoryBank, a capability for ``Agent(capabilities=[…])``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Unpack

from memory_bank.errors import MessagesError, MissingExtraError
from memory_bank.integrations.bridge import (
    KEPT_ROLE,
    Bridge,
    BridgeOptions,
    ChatMessage,
    read_natives,
    strip_natives,
)
from memory_bank.tools import TOOL_SCHEMAS
from memory_bank.transcript.anthropic import Thinking, thinking_rule
from memory_bank.transcript.messages import call_entry, calls_by_place, content_text

try:
    from pydantic_ai import RunContext, Tool
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.messages import (
        ModelMessage,
        ModelRequest,
        ModelResponse,
        RetryPromptPart,
        SystemPromptPart,
        TextPart,
        ThinkingPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )
    from pydantic_ai.models import ModelRequestContext
    from pydantic_ai.toolsets import FunctionToolset
except ImportError as e:
    raise MissingExtraError("Pydantic AI", "pydantic-ai") from e


class PydanticAIWire:
    """See Wire. A request is one chat message for each part; a response one, and one for parts kept whole."""

    def read(self, native: ModelMessage) -> list[ChatMessage]:
        if isinstance(native, ModelRequest):
            return [_read_part(part) for part in native.parts]
        if isinstance(native, ModelResponse):
            return _read_response(native)
        raise MessagesError(
            f"{type(native).__name__} is not a message of Pydantic AI: pass ModelRequest and ModelResponse."
        )

    def rewrite(self, native: ModelMessage, messages: Sequence[ChatMessage | None]) -> ModelMessage | None:
        if isinstance(native, ModelResponse):
            return None if messages[0] is None else _changed(native, messages[0])
        parts = [
            _with_text(part, message)
            for part, message in zip(native.parts, messages, strict=True)
            if message is not None
        ]
        return dataclasses.replace(native, parts=parts) if parts else None

    def say(self, message: ChatMessage) -> ModelMessage:
        kind = UserPromptPart if message["role"] == "user" else SystemPromptPart
        return ModelRequest(parts=[kind(message["content"])])

    def without_thinking(self, native: ModelMessage) -> ModelMessage | None:
        if not isinstance(native, ModelResponse):
            return native
        parts = [
            p
            for p in native.parts
            if not (isinstance(p, ThinkingPart) and p.signature and p.provider_name == "anthropic")
        ]
        if len(parts) == len(native.parts):
            return native
        return dataclasses.replace(native, parts=parts) if parts else None


WIRE = PydanticAIWire()


def _read_part(part: Any) -> ChatMessage:
    if isinstance(part, ToolReturnPart):
        content: Any = part.model_response_str()
        if part.files:
            content = [_text(content), *({"type": "file"} for _ in part.files)]
        head = {"role": "tool", "tool_call_id": part.tool_call_id, "name": part.tool_name}
        return {**head, "content": content}
    if isinstance(part, RetryPromptPart) and part.tool_name is not None:
        head = {"role": "tool", "tool_call_id": part.tool_call_id, "name": part.tool_name}
        return {**head, "content": part.model_response()}
    if isinstance(part, SystemPromptPart):
        return {"role": "system", "content": part.content}
    if isinstance(part, UserPromptPart):
        return {"role": "user", "content": _user_content(part.content)}
    content = getattr(part, "content", "")
    return {"role": KEPT_ROLE, "content": content if isinstance(content, str) else ""}


def _user_content(content: Any) -> Any:
    return content if isinstance(content, str) else [_content_part(c) for c in content]


def _content_part(part: Any) -> dict[str, str]:
    if isinstance(part, str):
        return _text(part)
    text = getattr(part, "content", None)
    return _text(text) if isinstance(text, str) else {"type": str(getattr(part, "kind", "file"))}


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _read_response(native: ModelResponse) -> list[ChatMessage]:
    said = "\n".join(p.content for p in native.parts if isinstance(p, TextPart))
    calls = [
        call_entry(p.tool_call_id, p.tool_name, p.args_as_json_str())
        for p in native.parts
        if isinstance(p, ToolCallPart)
    ]
    message: ChatMessage = {"role": "assistant", "content": said or (None if calls else "")}
    messages = [message | {"tool_calls": calls} if calls else message]
    read = (TextPart, ThinkingPart, ToolCallPart)
    if not all(isinstance(p, read) for p in native.parts):  # provider's tools, files: kept with their turn
        messages.append({"role": KEPT_ROLE, "content": ""})
    return messages


def _changed(native: ModelResponse, message: ChatMessage) -> ModelResponse | None:
    """The response with other words and other arguments of its calls; None where nothing is left."""
    old = _read_response(native)[0]
    keeps_words = message.get("content") == old["content"]
    text = content_text(message.get("content"))
    kept = calls_by_place(message, old)
    calls = iter(range(len(old.get("tool_calls", ()))))
    parts: list[Any] = []
    for part in native.parts:
        if isinstance(part, ToolCallPart):
            call = next(calls)
            if call not in kept:
                continue
            arguments = kept[call]["function"]["arguments"]
            if arguments != part.args_as_json_str():
                part = dataclasses.replace(part, args=arguments)
        elif isinstance(part, TextPart) and not keeps_words:
            if not text:
                continue
            part, text = dataclasses.replace(part, content=text), ""
        parts.append(part)
    return dataclasses.replace(native, parts=parts) if parts else None


def _with_text(part: Any, message: ChatMessage) -> Any:
    """The part with the content of a chat message, where that differs from its own."""
    content = message["content"]
    if not isinstance(part, ToolReturnPart | RetryPromptPart) or content == _read_part(part)["content"]:
        return part
    return dataclasses.replace(part, content=content_text(content))


def _rule(request_context: ModelRequestContext) -> Thinking:
    """What becomes of Anthropic's thinking under the settings of a request."""
    settings: Any = request_context.model_settings or {}
    if thinking := settings.get("anthropic_thinking"):
        return thinking_rule(thinking)
    is_adaptive = request_context.model.profile.get("anthropic_supports_adaptive_thinking", False)
    return Thinking.KEEP_LAST if settings.get("thinking") and not is_adaptive else Thinking.DROP


class MemoryBank(AbstractCapability[Any]):
    """Sends the model a rebuilt context; ``all_messages()`` keeps the whole history.

    ``Agent(model, capabilities=[MemoryBank()])``. A session is a conversation: ``conversation_id``, which runs
    share that are given each other's messages. ``offer_tools``: whether the agent gets search_memory,
    get_record and list_records. ``options`` are those of Bridge.
    """

    def __init__(self, *, offer_tools: bool = True, **options: Unpack[BridgeOptions]) -> None:
        super().__init__()
        self.bridge: Bridge[ModelMessage] = Bridge(
            lambda natives, system: read_natives(natives, WIRE, system), **options
        )
        self._offer_tools = offer_tools
        self.bridge.offered = TOOL_SCHEMAS if offer_tools else ()

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """The request with a rebuilt context."""
        messages = request_context.messages
        instructions = next((m.instructions for m in reversed(messages) if isinstance(m, ModelRequest)), None)
        rebuilt = await self.bridge.arebuild(messages, ctx.conversation_id, system=instructions)
        rebuilt = strip_natives(rebuilt, messages, WIRE, _rule(request_context))
        return dataclasses.replace(request_context, messages=rebuilt)

    def get_toolset(self) -> FunctionToolset[Any] | None:
        """The memory tools, as the agent gets them."""
        if not self._offer_tools:
            return None
        return FunctionToolset(tools=[self._tool(schema["function"]) for schema in TOOL_SCHEMAS])

    def _tool(self, schema: dict[str, Any]) -> Tool[Any]:
        async def call(ctx: RunContext[Any], **arguments: Any) -> str:
            return await self.bridge.aanswer(schema["name"], arguments, ctx.conversation_id, ctx.messages)

        return Tool.from_schema(
            call, schema["name"], schema["description"], schema["parameters"], takes_ctx=True
        )
