"""The evidence that every turn of a recorded run needed, values known only from earlier tool outputs, and its recall.

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from memory_bank.audit.text import (
    NeedKind,
    NormalText,
    call_values,
    forms_of,
    identifiers,
    leaves,
    normalise,
    parsed_arguments,
)
from memory_bank.audit.traces import Trace, content_texts, is_turn, message_texts
from memory_bank.transcript import MessageKind, calls_of, compact, kind_of, read

MOST_NEEDS = 20
"""At most this many values of a turn count, chosen by a hash: long code must not outweigh the rest."""

SUPPORT_CHARS, BOUND_CHARS = 80, 240
"""Characters on either side of an occurrence whose words are its context, and in which these are looked for."""

_SUPPORTS = 12  # no further message is looked at once there are this many contexts
_EMPTY_WORDS = frozenset({"null", "none", "nan", "true", "false"})
_KEY = re.compile(r'"[-\w ]{1,40}"\s*:|\b[-\w]{1,40}(?:=|:\s)')


@dataclass(frozen=True, slots=True)
class Need:
    """One value that a turn used and that only earlier tool outputs had.

    ``age`` counts interactions back to the latest message that had it (1: the last interaction). ``first_use``: no
    earlier assistant turn wrote it. ``born`` says whose message had it first. ``supports`` are the words around its
    occurrences, newest first; an empty set is matched by any context.
    """

    value: str
    forms: tuple[NormalText, ...]
    kind: NeedKind
    age: int
    first_use: bool
    born: Literal["tool", "agent"]
    supports: tuple[frozenset[str], ...]


@dataclass(frozen=True, slots=True)
class NeedyTurn:
    """One assistant turn after the first tool output: its position in the messages and its needs."""

    position: int
    kind: Literal["call", "say"]
    needs: tuple[Need, ...]


def _words_near(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[^\W_]{2,}", text))


def recall(need: Need, texts: Iterable[NormalText]) -> tuple[bool, bool]:
    """``(present, bound)`` of a need in a context.

    Bound: within 240 characters on either side are at least half of the words of one of its original
    occurrences. A value that once had no words around it is bound wherever it is present.
    """
    supports = [s for s in need.supports if s]
    alone = len(supports) < len(need.supports) or not supports
    present = False
    for text in texts:
        for form in need.forms:
            for at in text.places(form, 1 if alone else 40):
                present = True
                if alone:
                    return True, True
                stop = at + len(form)
                sides = text[max(0, at - BOUND_CHARS) : at], text[stop : stop + BOUND_CHARS]
                near = _words_near(sides[0]) | _words_near(sides[1])
                if any(len(s & near) >= 0.5 * len(s) for s in supports):
                    return True, True
    return present, False


def environment_constants(traces: Iterable[Trace]) -> frozenset[str]:
    """Argument values, in normal form, that a fifth of the tasks (at least eight) use: they need no memory."""
    tasks: set[str] = set()
    users: defaultdict[str, set[str]] = defaultdict(set)
    for trace in traces:
        task = trace.task or trace.id
        tasks.add(task)
        for call in (c for m in trace.messages if is_turn(m) for c in calls_of(m)):
            arguments = parsed_arguments(call.arguments)
            if isinstance(arguments, str) and arguments == call.arguments:
                continue  # not JSON
            for text, _ in leaves(arguments):
                values = [text] if len(text) < 200 else []
                for value in values + (identifiers(text) if len(text) > 12 else []):
                    users[normalise(value)].add(task)
    least = max(8, 0.2 * len(tasks))
    return frozenset(value for value, by in users.items() if len(by) >= least)


def needs_of(trace: Trace, constants: frozenset[str] = frozenset()) -> list[NeedyTurn]:
    """The turns of a trace with their needs, in order, from the first tool output on."""
    index = _SearchIndex(trace)
    turns: list[NeedyTurn] = []
    for position, message in enumerate(trace.messages):
        kind = kind_of(message)
        if is_turn(message) and index.outputs:
            act: Literal["call", "say"] = "call" if kind is MessageKind.CALL else "say"
            turns.append(NeedyTurn(position, act, index.needs(message, constants)))
        index.add(position, message, kind)
    return turns


class _SearchIndex:
    """The messages of a trace before a turn, indexed by their words."""

    def __init__(self, trace: Trace) -> None:
        self.outputs: set[int] = set()  # positions of tool outputs
        self._asked: set[int] = set()  # of system and user messages
        self._replies: set[int] = set()  # of the assistant's
        self._turns: list[int] = []  # where interactions begin
        self._texts: list[NormalText] = []
        self._holding: dict[str, list[int]] = {}  # word → positions
        self._places: dict[str, tuple[int, list[int]]] = {}  # form → messages searched, positions found
        try:
            schema = json.dumps(trace.tools, ensure_ascii=False, default=str) if trace.tools else ""
        except (RecursionError, ValueError):
            schema = compact(trace.tools)
        self._schema = normalise(schema)

    def add(self, position: int, message: object, kind: MessageKind) -> None:
        text = NormalText(" \n ".join(map(normalise, message_texts(message))))
        for word in text.words:
            self._holding.setdefault(word, []).append(position)
        self._texts.append(text)
        if kind is MessageKind.RESULT:
            self.outputs.add(position)
        elif kind in (MessageKind.SYSTEM, MessageKind.USER):
            self._asked.add(position)
        elif is_turn(message):
            self._replies.add(position)
        if kind is MessageKind.CALL:
            self._turns.append(position)

    def needs(self, message: object, constants: frozenset[str]) -> tuple[Need, ...]:
        candidates: dict[str, NeedKind]
        if kind_of(message) is MessageKind.CALL:
            arguments = (c.arguments for c in calls_of(message))
            candidates = call_values(
                arguments, lambda t: not self.outputs.isdisjoint(self._search(normalise(t)))
            )
        else:
            text = "\n".join(content_texts(read(message, "content")))
            candidates = dict.fromkeys(identifiers(text), "token")
        by_form: dict[NormalText, Need] = {}
        for value, kind in candidates.items():
            forms = forms_of(value)
            is_known = forms[0] in constants or forms[0] in by_form
            if not is_known and (need := self._need(value, forms, kind)):
                by_form[forms[0]] = need
        # a value within a longer one of the same turn does not count
        whole = [n for form, n in by_form.items() if not any(t.places(form) for t in by_form if t != form)]
        if len(whole) > MOST_NEEDS:

            def digest(need: Need) -> bytes:
                text = need.forms[0].encode("utf-8", "surrogatepass")
                return hashlib.md5(text, usedforsecurity=False).digest()

            whole.sort(key=digest)
        return tuple(whole[:MOST_NEEDS])

    def _need(self, value: str, forms: tuple[NormalText, ...], kind: NeedKind) -> Need | None:
        places = {p for form in forms for p in self._search(form)}
        outputs, from_agent = places & self.outputs, places & self._replies
        if not outputs or places & self._asked or self._schema.holds(forms):
            return None
        latest = max(outputs | from_agent)
        return Need(
            value=value,
            forms=forms,
            kind=kind,
            age=max(1, len(self._turns) - bisect_right(self._turns, latest) + 1),
            first_use=not from_agent,
            born="agent" if from_agent and min(from_agent) < min(outputs) else "tool",
            supports=self._supports(forms, sorted(outputs | from_agent, reverse=True)),
        )

    def _search(self, form: NormalText) -> list[int]:
        """The positions of the messages that hold a form, oldest first; no message is searched twice."""
        searched, positions = self._places.get(form, (0, []))
        if searched < len(self._texts):
            candidates: Sequence[int] = range(searched, len(self._texts))
            if form.words:  # only messages that hold its rarest word
                rarest = min((self._holding.get(w, []) for w in sorted(form.words)), key=len)
                candidates = rarest[bisect_right(rarest, searched - 1) :]
            positions += [p for p in candidates if self._texts[p].places(form)]
            self._places[form] = (len(self._texts), positions)
        return positions

    def _supports(self, forms: Sequence[NormalText], positions: Iterable[int]) -> tuple[frozenset[str], ...]:
        sets: dict[frozenset[str], None] = {}
        for p in positions:
            text = self._texts[p]
            sets |= dict.fromkeys(_support(text, at, at + len(f)) for f in forms for at in text.places(f, 3))
            if len(sets) >= _SUPPORTS:
                break
        return tuple(sets)


def _support(text: str, start: int, stop: int) -> frozenset[str]:
    """The words around an occurrence without keys and empty words, or a word that is cut off on the left."""
    before = text[max(0, start - SUPPORT_CHARS) : start]
    if start > SUPPORT_CHARS and " " in before:
        before = before[before.index(" ") + 1 :]
    sides = (before, text[stop : stop + SUPPORT_CHARS])
    return frozenset().union(*(_words_near(_KEY.sub(" ", side)) for side in sides)) - _EMPTY_WORDS
