"""The recorded steps of the page: their figures, and within bounds the model's answers."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from memory_bank.bank.database import Database
from memory_bank.bank.session import MemoryBankState, Session
from memory_bank.bank.steps import StepFigures, StepToStore, add_steps, packed
from memory_bank.errors import StorageError
from memory_bank.service.proxy.api import Dialect, error_in
from memory_bank.service.proxy.body import as_object, parse_object
from memory_bank.service.proxy.events import EventSplitter
from memory_bank.service.sessions import Rebuilt
from memory_bank.transcript.jsontext import compact

log = logging.getLogger("memory_bank.Service")

ANSWERS = 128
"""Steps that may wait with their answers, and twice as many with errors; of later ones the figures alone are kept."""
_TOGETHER = 256  # steps in one transaction
_GATHER = 0.2  # seconds to collect a batch
_PAUSES = 0.2, 5.0  # seconds between attempts, the first and the longest

TEXT_CHARS = 20_000
ANSWER_CHARS = 300_000
"""Characters kept of one text, and of a whole answer."""
LEAST_CHARS = 200
ERROR_CHARS = 1_000
CALLS = 100
"""Calls of one answer that are kept."""

Answer = tuple[bytes, Dialect | None]
"""The beginning of an answer, and the API that it is of."""


@dataclass(slots=True)
class _Waiting:
    """A step that waits, with the answer that is still to be read, and the session whose costs it changed."""

    new: StepToStore
    answer: Answer | None = None
    state: Session | None = None


class Recorder:
    """Records steps; ``take`` costs a few microseconds.

    A thread reads the models' answers and writes steps together. ``kept`` is the number of latest steps per session
    that keep the answer. ``redact`` masks secrets in a text. Writing is retried for ``patience`` seconds; of more
    than ``most`` steps that wait the oldest are dropped. ``lost`` counts steps that could not be recorded.
    """

    def __init__(self, database: Database, kept: int, *, redact: Callable[[str], str] = str) -> None:
        self.database = database
        self.kept = kept
        self.redact = redact
        self.patience, self.most = 600.0, 100_000
        self.lost = 0
        self._new: deque[_Waiting] = deque()
        self._open = 0  # steps taken that are neither written nor lost
        self._change = threading.Condition()
        self._closing = threading.Event()
        self._until = float("inf")  # the deadline of a closed recorder
        self._thread = threading.Thread(target=self._run, name="memory-bank-steps", daemon=True)

    def take(self, step: StepFigures, answer: Answer | None = None) -> None:
        """Record a step later, with the model's ``answer`` to its request. Never blocks."""
        figures = {f.name: getattr(step, f.name) for f in fields(StepFigures)}  # what waits holds no contexts
        new, state = StepToStore(StepFigures(**figures)), None
        if isinstance(step, Rebuilt):
            state = step.state if answer else None
            new = replace(new, fates=step.fates, generation=getattr(step.state, "generation", None))
        with self._change:
            if self._closing.is_set():
                self.lost += 1
                return
            if self._open >= self.most and self._new:
                self._new.popleft()
                self._open -= 1
                self.lost += 1
            if len(self._new) >= (ANSWERS if step.error is None else 2 * ANSWERS):
                answer = None
            self._new.append(_Waiting(new, answer, state))
            self._open += 1
            if self._thread.ident is None:
                self._thread.start()
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
        """Return whether the oldest new steps were written; nothing refers to them after it."""
        to_store: list[StepToStore] = []
        for _ in range(min(_TOGETHER, len(self._new))):
            with self._change:
                waiting = self._new.popleft()
            to_store.append(self._read(waiting) if time.monotonic() < self._until else waiting.new)
        written = self._write(to_store)
        with self._change:
            if written or not self._closing.is_set():
                self._open -= len(to_store)
                self.lost += 0 if written else len(to_store)
                self._change.notify_all()
        return written

    def _read(self, waiting: _Waiting) -> StepToStore:
        """The step with the model's answer, or the error that it is; what it cost is stored with its session."""
        new = waiting.new
        try:
            if isinstance(waiting.state, MemoryBankState):
                waiting.state.save()
            data, dialect = waiting.answer or (b"", None)
            if dialect is None or not (data and self.kept):
                return new
            parts, error = read_answer(data, dialect, self.redact)
            figures = new.figures if error is None else replace(new.figures, error=error)
            return replace(new, figures=figures, answer=None if parts is None else packed(parts))
        except Exception as e:  # the figures are recorded in any case; the error's text may have content
            log.warning("the answer of a step could not be recorded (%s)", type(e).__name__)
            return new

    def _write(self, batch: list[StepToStore]) -> bool:
        """Write steps, for ``patience`` seconds while the database fails; return whether they were written."""
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
                error = error or error_in(event.value)
        value = stream.answer()
    error = error or error_in(value)
    turn = dialect.read_answer(value, {})
    text = "\n\n".join(t for m in turn.messages for t in _texts(m) if t)
    left = [ANSWER_CHARS]
    calls = [
        {
            "name": redact(str(call.name or call.item.get("type") or "")),
            "arguments": _cut(redact(a if isinstance(a := call.arguments, str) else compact(a)), left),
        }
        for call in turn.calls[:CALLS]
    ]
    parts = _cut(redact(text), left)
    answer = {"parts": parts, "calls": calls} if parts or calls else None
    return answer, redact(_error_text(error))[:ERROR_CHARS] if error else None


def _error_text(error: Mapping[str, Any]) -> str:
    """The text of an error: its message, else its type and code, else all of it."""
    named = [str(error[k]) for k in ("type", "code") if error.get(k)]
    return str(error.get("message") or "; ".join(named) or compact(error))


def _texts(message: object) -> list[str]:
    """The texts of a message of a turn, without its calls and thinking."""
    content = as_object(message).get("content")
    blocks = content if isinstance(content, list) else [content]
    texts = (block if isinstance(block, str) else as_object(block).get("text") for block in blocks)
    return [text for text in texts if isinstance(text, str)]


def _cut(text: str, left: list[int]) -> list[dict[str, Any]]:
    """A text in parts, cut to the room that is ``left``: its beginning, the size of the gap, its end."""
    limit = min(TEXT_CHARS, max(LEAST_CHARS, left[0]))
    left[0] -= min(len(text), limit)
    if len(text) <= limit:
        return [{"text": text}] if text else []
    end = limit // 4
    return [{"text": text[: limit - end]}, {"left_out": len(text) - limit}, {"text": text[len(text) - end :]}]
