"""smolagents: ``add_memory`` for tool-calling and code agents, ``use_history`` for a typed history as memory."""

from __future__ import annotations

import base64
import copy
import dataclasses
import importlib
import io
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, Unpack

from memory_bank import history as typed
from memory_bank.errors import MessagesError, MissingExtraError
from memory_bank.integrations.bridge import Bridge, BridgeOptions
from memory_bank.ports import ToolFunction
from memory_bank.tools import TOOL_SCHEMAS
from memory_bank.transcript.jsontext import parse_arguments
from memory_bank.transcript.messages import MessageKind, content_text
from memory_bank.transcript.textcalls import joined_calls, parted_calls
from memory_bank.transcript.turns import Change, ChatMessage, Part, PartWire

try:
    from smolagents import ChatMessage as SmolMessage
    from smolagents import MultiStepAgent, Tool, utils
    from smolagents.memory import (
        ActionStep,
        AgentMemory,
        FinalAnswerStep,
        MemoryStep,
        PlanningStep,
        SystemPromptStep,
        TaskStep,
        ToolCall,
    )
    from smolagents.models import MessageRole
    from smolagents.monitoring import Timing, TokenUsage
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


_SAID, _CALLED, _OBSERVED = range(3)


class SmolagentsWire(PartWire[MemoryStep]):
    """See PartWire. A step with calls is one call and one result, because its outputs are one text."""

    def read(self, native: MemoryStep) -> dict[int, Part]:
        if isinstance(native, ActionStep):
            return _read_action(native)
        if isinstance(native, TaskStep):
            images = [{"type": "image"} for _ in native.task_images or ()]
            text = [{"type": "text", "text": native.task}]
            return {_SAID: Part(MessageKind.USER, [*text, *images] if images else native.task)}
        if isinstance(native, PlanningStep):
            return {_SAID: Part(MessageKind.SAY, native.plan)}
        if isinstance(native, RetrievedStep):
            return {_SAID: Part(MessageKind(native.role), native.text)}
        raise MessagesError(
            f"{type(native).__name__} is not a step of smolagents that memory can read: steps are TaskStep, "
            "PlanningStep and ActionStep."
        )

    def write(self, native: MemoryStep, change: Change) -> MemoryStep | None:
        if change.get(_CALLED, "") is None or change.get(_OBSERVED, "") is None:
            return None
        if isinstance(native, PlanningStep):
            return dataclasses.replace(native, plan=change[_SAID])
        changes: dict[str, Any] = {"model_output": change[_SAID]} if _SAID in change else {}
        if _CALLED in change:
            calls = getattr(native, "tool_calls", None) or []
            given = parted_calls(parse_arguments(change[_CALLED]), [call.arguments for call in calls])
            pairs = zip(calls, given, strict=True)
            changes["tool_calls"] = [dataclasses.replace(call, arguments=new) for call, new in pairs]
        if _OBSERVED in change:
            changes |= {"observations": change[_OBSERVED], "error": None, "observations_images": None}
        return dataclasses.replace(native, **changes)

    def say(self, message: ChatMessage) -> MemoryStep:
        return RetrievedStep(message["content"], message["role"])


WIRE = SmolagentsWire()


def _read_action(step: ActionStep) -> dict[int, Part]:
    said = Part(MessageKind.SAY, content_text(step.model_output))
    error = None if step.error is None else f"Error:\n{step.error}"
    observed = step.observations
    if step.tool_calls and observed is None and error is None and step.action_output is not None:
        observed = str(step.action_output)
    text = "\n".join(t for t in (observed, error) if t)
    if not step.tool_calls:
        return {_SAID: said, _OBSERVED: Part(MessageKind.OTHER, text)}
    images = [{"type": "image"} for _ in step.observations_images or ()]
    content: Any = [{"type": "text", "text": text}, *images] if images else text
    call_id = step.tool_calls[0].id
    name, arguments = joined_calls([(call.name, call.arguments) for call in step.tool_calls])
    called = Part(MessageKind.CALL, arguments, call_id, name)
    return {_SAID: said, _CALLED: called, _OBSERVED: Part(MessageKind.RESULT, content, call_id)}


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
    bridge: Bridge[MemoryStep] = Bridge(WIRE.read_all, **options)

    def write_memory_to_messages(summary_mode: bool = False) -> list[SmolMessage]:
        system = agent.memory.system_prompt
        steps = bridge.rebuild(agent.memory.steps, session_id, system=system.system_prompt)
        return [m for step in (system, *steps) for m in step.to_messages(summary_mode=summary_mode)]

    def answer(name: str, arguments: dict[str, Any]) -> str:
        return bridge.answer(name, arguments, session_id, agent.memory.steps)

    agent.write_memory_to_messages = write_memory_to_messages
    if offer_tools:
        bridge.offered = TOOL_SCHEMAS
        functions = [schema["function"] for schema in TOOL_SCHEMAS]
        agent.tools |= {function["name"]: _MemoryTool(answer, function) for function in functions}
    return bridge


