"""A task's memory: ``Session`` keeps its transcript, ``MemoryBankState`` adds the stores of a bank."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, cast
from weakref import WeakMethod

from sqlalchemy.engine import Connection

from memory_bank.bank.database import ANY, Database, Extent, LastFold, Operation, as_database
from memory_bank.bank.files import MemoryFiles
from memory_bank.bank.lineage import session_of
from memory_bank.bank.retrieval import log_ingested, records_of
from memory_bank.bank.rows import to_rows
from memory_bank.bank.stores import FactStore, InsightStore, WiderScope, clear_insights
from memory_bank.bank.worker import InsightWriter
from memory_bank.closing import Closing
from memory_bank.config import MemoryBankSettings
from memory_bank.errors import ConfigError, EmbeddingError, StorageError
from memory_bank.faults import fault_point
from memory_bank.models.observer import EXTRACTIVE, describe_call
from memory_bank.plan import NO_PLAN, Context, Plan
from memory_bank.ports import Embedder, Scope, TokenCounter
from memory_bank.pricing import Charge, Ledger, PrefixCache
from memory_bank.records import InteractionRecord
from memory_bank.transcript.harness import HANDED_ON, SUMMARY_OPENINGS, asks_for_summary, persons_text
from memory_bank.transcript.jsontext import dump_value
from memory_bank.transcript.messages import (
    Interaction,
    MessageKind,
    Pair,
    check_messages,
    kind_of,
    message_text,
    parse_messages,
    task_text,
)
from memory_bank.transcript.quoting import without_fenced
from memory_bank.transcript.shortening import fit_text, shorten_text
from memory_bank.transcript.tokens import APPROXIMATE, is_loading, open_counter
from memory_bank.transcript.transcript import DIGEST, Transcript, View, digest_of, is_same, said_in

log = logging.getLogger("memory_bank.MemoryBankStrategy")

DEFAULT = "default"
"""The session of a caller that names none."""
_OF_SESSION = frozenset({
    "session_id", "generation", "last_plan", "steps", "step_count", "transcript",
    "_insights", "_caches", "_task", "_by_call", "_last", "_requests",
})  # fmt: skip
"""The attributes of a MemoryBankState that are about one session."""
REQUEST_CHARS = 8_000
"""Most characters that are kept of what the user said at once."""
NOTE_TOKENS = 300
"""Most tokens of the note at a fold."""


class Session(Closing):
    """The messages of one task and what a strategy keeps of them, without stores.

    ``last_plan`` is the plan of the last step, ``NO_PLAN`` before the first. ``prefix_cache`` is what the provider
    charges for a prefix that it has seen; a reset keeps it. ``ledger``: what was paid so far. ``record_tool``: the
    name under which the step's agent has ``get_record``, "" where it has no such tool. ``observer_name``: the label
    of the step's insights, "extractive" or "llm:MODEL"; "" where there are none. ``embedder_name``: of their
    embedding model, "" where there is none. ``lock`` guards all the rest.
    """

    def __init__(self, session_id: str = DEFAULT, counter: TokenCounter | None = None) -> None:
        self.session_id = session_id
        self.lock = threading.RLock()
        self.counter: TokenCounter = counter or open_counter()
        self.transcript = Transcript(session_id, self.counter)
        self.last_plan: Plan = NO_PLAN
        self.prefix_cache = PrefixCache()
        self.ledger = Ledger()
        self.over_budget_logged = False
        self.rules_logged: set[str] = set()  # of the exit, that a context would have broken
        self.record_tool = self.observer_name = self.embedder_name = ""
        self.is_prepared = False  # whether a step has begun that reads a bank
        self._caches: dict[str, Any] = {}

    def prepare(self, settings: MemoryBankSettings | None, llm_client: object = None) -> None:
        """Begin a step."""

    def read(self, messages: object) -> View:
        """The view of a step's messages. Raises MessagesError where they are no list."""
        return self.transcript.update(messages)

    def store(self, view: View, *, insights_later: bool = False) -> None:
        """Store what is new in a view."""

    def cache(self, name: str, make: Callable[[], Any] = dict) -> Any:
        """The value that a policy keeps under a name until a reset: first the one that ``make`` returns."""
        return self._caches[name] if name in self._caches else self._caches.setdefault(name, make())

    def run_later(self, name: str, work: Callable[[], object]) -> None:  # noqa: ARG002
        """Do work that no context needs."""
        work()

    def charge(self, charge: Charge, sent: Sequence[bytes], came: Sequence[bytes]) -> None:
        """Add what a step costs to the ledger, with the digests of its context and of its messages."""
        self.ledger.add(charge, sent, came)

    def recount(self, context: Sequence[Any], written: Sequence[Any]) -> int:
        """Put the tokens of a context as it is sent into its plan; ``written``: that form, read as chat messages."""
        count = self.counter.count_message
        if not isinstance(context, Context):  # a list that went through
            return sum(map(count, written))
        shorter = min(len(context), len(written))
        begin = next((i for i in range(shorter) if not is_same(context[i], written[i])), shorter)
        rest = range(1, shorter - begin + 1)
        end = next((i - 1 for i in rest if not is_same(context[-i], written[-i])), shorter - begin)
        parts = context[begin : len(context) - end], written[begin : len(written) - end]
        cache, key = self.cache("recounted"), digest_of((self.counter.name, parts))
        if key not in cache:
            cache.clear()
            cache[key] = sum(map(count, parts[1])) - sum(map(count, parts[0]))
        plan = replace(context.plan, tokens=context.plan.tokens + cache[key])
        with self.lock:
            if self.last_plan is context.plan:
                self.last_plan = plan
        context.plan = plan
        return plan.tokens

    def reset(self) -> None:
        """Forget everything: the task has ended."""
        with self.lock:
            self._forget()
            self.last_plan = NO_PLAN

    def _forget(self) -> None:
        self.transcript.reset()
        self._caches.clear()
        last, self.ledger = self.ledger, Ledger(self.ledger.added)
        self.ledger.beside, self.ledger.unmarked, self.ledger.head = last.beside, last.unmarked, last.head
        self.over_budget_logged = False
        self.rules_logged.clear()


