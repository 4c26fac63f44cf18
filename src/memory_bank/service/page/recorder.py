"""The recorded steps of the page: figures of all, and within bounds their plans, contexts and the model's answers."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple

from memory_bank.bank.database import Database
from memory_bank.bank.session import MemoryBankState, Session
from memory_bank.bank.steps import StepFigures, StepToStore, add_steps, packed
from memory_bank.errors import StorageError
from memory_bank.plan import Context, Decision, Fate, Plan
from memory_bank.service.proxy.api import Dialect
from memory_bank.service.proxy.body import as_object, parse_object
from memory_bank.service.proxy.events import EventSplitter
from memory_bank.service.sessions import Rebuilt
from memory_bank.transcript.jsontext import compact
from memory_bank.transcript.messages import calls_of, content_text, read, result_of
from memory_bank.transcript.quoting import quote_lines, sendable
from memory_bank.transcript.turns import ADDED

log = logging.getLogger("memory_bank.Service")

DETAILED = 128
"""Contexts and answers that may wait to be recorded, beside the latest of each session, and those that fold."""
LATEST = 4 * DETAILED
"""As many wait at most, all together."""
WAITING = 100_000
"""Steps that may wait for the database; beyond that, the oldest are dropped."""
PATIENCE = 600.0
"""Seconds for which writing a batch is retried."""
_TOGETHER = 256  # steps in one transaction
_GATHER = 0.2  # seconds to collect a batch
_REST = 4.0  # pause before the next manifest, in durations of the last: requests have priority
_BUSY = 1.0  # seconds to wait for a busy session, which may be finishing this step
_PAUSES = 0.2, 5.0  # seconds between attempts, the first and the longest

FIRST_MESSAGES, LAST_MESSAGES = 20, 180
"""Messages of a longer context that are kept: the first and the last."""
TEXT_CHARS = 20_000
CONTEXT_CHARS = 300_000
"""Characters kept of one text, and of a whole context beginning with its latest message."""
LEAST_CHARS = 200
DECISIONS = 300
"""Decisions of each fate that are kept, the newest; all are counted."""
REASON_CHARS = 400
ERROR_CHARS = 1_000
CALLS = 100
"""Calls of one answer that are kept."""
_Work = Callable[[StepToStore], StepToStore]


@dataclass(slots=True)
class _Waiting:
    """A step that waits, and what is still to be done for its contents. ``holds``: it folds, or went wrong."""

    new: StepToStore
    work: _Work | None
    holds: bool


Answer = tuple[bytes, Dialect | None]
"""The beginning of an answer, and the API that it is of."""


class Recorder:
    """Records steps; ``take`` costs a few microseconds.

    A thread makes the manifest of each step and reads the model's answer, and writes them together. Where DETAILED of
    them wait, the oldest keeps its figures only, but not the latest of a session, nor one that failed, or at which
    its context changed before its end, as at a fold. ``kept`` is the number of latest steps per session that keep
    manifest and answer. ``redact`` hides secrets in a text. ``lost`` counts steps that could not be recorded.
    """

    def __init__(
        self,
        database: Database,
        kept: int,
        *,
        redact: Callable[[str], str] = str,
        patience: float = PATIENCE,
    ) -> None:
        self.database = database
        self.kept = kept
        self.redact = redact
        self.patience = patience
        self.lost = 0
        self._new: deque[_Waiting] = deque()
        self._latest: dict[tuple[str, bool], _Waiting] = {}  # by session, apart of steps and of outcomes
        self._spare: tuple[deque[_Waiting], deque[_Waiting]] = (
            deque(),
            deque(),
        )  # older ones; of these, that fold
        self._detailed = 0  # of the new ones, those with work to be done
        self._open = 0  # steps taken that are neither written nor lost
        self._change = threading.Condition()
        self._closing = threading.Event()
        self._until = float("inf")  # the deadline of a closed recorder
        self._thread = threading.Thread(target=self._run, name="memory-bank-steps", daemon=True)

    def take(self, step: Rebuilt) -> None:
        """Record a step later. Never blocks."""
        new = StepToStore(_figures(step), generation=getattr(step.state, "generation", None))
        folds = step.changed is not None
        self._take(new, lambda new: replace(new, manifest=packed(snapshot(step))), holds=folds)

    def take_outcome(self, step: Rebuilt, answer: Answer, **came_to: Any) -> None:
        """Record what a recorded step's request came to, as fields of StepFigures. Never blocks."""
        new = StepToStore(replace(_figures(step), **came_to), outcome=True)
        work = partial(self._settled, step.state, answer)
        self._take(new, work, holds=new.figures.error is not None)

    def take_without(self, figures: StepFigures, answer: Answer) -> None:
        """Record a request that went without memory as a step of its session, if there is one. Never blocks."""
        self._take(StepToStore(figures), partial(self._read, *answer), holds=figures.error is not None)

    def _settled(self, state: Session | None, answer: Answer, new: StepToStore) -> StepToStore:
        """The step with the model's answer; what it was reported to cost is stored with its session."""
        if isinstance(state, MemoryBankState):
            state.save()
        return new if self.kept == 0 else self._read(*answer, new)

    def _read(self, answer: bytes, dialect: Dialect | None, new: StepToStore) -> StepToStore:
        """The step with the model's answer, or the error that it is."""
        if dialect is None or not answer:
            return new
        said, error = read_answer(answer, dialect, self.redact)
        figures = new.figures if error is None else replace(new.figures, error=error)
        return replace(new, figures=figures, answer=None if said is None else packed(said))

    def _take(self, new: StepToStore, work: _Work | None, *, holds: bool = False) -> None:
        with self._change:
            if self._closing.is_set():
                self.lost += 1
                return
            if self._open >= WAITING and self._new:
                self._pop()
                self._settle(1, written=False)
            waiting = _Waiting(new, None if self.kept == 0 and not new.outcome else work, holds)
            self._detailed += waiting.work is not None
            self._new.append(waiting)
            key = new.figures.session_id, new.outcome
            if (before := self._latest.get(key)) is not None:
                self._spare[before.holds].append(before)
            self._latest[key] = waiting
            plain, folding = self._spare
            while self._detailed > (DETAILED if plain else LATEST):
                dropped = (plain or folding or deque([waiting])).popleft()
                self._detailed -= dropped.work is not None
                dropped.work = None
            self._open += 1
            if self._thread.ident is None:
                self._thread.start()
            self._change.notify_all()

    def _pop(self) -> tuple[StepToStore, _Work | None]:
        waiting = self._new.popleft()
        self._detailed -= waiting.work is not None
        work, waiting.work = waiting.work, None
        key = waiting.new.figures.session_id, waiting.new.outcome
        if self._latest.get(key) is waiting:
            del self._latest[key]
        for spare in self._spare:
            while spare and spare[0].work is None:
                spare.popleft()
        return waiting.new, work

    def _settle(self, count: int, *, written: bool) -> None:
        self._open -= count
        self.lost += 0 if written else count
        self._change.notify_all()

    def drain(self, timeout: float) -> bool:
        """Wait until all steps taken so far are written; False after ``timeout`` seconds."""
        with self._change:
            return self._change.wait_for(lambda: not self._open, timeout)

    def close(self, timeout: float = 10.0) -> None:
        """Write the waiting steps, for at most ``timeout`` seconds, and stop."""
        with self._change:
            self._until = time.monotonic() + timeout
            self._closing.set()
            self._change.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout + 1.0)
        with self._change:
            self.lost += self._open
        if self.lost:
            log.warning("%d steps could not be recorded for the page", self.lost)

    def _run(self) -> None:
        """Write new steps, until the recorder is closed and all are written or its time is over."""
        while True:
            with self._change:
                self._change.wait_for(lambda: bool(self._new) or self._closing.is_set())
                if not self._new:
                    return
            self._closing.wait(_GATHER)
            if not self._write_next() and self._closing.is_set():
                return  # the rest counts as lost

    def _write_next(self) -> bool:
        """Whether the oldest new steps were written; a context is held until its manifest is made."""
        to_store: list[StepToStore] = []
        for _ in range(min(_TOGETHER, len(self._new))):
            with self._change:
                new, work = self._pop()
            began = time.monotonic()
            if work is not None and began < self._until:
                new, work = _worked(new, work), None
                if self._detailed <= DETAILED:
                    self._closing.wait(_REST * (time.monotonic() - began))
            to_store.append(new)
        written = self._write(to_store)
        with self._change:
            if written or not self._closing.is_set():
                self._settle(len(to_store), written=written)
        return written

    def _write(self, batch: list[StepToStore]) -> bool:
        """Whether the steps were written; while the database fails, it tries again for ``patience`` seconds."""
        until, pause = time.monotonic() + self.patience, _PAUSES[0]
        while True:
            try:
                add_steps(self.database, batch, self.kept)
                return True
            except StorageError as e:
                if pause == _PAUSES[0]:
                    log.warning("steps wait to be recorded for the page: %s", e)
            except Exception as e:  # the error's text is not logged: it may quote what was to be stored
                log.warning("%d steps could not be recorded for the page (%s)", len(batch), type(e).__name__)
                return False
            left = min(until, self._until) - time.monotonic()
            if left <= 0:
                return False
            self._closing.wait(min(pause, left))  # ``close`` wakes it for a last attempt
            if self._closing.is_set():
                time.sleep(max(0.0, min(_PAUSES[0], self._until - time.monotonic())))
            pause = min(2 * pause, _PAUSES[1])


