"""OpenAI Agents SDK: MemoryBankFilter for ``RunConfig(call_model_input_filter=…)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from memory_bank.errors import ConfigError, MissingExtraError
from memory_bank.integrations.bridge import Bridge, BridgeOptions
from memory_bank.ports import ToolFunction
from memory_bank.transcript.responses import CALL_OF, Item, call_id_of, from_items, item_type
from memory_bank.transcript.turns import Conversation

try:
    from agents import FunctionTool, Tool
    from agents.run import CallModelData, ModelInputData
    from agents.tool_context import ToolContext
except ImportError as e:
    raise MissingExtraError("the OpenAI Agents SDK", "openai-agents") from e


def read_items(items: Sequence[Item], instructions: str | None) -> Conversation[Item]:
    """The input items of a model call as a chat.

    Raises ConfigError for results whose calls are not in the list: the provider holds them then.
    """
    answered = {call_id_of(item) for item in items if item_type(item) not in CALL_OF}
    if any(item_type(item) in CALL_OF and call_id_of(item) not in answered for item in items):
        raise ConfigError(
            "the provider holds a part of the history (previous_response_id, auto_previous_response_id or "
            "conversation_id), so memory cannot replace it: run the agent without them."
        )
    return from_items(list(items), instructions)


def session_of_context(context: object) -> str | None:
    """The ``session_id`` of a run's context, an attribute or a key; None where it has none."""
    session_id = (
        context.get("session_id") if isinstance(context, Mapping) else getattr(context, "session_id", None)
    )
    return None if session_id is None else str(session_id)


class MemoryBankFilter:
    """Sends the model a rebuilt context; results, sessions and ``to_input_list()`` keep the whole history.

    ``memory = MemoryBankFilter()``, then ``Agent(tools=[…, *memory.tools])`` and
    ``RunConfig(call_model_input_filter=memory)``. A session is what ``session_of`` returns for the run's
    context, by default its ``session_id``; where that is None, it is found by the items. ``options`` are those
    of Bridge. A run in which the provider holds the history raises ConfigError at its first tool result.
    """

    def __init__(
        self, session_of: Callable[[Any], str | None] = session_of_context, **options: Unpack[BridgeOptions]
    ) -> None:
        self.bridge: Bridge[Item] = Bridge(read_items, **options)
        self.tools: list[Tool] = [*map(self._tool, self.bridge.offer())]
        self._session_of = session_of

    async def __call__(self, data: CallModelData[Any]) -> ModelInputData:
        model_data = data.model_data
        items: list[Any] = list(model_data.input)
        rebuilt: list[Any] = await self.bridge.arebuild(
            items, self._session_of(data.context), system=model_data.instructions, tools=data.agent.tools
        )
        return ModelInputData(input=rebuilt, instructions=model_data.instructions)

    def _tool(self, schema: ToolFunction) -> FunctionTool:
        async def call(context: ToolContext[Any], arguments: str) -> str:
            session_id = self._session_of(context.context)
            return await self.bridge.aanswer(schema["name"], arguments, session_id)

        return FunctionTool(schema["name"], schema["description"], schema["parameters"], on_invoke_tool=call)
