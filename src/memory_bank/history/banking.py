"""Prunings that store what they remove in the bank; what they leave names the records by trace_id."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from memory_bank.errors import EmbeddingError, HistoryError
from memory_bank.history.pruning import Pruning, check_steps, note_after, prune_old_observations
from memory_bank.history.steps import (
    NO_RESULT,
    ActionStep,
    Observation,
    ScratchpadStep,
    Step,
    match_observations,
    one_line,
    step_text,
    trace_ids_of,
)
from memory_bank.records import InteractionRecord, content_key, derive_trace_id
from memory_bank.transcript.jsontext import RAW
from memory_bank.transcript.messages import Interaction, parse_messages

if TYPE_CHECKING:
    from memory_bank.bank.session import MemoryBankState

log = logging.getLogger("memory_bank.MemoryBankStrategy")

_LISTED = 40  # lines of one note; the others are counted


class Part(NamedTuple):
    """A part of a step that is a record: an answered call with the position of its observation, or a text."""

    name: str
    observation: int | None
    record: InteractionRecord


def to_memory_bank(state: MemoryBankState, prune: Pruning | None = None, *, keep_last_n: int = 5) -> Pruning:
    """A pruning that stores in ``state`` what ``prune`` removes, before it is removed.

    A shortened observation ends in its ``trace_id``; in the place of dropped steps one ScratchpadStep (kind
    "bank") lists calls and trace_ids. They are the trace_ids that ``apply_memory_bank_strategy`` gives the
    same messages, so nothing is stored twice. When storing fails the pruning raises and nothing is pruned.

    Args:
        state: a MemoryBankState.
        prune: default: ``prune_old_observations(keep_last_n)``.
        keep_last_n: the actions whose observations the default pruning keeps whole.

    Raises HistoryError where ``state`` is no bank.
    """
    check_bank(state, "to_memory_bank")
    chosen = prune if prune is not None else prune_old_observations(keep_last_n)

    def prune_and_store(steps: Sequence[Step]) -> list[Step]:
        before = list(steps)
        after = check_steps(chosen(tuple(before)))
        origins = _origins(before, after)
        became = {i: new for i, new in zip(origins, after, strict=True) if i is not None}
        stored = store_parts(state, before, {i: became.get(i) for i in range(len(before))})
        out: list[Step] = []
        next_old = 0
        for i, new in zip(origins, after, strict=True):
            if i is not None:
                out += _note(before, range(next_old, i), stored)
                next_old = i + 1
                new = _with_trace_ids(new, stored.get(i, []))
            out.append(new)
        return [*out, *_note(before, range(next_old, len(before)), stored)]

    return prune_and_store


def check_bank(state: object, who: str) -> None:
    """Raises HistoryError unless records can be added to ``state``."""
    if not callable(getattr(state, "add", None)):
        raise HistoryError(
            f"{who} was given a {type(state).__name__} as its bank: give a MemoryBankState first."
        )


def records_of(steps: Sequence[Step], session_id: str = "default") -> list[InteractionRecord]:
    """The records of all calls with a whole output, in order, as a bank of that session stores them."""
    return [part.record for parts in _calls_of(steps, session_id) for part in parts]


def store_parts(
    state: MemoryBankState, steps: Sequence[Step], changed: Mapping[int, Step | None]
) -> dict[int, list[Part]]:
    """Store what some steps of a history lose; returns it by their positions.

    ``changed``: what becomes of a step, by position; None where it is dropped.
    """
    stored: dict[int, list[Part]] = {}
    for i, parts in enumerate(_calls_of(steps, state.session_id)):
        old, new = steps[i], changed.get(i, steps[i])
        if new is None:
            stored[i] = parts + _text_of(old, state.session_id)
        elif new is not old:
            stored[i] = [p for p in parts if _was_cut(old, new, p.observation)]
    records = [part.record for parts in stored.values() for part in parts]
    try:
        if records:
            state.add(records)
    except EmbeddingError as e:  # the facts are stored: the insights can wait
        log.warning("insights of pruned steps wait for the embedder: %s", e)
    return stored


def _calls_of(steps: Sequence[Step], session_id: str) -> Iterator[list[Part]]:
    """The answered calls of each step, with trace_ids as the messages of the whole history give them."""
    used: set[str] = set()
    for step in steps:
        used.update(trace_ids_of(step))
        parts: list[Part] = []
        if isinstance(step, ActionStep) and (step.tool_calls or step.observations):
            segments = parse_messages(step.to_messages())
            pairs = [p for s in segments if isinstance(s, Interaction) for p in s.pairs]
            observation_of = {p: i for i, p in enumerate(match_observations(step)) if p is not None}
            for n, pair in enumerate(pairs):
                i = observation_of.get(n)
                if pair.result is None or (i is None and pair.result.content == NO_RESULT):
                    continue
                if i is None or step.observations[i].whole:
                    key, ordinal = pair.content_key(), 0
                    while (trace_id := derive_trace_id(session_id, key, ordinal)) in used:
                        ordinal += 1
                    used.add(trace_id)
                    name = f"{pair.tool_name}({one_line(pair.call.text if pair.call else '', 80)})"
                    parts.append(Part(name, i, pair.record(trace_id, step.step_number, step.timestamp)))
        yield parts


def _text_of(step: Step, session_id: str) -> list[Part]:
    """The text of a step besides its calls (plan, note, answer, thought); none without text."""
    name, text = step.type, step_text(step).split("\n", 1)[-1]
    if isinstance(step, ActionStep):
        name, text = "thought", step.thought or ""
        if not step.tool_calls and (text or step.error or step.observations):
            text = step_text(step)
    if not text.strip() or (isinstance(step, ScratchpadStep) and step.kind == "bank"):
        return []
    number, time = step.step_number, step.timestamp
    trace_id = derive_trace_id(session_id, content_key(name, str(number), repr(time), text), 0)
    record = InteractionRecord(trace_id, number, name, {"step": number}, {RAW: text}, time, output_text=text)
    return [Part(f"{name} of step {number}", None, record)]


def _was_cut(old: Step, new: Step, i: int | None) -> bool:
    """Whether observation ``i`` is no longer what it was."""
    if i is None or not isinstance(old, ActionStep) or not isinstance(new, ActionStep):
        return True
    return i >= len(new.observations) or new.observations[i].content != old.observations[i].content


def _origins(before: Sequence[Step], after: Sequence[Step]) -> list[int | None]:
    """For each step after a pruning its old position, None for a new one; both keep their order."""
    places = {id(s): i for i, s in enumerate(before)}
    keys = [(type(s), s.step_number, s.timestamp) for s in before]
    origins: list[int | None] = []
    start = 0
    for new in after:
        i = places.get(id(new), -1)
        if i < start:
            key = type(new), new.step_number, new.timestamp
            i = next((i for i in range(start, len(keys)) if keys[i] == key), -1)
        origins.append(i if i >= start else None)
        start = max(start, i + 1)
    return origins


def _with_trace_ids(step: Step, parts: Sequence[Part]) -> Step:
    """A step whose shortened observations name their records."""
    if not parts or not isinstance(step, ActionStep):
        return step
    observations = list(step.observations)
    for part in parts:
        if part.observation is not None and part.observation < len(observations):
            o, trace_id = observations[part.observation], part.record.trace_id
            text = f"{o.text}\n[the whole is in memory: trace_id {trace_id}]"
            observations[part.observation] = Observation(text, o.call_id, False, trace_id)
    return replace(step, observations=tuple(observations), source=None)


def _note(before: Sequence[Step], gone: range, stored: Mapping[int, Sequence[Part]]) -> list[Step]:
    """One note for a run of dropped steps, which also takes in the notes among them; none without records."""
    lines: list[str] = []
    ids: list[str] = []
    for i in gone:
        step = before[i]
        if isinstance(step, ScratchpadStep) and step.kind == "bank":
            lines += [line for line in step.text.splitlines() if line.startswith("- ")]
        new = {part.record.trace_id: part.name for part in stored.get(i, ())}
        earlier = [t for t in trace_ids_of(step) if t not in new]
        lines += [f"- {name}: trace_id {t}" for t, name in new.items()]
        if isinstance(step, ActionStep):
            lines += [f"- step {step.step_number}: trace_id {t}" for t in earlier]
        ids += [*earlier, *new]
    if not ids:
        return []
    hidden = len(lines) - _LISTED
    head = [f"({hidden:,} older ones)"] if hidden > 0 else []
    return [note_after(before[gone[-1]], "\n".join([*head, *lines[-_LISTED:]]), "bank", ids)]
