"""The manifest of a step for the page: the decisions of its plan and its context as sent, within bounds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memory_bank.bank.session import Session
from memory_bank.plan import Decision, Fate, Plan
from memory_bank.service.sessions import Rebuilt
from memory_bank.transcript.messages import MARK, calls_of, content_text, read, result_of
from memory_bank.transcript.quoting import quote_lines, sendable

FIRST_MESSAGES, LAST_MESSAGES = 20, 180
"""Messages of a longer context that are kept: the first and the last."""
TEXT_CHARS = 20_000
CONTEXT_CHARS = 300_000
"""Characters kept of one text, and of a whole context beginning with its latest message."""
LEAST_CHARS = 200
DECISIONS = 300
"""Decisions of each fate that are kept, the newest; all are counted."""
REASON_CHARS = 400

_RETRIEVED = re.compile(r"^\[RETRIEVED RECORD (\d+)\]$", re.M)
_CALL_LINE = re.compile(r"^#(\d+)(?= |$).*$", re.M)
_MARK = re.compile(r"\[… #(\d+)\]")
"""What stands in a shortened turn in place of the rest of a record."""


def snapshot(step: Rebuilt) -> dict[str, Any]:
    """Make the manifest of a step. Its plan is None if the step has none.

    The step must be its session's latest, and the session must be locked: the plan reads its evidence now.
    Texts may have lone surrogates.
    """
    plan = None
    known: _MemoryParts = _MemoryParts()
    if step.plan is not None:
        plan, known = _plan(step.plan, step.state)
    return {
        "context": _context(step, known),
        "context_messages": len(step.shown),
        "plan": plan,
    }


class _MemoryParts:
    """What identifies the parts of a memory text: its pieces, records by number, the fate of each record."""

    def __init__(
        self,
        pieces: Sequence[Mapping[str, Any]] = (),
        numbered: Sequence[str] = (),
        fates: Mapping[str, str] | None = None,
    ) -> None:
        self.pieces = pieces
        self.numbered = numbered
        self.fates = fates or {}
        self.shown = {p["trace_id"] for p in pieces}
        self.found: set[int] = set()  # pieces that were found in a text


def _plan(plan: Plan, state: Session | None) -> tuple[dict[str, Any], _MemoryParts]:
    decisions, fates, omitted = _decisions(plan)
    shown = plan.shown()
    numbered = list(getattr(state, "steps", ()))
    numbers = {t: n for n, t in enumerate(numbered, 1)}
    known = _MemoryParts(shown["pieces"], numbered, {t: str(d.fate) for d in decisions for t in d.trace_ids})
    entries = [
        d.as_dict() | {"reason": d.reason[:REASON_CHARS], "numbers": [numbers.get(t) for t in d.trace_ids]}
        for d in decisions
    ]
    for piece in (*shown["pieces"], *shown["near_misses"], *shown["gone"]):
        piece["number"] = numbers.get(piece["trace_id"])
    return {
        "query": plan.query[:TEXT_CHARS],
        "counter": plan.counter,
        "embedder": plan.embedder,
        "observer": plan.observer,
        "memory_tokens": plan.memory_tokens,
        "unchanged": plan.unchanged,
        "why_unchanged": plan.why_unchanged if plan.unchanged else "",
        "first": plan.previous is None,
        "fates": fates,
        "decisions": entries,
        "decisions_omitted": omitted,
        **shown,
    }, known


def _decisions(plan: Plan) -> tuple[list[Decision], dict[str, dict[str, int]], int]:
    """The newest decisions of each fate in order; interactions and tokens by fate; the number left out."""
    fates = {str(f): {"interactions": 0, "tokens": 0} for f in Fate}
    newest: dict[Fate, list[tuple[int, Decision]]] = {f: [] for f in Fate}
    count = 0
    for decision in plan.decided():
        of = fates[str(decision.fate)]
        of["interactions"] += 1
        of["tokens"] += decision.tokens
        latest = newest[decision.fate]
        latest.append((count, decision))
        if len(latest) >= 2 * DECISIONS:
            del latest[:-DECISIONS]
        count += 1
    kept = sorted((d for latest in newest.values() for d in latest[-DECISIONS:]), key=lambda d: d[0])
    return [d for _, d in kept], fates, count - len(kept)


def _context(step: Rebuilt, known: _MemoryParts) -> list[dict[str, Any]]:
    messages = list(enumerate(step.shown))
    gap = len(messages) - FIRST_MESSAGES - LAST_MESSAGES
    if gap > 0:
        del messages[FIRST_MESSAGES : FIRST_MESSAGES + gap]
    places = _places(step.plan, {id(m) for _, m in messages})
    quoted = _quoted(step.plan)
    names = {
        call.call_id: call.name for _, m in messages for call in calls_of(m) if read(m, "role") == "assistant"
    }
    marked = [_split(m, places.get(id(m)), known, quoted.get(id(m))) for _, m in messages]
    room = _TextBudget()
    entries = [
        _message(m, places.get(id(m)), texts, names, room, quoted.get(id(m)))
        for (_, m), texts in zip(reversed(messages), reversed(marked), strict=True)
    ][::-1]
    if gap > 0:
        entries.insert(FIRST_MESSAGES, {"left_out": gap})
    return entries


def _places(plan: Plan | None, wanted: set[int]) -> dict[int, dict[str, Any]]:
    """The part of the plan that each of the client's messages is in, by the identity of the message."""
    if plan is None:
        return {}
    view, earlier = plan.view, plan.previous.view if plan.previous else None
    known = len(earlier.messages) if earlier is not None else None
    found: dict[int, dict[str, Any]] = {}

    def note(position: int, part: str, step: int | None) -> None:
        message = id(view.messages[position])
        if message in wanted:
            new = known is not None and position >= known
            found[message] = {"part": part, "step": step, "new": new}

    for number, entry in enumerate(view.interactions, 1):
        part = "tail" if entry is view.tail else "past"
        for position in range(entry.start, entry.stop):
            note(position, part, number)
    for number, entry in enumerate(view.history, 1):
        shortened = {"part": "past", "step": number, "new": False, "fate": str(Fate.PART)}
        for position in range(entry.start, entry.stop) if plan.choice.in_place else ():
            if position in plan.choice.edits:
                found.setdefault(id(plan.choice.edits[position].message), shortened)
    after = view.tail.stop if view.tail else len(view.messages)
    for position in range(after, len(view.messages)):
        note(position, "tail", None)
    for position in view.kept:
        if id(view.messages[position]) not in found:
            note(position, "anchor", None)
    return found