class _MemoryTool(Tool):
    """A memory tool of one agent."""

    skip_forward_signature_validation = True
    output_type = "string"

    def __init__(self, answer: Callable[..., str], schema: ToolFunction) -> None:
        self.name = schema["name"]
        self.description = schema["description"]
        self.inputs = {name: _input(given) for name, given in schema["parameters"]["properties"].items()}
        self._answer = answer
        super().__init__()

    def forward(self, **arguments: Any) -> str:
        return self._answer(self.name, arguments)


def _input(given: dict[str, Any]) -> dict[str, Any]:
    """A parameter of a tool in the form of smolagents, where what may be null is optional."""
    kinds = given["type"]
    if isinstance(kinds, str):
        return dict(given)
    return {**given, "type": next(k for k in kinds if k != "null"), "nullable": True}


# typed histories as agent.memory


def use_history(
    agent: MultiStepAgent, history: typed.MemoryManager | None = None, pad: typed.AgentMemory | None = None
) -> HistoryMemory:
    """Let an agent keep its steps in a typed history, and show its model a scratchpad; returns ``agent.memory``.

    The history prunes, saves and tells its callbacks as it does anywhere; what it prunes the model no longer sees.

    Args:
        history: the history; default: an empty one. Its ``agent`` becomes this agent.
        pad: shown before the last step while there is something in it. Code of a CodeAgent finds it as ``memory``.
    """
    memory = HistoryMemory(typed.MemoryManager() if history is None else history, pad)
    memory.history.agent = agent
    if memory.history.get_steps_by_type(typed.SystemPromptStep) == []:
        memory.system_prompt = agent.memory.system_prompt
    memory.steps = [*memory.steps, *agent.memory.steps]
    agent.memory = memory
    if pad is not None and getattr(agent, "python_executor", None) is not None:
        agent.python_executor.send_variables({"memory": pad})
    return memory


class HistoryMemory(AgentMemory):
    """A typed history in the form of ``agent.memory``; see ``use_history``.

    ``steps`` are the history's steps as steps of smolagents: those that the agent added are the very objects.
    """

    def __init__(self, history: typed.MemoryManager, pad: typed.AgentMemory | None = None) -> None:
        self.history = history
        self.pad = pad
        self._natives: dict[int, tuple[typed.Step, MemoryStep]] = {}  # by the id of the typed step

    @property
    def system_prompt(self) -> SystemPromptStep:
        """The history's system prompt."""
        found = self.history.get_steps_by_type(typed.SystemPromptStep)
        return SystemPromptStep(found[0].system_prompt if found else "")

    @system_prompt.setter
    def system_prompt(self, prompt: SystemPromptStep) -> None:
        if prompt.system_prompt == self.system_prompt.system_prompt:
            return
        new = typed.SystemPromptStep(prompt.system_prompt)

        def with_prompt(steps: Sequence[typed.Step]) -> list[typed.Step]:
            return [new, *(s for s in steps if not isinstance(s, typed.SystemPromptStep))]

        self.history.prune(with_prompt)

    @property
    def steps(self) -> list[MemoryStep]:
        """The steps of smolagents; what is appended to the list is added to the history."""
        return _Steps(self)

    @steps.setter
    def steps(self, steps: Iterable[MemoryStep]) -> None:
        given = list(steps)
        self.history.reset()
        for step in given:
            self.add(step)

    def reset(self) -> None:
        """Remove all steps but the system prompt."""
        self.history.reset()

    def add(self, native: MemoryStep) -> None:
        """Add a step of smolagents to the history. Raises HistoryError for anything else."""
        if isinstance(native, RetrievedStep):
            return  # the scratchpad as it was shown
        [step] = typed.typed_steps([native])
        added = self.history.add(dataclasses.replace(step, step_number=0))
        self._natives[id(added)] = added, native

    def natives(self) -> list[MemoryStep]:
        """The history's steps but the system prompt, as steps of smolagents, with the scratchpad before the last."""
        known, self._natives = self._natives, {}
        found: list[MemoryStep] = []
        for step in self.history.steps:
            if not isinstance(step, typed.SystemPromptStep):
                native = known[id(step)][1] if id(step) in known else native_step(step)
                self._natives[id(step)] = step, native
                found.append(native)
        if self.pad is not None and (text := self.pad.to_context()):
            found.insert(len(found) - 1, RetrievedStep(text))
        return found


