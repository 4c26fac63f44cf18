"""The list of a session's calls in few tokens, with the agent's latest plan and its decisions.

Calls that changed something stand on lines of their own, look-ups of one tool share a line, and what does not
fit is counted by tool with the range of its numbers. Of a call the arguments are shown that tell it from the tool's
other calls, and its outcome.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from memory_bank.selection.effects import (
    PATH_KEYS,
    Effect,
    RulesRead,
    changes_something,
    file_access,
    is_failure,
    rules_read,
    runs,
)
from memory_bank.selection.outcomes import clip, outcome, tells_id
from memory_bank.transcript.jsontext import RAW, leaves, parse_arguments
from memory_bank.transcript.messages import runs_of
from memory_bank.transcript.quoting import Mark, one_line, quote_lines

LEAST_CHARS = 24  # characters that are shown of every value, at least, where it has so many
ARGUMENT_CHARS = (-1, 0, 24, 40, 72)
"""Characters of arguments in ``call_line``, from its shortest form (its number only) to its longest."""
LONG_ARGUMENT = 160  # characters from which a text in the arguments of a call is shortened
ARGUMENT_START = 80  # characters that are kept of its beginning
_LEAVES = 40  # values of one call that are compared with those of other calls
_READ_CHARS = 400  # characters of a value that are read
_SAME_CHARS = 200  # characters of two values that are compared
_AFTER = 16  # characters shown after the place where a value differs from that of the call before
_NAME_CHARS = 48  # of the last part of a path
_EDITED = re.compile(
    r"\b(?:sed|perl)\s[^|;&\n]{0,40}?-p?i\b.{0,1000}?\s([^\s'\"]{1,100})\s*(?:[|;&\n]|\Z)"
    r"|\*\*\* (?:Update|Add) File: (\S{1,100})(?=\s)",
    re.S,
)


class Argument(NamedTuple):
    """A value in a call's arguments, on one line, with its name; ``start``: its folded beginning, to compare."""

    key: str
    text: str
    start: str


def arguments_of(arguments: str) -> tuple[Argument, ...]:
    """The values in the arguments of a call (JSON text, or any other text), in order."""
    values = []
    for value, key, _, _ in islice(leaves(parse_arguments(arguments)), _LEAVES):
        if value is None or isinstance(value, bool):
            continue
        text = str(value)[:_READ_CHARS]
        if text := one_line(text) if isinstance(value, str) else text:
            start = text[:LEAST_CHARS].strip().casefold()
            values.append(Argument("" if key == RAW else one_line(key)[:40], text, start))
    return tuple(values)


def shown_arguments(arguments: str) -> str:
    """The texts in a call's arguments that a context shows when it keeps the call, one a line."""
    if len(arguments) <= LONG_ARGUMENT:
        return arguments
    texts = (str(leaf.value) for leaf in islice(leaves(parse_arguments(arguments)), _LEAVES))
    return "\n".join(text if len(text) <= LONG_ARGUMENT else text[:ARGUMENT_START] for text in texts)


def distinguishing(arguments: Sequence[Argument], frequency: Sequence[int]) -> tuple[Argument, ...]:
    """The values that tell a call from its tool's others: one that only it has, else the two rarest.

    A number, as the first line of what is read, comes after the file that it is of.
    """
    order = {a.start: (number, at) for at, (a, number) in enumerate(zip(arguments, frequency, strict=True))}
    firsts = {a.start: a for a in reversed(arguments)}.values()
    chosen = [a for a in firsts if len(a.start) >= 2] or list(arguments)
    chosen.sort(key=lambda a: (order[a.start][0], -min(len(a.start), 12), order[a.start][1]))
    chosen = chosen[: 2 if chosen and order[chosen[0].start][0] > 1 else 1]
    file = next((a for a in arguments if a.key in PATH_KEYS), None)
    rest = [a for a in chosen if a is not file]
    return (file, *rest) if file and all(a.text.isdecimal() for a in rest) else tuple(chosen)


