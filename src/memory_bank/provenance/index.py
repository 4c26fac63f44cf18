"""Everything a session has shown the agent, indexed once: which value stands in which source."""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import is_
from typing import Any, Literal

from memory_bank.provenance.kinds import IDENTIFIERS, Kind, identifiers_in, kind_of_number, kind_of_text
from memory_bank.provenance.nearest import Candidate, Neighbourhood
from memory_bank.provenance.places import inner_json, leaves
from memory_bank.provenance.texts import find, normal, runs
from memory_bank.records import InteractionRecord
from memory_bank.transcript.content import content_text, read
from memory_bank.transcript.interactions import Interaction, kind_of
from memory_bank.transcript.interactions import Kind as MessageKind
from memory_bank.transcript.jsontext import compact, plain
from memory_bank.transcript.tokens import approximate_counter
from memory_bank.transcript.transcript import Transcript, View

Role = Literal["record", "user", "system", "schema", "agent"]

_SCANNED = 1_000_000  # characters of one text that are searched for identifiers to propose; all are found
_PROPOSED = 5_000  # identifiers of one text that are proposed
_SEARCHED_FOR_PLACE = 300_000
_SEALED = "<retrieved-data seal="  # what the bank itself put into a context
PARTS = re.compile(r"[/\\?&=]+")
_NEWLINE = re.compile("\n")


@dataclass(frozen=True, slots=True)
class Source:
    """One text that the agent has seen: a tool's output, what the user said, and so on.

    ``session_id`` names another session, whose record a context has shown.
    """

    role: Role
    text: str
    normal: str
    trace_id: str | None = None
    tool: str | None = None
    step: int | None = None
    session_id: str | None = None

    def place_of(self, wanted: str) -> str:
        """Where a value (in normal form) stands: a JSON path of the output, ``line N``, or nothing."""
        value = inner_json(self.text) if len(self.text) <= _SEARCHED_FOR_PLACE else None
        if value is not None:
            for path, _, leaf in leaves(value):
                if find(normal(leaf if isinstance(leaf, str) else compact(leaf)), wanted) >= 0:
                    return path
        if wanted.isascii():
            words = r"\s+".join(re.escape(w) for w in wanted.split(" "))
            match = re.search(words, self.text, re.I)
            if match:
                return f"line {len(_NEWLINE.findall(self.text, 0, match.start())) + 1}"
        return ""


