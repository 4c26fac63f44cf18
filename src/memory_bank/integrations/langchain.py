"""LangChain: MemoryBankMiddleware for ``create_agent``, and so for LangGraph and Deep Agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Unpack

from memory_bank.errors import MessagesError, MissingExtraError
from memory_bank.integrations.bridge import Bridge, BridgeOptions, ModelCall
from memory_bank.ports import ToolFunction
from memory_bank.transcript.anthropic import thinking_rule
from memory_bank.transcript.chat import content_like
from memory_bank.transcript.jsontext import compact, parse_arguments
from memory_bank.transcript.messages import MessageKind, content_with, kind_of, read
from memory_bank.transcript.turns import Change, ChatMessage, Part, PartWire

try:
    from langchain.agents.middleware import AgentMiddleware, ModelRequest
    from langchain.tools import ToolRuntime
    from langchain_core import messages as lc
    from langchain_core.messages import ChatMessage as RoleMessage
    from langchain_core.tools import BaseTool, StructuredTool
except ImportError as e:
    raise MissingExtraError("LangChain", "langchain") from e

_CALL_BLOCKS = frozenset({"function_call", "tool_call", "tool_use", "custom_tool_call", "tool_call_chunk"})
_OPAQUE_BLOCKS = frozenset(
    {"reasoning", "reasoning_content", "thinking", "redacted_thinking", "invalid_tool_call"}
)
_GEMINI = "__gemini_function_call_thought_signatures__"
"""Where LangChain keeps Gemini's signatures of a message's calls, by their ids."""


class LangChainWire(PartWire[lc.BaseMessage]):
    """See PartWire. The parts are the blocks of a content, or the content as a whole; then the calls."""

    def read(self, native: lc.BaseMessage) -> dict[int, Part]:
        content: Any = native.content
        if isinstance(native, lc.ToolMessage):
            return {0: Part(MessageKind.RESULT, content, native.tool_call_id, native.name)}
        if isinstance(native, lc.FunctionMessage):
            return {0: Part(MessageKind.RESULT, content, None, native.name)}
        if isinstance(native, lc.HumanMessage | lc.SystemMessage | RoleMessage):
            role = native.role if isinstance(native, RoleMessage) else ""
            kind = MessageKind.USER if isinstance(native, lc.HumanMessage) else MessageKind.SYSTEM
            return {0: Part(kind_of({"role": role}) if role else kind, content)}
        if not isinstance(native, lc.AIMessage):
            raise MessagesError(
                f"{type(native).__name__} is not a message of LangChain that memory can read: pass objects of "
                "langchain_core.messages."
            )
        signed = {"thinking", "redacted_thinking"}
        if native.response_metadata.get("model_provider") == "anthropic":
            signed.add("reasoning")  # their name in LangChain's own blocks
        parts: list[Part] = []
        for block in content if isinstance(content, list) else [content]:
            kind = _type(block)
            is_opaque = kind in _CALL_BLOCKS | _OPAQUE_BLOCKS or (_is_signed(block) and not block.get("text"))
            kind_of_part = MessageKind.REASONING if is_opaque else MessageKind.SAY
            parts.append(Part(kind_of_part, block, signed=kind in signed))
        extra = native.additional_kwargs
        details = [read(d, "id") for d in extra.get("reasoning_details") or ()]
        for call in native.tool_calls:
            is_signed = call["id"] in details or call["id"] in (extra.get(_GEMINI) or ())
            parts.append(Part(MessageKind.CALL, compact(call["args"]), call["id"], call["name"], is_signed))
        for bad in native.invalid_tool_calls:
            parts.append(Part(MessageKind.CALL, bad["args"] or "", bad["id"], bad["name"] or "unknown"))
        return dict(enumerate(parts))

    def write(self, native: lc.BaseMessage, change: Change) -> lc.BaseMessage | None:
        if not isinstance(native, lc.AIMessage):
            return native.model_copy(update={"content": content_like(native.content, change[0])})
        blocks: list[Any] = native.content if isinstance(native.content, list) else [native.content]
        all_calls: list[Any] = [*native.tool_calls, *native.invalid_tool_calls]
        calls = {n: c for n, c in enumerate(all_calls, len(blocks)) if change.get(n, "") is not None}
        gone = {call["id"] for number, call in enumerate(all_calls, len(blocks)) if number not in calls}
        if not native.invalid_tool_calls and not any(_type(b) in _CALL_BLOCKS for b in blocks):
            calls |= {
                n: {**call, "args": parse_arguments(change[n])} for n, call in calls.items() if change.get(n)
            }
        left: list[Any] = []
        for number, block in enumerate(blocks):
            text = change.get(number, "")
            is_call = _type(block) in _CALL_BLOCKS
            if text is None or (is_call and (block.get("id") in gone or block.get("call_id") in gone)):
                continue
            new: Any = {"type": "text", "text": text} if isinstance(native.content, list) else text
            if text and _is_signed(block):
                new["extras"] = {"signature": block["extras"]["signature"]}
            left.append(new if text else block)
        changes: dict[str, Any] = {"content": left if isinstance(native.content, list) else "".join(left)}
        if list(calls.values()) != all_calls:
            first_bad = len(blocks) + len(native.tool_calls)
            changes["tool_calls"] = [call for number, call in calls.items() if number < first_bad]
            changes["invalid_tool_calls"] = [call for number, call in calls.items() if number >= first_bad]
            extra = native.additional_kwargs.items()
            changes["additional_kwargs"] = {k: v for k, v in extra if k != "tool_calls"}
        return native.model_copy(update=changes) if left or calls else None

    def add(self, native: lc.BaseMessage, text: str) -> lc.BaseMessage:
        return native.model_copy(update={"content": content_with(native.content, text)})

    def say(self, message: ChatMessage) -> lc.BaseMessage:
        kind = lc.HumanMessage if message["role"] == "user" else lc.SystemMessage
        return kind(content=message["content"])


def _type(block: Any) -> Any:
    return block.get("type") if isinstance(block, dict) else None


def _is_signed(block: Any) -> bool:
    """Return whether a block has Gemini's signature beside its text."""
    return bool(read(read(block, "extras"), "signature"))


