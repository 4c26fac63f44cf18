"""check_call: where the argument values of a tool call came from; ProvenanceGuard: a hook that acts on it."""

from __future__ import annotations

import logging
import math
import re
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args

from memory_bank.errors import ConfigError, MessagesError, ProvenanceError
from memory_bank.provenance.index import (
    IDENTIFIERS,
    PATH_JOINTS,
    Near,
    Source,
    SourceIndex,
    ValueKind,
    hard_runs,
    identifiers_in,
    kind_of_number,
    kind_of_text,
    normal,
    number_forms,
    place_of,
    runs,
)
from memory_bank.provenance.report import CallReport, Nearest, Origin, ValueReport
from memory_bank.transcript.jsontext import RAW, compact, inner_json, is_deep, leaves
from memory_bank.transcript.messages import Call, calls_of, read

log = logging.getLogger("memory_bank.Provenance")

_NUMBERS = (ValueKind.NUMBER, ValueKind.LONG_NUMBER)
_CHECKED_IN_TEXT = IDENTIFIERS - {ValueKind.NAME}
_MAKES_NEW = re.compile(
    r"creat|write|save|new|make|mkdir|touch|export|generat|upload|insert|move|copy|rename|download|edit|append|"
    r"convert|add|merge|set|(?:^|[._-])(?:mv|cp|tee)$",
    re.I,
)
_NAMES_NEW = re.compile(
    r"(?:^|_)(?:name|title|file|filename|path|dest|destination|output|out|target|new|folder|dir|directory|slug|label|"
    r"branch|save|uri|url)(?:$|_)|(?:name|path|file|output|dir)$|^(?:new|output|out|dest)",
    re.I,
)
_NAMES_TOOL = ("tool_name", "tool", "name", "action", "command", "operation", "method")
_LETTERS_THEN_DIGITS = re.compile(r"([a-z]+)(\d{4,})\Z")

_SCHEMES = frozenset({"http", "https", "www", "ftp", "file"})
_SMALL_NUMBERS = re.compile(r"(?<!\d)\d{1,2}(?![\da-z])")

_indexes: weakref.WeakKeyDictionary[Any, SourceIndex] = weakref.WeakKeyDictionary()
_indexes_lock = threading.Lock()


def index_of(state: Any, messages: Any = None, tools: object = None) -> SourceIndex:
    """The session's index, brought up to date; arguments as of ``check_call``. Raises MessagesError, StorageError."""
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
        steps = state.steps
        if messages is not None:
            index.read_messages(messages, steps)
        else:
            index.read_view(state.last_plan.view, steps)
        stored = steps or (state.fact_store.steps() if not state.last_plan.strategy else {})
        if missing := index.lacks(list(stored)):
            index.read_records(state.fact_store.get_many(missing))
        index.read_brought(state.shown_elsewhere)
    return index


def check_call(
    call: object, state: Any, messages: Sequence[object] | None = None, *, tools: object = None
) -> CallReport:
    """The origin of each argument value of a tool call.

    Args:
        call: an OpenAI tool call (dict or SDK object), a function_call item, or ``(name, arguments)`` with
            the arguments as JSON text or as an object.
        state: the MemoryBankState of the session.
        messages: those before the call; default: those that the strategy was given at its last step. A last
            turn with unanswered calls is not a source, as it holds the call itself.
        tools: the schemas that the agent was given.

    Raises:
        MessagesError: the messages are not a list, or the call is not a tool call.
        StorageError: the database failed.

    Example:
        >>> check_call(("refund", {"order_id": "ORD-4711"}), state, messages).sentence()
        'In the call of refund, order_id = ORD-4711 is not in this session.'
    """
    parsed = _parse_call(call)
    index = index_of(state, messages, tools)
    with index.lock:
        return CallReport(parsed.name, tuple(_CallCheck(parsed, index).values()))


def _parse_call(call: Any) -> Call:
    if isinstance(call, Call):
        return call
    if isinstance(call, tuple) and len(call) == 2 and isinstance(call[0], str):
        return Call(None, call[0], call[1])
    is_item = str(read(call, "type")).endswith("_call")
    found = calls_of(call if is_item else {"role": "assistant", "tool_calls": [call]})
    if not found or found[0].name == "unknown":
        raise MessagesError(
            "this is not a tool call: pass a tool_call with its function, or (name, arguments)."
        )
    return found[0]


class _Argument(NamedTuple):
    """A value to check: its path and key in the arguments, the value, its text and its kind."""

    path: str
    key: str
    value: Any
    text: str
    kind: ValueKind

    def report(self, origin: Origin, **fields: Any) -> ValueReport:
        return ValueReport(self.path, self.value, str(self.kind), origin, **fields)


