"""An existing conversation read as steps; their messages are the conversation again, to the letter."""

from __future__ import annotations

import ast
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any, TypeGuard

from memory_bank.errors import HistoryError
from memory_bank.history.parts import Observation, Source, ToolCall
from memory_bank.history.steps import (
    NOTE_HEADS,
    PROCEED,
    WIRES,
    ActionStep,
    FinalAnswerStep,
    PlanningStep,
    ScratchpadStep,
    Step,
    SystemPromptStep,
    TaskStep,
    Wire,
)
from memory_bank.history.wire import CALLING, ERROR, OBSERVATION
from memory_bank.transcript.content import content_text, is_text_part, part_text, read
from memory_bank.transcript.interactions import Interaction, Kind, Segment, Utterance, kind_of
from memory_bank.transcript.parsing import parse_messages


def steps_from_messages(messages: Any, *, wire: Wire = "tools", timestamp: float | None = None) -> list[Step]:
    """The steps of a chat, numbered; the messages of all steps are those that came, as dicts.

    System and user messages are SystemPromptSteps and TaskSteps, turns with calls and their results are
    ActionSteps (with ``wire="text"`` also "Calling tools: …" with its "Observation: …"), assistant text
    before a user turn or the end is a FinalAnswerStep; notes and plans as our steps write them are notes
    and plans again. What is none of these is kept in a ScratchpadStep. Where rendering would not give the
    messages back to the letter, the step keeps them (``source``). Raises MessagesError for what is no list.
    """
    if wire not in WIRES:
        raise HistoryError(f"wire is {wire!r}: give 'tools' or 'text'.")
    reader = _Reader(parse_messages(messages), wire, timestamp)
    return reader.steps()


class _Reader:
    def __init__(self, segments: Sequence[Segment], wire: Wire, timestamp: float | None) -> None:
        self.segments = segments
        self.wire = wire
        self.timestamp = time.time() if timestamp is None else timestamp
        self.number = 0
        self.has_task = False

    def steps(self) -> list[Step]:
        out: list[Step] = []
        i = 0
        while i < len(self.segments):
            step, used = self._step(i)
            originals = [m for s in self.segments[i : i + used] for m in s.messages]
            if isinstance(step, ActionStep):
                self.number += 1
            self.has_task = self.has_task or isinstance(step, TaskStep)
            step = replace(step, step_number=self.number, timestamp=self.timestamp)
            if not _gives(step, originals, self.wire):
                step = replace(step, source=Source(tuple(originals), self.wire))
            out.append(step)
            i += used
        return out

    def _step(self, i: int) -> tuple[Step, int]:
        """The step that begins at segment ``i``, and how many segments it takes."""
        segment = self.segments[i]
        if isinstance(segment, Interaction):
            return _action(segment), 1
        text = content_text(read(segment.message, "content"))
        if segment.kind is Kind.SYSTEM:
            return SystemPromptStep(text), 1
        if segment.kind is Kind.USER:
            return _user(segment.message, text), 1
        if segment.kind is not Kind.SAY:
            return ScratchpadStep(text), 1
        if self.wire == "text":
            found = self._called_in_text(i, text)
            if found is not None:
                return found
        following = self.segments[i + 1] if i + 1 < len(self.segments) else None
        if _is(following, Kind.USER) and read(following.message, "content") == PROCEED:
            return PlanningStep(text), 2
        if self.has_task and (following is None or _is(following, Kind.USER)):
            return FinalAnswerStep(text), 1
        return ActionStep(text), 1

    def _called_in_text(self, i: int, text: str) -> tuple[Step, int] | None:
        thought = None
        used = 1
        if CALLING not in text:  # a thought, its calls in the next message
            following = self.segments[i + 1] if i + 1 < len(self.segments) else None
            if not _is(following, Kind.SAY):
                return None
            thought, text, used = text, content_text(read(following.message, "content")), 2
            if not text.startswith(CALLING):
                return None
        head, _, tail = text.partition(CALLING)
        calls = _calls_in(tail)
        if not calls:
            return None
        seen: list[Observation] = []
        error = None
        while _is(following := next(iter(self.segments[i + used : i + used + 1]), None), Kind.USER):
            said = read(following.message, "content")
            body = content_text(said)
            if body.startswith(OBSERVATION):
                body = body.removeprefix(OBSERVATION)
                place = len(seen)
                call_id = calls[place].id if place < len(calls) else None
                media = [p for p in said if not is_text_part(p)] if isinstance(said, (list, tuple)) else []
                content = [{"type": "text", "text": _only_text(said)}, *media] if media else body
                seen.append(Observation(content, call_id))
            elif body.startswith((ERROR, "Call id:")) and error is None:
                error = body.partition(ERROR)[2]
            else:
                break
            used += 1
        return ActionStep(thought or head.rstrip() or None, tuple(calls), tuple(seen), error), used


