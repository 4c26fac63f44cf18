"""Notes every step for the page, beside the requests: figures always, what it was made of if that can be."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import replace

from memory_bank.bank.database import Database
from memory_bank.bank.usage import NewStep, add_steps, packed
from memory_bank.errors import StorageError
from memory_bank.service.page.snapshot import snapshot
from memory_bank.service.sessions import Rebuilt

log = logging.getLogger("memory_bank.Service")

DETAILED = 32
"""Steps that may wait to be looked at in full; of those that come beyond, only the figures are noted."""
WAITING = 100_000
"""Steps that may wait for a database that is away; beyond, the oldest are let go."""
PATIENCE = 600.0
"""Seconds in which a batch is tried again."""
_TOGETHER = 256  # steps in one transaction; so many may wait for it in full
_GATHER = 0.2  # seconds in which they gather
_SETTLED = 0.1  # seconds after which a step is looked at: an agent that has gone on by then is not held up
_REST = 4.0  # times as long as a look took the next one waits: requests go first
_BUSY = 1.0  # seconds that a session at work is waited for: it may be finishing this very step
_PAUSES = 0.2, 5.0  # seconds between attempts, the first and the longest


class Recorder:
    """Notes the steps it is told of; ``take`` costs some microseconds.

    One thread looks at each step a moment later, if its session still stands there, another one writes them.
    ``kept``: the latest steps of a session that keep what they were made of; 0: none does. ``lost`` counts
    steps that could not be noted.
    """

    def __init__(self, database: Database, kept: int, *, patience: float = PATIENCE) -> None:
        self.database = database
        self.kept = kept
        self.patience = patience
        self.lost = 0
        self._new: deque[tuple[NewStep, Rebuilt | None, float]] = deque()
        self._detailed = 0  # of the new
        self._ready: deque[NewStep] = deque()
        self._open = 0  # steps taken that are neither written nor lost
        self._change = threading.Condition()
        self._closing = threading.Event()
        self._until = float("inf")  # when a closed recorder gives up
        self._threads: list[threading.Thread] = []

    def take(self, step: Rebuilt) -> None:
        """Note a step soon. Never waits for anything."""
        figures = NewStep(
            session_id=step.session_id,
            created=time.time(),
            full_tokens=step.full_tokens,
            tokens=step.tokens,
            messages=step.message_count,
            records=step.record_count,
            status="unchanged" if step.unchanged else "rebuilt",
            strategy=step.strategy,
            milliseconds=step.milliseconds,
            generation=getattr(step.state, "generation", None),
        )
        with self._change:
            if self._closing.is_set():
                self.lost += 1
                return
            if self._open >= WAITING:
                self._let_go()
            whole = self.kept > 0 and self._detailed < DETAILED and len(self._ready) < _TOGETHER
            self._detailed += whole
            self._new.append((figures, step if whole else None, time.monotonic() + _SETTLED))
            self._open += 1
            if not self._threads:
                for work, name in ((self._look, "memory-bank-steps"), (self._write, "memory-bank-noting")):
                    self._threads.append(threading.Thread(target=work, name=name, daemon=True))
                    self._threads[-1].start()
            self._change.notify_all()

    def drain(self, timeout: float) -> bool:
        """Wait until everything taken so far is written; False where that takes longer."""
        with self._change:
            return self._change.wait_for(lambda: not self._open, timeout)

    def close(self, timeout: float = 10.0) -> None:
        """Write what waits, as far as that is done in so many seconds, and end."""
        with self._change:
            self._until = time.monotonic() + timeout
            self._closing.set()
            self._change.notify_all()
        for thread in self._threads:
            thread.join(max(0.0, self._until + 1.0 - time.monotonic()))
        with self._change:
            self.lost += self._open
        if self.lost:
            log.warning("%d steps could not be noted for the page", self.lost)

    def _let_go(self) -> None:
        """The oldest step that waits goes. Under the lock."""
        if self._ready:
            self._ready.popleft()
        else:
            _, step, _ = self._new.popleft()
            self._detailed -= step is not None
        self._open -= 1
        self.lost += 1

    def _look(self) -> None:
        """Make new steps ready to be written, until the recorder is closed and there are none."""
        while True:
            with self._change:
                self._change.wait_for(lambda: bool(self._new) or self._closing.is_set())
                if not self._new:
                    return
                figures, step, due = self._new.popleft()
                self._detailed -= step is not None
            if step is not None:
                self._closing.wait(max(0.0, due - time.monotonic()))
            began = time.monotonic()
            if step is not None and began < self._until:
                figures = replace(figures, manifest=_manifest(step))
            with self._change:
                self._ready.append(figures)
                self._change.notify_all()
                has_more = self._detailed > 0
            if has_more:
                self._closing.wait(_REST * (time.monotonic() - began))

    def _write(self) -> None:
        """Write what is ready, until the recorder is closed and everything written, or its time is over."""
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
                    return  # what is left counts as lost
                self._open -= len(batch)
                self.lost += 0 if written else len(batch)
                self._change.notify_all()

    def _written(self, batch: list[NewStep]) -> bool:
        """Write steps, again and again where the database refuses; False when patience or time ended."""
        until, pause, told = time.monotonic() + self.patience, _PAUSES[0], False
        while True:
            try:
                add_steps(self.database, batch, self.kept)
            except StorageError as e:
                if not told:
                    log.warning("steps wait to be noted for the page: %s", e)
                told = True
            else:
                return True
            left = min(until, self._until) - time.monotonic()
            if left <= 0:
                return False
            with self._change:  # wakes when it is closed, to try once more
                self._change.wait_for(self._closing.is_set, min(pause, left))
            if self._closing.is_set():
                time.sleep(max(0.0, min(_PAUSES[0], self._until - time.monotonic())))
            pause = min(2 * pause, _PAUSES[1])


def _manifest(step: Rebuilt) -> bytes | None:
    """What the step was made of; None where its session has gone on since."""
    try:
        if step.state is None:  # there is nothing to be asked
            return packed(snapshot(step))
        if not _stands(step) or not step.state.lock.acquire(timeout=_BUSY):
            return None
        try:
            made = snapshot(step) if _stands(step) else None
        finally:
            step.state.lock.release()
        return None if made is None else packed(made)
    except Exception as e:  # the figures are noted in any case; the error might quote contents
        log.warning("what a step was made of could not be noted (%s)", type(e).__name__)
        return None


def _stands(step: Rebuilt) -> bool:
    return step.state is not None and step.state.last_plan is step.plan
