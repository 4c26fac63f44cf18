"""The classic selection: the most similar records with summary and raw data."""

from __future__ import annotations

from memory_bank.bank.retrieval import format_retrieved_memory, retrieval_query, retrieve
from memory_bank.config import MemoryBankSettings
from memory_bank.context.drawn import BankState, Drawn, ids_of
from memory_bank.context.plan import TopK
from memory_bank.ports import InsightStorePort
from memory_bank.transcript.content import content_text, read
from memory_bank.transcript.transcript import View


def draw_top_k(view: View, state: BankState, settings: MemoryBankSettings) -> Drawn:
    """The ``top_k`` records most similar to the retrieval query, those of the tail left aside.

    A wider scope ranks other sessions' records with the session's own, also where there is no history yet.
    """
    tail = view.tail
    store: InsightStorePort = state.insight_store
    wider = state.wider
    rank = store.rank if wider is None else wider.rank
    after = tail.stop if tail else len(view.messages)
    query = retrieval_query(
        settings.retrieval_query,
        settings.fixed_query,
        view.task,
        tail,
        [content_text(read(m, "content")) for m in view.messages[after:]],
    )
    in_tail = ids_of(tail)
    nothing = "there was no history yet"
    if wider is None and len(state.steps) <= len(in_tail) and store.is_empty():
        return Drawn("", TopK((), lambda: rank(query, in_tail)), query, unchanged=nothing)
    ranking = rank(query, in_tail, limit=max(1, settings.top_k))
    limit = settings.max_chars_per_record
    found = retrieve(ranking, state.fact_store, store, settings.top_k, limit, state.shortened, wider)
    for r in found:
        if r.session_id is not None and r.record is not None:
            state.brought[r.session_id, r.trace_id] = r.record
    choice = TopK(found, lambda: rank(query, in_tail))
    if not view.history and not len(ranking):
        return Drawn("", choice, query, unchanged=nothing)
    text = format_retrieved_memory([r.as_dict() for r in found]) if found else ""
    return Drawn(text, choice, query, beyond=not view.history)
