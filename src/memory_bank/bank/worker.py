"""Makes and stores the summaries of records: within the step, or by a worker in a thread or process of its own.

The worker's queue is the table of insights. The insight of a record for which a model is to be asked is made by
extraction first, and is ``due``: at once, after a failed attempt later, and not any more when the model's summary
takes its place or all attempts have failed. A record without an insight gets one when its session goes on, or when a
worker starts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import sqlalchemy as sa
from cachetools import LRUCache
from sqlalchemy.engine import Connection, Row

from memory_bank.bank.database import Database, Extent, Operation
from memory_bank.bank.listing import without_insight
from memory_bank.bank.schema import (
    HAS_CONTENT,
    INSIGHT_OF_RECORD,
    calls,
    count_of,
    in_parts,
    insights,
    records,
    sum_of,
    sums,
    waits,
)
from memory_bank.bank.stores import FactStore, InsightStore
from memory_bank.bank.words import settle
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
LONGEST_WAIT = 3600.0
"""Seconds; an insight that is due later is due now: the clock has jumped back."""
CLAIM = 60.0
"""Seconds beyond the longest call for which a worker has an insight to itself."""
STEP = 120.0
"""Seconds for which a record without an insight is left to the step that stored it, where a model would be asked."""

_r, _i = records.c, insights.c
Waiting = Row[*tuple[Any, ...]]
"""The ``seq``, ``session_id``, ``trace_id`` and ``attempts`` of an insight that waits."""


def book_call(
    database: Database, session_id: str, most: int | None, clock: Callable[[], float] = time.time
) -> str | None:
    """Count a call of the Observer's model before it is made; or return why the limit of a day forbids it."""
    mine = {"session_id": session_id, "day": time.strftime("%Y-%m-%d", time.gmtime(clock()))}
    with database.write() as c:
        if most is not None:
            database.lock_bank(c, exclusive=True)
            today = sa.select(sum_of(calls.c.calls)).where(calls.c.day == mine["day"])
            if c.execute(today).scalar_one() >= most:
                return f"the Observer's limit is reached ({most:,} calls a day)"
        database.insert_new(c, calls, [{**mine, "calls": 0}])
        c.execute(sa.update(calls).filter_by(**mine).values(calls=calls.c.calls + 1))
    return None


def observe_again(database: Database, session_id: str | None = None) -> int:
    """Let all insights that are to be made again wait for the Observer's model; returns how many."""
    again = sa.update(insights).where(_i.redo.is_not(None), ~waits).values(due=0.0, attempts=0)
    with database.write() as c:
        return c.execute(again if session_id is None else again.where(_i.session_id == session_id)).rowcount


def waiting_since(database: Database) -> tuple[int, float]:
    """The number of insights that wait for the Observer's model, and the age of the oldest's record in seconds."""
    both = sa.select(sa.func.count(), sa.func.min(_r.timestamp)).join_from(
        insights, records, INSIGHT_OF_RECORD
    )
    with database.read() as c:
        count, oldest = c.execute(both.where(waits)).one()
        return int(count), max(0.0, database.now(c) - oldest) if count else 0.0


@dataclass(slots=True)
class WorkerCounts:
    """How many insights ended with the model's summary, with an extractive one, and to be tried again."""

    observed: int = 0
    extracted: int = 0
    retried: int = 0