class _Steps(list[MemoryStep]):
    """The list ``steps``; appending adds to the history, which may prune."""

    def __init__(self, memory: HistoryMemory) -> None:
        super().__init__(memory.natives())
        self._memory = memory

    def append(self, step: MemoryStep) -> None:
        self._memory.add(step)
        self[:] = self._memory.natives()

    def extend(self, steps: Iterable[MemoryStep]) -> None:
        for step in steps:
            self.append(step)


def native_step(step: typed.Step) -> MemoryStep:
    """A typed step as a step of smolagents: the way back of ``memory_bank.history.typed_steps``."""
    if isinstance(step, typed.SystemPromptStep):
        return SystemPromptStep(step.system_prompt)
    if isinstance(step, typed.TaskStep):
        return TaskStep(step.task, [_picture(url) for url in step.images] or None)
    if isinstance(step, typed.FinalAnswerStep):
        return FinalAnswerStep(copy.deepcopy(step.output))
    if isinstance(step, typed.ScratchpadStep):
        return RetrievedStep(step.to_messages()[0]["content"])
    if isinstance(step, typed.PlanningStep):
        return PlanningStep(plan=step.plan, **_seen_by_model(step))
    if not isinstance(step, typed.ActionStep):
        raise MessagesError(f"a {type(step).__name__} has no counterpart in smolagents: leave it out.")
    given = [call.dict() for call in step.tool_calls]
    if len(given) == 1 and isinstance(joined := given[0]["arguments"], dict) and list(joined) == ["calls"]:
        given = list(joined["calls"])  # those that typed_steps joined
    calls = [ToolCall(c["name"], copy.deepcopy(c["arguments"]), c["id"]) for c in given]
    contents: list[Any] = [o.content for o in step.observations]
    parts: list[Any] = [
        p for c in contents for p in ([{"type": "text", "text": c}] if isinstance(c, str) else c)
    ]
    texts = [p["text"] for p in parts if p.get("type") == "text"]
    said = step.model_output_message["content"] if step.model_output_message is not None else None
    error = None
    if step.error is not None:
        kind: Any = getattr(utils, step.error_type or "", None)
        is_known = isinstance(kind, type) and issubclass(kind, utils.AgentError)
        error = (kind if is_known else utils.AgentError)(step.error, _SILENT)
    return ActionStep(
        step_number=step.step_number,
        tool_calls=calls or None,
        error=error,
        model_output=copy.deepcopy(said) if isinstance(said, list) else step.thought,
        code_action=calls[0].arguments if len(calls) == 1 and isinstance(calls[0].arguments, str) else None,
        observations="\n".join(texts) if texts else None,
        observations_images=[_picture(p["image_url"]["url"]) for p in parts if _is_picture(p)] or None,
        action_output=copy.deepcopy(step.action_output),
        is_final_answer=step.is_final,
        **_seen_by_model(step),
    )


_SILENT = SimpleNamespace(log_error=str)  # the errors were logged when they were raised


def _seen_by_model(step: typed.ActionStep | typed.PlanningStep) -> dict[str, Any]:
    said, usage, timing = step.model_output_message, step.token_usage, step.timing
    return {
        "model_input_messages": [_chat_message(m) for m in step.model_input_messages] or None,
        "model_output_message": None if said is None else _chat_message(said),
        "token_usage": None if usage is None else TokenUsage(usage.input_tokens, usage.output_tokens),
        "timing": Timing(step.timestamp) if timing is None else Timing(timing.start, timing.end),
    }


def _chat_message(message: Any) -> SmolMessage:
    given = copy.deepcopy(message)  # of a frozen value a plain one
    content, usage = given.get("content"), given.get("token_usage")
    if isinstance(content, list):
        given["content"] = [
            {"type": "image", "image": _picture(p["image_url"]["url"])} if _is_picture(p) else p
            for p in content
        ]
    tokens = None if usage is None else TokenUsage(usage["input_tokens"], usage["output_tokens"])
    return SmolMessage.from_dict(given, token_usage=tokens)


def _is_picture(part: Any) -> bool:
    return bool(part.get("type") == "image_url")


def _picture(url: str) -> Any:
    """The image of a ``data:`` URL; any other URL as it is."""
    if not url.startswith("data:"):
        return url
    images: Any = importlib.import_module("PIL.Image")
    return images.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))