@dataclass(frozen=True, slots=True)
class _Quoted:
    """The records of a shortened turn: all of them, and by the id of their call where that is one record's."""

    records: frozenset[str]
    by_call: Mapping[str | None, str]

    def of(self, call_id: str | None) -> frozenset[str]:
        """The records that the text of a call or of its result may quote."""
        return frozenset({self.by_call[call_id]}) if call_id in self.by_call else self.records


def _quoted(plan: Plan | None) -> dict[int, _Quoted]:
    """What each message of a shortened turn quotes, by the identity of the message."""
    found: dict[int, _Quoted] = {}
    if plan is None or plan.unchanged or not plan.choice.in_place:
        return found
    for entry in plan.view.history:
        edits = [plan.edits[p].message for p in range(entry.start, entry.stop) if p in plan.edits]
        if edits:
            ids = [c.call_id if (c := pair.call or pair.result) is not None else None for pair in entry.pairs]
            by_call = {
                call_id: trace_id
                for call_id, trace_id in zip(ids, entry.trace_ids, strict=False)
                if trace_id is not None and ids.count(call_id) == 1
            }
            quoted = _Quoted(entry.record_ids, by_call)
            own = plan.view.messages[entry.start : entry.stop]
            found.update((id(m), quoted) for m in (*own, *edits))
    return found


_Texts = list[list[dict[str, Any]]]
"""The parts of a message's content, then those of the arguments of each of its calls."""


def _split(
    message: Any, place: Mapping[str, Any] | None, known: _MemoryParts, quoted: _Quoted | None
) -> _Texts:
    """Split the texts of a message into pieces of records, lines that name a call, marks and the rest."""
    role = read(message, "role")
    text = content_text(read(message, "content"))
    calls = calls_of(message) if role == "assistant" else ()
    if quoted is None:
        return [
            list(_parts(text, known, None)) if _is_memory(message, place) else [{"text": text}],
            *([{"text": call.text}] for call in calls),
        ]
    of = quoted.of(result_of(message).call_id) if role in ("tool", "function") else quoted.records
    return [
        list(_parts(text, known, of)),
        *(list(_parts(call.text, known, quoted.of(call.call_id), as_json=True)) for call in calls),
    ]


def _is_memory(message: object, place: Mapping[str, Any] | None) -> bool:
    """Whether a message is a memory message that the plan has added."""
    text = content_text(read(message, "content"))
    return place is None and text.startswith(MARK) and read(message, "role") not in ("tool", "assistant")


