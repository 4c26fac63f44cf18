"""The worker that runs the Observer on queued records, in a thread of the agent's process or in its own."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

from memory_bank.bank.database import Database
from memory_bank.bank.jobs import Job, JobQueue
from memory_bank.bank.spending import Spending
from memory_bank.bank.stores import FactStore, InsightStore
from memory_bank.errors import EmbeddingError, MemoryBankError, StorageError
from memory_bank.faults import fault_point
from memory_bank.models.observer import Observer, Trouble
from memory_bank.ports import Embedder
from memory_bank.records import Insight, InteractionRecord

log = logging.getLogger("memory_bank.Observer")

LONGEST_SLEEP = 5.0
"""Seconds between two checks of an empty queue."""


@dataclass(slots=True)
class WorkerCounts:
    """How many jobs ended with the model's summary, with an extractive one, and to be tried again."""

    observed: int = 0
    extracted: int = 0
    retried: int = 0


class Worker:
    """Leases jobs, has their records summarised, and finishes each job in one transaction. Not thread-safe.

    With ``session_id`` None the jobs of all sessions. ``lease``: seconds in addition to the longest call; leases are
    renewed. ``first_retry``: seconds before the second attempt; they double with each further one, up to 300. After
    the last attempt the extractive summary stays, marked with the reason.
    """

    def __init__(
        self,
        database: Database,
        observer: Observer,
        embedder: Embedder,
        session_id: str | None = None,
        *,
        attempts: int = 5,
        lease: float = 60.0,
        first_retry: float = 2.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.database = database
        self.observer = observer
        self.embedder = embedder
        self.queue = JobQueue(database, session_id, clock=clock)
        self.attempts = attempts
        self.lease = lease + observer.settings.observer_timeout
        self.first_retry = first_retry
        self.owner = f"{socket.gethostname()[:20]}:{os.getpid()}:{uuid.uuid4().hex[:16]}"
        self.progress = WorkerCounts()
        self._held: list[Job] = []
        self._stores = lru_cache(64)(lambda s: (FactStore(database, s), InsightStore(embedder, database, s)))
        self._paid: dict[int, Insight] = {}  # by job: insights that could not be stored

    def step(self) -> int:
        """Take as many jobs as are observed concurrently, finish them, and return how many they were.

        Raises StorageError, EmbeddingError; the jobs are free again then, or when their lease ends.
        """
        taken = self.queue.take(self.owner, max(1, self.observer.settings.observer_concurrency), self.lease)
        if not taken:
            return 0
        self._held = taken
        fault_point("jobs.leased")
        try:
            for session_id in dict.fromkeys(j.session_id for j in taken):
                self._work([j for j in taken if j.session_id == session_id], session_id)
        except BaseException:
            self.abandon()
            raise
        finally:
            self._held = []
        return len(taken)

    def abandon(self) -> None:
        """Release the current jobs, from any thread; results that ``step`` still gets for them are dropped."""
        held = self._held
        try:
            if held:
                self.queue.release(self.owner, held)
        except MemoryBankError:
            log.warning("%d jobs are free again when their lease ends", len(held))

    def run(
        self,
        stop: threading.Event,
        *,
        once: bool = False,
        wake: threading.Event | None = None,
        idle: float | None = None,
        on_step: Callable[[], None] | None = None,
    ) -> None:
        """Work until ``stop`` is set, or with ``once`` until no job is left; ``wake`` ends a wait early.

        ``idle``: seconds without any job after which it returns. ``on_step`` is called after each round of jobs. A
        database or an embedder that fails is tried again later; with ``once`` it raises StorageError, EmbeddingError.
        """
        failures = 0
        last = time.monotonic()
        while not stop.is_set():
            try:
                if self.step():
                    failures, last = 0, time.monotonic()
                    if on_step is not None:
                        on_step()
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

    def _work(self, jobs: list[Job], session_id: str) -> None:
        facts, insights = self._stores(session_id)
        records = {r.trace_id: r for r in facts.get_many([j.trace_id for j in jobs])}
        task = self.database.get_task(session_id)
        observer = replace(self.observer, account=Spending(self.database, session_id))

        def answer(record: InteractionRecord) -> Insight | Trouble:
            return observer.ask(record, task) if observer.sends(record) else observer.extract(record)

        found: dict[int, Insight | Trouble] = {j.seq: self._paid[j.seq] for j in jobs if j.seq in self._paid}
        asked = [j for j in jobs if j.trace_id in records and j.seq not in found]
        with self._renewal(self._held):  # also those of the sessions that follow
            answers = observer.each([records[j.trace_id] for j in asked], answer)
        fault_point("jobs.observed")
        found.update(zip((j.seq for j in asked), answers, strict=True))
        if len(self._paid) > 1_000:
            self._paid.clear()
        self._paid.update((seq, made) for seq, made in found.items() if isinstance(made, Insight))
        ended: list[tuple[Job, Insight | None]] = []
        for job in jobs:
            result = found.get(job.seq)
            if isinstance(result, Trouble):
                if result.again and job.attempts < self.attempts:
                    self.queue.give_back(self.owner, job, result.reason, self._delay(job.attempts))
                    self.progress.retried += 1
                    continue
                observer.warn(result.reason, records[job.trace_id], "extractive summaries stay")
                result = observer.extract(records[job.trace_id], result.reason)
            ended.append((job, result))  # None: the record was deleted
        insights.finish(self.owner, ended)
        for job in jobs:
            self._paid.pop(job.seq, None)
        fault_point("jobs.finished")
        by_model = [insight.source == observer.name for _, insight in ended if insight is not None]
        self.progress.observed += sum(by_model)
        self.progress.extracted += len(by_model) - sum(by_model)

    def _delay(self, attempts: int) -> float:
        return min(300.0, self.first_retry * 2.0 ** min(attempts - 1, 20))

    @contextmanager
    def _renewal(self, held: list[Job]) -> Iterator[None]:
        """Renew leases in a thread while records are observed, so that they outlive a long call."""
        over = threading.Event()

        def renew() -> None:
            while not over.wait(self.lease / 3):
                try:
                    self.queue.renew(self.owner, held, self.lease)
                except MemoryBankError as e:
                    log.warning("a lease could not be renewed: %s", e)

        thread = threading.Thread(target=renew, name="memory-bank-leases", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


class BackgroundObserver:
    """A worker for one session in a thread of this process: started when there is work, ended when idle."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._settings: object = None

    def work(self, worker: Callable[[], Worker], settings: object = None) -> None:
        """Wake the thread, or start one with a new worker: also where ``settings`` differ from those before."""
        with self._lock:
            if self.works() and self._settings == settings:
                self._wake.set()
                return
            self._stop.set()  # a former thread finishes its current jobs and ends
            self._wake.set()
            self._stop, self._wake = threading.Event(), threading.Event()
            self._settings = settings
            args = worker(), self._stop, self._wake
            name = "memory-bank-observer"
            self._thread = threading.Thread(target=self._run, args=args, name=name, daemon=True)
            self._thread.start()

    def _run(self, worker: Worker, stop: threading.Event, wake: threading.Event) -> None:
        while True:
            try:
                worker.run(stop, wake=wake, idle=30.0)
            except Exception:
                log.exception("the background observer stops; its jobs stay in the queue")
                return
            with self._lock:  # a wake-up is seen here, or finds no thread
                if stop.is_set() or not wake.is_set():
                    if self._stop is stop:
                        self._thread = None
                    return

    def works(self) -> bool:
        """Whether the thread is running."""
        return self._thread is not None and self._thread.is_alive() and not self._stop.is_set()

    def wake(self) -> None:
        """Check the queue now."""
        self._wake.set()

    def stop(self, timeout: float | None = 1.0) -> None:
        """Take no further job and wait up to ``timeout`` seconds for the current ones."""
        with self._lock:
            self._stop.set()
            self._wake.set()
            thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)
