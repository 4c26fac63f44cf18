"""An index of everything that a session has shown the agent: the sources of a value, the nearest value."""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import is_
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from memory_bank.provenance.identifiers import (
    IDENTIFIERS,
    ValueKind,
    find,
    identifiers_in,
    kind_of_number,
    kind_of_text,
    normal,
    runs,
)
from memory_bank.provenance.report import Place
from memory_bank.records import InteractionRecord
from memory_bank.transcript.jsontext import compact, inner_json, leaves, plain
from memory_bank.transcript.messages import Interaction, MessageKind, content_text, kind_of, read
from memory_bank.transcript.quoting import Mark
from memory_bank.transcript.tokens import approximate_counter
from memory_bank.transcript.transcript import Transcript, View

Role = Literal["record", "user", "system", "schema", "agent"]
_ROLES: dict[MessageKind, Role] = {MessageKind.SYSTEM: "system", MessageKind.USER: "user"}
_ROLES |= {MessageKind.SAY: "agent", MessageKind.CALL: "agent"}

_SCANNED_CHARS = 1_000_000  # of one text, for identifiers to propose; every value is found anywhere
_PROPOSED = 5_000  # identifiers of one text that are proposed
_PLACED_CHARS = 300_000  # of a JSON output in which the path of a value is searched
PATH_JOINTS = re.compile(r"[/\\?&=]+")

# the nearest identifier

_DIMENSIONS = 40  # a-z, 0-9, and four for all other characters
_COMPARED = 24  # identifiers whose distance is computed exactly
_DIMENSION_OF = bytes(
    o - 97 if 97 <= o <= 122 else 26 + o - 48 if 48 <= o <= 57 else 36 + o % 4 for o in range(256)
)


@dataclass(frozen=True, slots=True)
class KnownIdentifier:
    """An identifier in a source: as written, in normal form, its kind, its key and its place."""

    value: str
    normal: str
    kind: ValueKind
    key: str
    source: int
    place: str


Near = tuple[KnownIdentifier, int]  # a known identifier and its distance in edits from another one


def distance(a: str, b: str, limit: int) -> int:
    """The edits (optimal string alignment) from ``a`` to ``b``, in a band; ``limit + 1`` for more."""
    if abs(len(a) - len(b)) > limit:
        return limit + 1
    start = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    a, b = a[start:], b[start:]
    while a and b and a[-1] == b[-1]:
        a, b = a[:-1], b[:-1]
    if not a or not b:
        return min(len(a) + len(b), limit + 1)
    far = limit + 1
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, ca in enumerate(a, 1):
        new = [i] + [far] * len(b)
        for j in range(max(1, i - limit), min(len(b), i + limit) + 1):
            cb = b[j - 1]
            cost = min(new[j - 1] + 1, row[j] + 1, row[j - 1] + (ca != cb))
            if i > 1 and j > 1 and ca == b[j - 2] and cb == a[i - 2]:
                cost = min(cost, before[j - 2] + 1)
            new[j] = cost
        if min(new) > limit:
            return far
        before, row = row, new
    return min(row[-1], far)


def _shape(normal: str) -> str:
    return "".join("9" if c.isdigit() else "a" if c.isalpha() else c for c in normal)


def _is_same_key(a: str, b: str) -> bool:
    """Whether two keys name the same thing, such as ``orderId``, ``order_ids`` and ``id``."""
    a, b = (k.casefold().replace("_", "").replace("-", "").removesuffix("s") for k in (a, b))
    return bool(a and b) and (a.endswith(b) or b.endswith(a))


