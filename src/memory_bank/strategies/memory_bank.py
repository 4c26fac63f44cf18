"""The memory bank: parse, ingest, retrieve, plan, render."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from memory_bank.config import MemoryBankSettings, as_settings
from memory_bank.context.plan import Plan, TopK
from memory_bank.context.render import fence, render_context
from memory_bank.context.repair import repair_interaction
from memory_bank.history.content import content_text, read
from memory_bank.history.conversation import Conversation, Entry, View
from memory_bank.history.interactions import Interaction
from memory_bank.history.shortening import Shortened
from memory_bank.observer import Observer
from memory_bank.ports import FactStorePort, InsightStorePort, TokenCounter
from memory_bank.records import Insight, InteractionRecord, Ranking
from memory_bank.retrieval import Retrieved, format_retrieved_memory, retrieval_query, retrieve

log = logging.getLogger("memory_bank.MemoryBankStrategy")


class BankState(Protocol):
    """What the strategy needs of a MemoryBankState."""

    lock: Any
    fact_store: FactStorePort
    insight_store: Any
    conversation: Conversation
    counter: TokenCounter
    step_count: int
    last_plan: Plan | None
    steps: dict[str, int]  # step of every record known to be stored
    unobserved: dict[str, Insight | None]  # stored, but without an insight yet; a draft where there is one
    shortened: dict[tuple[str, int], Shortened]

    def prepare(self, settings: MemoryBankSettings) -> None:
        """Bind embedder and counter, notice what other processes did."""

    def remember_task(self, task: str) -> None:
        """Write down what the user asked for."""


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
    stored is lost, and the same call can be made again.
    """
    settings = as_settings(settings)
    with state.lock:
        state.prepare(settings)
        view = state.conversation.update(messages)
        observer = Observer.create(llm_client, settings)
        _ingest(view, state, observer)
        query, ranking, retrieved = _retrieve(view, state, settings)
        plan, context = _plan_and_render(view, query, ranking, retrieved, state, settings, observer)
        state.last_plan = plan
        log.debug(
            "step %d: %d messages of %d tokens become %d of %d",
            state.step_count, len(view.messages), plan.full_tokens, len(context), plan.tokens,
        )  # fmt: skip
        return context, plan.tokens


def _ingest(view: View, state: BankState, observer: Observer) -> None:
    """Facts of all unseen interactions first, in one transaction; then their insights."""
    entries = state.conversation.fresh(view)
    records = []
    step = state.step_count
    for entry in entries:
        known = next((state.steps[t] for t in entry.trace_ids if t in state.steps), None)
        new = _records(entry, step + 1 if known is None else known, state.steps)
        if new and known is None:
            step += 1
        records += new
    if records:
        state.remember_task(view.task)
        state.fact_store.store_many(records)
        state.steps.update((r.trace_id, r.step_id) for r in records)
        state.unobserved.update((r.trace_id, None) for r in records)
        state.step_count = step
    state.conversation.acknowledge()
    if state.unobserved:
        _observe(records, view.task, state, observer)


def _records(entry: Entry, step: int, known: dict[str, int]) -> list[InteractionRecord]:
    records = []
    for pair, trace_id in zip(entry.interaction.pairs, entry.trace_ids, strict=True):
        if pair.result is None or trace_id is None or trace_id in known:
            continue
        call = pair.call
        arguments = call.arguments if call and isinstance(call.arguments, str) else None
        records.append(
            InteractionRecord(
                trace_id=trace_id,
                step_id=step,
                tool_name=pair.tool_name,
                raw_input=call.raw_input if call else {},
                raw_output=pair.result.raw_output,
                call_id=call.call_id if call else pair.result.call_id,
                input_text=arguments,
                output_text=pair.result.output_text,
            )
        )
    return records


def _observe(records: list[InteractionRecord], task: str, state: BankState, observer: Observer) -> None:
    """Insights for what has none: this step's records and what an earlier, interrupted step left."""
    wanted = [t for t, draft in state.unobserved.items() if draft is None]
    at_hand = {r.trace_id: r for r in records}
    earlier = [t for t in wanted if t not in at_hand]
    found = state.fact_store.get_many(earlier) if earlier else []
    for insight in observer.observe_all([*found, *records], task):
        state.unobserved[insight.trace_id] = insight
    drafts = [draft for draft in state.unobserved.values() if draft is not None]
    state.insight_store.add_many(drafts)  # should the embedder fail, the drafts wait for the next step
    state.unobserved.clear()


def _retrieve(
    view: View, state: BankState, settings: MemoryBankSettings
) -> tuple[str, Ranking, list[Retrieved]]:
    tail = view.tail
    store: InsightStorePort = state.insight_store
    after = tail.interaction.stop if tail else len(view.messages)
    query = retrieval_query(
        settings.retrieval_query,
        settings.fixed_query,
        view.task,
        tail.interaction if tail else None,
        [content_text(read(m, "content")) for m in view.messages[after:]],
    )
    in_tail = _ids_of(tail)
    if len(state.steps) <= len(in_tail) and store.is_empty():
        return query, Ranking([], []), []
    ranking = store.rank(query, in_tail, limit=max(1, settings.top_k))
    limit = settings.max_chars_per_record
    found = retrieve(ranking, state.fact_store, store, settings.top_k, limit, state.shortened)
    return query, ranking, found


def _plan_and_render(
    view: View,
    query: str,
    ranking: Ranking,
    retrieved: list[Retrieved],
    state: BankState,
    settings: MemoryBankSettings,
    observer: Observer,
) -> tuple[Plan, list[Any]]:
    repaired, repairs = _repairs(view, settings)
    unchanged = not view.history and not len(ranking)
    in_tail = _ids_of(view.tail)
    memory = None
    if retrieved and not unchanged:
        text = format_retrieved_memory([r.as_dict() for r in retrieved])
        memory = {"role": settings.memory_role, "content": fence(text)}
    count = state.counter.count_message
    memory_tokens = count(memory) if memory else 0
    if unchanged and not repaired:
        context, tokens = list(view.messages), view.full_tokens
    else:
        context = render_context(view, memory, repaired)
        tokens = memory_tokens + _fixed_tokens(view)
        for interaction, new in repaired:
            tokens += sum(map(count, new)) - view.tokens_between(interaction.start, interaction.stop)
    plan = Plan(
        view=view,
        query=query,
        choice=TopK(retrieved, lambda: state.insight_store.rank(query, in_tail)),
        tokens=tokens,
        full_tokens=view.full_tokens,
        memory_tokens=memory_tokens,
        unchanged=unchanged,
        counter=state.counter.name,
        embedder=getattr(state.insight_store, "embedder_name", ""),
        observer=observer.name,
        repairs=repairs,
    )
    return plan, context


def _ids_of(entry: Entry | None) -> set[str]:
    return set() if entry is None else {t for t in entry.trace_ids if t}


def _fixed_tokens(view: View) -> int:
    """Tokens of what is never dropped and of the tail."""
    kept = sum(view.tokens_between(p, p + 1) for p in view.kept)
    return kept + view.tokens_between(view.tail_start, len(view.messages))


def _repairs(
    view: View, settings: MemoryBankSettings
) -> tuple[list[tuple[Interaction, list[Any]]], dict[int, str]]:
    if settings.repair_pairs == "off":
        return [], {}
    repaired, told = [], {}
    for entry in view.entries:
        if entry.interaction.fault:
            messages, done = repair_interaction(entry.interaction, settings.repair_pairs)
            repaired.append((entry.interaction, messages))
            told[entry.interaction.start] = done
    return repaired, told
