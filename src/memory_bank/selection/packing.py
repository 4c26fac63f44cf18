"""Chooses the segments that are worth most for a token budget and writes the memory text from them."""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from memory_bank.selection.calltext import shown_arguments
from memory_bank.selection.candidates import ParsedRecord, fold
from memory_bank.selection.parsing import clean
from memory_bank.selection.tables import Array, EvidenceTables, stands_in

EXCERPT_HEAD = "Excerpts (…: parts left out):\n"
SHORT_HEAD = "Excerpts:\n"
ARGUMENT_CHARS = (-1, 0, 24, 40, 72)
"""Characters of arguments in a call's line, from its shortest form (its number only) to its longest."""

# Chosen over all recorded sets together.
OFFERS, OFFERS_SHARE = 150, 0.125  # segments that are packed: so many, and so many for a token of the budget
EDGE = 0.2  # extra worth of a segment whose neighbour was chosen, as a share of the values at the cut
LINE_LENGTHS = (160, 1300, 1600, 3000)  # budgets from which a call's line takes its next longer form
MIN_HEADING, MIN_LONG_HEADING = 200, 600  # budgets from which each is shown
END_GAP = 2  # tokens of the gap mark at the end of an excerpt
NEAR_MISSES = 12

_WORD_END = re.compile(r"[\s,;)\]}]")


@dataclass(frozen=True, slots=True)
class Selection:
    """The memory text, and what it is made of.

    `shown`: by record the places of its segments; `gains`: worth by segment, in the order of choice; `edge`:
    the best (segment, worth) that did not fit; `older`: records that it is chosen from; `short`: segments that are
    shown in their short form.
    """

    text: str
    tokens: int
    shown: dict[int, tuple[int, ...]] = field(default_factory=dict)
    gains: dict[int, float] = field(default_factory=dict)
    edge: tuple[tuple[int, float], ...] = ()
    older: int = 0
    short: frozenset[int] = frozenset()


# -- lines of calls -----------------------------------------------------------
def call_line(number: int, tool: str, arguments: str, chars: int = ARGUMENT_CHARS[-1]) -> str:
    """Return one line for a call, ``#number tool key=value, …``, with about `chars` characters of arguments.

    With 0 characters it is the number and the first word of the tool's name, with -1 the number alone.
    """
    if chars < 0:
        return f"#{number}"
    name = clean(tool)[:80]
    if not chars:
        return f"#{number} {name.partition(' ')[0]}"
    body = _arguments_text(arguments, chars)
    return f"#{number} {name}" + (f" {body}" if body else "")


def _arguments_text(arguments: str, chars: int) -> str:
    """Return arguments as ``key=value, …``, never cut inside a word; ``…`` marks a cut."""
    try:
        value: object = json.loads(arguments) if arguments else {}
    except (ValueError, RecursionError):
        value = arguments
    if not isinstance(value, dict):
        return _clip(arguments, chars)
    parts: list[str] = []
    room = chars
    for key, item in value.items():
        if item in ("", None, [], {}):
            continue
        if not isinstance(item, str):
            try:
                item = json.dumps(item, ensure_ascii=False)
            except (ValueError, RecursionError):
                item = "…"
        part = f"{clean(str(key))[:40]}={_clip(item, max(24, room))}"
        if parts and len(part) > room:
            parts.append("…")
            break
        parts.append(part)
        room -= len(part) + 2
    return ", ".join(parts)


def _clip(text: str, chars: int) -> str:
    """Return the first words of a text on one line, at most about `chars` characters."""
    text = clean(" ".join(text[: chars * 8 + 400].split()))
    if len(text) <= chars:
        return text
    cut = 0
    for match in _WORD_END.finditer(text, 0, chars + 1):
        cut = match.start()
    if not cut:
        after = _WORD_END.search(text, 0, chars * 4)
        if after is None:
            return text if len(text) <= chars * 4 else f"[{len(text)} characters]"
        cut = after.start()
    return text[:cut] + "…"


