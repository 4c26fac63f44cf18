"""One session's evidence: takes in calls as they happen, selects what the next call may need."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from memory_bank.selection.candidates import fold, words_of
from memory_bank.selection.cover import Offer, Packing, pack
from memory_bank.selection.excerpt import (
    EXCERPT_HEAD,
    GAP,
    LEDGER_HEAD,
    SHORT_HEAD,
    UNLISTED_HEAD,
    Group,
    call_line,
    ledger_start,
    render_groups,
)
from memory_bank.selection.features import FEATURES, Situation, describe
from memory_bank.selection.model import Model, load_model
from memory_bank.selection.scores import LinearScores
from memory_bank.selection.session import NEVER, Prepared, Session, mentions, prepare
from memory_bank.selection.similarity import Similarity
from memory_bank.selection.tables import Array

ARGUMENT_ROOM = (-1, 0, 24, 40, 72)
"""Characters of arguments in a call's line, from the tersest form (its number only) to the ledger's."""
MODEL_FILE = Path(__file__).with_name("model.json")


@dataclass(frozen=True, slots=True)
class Tuning:
    """Knobs of the packing; defaults chosen over all shared sets together."""

    ledger_share: float = 0.06
    power: float = 1.0
    refine: int = 500
    offers: int = 150
    offers_share: float = 0.125
    note_worth: float = 0.5
    word_worth: float = 0.5
    agent_worth: float = 0.3
    error_worth: float = 0.25
    refused_worth: float = 0.1
    repeat: float = 0.0
    least: float = 0.0
    edge: float = 0.2
    terse: tuple[int, int, int, int] = (160, 1300, 1600, 3000)
    headless: int = 200
    uncounted: int = 700
    ledgerless: int = 1800


@dataclass(frozen=True, slots=True)
class Selection:
    """The memory block and what it is made of."""

    text: str
    tokens: int
    shown: dict[int, tuple[int, ...]] = field(default_factory=dict)
    listed: tuple[int, ...] = ()
    gains: dict[int, float] = field(default_factory=dict)
    edge: tuple[tuple[int, float], ...] = ()
    older: int = 0


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
        self._calls = 0
        self._call_records: list[int] = []
        self._call_tokens: list[int] = [0]
        self._lines: list[tuple[tuple[str, int], ...]] = []
        self._call_values: list[Array] = []
        self._block_tokens: list[list[int]] = []

    # -- intake ---------------------------------------------------------------
    def add_call(self, *, trace_id: str, interaction: int, tool: str, arguments: str, output: str) -> None:
        """Take in one call and its output."""
        line = call_line(self._calls + 1, tool, arguments)
        self._add(prepare(interaction, trace_id, tool, arguments, output, self.count, line))

    def add_note(self, *, interaction: int, text: str) -> None:
        """Take in the agent's own words."""
        if text.strip():
            self._add(prepare(interaction, "", "", "", text, self.count, "note", note=True))

    def _add(self, item: Prepared) -> None:
        self.session.add(item)
        if item.note:
            line = f"note before #{self._calls + 1}"
            short = self.count(line + "\n")
            self._lines.append(((line, short),) * len(ARGUMENT_ROOM))
            self._call_values.append(np.zeros(0, np.int32))
        else:
            self._calls += 1
            self._call_records.append(self.session.records.size - 1)
            name = item.call_text.split(" ", 2)[:2]
            lines = (
                [name[0], " ".join(name)]
                + [call_line(self._calls, item.tool, item.arguments, chars) for chars in ARGUMENT_ROOM[2:-1]]
                + [item.call_text]
            )
            self._lines.append(tuple((line, self.count(line + "\n")) for line in lines))
            self._call_tokens.append(self._call_tokens[-1] + self._lines[-1][-1][1])
            folded = fold(item.call_text)
            self._call_values.append(
                np.array(
                    [
                        self.session.ids[u.form]
                        for u in item.uses
                        if u.form in self.session.ids and u.form in folded
                    ],
                    np.int32,
                )
            )
        self._block_tokens.append([self.count(b.head + "\n") if b.head else 0 for b in item.pieces.blocks])

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
            s.segments["task"][first:] = self._sums(s.terms["segment"][terms], s.terms["weight"][terms])[
                first:
            ]
            s.touch_segments(first)
            self._anchored_terms = s.terms.size
        if self._anchored < s.values.size:
            s.mark_visible(self._anchor_text, self._anchor_known, self._anchor_words, self._anchored)
            self._anchored = s.values.size

    def situation(self, tail: int) -> Situation:
        """What this step adds to the features."""
        s = self.session
        word, v = s.terms["word"], s.values
        said = np.zeros(s.words.table.size, dtype=bool)
        seen = np.zeros(s.words.table.size, dtype=bool)
        last_tool = 0
        for record in range(int(np.searchsorted(s.records["interaction"], tail)), s.records.size):
            item = s.prepared[record]
            end = s.first_term[record + 1] if record + 1 < s.records.size else s.terms.size
            (said if item.note else seen)[word[s.first_term[record] : end]] = True
            if not item.note:
                last_tool = s.tools.ids[item.tool]
                known = [s.words.ids.get(text) for text in words_of(item.arguments[:2000])]
                said[[number for number in known if number is not None]] = True
        joined = (v["seen"] >= tail) & ~v["visible"]
        pairs = np.flatnonzero(joined[s.pairs["value"]])
        weights = 1.0 / v["records"][s.pairs["value"][pairs]].clip(1)
        in_values = self._sums(s.pairs["segment"][pairs], weights)
        flagged = np.flatnonzero((said | seen)[word])
        found, owners, weights = word[flagged], s.terms["segment"][flagged], s.terms["weight"][flagged]
        in_notes, in_tail = (
            self._sums(owners[on], weights[on])
            for on in (np.flatnonzero(flag[found]) for flag in (said, seen))
        )
        value_said, value_seen = self._by_value(said, seen)
        return Situation(
            tail,
            last_tool,
            in_tail,
            in_values,
            in_notes,
            value_said,
            value_seen,
            self._expected(last_tool),
        )

    def _sums(self, segments: Array, weights: Array) -> Array:
        """log(1 + sum of the weights) by segment."""
        total = np.bincount(segments, weights=weights, minlength=self.session.segments.size)
        out = np.zeros(len(total), np.float32)
        at = np.flatnonzero(total)
        out[at] = np.log1p(total[at])
        return out

    def _by_value(self, *flags: Array) -> list[Array]:
        """Share of each value's words (rare ones count more) that are flagged."""
        s = self.session
        value, word, weight = s.value_terms["value"], s.value_terms["word"], s.value_terms["weight"]
        at = np.flatnonzero(np.logical_or.reduce(flags)[word])
        value, word, weight = value[at], word[at], weight[at]
        share = weight / s.values["word_weight"][value]
        out = []
        for flag in flags:
            on = np.flatnonzero(flag[word])
            out.append(np.bincount(value[on], weights=share[on], minlength=s.values.size).astype(np.float32))
        return out

    def _expected(self, last_tool: int) -> tuple[Array, Array, Array, Array]:
        """How often the tools that may come next took a value: by source, shape, key, argument name."""
        s = self.session
        sizes = (s.sources.table.size, s.shapes.table.size, s.keys.table.size, s.keys.table.size)
        out = tuple(np.zeros(size, dtype=np.float32) for size in sizes)
        for tool, share in s.expected(last_tool):
            for total, table in zip(
                out, (s.tool_sources, s.tool_shapes, s.tool_keys, s.tool_arguments), strict=False
            ):
                for number, count in table.get(tool, {}).items():
                    total[number] += share * count
        return out[0], out[1], out[2], out[3]

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
        self, segment: int, *, anchor: Sequence[str], tail_interaction: int, top: int = 4
    ) -> list[tuple[str, float, list[tuple[str, float]]]]:
        """Why a segment (number as in `Selection.gains`) was worth showing.

        For its likeliest values: (form, probability, strongest linear contributions in log-odds,
        each against the mean over the values on offer).
        """
        self._sync_anchor(anchor)
        ids, chance = self.probabilities(tail_interaction)
        if not len(ids):
            return []
        s = self.session
        start, size = int(s.segments["start"][segment]), int(s.segments["count"][segment])
        inside = np.flatnonzero(np.isin(ids, s.pairs["value"][start : start + size]))
        inside = inside[np.argsort(-chance[inside], kind="stable")][:top]
        sample = ids[:: max(1, len(ids) // 500)]
        now = self.situation(tail_interaction)
        mean = describe(s, now, sample).mean(axis=1)
        near = 0.0
        if self.similarity is not None:
            query, older = self._query(tail_interaction), self._older(tail_interaction)
            near = float(self.similarity.by_segment(s, query, older)[segment])
        parts = self.model.weights[:, None] * (describe(s, now, ids[inside]) - mean[:, None])
        out = []
        for column, number in enumerate(inside.tolist()):
            best = np.argsort(-np.abs(parts[:, column]), kind="stable")[:top]
            told = [(FEATURES[f], round(float(parts[f, column]), 3)) for f in best.tolist()]
            if near:
                told = [("similarity", round(near, 3)), *told[: top - 1]]
            out.append((s.forms[int(ids[number])], float(chance[number]), told))
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
        return self._fill(worth, older, budget)

    def _fill(self, worth: Array, older: int, budget: int) -> Selection:
        s, t = self.session, self.tuning
        form = sum(budget >= limit for limit in t.terse)
        listed = self._ledger(older, int(budget * t.ledger_share)) if budget >= t.ledgerless else []
        ledger = [LEDGER_HEAD] if listed else []
        spent = 0
        if listed:
            if self._number(listed[0]) > 1:
                ledger.append(f"(#1 to #{self._number(listed[0]) - 1} before)\n")
            ledger += [s.prepared[r].call_text + "\n" for r in listed]
            spent = sum(self._lines[r][-1][1] for r in listed) + 16
        in_ledger = set(listed)
        covered = [v for r in listed for v in self._call_values[r].tolist()]
        head = EXCERPT_HEAD if budget >= 600 else SHORT_HEAD
        if not listed:
            head = UNLISTED_HEAD.format(last=bisect_left(self._call_records, older))
        if budget < t.headless:
            head = ""
        spent += self.count(head) if head else 0
        rest = 3 if budget >= t.uncounted else 0
        last = self.session.first_segment[older] if older < s.records.size else s.segments.size
        seg = s.segments
        gain = self._gains(worth, last)
        ratio = gain / (seg["tokens"][:last] + 4)
        offers = int(t.offers + budget * t.offers_share)
        top = np.flatnonzero(gain > 0)
        if len(top) > offers:
            top = np.sort(top[np.argpartition(-ratio[top], offers)[:offers]])
        records = seg["record"][top]
        used = np.unique(records)
        open_record = np.array(
            [self._lines[r][min(1, form) if r in in_ledger else form][1] + rest for r in used.tolist()],
            dtype=np.int64,
        )
        open_block: list[int] = []
        block_of: dict[tuple[int, int], int] = {}
        blocks = []
        for r, b in zip(records.tolist(), seg["block"][top].tolist(), strict=False):
            number = block_of.get((r, b))
            if number is None:
                number = block_of[(r, b)] = len(open_block)
                open_block.append(self._block_tokens[r][b])
            blocks.append(number)
        offer = Offer(
            top,
            seg["tokens"][top],
            np.searchsorted(used, records),
            np.array(blocks, np.int64),
            seg["place"][top],
            seg["start"][top],
            seg["count"][top],
            s.pairs["value"],
            worth,
            open_record,
            np.array(open_block, np.int64),
        )
        packing = pack(offer, budget - spent, 1, t.power, covered, t.repeat, t.least, t.edge)
        return self._render(packing, top, records, in_ledger, ledger, head, listed, budget, form, older)

    def _gains(self, worth: Array, last: int) -> Array:
        """Summed worth of the values in each of the first `last` segments."""
        s = self.session
        gain = np.zeros(last)
        filled = np.flatnonzero(s.segments["count"][:last])
        if len(filled):
            end = int(s.segments["start"][filled[-1]] + s.segments["count"][filled[-1]])
            gain[filled] = np.add.reduceat(worth[s.pairs["value"][:end]], s.segments["start"][filled])
        return gain

    def _number(self, record: int) -> int:
        return int(self.session.prepared[record].call_text.split(" ", 1)[0][1:])

    def _ledger(self, older: int, room: int) -> list[int]:
        end = bisect_left(self._call_records, older)
        if room < 32 or not end:
            return []
        return self._call_records[ledger_start(self._call_tokens, end, room - 12) : end]

    def _render(
        self,
        packing: Packing,
        top: Array,
        records: Array,
        in_ledger: set[int],
        ledger: list[str],
        head: str,
        listed: list[int],
        budget: int,
        form: int,
        older: int,
    ) -> Selection:
        s = self.session
        chosen = list(packing.chosen)
        place = s.segments["place"]
        while True:
            by_record: dict[int, list[int]] = {}
            for number in chosen:
                by_record.setdefault(int(records[number]), []).append(int(place[top[number]]))
            groups = []
            for record in sorted(by_record):
                header = self._lines[record][min(1, form) if record in in_ledger else form][0]
                groups.append(Group(header, s.prepared[record].pieces, tuple(sorted(by_record[record]))))
            lines = (
                ledger
                + ([head] if head and groups else [])
                + render_groups(groups, budget >= self.tuning.uncounted)
            )
            text = "".join(lines)
            tokens = self.count(text) if text else 0
            if tokens <= budget:
                break
            if chosen:
                over = tokens - budget
                while chosen and over > 0:
                    over -= int(s.segments["tokens"][top[chosen.pop()]])
            elif ledger:
                ledger, listed, in_ledger = [], [], set()
            else:
                break
        shown = {r: tuple(sorted(p)) for r, p in by_record.items()}
        gains = {int(top[n]): packing.gains[n] for n in chosen}
        edge = tuple((int(top[n]), g) for n, g in packing.edge)
        return Selection(text, tokens, shown, tuple(listed), gains, edge, older)


__all__ = ["GAP", "NEVER", "EvidenceIndex", "Selection", "Tuning"]
