"""What every strategy with a bank does first: store what is new, facts before insights."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import Any

from memory_bank.config import MemoryBankSettings, StoredSettings
from memory_bank.context.drawn import BankState
from memory_bank.context.fetched import is_memory_tool
from memory_bank.context.render import fence, render_context
from memory_bank.context.report import ContextReport
from memory_bank.models.observer import EXTRACTIVE, Observer
from memory_bank.records import InteractionRecord
from memory_bank.transcript.interactions import Interaction
from memory_bank.transcript.transcript import View

log = logging.getLogger("memory_bank.MemoryBankStrategy")


def ingest(
    view: View,
    state: BankState,
    observer: Observer,
    settings: MemoryBankSettings,
    *,
    insights_needed: bool = True,
) -> list[InteractionRecord]:
    """Facts of all unseen interactions first, in one transaction; then insights. Returns what is new.

    Where the context needs no insights and no model makes them, they are put off.
    """
    records, step = unseen_records(view.new, state)
    later = not insights_needed and state.puts_off and observer.name == EXTRACTIVE
    keep_records(records, step, view.task, state, observer, settings, later=later)
    state.transcript.acknowledge()
    observe_records(records, view.task, state, observer, settings, later=later)
    return records


def unseen_records(entries: Iterable[Interaction], state: BankState) -> tuple[list[InteractionRecord], int]:
    """The records of some interactions that are not known to be stored, and the step of the latest."""
    records = []
    step = state.step_count
    for entry in entries:
        known = next(
            (state.steps[t] for t in (*entry.trace_ids, *entry.earlier_ids) if t in state.steps), None
        )
        new = _records(entry, step + 1 if known is None else known, state.steps)
        if new and known is None:
            step += 1
        records += new
    return records, step


def keep_records(
    records: list[InteractionRecord],
    step: int,
    task: str,
    state: BankState,
    observer: Observer,
    settings: MemoryBankSettings,
    *,
    later: bool = False,
) -> None:
    """Facts first: commit what is new, up to that step, and note what a model is to summarise.

    ``later``: all summaries are made later, by extraction.
    """
    if not records:
        return
    state.remember_task(task)
    news = [r for r in records if not is_memory_tool(r.tool_name, r.output_text)]
    beside = settings.observer_mode == "background"
    if (beside or observer.name == EXTRACTIVE) and not later:
        drafts = [observer.extract(r) for r in news]
    else:
        drafts = []
    queued = [r.trace_id for r in news if beside and observer.sends(r)]
    unseen = state.keep(records, [] if settings.observer_mode == "off" else drafts, queued)
    state.steps.update((r.trace_id, r.step_id) for r in records)
    if settings.observer_mode != "off":
        state.unobserved.update(unseen)
    state.step_count = step


def observe_records(
    records: list[InteractionRecord],
    task: str,
    state: BankState,
    observer: Observer,
    settings: MemoryBankSettings,
    *,
    later: bool = False,
) -> None:
    """Then insights: for what is new, and for what an earlier, interrupted step left without one."""
    if state.unobserved and settings.observer_mode != "off":
        work = partial(_observe, records, task, state, observer, settings)
        if later:
            state.put_off("insights", work)
        else:
            work()
    if settings.observer_mode == "background":
        state.work_off(observer, settings, bool(records))


def _records(entry: Interaction, step: int, known: dict[str, int]) -> list[InteractionRecord]:
    records = []
    for pair, trace_id in zip(entry.pairs, entry.trace_ids, strict=True):
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


def _observe(
    records: list[InteractionRecord],
    task: str,
    state: BankState,
    observer: Observer,
    settings: MemoryBankSettings,
) -> None:
    """Insights for what has none: this step's records and what an earlier, interrupted step left."""
    wanted = [t for t, draft in state.unobserved.items() if draft is None]
    at_hand = {r.trace_id: r for r in records}
    earlier = [t for t in wanted if t not in at_hand]
    found = state.fact_store.get_many(earlier) if earlier else []
    unseen = [*found, *(at_hand[t] for t in wanted if t in at_hand)]
    news = [r for r in unseen if not is_memory_tool(r.tool_name, r.output_text)]
    if settings.observer_mode == "inline":
        drafts = observer.observe_all(news, task)
    else:
        drafts = [observer.extract(r) for r in news]
        state.queue([r.trace_id for r in news if observer.sends(r)])
    for insight in drafts:
        state.unobserved[insight.trace_id] = insight
    ready = [draft for draft in state.unobserved.values() if draft is not None]
    # Should the embedder fail, the drafts wait for the next step.
    state.insight_store.add_many(ready, generation=state.generation)
    state.unobserved.clear()


def store(messages: Any, llm_client: Any, settings: StoredSettings, state: BankState) -> View:
    """Take in the present messages and store what is new, as the settings' bank does."""
    bank = settings.bank()
    state.prepare(bank)
    view = state.transcript.update(messages)
    ingest(view, state, Observer.create(llm_client, bank, state.account), bank)
    state.last_plan = None
    return view


def past(view: View) -> list[Interaction]:
    """The interactions before the tail that may be left out: those whose pairs are whole."""
    return [e for e in view.history if not e.fault]


def kept_tokens(view: View) -> int:
    """Tokens of what every context has: anchor, broken pairs, tail."""
    tail = view.tokens_between(view.tail_start, len(view.messages))
    return tail + sum(view.tokens_between(p, p + 1) for p in view.kept)


def memory_message(text: str, state: BankState) -> dict[str, Any]:
    """The message that shows what is remembered, fenced as data."""
    return {"role": "user", "content": fence(text, state.session_id)}


def room_for_text(tokens: int, state: BankState) -> int:
    """How many tokens of text a memory message of so many tokens holds."""
    return tokens - state.counter.count_message(memory_message("", state)) - 2


def assembled(
    view: View,
    state: BankState,
    text: str,
    whole: list[Interaction],
    report: ContextReport,
    *,
    beyond: bool = False,
) -> tuple[list[Any], int]:
    """The context of anchor, memory, whole interactions and tail; the messages where it is no cheaper.

    ``beyond``: the text tells of calls that the messages no longer hold. The report is completed and left in
    the state.
    """
    memory = memory_message(text, state) if text else None
    tokens = kept_tokens(view) + sum(e.tokens for e in whole)
    tokens += state.counter.count_message(memory) if memory else 0
    if not beyond and (len(whole) == len(past(view)) or tokens >= view.full_tokens):
        return passed(view, state, report, "the full history is no dearer")
    context = render_context(view, memory, view.messages[view.tail_start :], whole)
    return context, reported(state, report, view, tokens)


def passed(view: View, state: BankState, report: ContextReport, why: str) -> tuple[list[Any], int]:
    """The messages as they are."""
    tokens = reported(state, report, view, view.full_tokens, why)
    return list(view.messages), tokens


def reported(state: BankState, report: ContextReport, view: View, tokens: int, why: str = "") -> int:
    """Leave the report in the state, and say once in a session when a budget does not hold."""
    done = report.completed(tokens, view.full_tokens, kept_tokens(view), why)
    state.last_report = done
    if done.over and not state.memos.get("told"):
        state.memos["told"] = True
        log.warning("%s", done.sentence)
    return tokens
