"""The evidence of one session: calls are added as they happen; selects what the next call may need."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from memory_bank.selection.candidates import RecordKind, fold, parse_record
from memory_bank.selection.copying import describe_segments
from memory_bank.selection.cutting import WIDTH
from memory_bank.selection.features import FEATURE_NAMES, CurrentStep, LinearScores, describe
from memory_bank.selection.model import Model, load_model
from memory_bank.selection.packing import CallLines, Selection, by_record, quote_of, select_segments
from memory_bank.selection.similarity import Similarity
from memory_bank.selection.tables import OWN, Array, EvidenceTables

# Chosen over all recorded sets together.
LONG_ARGUMENTS = 160
"""Arguments of more characters are a record of their own, from which a context quotes."""
TREES_ON = 500
"""Values, the best by the linear score, that the trees score too."""
WORD_WORTH = 0.5  # of plain words
AGENT_WORTH = 0.3  # of values that the agent wrote first
ARGUMENT_WORTH = 0.5  # besides, of those that only its own arguments show
COPY_WORTH = 0.2  # of a segment of WIDTH characters that the next call copies from
STALE = 0.7  # share by which values in the stale copy of a file are worth less
ERROR_WORTH = 0.25  # of values in a report of a failure
LISTED_WORTH = 0.0  # of values that the list of past calls shows
REPEATED_WORTH = 0.1  # besides, of values in it that the agent wrote first


Reason = tuple[str, float, tuple[tuple[str, float], ...]]
"""Why a value was worth showing: (value, its chance, its strongest features with their log-odds)."""


class EvidenceIndex:
    """The evidence of one session. Calls are added in the order of their interactions. Not thread-safe."""

    def __init__(
        self,
        model: Model | None = None,
        count_tokens: Callable[[str], int] = lambda s: (len(s) + 3) // 4,
        similarity: Similarity | None = None,
    ) -> None:
        self.model = model if model is not None else load_model()
        self.count = count_tokens
        self.similarity = similarity
        self.tables = EvidenceTables()
        self._scores = LinearScores(self.model.weights)
        self._lines = CallLines(self.tables, count_tokens)

    def add_call(self, *, trace_id: str, interaction: int, tool: str, arguments: str, output: str) -> None:
        """Add one call and its output."""
        kinds: tuple[RecordKind, ...] = ("output", "arguments")
        for kind in kinds[: 1 + (len(arguments) > LONG_ARGUMENTS)]:
            item = parse_record(interaction, output, self.count, trace_id, tool, arguments, kind)
            self.tables.add(item)
            self._lines.add(item)

    def add_note(self, *, interaction: int, text: str) -> None:
        """Add what the agent wrote with its calls."""
        if text.strip():
            item = parse_record(interaction, text, self.count, kind="note")
            self.tables.add(item)
            self._lines.add(item)

    def select(
        self,
        *,
        anchor: Sequence[str],
        tail_interaction: int,
        budget: int,
        opening: Callable[[int], int] | None = None,
        listed: str = "",
        without: Collection[int] = (),
    ) -> Selection:
        """Return what the next call may need of the records before the tail, for at most `budget` tokens.

        `anchor`: texts that the context shows anyway; so are the interactions from `tail_interaction` on.
        `listed`: the list of past calls, whose values need no second place.
        `opening`: the tokens of showing anything of a record, where the caller shows the chosen segments in
        its own way; without it the selection has a text. `without`: records that the context shows whole.
        """
        t = self.tables
        older = t.records_before(tail_interaction)
        if budget <= 0 or not older:
            return Selection("", 0, older=older)
        t.set_anchor(anchor)
        step = CurrentStep(t, tail_interaction)
        ids, chance = self.chances(tail_interaction, step)
        stale = t.records["stale"][t.segments["record"]]
        t.segments["factor"][:] = 1 - STALE * stale
        shown = np.isin(t.segments["record"], list(without))
        t.segments["factor"][shown] = 0
        last = t.segments_before(tail_interaction)
        if len(self.model.copied):
            copied = self.model.copy_chance(describe_segments(step, last))
            chars = np.minimum(t.segments["chars"][:last], 2 * WIDTH)
            # of equal texts the newest counts, which may be one that the context shows anyway
            newest = t.texts.table["last"][t.segments["text"][:last]] == np.arange(last)
            t.segments["copied"][:last] = COPY_WORTH * copied * chars / WIDTH * (stale[:last] < 1) * newest
        t.segments["copied"][shown] = 0
        worth = np.zeros(t.values.size)
        worth[ids] = chance
        by_agent = t.values["agent"] > 0
        in_error = t.records["error"][t.values["record"]] > 0
        worth[by_agent] *= AGENT_WORTH
        worth[by_agent & (t.records["own"][t.values["record"]] == OWN["arguments"])] *= ARGUMENT_WORTH
        worth[in_error] *= ERROR_WORTH
        worth[in_error & by_agent] *= REPEATED_WORTH
        worth[t.values["kind"] == 0] *= WORD_WORTH
        if listed:
            worth[t.standing_in(fold(listed))] *= LISTED_WORTH
        return select_segments(t, self._lines, worth, older, budget, opening)

    def without_last(self, selection: Selection, tokens: int) -> Selection:
        """Return a selection without its last chosen segments, so many that they have `tokens`, at least one."""
        chosen = list(selection.gains)
        while chosen and tokens > 0:
            tokens -= int(self.tables.segments["tokens"][chosen.pop()])
        gains = {s: selection.gains[s] for s in chosen}
        return replace(selection, shown=by_record(self.tables, chosen), gains=gains)

    def quote(self, record: int, places: Sequence[int], selection: Selection) -> str:
        """Return the quote of some places of a record, as a selection shows them."""
        return quote_of(self.tables, record, places, selection.short)

    def header(self, record: int) -> str:
        """Return the line that stands above the excerpts of a record."""
        return self._lines.texts[record][-1][0]

    def eligible(self, tail: int) -> Array:
        """Return the values that older outputs or notes showed and neither anchor nor tail shows."""
        v = self.tables.values
        return np.flatnonzero(~v["visible"] & (v["seen"] < tail) & (v["record"] >= 0))

    def chances(self, tail: int, step: CurrentStep | None = None) -> tuple[Array, Array]:
        """Return (values, the probability that the next call needs each) of the eligible values."""
        ids = self.eligible(tail)
        step = step or CurrentStep(self.tables, tail)
        odds = self._scores.score(step)[ids] + np.float32(self.model.bias)
        if self.model.mix > 0 and len(ids):
            top = np.arange(len(ids))
            if len(ids) > TREES_ON:
                top = np.argpartition(-odds, TREES_ON)[:TREES_ON]
            trees = self.model.boosted(describe(step, ids[top]))
            odds[top] = (1 - self.model.mix) * odds[top] + self.model.mix * trees
        if self.similarity is not None and len(ids):
            odds += self._near(self.similarity, tail)[self.tables.values["segment"][ids]]
        return ids, 1 / (1 + np.exp(-odds))

    def _near(self, similarity: Similarity, tail: int) -> Array:
        """Log-odds by segment: its similarity to the task and the notes, calls and outputs of the tail."""
        t = self.tables
        older = t.records_before(tail)
        latest = [t.anchor[-1][-500:] if t.anchor else ""]
        for record, item in enumerate(t.parsed[older:], older):
            call = self._lines.texts[record][-1][0] if item.kind == "output" else ""
            latest.append(" ".join([call, *(segment.text for segment in item.cut.segments[:4])])[:600])
        return similarity.by_segment(t, "\n".join(latest), older)

    def explain(
        self, segments: Sequence[int], *, anchor: Sequence[str], tail_interaction: int, top: int = 4
    ) -> list[tuple[Reason, ...]]:
        """Return why each of some segments (numbers as in `Selection.gains`) was worth showing.

        By segment: its likeliest values, each with the features whose linear contribution differs most from
        the mean over the eligible values.
        """
        t = self.tables
        t.set_anchor(anchor)
        step = CurrentStep(t, tail_interaction)
        ids, chance = self.chances(tail_interaction, step)
        if not len(ids) or not len(segments):
            return [()] * len(segments)
        place = np.full(t.values.size, -1)
        place[ids] = np.arange(len(ids))
        mean = describe(step, ids[:: max(1, len(ids) // 500)]).mean(axis=1)
        near = np.zeros(t.segments.size)
        if self.similarity is not None:
            near = self._near(self.similarity, tail_interaction)
        likeliest = []
        for segment in segments:
            inside = np.unique(place[t.values_of(segment)])
            inside = inside[inside >= 0]
            likeliest.append(inside[np.argsort(-chance[inside], kind="stable")][:top])
        numbers, columns = np.unique(np.concatenate(likeliest), return_inverse=True)
        parts = self.model.weights[:, None] * (describe(step, ids[numbers]) - mean[:, None])
        best = np.argsort(-np.abs(parts), axis=0, kind="stable")[:top]
        reasons: list[tuple[Reason, ...]] = []
        by_segment = np.split(columns, np.cumsum([len(inside) for inside in likeliest])[:-1])
        for segment, places in zip(segments, by_segment, strict=True):
            found: list[Reason] = []
            for column in places:
                number = numbers[column]
                why = [(FEATURE_NAMES[f], round(float(parts[f, column]), 3)) for f in best[:, column]]
                if near[segment]:
                    why = [("similarity", round(float(near[segment]), 3)), *why[: top - 1]]
                form = t.forms[int(ids[number])]
                found.append((form, float(chance[number]), tuple(why)))
            reasons.append(tuple(found))
        return reasons


__all__ = ["EvidenceIndex", "Reason", "Selection"]
