"""What a strategy made of one step, in figures."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class ContextReport:
    """One context: its tokens, its budget, and what had to be kept in any case.

    ``kept_tokens`` are anchor, broken pairs and tail, which no budget drops. ``unchanged`` is the reason why
    the messages went through as they came, or "". ``chosen`` is the strategy that an adaptive one took.
    ``model_calls`` are those made for a running summary at this step.
    """

    strategy: str
    budget: int | None = None
    tokens: int = 0
    full_tokens: int = 0
    kept_tokens: int = 0
    unchanged: str = ""
    chosen: str = ""
    model_calls: int = 0

    def completed(self, tokens: int, full_tokens: int, kept_tokens: int, unchanged: str) -> ContextReport:
        """The same with its figures."""
        return replace(
            self, tokens=tokens, full_tokens=full_tokens, kept_tokens=kept_tokens, unchanged=unchanged
        )

    @property
    def over(self) -> int:
        """Tokens above the budget: 0 but where what must be kept is larger than it."""
        return 0 if self.budget is None else max(0, self.tokens - self.budget)

    @property
    def sentence(self) -> str:
        """What is to be said about the budget, or ""."""
        if not self.over:
            return ""
        return (
            f"{self.strategy}: the context has {self.tokens:,} tokens, {self.over:,} over its budget of "
            f"{self.budget:,}: system prompt, user turns and last interaction alone take {self.kept_tokens:,}"
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "over": self.over}
