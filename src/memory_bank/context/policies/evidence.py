"""Selection "evidence": under a budget, the pieces of past outputs that the next call may need."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import islice
from pathlib import Path

from memory_bank.bank.session import MemoryBankState
from memory_bank.config import MemoryBankSettings
from memory_bank.context.render import memory_message
from memory_bank.history.budgets import newest_within
from memory_bank.plan import Choice, Decision, Fate, Piece, Replacement
from memory_bank.ports import Embedder, TokenCounter
from memory_bank.records import InteractionRecord
from memory_bank.selection.index import EvidenceIndex, Reason, Selection
from memory_bank.selection.model import MODEL_FILE, Model, load_model
from memory_bank.selection.similarity import Similarity
from memory_bank.transcript.jsontext import compact, parse_output
from memory_bank.transcript.messages import (
    Interaction,
    MessageKind,
    content_text,
    is_memory_tool,
    kind_of,
    read,
    result_of,
)
from memory_bank.transcript.shortening import shorten
from memory_bank.transcript.transcript import View
from memory_bank.vectors import encode_documents, encode_queries

NOTHING = Selection("", 0)


def choose_evidence(view: View, session: MemoryBankState, *, settings: MemoryBankSettings) -> Choice:
    """A memory text of at most ``history_budget`` tokens, including recent interactions kept whole.

    A history that fits is left untouched. With ``refresh_after`` a selection is kept for some steps.
    """
    memory = _memory(session, settings)
    older = sum(e.tokens for e in view.past)
    budget = settings.history_budget
    if isinstance(budget, float):
        budget = int(older * budget)
    base = Choice(
        role=settings.memory_role,
        repair_pairs=settings.repair_pairs,
        replaced=_shortened_tail(view, session, settings.shorten_last),
    )
    in_list = (
        frozenset[str]().union(*(e.record_ids for e in view.interactions)) if older <= budget else frozenset()
    )
    gone = older <= budget and not session.steps.keys() <= in_list  # records whose messages the list has lost
    if older <= budget and not gone:
        session.run_later("evidence", partial(_feed, view, session, settings))
        why = "the older history fits the budget" if view.history else "there was no history yet"
        return replace(base, unchanged=why, reasons=EvidenceReasons(memory, NOTHING, ()))
    state = session.cache(_EvidenceState)
    kept = state.kept
    since = kept.interactions_since(view, settings) if kept is not None and kept.memory is memory else None
    if kept is not None and since is not None:
        session.run_later("evidence", partial(_feed, view, session, settings))
        whole, selection, anchor, first_step, gone = (
            since,
            kept.selection,
            kept.anchor,
            kept.first_step,
            kept.gone,
        )
    else:
        _feed(view, session, settings)
        whole = _recent(view, settings.keep_recent, budget)
        room = budget - sum(e.tokens for e in whole) - _frame_tokens(session, settings)
        room -= (reserve := min(settings.refresh_after, budget // 2))
        visible = [*whole, *([view.tail] if view.tail else [])]
        steps = [session.steps[t] for e in visible for t in e.record_ids if t in session.steps]
        first_step = min(steps, default=session.step_count + 1)
        anchor = _anchor(view)
        selection = memory.select(anchor, first_step, room) if room > 0 else NOTHING
        if settings.refresh_after:
            count = len(view.history)
            past = tuple(view.history[: count - len(whole)])
            state.kept = _KeptSelection(
                memory, selection, anchor, first_step, past, count, list(view.kept), settings, reserve, gone
            )
    starts = [e.start for e in whole]
    reasons = EvidenceReasons(memory, selection, starts, anchor, first_step)
    return replace(base, text=selection.text, whole=whole, may_cost_more=gone, reasons=reasons)


@dataclass(frozen=True, slots=True)
class _KeptSelection:
    """A selection that is used for several steps, and what it was made for."""

    memory: EvidenceMemory
    selection: Selection
    anchor: list[str]
    first_step: int
    past: tuple[Interaction, ...]  # the interactions that it is about
    count: int  # of past interactions then, those kept whole included
    kept: Sequence[int]
    settings: MemoryBankSettings
    reserve: int  # tokens of interactions that may follow before a new selection
    gone: bool

    def interactions_since(self, view: View, settings: MemoryBankSettings) -> list[Interaction] | None:
        """The interactions after the selection; None where a new selection is due."""
        n = len(self.past)
        if settings != self.settings or list(view.kept) != list(self.kept) or len(view.history) < n:
            return None
        if any(a.trace_ids != b.trace_ids for a, b in zip(self.past, view.history, strict=False)):
            return None
        since = list(view.history[n:])
        if any(e.fault for e in since):
            return None
        return since if sum(e.tokens for e in view.history[self.count :]) <= self.reserve else None


@dataclass(slots=True)
class _EvidenceState:
    """A session's evidence, what it was made with, and the selection that is kept."""

    memory: EvidenceMemory | None = None
    made_with: tuple[object, ...] = ()
    kept: _KeptSelection | None = None


