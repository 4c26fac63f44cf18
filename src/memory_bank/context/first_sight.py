"""The shown part of an output when it first appears; so it stays until the fold, which chooses from the stored whole.

JSON is shown without what says nothing (``transcript.dense``). Of a longer output a part is shown, where the agent
has a tool that returns the rest: of JSON its structure, of other texts their ends and, in their order, what the next
calls may need. It is a function of the output, its call, the user's message before it, and the settings.
"""

from __future__ import annotations

import json
import logging
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from memory_bank.bank.session import MemoryBankState
from memory_bank.config import MemoryBankSettings
from memory_bank.context.evidence import evidence_model
from memory_bank.selection.cutting import WIDTH, CutText, Segment
from memory_bank.selection.effects import asks_for_part, files_read, rules_read
from memory_bank.selection.index import EvidenceIndex
from memory_bank.selection.outcomes import report_of
from memory_bank.selection.values import LONGEST, fold, parse_record, words_of
from memory_bank.transcript.chat import edited_message
from memory_bank.transcript.dense import (
    WITHOUT,
    DenseOutput,
    JsonPart,
    longest_list,
    longest_text,
    opened,
    read_output,
    without_text,
)
from memory_bank.transcript.harness import persons_text
from memory_bank.transcript.jsontext import compact, parse_arguments
from memory_bank.transcript.messages import (
    Interaction,
    MessageKind,
    Pair,
    Result,
    is_memory_tool,
    is_text_part,
    kind_of,
    message_text,
)
from memory_bank.transcript.quoting import Mark, as_terminal, one_line, quote_lines
from memory_bank.transcript.textcalls import plain_arguments
from memory_bank.transcript.transcript import View
from memory_bank.transcript.turns import WHOLE, Edit

log = logging.getLogger("memory_bank.MemoryBankStrategy")

LEAST_JSON = 2_000
"""Characters of JSON that is written densely."""
LEAST_SAVED = 0.05
"""The share of an output's tokens from which it is shown otherwise than it came."""
LEAST_CACHED = 1_100
"""Tokens of a context that an output is not to bring below, if it saves fewer: providers keep no shorter prefix in
their cache."""
BEGINNING, END = 400, 500
"""Characters that are shown of the beginning and the end of a long text."""
TASK_CHARS = 4_000
"""Characters of the user's message by which parts are chosen."""
LONG_LINE = 400
"""A line of more characters is shown in parts."""
LONGEST_NUMBERED = 2_000
"""A text with a longer line has no line numbers by which ``get_record`` finds them."""
NAMED = 3.0
"""How much more a member is worth whose name the user's message or the call has."""
TABLE = 1.2
"""How much more it is worth that all items are there, with the same members, than pieces of as many values."""
NEAR = 0.85
"""The share of the tokens for a table from which no more is tried."""
LEAST_WORTH = 0.0001
"""The worth of a character of a text that the evidence model does not score."""
LEAST_CHANCE = 0.0005
"""The least worth of a token beyond half of the room, in pieces of JSON and lines of a log that repeat."""
REPEATED = 20
"""Lines that differ only in words with digits count as repeats of one another where there are so many of them."""
MOST_NAMED, MOST_PLACES = 20, 3
"""Ids of the user's message whose lines are shown, and the lines that hold one at most: else it tells nothing."""
FAR, LONGEST_HEADER = 800, 300
"""Characters of rows after which a mark repeats the header of their table, and of such a header."""
SHORT_GAP = 24
"""Left-out text of at most this many characters is shown after all: a mark in its place would be as long."""
GAP_TOKENS = 10
"""The tokens reserved for a mark that stands where lines are left out."""
REDACTED = "[redacted: "
"""The stored text for a secret, which the next call may need: such an output is shown as it came."""
MOST_PARSED = 4
"""The number of outputs whose pieces are kept, so that the next fold need not cut them again."""
_DIFF = re.compile(r"^(?:diff --git |@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@)", re.M)
_DATA_FILE = re.compile(
    r"\.(?:csv|tsv|txt|text|log|out|err|json|jsonl|ndjson|geojson|xml|pdf|docx?|xlsx?|pptx?|md|rst|eml|srt)\W*\Z",
    re.I,
)
# a word with a digit near its beginning, or words joined as in a name of a file
_ID = re.compile(r"\b(?=[^\W\d]*+\d|\w+[-./]\w)\w+(?:[-./@]\w+)*")
_WITH_DIGIT = re.compile(r"(?<!\w)[^\W\d]*+\d\w*")
_OTHER_FILE = re.compile(r"(?:/|[^./\\]\.(?!\w*json|ipynb\Z|lock\Z|map\Z|webmanifest\Z|har\Z)\w+)\Z", re.I)
"""A folder, or a file whose own text is no JSON: of JSON that a tool returns for it an edit repeats nothing."""


