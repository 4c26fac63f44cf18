"""smolagents: ``add_memory`` for tool-calling and code agents, ``use_history`` for a typed history as memory."""

from __future__ import annotations

import base64
import copy
import dataclasses
import importlib
import io
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple, Unpack

from memory_bank import history as typed
from memory_bank.errors import MessagesError, MissingExtraError
from memory_bank.integrations.bridge import Bridge, BridgeOptions
from memory_bank.ports import ToolFunction
from memory_bank.transcript.jsontext import parse_arguments
from memory_bank.transcript.messages import MessageKind, content_text, content_with
from memory_bank.transcript.textcalls import joined_calls, parted_calls
from memory_bank.transcript.turns import Change, ChatMessage, Part, PartWire

try:
    from smolagents import ChatMessage as SmolMessage
    from smolagents import MultiStepAgent, Tool, utils
    from smolagents import memory as smol
    from smolagents.models import MessageRole
    from smolagents.monitoring import Timing, TokenUsage
except ImportError as e:
    raise MissingExtraError("smolagents", "smolagents") from e


@dataclasses.dataclass
class RetrievedStep(smol.MemoryStep):
    """The part of earlier steps that memory shows, as a message of the role user or system."""

    text: str
    role: str = "user"
    is_pad: bool = False  # a scratchpad, which is shown anew each time

    def to_messages(self, summary_mode: bool = False) -> list[SmolMessage]:  # noqa: ARG002
        """The message."""
        return [SmolMessage(role=MessageRole(self.role), content=[{"type": "text", "text": self.text}])]


_SAID, _CALLED, _OBSERVED = range(3)


class SmolagentsWire(PartWire[smol.MemoryStep]):
    """See PartWire. A step with calls is one call and one result, because its outputs are one text."""

    def read(self, native: smol.MemoryStep) -> dict[int, Part]:
        if isinstance(native, smol.ActionStep):
            return _read_action(native)
        if isinstance(native, smol.TaskStep):
            images = [{"type": "image"} for _ in native.task_images or ()]
            text = [{"type": "text", "text": native.task}]
            return {_SAID: Part(MessageKind.USER, [*text, *images] if images else native.task)}
        if isinstance(native, smol.PlanningStep):
            return {_SAID: Part(MessageKind.SAY, native.plan)}
        if isinstance(native, RetrievedStep):
            return {_SAID: Part(MessageKind(native.role), native.text)}
        raise MessagesError(
            f"{type(native).__name__} is not a step of smolagents that memory can read: steps are TaskStep, "
            "PlanningStep and ActionStep."
        )

    def write(self, native: smol.MemoryStep, change: Change) -> smol.MemoryStep | None:
        if change.get(_CALLED, "") is None or change.get(_OBSERVED, "") is None:
            return None
        if isinstance(native, smol.PlanningStep):
            return dataclasses.replace(native, plan=change[_SAID])
        changes: dict[str, Any] = {"model_output": change[_SAID]} if _SAID in change else {}
        if _CALLED in change:
            calls = getattr(native, "tool_calls", None) or []
            arguments = parted_calls(parse_arguments(change[_CALLED]), [call.arguments for call in calls])
            pairs = zip(calls, arguments, strict=True)
            changes["tool_calls"] = [dataclasses.replace(call, arguments=new) for call, new in pairs]
        if _OBSERVED in change:
            changes |= {"observations": change[_OBSERVED], "error": None, "observations_images": None}
        return dataclasses.replace(native, **changes)

    def add(self, native: smol.MemoryStep, text: str) -> smol.MemoryStep:
        if isinstance(native, smol.TaskStep):
            return dataclasses.replace(native, task=content_with(native.task, text))
        assert isinstance(native, RetrievedStep)
        return dataclasses.replace(native, text=content_with(native.text, text))

    def say(self, message: ChatMessage) -> smol.MemoryStep:
        return RetrievedStep(message["content"], message["role"])


WIRE = SmolagentsWire()