def _last_part(text: str) -> str:
    """The last part of a path or of a dotted name, or the file that a shell command edits, with what is before it."""
    if edited := _EDITED.search(text):
        return f" {edited[1] or edited[2]}"
    parts = max(text.count(separator) for separator in "/\\.")
    separator = next((m for m in "/\\" if m in text), "." if parts > 1 else "")
    return text[text.rstrip(separator).rfind(separator) :] if separator and not re.search(r"\s", text) else ""


def shown_value(text: str, chars: int, others: Iterable[str] = ()) -> str:
    """A value as a line shows it: longer where it differs late from ``others``; a path's start and last part."""
    name = _last_part(text)
    if len(text) > chars and 1 < len(name) <= _NAME_CHARS and LEAST_CHARS + len(name) < len(text):
        return f"{text[:LEAST_CHARS]}…{name}"
    for other in others:
        most = min(len(text), len(other), _SAME_CHARS)
        same = next((i for i in range(most) if text[i] != other[i]), most)
        if same < most:
            chars = max(chars, same + _AFTER)
    return clip(text, chars)


def ending(text: str, chars: int) -> str:
    """The start of a value; of a long path its end, from a ``/`` or ``\\`` on."""
    separator = next((m for m in "/\\" if m in text[-chars:]), "")
    if len(text) <= chars or not separator or " " in text:
        return clip(text, chars)
    return "…" + text[text.index(separator, len(text) - chars) :]


def call_line(number: int, tool: str, arguments: str, chars: int = ARGUMENT_CHARS[-1]) -> str:
    """A line for a call, ``#number tool key=value, …``; with 0 `chars` number and tool's word, with -1 the number."""
    if chars < 0:
        return f"#{number}"
    name = one_line(tool)[:80]
    shown: list[str] = []
    if not chars:
        return f"#{number} {name.partition(' ')[0]}"
    for argument in arguments_of(arguments):
        part = named(argument.key, shown_value(argument.text, max(LEAST_CHARS, chars)))
        if shown and len(part) > chars:
            shown.append("…")
            break
        shown.append(part)
        chars -= len(part) + 2
    return f"#{number} {name} {', '.join(shown)}".rstrip()


def named(key: str, text: str) -> str:
    """``key=text``, or the text alone where it has no key."""
    return f"{key}={text}" if key else text


HEAD = f"{Mark.CALLS}{{}}:\n"
"""The headings have a place for what ``transcript.messages.in_full`` says of the tool that returns a record."""
PARTS_HEAD = f"{Mark.PARTS} #n] is shortened{{}}.\n"
"""The first line of a context that has no list of calls, because every call stands in its place."""
PLAN_HEAD = f"{Mark.PLAN}\n"
STATE_HEAD = f"{Mark.STATE}\n"
DECISIONS_HEAD = f"{Mark.WORDS}\n"
VALUE_CHARS = 32  # of a value in a line that several calls share
LINE_CHARS = 84  # of the arguments in the line of one call
MOST_NAMED = 256  # calls of each kind (changes, look-ups) that the list names; older ones are only counted

