"""Policies that show past interactions themselves: all, the last, the relevant, masked ones, or what fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from memory_bank.bank.retrieval import query_of_view
from memory_bank.bank.session import MemoryBankState, Session
from memory_bank.config import AdaptiveSettings, MaskingSettings, SemanticSettings
from memory_bank.context.build import Policy, make_plan
from memory_bank.context.policies.digest import items_of, numbers_of, ranges
from memory_bank.context.render import memory_message
from memory_bank.plan import Choice, Plan, Shown
from memory_bank.transcript.chat import edited_message
from memory_bank.transcript.media import without_base64
from memory_bank.transcript.messages import Interaction, content_text, in_full, result_of
from memory_bank.transcript.quoting import Mark, quote_lines
from memory_bank.transcript.shortening import cut_at_edge
from memory_bank.transcript.transcript import View
from memory_bank.transcript.turns import WHOLE, Edit
from memory_bank.vectors import choose_diverse, encode_documents, encode_queries


def choose_all(view: View, session: Session) -> Choice:
    """Keep all messages."""
    return Choice(unchanged="the strategy keeps everything")


def choose_last(view: View, session: Session, *, n: int) -> Choice:
    """Keep what is never dropped and the last ``n`` interactions."""
    if len(view.history) < n:
        return Choice(unchanged="there are no older interactions")
    whole = [e for e in view.history[len(view.history) - n + 1 :] if not (e.fault or e.start in view.pinned)]
    return Choice(whole=whole, reasons=Shown(whole))


def choose_adaptive(
    view: View,
    session: MemoryBankState,
    *,
    settings: AdaptiveSettings,
    policies: Sequence[tuple[str, Policy]],
) -> Choice:
    """The choice of the first strategy whose context fits into ``max_tokens``, else of the one with the smallest."""
    plans: list[tuple[str, Plan]] = []
    for name, policy in policies:
        plans.append((name, make_plan(view, policy.choose(view, session), session, policy)))
        if plans[-1][1].tokens <= settings.max_tokens:
            break
    name, plan = min(plans, key=lambda p: p[1].tokens)
    return replace(plan.choice, chosen=name, budget=settings.max_tokens, unchanged=plan.why_unchanged)


def choose_masking(view: View, session: MemoryBankState, *, settings: MaskingSettings) -> Choice:
    """All messages; outputs before the last ``keep_last`` interactions keep ``max_length`` characters.

    The cut is marked ``[masked: …, trace_id …]``. Where the agent has ``get_record``, which returns the whole output
    for that id, the mark says so.
    """
    limit, tool = settings.max_length, session.record_tool
    cache: dict[tuple[str, int, str], Edit | None] = session.cache("masked")  # None: short enough
    edits: dict[int, Edit] = {}
    part: list[Interaction] = []
    for interaction in view.interactions[: max(0, len(view.interactions) - settings.keep_last)]:
        if interaction.start in view.pinned | view.hidden:
            continue
        for pair, trace_id in zip(interaction.pairs, interaction.trace_ids, strict=True):
            if trace_id is None or pair.result_at is None:
                continue
            position = interaction.start + pair.result_at
            if (trace_id, limit, tool) not in cache:
                masked = _masked(view.messages[position], session, trace_id, limit)
                cache[trace_id, limit, tool] = masked
            shorter = cache[trace_id, limit, tool]
            if shorter is not None and shorter.tokens < view.tokens_between(position, position + 1):
                edits[position] = replace(shorter, message=dict(shorter.message))
                part.append(interaction)
    why = "" if edits else "no older output is longer than the limit"
    return Choice(edits=edits, keep_all=True, unchanged=why, reasons=Shown(view.history, part))


def _masked(message: object, session: MemoryBankState, trace_id: str, limit: int) -> Edit | None:
    """A result cut to its beginning and its id; None where that is no shorter."""
    content = result_of(message).content
    text = without_base64(content_text(content))
    if len(text) <= limit and isinstance(content, str):
        return None
    head = cut_at_edge(quote_lines(text), limit)
    hint = f"; {session.record_tool} gives the whole" if session.record_tool else ""
    mark = f"{Mark.MASKED}{len(text):,} characters{hint}: trace_id {trace_id}]"
    change = {WHOLE: f"{head}\n{mark}" if head else mark}
    masked = edited_message(message, change)
    return Edit(change, masked, session.counter.count_message(masked))


def choose_semantic(view: View, session: MemoryBankState, *, settings: SemanticSettings) -> Choice:
    """The most relevant past interactions in order, in ``history_budget`` tokens, with a note on the others."""
    past, room = view.past, max(0, settings.history_budget - view.pinned_tokens)
    budget = view.kept_tokens + room
    if sum(e.tokens for e in past) <= room:
        return Choice(unchanged="the older history fits the budget", budget=budget)

    def note(shown: str) -> str:
        return f"{Mark.EARLIER} not shown here: {shown}{in_full(session.record_tool)}."

    numbers = numbers_of(session)
    longest = note(", ".join(f"#{numbers[t]}" for e in past for t in e.trace_ids if t in numbers))
    note_room = session.counter.count_message(memory_message(longest, session.session_id))
    has_note = note_room <= room
    model = session.insight_store.embedding_model
    known: dict[tuple[str | None, ...], npt.NDArray[np.float32]] = session.cache("vectors")  # by trace_ids
    if new := [e for e in past if e.trace_ids not in known]:
        texts = ["\n".join(f"{i.note} {i.summary}".strip() for i in items_of([e], session)) for e in new]
        rows = encode_documents(model, texts)
        known.update((e.trace_ids, row) for e, row in zip(new, rows, strict=True))
    vectors = np.stack([known[e.trace_ids] for e in past])
    query = query_of_view(view, settings.retrieval_query, "the task")
    relevance = vectors @ encode_queries(model, [query])[0]
    left = room - note_room if has_note else room
    chosen = choose_diverse(vectors, relevance, settings.diversity, [e.tokens for e in past], left)
    hidden = [t for i, e in enumerate(past) if i not in chosen for t in e.trace_ids]
    text = note(ranges([numbers[t] for t in hidden if t in numbers])) if has_note else ""
    whole = [past[i] for i in chosen]
    return Choice(text=text, whole=whole, reasons=Shown(whole), budget=budget)
