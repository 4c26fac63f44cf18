"""One session's evidence: takes in calls as they happen, selects what the next call may need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from memory_bank.selection.candidates import fold, words_of
from memory_bank.selection.excerpt import GAP, call_line
from memory_bank.selection.features import FEATURES, describe
from memory_bank.selection.filling import Lines, Selection, Tuning, fill
from memory_bank.selection.model import Model, load_model
from memory_bank.selection.prepared import Prepared, prepare
from memory_bank.selection.scores import LinearScores
from memory_bank.selection.session import NEVER, Session, mentions
from memory_bank.selection.similarity import Similarity
from memory_bank.selection.situation import Situation, look, sums
from memory_bank.selection.tables import Array

MODEL_FILE = Path(__file__).with_name("model.json")


class EvidenceIndex:
    """Evidence of one session. Not thread-safe; calls come in order of interactions."""

    def __init__(
        self,
        model: Model | None = None,
        count_tokens: Callable[[str], int] = lambda s: (len(s) + 3) // 4,
        tuning: Tuning = Tuning(),
        similarity: Similarity | None = None,
    ) -> None:
        self.model = model if model is not None else load_model(MODEL_FILE, FEATURES)
        self.count = count_tokens
        self.tuning = tuning
        self.similarity = similarity
        self.session = Session()
        self._linear = LinearScores(self.model.weights)
        self._anchor: list[str] = []
        self._anchor_text = ""
        self._anchor_known: set[str] = set()
        self._anchor_words: set[str] = set()
        self._anchored = self._anchored_terms = 0
        self._lines = Lines(self.session, count_tokens)

    # -- intake ---------------------------------------------------------------
    def add_call(self, *, trace_id: str, interaction: int, tool: str, arguments: str, output: str) -> None:
        """Take in one call and its output."""
        line = call_line(self._lines.calls + 1, tool, arguments)
        self._add(prepare(interaction, trace_id, tool, arguments, output, self.count, line))

    def add_note(self, *, interaction: int, text: str) -> None:
        """Take in the agent's own words."""
        if text.strip():
            self._add(prepare(interaction, "", "", "", text, self.count, "note", note=True))

    def _add(self, item: Prepared) -> None:
        self.session.add(item)
        self._lines.add(item)

    # -- selection ------------------------------------------------------------
    def _sync_anchor(self, anchor: Sequence[str]) -> None:
        texts = list(anchor)
        if texts != self._anchor:
            self._anchor = texts
            self._anchor_text = fold("\n".join(texts))
            self._anchor_known = {f for t in texts for f in mentions(t)}
            self._anchor_words = set(words_of(self._anchor_text))
            self._anchored = self._anchored_terms = 0
            self.session.values["visible"][:] = False
        s = self.session
        if self._anchored_terms < s.terms.size or not self._anchored:
            words = np.zeros(s.words.table.size, dtype=bool)
            known = [s.words.ids.get(word) for word in self._anchor_words]
            words[[number for number in known if number is not None]] = True
            first = (
                int(s.terms["segment"][self._anchored_terms])
                if self._anchored_terms < s.terms.size
                else s.segments.size
            )
            start = self._anchored_terms
            terms = start + np.flatnonzero(words[s.terms["word"][start:]])
            s.segments["task"][first:] = sums(s, s.terms["segment"][terms], s.terms["weight"][terms])[first:]
            s.touch_segments(first)
            self._anchored_terms = s.terms.size
        if self._anchored < s.values.size:
            s.mark_visible(self._anchor_text, self._anchor_known, self._anchor_words, self._anchored)
            self._anchored = s.values.size

    def situation(self, tail: int) -> Situation:
        """What this step adds to the features."""
        return look(self.session, tail)

    def eligible(self, tail: int) -> Array:
        """Numbers of the values that older outputs or notes showed and that are not in sight now."""
        v = self.session.values
        return np.flatnonzero(~v["visible"] & (v["seen"] < tail) & (v["record"] >= 0))

    def probabilities(self, tail: int) -> tuple[Array, Array]:
        """(value numbers, probability that the next call needs each)."""
        ids = self.eligible(tail)
        now = self.situation(tail)
        odds = self._linear.score(self.session, now)[ids] + np.float32(self.model.bias)
        if self.model.mix > 0 and len(ids):
            top = (
                np.argpartition(-odds, self.tuning.refine)[: self.tuning.refine]
                if len(ids) > self.tuning.refine
                else np.arange(len(ids))
            )
            trees = self.model.boosted(describe(self.session, now, ids[top]))
            odds[top] = (1 - self.model.mix) * odds[top] + self.model.mix * trees
        if self.similarity is not None and len(ids):
            near = self.similarity.by_segment(self.session, self._query(tail), self._older(tail))
            odds += near[self.session.values["segment"][ids]]
        return ids, 1 / (1 + np.exp(-odds))

    def _older(self, tail: int) -> int:
        """How many records lie before the tail."""
        return int(np.searchsorted(self.session.records["interaction"], tail))

    def _query(self, tail: int) -> str:
        """What the agent is at: its task, then the notes, calls and outputs of the tail."""
        latest = [self._anchor[-1][-500:] if self._anchor else ""]
        for item in self.session.prepared[self._older(tail) :]:
            parts = [segment.text for segment in item.pieces.segments[:4]]
            latest.append(" ".join([item.call_text if not item.note else "", *parts])[:600])
        return "\n".join(latest)

    def explain(
        self, segments: Sequence[int], *, anchor: Sequence[str], tail_interaction: int, top: int = 4
    ) -> list[list[tuple[str, float, list[tuple[str, float]]]]]:
        """Why each of some segments (numbers as in `Selection.gains`) was worth showing.

        For its likeliest values: (form, probability, strongest linear contributions in log-odds,
        each against the mean over the values on offer).
        """
        self._sync_anchor(anchor)
        ids, chance = self.probabilities(tail_interaction)
        if not len(ids):
            return [[] for _ in segments]
        s = self.session
        place = np.full(s.values.size, -1)
        place[ids] = np.arange(len(ids))
        likeliest: list[Array] = []
        for segment in segments:
            start, size = int(s.segments["start"][segment]), int(s.segments["count"][segment])
            inside = np.unique(place[s.pairs["value"][start : start + size]])
            inside = inside[inside >= 0]
            likeliest.append(inside[np.argsort(-chance[inside], kind="stable")][:top])
        sample = ids[:: max(1, len(ids) // 500)]
        now = self.situation(tail_interaction)
        mean = describe(s, now, sample).mean(axis=1)
        near = np.zeros(s.segments.size)
        if self.similarity is not None:
            near = self.similarity.by_segment(s, self._query(tail_interaction), self._older(tail_interaction))
        every = np.concatenate(likeliest) if likeliest else ids[:0]
        parts = self.model.weights[:, None] * (describe(s, now, ids[every]) - mean[:, None])
        columns = iter(range(len(every)))
        out = []
        for segment, inside in zip(segments, likeliest, strict=True):
            told = []
            for number, column in zip(inside.tolist(), columns, strict=False):
                best = np.argsort(-np.abs(parts[:, column]), kind="stable")[:top]
                why = [(FEATURES[f], round(float(parts[f, column]), 3)) for f in best.tolist()]
                if near[segment]:
                    why = [("similarity", round(float(near[segment]), 3)), *why[: top - 1]]
                told.append((s.forms[int(ids[number])], float(chance[number]), why))
            out.append(told)
        return out

    def select(self, *, anchor: Sequence[str], tail_interaction: int, budget: int) -> Selection:
        """The memory block for the next call, at most `budget` tokens."""
        s, t = self.session, self.tuning
        older = self._older(tail_interaction)
        if budget <= 0 or not older:
            return Selection("", 0, older=older)
        self._sync_anchor(anchor)
        ids, chance = self.probabilities(tail_interaction)
        worth = np.zeros(s.values.size)
        worth[ids] = chance
        coined = s.values["agent"] > 0
        worth[coined] *= t.agent_worth
        failed = s.records["error"][s.values["record"]] > 0
        worth[failed] *= t.error_worth
        worth[failed & coined] *= t.refused_worth
        worth[s.values["kind"] == 0] *= t.word_worth
        return fill(s, self._lines, worth, older, budget, t)


__all__ = ["GAP", "NEVER", "EvidenceIndex", "Selection", "Tuning"]
