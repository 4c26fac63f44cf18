"""Makes and stores the summaries of records: within the step, or by a worker in a thread or process of its own."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from cachetools import LRUCache
from sqlalchemy.engine import Connection

from memory_bank.bank.database import Database
from memory_bank.bank.jobs import STEP, Job, JobQueue, Spending, without_insight
from memory_bank.bank.rows import to_rows
from memory_bank.bank.stores import FactStore, InsightStore
from memory_bank.config import MemoryBankSettings
from memory_bank.errors import EmbeddingError, MemoryBankError, StorageError
from memory_bank.faults import fault_point
from memory_bank.models.observer import EXTRACTIVE, Observer, Trouble
from memory_bank.ports import Embedder
from memory_bank.records import Insight, InteractionRecord
from memory_bank.transcript.messages import is_memory_tool

log = logging.getLogger("memory_bank.Observer")
session_log = logging.getLogger("memory_bank.MemoryBankStrategy")

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
        self._paid: LRUCache[int, Insight] = LRUCache(1_000)  # by job: insights that could not be stored

    def step(self) -> int:
        """Take and finish as many jobs as are observed at once; their number. Raises StorageError, EmbeddingError."""
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
    """A worker in a thread of this process.

    ``idle``: seconds without a job after which the thread ends, as it does at an unexpected error; ``wake`` starts
    another. None: it works until ``close``, which releases its jobs, and starts again after a failure, also of
    ``open_worker``.
    """

    def __init__(self, open_worker: Callable[[], Worker], idle: float | None = None) -> None:
        self._open_worker = open_worker
        self._idle = idle
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._worker: Worker | None = None
        self._thread: threading.Thread | None = None

    @property
    def works(self) -> bool:
        """Whether the thread is running and will look for jobs."""
        return self._thread is not None and self._thread.is_alive() and not self._stop.is_set()

    def wake(self) -> None:
        """Look for jobs now, in a new thread if none is running."""
        with self._lock:
            self._wake.set()
            if not self.works and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name="memory-bank-observer", daemon=True)
                self._thread.start()

    def end(self) -> None:
        """Start no further job. Returns at once."""
        self._stop.set()
        self._wake.set()

    def close(self, timeout: float = 1.0) -> None:
        """Start no further job, and wait ``timeout`` seconds for the current ones."""
        self.end()
        if (thread := self._thread) is not None:
            thread.join(timeout)
            if self._idle is None and thread.is_alive() and self._worker is not None:
                log.info("unfinished jobs are released")
                self._worker.abandon()

    def _run(self) -> None:
        pause = 2.0  # seconds before a failed start is tried again
        while not self._stop.is_set():
            try:
                self._worker = self._open_worker()
                self._worker.run(self._stop, wake=self._wake, idle=self._idle)
            except EmbeddingError as e:  # the embedder cannot be loaded, so no summary could be stored
                log.warning("the Observer cannot start yet: %s", e)
            except Exception:
                if self._idle is not None:
                    log.exception("the background observer stops; its jobs stay in the queue")
                    return
                log.exception("the Observer failed and starts again")
            else:
                with self._lock:  # a wake-up is seen here, or finds no thread
                    if not self._wake.is_set():
                        self._thread = None
                        return
                continue
            self._stop.wait(pause)
            pause = min(60.0, 2 * pause)


class InsightWriter:
    """Makes the insights of a session's records and stores them: with the facts, after them, in the background, or
    when it is flushed. Not thread-safe: the session holds a lock.

    ``store`` is None until there is something to embed and an embedding model is known. ``waiting``: records without
    an insight, with a draft if there is one; where the embedder fails, drafts wait for the next step. ``on_jobs`` is
    called when records wait to be observed, instead of starting a thread that observes them.
    """

    def __init__(self, facts: FactStore, on_jobs: Callable[[], None] | None = None) -> None:
        self.facts = facts
        self.store: InsightStore | None = None
        self.waiting: dict[str, Insight | None] = {}
        self.settings = MemoryBankSettings()
        self.observer = Observer()
        self.spending = Spending(facts.database, facts.session_id)
        self._background: BackgroundObserver | None = None
        self._observed_with: object = None
        self._on_jobs = on_jobs
        self._jobs = JobQueue(facts.database, facts.session_id)
        self._owner = STEP + uuid.uuid4().hex
        self._has_jobs = False
        self._logged: dict[str, object] = {}  # reasons of failures that were logged as a warning

    def begin(self, settings: MemoryBankSettings, llm_client: object, jobs: int) -> None:
        """Take the settings of a step, and how many jobs the session has. Raises ConfigError."""
        self.settings = settings
        is_durable = not self.facts.database.in_memory
        self.observer = Observer.create(llm_client, settings, self.spending, self._logged, is_durable)
        self._has_jobs = jobs > 0

    def bind(self, model: Embedder | str) -> None:
        """Make the store, unless there is one. A model that is named is loaded now."""
        if self.store is None:
            self.store = InsightStore(model, self.facts.database, self.facts.session_id)

    def load(self, *, anew: bool, every: bool = False) -> None:
        """Find out which records a step has left without an insight, in this process or another.

        ``anew``: all of them; else those with a job, and, where a model would be asked twice, none that another step
        may still be at work on, unless ``every`` is asked for.
        """
        if anew:
            self.waiting = dict.fromkeys(without_insight(self.facts.database, self.facts.session_id))
        elif self._has_jobs or every:
            ended = not every and self.observer.name != EXTRACTIVE
            self.waiting = dict.fromkeys(self._jobs.of_steps(ended=ended)) | self.waiting

    @property
    def pending(self) -> int:
        """The number of stored records that have no summary yet."""
        return len(self._jobs.ids().union(() if self.settings.observer_mode == "off" else self.waiting))

    def store_facts(self, records: Sequence[InteractionRecord], *, drafts: bool = True) -> None:
        """Commit records with the jobs of those whose summaries are not committed with them.

        ``drafts``: make extractive summaries where no model makes them within the step. With an embedder that
        answers at once they are committed in the same transaction; any other is asked after the commit. Until
        then the step holds a job for each, which another process finds if this one dies.
        """
        mode, store = self.settings.observer_mode, self.store
        observed = [r for r in records if not is_memory_tool(r.tool_name, r.output_text)]
        queued = [r.trace_id for r in observed if mode == "background" and self.observer.sends(r)]
        made: list[Insight] = []
        if drafts and (mode == "background" or (mode == "inline" and self.observer.name == EXTRACTIVE)):
            made = [self.observer.extract(r) for r in observed]
        if made and store is not None and getattr(type(store.embedding_model), "instant", False):
            embedded, rows = store.embed(made, records), to_rows(records, self.facts.session_id)

            def write(c: Connection) -> None:
                store.insert(c, embedded)
                self.facts.insert(c, rows, queued)

            self.facts.database.submit(write, self.facts.session_id)
            fault_point("facts.stored")
        else:
            makes = observed if mode != "off" and store is not None else []
            own = [r.trace_id for r in makes if r.trace_id not in queued]
            self.facts.store_many(records, queued, **{self._owner: own})
            by_id = {d.trace_id: d for d in made}
            self.waiting.update((r.trace_id, by_id.get(r.trace_id)) for r in makes)

    def write(self, records: Sequence[InteractionRecord], task: str) -> None:
        """Store insights of new records, and of records that an interrupted step stored without one."""
        if not self.waiting or self.settings.observer_mode == "off":
            return
        new = {r.trace_id: r for r in records}
        wanted = [t for t, draft in self.waiting.items() if draft is None]
        found = self.facts.get_many([t for t in wanted if t not in new])
        found += [new[t] for t in wanted if t in new]
        found = [r for r in found if not is_memory_tool(r.tool_name, r.output_text)]
        inline = self.settings.observer_mode == "inline"
        if not inline:
            queued = [r.trace_id for r in found if self.observer.sends(r)]
            self._jobs.add(queued)
            self._has_jobs = self._has_jobs or bool(queued)
        self._jobs.add([r.trace_id for r in found if r.trace_id not in new], self._owner)
        drafts = self.observer.observe_all(found, task) if inline else list(map(self.observer.extract, found))
        self.waiting.update((d.trace_id, d) for d in drafts)
        drafts = [draft for draft in self.waiting.values() if draft is not None]
        if drafts and self.store is not None:
            self.store.add_many(drafts, records=found, of_step=True)
        self.waiting.clear()

    def start(self, news: bool) -> None:
        """Make the background Observer work at the queue, unless there is nothing in it."""
        if self.settings.observer_mode != "background" or self.observer.name == EXTRACTIVE:
            return
        if not (news or self._has_jobs) or self.store is None:
            return
        self._has_jobs = False
        if self._on_jobs is not None:
            self._on_jobs()
            return
        if self._background is None or self._observed_with != (self.observer.chat, self.settings):
            if self._background is not None:
                self._background.end()  # it finishes its current jobs
            self._observed_with = self.observer.chat, self.settings
            args = self.facts.database, self.observer, self.store.embedding_model, self.facts.session_id
            open_worker = partial(Worker, *args, attempts=self.settings.observer_attempts)
            self._background = BackgroundObserver(open_worker, idle=30.0)
        self._background.wake()

    def flush(self, task: str) -> None:
        """Store the drafts whose embedder failed and the insights that a dead process left, and wake the Observer."""
        self.load(anew=False, every=True)
        try:
            self.write((), task)
        except EmbeddingError as e:
            session_log.warning("%d insights still wait: %s", len(self.waiting), e)
        self.start(bool(self._jobs.open_count()))

    def wait(self, until: float | None) -> int:
        """Wait for the background Observer until a time of ``time.monotonic``; the number of records without."""
        if self._background is not None and self._background.works:
            self._background.wake()
        pause = 0.01
        while self._jobs.open_count() and self._background is not None and self._background.works:
            if until is not None and time.monotonic() >= until:
                break
            time.sleep(pause if until is None else max(0.0, min(pause, until - time.monotonic())))
            pause = min(0.2, 1.5 * pause)
        return self.pending

    def stop(self, timeout: float = 1.0) -> None:
        """Let the background Observer start no further job, and wait so many seconds for its current ones."""
        if self._background is not None:
            self._background.close(timeout)
            self._background = None