_TASK_TOOL = re.compile(r"task_?-?(create|update)\b|(create|update|add|complete)_?-?task\b", re.I)
_TASK_ID_KEYS = ("taskId", "task_id", "id", "number")
_TASK_MADE = re.compile(r"task\W{1,3}(\w{1,40})\b", re.I)
_PLAN_TOOL = re.compile(r"to_?-?dos?\b|to_?do_?(?:write|list)|(?:^|_|\b)plan(?:$|_|\b)|checklist", re.I)
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_SUBJECT_KEYS = ("subject", "title", "content", "name", "text")
_TEXT_KEYS = ("content", "step", "title", "text", "task", "description", "subject", "name", "item")
_STATE_KEYS = ("status", "state", "done", "completed", "checked")
_STATES = dict.fromkeys(("completed", "complete", "done", "finished", "true", "x", "checked"), "x")
_STATES |= dict.fromkeys(("in_progress", "in-progress", "active", "doing", "started"), "~")
_CHECK = re.compile(r"^[ \t]*(?:[-*+]|\d{1,3}[.)])[ \t]*\[([ xX~\-])\][ \t]+(\S.*)$", re.M)
_NUMBERED = re.compile(
    r"^[^\n]{0,60}\b(?:plan|steps|to-?dos?|left|remaining|remains)\b[^\n]{0,40}:[ *]{0,4}\n(?:[ \t]*\n)?"
    r"((?:[ \t]{0,8}(?:\d{1,3}[.)]|[-*•])[ \t]+\S[^\n]*(?:\n|\Z)){2,60})",
    re.I | re.M,
)
_POINT = re.compile(r"^[ \t]*(?:\d{1,3}[.)]|[-*•])[ \t]+", re.M)
_LEFT = re.compile(
    r"^[ \t]*(?:\*\*)?(?:left|remaining|still to do|todo|next)(?:\*\*)?:(?:\*\*)?[ \t]+(\S[^\n]{3,})$",
    re.I | re.M,
)
_MOST_ITEMS, _ITEM_CHARS = 60, 100
_DONE_TOGETHER = 3  # items of a plan that are done, one after the other, from which they share a line
_MOST_FILES, _MOST_FAILING = 12, 3
_COMMAND_CHARS = 60
_BEFORE_COMMAND = re.compile(
    r"\A(?:\s*cd [^&;|\n]{1,300}(?:&&|;))+|(?<!\s)\s*(?:2>&1|\|\s*(?:tail|head|grep)\b[^|&;\n]*)"
)
_MADE_BY_SHELL = re.compile(r"(?<![<=\-&\d>])>{1,2}[ \t]*(?!/dev/null|&)([\w./~\\:-]{2,200})")
_ANAPHORIC = re.compile(r"\W*(?:it|its|this|that|these|those|they|their|he|she|here|there)\b", re.I)
_SENTENCE = re.compile(r"[^\n.!?]+(?:[.!?](?=\S)[^\n.!?]*)*[.!?]?")
_DECIDES = re.compile(
    r"\b(?:decid(?:e|ed|ing)|decision|instead of|rather than|must not|must never|should not|shouldn't|do not|don't "
    r"|won't|root cause|turns out|conclu(?:de|ded|sion)|confirmed|chose|choose|going with|the (?:problem|issue|bug|"
    r"fix|reason|cause|plan|answer) (?:is|was)|because|the user (?:wants|asked|said|prefers)|"
    r"(?:is|are) (?:not|already)|only the|except)\b",
    re.I,
)
_DECISION_CHARS = 160
_NOTE_CHARS = 6_000


# -- what the agent wrote -----------------------------------------------------
def plan_in_call(tool: str, arguments: str) -> str:
    """The plan or to-do list that a call writes, one line an item with its state; "" where it writes none."""
    if not _PLAN_TOOL.search(_HUMP.sub("_", tool)):
        return ""
    values = parse_arguments(arguments).values()
    for items in values:
        lines = map(_item_line, items[:_MOST_ITEMS] if isinstance(items, list) else ())
        if plan := "\n".join(filter(None, lines)):
            return plan
    return plan_in_text("\n".join(v for v in values if isinstance(v, str) and v.strip()))


def _item_line(item: object) -> str:
    if isinstance(item, str):
        return f"- {clip(one_line(item), _ITEM_CHARS)}" if item.strip() else ""
    entry = item if isinstance(item, dict) else {}
    text = next((entry[k] for k in _TEXT_KEYS if isinstance(entry.get(k), str) and entry[k].strip()), None)
    if text is None:
        return ""
    state = next((str(entry[k]).casefold() for k in _STATE_KEYS if entry.get(k) is not None), "")
    return f"- [{_STATES.get(state, ' ')}] {clip(one_line(text), _ITEM_CHARS)}"


def plan_in_text(text: str) -> str:
    """The check list in what the agent wrote, line by line; "" where it has none."""
    checks = _CHECK.findall(text[:_NOTE_CHARS])
    lines = [f"- [{state}] {clip(one_line(body), _ITEM_CHARS)}" for state, body in checks[:_MOST_ITEMS]]
    return "\n".join(lines) if len(lines) > 1 else ""


def steps_in_text(text: str) -> str:
    """A numbered plan, or what the agent says is left to do, one line an item; "" where it says none."""
    match = _NUMBERED.search(text[:_NOTE_CHARS])
    points = _POINT.split(match[1])[1:] if match else _LEFT.findall(text[:_NOTE_CHARS])
    return "\n".join(f"- {clip(one_line(point), _ITEM_CHARS)}" for point in points[:_MOST_ITEMS])