def _worked(new: StepToStore, work: _Work) -> StepToStore:
    """A step with what ``work`` adds to it; without it where that fails."""
    try:
        return work(new)
    except Exception as e:  # the figures are recorded in any case; the error's text may have content
        log.warning("the contents of a step could not be recorded (%s)", type(e).__name__)
        return new


def read_answer(
    data: bytes, dialect: Dialect, redact: Callable[[str], str] = str
) -> tuple[dict[str, Any] | None, str | None]:
    """The model's answer, as ``parts`` of its text and ``calls``, and the error in it; None where there is none.

    ``data``: a whole answer, or a stream from its beginning.
    """
    value, error = parse_object(data), None
    if not value:
        stream, splitter = dialect.open_stream({}), EventSplitter()
        for event in (*splitter.feed(data), *splitter.close()):
            if event.value is not None:
                stream.read(event.value)
                error = error or _error_of(event.value)
        value = stream.answer()
    error = error or _error_of(value)
    turn = dialect.read_answer(value, {})
    blocks = [b for m in turn.messages for b in _blocks(m)]
    text = "\n\n".join(t for b in blocks if (t := content_text(b)))
    left = [CONTEXT_CHARS]
    calls = [
        {
            "name": redact(str(call.name or call.item.get("type") or "")),
            "arguments": _cut(
                [{"text": redact(a if isinstance(a := call.arguments, str) else compact(a))}], left
            ),
        }
        for call in turn.calls[:CALLS]
    ]
    parts = _cut([{"text": redact(text)}], left)
    said = {"parts": parts, "calls": calls} if parts or calls else None
    return said, None if error is None else redact(error)[:ERROR_CHARS]


