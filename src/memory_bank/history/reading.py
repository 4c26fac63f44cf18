"""Chat messages to typed steps; the steps render to the same messages again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any, TypeGuard

from memory_bank.errors import HistoryError
from memory_bank.history.steps import (
    ERROR,
    NOTE_HEADS,
    OBSERVATION,
    PROCEED,
    ActionStep,
    FinalAnswerStep,
    Observation,
    PlanningStep,
    ScratchpadStep,
    SourceMessages,
    Step,
    SystemPromptStep,
    TaskStep,
    ToolCall,
    Wire,
    check_wire,
)
from memory_bank.transcript.messages import (
    Interaction,
    MessageKind,
    Segment,
    Utterance,
    content_text,
    is_text_part,
    kind_of,
    parse_messages,
    part_text,
    read,
)
from memory_bank.transcript.textcalls import read_called


def steps_from_messages(
    messages: object, *, wire: Wire = "tools", timestamp: float | None = None
) -> list[Step]:
    """The numbered steps of a chat. All their messages together are the given messages, as dicts.

    System and user messages become SystemPromptSteps and TaskSteps, turns with calls and their results become
    ActionSteps, assistant text before a user turn or at the end becomes a FinalAnswerStep. Notes and plans
    that steps have rendered become ScratchpadSteps and PlanningSteps again; anything else becomes a
    ScratchpadStep. A step keeps the original messages in ``source`` where rendering would not reproduce them.

    Args:
        messages: a list of chat messages.
        wire: with "text", "Calling tools: …" and its "Observation: …" become ActionSteps too.
        timestamp: of every step, in Unix seconds; default: now.

    Raises:
        MessagesError: ``messages`` is not a list.
        HistoryError: ``wire`` is unknown.
    """
    check_wire(wire)
    return _StepReader(parse_messages(messages), wire, timestamp).steps()


class _StepReader:
    """Turns the segments of a chat into steps, from the first to the last."""

    def __init__(self, segments: Sequence[Segment], wire: Wire, timestamp: float | None) -> None:
        self.segments = segments
        self.wire = wire
        self.timestamp = time.time() if timestamp is None else timestamp

    def steps(self) -> list[Step]:
        steps: list[Step] = []
        number = i = 0
        has_task = False
        while i < len(self.segments):
            step, used = self._step_at(i, has_task)
            originals = [m for s in self.segments[i : i + used] for m in s.messages]
            number += isinstance(step, ActionStep)
            has_task = has_task or isinstance(step, TaskStep)
            step = replace(step, step_number=number, timestamp=self.timestamp)
            if not _renders_as(step, originals, self.wire):
                step = replace(step, source=SourceMessages(tuple(originals), self.wire))
            steps.append(step)
            i += used
        return steps

    def _step_at(self, i: int, has_task: bool) -> tuple[Step, int]:
        """The step that begins at segment ``i``, and the number of segments that it covers."""
        segment = self.segments[i]
        if isinstance(segment, Interaction):
            return _action(segment), 1
        content = read(segment.message, "content")
        text = content_text(content)
        if segment.kind is MessageKind.SYSTEM:
            return SystemPromptStep(text), 1
        if segment.kind is MessageKind.USER:
            return _task_or_note(content, text), 1
        if segment.kind is not MessageKind.SAY:
            return ScratchpadStep(text), 1
        if self.wire == "text" and (action := self._text_action(i, text)) is not None:
            return action
        following = self._segment(i + 1)
        if _is_utterance(following, MessageKind.USER) and read(following.message, "content") == PROCEED:
            return PlanningStep(text), 2
        if has_task and (following is None or _is_utterance(following, MessageKind.USER)):
            return FinalAnswerStep(text), 1
        return ActionStep(text), 1

    def _segment(self, i: int) -> Segment | None:
        return self.segments[i] if i < len(self.segments) else None

    def _text_action(self, i: int, text: str) -> tuple[Step, int] | None:
        """The action in text form that begins at segment ``i``; None where none begins."""
        found, used = read_called(text), 1
        if found is None:  # a thought, its calls in the next message
            following = self._segment(i + 1)
            if not _is_utterance(following, MessageKind.SAY):
                return None
            found, used = read_called(content_text(read(following.message, "content"))), 2
            if found is None or found[0]:
                return None
        thought = text if used == 2 else found[0].rstrip()
        calls = _tool_calls(found[1])
        if not calls:
            return None
        observations: list[Observation] = []
        error = None
        while _is_utterance(following := self._segment(i + used), MessageKind.USER):
            content = read(following.message, "content")
            body = content_text(content)
            if body.startswith(OBSERVATION):
                position = len(observations)
                call_id = calls[position].id if position < len(calls) else None
                observations.append(Observation(_without_heading(content, body), call_id))
            elif body.startswith((ERROR, "Call id:")) and error is None:
                error = body.partition(ERROR)[2]
            else:
                break
            used += 1
        return ActionStep(thought or None, tuple(calls), tuple(observations), error), used


def _is_utterance(segment: Segment | None, kind: MessageKind) -> TypeGuard[Utterance]:
    return isinstance(segment, Utterance) and segment.kind is kind


def _without_heading(content: object, text: str) -> Any:
    """The content of an "Observation: …" message without that heading; ``text`` is the content's text."""
    parts = content if isinstance(content, (list, tuple)) else []
    media = [p for p in parts if not is_text_part(p)]
    if not media:
        return text.removeprefix(OBSERVATION)
    said = "\n".join(part_text(p) for p in parts if is_text_part(p))
    return [{"type": "text", "text": said.removeprefix(OBSERVATION)}, *media]


