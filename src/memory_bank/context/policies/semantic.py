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
    history_budget = max(0, settings.history_budget - view.pinned_tokens)
    budget = view.kept_tokens + history_budget
    if sum(e.tokens for e in view.past) <= history_budget:
        return Choice(unchanged="the older history fits the budget", budget=budget)
    note_room = _note_tokens(view.past, session)
    if note_room > history_budget:
        note_room = 0  # no room for the note: it is left out
    chosen = _chosen(view, history_budget - note_room, settings, session)
    shown = {id(e) for e in chosen}
    text = _note([e for e in view.past if id(e) not in shown], session) if note_room else ""
    return Choice(text=text, whole=chosen, reasons=Shown(chosen), budget=budget)


def _chosen(view: View, room: int, settings: SemanticSettings, session: MemoryBankState) -> list[Interaction]:
    """The relevant and diverse interactions that fit, in their order."""
    interactions = view.past
    vectors = _vectors(interactions, session)
    query = query_of_view(view, settings.retrieval_query, "the task")
    relevance = vectors @ encode_queries(session.insight_store.embedding_model, [query])[0]
    costs = [e.tokens for e in interactions]
    return [interactions[i] for i in choose_diverse(vectors, relevance, settings.diversity, costs, room)]


def _vectors(interactions: Sequence[Interaction], session: MemoryBankState) -> npt.NDArray[np.float32]:
    known = session.cache(_Vectors)
    if new := [e for e in interactions if e.trace_ids not in known]:
        texts = ["\n".join(f"{i.note} {i.summary}".strip() for i in items_of([e], session)) for e in new]
        rows = encode_documents(session.insight_store.embedding_model, texts)
        known.update((e.trace_ids, row) for e, row in zip(new, rows, strict=True))
    return np.stack([known[e.trace_ids] for e in interactions])


def _note(interactions: Sequence[Interaction], session: MemoryBankState) -> str:
    numbers = numbers_of(session)
    shown = ranges([numbers[t] for e in interactions for t in e.trace_ids if t in numbers])
    return _note_text(shown, session)


def _note_tokens(interactions: Sequence[Interaction], session: MemoryBankState) -> int:
    """Tokens of the longest possible note: each call named by itself."""
    numbers = numbers_of(session)
    every = [numbers[t] for e in interactions for t in e.trace_ids if t in numbers]
    text = _note_text(", ".join(f"#{n}" for n in every), session)
    return session.counter.count_message(memory_message(text, session.session_id))


def _note_text(shown: str, session: MemoryBankState) -> str:
    return f"Earlier tool calls not shown here: {shown}{in_full(session.record_tool)}."