@dataclass(slots=True)
class FirstSight:
    """The edits of a conversation's outputs, by position, and the tokens that they save, by interaction's start.

    ``foldable[n]``: how many of the first n interactions a fold may replace, and their tokens as they are shown.
    ``by_call``: the edits made so far, by trace_id and the user's message before the call. ``count``: how many
    interactions were read, of messages with these ``digests``; ``made_for``: under which settings and tools.
    """

    edits: dict[int, Edit] = field(default_factory=dict)
    saved: dict[int, int] = field(default_factory=dict)
    foldable: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    by_call: dict[tuple[object, ...], Edit | None] = field(default_factory=dict)
    count: int = 0
    digests: object = None
    made_for: tuple[object, ...] = ()

    def tokens(self, interaction: Interaction) -> int:
        """The tokens of an interaction as it is shown."""
        return interaction.tokens - self.saved.get(interaction.start, 0)

    def latest(self, number: int, before: int) -> int:
        """The tokens of the last ``number`` interactions that a fold may replace, among the first ``before``."""
        count, tokens = self.foldable[before]
        return tokens - self.foldable[bisect_left(self.foldable, (max(0, count - number),))][1]


def first_sight(view: View, session: MemoryBankState, settings: MemoryBankSettings) -> FirstSight:
    """How the outputs of a view are shown until they are folded; a step reads only those that are new."""
    sight: FirstSight = session.cache("first sight", FirstSight)
    made_for = (settings, session.record_tool, session.counter.name)
    if sight.made_for != made_for:
        sight.by_call, sight.made_for, sight.digests = {}, made_for, None
    if sight.digests is not view.digests or sight.count > len(view.interactions):
        sight.edits, sight.saved, sight.count, sight.digests = {}, {}, 0, view.digests
    del sight.foldable[max(1, sight.count) :]
    again = view.interactions[sight.count - 1 :] if sight.count else view.interactions
    if sight.count:  # the tail, which may have grown
        sight.saved.pop(again[0].start, None)
        sight.edits = {p: edit for p, edit in sight.edits.items() if p < again[0].start}
    less = sum(sight.saved.values())
    for interaction in again:
        for pair, trace_id in zip(interaction.pairs, interaction.trace_ids, strict=True):
            if trace_id is None or pair.call is None or pair.result is None or pair.result_at is None:
                continue
            text, position = _text_of(pair.result), interaction.start + pair.result_at
            if text is None or len(text) < LEAST_JSON:
                continue
            key = (trace_id, _task(view, interaction.start))
            if key not in sight.by_call:
                sight.by_call[key] = _edit(
                    view.messages[position], text, pair, trace_id, key[1], session, settings
                )
            if (edit := sight.by_call[key]) is None:
                continue
            whole = view.tokens_between(position, position + 1)
            saved = whole - edit.tokens
            if saved > whole * LEAST_SAVED and (
                saved > LEAST_CACHED or view.tokens_before[position + 1] - less - saved >= LEAST_CACHED
            ):
                sight.edits[position] = edit
                sight.saved[interaction.start] = sight.saved.get(interaction.start, 0) + saved
                less += saved
        number, tokens = sight.foldable[-1]
        added = (0, 0) if interaction.stays else (1, sight.tokens(interaction))
        sight.foldable.append((number + added[0], tokens + added[1]))
    sight.count = len(view.interactions)
    return sight


def _text_of(result: Result) -> str | None:
    """The text of a tool result; several text parts as a JSON list of them; None where a part is no text."""
    parts = result.content
    if (text := result.output_text) is not None or result.extra or not isinstance(parts, (list, tuple)):
        return text
    if not all(isinstance(p, Mapping) and set(p) == {"type", "text"} and is_text_part(p) for p in parts):
        return None
    return compact([{"type": "text", "text": part["text"]} for part in parts])


def _task(view: View, before: int) -> str:
    """The user's last words before a position."""
    for position in reversed(view.kept[: bisect_right(view.kept, before)]):
        message = view.messages[position]
        if kind_of(message) is MessageKind.USER and (words := persons_text(message_text(message))):
            half = TASK_CHARS // 2  # who pastes a long text asks before or after it
            return words if len(words) <= TASK_CHARS else f"{words[:half]}\n{words[-half:]}"
    return ""


