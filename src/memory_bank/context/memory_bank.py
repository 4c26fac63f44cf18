"""The memory bank: parse, ingest, select, plan, render."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from memory_bank.config import MemoryBankSettings, as_settings
from memory_bank.context.by_evidence import draw_evidence
from memory_bank.context.drawn import BankState, Drawn
from memory_bank.context.plan import Plan
from memory_bank.context.render import fence, render_context
from memory_bank.context.repair import repair_interaction
from memory_bank.context.storing import ingest
from memory_bank.context.top_k import draw_top_k
from memory_bank.errors import StorageError
from memory_bank.faults import fault_point
from memory_bank.models.observer import Observer
from memory_bank.transcript.interactions import Interaction, Kind, kind_of, result_of
from memory_bank.transcript.jsontext import parse_output
from memory_bank.transcript.parsing import check_messages
from memory_bank.transcript.shortening import shorten
from memory_bank.transcript.transcript import View

log = logging.getLogger("memory_bank.MemoryBankStrategy")

_COUNTED = "memory counted"  # the memo's key


def apply_memory_bank_strategy(
    messages: Any, llm_client: Any, settings: Any, state: Any
) -> tuple[list[Any], int]:
    """Rebuild the context of the next model call: ``(messages, token_count)``.

    ``messages`` are OpenAI-style chat messages (dicts or SDK objects); they are never changed. Every
    interaction the bank has not seen is stored, oldest first; then the context is built of the anchor, what
    is retrieved, and the last interaction with everything after it. Without history the messages come back
    as they are. ``llm_client`` is None (summaries by extraction), an ``openai.OpenAI`` client or anything
    with ``generate_plain``. ``settings`` are MemoryBankSettings or any object with such attributes.

    Raises MessagesError, ConfigError, EmbeddingError, StorageError; after an error nothing of what was
    stored is lost, and the same call can be made again. With ``on_storage_error="pass_through"`` a database
    that fails costs the memory of this step: the messages come back as they are, ``state.storage_errors``
    grows, ``state.last_plan`` is None, and what was missed is stored by the next step that can.
    """
    settings = as_settings(settings)
    with state.lock:
        try:
            return _apply(messages, llm_client, settings, state)
        except StorageError as e:
            if settings.on_storage_error == "raise":
                raise
            state.storage_errors += 1
            state.last_plan = None  # the last step had none
            log.warning("the messages go through unchanged: %s", e)
            passed = list(check_messages(messages))
            return passed, sum(map(state.counter.count_message, passed))


def _apply(
    messages: Any, llm_client: Any, settings: MemoryBankSettings, state: BankState
) -> tuple[list[Any], int]:
    state.prepare(settings)
    view = state.transcript.update(messages)
    observer = Observer.create(llm_client, settings, state.account)
    by_evidence = settings.selection == "evidence"
    new = ingest(view, state, observer, settings, insights_needed=not by_evidence)
    if by_evidence:
        drawn = draw_evidence(view, state, settings, new)
    else:
        drawn = draw_top_k(view, state, settings)
    plan, context = _plan_and_render(view, drawn, state, settings, observer)
    state.last_plan = plan
    log.debug(
        "step %d: %d messages of %d tokens become %d of %d",
        state.step_count, len(view.messages), plan.full_tokens, len(context), plan.tokens,
    )  # fmt: skip
    fault_point("step.done")
    return context, plan.tokens


def _plan_and_render(
    view: View, drawn: Drawn, state: BankState, settings: MemoryBankSettings, observer: Observer
) -> tuple[Plan, list[Any]]:
    repaired, repairs = _repairs(view, settings)
    count = state.counter.count_message
    memory = None
    if drawn.text and not drawn.unchanged:
        memory = {"role": settings.memory_role, "content": fence(drawn.text, state.session_id)}
    memory_tokens = _counted(memory, state) if memory else 0
    tail, tail_tokens = _tail(view, state, settings)
    tokens = memory_tokens + tail_tokens + sum(view.tokens_between(p, p + 1) for p in view.kept)
    tokens += sum(entry.tokens for entry in drawn.whole)
    why = drawn.unchanged
    if not why and settings.selection == "evidence" and not drawn.beyond and tokens >= view.full_tokens:
        why = "the full history is no dearer"
    if why:
        memory, memory_tokens = None, 0
        tokens = view.tokens_between(0, view.tail_start) + tail_tokens
        drawn = replace(drawn, whole=())
    context = render_context(view, memory, tail, drawn.whole, repaired, everything=bool(why))
    for interaction, new in repaired:
        tokens += sum(map(count, new)) - view.tokens_between(interaction.start, interaction.stop)
    plan = Plan(
        view=view,
        query=drawn.query,
        choice=drawn.choice,
        tokens=tokens,
        full_tokens=view.full_tokens,
        memory_tokens=memory_tokens,
        unchanged=bool(why),
        counter=state.counter.name,
        embedder=getattr(state.insight_store, "embedder_name", ""),
        observer=observer.name,
        repairs=repairs,
        why_unchanged=why,
        previous=None if state.last_plan is None else replace(state.last_plan, previous=None),
    )
    return plan, context


def _counted(memory: dict[str, Any], state: BankState) -> int:
    """Tokens of the memory; where it is that of the step before, they are known."""
    known = state.memos.get(_COUNTED)
    if known is None or known[0] != (memory, state.counter):
        known = state.memos[_COUNTED] = ((memory, state.counter), state.counter.count_message(memory))
    tokens: int = known[1]
    return tokens


def _tail(view: View, state: BankState, settings: MemoryBankSettings) -> tuple[list[Any], int]:
    """The tail's messages and tokens, oversized outputs shortened where the settings ask for it."""
    messages = list(view.messages[view.tail_start :])
    tokens = view.tokens_between(view.tail_start, len(view.messages))
    most = settings.shorten_last if settings.selection == "evidence" else 0
    if not most or view.tail is None:
        return messages, tokens
    ids = {p.result.call_id: t for p, t in zip(view.tail.pairs, view.tail.trace_ids, strict=True) if p.result}
    for i, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, str) or len(content) <= most or kind_of(message) is not Kind.RESULT:
            continue
        trace_id = ids.get(result_of(message).call_id)
        short = shorten(parse_output(content), most, text=content, trace_id=trace_id)
        messages[i] = {**message, "content": short.text}
        count = state.counter.count_message
        tokens += count(messages[i]) - view.tokens_between(view.tail_start + i, view.tail_start + i + 1)
    return messages, tokens


def _repairs(
    view: View, settings: MemoryBankSettings
) -> tuple[list[tuple[Interaction, list[Any]]], dict[int, str]]:
    if settings.repair_pairs == "off":
        return [], {}
    repaired, told = [], {}
    for entry in view.interactions:
        if entry.fault:
            messages, done = repair_interaction(entry, settings.repair_pairs)
            repaired.append((entry, messages))
            told[entry.start] = done
    return repaired, told