def _memory(session: MemoryBankState, settings: MemoryBankSettings) -> EvidenceMemory:
    """The session's evidence; made anew where the settings or the order of its records changed."""
    state = session.cache(_EvidenceState)
    made_with = (settings.evidence_model, settings.similarity_weight, session.order_changes)
    if state.memory is None or state.made_with != made_with:
        similarity = _similarity(session.insight_store.embedding_model, settings.similarity_weight)
        state.memory = EvidenceMemory(session.counter, settings.evidence_model, similarity)
        state.made_with = made_with
    return state.memory


def evidence_of(session: MemoryBankState) -> EvidenceMemory | None:
    """The evidence that a session has built so far."""
    return session.cache(_EvidenceState).memory


def _feed(view: View, session: MemoryBankState, settings: MemoryBankSettings) -> None:
    """Add the stored records that are not yet in the session's evidence."""
    memory = _memory(session, settings)
    missing = list(islice(session.steps, len(memory.numbers), None))
    if missing:
        records = {r.trace_id: r for r in session.new_records}
        stored = session.fact_store.get_many([t for t in missing if t not in records])
        records.update((r.trace_id, r) for r in stored)
        notes = _notes(view, set(missing))
        for trace_id in missing:
            if trace_id in records:  # a record purged meanwhile: the next step loads the session again
                memory.add(records[trace_id], notes.get(trace_id, ""))


def _similarity(embedder: Embedder, weight: float) -> Similarity | None:
    """Similarity by the session's embedder; None where its weight is 0."""
    if not weight:
        return None
    return Similarity(partial(encode_documents, embedder), partial(encode_queries, embedder), weight)


def _notes(view: View, trace_ids: set[str]) -> dict[str, str]:
    """What the agent said in the turns of some records, by the first record of each interaction."""
    notes: dict[str, str] = {}
    for interaction in reversed(view.interactions):  # the newest are the likeliest
        ids = [t for t in interaction.trace_ids if t]
        if ids and ids[0] in trace_ids:
            notes[ids[0]] = interaction.note
        trace_ids.difference_update(ids)
        if not trace_ids:
            break
    return notes


def _recent(view: View, most: int, budget: int) -> list[Interaction]:
    """The last interactions before the tail: at most ``most``, as many as fit."""
    count = newest_within([e.tokens for e in view.history], budget, most)
    return [e for e in view.history[len(view.history) - count :] if not e.fault]


def _anchor(view: View) -> list[str]:
    """The texts that every context shows, except the tail's interaction."""
    after = view.tail.stop if view.tail else len(view.messages)
    shown = [view.messages[p] for p in view.kept] + list(view.messages[after:])
    return [content_text(read(m, "content")) for m in shown]


def _frame_tokens(session: MemoryBankState, settings: MemoryBankSettings) -> int:
    """Tokens of the memory message without its text."""
    return session.counter.count_message(memory_message("", session.session_id, settings.memory_role)) + 1


def _shortened_tail(view: View, session: MemoryBankState, most: int) -> dict[int, Replacement]:
    """The tail's outputs of more than ``most`` characters, shortened; 0 shortens none."""
    replaced: dict[int, Replacement] = {}
    if not most or view.tail is None:
        return replaced
    pairs = zip(view.tail.pairs, view.tail.trace_ids, strict=True)
    ids = {p.result.call_id: t for p, t in pairs if p.result}
    for position in range(view.tail_start, len(view.messages)):
        message = view.messages[position]
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, str) or len(content) <= most or kind_of(message) is not MessageKind.RESULT:
            continue
        trace_id = ids.get(result_of(message).call_id)
        short = shorten(parse_output(content), most, text=content, trace_id=trace_id)
        new = {**message, "content": short.text}
        replaced[position] = Replacement(new, session.counter.count_message(new))
    return replaced


@lru_cache(maxsize=4)
def _model(path: str | None) -> Model:
    return load_model(Path(path) if path else MODEL_FILE)


class EvidenceMemory:
    """An EvidenceIndex fed with the session's records in the order in which they were stored.

    The number of a record in that order, from 1, is how the context names it: ``#12``.
    """

    def __init__(
        self, counter: TokenCounter, model_path: str | None = None, similarity: Similarity | None = None
    ) -> None:
        self.index = EvidenceIndex(_model(model_path), counter.count_text, similarity=similarity)
        self.numbers: dict[str, int] = {}
        self.places: dict[str, int] = {}  # of each record in the index
        self._latest = 0  # the index takes interactions in order; a late result joins the latest

    def add(self, record: InteractionRecord, note: str = "") -> None:
        """Take in a record, and what the agent said with its call; once."""
        if record.trace_id in self.numbers:
            return
        self.numbers[record.trace_id] = len(self.numbers) + 1
        self._latest = max(self._latest, record.step_id)
        if note:
            self.index.add_note(interaction=self._latest, text=note)
        self.places[record.trace_id] = len(self.index.tables.parsed)
        self.index.add_call(
            trace_id=record.trace_id,
            interaction=self._latest,
            tool=record.tool_name,
            arguments=compact(record.raw_input) if record.input_text is None else record.input_text,
            output="" if is_memory_tool(record.tool_name, record.output_text) else _output(record),
        )

    def select(self, anchor: Sequence[str], first_visible_step: int, budget: int) -> Selection:
        """The memory text for the next call, at most ``budget`` tokens; later steps are visible anyway."""
        return self.index.select(anchor=anchor, tail_interaction=first_visible_step, budget=budget)


