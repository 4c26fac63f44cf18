"""Prunings that store what they remove in the bank; what they leave names the records by trace_id."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from memory_bank.errors import EmbeddingError, HistoryError
from memory_bank.history.pruning import Pruning, check_steps, prune_old_observations
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
from memory_bank.transcript.messages import Interaction, Pair, parse_messages

log = logging.getLogger("memory_bank.MemoryBankStrategy")

_LISTED_CALLS = 40  # lines of one placeholder; the others are counted


class StepBank(Protocol):
    """The part of a session that prunings use; MemoryBankState has it."""

    @property
    def session_id(self) -> str: ...

    def add(self, records: Sequence[InteractionRecord]) -> int:
        """Store the new ones of some records, facts before insights; return how many were new."""


def to_memory_bank(state: StepBank, prune: Pruning | None = None, *, keep_last_n: int = 5) -> Pruning:
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
    if not callable(getattr(state, "add", None)):
        raise HistoryError(
            f"to_memory_bank was given a {type(state).__name__} as its bank: "
            "the arguments are (state, prune), with a MemoryBankState as state."
        )
    chosen = prune if prune is not None else prune_old_observations(keep_last_n)

    def prune_and_store(steps: Sequence[Step]) -> list[Step]:
        before = list(steps)
        after = check_steps(chosen(tuple(before)))
        survivors = _survivors(before, after)
        calls_of = _StepRecords(state.session_id)
        records: list[InteractionRecord] = []
        stored: dict[int, list[_Stored]] = {}
        for i, step in enumerate(before):
            calls = calls_of(step)
            new = after[survivors[i]] if i in survivors else None
            if new is step:
                continue
            lost = [c for c in calls if new is None or _was_cut(step, new, c.observation)]
            stored[i] = [_Stored(c.trace_id, c.observation) for c in lost if c.observation is not None]
            records += [c.record(step) for c in lost]
            if new is None:
                texts = _text_records(step, state.session_id)
                stored[i] += [_Stored(r.trace_id, None) for r in texts]
                records += texts
        if records:
            _store(state, records)
        return _with_placeholders(before, after, survivors, stored)

    return prune_and_store


def bank_steps(state: StepBank, steps: Sequence[Step], history: Sequence[Step]) -> list[list[str]]:
    """Store everything that ``steps``, some of a history, hold; returns the trace_ids that name each step."""
    calls_of = _StepRecords(state.session_id)
    wanted = {id(s) for s in steps}
    records: list[InteractionRecord] = []
    found: dict[int, list[str]] = {}
    for step in history:
        calls = calls_of(step)
        if id(step) in wanted:
            new = [c.record(step) for c in calls] + _text_records(step, state.session_id)
            records += new
            found[id(step)] = [*trace_ids_of(step), *(r.trace_id for r in new)]
    if records:
        _store(state, records)
    return [found[id(s)] for s in steps]


def _store(state: StepBank, records: Sequence[InteractionRecord]) -> None:
    try:
        state.add(records)
    except EmbeddingError as e:  # the facts are stored: the insights can wait
        log.warning("insights of pruned steps wait for the embedder: %s", e)


def records_of(steps: Sequence[Step], session_id: str = "default") -> list[InteractionRecord]:
    """The records of all calls with a whole output, in order, as a bank of that session stores them."""
    calls_of = _StepRecords(session_id)
    return [call.record(step) for step in steps for call in calls_of(step)]


@dataclass(frozen=True, slots=True)
class _Stored:
    """A stored part of a step: an observation by its position, or (None) the step's own text."""

    trace_id: str
    observation: int | None


@dataclass(frozen=True, slots=True)
class _AnsweredCall:
    """An answered call of a step, the position of its observation, its trace_id."""

    pair: Pair
    observation: int | None
    trace_id: str

    def record(self, step: Step) -> InteractionRecord:
        return self.pair.record(self.trace_id, step.step_number, step.timestamp)


