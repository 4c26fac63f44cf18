"""What a pruning takes away goes into the bank first; what stays in its place carries the trace_id."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from memory_bank.history.parts import Observation, one_line
from memory_bank.history.pruning import Pruning, check_steps, prune_old_observations
from memory_bank.history.relevance import step_text
from memory_bank.history.steps import ActionStep, ScratchpadStep, Step
from memory_bank.history.summaries import trace_ids_of
from memory_bank.history.wire import NO_RESULT, match
from memory_bank.records import InteractionRecord, content_key, derive_trace_id
from memory_bank.transcript.interactions import Interaction, Pair
from memory_bank.transcript.parsing import parse_messages

_LINES = 40  # calls that one placeholder lists; the others are counted


class Bank(Protocol):
    """What is asked of a state; MemoryBankState is one."""

    @property
    def session_id(self) -> str: ...

    def remember(self, records: Sequence[InteractionRecord]) -> None:
        """Store the records that are new, durably, and see that they can be found."""


def to_memory_bank(state: Bank, prune: Pruning | None = None, *, keep_last_n: int = 5) -> Pruning:
    """A pruning whose losses are stored in ``state`` before they are lost.

    ``prune`` decides what goes; without it, observations of over 100 characters before the last
    ``keep_last_n`` actions. A shortened observation ends in its ``trace_id``; for steps that are dropped one
    ScratchpadStep (kind "bank") lists calls and ids. Ids are those that ``apply_memory_bank_strategy`` gives
    the same messages, so nothing is stored twice. Raises what storing raises; nothing is pruned then.
    """
    chosen = prune if prune is not None else prune_old_observations(keep_last_n)

    def banked(steps: Sequence[Step]) -> list[Step]:
        before = list(steps)
        after = check_steps(chosen(tuple(before)))
        became = _alignment(before, after)
        ids = _Ids(state.session_id)
        records: list[InteractionRecord] = []
        stored: dict[int, dict[int, str]] = {}
        for i, step in enumerate(before):
            known = ids.of(step)
            new = None if i not in became else after[became[i]]
            if new is step:
                continue
            lost = [k for k in known if new is None or _was_cut(step, new, k.place)]
            records += [k.record(step) for k in lost]
            stored[i] = {k.place: k.trace_id for k in lost if k.place is not None}
            if new is None:
                spoken = _spoken(step, state.session_id)
                records += spoken
                stored[i].update({-1 - n: r.trace_id for n, r in enumerate(spoken)})
        if records:
            state.remember(records)
        return _with_placeholders(before, after, became, stored)

    return banked


def bank_steps(state: Bank, steps: Sequence[Step], history: Sequence[Step]) -> list[list[str]]:
    """Store everything that some steps of a history hold; returns each step's ids, old ones too."""
    ids = _Ids(state.session_id)
    wanted = {id(s) for s in steps}
    records: list[InteractionRecord] = []
    found: dict[int, list[str]] = {}
    for step in history:
        known = ids.of(step)
        if id(step) in wanted:
            new = [k.record(step) for k in known] + _spoken(step, state.session_id)
            records += new
            found[id(step)] = [*trace_ids_of(step), *(r.trace_id for r in new)]
    if records:
        state.remember(records)
    return [found[id(s)] for s in steps]


def records_of(steps: Sequence[Step], session_id: str = "default") -> list[InteractionRecord]:
    """The record of every answered call whose output is whole, in order, as a bank of that session has it."""
    ids = _Ids(session_id)
    return [known.record(step) for step in steps for known in ids.of(step)]


class _Known:
    """An answered call of a step: its pair, the place of its observation, its id."""

    def __init__(self, pair: Pair, place: int | None, trace_id: str) -> None:
        self.pair = pair
        self.place = place
        self.trace_id = trace_id

    def record(self, step: Step) -> InteractionRecord:
        call, result = self.pair.call, self.pair.result
        assert result is not None
        return InteractionRecord(
            trace_id=self.trace_id,
            step_id=step.step_number,
            tool_name=self.pair.tool_name,
            raw_input=call.raw_input if call else {},
            raw_output=result.raw_output,
            timestamp=step.timestamp,
            call_id=call.call_id if call else result.call_id,
            input_text=call.arguments if call and isinstance(call.arguments, str) else None,
            output_text=result.output_text,
        )


