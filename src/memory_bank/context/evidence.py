"""Under a budget, what the next calls may need of the older history: the list of calls, excerpts, and why these.

Past turns are shown in their native form: the agent's own calls and their results, shortened to quotes. A shortened
result is the quotes of its output, ended by a mark such as ``[… #12]``: the number by which ``get_record`` returns
the whole. Where nothing is quoted of a result, its outcome stands before the mark, as in the thread. Long arguments
are shortened in the same way and stay valid JSON.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from memory_bank.bank.folds import FoldReasons
from memory_bank.bank.session import MemoryBankState
from memory_bank.config import MemoryBankSettings, ToolSettings
from memory_bank.context.build import memory_message
from memory_bank.errors import MemoryBankError
from memory_bank.plan import Decision, Fate, Piece, Shown
from memory_bank.ports import TokenCounter
from memory_bank.records import InteractionRecord
from memory_bank.selection.cutting import CutText
from memory_bank.selection.index import EvidenceIndex, Selection
from memory_bank.selection.model import MODEL_FILE, Model, load_model
from memory_bank.selection.outcomes import is_excerpt
from memory_bank.selection.thread import (
    ARGUMENT_START,
    LEAST_CHARS,
    LONG_ARGUMENT,
    PARTS_HEAD,
    Thread,
    ThreadText,
    ending,
    thread_room,
)
from memory_bank.selection.values import ParsedRecord
from memory_bank.transcript.chat import edited_message
from memory_bank.transcript.jsontext import compact
from memory_bank.transcript.messages import (
    Interaction,
    MessageKind,
    content_text,
    in_full,
    is_memory_tool,
    kind_of,
    message_text,
    read,
    readable_output,
)
from memory_bank.transcript.quoting import Mark, one_line, quote_lines
from memory_bank.transcript.textcalls import plain_arguments
from memory_bank.transcript.tokens import newest_within
from memory_bank.transcript.transcript import View, is_same
from memory_bank.transcript.turns import WHOLE, Edit

MAX_ITEMS = 40  # of a list in the arguments of a call that are kept
GAP = f"\n{Mark.GAP}"


@dataclass(frozen=True, slots=True)
class ShownCall:
    """The shown part of a call: its record's number, the quotes of its output and of its arguments.

    ``outcome``: what came back in a few words, shown where no quote has it. ``arguments``: pairs of a long text in
    the arguments and what is shown of it. ``state``: of a file that is quoted, "before edit #36" or "with edit #36".
    ``lines``: how many the quoted output has, where they have numbers. ``whole``: the quote is the whole output.
    """

    number: int
    outcome: str = ""
    quote: str = ""
    arguments: tuple[tuple[str, str], ...] = ()
    state: str = ""
    lines: int = 0
    whole: bool = False

    @property
    def mark(self) -> str:
        """The mark at the end of a result or an argument that is shown in part."""
        of = f" of {self.lines:,} lines" if self.lines and not self.state else ""
        return f"{Mark.SHORTENED} #{self.number}{of}{self.state and ', '}{self.state}]"

    @property
    def result(self) -> str:
        """The text in the place of the result: quotes, or the outcome, then the mark."""
        if self.whole:
            return self.quote
        end = f"{Mark.OUTCOME}{self.outcome} {self.mark}" if self._adds_outcome() else self.mark
        return f"{self.quote.removesuffix(GAP)}\n{end}".lstrip("\n") if self.quote else end

    def _adds_outcome(self) -> bool:
        """Return whether the outcome says more than the quotes do: the list of calls leaves this call out."""
        if not self.quote:
            return bool(self.outcome)
        if is_excerpt(self.outcome):
            return False
        values = [part.partition("=")[2] for part in self.outcome.split(", ") if "=" in part]
        if not values:  # a short output as a whole
            values = [word for word in self.outcome.split() if any(map(str.isalpha, word))]
        values = [value.rstrip("…") for value in values]
        return any(value not in self.quote and any(map(str.isdigit, value)) for value in values)


def quotes_by_text(cut: CutText, places: Sequence[int]) -> Iterator[tuple[str, str]]:
    """The quotes of each text in some arguments, with its beginning, which tells the call from others."""
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
    turn: Interaction,
    shown: Mapping[int, ShownCall],
    remark: str,
    count: Callable[[Any], int],
    tokens: Callable[[int, int], int],
) -> dict[int, Edit]:
    """The edits, by position, that show an interaction with some of its calls in short form.

    ``shown``: these calls, by the place of the pair; the others are left out with their results. ``remark``: the
    agent's words that stay. ``tokens``: counts the original messages between two positions. A message whose short
    form saves no token is not changed, unless it quotes a file that changed. Messages that carry images of results
    are left out; reasoning stays.
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
                call = turn.pairs[place].call
                assert call is not None
                if place not in shown:
                    change[number] = None
                elif not is_same(short := _short_arguments(call.arguments, shown[place]), call.arguments):
                    change[number] = short
            if position in answered:  # an item with call and result
                change = {WHOLE: shown[calls[position][0]].result}
            elif read(message, "role") is not None and message_text(message) != remark:
                change[WHOLE] = remark or None
            remark = ""
        elif position in answered:
            if answered[position] not in shown:
                continue
            change[WHOLE] = shown[answered[position]].result
        elif kind_of(message) is MessageKind.SAY and remark and message_text(message):
            change[WHOLE], remark = remark, ""
        elif kind_of(message) is not MessageKind.REASONING:
            continue
        at = turn.start + position
        edit = Edit({}, message, tokens(at, at + 1))
        if change:
            new = edited_message(message, change)
            must = any(text is None for number, text in change.items() if number != WHOLE)
            must |= position in answered and bool(shown[answered[position]].state)
            if new is not None and ((cost := count(new)) < edit.tokens or must):
                edit = Edit(change, new, cost)
        edits[at] = edit
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
        short = _short_value(arguments, shown) if is_text else arguments
        quotes = [quote for text, quote in shown.arguments if text != arguments]
        if short != arguments and quotes:  # of commands in code
            head = f"{quote_lines(arguments[: 2 * ARGUMENT_START].rstrip())}…"
            short = "\n".join([head, *quotes, shown.mark])
        return short
    if is_text:
        return arguments if short == value else compact(short)
    return short