def _edit(
    message: Any,
    text: str,
    pair: Pair,
    trace_id: str,
    task: str,
    session: MemoryBankState,
    settings: MemoryBankSettings,
) -> Edit | None:
    """An output as it is shown; None where it is shown as it came. What fails is logged, and shown as it came."""
    try:
        shown = _shown(text, pair, trace_id, task, session, settings)
    except Exception as e:
        log.warning("an output of %d characters is shown whole: %s", len(text), type(e).__name__)
        return None
    if shown == text:
        return None
    new = edited_message(message, {WHOLE: shown})
    return Edit({WHOLE: shown}, new, session.counter.count_message(new))


def _shown(
    text: str, pair: Pair, trace_id: str, task: str, session: MemoryBankState, settings: MemoryBankSettings
) -> str:
    tool = settings.tools.get(pair.tool_name)
    most = settings.first_sight if tool is None or tool.first_sight is None else tool.first_sight
    if not most or pair.call is None or is_memory_tool(pair.tool_name) or REDACTED in text:
        return text
    call = pair.tool_name, plain_arguments(pair.tool_name, pair.call.text)
    files = files_read(*call)
    output = read_output(text, to_the_letter=not all(map(_OTHER_FILE.search, files)))
    if (
        len(output.text) <= most
        or not session.record_tool
        or trace_id not in session.steps
        or not all(map(_DATA_FILE.search, files))
        or asks_for_part(parse_arguments(call[1]))
        or _DIFF.search(output.text)
        or rules_read(*call, text)
    ):
        return output.text
    part = _Part(output, text, call, trace_id, task, session, settings)
    shown = part.shown()
    return shown if len(shown) < len(output.text) else output.text