def _is(segment: Any, kind: Kind) -> TypeGuard[Utterance]:
    return isinstance(segment, Utterance) and segment.kind is kind


def _only_text(content: Any) -> str:
    text = "\n".join(part_text(p) for p in content if is_text_part(p))
    return text.removeprefix(OBSERVATION)


def _calls_in(text: str) -> list[ToolCall]:
    """The calls of a text-form turn, written as JSON or as Python; none where it is neither."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        try:
            given = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return []
    try:
        calls = [ToolCall.from_dict(c) for c in given] if isinstance(given, list) else []
        ActionStep(tool_calls=tuple(calls))
    except HistoryError:
        return []
    return calls


def _user(message: Any, text: str) -> Step:
    content = read(message, "content")
    if isinstance(content, str):
        for kind, head in NOTE_HEADS.items():
            if content.startswith(head + "\n"):
                return ScratchpadStep(content[len(head) + 1 :], kind)
    if isinstance(content, (list, tuple)):
        texts = [part_text(p) for p in content if is_text_part(p)]
        images = tuple(
            url for p in content if isinstance(url := read(read(p, "image_url"), "url"), str) and url
        )
        try:
            return TaskStep("\n".join(texts), images)
        except HistoryError:  # not one that we would take; its message stays as it came
            return TaskStep(text)
    return TaskStep(text)


def _action(interaction: Interaction) -> ActionStep:
    ids: list[str] = []
    calls: list[ToolCall] = []
    seen: list[tuple[int, Observation]] = []
    numbers = count(1)
    order: dict[Any, int] = {}
    for message in interaction.messages:
        if kind_of(message) is Kind.RESULT:
            order.setdefault(read(message, "tool_call_id"), len(order))
    for pair in interaction.pairs:
        call_id = None
        if pair.call is not None:
            call_id = pair.call.call_id
            while call_id is None or call_id in ids:
                call_id = f"call_{next(numbers)}"
            ids.append(call_id)
            calls.append(ToolCall(pair.call.name, pair.call.arguments, call_id))
        if pair.result is not None:
            content = pair.result.text if pair.result.extra else pair.result.content
            place = order.get(pair.result.call_id, len(order)) if pair.call else len(order)
            seen.append((place, Observation(content, call_id)))
    seen.sort(key=lambda s: s[0])
    said = [read(m, "content") for m in interaction.messages if read(m, "role") == "assistant"]
    thought = said[0] if len(said) == 1 and isinstance(said[0], str) else interaction.note or None
    return ActionStep(thought, tuple(calls), tuple(o for _, o in seen))


def _gives(step: Step, originals: list[Any], wire: Wire) -> bool:
    """Whether a step renders as the very messages it was read from."""
    try:
        return all(type(m) is dict for m in originals) and step.to_messages(wire=wire) == originals
    except Exception:  # too deep, or foreign objects that refuse to be compared
        return False