def short_plan(plan: str) -> list[str]:
    """The lines of a plan that is too long as a whole: items that are done in a row share one, by their numbers."""
    lines: list[str] = []
    done: list[tuple[int, str]] = []
    for number, line in enumerate([*plan.split("\n"), ""], 1):
        if line.startswith("- [x] "):
            done.append((number, line))
            continue
        if len(done) >= _DONE_TOGETHER:
            lines.append(f"- [x] {done[0][0]} to {done[-1][0]} done, the last: {done[-1][1][6:]}")
        else:
            lines += [item for _, item in done]
        done = []
        lines += [line] if line else []
    return lines


def decisions_in(text: str) -> Iterator[str]:
    """The sentences of a remark that state a decision or a finding, in order, each on one line.

    Those that begin with a pronoun are left out: what it stands for is not shown.
    """
    for match in _SENTENCE.finditer(text[:_NOTE_CHARS]):
        sentence = one_line(match[0])
        if len(sentence) >= 20 and _DECIDES.search(sentence) and not _ANAPHORIC.match(sentence):
            yield clip(sentence, _DECISION_CHARS)


# -- the list -----------------------------------------------------------------
def thread_room(budget: int, calls: int) -> int:
    """The tokens that the thread may take of a budget: a fifth, 700, or 14 a call; at most a quarter."""
    return int(min(max(0.2 * budget, 700, 14 * calls), 0.25 * budget))


@dataclass(frozen=True, slots=True)
class ThreadText:
    """The thread as text; ``named`` are the calls that it tells apart, ``lines`` those of them on their own lines."""

    text: str = ""
    tokens: int = 0
    named: frozenset[int] = frozenset()
    lines: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    number: int
    interaction: int
    tool: str
    arguments: tuple[Argument, ...]
    outcome: str
    changed: bool
    failed: bool
    has_id: bool
    command: str = ""  # what it runs, without what only changes the folder or shows less of the output
    file: str = ""  # the file that it made or changed
    makes: bool = False


Values = tuple[tuple[str, str], ...]  # keys and values of arguments, as they are shown


