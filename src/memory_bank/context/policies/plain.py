"""no_strategy, truncation, keep_last_n: policies without memory; adaptive: the first of several that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memory_bank.bank.session import MemoryBankState, Session
from memory_bank.config import AdaptiveSettings
from memory_bank.context.build import Policy, make_plan
from memory_bank.plan import Choice, Plan, Shown
from memory_bank.transcript.transcript import View


def choose_all(view: View, session: Session) -> Choice:
    """Keep all messages."""
    return Choice(unchanged="the strategy keeps everything")


def choose_last(view: View, session: Session, *, n: int) -> Choice:
    """Keep what is never dropped and the last ``n`` interactions."""
    if len(view.history) < n:
        return Choice(unchanged="there are no older interactions")
    whole = [e for e in view.history[len(view.history) - n + 1 :] if not e.fault]
    return Choice(whole=whole, reasons=Shown(whole))


def choose_adaptive(
    view: View,
    session: MemoryBankState,
    *,
    settings: AdaptiveSettings,
    policies: Sequence[tuple[str, Policy]],
) -> Choice:
    """The choice of the first strategy with at most ``max_tokens`` tokens; of the smallest if none fits."""
    plans: list[tuple[str, Plan]] = []
    for name, policy in policies:
        plans.append((name, make_plan(view, policy.choose(view, session), session, policy)))
        if plans[-1][1].tokens <= settings.max_tokens:
            break
    name, plan = min(plans, key=lambda p: p[1].tokens)
    return replace(plan.choice, chosen=name, budget=settings.max_tokens, unchanged=plan.why_unchanged)
