"""Works off the queue of records to be observed: in a thread beside the agent, or in a process of its own."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memory_bank.bank.database import Database
from memory_bank.bank.facts import FactStore
from memory_bank.bank.insights import InsightStore
from memory_bank.bank.jobs import Job, JobQueue
from memory_bank.bank.usage import Spending
from memory_bank.errors import EmbeddingError, MemoryBankError, StorageError
from memory_bank.faults import fault_point
from memory_bank.models.observer import Observer, Trouble
from memory_bank.records import Insight, InteractionRecord

log = logging.getLogger("memory_bank.Observer")

LEASE = 60.0
"""Seconds a job is held beyond the longest call; a worker that lives renews its leases."""
FIRST_RETRY = 2.0
"""Seconds before the second attempt; each further one waits twice as long."""
LONGEST_RETRY = 300.0
LONGEST_SLEEP = 5.0
"""Seconds between two looks at an empty queue."""
_MOST_PAID = 1_000  # summaries kept that could not be stored


@dataclass(slots=True)
class Progress:
    """What a worker did: jobs ended with the model's summary, with an extractive one, to be tried again."""

    observed: int = 0
    extracted: int = 0
    retried: int = 0


class Worker:
    """Takes jobs under a lease, has their records summarised, and ends each in one transaction.

    One session's, or with ``session_id`` None those of all. A failed attempt waits longer each time; after
    the last one the extractive summary stays, with the reason. Not safe under threads.
    """

    def __init__(
        self,
        database: Database,
        observer: Observer,
        embedder: Any,
        session_id: str | None = None,
        *,
        attempts: int = 5,
        lease: float = LEASE,
        first_retry: float = FIRST_RETRY,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.database = database
        self.observer = observer
        self.embedder = embedder
        self.queue = JobQueue(database, session_id, clock=clock)
        self.attempts = attempts
        self.lease = lease + (observer.timeout or 0.0)
        self.first_retry = first_retry
        self.owner = f"{socket.gethostname()[:20]}:{os.getpid()}:{uuid.uuid4().hex[:16]}"
        self.progress = Progress()
        self._held: list[Job] = []
        self._stores: dict[str, tuple[FactStore, InsightStore]] = {}
        self._paid: dict[int, Insight] = {}  # by job: what could not be embedded or stored is not asked again

    def step(self) -> int:
        """Take as many jobs as are observed at once, and end them; how many were taken.

        Raises StorageError, EmbeddingError; the jobs are free again then, or when their lease ends.
        """
        taken = self.queue.take(self.owner, max(1, self.observer.concurrency), self.lease)
        if not taken:
            return 0
        self._held = taken
        fault_point("jobs.leased")
        try:
            for session_id in dict.fromkeys(j.session_id for j in taken):
                self._work([j for j in taken if j.session_id == session_id], session_id, taken)
        except BaseException:
            self._let_go(taken)
            raise
        finally:
            self._held = []
        return len(taken)

    def abandon(self) -> None:
        """Let go of the jobs at hand, from another thread, when nobody waits for them any longer.

        They are free at once, and what ``step`` still brings for them is not taken.
        """
        held = self._held
        if held:
            self._let_go(held)

    def run(
        self,
        stop: threading.Event,
        *,
        once: bool = False,
        wake: threading.Event | None = None,
        idle: float | None = None,
        told: Callable[[], None] | None = None,
    ) -> None:
        """Work until ``stop`` is set, or with ``once`` until no job is left; ``wake`` ends a wait early.

        ``idle``: seconds without any job after which it ends. ``told`` is called after each round of jobs. A
        database or an embedder that fails is told and tried again after a while; with ``once`` it raises
        StorageError, EmbeddingError.
        """
        failures = 0
        last = time.monotonic()
        while not stop.is_set():
            try:
                if self.step():
                    failures, last = 0, time.monotonic()
                    if told is not None:
                        told()
                    continue
                pause = self.queue.wait()
            except (StorageError, EmbeddingError) as e:
                if once:
                    raise
                failures += 1
                log.warning("observing waits: %s", e)
                pause = self._delay(failures)
            if pause is not None:
                last = time.monotonic()
            elif once or (idle is not None and time.monotonic() - last >= idle):
                return
            pause = LONGEST_SLEEP if pause is None else min(max(pause, 0.01), LONGEST_SLEEP)
            (wake or stop).wait(pause)
            if wake is not None:
                wake.clear()

    def _work(self, jobs: list[Job], session_id: str, held: list[Job]) -> None:
        facts, insights = self._stores_of(session_id)
        records = {r.trace_id: r for r in facts.get_many([j.trace_id for j in jobs])}
        task = self.database.get_task(session_id)
        observer = self.observer.booking(Spending(self.database, session_id))
        found = [records[j.trace_id] for j in jobs if j.trace_id in records]
        by_id: dict[str, Insight | Trouble] = {
            j.trace_id: self._paid[j.seq] for j in jobs if j.seq in self._paid
        }
        asked = [r for r in found if r.trace_id not in by_id]
        with self._renewing(held):  # those of other sessions wait for their turn
            answers = observer.each(asked, lambda r: self._answer(observer, r, task))
        fault_point("jobs.observed")
        by_id.update(zip((r.trace_id for r in asked), answers, strict=True))
        if len(self._paid) > _MOST_PAID:
            self._paid.clear()
        self._paid.update((j.seq, a) for j in jobs if isinstance(a := by_id.get(j.trace_id), Insight))
        ended: list[tuple[Job, Insight | None]] = []
        for job in jobs:
            answer = by_id.get(job.trace_id)
            if isinstance(answer, Trouble) and answer.again and job.attempts < self.attempts:
                self.queue.give_back(self.owner, job, answer.reason, self._delay(job.attempts))
                self.progress.retried += 1
                continue
            if isinstance(answer, Trouble):
                log.warning("%s for %s: its extractive summary stays", answer.reason, job.trace_id)
                answer = observer.extract(records[job.trace_id], answer.reason)
            ended.append((job, answer))  # None: the record is gone, and so is its job
        insights.finish(self.owner, ended)
        for job in jobs:
            self._paid.pop(job.seq, None)
        fault_point("jobs.finished")
        for _, insight in ended:
            self.progress.observed += insight is not None and insight.source == observer.name
            self.progress.extracted += insight is not None and insight.source != observer.name

    def _answer(self, observer: Observer, record: InteractionRecord, task: str) -> Insight | Trouble:
        return observer.ask(record, task) if observer.sends(record) else observer.extract(record)

    def _renewing(self, jobs: list[Job]) -> _Renewal:
        return _Renewal(self.queue, self.owner, jobs, self.lease)

    def _stores_of(self, session_id: str) -> tuple[FactStore, InsightStore]:
        found = self._stores.get(session_id)
        if found is None:
            if len(self._stores) >= 64:
                self._stores.clear()
            facts = FactStore(self.database, session_id)
            found = self._stores[session_id] = facts, InsightStore(self.embedder, self.database, session_id)
        return found

    def _delay(self, attempts: int) -> float:
        return min(LONGEST_RETRY, self.first_retry * 2.0 ** min(attempts - 1, 20))

    def _let_go(self, taken: list[Job]) -> None:
        try:
            self.queue.release(self.owner, taken)
        except MemoryBankError:
            log.warning("%d jobs are free again when their lease ends", len(taken))


class _Renewal:
    """Renews leases in a thread while records are observed, so that a long call is not taken for a death."""

    def __init__(self, queue: JobQueue, owner: str, jobs: list[Job], lease: float) -> None:
        self._queue, self._owner, self._jobs, self._lease = queue, owner, jobs, lease
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-bank-leases", daemon=True)

    def _run(self) -> None:
        while not self._over.wait(self._lease / 3):
            try:
                self._queue.renew(self._owner, self._jobs, self._lease)
            except MemoryBankError as e:
                log.warning("a lease could not be renewed: %s", e)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()


class BackgroundObserver:
    """A worker for one session in a thread of this process: started when there is work, gone when idle."""

    IDLE = 30.0

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._made_for: object = None

    def work(self, worker: Callable[[], Worker], wanted: object = None) -> None:
        """See that somebody works: wakes the thread, or starts one with a new worker.

        ``wanted`` stands for the worker's settings: where it is another than before, so is the worker.
        """
        with self._lock:
            if self.works() and self._made_for == wanted:
                self._wake.set()
                return
            self._stop.set()  # of a former one: it ends its jobs at hand and goes
            self._wake.set()
            self._stop, self._wake = threading.Event(), threading.Event()
            self._made_for = wanted
            self._thread = threading.Thread(
                target=self._run,
                args=(worker(), self._stop, self._wake),
                name="memory-bank-observer",
                daemon=True,
            )
            self._thread.start()

    def _run(self, worker: Worker, stop: threading.Event, wake: threading.Event) -> None:
        while True:
            try:
                worker.run(stop, wake=wake, idle=self.IDLE)
            except Exception:
                log.exception("the background observer stops; its jobs stay in the queue")
                return
            with self._lock:  # who wakes it now is either seen here, or finds it gone
                if stop.is_set() or not wake.is_set():
                    if self._stop is stop:
                        self._thread = None
                    return

    def works(self) -> bool:
        """Whether there is a thread at work."""
        return self._thread is not None and self._thread.is_alive() and not self._stop.is_set()

    def wake(self) -> None:
        """Look at the queue now."""
        self._wake.set()

    def stop(self, timeout: float | None = 1.0) -> None:
        """Take no further job; wait so many seconds for those at hand. What is left stays in the queue."""
        with self._lock:
            self._stop.set()
            self._wake.set()
            thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)
