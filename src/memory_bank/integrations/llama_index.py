"""LlamaIndex: ``with_memory`` for a language model, and so for FunctionAgent and chat engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, Unpack

from memory_bank.errors import MessagesError, MissingExtraError
from memory_bank.integrations.bridge import KEPT_ROLE, Bridge, BridgeOptions, ChatMessage, read_natives
from memory_bank.transcript.jsontext import parse_arguments, plain
from memory_bank.transcript.messages import Call, call_entry, calls_by_place, calls_of, content_text

try:
    from llama_index.core.base.llms.types import (
        ChatMessage as LlamaMessage,
    )
    from llama_index.core.base.llms.types import (
        MessageRole,
        TextBlock,
        ThinkingBlock,
        ToolCallBlock,
    )
    from llama_index.core.llms import LLM
    from llama_index.core.tools import FunctionTool
except ImportError as e:
    raise MissingExtraError("LlamaIndex", "llama-index") from e

Model = TypeVar("Model", bound="LLM")

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_ROLES |= {"chatbot": "assistant", "model": "assistant", "function": "function"}


class LlamaIndexWire:
    """See Wire. Calls stand in the blocks of a message, or in ``additional_kwargs`` as OpenAI's objects."""

    def read(self, native: Any) -> list[ChatMessage]:
        if not isinstance(native, LlamaMessage):
            raise MessagesError(f"{type(native).__name__} is not a ChatMessage of LlamaIndex.")
        role = _ROLES.get(native.role.value, KEPT_ROLE)
        message: ChatMessage = {"role": role, "content": _content(native)}
        if role in ("tool", "function"):
            call_id = native.additional_kwargs.get("tool_call_id")
            name = native.additional_kwargs.get("name")
            message |= {"tool_call_id": call_id} if call_id is not None else {}
            return [message | {"name": name} if name else message]
        calls = _calls(native) if role == "assistant" else []
        if calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = [call_entry(c.call_id, c.name, c.text) for c in calls]
        return [message]

    def rewrite(self, native: Any, messages: Sequence[ChatMessage | None]) -> Any | None:
        [message] = messages
        if message is None:
            return None
        if not message.get("tool_calls"):
            return native.model_copy(update={"blocks": [TextBlock(text=content_text(message["content"]))]})
        [old] = self.read(native)
        kept = calls_by_place(message, old)
        calls = iter(range(len(old["tool_calls"])))
        text = content_text(message["content"])
        blocks: list[Any] = []
        for block in native.blocks:
            if isinstance(block, ToolCallBlock):
                call = next(calls)
                if call not in kept:
                    continue
                if kept[call] != old["tool_calls"][call]:
                    arguments = parse_arguments(kept[call]["function"]["arguments"])
                    block = block.model_copy(update={"tool_kwargs": arguments})
            elif not isinstance(block, ThinkingBlock) and message["content"] != old["content"]:
                if not text:
                    continue
                block, text = TextBlock(text=text), ""
            blocks.append(block)
        return native.model_copy(update={"blocks": blocks})

    def say(self, message: ChatMessage) -> Any:
        return LlamaMessage(role=MessageRole(message["role"]), content=message["content"])


WIRE = LlamaIndexWire()


def _content(native: Any) -> Any:
    """The text of a message, or its parts where some are no text."""
    blocks = [b for b in native.blocks if not isinstance(b, ToolCallBlock | ThinkingBlock)]
    if all(isinstance(b, TextBlock) for b in blocks):
        return "\n".join(b.text for b in blocks)
    return [
        {"type": "text", "text": b.text} if isinstance(b, TextBlock) else {"type": str(b.block_type)}
        for b in blocks
    ]


def _calls(native: Any) -> list[Call]:
    blocks = [b for b in native.blocks if isinstance(b, ToolCallBlock)]
    if blocks:
        return [Call(b.tool_call_id, b.tool_name, plain(b.tool_kwargs)) for b in blocks]
    given = native.additional_kwargs.get("tool_calls")
    return calls_of({"role": "assistant", "tool_calls": given}) if given else []


def with_memory(
    llm: Model, *, session_id: str | None = None, **options: Unpack[BridgeOptions]
) -> tuple[Model, Bridge[Any]]:
    """A copy of a model that is sent rebuilt contexts, and the bridge; the agent's memory stays whole.

    ``session_id``: the session of all calls of the copy; without one it is found by the messages. ``options``
    are those of Bridge. Raises ConfigError, UnknownStrategyError, StorageError.
    """
    bridge: Bridge[Any] = Bridge(lambda natives, system: read_natives(natives, WIRE, system), **options)
    kind = type(llm)

    class WithMemory(kind):  # type: ignore[valid-type,misc]
        """The model with memory: its four ways to chat get rebuilt messages."""

        def chat(self, messages: Sequence[Any], **given: Any) -> Any:
            return super().chat(bridge.rebuild(messages, session_id), **given)

        def stream_chat(self, messages: Sequence[Any], **given: Any) -> Any:
            return super().stream_chat(bridge.rebuild(messages, session_id), **given)

        async def achat(self, messages: Sequence[Any], **given: Any) -> Any:
            return await super().achat(await bridge.arebuild(messages, session_id), **given)

        async def astream_chat(self, messages: Sequence[Any], **given: Any) -> Any:
            return await super().astream_chat(await bridge.arebuild(messages, session_id), **given)

    WithMemory.__name__ = WithMemory.__qualname__ = kind.__name__
    copy = llm.model_copy()
    copy.__class__ = WithMemory
    return copy, bridge


def function_tools(bridge: Bridge[Any], session_id: str | None = None) -> list[Any]:
    """The memory tools of a bridge as FunctionTools, for a session."""
    return [
        FunctionTool.from_defaults(fn=fn, name=name, description=fn.__doc__)
        for name, fn in bridge.tools(session_id).items()
    ]
