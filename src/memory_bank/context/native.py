"""Past turns in their native form: the agent's own calls and their results, shortened to quotes.

A shortened result is the quotes of its output, ended by a mark such as ``[… #12]``: the number by which
``get_record`` returns the whole. Where nothing is quoted of a result, its outcome stands before the mark, as in the
thread. Long arguments are shortened in the same way and stay valid JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memory_bank.selection.calltext import ARGUMENT_START, LEAST_CHARS, LONG_ARGUMENT
from memory_bank.selection.cutting import CutText
from memory_bank.transcript.chat import edited_message
from memory_bank.transcript.jsontext import compact
from memory_bank.transcript.messages import Interaction, MessageKind, kind_of, message_text, read
from memory_bank.transcript.quoting import Mark, quote_lines
from memory_bank.transcript.turns import WHOLE, Edit

MAX_ITEMS = 40  # of a list in the arguments of a call that are kept
GAP = f"\n{Mark.GAP}"


@dataclass(frozen=True, slots=True)
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
    def mark(self) -> str:
        """The mark at the end of a result or an argument that is shown in part."""
        return f"{Mark.SHORTENED} #{self.number}]"

    @property
    def result(self) -> str:
        """The text in the place of the result: quotes, or the outcome, then the mark."""
        end = f"{Mark.OUTCOME}{self.outcome} {self.mark}" if self._adds_outcome() else self.mark
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


def quotes_by_text(cut: CutText, places: Sequence[int]) -> Iterator[tuple[str, str]]:
    """What is quoted of each text in some arguments, with its beginning, which tells the call from others."""
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
        edit = Edit({}, message, count(message))
        if change:
            new = edited_message(message, change)
            cost = count(new)
            leaves_out = any(text is None for number, text in change.items() if number != WHOLE)
            if cost < edit.tokens or leaves_out:
                edit = Edit(change, new, cost)
        edits[turn.start + position] = edit
    return edits


def _short_arguments(arguments: Any, shown: ShownCall) -> Any:
    """The arguments with their long texts shortened: JSON text stays JSON text, an object an object."""
    is_text = isinstance(arguments, str)
    if is_text and len(arguments) <= LONG_ARGUMENT:
        return arguments
    try:
        value = json.loads(arguments) if is_text else arguments
        short = _short_value(value, shown)
    except (ValueError, RecursionError):
        return _short_value(arguments, shown) if is_text else arguments
    if is_text:
        return arguments if short == value else compact(short)
    return short


def _short_value(value: Any, shown: ShownCall) -> Any:
    if isinstance(value, Mapping):
        return {key: _short_value(inner, shown) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        kept = [_short_value(inner, shown) for inner in value[:MAX_ITEMS]]
        return [*kept, shown.mark] if len(value) > MAX_ITEMS else kept
    if not isinstance(value, str) or len(value) <= LONG_ARGUMENT:
        return value
    quote = dict(shown.arguments).get(value)
    short = f"{quote}\n" if quote else f"{quote_lines(value[:ARGUMENT_START].rstrip())}… "
    return f"{short}{shown.mark}" if len(short) + 8 < len(value) else value