def _tool_calls(listed: list[Any]) -> list[ToolCall]:
    """The calls of a turn in text form; none where one of them is no call."""
    try:
        calls = [ToolCall.from_dict(c) for c in listed]
        ActionStep(tool_calls=tuple(calls))
    except HistoryError:
        return []
    return calls


def _task_or_note(content: object, text: str) -> Step:
    if isinstance(content, str):
        for kind, head in NOTE_HEADS.items():
            if content.startswith(head + "\n"):
                return ScratchpadStep(content[len(head) + 1 :], kind)
    if isinstance(content, (list, tuple)):
        texts = [part_text(p) for p in content if is_text_part(p)]
        urls = [read(read(p, "image_url"), "url") for p in content]
        try:
            return TaskStep("\n".join(texts), tuple(u for u in urls if isinstance(u, str) and u))
        except HistoryError:  # an image that TaskStep refuses; the step keeps the message in ``source``
            pass
    return TaskStep(text)


def _action(interaction: Interaction) -> ActionStep:
    calls: list[ToolCall] = []
    placed: list[tuple[int, Observation]] = []  # with the position of the result among the messages
    ids: set[str | None] = {None}
    numbers = count(1)
    order: dict[object, int] = {}
    for message in interaction.messages:
        if kind_of(message) is MessageKind.RESULT:
            order.setdefault(read(message, "tool_call_id"), len(order))
    for pair in interaction.pairs:
        call_id = None
        if pair.call is not None:
            call_id = pair.call.call_id
            while call_id in ids:
                call_id = f"call_{next(numbers)}"
            ids.add(call_id)
            calls.append(ToolCall(pair.call.name, pair.call.arguments, call_id))
        if pair.result is not None:
            content = pair.result.text if pair.result.extra else pair.result.content
            position = order.get(pair.result.call_id, len(order)) if pair.call else len(order)
            placed.append((position, Observation(content, call_id)))
    placed.sort(key=lambda p: p[0])
    said = [read(m, "content") for m in interaction.messages if read(m, "role") == "assistant"]
    thought = said[0] if len(said) == 1 and isinstance(said[0], str) else interaction.note or None
    return ActionStep(thought, tuple(calls), tuple(o for _, o in placed))


def _renders_as(step: Step, originals: Sequence[object], wire: Wire) -> bool:
    """Whether a step renders to exactly the messages that it was read from."""
    try:
        return all(type(m) is dict for m in originals) and step.to_messages(wire=wire) == originals
    except Exception:  # nested too deep, or foreign objects that refuse to be compared
        return False