class _StepRecords:
    """Gives the answered calls of a history their trace_ids, step by step from the oldest on."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.used: set[str] = set()

    def __call__(self, step: Step) -> list[_AnsweredCall]:
        self.used.update(trace_ids_of(step))
        if not isinstance(step, ActionStep) or not (step.tool_calls or step.observations):
            return []
        segments = parse_messages(step.to_messages())
        pairs = [p for s in segments if isinstance(s, Interaction) for p in s.pairs]
        observation_of = {p: i for i, p in enumerate(match_observations(step)) if p is not None}
        calls = []
        for n, pair in enumerate(pairs):
            i = observation_of.get(n)
            is_missing = pair.result is None or (i is None and pair.result.content == NO_RESULT)
            if not is_missing and (i is None or step.observations[i].whole):
                calls.append(_AnsweredCall(pair, i, self._trace_id(pair.content_key())))
        return calls

    def _trace_id(self, key: bytes) -> str:
        ordinal = 0
        while (trace_id := derive_trace_id(self.session_id, key, ordinal)) in self.used:
            ordinal += 1
        self.used.add(trace_id)
        return trace_id


def _survivors(before: Sequence[Step], after: Sequence[Step]) -> dict[int, int]:
    """The new positions of the steps that survived, by old position; both keep their order."""
    positions: dict[Hashable, deque[int]] = {}
    for i, old in enumerate(before):
        for key in _identities(old):
            positions.setdefault(key, deque()).append(i)
    survivors: dict[int, int] = {}
    start = 0
    for j, new in enumerate(after):
        for queue in map(positions.get, _identities(new)):
            while queue and queue[0] < start:
                queue.popleft()
            if queue:
                survivors[queue[0]] = j
                start = queue[0] + 1
                break
    return survivors


def _identities(step: Step) -> tuple[Hashable, Hashable]:
    return id(step), (type(step), step.step_number, step.timestamp)


def _was_cut(old: Step, new: Step, i: int | None) -> bool:
    """Whether observation ``i`` is no longer what it was."""
    if i is None or not isinstance(old, ActionStep) or not isinstance(new, ActionStep):
        return True
    return i >= len(new.observations) or new.observations[i].content != old.observations[i].content


def _text_records(step: Step, session_id: str) -> list[InteractionRecord]:
    """The text of a step besides its calls (plan, note, answer, thought) as a record; none without text."""
    if isinstance(step, ScratchpadStep) and step.kind == "bank":
        return []
    if isinstance(step, ActionStep):
        name, text = "thought", step.thought or ""
        if not step.tool_calls:
            text = step_text(step) if text or step.error or step.observations else ""
    else:
        name, text = step.type, step_text(step).split("\n", 1)[-1]
    if not text.strip():
        return []
    key = content_key(name, str(step.step_number), repr(step.timestamp), text)
    trace_id = derive_trace_id(session_id, key, 0)
    number = step.step_number
    return [
        InteractionRecord(
            trace_id, number, name, {"step": number}, {RAW: text}, step.timestamp, output_text=text
        )
    ]


def _with_placeholders(
    before: Sequence[Step],
    after: Sequence[Step],
    survivors: dict[int, int],
    stored: dict[int, list[_Stored]],
) -> list[Step]:
    """``after`` with a placeholder for each run of dropped steps, and trace_ids in shortened observations."""
    out: list[Step] = []
    old_position = {j: i for i, j in survivors.items()}
    next_old = 0
    for j, new in enumerate(after):
        if j in old_position:
            i = old_position[j]
            out += _placeholder(before, range(next_old, i), stored)
            next_old = i + 1
            new = _with_trace_ids(new, stored.get(i, []))
        out.append(new)
    return [*out, *_placeholder(before, range(next_old, len(before)), stored)]


def _with_trace_ids(step: Step, stored: Sequence[_Stored]) -> Step:
    if not stored or not isinstance(step, ActionStep):
        return step
    observations = list(step.observations)
    for part in stored:
        if part.observation is not None and part.observation < len(observations):
            o = observations[part.observation]
            text = f"{o.text}\n[the whole is in memory: trace_id {part.trace_id}]"
            observations[part.observation] = Observation(text, o.call_id, False, part.trace_id)
    return replace(step, observations=tuple(observations), source=None)


def _placeholder(before: Sequence[Step], gone: range, stored: dict[int, list[_Stored]]) -> list[Step]:
    """One note for a run of dropped steps, which also takes in the notes among them; none without records."""
    lines: list[str] = []
    ids: list[str] = []
    for i in gone:
        step = before[i]
        if isinstance(step, ScratchpadStep) and step.kind == "bank":
            lines += [line for line in step.text.splitlines() if line.startswith("- ")]
        positions = match_observations(step) if isinstance(step, ActionStep) else []
        new = {s.trace_id: s for s in stored.get(i, [])}
        for part in new.values():
            position = None if part.observation is None else positions[part.observation]
            lines.append(f"- {_call_or_text(step, position)}: trace_id {part.trace_id}")
        earlier = [t for t in trace_ids_of(step) if t not in new]
        if isinstance(step, ActionStep):
            lines += [f"- step {step.step_number}: trace_id {t}" for t in earlier]
        ids += [*earlier, *new]
    if not ids:
        return []
    hidden = len(lines) - _LISTED_CALLS
    head = [f"({hidden:,} older ones)"] if hidden > 0 else []
    text = "\n".join([*head, *lines[-_LISTED_CALLS:]])
    last = before[gone[-1]]
    trace_ids = tuple(dict.fromkeys(ids))
    return [ScratchpadStep(text, "bank", trace_ids, step_number=last.step_number, timestamp=last.timestamp)]


def _call_or_text(step: Step, position: int | None) -> str:
    if isinstance(step, ActionStep) and position is not None:
        call = step.tool_calls[position]
        return f"{call.name}({one_line(call.text, 80)})"
    return f"{'thought' if isinstance(step, ActionStep) else step.type} of step {step.step_number}"