def _short_value(value: Any, shown: ShownCall) -> Any:
    if isinstance(value, Mapping):
        return {key: _short_value(inner, shown) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_short_value(inner, shown) for inner in value[:MAX_ITEMS]]
        return [*items, shown.mark] if len(value) > MAX_ITEMS else items
    if not isinstance(value, str) or len(value) <= LONG_ARGUMENT:
        return value
    quote = dict(shown.arguments).get(value)
    short = f"{quote}\n" if quote else f"{quote_lines(value[:ARGUMENT_START].rstrip())}… "
    return f"{short}{shown.mark}" if len(short) + 8 < len(value) else value


log = logging.getLogger("memory_bank.MemoryBankStrategy")

NATIVE_BUDGET = 1_500
"""Tokens from which past turns are shown in their native form; the frames of messages cost too much below."""
EXCERPTS_HEAD = f"{Mark.EXCERPTS} of calls that are no longer in the list of messages:\n"
RECENT_SHARE = 0.2  # the share of a budget for the newest interactions, which are kept whole
RULES_SHARE = 0.25  # the share of a budget for rules that the agent read by tools, which are quoted whole
MOST_RULES = 8  # of those that are named instead, with so many characters of their names:
RULE_CHARS = 40
LISTED_TOKENS = 10  # of a call in the list of calls, about, which leaves out those shown in place
MOST_OF_A_TOOL = 250  # tokens of the call that is shown for a tool which the context does not show otherwise
NOTHING = Selection()