class Worker:
    """Has the records whose insights wait summarised by the Observer's model. Not thread-safe.

    With ``session_id`` None those of all sessions. It claims them by moving the time at which they are due: another
    worker takes them only when this one has been silent for longer than its call may last, and then a record costs
    one call more. ``first_retry``: seconds before the second attempt; they double with each further one, up to 300.
    After the last attempt the extractive summary stays, with the reason. Times are Unix seconds by the clock
    of the database server if there is one, or by ``clock``.
    """

    def __init__(
        self,
        database: Database,
        observer: Observer,
        embedder: Embedder | str,
        session_id: str | None = None,
        *,
        attempts: int = 5,
        first_retry: float = 2.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.database = database
        self.observer = observer
        self.attempts = attempts
        self.first_retry = first_retry
        self.progress = WorkerCounts()
        self._session_id = session_id
        self._clock = clock
        self._mine = waits if session_id is None else waits & (_i.session_id == session_id)
        self._taken: list[Waiting] = []
        self._claimed = 0.0
        self._stores = lru_cache(64)(lambda s: (FactStore(database, s), InsightStore(embedder, database, s)))
        self._paid: LRUCache[int, Insight] = LRUCache(1_000)  # summaries that could not be stored, by ``seq``

    def open_count(self) -> int:
        """The number of insights that wait, those that are worked on included."""
        return self.database.value(count_of(insights).where(self._mine)) or 0

    def wait(self) -> float | None:
        """Seconds until the next insight is due, 0 if one is, None without any."""
        with self.database.read() as c:
            first, last = c.execute(
                sa.select(sa.func.min(_i.due), sa.func.max(_i.due)).where(self._mine)
            ).one()
            if first is None:
                return None
            now = self._now(c)
            return 0.0 if last > now + LONGEST_WAIT + 1 else max(0.0, first - now)

    def draft(self, *, every: bool = False) -> int:
        """Make insights by extraction for records that have none, and wait for the model where it is to be asked.

        Those of sessions that have insights; ``every``: also of sessions for which none was ever wanted. Returns how
        many. Raises StorageError, EmbeddingError.
        """
        differs = sa.func.sum(sums.c.records) != sa.func.sum(sums.c.insights)
        some_lack = sa.select(sums.c.session_id).group_by(sums.c.session_id).having(differs)
        bare = (
            sa.select(_r.session_id)
            .outerjoin(insights, INSIGHT_OF_RECORD)
            .where(_r.session_id.in_(some_lack), HAS_CONTENT, _i.seq.is_(None))
        )
        if self._session_id is not None:
            bare = bare.where(_r.session_id == self._session_id)
        if not every:
            other = insights.alias()
            bare = bare.where(sa.exists().where(other.c.session_id == _r.session_id))
        count = 0
        for session_id in self.database.column(bare.distinct()):
            facts, store = self._stores(session_id)
            for part in in_parts(list(without_insight(self.database, session_id)), 256):
                records = facts.get_many(part)
                drafts, sent = list(map(self.observer.extract, records)), filter(self.observer.sends, records)
                store.add_many(drafts, records=records, waiting={r.trace_id for r in sent}, only_wanted=True)
                count += len(records)
        return count

    def step(self) -> int:
        """Work on as many insights as are observed at once; their number. Raises StorageError, EmbeddingError."""
        if self.wait() != 0:  # no write for an empty queue
            return 0
        self._taken = taken = self._take(max(1, self.observer.settings.observer_concurrency))
        fault_point("observer.taken")
        try:
            for session_id in dict.fromkeys(w.session_id for w in taken):
                self._work([w for w in taken if w.session_id == session_id], session_id)
        except BaseException:
            self.abandon()
            raise
        finally:
            self._taken = []
        return len(taken)

    def _take(self, limit: int) -> list[Waiting]:
        with self.database.write() as c:
            now = self._now(c)
            tried = sa.func.coalesce(_i.attempts, 0) + 1
            due = (_i.due <= now) | (_i.due > now + LONGEST_WAIT + 1)
            query = sa.select(_i.seq, _i.session_id, _i.trace_id, tried.label("attempts"))
            query = query.where(self._mine, due).order_by(_i.due, _i.seq).limit(limit)
            taken = list(c.execute(query.with_for_update(skip_locked=True)))
            self._claimed = now + min(LONGEST_WAIT, self.observer.settings.observer_timeout + CLAIM)
            claim = sa.update(insights).where(_i.seq.in_([w.seq for w in taken]))
            c.execute(claim.values(due=self._claimed, attempts=tried))
        return taken

    def abandon(self) -> None:
        """Let others take what this worker has claimed, from any thread."""
        try:
            self._change(self._taken, due=0.0, attempts=_i.attempts - 1)
        except MemoryBankError:
            log.warning("%d records are observed again when their time is over", len(self._taken))

    def _change(self, taken: Sequence[Waiting], delay: float | None = None, **values: object) -> None:
        """Change insights that are claimed still; with a ``delay`` they are due after so many seconds."""
        mine = _i.seq.in_([w.seq for w in taken]), _i.due == self._claimed
        if taken:
            with self.database.write() as c:
                if delay is not None:
                    values["due"] = self._now(c) + delay
                c.execute(sa.update(insights).where(*mine).values(values))

    def _now(self, c: Connection) -> float:
        return self.database.now(c) if self._clock is None else self._clock()

    def run(
        self,
        stop: threading.Event,
        *,
        once: bool = False,
        wake: threading.Event | None = None,
        idle: float | None = None,
        on_step: Callable[[], None] | None = None,
    ) -> None:
        """Work until ``stop`` is set, or with ``once`` until no insight waits; ``wake`` ends a pause early.

        ``idle``: seconds without any work after which it returns. ``on_step`` is called after each round. A
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
                pause = self.wait()
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

    def _work(self, taken: list[Waiting], session_id: str) -> None:
        facts, store = self._stores(session_id)
        records = {r.trace_id: r for r in facts.get_many([w.trace_id for w in taken])}
        task = self.database.get_session(session_id, "task")
        observer = replace(self.observer, book=partial(book_call, self.database, session_id))
        asked = [
            w
            for w in taken
            if w.trace_id in records and w.seq not in self._paid and observer.sends(records[w.trace_id])
        ]
        answers = observer.each([records[w.trace_id] for w in asked], lambda r: observer.ask(r, task))
        fault_point("observer.asked")
        summaries = {
            w.seq: answer for w, answer in zip(asked, answers, strict=True) if isinstance(answer, Insight)
        }
        self._paid.update(summaries)
        store.add_many([self._paid[w.seq] for w in taken if w.seq in self._paid], only_wanted=True)
        self.progress.observed += sum(self._paid.pop(w.seq, None) is not None for w in taken)
        for w, answer in zip(asked, answers, strict=True):
            if isinstance(answer, Trouble) and answer.again and w.attempts < self.attempts:
                self._change([w], self._delay(w.attempts), redo=answer.reason)
                self.progress.retried += 1
            elif isinstance(answer, Trouble):
                observer.warn(answer.reason, records[w.trace_id], "extractive summaries stay")
                self._change([w], due=None, redo=answer.reason)
                self.progress.extracted += 1
        short = [w for w in taken if w.trace_id in records and not observer.sends(records[w.trace_id])]
        self._change(short, due=None, redo=None)
        self.progress.extracted += len(short)
        self._change([w for w in taken if w.trace_id not in records], due=None)
        fault_point("observer.stored")

    def _delay(self, attempts: int) -> float:
        return min(300.0, self.first_retry * 2.0 ** min(attempts - 1, 20))


class BackgroundObserver:
    """A worker in a thread of this process.

    ``idle``: seconds without work after which the thread ends, as it does at an unexpected error; ``wake`` starts
    another. None: it works until ``close``, and starts again after a failure, also of ``open_worker``.
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
        """Whether the thread is running and will look for work."""
        return self._thread is not None and self._thread.is_alive() and not self._stop.is_set()

    def wake(self) -> None:
        """Look for work now, in a new thread if none is running."""
        with self._lock:
            self._wake.set()
            if not self.works and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name="memory-bank-observer", daemon=True)
                self._thread.start()

    def end(self) -> None:
        """Take no further insights. Returns at once."""
        self._stop.set()
        self._wake.set()

    def close(self, timeout: float = 1.0) -> None:
        """Take no further insights, and wait ``timeout`` seconds for the current ones."""
        self.end()
        if (thread := self._thread) is not None:
            thread.join(timeout)
            if self._idle is None and thread.is_alive() and self._worker is not None:
                log.info("the records that are being observed are left to another")
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
                    log.exception("the background observer stops; the records go on waiting")
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

    ``store`` is None until there is something to embed and an embedding model is known. ``missing``: records without
    an insight, with a draft if there is one; where the embedder fails, drafts wait for the next step.
    ``waiting``: how many wait for the Observer's model. ``on_waiting`` is called when records wait to be observed,
    instead of starting a thread that observes them.
    """

    def __init__(self, facts: FactStore, on_waiting: Callable[[], None] | None = None) -> None:
        self.facts = facts
        self.store: InsightStore | None = None
        self.missing: dict[str, Insight | None] = {}
        self.settings = MemoryBankSettings()
        self.observer = Observer()
        self._client: object = None  # that the Observer was made for
        self._sent: set[str] = set()  # of the missing, those for which the model is to be asked
        self._bare: int | None = None  # how many stored records need no insight, where that is known
        self.waiting = 0
        self._background: BackgroundObserver | None = None
        self._observed_with: object = None
        self._on_waiting = on_waiting
        self._logged: dict[str, object] = {}  # reasons of failures that were logged as a warning

    def begin(self, settings: MemoryBankSettings, llm_client: object, stored: Extent, *, anew: bool) -> None:
        """Take the settings of a step, and find the records that a step of any process has left without an insight.

        ``anew``: nothing is known of the session yet. Raises ConfigError, StorageError.
        """
        if settings is not self.settings or llm_client is not self._client or self.observer.book is None:
            book = partial(book_call, self.facts.database, self.facts.session_id)
            is_durable = not self.facts.database.in_memory
            self.observer = Observer.create(
                llm_client, settings, book=book, logged=self._logged, is_durable=is_durable
            )
            self.settings, self._client = settings, llm_client
        self.waiting = stored.waiting
        if anew:
            self.missing, self._bare = {}, None
        bare = stored.records - stored.insights
        if bare != self._bare and settings.observer_mode != "off":
            is_asked = settings.observer_mode == "inline" and self.observer.name != EXTRACTIVE
            self._bare = bare - self._find(STEP if is_asked and not anew else 0.0)

    def _find(self, age: float = 0.0) -> int:
        """Find the records without an insight, and return how many; those younger than ``age`` are left to a step."""
        missing = without_insight(self.facts.database, self.facts.session_id)
        old = (t for t, stored in missing.items() if not age or stored <= time.time() - age)
        self.missing = dict.fromkeys(old) | self.missing
        return len(missing)

    def bind(self, model: Embedder | str) -> InsightStore:
        """Return the store, and make it at the first call, which loads a model that is given by its name."""
        if self.store is None:
            self.store = InsightStore(model, self.facts.database, self.facts.session_id)
        return self.store

    @property
    def pending(self) -> int:
        """The number of stored records that have no summary yet, or wait for the one of the model."""
        if self.settings.observer_mode == "off":
            return self._open_count()
        return self._open_count() + len(without_insight(self.facts.database, self.facts.session_id))

    def _open_count(self) -> int:
        mine = count_of(insights).where(waits, _i.session_id == self.facts.session_id)
        return self.facts.database.value(mine) or 0

    def drafts(self, records: Sequence[InteractionRecord]) -> list[Insight]:
        """Extractive summaries of new records, where no model makes them within the step."""
        mode = self.settings.observer_mode
        if mode == "background" or (mode == "inline" and self.observer.name == EXTRACTIVE):
            return [self._draft(r) for r in records if not is_memory_tool(r.tool_name, r.output_text)]
        return []

    def embedded(
        self, drafts: Sequence[Insight], records: Sequence[InteractionRecord]
    ) -> list[dict[str, Any]]:
        """The rows of drafts that are stored with their records: those of an embedder that answers at once."""
        if (
            not drafts
            or self.store is None
            or not getattr(type(self.store.embedding_model), "instant", False)
        ):
            return []
        return self.store.embed(drafts, records, self._sent)

    def stored(
        self, records: Sequence[InteractionRecord], drafts: Sequence[Insight], embedded: Sequence[object]
    ) -> None:
        """Count records as committed, and their drafts where these are ``embedded``; else they are missing."""
        observed = [r.trace_id for r in records if not is_memory_tool(r.tool_name, r.output_text)]
        if embedded:
            settle(self.facts.database, self.facts.session_id, len(embedded))
        elif self.settings.observer_mode != "off" and self.store is not None:
            by_id = {d.trace_id: d for d in drafts}
            self.missing.update((trace_id, by_id.get(trace_id)) for trace_id in observed)
        if self._bare is not None:
            self._bare += len(records) - len(observed)

    def _draft(self, record: InteractionRecord) -> Insight:
        """A summary by extraction, which waits for the model's in the background."""
        if self.settings.observer_mode == "background" and self.observer.sends(record):
            self._sent.add(record.trace_id)
        return self.observer.extract(record)

    def write(
        self, records: Sequence[InteractionRecord], task: str, beside: Operation[None] | None = None
    ) -> None:
        """Store insights of new records, and of records that an interrupted step stored without one.

        ``beside`` is done in the same transaction, or in one of its own.
        """
        if self.missing and self.settings.observer_mode != "off":
            new = {r.trace_id: r for r in records}
            wanted = [t for t, draft in self.missing.items() if draft is None]
            old = self.facts.get_many([t for t in wanted if t not in new])
            old += [new[t] for t in wanted if t in new]
            if self.settings.observer_mode == "inline":
                drafts = self.observer.observe_all(old, task)
            else:
                drafts = list(map(self._draft, old))
            self.missing.update((d.trace_id, d) for d in drafts)
            drafts = [draft for draft in self.missing.values() if draft is not None]
            if drafts and self.store is not None:
                self.store.add_many(
                    drafts, records=old, waiting=self._sent, only_wanted=True, beside=beside,
                    durable=self.observer.name != EXTRACTIVE,  # these are made again
                )  # fmt: skip
                beside = None
            self.missing.clear()
        if beside is not None:
            self.facts.database.submit(beside, self.facts.session_id, is_small=True, durable=False)
        self.waiting += len(self._sent)
        self._sent.clear()

    def start(self) -> None:
        """Make the background Observer work, if any insight waits for it."""
        if self.settings.observer_mode != "background" or self.observer.name == EXTRACTIVE:
            return
        if not self.waiting or self.store is None:
            return
        self.waiting = 0
        if self._on_waiting is not None:
            self._on_waiting()
            return
        if self._background is None or self._observed_with != (self.observer.chat, self.settings):
            if self._background is not None:
                self._background.end()  # it finishes its current calls
            self._observed_with = self.observer.chat, self.settings
            args = self.facts.database, self.observer, self.store.embedding_model, self.facts.session_id
            open_worker = partial(Worker, *args, attempts=self.settings.observer_attempts)
            self._background = BackgroundObserver(open_worker, idle=30.0)
        self._background.wake()

    def flush(self, task: str) -> None:
        """Store the insights that failed, or that a dead process left, and wake the background Observer."""
        self._find()
        try:
            self.write((), task)
        except EmbeddingError as e:
            session_log.warning("%d insights still wait: %s", len(self.missing), e)
        self.waiting = self._open_count()
        self.start()

    def wait(self, until: float | None) -> int:
        """Wait for the background Observer until a time of ``time.monotonic``; return ``pending``."""
        if self._background is not None and self._background.works:
            self._background.wake()
        pause = 0.01
        while self._open_count() and self._background is not None and self._background.works:
            if until is not None and time.monotonic() >= until:
                break
            time.sleep(pause if until is None else max(0.0, min(pause, until - time.monotonic())))
            pause = min(0.2, 1.5 * pause)
        return self.pending

    def stop(self, timeout: float = 1.0) -> None:
        """Let the background Observer take no further insights, and wait so many seconds for its current calls."""
        if self._background is not None:
            self._background.close(timeout)
            self._background = None