def _error_of(value: Mapping[str, Any]) -> str | None:
    """What an answer or an event says of an error."""
    error = value.get("error") or as_object(value.get("response")).get("error")
    if not error:
        return None
    told = as_object(error)
    named = [str(told[k]) for k in ("type", "code") if told.get(k)]
    return str(
        told.get("message") or "; ".join(named) or (error if isinstance(error, str) else compact(error))
    )


def _blocks(message: object) -> Iterator[object]:
    """What a message of a turn says, without its calls and thinking."""
    content = as_object(message).get("content")
    for block in content if isinstance(content, list) else [content]:
        if isinstance(block, str) or isinstance(as_object(block).get("text"), str):
            yield [block]


def _figures(step: Rebuilt) -> StepFigures:
    """The figures alone: what waits must not hold contexts."""
    return StepFigures(**{f.name: getattr(step, f.name) for f in fields(StepFigures)})


# The manifest

_RETRIEVED = re.compile(r"^\[RETRIEVED RECORD (\d+)\]$", re.M)
_CALL_LINE = re.compile(r"^#(\d+)(?= |$).*$", re.M)
_REFERENCE = re.compile(r"\[… #(\d+)\]")
"""What stands in a shortened turn in place of the rest of a record."""
_Parts = list[dict[str, Any]]