@lru_cache(maxsize=8)
def evidence_model(path: str | None) -> Model:
    """The model of a file or the shipped one. Raises ConfigError."""
    return load_model(Path(path) if path else MODEL_FILE)


class CallVersion(NamedTuple):
    """A call as it ``ran``, and its version in a memory; ``outcome``: the output whose outcome is listed."""

    ran: str
    arguments: str
    output: str
    outcome: str


class EvidenceMemory:
    """The session's records in the order of storing, as index and thread; contexts call the first ``#1``."""

    def __init__(
        self, counter: TokenCounter, model: Model, tools: Mapping[str, ToolSettings] | None = None
    ) -> None:
        self.index = EvidenceIndex(model, counter.count_text)
        effects = {name: of.effect for name, of in (tools or {}).items() if of.effect is not None}
        self.thread = Thread(counter.count_text, effects)
        self.numbers: dict[str, int] = {}
        self.places: dict[str, int] = {}  # of each record in the index
        self.remarks: dict[int, str] = {}  # by the place of a remark, the record with whose call it was said
        self.prices: dict[str, int] = {}  # of each call in its place without output
        self._latest = 0  # the index takes interactions in order; a late result joins the latest

    def add(
        self,
        record: InteractionRecord,
        remark: str = "",
        anchor: Sequence[str] = (),
        cut: ParsedRecord | None = None,
        version: CallVersion | None = None,
    ) -> None:
        """Add a record, and what the agent said with its call; a record that was added before is ignored.

        ``anchor``: the texts that every context showed when the record came. ``cut``: the output, if it was cut
        before. ``version``: the call as it is shown instead of as it ran. A record that cannot be cut is listed among
        the calls without excerpts, which is logged.
        """
        trace_id, tool = record.trace_id, record.tool_name
        if trace_id in self.numbers:
            return
        number = self.numbers[trace_id] = len(self.numbers) + 1
        at = self._latest = max(self._latest, record.step_id)
        output = "" if is_memory_tool(tool, record.output_text) else readable_output(record)[1]
        arguments = compact(record.raw_input) if record.input_text is None else record.input_text
        arguments = plain_arguments(tool, arguments)
        shown = version or CallVersion(arguments, arguments, output, output)
        call: dict[str, Any] = {"interaction": at, "tool": tool, "arguments": shown.arguments}
        parsed = self.index.tables.parsed
        failed = False
        try:
            failed = self.thread.add(number=number, remark=remark, output=shown.outcome, task=anchor, **call)
        except Exception as e:
            log.warning("record %s is listed without its arguments: %s", trace_id, type(e).__name__)
            self.thread.add(number=number, interaction=at, tool="unknown", arguments="", output="")
        try:
            self.index.tables.set_anchor(anchor)
            if remark.strip():
                self.remarks[len(parsed)] = trace_id
                self.index.add_remark(interaction=at, text=remark)
            place = len(parsed)
            self.index.add_call(trace_id=trace_id, output=shown.output, parsed=cut, **call)
            self.places[trace_id] = place
            self.index.files.add(number, tool, shown.ran, output, failed=failed, key=trace_id)
        except Exception as e:
            log.warning("no excerpts of record %s: %s", trace_id, type(e).__name__)

    def owner(self, place: int) -> str:
        """The trace_id of the record at a place of the index; of a remark, that of the call it was said with."""
        return self.remarks.get(place) or self.index.tables.parsed[place].trace_id


@dataclass(frozen=True, slots=True)
class Excerpts:
    """The excerpts in the place of the older history.

    ``anchor``, ``first_step``: what the context shows anyway: texts, and the steps from this one on. ``text``: the
    memory text. ``in_place``: turns in their places; None: none stands there. ``named``: the numbers of the records
    whose calls it names; ``rules``: of those that are quoted whole as rules.
    """

    memory: EvidenceMemory
    anchor: Sequence[str] = ()
    first_step: int = 0
    text: str = ""
    in_place: Mapping[int, Edit] | None = None
    selection: Selection = NOTHING
    named: frozenset[int] = frozenset()
    rules: frozenset[int] = frozenset()


