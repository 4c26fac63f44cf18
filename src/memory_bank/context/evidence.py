"""The evidence of a session: records go in once, what the next call may need comes out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path

from memory_bank.context.fetched import is_memory_tool
from memory_bank.context.plan import Decision, Fate, Piece
from memory_bank.ports import TokenCounter
from memory_bank.records import InteractionRecord
from memory_bank.selection.index import EvidenceIndex, Reason, Selection
from memory_bank.selection.model import MODEL_FILE, Model, load_model
from memory_bank.selection.similarity import Similarity
from memory_bank.transcript.interactions import Interaction
from memory_bank.transcript.jsontext import compact


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
        self.made_for: tuple[object, ...] = ()  # the settings that it follows; with others it is made anew
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


class EvidenceChoice:
    """What a selection by evidence decided, for the plan."""

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
        """See Choice."""
        first = self._memory.index.tables.first_segment
        shown = [first[r] + place for r, places in sorted(self._selection.shown.items()) for place in places]
        return self._pieces(shown, self._selection.gains, explained)

    def near_misses(self) -> list[Piece]:
        """See Choice."""
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

    def decide(self, entry: Interaction) -> tuple[Fate, float | None, str]:
        """See Choice."""
        if entry.start in self._kept:
            return Fate.KEPT, None, "one of the latest interactions, kept whole"
        found = [self._of(t) for t in entry.trace_ids if t]
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
        told = f"{number}: {len(places)} of {len(segments)} pieces, the best {segments[best].text[:80]!r}"
        return (Fate.KEPT if whole else Fate.PART), sum(gains.values()), told

    def _near(self, record: int) -> str:
        tables = self._memory.index.tables
        first = tables.first_segment[record]
        last = first + len(tables.parsed[record].cut.segments)
        edge = [gain for segment, gain in self._selection.edge if first <= segment < last]
        return f"; nearly shown: worth {max(edge):.3f}, beyond the budget" if edge else ""

    def beyond(self, here: Collection[str]) -> list[Decision]:
        """See Choice."""
        made = []
        for record in sorted(self._selection.shown):
            source = self._memory.index.tables.parsed[record]
            if not source.note and source.trace_id not in here:
                fate, score, reason = self._of(source.trace_id)
                told = f"{reason}; its messages are no longer in the list"
                made.append(Decision(None, (source.trace_id,), (source.tool,), fate, score, told, 0))
        return made
