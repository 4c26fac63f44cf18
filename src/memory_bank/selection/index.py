"""The evidence of one session: calls are added as they happen; selects what the next call may need."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, compress
from typing import NamedTuple

import numpy as np

from memory_bank.selection import model as scoring
from memory_bank.selection.cutting import GAP, WIDTH
from memory_bank.selection.effects import source_of
from memory_bank.selection.files import Files
from memory_bank.selection.tables import OWN, Array, EvidenceTables
from memory_bank.selection.thread import ARGUMENT_CHARS, call_line, shown_arguments
from memory_bank.selection.values import ParsedRecord, fold, parse_record, stands_in
from memory_bank.transcript.quoting import Mark

EXCERPT_HEAD, SHORT_HEAD = f"{Mark.EXCERPTS} (…: parts left out):\n", f"{Mark.EXCERPTS}:\n"

# Chosen over all recorded sets together.
LONG_ARGUMENTS = 160  # arguments of more characters are a record of their own, from which a context quotes
TREES_ON = 500  # values, the best by the linear score, that the trees score too
WORD_WORTH = 0.5  # of plain words
AGENT_WORTH = 0.3  # of values that the agent wrote first
ARGUMENT_WORTH = 0.5  # besides, of those that only its own arguments show
COPY_WORTH = 0.2  # of a segment of WIDTH characters that the next call copies from
STALE, EDITED = 0.95, 0.35  # by how much less a copy's values count where a newer one, or an edit, follows
ERROR_WORTH = 0.25  # of values in a report of a failure
LISTED_WORTH = 0.0  # of values that the list of past calls shows
REPEATED_WORTH = 0.1  # besides, of values in it that the agent wrote first
OFFERS, OFFERS_SHARE = 150, 0.125  # segments that are packed: so many, and so many for a token of the budget
LINE_LENGTHS = (160, 1300, 1600, 3000)  # budgets from which a call's line takes its next longer form
MIN_HEADING, MIN_LONG_HEADING = 200, 600  # budgets from which each is shown
LIST_WORTH = 0.8  # at least, of the next value of a list whose values are used one by one; less of later ones
LIST_USES, LIST_PAUSE = 2, 12  # used values of it, at least, and interactions since the latest, at most
LIST_AHEAD = 64  # values that are left and have this worth: the nearest to the latest
LONGEST_REST = 60  # characters of a value that is named without its row
NAMING = ("name", "filename", "file_name", "path", "title")  # the field that names a listing's entry
LEAST_ENTRIES, MOST_NAMES = 5, 200  # of a listing, and tokens for the names of its entries that are not shown
NAMES_SHARE = 10  # of a budget the part that all such names may take
END_GAP = 2  # tokens of the gap mark at the end of an excerpt
SOURCE_SHARE = 0.2  # of a budget, at least, that a source has; those that others use have more
BEYOND_SHARE = 0.02  # what its pieces count beyond: others of likely worth come first
FREE_USES = 3  # calls to itself that use a source's values for free
OTHERS_COUNT = 8  # and so many more for each that another makes
SELF_WORTH = 0.1  # of values of a source whose values only calls to itself have used
NEAR_MISSES = 12


def _rest_line(values: Sequence[str]) -> str:
    """The line with further values of a list."""
    return f"{GAP} also in it: {', '.join(values)}"


Reason = tuple[str, float, tuple[tuple[str, float], ...]]
"""Why a value was worth showing: (value, its chance, its strongest features with their log-odds)."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The choice, with a memory text where the index writes it.

    `shown`: by record the places of its segments; `gains`: worth by segment, in the order of choice; `edge`:
    the best (segment, worth) that did not fit; `short`: segments that are shown in their short form. `rest`: by
    record further values of a list that calls work off, or the names of a listing's other entries, as spelled.
    """

    text: str = ""
    tokens: int = 0
    shown: dict[int, tuple[int, ...]] = field(default_factory=dict)
    gains: dict[int, float] = field(default_factory=dict)
    edge: tuple[tuple[int, float], ...] = ()
    short: frozenset[int] = frozenset()
    rest: dict[int, tuple[str, ...]] = field(default_factory=dict)


class ShortForm(NamedTuple):
    """A segment with its long values shortened: its tokens, and by value of the segment whether it is shown."""

    tokens: int
    shown: Array


class EvidenceIndex:
    """The evidence of one session. Calls are added in the order of their interactions. Not thread-safe."""

    def __init__(
        self,
        model: scoring.Model | None = None,
        count_tokens: Callable[[str], int] = lambda s: (len(s) + 3) // 4,
    ) -> None:
        self.model = model if model is not None else scoring.load_model()
        self.count = count_tokens
        self.tables = EvidenceTables()
        self.files = Files()
        self._scores = scoring.LinearScores(self.model.weights)
        # By record: how many calls there are up to it, the values that its call uses, those that the call shows in
        # its place, the tokens of its blocks' headings.
        self._calls: list[int] = []
        self._used: list[list[tuple[str, int]]] = []
        self._in_call: list[Array] = []
        self._head_tokens: list[list[int]] = []
        self._headers: dict[tuple[int, int], tuple[str, int]] = {}
        self._short: dict[int, ShortForm | None] = {}  # by segment, once asked for
        # by record its source (0: the agent itself); by source the calls to itself and to others that used its values
        self._source: list[int] = []
        self._sources: dict[str, int] = {"": 0}
        self._uses_by_itself, self._uses_by_others = Counter[int](), Counter[int]()
        # the tail, the anchor and how many records were there at the latest selection, and what it was made by
        self._selected: tuple[tuple[int, list[str], int], tuple[scoring.CurrentStep, Array, Array]] | None = (
            None
        )

    def add_call(
        self,
        *,
        trace_id: str,
        interaction: int,
        tool: str,
        arguments: str,
        output: str,
        parsed: ParsedRecord | None = None,
    ) -> None:
        """Add one call and its output; ``parsed``: what ``parse_record`` returned for an equal call, if known."""
        call = trace_id, tool, arguments
        if parsed is None or (*call, output) != (
            parsed.trace_id,
            parsed.tool,
            parsed.arguments,
            parsed.cut.sources[0],
        ):
            parsed = parse_record(interaction, output, self.count, *call)
        self.add_parsed(replace(parsed, interaction=interaction))
        if len(arguments) > LONG_ARGUMENTS:
            self.add_parsed(parse_record(interaction, output, self.count, *call, kind="arguments"))

    def add_remark(self, *, interaction: int, text: str) -> None:
        """Add what the agent wrote with its calls."""
        if text.strip():
            self.add_parsed(parse_record(interaction, text, self.count, kind="note"))

    def add_parsed(self, item: ParsedRecord) -> None:
        """Add an output, a remark or arguments that are cut already."""
        t = self.tables
        source = 0
        if item.kind == "output":
            source = self._sources.setdefault(source_of(item.tool, item.arguments), len(self._sources))
            supplied = (int(t.values["record"][t.ids[u.form]]) for u in item.uses if u.form in t.ids)
            for of in {self._source[record] for record in supplied if record >= 0}:
                (self._uses_by_itself if of == source else self._uses_by_others)[of] += 1
        self._source.append(source)
        t.add(item)
        self._calls.append((self._calls[-1] if self._calls else 0) + (item.kind == "output"))
        self._used.append([(u.form, t.ids[u.form]) for u in item.uses if u.form in t.ids])
        self._in_call.append(self._values_in(len(t.parsed) - 1, shown_arguments(item.arguments)))
        self._head_tokens.append([self.count(head + "\n") if head else 0 for head in item.cut.heads])

    def _values_in(self, record: int, text: str) -> Array:
        """The values used by the call of an output that stand in a text."""
        folded = fold(text) if self.tables.parsed[record].kind == "output" else ""
        return np.array([v for form, v in self._used[record] if folded and stands_in(form, folded)], np.int32)

    def _header(self, record: int, length: int) -> tuple[str, int]:
        """The line above the excerpts of a record, in one of the lengths of ARGUMENT_CHARS, and its tokens."""
        if (record, length) not in self._headers:
            item, number = self.tables.parsed[record], self._calls[record]
            line = f"note before #{number + 1}" if item.kind == "note" else f"#{number} arguments"
            if item.kind == "output":
                line = call_line(number, item.tool, item.arguments, ARGUMENT_CHARS[length])
            self._headers[record, length] = line, self.count(line + "\n")
        return self._headers[record, length]

    def header(self, record: int) -> str:
        """Return the line that stands above the excerpts of a record."""
        return self._header(record, len(ARGUMENT_CHARS) - 1)[0]

    def select(
        self,
        *,
        anchor: Sequence[str],
        tail_interaction: int,
        budget: int,
        prices: Sequence[int] | None = None,
        listed: str = "",
        without: Collection[int] = (),
        least: float | Sequence[float] = 0,
    ) -> Selection:
        """Return what the next call may need of the records before the tail, for at most `budget` tokens.

        `anchor`: texts that the context shows anyway; so are the interactions from `tail_interaction` on.
        `listed`: the list of past calls, whose values need no second place.
        `prices`: by record the tokens of showing anything of it, where the caller shows the chosen segments in
        its own way; without them the selection has a text. `without`: records that the context shows whole.
        `least`: what a token, by segment or of all, is to be worth beyond half of the budget; where none is, that
        half stays unused.
        """
        t = self.tables
        older = t.records_before(tail_interaction)
        if budget <= 0 or not older:
            return Selection()
        t.evaluate_anew()
        t.set_anchor(anchor)
        step = scoring.CurrentStep(t, tail_interaction)
        ids, chance = self.chances(tail_interaction, step)
        self._selected = (tail_interaction, t.anchor, len(t.parsed)), (step, ids, chance)
        stale = t.records["stale"][t.segments["record"]]
        t.segments["factor"][:] = 1 - np.where(stale < 1, 2 * EDITED * stale, STALE)
        shown = np.isin(t.segments["record"], list(without))
        t.segments["factor"][shown] = 0
        last = t.segments_before(tail_interaction)
        trust = self._trust()[np.array(self._source)]
        if len(self.model.copied):
            copied = self.model.copy_chance(scoring.describe_segments(step, last))
            chars = np.minimum(t.segments["chars"][:last], 2 * WIDTH)
            # of equal texts the newest counts, which may be one that the context shows anyway
            newest = t.texts.table["last"][t.segments["text"][:last]] == np.arange(last)
            copied = COPY_WORTH * copied * chars / WIDTH * (stale[:last] < 1) * newest
            t.segments["copied"][:last] = copied * trust[t.segments["record"][:last]]
        t.segments["copied"][shown] = 0
        worth = np.zeros(t.values.size)
        worth[ids] = chance
        by_agent = t.values["agent"] > 0
        in_error = t.records["error"][t.values["record"]] > 0
        left = t.left_of_lists(tail_interaction, LIST_USES, LIST_PAUSE, LIST_AHEAD)
        worth = np.maximum(worth, LIST_WORTH * left)
        worth[by_agent] *= AGENT_WORTH
        worth[by_agent & (t.records["own"][t.values["record"]] == OWN["arguments"])] *= ARGUMENT_WORTH
        worth[in_error] *= ERROR_WORTH
        worth[in_error & by_agent] *= REPEATED_WORTH
        worth[t.values["kind"] == 0] *= WORD_WORTH
        worth *= np.where(t.values["record"] >= 0, trust[t.values["record"]], 1)
        if listed:
            worth[t.standing_in(fold(listed))] *= LISTED_WORTH
        chosen = self.choose(worth, older, budget, prices)
        if np.any(least):
            places, gains = [*chosen.gains], np.array([*chosen.gains.values()])
            sizes, floor = t.segments["tokens"][places], np.broadcast_to(least, t.segments.size)[places]
            mask = (np.cumsum(sizes) <= budget // 2) | (gains >= floor * sizes)
            chosen = self._of(chosen, dict(compress(chosen.gains.items(), mask)))
        left = np.flatnonzero(left > 0)
        if len(left) and (rest := self._rest(chosen, left, budget // 3)):
            tokens = self.count(_rest_line(tuple(chain.from_iterable(rest.values()))))
            chosen = self.choose(worth, older, budget - tokens, prices)
            chosen = replace(chosen, rest=self._rest(chosen, left, budget // 3))
        return replace(chosen, rest={**self._names(chosen, budget // NAMES_SHARE), **chosen.rest})

    def _names(self, selection: Selection, room: int) -> dict[int, tuple[str, ...]]:
        """The names of entries that each listing is shown without, where there is room for all of them."""
        by_record = dict[int, tuple[str, ...]]()
        for record, places in selection.shown.items():
            item, inside = self.tables.parsed[record], {*places}
            names: dict[str, dict[str, bool]] = {key: {} for key in NAMING}  # by key, whether each is shown
            for place, cells in enumerate(item.candidates if item.kind == "output" else ()):
                for c in cells:
                    if c.cell and c.key in names:
                        names[c.key][c.text] = names[c.key].get(c.text, False) or place in inside
            listing = next((of_key for of_key in names.values() if len(of_key) >= LEAST_ENTRIES), {})
            rest = tuple(text for text, is_shown in listing.items() if not is_shown)
            most = min(MOST_NAMES, room)
            is_short = 2 * len(rest) <= most and all(len(t) <= LONGEST_REST and t.isprintable() for t in rest)
            if rest and is_short and (tokens := self.count(_rest_line(rest))) <= most:
                by_record[record] = rest
                room -= tokens
        return by_record

    def _trust(self) -> Array:
        """By source the factor of its worth: less where mostly calls to itself have used its values."""
        trust = np.ones(len(self._sources))
        for source, uses in self._uses_by_itself.items():
            share = (FREE_USES + OTHERS_COUNT * self._uses_by_others[source]) / uses
            trust[source] = max(SELF_WORTH, min(1.0, share)) if source else 1
        return trust

    def _rest(self, selection: Selection, left: Array, room: int) -> dict[int, tuple[str, ...]]:
        """The values of lists that calls work off which no chosen segment of their record shows, as room allows."""
        t, by_record = self.tables, {}
        for record, places in selection.shown.items():
            item, first = t.parsed[record], t.first_segment[record]
            mine = left[t.values["record"][left] == record]
            covered = {v for place in places for v in t.values_of(first + place).tolist()}
            forms = {t.forms[v] for v in mine.tolist() if v not in covered}
            spelled = {c.form: c.text for cells in item.candidates for c in cells if c.form in forms}
            rest = [text for text in spelled.values() if len(text) <= LONGEST_REST and text.isprintable()]
            while rest and (over := self.count(_rest_line(rest)) - room) > 0:
                del rest[-max(1, over // 12) :]
            if rest and item.kind == "output":
                by_record[record] = tuple(rest)
                room -= self.count(_rest_line(rest))
        return by_record

    def choose(self, worth: Array, older: int, budget: int, prices: Sequence[int] | None = None) -> Selection:
        """Return what is chosen from the first `older` records; `worth` is by value, the rest as in `select`."""
        t = self.tables
        last = t.first_segment[older] if older < t.records.size else t.segments.size
        gain = t.sum_by_segment(worth, last)
        gain *= t.segments["factor"][:last]
        gain += t.segments["copied"][:last]
        top, most = np.flatnonzero(gain > 0), int(OFFERS + budget * OFFERS_SHARE)
        if len(top) > most:
            ratio = gain[top] / (t.segments["tokens"][top] + 4)
            top = np.sort(top[np.argpartition(-ratio, most)[:most]])
        records = np.unique(t.segments["record"][top]).tolist()
        short = self._short_forms(top, worth)
        shown_by = {r: self._in_call[r] for r in records}
        head, headers = "", {}
        if prices is None:
            length = sum(budget >= limit for limit in LINE_LENGTHS)
            if budget >= MIN_HEADING:
                head = EXCERPT_HEAD if budget >= MIN_LONG_HEADING else SHORT_HEAD
            headers = {r: self._header(r, length) for r in records}
            if length < len(LINE_LENGTHS):
                shown_by = {}
            else:
                shown_by = {r: self._values_in(r, headers[r][0]) for r in records}
        opening = {r: headers[r][1] + END_GAP if prices is None else prices[r] for r in records}
        room = budget - (self.count(head) if head else 0)
        gains, edge = self._pack(top, worth, opening, room, shown_by, short)
        selection = self._of(Selection(edge=tuple(edge), short=frozenset(short)), gains)
        # the tokens of a text may be more than those of its parts: the last ones are left out then
        while prices is None:
            shown = selection.shown.items()
            quotes = [(headers[r][0], *self.quote(r, places, selection)) for r, places in shown]
            excerpts = [f"{line}{state and f' ({state})'}\n{quote}\n" for line, quote, state in quotes]
            text = "".join([head, *excerpts]) if excerpts else ""
            tokens = self.count(text) if text else 0
            if tokens <= budget:
                return replace(selection, text=text, tokens=tokens)
            selection = self.without_last(selection, tokens - budget)
        return selection

    def _pack(
        self, segments: Array, worth: Array, open_record: Mapping[int, int], budget: int,
        shown_by: Mapping[int, Array], short: Mapping[int, ShortForm],
    ) -> tuple[dict[int, float], list[tuple[int, float]]]:  # fmt: skip
        """Choose segments by budgeted maximum coverage (lazy greedy); ties go to the later segment.

        A segment gains the `worth` of its values that no chosen one has, times its `factor`, and its worth as text
        that may be `copied`, per token. It costs its tokens, and those of its gap mark, its record's line and its
        block's heading until another one of the record or block is chosen. ``shown_by``: the values, by record,
        that its line or its call shows: its segments gain nothing by them, nor do others once a segment of it is
        chosen. ``short``: segments that are packed in their short form.

        A source whose values mostly calls to itself have used has a share of the budget, beyond which its pieces
        count less: so no tool that comes back can push out what others showed.

        Returns the gain of each chosen segment, in the order of choice, and the best segments that did not fit.
        """
        t = self.tables
        chosen: dict[int, float] = {}
        edge: list[tuple[int, float]] = []
        total = len(segments)
        if budget <= 0 or not total:
            return chosen, edge
        s = {name: t.segments[name][segments] for name in ("record", "start", "count", "factor", "copied")}
        stop = np.cumsum(s["count"])
        at = np.arange(int(stop[-1])) + np.repeat(s["start"] - (stop - s["count"]), s["count"])
        flat = t.pairs["value"][at]
        width = len(worth)
        if pairs := [values.astype(np.int64) + r * width for r, values in shown_by.items() if len(values)]:
            owners = np.repeat(s["record"], s["count"]).astype(np.int64)
            flat = np.where(np.isin(flat + owners * width, np.concatenate(pairs)), width, flat)
        names: list[int] = segments.tolist()
        tokens: list[int] = t.segments["tokens"][segments].tolist()
        gaps: list[int] = t.segments["gap"][segments].tolist()
        place: list[int] = t.segments["place"][segments].tolist()
        for n, segment in enumerate(names if short else ()):
            if segment in short:
                tokens[n] = short[segment].tokens
                flat[stop[n] - s["count"][n] : stop[n]][~short[segment].shown] = width
        worth = np.append(worth, 0.0)  # of values that are shown anyway, or that a short form leaves out
        sums = np.concatenate([np.zeros(1), np.cumsum(worth[flat])])
        gains: list[float] = (s["factor"] * (sums[stop] - sums[stop - s["count"]]) + s["copied"]).tolist()
        left: list[float] = worth.tolist()  # worth of each value that is not covered yet
        all_values: list[int] = flat.tolist()
        ends: list[int] = [0, *stop.tolist()]  # of the values of each segment
        record: list[int] = s["record"].tolist()
        factor, copied = s["factor"].tolist(), s["copied"].tolist()
        block: list[tuple[int, int]] = list(zip(record, t.segments["block"][segments].tolist(), strict=True))
        record_cost, block_cost = dict(open_record), {(r, b): self._head_tokens[r][b] for r, b in block}
        of_record: dict[int, list[int]] = {}
        for n, owner in enumerate(record):
            of_record.setdefault(owner, []).append(n)
        source = [self._source[r] for r in record]
        shares = np.maximum(SOURCE_SHARE, self._trust()) * budget
        left_of: list[float] = shares.tolist()  # of each source, until its pieces count less
        done = bytearray(total)

        def price(n: int) -> int:
            return tokens[n] + gaps[n] + record_cost[record[n]] + block_cost[block[n]]

        heap = [(-gains[n] / price(n), -n) for n in range(total)]
        heapq.heapify(heap)
        while heap:
            negative, minus = heapq.heappop(heap)
            n = -minus
            if done[n]:
                continue
            values = all_values[ends[n] : ends[n + 1]]
            gain = gains[n] = factor[n] * sum(map(left.__getitem__, values)) + copied[n]
            if gain <= 1e-9:
                continue
            cost = price(n)
            rank = gain / cost
            if left_of[source[n]] <= 0:
                rank *= BEYOND_SHARE
            if heap and rank < -heap[0][0] and rank < -negative:
                heapq.heappush(heap, (-rank, minus))
                continue
            done[n] = 1
            if cost > budget:
                if len(edge) < NEAR_MISSES:
                    edge.append((names[n], gain))
                if budget < 6 or (len(edge) >= NEAR_MISSES and budget < 25):
                    break
                continue
            chosen[names[n]] = gain
            budget -= cost
            left_of[source[n]] -= cost
            opened_record, opened_block = record_cost[record[n]], block_cost[block[n]]
            record_cost[record[n]] = block_cost[block[n]] = 0
            cheaper: list[int] = []
            for other in (n + 1, n - 1):
                is_beside = 0 <= other < total and record[other] == record[n]
                if is_beside and not done[other] and abs(place[other] - place[n]) == 1:
                    gaps[other] = 0
                    cheaper.append(other)
            for value in values:
                left[value] = 0.0
            for value in shown_by[record[n]].tolist() if opened_record and shown_by else ():
                left[value] = 0.0
            if opened_record or opened_block:
                others = (o for o in of_record[record[n]] if opened_record or block[o] == block[n])
                cheaper += [other for other in others if not done[other]]
            for other in cheaper:
                heapq.heappush(heap, (-gains[other] / price(other), -other))
        return chosen, edge

    def _short_forms(self, segments: Array, worth: Array) -> dict[int, ShortForm]:
        t, forms = self.tables, {}
        for segment in segments.tolist():
            form = self.short_form(segment)
            if form is None:
                continue
            values = worth[t.values_of(segment)]
            factor, copied = t.segments["factor"][segment], t.segments["copied"][segment]
            gap, tokens = t.segments["gap"][segment], t.segments["tokens"][segment]
            whole = (factor * values.sum() + copied) / (tokens + gap)
            share = form.tokens / tokens
            if (factor * values[form.shown].sum() + copied * share) / (form.tokens + gap) > whole:
                forms[segment] = form
        return forms

    def short_form(self, segment: int) -> ShortForm | None:
        """The short form of a segment of an output; None where it has no long value."""
        if segment not in self._short:
            record, place = self.tables.place_of(segment)
            item, form = self.tables.parsed[record], None
            if item.kind == "output" and (text := item.cut.segments[place]).long_values():
                short = text.short()
                folded = fold(short)
                shown = np.array([stands_in(c.form, folded) for c in item.candidates[place]], bool)
                form = ShortForm(self.count(short), shown)
            self._short[segment] = form
        return self._short[segment]

    def without_last(self, selection: Selection, tokens: int) -> Selection:
        """Return a selection without its last chosen segments: at least one, and at least `tokens` tokens of them."""
        gains = dict(selection.gains)
        while gains and tokens > 0:
            tokens -= int(self.tables.segments["tokens"][gains.popitem()[0]])
        return self._of(selection, gains)

    def _of(self, selection: Selection, gains: dict[int, float]) -> Selection:
        shown: dict[int, tuple[int, ...]] = {}
        for segment in sorted(gains):
            record, place = self.tables.place_of(segment)
            shown[record] = (*shown.get(record, ()), place)
        return replace(selection, shown=shown, gains=gains)

    def quote(self, record: int, places: Sequence[int], selection: Selection) -> tuple[str, str]:
        """Return the quote of some places of a record, as a selection shows them, and of a file's text its state.

        A file's text is quoted as it is now, "with edit #36"; where an edit cannot be applied, as it was "before" it.
        """
        first, item = self.tables.first_segment[record], self.tables.parsed[record]
        short = {place for place in places if first + place in selection.short}
        quote, state = item.cut.quote(places, short), ""
        copy = self.files.of_call(item.trace_id)
        if copy is not None and (item.kind == "output") != copy.written and (changes := copy.changes):
            state = f"before edit #{changes[0]}"
            if item.kind == "output" and not copy.missing and (now := copy.quoted(item.cut, places)):
                was, quote = quote, now[0].quote(now[1])
                state = "" if quote == was else f"with edit #{changes[-1]}"
        elif item.kind == "output" and (number := self.files.changed_since(item.trace_id, quote)):
            state = f"before edit #{number}"
        rest = selection.rest.get(record)
        return f"{quote.removesuffix(GAP).rstrip()}\n{_rest_line(rest)}\n{GAP}" if rest else quote, state

    def eligible(self, tail: int) -> Array:
        """Return the values that older outputs or remarks showed and neither anchor nor tail shows."""
        v = self.tables.values
        return np.flatnonzero(~v["visible"] & (v["seen"] < tail) & (v["record"] >= 0))

    def chances(self, tail: int, step: scoring.CurrentStep | None = None) -> tuple[Array, Array]:
        """Return (values, the probability that the next call needs each) of the eligible values."""
        ids = self.eligible(tail)
        step = step or scoring.CurrentStep(self.tables, tail)
        odds = self._scores.score(step)[ids] + np.float32(self.model.bias)
        if self.model.mix > 0 and len(ids):
            top = np.arange(len(ids))
            if len(ids) > TREES_ON:
                top = np.argpartition(-odds, TREES_ON)[:TREES_ON]
            trees = self.model.boosted(scoring.describe(step, ids[top]))
            odds[top] = (1 - self.model.mix) * odds[top] + self.model.mix * trees
        return ids, 1 / (1 + np.exp(-odds))

    def explain(
        self, segments: Sequence[int], *, anchor: Sequence[str], tail_interaction: int, top: int = 4
    ) -> list[tuple[Reason, ...]]:
        """Return why each of some segments (numbers as in `Selection.gains`) was worth showing.

        By segment: its likeliest values, each with the features whose linear contribution differs most from
        the mean over the eligible values.
        """
        t = self.tables
        if self._selected is not None and self._selected[0] == (tail_interaction, [*anchor], len(t.parsed)):
            step, ids, chance = self._selected[1]
        else:
            t.set_anchor(anchor)
            step = scoring.CurrentStep(t, tail_interaction)
            ids, chance = self.chances(tail_interaction, step)
        if not len(ids) or not len(segments):
            return [()] * len(segments)
        mean = scoring.describe(step, ids[:: max(1, len(ids) // 500)]).mean(axis=1)
        place = np.full(t.values.size, -1)
        place[ids] = np.arange(len(ids))
        inside = [t.values_of(segment) for segment in segments]
        owner = np.repeat(np.arange(len(segments)), [len(values) for values in inside])
        at = place[np.concatenate(inside)]
        owner, at = np.divmod(np.unique((owner * len(ids) + at)[at >= 0]), len(ids))
        order = np.lexsort((-chance[at], owner))
        owner, at = owner[order], at[order]
        likeliest = np.arange(len(owner)) - np.searchsorted(owner, owner) < top
        owner, (numbers, columns) = owner[likeliest], np.unique(at[likeliest], return_inverse=True)
        parts = self.model.weights[:, None] * (scoring.describe(step, ids[numbers]) - mean[:, None])
        best = np.argsort(-np.abs(parts), axis=0, kind="stable")[:top].T
        weights = np.take_along_axis(parts, best.T, axis=0).T.astype(float).round(3)
        odds = [
            tuple((scoring.FEATURE_NAMES[f], n) for f, n in zip(*both, strict=True))
            for both in zip(best.tolist(), weights.tolist(), strict=True)
        ]
        forms = [t.forms[value] for value in ids[numbers].tolist()]
        reasons = [*zip(forms, chance[numbers].astype(float).round(4).tolist(), odds, strict=True)]
        ends = np.searchsorted(owner, np.arange(1, len(segments)))
        return [tuple(reasons[column] for column in of_segment) for of_segment in np.split(columns, ends)]