class _CallCheck:
    def __init__(self, call: Call, index: SourceIndex) -> None:
        self._index, self._arguments = index, call.raw_input
        self._makes_new = bool(_MAKES_NEW.search(call.name))

    def values(self) -> Iterator[ValueReport]:
        arguments = self._arguments
        if isinstance(arguments, dict) and list(arguments) == [RAW]:
            arguments = arguments[RAW]
        elif isinstance(arguments, dict):
            # the arguments of a tool that runs other tools may name one that makes something new
            named = (arguments.get(key) for key in _NAMES_TOOL)
            inner = (name for name in named if isinstance(name, str) and len(name) < 60)
            self._makes_new = self._makes_new or any(_MAKES_NEW.search(name) for name in inner)
        if is_deep(arguments):
            arguments = compact(arguments)
        for leaf in leaves(arguments, opened=inner_json):
            value, key = leaf.value, leaf.key
            if value is None or isinstance(value, bool) or value == "":
                text, kind = "", ValueKind.TRIVIAL
            elif isinstance(value, (int, float)):
                text, kind = repr(value), ValueKind.TRIVIAL
                kind = kind_of_number(value, key) if math.isfinite(value) else kind
            else:
                text, kind = value, kind_of_text(value, key)
            yield from self._check(_Argument(leaf.path, key, value, text, kind))

    def _check(self, argument: _Argument) -> Iterator[ValueReport]:
        kind, wanted = argument.kind, ""
        if kind is ValueKind.TRIVIAL:
            yield argument.report(Origin.TRIVIAL)
            return
        is_number = not isinstance(argument.value, str)
        if is_number or len(argument.text) <= 2_000:  # longer ones are only checked token by token
            wanted = argument.text if is_number else normal(argument.text)
        holder = self._holder(wanted, is_number or kind in _NUMBERS)
        if holder is not None:
            known = self._index.neighbours.get(wanted)
            if known is not None and self._index.sources[known.source] is holder:
                place = known.place
            else:
                place = place_of(holder.text, wanted) if holder.origin.role == "record" else ""
            yield argument.report(Origin(holder.origin.role), place=replace(holder.origin, place=place))
        elif kind in IDENTIFIERS:
            yield self._check_identifier(argument)
        else:
            yield argument.report(Origin.WRITTEN)
            if kind is ValueKind.TEXT:
                yield from self._check_tokens(argument)

    def _holder(self, wanted: str, is_number: bool) -> Source | None:
        """The source that holds a value (normal form), the oldest; None without one."""
        for form in number_forms(wanted) if is_number else (wanted,):
            if form and (found := self._index.holders(form, 1)):
                return found[0]
        return None

    def _check_identifier(self, argument: _Argument) -> ValueReport:
        text, wanted, kind = argument.text, normal(argument.text), argument.kind
        if self._index.knows_joined(wanted):
            return argument.report(Origin.COMPOSED)
        names_new = self._makes_new and bool(_NAMES_NEW.search(argument.key))
        if unknown := self._unknown_hard_runs(text):
            if names_new and kind in (ValueKind.PATH, ValueKind.CODE):
                near = self._index.neighbours.nearest(wanted, argument.key, 1)
                if near is None or len(wanted) < 8:
                    return argument.report(Origin.WRITTEN, unknown=unknown)
            return self._alarm(argument, unknown)
        if not (unknown := self._unknown_words(wanted, kind)):
            return argument.report(Origin.COMPOSED)
        near = self._mistyped(wanted, argument.key, hard_runs(text))
        if kind is ValueKind.EMAIL or near is not None:
            return self._alarm(argument, unknown, near)
        is_strange = len(unknown) > 1 and len(unknown) == len(_words(wanted)) and self._index.has_records
        if kind is ValueKind.PATH and not self._makes_new and is_strange:
            return self._alarm(argument, unknown)  # a path that must exist, without any known part
        parts = [p for p in PATH_JOINTS.split(text) if p] if kind in (ValueKind.PATH, ValueKind.URL) else []
        for part in parts[:-1] if names_new else parts:  # the file may be new, its folder is not
            is_unknown = any(r in unknown for r in runs(normal(part)))
            if is_unknown and (near := self._mistyped(normal(part), "")):
                whole = replace(near[0], value=text.replace(part, near[0].value))
                return self._alarm(argument, unknown, (whole, near[1]))
        return argument.report(Origin.WRITTEN, unknown=unknown)

    def _unknown_hard_runs(self, text: str) -> tuple[str, ...]:
        """The hard runs of a text that no source has, nor the digits of letters followed by digits."""
        knows, part = self._index.knows_run, _LETTERS_THEN_DIGITS.match
        return tuple(r for r in hard_runs(text) if not (knows(r) or ((p := part(r)) and knows(p[2]))))

    def _unknown_words(self, wanted: str, kind: ValueKind) -> tuple[str, ...]:
        """The unknown words of an identifier. In an e-mail address an initial before a known name is known."""
        knows = self._index.knows_run
        unknown = [r for r in _words(wanted) if not knows(r)]
        if kind is ValueKind.EMAIL:
            two = {r for r in unknown if any(knows(r[:i]) and knows(r[i:]) for i in range(3, len(r) - 2))}
            unknown = [r for r in unknown if r not in two and not knows(r[1:])]
        return tuple(unknown)

    def _mistyped(self, wanted: str, key: str, hard: Sequence[str] = ()) -> Near | None:
        """The known identifier that this one may be a mistyped form of, and the distance in edits; or None."""
        limit = 2 if len(wanted) >= 10 else 1
        near = self._index.neighbours.nearest(wanted, key, limit) if len(wanted) >= 6 else None
        if near is None:
            return None
        long, short = sorted((wanted, near[0].normal), key=len, reverse=True)
        if long.startswith(short) or long.endswith(short):
            return None  # made longer or shorter on purpose
        if not hard and _SMALL_NUMBERS.sub("0", long) == _SMALL_NUMBERS.sub("0", short):
            return None  # a series: report_1, report_2
        return near

    def _alarm(self, argument: _Argument, unknown: Sequence[str], near: Near | None = None) -> ValueReport:
        nearest = None
        if near := near or self._index.neighbours.nearest(normal(argument.text), argument.key):
            known, edits = near
            origin = self._index.sources[known.source].origin
            nearest = Nearest(known.value, edits, replace(origin, place=known.place))
        return argument.report(Origin.NOWHERE, nearest=nearest, unknown=tuple(unknown))

    def _check_tokens(self, argument: _Argument) -> Iterator[ValueReport]:
        """The alarms on the tokens of prose, queries and code: only what looks mistyped is one."""
        found = (
            (token, kind) for token, kind, _ in identifiers_in(argument.text) if kind in _CHECKED_IN_TEXT
        )
        seen: set[str] = set()
        for token, kind in found:
            if token in seen:
                continue
            seen.add(token)
            if len(seen) > 400:
                return
            wanted, unknown = normal(token), self._unknown_hard_runs(token)
            if kind is ValueKind.EMAIL and not unknown:
                unknown = self._unknown_words(wanted, kind)
            if not unknown or (kind is ValueKind.LONG_NUMBER and len(token) < 8):
                continue
            if self._holder(wanted, kind in _NUMBERS) is not None or self._index.knows_joined(wanted):
                continue
            if near := self._mistyped(wanted, argument.key, unknown):
                part = argument._replace(value=token, text=token, kind=kind)
                yield replace(self._alarm(part, unknown, near), token=True)