class _Ids:
    """Gives the calls of a history their ids, oldest first, equal ones by their ordinal."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.taken: set[str] = set()

    def of(self, step: Step) -> list[_Known]:
        self.taken.update(trace_ids_of(step))
        if not isinstance(step, ActionStep) or not (step.tool_calls or step.observations):
            return []
        segments = parse_messages(step.to_messages())
        pairs = [p for s in segments if isinstance(s, Interaction) for p in s.pairs]
        by_place = {place: i for i, place in enumerate(match(step)) if place is not None}
        out = []
        for n, pair in enumerate(pairs):
            place = by_place.get(n)
            if pair.result is None or (place is None and pair.result.content == NO_RESULT):
                continue
            if place is not None and not step.observations[place].whole:
                continue
            out.append(_Known(pair, place, self._next(pair.content_key())))
        return out

    def _next(self, key: bytes) -> str:
        ordinal = 0
        while (trace_id := derive_trace_id(self.session_id, key, ordinal)) in self.taken:
            ordinal += 1
        self.taken.add(trace_id)
        return trace_id


def _alignment(before: Sequence[Step], after: Sequence[Step]) -> dict[int, int]:
    """What became of which step: positions before to positions after; both keep their order."""
    places: dict[Any, deque[int]] = {}
    for i, old in enumerate(before):
        places.setdefault(id(old), deque()).append(i)
        places.setdefault(_mark(old), deque()).append(i)
    became: dict[int, int] = {}
    start = 0
    for j, new in enumerate(after):
        for queue in (places.get(id(new)), places.get(_mark(new))):
            while queue and queue[0] < start:
                queue.popleft()
            if queue:
                became[queue[0]] = j
                start = queue[0] + 1
                break
    return became


def _mark(step: Step) -> tuple[type[Step], int, float]:
    return type(step), step.step_number, step.timestamp


def _was_cut(old: Step, new: Step, place: int | None) -> bool:
    if place is None or not isinstance(old, ActionStep) or not isinstance(new, ActionStep):
        return True
    return (
        place >= len(new.observations) or new.observations[place].content != old.observations[place].content
    )


def _spoken(step: Step, session_id: str) -> list[InteractionRecord]:
    """What a dropped step says beside its calls, as a record: a plan, a note, an answer, a thought."""
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
    given = {"step": step.step_number}
    parts = (name, str(step.step_number), repr(step.timestamp), text)
    key = content_key(*(p.encode("utf-8", "surrogatepass") for p in parts))
    return [
        InteractionRecord(
            derive_trace_id(session_id, key, 0), step.step_number, name, given, {"_raw": text},
            step.timestamp, output_text=text,
        )
    ]  # fmt: skip


def _with_placeholders(
    before: Sequence[Step],
    after: Sequence[Step],
    became: dict[int, int],
    stored: dict[int, dict[int, str]],
) -> list[Step]:
    out: list[Step] = []
    old_at = {j: i for i, j in became.items()}
    next_old = 0
    for j, new in enumerate(after):
        if j in old_at:
            out += _note(before, range(next_old, old_at[j]), stored)
            next_old = old_at[j] + 1
            out.append(_marked(new, stored.get(old_at[j], {})))
        else:
            out.append(new)
    return [*out, *_note(before, range(next_old, len(before)), stored)]


def _marked(step: Step, ids: dict[int, str]) -> Step:
    if not ids or not isinstance(step, ActionStep):
        return step
    seen = tuple(
        Observation(f"{o.text}\n[the whole is in memory: trace_id {ids[i]}]", o.call_id, False, ids[i])
        if i in ids
        else o
        for i, o in enumerate(step.observations)
    )
    return replace(step, observations=seen, source=None)


def _note(before: Sequence[Step], gone: range, stored: dict[int, dict[int, str]]) -> list[Step]:
    """One placeholder for a run of dropped steps; earlier placeholders among them go into it."""
    lines: list[str] = []
    ids: list[str] = []
    for i in gone:
        step = before[i]
        if isinstance(step, ScratchpadStep) and step.kind == "bank":
            lines += [line for line in step.text.splitlines() if line.startswith("- ")]
        places = match(step) if isinstance(step, ActionStep) else []
        for place, trace_id in stored.get(i, {}).items():
            lines.append(f"- {_called(step, places[place] if place >= 0 else None)}: trace_id {trace_id}")
        earlier = [t for t in trace_ids_of(step) if t not in stored.get(i, {}).values()]
        if isinstance(step, ActionStep):
            lines += [f"- step {step.step_number}: trace_id {t}" for t in earlier]
        ids += [*earlier, *stored.get(i, {}).values()]
    if not ids:
        return []
    head = [f"({len(lines) - _LINES:,} older ones: search_memory)"] if len(lines) > _LINES else []
    last = before[gone[-1]]
    return [
        ScratchpadStep(
            "\n".join([*head, *lines[-_LINES:]]),
            "bank",
            tuple(dict.fromkeys(ids)),
            step_number=last.step_number,
            timestamp=last.timestamp,
        )
    ]


def _called(step: Step, place: int | None) -> str:
    if isinstance(step, ActionStep) and place is not None:
        call: Any = step.tool_calls[place]
        return f"{call.name}({one_line(call.text, 80)})"
    return f"{'thought' if isinstance(step, ActionStep) else step.type} of step {step.step_number}"