def snapshot(step: Rebuilt) -> dict[str, Any]:
    """Make the manifest of a step. Its plan is None if the step has none, or its session is too busy to be asked.

    ``explained``: the plan has its reasons, which are only known while the step is its session's latest. Texts may
    have lone surrogates.
    """
    state, made, plan = step.state, _Manifest(step), None
    is_held = state is None or state.lock.acquire(timeout=_BUSY)
    try:
        is_latest = is_held and (state is None or state.last_plan is step.plan)
        if step.plan is not None and is_held:
            plan = made.plan(step.plan, explained=is_latest)
    finally:
        if state is not None and is_held:
            state.lock.release()
    context = {"context": made.context(), "context_messages": made.length}
    return {**context, "plan": plan, "explained": is_latest}


class _Origin(NamedTuple):
    """Where a message of the context comes from, and the records, in all and ``by_call``, of a shortened turn."""

    place: Mapping[str, Any]
    records: frozenset[str] | None = None
    by_call: Mapping[str | None, str] = {}

    def quoted_by(self, call_id: str | None) -> frozenset[str] | None:
        """The records that the text of a call or of its result may quote."""
        record = self.by_call.get(call_id)
        return self.records if record is None else frozenset({record})


def _origins(step: Rebuilt) -> list[tuple[Any, _Origin]]:
    """The messages of a context with their origins; memory in a message of the user is one of its own."""
    plan, shown = step.plan, step.shown
    other = _Origin({"part": "other", "step": None, "new": False})
    if plan is None or not isinstance(shown, Context):
        return [(message, other) for message in shown]
    memory = _Origin({**other.place, "part": "memory"})
    view = plan.view
    known = None if plan.previous is None else len(plan.previous.view.messages)
    turns = {p: (n, e) for n, e in enumerate(view.interactions, 1) for p in range(e.start, e.stop)}
    end = view.tail.stop if view.tail else len(view.messages)
    shortens = plan.choice.in_place and not plan.unchanged
    found: list[tuple[Any, _Origin]] = []
    for message, (position, change) in zip(shown, shown.entries, strict=True):
        if position is None:
            is_memory = plan.memory is not None and change == plan.memory
            found.append((message, memory if is_memory else other))
            continue
        joined = [(plan.memory, memory)] if ADDED in change else []
        if joined:
            message, change = view.messages[position], {}
        number, turn = turns.get(position, (None, None))
        place = {"part": "past", "step": number, "new": known is not None and position >= known}
        origin = _Origin(place)
        if turn is None or turn is view.tail:
            place["part"] = "tail" if turn is not None or position >= end else "anchor"
        else:
            place |= {"new": False, "fate": str(Fate.PART)} if change else {}
            if shortens and any(p in plan.edits for p in range(turn.start, turn.stop)):
                ids = [
                    c.call_id if (c := pair.call or pair.result) is not None else None for pair in turn.pairs
                ]
                records = zip(ids, turn.trace_ids, strict=False)
                by_call = {i: t for i, t in records if t is not None and ids.count(i) == 1}
                origin = _Origin(place, turn.record_ids, by_call)
        found += [(message, origin), *joined]
    return found


