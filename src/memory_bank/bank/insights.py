"""Writes the insights of one session: with its facts, after them, in the background, or when it is flushed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from sqlalchemy.engine import Connection

from memory_bank.bank.jobs import JobQueue, without_insight
from memory_bank.bank.rows import to_rows
from memory_bank.bank.spending import Spending
from memory_bank.bank.stores import FactStore, InsightStore
from memory_bank.bank.worker import BackgroundObserver, Worker
from memory_bank.config import MemoryBankSettings
from memory_bank.errors import EmbeddingError
from memory_bank.faults import fault_point
from memory_bank.models.observer import EXTRACTIVE, Observer
from memory_bank.ports import Embedder
from memory_bank.records import Insight, InteractionRecord
from memory_bank.transcript.messages import is_memory_tool

log = logging.getLogger("memory_bank.MemoryBankStrategy")


class InsightWriter:
    """Makes the insights of a session's records and stores them. Not thread-safe: the session holds a lock.

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
        self.background = BackgroundObserver()
        self._on_jobs = on_jobs
        self._jobs = JobQueue(facts.database, facts.session_id)
        self._may_have_jobs = False
        self._logged: dict[str, object] = {}  # reasons of failures that were logged as a warning

    def begin(self, settings: MemoryBankSettings, llm_client: object) -> None:
        """Take the settings of a step. Raises ConfigError."""
        self.settings = settings
        self.observer = Observer.create(llm_client, settings, self.spending, self._logged)

    def bind(self, model: Embedder | str) -> None:
        """Make the store, unless there is one. A model that is named is loaded now."""
        if self.store is None:
            self.store = InsightStore(model, self.facts.database, self.facts.session_id)

    def load(self) -> None:
        """Find out which records an interrupted step left without an insight."""
        self.waiting = dict.fromkeys(without_insight(self.facts.database, self.facts.session_id))
        self._may_have_jobs = self._jobs.open_count() > 0

    @property
    def off(self) -> bool:
        """Whether the settings ask for no insights."""
        return self.settings.observer_mode == "off"

    @property
    def pending(self) -> int:
        """The number of stored records that have no summary yet."""
        return self._jobs.open_count() + (0 if self.off else len(self.waiting))

    def store_facts(self, records: Sequence[InteractionRecord], *, drafts: bool = True) -> None:
        """Commit records with the jobs of those that a model is to summarise.

        ``drafts``: make extractive summaries where no model makes them within the step. With an embedder that
        answers at once they are committed in the same transaction; any other is asked after the commit.
        """
        mode, store = self.settings.observer_mode, self.store
        observed = [r for r in records if not is_memory_tool(r.tool_name, r.output_text)]
        queued = [r.trace_id for r in observed if mode == "background" and self.observer.sends(r)]
        made: list[Insight] = []
        if drafts and (mode == "background" or (mode == "inline" and self.observer.name == EXTRACTIVE)):
            made = [self.observer.extract(r) for r in observed]
        if made and store is not None and getattr(type(store.embedding_model), "instant", False):
            embedded, rows = store.embed(made), to_rows(records, self.facts.session_id)

            def write(c: Connection) -> None:
                store.insert(c, embedded)
                self.facts.insert(c, rows, queued)

            self.facts.database.submit(write, self.facts.session_id)
            fault_point("facts.stored")
        else:
            self.facts.store_many(records, queued)
            if mode != "off" and store is not None:
                by_id = {d.trace_id: d for d in made}
                self.waiting.update((r.trace_id, by_id.get(r.trace_id)) for r in records)

    def write(self, records: Sequence[InteractionRecord], task: str, generation: int | None) -> None:
        """Store insights of new records, and of those that an earlier, interrupted step left without one."""
        if not self.waiting or self.off:
            return
        new = {r.trace_id: r for r in records}
        wanted = [t for t, draft in self.waiting.items() if draft is None]
        found = self.facts.get_many([t for t in wanted if t not in new])
        found += [new[t] for t in wanted if t in new]
        found = [r for r in found if not is_memory_tool(r.tool_name, r.output_text)]
        if self.settings.observer_mode == "inline":
            drafts = self.observer.observe_all(found, task)
        else:
            drafts = [self.observer.extract(r) for r in found]
            queued = [r.trace_id for r in found if self.observer.sends(r)]
            self._jobs.add(queued)
            self._may_have_jobs = self._may_have_jobs or bool(queued)
        self.waiting.update((d.trace_id, d) for d in drafts)
        self._store_drafts(generation)
        self.waiting.clear()

    def _store_drafts(self, generation: int | None = None) -> None:
        drafts = [draft for draft in self.waiting.values() if draft is not None]
        if drafts and self.store is not None:
            self.store.add_many(drafts, generation=generation)
            for draft in drafts:
                del self.waiting[draft.trace_id]

    def start(self, news: bool) -> None:
        """Make the background Observer work at the queue, unless there is nothing in it."""
        if self.settings.observer_mode != "background" or self.observer.name == EXTRACTIVE:
            return
        if not (news or self._may_have_jobs) or self.store is None:
            return
        self._may_have_jobs = False
        if self._on_jobs is not None:
            self._on_jobs()
            return
        observer, model, attempts = self.observer, self.store.embedding_model, self.settings.observer_attempts

        def worker() -> Worker:
            return Worker(self.facts.database, observer, model, self.facts.session_id, attempts=attempts)

        self.background.work(worker, (observer.chat, self.settings))

    def flush_drafts(self) -> int:
        """Store the drafts whose embedder failed; the number of records that still have no insight."""
        try:
            self._store_drafts()
        except EmbeddingError as e:
            log.warning("%d insights still wait: %s", len(self.waiting), e)
        return 0 if self.off else len(self.waiting)

    def wait(self, until: float | None) -> int:
        """Wait for the background Observer until a time of ``time.monotonic``; the number of jobs that are left."""
        self.background.wake()
        pause = 0.01
        while (left := self._jobs.open_count()) and self.background.works():
            if until is not None and time.monotonic() >= until:
                break
            time.sleep(pause if until is None else max(0.0, min(pause, until - time.monotonic())))
            pause = min(0.2, 1.5 * pause)
        return left