class _Part:
    """The part of a long output that is shown, in ``first_sight_tokens``."""

    def __init__(
        self, output: DenseOutput, text: str, call: tuple[str, str], trace_id: str, task: str,
        session: MemoryBankState, settings: MemoryBankSettings,
    ) -> None:  # fmt: skip
        self.output, self.task = output, task
        self.count, self.room = session.counter.count_text, settings.first_sight_tokens
        number = next(n for n, t in enumerate(session.steps, 1) if t == trace_id)
        self.head = f"{Mark.SHORTENED} #{number}: {len(output.text):,} characters"
        self.fetch = f'{session.record_tool}("#{number}"'
        self.page = longest_text(output.value)
        is_page = output.value is None or 2 * len(self.page[0]) >= len(output.text)
        if not is_page:
            self.output = output = opened(output)
            text = output.text
        if output.path is None:  # several texts
            text = output.text
        self.parsed = parse_record(1, text, self.count, trace_id, *call)
        if is_page:
            cache = session.cache("parsed records")
            cache[trace_id] = self.parsed
            if len(cache) > MOST_PARSED:
                del cache[next(iter(cache))]
        self.index = index = EvidenceIndex(evidence_model(settings.evidence_model), self.count)
        index.tables.set_anchor([task])
        index.add_parsed(self.parsed)
        self.named = {*words_of(f"{task} {call[1][:TASK_CHARS]}")}
        ids, chance = index.chances(self.parsed.interaction + 1)
        self.chances = np.zeros(index.tables.values.size)
        self.chances[ids] = chance
        self.chance_of = dict(
            zip(map(index.tables.forms.__getitem__, ids.tolist()), chance.tolist(), strict=True)
        )
        self.is_page = is_page

    def shown(self) -> str:
        """The part, after the mark that says what is missing and how to get it."""
        if self.output.value is None:
            return self._of_text(self.output.text, self.output.path)
        if not self.is_page:
            path = longest_list(self.output.value)[1]
            item = "" if path is None or len(path) > LONG_LINE else f"{path}[3]"
            pieces = self._of_text(self.output.text, item or None)
            where = f"path={_quoted(item)} or " * bool(item) + 'pattern="…"'
            mark = self._mark("of all items the members likeliest needed", where)
            table = self._of_json(self.output.value, self.room - self.count(mark))
            is_table = table and TABLE * self._worth_of(mark + table) > self._worth_of(pieces)
            return mark + table if is_table else pieces
        text, path = self.page
        beside = without_text(self.output.value, text, "… shown below")
        path = path if not self.output.path else f"{self.output.path}.{path}"
        return self._of_text(text, path, self._of_json(beside, self.room // 4) + "\n")

    def _worth(self, name: str, texts: Sequence[str]) -> dict[str, float]:
        """How likely each of the texts under a name is needed."""
        times = NAMED if self.named.intersection(words_of(name)) else 1

        def likely(text: str) -> float:
            chance = self.chance_of.get(fold(text), 0.0) if len(text) <= LONGEST else 0.0
            return times * max(chance, LEAST_WORTH * min(len(text), WIDTH))

        return {text: likely(text) for text in texts}

    def _mark(self, shown: str, where: str) -> str:
        return (
            f"{self.head}; shown are {shown}. The output is complete, what is not shown may be in it: "
            f"{self.fetch}, {where}) returns it]\n"
        )

    def _of_json(self, value: Any, room: int) -> str:
        """JSON in so many tokens."""
        part, shown = JsonPart(value, self._worth), ""
        chars = int(room * len(self.output.text) / max(1, self.count(self.output.text)))
        for _ in range(4):
            tokens = self.count(part_shown := part.shown(chars))
            if tokens <= room:
                shown = part_shown
            if not part_shown or NEAR * room <= tokens <= room or (tokens <= room and WITHOUT not in shown):
                break
            chars = int(chars * room / tokens * 0.98)
        rest = self.output.rest.strip()
        return quote_lines(f"{shown}\n{rest}" if shown and rest else shown)

    def _worth_of(self, shown: str) -> float:
        """The sum of its worths."""
        t = self.index.tables
        return float(self.chances[t.standing_in(fold(shown))].sum())

    def _of_text(self, text: str, path: str | None, before: str = "") -> str:
        """The beginning, the end, and between them in their order the pieces that the next calls may need."""
        cut, text = self.parsed.cut, as_terminal(text)
        chars = Counter[int]()
        for segment in cut.segments:
            chars[segment.source] += len(segment.text)
        source = chars.most_common(1)[0][0] if chars else 0
        is_one = 5 * chars[source] > 3 * chars.total()  # else many texts in one
        is_html = source == cut.page > 0
        if cut.sources[source] != text:  # within the text, its content without line numbers, or its words
            text, path = cut.sources[source], path if is_html else None
        begin, end = 0, len(text)  # of the longest of many short texts
        if end > BEGINNING + END:
            begin, end = _line_end(text, BEGINNING), _line_start(text, end - END)
        is_numbered = path is not None and not is_html and max(map(len, text.split("\n"))) <= LONGEST_NUMBERED
        where = 'lines="…" or pattern="…"' if is_numbered else 'pattern="…"'
        where = f"path={_quoted(path)}, {where}" if path else where
        always, kinds = self._always_shown(text, begin, end) if is_one else ([], "")
        if is_html and self.count(text) <= self.room:
            return f"{self._mark('its words and links', where)}{before}{quote_lines(text)}"
        of_page = "of its words and links " * is_html
        mark = self._mark(
            f"{of_page}its beginning, its end{kinds} and what is likeliest needed between them", where
        )
        room, index = self.room - self.count(mark + before), self.index
        texts = [text[:begin], text[end:], *(text[start:stop] for start, stop in always)]
        chosen = index.select(
            anchor=[self.task, *texts],
            tail_interaction=self.parsed.interaction + 1,
            budget=max(1, room - self.count("".join(texts))),
            prices=[0],
            least=self._least(bool(kinds)),
        )
        tables, owned = _tables(cut, source), [s for s in cut.segments if s.owner and s.source == source]
        while True:
            places = chosen.shown.get(0, ())
            if is_one:
                inside = [s for s in map(cut.segments.__getitem__, places) if s.source == source]
                spans = [(0, begin), *always, *((s.start, s.end) for s in inside), (end, len(text))]
                shown = _with_gaps(text, spans, is_numbered, tables, owned)
            else:
                quote, _ = index.quote(0, places, chosen)
                shown = f"{quote_lines(text[:begin])}\n{quote}\n{quote_lines(text[end:])}"
            over = self.count(shown) - room
            if over <= 0 or not chosen.gains:
                return mark + before + shown
            chosen = index.without_last(chosen, over)

    def _least(self, is_log: bool) -> float | list[float]:
        """The least worth of a token of all segments, or of each, beyond half of the room.

        Nothing in texts, where later calls use what the evidence model holds unlikely. Pieces of JSON without it
        seem worth more than a table that later calls would use.
        """
        if not self.is_page:
            return LEAST_CHANCE
        if not is_log:
            return 0
        forms = [_WITH_DIGIT.sub("0", segment.text) for segment in self.parsed.cut.segments]
        times = Counter(forms)
        return [LEAST_CHANCE * (times[form] >= REPEATED) for form in forms]

    def _always_shown(self, text: str, begin: int, end: int) -> tuple[list[tuple[int, int]], str]:
        """The lines between beginning and end that are always shown, as spans, and a phrase that says what they are.

        They contain an id of the user's message, if only a few do, or tell how the run of a log went.
        """
        named = list[tuple[int, int]]()
        for name in islice(dict.fromkeys(_ID.findall(self.task)), MOST_NAMED):
            holds = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)").finditer(text, begin, end)
            places = [m.span() for m in islice(holds, MOST_PLACES + 1)] if len(name) > 2 else []
            if len(places) <= MOST_PLACES:
                named += [(_line_start(text, start), _line_end(text, stop)) for start, stop in places]
        report, chosen, room = report_of(text), dict[tuple[int, int], None](), self.room // 2
        for spans in (named, report.sums, report.failures, report.details):
            for start, stop in spans:
                cost = self.count(text[start:stop]) + GAP_TOKENS
                fits = room - cost >= (self.room // 4 if spans is report.failures else 0)
                if begin <= start < end and (start, stop) not in chosen and fits:
                    chosen[start, stop] = None
                    room -= cost
        failed = len(report.failures)
        left_out = sum(begin <= span[0] < end and span not in chosen for span in report.failures)
        kinds = ", its summary" * bool(report.sums)
        if failed:
            kinds += (
                f", the lines that say what failed ({f'{failed - left_out} of ' * bool(left_out)}{failed})"
            )
        return [*chosen], kinds


def _quoted(path: str) -> str:
    return json.dumps(path, ensure_ascii=False)


def _tables(cut: CutText, source: int) -> list[tuple[int, int, int]]:
    """Where the tables of a text have their last row's end, and their header."""
    by_block = dict[int, tuple[int, int, int]]()
    for s in cut.segments:
        if s.block and s.source == source:
            _, start, stop = by_block.get(s.block, (0, s.start, s.start + len(cut.heads[s.block])))
            by_block[s.block] = s.end, start, stop
    return sorted(by_block.values())


def _with_gaps(
    text: str,
    spans: Sequence[tuple[int, int]],
    is_numbered: bool,
    tables: Sequence[tuple[int, int, int]],
    owned: Sequence[Segment],
) -> str:
    """Spans of a text in their order, whole lines where these are near, with a mark at each gap.

    In a table the marks repeat its header where it is not near above. They tell the entry or the folder that the
    text after them is in, by the pieces that are in one (``owned``).
    """
    pieces, last, length, seen, last_owner = list[str](), 0, 0, dict[int, int](), ""
    starts = [s.start for s in owned]
    for start, stop in sorted(spans):
        piece = owned[at - 1] if (at := bisect_right(starts, start)) else None
        owner = piece.owner if piece and start < piece.end and piece.owner not in piece.text else ""
        start, stop = max(last, _line_start(text, start)), _line_end(text, stop)
        if stop <= start:
            continue
        seen |= {header: length for _, header, _ in tables if last <= start <= header < stop}
        if len(text[last:start].strip()) > SHORT_GAP:
            first, until = (text.count("\n", 0, at) + 1 for at in (last + 1, start - 1))
            left_out = f"line {first}" if first == until else f"lines {first}-{until}"
            left_out = left_out if is_numbered else f"{start - last:,} characters"
            for end, header, rows in tables:
                if rows <= start < end and length - seen.get(header, -FAR) >= FAR:
                    left_out += (
                        f"; columns: {one_line(text[header:rows].partition(chr(10))[0])[:LONGEST_HEADER]}"
                    )
                    seen[header] = length
            left_out += f"; then in {one_line(owner)}" * (owner not in ("", last_owner))
            last_owner = owner
            pieces.append(f"\n{Mark.SHORTENED} {left_out}]\n")
        else:
            pieces.append("\n" * (text[last - 1 : last] == "\n") + quote_lines(text[last:start]))
        pieces.append(quote_lines(text[start:stop].removesuffix("\n")))
        last, length = stop, length + stop - start
    return re.sub(r"\n{3,}", "\n\n", "".join(pieces))


def _line_start(text: str, at: int) -> int:
    """Where the line of a position begins, if that is near; else the position."""
    start = text.rfind("\n", max(0, at - LONG_LINE), at) + 1
    return start if start or at <= LONG_LINE else at


def _line_end(text: str, at: int) -> int:
    """Where the line of a position ends, if that is near; else the position."""
    if at and text[at - 1] == "\n":
        return at
    end = text.find("\n", at, at + LONG_LINE)
    return len(text) if end < 0 and at + LONG_LINE >= len(text) else at if end < 0 else end
