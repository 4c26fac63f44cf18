"""The evidence of a session: its records in an index, its calls in a thread, and why a choice was made."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path

from memory_bank.config import ToolSettings
from memory_bank.errors import ConfigError
from memory_bank.plan import Decision, Fate, Piece, Reasons
from memory_bank.ports import TokenCounter
from memory_bank.records import InteractionRecord
from memory_bank.selection.index import EvidenceIndex, Reason, Selection
from memory_bank.selection.model import MODEL_FILE, Model, load_model, parse_model
from memory_bank.selection.thread import Thread
from memory_bank.transcript.jsontext import compact
from memory_bank.transcript.messages import Interaction, is_memory_tool, readable_output
from memory_bank.transcript.turns import Edit

log = logging.getLogger("memory_bank.MemoryBankStrategy")


@lru_cache(maxsize=8)
def evidence_model(path: str | None, learned: str | None = None) -> Model:
    """The model of a file, else the one that a namespace has `learned` (JSON), else the shipped one.

    A learned model of other features is ignored, with a warning. Raises ConfigError for such a file.
    """
    if path is None and learned is not None:
        try:
            return parse_model(learned, "the evidence model of this namespace")
        except ConfigError as e:
            log.warning("the shipped evidence model is used: %s", e)
    return load_model(Path(path) if path else MODEL_FILE)


class EvidenceMemory:
    """The session's records in the order in which they were stored, as an EvidenceIndex and as a Thread.

    The number of a record in that order, from 1, is how the context names it: ``#12``.
    """

    def __init__(
        self, counter: TokenCounter, model: Model, tools: Mapping[str, ToolSettings] | None = None
    ) -> None:
        self.index = EvidenceIndex(model, counter.count_text)
        effects = {name: of.effect for name, of in (tools or {}).items() if of.effect is not None}
        self.thread = Thread(counter.count_text, effects)
        self.numbers: dict[str, int] = {}
        self.places: dict[str, int] = {}  # of each record in the index
        self.opening: dict[str, int] = {}  # tokens of each call in its place, with nothing of its output
        # of the latest step, by what they show
        self.turns: dict[object, tuple[Interaction, dict[int, Edit]]] = {}
        self._notes: dict[int, str] = {}  # by the place of a note, the record with whose call it was said
        self._latest = 0  # the index takes interactions in order; a late result joins the latest

    def add(self, record: InteractionRecord, note: str = "") -> None:
        """Take in a record, and what the agent said with its call; once.

        A record that cannot be cut into pieces stands in the thread alone, which is logged.
        """
        trace_id, tool = record.trace_id, record.tool_name
        if trace_id in self.numbers:
            return
        number = self.numbers[trace_id] = len(self.numbers) + 1
        at = self._latest = max(self._latest, record.step_id)
        arguments = compact(record.raw_input) if record.input_text is None else record.input_text
        output = "" if is_memory_tool(tool, record.output_text) else readable_output(record)[1]
        parsed = self.index.tables.parsed
        try:
            if note.strip():
                self._notes[len(parsed)] = trace_id
                self.index.add_note(interaction=at, text=note)
            place = len(parsed)
            self.index.add_call(
                trace_id=trace_id, interaction=at, tool=tool, arguments=arguments, output=output
            )
            self.places[trace_id] = place
        except Exception as e:
            log.warning("no excerpts of record %s: %s", trace_id, type(e).__name__)
        try:
            self.thread.add(
                number=number, interaction=at, tool=tool, arguments=arguments, output=output, note=note
            )
        except Exception as e:
            log.warning("record %s is listed without its arguments: %s", trace_id, type(e).__name__)
            self.thread.add(number=number, interaction=at, tool="unknown", arguments="", output="")

    def owner(self, place: int) -> str:
        """The trace_id of the record at a place of the index; of a note, that of the call it was said with."""
        return self._notes.get(place) or self.index.tables.parsed[place].trace_id

    def select(
        self,
        anchor: Sequence[str],
        first_visible_step: int,
        budget: int,
        opening: Callable[[int], int] | None,
        listed: str,
        shown: Collection[str],
    ) -> Selection:
        """What the next call may need, at most ``budget`` tokens; later steps are visible anyway.

        ``listed``: the list of past calls that the context has. ``shown``: the records that it has whole.
        """
        without = [self.places[t] for t in shown if t in self.places]
        without += [place for place, t in self._notes.items() if t in shown]
        return self.index.select(
            anchor=anchor,
            tail_interaction=first_visible_step,
            budget=budget,
            opening=opening,
            listed=listed,
            without=without,
        )


class EvidenceReasons(Reasons):
    """Reasons of a selection by evidence; see ``plan.Reasons``.

    ``kept``: positions of interactions kept whole. ``told``: numbers of records whose calls the thread names.
    """

    def __init__(
        self,
        memory: EvidenceMemory,
        selection: Selection,
        kept: Collection[int],
        told: Collection[int] = (),
        anchor: Sequence[str] = (),
        first_step: int = 0,
    ) -> None:
        self._memory, self._selection = memory, selection
        self._anchor, self._first_step = list(anchor), first_step
        self._kept, self._told = frozenset(kept), frozenset(told)

    @cached_property
    def _shown(self) -> list[int]:
        """The segments that are shown, by record."""
        first = self._memory.index.tables.first_segment
        return [first[r] + place for r, places in sorted(self._selection.shown.items()) for place in places]

    @cached_property
    def _why(self) -> Mapping[int, tuple[Reason, ...]]:
        """Why each segment that is shown, or nearly shown, was worth it."""
        segments = list(dict.fromkeys([*self._shown, *dict(self._selection.edge)]))
        index = self._memory.index
        reasons = index.explain(segments, anchor=self._anchor, tail_interaction=self._first_step)
        return dict(zip(segments, reasons, strict=True))

    def pieces(self, *, explained: bool = True) -> list[Piece]:
        why = self._why if explained else {}
        return [self._piece(s, self._selection.gains.get(s, 0.0), why.get(s, ())) for s in self._shown]

    def near_misses(self) -> list[Piece]:
        edge = sorted(dict(self._selection.edge).items(), key=lambda e: -e[1])
        return [self._piece(segment, worth, self._why.get(segment, ())) for segment, worth in edge]

    def _piece(self, segment: int, worth: float, why: tuple[Reason, ...]) -> Piece:
        record, place = self._memory.index.tables.place_of(segment)
        source = self._memory.index.tables.parsed[record]
        tool, text = source.tool or "(the agent's words)", source.cut.segments[place].text
        return Piece(self._memory.owner(record), tool, text, worth, why)

    def decide(self, interaction: Interaction) -> tuple[Fate, float | None, str]:
        if interaction.start in self._kept:
            return Fate.KEPT, None, "one of the latest interactions, kept whole"
        found = [self._of(t) for t in interaction.trace_ids if t]
        if not found:
            return Fate.LEFT_OUT, None, "it has no record yet"
        fates, scores, reasons = zip(*found, strict=True)
        worth = [w for w in scores if w is not None]
        fate = min(fates, key=[Fate.PART, Fate.KEPT, Fate.LISTED, Fate.LEFT_OUT].index)
        if fate is Fate.KEPT and len(set(fates)) > 1:
            fate = Fate.PART
        return fate, sum(worth) if worth else None, "; ".join(reasons)

    def _of(self, trace_id: str) -> tuple[Fate, float | None, str]:
        number = self._memory.numbers.get(trace_id)
        if number is None:
            return Fate.LEFT_OUT, None, "it came after this plan"
        record = self._memory.places.get(trace_id, -1)
        if places := self._selection.shown.get(record, ()):
            source = self._memory.index.tables.parsed[record]
            gains = self._gains(record)
            best = source.cut.segments[places[gains.index(max(gains))]].text[:80]
            whole = len(places) == len(source.cut.segments) and not source.cut.skipped
            reason = f"#{number}: {len(places)} of {len(source.cut.segments)} pieces, the best {best!r}"
            return (Fate.KEPT if whole else Fate.PART), sum(gains), reason
        tables = self._memory.index.tables
        edge = [gain for s, gain in self._selection.edge if tables.place_of(s)[0] == record]
        near = f"; nearly shown: worth {max(edge):.3f}, beyond the budget" if edge else ""
        if words := self._words.get(trace_id):
            shown = f"{len(words)} pieces of its arguments or of the agent's words"
            return Fate.PART, sum(words), f"#{number}: {shown}, nothing of its output{near}"
        if number in self._told:
            return Fate.LISTED, None, f"#{number} told in the list of calls, nothing of its output{near}"
        return Fate.LEFT_OUT, None, f"#{number} counted in the list of calls{near}"

    def _gains(self, record: int) -> list[float]:
        """What each shown piece of a record is worth."""
        first = self._memory.index.tables.first_segment[record]
        return [self._selection.gains.get(first + p, 0.0) for p in self._selection.shown[record]]

    @cached_property
    def _words(self) -> dict[str, list[float]]:
        """By call: what each shown piece of its arguments, and of what the agent said with it, is worth."""
        found: dict[str, list[float]] = {}
        for record in self._selection.shown:
            if self._memory.index.tables.parsed[record].kind != "output":
                found.setdefault(self._memory.owner(record), []).extend(self._gains(record))
        return found

    def beyond(self, here: Collection[str]) -> list[Decision]:
        made = []
        for record in sorted(self._selection.shown):
            source = self._memory.index.tables.parsed[record]
            if source.kind == "output" and source.trace_id not in here:
                fate, score, reason = self._of(source.trace_id)
                reason = f"{reason}; its messages are no longer in the list"
                made.append(Decision(None, (source.trace_id,), (source.tool,), fate, score, reason, 0))
        return made
