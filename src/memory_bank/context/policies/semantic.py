"""semantic: past interactions whole, chosen by relevance with diversity (MMR) under a budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from memory_bank.bank.retrieval import query_of_view
from memory_bank.bank.session import MemoryBankState
from memory_bank.config import SemanticSettings
from memory_bank.context.policies.digest import items_of, numbers_of, ranges
from memory_bank.context.render import memory_message
from memory_bank.plan import Choice, Shown
from memory_bank.transcript.messages import Interaction, in_full
from memory_bank.transcript.transcript import View
from memory_bank.vectors import choose_diverse, encode_documents, encode_queries


class _Vectors(dict[tuple[str | None, ...], npt.NDArray[np.float32]]):
    """One unit vector for each interaction, by its trace_ids."""


def choose_semantic(view: View, session: MemoryBankState, *, settings: SemanticSettings) -> Choice:
    """The most relevant past interactions in their order; at most ``history_budget`` tokens of history.

    A note within the budget says which calls are not shown. A history that fits is left untouched.
    """
    past, room = view.past, max(0, settings.history_budget - view.pinned_tokens)
    budget = view.kept_tokens + room
    if sum(e.tokens for e in past) <= room:
        return Choice(unchanged="the older history fits the budget", budget=budget)

    def note(shown: str) -> str:
        return f"Earlier tool calls not shown here: {shown}{in_full(session.record_tool)}."

    numbers = numbers_of(session)
    longest = note(", ".join(f"#{numbers[t]}" for e in past for t in e.trace_ids if t in numbers))
    note_room = session.counter.count_message(memory_message(longest, session.session_id))
    has_note = note_room <= room
    vectors = _vectors(past, session)
    query = query_of_view(view, settings.retrieval_query, "the task")
    relevance = vectors @ encode_queries(session.insight_store.embedding_model, [query])[0]
    left = room - note_room if has_note else room
    chosen = choose_diverse(vectors, relevance, settings.diversity, [e.tokens for e in past], left)
    hidden = [t for i, e in enumerate(past) if i not in chosen for t in e.trace_ids]
    text = note(ranges([numbers[t] for t in hidden if t in numbers])) if has_note else ""
    whole = [past[i] for i in chosen]
    return Choice(text=text, whole=whole, reasons=Shown(whole), budget=budget)


def _vectors(interactions: Sequence[Interaction], session: MemoryBankState) -> npt.NDArray[np.float32]:
    known = session.cache(_Vectors)
    if new := [e for e in interactions if e.trace_ids not in known]:
        texts = ["\n".join(f"{i.note} {i.summary}".strip() for i in items_of([e], session)) for e in new]
        rows = encode_documents(session.insight_store.embedding_model, texts)
        known.update((e.trace_ids, row) for e, row in zip(new, rows, strict=True))
    return np.stack([known[e.trace_ids] for e in interactions])