def _read_action(step: smol.ActionStep) -> dict[int, Part]:
    thought = Part(MessageKind.SAY, content_text(step.model_output))
    error = None if step.error is None else f"Error:\n{step.error}"
    observed = step.observations
    if step.tool_calls and observed is None and error is None and step.action_output is not None:
        observed = str(step.action_output)
    text = "\n".join(t for t in (observed, error) if t)
    if not step.tool_calls:
        return {_SAID: thought, _OBSERVED: Part(MessageKind.OTHER, text)}
    images = [{"type": "image"} for _ in step.observations_images or ()]
    content: Any = [{"type": "text", "text": text}, *images] if images else text
    call_id = step.tool_calls[0].id
    name, arguments = joined_calls([(call.name, call.arguments) for call in step.tool_calls])
    called = Part(MessageKind.CALL, arguments, call_id, name)
    return {_SAID: thought, _CALLED: called, _OBSERVED: Part(MessageKind.RESULT, content, call_id)}


def add_memory(
    agent: MultiStepAgent, *, session_id: str | None = None, **options: Unpack[BridgeOptions]
) -> Bridge[smol.MemoryStep]:
    """Let an agent's model see a rebuilt context; ``agent.memory`` keeps all steps. Returns the bridge.

    ``session_id``: one session for all that the agent does; by default a task is a session, and goes on where
    the agent does (``run(…, reset=False)``). The agent gets the memory tool, get_record. ``options`` are those of
    Bridge. Raises ConfigError, UnknownStrategyError, StorageError.
    """
    bridge: Bridge[smol.MemoryStep] = Bridge(WIRE.read_all, **options)

    def write_memory_to_messages(summary_mode: bool = False) -> list[SmolMessage]:
        system = agent.memory.system_prompt
        steps = bridge.rebuild(agent.memory.steps, session_id, system=system.system_prompt)
        return [m for step in (system, *steps) for m in step.to_messages(summary_mode=summary_mode)]

    def answer(name: str, arguments: dict[str, Any]) -> str:
        return bridge.answer(name, arguments, session_id, agent.memory.steps)

    agent.write_memory_to_messages = write_memory_to_messages
    agent.tools |= {tool["name"]: _MemoryTool(answer, tool) for tool in bridge.offer()}
    return bridge


class _MemoryTool(Tool):
    skip_forward_signature_validation = True
    output_type = "string"

    def __init__(self, answer: Callable[..., str], schema: ToolFunction) -> None:
        self.name = schema["name"]
        self.description = schema["description"]
        self.inputs = {name: _input(value) for name, value in schema["parameters"]["properties"].items()}
        self._answer = answer
        super().__init__()

    def forward(self, **arguments: Any) -> str:
        return self._answer(self.name, arguments)