def choose(
    view: View,
    session: MemoryBankState,
    settings: MemoryBankSettings,
    memory: EvidenceMemory,
    budget: int,
    size: Callable[[Interaction], int],
) -> tuple[Excerpts, list[Interaction]]:
    """The excerpts for the older history in at most ``budget`` tokens; a failed selection is logged.

    ``size``: the tokens of an interaction that is kept whole.
    """
    chooser = _Chooser(view, session, settings, memory, budget, size, RECENT_SHARE, settings.keep_recent)
    try:
        in_place = settings.layout == "native" and budget >= NATIVE_BUDGET
        return (chooser.in_place() if in_place else chooser.in_text()), chooser.whole
    except MemoryBankError:
        raise
    except Exception as e:
        log.warning(
            "session %s: choosing excerpts failed (%s); the context lists the calls and has the latest in full",
            session.session_id, type(e).__name__,
        )  # fmt: skip
    chooser = _Chooser(view, session, settings, memory, budget, size, 1 - RECENT_SHARE, len(view.history))
    try:
        listed = chooser.listed(chooser.room)
    except Exception as e:
        log.warning("session %s: the calls cannot be listed (%s)", session.session_id, type(e).__name__)
        listed = ThreadText()
    return chooser.excerpts(listed.text, NOTHING, listed.named), chooser.whole


def chosen_rules(
    memory: EvidenceMemory,
    before: int,
    room: int,
    count: Callable[[str], int],
    kept: Collection[str] = (),
    alone: Mapping[str, Callable[[str], int]] = {},
) -> tuple[dict[str, str], int, str]:
    """The rules read before an interaction: those quoted whole, the tokens of all, the line that names the others.

    ``kept``: records that the context shows; ``alone``: those whose call stands in its place, with what counts it.
    """
    left, quoted, named = room, dict[str, str](), list[str]()
    trace_ids = {number: trace_id for trace_id, number in memory.numbers.items()}
    for number, (name, is_newest) in memory.thread.rules(before).items():
        trace_id, text = trace_ids[number], ""
        if trace_id in kept:
            continue
        if (place := memory.places.get(trace_id)) is not None:
            text = memory.index.tables.parsed[place].cut.words().strip()
        if text and any(text in other for other in quoted.values()):
            continue
        tokens = count(text)
        if text and place is not None:
            tokens += alone[trace_id](trace_id) if trace_id in alone else count(memory.index.header(place))
        if text and is_newest and tokens <= left:
            quoted[trace_id] = text
            left -= tokens
        elif len(named) < MOST_RULES:
            named.append(f"#{number} {ending(one_line(name), RULE_CHARS)}")
    line = f"{Mark.RULES}{', '.join(named)}\n" if named else ""
    return quoted, room - left + count(line), line


def rule_excerpt(memory: EvidenceMemory, trace_id: str, text: str) -> str:
    """Rules that are quoted whole, with the line above them."""
    return f"{memory.index.header(memory.places[trace_id])}\n{quote_lines(text)}\n"


