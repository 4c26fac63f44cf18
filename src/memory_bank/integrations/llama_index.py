"""LlamaIndex: ``with_memory`` for a language model, and so for FunctionAgent and chat engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, Unpack

from memory_bank.errors import MessagesError, MissingExtraError
from memory_bank.integrations.bridge import Bridge, BridgeOptions, ModelCall
from memory_bank.transcript.anthropic import thinking_rule
from memory_bank.transcript.chat import edited_message
from memory_bank.transcript.jsontext import parse_arguments, plain
from memory_bank.transcript.messages import Call, MessageKind, calls_of, content_with
from memory_bank.transcript.turns import WHOLE, Change, ChatMessage, Part, PartWire

try:
    from llama_index.core.base.llms.types import ChatMessage as LlamaMessage
    from llama_index.core.base.llms.types import MessageRole, TextBlock, ThinkingBlock, ToolCallBlock
    from llama_index.core.llms import LLM
    from llama_index.core.tools import FunctionTool
except ImportError as e:
    raise MissingExtraError("LlamaIndex", "llama-index") from e

Model = TypeVar("Model", bound="LLM")
_SIGNATURES = "thought_signatures"


class LlamaIndexWire(PartWire[Any]):
    """See PartWire. The parts are blocks, and the calls in ``additional_kwargs`` where OpenAI's stand there."""

    def read(self, native: Any) -> dict[int, Part]:
        if not isinstance(native, LlamaMessage):
            raise MessagesError(f"{type(native).__name__} is not a ChatMessage of LlamaIndex.")
        role, extra = native.role.value, native.additional_kwargs
        if role in ("tool", "function"):
            call_id = extra.get("tool_call_id")
            return {WHOLE: Part(MessageKind.RESULT, _content(native), call_id, extra.get("name"))}
        if role not in ("assistant", "chatbot", "model"):
            kinds = {"system": MessageKind.SYSTEM, "developer": MessageKind.SYSTEM, "user": MessageKind.USER}
            return {WHOLE: Part(kinds.get(role, MessageKind.OTHER), _content(native))}
        parts: list[Part] = []
        for block, signature in zip(native.blocks, _signatures(native), strict=True):
            if isinstance(block, ToolCallBlock):
                text, is_signed = Call(None, "", plain(block.tool_kwargs)).text, bool(signature)
                parts.append(Part(MessageKind.CALL, text, block.tool_call_id, block.tool_name, is_signed))
            elif isinstance(block, ThinkingBlock):  # this is where Anthropic's signature stands
                is_signed = "signature" in block.additional_information
                parts.append(Part(MessageKind.REASONING, signed=is_signed))
            else:
                parts.append(Part(MessageKind.SAY, _block(block)))
        for call in _given_calls(native):
            parts.append(Part(MessageKind.CALL, call.text, call.call_id, call.name, call.signed))
        return dict(enumerate(parts)) or {WHOLE: Part(MessageKind.SAY)}

    def write(self, native: Any, change: Change) -> Any | None:
        if WHOLE in change:
            return native.model_copy(update={"blocks": [TextBlock(text=change[WHOLE])]})
        blocks: list[Any] = []
        signatures: list[Any] = []
        for number, (block, signature) in enumerate(zip(native.blocks, _signatures(native), strict=True)):
            text = change.get(number, "")
            if text and isinstance(block, ToolCallBlock):
                block = block.model_copy(update={"tool_kwargs": parse_arguments(text)})
            elif text:
                block = TextBlock(text=text)
            if text is not None:
                blocks.append(block)
                signatures.append(signature)
        extra, first = native.additional_kwargs, len(native.blocks)
        if _SIGNATURES in extra:
            extra = {**extra, _SIGNATURES: signatures}
        if any(number >= first for number in change):
            turn = {"role": "assistant", "tool_calls": extra["tool_calls"]}
            edited = edited_message(turn, {n - first: text for n, text in change.items() if n >= first}) or {}
            extra = {**extra, "tool_calls": edited.get("tool_calls", [])}
        if not blocks and not extra.get("tool_calls"):
            return None
        return native.model_copy(update={"blocks": blocks, "additional_kwargs": extra})

    def add(self, native: Any, text: str) -> Any:
        *others, last = native.blocks or [TextBlock(text="")]
        if not isinstance(last, TextBlock):
            others, last = [*others, last], TextBlock(text="")
        blocks = [*others, last.model_copy(update={"text": content_with(last.text, text)})]
        return native.model_copy(update={"blocks": blocks})

    def say(self, message: ChatMessage) -> Any:
        return LlamaMessage(role=MessageRole(message["role"]), content=message["content"])


WIRE = LlamaIndexWire()


def _signatures(native: Any) -> list[Any]:
    """Gemini's signature of each block of a message, or None."""
    signatures = native.additional_kwargs.get(_SIGNATURES) or []
    return [*signatures, *[None] * len(native.blocks)][: len(native.blocks)]


def _content(native: Any) -> Any:
    """The text of a message, or its parts where some are no text."""
    blocks = [b for b in native.blocks if not isinstance(b, ToolCallBlock | ThinkingBlock)]
    if all(isinstance(b, TextBlock) for b in blocks):
        return "\n".join(b.text for b in blocks)
    return [{"type": "text", "text": b.text} if isinstance(b, TextBlock) else _block(b) for b in blocks]


def _block(block: Any) -> Any:
    return block.text if isinstance(block, TextBlock) else {"type": str(block.block_type)}


def _given_calls(native: Any) -> list[Call]:
    calls = native.additional_kwargs.get("tool_calls")
    if not calls or any(isinstance(b, ToolCallBlock) for b in native.blocks):
        return []
    return calls_of({"role": "assistant", "tool_calls": calls})


def with_memory(
    llm: Model, *, session_id: str | None = None, **options: Unpack[BridgeOptions]
) -> tuple[Model, Bridge[Any]]:
    """A copy of a model that is sent rebuilt contexts, and the bridge; the agent's memory stays whole.

    ``session_id``: the session of all calls of the copy; without one it is found by the messages. ``options``
    are those of Bridge. Raises ConfigError, UnknownStrategyError, StorageError.
    """
    bridge: Bridge[Any] = Bridge(WIRE.read_all, **options)
    kind = type(llm)
    call = ModelCall(thinking=thinking_rule(getattr(llm, "thinking_dict", None)))

    class WithMemory(kind):  # type: ignore[valid-type,misc]
        """The model with memory: its four ways to chat get rebuilt messages."""

        def chat(self, messages: Sequence[Any], **options: Any) -> Any:
            return super().chat(bridge.rebuild(messages, session_id, **call), **options)

        def stream_chat(self, messages: Sequence[Any], **options: Any) -> Any:
            return super().stream_chat(bridge.rebuild(messages, session_id, **call), **options)

        async def achat(self, messages: Sequence[Any], **options: Any) -> Any:
            return await super().achat(await bridge.arebuild(messages, session_id, **call), **options)

        async def astream_chat(self, messages: Sequence[Any], **options: Any) -> Any:
            return await super().astream_chat(await bridge.arebuild(messages, session_id, **call), **options)

    WithMemory.__name__ = WithMemory.__qualname__ = kind.__name__
    copy = llm.model_copy()
    copy.__class__ = WithMemory
    return copy, bridge


def function_tools(bridge: Bridge[Any], session_id: str | None = None) -> list[Any]:
    """The memory tools of a bridge as FunctionTools, for a session."""
    functions = bridge.tools(session_id).items()
    return [FunctionTool.from_defaults(fn=fn, name=name, description=fn.__doc__) for name, fn in functions]
