"""Records every step for the page in the background: its figures always, its manifest if possible."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import fields, replace
from typing import Any

from memory_bank.bank.database import Database
from memory_bank.bank.steps import StepFigures, StepToStore, add_steps, packed
from memory_bank.errors import StorageError
from memory_bank.service.page.snapshot import snapshot
from memory_bank.service.sessions import Rebuilt

log = logging.getLogger("memory_bank.Service")

DETAILED = 32
"""Steps that may wait for their manifest; of further ones only the figures are recorded."""
WAITING = 100_000
"""Steps that may wait for the database; beyond that, the oldest are dropped."""
PATIENCE = 600.0
"""Seconds for which writing a batch is retried."""
_TOGETHER = 256  # steps in one transaction
_GATHER = 0.2  # seconds to collect a batch, in which an agent that goes on is not delayed by a manifest
_REST = 4.0  # pause before the next manifest, in durations of the last: requests have priority
_BUSY = 1.0  # seconds to wait for a busy session, which may be finishing this step
_PAUSES = 0.2, 5.0  # seconds between attempts, the first and the longest


class Recorder:
    """Records steps; ``take`` costs a few microseconds.

    A thread makes the manifest of each step, unless its session has gone on by then, and writes them together.
    ``kept`` is the number of latest steps per session that keep a manifest. ``lost`` counts steps that could
    not be recorded.
    """

    def __init__(self, database: Database, kept: int, *, patience: float = PATIENCE) -> None:
        self.database = database
        self.kept = kept
        self.patience = patience
        self.lost = 0
        self._new: deque[tuple[StepToStore, Rebuilt | None]] = deque()
        self._detailed = 0  # of the new ones, those that wait for a manifest
        self._open = 0  # steps taken that are neither written nor lost
        self._change = threading.Condition()
        self._closing = threading.Event()
        self._until = float("inf")  # the deadline of a closed recorder
        self._thread = threading.Thread(target=self._run, name="memory-bank-steps", daemon=True)

    def take(self, step: Rebuilt) -> None:
        """Record a step later. Never blocks."""
        self._take(StepToStore(_figures(step), generation=getattr(step.state, "generation", None)), step)

    def take_outcome(self, step: Rebuilt, **came_to: Any) -> None:
        """Record what a step's request came to, as fields of StepFigures, after the step. Never blocks."""
        self._take(StepToStore(replace(_figures(step), **came_to), outcome=True), None)

    def _take(self, new: StepToStore, step: Rebuilt | None) -> None:
        with self._change:
            if self._closing.is_set():
                self.lost += 1
                return
            if self._open >= WAITING and self._new:
                self._pop()
                self._settle(1, written=False)
            if self.kept == 0 or self._detailed >= DETAILED:
                step = None
            self._detailed += step is not None
            self._new.append((new, step))
            self._open += 1
            if self._thread.ident is None:
                self._thread.start()
            self._change.notify_all()

    def _pop(self) -> tuple[StepToStore, Rebuilt | None]:
        new, step = self._new.popleft()
        self._detailed -= step is not None
        return new, step

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
            with self._change:
                batch = [self._pop() for _ in range(min(_TOGETHER, len(self._new)))]
            written = self._write([self._with_manifest(*new) for new in batch])
            with self._change:
                if not written and self._closing.is_set():
                    return  # the rest counts as lost
                self._settle(len(batch), written=written)

    def _with_manifest(self, new: StepToStore, step: Rebuilt | None) -> StepToStore:
        began = time.monotonic()
        if step is None or began >= self._until:
            return new
        made = replace(new, manifest=_manifest(step))
        self._closing.wait(_REST * (time.monotonic() - began))
        return made

    def _write(self, batch: list[StepToStore]) -> bool:
        """Whether the steps were written; while the database fails, it tries again for ``patience`` seconds."""
        until, pause = time.monotonic() + self.patience, _PAUSES[0]
        while True:
            try:
                add_steps(self.database, batch, self.kept)
            except StorageError as e:
                if pause == _PAUSES[0]:
                    log.warning("steps wait to be recorded for the page: %s", e)
            except Exception as e:  # the error's text is not logged: it may quote what was to be stored
                log.warning("%d steps could not be recorded for the page (%s)", len(batch), type(e).__name__)
                return False
            else:
                return True
            left = min(until, self._until) - time.monotonic()
            if left <= 0:
                return False
            self._closing.wait(min(pause, left))  # ``close`` wakes it for a last attempt
            if self._closing.is_set():
                time.sleep(max(0.0, min(_PAUSES[0], self._until - time.monotonic())))
            pause = min(2 * pause, _PAUSES[1])


def _manifest(step: Rebuilt) -> bytes | None:
    """The manifest of a step; None if its session has gone on since."""
    state = step.state
    try:
        if state is None:  # there is no session to ask
            return packed(snapshot(step))
        if state.last_plan is not step.plan or not state.lock.acquire(timeout=_BUSY):
            return None
        try:
            made = snapshot(step) if state.last_plan is step.plan else None
        finally:
            state.lock.release()
        return None if made is None else packed(made)
    except Exception as e:  # the figures are recorded in any case; the error's text may have content
        log.warning("the manifest of a step could not be made (%s)", type(e).__name__)
        return None


def _figures(step: Rebuilt) -> StepFigures:
    """The figures alone: what waits must not hold contexts."""
    return StepFigures(**{f.name: getattr(step, f.name) for f in fields(StepFigures)})
