"""The evidence that every turn of a recorded run needed: values known only from earlier tool outputs.

The reference meter defines it (``evbench.evidence``): a value of a turn's calls (or answer) is evidence when
an earlier tool output holds it, no earlier system or user message and no tool schema does, and it is not a
constant of the environment.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from memory_bank.lab.meter.matching import Form, Page, Reader, normalise
from memory_bank.lab.meter.values import (
    NeedKind,
    call_values,
    forms_of,
    identifiers,
    leaves,
    parsed_arguments,
)
from memory_bank.lab.traces import Trace, content_texts, is_turn, message_texts
from memory_bank.transcript import MessageKind, calls_of, compact, kind_of, read

MOST_NEEDS = 20
"""At most this many values of a turn count, chosen by a hash: long code must not outweigh the rest."""

SUPPORT_CHARS = 80
"""Characters on either side of an occurrence whose words are its context."""

_SUPPORT_PLACES = 3  # occurrences looked at in one message
_SUPPORTS = 12  # no further message is looked at once there are this many
_CONSTANT_SHARE, _CONSTANT_TASKS = 0.2, 8
_CONSTANT_CHARS = 200

_WORD = re.compile(r"[^\W_]{2,}")
_EMPTY_WORDS = frozenset({"null", "none", "nan", "true", "false"})
_KEY = re.compile(r'"[-\w ]{1,40}"\s*:|\b[-\w]{1,40}(?:=|:\s)')


@dataclass(frozen=True, slots=True)
class Need:
    """One value that a turn used and that only earlier tool outputs held.

    ``age`` counts interactions back to the latest message that held it (1: the last interaction),
    ``age_output`` to the latest output that did. ``first_use``: no earlier assistant turn wrote it. ``born``
    says whose message held it first. ``supports`` are the words around its occurrences, newest first; an
    empty set is matched by any context.
    """

    value: str
    forms: tuple[Form, ...]
    kind: NeedKind
    age: int
    age_output: int
    first_use: bool
    born: Literal["tool", "agent"]
    supports: tuple[frozenset[str], ...]


@dataclass(frozen=True, slots=True)
class NeedyTurn:
    """One assistant turn after the first tool output: its position in the messages and its needs."""

    position: int
    kind: Literal["call", "say"]
    needs: tuple[Need, ...]


def words_near(text: str) -> frozenset[str]:
    """The words of two and more characters in a text."""
    return frozenset(_WORD.findall(text))


def environment_constants(traces: Iterable[Trace]) -> frozenset[str]:
    """Argument values, in normal form, that a fifth of the tasks (at least eight) use: they need no memory.

    A task is the trace's ``task``, or the trace itself where it names none.
    """
    tasks: set[str] = set()
    users: defaultdict[str, set[str]] = defaultdict(set)
    for trace in traces:
        task = trace.task or trace.id
        tasks.add(task)
        for message in trace.messages:
            if not is_turn(message):
                continue
            for call in calls_of(message):
                arguments = parsed_arguments(call.arguments)
                if isinstance(arguments, str) and arguments == call.arguments:
                    continue  # not JSON
                for text, _ in leaves(arguments):
                    if len(text) < _CONSTANT_CHARS:
                        users[normalise(text)].add(task)
                    if len(text) > 12:
                        for token in identifiers(text):
                            users[normalise(token)].add(task)
    least = max(_CONSTANT_TASKS, _CONSTANT_SHARE * len(tasks))
    return frozenset(value for value, by in users.items() if len(by) >= least)


def needs_of(
    trace: Trace, constants: frozenset[str] = frozenset(), reader: Reader | None = None
) -> list[NeedyTurn]:
    """The turns of a trace with their needs, in order, from the first tool output on."""
    reader = reader or Reader()
    index = _SearchIndex(reader, _schema_page(trace))
    turns: list[NeedyTurn] = []
    for position, message in enumerate(trace.messages):
        kind = kind_of(message)
        if is_turn(message) and index.outputs:
            turns.append(
                NeedyTurn(
                    position, "call" if kind is MessageKind.CALL else "say", index.needs(message, constants)
                )
            )
        index.add(position, message, kind)
    return turns


def _schema_page(trace: Trace) -> Page:
    if not trace.tools:
        return Page("")
    try:
        text = json.dumps(trace.tools, ensure_ascii=False, default=str)
    except (RecursionError, ValueError):
        text = compact(trace.tools)
    return Page(normalise(text))


class _SearchIndex:
    """The messages before a turn, indexed by their words."""

    def __init__(self, reader: Reader, schema: Page) -> None:
        self.outputs: set[int] = set()  # positions of tool outputs
        self._asked: set[int] = set()  # of system and user messages
        self._own: set[int] = set()  # of the assistant's
        self._turns: list[int] = []  # where interactions begin
        self._pages: list[Page] = []
        self._holding: dict[str, list[int]] = {}  # word → positions
        self._known: dict[str, tuple[int, list[int]]] = {}  # form → messages searched, positions found
        self._reader = reader
        self._schema = schema

    def add(self, position: int, message: object, kind: MessageKind) -> None:
        """Add the next message."""
        texts = message_texts(message)
        page = self._reader.read("\0".join(texts), lambda: " \n ".join(map(normalise, texts)))
        for word in page.words:
            self._holding.setdefault(word, []).append(position)
        self._pages.append(page)
        if kind is MessageKind.RESULT:
            self.outputs.add(position)
        elif kind in (MessageKind.SYSTEM, MessageKind.USER):
            self._asked.add(position)
        elif is_turn(message):
            self._own.add(position)
        if kind is MessageKind.CALL:
            self._turns.append(position)

    def needs(self, message: object, constants: frozenset[str]) -> tuple[Need, ...]:
        """The evidence of the next turn."""
        candidates: dict[str, NeedKind]
        calls = calls_of(message) if kind_of(message) is MessageKind.CALL else []
        if calls:
            candidates = call_values((c.arguments for c in calls), self._in_an_output)
        else:
            text = "\n".join(content_texts(read(message, "content")))
            candidates = dict.fromkeys(identifiers(text), "token")
        found: dict[str, Need] = {}
        for value, kind in candidates.items():
            forms = forms_of(value)
            normal = forms[0].text
            if normal in constants or normal in found:
                continue
            need = self._need(value, forms, kind)
            if need is not None:
                found[normal] = need
        pages = {n.forms[0].text: Page(n.forms[0].text) for n in found.values()}
        whole = [n for n in found.values() if not _is_within_another(n.forms[0], pages)]
        if len(whole) > MOST_NEEDS:
            whole.sort(key=lambda n: hashlib.md5(_bytes(n.forms[0].text), usedforsecurity=False).digest())
        return tuple(whole[:MOST_NEEDS])

    def _in_an_output(self, text: str) -> bool:
        return any(p in self.outputs for p in self._search(Form(normalise(text))))

    def _need(self, value: str, forms: tuple[Form, ...], kind: NeedKind) -> Need | None:
        places = {p for form in forms for p in self._search(form)}
        outputs, own = places & self.outputs, places & self._own
        if not outputs or places & self._asked or self._schema.holds(forms):
            return None
        return Need(
            value=value,
            forms=forms,
            kind=kind,
            age=self._age(max(outputs | own)),
            age_output=self._age(max(outputs)),
            first_use=not own,
            born="agent" if own and min(own) < min(outputs) else "tool",
            supports=self._supports(forms, sorted(outputs | own, reverse=True)),
        )

    def _search(self, form: Form) -> list[int]:
        """The positions of the messages that hold a form, oldest first; no message is searched twice."""
        searched, found = self._known.get(form.text, (0, []))
        if searched < len(self._pages):
            for p in self._candidates(form, searched):
                if self._pages[p].places(form):
                    found.append(p)
            self._known[form.text] = (len(self._pages), found)
        return found

    def _candidates(self, form: Form, start: int) -> Sequence[int]:
        """The messages from ``start`` on that hold the rarest word of a form."""
        if not form.words:
            return range(start, len(self._pages))
        rarest = min((self._holding.get(w, []) for w in sorted(form.words)), key=len)
        return rarest[bisect_right(rarest, start - 1) :]

    def _age(self, position: int) -> int:
        return max(1, len(self._turns) - bisect_right(self._turns, position) + 1)

    def _supports(self, forms: Sequence[Form], positions: Iterable[int]) -> tuple[frozenset[str], ...]:
        found: dict[frozenset[str], None] = {}
        for p in positions:
            text = self._pages[p].text
            for form in forms:
                for at in self._pages[p].places(form, _SUPPORT_PLACES):
                    found[_support(text, at, at + len(form.text))] = None
            if len(found) >= _SUPPORTS:
                break
        return tuple(found)


def _support(text: str, start: int, stop: int) -> frozenset[str]:
    """The words around an occurrence without keys and empty words, or a word that is cut off on the left."""
    before = text[max(0, start - SUPPORT_CHARS) : start]
    if start > SUPPORT_CHARS and " " in before:
        before = before[before.index(" ") + 1 :]
    sides = (before, text[stop : stop + SUPPORT_CHARS])
    return frozenset().union(*(words_near(_KEY.sub(" ", side)) for side in sides)) - _EMPTY_WORDS


def _is_within_another(form: Form, pages: Mapping[str, Page]) -> bool:
    """Whether a longer value of the same turn holds this one."""
    return any(page.places(form) for text, page in pages.items() if text != form.text)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