class SourceIndex:
    """The sources of one session. What was indexed is never indexed again; a reset empties it."""

    def __init__(self, session_id: str) -> None:
        self.lock = threading.RLock()
        self._transcript = Transcript(session_id, approximate_counter())
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.sources: list[Source] = []
        self.neighbours = Neighbourhood()
        self._postings: dict[str, list[int]] = {}
        self._joined: set[str] = set()
        self._records: set[str] = set()
        self._brought: set[tuple[str, str]] = set()
        self._said: set[tuple[Role, str]] = set()
        self._seen: Sequence[Any] = ()
        self._tools: Any = None
        self._transcript.reset()
        self.generation: int | None = None

    # what it is told

    def read_messages(self, messages: Sequence[Any], steps: dict[str, int]) -> None:
        """Take in a list of messages of one's own, not yet given to the strategy."""
        self.read_view(self._transcript.update(messages), steps)

    def read_view(self, view: View, steps: dict[str, int]) -> None:
        """Take in what is new in a view: what was said, what was called, what came back."""
        messages = view.messages
        n = min(len(self._seen), len(messages))
        known = n if all(map(is_, messages[:n], self._seen)) else 0
        open_turn = next((e for e in view.interactions[-1:] if _is_open(e)), None)
        stop = open_turn.start if open_turn else len(messages)
        entries = view.interactions
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
        self._seen = list(messages[:stop])

    def read_records(self, records: Iterable[InteractionRecord]) -> None:
        """Take in records whose messages are no longer there."""
        for r in records:
            text = r.output_text if r.output_text is not None else compact(r.raw_output)
            self._add_record(r.trace_id, r.tool_name, r.step_id, text)
            self._add("agent", r.input_text if r.input_text is not None else compact(r.raw_input))

    def read_brought(self, brought: Mapping[tuple[str, str], InteractionRecord]) -> None:
        """Take in what contexts have shown of other sessions, by session_id and trace_id."""
        for (session_id, trace_id), r in list(brought.items()):
            if (session_id, trace_id) not in self._brought:
                self._brought.add((session_id, trace_id))
                text = r.output_text if r.output_text is not None else compact(r.raw_output)
                self._index(
                    Source("record", text, normal(text), trace_id, r.tool_name, r.step_id, session_id)
                )

    def read_tools(self, tools: Any) -> None:
        """Take in the schemas of the tools."""
        if tools is not None and tools is not self._tools:
            self._tools = tools
            self._add("schema", compact(plain(tools)))

    def lacks(self, trace_ids: Iterable[str]) -> list[str]:
        """Those of some records that are not indexed."""
        return [t for t in trace_ids if t not in self._records]

    def _add_message(self, message: Any) -> None:
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
        if text and (role, text) not in self._said:
            self._said.add((role, text))
            self._index(Source(role, text, normal(text)))

    def _index(self, source: Source) -> None:
        number = len(self.sources)
        self.sources.append(source)
        for run in set(runs(source.normal)):
            self._postings.setdefault(run, []).append(number)
        if source.role in ("record", "user", "system"):
            for candidate in islice(_candidates(source, number), _PROPOSED):
                self._propose(candidate)

    def _propose(self, candidate: Candidate) -> None:
        if not self.neighbours.add(candidate):
            return
        joined = "".join(runs(candidate.normal))
        if joined != candidate.normal:
            self._joined.add(joined)
        if candidate.kind in (Kind.PATH, Kind.URL):  # each part may be named alone
            for part in PARTS.split(candidate.value):
                if 4 < len(part) < len(candidate.value):
                    self.neighbours.add(replace(candidate, value=part, normal=normal(part), kind=Kind.NAME))

    # what it is asked

    def knows_joined(self, value: str) -> bool:
        """Whether a value (normal form) stands somewhere with other joints: 555-1234 for 5551234."""
        joined = "".join(runs(value))
        return len(joined) > 5 and (joined in self._joined or joined in self._postings)

    def has_records(self) -> bool:
        """Whether any tool has answered yet."""
        return bool(self._records or self._brought)

    def knows_run(self, run: str) -> bool:
        """Whether a run of letters and digits (normal form) stands anywhere."""
        return run in self._postings

    def holders(self, value: str, limit: int = 3) -> list[Source]:
        """The sources in which a value (normal form) stands, oldest first, the agent's own words last."""
        lists = []
        for run in set(runs(value)):
            found = self._postings.get(run)
            if found is None:
                return []
            lists.append(found)
        if not lists:
            return []
        given: list[Source] = []
        own: list[Source] = []
        for number in min(lists, key=len):
            source = self.sources[number]
            if source.role == "agent" and own:
                continue
            if find(source.normal, value) >= 0:
                (own if source.role == "agent" else given).append(source)
                if len(given) >= limit:
                    break
        return given + own


def _is_open(entry: Interaction) -> bool:
    """Whether a call of the turn still waits for its result: what it says is what is being checked."""
    return any(pair.result is None for pair in entry.pairs)


def _candidates(source: Source, number: int) -> Iterable[Candidate]:
    """The identifiers of a text with key and place."""
    text = source.text if len(source.text) <= _SCANNED else source.text[:_SCANNED]
    value = inner_json(source.text) if source.role == "record" else None
    if value is None:
        line, last = 1, 0
        for token, kind, at in identifiers_in(text):
            line += text.count("\n", last, at)
            last = at
            yield Candidate(token, normal(token), kind, "", number, f"line {line}")
        return
    scanned = 0
    for path, key, leaf in leaves(value):
        if isinstance(leaf, str):
            scanned += len(leaf)
            if scanned > _SCANNED:
                return
            kind = kind_of_text(leaf, key)
            if kind in IDENTIFIERS:
                yield Candidate(leaf.strip(), normal(leaf), kind, key, number, path)
            elif kind is Kind.TEXT:
                for token, inner, _ in identifiers_in(leaf):
                    yield Candidate(token, normal(token), inner, key, number, path)
        elif isinstance(leaf, int) and not isinstance(leaf, bool):
            kind = kind_of_number(leaf, key)
            if kind in IDENTIFIERS:
                yield Candidate(str(leaf), str(leaf), kind, key, number, path)