class _Chooser:
    """Chooses, within the budget, the newest interactions whole, the list of calls and excerpts of the rest."""

    def __init__(
        self,
        view: View,
        session: MemoryBankState,
        settings: MemoryBankSettings,
        memory: EvidenceMemory,
        budget: int,
        size: Callable[[Interaction], int],
        share: float,
        most: int,
    ) -> None:
        self._view, self._session, self._memory, self._settings = view, session, memory, settings
        self._counts = session.counter.count_message, view.tokens_between
        steps = session.steps
        self._kept = {t for e in view.history if e.stays for t in e.record_ids}  # what every context shows
        count = newest_within([*map(size, view.history)], int(budget * share), most)
        latest = [e for e in view.history[len(view.history) - count :] if not e.stays]
        last = self._latest_left_out(latest)
        self.whole = [e for e in latest if all(steps.get(t, last + 1) > last for t in e.record_ids)]
        self._visible = [*self.whole, *([view.tail] if view.tail else [])]
        after = view.tail.stop if view.tail else len(view.messages)
        shown = [view.messages[p] for p in view.kept] + list(view.messages[after:])
        self._anchor = [content_text(read(m, "content")) for m in shown]
        seen = [steps[t] for e in self._visible for t in e.record_ids if t in steps]
        self._first_step = min(seen, default=session.step_count + 1)
        frame = memory_message("", session.session_id, settings.memory_role)
        self.room = max(0, budget - sum(map(size, self.whole)) - session.counter.count_message(frame) - 1)
        self._rules_room = min(self.room, int(budget * RULES_SHARE))
        self._rules: dict[str, str] = {}  # by trace_id, those that are quoted whole
        self._list_room = min(self.room, thread_room(budget, len(memory.numbers)))
        # for changes and for calls that brought back ids
        self._list_more = min(self.room - self._list_room, int(budget * 0.25))
        # by trace_id: the turn in which a call can stand, and the place of its pair there
        self._at: dict[str, tuple[Interaction, int]] = {}
        self._signed: dict[int, dict[str, int]] = {}  # by a turn's start, the calls that are shown if any is
        self._edits_of: dict[object, dict[int, Edit]] = {}

    def _latest_left_out(self, whole: Sequence[Interaction]) -> int:
        """The step of the newest record before the tail that the messages do not show; 0 for none."""
        view, steps = self._view, self._session.steps
        tail = view.tail.record_ids if view.tail else ()
        before = min((steps[t] for t in tail if t in steps), default=self._session.step_count + 1)
        shown = self._kept.union(t for e in whole for t in e.record_ids)
        return next((s for t, s in reversed(steps.items()) if s < before and t not in shown), 0)

    def excerpts(
        self, text: str, selection: Selection, named: frozenset[int], in_place: Any = None
    ) -> Excerpts:
        if in_place is None and self._settings.layout == "native":
            in_place = {}
        at = self._anchor, self._first_step
        rules = frozenset(self._memory.numbers[t] for t in self._rules)
        return Excerpts(self._memory, *at, text, in_place, selection, named | rules, rules)

    def _take_rules(self) -> tuple[int, str]:
        """Choose the rules that are quoted whole: their tokens, and the line that names the others."""
        at = self._first_step, self._rules_room, self._session.counter.count_text
        alone = dict.fromkeys(self._at, self._tokens_alone)
        self._rules, tokens, line = chosen_rules(self._memory, *at, self._kept, alone)
        return tokens, line

    def listed(self, room: int, shown: Collection[int] = (), first: ThreadText = ThreadText()) -> ThreadText:
        """The list of calls, without those that are ``shown`` elsewhere."""
        numbers = self._memory.numbers
        shown = {*shown, *(numbers[t] for t in self._kept if t in numbers)}
        hint = in_full(self._session.record_tool)
        return self._memory.thread.tell(self._first_step, room, shown, self._list_more, first, hint)

    def _select(self, room: int, listed: str, prices: Sequence[int] | None = None) -> Selection:
        if room <= 0:
            return NOTHING
        memory = self._memory
        without = [memory.places[t] for t in self._kept if t in memory.places]
        without += [place for place, t in memory.remarks.items() if t in self._kept]
        without += [memory.places[t] for t in self._rules]
        return memory.index.select(
            anchor=self._anchor, tail_interaction=self._first_step,
            budget=room, prices=prices, listed=listed, without=without,
        )  # fmt: skip

    def in_text(self) -> Excerpts:
        tokens, line = self._take_rules()
        listed = self.listed(self._list_room, {self._memory.numbers[t] for t in self._rules})
        selection = self._select(self.room - listed.tokens - tokens - 1, listed.text)
        text = _second(line, listed.text) + selection.text
        quoted = "".join(rule_excerpt(self._memory, *rule) for rule in self._rules.items())
        text += f"{'' if selection.text or not quoted else EXCERPTS_HEAD}{quoted}"
        return self.excerpts(text, selection, listed.named)

    def in_place(self) -> Excerpts:
        """Shown in their places: turns of which something is chosen. In the list of calls: all others."""
        starts = {e.start for e in self.whole}
        turns = [e for e in self._view.past if not e.fault and e.start not in starts]
        self._at = {t: (e, place) for e in turns for place, t in enumerate(e.trace_ids) if t is not None}
        for t, (e, place) in self._at.items():
            if t in self._memory.numbers and (call := e.pairs[place].call) is not None and call.signed:
                self._signed.setdefault(e.start, {})[t] = place
        tokens, line = self._take_rules()
        first = listed = self.listed(self._list_room)
        room = self.room - listed.tokens - tokens
        besides = self._newest_of_tools(turns, int(room * 0.2))
        room -= sum(besides.values())
        selection = self._select(room, listed.text, self._prices())
        while True:
            in_place, elsewhere, numbers = self._placed(selection, besides)
            listed = self.listed(self._list_room, numbers, first)
            head = "" if not in_place or listed.text.startswith("Calls ") else PARTS_HEAD
            head = head.format(in_full(self._session.record_tool))
            text = _second(line, head + listed.text) + elsewhere
            tokens = sum(edit.tokens for edit in in_place.values())
            tokens += listed.tokens if text == listed.text else self._session.counter.count_text(text)
            over = tokens - self.room
            if over > 0 and not selection.gains and besides:
                besides.popitem()
            elif over > 0 and selection.gains:
                selection = self._memory.index.without_last(selection, over)
            else:
                break
        return self.excerpts(text, selection, listed.named | numbers, in_place)

    def _newest_of_tools(self, turns: Sequence[Interaction], room: int) -> dict[str, int]:
        """The newest call of each tool that the context does not show, as ``room`` allows: trace_id, tokens."""
        newest: dict[str, int] = {}
        seen = {p.tool_name for e in self._visible for p in e.pairs}
        for turn in reversed(turns):
            for pair, trace_id in zip(turn.pairs, turn.trace_ids, strict=True):
                if pair.tool_name not in seen and trace_id in self._memory.numbers:
                    tokens = self._tokens_alone(trace_id)
                    if tokens <= MOST_OF_A_TOOL:
                        room -= tokens
                        if room < 0:
                            return newest
                        seen.add(pair.tool_name)
                        newest[trace_id] = tokens
        return newest

    def _prices(self) -> list[int]:
        """By record of the index the tokens of showing anything of it, less what the list of calls saves."""
        memory, prices = self._memory, list[int]()
        for record in range(memory.index.tables.records_before(self._first_step)):
            trace_id = memory.owner(record)
            if trace_id not in self._at:
                prices.append(self._session.counter.count_text(memory.index.header(record)) + 3)
                continue
            if trace_id not in memory.prices:
                memory.prices[trace_id] = max(1, self._tokens_alone(trace_id, quoted=True) - LISTED_TOKENS)
            prices.append(memory.prices[trace_id])
        return prices

    def _tokens_alone(self, trace_id: str, *, quoted: bool = False) -> int:
        """The tokens of a turn that shows a call, and of its output the outcome; ``quoted``: as beside a quote."""
        turn, place = self._at[trace_id]
        call = self._call(trace_id)
        if quoted and is_excerpt(call.outcome):
            call = replace(call, outcome="")
        signed = {at: self._call(t) for t, at in self._signed.get(turn.start, {}).items()}
        edits = shorten_turn(turn, {**signed, place: call}, "", *self._counts)
        return sum(edit.tokens for edit in edits.values())

    def _call(self, trace_id: str) -> ShownCall:
        number = self._memory.numbers[trace_id]
        return ShownCall(number, self._memory.thread.outcome_of(number))

    def _placed(
        self, selection: Selection, besides: Collection[str]
    ) -> tuple[dict[int, Edit], str, set[int]]:
        """Messages of turns of which something is chosen, the text of other excerpts, numbers of these turns."""
        memory = self._memory
        shown: dict[str, ShownCall] = {trace_id: self._call(trace_id) for trace_id in besides}
        for trace_id, text in self._rules.items():
            if trace_id in self._at:
                shown[trace_id] = replace(self._call(trace_id), quote=quote_lines(text), whole=True)
        remarks: dict[int, str] = {}
        elsewhere = [rule_excerpt(memory, *rule) for rule in self._rules.items() if rule[0] not in self._at]
        for record, places in sorted(selection.shown.items()):
            trace_id, parsed = memory.owner(record), memory.index.tables.parsed[record]
            quote, state = memory.index.quote(record, places, selection)
            if trace_id not in self._at:
                elsewhere.append(f"{memory.index.header(record)}{state and f' ({state})'}\n{quote}\n")
                continue
            call = shown.get(trace_id) or self._call(trace_id)
            if parsed.kind == "note":
                remarks[self._at[trace_id][0].start] = quote
            elif parsed.kind == "arguments":
                call = replace(call, arguments=tuple(quotes_by_text(parsed.cut, places)), state=state)
            elif not call.whole:
                call = replace(call, quote=quote, state=state or call.state, lines=parsed.cut.named_lines())
            shown[trace_id] = call
        for start in {self._at[trace_id][0].start for trace_id in shown}:
            for trace_id in self._signed.get(start, ()):
                shown.setdefault(trace_id, self._call(trace_id))
        turns: dict[int, tuple[Interaction, dict[int, ShownCall]]] = {}
        for trace_id, call in shown.items():
            turn, place = self._at[trace_id]
            turns.setdefault(turn.start, (turn, {}))[1][place] = call
        in_place: dict[int, Edit] = {}
        for start, (turn, calls) in sorted(turns.items()):
            in_place |= self._shorten(turn, calls, remarks.get(start, ""))
        numbers = {call.number for call in shown.values()}
        return in_place, EXCERPTS_HEAD + "".join(elsewhere) if elsewhere else "", numbers

    def _shorten(self, turn: Interaction, shown: Mapping[int, ShownCall], remark: str) -> dict[int, Edit]:
        """``shorten_turn``, once for a turn that shows the same."""
        key = turn.start, frozenset(shown.items()), remark
        if key not in self._edits_of:
            self._edits_of[key] = shorten_turn(turn, shown, remark, *self._counts)
        return self._edits_of[key]


