"""Where the values of a tool call came from: checked one by one against all the session has shown."""

from __future__ import annotations

import math
import re
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from memory_bank.errors import MessagesError
from memory_bank.provenance.index import PARTS, Source, SourceIndex
from memory_bank.provenance.kinds import (
    IDENTIFIERS,
    Kind,
    hard_runs,
    identifiers_in,
    kind_of_number,
    kind_of_text,
)
from memory_bank.provenance.nearest import Candidate
from memory_bank.provenance.places import leaves
from memory_bank.provenance.report import CallReport, Nearest, Origin, Place, ValueReport
from memory_bank.provenance.texts import normal, number_forms, runs
from memory_bank.transcript.interactions import Call, calls_of
from memory_bank.transcript.jsontext import RAW

_SOUGHT_WHOLE = 2_000  # longer texts are looked at token by token only
_TOKENS = 400  # of one text
_IN_TEXT = frozenset({Kind.EMAIL, Kind.URL, Kind.PATH, Kind.CODE, Kind.LONG_NUMBER})
_MAKING = re.compile(
    r"creat|write|save|new|make|mkdir|touch|export|generat|upload|insert|move|copy|rename|download|edit|append|"
    r"convert|add|merge|set|(?:^|[._-])(?:mv|cp|tee)$",
    re.I,
)
_NAMING = re.compile(
    r"(?:^|_)(?:name|title|file|filename|path|dest|destination|output|out|target|new|folder|dir|directory|slug|label|"
    r"branch|save|uri|url)(?:$|_)|(?:name|path|file|output|dir)$|^(?:new|output|out|dest)",
    re.I,
)
_LETTERS_THEN_DIGITS = re.compile(r"([a-z]+)(\d{4,})\Z")

_SCHEMES = frozenset({"http", "https", "www", "ftp", "file"})
_SMALL_NUMBERS = re.compile(r"(?<!\d)\d{1,2}(?![\da-z])")

_indexes: weakref.WeakKeyDictionary[Any, SourceIndex] = weakref.WeakKeyDictionary()
_indexes_lock = threading.Lock()


def index_of(state: Any, messages: Any = None, tools: Any = None) -> SourceIndex:
    """The index of a state, up to date: kept beside the state and built piece by piece.

    ``messages`` default to those of the last step. Raises MessagesError when they are no list, StorageError
    when the database refuses.
    """
    with _indexes_lock:
        index = _indexes.get(state)
        if index is None:
            index = _indexes[state] = SourceIndex(state.session_id)
    with index.lock:
        generation = state.database.generation(state.session_id)
        if index.generation != generation:
            index.reset()
            index.generation = generation
        index.read_tools(tools)
        steps: dict[str, int] = state.steps
        if messages is not None:
            index.read_messages(messages, steps)
        elif state.last_plan is not None:
            index.read_view(state.last_plan.view, steps)
        stored = steps or (state.fact_store.steps() if state.last_plan is None else {})
        missing = index.lacks(list(stored))
        if missing:
            index.read_records(state.fact_store.get_many(missing))
        index.read_brought(state.brought)
    return index


def check_call(call: Any, state: Any, messages: Any = None, *, tools: Any = None) -> CallReport:
    """Where each argument value of a tool call came from.

    ``call`` is an OpenAI tool call (dict or SDK object), a function_call item, or ``(name, arguments)`` with
    arguments as JSON text or as an object. ``messages`` are those before the call; they default to what the
    strategy was given at its last step. A last turn whose calls are unanswered is not taken for a source: it
    holds the call itself. ``tools`` are the schemas that the agent was given.

    Raises MessagesError when the messages are no list or the call is none, StorageError when the database
    refuses.
    """
    made = _call(call)
    index = index_of(state, messages, tools)
    with index.lock:
        check = _Check(made, index)
        return CallReport(made.name, tuple(check.values()))


def _call(call: Any) -> Call:
    if isinstance(call, Call):
        return call
    if isinstance(call, tuple) and len(call) == 2 and isinstance(call[0], str):
        return Call(None, call[0], call[1])
    found = calls_of(call) if _is_item(call) else calls_of({"role": "assistant", "tool_calls": [call]})
    if not found or found[0].name == "unknown":
        raise MessagesError("this is no tool call: pass a tool_call with its function, or (name, arguments).")
    return found[0]


def _is_item(call: Any) -> bool:
    kind = call.get("type") if isinstance(call, Mapping) else getattr(call, "type", None)
    return isinstance(kind, str) and kind.endswith("_call")


def _words(value: str) -> list[str]:
    return [r for r in runs(value) if len(r) > 2 and not r.isdigit() and r not in _SCHEMES]


