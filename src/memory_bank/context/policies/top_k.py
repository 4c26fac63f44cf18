"""Selection "top_k", the classic memory bank: the most similar records with summary and raw data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice

from memory_bank.bank.retrieval import Retrieved, format_retrieved_memory, query_of_view, retrieve
from memory_bank.bank.session import MemoryBankState
from memory_bank.config import MemoryBankSettings
from memory_bank.plan import Choice, Decision, Fate, Piece, Reasons
from memory_bank.records import Hit
from memory_bank.transcript.messages import Interaction
from memory_bank.transcript.shortening import Shortened
from memory_bank.transcript.transcript import View

_NOTHING_YET = "there was no history yet"
log = logging.getLogger("memory_bank.MemoryBankStrategy")


def choose_top_k(view: View, session: MemoryBankState, *, settings: MemoryBankSettings) -> Choice:
    """The ``top_k`` records most similar to the query, without those of the tail."""
    base = Choice(role=settings.memory_role)
    if session.insight_store is None:  # nothing was stored yet
        return replace(base, unchanged=_NOTHING_YET)
    store = session.insight_store
    query = query_of_view(view, settings.retrieval_query, settings.fixed_query)
    base = replace(base, query=query, may_cost_more=True)
    without = frozenset(view.tail.record_ids if view.tail else ())  # they are there
    rank_all = partial(store.rank, query, without)
    if len(session.steps) <= len(without) and store.is_empty():
        return replace(base, unchanged=_NOTHING_YET, reasons=TopKReasons([], rank_all))
    ranking = rank_all(limit=max(1, settings.top_k))
    cache: dict[tuple[str, int], Shortened] = session.cache("shortened outputs")
    if len(cache) > 256:
        cache.clear()
    limit = settings.max_chars_per_record
    records = retrieve(ranking, session.fact_store, store, settings.top_k, limit, cache)
    reasons = TopKReasons(records, rank_all)
    if not view.history and not len(ranking):
        return replace(base, unchanged=_NOTHING_YET, reasons=reasons)
    log.debug("Added %d retrieved records to context", len(records))
    return replace(base, text=format_retrieved_memory([r.as_dict() for r in records]), reasons=reasons)


class TopKReasons(Reasons):
    """Reasons of the classic selection: rank and score of every record; see ``plan.Reasons``."""

    def __init__(self, retrieved: Sequence[Retrieved], rank_all: Callable[[], list[Hit]]) -> None:
        self.retrieved = tuple(retrieved)
        self._is_whole = {r.trace_id: not r.raw.cut for r in retrieved}
        self._rank_all = rank_all

    @cached_property
    def _ranking(self) -> list[Hit]:
        return self._rank_all()

    @cached_property
    def _ranks(self) -> dict[str, tuple[int, float]]:
        return {h.trace_id: (i, h.score) for i, h in enumerate(self._ranking, 1)}

    def pieces(self) -> list[Piece]:
        return [Piece(r.trace_id, "", f"{r.summary}\n{r.raw.text}", r.score) for r in self.retrieved]

    def near_misses(self) -> list[Piece]:
        shown = {r.trace_id for r in self.retrieved}
        rest = (h for h in self._ranking if h.trace_id not in shown)
        return [Piece(h.trace_id, "", "", h.score) for h in islice(rest, 5)]

    def fate(self, interaction: Interaction) -> Fate:
        if self._is_whole.keys().isdisjoint(interaction.trace_ids):
            return Fate.LEFT_OUT
        return Fate.KEPT if all(self._is_whole.get(t) for t in interaction.trace_ids if t) else Fate.PART

    def decide(self, interaction: Interaction) -> tuple[Fate, float | None, str]:
        ids = [t for t in interaction.trace_ids if t]
        ranks = [self._ranks[t] for t in ids if t in self._ranks]
        score = max((s for _, s in ranks), default=None)
        by_id = {r.trace_id: (i, r) for i, r in enumerate(self.retrieved, 1)}
        records = [by_id[t] for t in ids if t in by_id]
        if not ranks and not records:
            return Fate.LEFT_OUT, score, "it has no insight yet"
        if not records:
            place = f"rank {min(ranks)[0]} of {len(self._ranking)}"
            return Fate.LEFT_OUT, score, f"{place}, beyond the {len(self.retrieved)} shown"
        places = ((i, self._ranks.get(r.trace_id, (i, 0.0))[0]) for i, r in records)
        reason = ", ".join(f"retrieved record {i} (rank {place})" for i, place in places)
        cut, missing = next((r.raw for _, r in records if r.raw.cut), None), len(ids) - len(records)
        if cut is not None:
            reason += f"; raw data shortened to {len(cut.text):,} of {cut.whole:,} characters"
        if missing:
            reason += f"; {missing} parallel call(s) left out"
        return (Fate.PART if cut or missing else Fate.KEPT), score, reason

    def beyond(self, here: Collection[str]) -> list[Decision]:
        decisions = []
        for i, r in enumerate(self.retrieved, 1):
            if r.trace_id not in here:
                fate = Fate.PART if r.raw.cut else Fate.KEPT
                reason = f"retrieved record {i}; its messages are no longer in the list"
                decisions.append(Decision(None, (r.trace_id,), (), fate, r.score, reason, 0))
        return decisions