WIRE = LangChainWire()


class MemoryBankMiddleware(AgentMiddleware):
    """Sends the model a rebuilt context; the agent's state keeps the whole history.

    ``create_agent(model, tools, middleware=[MemoryBankMiddleware()])``. A session is a thread of the agent's
    checkpointer; without one, and in agents that another agent calls, it is found by the messages.
    The agent gets the memory tool, get_record. ``options`` are those of Bridge. Raises ConfigError,
    UnknownStrategyError, StorageError.
    """

    def __init__(self, **options: Unpack[BridgeOptions]) -> None:
        super().__init__()
        self.bridge: Bridge[lc.BaseMessage] = Bridge(WIRE.read_all, **options)
        self.tools: Sequence[BaseTool] = [*map(self._tool, self.bridge.offer())]

    def wrap_model_call(self, request: ModelRequest, handler: Callable[[ModelRequest], Any]) -> Any:
        """Call the model with a rebuilt context."""
        messages = self.bridge.rebuild(request.messages, _thread(request.runtime), **_facts(request))
        return handler(request.override(messages=messages))

    async def awrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], Awaitable[Any]]
    ) -> Any:
        """Call the model with a rebuilt context."""
        messages = await self.bridge.arebuild(request.messages, _thread(request.runtime), **_facts(request))
        return await handler(request.override(messages=messages))

    def _tool(self, schema: ToolFunction) -> BaseTool:
        name = schema["name"]

        def call(runtime: ToolRuntime, **arguments: Any) -> str:
            return self.bridge.answer(name, arguments, _thread(runtime), runtime.state["messages"])

        async def acall(runtime: ToolRuntime, **arguments: Any) -> str:
            return await self.bridge.aanswer(name, arguments, _thread(runtime), runtime.state["messages"])

        return StructuredTool.from_function(
            call, acall, name=name, description=schema["description"], args_schema=schema["parameters"]
        )


def _facts(request: ModelRequest) -> ModelCall:
    system = None if request.system_message is None else str(request.system_message.text)
    thinking = request.model_settings.get("thinking") or getattr(request.model, "thinking", None)
    return ModelCall(system=system, thinking=thinking_rule(thinking))


def _thread(runtime: Any) -> str | None:
    """The thread of the outermost agent; None for an agent within it, which has messages of its own."""
    info = getattr(runtime, "execution_info", None)
    if info is None or "|" in (info.checkpoint_ns or ""):
        return None
    return None if info.thread_id is None else str(info.thread_id)