def _input(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter of a tool in the form of smolagents: each is described, and what may be null is optional."""
    parameter, kinds = {"description": "", **schema}, schema["type"]
    if isinstance(kinds, str):
        return parameter
    return {**parameter, "type": next(k for k in kinds if k != "null"), "nullable": True}


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


class HistoryMemory(smol.AgentMemory):
    """A typed history in the form of ``agent.memory``; see ``use_history``.

    ``steps`` are the history's steps as steps of smolagents: those that the agent added are the very objects. Changes
    of the list, of a step in it and of the system prompt are in the history when either is read next; steps that are
    new at the list's end are added, with callbacks and prunings. Raises HistoryError for what is no step.
    """

    def __init__(self, history: typed.MemoryManager, pad: typed.AgentMemory | None = None) -> None:
        self.history = history
        self.pad = pad
        self._prompt = smol.SystemPromptStep("")
        self._steps = _Steps(self)
        self._synced: list[_Synced] = []  # what both sides had when they were compared
        self._is_busy = False
        self._show()
        history.refresh = self.refresh

    @property
    def system_prompt(self) -> smol.SystemPromptStep:
        """The history's system prompt."""
        self.refresh()
        return self._prompt

    @system_prompt.setter
    def system_prompt(self, prompt: smol.SystemPromptStep) -> None:
        self.refresh()
        self._prompt = prompt

    @property
    def steps(self) -> list[smol.MemoryStep]:
        """The steps of smolagents, with the scratchpad before the last."""
        self.refresh()
        return self._steps

    @steps.setter
    def steps(self, steps: Iterable[smol.MemoryStep]) -> None:
        self._steps[:] = list(steps)
        self.refresh()

    def reset(self) -> None:
        """Remove all steps but the system prompt."""
        self.history.reset()

    def refresh(self) -> None:
        """Give the history what was changed here, then show what it holds."""
        if self._is_busy:
            return
        self._is_busy = True
        try:
            for _ in range(100):  # a callback may change the list, too
                if not self._take():
                    break
        finally:
            self._show()
            self._is_busy = False

    def _take(self) -> bool:
        """Give the history the list, if that was changed since it was shown, and return whether it was."""
        by_id: dict[int, list[_Synced]] = {}  # a step may be in the list twice
        for k in reversed(self._synced):
            by_id.setdefault(id(k.native), []).append(k)
        natives = [n for n in self._steps if not (isinstance(n, RetrievedStep) and n.is_pad)]
        natives = [*([self._prompt] if self._prompt.system_prompt else []), *natives]
        now = [_read(n, by_id[id(n)].pop() if by_id.get(id(n)) else None) for n in natives]
        if list(map(id, now)) == list(map(id, self._synced)):
            return False
        begun = max((i for i, k in enumerate(now, 1) if id(k.native) in by_id), default=0)
        steps: list[typed.Step] = []
        self._synced = []
        if not begun:
            self.history.clear()
        for i, (step, native, state) in enumerate(now):
            last = steps[-1].step_number if steps else 0
            number = max(step.step_number * (id(native) in by_id), last + isinstance(step, typed.ActionStep))
            step = step if step.step_number == number else dataclasses.replace(step, step_number=number)
            self._synced.append(_Synced(step, native, state))
            steps.append(step)
            if i >= begun:
                self.history.add(step)
                steps = list(self.history.steps)  # it may have pruned
            elif i == begun - 1:
                self.history.steps = steps
        return True

    def _show(self) -> None:
        by_id = {id(k.step): k for k in self._synced}
        self._synced = [
            by_id.get(id(s)) or _Synced(s, n := native_step(s), _state_of(n)) for s in self.history.steps
        ]
        natives = [k.native for k in self._synced]
        if natives and isinstance(natives[0], smol.SystemPromptStep):
            self._prompt = natives.pop(0)
        elif self._prompt.system_prompt:
            self._prompt = smol.SystemPromptStep("")
        if self.pad is not None and (text := self.pad.to_context()):
            natives.insert(len(natives) - 1, RetrievedStep(text, is_pad=True))
        self._steps[:] = natives


class _Steps(list[smol.MemoryStep]):
    """The list ``steps``; what is appended is added to the history at once. Its copies are plain lists."""

    def __init__(self, memory: HistoryMemory) -> None:
        super().__init__()
        self._memory = memory

    def append(self, step: smol.MemoryStep) -> None:
        super().append(step)
        self._memory.refresh()

    def __reduce__(self) -> Any:
        return list, (list(self),)


class _Synced(NamedTuple):
    """A step of the history, its step of smolagents, and the state of that when it was read."""

    step: typed.Step
    native: smol.MemoryStep
    state: list[Any]


def _read(native: smol.MemoryStep, earlier: _Synced | None) -> _Synced:
    """A step with its typed form: ``earlier``, unless it was changed. Raises HistoryError for what is no step."""
    state = _state_of(native) if dataclasses.is_dataclass(native) else []
    if earlier is not None and state == earlier.state:
        return earlier
    [step] = typed.typed_steps([native])
    if earlier is not None:
        same: dict[str, Any] = {"step_number": earlier.step.step_number, "timestamp": earlier.step.timestamp}
        before, now = (getattr(s, "observations", ()) for s in (earlier.step, step))
        if before and [o.text for o in before] == [o.text for o in now]:
            same["observations"] = before  # they may name their records
        step = dataclasses.replace(step, **same)
    return _Synced(step, native, state)


def _state_of(native: smol.MemoryStep) -> list[Any]:
    """The values that tell a change of a step in place: lists, times and usage by value, all else by identity."""
    by_value = (list, dict, Timing, TokenUsage)
    return [
        repr(v) if isinstance(v, by_value) and not k.startswith("model_") else (id(v), v)
        for k, v in vars(native).items()
    ]


def native_step(step: typed.Step) -> smol.MemoryStep:
    """A typed step as a step of smolagents: the way back of ``memory_bank.history.typed_steps``."""
    if isinstance(step, typed.SystemPromptStep):
        return smol.SystemPromptStep(step.system_prompt)
    if isinstance(step, typed.TaskStep):
        return smol.TaskStep(step.task, [_picture(url) for url in step.images] or None)
    if isinstance(step, typed.FinalAnswerStep):
        return smol.FinalAnswerStep(copy.deepcopy(step.output))
    if isinstance(step, typed.ScratchpadStep):
        return RetrievedStep(step.to_messages()[0]["content"])
    if isinstance(step, typed.PlanningStep):
        return smol.PlanningStep(plan=step.plan, **_seen_by_model(step))
    if not isinstance(step, typed.ActionStep):
        raise MessagesError(f"a {type(step).__name__} has no counterpart in smolagents: leave it out.")
    items = [call.dict() for call in step.tool_calls]
    if len(items) == 1 and isinstance(joined := items[0]["arguments"], dict) and list(joined) == ["calls"]:
        items = list(joined["calls"])  # those that typed_steps joined
    calls = [smol.ToolCall(c["name"], copy.deepcopy(c["arguments"]), c["id"]) for c in items]
    contents: list[Any] = [o.content for o in step.observations]
    parts: list[Any] = [
        p for c in contents for p in ([{"type": "text", "text": c}] if isinstance(c, str) else c)
    ]
    texts = [p["text"] for p in parts if p.get("type") == "text"]
    code = calls[0].arguments if len(calls) == 1 and isinstance(calls[0].arguments, str) else None
    output = step.model_output_message["content"] if step.model_output_message is not None else None
    error = None
    if step.error is not None:
        kind: Any = getattr(utils, step.error_type or "", None)
        is_known = isinstance(kind, type) and issubclass(kind, utils.AgentError)
        error = (kind if is_known else utils.AgentError)(step.error, _SILENT)
    return smol.ActionStep(
        step_number=step.step_number,
        tool_calls=calls or None,
        error=error,
        model_output=copy.deepcopy(output) if isinstance(output, list) else step.thought,
        code_action=step.code_action if code is None else code,
        observations="\n".join(texts) if texts else None,
        observations_images=[_picture(p["image_url"]["url"]) for p in parts if _is_picture(p)] or None,
        action_output=copy.deepcopy(step.action_output),
        is_final_answer=step.is_final,
        **_seen_by_model(step),
    )


_SILENT = SimpleNamespace(log_error=str)  # the errors were logged when they were raised


def _seen_by_model(step: typed.ActionStep | typed.PlanningStep) -> dict[str, Any]:
    output, usage, timing = step.model_output_message, step.token_usage, step.timing
    return {
        "model_input_messages": [_chat_message(m) for m in step.model_input_messages] or None,
        "model_output_message": None if output is None else _chat_message(output),
        "token_usage": None if usage is None else TokenUsage(usage.input_tokens, usage.output_tokens),
        "timing": Timing(step.timestamp) if timing is None else Timing(timing.start, timing.end),
    }


def _chat_message(message: Any) -> SmolMessage:
    plain_message = copy.deepcopy(message)  # of a frozen value a plain one
    content, usage = plain_message.get("content"), plain_message.get("token_usage")
    if isinstance(content, list):
        plain_message["content"] = [
            {"type": "image", "image": _picture(p["image_url"]["url"])} if _is_picture(p) else p
            for p in content
        ]
    tokens = None if usage is None else TokenUsage(usage["input_tokens"], usage["output_tokens"])
    return SmolMessage.from_dict(plain_message, token_usage=tokens)


def _is_picture(part: Any) -> bool:
    return bool(part.get("type") == "image_url")


def _picture(url: str) -> Any:
    if not url.startswith("data:"):
        return url
    images: Any = importlib.import_module("PIL.Image")
    return images.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))