class _Manifest:
    """The manifest of a step as it is made: first its plan, which tells the parts of its context apart."""

    def __init__(self, step: Rebuilt) -> None:
        self.step = step
        self.numbered: Sequence[str] = list(getattr(step.state, "steps", ()))
        self.pieces: Sequence[Mapping[str, Any]] = ()
        self.shown: set[str] = set()  # records of which pieces are shown
        self.fates: Mapping[str, str] = {}  # of records
        self._found: set[int] = set()  # pieces that were found in a text
        self._left = [CONTEXT_CHARS]
        self.length = 0  # of the context, in messages

    def plan(self, plan: Plan, *, explained: bool = True) -> dict[str, Any]:
        """The plan with its pieces, the newest decisions of each fate, and how many there are."""
        fates = {str(f): {"interactions": 0, "tokens": 0} for f in Fate}
        newest: dict[Fate, deque[tuple[int, Decision]]] = {f: deque(maxlen=DECISIONS) for f in Fate}
        count = 0
        for count, decision in enumerate(plan.decided(), 1):
            of = fates[str(decision.fate)]
            of["interactions"] += 1
            of["tokens"] += decision.tokens
            newest[decision.fate].append((count, decision))
        kept = sorted((d for latest in newest.values() for d in latest), key=lambda d: d[0])
        decisions = [d for _, d in kept]
        shown = plan.shown(explained=explained)
        numbers = {t: n for n, t in enumerate(self.numbered, 1)}
        self.pieces = shown["pieces"]
        self.shown = {p["trace_id"] for p in self.pieces}
        self.fates = {t: str(d.fate) for d in decisions for t in d.trace_ids}
        for piece in (*shown["pieces"], *shown["near_misses"], *shown["gone"]):
            piece["number"] = numbers.get(piece["trace_id"])
        names = "counter", "embedder", "observer", "memory_tokens", "unchanged"
        return {
            **{name: getattr(plan, name) for name in names},
            "query": plan.query[:TEXT_CHARS],
            "why_unchanged": plan.why_unchanged if plan.unchanged else "",
            "first": plan.previous is None,
            "fates": fates,
            "decisions": [
                d.as_dict()
                | {"reason": d.reason[:REASON_CHARS], "numbers": [numbers.get(t) for t in d.trace_ids]}
                for d in decisions
            ],
            "decisions_omitted": count - len(decisions),
            **shown,
        }

    def context(self) -> list[dict[str, Any]]:
        """The messages in their order; the number of those left out in between."""
        messages = _origins(self.step)
        self.length = len(messages)
        gap = len(messages) - FIRST_MESSAGES - LAST_MESSAGES
        if gap > 0:
            del messages[FIRST_MESSAGES : FIRST_MESSAGES + gap]
        names = {c.call_id: c.name for m, _ in messages for c in _calls(m)}
        texts = [self._texts(m, origin) for m, origin in messages]  # pieces are found from the first one on
        entries = [self._message(m, origin, texts.pop(), names) for m, origin in reversed(messages)][::-1]
        if gap > 0:
            entries.insert(FIRST_MESSAGES, {"left_out": gap})
        return entries

    def _texts(self, message: Any, origin: _Origin) -> list[_Parts]:
        """The parts of a message's content, then those of the arguments of each of its calls."""
        text, calls = content_text(read(message, "content")), _calls(message)
        if origin.place["part"] == "memory":
            return [list(self._parts(text, None))]
        if origin.records is None:
            return [[{"text": t}] for t in (text, *(call.text for call in calls))]
        is_result = read(message, "role") in ("tool", "function")
        quoted = origin.quoted_by(result_of(message).call_id) if is_result else origin.records
        of_calls = (self._parts(c.text, origin.quoted_by(c.call_id), as_json=True) for c in calls)
        return [list(self._parts(text, quoted)), *map(list, of_calls)]

    def _message(
        self, message: Any, origin: _Origin, texts: list[_Parts], names: Mapping[Any, str]
    ) -> dict[str, Any]:
        role = read(message, "role")
        entry = {
            **origin.place,
            "role": role if isinstance(role, str) else "",
            "parts": _cut(texts[0], self._left),
            "calls": [
                {
                    "call_id": call.call_id,
                    "name": call.name,
                    "arguments": _cut(parts, self._left),
                    "trace_id": origin.by_call.get(call.call_id),
                }
                for call, parts in zip(_calls(message), texts[1:], strict=True)
            ],
            "tool": None,
        }
        if role in ("tool", "function"):
            result = result_of(message)
            id_ = result.call_id
            tool = result.name or names.get(id_)
            entry |= {"tool": tool, "call_id": id_, "trace_id": origin.by_call.get(id_)}
        return entry

    def _parts(
        self, text: str, quoted: frozenset[str] | None, *, as_json: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Split a text (``as_json``: JSON) into pieces of records, references to a call, and the text between."""
        end = 0
        for start, stop, piece in self._find_pieces(text, quoted, as_json):
            yield from self._references(text[end:start], quoted)
            trace_id = self.pieces[piece]["trace_id"]
            fate = Fate.KEPT if self.fates.get(trace_id) == str(Fate.KEPT) else Fate.PART
            yield {"text": text[start:stop], "piece": piece, "trace_id": trace_id, "fate": str(fate)}
            end = stop
        yield from self._references(text[end:], quoted)

    def _find_pieces(
        self, text: str, quoted: frozenset[str] | None, as_json: bool
    ) -> Iterator[tuple[int, int, int]]:
        headings = list(_RETRIEVED.finditer(text)) if quoted is None else []
        if headings and len(headings) == len(self.pieces):
            ends = [m.start() for m in headings[1:]] + [text.rfind("\n") if "\n" in text else len(text)]
            yield from ((m.start(), end, i) for i, (m, end) in enumerate(zip(headings, ends, strict=True)))
            return
        at = 0
        for i, piece in enumerate(self.pieces):
            if i in self._found or (quoted is not None and piece["trace_id"] not in quoted):
                continue
            body = piece["text"] if quoted is not None else sendable(piece["text"])  # as the fence writes it
            if body not in text:
                body = quote_lines(body).removeprefix("\\")  # as quotes are written
            escaped = [json.dumps(body, ensure_ascii=a)[1:-1] for a in (False, True)] if as_json else []
            for form in filter(None, (body, *escaped)):
                start = text.find(form, at)
                if start >= 0:
                    self._found.add(i)
                    at = start + len(form)
                    yield start, at, i
                    break

    def _references(self, text: str, quoted: frozenset[str] | None) -> Iterator[dict[str, Any]]:
        """Split text between pieces into what names a call (``#12 get_order …``, quoted ``[… #12]``) and the rest."""
        end = 0
        for found in (_CALL_LINE if quoted is None else _REFERENCE).finditer(text):
            number = int(found[1])
            if not 0 < number <= len(self.numbered):
                continue
            trace_id = self.numbered[number - 1]
            if quoted is not None and trace_id not in quoted:
                continue
            fate = Fate.LISTED if quoted is None and trace_id not in self.shown else Fate.PART
            if found.start() > end:
                yield {"text": text[end : found.start()]}
            yield {"text": found[0], "number": number, "trace_id": trace_id, "fate": str(fate)}
            end = found.end()
        if end < len(text):
            yield {"text": text[end:]}


def _cut(parts: _Parts, left: list[int]) -> _Parts:
    """The parts, each text cut to the room that is ``left``: its beginning, the size of the gap, its end."""
    cut: _Parts = []
    for part in parts:
        text = part["text"]
        limit = min(TEXT_CHARS, max(LEAST_CHARS, left[0]))
        left[0] -= min(len(text), limit)
        if len(text) <= limit:
            cut += [part] if text else []
            continue
        gap, end = len(text) - limit, limit // 4
        rest = {k: v for k, v in part.items() if k != "text"}
        pieces = {"text": text[: limit - end]}, {"left_out": gap}, {"text": text[len(text) - end :]}
        cut += [rest | piece for piece in pieces]
    return cut


def _calls(message: Any) -> Sequence[Any]:
    return calls_of(message) if read(message, "role") == "assistant" else ()