@dataclass(frozen=True, slots=True)
class ShortForm:
    """A segment with its long values shortened: its tokens, and by value of the segment whether it is shown."""

    tokens: int
    shown: Array


class CallLines:
    """By record: its line in the lengths of ARGUMENT_CHARS, and the tokens of each."""

    def __init__(self, tables: EvidenceTables, count_tokens: Callable[[str], int]) -> None:
        self.tables, self.count = tables, count_tokens
        self.calls = 0
        self.texts: list[tuple[tuple[str, int], ...]] = []  # (line, tokens) from shortest to longest
        self.in_line: list[Array] = []  # values that the longest line shows
        self.in_call: list[Array] = []  # values that the call shows in its place
        self.head_tokens: list[list[int]] = []  # by block of the record
        self._short: dict[int, ShortForm | None] = {}  # by segment, once asked for

    def short_form(self, segment: int) -> ShortForm | None:
        """The short form of a segment of an output; None where it has no long value."""
        if segment not in self._short:
            t = self.tables
            record = int(t.segments["record"][segment])
            item, place = t.parsed[record], segment - t.first_segment[record]
            found = None
            if item.kind == "output" and (text := item.cut.segments[place]).long_values():
                short = text.short()
                folded = fold(short)
                shown = np.array([stands_in(c.form, folded) for c in item.candidates[place]], bool)
                found = ShortForm(self.count(short), shown)
            self._short[segment] = found
        return self._short[segment]

    def short_forms(self, segments: Array, worth: Array) -> dict[int, ShortForm]:
        """Return the short forms that are worth more for their tokens than the whole segments."""
        t, found = self.tables, {}
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
                found[segment] = form
        return found

    def add(self, item: ParsedRecord) -> None:
        """Add the lines of the record that was just added to the tables."""
        name = f"note before #{self.calls + 1}" if item.note else f"#{self.calls} arguments"
        lines = [name] * len(ARGUMENT_CHARS)
        line = call = ""
        if item.kind == "output":
            self.calls += 1
            lines = [call_line(self.calls, item.tool, item.arguments, chars) for chars in ARGUMENT_CHARS]
            line, call = fold(lines[-1]), fold(shown_arguments(item.arguments))
        self.texts.append(tuple((line, self.count(line + "\n")) for line in lines))
        used = [(u.form, self.tables.ids[u.form]) for u in item.uses if u.form in self.tables.ids]
        for shown, text in ((self.in_line, line), (self.in_call, call)):
            shown.append(np.array([v for form, v in used if text and stands_in(form, text)], np.int32))
        self.head_tokens.append([self.count(head + "\n") if head else 0 for head in item.cut.heads])


# -- selection ----------------------------------------------------------------
def select_segments(
    t: EvidenceTables,
    lines: CallLines,
    worth: Array,
    older: int,
    budget: int,
    opening: Callable[[int], int] | None = None,
) -> Selection:
    """Return what is chosen from the first `older` records, for at most `budget` tokens; `worth` is by value.

    `opening`: the tokens of showing anything of a record at all, where the caller shows the segments in its own
    way. Without it the selection has a text, in which every record has a line of its own.
    """
    top = _best_segments(t, worth, older, int(OFFERS + budget * OFFERS_SHARE))
    records = np.unique(t.segments["record"][top]).tolist()
    short = lines.short_forms(top, worth)
    if opening is not None:
        prices = {r: opening(r) for r in records}
        packing = pack(t, top, worth, prices, lines.head_tokens, budget, lines.in_call, short)
        return _selection(t, packing, packing.chosen, older)
    length = sum(budget >= limit for limit in LINE_LENGTHS)
    head = ""
    if budget >= MIN_HEADING:
        head = EXCERPT_HEAD if budget >= MIN_LONG_HEADING else SHORT_HEAD
    spent = lines.count(head) if head else 0
    headers = {r: lines.texts[r][length] for r in records}
    open_record = {r: tokens + END_GAP for r, (_, tokens) in headers.items()}
    known = lines.in_line if length == len(ARGUMENT_CHARS) - 1 else ()
    packing = pack(t, top, worth, open_record, lines.head_tokens, budget - spent, known, short)

    chosen = list(packing.chosen)
    while True:  # the tokens of a text may be more than those of its parts: leave out the last chosen then
        excerpts = [
            line
            for r, places in by_record(t, chosen).items()
            for line in (headers[r][0], "\n", quote_of(t, r, places, packing.short), "\n")
        ]
        text = "".join([head, *excerpts]) if excerpts else ""
        tokens = lines.count(text) if text else 0
        over = tokens - budget
        if over <= 0:
            return _selection(t, packing, chosen, older, text, tokens)
        while chosen and over > 0:
            over -= int(t.segments["tokens"][chosen.pop()])


