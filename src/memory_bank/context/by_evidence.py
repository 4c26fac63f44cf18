"""Selection by evidence: under a budget, the pieces of past outputs that the next call may need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from memory_bank.config import MemoryBankSettings
from memory_bank.context.drawn import BankState, Drawn, ids_of
from memory_bank.context.evidence import EvidenceChoice, EvidenceMemory
from memory_bank.context.render import fence
from memory_bank.records import InteractionRecord
from memory_bank.selection.index import Selection
from memory_bank.selection.similarity import Similarity
from memory_bank.transcript.content import content_text, read
from memory_bank.transcript.interactions import Interaction
from memory_bank.transcript.transcript import View
from memory_bank.vectors import encode_documents, encode_queries

NOTHING = Selection("", 0)
_HELD = "evidence held"  # the memo's key


@dataclass(frozen=True, slots=True)
class _Held:
    """A selection that stays as it is for some steps: what it was made of, and of which settings."""

    memory: EvidenceMemory
    selection: Selection
    anchor: list[str]
    first_step: int
    past: tuple[Interaction, ...]  # the interactions that it is about
    seen: int  # how many there were with those kept whole beside it
    kept: Sequence[int]
    settings: MemoryBankSettings
    reserve: int  # tokens that may come since
    beyond: bool

    def since(self, view: View, settings: MemoryBankSettings) -> list[Interaction] | None:
        """What came after it, where it still stands: the same past, no other words, not too much news."""
        n = len(self.past)
        if settings != self.settings or list(view.kept) != list(self.kept) or len(view.history) < n:
            return None
        if any(a.trace_ids != b.trace_ids for a, b in zip(self.past, view.history, strict=False)):
            return None
        news = list(view.history[n:])
        since = view.history[self.seen :]
        if any(e.fault for e in news) or sum(e.tokens for e in since) > self.reserve:
            return None
        return news


def draw_evidence(
    view: View, state: BankState, settings: MemoryBankSettings, new: Sequence[InteractionRecord]
) -> Drawn:
    """A memory text of at most ``history_budget`` tokens, recent interactions kept whole included.

    A history that fits is left untouched. ``new`` are this step's records.
    """
    memory = _memory(state, settings)
    older = view.tokens_between(0, view.tail_start) - sum(view.tokens_between(p, p + 1) for p in view.kept)
    budget = _budget(settings.history_budget, older)
    beyond = older <= budget and not state.steps.keys() <= set().union(*map(ids_of, view.interactions))
    if older <= budget and not beyond:
        state.put_off("evidence", partial(_feed, view, state, settings, new))
        choice = EvidenceChoice(memory, NOTHING, ())
        why = "the older history fits the budget" if view.history else "there was no history yet"
        return Drawn("", choice, unchanged=why)
    held: _Held | None = state.memos.get(_HELD)
    news = held.since(view, settings) if held is not None and held.memory is memory else None
    if held is not None and news is not None:
        state.put_off("evidence", partial(_feed, view, state, settings, new))
        starts = [e.start for e in news]
        choice = EvidenceChoice(memory, held.selection, starts, held.anchor, held.first_step)
        return Drawn(held.selection.text, choice, whole=news, beyond=held.beyond)
    _feed(view, state, settings, new)
    whole = _recent(view, settings.keep_recent, budget)
    room = budget - sum(e.tokens for e in whole) - _frame(state, settings)
    room -= (reserve := min(settings.refresh_after, budget // 2))
    visible = [*whole, *([view.tail] if view.tail else [])]
    steps = [state.steps[t] for e in visible for t in ids_of(e) if t in state.steps]
    first_step = min(steps, default=state.step_count + 1)
    anchor = _anchor(view)
    selection = memory.select(anchor, first_step, room) if room > 0 else NOTHING
    choice = EvidenceChoice(memory, selection, [e.start for e in whole], anchor, first_step)
    if settings.refresh_after:
        seen = len(view.history)
        past = tuple(view.history[: seen - len(whole)])
        state.memos[_HELD] = _Held(
            memory, selection, anchor, first_step, past, seen, list(view.kept), settings, reserve,
            beyond,
        )  # fmt: skip
    return Drawn(selection.text, choice, whole=whole, beyond=beyond)


def _memory(state: BankState, settings: MemoryBankSettings) -> EvidenceMemory:
    """The session's evidence; ``_feed`` sees that every stored record is in it."""
    memory = state.evidence
    made_for = (settings.evidence_model, settings.similarity_weight)
    if memory is None or memory.made_for != made_for:
        similarity = _similarity(state.insight_store.embedding_model, settings.similarity_weight)
        memory = state.evidence = EvidenceMemory(state.counter, settings.evidence_model, similarity)
        memory.made_for = made_for
    return memory


def _feed(
    view: View, state: BankState, settings: MemoryBankSettings, new: Sequence[InteractionRecord]
) -> None:
    """Put the records that are stored but not yet in the session's evidence there."""
    memory = _memory(state, settings)
    wanted = list(islice(state.steps, len(memory.numbers), None))
    if wanted:
        at_hand = {r.trace_id: r for r in new}
        missing = state.fact_store.get_many([t for t in wanted if t not in at_hand])
        at_hand.update((r.trace_id, r) for r in missing)
        notes = _notes(view, set(wanted))
        for trace_id in wanted:
            if trace_id in at_hand:  # or it was purged just now: the next step reads the session anew
                memory.add(at_hand[trace_id], notes.get(trace_id, ""))


def _similarity(embedder: Any, weight: float) -> Similarity | None:
    """Similarity by the session's own embedder; None where it is not wanted."""
    if not weight:
        return None
    return Similarity(partial(encode_documents, embedder), partial(encode_queries, embedder), weight)


def _notes(view: View, wanted: set[str]) -> dict[str, str]:
    """What the agent said with the wanted records, by the first record of each interaction."""
    notes: dict[str, str] = {}
    for entry in reversed(view.interactions):  # what is new stands at the end
        ids = [t for t in entry.trace_ids if t]
        if ids and ids[0] in wanted:
            notes[ids[0]] = entry.note
        wanted.difference_update(ids)
        if not wanted:
            break
    return notes


def _budget(setting: int | float, older: int) -> int:
    """Tokens: an int is tokens, a float a share of the older history."""
    return int(older * setting) if isinstance(setting, float) else setting


def _recent(view: View, most: int, budget: int) -> list[Interaction]:
    """The latest whole interactions before the tail, as many as are asked for and fit."""
    chosen: list[Interaction] = []
    for entry in reversed(view.history[-most:] if most else ()):
        budget -= entry.tokens
        if budget < 0:
            break
        if not entry.fault:
            chosen.insert(0, entry)
    return chosen


def _anchor(view: View) -> list[str]:
    """The texts that the context shows in any case, beside the tail's interaction."""
    after = view.tail.stop if view.tail else len(view.messages)
    shown = [view.messages[p] for p in view.kept] + list(view.messages[after:])
    return [content_text(read(m, "content")) for m in shown]


def _frame(state: BankState, settings: MemoryBankSettings) -> int:
    """Tokens of the memory message around its text."""
    empty = {"role": settings.memory_role, "content": fence("", state.session_id)}
    return state.counter.count_message(empty) + 1
