"""Past turns in their native form: the agent's own calls and their results, shortened to quotes.

A shortened result is the quotes of its output, ended by a mark such as ``[… #12]``: the number by which
``get_record`` returns the whole. Where nothing is quoted of a result, its outcome stands before the mark, as in the
thread. Long arguments are shortened in the same way and stay valid JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memory_bank.context.evidence import EvidenceMemory
from memory_bank.ports import TokenCounter
from memory_bank.selection.calltext import ARGUMENT_START, LEAST_CHARS, LONG_ARGUMENT
from memory_bank.selection.cutting import CutText
from memory_bank.selection.index import Selection
from memory_bank.transcript.chat import edited_message
from memory_bank.transcript.jsontext import compact
from memory_bank.transcript.messages import Interaction, MessageKind, kind_of, message_text, read
from memory_bank.transcript.transcript import View
from memory_bank.transcript.turns import WHOLE, Edit

EXCERPTS_HEAD = "Excerpts of calls that are no longer in the list of messages:\n"
THREAD_LINE = 10  # about how many tokens a call takes in the thread, which leaves out those shown in place
MAX_ITEMS = 40  # of a list in the arguments of a call that are kept
MOST_OF_A_TOOL = 250  # tokens of the call that is shown for a tool which the context does not show otherwise
GAP = "\n…"


def mark(number: int) -> str:
    """The mark at the end of a result or an argument that is shown in part."""
    return f"[… #{number}]"


@dataclass(frozen=True, slots=True, order=True)
class ShownCall:
    """What is shown of a call: its record's number, the quotes of its output and of its arguments.

    ``outcome``: what came back in a few words, shown where no quote has it. ``arguments``: pairs of a long text in
    the arguments and what is shown of it.
    """

    number: int
    outcome: str = ""
    quote: str = ""
    arguments: tuple[tuple[str, str], ...] = ()

    @property
    def result(self) -> str:
        """The text in the place of the result: quotes, or the outcome, then the mark."""
        end = f"→ {self.outcome} {mark(self.number)}" if self._adds_outcome() else mark(self.number)
        return f"{self.quote.removesuffix(GAP)}\n{end}".lstrip("\n") if self.quote else end

    def _adds_outcome(self) -> bool:
        """Whether the outcome says something that the quotes do not: the list of calls leaves this call out."""
        if not self.quote:
            return bool(self.outcome)
        values = [part.partition("=")[2] for part in self.outcome.split(", ") if "=" in part]
        if not values:  # a short output as a whole; "3 lines" says nothing
            values = [word for word in self.outcome.split() if any(map(str.isalpha, word))]
        values = [value.rstrip("…") for value in values]
        return any(value not in self.quote and any(map(str.isdigit, value)) for value in values)


class NativeTurns:
    """The past interactions of a view that can be shown in short form, all but those ``apart``."""

    def __init__(
        self, view: View, memory: EvidenceMemory, counter: TokenCounter, apart: Collection[int]
    ) -> None:
        self._memory, self._counter = memory, counter
        self._turns = {e.start: e for e in view.past if e.start not in apart}
        turns = self._turns.values()
        self._at = {
            t: (e.start, place) for e in turns for place, t in enumerate(e.trace_ids) if t is not None
        }
        self._before = memory.turns  # of the step before
        self._made: dict[object, tuple[Interaction, dict[int, Edit]]] = {}
        memory.turns = self._made

    def opening(self, record: int) -> int:
        """The tokens of showing anything of a record of the index, less what the thread saves."""
        memory = self._memory
        trace_id = memory.owner(record)
        cost = memory.opening.get(trace_id)
        if cost is None:
            if trace_id not in self._at:
                return self._counter.count_text(memory.index.header(record)) + 3
            start, place = self._at[trace_id]
            turn = self._shorten(start, {place: self._call(trace_id)}, "")
            cost = memory.opening[trace_id] = max(1, _tokens(turn) - THREAD_LINE)
        return cost

    def newest_of_tools(self, known: Collection[str]) -> dict[str, int]:
        """The newest call of each tool that is not ``known``, newest first: its trace_id, and its tokens.

        It is shown in its place, with its outcome alone. Longer calls than ``MOST_OF_A_TOOL`` are left out.
        """
        found: dict[str, int] = {}
        seen = set(known)
        for turn in reversed(self._turns.values()):
            for place, (pair, trace_id) in enumerate(zip(turn.pairs, turn.trace_ids, strict=True)):
                if pair.tool_name not in seen and trace_id in self._memory.numbers:
                    tokens = _tokens(self._shorten(turn.start, {place: self._call(trace_id)}, ""))
                    if tokens <= MOST_OF_A_TOOL:
                        seen.add(pair.tool_name)
                        found[trace_id] = tokens
        return found

    def show(
        self, selection: Selection, besides: Collection[str] = ()
    ) -> tuple[dict[int, Edit], str, set[int]]:
        """The messages of turns of which something is chosen, the text of other excerpts, the numbers of both.

        Of a turn only the calls of which something is chosen are shown, and those ``besides``, by trace_id.
        """
        memory = self._memory
        shown: dict[int, dict[int, ShownCall]] = {}
        for trace_id in besides:
            start, place = self._at[trace_id]
            shown.setdefault(start, {})[place] = self._call(trace_id)
        notes: dict[int, str] = {}
        elsewhere: list[str] = []
        for record, places in sorted(selection.shown.items()):
            trace_id = memory.owner(record)
            parsed = memory.index.tables.parsed[record]
            quote = memory.index.quote(record, places, selection)
            at = self._at.get(trace_id)
            if at is None:
                elsewhere.append(f"{memory.index.header(record)}\n{quote}\n")
                continue
            start, place = at
            calls = shown.setdefault(start, {})
            call = calls.get(place) or self._call(trace_id)
            if parsed.kind == "note":
                notes[start], calls[place] = quote, call
            elif parsed.kind == "arguments":
                calls[place] = replace(call, arguments=tuple(_quotes_by_text(parsed.cut, places)))
            else:
                calls[place] = replace(call, quote=quote)
        numbers = {call.number for calls in shown.values() for call in calls.values()}
        in_place: dict[int, Edit] = {}
        for start in sorted(shown):
            in_place |= self._shorten(start, shown[start], notes.get(start, ""))
        text = EXCERPTS_HEAD + "".join(elsewhere) if elsewhere else ""
        return in_place, text, numbers

    def _call(self, trace_id: str) -> ShownCall:
        """A call with nothing of its output but the outcome."""
        number = self._memory.numbers[trace_id]
        return ShownCall(number, self._memory.thread.outcome_of(number))

    def _shorten(self, start: int, shown: Mapping[int, ShownCall], note: str) -> dict[int, Edit]:
        key = (start, tuple(sorted(shown.items())), note)
        turn = self._turns[start]
        known = self._made.get(key) or self._before.get(key)
        if known is None or known[0] is not turn:
            known = turn, shorten_turn(turn, shown, note, self._counter.count_message)
        self._made[key] = known
        return known[1]


def _quotes_by_text(cut: CutText, places: Sequence[int]) -> Iterator[tuple[str, str]]:
    """What is quoted of each text in some arguments: the text, and the quotes from it.

    A quote has the beginning of its text, which tells the call from others.
    """
    by_source: dict[int, set[int]] = {}
    for place in places:
        by_source.setdefault(cut.segments[place].source, set()).add(place)
    for place, segment in enumerate(cut.segments):
        if segment.start < LEAST_CHARS and segment.source in by_source:
            by_source[segment.source].add(place)
    for source, inside in by_source.items():
        quote, text = cut.quote(inside), cut.sources[source]
        if quote.startswith("…"):  # a line that names the text, which is known here
            begins = not text[: cut.segments[min(inside)].start].strip()
            quote = quote.partition("\n")[2] if begins else f"…\n{quote.partition(chr(10))[2]}"
        yield text, quote.removesuffix(GAP)


def _tokens(turn: Mapping[int, Edit]) -> int:
    return sum(edit.tokens for edit in turn.values())


def shorten_turn(
    turn: Interaction, shown: Mapping[int, ShownCall], note: str, count: Callable[[Any], int]
) -> dict[int, Edit]:
    """The messages by position that an interaction with some calls (by the place of the pair) in short form has.

    The other calls are left out with their results. ``note`` is shown of what the agent said in this turn. A
    message whose short form has as many tokens is not changed. Messages that carry images of results are
    left out; reasoning stays.
    """
    calls: dict[int, dict[int, int]] = {}  # by the position of a message, the pair of each of its calls
    answered: dict[int, int] = {}
    for place, pair in enumerate(turn.pairs):
        if pair.call_at is not None:
            calls.setdefault(pair.call_at[0], {})[pair.call_at[1]] = place
        if pair.result_at is not None:
            answered[pair.result_at] = place
    edits: dict[int, Edit] = {}
    for position, message in enumerate(turn.messages):
        change: dict[int, Any] = {}
        if position in calls:
            if not any(place in shown for place in calls[position].values()):
                continue
            for number, place in calls[position].items():
                given = turn.pairs[place].call
                assert given is not None
                short = _short_arguments(given.arguments, shown[place]) if place in shown else None
                if short is None or short != given.arguments:
                    change[number] = short
            if position in answered:  # an item with call and result
                change = {WHOLE: shown[calls[position][0]].result}
            elif read(message, "role") is not None and message_text(message) != note:
                change[WHOLE] = note or None
            note = ""
        elif position in answered:
            if answered[position] not in shown:
                continue
            change[WHOLE] = shown[answered[position]].result
        elif kind_of(message) is MessageKind.SAY and note and message_text(message):
            change[WHOLE], note = note, ""
        elif kind_of(message) is not MessageKind.REASONING:
            continue
        edits[turn.start + position] = _cheaper(message, change, count)
    return edits


def _cheaper(message: Any, change: Mapping[int, Any], count: Callable[[Any], int]) -> Edit:
    """The message with a change; without it where that saves nothing and leaves no call out."""
    tokens = count(message)
    if change:
        new = edited_message(message, change)
        cost = count(new)
        if cost < tokens or any(text is None for number, text in change.items() if number != WHOLE):
            return Edit(change, new, cost)
    return Edit({}, message, tokens)


def _short_arguments(arguments: Any, shown: ShownCall) -> Any:
    """The arguments with their long texts shortened: JSON text stays JSON text, an object an object."""
    if isinstance(arguments, str):
        if len(arguments) <= LONG_ARGUMENT:
            return arguments
        try:
            value = json.loads(arguments)
            short = _short_value(value, shown)
        except (ValueError, RecursionError):
            return _short_text(arguments, shown)
        return arguments if short == value else compact(short)
    try:
        return _short_value(arguments, shown)
    except RecursionError:
        return arguments


def _short_value(value: Any, shown: ShownCall) -> Any:
    if isinstance(value, str):
        return _short_text(value, shown)
    if isinstance(value, Mapping):
        return {key: _short_value(inner, shown) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        kept = [_short_value(inner, shown) for inner in value[:MAX_ITEMS]]
        return [*kept, mark(shown.number)] if len(value) > MAX_ITEMS else kept
    return value


def _short_text(text: str, shown: ShownCall) -> str:
    if len(text) <= LONG_ARGUMENT:
        return text
    quote = dict(shown.arguments).get(text)
    short = f"{quote}\n" if quote else f"{text[:ARGUMENT_START].rstrip()}… "
    return f"{short}{mark(shown.number)}" if len(short) + 8 < len(text) else text