class Neighbourhood:
    """Identifiers as columns of character counts, so that the nearest of many thousands are found at once."""

    def __init__(self) -> None:
        self._by_normal: dict[str, KnownIdentifier] = {}
        self._identifiers: list[KnownIdentifier] = []
        self._by_shape: dict[str, list[KnownIdentifier]] = {}
        self._counts: npt.NDArray[np.int8] = np.zeros((_DIMENSIONS, 1024), np.int8)

    def add(self, identifier: KnownIdentifier) -> bool:
        """Add an identifier; False (and no change) where an equal one is known."""
        if identifier.normal in self._by_normal:
            return False
        at = len(self._identifiers)
        if at == self._counts.shape[1]:
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)], axis=1)
        self._counts[:, at] = _count_characters(identifier.normal)
        self._identifiers.append(identifier)
        self._by_normal[identifier.normal] = identifier
        self._by_shape.setdefault(_shape(identifier.normal), []).append(identifier)
        return True

    def get(self, normal: str) -> KnownIdentifier | None:
        """The identifier with this normal form, or None."""
        return self._by_normal.get(normal)

    def nearest(self, normal: str, key: str = "", limit: int | None = None) -> Near | None:
        """The nearest identifier and its distance in edits; None where none is near.

        With ``limit`` it is at most that many edits away. Without, at most a third of the length; where there
        is none, it is the latest of the same shape under the same key.
        """
        reach = max(2, len(normal) // 3) if limit is None else limit
        shape = _shape(normal)
        best: tuple[tuple[float, int], KnownIdentifier, int] | None = None
        for identifier, least in self._near(normal, reach):
            if best is not None and least > best[2] + 1:  # shape and key outweigh one edit, never two
                break
            d = distance(normal, identifier.normal, reach if best is None else min(reach, best[2] + 1))
            if not 0 < d <= reach:
                continue
            bonus = 0.6 * (shape == _shape(identifier.normal)) + 0.5 * _is_same_key(key, identifier.key)
            if best is None or (d - bonus, -identifier.source) < best[0]:
                best = (d - bonus, -identifier.source), identifier, d
        if best is not None:
            return best[1], best[2]
        for identifier in reversed(self._by_shape.get(shape, ())[-_COMPARED:]) if limit is None else ():
            if _is_same_key(key, identifier.key):
                return identifier, distance(normal, identifier.normal, len(normal))
        return None

    def _near(self, normal: str, reach: int) -> Iterator[Near]:
        """The identifiers whose letters differ least, each with the fewest edits that this can mean."""
        counts = self._counts[:, : len(self._identifiers)]
        differ = np.abs(counts - _count_characters(normal)[:, None]).sum(axis=0, dtype=np.int16)
        chosen = np.flatnonzero(differ <= 2 * reach)  # one edit changes at most two counts
        if len(chosen) > _COMPARED:
            chosen = chosen[np.argpartition(differ[chosen], _COMPARED)[:_COMPARED]]
        for i in sorted(chosen.tolist(), key=lambda i: differ[i]):
            yield self._identifiers[i], (int(differ[i]) + 1) // 2


def _count_characters(normal: str) -> npt.NDArray[np.int8]:
    codes = normal[:100].encode("latin-1", "replace").translate(_DIMENSION_OF)
    return np.bincount(np.frombuffer(codes, np.uint8), minlength=_DIMENSIONS).astype(np.int8)


# the sources


@dataclass(frozen=True, slots=True)
class Source:
    """One text that the agent has seen, such as a tool's output; ``origin`` names the whole text, no place in it."""

    origin: Place
    text: str
    normal: str


def place_of(text: str, wanted: str) -> str:
    """The place of a value (in normal form) in a text: a JSON path, ``line N``, or ""."""
    value = inner_json(text) if len(text) <= _PLACED_CHARS else None
    for leaf in leaves(value, opened=inner_json) if value is not None else ():
        inner = leaf.value if isinstance(leaf.value, str) else compact(leaf.value)
        if find(normal(inner), wanted) >= 0:
            return leaf.path
    words = r"\s+".join(map(re.escape, wanted.split(" "))) if wanted.isascii() else ""
    match = re.search(words, text, re.I) if words else None
    return "" if match is None else f"line {text.count(chr(10), 0, match.start()) + 1}"


class SourceIndex:
    """The sources of one session; each is indexed once."""

    def __init__(self, session_id: str) -> None:
        self.lock = threading.RLock()
        self._transcript = Transcript(session_id, approximate_counter())
        self.reset()

    def reset(self) -> None:
        """Remove everything."""
        self.sources: list[Source] = []
        self.neighbours = Neighbourhood()
        self.has_records = False  # whether any tool has answered yet
        self.generation: int | None = None
        self._by_run: dict[str, list[int]] = {}  # the sources that hold a run of letters and digits
        self._joined: set[str] = set()  # identifiers without their separators
        # trace_ids, those of other sessions with their session_id, and other texts with their role
        self._known: set[str | tuple[str, str]] = set()
        self._read: Sequence[Any] = ()
        self._tools: object = None
        self._transcript.reset()

    def read_messages(self, messages: Sequence[Any], steps: dict[str, int]) -> None:
        """Add what is new in messages that the strategy has not seen."""
        self.read_view(self._transcript.update(messages), steps)

    def read_view(self, view: View, steps: dict[str, int]) -> None:
        """Add what is new in a view: messages, calls and results."""
        messages = view.messages
        n = min(len(self._read), len(messages))
        known = n if all(map(is_, messages[:n], self._read)) else 0
        entries = view.interactions
        stop = next((e.start for e in entries[-1:] if _is_open(e)), len(messages))
        # The interaction before the first new message may have been open when it was read.
        at = max(0, bisect_left(entries, known, key=lambda e: e.start) - 1)
        said = max(0, min(known, entries[at].start if at < len(entries) else known))
        for i in range(said, stop):
            while at < len(entries) and entries[at].stop <= i:
                self._add_results(entries[at], at, steps)
                at += 1
            self._add_message(messages[i])
        for number in range(at, len(entries)):
            self._add_results(entries[number], number, steps)
        self._read = list(messages[:stop])

    def read_records(self, records: Iterable[InteractionRecord]) -> None:
        """Add records whose messages are no longer available."""
        for r in records:
            self.add_record(_output_of(r), r.trace_id, r.tool_name, r.step_id)
            self._add("agent", r.input_text if r.input_text is not None else compact(r.raw_input))

    def read_brought(self, brought: Mapping[tuple[str, str], InteractionRecord]) -> None:
        """Add records of other sessions that contexts have shown, by session_id and trace_id."""
        for (session_id, trace_id), r in list(brought.items()):
            self.add_record(_output_of(r), trace_id, r.tool_name, r.step_id, session_id)

    def read_tools(self, tools: object) -> None:
        """Add the schemas of the tools."""
        if tools is not None and tools is not self._tools:
            self._tools = tools
            self._add("schema", compact(plain(tools)))

    def lacks(self, trace_ids: Iterable[str]) -> list[str]:
        """The trace_ids among ``trace_ids`` that are not indexed."""
        return [t for t in trace_ids if t not in self._known]

    def _add_message(self, message: object) -> None:
        role = _ROLES.get(kind_of(message))
        if role is not None:
            text = content_text(read(message, "content"))
            if role == "agent" or not text.lstrip().startswith(Mark.OPENING):
                self._add(role, text)

    def _add_results(self, entry: Interaction, number: int, steps: dict[str, int]) -> None:
        for pair, trace_id in zip(entry.pairs, entry.trace_ids, strict=True):
            if pair.call is not None and not _is_open(entry):
                self._add("agent", pair.call.text)
            if pair.result is not None and trace_id is not None:
                step = steps.get(trace_id, number + 1)
                self.add_record(pair.result.text, trace_id, pair.tool_name, step)

    def add_record(
        self, text: str, trace_id: str, tool: str, step: int, session_id: str | None = None
    ) -> None:
        """Add a tool's output; ``session_id`` names another session."""
        key = trace_id if session_id is None else (session_id, trace_id)
        if key not in self._known:
            self._known.add(key)
            self.has_records = True
            self._index(Place("record", "", trace_id, tool, step, session_id), text)

    def _add(self, role: Role, text: str) -> None:
        if text and (role, text) not in self._known:
            self._known.add((role, text))
            self._index(Place(role), text)

    def _index(self, origin: Place, text: str) -> None:
        number, source = len(self.sources), Source(origin, text, normal(text))
        self.sources.append(source)
        for run in set(runs(source.normal)):
            self._by_run.setdefault(run, []).append(number)
        if origin.role not in ("record", "user", "system"):
            return
        for value, kind, key, place in islice(_identifiers_of(source), _PROPOSED):
            identifier = KnownIdentifier(value, normal(value), kind, key, number, place)
            if not self.neighbours.add(identifier):
                continue
            joined = "".join(runs(identifier.normal))
            if joined != identifier.normal:
                self._joined.add(joined)
            is_path = kind in (ValueKind.PATH, ValueKind.URL)
            for part in PATH_JOINTS.split(value) if is_path else ():  # each may be named alone
                if 4 < len(part) < len(value):
                    name = replace(identifier, value=part, normal=normal(part), kind=ValueKind.NAME)
                    self.neighbours.add(name)

    def knows_joined(self, value: str) -> bool:
        """Whether a value (normal form) is known with other separators, such as 555-1234 for 5551234."""
        joined = "".join(runs(value))
        return len(joined) > 5 and (joined in self._joined or joined in self._by_run)

    def knows_run(self, run: str) -> bool:
        """Whether a run of letters and digits (normal form) is in any source."""
        return run in self._by_run

    def holders(self, value: str, limit: int = 3) -> list[Source]:
        """The sources that hold a value (normal form), oldest first, the agent's own words last."""
        lists = [self._by_run.get(run, []) for run in set(runs(value))]
        given: list[Source] = []
        own: list[Source] = []  # the first of the agent's
        for number in min(lists, key=len, default=[]):
            source = self.sources[number]
            found = own if source.origin.role == "agent" else given
            if not (found is own and own) and find(source.normal, value) >= 0:
                found.append(source)
                if len(given) >= limit:
                    break
        return given + own


def _output_of(record: InteractionRecord) -> str:
    return record.output_text if record.output_text is not None else compact(record.raw_output)


def _is_open(entry: Interaction) -> bool:
    """Whether a call of the turn has no result yet: it may be the call that is being checked."""
    return any(pair.result is None for pair in entry.pairs)


def _identifiers_of(source: Source) -> Iterator[tuple[str, ValueKind, str, str]]:
    value = inner_json(source.text) if source.origin.role == "record" else None
    if value is None:
        text = source.text[:_SCANNED_CHARS]
        line, last = 1, 0
        for token, kind, at in identifiers_in(text):
            line += text.count("\n", last, at)
            last = at
            yield token, kind, "", f"line {line}"
        return
    scanned = 0
    for leaf in leaves(value, opened=inner_json):
        if isinstance(leaf.value, str):
            scanned += len(leaf.value)
            if scanned > _SCANNED_CHARS:
                return
            kind = kind_of_text(leaf.value, leaf.key)
        elif isinstance(leaf.value, int) and not isinstance(leaf.value, bool):
            kind = kind_of_number(leaf.value, leaf.key)
        else:
            continue
        if kind in IDENTIFIERS:
            yield str(leaf.value).strip(), kind, leaf.key, leaf.path
        elif kind is ValueKind.TEXT:
            for token, inner, _ in identifiers_in(str(leaf.value)):
                yield token, inner, leaf.key, leaf.path
