"""A history that keeps within a number of tokens by the mildest pruning that does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memory_bank.errors import HistoryError
from memory_bank.history.banking import Bank, to_memory_bank
from memory_bank.history.manager import MemoryManager
from memory_bank.history.parts import positive
from memory_bank.history.pruning import (
    Pruning,
    chain,
    check_steps,
    count_tokens,
    fit_token_budget,
    keep_system_and_recent,
    no_pruning,
    prune_old_observations,
)
from memory_bank.history.steps import Step

LADDER: tuple[tuple[str, Pruning], ...] = (
    ("no_pruning", no_pruning),
    ("observations before the last 5 to 1,000 characters", prune_old_observations(5, max_length=1_000)),
    ("observations before the last 3 to 300 characters", prune_old_observations(3, max_length=300)),
    ("observations before the last to 100 characters", prune_old_observations(1)),
    ("the last 20 actions", chain(keep_system_and_recent(20), prune_old_observations(1))),
    ("the last 5 actions", chain(keep_system_and_recent(5), prune_old_observations(1))),
)
"""From the mildest on; ``fit_token_budget`` comes after the last."""


class AdaptiveMemoryManager(MemoryManager):
    """A MemoryManager whose messages never exceed ``max_tokens``.

    When a step makes them, the first pruning of ``ladder`` (name and pruning, the mildest first) that fits is
    applied, after them ``fit_token_budget``. With ``state`` what goes is stored in the bank. ``last_level``
    is the name of what was applied last. ``add`` and ``prune`` raise TokenBudgetError where system prompt,
    tasks and last step alone are more; the step is kept. Further arguments as for MemoryManager.
    """

    def __init__(
        self,
        max_tokens: int,
        *args: Any,
        ladder: Sequence[tuple[str, Pruning]] = LADDER,
        state: Bank | None = None,
        **options: Any,
    ) -> None:
        self.max_tokens = positive(max_tokens, "max_tokens")
        self.ladder = tuple(ladder)
        if not all(isinstance(r, tuple) and len(r) == 2 and callable(r[1]) for r in self.ladder):
            raise HistoryError("a ladder is a list of (name, pruning), the mildest first.")
        self.state = state
        self.last_level = ""
        super().__init__(*args, **options)

    def prune(self, strategy: Pruning | None = None) -> int:
        """Prune by ``strategy``, else by the mildest that fits; returns how many steps are gone."""
        return super().prune(strategy or self._mildest)

    def _prune_if_due(self) -> None:
        super()._prune_if_due()
        if self.token_count > self.max_tokens:
            self.prune()

    def _mildest(self, steps: Sequence[Step]) -> list[Step]:
        for name, pruning in self.ladder:
            left = check_steps(pruning(steps))
            if self._fits(left) and self.state is not None:
                left = to_memory_bank(self.state, pruning)(steps)
            if self._fits(left):
                self.last_level = name
                return left
        fit = fit_token_budget(self.max_tokens, counter=self.counter, wire=self.wire)
        left = fit(steps)
        if self.state is not None:
            left = fit(to_memory_bank(self.state, fit)(steps))
        self.last_level = "fit_token_budget"
        return left

    def _fits(self, steps: Sequence[Step]) -> bool:
        return count_tokens(steps, self.counter, self.wire) <= self.max_tokens