class Thread:
    """The calls of a session in their order, and how a context names them."""

    def __init__(
        self, count_tokens: Callable[[str], int], declared: Mapping[str, Effect] | None = None
    ) -> None:
        self.count = count_tokens
        self._declared = dict(declared or {})
        self._calls: list[_Call] = []
        # by tool: in how many of its calls each value stands, and the values in its outcomes
        self._frequency: dict[str, Counter[str]] = {}
        self._returned: dict[str, set[str]] = {}
        self._rules: dict[int, RulesRead] = {}  # by the number of the call that read them
        self._tasks: dict[str, tuple[str, str]] = {}  # by id: the text and the state of each item of a plan
        self._plans: list[tuple[int, str]] = []  # with their interactions, as are the next
        self._steps: list[tuple[int, str]] = []  # plans without states
        self._decisions: list[tuple[int, str]] = []
        # Made anew where what it depends on changed; the texts have at most a few hundred characters.
        self.cost = lru_cache(4_096)(count_tokens)
        self._distinguishing = lru_cache(4_096)(distinguishing)
        self.shown_values = lru_cache(4_096)(_shown_values)
        self.own_line = lru_cache(4_096)(_own_line)

    def add(
        self, *, number: int, interaction: int, tool: str, arguments: str, output: str, remark: str = "",
        task: Sequence[str] = (),
    ) -> bool:  # fmt: skip
        """Add the next call, and what the agent wrote with it; return whether it failed. ``task``: what was asked."""
        parsed = arguments_of(arguments)
        failed = is_failure(output, tool, arguments)
        changed = not failed and changes_something(tool, arguments, declared=self._declared)
        name = one_line(tool)[:80]
        returned = self._returned.setdefault(name, set())
        seen = returned.union(a.text for a in parsed)
        came_back, values = outcome(output, seen, failed=failed, ends=changed or runs(tool, arguments))
        returned.update(values)
        has_id = bool(values) and tells_id(came_back)
        command, file, makes = _work_of(tool, arguments)
        plan = plan_in_call(tool, arguments) or self._plan_of_tasks(tool, arguments, output)
        self._calls.append(
            _Call(
                number, interaction, name, parsed, one_line(came_back), changed and not plan, failed, has_id,
                command, "" if failed or not changed else file, makes,
            )
        )  # fmt: skip
        self._frequency.setdefault(name, Counter()).update({a.start for a in parsed})
        if not failed and (rules := rules_read(tool, arguments, output, task)):
            self._rules[number] = rules
        if plan := plan or plan_in_text(remark):
            self._plans.append((interaction, plan))
        if steps := steps_in_text(remark):
            self._steps.append((interaction, steps))
        self._decisions.extend((interaction, quote_lines(decision)) for decision in decisions_in(remark))
        return failed

    def _plan_of_tasks(self, tool: str, arguments: str, output: str) -> str:
        """The plan after a call that makes or changes one item of it; "" for other calls."""
        if not _TASK_TOOL.search(_HUMP.sub("_", tool)):
            return ""
        entry = parse_arguments(arguments)
        key = next((str(entry[k]) for k in _TASK_ID_KEYS if entry.get(k) is not None), "")
        if not key and (match := _TASK_MADE.search(output[:_READ_CHARS])):
            key = match[1]
        text, state = self._tasks.get(key, ("", "pending"))
        text = next(
            (entry[k] for k in _SUBJECT_KEYS if isinstance(entry.get(k), str) and entry[k].strip()), text
        )
        state = next((str(entry[k]).casefold() for k in _STATE_KEYS if entry.get(k) is not None), state)
        if not key or not text:
            return ""
        self._tasks[key] = text, state
        tasks = [(key, *item) for key, item in self._tasks.items() if item[1] != "deleted"][-_MOST_ITEMS:]
        done = [key for key, _, state in tasks if _STATES.get(state) == "x"]
        spans = [
            f"{a} to {b}" if a != b else str(a) for a, b in runs_of(int(key) for key in done if key.isdigit())
        ]
        spans += [key for key in done if not key.isdigit()]
        lines = [
            _item_line({"subject": f"{key}. {text}", "status": state})
            for key, text, state in tasks
            if key not in done
        ]
        return "\n".join([f"- [x] {', '.join(spans)} done", *lines] if done else lines)

    def outcome_of(self, number: int) -> str:
        """The outcome of a call, in a few words; "" for nothing."""
        return self._calls[number - 1].outcome

    def rules(self, before: int) -> dict[int, tuple[str, bool]]:
        """The rules that were read in interactions before ``before``, in their newest version: number to name.

        And whether that is what they are now: no edit came later. Those of files first, then as they were first read.
        """
        order: dict[str, tuple[bool, int]] = {}  # of each name
        for rules in self._rules.values():
            order.setdefault(rules.name, (not rules.is_file, len(order)))
        newest: dict[str, dict[str, int]] = {}  # by name, of each part the number
        for number, rules in self._rules.items():
            if not rules.part:
                newest[rules.name] = {}
            newest.setdefault(rules.name, {})[rules.part] = number
        numbers = [n for name in sorted(newest, key=order.__getitem__) for n in newest[name].values()]
        return {
            n: (name, all(call.file != name for call in self._calls[n:]))
            for n in numbers
            if self._calls[n - 1].interaction < before and (name := self._rules[n].name)
        }

    def distinct(self, call: _Call) -> tuple[Argument, ...]:
        """The values that tell a call from the tool's other calls."""
        frequency = self._frequency[call.tool]
        return self._distinguishing(call.arguments, tuple([frequency[a.start] for a in call.arguments]))

    def tell(
        self,
        before: int,
        room: int,
        shown: Collection[int] = (),
        extra: int = 0,
        first: ThreadText = ThreadText(),
        hint: str = "",
    ) -> ThreadText:
        """The calls of interactions before ``before``, but those ``shown`` elsewhere, in at most ``room`` tokens.

        ``extra``: tokens beyond the room, for naming calls that changed something and for lines of those that brought
        back ids. ``first``: the list when none was shown elsewhere; the others of its lines come before anything
        else. ``hint``: what the heading says after its first words.
        """
        elsewhere = frozenset(shown)
        older = bisect_left(self._calls, before, key=lambda c: c.interaction)
        calls = [c for c in self._calls[:older] if c.number not in elsewhere]
        words = self._words(before, room)
        if not calls and not words:
            return ThreadText()
        head = HEAD.format(hint)
        left = room - (self.cost(words) if words else 0) - self.cost(head)
        listing = _Listing(self, calls, left, extra, first.lines)
        while True:
            text = (head if calls else "") + listing.text() + words
            tokens = self.count(text) if text else 0
            over = tokens - room - listing.more_tokens
            if over <= 0:
                return ThreadText(text, tokens, listing.named, listing.lines)
            if not listing.shorten(over):
                if not words:
                    break
                words = ""
        span = f"#{calls[0].number} to #{calls[-1].number}" if calls else ""
        for text in (f"Calls {span}{hint}.\n", f"{span}\n") if calls else ():
            if (tokens := self.count(text)) <= room:
                return ThreadText(text, tokens)
        return ThreadText()

    def _words(self, before: int, room: int) -> str:
        """The latest plan, the state of the task, the latest decisions; each has a share of the room, in tokens."""
        plan = next((text for at, text in reversed(self._plans or self._steps) if at < before), "")
        decided = list(dict.fromkeys(text for at, text in self._decisions if at < before))
        whole = self.cost(plan) + self.cost(PLAN_HEAD) + 2 <= int(room * 0.2)
        texts = []
        for head, lines, share in (
            (PLAN_HEAD, (plan.split("\n") if whole else short_plan(plan)) if plan else [], 0.2),
            (STATE_HEAD, self._state(before), 0.1),
            (DECISIONS_HEAD, decided[:-9:-1], 0.1),  # the latest first
        ):
            left = int(room * share) - self.cost(head) - 2
            chosen: list[str] = []
            for line in lines:
                left -= self.cost(line + "\n")
                if left < 0:
                    break
                chosen.append(line + "\n")
            if chosen and head is DECISIONS_HEAD:
                chosen.reverse()
            elif chosen and head is PLAN_HEAD and len(chosen) < len(lines):
                chosen.append("…\n")
            texts += [head, *chosen] if chosen else []
        return "".join(texts)

    def _state(self, before: int) -> list[str]:
        """The commands whose latest run failed, the newest first, and the files that calls changed or made.

        A list of commands is known by its last one, which the others prepare.
        """
        latest: dict[str, _Call] = {}
        times: Counter[str] = Counter()
        new_files: set[str] = set()
        seen: set[str] = set()  # what calls have found or changed, by its name
        for call in self._calls[: bisect_left(self._calls, before, key=lambda c: c.interaction)]:
            if call.command:
                last = re.split("&&|;", call.command)[-1].strip()
                last = call.command if last.count('"') % 2 or last.count("'") % 2 else last  # within a text
                latest.pop(last, None)
                latest[last] = call
            if call.file:
                new_files |= {call.file} if call.makes and call.file not in seen else set()
                times[call.file] = times.pop(call.file, 0) + 1  # the newest last
                seen.add(call.file)
            if not call.failed:
                seen.update(a.text for a in call.arguments)
        lines = [
            f"failed last: {clip(c.command, _COMMAND_CHARS)} (#{c.number})"
            for c in reversed(latest.values())
            if c.failed
        ][:_MOST_FAILING]
        if sum(times.values()) > 1:
            names = [
                f"{_file_name(f, times)}{' (made)' * (f in new_files)}{f' ×{n}' * (n > 1)}"
                for f, n in times.items()
            ]
            ellipsis = "…, " * (len(names) > _MOST_FILES)
            lines.insert(0, f"files changed: {ellipsis}{', '.join(names[-_MOST_FILES:])}")
        return lines


