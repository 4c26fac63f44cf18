"""The pipeline of every strategy: read the messages, store what is new, choose, plan, render."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memory_bank.bank.session import MemoryBankState, Session
from memory_bank.config import MemoryBankSettings
from memory_bank.context.marks import marked_choice, marked_view
from memory_bank.context.render import memory_message, render, repair_interaction, written
from memory_bank.faults import fault_point
from memory_bank.plan import Choice, Context, Plan
from memory_bank.transcript.messages import record_tool
from memory_bank.transcript.transcript import View
from memory_bank.transcript.turns import Entry

log = logging.getLogger("memory_bank.MemoryBankStrategy")


@dataclass(frozen=True)
class Policy:
    """A context strategy: what it chooses, and what the pipeline needs to know to carry that out.

    ``choose`` gets the view of the messages and the session in which they are stored. ``bank``: the settings
    by which a MemoryBankState stores records; None for a policy that needs no memory. ``reads_insights``: a
    choice needs the insights of the present step, so that they are stored before it. ``budget`` returns the tokens
    that pinned records may take of an older history of so many tokens; None: they are not limited.
    """

    name: str
    choose: Callable[[View, Any], Choice]
    bank: MemoryBankSettings | None = None
    llm_client: object = None
    reads_insights: bool = True
    budget: Callable[[int], int] | None = None


def build_context(
    messages: Sequence[object], session: Session, policy: Policy, tools: Sequence[object] | None = None
) -> Context:
    """Build the context of the next model call. ``messages`` are never changed.

    ``tools``: those of the call; the context names ``get_record`` only where it is among them.

    Raises MessagesError, ConfigError, EmbeddingError, StorageError. Nothing that was stored is lost then, and
    the same call can be made again.
    """
    with session.lock:
        session.prepare(policy.bank, policy.llm_client)
        session.record_tool = record_tool(tools)
        view = session.transcript.update(messages)
        session.store(view, insights_later=not policy.reads_insights)
        if isinstance(session, MemoryBankState) and any(session.retained):
            budget = policy.budget and policy.budget(sum(e.tokens for e in view.history))
            view = marked_view(view, session, budget)
            choice = marked_choice(policy.choose(view, session), view, session, budget)
        else:
            choice = policy.choose(view, session)
        context = render(make_plan(view, choice, session, policy))
        _record_plan(context.plan, session)
        fault_point("step.done")
        return context


def make_plan(view: View, choice: Choice, session: Session, policy: Policy) -> Plan:
    """Count what a choice costs, repair broken pairs, and keep the messages where the choice saves nothing."""
    repaired, repairs = _repairs(view, choice.repair_pairs)
    memory = None
    if choice.text and not choice.unchanged:
        memory = memory_message(choice.text, session.session_id, choice.role)
    memory_tokens = _memory_tokens(memory, session)
    kept = view.kept_tokens
    tokens = view.full_tokens if choice.keep_all else kept + sum(e.tokens for e in choice.whole)
    tokens += memory_tokens + _edited_tokens(view, choice)
    why = choice.unchanged
    if not why and not choice.may_cost_more and tokens >= view.full_tokens:
        why = "the full history costs no more"
    if why:
        memory, memory_tokens = None, 0
        tail = {p: e for p, e in choice.edits.items() if p >= view.tail_start}
        tokens = view.full_tokens + _edited_tokens(view, replace(choice, edits=tail))
    for start, entries in repaired.items():
        new = written(entries, view.messages)
        own = next(e.tokens for e in view.interactions if e.start == start)
        tokens += sum(map(session.counter.count_message, new)) - own
    return Plan(
        view=view,
        choice=choice,
        strategy=policy.name,
        tokens=tokens,
        full_tokens=view.full_tokens,
        kept_tokens=kept,
        memory_tokens=memory_tokens,
        unchanged=bool(why),
        why_unchanged=why,
        counter=session.counter.name,
        embedder=session.embedder_name,
        observer=session.observer_name,
        memory=memory,
        repaired=repaired,
        repairs=repairs,
        previous=None if session.last_plan is None else replace(session.last_plan, previous=None),
    )


def _memory_tokens(memory: Mapping[str, str] | None, session: Session) -> int:
    """Tokens of the memory message; those of the step before are known."""
    if memory is None:
        return 0
    last = session.last_plan
    if last is not None and last.memory == memory and last.counter == session.counter.name:
        return last.memory_tokens
    return session.counter.count_message(memory)


def _edited_tokens(view: View, choice: Choice) -> int:
    """The tokens of the messages in another form, less those of them that are counted otherwise."""
    counted = {p for e in choice.whole for p in range(e.start, e.stop)} if choice.edits else set()
    counted.update(view.kept)
    tokens = 0
    for position, edit in choice.edits.items():
        tokens += edit.tokens
        if choice.keep_all or position in counted or position >= view.tail_start:
            tokens -= view.tokens_between(position, position + 1)
    return tokens


def _repairs(view: View, mode: str) -> tuple[dict[int, Sequence[Entry]], dict[int, str]]:
    repaired: dict[int, Sequence[Entry]] = {}
    repairs: dict[int, str] = {}
    if mode != "off":
        for interaction in view.interactions:
            if interaction.fault:
                start = interaction.start
                repaired[start], repairs[start] = repair_interaction(interaction, mode)
    return repaired, repairs


def _record_plan(plan: Plan, session: Session) -> None:
    """Keep the plan in the session; log once in a session that a budget cannot be met."""
    session.last_plan = plan
    if plan.over and not session.over_budget_logged:
        session.over_budget_logged = True
        log.warning(
            "%s: the context has %s tokens, %s over its budget of %s: "
            "system prompt, user turns and last interaction alone take %s",
            plan.strategy, f"{plan.tokens:,}", f"{plan.over:,}", f"{plan.budget:,}", f"{plan.kept_tokens:,}",
        )  # fmt: skip
    log.debug(
        "Context constructed: %s, %d messages of %d tokens become %d tokens",
        plan.strategy, len(plan.view.messages), plan.full_tokens, plan.tokens,
    )  # fmt: skip