class MemoryBankState(Session):
    """A session's memory: its stores, its transcript and its last plan. Thread-safe; a context manager.

    In memory unless ``database`` or ``MemoryBankState.open`` names a file or URL.

    Args:
        embedding_model: a name as in the settings, or any object with ``encode``; None: as the settings say.
        database: a Database, a file name or a URL.
        project: the project of the session, whose sessions the ``scope`` "project" searches.
        namespace: the tenant that owns it, where several share a database.
        counter: counts tokens instead of the encoding that the settings name.
        on_waiting: called when records wait to be observed, instead of starting a thread that observes them.
        defer: keep work that no context needs until ``finish`` is called.
        fixed: stay in the session whatever list of messages comes, for callers that find a list's session themselves.

    A list of another task never meets the records of this one: where it continues nothing that the session has, the
    state moves to a session of the list's own, ``NAME~`` and a random number, and ``session_id`` changes; see
    ``_continues``.

    Attributes:
        fact_store: the session's FactStore.
        files: what the tool ``memory_files`` works on: the MemoryFiles of the project "default", or others, or None.
        step_count: the number of the last stored step.
        last_fold: the session's newest fold, of any process, at the beginning of the step.
        idle: seconds between the session's context before and the beginning of the step.
        steps: trace_id to step of every stored record, in the order of storing.
        storage_errors: how many steps went on without memory because the database failed.

    Example:
        >>> with MemoryBankState.open("bank.db", session_id="task-1") as state:
        ...     context, tokens = apply_memory_bank_strategy(messages, None, load_config(), state)
        ...     state.add([InteractionRecord.create(2, "ask", {}, "What the user said by phone.")])
        ...     state.fact_store.size(), state.insight_store.size(), state.pending
        ...     state.flush(timeout=5)
        ...     state.reset()
        1
        (2, 2, 0)
        0
    """

    steps: dict[str, int]
    new_records: list[InteractionRecord]  # that the present step has stored
    deferred: dict[str, Callable[..., object]]
    _by_call: dict[str, list[str]] | None  # trace_ids by call id, once asked for
    _requests: dict[str, int] | None  # what is stored of what the user said, once asked for

    def __init__(
        self,
        embedding_model: Embedder | str | None = None,
        *,
        database: Database | str | Path | None = None,
        session_id: str = DEFAULT,
        project: str | None = None,
        namespace: str | None = None,
        counter: TokenCounter | None = None,
        on_waiting: Callable[[], None] | None = None,
        defer: bool = False,
        fixed: bool = False,
    ) -> None:
        super().__init__(session_id, counter or open_counter(APPROXIMATE))
        self._shares_database = isinstance(database, Database)
        self.database = as_database(database)
        self._name, self._owner = session_id, (project, ANY if namespace is None else namespace)
        self._fixed = fixed
        self._last: Sequence[object] | None = None  # the last list with calls that was read in the session
        self._parked: dict[str, Any] | None = None  # the session that the state was in before
        if project is not None or namespace is not None:
            self.database.open_session(session_id, *self._owner)
        self.files: MemoryFiles | None = MemoryFiles(self.database, namespace=namespace)
        self._on_waiting = on_waiting
        self._insights = InsightWriter(FactStore(self.database, session_id), on_waiting)
        self.scope: Scope = "session"
        self.settings = MemoryBankSettings()
        self.defer = defer
        self.storage_errors = 0
        self.last_fold, self.idle = LastFold(), 0.0
        self._told: str | None = None  # what of the prefix cache is stored
        self._stored_lists: tuple[bytes | None, bytes | None] | None = None  # the digests of the ledger
        self._charged = False  # whether the ledger has a step that is not stored
        self.lineage: Operation[None] | None = None  # what a service adds to it, stored with the next facts
        self._saving = threading.Lock()
        self.generation: int | None = None
        self.step_count = 0
        self._noting: threading.Thread | None = None  # writes a note
        self._llm_client: object = None
        self._given_counter = counter
        self._encoding: str | None = None
        self._bank_counter: str | None = None  # by which the bank's folds are decided, once that is known
        self._forget()
        self.transcript = self._new_transcript()
        if embedding_model is not None:
            self._insights.bind(embedding_model)

    @classmethod
    def open(
        cls,
        url: str | Path | Database,
        session_id: str = DEFAULT,
        embedding_model: Embedder | str | None = None,
        *,
        project: str | None = None,
        namespace: str | None = None,
        counter: TokenCounter | None = None,
        on_waiting: Callable[[], None] | None = None,
        defer: bool = False,
        fixed: bool = False,
    ) -> MemoryBankState:
        """Open a durable session: a file name, ``sqlite:///bank.db`` or ``postgresql://user@host/database``.

        A session that exists continues where it stopped. The other arguments are those of the class; ``project`` is
        stored the first time it is given. A Database that is passed in stays open when the session is closed.
        Raises DatabaseOpenError, DatabaseVersionError, EmbedderLoadError, EmbedderMismatchError, ConfigError for
        another project or namespace.
        """
        return cls(
            embedding_model, database=url, session_id=session_id, project=project, namespace=namespace,
            counter=counter, on_waiting=on_waiting, defer=defer, fixed=fixed,
        )  # fmt: skip

    @property
    def fact_store(self) -> FactStore:
        """Its FactStore. One that is assigned joins the session with its records; see ``insight_store``."""
        return self._insights.facts

    @fact_store.setter
    def fact_store(self, store: FactStore) -> None:
        self._check_assigned(store, self.fact_store, FactStore)
        joined = FactStore(self.database, self.session_id)
        joined.store_many(store.get_many(list(store.steps())))
        vars(store).update(vars(joined))
        self._insights.facts, self.generation = store, None  # the next step reads what it holds
        self._fixed = True

    @property
    def insight_store(self) -> InsightStore:
        """Its InsightStore; None until there is something to embed and an embedding model is known.

        One that is assigned joins the session with its summaries and its embedding model. Raises ConfigError where
        it is not in memory, and where the session has summaries already.
        """
        return cast(InsightStore, self._insights.store)

    @insight_store.setter
    def insight_store(self, store: InsightStore) -> None:
        self._check_assigned(store, self.insight_store, InsightStore)
        joined = InsightStore(store.embedding_model, self.database, self.session_id)
        joined.add_many(list(store.get_insights(store.trace_ids()).values()))
        vars(store).update(vars(joined))
        self._insights.store, self.generation = store, None
        self._fixed = True

    def _check_assigned(self, store: Any, current: Any, kind: Any) -> None:
        name = kind.__name__
        if not isinstance(store, kind):
            raise ConfigError(
                f"a {type(store).__name__} was assigned as a state's {name}: give one made by {name}(…)."
            )
        if store is not current and current is not None and current.size():
            raise ConfigError(
                f"the state has stored in its {name} already: add to that one, or reset the state."
            )
        if store is not current and not store.database.in_memory:
            raise ConfigError(
                f"the {name} is in {store.database.name}: open the state there, MemoryBankState.open(…)."
            )

    def prepare(self, settings: MemoryBankSettings | None, llm_client: object = None) -> None:
        """Begin a step: take its settings, and load what is stored and not known yet.

        The settings' embedder and counter are used unless the session was given its own. Raises ConfigError,
        EmbedderLoadError, EmbedderMismatchError, StorageError.
        """
        settings = self.settings if settings is None else settings
        self.settings, self._llm_client = settings, llm_client
        self.is_prepared = True
        self.deferred = {}  # this step does that work itself or defers it again
        if self._charged:  # a step that could not be stored
            self.save()
        if self._given_counter is None:
            if self._encoding != (encoding := settings.token_encoding):
                self._encoding, self._bank_counter = encoding, self.database.counter(encoding)
            wanted = APPROXIMATE if self._bank_counter == APPROXIMATE else encoding
            if self.counter.name != wanted and (counter := open_counter(wanted)).name != self.counter.name:
                self.counter = counter
                self.transcript = self._new_transcript()
        with self._saving:
            stored = self.database.extent(self.session_id)
        generation, count = stored.generation, stored.records
        self.scope = "session" if settings.scope == "auto" else settings.scope
        searches = count or self.scope != "session"  # else there is nothing to search yet
        if searches and self._insights.store is None:
            self._insights.bind(settings.embedding_model)
        is_new = generation != self.generation  # first use, or another process reset the session
        if is_new:
            self._forget()
        if is_new or count != len(self.steps):  # or it has stored records
            self.reload_steps()
        self._load(stored)
        if is_new:
            self._task = self.database.get_session(self.session_id, "task")
            self.generation = generation
        self._insights.begin(settings, llm_client, stored, anew=is_new)
        self.observer_name = self._insights.observer.name
        self.embedder_name = "" if self._insights.store is None else self._insights.store.embedder_name
        self.new_records = []

    @property
    def numbers(self) -> Mapping[str, int]:
        """The number of every stored record, as ``get_record("#12")`` takes it."""
        numbers: dict[str, int] = self.cache("numbers")
        new = islice(self.steps, len(numbers), None)
        numbers.update((t, n) for n, t in enumerate(new, len(numbers) + 1))
        return numbers

    def reload_steps(self) -> None:
        """Read the order of the stored records again, with those of other processes."""
        self._by_call = None
        self.cache("numbers").clear()
        self.steps = self.fact_store.steps()
        self.step_count = max(self.steps.values(), default=0)

    def _load(self, stored: Extent) -> None:
        """Take what is stored of the session's folds and of what it paid."""
        self.last_fold, self.idle = stored.fold, stored.idle
        if stored.fold.number and self._bank_counter is None and self._encoding is not None:
            self._bank_counter = self.database.counter(self._encoding)
        ledger = self.ledger
        ledger.load(stored.paid or 0.0, stored.would_pay or 0.0)
        if (stored.sent, stored.came) != self._stored_lists:  # of another process
            ledger.sent, ledger.came = (
                [digests[i : i + DIGEST] for i in range(0, len(digests), DIGEST)]
                for digests in (stored.sent or b"", stored.came or b"")
            )
            self._stored_lists = stored.sent, stored.came
        ledger.in_vain = stored.in_vain
        if stored.cache != self._told:
            self.prefix_cache.tell(stored.cache)
            self._told = stored.cache

    def charge(self, charge: Charge, sent: Sequence[bytes], came: Sequence[bytes]) -> None:
        self.ledger.add(charge, sent, came)
        self.prefix_cache.ask(self.idle, charge)
        self._charged, self.idle = True, 0.0
        self.save()

    def save(self, insights: Callable[[Operation[None] | None], object] | None = None) -> None:
        """Store what the session has paid, and what its provider told of the prefix cache.

        Where the database fails, this is tried again at the next step. ``insights`` stores them in one transaction
        with a write that it gets; what it raises is raised. No step may begin meanwhile.
        """
        with self._saving if insights is None else nullcontext():  # to embed may take long
            ledger, told, charged = self.ledger, self.prefix_cache.told, self._charged
            paid, full = ledger.take()
            step: dict[str, Any] = {}
            if charged:
                sent, came = b"".join(ledger.sent), b"".join(ledger.came)
                step = {"sent": sent, "came": came, "in_vain": ledger.in_vain}
            write = None
            if (charged or paid or full or told != self._told) and not self.database.read_only:
                news = None if told == self._told else (told,)
                write = partial(
                    self.database.charge, session_id=self.session_id, sums=(paid, full), told=news, step=step
                )
            try:
                if insights is not None:
                    insights(write)
                elif write is not None:
                    self.database.submit(write, self.session_id, is_small=True, durable=False)
                if charged:
                    self._stored_lists = step["sent"], step["came"]
                self._told, self._charged = told, self._charged and not charged
            except Exception as e:
                ledger.give_back(paid, full)
                if insights is not None or not isinstance(e, StorageError):
                    raise
                log.debug("what a step costs is stored at the next one: %s", e)

    @property
    def fold_counter(self) -> str:
        """The name of the counter that the session's folds are made with."""
        return self.counter.name if self._given_counter else self._bank_counter or self.counter.name

    def counts_otherwise(self) -> str:
        """Why this step's token counter cannot decide a fold; "" where it is the bank's counter.

        The first fold of a bank settles which counter decides all of them, in every process.
        """
        name, encoding = self.counter.name, self._encoding
        if self._given_counter is not None or encoding is None or self._bank_counter == name:
            return ""
        if name == APPROXIMATE and is_loading(encoding):
            return "the vocabulary that counts tokens is still being loaded"
        self._bank_counter = self.database.keep_counter(encoding, name)
        return "" if self._bank_counter == name else f"this bank counts tokens by {self._bank_counter}"

    def read(self, messages: object) -> View:
        """The view of a step's messages, after moving to the session that they continue, or to one of their own."""
        if not self._fixed and self._is_beginning(check_messages(messages)):
            self._move(self._unused_id())
        view = self.transcript.update(messages)
        if self._fixed:
            return view
        is_unused = self._parked is not None and not self.steps and view.interactions
        other = session_of(self.database, self._name, view) if is_unused else None
        if other is None and self._continues(view):
            self._last = self.transcript.messages if view.interactions else self._last
            return view
        self._move(other or session_of(self.database, self._name, view) or self._unused_id())
        view = self.transcript.update(messages)
        self._last = self.transcript.messages if view.interactions else None
        return view

    def _unused_id(self) -> str:
        """The id of a session of the name without records: the one before, or a new one."""
        if self._parked and not self._parked["steps"]:
            return str(self._parked["session_id"])
        return f"{self._name}~{secrets.token_hex(4)}"

    def _is_beginning(self, messages: Sequence[object]) -> bool:
        """Return whether a list of nothing but a person's words begins a task, in a session that has another.

        Under a name it does not, where it is the session's task, or where the session has had a list in this process.
        """
        kinds = (kind_of(m) for m in reversed(messages))  # the latest is a result in most lists
        if (
            not self.steps
            or not self._task
            or not all(k in (MessageKind.SYSTEM, MessageKind.USER) for k in kinds)
        ):
            return False
        if self._name != DEFAULT and (
            self._last is not None or task_text(parse_messages(messages)) == self._task
        ):
            return False
        return any(kind_of(m) is MessageKind.USER for m in messages)

    def _continues(self, view: View) -> bool:
        """Return whether a list of messages goes on with the session.

        It does with two recorded calls and their results, which may be shortened, or with one and known words of a
        person; with a client's summary in it; and, where older calls were dropped, with words of a person that stand
        in the last list. Without a last list in this process the first words must be the session's task, and either
        the session was named or more was said before the first call.
        """
        if not self.steps or not self._task:
            return True
        recorded = list(islice(filter(self._is_recorded, view.interactions), 2))
        if len(recorded) > 1:
            return True
        is_named, kinds = self._name != DEFAULT, [kind_of(m) for m in view.messages]
        texts = [message_text(m) for m, k in zip(view.messages, kinds, strict=True) if k is MessageKind.USER]
        if all(kind in (MessageKind.SYSTEM, MessageKind.USER) for kind in kinds):
            return True  # see _is_beginning
        if any(text.lstrip().startswith(SUMMARY_OPENINGS) for text in texts):
            return True
        if self._last is not None and not said_in(self._last).isdisjoint(said_in(view.messages)):
            return True
        if recorded:
            return view.task in ("", self._task)
        opening = list(takewhile(lambda kind: kind is not MessageKind.CALL, kinds))
        says_more = len(opening) - opening.count(MessageKind.SYSTEM) > 1
        return view.task == self._task and self._last is None and (is_named or says_more)

    def _is_recorded(self, interaction: Interaction) -> bool:
        """Return whether an interaction has a call that the session recorded, with its result or a shorter one."""
        pairs = zip(interaction.pairs, interaction.trace_ids, strict=False)
        is_masked = any(trace_id is None and pair.result is not None for pair, trace_id in pairs)
        return is_masked or not interaction.record_ids.isdisjoint(self.steps)

    def _move(self, session_id: str) -> None:
        """Go on in another session of the name. What this one holds is kept for a list that comes back to it."""
        log.log(
            logging.DEBUG if self._parked else logging.WARNING,
            "the messages continue nothing that session %r has: they go on in session %r. Name the session of each "
            "task (session_id), or reset it when the task has ended.", self.session_id, session_id,
        )  # fmt: skip
        self.finish()
        store, parked = self._insights.store, self._parked
        self._parked = {name: value for name, value in vars(self).items() if name in _OF_SESSION}
        if parked and parked["session_id"] == session_id:
            vars(self).update(parked)
        else:
            self.database.open_session(session_id, *self._owner)
            self.session_id, self.generation, self.last_plan = session_id, None, NO_PLAN
            self._insights = InsightWriter(FactStore(self.database, session_id), self._on_waiting)
            if store is not None:
                self._insights.bind(store.embedding_model)
            self._caches = {}
            self.transcript = self._new_transcript()
        self.prepare(self.settings, self._llm_client)

    def store(self, view: View, *, insights_later: bool = False) -> None:
        """Store what is new in a view: facts in one transaction, then insights; these may wait for ``finish``."""
        if view.interactions and self._insights.store is None:
            self.embedder_name = self._insights.bind(self.settings.embedding_model).embedder_name
        records, step = list[InteractionRecord](), self.step_count
        if any(t and t not in self.steps for e in view.new for t in e.trace_ids):
            records, step = records_of(view.new, self.steps, self.step_count)
        log.debug("Memory Bank Strategy - Step %d", step)
        later = insights_later and self.defer and self.observer_name == EXTRACTIVE
        task = self._task or view.task  # a shorter list, or a client's summary, does not replace it
        lineage, self.lineage = self.lineage, None
        if records:
            self._store_facts(records, step, task, drafts=not later, first=lineage)
        elif lineage is not None:
            self.database.submit(lineage, self.session_id)
        self._store_requests(view)
        self.transcript.acknowledge()
        if records or self._insights.missing:
            work = partial(self._insights.write, records, task)
            if later:
                self.run_later("insights", work)
            else:
                work()
        if self._insights.waiting:
            self._insights.start()

    def add(self, records: Sequence[InteractionRecord], *, task: str = "") -> int:
        """Store records that do not come from the transcript, by the same path; return how many were new.

        Records that are stored already are not changed. Before the first step of a session without an
        embedding model only the facts are stored; the first step makes the insights. Raises RecordError,
        StorageError, and EmbeddingError: the facts are stored then, and ``flush`` tries the insights again.
        """
        with self.lock:
            stored = {r.trace_id for r in self.fact_store.get_many([r.trace_id for r in records])}
            new = [r for r in {r.trace_id: r for r in records}.values() if r.trace_id not in stored]
            if new and self.is_prepared:
                self._insights.bind(self.settings.embedding_model)
            if new:
                self._store_facts(new, max(self.step_count, *(r.step_id for r in new)), task, drafts=True)
            if self.insight_store is not None:
                self._insights.write(new, task)
                self._insights.start()
            return len(new)

    def _store_facts(
        self, records: Sequence[InteractionRecord], step: int, task: str, drafts: bool,
        first: Operation[None] | None = None,
    ) -> None:  # fmt: skip
        if task and task != self._task:  # kept, so that insights can be made again later
            self.database.set_session(self.session_id, task=task)
            self._task = task
        drafted = self._insights.drafts(records) if drafts else []
        rows = to_rows(records, self.session_id)
        embedded = self._insights.embedded(drafted, records)
        if embedded:

            def both(c: Connection) -> None:
                self.insight_store.insert(c, embedded)
                self.fact_store.insert(c, rows)

            if first is not None:  # which holds the session, and the other begins with the bank
                self.database.submit(first, self.session_id)
            self.database.submit(both, self.session_id)
        else:
            write = partial(self.fact_store.insert, rows=rows, first=first)
            self.database.submit(write, self.session_id)
        fault_point("facts.stored")
        self._insights.stored(records, drafted, embedded)
        self.steps.update((r.trace_id, r.step_id) for r in records)
        self._by_call = None
        self.step_count = step
        self.new_records = list(records)
        log_ingested(records)

    def _store_requests(self, view: View) -> None:
        """Store what the user said since the call before the new ones, for whoever goes on with the task."""
        old = len(view.interactions) - len(view.new)
        start = view.interactions[old - 1].stop if old else 0
        new: dict[str, int] = {}
        for at in range(start, len(view.messages)) if self.steps else ():
            if kind_of(message := view.messages[at]) is MessageKind.USER:
                text = shorten_text(without_fenced(message_text(message)), REQUEST_CHARS)
                if (persons_text(text) or text.startswith(HANDED_ON)) and not asks_for_summary(text):
                    later = sum(len(e.record_ids) for e in view.new if e.start > at)
                    new.setdefault(text, max(0, len(self.steps) - later))
        try:
            if new and self._requests is None:
                self._requests = self.database.get_requests(self.session_id)
            stored = self._requests or {}
            if not new.keys() <= stored.keys():
                requests = {**stored, **new, **stored}
                self.database.set_requests(self.session_id, requests, self.generation)
                self._requests = requests
        except StorageError as e:  # facts are stored, nothing of a step depends on it
            log.debug("what the user said is not stored: %s", e)

    def run_later(self, name: str, work: Callable[[], object]) -> None:
        if self.defer:
            self.deferred[name] = work
        else:
            work()

    def put_off(self, name: str, work: Callable[[], object]) -> None:
        """Keep work until ``finish``, also without ``defer``; the next step drops it, or puts it off again."""
        self.deferred[name] = work

    def finish(self) -> None:
        """Do the work that the last step deferred. Raises StorageError, EmbeddingError: the next step does it."""
        with self.lock:
            deferred, self.deferred = self.deferred, {}
            self.save(deferred.pop("insights", None))
            for work in deferred.values():
                work()

    @property
    def project(self) -> str | None:
        """The project of the session; None where none was named."""
        return self.database.project_of(self.session_id)

    @property
    def wider(self) -> WiderScope | None:
        """The other sessions that ``scope`` includes; None when it includes none."""
        return None if self.scope == "session" else WiderScope(self.database, self.session_id, self.scope)

    @property
    def note(self) -> str:
        """The model's note at the latest fold: what was decided, tried, and is left to do; "" for nothing."""
        return self.database.get_session(self.session_id, "note")

    def note_later(
        self, calls: Sequence[tuple[int, str, str]], asked: Sequence[str], done: Callable[[], None]
    ) -> None:
        """Have the Observer's model write the note of a fold in a thread, and call ``done`` once it is stored.

        ``calls`` are those since the note before: number, trace_id, the agent's words; ``asked``: what the user said,
        from the task on. Nothing happens without a model, or while a note is being written: the next one is then
        about these calls, too.
        """
        observer, generation, count = self._insights.observer, self.generation, self.counter.count_text
        facts, session_id, earlier = self.fact_store, self.session_id, self.note
        task = [self._task, *(s for s in asked if s != self._task)] if self._task else asked
        if observer.name == EXTRACTIVE or (self._noting is not None and self._noting.is_alive()):
            return

        def write() -> None:
            try:
                records = {r.trace_id: r for r in facts.get_many([t for _, t, _ in calls])}
                texts = [describe_call(n, records[t], words, 1_000) for n, t, words in calls if t in records]
                note = observer.note(earlier, texts, task)
                if isinstance(note, str):
                    self.database.set_note(session_id, fit_text(note, NOTE_TOKENS, count), generation)
                    done()
                    return
                reason = note.reason
            except Exception as e:  # the next fold tries again
                reason = type(e).__name__
            log.warning("no note at a fold of session %s: %s", session_id, reason)

        self._noting = threading.Thread(target=write, name="memory-bank-note", daemon=True)
        self._noting.start()

    @property
    def pending(self) -> int:
        """The number of stored records that have no summary yet, or wait for the one of the Observer's model."""
        return self._insights.pending

    def reset(self) -> None:
        """End the task: empty both stores, the step count and the plan. Models stay loaded.

        A state that was given a name, and has moved from its session, is in that one again, which is empty, too.
        """
        with self.lock:
            if self._name not in (DEFAULT, self.session_id):
                self._empty()
                self._move(self._name)
            self._empty()

    def _empty(self) -> None:
        with self.lock:
            self.fact_store.clear()
            if self.insight_store is None:
                clear_insights(self.database, self.session_id)
            else:
                self.insight_store.clear()
            self.database.set_session(self.session_id, task="")
            super().reset()
            self.step_count = 0
            self.generation = None
            log.debug("MemoryBankState reset: session %s", self.session_id)

    def flush(self, timeout: float | None = None) -> int:
        """Wait, at most ``timeout`` seconds, until all records have summaries; return the number of those without."""
        until = None if timeout is None else time.monotonic() + max(0.0, timeout)
        if self.deferred:
            self.finish()
        if self.lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            try:
                if self.insight_store is not None and (self.is_prepared or self._insights.missing):
                    self._insights.flush(self._task)
            finally:
                self.lock.release()
        if self._noting is not None:
            self._noting.join(None if until is None else max(0.0, until - time.monotonic()))
        return self._insights.wait(until)

    def close(self) -> None:
        """Close the session's own database. Records that wait for the Observer's model go on waiting."""
        self._insights.stop()
        self.save()
        if self._noting is not None and not self.defer:  # in a service it may still be stored later
            self._noting.join(1.0)
        if self.deferred and self.lock.acquire(blocking=False):  # a step that hangs is not waited for
            try:
                self.finish()
            except (StorageError, EmbeddingError) as e:
                log.debug("deferred work is left to the next step: %s", type(e).__name__)
            finally:
                self.lock.release()
        if not self._shares_database:
            self.database.close()

    def __repr__(self) -> str:
        return f"<MemoryBankState of session {self.session_id!r}: {len(self.steps):,} records>"

    def __reduce__(self) -> str:
        raise TypeError(
            "a MemoryBankState holds an open database and cannot be pickled: pass the database's address and the "
            "session_id instead, and open the session there with Memory or MemoryBankState.open."
        )

    def __exit__(self, *exc: object) -> None:
        try:
            if not self.database.is_lost:  # closed already
                self.flush(0)
        except StorageError as e:
            if self.settings.on_storage_error != "pass_through":
                raise
            log.warning("insights that are not stored yet are made when the session is opened again: %s", e)
        finally:
            self.close()

    def _new_transcript(self) -> Transcript:
        """A transcript that refers to the session weakly, so that a closed session is freed at once."""
        is_mask = WeakMethod(self._is_mask)
        return Transcript(
            self.session_id, self.counter, lambda *args: bool((ask := is_mask()) and ask(*args))
        )

    def _is_mask(self, pair: Pair, trace_id: str) -> bool:
        """Return whether a client put a shorter result in the place of a recorded output of the same call."""
        call, result = pair.call, pair.result
        if trace_id in self.steps or call is None or not call.call_id or result is None or not self.steps:
            return False
        if self._by_call is None:
            self._by_call = self.fact_store.by_call()
        for candidate in self._by_call.get(call.call_id, ()):
            record = None if self.transcript.holds(candidate) else self.fact_store.get(candidate)
            if record is None or (record.tool_name, record.raw_input) != (pair.tool_name, call.raw_input):
                continue
            recorded = record.output_text if record.output_text is not None else dump_value(record.raw_output)
            if len(result.text) < len(recorded):
                return True
        return False

    def _forget(self) -> None:
        super()._forget()
        self._insights.missing = {}
        self.steps = {}
        self.new_records, self.deferred = [], {}
        self._charged, self._stored_lists = False, None
        self._task, self._by_call, self._last, self._requests = "", None, None, None