class _Check:
    """One call against one index."""

    def __init__(self, call: Call, index: SourceIndex) -> None:
        self.index = index
        self.name = call.name
        self.arguments = call.raw_input
        self.making = bool(_MAKING.search(call.name))

    def values(self) -> Iterator[ValueReport]:
        arguments = self.arguments
        if isinstance(arguments, dict) and list(arguments) == [RAW]:
            arguments = arguments[RAW]
        elif isinstance(arguments, dict) and self._names_tool(arguments):
            self.making = True
        for path, key, leaf in leaves(arguments):
            yield from self._value(path, key, leaf)

    def _names_tool(self, arguments: Mapping[str, Any]) -> bool:
        """A tool that runs tools says in its arguments what is done."""
        return any(
            isinstance(v, str) and len(v) < 60 and _MAKING.search(v)
            for k, v in arguments.items()
            if k in ("tool_name", "tool", "name", "action", "command", "operation", "method")
        )

    def _value(self, path: str, key: str, leaf: Any) -> Iterator[ValueReport]:
        if leaf is None or isinstance(leaf, bool) or leaf == "":
            yield ValueReport(path, leaf, str(Kind.TRIVIAL), Origin.TRIVIAL)
            return
        if isinstance(leaf, (int, float)):
            yield self._number(path, key, leaf)
            return
        kind = kind_of_text(leaf, key)
        if kind is Kind.TRIVIAL:
            yield ValueReport(path, leaf, str(kind), Origin.TRIVIAL)
            return
        wanted = normal(leaf) if len(leaf) <= _SOUGHT_WHOLE else ""
        holder = self._holder(wanted, kind)
        if holder is not None:
            yield self._found(path, leaf, kind, wanted, holder)
        elif kind in IDENTIFIERS:
            yield self._identifier(path, key, leaf, kind)
        else:
            yield ValueReport(path, leaf, str(kind), Origin.WRITTEN)
            if kind is Kind.TEXT:
                yield from self._tokens(path, key, leaf)

    def _holder(self, wanted: str, kind: Kind) -> Source | None:
        forms = number_forms(wanted) if kind in (Kind.NUMBER, Kind.LONG_NUMBER) else iter((wanted,))
        for form in forms:
            if form and (found := self.index.holders(form, 1)):
                return found[0]
        return None

    def _found(self, path: str, leaf: Any, kind: Kind, wanted: str, source: Source) -> ValueReport:
        known = self.index.neighbours.get(wanted)
        if known is not None and self.index.sources[known.source] is source:
            place = known.place
        else:
            place = source.place_of(wanted) if source.role == "record" else ""
        where = Place(source.role, place, source.trace_id, source.tool, source.step, source.session_id)
        return ValueReport(path, leaf, str(kind), Origin(source.role), where)

    def _number(self, path: str, key: str, leaf: float) -> ValueReport:
        kind = kind_of_number(leaf, key) if math.isfinite(leaf) else Kind.TRIVIAL
        if kind is Kind.TRIVIAL:
            return ValueReport(path, leaf, str(kind), Origin.TRIVIAL)
        text = repr(leaf)
        holder = self._holder(text, Kind.NUMBER)
        if holder is not None:
            return self._found(path, leaf, kind, text, holder)
        if kind in IDENTIFIERS:
            report = self._identifier(path, key, text, kind)
            return ValueReport(path, leaf, report.kind, report.origin, None, report.nearest, report.unknown)
        return ValueReport(path, leaf, str(kind), Origin.WRITTEN)

    # identifiers that stand nowhere as they are

    def _identifier(self, path: str, key: str, leaf: str, kind: Kind) -> ValueReport:
        wanted = normal(leaf)
        if self.index.knows_joined(wanted):
            return ValueReport(path, leaf, str(kind), Origin.COMPOSED)
        unknown = self._hard_unknown(leaf)
        if unknown:
            if self.making and kind in (Kind.PATH, Kind.CODE) and _NAMING.search(key):
                near = self.index.neighbours.nearest(wanted, key, 1)
                if near is None or len(wanted) < 8:
                    return ValueReport(path, leaf, str(kind), Origin.WRITTEN, unknown=unknown)
            return self._nowhere(path, key, leaf, kind, unknown)
        unknown = self._soft_unknown(wanted, kind)
        if not unknown:
            return ValueReport(path, leaf, str(kind), Origin.COMPOSED)
        near = self._slip(wanted, key, hard_runs(leaf))
        if kind is Kind.EMAIL or near is not None:
            return self._nowhere(path, key, leaf, kind, unknown, near)
        if self._is_strange(kind, wanted, unknown):
            return self._nowhere(path, key, leaf, kind, unknown)  # no part of it is known
        slip = self._slip_of_part(path, key, leaf, kind, unknown)
        return slip or ValueReport(path, leaf, str(kind), Origin.WRITTEN, unknown=unknown)

    def _slip_of_part(
        self, path: str, key: str, leaf: str, kind: Kind, unknown: tuple[str, ...]
    ) -> ValueReport | None:
        """A path of which one part differs from a real one as by a slip of the pen."""
        if kind not in (Kind.PATH, Kind.URL):
            return None
        parts = [p for p in PARTS.split(leaf) if p]
        if self.making and _NAMING.search(key):
            parts = parts[:-1]  # the thing itself is new, its folder is not
        for part in parts:
            if any(r in unknown for r in runs(normal(part))) and (near := self._slip(normal(part), "")):
                mended = replace(near[0], value=leaf.replace(part, near[0].value))
                return self._nowhere(path, key, leaf, kind, unknown, (mended, near[1]))
        return None

    def _is_strange(self, kind: Kind, wanted: str, unknown: Sequence[str]) -> bool:
        """Whether a path to something that exists already has no part that is known."""
        if kind is not Kind.PATH or self.making or len(unknown) < 2:
            return False
        return len(unknown) == len(_words(wanted)) and self.index.has_records()

    def _hard_unknown(self, leaf: str) -> tuple[str, ...]:
        return tuple(r for r in hard_runs(leaf) if not self._knows(r))

    def _knows(self, run: str) -> bool:
        if self.index.knows_run(run):
            return True
        parts = _LETTERS_THEN_DIGITS.match(run)
        return bool(parts) and self.index.knows_run(parts[2]) if parts else False

    def _soft_unknown(self, wanted: str, kind: Kind) -> tuple[str, ...]:
        """The words of an identifier that stand nowhere; an initial before a known name does not count."""
        unknown = [r for r in _words(wanted) if not self.index.knows_run(r)]
        if kind is Kind.EMAIL:
            unknown = [r for r in unknown if not (self.index.knows_run(r[1:]) or self._two_names(r))]
        return tuple(unknown)

    def _two_names(self, run: str) -> bool:
        return any(
            self.index.knows_run(run[:i]) and self.index.knows_run(run[i:]) for i in range(3, len(run) - 2)
        )

    def _slip(self, wanted: str, key: str, hard: Sequence[str] = ()) -> tuple[Candidate, int] | None:
        """A real identifier from which this one differs as by a slip of the pen, or None."""
        if len(wanted) < 6:
            return None
        near = self.index.neighbours.nearest(wanted, key, 2 if len(wanted) >= 10 else 1)
        if near is None:
            return None
        other = near[0].normal
        if (
            wanted.startswith(other)
            or other.startswith(wanted)
            or wanted.endswith(other)
            or other.endswith(wanted)
        ):
            return None  # made longer or shorter on purpose
        if not hard and _SMALL_NUMBERS.sub("0", wanted) == _SMALL_NUMBERS.sub("0", other):
            return None  # counted on: report_1, report_2
        return near

    def _nowhere(
        self,
        path: str,
        key: str,
        leaf: Any,
        kind: Kind,
        unknown: tuple[str, ...],
        near: tuple[Candidate, int] | None = None,
        *,
        token: bool = False,
    ) -> ValueReport:
        near = near or self.index.neighbours.nearest(normal(leaf), key)
        nearest = None
        if near is not None:
            candidate, edits = near
            source = self.index.sources[candidate.source]
            place = Place(
                source.role, candidate.place, source.trace_id, source.tool, source.step, source.session_id
            )
            nearest = Nearest(candidate.value, edits, place)
        return ValueReport(path, leaf, str(kind), Origin.NOWHERE, None, nearest, unknown, token)

    def _tokens(self, path: str, key: str, text: str) -> Iterator[ValueReport]:
        """In prose, queries and code only what looks like a slip is an alarm."""
        seen: set[str] = set()
        for token, kind, _ in identifiers_in(text):
            if kind not in _IN_TEXT or token in seen:
                continue
            seen.add(token)
            if len(seen) > _TOKENS:
                return
            unknown = self._hard_unknown(token)
            if kind is Kind.EMAIL and not unknown:
                unknown = self._soft_unknown(normal(token), kind)
            if not unknown or (kind is Kind.LONG_NUMBER and len(token) < 8):
                continue
            wanted = normal(token)
            if self._holder(wanted, kind) is not None or self.index.knows_joined(wanted):
                continue
            near = self._slip(wanted, key, unknown)
            if near is not None:
                yield self._nowhere(path, key, token, kind, unknown, near, token=True)
