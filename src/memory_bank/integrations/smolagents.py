"""smolagents: ``add_memory`` for tool-calling and code agents."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Unpack

from memory_bank.errors import MessagesError, MissingExtraError
from memory_bank.integrations.bridge import KEPT_ROLE, Bridge, BridgeOptions, ChatMessage, read_natives
from memory_bank.tools import TOOL_SCHEMAS
from memory_bank.transcript.jsontext import compact, parse_arguments
from memory_bank.transcript.messages import content_text

try:
    from smolagents import ChatMessage as SmolMessage
    from smolagents import MultiStepAgent, Tool
    from smolagents.memory import ActionStep, MemoryStep, PlanningStep, TaskStep, ToolCall
    from smolagents.models import MessageRole
except ImportError as e:
    raise MissingExtraError("smolagents", "smolagents") from e


@dataclasses.dataclass
class RetrievedStep(MemoryStep):
    """What memory shows of earlier steps, as a message of the role user or system."""

    text: str
    role: str = "user"

    def to_messages(self, summary_mode: bool = False) -> list[SmolMessage]:  # noqa: ARG002
        """The message."""
        return [SmolMessage(role=MessageRole(self.role), content=[{"type": "text", "text": self.text}])]


class SmolagentsWire:
    """See Wire. A step with calls is one call and one result, because its outputs are one text."""

    def read(self, native: MemoryStep) -> list[ChatMessage]:
        """See Wire."""
        if isinstance(native, ActionStep):
            return _read_action(native)
        if isinstance(native, TaskStep):
            images = [{"type": "image"} for _ in native.task_images or ()]
            text = [{"type": "text", "text": native.task}]
            return [{"role": "user", "content": [*text, *images] if images else native.task}]
        if isinstance(native, PlanningStep):
            return [{"role": "assistant", "content": native.plan}]
        raise MessagesError(
            f"{type(native).__name__} is not a step of smolagents that memory can read: steps are TaskStep, "
            "PlanningStep and ActionStep."
        )

    def rewrite(self, native: MemoryStep, messages: Sequence[ChatMessage | None]) -> MemoryStep | None:
        """See Wire."""
        made, result = messages[0], messages[-1]
        if made is None or result is None or not isinstance(native, ActionStep):
            return None
        old_made, old_result = _read_action(native)
        changes: dict[str, Any] = {}
        if made != old_made:
            changes["tool_calls"] = _calls_of(
                native, parse_arguments(made["tool_calls"][0]["function"]["arguments"])
            )
        if result != old_result:
            changes |= {"observations": content_text(result["content"]), "error": None}
        return dataclasses.replace(native, **changes)

    def say(self, message: ChatMessage) -> MemoryStep:
        """See Wire."""
        return RetrievedStep(message["content"], message["role"])


WIRE = SmolagentsWire()


def _read_action(step: ActionStep) -> list[ChatMessage]:
    said = content_text(step.model_output)
    error = None if step.error is None else f"Error:\n{step.error}"
    if not step.tool_calls:
        shown = "\n".join(t for t in (step.observations, error) if t)
        return [{"role": "assistant", "content": said}, {"role": KEPT_ROLE, "content": shown}]
    observed = step.observations
    if observed is None and error is None and step.action_output is not None:
        observed = str(step.action_output)
    text = "\n".join(t for t in (observed, error) if t)
    images = [{"type": "image"} for _ in step.observations_images or ()]
    call_id = step.tool_calls[0].id
    call = {"id": call_id, "type": "function", "function": _function(step.tool_calls)}
    content: Any = [{"type": "text", "text": text}, *images] if images else text
    return [
        {"role": "assistant", "content": said or None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": content},
    ]


def _function(calls: Sequence[ToolCall]) -> dict[str, str]:
    """One function for the calls of a step: several are named together, with the arguments of each."""
    if len(calls) == 1:
        [call] = calls
        return {"name": call.name, "arguments": compact(_arguments(call))}
    named = [{"name": call.name, "arguments": _arguments(call)} for call in calls]
    return {"name": "+".join(dict.fromkeys(c.name for c in calls)), "arguments": compact({"calls": named})}


def _arguments(call: ToolCall) -> Any:
    return {"code": call.arguments} if isinstance(call.arguments, str) else call.arguments


def _calls_of(step: ActionStep, arguments: Any) -> list[ToolCall]:
    """The step's calls with other arguments, in the form of ``_function``."""
    several = len(step.tool_calls) > 1
    given = [c["arguments"] for c in arguments["calls"]] if several else [arguments]
    return [
        dataclasses.replace(call, arguments=new["code"] if isinstance(call.arguments, str) else new)
        for call, new in zip(step.tool_calls, given, strict=True)
    ]


def add_memory(
    agent: MultiStepAgent,
    *,
    session_id: str | None = None,
    offer_tools: bool = True,
    **options: Unpack[BridgeOptions],
) -> Bridge[MemoryStep]:
    """Let an agent's model see a rebuilt context; ``agent.memory`` keeps all steps. Returns the bridge.

    ``session_id``: one session for all that the agent does; by default a task is a session, and goes on where
    the agent does (``run(…, reset=False)``). ``offer_tools``: whether the agent gets search_memory, get_record
    and list_records. ``options`` are those of Bridge. Raises ConfigError, UnknownStrategyError, StorageError.
    """
    bridge: Bridge[MemoryStep] = Bridge(
        lambda natives, system: read_natives(natives, WIRE, system), **options
    )

    def write_memory_to_messages(summary_mode: bool = False) -> list[SmolMessage]:
        system = agent.memory.system_prompt
        steps = bridge.rebuild(agent.memory.steps, session_id, system=system.system_prompt)
        messages: list[SmolMessage] = system.to_messages(summary_mode=summary_mode)
        for step in steps:
            messages.extend(step.to_messages(summary_mode=summary_mode))
        return messages

    agent.write_memory_to_messages = write_memory_to_messages
    if offer_tools:
        agent.tools |= {
            schema["function"]["name"]: _MemoryTool(agent, bridge, session_id, schema["function"])
            for schema in TOOL_SCHEMAS
        }
    return bridge


class _MemoryTool(Tool):
    """A memory tool of one agent."""

    skip_forward_signature_validation = True
    output_type = "string"

    def __init__(
        self,
        agent: MultiStepAgent,
        bridge: Bridge[MemoryStep],
        session_id: str | None,
        schema: dict[str, Any],
    ) -> None:
        self.name = schema["name"]
        self.description = schema["description"]
        self.inputs = {name: _input(given) for name, given in schema["parameters"]["properties"].items()}
        self._agent = agent
        self._bridge = bridge
        self._session_id = session_id
        super().__init__()

    def forward(self, **arguments: Any) -> str:
        """The tool's answer."""
        return self._bridge.answer(self.name, arguments, self._session_id, self._agent.memory.steps)


def _input(given: dict[str, Any]) -> dict[str, Any]:
    """A parameter of a tool in the form of smolagents, where what may be null is optional."""
    kinds = given["type"]
    if isinstance(kinds, str):
        return dict(given)
    return {**given, "type": next(k for k in kinds if k != "null"), "nullable": True}
