"""Prunings: pure functions from steps to steps; system prompt, tasks and the last step always survive."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from memory_bank.errors import HistoryError, TokenBudgetError
from memory_bank.history.parts import cut, positive
from memory_bank.history.steps import ActionStep, Step, SystemPromptStep, TaskStep, Wire
from memory_bank.ports import TokenCounter
from memory_bank.transcript.tokens import open_counter

Pruning = Callable[[Sequence[Step]], list[Step]]
"""Steps to steps; the input is not changed, and what survives keeps its order."""


def is_protected(step: Step) -> bool:
    """Whether no pruning may drop or change a step: system prompts and what the user said."""
    return isinstance(step, (SystemPromptStep, TaskStep))


def chain(*prunings: Pruning) -> Pruning:
    """One pruning after the other, the first first; none at all prunes nothing."""
    for p in prunings:
        if not callable(p):
            raise HistoryError(f"chain was given a {type(p).__name__}: give prunings.")

    def chained(steps: Sequence[Step]) -> list[Step]:
        for p in prunings:
            steps = p(steps)
        return list(steps)

    return chained


def no_pruning(steps: Sequence[Step]) -> list[Step]:
    """All steps as they are."""
    return list(steps)


def keep_last_n_steps(n: int) -> Pruning:
    """The last ``n`` steps of any kind, and what is protected. Raises HistoryError for n < 1."""
    positive(n, "n")

    def keep(steps: Sequence[Step]) -> list[Step]:
        first = len(steps) - n
        return [s for i, s in enumerate(steps) if i >= first or is_protected(s)]

    return keep


def keep_system_and_recent(n: int) -> Pruning:
    """What is protected, and everything from the ``n``-th last action on: its plans and notes too.

    Raises HistoryError for n < 1.
    """
    positive(n, "n")

    def keep(steps: Sequence[Step]) -> list[Step]:
        actions = [i for i, s in enumerate(steps) if isinstance(s, ActionStep)]
        first = actions[-n] if len(actions) >= n else 0
        return [s for i, s in enumerate(steps) if i >= first or is_protected(s)]

    return keep


def prune_old_observations(
    keep_last_n: int | None = 5,
    max_age_seconds: float | None = None,
    max_length: int = 100,
    *,
    now: float | None = None,
) -> Pruning:
    """Observations and errors of old actions cut to ``max_length`` characters; calls and thoughts stay.

    Old is an action that is not among the last ``keep_last_n``, or is older than ``max_age_seconds``: before
    ``now`` (Unix seconds), which is the last step's timestamp unless given. The last step is never old.
    Raises HistoryError for limits below 1 (age: not above 0).
    """
    if keep_last_n is not None:
        positive(keep_last_n, "keep_last_n")
    positive(max_length, "max_length")
    if max_age_seconds is not None and not (
        isinstance(max_age_seconds, (int, float)) and math.isfinite(max_age_seconds) and max_age_seconds > 0
    ):
        raise HistoryError(f"max_age_seconds is {max_age_seconds!r}: give seconds above 0, or None.")

    def prune(steps: Sequence[Step]) -> list[Step]:
        old = set(old_actions(steps, keep_last_n))
        if max_age_seconds is not None and steps:
            since = (steps[-1].timestamp if now is None else now) - max_age_seconds
            old |= {i for i in old_actions(steps, 1) if steps[i].timestamp < since}
        return [_cut_observations(s, max_length) if i in old else s for i, s in enumerate(steps)]

    return prune


def old_actions(steps: Sequence[Step], keep_last_n: int | None) -> list[int]:
    """The positions of the actions before the last ``keep_last_n`` actions and before the last step."""
    actions = [i for i, s in enumerate(steps) if isinstance(s, ActionStep)]
    kept = set(() if keep_last_n is None else actions[-keep_last_n:])
    return [i for i in actions if i not in kept and i != len(steps) - 1] if keep_last_n is not None else []


def _cut_observations(step: Step, n: int) -> Step:
    assert isinstance(step, ActionStep)
    seen = tuple(o.truncate(n) for o in step.observations)
    error = None if step.error is None else cut(step.error, n)
    if seen == step.observations and error == step.error:
        return step
    return replace(step, observations=seen, error=error, source=None)


def count_tokens(steps: Sequence[Step], counter: TokenCounter | None = None, wire: Wire = "tools") -> int:
    """Tokens of the messages of some steps, by tiktoken's o200k_base unless a counter is given."""
    counter = counter or open_counter()
    return sum(_tokens(s, counter, wire) for s in steps)


def _tokens(step: Step, counter: TokenCounter, wire: Wire) -> int:
    return sum(counter.count_message(m) for m in step.to_messages(wire=wire))


def fit_token_budget(
    max_tokens: int, *, counter: TokenCounter | None = None, wire: Wire = "tools"
) -> Pruning:
    """The steps in at most ``max_tokens``, by the least that is needed, the oldest first.

    First old observations are cut to 400 and to 100 characters, then whole steps are dropped. Raises
    HistoryError for a budget below 1; the pruning raises TokenBudgetError where system prompt, tasks and last
    step alone are more: its ``smallest`` is what they need.
    """
    positive(max_tokens, "max_tokens")

    def fit(steps: Sequence[Step]) -> list[Step]:
        by = counter or open_counter()
        left = list(steps)
        costs = [_tokens(s, by, wire) for s in left]
        total = sum(costs)
        last = len(left) - 1
        if total <= max_tokens:
            return left
        for length in (400, 100):
            for i in old_actions(left, 1):
                shorter = _cut_observations(left[i], length)
                if shorter is not left[i]:
                    cost = _tokens(shorter, by, wire)
                    if cost < costs[i]:
                        total += cost - costs[i]
                        left[i], costs[i] = shorter, cost
                if total <= max_tokens:
                    return left
        dropped: set[int] = set()
        for i, step in enumerate(left):
            if total <= max_tokens:
                break
            if i != last and not is_protected(step):
                total -= costs[i]
                dropped.add(i)
        if total > max_tokens:
            raise TokenBudgetError(
                f"{max_tokens:,} tokens cannot be met: system prompt, tasks and last step need {total:,}; "
                f"give max_tokens of at least {total:,}.",
                total,
            )
        return [s for i, s in enumerate(left) if i not in dropped]

    return fit


def check_steps(steps: Any) -> list[Step]:
    """The steps, when they are a list of steps. Raises HistoryError otherwise."""
    if not isinstance(steps, (list, tuple)) or not all(isinstance(s, Step) for s in steps):
        raise HistoryError("a pruning must return a list of steps: see memory_bank.history.Pruning.")
    return list(steps)
