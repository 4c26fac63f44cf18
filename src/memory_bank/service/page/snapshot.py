"""The manifest of a step for the page: the decisions of its plan and its context as sent, within bounds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memory_bank.plan import Decision, Fate, Plan
from memory_bank.service.sessions import Rebuilt
from memory_bank.transcript.messages import MARK, calls_of, content_text, read, result_of

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
_LONE = re.compile("[\ud800-\udfff]")
_CALL_LINE = re.compile(r"^#(\d+)(?= |$).*$", re.M)


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


def _plan(plan: Plan, state: Any) -> tuple[dict[str, Any], _MemoryParts]:
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
    room = _TextBudget()
    entries = [
        _message(m, places.get(id(m)), known, names, room, quoted.get(id(m), frozenset()))
        for _, m in reversed(messages)
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
    turns = plan.choice.in_place or {}
    for number, entry in enumerate(view.interactions, 1):
        for message in turns[entry.start].messages if entry.start in turns else ():
            found.setdefault(id(message), {"part": "past", "step": number, "new": False})
    after = view.tail.stop if view.tail else len(view.messages)
    for position in range(after, len(view.messages)):
        note(position, "tail", None)
    for position in view.kept:
        if id(view.messages[position]) not in found:
            note(position, "anchor", None)
    return found


def _quoted(plan: Plan | None) -> dict[int, frozenset[str]]:
    """The records that each message of a shortened turn quotes, by the identity of the message."""
    turns = {} if plan is None or plan.unchanged else plan.choice.in_place or {}
    found: dict[int, frozenset[str]] = {}
    for entry in plan.view.interactions if plan is not None and turns else ():
        if entry.start in turns:
            found.update((id(m), entry.record_ids) for m in turns[entry.start].messages)
    return found


def _message(
    message: Any,
    place: Mapping[str, Any] | None,
    known: _MemoryParts,
    names: Mapping[Any, str],
    room: _TextBudget,
    quoted: frozenset[str],
) -> dict[str, Any]:
    role = read(message, "role")
    text = content_text(read(message, "content"))
    memory = place is None and text.startswith(MARK) and role not in ("tool", "assistant")
    other = {"part": "memory" if memory else "other", "step": None, "new": False}
    entry: dict[str, Any] = dict(place or other)
    entry["role"] = role if isinstance(role, str) else ""
    entry["parts"] = list(_parts(text, known, room, quoted)) if memory or quoted else room.cut(text)
    entry["calls"] = [
        {"call_id": call.call_id, "name": call.name, "arguments": room.cut(call.text)}
        for call in (calls_of(message) if role == "assistant" else ())
    ]
    entry["tool"] = None
    if role in ("tool", "function"):
        result = result_of(message)
        entry["tool"] = result.name or names.get(result.call_id)
        entry["call_id"] = result.call_id
    return entry


class _TextBudget:
    """The characters that are left for a context."""

    def __init__(self) -> None:
        self.left = CONTEXT_CHARS

    def cut(self, text: str) -> list[dict[str, Any]]:
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
    text: str, known: _MemoryParts, room: _TextBudget, quoted: frozenset[str]
) -> Iterator[dict[str, Any]]:
    """Split a memory text into pieces of records, lines that name a call, and the text between them.

    ``quoted``: the records of the shortened turn that the text is of; none for the memory message.
    """
    end = 0
    for start, stop, piece in _find_pieces(text, known, quoted):
        yield from _lines(text[end:start], known, room)
        trace_id = known.pieces[piece]["trace_id"]
        fate = known.fates.get(trace_id, str(Fate.PART))
        for part in room.cut(text[start:stop]):
            yield part | {"piece": piece, "trace_id": trace_id, "fate": fate}
        end = stop
    yield from _lines(text[end:], known, room)


def _find_pieces(text: str, known: _MemoryParts, quoted: frozenset[str]) -> Iterator[tuple[int, int, int]]:
    """Find the pieces in a text: ``(start, stop, number of the piece)``, in order."""
    marks = list(_RETRIEVED.finditer(text))
    if marks and len(marks) == len(known.pieces):
        ends = [m.start() for m in marks[1:]] + [text.rfind("\n") if "\n" in text else len(text)]
        for i, (mark, end) in enumerate(zip(marks, ends, strict=True)):
            yield mark.start(), end, i
        return
    at = 0
    for i, piece in enumerate(known.pieces):
        body = _LONE.sub("\ufffd", piece["text"])  # as the fence writes it
        if not body or i in known.found or (quoted and piece["trace_id"] not in quoted):
            continue
        start = text.find(body, at)
        if start >= 0:
            known.found.add(i)
            yield start, start + len(body), i
            at = start + len(body)


def _lines(text: str, known: _MemoryParts, room: _TextBudget) -> Iterator[dict[str, Any]]:
    """Split text between pieces into lines that name a call (``#12 get_order …``) and the rest."""
    end = 0
    for line in _CALL_LINE.finditer(text):
        number = int(line[1])
        if not 0 < number <= len(known.numbered):
            continue
        trace_id = known.numbered[number - 1]
        fate = Fate.PART if trace_id in known.shown else Fate.LISTED
        yield from room.cut(text[end : line.start()])
        for part in room.cut(line[0]):
            yield part | {"number": number, "trace_id": trace_id, "fate": str(fate)}
        end = line.end()
    yield from room.cut(text[end:])