def _output(record: InteractionRecord) -> str:
    return compact(record.raw_output) if record.output_text is None else record.output_text


class EvidenceReasons:
    """Reasons of a selection by evidence; see ``plan.Reasons``."""

    def __init__(
        self,
        memory: EvidenceMemory,
        selection: Selection,
        kept: Collection[int],
        anchor: Sequence[str] = (),
        first_step: int = 0,
    ) -> None:
        self._memory = memory
        self._anchor = list(anchor)
        self._first_step = first_step
        self._selection = selection
        self._kept = frozenset(kept)  # positions of interactions kept whole

    @cached_property
    def _listed(self) -> frozenset[int]:
        return frozenset(self._selection.listed)

    def pieces(self, *, explained: bool = True) -> list[Piece]:
        """See Reasons."""
        first = self._memory.index.tables.first_segment
        shown = [first[r] + place for r, places in sorted(self._selection.shown.items()) for place in places]
        return self._pieces(shown, self._selection.gains, explained)

    def near_misses(self) -> list[Piece]:
        """See Reasons."""
        edge = dict(self._selection.edge)
        return self._pieces(sorted(edge, key=lambda s: -edge[s]), edge, True)

    def _pieces(self, segments: Sequence[int], worth: Mapping[int, float], explained: bool) -> list[Piece]:
        index = self._memory.index
        tables = index.tables
        reasons: Sequence[tuple[Reason, ...]] = [()] * len(segments)
        if explained and segments:
            reasons = index.explain(segments, anchor=self._anchor, tail_interaction=self._first_step)
        made = []
        for segment, why in zip(segments, reasons, strict=True):
            record = int(tables.segments["record"][segment])
            source = tables.parsed[record]
            text = source.cut.segments[segment - tables.first_segment[record]].text
            tool = source.tool or "(the agent's words)"
            made.append(Piece(source.trace_id, tool, text, worth.get(segment, 0.0), why))
        return made

    def decide(self, interaction: Interaction) -> tuple[Fate, float | None, str]:
        """See Reasons."""
        if interaction.start in self._kept:
            return Fate.KEPT, None, "one of the latest interactions, kept whole"
        found = [self._of(t) for t in interaction.trace_ids if t]
        if not found:
            return Fate.LEFT_OUT, None, "it has no record yet"
        worth = [w for _, w, _ in found if w is not None]
        order = [Fate.PART, Fate.KEPT, Fate.LISTED, Fate.LEFT_OUT]
        fates = [f for f, _, _ in found]
        fate = fates[0] if len(set(fates)) == 1 else min(fates, key=order.index)
        if fate is Fate.KEPT and len(set(fates)) > 1:
            fate = Fate.PART
        return fate, sum(worth) if worth else None, "; ".join(r for _, _, r in found)

    def _of(self, trace_id: str) -> tuple[Fate, float | None, str]:
        record = self._memory.places.get(trace_id)
        if record is None:
            return Fate.LEFT_OUT, None, "it came after this plan"
        tables = self._memory.index.tables
        segments = tables.parsed[record].cut.segments
        number = f"#{self._memory.numbers[trace_id]}"
        places = self._selection.shown.get(record, ())
        if not places:
            near = self._near(record)
            if record in self._listed:
                return Fate.LISTED, None, f"{number} listed, nothing of it shown{near}"
            return Fate.LEFT_OUT, None, f"{number} left out{near}"
        first = tables.first_segment[record]
        gains = {p: self._selection.gains.get(first + p, 0.0) for p in places}
        best = max(gains, key=lambda p: gains[p])
        whole = len(places) == len(segments) and not tables.parsed[record].cut.skipped
        reason = f"{number}: {len(places)} of {len(segments)} pieces, the best {segments[best].text[:80]!r}"
        return (Fate.KEPT if whole else Fate.PART), sum(gains.values()), reason

    def _near(self, record: int) -> str:
        tables = self._memory.index.tables
        first = tables.first_segment[record]
        last = first + len(tables.parsed[record].cut.segments)
        edge = [gain for segment, gain in self._selection.edge if first <= segment < last]
        return f"; nearly shown: worth {max(edge):.3f}, beyond the budget" if edge else ""

    def beyond(self, here: Collection[str]) -> list[Decision]:
        """See Reasons."""
        made = []
        for record in sorted(self._selection.shown):
            source = self._memory.index.tables.parsed[record]
            if source.kind == "output" and source.trace_id not in here:
                fate, score, reason = self._of(source.trace_id)
                reason = f"{reason}; its messages are no longer in the list"
                made.append(Decision(None, (source.trace_id,), (source.tool,), fate, score, reason, 0))
        return made