def _work_of(tool: str, arguments: str) -> tuple[str, str, bool]:
    """The program of a call, the file that it changes, and whether it writes that as a whole; "" for none."""
    access = file_access(tool, arguments)
    if access is not None:
        return "", one_line(access.path) if access.access != "read" else "", access.access == "write"
    if not runs(tool, arguments):
        return "", "", False
    values = parse_arguments(arguments)
    text = next((values[k] for k in ("command", "cmd") if isinstance(values.get(k), str)), "")[:_READ_CHARS]
    edited, written = _EDITED.search(text), _MADE_BY_SHELL.search(text)
    file = edited[1] or edited[2] if edited else written[1] if written else ""
    return one_line(_BEFORE_COMMAND.sub("", text)), one_line(file), written is not None and edited is None


def _file_name(path: str, others: Collection[str]) -> str:
    """The last part of a path, with the folders that tell it from other paths."""
    parts = re.split(r"[/\\]", path)
    for count in range(1, min(4, len(parts)) + 1):
        if sum(re.split(r"[/\\]", other)[-count:] == parts[-count:] for other in others) < 2:
            break
    return clip("/".join(parts[-count:]), _NAME_CHARS)


class _Listing:
    """Which form each call takes in a room: a line of its own (``first`` first), its tool's line, or counted."""

    def __init__(
        self, thread: Thread, calls: Sequence[_Call], room: int, extra: int, first: frozenset[int]
    ) -> None:
        self._thread, self._calls, self._extra = thread, calls, extra
        changed = [c for c in calls if c.changed][-MOST_NAMED:]
        looked = [c for c in calls if not c.changed][-MOST_NAMED:]
        shown = sorted([*changed, *looked], key=lambda c: c.number)
        by_tool: dict[str, list[tuple[Argument, ...]]] = {}
        place = {}  # of each among the tool's calls
        for call in shown:
            of_tool = by_tool.setdefault(call.tool, [()])
            place[call.number] = len(of_tool)
            of_tool.append(thread.distinct(call))
        newest = shown[::-1]
        # a line for each tool with its name and the range of its numbers, and a few tokens to spare
        groups = {(c.tool, c.failed) for c in calls}
        room -= 4 + sum(thread.cost(f"{t} ×100 #100 to #200\n") + 2 for t, _ in groups)
        for chars in (VALUE_CHARS, LEAST_CHARS):
            self._forms: list[tuple[int, bool, int]] = []  # (number, whether a line of its own, tokens)
            self._left = room
            self.more_tokens = 0  # beyond the room
            self._values: dict[int, Values] = {}
            for call in shown:
                at = place[call.number]
                around = by_tool[call.tool][at - 1 : at + 2]
                others = around[0], around[2] if len(around) > 2 else ()
                self._values[call.number] = thread.shown_values(around[1], others, chars)
            # by number, tokens of values; none for what another call's value says
            self._paid: dict[int, int] = {}
            self._written: set[tuple[str, str]] = set()
            before = [c for c in newest if c.number in first]
            self._add_values(before)
            self._add_lines(before)
            self._add_values([c for c in newest if c.number not in self._paid])
            self._add_lines(newest)
            self._settle()
            if len(self.named) == len(shown):
                break

    def _pays(self, call: _Call, is_line: bool, price: int, beyond: bool) -> bool:
        """Take a form of a call if there is room for it, ``beyond``: if need be beyond the room."""
        if price > self._left + beyond * (self._extra - self.more_tokens):
            return False
        self._forms.append((call.number, is_line, price))
        self._left -= price
        if self._left < 0:
            self.more_tokens, self._left = self.more_tokens - self._left, 0
        return True

    def _add_values(self, calls: Sequence[_Call]) -> None:
        for call in sorted(calls, key=lambda c: not c.changed):
            parts = {
                (call.tool, "".join([f"{text}, " for _, text in p]))
                for p in _parts(self._values[call.number])
            }
            new = parts - self._written
            price = sum([self._thread.cost(text) for _, text in new]) + bool(new)
            if self._pays(call, False, price, call.changed):
                self._written |= new
                self._paid[call.number] = price

    def _add_lines(self, calls: Sequence[_Call]) -> None:
        lines = {number for number, is_own, _ in self._forms if is_own}
        changed = [c for c in calls if c.changed]
        failed = [c for c in calls if c.failed and not c.changed]
        found_ids = [c for c in calls if not c.failed and c.has_id]
        for wanted in (changed, failed, found_ids):
            for call in wanted:
                if call.number in self._paid and call.number not in lines:
                    price = max(1, self._thread.cost(self._line(call) + "\n") - self._paid[call.number])
                    if self._pays(call, True, price, wanted is found_ids):
                        lines.add(call.number)

    def _settle(self) -> None:
        self.named = frozenset(number for number, is_line, _ in self._forms if not is_line)
        self.lines = frozenset(number for number, is_line, _ in self._forms if is_line)

    def shorten(self, tokens: int) -> bool:
        """Give some calls a shorter form, the least important first; False where all are counted already."""
        if not self._forms:
            return False
        while self._forms and tokens > 0:
            tokens -= self._forms.pop()[2]
        self._settle()
        return True

    def text(self) -> str:
        lines = [self._line(c) for c in self._calls if c.number in self.lines]
        groups: dict[tuple[str, bool], list[_Call]] = {}
        rest = [c for c in self._calls if c.number not in self.lines]
        for call in sorted(rest, key=lambda c: not c.changed):  # those that changed something first
            groups.setdefault((call.tool, call.failed), []).append(call)
        for (tool, failed), calls in groups.items():
            name, text = f"{tool} failed" if failed else tool, ""
            counted = [c.number for c in calls if c.number not in self.named]
            if valued := [c.number for c in calls if c.number in self.named]:
                values = [v for number in valued if (v := self._values[number])]
                keys = {v[0][0] for v in values}
                common = keys.pop() if len(keys) == 1 else ""
                bodies: dict[Values, dict[str, None]] = {}  # by file
                for file, others in map(_parts, values):
                    body = ", ".join(t if k == common else named(k, t) for k, t in others)
                    bodies.setdefault(file, {})[body] = None
                texts = [", ".join([*(t for _, t in file), "; ".join(b)]) for file, b in bodies.items()]
                text = f"{ranges(valued)} {name}"
                text += f" {named(common, '; '.join(texts))}" if texts else ""
            if counted:
                span, times = ranges(counted), f"×{len(counted)}"
                text = f"{text}; besides {times} {span}" if text else f"{span} {name} {times}"
            lines.append(text)
        return "".join(f"{line}\n" for line in lines)

    def _line(self, call: _Call) -> str:
        return self._thread.own_line(call, self._thread.distinct(call), self._values[call.number])


