"""Steps and messages of smolagents, as objects or as dicts of its log, read as typed steps without importing it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from memory_bank.errors import HistoryError
from memory_bank.history.steps import (
    ActionStep,
    FinalAnswerStep,
    Observation,
    PlanningStep,
    ScratchpadStep,
    Step,
    SystemPromptStep,
    TaskStep,
    Timing,
    TokenUsage,
    ToolCall,
)
from memory_bank.history.values import Json, as_json, image_url, type_name
from memory_bank.transcript.messages import content_text, read

_ROLES = {"tool-call": "assistant", "tool-response": "user"}  # as smolagents sends them
_KINDS = {
    "task": "task",
    "system_prompt": "system",
    "plan": "plan",
    "step_number": "action",
    "output": "answer",
}
"""Which step has a field of that name."""


def typed_steps(steps: Iterable[object]) -> list[Step]:
    """Steps of smolagents (``agent.memory.steps``, or the dicts of ``get_full_steps()``) as typed steps, numbered.

    Nothing is lost but a provider's ``raw`` answer, and objects that are not JSON in outputs: they become
    ``{"_not_kept": "module.Class"}``, and a warning names them. Several calls of a step, whose outputs smolagents
    joins to one text, become one call with that text. Raises HistoryError for anything that is no such step.
    """
    typed: list[Step] = []
    last = 0
    for native in steps:
        step = typed_step(native)
        if isinstance(step, ActionStep):  # every run of an agent counts from 1
            last = step.step_number if step.step_number > last else last + 1
        typed.append(dataclasses.replace(step, step_number=last))
    return typed


def typed_step(native: object) -> Step:
    """One step of smolagents as a typed step, see ``typed_steps``; a typed step is returned as it is."""
    if isinstance(native, Step):
        return native
    kind = next((k for name, k in _KINDS.items() if _has(native, name)), None)
    if kind == "task":
        return TaskStep(read(native, "task"), tuple(map(_image, read(native, "task_images") or ())))
    if kind == "system":
        return SystemPromptStep(read(native, "system_prompt"))
    if kind == "plan":
        return PlanningStep(read(native, "plan"), **_of_model(native))
    if kind == "action":
        return _action(native)
    if kind == "answer":
        return FinalAnswerStep(kept(read(native, "output")))
    if type(native).__name__ == "RetrievedStep" and isinstance(text := read(native, "text"), str):
        return ScratchpadStep(text)
    raise HistoryError(
        f"a {type_name(native)} is no step of smolagents: give TaskStep, PlanningStep, ActionStep, FinalAnswerStep, "
        "or their dicts."
    )


def chat_message(message: object) -> object:
    """A ChatMessage of smolagents as a chat message of the text form; anything else as it is."""
    role = read(message, "role")
    if (
        isinstance(message, Mapping)
        or callable(getattr(message, "model_dump", None))
        or not isinstance(role, str)
    ):
        return message
    if not dataclasses.is_dataclass(message):
        return message
    found = _message(message)
    content = found["content"]
    if isinstance(content, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in content):
        content = "\n".join(str(p.get("text", "")) for p in content)
    calls = {"tool_calls": found["tool_calls"]} if found.get("tool_calls") else {}
    return {"role": _ROLES.get(found["role"], found["role"]), "content": content, **calls}


def kept(value: object) -> Any:
    """A value as plain JSON, as ``freeze`` makes it; images as their URLs."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # also of an enum
    if isinstance(value, Mapping):
        return {str(k): kept(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [kept(v) for v in value]
    if callable(getattr(value, "save", None)) and hasattr(value, "size"):
        return {"type": "image_url", "image_url": {"url": image_url(value)}}
    return kept(as_json(value))


def _action(native: object) -> ActionStep:
    calls = [ToolCall.from_dict(_call(c)) for c in read(native, "tool_calls") or ()]
    if len(calls) > 1:
        calls = [joined_calls(calls)]
    error, text = read(native, "error"), read(native, "observations")
    images = [_image_part(i) for i in read(native, "observations_images") or ()]
    seen: Any = text
    if images:
        seen = [*([] if text is None else [{"type": "text", "text": text}]), *images]
    said = read(native, "model_output")
    return ActionStep(
        said if isinstance(said, str) or said is None else content_text(kept(said)),
        tuple(calls),
        () if seen is None else (Observation(seen, calls[0].id if calls else None),),
        None if error is None else str(read(error, "message") or error),
        error_type=None if error is None else read(error, "type") or type(error).__name__,
        is_final=bool(read(native, "is_final_answer")),
        action_output=kept(read(native, "action_output")),
        step_number=read(native, "step_number"),
        **_of_model(native),
    )


def joined_calls(calls: Sequence[ToolCall]) -> ToolCall:
    """Several calls with one output as one call: their names together, and the arguments of each."""
    name = "+".join(dict.fromkeys(c.name for c in calls))
    return ToolCall(name, {"calls": [c.dict() for c in calls]}, calls[0].id)


def _of_model(native: object) -> dict[str, Any]:
    """The fields that action and planning steps share: model input and output, token usage, start and end times."""
    usage, timing = read(native, "token_usage"), read(native, "timing")
    said = read(native, "model_output_message")
    values: dict[str, Any] = {
        "model_input_messages": tuple(_message(m) for m in read(native, "model_input_messages") or ()),
        "model_output_message": None if said is None else _message(said),
    }
    if usage is not None:
        values["token_usage"] = TokenUsage(read(usage, "input_tokens"), read(usage, "output_tokens"))
    if timing is not None:
        values["timing"] = Timing(read(timing, "start_time"), read(timing, "end_time"))
        values["timestamp"] = values["timing"].end or values["timing"].start
    return values


def _message(message: object) -> Json:
    """A ChatMessage with all its fields but ``raw``; images in its content as URLs."""
    found: Json = kept(message)
    content = found.get("content")
    if isinstance(content, list):
        found["content"] = [
            p["image"]
            if isinstance(p, dict) and p.get("type") == "image" and isinstance(p.get("image"), dict)
            else p
            for p in content
        ]
    return found


def _call(call: object) -> Json:
    body = read(call, "function") or call
    return {"name": read(body, "name"), "arguments": kept(read(body, "arguments")), "id": read(call, "id")}


def _image(image: object) -> str:
    return image if isinstance(image, str) else image_url(image)


def _image_part(image: object) -> Json:
    if isinstance(image, (bytes, str)) and not str(image).startswith("data:"):
        return {
            "type": "text",
            "text": "[an image, of which the log has no format]",
        }  # bytes of get_full_steps()
    return {"type": "image_url", "image_url": {"url": _image(image)}}


def _has(native: object, name: str) -> bool:
    if isinstance(native, Mapping):
        return name in native
    return dataclasses.is_dataclass(native) and hasattr(native, name)