def _selection(
    t: EvidenceTables, packing: Packing, chosen: Sequence[int], older: int, text: str = "", tokens: int = 0
) -> Selection:
    gains = {s: packing.gains[s] for s in chosen}
    return Selection(text, tokens, by_record(t, chosen), gains, tuple(packing.edge), older, packing.short)


def _best_segments(t: EvidenceTables, worth: Array, older: int, most: int) -> Array:
    """Return the older segments that give most for their tokens, in their order."""
    last = t.first_segment[older] if older < t.records.size else t.segments.size
    gain = t.sum_by_segment(worth, last)
    gain *= t.segments["factor"][:last]
    gain += t.segments["copied"][:last]
    top = np.flatnonzero(gain > 0)
    if len(top) > most:
        ratio = gain[top] / (t.segments["tokens"][top] + 4)
        top = np.sort(top[np.argpartition(-ratio, most)[:most]])
    return top


@dataclass(slots=True)
class Packing:
    """The chosen segments in the order of choice, the gain of each, and the best ones that did not fit."""

    chosen: list[int] = field(default_factory=list)
    gains: dict[int, float] = field(default_factory=dict)
    edge: list[tuple[int, float]] = field(default_factory=list)
    short: frozenset[int] = frozenset()  # the segments that are packed in their short form


