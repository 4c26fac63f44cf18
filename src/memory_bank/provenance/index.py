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
from memory_bank.transcript.tokens import approximate_counter
from memory_bank.transcript.transcript import Transcript, View

Role = Literal["record", "user", "system", "schema", "agent"]

_SCANNED_CHARS = 1_000_000  # of one text, for identifiers to propose; every value is found anywhere
_PROPOSED = 5_000  # identifiers of one text that are proposed
_PLACED_CHARS = 300_000  # of a JSON output in which the path of a value is searched
_SEALED = "<retrieved-data seal="  # begins what the bank itself put into a context
PATH_JOINTS = re.compile(r"[/\\?&=]+")


# the nearest identifier

_DIMENSIONS = 40  # a-z, 0-9, and four for all other characters
_COMPARED = 24  # identifiers whose distance is computed exactly
_BLOCK = 1024
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


def distance(a: str, b: str, limit: int) -> int:
    """The edits from ``a`` to ``b`` (insert, delete, replace, swap two neighbours); ``limit + 1`` for more.

    This is the optimal string alignment distance, computed in a band around the diagonal.
    """
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
    """A text with every digit as 9 and every letter as a."""
    return "".join("9" if c.isdigit() else "a" if c.isalpha() else c for c in normal)


def _is_same_key(a: str, b: str) -> bool:
    """Whether two keys name the same thing, such as ``orderId``, ``order_ids`` and ``id``."""
    a, b = (k.casefold().replace("_", "").replace("-", "").removesuffix("s") for k in (a, b))
    return bool(a and b) and (a.endswith(b) or b.endswith(a))


class Neighbourhood:
    """Identifiers as columns of character counts, so that the nearest of many thousands are found at once."""

    def __init__(self) -> None:
        self._identifiers: list[KnownIdentifier] = []
        self._by_normal: dict[str, int] = {}
        self._by_shape: dict[str, list[int]] = {}
        self._counts: npt.NDArray[np.int8] = np.zeros((_DIMENSIONS, _BLOCK), np.int8)

    def add(self, identifier: KnownIdentifier) -> bool:
        """Add an identifier; False (and no change) where an equal one is known."""
        if identifier.normal in self._by_normal:
            return False
        at = len(self._identifiers)
        if at == self._counts.shape[1]:
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)], axis=1)
        self._by_normal[identifier.normal] = at
        self._by_shape.setdefault(_shape(identifier.normal), []).append(at)
        self._counts[:, at] = _count_characters(identifier.normal)
        self._identifiers.append(identifier)
        return True

    def get(self, normal: str) -> KnownIdentifier | None:
        """The identifier with this normal form, or None."""
        at = self._by_normal.get(normal)
        return None if at is None else self._identifiers[at]

    def nearest(
        self, normal: str, key: str = "", limit: int | None = None
    ) -> tuple[KnownIdentifier, int] | None:
        """The nearest identifier and its distance in edits; None where none is near.

        With ``limit`` it is at most that many edits away. Without, at most a third of the length; where there
        is none, it is the latest of the same shape under the same key.
        """
        if not self._identifiers:
            return None
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
        if limit is None:
            for at in reversed(self._by_shape.get(shape, ())[-_COMPARED:]):
                identifier = self._identifiers[at]
                if _is_same_key(key, identifier.key):
                    return identifier, distance(normal, identifier.normal, len(normal))
        return None

    def _near(self, normal: str, reach: int) -> Iterator[tuple[KnownIdentifier, int]]:
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
    """One text that the agent has seen, such as a tool's output or a user message.

    ``session_id`` names another session whose record a context has shown; None for the session itself.
    """

    role: Role
    text: str
    normal: str
    trace_id: str | None = None
    tool: str | None = None
    step: int | None = None
    session_id: str | None = None

    def place(self, place: str) -> Place:
        """A place in this source, for a report."""
        return Place(self.role, place, self.trace_id, self.tool, self.step, self.session_id)

    def place_of(self, wanted: str) -> str:
        """The place of a value (in normal form): a JSON path of the output, ``line N``, or ""."""
        value = inner_json(self.text) if len(self.text) <= _PLACED_CHARS else None
        if value is not None:
            for leaf in leaves(value, opened=inner_json):
                text = leaf.value if isinstance(leaf.value, str) else compact(leaf.value)
                if find(normal(text), wanted) >= 0:
                    return leaf.path
        if wanted.isascii():
            words = r"\s+".join(re.escape(w) for w in wanted.split(" "))
            if match := re.search(words, self.text, re.I):
                number = self.text.count("\n", 0, match.start()) + 1
                return f"line {number}"
        return ""


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
        self._postings: dict[str, list[int]] = {}
        self._joined: set[str] = set()
        self._records: set[str] = set()
        self._brought: set[tuple[str, str]] = set()
        self._texts: set[tuple[Role, str]] = set()
        self._read: Sequence[Any] = ()
        self._tools: object = None
        self._transcript.reset()
        self.generation: int | None = None

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
            self._add_record(r.trace_id, r.tool_name, r.step_id, _output_of(r))
            self._add("agent", r.input_text if r.input_text is not None else compact(r.raw_input))

    def read_brought(self, brought: Mapping[tuple[str, str], InteractionRecord]) -> None:
        """Add records of other sessions that contexts have shown, by session_id and trace_id."""
        for (session_id, trace_id), r in list(brought.items()):
            if (session_id, trace_id) not in self._brought:
                self._brought.add((session_id, trace_id))
                text, of = _output_of(r), (trace_id, r.tool_name, r.step_id, session_id)
                self._index(Source("record", text, normal(text), *of))

    def read_tools(self, tools: object) -> None:
        """Add the schemas of the tools."""
        if tools is not None and tools is not self._tools:
            self._tools = tools
            self._add("schema", compact(plain(tools)))

    def lacks(self, trace_ids: Iterable[str]) -> list[str]:
        """The trace_ids among ``trace_ids`` that are not indexed."""
        return [t for t in trace_ids if t not in self._records]

    def _add_message(self, message: object) -> None:
        kind = kind_of(message)
        if kind in (MessageKind.SYSTEM, MessageKind.USER):
            text = content_text(read(message, "content"))
            if not text.lstrip().startswith(_SEALED):
                self._add("system" if kind is MessageKind.SYSTEM else "user", text)
        elif kind in (MessageKind.SAY, MessageKind.CALL):
            self._add("agent", content_text(read(message, "content")))

    def _add_results(self, entry: Interaction, number: int, steps: dict[str, int]) -> None:
        for pair, trace_id in zip(entry.pairs, entry.trace_ids, strict=True):
            if pair.call is not None and not _is_open(entry):
                self._add("agent", pair.call.text)
            if pair.result is not None and trace_id is not None:
                step = steps.get(trace_id, number + 1)
                self._add_record(trace_id, pair.tool_name, step, pair.result.text)

    def _add_record(self, trace_id: str, tool: str, step: int, text: str) -> None:
        if trace_id not in self._records:
            self._records.add(trace_id)
            self._index(Source("record", text, normal(text), trace_id, tool, step))

    def _add(self, role: Role, text: str) -> None:
        if text and (role, text) not in self._texts:
            self._texts.add((role, text))
            self._index(Source(role, text, normal(text)))

    def _index(self, source: Source) -> None:
        number = len(self.sources)
        self.sources.append(source)
        for run in set(runs(source.normal)):
            self._postings.setdefault(run, []).append(number)
        if source.role in ("record", "user", "system"):
            for identifier in islice(_identifiers_of(source, number), _PROPOSED):
                self._propose(identifier)

    def _propose(self, identifier: KnownIdentifier) -> None:
        if not self.neighbours.add(identifier):
            return
        joined = "".join(runs(identifier.normal))
        if joined != identifier.normal:
            self._joined.add(joined)
        if identifier.kind in (ValueKind.PATH, ValueKind.URL):  # each part may be named alone
            for part in PATH_JOINTS.split(identifier.value):
                if 4 < len(part) < len(identifier.value):
                    name = replace(identifier, value=part, normal=normal(part), kind=ValueKind.NAME)
                    self.neighbours.add(name)

    def knows_joined(self, value: str) -> bool:
        """Whether a value (normal form) is known with other separators, such as 555-1234 for 5551234."""
        joined = "".join(runs(value))
        return len(joined) > 5 and (joined in self._joined or joined in self._postings)

    def has_records(self) -> bool:
        """Whether any tool has answered yet."""
        return bool(self._records or self._brought)

    def knows_run(self, run: str) -> bool:
        """Whether a run of letters and digits (normal form) is in any source."""
        return run in self._postings

    def holders(self, value: str, limit: int = 3) -> list[Source]:
        """The sources that hold a value (normal form), oldest first, the agent's own words last."""
        lists = [self._postings.get(run, []) for run in set(runs(value))]
        given: list[Source] = []
        own: list[Source] = []  # the first of the agent's
        for number in min(lists, key=len, default=[]):
            source = self.sources[number]
            of_its_kind = own if source.role == "agent" else given
            if not (of_its_kind is own and own) and find(source.normal, value) >= 0:
                of_its_kind.append(source)
                if len(given) >= limit:
                    break
        return given + own


