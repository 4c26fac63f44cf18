"""semantic: past interactions whole, chosen by relevance with diversity (MMR) under a budget.

Maximal marginal relevance: Carbonell and Goldstein, SIGIR 1998.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from memory_bank.bank.retrieval import retrieval_query
from memory_bank.config import SemanticSettings
from memory_bank.context.digest import items_of, key_of, numbers_of, ranges
from memory_bank.context.drawn import BankState
from memory_bank.context.report import ContextReport
from memory_bank.context.storing import assembled, kept_tokens, memory_message, passed, past, store
from memory_bank.transcript.content import content_text, read
from memory_bank.transcript.interactions import Interaction
from memory_bank.transcript.transcript import View
from memory_bank.vectors import encode_documents, encode_queries


def apply_semantic(
    messages: Any, llm_client: Any, settings: SemanticSettings, state: BankState
) -> tuple[list[Any], int]:
    """Anchor, the chosen interactions in their order, tail; at most ``history_budget`` tokens of history.

    A note within the budget says which calls are not shown. A history that fits is left untouched.
    """
    with state.lock:
        view = store(messages, llm_client, settings, state)
        report = ContextReport("semantic", kept_tokens(view) + settings.history_budget)
        entries = past(view)
        if sum(e.tokens for e in entries) <= settings.history_budget:
            return passed(view, state, report, "the older history fits the budget")
        room = settings.history_budget
        note_room = _note_tokens(entries, state)
        if note_room > room:
            note_room = 0  # too little for a note: it is the note that is left out
        chosen = _chosen(view, entries, room - note_room, settings, state)
        shown = {id(e) for e in chosen}
        text = _note([e for e in entries if id(e) not in shown], state) if note_room else ""
        return assembled(view, state, text, chosen, report)


def _chosen(
    view: View, entries: list[Interaction], room: int, settings: SemanticSettings, state: BankState
) -> list[Interaction]:
    """Greedy by marginal relevance, whatever still fits; ties: the newer first. In their order."""
    vectors = _vectors(entries, state)
    relevance = vectors @ encode_queries(state.insight_store.embedding_model, [_query(view, settings)])[0]
    nearest = np.zeros(len(entries), dtype=np.float32)
    left = set(range(len(entries)))
    taken = []
    while left:
        left = {i for i in left if entries[i].tokens <= room}
        if not left:
            break
        worth = (1 - settings.diversity) * relevance - settings.diversity * nearest
        best = max(left, key=lambda i: (round(float(worth[i]), 6), i))
        left.remove(best)
        taken.append(best)
        room -= entries[best].tokens
        nearest = np.maximum(nearest, vectors @ vectors[best])
    return [entries[i] for i in sorted(taken)]


def _vectors(entries: list[Interaction], state: BankState) -> npt.NDArray[np.float32]:
    """One unit vector an interaction, each computed once."""
    known: dict[Any, Any] = state.memos.setdefault("vectors", {})
    if new := [e for e in entries if key_of(e) not in known]:
        texts = ["\n".join(f"{i.note} {i.summary}".strip() for i in items_of([e], state)) for e in new]
        rows = encode_documents(state.insight_store.embedding_model, texts)
        known.update((key_of(e), row) for e, row in zip(new, rows, strict=True))
    return np.stack([known[key_of(e)] for e in entries])


def _query(view: View, settings: SemanticSettings) -> str:
    tail = view.tail
    after = tail.stop if tail else len(view.messages)
    spoken = [content_text(read(m, "content")) for m in view.messages[after:]]
    return retrieval_query(settings.retrieval_query, "the task", view.task, tail, spoken)


def _note(entries: list[Interaction], state: BankState) -> str:
    numbers = numbers_of(state)
    shown = ranges([numbers[t] for e in entries for t in e.trace_ids if t in numbers])
    return f'Earlier tool calls not shown here: {shown}. get_record("#N") gives one back whole.'


def _note_tokens(entries: list[Interaction], state: BankState) -> int:
    """What a note costs at most: with as many ranges as there can be."""
    numbers = numbers_of(state)
    every = [numbers[t] for e in entries for t in e.trace_ids if t in numbers]
    longest = ", ".join(f"#{n}" for n in every)
    text = f'Earlier tool calls not shown here: {longest}. get_record("#N") gives one back whole.'
    return state.counter.count_message(memory_message(text, state))
