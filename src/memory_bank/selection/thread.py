"""The thread of a session: every past call told in few tokens, the agent's latest plan, its decisions.

Calls that changed something stand on lines of their own, look-ups of one tool share a line, and what does not
fit is counted by tool with the range of its numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import is_

from memory_bank.selection.calltext import (
    LEAST_CHARS,
    Argument,
    arguments_of,
    distinguishing,
    ending,
    named,
    outcome,
    shown_value,
    tells_id,
)
from memory_bank.selection.effects import Effect, changes_something, is_failure
from memory_bank.selection.plans import decisions_in, plan_in_call, plan_in_note
from memory_bank.transcript.quoting import one_line, quote_lines

HEAD = "Calls so far{}:\n"
"""The headings have a place for what ``transcript.messages.in_full`` says of the tool that returns a record."""
PARTS_HEAD = "An output that ends with [… #n] is shortened{}.\n"
"""The first line of a context that has no list of calls, because every call stands in its place."""
PLAN_HEAD = "The agent's latest plan:\n"
DECISIONS_HEAD = "The agent's words:\n"
VALUE_CHARS = 32  # of a value in a line that several calls share
MOST_NAMED = 256
"""Most calls of each kind (changes, look-ups) that the list names; older ones are only counted."""


def thread_room(budget: int, calls: int) -> int:
    """The tokens that the thread may take of a budget: a fifth, 700, or 14 a call; at most a quarter."""
    return int(min(max(0.2 * budget, 700, 14 * calls), 0.25 * budget))


@dataclass(frozen=True, slots=True)
class ThreadText:
    """The thread as text; ``told``: the calls that it names with what distinguishes them, by number.

    ``lines``: of these, the calls on lines of their own.
    """

    text: str
    tokens: int
    told: frozenset[int] = frozenset()
    lines: frozenset[int] = frozenset()


_NOTHING_TOLD = ThreadText("", 0)


@dataclass(slots=True)
class _Call:
    number: int
    interaction: int
    tool: str
    arguments: tuple[Argument, ...]
    outcome: str
    changed: bool
    failed: bool
    told: tuple[Argument, ...] | None = None  # what distinguishes it; None where that may have changed


@dataclass(slots=True)
class _Shown:
    """How a call is shown beside its neighbours: made anew only where what distinguishes one of them changed."""

    told: tuple[tuple[Argument, ...] | None, ...]  # of the call, and of the tool's calls before and after it
    values: list[tuple[str, str]]
    value_cost: int
    line: str = ""


class Thread:
    """The calls of a session in their order, and how a context tells them."""

    def __init__(
        self, count_tokens: Callable[[str], int], declared: Mapping[str, Effect] | None = None
    ) -> None:
        self._count = count_tokens
        self._declared = dict(declared or {})
        self._calls: list[_Call] = []
        self._interactions: list[int] = []  # of the calls
        self._values: dict[str, Counter[str]] = {}  # by tool: in how many of its calls each value stands
        self._holders: dict[tuple[str, str], list[_Call]] = {}  # the calls of a tool in which a value stands
        self._shown: dict[tuple[int, int], _Shown] = {}  # by number and length of values
        self._plans: list[tuple[int, str]] = []  # with their interactions, as are the next
        self._decisions: list[tuple[int, str]] = []
        self._cost = lru_cache(4_096)(count_tokens)  # the texts have at most a few hundred characters
        self._told: dict[str, set[str]] = {}  # by tool: the values in its outcomes

    def add(
        self, *, number: int, interaction: int, tool: str, arguments: str, output: str, note: str = ""
    ) -> None:
        """Add the next call, and what the agent wrote with it."""
        found = arguments_of(arguments)
        failed = is_failure(output)
        changed = changes_something(tool, arguments, output, self._declared)
        name = one_line(tool)[:80]
        told = self._told.setdefault(name, set())
        came_back, values = outcome(output, told.union(a.text for a in found))
        told.update(values)
        call = _Call(number, interaction, name, found, came_back, changed, failed)
        self._calls.append(call)
        self._interactions.append(interaction)
        starts = {a.start for a in found}
        self._values.setdefault(name, Counter()).update(starts)
        for start in starts:
            holders = self._holders.setdefault((name, start), [])
            for other in holders:
                other.told = None
            holders.append(call)
        if plan := plan_in_call(tool, arguments) or plan_in_note(note):
            self._plans.append((interaction, plan))
        self._decisions.extend((interaction, quote_lines(said)) for said in decisions_in(note))

    def outcome_of(self, number: int) -> str:
        """What a call brought back, in a few words; "" for nothing."""
        return self._calls[number - 1].outcome

    def tell(
        self,
        before: int,
        room: int,
        shown: Collection[int] = (),
        more: int = 0,
        first: ThreadText = _NOTHING_TOLD,
        hint: str = "",
    ) -> ThreadText:
        """The calls of interactions before ``before``, but those ``shown`` elsewhere, in at most ``room`` tokens.

        ``more``: tokens beyond the room, for naming calls that changed something and for lines of those that brought
        back ids. ``first``: what was told when none was shown elsewhere; the others of its lines come before anything
        else. ``hint``: what the heading says after its first words.
        """
        known = frozenset(shown)
        calls = [c for c in self._calls[: bisect_left(self._interactions, before)] if c.number not in known]
        words = self._words(before, room)
        if not calls and not words:
            return _NOTHING_TOLD
        left = room - (self._cost(words) if words else 0)
        head = HEAD.format(hint)
        telling = _Telling(self, calls, left - self._cost(head), more, first)
        while True:
            text = (head if calls else "") + telling.text() + words
            tokens = self._count(text) if text else 0
            over = tokens - room - telling.more_tokens
            if over <= 0:
                return ThreadText(text, tokens, telling.told, telling.lines)
            if not telling.shorten(over):
                if words:
                    words = ""
                    continue
                break
        span = f"#{calls[0].number} to #{calls[-1].number}" if calls else ""
        for text in (f"Calls {span}{hint}.\n", f"{span}\n") if calls else ():
            if (tokens := self._count(text)) <= room:
                return ThreadText(text, tokens)
        return _NOTHING_TOLD

    def _words(self, before: int, room: int) -> str:
        """The latest plan and the latest decisions; each has a share of the room, in tokens."""
        plan = next((text for at, text in reversed(self._plans) if at < before), "")
        decided = list(dict.fromkeys(text for at, text in self._decisions if at < before))
        texts = []
        for head, lines, share in (
            (PLAN_HEAD, plan.split("\n") if plan else [], 0.2),
            (DECISIONS_HEAD, decided[:-9:-1], 0.1),  # the latest first
        ):
            left = int(room * share) - self._cost(head) - 2
            kept: list[str] = []
            for line in lines:
                left -= self._cost(line + "\n")
                if left < 0:
                    break
                kept.append(line + "\n")
            if kept and head is DECISIONS_HEAD:
                kept.reverse()
            elif kept and len(kept) < len(lines):
                kept.append("…\n")
            texts += [head, *kept] if kept else []
        return "".join(texts)


class _Telling:
    """Which form each call takes in a room: on its own line, as a value in its tool's line, or counted."""

    def __init__(
        self, thread: Thread, calls: Sequence[_Call], room: int, more: int, first: ThreadText
    ) -> None:
        self._thread, self._calls, self._room, self._more, self._first = thread, calls, room, more, first
        changed = [c for c in calls if c.changed][-MOST_NAMED:]
        looked = [c for c in calls if not c.changed][-MOST_NAMED:]
        self._named = sorted([*changed, *looked], key=lambda c: c.number)
        self._told: dict[int, tuple[Argument, ...]] = {}
        # what is told of the tool's calls before and after each
        self._beside: dict[int, list[tuple[Argument, ...] | None]] = {}
        latest: dict[str, int] = {}
        for call in self._named:
            if call.told is None:
                call.told = distinguishing(call.arguments, thread._values[call.tool])
            told = self._told[call.number] = call.told
            other = latest.get(call.tool)
            self._beside[call.number] = [None if other is None else self._told[other], None]
            if other is not None:
                self._beside[other][1] = told
            latest[call.tool] = call.number
        for chars in (VALUE_CHARS, LEAST_CHARS):
            self._fill(chars)
            if len(self.told) == len(self._named):
                break

    def _fill(self, chars: int) -> None:
        """Give calls longer forms while there is room: changes before look-ups, then lines of their own.

        The calls that had lines of their own ``first`` have them before the rest gets any form.
        """
        self._chars = chars
        self._steps: list[tuple[int, bool, int]] = []  # (number, whether to a line of its own, tokens)
        cost = self._thread._cost
        # a line for each tool with its name and the range of its numbers, and a few tokens to spare
        groups = {(c.tool, c.failed) for c in self._calls}
        self._left = self._room - 4 - sum(cost(f"{t} ×100 #100 to #200\n") + 2 for t, _ in groups)
        self.more_tokens = 0  # beyond the room
        self._shown_as = {c.number: self._show(c) for c in self._named}
        newest = list(reversed(self._named))
        # by number, tokens of values; none for what another call's value says
        self._paid: dict[int, int] = {}
        self._written: set[tuple[str, str]] = set()
        self._own: set[int] = set()
        first = [c for c in newest if c.number in self._first.lines]
        self._add_values(first)
        self._add_lines(first)
        self._add_values([c for c in newest if c.number not in self._paid])
        self._add_lines(newest)
        self._settle()

    def _pays(self, call: _Call, own: bool, price: int, beyond: bool) -> bool:
        """Take a form of a call if there is room for it, ``beyond``: if need be beyond the room."""
        if price > self._left + beyond * (self._more - self.more_tokens):
            return False
        self._steps.append((call.number, own, price))
        self._left -= price
        if self._left < 0:
            self.more_tokens, self._left = self.more_tokens - self._left, 0
        return True

    def _add_values(self, calls: Sequence[_Call]) -> None:
        for call in sorted(calls, key=lambda c: not c.changed):
            shown = self._shown_as[call.number]
            key = call.tool, "".join([f"{text}, " for _, text in shown.values])
            price = 0 if key in self._written else shown.value_cost + 1
            if self._pays(call, False, price, call.changed):
                self._written.add(key)
                self._paid[call.number] = price

    def _add_lines(self, calls: Sequence[_Call]) -> None:
        changed = [c for c in calls if c.changed]
        failed = [c for c in calls if c.failed and not c.changed]
        found_ids = [c for c in calls if not c.failed and tells_id(c.outcome)]
        for wanted in (changed, failed, found_ids):
            for call in wanted:
                if call.number in self._paid and call.number not in self._own:
                    price = max(1, self._thread._cost(self._line(call) + "\n") - self._paid[call.number])
                    if self._pays(call, True, price, wanted is found_ids):
                        self._own.add(call.number)

    def _settle(self) -> None:
        self.told = frozenset(number for number, own, _ in self._steps if not own)
        self.lines = frozenset(number for number, own, _ in self._steps if own)

    def shorten(self, tokens: int) -> bool:
        """Tell some calls in a shorter form, the least important first; False where all are counted already."""
        if not self._steps:
            return False
        while self._steps and tokens > 0:
            tokens -= self._steps.pop()[2]
        self._settle()
        return True

    def text(self) -> str:
        own = [self._line(c) for c in self._calls if c.number in self.lines]
        groups: dict[tuple[str, bool], list[_Call]] = {}
        rest = [c for c in self._calls if c.number not in self.lines]
        for call in sorted(rest, key=lambda c: not c.changed):  # those that changed something first
            groups.setdefault((call.tool, call.failed), []).append(call)
        own += [self._shared_line(f"{t} failed" if failed else t, c) for (t, failed), c in groups.items()]
        return "".join(f"{line}\n" for line in own)

    def _show(self, call: _Call) -> _Shown:
        """How a call is shown: its line and its tokens are made when they are needed."""
        kept, key = self._thread._shown, (call.number, self._chars)
        told = self._told[call.number]
        beside = self._beside[call.number]
        known = kept.get(key)
        if known is not None and all(map(is_, known.told, (told, *beside))):
            return known
        others = [{a.key: a.text for a in other} for other in beside if other is not None]
        values = [
            (a.key, shown_value(a.text, self._chars, [o[a.key] for o in others if a.key in o])) for a in told
        ]
        cost = self._thread._cost("".join([f"{text}, " for _, text in values]))
        kept[key] = _Shown((told, *beside), values, cost)
        return kept[key]

    def _shared_line(self, tool: str, calls: Sequence[_Call]) -> str:
        """The line of some calls of one tool: their distinguishing values, then how many more there are."""
        valued = [c for c in calls if c.number in self.told]
        counted = [c for c in calls if c.number not in self.told]
        if not valued:
            return f"{tool} ×{len(counted)} {ranges(c.number for c in counted)}"
        values = [v for c in valued if (v := self._shown_as[c.number].values)]
        keys = {v[0][0] for v in values}
        common = keys.pop() if len(keys) == 1 else ""
        bodies = [", ".join(t if k == common else named(k, t) for k, t in v) for v in values]
        text = f"{tool} {ranges(c.number for c in valued)}"
        if bodies:
            text += f" {named(common, '; '.join(dict.fromkeys(bodies)))}"
        if counted:
            text += f"; besides ×{len(counted)} {ranges(c.number for c in counted)}"
        return text

    def _line(self, call: _Call) -> str:
        """A call on a line of its own: what distinguishes it, other arguments while there is room, its outcome."""
        kept = self._shown_as[call.number]
        if kept.line:
            return kept.line
        shown = [named(k, t) for k, t in kept.values]
        room = 84 - sum(len(s) + 2 for s in shown)
        told = self._told[call.number]
        for argument in call.arguments:
            part = named(argument.key, ending(argument.text, LEAST_CHARS))
            if argument not in told and len(part) <= room:
                shown.append(part)
                room -= len(part) + 2
        text = f"#{call.number} {call.tool} {', '.join(shown)}" if shown else f"#{call.number} {call.tool}"
        kept.line = f"{text} → {call.outcome}" if call.outcome else text
        return kept.line


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as ``#1, #3 to #7``, in order; more than six runs as the first and the last with ``…`` between."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    written = [f"#{a}" if a == b else f"#{a} to #{b}" if b > a + 1 else f"#{a}, #{b}" for a, b in runs]
    if len(written) > 6:
        written = [*written[:3], "…", *written[-2:]]
    return ", ".join(written)
