"""Chat messages, and steps and messages of smolagents, as typed steps."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from operator import itemgetter
from typing import Any

from memory_bank.errors import HistoryError
from memory_bank.history import steps as typed
from memory_bank.history.steps import Json, Wire, as_json, check_wire, image_url, type_name
from memory_bank.transcript.messages import (
    Interaction,
    MessageKind,
    Segment,
    content_text,
    is_text_part,
    kind_of,
    parse_messages,
    part_text,
    read,
)
from memory_bank.transcript.textcalls import read_called

# chat messages


def steps_from_messages(
    messages: object, *, wire: Wire = "tools", timestamp: float | None = None
) -> list[typed.Step]:
    """The numbered steps of a chat. All their messages together are the given messages, as dicts.

    System and user messages become SystemPromptSteps and TaskSteps, turns with calls and their results become
    ActionSteps (with ``wire="text"`` also "Calling tools: …" and its "Observation: …"), assistant text before a
    user turn or at the end becomes a FinalAnswerStep. Notes and plans that steps have rendered become
    ScratchpadSteps and PlanningSteps again; anything else becomes a ScratchpadStep. A step keeps the original
    messages in ``source`` where rendering would not reproduce them. ``timestamp``, in Unix seconds, is that of
    every step; default: now. Raises MessagesError where ``messages`` is not a list, HistoryError for an unknown
    wire.
    """
    check_wire(wire)
    segments = parse_messages(messages)
    timestamp = time.time() if timestamp is None else timestamp
    steps: list[typed.Step] = []
    number = i = 0
    has_task = False
    while i < len(segments):
        step, used = _step_at(segments, i, wire, has_task)
        originals = [m for s in segments[i : i + used] for m in s.messages]
        number += isinstance(step, typed.ActionStep)
        has_task = has_task or isinstance(step, typed.TaskStep)
        step = replace(step, step_number=number, timestamp=timestamp)
        try:
            is_same = all(type(m) is dict for m in originals) and step.to_messages(wire=wire) == originals
        except Exception:  # nested too deep, or foreign objects that refuse to be compared
            is_same = False
        steps.append(step if is_same else replace(step, source=typed.SourceMessages(tuple(originals), wire)))
        i += used
    return steps


def _step_at(segments: Sequence[Segment], i: int, wire: Wire, has_task: bool) -> tuple[typed.Step, int]:
    segment = segments[i]
    if isinstance(segment, Interaction):
        return _action(segment), 1
    kind, content = _said(segments, i)
    text = content_text(content)
    if kind is MessageKind.SYSTEM:
        return typed.SystemPromptStep(text), 1
    if kind is MessageKind.USER:
        return _task_or_text(content, text), 1
    if kind is not MessageKind.SAY:
        return typed.ScratchpadStep(text), 1
    if wire == "text" and (action := _text_action(segments, i, text)) is not None:
        return action
    following, next_content = _said(segments, i + 1)
    if following is MessageKind.USER and next_content == typed.PROCEED:
        return typed.PlanningStep(text), 2
    if has_task and (i + 1 == len(segments) or following is MessageKind.USER):
        return typed.FinalAnswerStep(text), 1
    return typed.ActionStep(text), 1


def _said(segments: Sequence[Segment], i: int) -> tuple[MessageKind | None, Any]:
    """Kind and content of a message outside any interaction; None for anything else."""
    if i >= len(segments) or isinstance(segment := segments[i], Interaction):
        return None, None
    return segment.kind, read(segment.message, "content")


def _task_or_text(content: object, text: str) -> typed.Step:
    for kind, head in typed.NOTE_HEADS.items():
        if isinstance(content, str) and content.startswith(f"{head}\n"):
            return typed.ScratchpadStep(content[len(head) + 1 :], kind)  # type: ignore[arg-type]
    if isinstance(content, (list, tuple)):
        urls = [read(read(p, "image_url"), "url") for p in content]
        words = "\n".join(part_text(p) for p in content if is_text_part(p))
        try:
            return typed.TaskStep(words, tuple(u for u in urls if isinstance(u, str) and u))
        except HistoryError:  # an image that TaskStep refuses; the step keeps the message in ``source``
            pass
    return typed.TaskStep(text)


def _action(interaction: Interaction) -> typed.ActionStep:
    calls: list[typed.ToolCall] = []
    placed: list[tuple[int, typed.Observation]] = []  # with the position of the result among the messages
    ids: set[str | None] = {None}
    numbers = count(1)
    results = [read(m, "tool_call_id") for m in interaction.messages if kind_of(m) is MessageKind.RESULT]
    for call, result in ((pair.call, pair.result) for pair in interaction.pairs):
        call_id = None
        if call is not None:
            call_id = call.call_id
            while call_id in ids:
                call_id = f"call_{next(numbers)}"
            ids.add(call_id)
            calls.append(typed.ToolCall(call.name, call.arguments, call_id))
        if result is not None:
            position = results.index(result.call_id) if call and result.call_id in results else len(results)
            placed.append(
                (position, typed.Observation(result.text if result.extra else result.content, call_id))
            )
    placed.sort(key=itemgetter(0))
    contents = [read(m, "content") for m in interaction.messages if read(m, "role") == "assistant"]
    is_text = len(contents) == 1 and isinstance(contents[0], str)
    thought = contents[0] if is_text else interaction.remark or None
    return typed.ActionStep(thought, tuple(calls), tuple(o for _, o in placed))


def _text_action(segments: Sequence[Segment], i: int, text: str) -> tuple[typed.Step, int] | None:
    """The action in text form that begins at segment ``i``; None where none begins."""
    called, used = read_called(text), 1
    if called is not None:
        thought = called[0].rstrip()
    else:  # a thought, its calls in the next message
        kind, content = _said(segments, i + 1)
        called = read_called(content_text(content)) if kind is MessageKind.SAY else None
        thought, used = text, 2
        if called is None or called[0]:
            return None
    try:
        calls = typed.ActionStep(tool_calls=called[1]).tool_calls  # type: ignore[arg-type]
    except HistoryError:
        return None
    observations: list[typed.Observation] = []
    error = None
    while (answer := _said(segments, i + used))[0] is MessageKind.USER:
        parts = answer[1] if isinstance(answer[1], (list, tuple)) else []
        body = content_text(answer[1])
        if body.startswith(typed.OBSERVATION):
            seen: Any = body.removeprefix(typed.OBSERVATION)
            if media := [p for p in parts if not is_text_part(p)]:
                rest = "\n".join(part_text(p) for p in parts if is_text_part(p))
                seen = [{"type": "text", "text": rest.removeprefix(typed.OBSERVATION)}, *media]
            n = len(observations)
            observations.append(typed.Observation(seen, calls[n].id if n < len(calls) else None))
        elif body.startswith((typed.ERROR, "Call id:")) and error is None:
            error = body.partition(typed.ERROR)[2]
        else:
            break
        used += 1
    return typed.ActionStep(thought or None, calls, tuple(observations), error), used


# smolagents, whose objects are read without importing it


def typed_steps(steps: Iterable[object]) -> list[typed.Step]:
    """Steps of smolagents (``agent.memory.steps``, or the dicts of ``get_full_steps()``) as typed steps, numbered.

    Nothing is lost but a provider's ``raw`` answer, and objects that are not JSON in outputs: they become
    ``{"_not_kept": "module.Class"}``, and a warning names them. Several calls of a step, whose outputs smolagents
    joins to one text, become one call with that text. Raises HistoryError for anything that is no such step.
    """
    numbered: list[typed.Step] = []
    last = 0
    for native in steps:
        step = native if isinstance(native, typed.Step) else _typed_step(native)
        if isinstance(step, typed.ActionStep):  # every run of an agent counts from 1
            last = max(step.step_number, last + 1)
        numbered.append(replace(step, step_number=last))
    return numbered


def _typed_step(native: object) -> typed.Step:
    names: Any = native if isinstance(native, Mapping) else dir(native) if _is_value(native) else ()
    if "task" in names:
        return typed.TaskStep(read(native, "task"), tuple(map(_image, read(native, "task_images") or ())))
    if "system_prompt" in names:
        return typed.SystemPromptStep(read(native, "system_prompt"))
    if "plan" in names:
        return typed.PlanningStep(read(native, "plan"), **_of_model(native))
    if "step_number" in names:
        return _native_action(native)
    if "output" in names:
        return typed.FinalAnswerStep(read(native, "output"))
    if type(native).__name__ == "RetrievedStep" and isinstance(text := read(native, "text"), str):
        return typed.ScratchpadStep(text)
    raise HistoryError(
        f"a {type_name(native)} is no step of smolagents: give TaskStep, PlanningStep, ActionStep, FinalAnswerStep, "
        "or their dicts."
    )


def _is_value(native: object) -> bool:
    return dataclasses.is_dataclass(native) and not isinstance(native, type)


def _native_action(native: object) -> typed.ActionStep:
    bodies = [(read(c, "function") or c, read(c, "id")) for c in read(native, "tool_calls") or ()]
    calls = [typed.ToolCall(read(body, "name"), read(body, "arguments"), i) for body, i in bodies]
    if len(calls) > 1:  # with one output
        name = "+".join(dict.fromkeys(c.name for c in calls))
        calls = [typed.ToolCall(name, {"calls": [c.dict() for c in calls]}, calls[0].id)]
    error, seen = read(native, "error"), read(native, "observations")
    if images := [_image_part(i) for i in read(native, "observations_images") or ()]:
        seen = [*([] if seen is None else [{"type": "text", "text": seen}]), *images]
    output, code = read(native, "model_output"), read(native, "code_action")
    return typed.ActionStep(
        output if isinstance(output, str) or output is None else content_text(as_json(output)),
        tuple(calls),
        () if seen is None else (typed.Observation(seen, calls[0].id if calls else None),),
        None if error is None else str(read(error, "message") or error),
        error_type=None if error is None else read(error, "type") or type(error).__name__,
        code_action=None if [c.arguments for c in calls] == [code] else code,
        is_final=bool(read(native, "is_final_answer")),
        action_output=read(native, "action_output"),
        step_number=read(native, "step_number"),
        **_of_model(native),
    )


def _of_model(native: object) -> Json:
    usage, timing = read(native, "token_usage"), read(native, "timing")
    message = read(native, "model_output_message")
    values: Json = {
        "model_input_messages": tuple(map(_message, read(native, "model_input_messages") or ())),
        "model_output_message": None if message is None else _message(message),
    }
    if usage is not None:
        values["token_usage"] = typed.TokenUsage(read(usage, "input_tokens"), read(usage, "output_tokens"))
    if timing is not None:
        values["timing"] = typed.Timing(read(timing, "start_time"), read(timing, "end_time"))
        values["timestamp"] = values["timing"].end or values["timing"].start
    return values


def _message(message: object) -> Json:
    copied: Json = as_json(message)
    parts = copied.get("content")
    if not isinstance(parts, list):
        return copied
    images = (p.get("image") if isinstance(p, dict) and p.get("type") == "image" else None for p in parts)
    content = [image if isinstance(image, dict) else p for image, p in zip(images, parts, strict=True)]
    return {**copied, "content": content}


def chat_message(message: object) -> object:
    """A ChatMessage of smolagents as a chat message of the text form; anything else as it is."""
    is_pydantic = callable(getattr(message, "model_dump", None))
    if not _is_value(message) or is_pydantic or not isinstance(read(message, "role"), str):
        return message
    message_dict = _message(message)
    content = message_dict["content"]
    if isinstance(content, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in content):
        content = "\n".join(str(p.get("text", "")) for p in content)
    calls = {"tool_calls": message_dict["tool_calls"]} if message_dict.get("tool_calls") else {}
    roles = {"tool-call": "assistant", "tool-response": "user"}  # as smolagents sends them
    return {"role": roles.get(message_dict["role"], message_dict["role"]), "content": content, **calls}


def _image(image: object) -> str:
    return image if isinstance(image, str) else image_url(image)


def _image_part(image: object) -> Json:
    if isinstance(image, (bytes, str)) and not str(image).startswith("data:"):  # bytes of get_full_steps()
        return {"type": "text", "text": "[an image, of which the log has no format]"}
    return {"type": "image_url", "image_url": {"url": _image(image)}}
