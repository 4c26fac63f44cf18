"""Pydantic AI: MemoryBank, a capability for ``Agent(capabilities=[…])``."""

from __future__ import annotations

import dataclasses
from collections.abc import Container
from typing import Any, Unpack

from memory_bank.errors import MessagesError, MissingExtraError
from memory_bank.integrations.bridge import Bridge, BridgeOptions
from memory_bank.ports import ToolFunction
from memory_bank.transcript.anthropic import Thinking, thinking_rule
from memory_bank.transcript.messages import SIGNATURES, MessageKind, content_with
from memory_bank.transcript.turns import Change, ChatMessage, Part, PartWire

try:
    from pydantic_ai import RunContext, Tool
    from pydantic_ai import messages as pai
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.models import ModelRequestContext
    from pydantic_ai.toolsets import FunctionToolset
except ImportError as e:
    raise MissingExtraError("Pydantic AI", "pydantic-ai") from e


class PydanticAIWire(PartWire[pai.ModelMessage]):
    """See PartWire."""

    def read(self, native: pai.ModelMessage) -> dict[int, Part]:
        if isinstance(native, pai.ModelRequest | pai.ModelResponse):
            thoughts = {part.id for part in native.parts if isinstance(part, pai.ThinkingPart)}
            return {number: _read_part(part, thoughts) for number, part in enumerate(native.parts)}
        raise MessagesError(
            f"{type(native).__name__} is not a message of Pydantic AI: pass ModelRequest and ModelResponse."
        )

    def write(self, native: pai.ModelMessage, change: Change) -> pai.ModelMessage | None:
        parts: list[Any] = []
        for number, part in enumerate(native.parts):
            text = change.get(number, "")
            if text is not None:
                key = "args" if isinstance(part, pai.ToolCallPart) else "content"
                parts.append(dataclasses.replace(part, **{key: text}) if number in change else part)
        return dataclasses.replace(native, parts=parts) if parts else None

    def add(self, native: pai.ModelMessage, text: str) -> pai.ModelMessage:
        at, part = [(n, p) for n, p in enumerate(native.parts) if isinstance(p, pai.UserPromptPart)][-1]
        prompt = part.content
        content = content_with(prompt, text) if isinstance(prompt, str) else [*prompt, text]
        parts = [*native.parts[:at], dataclasses.replace(part, content=content), *native.parts[at + 1 :]]
        return dataclasses.replace(native, parts=parts)

    def say(self, message: ChatMessage) -> pai.ModelMessage:
        kind = pai.UserPromptPart if message["role"] == "user" else pai.SystemPromptPart
        return pai.ModelRequest(parts=[kind(message["content"])])


WIRE = PydanticAIWire()


def _read_part(part: Any, thoughts: Container[str | None]) -> Part:
    """The Part of a part of a message; ``thoughts``: ids of its thinking, with OpenRouter those of signed calls."""
    if isinstance(part, pai.ToolReturnPart):
        content: Any = part.model_response_str()
        if part.files:
            content = [_text(content), *({"type": "file"} for _ in part.files)]
        return Part(MessageKind.RESULT, content, part.tool_call_id, part.tool_name)
    if isinstance(part, pai.RetryPromptPart) and part.tool_name is not None:
        return Part(MessageKind.RESULT, part.model_response(), part.tool_call_id, part.tool_name)
    if isinstance(part, pai.SystemPromptPart):
        return Part(MessageKind.SYSTEM, part.content)
    if isinstance(part, pai.UserPromptPart):
        is_text = isinstance(part.content, str)
        return Part(MessageKind.USER, part.content if is_text else [_content_part(c) for c in part.content])
    if isinstance(part, pai.TextPart):
        return Part(MessageKind.SAY, part.content)
    if isinstance(part, pai.ToolCallPart):
        signed = part.tool_call_id in thoughts or any(
            name in SIGNATURES for name in part.provider_details or ()
        )
        return Part(MessageKind.CALL, part.args_as_json_str(), part.tool_call_id, part.tool_name, signed)
    if isinstance(part, pai.ThinkingPart):
        signed = bool(part.signature) and part.provider_name == "anthropic"
        return Part(MessageKind.REASONING, signed=signed)
    content = getattr(part, "content", "")  # a provider's tools, files
    return Part(MessageKind.OTHER, content if isinstance(content, str) else "")


def _content_part(part: Any) -> dict[str, str]:
    if isinstance(part, str):
        return _text(part)
    text = getattr(part, "content", None)
    return _text(text) if isinstance(text, str) else {"type": str(getattr(part, "kind", "file"))}


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _rule(request_context: ModelRequestContext) -> Thinking:
    """Return how to treat Claude's thinking in earlier turns, by the settings of the request."""
    settings: Any = request_context.model_settings or {}
    if thinking := settings.get("anthropic_thinking"):
        return thinking_rule(thinking)
    is_adaptive = request_context.model.profile.get("anthropic_supports_adaptive_thinking", False)
    return Thinking.KEEP_LATER if settings.get("thinking") and not is_adaptive else Thinking.DROP


class MemoryBank(AbstractCapability[Any]):
    """Sends the model a rebuilt context; ``all_messages()`` keeps the whole history.

    ``Agent(model, capabilities=[MemoryBank()])``. A session is a conversation: ``conversation_id``, which runs
    share that are given each other's messages. The agent gets the memory tool, get_record. ``options`` are those of
    Bridge.
    """

    def __init__(self, **options: Unpack[BridgeOptions]) -> None:
        super().__init__()
        self.bridge: Bridge[pai.ModelMessage] = Bridge(WIRE.read_all, **options)
        self._tools = [*map(self._tool, self.bridge.offer())]

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """The request with a rebuilt context."""
        messages = request_context.messages
        instructions = next(
            (m.instructions for m in reversed(messages) if isinstance(m, pai.ModelRequest)), None
        )
        rebuilt = await self.bridge.arebuild(
            messages, ctx.conversation_id, system=instructions, thinking=_rule(request_context)
        )
        return dataclasses.replace(request_context, messages=rebuilt)

    def get_toolset(self) -> FunctionToolset[Any]:
        """The memory tools, as the agent gets them."""
        return FunctionToolset(tools=self._tools)

    def _tool(self, schema: ToolFunction) -> Tool[Any]:
        async def call(ctx: RunContext[Any], **arguments: Any) -> str:
            return await self.bridge.aanswer(schema["name"], arguments, ctx.conversation_id, ctx.messages)

        return Tool.from_schema(
            call, schema["name"], schema["description"], schema["parameters"], takes_ctx=True
        )
