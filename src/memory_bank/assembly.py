"""The one place that names backends: a state is put together here."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy.engine import Connection

from memory_bank.bank.database import ANY, Database
from memory_bank.bank.facts import FactStore
from memory_bank.bank.insights import InsightStore, clear_session
from memory_bank.bank.jobs import JobQueue, without_insight
from memory_bank.bank.rows import to_rows
from memory_bank.bank.scope import WiderScope
from memory_bank.bank.usage import Spending
from memory_bank.bank.worker import BackgroundObserver, Worker
from memory_bank.config import MemoryBankSettings
from memory_bank.context.evidence import EvidenceMemory
from memory_bank.context.fetched import is_memory_tool
from memory_bank.context.plan import Plan
from memory_bank.context.report import ContextReport
from memory_bank.errors import EmbeddingError, StorageError
from memory_bank.faults import fault_point
from memory_bank.models.embedding import load_embedder
from memory_bank.models.observer import EXTRACTIVE, Observer
from memory_bank.ports import Scope, TokenCounter
from memory_bank.records import Insight, InteractionRecord, Spent
from memory_bank.transcript.shortening import Shortened
from memory_bank.transcript.tokens import approximate_counter, open_counter
from memory_bank.transcript.transcript import Transcript

log = logging.getLogger("memory_bank.MemoryBankStrategy")

_SHORTENED_KEPT = 256


class MemoryBankState:
    """What a session's memory consists of: its stores, its conversation so far, its last plan.

    ``embedding_model`` is a name (as in the settings) or anything with ``encode``; a state that is given
    none takes the one that the settings of its first step name. In memory by default;
    ``MemoryBankState.open`` makes a durable one. ``agent_id`` says whose session it is, for a wider ``scope``
    of searches; ``namespace`` whose it is where several users share a database. ``queued`` is told when
    records are to be observed in the background, in place of a thread here that would do it. Safe under
    threads; a context manager.
    """

    def __init__(
        self,
        embedding_model: Any = None,
        *,
        database: Database | str | Path | None = None,
        session_id: str = "default",
        agent_id: str | None = None,
        namespace: str | None = None,
        counter: TokenCounter | None = None,
        queued: Callable[[], None] | None = None,
        puts_off: bool = False,
    ) -> None:
        self._shares_database = isinstance(database, Database)
        self.database = database if isinstance(database, Database) else Database(database or "")
        self.session_id = session_id
        self.scope: Scope = "session"  # whose records searches find; each step takes it from its settings
        self.lock = threading.RLock()
        if agent_id is not None or namespace is not None:
            self.database.open_session(session_id, agent_id, ANY if namespace is None else namespace)
        self.fact_store = FactStore(self.database, session_id)
        self.insight_store: Any = None
        self.step_count = 0
        self.last_plan: Plan | None = None
        self.steps: dict[str, int] = {}
        self.unobserved: dict[str, Insight | None] = {}
        self.storage_errors = 0
        self.shortened: dict[tuple[str, int], Shortened] = {}
        self.brought: dict[tuple[str, str], InteractionRecord] = {}
        self.evidence: EvidenceMemory | None = None
        self.last_report: ContextReport | None = None
        self.memos: dict[Any, Any] = {}
        self._given_counter = counter
        self.counter: TokenCounter = counter or approximate_counter()
        self.transcript = Transcript(session_id, self.counter)
        self._encoding: str | None = None
        self._task = ""
        self._generation: int | None = None
        self._jobs = JobQueue(self.database, session_id)
        self._background = BackgroundObserver()
        self._queued = queued
        self._may_have_jobs = False
        self._mode = "inline"
        self._forgiving = False  # of a database that fails
        self.puts_off = puts_off
        self._waiting: dict[str, Callable[[], None]] = {}
        if embedding_model is not None:
            self._bind_embedder(embedding_model)

    @classmethod
    def open(
        cls,
        url: str | Path | Database,
        session_id: str = "default",
        embedding_model: Any = None,
        *,
        agent_id: str | None = None,
        namespace: str | None = None,
        counter: TokenCounter | None = None,
        queued: Callable[[], None] | None = None,
        puts_off: bool = False,
    ) -> MemoryBankState:
        """A durable state: a file name, ``sqlite:///bank.db`` or ``postgresql://user@host/database``.

        Reopening goes on where it was, in this process or another. A session without an agent becomes that of
        the first one named; None leaves it as it is.

        A Database that is passed in stays open when the state is closed.

        Raises DatabaseOpenError, DatabaseVersionError, EmbedderLoadError, EmbedderMismatchError, and
        ConfigError for a session of another agent or namespace.
        """
        return cls(
            embedding_model,
            database=url,
            session_id=session_id,
            agent_id=agent_id,
            namespace=namespace,
            counter=counter,
            queued=queued,
            puts_off=puts_off,
        )

    def prepare(self, settings: MemoryBankSettings) -> None:
        """Bind the settings' embedder and counter unless the state has its own; load what is stored."""
        self._forgiving = settings.on_storage_error == "pass_through"
        self._waiting = {}  # the step that begins does it, or puts it off again
        if self._given_counter is None and self._encoding != settings.token_encoding:
            self._encoding = settings.token_encoding
            self.counter = open_counter(settings.token_encoding)
            self.transcript = Transcript(self.session_id, self.counter)
        if self.insight_store is None:
            self._bind_embedder(settings.embedding_model)
        generation, count = self.database.extent(self.session_id)
        if generation != self._generation:  # first use, or the session was reset elsewhere
            self._load()
            self._generation = generation
        elif count != len(self.steps):
            self._catch_up()
        self._mode = settings.observer_mode
        self.scope = settings.scope
        if len(self.shortened) > _SHORTENED_KEPT:
            self.shortened.clear()

    @property
    def generation(self) -> int | None:
        """How often the session was reset, as the state knows it; None before its first step."""
        return self._generation

    @property
    def agent_id(self) -> str | None:
        """Whose session it is; None where no agent was named."""
        return self.database.agent_of(self.session_id)

    @property
    def wider(self) -> WiderScope | None:
        """What the scope adds to the session's own records; None: nothing."""
        if self.scope == "session":
            return None
        return WiderScope(self.database, self.session_id, self.scope, self.insight_store)

    @property
    def account(self) -> Spending:
        """What the session's Observer may spend and has spent."""
        return Spending(self.database, self.session_id)

    @property
    def spent(self) -> Spent:
        """What the session's Observer has cost."""
        return self.account.of_session()

    @property
    def pending(self) -> int:
        """How many stored records still wait for their summary."""
        waiting = 0 if self._mode == "off" else len(self.unobserved)
        return self._jobs.open_count() + waiting

    def keep(
        self, records: Sequence[InteractionRecord], drafts: Sequence[Insight], to_observe: Sequence[str]
    ) -> dict[str, Insight | None]:
        """Commit records, noting which a model is to summarise; returns those still without an insight.

        With an embedder that answers at once (``instant``) the drafts go along in the same transaction. With
        any other the facts come first: nobody waits for a model before they are safe.
        """
        if drafts and getattr(type(self.insight_store.embedding_model), "instant", False):
            prepared = self.insight_store.prepare(drafts)
            rows = to_rows(records, self.session_id)

            def write(c: Connection) -> None:
                self.insight_store.insert(c, prepared)
                self.fact_store.insert(c, rows, to_observe)

            self.database.submit(write, self.session_id)
            fault_point("facts.stored")
            return {}
        self.fact_store.store_many(records, to_observe)
        made = {d.trace_id: d for d in drafts}
        return {r.trace_id: made.get(r.trace_id) for r in records}

    def remember(self, records: Sequence[InteractionRecord]) -> None:
        """Store records from elsewhere (a typed history's), facts first, with summaries by extraction.

        What is stored already is left as it is. Without an embedder yet, the first step makes the summaries.
        Summaries that an embedder refuses wait for ``flush``. Raises RecordError, StorageError.
        """
        with self.lock:
            known = {r.trace_id for r in self.fact_store.get_many([r.trace_id for r in records])}
            new = [r for r in records if r.trace_id not in known]
            self.fact_store.store_many(new)
            self.steps.update((r.trace_id, r.step_id) for r in new)
            self.step_count = max([self.step_count, *(r.step_id for r in new)])
            if self.insight_store is not None:
                news = [r for r in new if not is_memory_tool(r.tool_name, r.output_text)]
                self.unobserved.update((r.trace_id, Observer().extract(r)) for r in news)
                self._flush_drafts(None)

    def queue(self, trace_ids: Sequence[str]) -> None:
        """Note that a model is to summarise stored records."""
        self._jobs.add(trace_ids)
        self._may_have_jobs = self._may_have_jobs or bool(trace_ids)

    def work_off(self, observer: Observer, settings: MemoryBankSettings, news: bool) -> None:
        """See that the background observer works at what is to be observed. Returns at once."""
        if observer.name == EXTRACTIVE or not (news or self._may_have_jobs):
            return
        self._may_have_jobs = False
        if self._queued is not None:
            self._queued()
            return
        model = self.insight_store.embedding_model

        def worker() -> Worker:
            return Worker(
                self.database, observer, model, self.session_id, attempts=settings.observer_attempts
            )

        self._background.work(worker, (observer.chat, settings))

    def put_off(self, what: str, work: Callable[[], None]) -> None:
        """Do what no context needs yet: at once, or in ``finish`` where the state ``puts_off``.

        A step that finds it undone does it, or puts it off with its own.
        """
        if self.puts_off:
            self._waiting[what] = work
        else:
            work()

    def finish(self) -> None:
        """Do what the last step put off. Raises StorageError, EmbeddingError; a later step does it then."""
        with self.lock:
            waiting, self._waiting = self._waiting, {}
            for work in waiting.values():
                work()

    def remember_task(self, task: str) -> None:
        """Write down what the user asked for, so that insights can be made again later."""
        if task and task != self._task:
            self.database.set_task(self.session_id, task)
            self._task = task

    def reset(self) -> None:
        """The end of a task: both stores, the step count and the plan are emptied; models stay loaded."""
        with self.lock:
            self.fact_store.clear()
            if self.insight_store is not None:
                self.insight_store.clear()
            else:
                clear_session(self.database, self.session_id)
            self.database.set_task(self.session_id, "")
            self._forget()
            self.step_count = 0
            self.last_plan = None
            self.last_report = None
            self._generation = None
            log.debug("session %s was reset", self.session_id)

    def flush(self, timeout: float | None = None) -> int:
        """Wait until every stored record has its summary; returns how many still have none.

        ``timeout`` in seconds, None: for ever. With observer_mode "inline" and "off" there is nothing to wait
        for but another thread's step, and drafts that an embedder refused: these are tried again.
        """
        until = None if timeout is None else time.monotonic() + max(0.0, timeout)
        if self._waiting:
            self.finish()
        left = self._flush_drafts(timeout)
        self._background.wake()
        pause = 0.01
        while (open_ := self._jobs.open_count()) and self._background.works():
            if until is not None and time.monotonic() >= until:
                break
            time.sleep(pause if until is None else max(0.0, min(pause, until - time.monotonic())))
            pause = min(0.2, 1.5 * pause)
        return left + open_

    def _flush_drafts(self, timeout: float | None) -> int:
        if not self.lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            return max(1, len(self.unobserved))
        try:
            drafts = [d for d in self.unobserved.values() if d is not None]
            if drafts and self.insight_store is not None:
                try:
                    self.insight_store.add_many(drafts)
                except EmbeddingError as e:
                    log.warning("%d insights still wait: %s", len(drafts), e)
                else:
                    for draft in drafts:
                        del self.unobserved[draft.trace_id]
            return 0 if self._mode == "off" else len(self.unobserved)
        finally:
            self.lock.release()

    def close(self) -> None:
        """Close the state's own database. What was stored stays stored, and what is queued stays queued."""
        self._background.stop()
        if self._waiting and self.lock.acquire(blocking=False):  # nobody waits for a step that hangs
            try:
                self.finish()
            except (StorageError, EmbeddingError) as e:
                log.debug("what a step put off is left to the next: %s", type(e).__name__)
            finally:
                self.lock.release()
        if not self._shares_database:
            self.database.close()

    def __enter__(self) -> MemoryBankState:
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.flush(0)
        except StorageError as e:
            if not self._forgiving:
                raise
            log.warning("what is not stored yet is found when the session is opened again: %s", e)
        finally:
            self.close()

    def _bind_embedder(self, model: Any) -> None:
        if isinstance(model, str):
            model = load_embedder(model)
        self.insight_store = InsightStore(model, self.database, self.session_id)

    def _load(self) -> None:
        """What the database knows of this session: steps, and records that an interrupted step left."""
        self._forget()
        self.steps = self.fact_store.steps()
        self.step_count = max(self.steps.values(), default=0)
        self.unobserved = dict.fromkeys(without_insight(self.database, self.session_id))
        self._task = self.database.get_task(self.session_id)
        self._may_have_jobs = self._jobs.open_count() > 0

    def _catch_up(self) -> None:
        """Others have stored since: their records are the session's, and count in the order of storing."""
        steps = self.fact_store.steps()
        if self.evidence is not None and any(
            a != b for a, b in zip(self.evidence.numbers, steps, strict=False)
        ):
            self.evidence = None  # it numbers records: made anew in the order in which they are stored
        self.steps = steps
        self.step_count = max(steps.values(), default=0)

    def _forget(self) -> None:
        self.transcript.reset()
        self.steps = {}
        self.unobserved = {}
        self.shortened.clear()
        self.brought.clear()
        self.memos.clear()
        self.evidence = None
        self._waiting = {}
        self._task = ""
