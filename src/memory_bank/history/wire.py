"""An action as messages, in two wire forms: tool calling, and plain text; ``step`` is an ActionStep."""

from __future__ import annotations

from typing import Any

from memory_bank.history.frozen import Json, thaw
from memory_bank.transcript.content import content_text, is_text_part, media_kinds
from memory_bank.transcript.jsontext import compact

NO_RESULT = "[no result]"
CALLING = "Calling tools:\n"
OBSERVATION = "Observation:\n"
ERROR = "Error:\n"


def call_ids(step: Any) -> list[str]:
    """The id of each call: its own, else one made of the step's number and its place; unique in the step."""
    taken = {c.id for c in step.tool_calls if c.id is not None}
    ids = []
    for i, call in enumerate(step.tool_calls, 1):
        made = call.id if call.id is not None else f"call_{step.step_number}_{i}"
        while call.id is None and made in taken:
            made += "_"
        taken.add(made)
        ids.append(made)
    return ids


def answers(step: Any) -> list[tuple[int | None, Any]]:
    """``(place of the call, content)`` of every answer, in order; each call exactly once.

    None for an observation that answers no call. The error stands in the first call that has no answer, else
    at the end of the last answer.
    """
    ids = call_ids(step)
    places = match(step)
    out: list[tuple[int | None, Any]] = [
        (i, o.content) for i, o in zip(places, step.observations, strict=True)
    ]
    error = None if step.error is None else ERROR + step.error
    for i in range(len(ids)):
        if i not in places:
            out.append((i, NO_RESULT if error is None else error))
            error = None
    if error is not None and out:
        place, content = out[-1]
        out[-1] = (place, _joined(content, error))
    elif error is not None:
        out.append((None, error))
    return out


def match(step: Any) -> list[int | None]:
    """For each observation the place of the call that it answers: by id, without an id by order; or None."""
    ids = call_ids(step)
    named = {o.call_id for o in step.observations}
    free = [i for i, c in enumerate(ids) if c not in named]
    taken: set[int] = set()
    places: list[int | None] = []
    for o in step.observations:
        place: int | None = None
        if o.call_id is None:
            place = free.pop(0) if free else None
        elif o.call_id in ids and ids.index(o.call_id) not in taken:
            place = ids.index(o.call_id)
        if place is not None:
            taken.add(place)
        places.append(place)
    return places


def as_tool_messages(step: Any, summary_mode: bool) -> list[Json]:
    """One assistant turn with calls, its results as tool messages; what answers no call as user text."""
    thought = None if summary_mode else step.thought
    out: list[Json] = []
    ids = call_ids(step)
    if step.tool_calls:
        calls = [
            {"id": i, "type": "function", "function": {"name": c.name, "arguments": c.text}}
            for i, c in zip(ids, step.tool_calls, strict=True)
        ]
        out.append({"role": "assistant", "content": thought, "tool_calls": calls})
    elif thought is not None:
        out.append({"role": "assistant", "content": thought})
    loose: list[Json] = []
    for place, content in answers(step):
        if place is not None:
            out.append({"role": "tool", "tool_call_id": ids[place], "content": thaw(content)})
        else:
            loose.append({"role": "user", "content": _headed(content)})
    return out + loose


def as_text_messages(step: Any, summary_mode: bool) -> list[Json]:
    """The thought, the calls as one JSON list, then each answer in the order of the calls, as user text."""
    out: list[Json] = []
    if step.thought is not None and not summary_mode:
        out.append({"role": "assistant", "content": step.thought})
    if step.tool_calls:
        calls = [
            {"id": i, "type": "function", "function": {"name": c.name, "arguments": thaw(c.arguments)}}
            for i, c in zip(call_ids(step), step.tool_calls, strict=True)
        ]
        out.append({"role": "assistant", "content": CALLING + compact(calls)})
    in_order = sorted(answers(step), key=lambda a: len(step.tool_calls) if a[0] is None else a[0])
    return out + [{"role": "user", "content": _headed(content)} for _, content in in_order]


def _headed(content: Any) -> Any:
    if isinstance(content, str) and content.startswith(ERROR):
        return content
    text = OBSERVATION + "\n".join(content_text([p]) for p in _text_parts(content))
    media = [thaw(p) for p in content if not is_text_part(p)] if media_kinds(content) else []
    return [{"type": "text", "text": text}, *media] if media else text


def _text_parts(content: Any) -> list[Any]:
    if isinstance(content, (list, tuple)):
        return [p for p in content if is_text_part(p)]
    return [content_text(content)]


def _joined(content: Any, error: str) -> Any:
    if isinstance(content, list):
        return [*content, {"type": "text", "text": error}]
    return f"{content_text(content)}\n\n{error}" if content_text(content) else error