def _parts(values: Values) -> tuple[Values, Values]:
    """The file that other values of a call are of, or none; and these."""
    at = int(len(values) > 1 and values[0][0] in PATH_KEYS)
    return values[:at], values[at:]


def _shown_values(
    distinct: tuple[Argument, ...], beside: tuple[tuple[Argument, ...], ...], chars: int
) -> Values:
    """The values that distinguish a call from the calls before and after it, as they are shown."""
    others = [{a.key: a.text for a in other} for other in beside]
    return tuple(
        (a.key, shown_value(a.text, chars, [o[a.key] for o in others if a.key in o])) for a in distinct
    )


def _own_line(call: _Call, distinct: tuple[Argument, ...], values: Values) -> str:
    """A call on a line of its own: what distinguishes it, other arguments while there is room, its outcome."""
    shown = [named(k, t) for k, t in values]
    room = LINE_CHARS - sum(len(s) + 2 for s in shown)
    for argument in sorted(call.arguments, key=lambda a: a.key not in PATH_KEYS):  # its file first
        part = named(argument.key, ending(argument.text, LEAST_CHARS))
        if argument not in distinct and len(part) <= room:
            shown.append(part)
            room -= len(part) + 2
    text = f"#{call.number} {call.tool} {', '.join(shown)}" if shown else f"#{call.number} {call.tool}"
    return f"{text} → {call.outcome}" if call.outcome else text


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as ``#1, #3 to #7``, in order; more than six runs as the first and the last with ``…`` between."""
    runs = runs_of(numbers)
    written = [f"#{a}" if a == b else f"#{a} to #{b}" if b > a + 1 else f"#{a}, #{b}" for a, b in runs]
    if len(written) > 6:
        written = [*written[:3], "…", *written[-2:]]
    return ", ".join(written)