def _words(value: str) -> list[str]:
    return [r for r in runs(value) if len(r) > 2 and not r.isdigit() and r not in _SCHEMES]


Mode = Literal["warn", "block", "report"]


class ProvenanceGuard:
    """A hook that checks each tool call before it is executed, and returns its CallReport. Thread-safe.

    Args:
        mode: "warn" logs a WARNING that names the tool and the arguments, never their contents; "block"
            raises ProvenanceError; "report" only collects.
        tools: the schemas that the agent was given, as for ``check_call``.
        keep: the number of latest reports in ``reports``, in every mode.
        only_alarms: collect only reports with alarms.

    Raises:
        ConfigError: the mode is unknown.

    Example:
        >>> guard = ProvenanceGuard("block")
        >>> guard(("refund", {"order_id": "ORD-1"}), state, messages).ok
        True
    """

    def __init__(
        self, mode: Mode = "warn", *, tools: object = None, keep: int = 1_000, only_alarms: bool = False
    ) -> None:
        if mode not in get_args(Mode):
            raise ConfigError(f"the mode of a ProvenanceGuard is one of {', '.join(get_args(Mode))}.")
        self.mode = mode
        self.tools = tools
        self.only_alarms = only_alarms
        self.reports: deque[CallReport] = deque(maxlen=keep)
        self._lock = threading.Lock()

    def __call__(self, call: object, state: Any, messages: Any = None) -> CallReport:
        report = check_call(call, state, messages, tools=self.tools)
        if not self.only_alarms or not report.ok:
            with self._lock:
                self.reports.append(report)
        if not report.ok and self.mode != "report":
            paths = ", ".join(a.path or "(the argument)" for a in report.alarms)
            if self.mode == "block":
                raise ProvenanceError(
                    f"the call of {report.name} was blocked: {paths} has no source in this session; "
                    "see error.report.",
                    report,
                )
            log.warning("in a call of %s, without a source: %s", report.name, paths)
        return report