def _second(line: str, text: str) -> str:
    """A text with another line after its first one."""
    first, end, rest = text.partition("\n")
    return f"{first}{end}{line}{rest}" if text else line


class Explained(Shown):
    """The reasons of a fold in a plan, as ``why`` returns them; without these, only what is shown where.

    ``steps``: of all records; ``whole``, ``turns``, ``folded``: interactions kept whole, shown in part, and those
    that the fold is about.
    """

    def __init__(
        self,
        why: Callable[[], FoldReasons | None],
        steps: Mapping[str, int],
        whole: Sequence[Interaction],
        turns: Sequence[Interaction],
        folded: Sequence[Interaction],
    ) -> None:
        super().__init__(whole, turns, folded)
        self._ask, self._steps = why, steps

    @cached_property
    def _why(self) -> FoldReasons | None:
        return self._ask()

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {trace_id: number for number, trace_id in enumerate(self._steps, 1)}

    def pieces(self) -> Sequence[Piece]:
        return [] if self._why is None else self._why.pieces

    def near_misses(self) -> Sequence[Piece]:
        return [] if self._why is None else self._why.near_misses

    def decide(self, interaction: Interaction) -> tuple[Fate, float | None, str]:
        if self._fates.get(interaction.start) is Fate.KEPT:
            return Fate.KEPT, None, "one of the latest interactions, kept whole"
        why = self._why
        if why is None:
            return super().decide(interaction)
        reports = [why.of(self._numbers[t]) for t in interaction.trace_ids if t in self._numbers]
        if not reports:
            return Fate.LEFT_OUT, None, "it has no record yet"
        fates, scores, reasons = zip(*reports, strict=True)
        worth = [w for w in scores if w is not None]
        fate = min(fates, key=[Fate.PART, Fate.KEPT, Fate.LISTED, Fate.LEFT_OUT].index)
        if fate is Fate.KEPT and len(set(fates)) > 1:
            fate = Fate.PART
        return fate, sum(worth) if worth else None, "; ".join(reasons)

    def beyond(self, here: Collection[str]) -> list[Decision]:
        why = self._why
        if why is None:
            return []
        tools = {p.trace_id: p.tool for p in why.pieces if p.trace_id not in here}
        decisions = []
        for trace_id in sorted(tools.keys() & self._numbers.keys(), key=self._numbers.__getitem__):
            fate, score, reason = why.of(self._numbers[trace_id])
            reason = f"{reason}; its messages are no longer in the list"
            decisions.append(Decision(None, (trace_id,), (tools[trace_id],), fate, score, reason, 0))
        return decisions


