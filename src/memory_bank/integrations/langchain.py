"""LangChain: MemoryBankMiddleware for ``create_agent``, and so for LangGraph and Deep Agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Unpack

from memory_bank.errors import MessagesError, MissingExtraError
from memory_bank.integrations.bridge import Bridge, BridgeOptions, ChatMessage, read_natives, strip_natives
from memory_bank.tools import TOOL_SCHEMAS
from memory_bank.transcript.anthropic import thinking_rule
from memory_bank.transcript.jsontext import compact, parse_arguments
from memory_bank.transcript.messages import call_entry, calls_by_place, content_text

try:
    from langchain.agents.middleware import AgentMiddleware, ModelRequest
    from langchain.tools import ToolRuntime
    from langchain_core.messages import (
        AIMessage,
        BaseMessage,
        FunctionMessage,
        HumanMessage,
        SystemMessage,
        ToolMessage,
    )
    from langchain_core.messages import (
        ChatMessage as RoleMessage,
    )
    from langchain_core.tools import BaseTool, StructuredTool
except ImportError as e:
    raise MissingExtraError("LangChain", "langchain") from e

_CALL_BLOCKS = frozenset({"function_call", "tool_call", "tool_use", "custom_tool_call", "tool_call_chunk"})
_HIDDEN_BLOCKS = frozenset({"reasoning", "thinking", "redacted_thinking", "invalid_tool_call"})

_SIGNED_BLOCKS = frozenset({"thinking", "redacted_thinking"})


class LangChainWire:
    """See Wire."""

    def read(self, native: BaseMessage) -> list[ChatMessage]:
        content = native.content
        if isinstance(native, ToolMessage):
            message: ChatMessage = {"role": "tool", "tool_call_id": native.tool_call_id, "content": content}
            return [message | {"name": native.name} if native.name else message]
        if isinstance(native, AIMessage):
            return [_assistant(native)]
        if isinstance(native, HumanMessage):
            return [{"role": "user", "content": content}]
        if isinstance(native, SystemMessage):
            return [{"role": "system", "content": content}]
        if isinstance(native, FunctionMessage):
            return [{"role": "function", "name": native.name, "content": content}]
        if isinstance(native, RoleMessage):
            return [{"role": native.role, "content": content}]
        raise MessagesError(
            f"{type(native).__name__} is not a message of LangChain that memory can read: pass objects of "
            "langchain_core.messages."
        )

    def rewrite(self, native: BaseMessage, messages: Sequence[ChatMessage | None]) -> BaseMessage | None:
        message = messages[0]
        if message is None:
            return None
        if isinstance(native, AIMessage):
            return _changed(native, message)
        return native.model_copy(update={"content": message["content"]})

    def say(self, message: ChatMessage) -> BaseMessage:
        kind = HumanMessage if message["role"] == "user" else SystemMessage
        return kind(content=message["content"])

    def without_thinking(self, native: BaseMessage) -> BaseMessage | None:
        if not isinstance(native, AIMessage) or not isinstance(native.content, list):
            return native
        signed = _SIGNED_BLOCKS
        if native.response_metadata.get("model_provider") == "anthropic":
            signed = signed | {"reasoning"}  # their name in LangChain's own blocks
        rest = [b for b in native.content if not isinstance(b, dict) or b.get("type") not in signed]
        if len(rest) == len(native.content):
            return native
        return native.model_copy(update={"content": rest}) if rest or native.tool_calls else None


WIRE = LangChainWire()


def _assistant(native: AIMessage) -> ChatMessage:
    content = native.content
    if isinstance(content, list):
        hidden = _CALL_BLOCKS | _HIDDEN_BLOCKS
        content = [b for b in content if not isinstance(b, dict) or b.get("type") not in hidden]
    calls = [call_entry(c["id"], c["name"], compact(c["args"])) for c in native.tool_calls]
    calls += [call_entry(c["id"], c["name"] or "unknown", c["args"] or "") for c in native.invalid_tool_calls]
    message: ChatMessage = {"role": "assistant", "content": content or (None if calls else "")}
    return message | {"tool_calls": calls} if calls else message


def _changed(native: AIMessage, message: ChatMessage) -> AIMessage:
    """The message with other words, and with other arguments of its calls where they do not stand in its content."""
    old = _assistant(native)
    changes: dict[str, Any] = {}
    if message.get("content") != old["content"]:
        changes["content"] = _with_words(native.content, content_text(message.get("content")))
    blocks = native.content if isinstance(native.content, list) else []
    has_blocks = any(isinstance(b, dict) and b.get("type") in _CALL_BLOCKS for b in blocks)
    if message.get("tool_calls") != old.get("tool_calls") and not (has_blocks or native.invalid_tool_calls):
        kept = calls_by_place(message, old)
        changes["tool_calls"] = [
            {**call, "args": parse_arguments(kept[place]["function"]["arguments"])}
            for place, call in enumerate(native.tool_calls)
            if place in kept
        ]
        extra = native.additional_kwargs.items()
        changes["additional_kwargs"] = {k: v for k, v in extra if k != "tool_calls"}
    return native.model_copy(update=changes)


def _with_words(content: Any, text: str) -> Any:
    """A content with another text, in the place of its first one; what is hidden stays."""
    if not isinstance(content, list):
        return text
    blocks: list[Any] = []
    for block in content:
        if isinstance(block, dict) and block.get("type") in _CALL_BLOCKS | _HIDDEN_BLOCKS:
            blocks.append(block)
        elif text:
            blocks.append({"type": "text", "text": text})
            text = ""
    return blocks


class MemoryBankMiddleware(AgentMiddleware):
    """Sends the model a rebuilt context; the agent's state keeps the whole history.

    ``create_agent(model, tools, middleware=[MemoryBankMiddleware()])``. A session is a thread of the agent's
    checkpointer; without one, and in agents that another agent calls, it is found by the messages.
    ``offer_tools``: whether the agent gets search_memory, get_record and list_records. ``options`` are those of
    Bridge. Raises ConfigError, UnknownStrategyError, StorageError.
    """

    def __init__(self, *, offer_tools: bool = True, **options: Unpack[BridgeOptions]) -> None:
        super().__init__()
        self.bridge: Bridge[BaseMessage] = Bridge(
            lambda natives, system: read_natives(natives, WIRE, system), **options
        )
        self.tools: Sequence[BaseTool] = self._tools() if offer_tools else []
        self.bridge.offered = TOOL_SCHEMAS if offer_tools else ()

    def wrap_model_call(self, request: ModelRequest, handler: Callable[[ModelRequest], Any]) -> Any:
        """Call the model with a rebuilt context."""
        messages = self.bridge.rebuild(request.messages, _thread(request.runtime), system=_system(request))
        return handler(request.override(messages=_stripped(messages, request)))

    async def awrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], Awaitable[Any]]
    ) -> Any:
        """Call the model with a rebuilt context."""
        messages = await self.bridge.arebuild(
            request.messages, _thread(request.runtime), system=_system(request)
        )
        return await handler(request.override(messages=_stripped(messages, request)))

    def _tools(self) -> list[BaseTool]:
        return [self._tool(schema["function"]) for schema in TOOL_SCHEMAS]

    def _tool(self, schema: dict[str, Any]) -> BaseTool:
        name = schema["name"]

        def call(runtime: ToolRuntime, **arguments: Any) -> str:
            return self.bridge.answer(name, arguments, _thread(runtime), runtime.state["messages"])

        async def acall(runtime: ToolRuntime, **arguments: Any) -> str:
            return await self.bridge.aanswer(name, arguments, _thread(runtime), runtime.state["messages"])

        return StructuredTool.from_function(
            call, acall, name=name, description=schema["description"], args_schema=schema["parameters"]
        )


def _stripped(rebuilt: Sequence[BaseMessage], request: ModelRequest) -> list[Any]:
    """The rebuilt messages without thinking whose signature no longer fits."""
    thinking = request.model_settings.get("thinking") or getattr(request.model, "thinking", None)
    return strip_natives(rebuilt, request.messages, WIRE, thinking_rule(thinking))


def _thread(runtime: Any) -> str | None:
    """The thread of the outermost agent; None for an agent within it, which has messages of its own."""
    info = getattr(runtime, "execution_info", None)
    if info is None or "|" in (info.checkpoint_ns or ""):
        return None
    return None if info.thread_id is None else str(info.thread_id)


def _system(request: ModelRequest) -> str | None:
    return None if request.system_message is None else str(request.system_message.text)