def pack(
    t: EvidenceTables,
    segments: Array,
    worth: Array,
    open_record: Mapping[int, int],
    open_block: Sequence[Sequence[int]],
    budget: int,
    shown_by: Sequence[Array] = (),
    short: Mapping[int, ShortForm] = MappingProxyType({}),
) -> Packing:
    """Choose segments by budgeted maximum coverage (lazy greedy); ties go to the later segment.

    A segment gains the `worth` of its values that no chosen one has, times its `factor`, and its worth as text
    that may be `copied`, per token. It costs its tokens, and those of its gap mark, its record's line and its
    block's heading until another one of the record or block is chosen. ``shown_by``: the values, by record, that its
    line or its call shows: its segments gain nothing by them, nor do others once a segment of it is chosen.
    ``short``: segments that are packed in their short form.
    """
    result = Packing(short=frozenset(short))
    total = len(segments)
    if budget <= 0 or not total:
        return result
    length = t.segments["count"][segments]
    stop = np.cumsum(length)
    at = np.arange(int(stop[-1])) + np.repeat(t.segments["start"][segments] - (stop - length), length)
    flat = t.pairs["value"][at]
    record: list[int] = t.segments["record"][segments].tolist()
    if len(shown_by):
        width = len(worth)
        known = [shown_by[r].astype(np.int64) + r * width for r in dict.fromkeys(record) if len(shown_by[r])]
        if known:
            owners = np.repeat(t.segments["record"][segments], length).astype(np.int64)
            flat = np.where(np.isin(flat + owners * width, np.concatenate(known)), width, flat)
    tokens: list[int] = t.segments["tokens"][segments].tolist()
    for at_place, segment in enumerate(segments.tolist() if short else ()):
        if segment in short:
            tokens[at_place] = short[segment].tokens
            end = stop[at_place]
            flat[end - length[at_place] : end][~short[segment].shown] = len(worth)
    worth = np.append(worth, 0.0)  # of values that are shown anyway, or that a short form leaves out
    sums = np.concatenate([np.zeros(1), np.cumsum(worth[flat])])
    factors, copied = t.segments["factor"][segments], t.segments["copied"][segments].tolist()
    factor: list[float] = factors.tolist()
    gains: list[float] = (factors * (sums[stop] - sums[stop - length]) + copied).tolist()
    left: list[float] = worth.tolist()  # worth of each value that is not covered yet
    all_values: list[int] = flat.tolist()
    ends: list[int] = [0, *stop.tolist()]  # of the values of each segment
    gaps: list[int] = t.segments["gap"][segments].tolist()
    place = t.segments["place"][segments].tolist()
    blocks: list[int] = t.segments["block"][segments].tolist()
    block = list(zip(record, blocks, strict=True))
    record_cost, block_cost = dict(open_record), {b: open_block[b[0]][b[1]] for b in block}
    of_record: dict[int, list[int]] = {}
    for n, owner in enumerate(record):
        of_record.setdefault(owner, []).append(n)
    bonus = [0.0] * total
    done = bytearray(total)

    def price(n: int) -> int:
        return tokens[n] + gaps[n] + record_cost[record[n]] + block_cost[block[n]]

    def values_of(n: int) -> list[int]:
        return all_values[ends[n] : ends[n + 1]]

    prices = zip(gains, tokens, gaps, record, block, strict=True)
    heap = [
        (-gain / (size + gap + record_cost[r] + block_cost[b]), -n)
        for n, (gain, size, gap, r, b) in enumerate(prices)
    ]
    heapq.heapify(heap)
    spent = 0
    while heap:
        negative, minus = heapq.heappop(heap)
        n = -minus
        if done[n]:
            continue
        gain = gains[n] = factor[n] * sum(map(left.__getitem__, values_of(n)), bonus[n]) + copied[n]
        if gain <= 1e-9:
            continue
        cost = price(n)
        if heap and gain / cost < -heap[0][0] and gain / cost < -negative:
            heapq.heappush(heap, (-gain / cost, minus))
            continue
        done[n] = 1
        if spent + cost > budget:
            if len(result.edge) < NEAR_MISSES:
                result.edge.append((int(segments[n]), gain))
            if budget - spent < 6 or (len(result.edge) >= NEAR_MISSES and budget - spent < 25):
                break
            continue
        result.chosen.append(int(segments[n]))
        result.gains[int(segments[n])] = gain
        spent += cost
        opened_record, opened_block = record_cost[record[n]], block_cost[block[n]]
        record_cost[record[n]] = block_cost[block[n]] = 0
        values = values_of(n)
        for other, near in ((n + 1, values[-2:]), (n - 1, values[:1])):
            if (
                0 <= other < total
                and not done[other]
                and record[other] == record[n]
                and abs(place[other] - place[n]) == 1
            ):
                extra = EDGE * sum([left[v] for v in near])
                bonus[other] += extra
                gains[other] += extra
                gaps[other] = 0
                heapq.heappush(heap, (-gains[other] / price(other), -other))
        for value in values:
            left[value] = 0.0
        if opened_record and len(shown_by):
            for value in shown_by[record[n]].tolist():
                left[value] = 0.0
        if opened_record or opened_block:
            for other in of_record[record[n]]:
                if not done[other] and (opened_record or block[other] == block[n]):
                    heapq.heappush(heap, (-gains[other] / price(other), -other))
    return result


# -- the text -----------------------------------------------------------------
def quote_of(t: EvidenceTables, record: int, places: Collection[int], short: Container[int]) -> str:
    """Return the quote of some places of a record; `short`: the segments that are shown in their short form."""
    first = t.first_segment[record]
    return t.parsed[record].cut.quote(places, {p for p in places if first + p in short})


def by_record(t: EvidenceTables, segments: Collection[int]) -> dict[int, tuple[int, ...]]:
    """The places of segments in their records, both in order."""
    shown: dict[int, list[int]] = {}
    for segment in sorted(segments):
        shown.setdefault(int(t.segments["record"][segment]), []).append(int(t.segments["place"][segment]))
    return {record: tuple(places) for record, places in shown.items()}
