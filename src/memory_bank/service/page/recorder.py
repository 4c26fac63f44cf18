"""Records every step for the page in the background: its figures always, its manifest if possible."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import replace
from typing import Any

from memory_bank.bank.database import Database
from memory_bank.bank.steps import CONTROL, StepFigures, StepToStore, add_steps, packed
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
_TOGETHER = 256  # steps in one transaction, and steps with manifests that may wait for it
_GATHER = 0.2  # seconds to collect a batch
_SETTLED = 0.1  # seconds before a manifest is made, so that an agent that goes on is not delayed
_REST = 4.0  # pause before the next manifest, in durations of the last: requests have priority
_BUSY = 1.0  # seconds to wait for a busy session, which may be finishing this step
_PAUSES = 0.2, 5.0  # seconds between attempts, the first and the longest


class Recorder:
    """Records steps; ``take`` costs a few microseconds.

    One thread makes the manifest of each step, unless its session has gone on by then; another one writes.
    ``kept`` is the number of latest steps per session that keep a manifest. ``lost`` counts steps that could
    not be recorded.
    """

    def __init__(self, database: Database, kept: int, *, patience: float = PATIENCE) -> None:
        self.database = database
        self.kept = kept
        self.patience = patience
        self.lost = 0
        self._new: deque[tuple[StepToStore, Rebuilt | None, float]] = deque()
        self._detailed = 0  # of the new ones, those that wait for a manifest
        self._ready: deque[StepToStore] = deque()
        self._open = 0  # steps taken that are neither written nor lost
        self._change = threading.Condition()
        self._closing = threading.Event()
        self._until = float("inf")  # the deadline of a closed recorder
        self._threads: list[threading.Thread] = []

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
            if self._open >= WAITING:
                self._drop_oldest()
            whole = step is not None and self.kept > 0
            whole = whole and self._detailed < DETAILED and len(self._ready) < _TOGETHER
            self._detailed += whole
            self._new.append((new, step if whole else None, time.monotonic() + _SETTLED))
            self._open += 1
            if not self._threads:
                for work, name in (
                    (self._make_manifests, "memory-bank-steps"),
                    (self._write, "memory-bank-steps-written"),
                ):
                    self._threads.append(threading.Thread(target=work, name=name, daemon=True))
                    self._threads[-1].start()
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
        for thread in self._threads:
            thread.join(max(0.0, self._until + 1.0 - time.monotonic()))
        with self._change:
            self.lost += self._open
        if self.lost:
            log.warning("%d steps could not be recorded for the page", self.lost)

    def _drop_oldest(self) -> None:
        """Drop the oldest waiting step. Call it with the lock held."""
        if self._ready:
            self._ready.popleft()
        else:
            _, step, _ = self._new.popleft()
            self._detailed -= step is not None
        self._open -= 1
        self.lost += 1

    def _make_manifests(self) -> None:
        """Prepare new steps for writing, until the recorder is closed and none are left."""
        while True:
            with self._change:
                self._change.wait_for(lambda: bool(self._new) or self._closing.is_set())
                if not self._new:
                    return
                new, step, due = self._new.popleft()
                self._detailed -= step is not None
            if step is not None:
                self._closing.wait(max(0.0, due - time.monotonic()))
            began = time.monotonic()
            if step is not None and began < self._until:
                new = replace(new, manifest=_manifest(step))
            with self._change:
                self._ready.append(new)
                self._change.notify_all()
                has_more = self._detailed > 0
            if has_more:
                self._closing.wait(_REST * (time.monotonic() - began))

    def _write(self) -> None:
        """Write prepared steps, until the recorder is closed and all are written or its time is over."""
        while True:
            with self._change:
                self._change.wait_for(
                    lambda: bool(self._ready) or (self._closing.is_set() and not self._open)
                )
                if not self._ready:
                    return
            self._closing.wait(_GATHER)
            with self._change:
                batch = [self._ready.popleft() for _ in range(min(_TOGETHER, len(self._ready)))]
            written = self._written(batch)
            with self._change:
                if not written and self._closing.is_set():
                    return  # the rest counts as lost
                self._open -= len(batch)
                self.lost += 0 if written else len(batch)
                self._change.notify_all()

    def _written(self, batch: list[StepToStore]) -> bool:
        """Write steps and return True. While the database fails, try again, until ``patience`` seconds are over.

        Returns False if the steps could not be written: the time is over, or an error came up that no retry mends.
        """
        until, pause, warned = time.monotonic() + self.patience, _PAUSES[0], False
        while True:
            try:
                add_steps(self.database, batch, self.kept)
            except StorageError as e:
                if not warned:
                    log.warning("steps wait to be recorded for the page: %s", e)
                warned = True
            except Exception as e:  # the error's text is not logged: it may quote what was to be stored
                log.warning("%d steps could not be recorded for the page (%s)", len(batch), type(e).__name__)
                return False
            else:
                return True
            left = min(until, self._until) - time.monotonic()
            if left <= 0:
                return False
            with self._change:  # ``close`` wakes it for a last attempt
                self._change.wait_for(self._closing.is_set, min(pause, left))
            if self._closing.is_set():
                time.sleep(max(0.0, min(_PAUSES[0], self._until - time.monotonic())))
            pause = min(2 * pause, _PAUSES[1])


def _figures(step: Rebuilt) -> StepFigures:
    return StepFigures(
        session_id=step.session_id,
        created=step.created,
        full_tokens=step.full_tokens,
        tokens=step.tokens,
        messages=step.message_count,
        records=step.record_count,
        status=CONTROL if step.control else "unchanged" if step.unchanged else "rebuilt",
        strategy=step.strategy,
        milliseconds=step.milliseconds,
        changed_at=step.changed_at,
        changed=step.changed,
    )


def _manifest(step: Rebuilt) -> bytes | None:
    """The manifest of a step; None if its session has gone on since."""
    try:
        if step.state is None:  # there is no session to ask
            return packed(snapshot(step))
        if not _is_latest(step) or not step.state.lock.acquire(timeout=_BUSY):
            return None
        try:
            made = snapshot(step) if _is_latest(step) else None
        finally:
            step.state.lock.release()
        return None if made is None else packed(made)
    except Exception as e:  # the figures are recorded in any case; the error's text may have content
        log.warning("the manifest of a step could not be made (%s)", type(e).__name__)
        return None


def _is_latest(step: Rebuilt) -> bool:
    return step.state is not None and step.state.last_plan is step.plan
