"""Prunings: pure functions from steps to steps. System prompts, tasks and the last step always survive."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from memory_bank.errors import ConfigError, EmbeddingError, HistoryError, TokenBudgetError
from memory_bank.history.steps import (
    NO_RESULT,
    ActionStep,
    Json,
    Observation,
    ScratchpadStep,
    Step,
    TaskStep,
    Wire,
    cut,
    is_protected,
    match_observations,
    one_line,
    positive,
    step_text,
    trace_ids_of,
)
from memory_bank.models.observer import Complete, completion_of, extend_summary
from memory_bank.ports import ChatModel, Embedder, TokenCounter
from memory_bank.records import InteractionRecord, content_key, derive_trace_id
from memory_bank.transcript.jsontext import RAW
from memory_bank.transcript.messages import Interaction, check_messages, parse_messages
from memory_bank.transcript.shortening import shorten_text
from memory_bank.transcript.tokens import newest_within, open_counter
from memory_bank.vectors import choose_diverse, encode_documents, encode_queries

if TYPE_CHECKING:
    from memory_bank.bank.session import MemoryBankState

log = logging.getLogger("memory_bank.MemoryBankStrategy")
Pruning = Callable[[Sequence[Step]], list[Step]]
"""Steps to steps: does not change its input, and keeps the order of what survives."""
Summarize = Callable[[str], str]

_LINE_CHARS = 240  # of one step in an extractive summary


def chain(*prunings: Pruning) -> Pruning:
    """A pruning that applies ``prunings`` in order; without any it changes nothing."""
    for p in prunings:
        if not callable(p):
            raise HistoryError(f"chain was given a {type(p).__name__}: give prunings.")

    def chained(steps: Sequence[Step]) -> list[Step]:
        for p in prunings:
            steps = p(steps)
        return list(steps)

    return chained


def no_pruning(steps: Sequence[Step] | None = None) -> Any:
    """All steps, unchanged. Without steps it returns itself, so that ``no_pruning()`` is a pruning too."""
    return no_pruning if steps is None else list(steps)


def _keep(steps: Sequence[Step], positions: Collection[int]) -> list[Step]:
    """System prompts, tasks, the last step, and those at some positions."""
    last = len(steps) - 1
    return [s for i, s in enumerate(steps) if i == last or i in positions or is_protected(s)]


def _others(steps: Sequence[Step]) -> list[int]:
    return [i for i, s in enumerate(steps) if not is_protected(s)]


def _actions(steps: Sequence[Step]) -> list[int]:
    return [i for i, s in enumerate(steps) if isinstance(s, ActionStep)]


def first_recent(steps: Sequence[Step], n: int) -> int:
    """The position of the ``n``-th last action; 0 where there are fewer."""
    actions = _actions(steps)
    return actions[-n] if len(actions) >= n else 0


def keep_last_n_steps(n: int) -> Pruning:
    """A pruning to system prompts, tasks and the last ``n`` other steps. Raises HistoryError for n < 1."""
    positive(n, "n")
    return lambda steps: _keep(steps, _others(steps)[-n:])


def keep_system_and_recent(n: int) -> Pruning:
    """A pruning to system prompts, tasks and everything from the ``n``-th last action on.

    Raises HistoryError for n < 1.
    """
    positive(n, "n")
    return lambda steps: _keep(steps, range(first_recent(steps, n), len(steps)))


def prune_old_observations(
    *,
    keep_last_n: int | None = None,
    max_age_seconds: float | None = None,
    max_length: int = 100,
    now: float | None = None,
) -> Pruning:
    """A pruning that cuts observations and errors of old actions to ``max_length`` characters.

    Calls and thoughts stay. Old are the actions before the last ``keep_last_n`` (default: 5, and no limit where
    ``max_age_seconds`` is given) and those with a timestamp more than ``max_age_seconds`` before ``now`` (Unix
    seconds; default: the time at which the pruning runs). The last step is never old. Raises HistoryError for a
    limit below 1, and an age that is not above 0.
    """
    age = max_age_seconds
    if keep_last_n is None and age is None:
        keep_last_n = 5
    if keep_last_n is not None:
        positive(keep_last_n, "keep_last_n")
    positive(max_length, "max_length")
    if age is not None and not (isinstance(age, (int, float)) and 0 < age < math.inf):
        raise HistoryError(f"max_age_seconds is {age!r}: give seconds above 0, or None.")

    def prune(steps: Sequence[Step]) -> list[Step]:
        actions, pruned = _actions(steps), list(steps)
        old = set() if keep_last_n is None else set(actions[:-keep_last_n])
        if age is not None:
            since = (time.time() if now is None else now) - age
            old.update(i for i in actions[:-1] if steps[i].timestamp < since)
        for i in old:
            pruned[i] = _cut_observations(steps[i], max_length)
        return pruned

    return prune


def _cut_observations(step: Any, n: int) -> Any:
    """An action with observations and an error of at most ``n`` characters; the same object where nothing changes."""
    observations = tuple(o.truncate(n) for o in step.observations)
    error = None if step.error is None else cut(step.error, n)
    is_same = observations == step.observations and error == step.error
    return step if is_same else replace(step, observations=observations, error=error, source=None)


def count_tokens(
    steps: Sequence[Step | Json], counter: TokenCounter | None = None, wire: Wire = "tools"
) -> int:
    """The tokens of the messages of steps, by tiktoken's o200k_base unless a counter is given.

    A chat message in the list is counted as it is. Raises MessagesError where this is no list.
    """
    count = (counter or open_counter()).count_message
    rendered = (s.to_messages(wire=wire) if isinstance(s, Step) else (s,) for s in check_messages(steps))
    return sum(count(m) for messages in rendered for m in messages)


def fit_token_budget(
    max_tokens: int, *, counter: TokenCounter | None = None, wire: Wire = "tools"
) -> Pruning:
    """A pruning to at most ``max_tokens``; it changes no more than needed, and the oldest steps first.

    It cuts old observations to 400 characters, then to 100, and then drops whole steps. Tokens are those of the
    messages in the form ``wire``, by ``counter`` or else tiktoken's o200k_base. Raises HistoryError for a budget
    below 1; the pruning raises TokenBudgetError where system prompts, tasks and the last step alone cost more, with
    what they cost as ``smallest``.
    """
    positive(max_tokens, "max_tokens")

    def fit(steps: Sequence[Step]) -> list[Step]:
        left = list(steps)
        costs = [count_tokens([s], counter, wire) for s in left]
        total = sum(costs)
        for length in (400, 100):
            for i in _actions(left)[:-1]:
                if total <= max_tokens:
                    return left
                shorter = _cut_observations(left[i], length)
                if shorter is not left[i] and (cost := count_tokens([shorter], counter, wire)) < costs[i]:
                    total += cost - costs[i]
                    left[i], costs[i] = shorter, cost
        if total <= max_tokens:
            return left
        free = _others(left[:-1])
        needed = total - sum(costs[i] for i in free)
        if needed > max_tokens:
            raise TokenBudgetError(
                f"{max_tokens:,} tokens cannot be met: system prompt, tasks and last step need {needed:,}; "
                f"give max_tokens of at least {needed:,}.",
                needed,
            )
        count = newest_within([costs[i] for i in free], max_tokens - needed)
        return _keep(left, free[len(free) - count :])

    return fit


def semantic_pruning(embedder: Embedder, *, keep: int = 10, diversity: float = 0.3) -> Pruning:
    """A pruning to system prompts, tasks, the last step and the ``keep`` most relevant other steps.

    They are chosen by maximal marginal relevance to the last task, see ``vectors.choose_diverse``; ``diversity``: 0
    (relevance only) to 1. ``embedder`` has ``encode(list[str])`` -> (n, d), such as ``LexicalEmbedder()``. Raises
    HistoryError for a limit out of range; the pruning raises EmbeddingError.
    """
    positive(keep, "keep")
    if isinstance(diversity, bool) or not isinstance(diversity, (int, float)) or not 0 <= diversity <= 1:
        raise HistoryError(f"diversity is {diversity!r}: give a number from 0 to 1.")
    if isinstance(embedder, str) or not callable(getattr(embedder, "encode", None)):
        raise HistoryError("the embedder has no encode: give one, such as LexicalEmbedder().")

    def prune(steps: Sequence[Step]) -> list[Step]:
        free = _others(steps[:-1])
        if len(free) <= keep:
            return list(steps)
        rows = encode_documents(embedder, [step_text(steps[i])[:4_000] for i in free]).astype("float64")
        task = _task_of(steps)
        wanted = step_text(steps[-1]) if task is None else task
        relevance = rows @ encode_queries(embedder, [wanted])[0]
        chosen = choose_diverse(rows, relevance, float(diversity), [1] * len(free), keep)
        return _keep(steps, {free[i] for i in chosen})

    return prune


def _task_of(steps: Sequence[Step]) -> str | None:
    return next((s.task for s in reversed(steps) if isinstance(s, TaskStep)), None)


def summarize_old_steps(
    *,
    keep_last_n: int = 5,
    summarizer: Summarize | ChatModel | None = None,
    model: str = "",
    max_chars: int = 4_000,
) -> Pruning:
    """A pruning that replaces everything before the last ``keep_last_n`` actions by one summary.

    The summary, of at most ``max_chars`` characters, is a ScratchpadStep of kind "summary". It includes the earlier
    summary and names the records of the steps that it replaces. ``summarizer``: a function from text to text, a
    chat model (asked for ``model``), or None for extraction (a line a step), which also replaces, with a WARNING, a
    model that fails or answers nothing. Raises HistoryError for a limit below 1, and a summarizer that cannot be
    called.
    """
    positive(keep_last_n, "keep_last_n")
    positive(max_chars, "max_chars")
    complete = _open_summarizer(summarizer, model)

    def prune(steps: Sequence[Step]) -> list[Step]:
        old = _others(steps[: min(first_recent(steps, keep_last_n), len(steps) - 1)])
        gone = [steps[i] for i in old]
        if not _actions(gone):
            return list(steps)
        ids = tuple(dict.fromkeys(t for s in gone for t in trace_ids_of(s)))
        text = _model_summary(gone, complete, max_chars, _task_of(steps) or "")
        if text is not None:
            text = shorten_text(text, max_chars) + (f"\nRecords: {', '.join(ids)}" if ids else "")
        summary = stand_in(gone[-1], text or _extracted(gone, max_chars), "summary", ids)
        dropped = set(old[:-1])
        return [summary if i == old[-1] else s for i, s in enumerate(steps) if i not in dropped]

    return prune


def stand_in(
    last: Step, text: str, kind: Any, trace_ids: Iterable[str], rows: Sequence[Json] | None = None
) -> ScratchpadStep:
    """A step that replaces older ones; it has the number and the time of ``last``, the last of them."""
    ids = tuple(dict.fromkeys(trace_ids))
    return ScratchpadStep(text, kind, ids, rows, step_number=last.step_number, timestamp=last.timestamp)


def _open_summarizer(summarizer: object, model: str) -> Complete | None:
    """A summarizer from a function or a chat model; None for None. Raises HistoryError for anything else."""
    if callable(summarizer) and not callable(getattr(summarizer, "generate_plain", None)):
        return lambda messages: str(summarizer("\n\n".join(m["content"] for m in messages)))
    try:
        return completion_of(summarizer, model)
    except ConfigError as e:
        raise HistoryError(f"the summarizer is neither a function nor a chat model: {e}") from e


def _model_summary(steps: Sequence[Step], complete: Complete | None, max_chars: int, task: str) -> str | None:
    """A model's summary of steps, and of the summary among them; None without a model, and where it fails."""
    if complete is None:
        return None
    summaries = [s for s in steps if isinstance(s, ScratchpadStep) and s.kind == "summary"]
    calls = [shorten_text(step_text(s), 4_000) for s in steps if s not in summaries]
    earlier = "\n".join(s.text for s in summaries)
    return extend_summary(complete, earlier, calls, task, max(20, max_chars // 6))[0]


def _extracted(steps: Sequence[Step], max_chars: int) -> str:
    """A line a step, earlier summaries unchanged; the oldest lines are dropped and counted."""
    lines: list[str] = []
    for step in steps:
        is_summary = isinstance(step, ScratchpadStep) and step.kind != "note"
        lines += step.text.splitlines() if is_summary else [line_of(step)]  # type: ignore[attr-defined]
    count = max(1, newest_within([len(line) + 1 for line in lines], max_chars - 40))
    if gone := len(lines) - count:
        lines = [f"[{gone:,} earlier lines are left out]", *lines[gone:]]
    return "\n".join(lines)


def line_of(step: Step) -> str:
    """A step on one line: its calls with the beginnings of their results, or its text."""
    if not isinstance(step, ActionStep):
        return one_line(step_text(step), _LINE_CHARS)
    room = max(40, _LINE_CHARS // max(1, len(step.tool_calls)))
    answers = dict(zip(match_observations(step), step.observations, strict=True))
    parts = [] if step.tool_calls else [one_line(step.thought or "", _LINE_CHARS)]
    for i, call in enumerate(step.tool_calls):
        body, trace_id = "no result", None
        if i in answers:
            body, trace_id = one_line(answers[i].text, room), answers[i].trace_id
        named = f" (trace_id {trace_id})" if trace_id is not None and trace_id not in body else ""
        parts.append(f"{call.name}({one_line(call.text, room // 2)}) -> {body}{named}")
    if step.error is not None:
        parts.append(f"error: {one_line(step.error, room)}")
    return f"{step.step_number}. " + "; ".join(parts)


def check_steps(steps: object, subject: str = "what a pruning returns") -> list[Step]:
    """The steps of a list, or of ``subject``. Raises HistoryError unless they are a list of steps."""
    if not isinstance(steps, (list, tuple)) or not all(isinstance(s, Step) for s in steps):
        raise HistoryError(f"{subject} must be a list of steps, such as TaskStep.")
    return list(steps)


# into the bank


class StepRecord(NamedTuple):
    """The record of an answered call, with the position of its observation in the step, or of a step's text."""

    name: str
    observation: int | None
    record: InteractionRecord


def to_memory_bank(state: MemoryBankState, prune: Pruning | None = None, *, keep_last_n: int = 5) -> Pruning:
    """A pruning that stores in ``state``, a MemoryBankState, what ``prune`` removes, before it is removed.

    A shortened observation ends in its ``trace_id``; in the place of dropped steps one ScratchpadStep (kind "bank")
    lists calls and trace_ids. They are the trace_ids that ``apply_memory_bank_strategy`` gives the same messages, so
    nothing is stored twice. When storing fails the pruning raises and nothing is pruned. ``prune``: by default
    ``prune_old_observations`` with ``keep_last_n``. Raises HistoryError where ``state`` is no bank, and ``prune`` no
    function.
    """
    check_bank(state, "to_memory_bank")
    chosen = prune if prune is not None else prune_old_observations(keep_last_n=keep_last_n)
    if not callable(chosen):
        raise HistoryError(
            f"to_memory_bank was given a {type(chosen).__name__} as its pruning: give a pruning."
        )

    def prune_and_store(steps: Sequence[Step]) -> list[Step]:
        before = list(steps)
        after = check_steps(chosen(tuple(before)))
        origins = _origins(before, after)
        became = {i: new for i, new in zip(origins, after, strict=True) if i is not None}
        stored = store_lost(state, before, {i: became.get(i) for i in range(len(before))})
        out: list[Step] = []
        next_old = 0
        for i, new in zip(origins, after, strict=True):
            if i is not None:
                out += _stand_in(before, range(next_old, i), stored)
                next_old = i + 1
                new = _with_trace_ids(new, stored.get(i, []))
            out.append(new)
        return [*out, *_stand_in(before, range(next_old, len(before)), stored)]

    return prune_and_store


def check_bank(state: object, who: str) -> None:
    """Raise HistoryError where ``state`` is no bank: it has no method ``add``."""
    if not callable(getattr(state, "add", None)):
        kind = type(state).__name__
        raise HistoryError(f"{who} was given a {kind} as its bank: give a MemoryBankState first.")


def records_of(steps: Sequence[Step], session_id: str = "default") -> list[InteractionRecord]:
    """The records of all calls with a whole output, in order, as a bank of that session stores them."""
    return [each.record for calls in _calls_of(steps, session_id) for each in calls]


def store_lost(
    state: MemoryBankState, steps: Sequence[Step], changed: Mapping[int, Step | None]
) -> dict[int, list[StepRecord]]:
    """Store what steps lose and return it by position; ``changed``: what becomes of them, None where dropped."""
    stored: dict[int, list[StepRecord]] = {}
    for i, calls in enumerate(_calls_of(steps, state.session_id)):
        old, new = steps[i], changed.get(i, steps[i])
        if new is None:
            stored[i] = calls + _text_of(old, state.session_id)
        elif new is not old:
            came, now = ([o.content for o in getattr(s, "observations", ())] for s in (old, new))
            stored[i] = [
                r for r in calls if (n := r.observation) is None or now[n : n + 1] != came[n : n + 1]
            ]
    try:
        if records := [each.record for calls in stored.values() for each in calls]:
            state.add(records)
    except EmbeddingError as e:  # the facts are stored: the insights can wait
        log.warning("insights of pruned steps wait for the embedder: %s", e)
    return stored


def _calls_of(steps: Sequence[Step], session_id: str) -> Iterator[list[StepRecord]]:
    """The answered calls of each step, with trace_ids as the messages of the whole history give them."""
    used: set[str] = set()
    for step in steps:
        used.update(trace_ids_of(step))
        calls: list[StepRecord] = []
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
                    record = pair.record(trace_id, step.step_number, step.timestamp)
                    calls.append(StepRecord(name, i, record))
        yield calls


def _text_of(step: Step, session_id: str) -> list[StepRecord]:
    """The text of a step besides its calls (plan, note, answer, thought); none without text."""
    name, text = step.type, step_text(step).split("\n", 1)[-1]
    if isinstance(step, ActionStep):
        name = "thought"
        if step.tool_calls or not (step.thought or step.error or step.observations):
            text = step.thought or ""
        else:
            text = step_text(step)
    if not text.strip() or (isinstance(step, ScratchpadStep) and step.kind == "bank"):
        return []
    number, time = step.step_number, step.timestamp
    trace_id = derive_trace_id(session_id, content_key(name, str(number), repr(time), text), 0)
    record = InteractionRecord(trace_id, number, name, {"step": number}, {RAW: text}, time, output_text=text)
    return [StepRecord(f"{name} of step {number}", None, record)]


def _origins(before: Sequence[Step], after: Sequence[Step]) -> list[int | None]:
    """For each step after a pruning, its position before it; None for a new step. Old steps keep their order."""
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


def _with_trace_ids(step: Step, stored: Sequence[StepRecord]) -> Step:
    if not stored or not isinstance(step, ActionStep):
        return step
    observations = list(step.observations)
    for _, i, record in stored:
        if i is not None and i < len(observations):
            text = f"{observations[i].text}\n[the whole is in memory: trace_id {record.trace_id}]"
            observations[i] = Observation(text, observations[i].call_id, False, record.trace_id)
    return replace(step, observations=tuple(observations), source=None)


def _stand_in(before: Sequence[Step], gone: range, stored: Mapping[int, Sequence[StepRecord]]) -> list[Step]:
    """One step in the place of a run of dropped steps, and of such steps among them; none without records."""
    lines: list[str] = []
    ids: list[str] = []
    for i in gone:
        step = before[i]
        if isinstance(step, ScratchpadStep) and step.kind == "bank":
            lines += [line for line in step.text.splitlines() if line.startswith("- ")]
        new = {each.record.trace_id: each.name for each in stored.get(i, ())}
        earlier = [t for t in trace_ids_of(step) if t not in new]
        lines += [f"- {name}: trace_id {t}" for t, name in new.items()]
        if isinstance(step, ActionStep):
            lines += [f"- step {step.step_number}: trace_id {t}" for t in earlier]
        ids += [*earlier, *new]
    if not ids:
        return []
    if (older := len(lines) - 40) > 0:
        lines = [f"({older:,} older ones)", *lines[older:]]
    return [stand_in(before[gone[-1]], "\n".join(lines), "bank", ids)]