def _output_of(record: InteractionRecord) -> str:
    return record.output_text if record.output_text is not None else compact(record.raw_output)


def _is_open(entry: Interaction) -> bool:
    """Whether a call of the turn has no result yet: it may be the call that is being checked."""
    return any(pair.result is None for pair in entry.pairs)


def _identifiers_of(source: Source, number: int) -> Iterator[KnownIdentifier]:
    """The identifiers in a source with key and place."""
    text = source.text if len(source.text) <= _SCANNED_CHARS else source.text[:_SCANNED_CHARS]
    value = inner_json(source.text) if source.role == "record" else None
    if value is None:
        line, last = 1, 0
        for token, kind, at in identifiers_in(text):
            line += text.count("\n", last, at)
            last = at
            yield KnownIdentifier(token, normal(token), kind, "", number, f"line {line}")
        return
    scanned = 0
    for leaf in leaves(value, opened=inner_json):
        scalar, key = leaf.value, leaf.key
        if isinstance(scalar, str):
            scanned += len(scalar)
            if scanned > _SCANNED_CHARS:
                return
            kind = kind_of_text(scalar, key)
        elif isinstance(scalar, int) and not isinstance(scalar, bool):
            kind = kind_of_number(scalar, key)
        else:
            continue
        written = str(scalar).strip()
        if kind in IDENTIFIERS:
            yield KnownIdentifier(written, normal(written), kind, key, number, leaf.path)
        elif kind is ValueKind.TEXT:
            for token, inner, _ in identifiers_in(str(scalar)):
                yield KnownIdentifier(token, normal(token), inner, key, number, leaf.path)