def explained(excerpts: Excerpts, records: int) -> FoldReasons:
    """The reasons of a fold: what it shows of each of the session's ``records`` first records, and why."""
    memory, selection = excerpts.memory, excerpts.selection
    tables, numbers = memory.index.tables, memory.numbers
    shown, near = sorted(selection.gains.items()), sorted(selection.edge, key=lambda e: -e[1])
    segments = [segment for segment, _ in (*shown, *near)]
    why = memory.index.explain(segments, anchor=excerpts.anchor, tail_interaction=excerpts.first_step)
    pieces = []
    for (segment, gain), values in zip((*shown, *near), why, strict=True):
        record, place = tables.place_of(segment)
        source = tables.parsed[record]
        tool, text = source.tool or "(the agent's words)", source.cut.segments[place].text
        pieces.append(Piece(memory.owner(record), tool, text, float(gain), values))
    beyond: dict[int, float] = {}  # by number, the best of an output that was nearly shown
    for segment, gain in near:
        record = tables.place_of(segment)[0]
        if tables.parsed[record].kind == "output":
            beyond.setdefault(numbers[memory.owner(record)], gain)
    words: dict[int, list[float]] = {}  # the worth of each shown piece of arguments and of the agent's words
    calls: dict[int, tuple[Fate, float | None, str]] = {}
    for record, places in selection.shown.items():
        number, cut = numbers[memory.owner(record)], tables.parsed[record].cut
        gains = [float(selection.gains.get(tables.first_segment[record] + p, 0.0)) for p in places]
        if tables.parsed[record].kind != "output":
            words.setdefault(number, []).extend(gains)
            continue
        best = cut.segments[places[gains.index(max(gains))]].text[:80]
        whole = len(places) == len(cut.segments) and not cut.skipped
        reason = f"#{number}: {len(places)} of {len(cut.segments)} pieces, the best {best!r}"
        calls[number] = (Fate.KEPT if whole else Fate.PART), sum(gains), reason
    for number in excerpts.rules:
        calls[number] = Fate.KEPT, None, f"#{number}: rules that the agent read, quoted whole"
    listed = frozenset(excerpts.named)
    bare = FoldReasons(records, {}, listed, (), ())
    for number in {*words, *beyond} - calls.keys():
        fate, worth, reason = bare.of(number)
        if number in words:
            some = f"{len(words[number])} pieces of its arguments or of the agent's words"
            fate, worth, reason = Fate.PART, sum(words[number]), f"#{number}: {some}, nothing of its output"
        if number in beyond:
            reason += f"; nearly shown: worth {beyond[number]:.3f}, beyond the budget"
        calls[number] = fate, worth, reason
    return FoldReasons(records, calls, listed, pieces[: len(shown)], pieces[len(shown) :])