def _message(
    message: Any,
    place: Mapping[str, Any] | None,
    texts: _Texts,
    names: Mapping[Any, str],
    room: _TextBudget,
    quoted: _Quoted | None,
) -> dict[str, Any]:
    role = read(message, "role")
    other = {"part": "memory" if _is_memory(message, place) else "other", "step": None, "new": False}
    entry: dict[str, Any] = dict(place or other)
    entry["role"] = role if isinstance(role, str) else ""
    entry["parts"] = room.cut_all(texts[0])
    entry["calls"] = [
        {
            "call_id": call.call_id,
            "name": call.name,
            "arguments": room.cut_all(parts),
            "trace_id": quoted.by_call.get(call.call_id) if quoted is not None else None,
        }
        for call, parts in zip(calls_of(message) if role == "assistant" else (), texts[1:], strict=True)
    ]
    entry["tool"] = None
    if role in ("tool", "function"):
        result = result_of(message)
        entry["tool"] = result.name or names.get(result.call_id)
        entry["call_id"] = result.call_id
        entry["trace_id"] = quoted.by_call.get(result.call_id) if quoted is not None else None
    return entry


class _TextBudget:
    """The characters that are left for a context."""

    def __init__(self) -> None:
        self.left = CONTEXT_CHARS

    def cut_all(self, parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The parts, each with what it is told with, their texts cut to what is left."""
        return [
            {k: v for k, v in part.items() if k != "text"} | cut
            for part in parts
            for cut in self._cut(part["text"])
        ]

    def _cut(self, text: str) -> list[dict[str, Any]]:
        """The text as parts; a text that is too long as its beginning, the size of the gap, and its end."""
        limit = min(TEXT_CHARS, max(LEAST_CHARS, self.left))
        self.left -= min(len(text), limit)
        if len(text) <= limit:
            return [{"text": text}] if text else []
        end = limit // 4
        return [
            {"text": text[: limit - end]},
            {"left_out": len(text) - limit},
            {"text": text[len(text) - end :]},
        ]


def _parts(
    text: str, known: _MemoryParts, quoted: frozenset[str] | None, *, as_json: bool = False
) -> Iterator[dict[str, Any]]:
    """Split a text into pieces of records, lines that name a call or marks, and the text between them.

    ``quoted``: the records that a text of a shortened turn may quote; None for the memory message.
    ``as_json``: the text is JSON, in which a piece may be escaped.
    """
    end = 0
    for start, stop, piece in _find_pieces(text, known, quoted, as_json):
        yield from _lines(text[end:start], known, quoted)
        trace_id = known.pieces[piece]["trace_id"]
        kept = known.fates.get(trace_id) == str(Fate.KEPT)
        fate = str(Fate.KEPT if kept else Fate.PART)
        yield {"text": text[start:stop], "piece": piece, "trace_id": trace_id, "fate": fate}
        end = stop
    yield from _lines(text[end:], known, quoted)


def _find_pieces(
    text: str, known: _MemoryParts, quoted: frozenset[str] | None, as_json: bool
) -> Iterator[tuple[int, int, int]]:
    """Find the pieces in a text: ``(start, stop, number of the piece)``, in order."""
    marks = list(_RETRIEVED.finditer(text)) if quoted is None else []
    if marks and len(marks) == len(known.pieces):
        ends = [m.start() for m in marks[1:]] + [text.rfind("\n") if "\n" in text else len(text)]
        for i, (mark, end) in enumerate(zip(marks, ends, strict=True)):
            yield mark.start(), end, i
        return
    at = 0
    for i, piece in enumerate(known.pieces):
        if i in known.found or (quoted is not None and piece["trace_id"] not in quoted):
            continue
        body = piece["text"]
        if quoted is None:
            body = sendable(body)  # as the fence writes it
        if body not in text:
            body = quote_lines(body).removeprefix("\\")  # as quotes are written
        forms = (
            [body, *(json.dumps(body, ensure_ascii=a)[1:-1] for a in (False, True))] if as_json else [body]
        )
        found = [(start, form) for form in forms if form and (start := text.find(form, at)) >= 0]
        if found:
            start, form = found[0]
            known.found.add(i)
            yield start, start + len(form), i
            at = start + len(form)


def _lines(text: str, known: _MemoryParts, quoted: frozenset[str] | None) -> Iterator[dict[str, Any]]:
    """Split text between pieces into lines that name a call (``#12 get_order …``) and the rest.

    In a shortened turn the marks (``[… #12]``) of its records are what names a call.
    """
    end = 0
    for found in (_CALL_LINE if quoted is None else _MARK).finditer(text):
        number = int(found[1])
        if not 0 < number <= len(known.numbered):
            continue
        trace_id = known.numbered[number - 1]
        if quoted is not None and trace_id not in quoted:
            continue
        fate = Fate.LISTED if quoted is None and trace_id not in known.shown else Fate.PART
        if found.start() > end:
            yield {"text": text[end : found.start()]}
        yield {"text": found[0], "number": number, "trace_id": trace_id, "fate": str(fate)}
        end = found.end()
    if end < len(text):
        yield {"text": text[end:]}
