"""adaptive: the first of several strategies whose context fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memory_bank.bank.session import MemoryBankState
from memory_bank.context.build import Policy, make_plan
from memory_bank.plan import Choice, Plan
from memory_bank.transcript.transcript import View


def choose_adaptive(
    view: View, session: MemoryBankState, *, policies: Sequence[tuple[str, Policy]], max_tokens: int
) -> Choice:
    """The choice of the first strategy with at most ``max_tokens`` tokens; of the smallest if none fits."""
    best: tuple[str, Plan] | None = None
    for name, policy in policies:
        plan = make_plan(view, policy.choose(view, session), session, policy)
        if best is None or plan.tokens < best[1].tokens:
            best = name, plan
        if plan.tokens <= max_tokens:
            break
    assert best is not None
    name, plan = best
    return replace(plan.choice, chosen=name, budget=max_tokens, unchanged=plan.why_unchanged)
