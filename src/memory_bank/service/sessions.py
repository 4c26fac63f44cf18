"""The open sessions of the service, a limited number: contexts are rebuilt and memory is read through them."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import copy as copied
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import takewhile
from operator import is_
from typing import Any, TypeVar, cast

import sqlalchemy as sa
from cachetools import LRUCache
from sqlalchemy.engine import Connection

from memory_bank.bank.database import Database, Operation
from memory_bank.bank.files import MemoryFiles
from memory_bank.bank.folds import copy_folds
from memory_bank.bank.holdout import is_control
from memory_bank.bank.keys import Keys
from memory_bank.bank.listing import list_page, newest_searchable
from memory_bank.bank.maintenance import purge
from memory_bank.bank.schema import records, sessions
from memory_bank.bank.session import MemoryBankState, Session
from memory_bank.bank.steps import CONTROL, StepFigures
from memory_bank.bank.stores import FactStore
from memory_bank.config import Config, MemoryBankSettings, NoStrategySettings, StoredSettings
from memory_bank.context.build import build_context
from memory_bank.context.evidence import evidence_model
from memory_bank.context.fold_rule import charge_whole
from memory_bank.context.gate import leave
from memory_bank.context.policies import policy_of
from memory_bank.context.policies.evidence import choose_standing
from memory_bank.context.policies.plain import choose_all
from memory_bank.errors import ConfigError, EmbeddingError, HistoryError, NotFoundError, StorageError
from memory_bank.models.embedding import load_embedder
from memory_bank.plan import NO_PLAN, Context, Form, Plan
from memory_bank.ports import LLMClient, Scope
from memory_bank.pricing import Charge
from memory_bank.processor import MemoryProcessor, NotSentError, apply_policy, change_since, read_as_chat
from memory_bank.service.project import project_of_prompt
from memory_bank.service.proxy.api import RequestHistory
from memory_bank.service.proxy.body import Memo
from memory_bank.service.security.access import is_loopback, public_name, stored_id, writable_id
from memory_bank.transcript.chat import edited_message
from memory_bank.transcript.harness import folder_of
from memory_bank.transcript.messages import check_messages, check_shape, content_text, read, same_objects
from memory_bank.transcript.tokens import ENCODING, is_loading, open_counter
from memory_bank.transcript.transcript import digest_of
from memory_bank.transcript.turns import ADDED

log = logging.getLogger("memory_bank.Service")

T = TypeVar("T")
_s = sessions.c
_LOADING = 15.0  # seconds that the start waits for a vocabulary
_PROMPTS = 4  # first messages in which a client may name its folder
_LIVING = (
    _s.namespace.is_not_distinct_from(sa.bindparam("namespace", type_=sa.String)),
    _s.deleted.is_(None),
)
_KNOWN = sa.select(_s.session_id).where(_s.session_id == sa.bindparam("session"), *_LIVING)
_EARLIER = (
    sa.select(_s.session_id)
    .where(_s.project == sa.bindparam("project"), _s.session_id != sa.bindparam("session"), *_LIVING)
    .where(sa.exists().where(records.c.session_id == _s.session_id))
    .limit(1)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt(StepFigures):
    """A step with its ``context``, and ``written`` as it is sent.

    ``unchanged``: the context is the messages that came. ``known_tokens``: of the messages of the full history that
    the request before had too, ``beside_tokens``: of the client's tools.
    ``changes_again``: neither this context nor the one before begins as its predecessor. ``charge``: what
    the step costs as far as is known. ``cache_marks``: the beginnings of what is written at whose ends memory marks
    it; None: as any other. ``fates``: see StepToStore.
    ``broke``: why the context that was made is not sent; None where it is, or where none was made.
    """

    context: list[object] = field(repr=False)
    written: Sequence[object] = field(repr=False)
    unchanged: bool
    known_tokens: int = 0
    beside_tokens: int = 0
    changes_again: bool = False
    plan: Plan | None = field(default=None, repr=False)
    state: Session = field(repr=False)
    charge: Charge | None = field(default=None, repr=False)
    cache_marks: Sequence[Sequence[object]] | None = field(default=None, repr=False)
    fates: Mapping[str, Sequence[int]] | None = field(default=None, repr=False)
    broke: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxiedRequest:
    """What the proxy knows of a request beside its messages.

    ``history``: what they were read of; tokens are then those of the context as it is written for it. ``beside``:
    what is sent besides them, such as the client's tools; it counts for the context and for the full history.
    ``added``: what memory itself adds there, such as its tools. ``cached_for``: seconds for which the request asks
    the provider to keep its prefix. ``marked``: as ``Dialect.marked_head`` has it, None also where memory adds no
    marks. ``project``: that the request names, else its first prompts do, and its user agent ``client``, for a
    session that has none yet; of ``claude-cli/2.1.4 (external)`` "claude-cli" is kept. ``sends``: whether the
    context is sent, asked once it is built; else no step is recorded or charged. ``lineage`` is stored with what is
    new, if it returns True; else nothing is.
    """

    history: RequestHistory | None = None
    beside: str = ""
    added: str = ""
    cached_for: int = 0
    marked: int | None = None
    project: str | None = None
    client: str = ""
    sends: Callable[[], bool] = lambda: True
    lineage: Operation[bool] | None = None


@dataclass(slots=True)
class _Kept:
    """A session in use: the lock that serializes its steps, and its memory for searches."""

    namespace: str | None
    control: bool | None = None  # whether it goes without memory
    lock: AbstractContextManager[object] = field(default_factory=threading.RLock)
    generation: int | None = None  # when a step last registered it in the database
    users: int = 0  # running steps and searches
    tokens: int = 0  # of its full history, or more for large requests
    sent: Sequence[object] = ()  # the context of its last step
    changed: bool = False  # that context did not begin as the one before
    reader: MemoryBankState | None = None


@dataclass(slots=True)
class _Preview:
    """Memory in which contexts are previewed: what it was made of, and the messages of the last preview."""

    processor: MemoryProcessor
    memory: MemoryBankState
    stored: set[str] = field(default_factory=set)
    messages: list[object] = field(default_factory=list)


class Sessions:
    """Opens sessions of a database for callers of all namespaces, and closes the least recently used.

    ``redact`` returns a message without secrets (the same object if it has none). ``rebuilt`` is called after a
    step of a caller other than the proxy, ``queued`` when records wait for the background observer; ``traced`` makes
    the span of an operation on a session. Thread-safe, also with other processes on the same database.
    """

    def __init__(
        self,
        database: Database,
        config: Config,
        llm_client: LLMClient | None = None,
        *,
        redact: Callable[[object], object] | None = None,
        rebuilt: Callable[[Rebuilt], None] | None = None,
        queued: Callable[[], None] | None = None,
        traced: Callable[[str, str], AbstractContextManager[object]] | None = None,
    ) -> None:
        self.database = database
        self.config = config
        self.llm_client = llm_client
        self.strategy = config.service.strategy or config.default_strategy
        config.strategy(self.strategy)
        self._redact = redact
        self._on_rebuilt = rebuilt
        self._queued = queued
        self.traced = traced or (lambda operation, session_id: nullcontext())  # noqa: ARG005
        self.processor = MemoryProcessor(config, self._open)
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        # sessions whose next preview only adds what is new
        self._previews: LRUCache[tuple[str, str], _Preview] = LRUCache(4)
        self._lock = threading.Lock()
        self._delay = ""  # why summaries wait for the next step, as it was logged

    def load(self) -> None:
        """Load what the first step needs: the vocabulary, the strategy's embedder and its evidence model.

        What cannot be loaded is left to the requests, which say so.
        """
        bank = policy_of(self.config.strategy(self.strategy), self.llm_client).bank
        encoding = ENCODING if bank is None else bank.token_encoding
        open_counter(encoding, _LOADING)
        if is_loading(encoding):
            log.warning(
                "the vocabulary %s is still being loaded: until then token counts are approximate", encoding
            )
        with suppress(EmbeddingError, ConfigError):
            if bank is not None:
                load_embedder(bank.embedding_model)
                evidence_model(bank.evidence_model)

    def rebuild(
        self,
        namespace: str | None,
        name: str,
        messages: list[object],
        *,
        project: str | None = None,
        strategy: str | None = None,
        model: str = "",
        tools: Sequence[object] | None = None,
        size: int = 0,
        request: ProxiedRequest | None = None,
    ) -> Rebuilt:
        """Store what is new in the messages, and return the context of the next model call.

        ``project``: that the session must be of. ``model``: that the context is for; its price decides how often the
        history is folded. ``tools``: those that the model gets; the context names ``get_record`` only where it is
        among them. ``size``: bytes of the request; images and ids take memory that their tokens do not show.
        ``request``: that of the proxy, which sends the context.

        Raises what MemoryProcessor.apply_strategy and reading the messages raise, ConfigError for an
        invalid name, and NotSentError.
        """
        began = time.perf_counter()
        session_id = stored_id(namespace, name)
        key = strategy or self.strategy
        if strategy:
            self.config.strategy(strategy)  # the service's own was checked
        check_shape(messages)
        is_proxied, request = request is not None, request or ProxiedRequest()
        history, beside, lineage = request.history, request.beside, request.lineage
        seen = self._redacted(messages, None if history is None else history.memo)
        with self._holding(session_id, namespace) as kept:
            if kept.generation is None or project is not None:
                self._register(session_id, kept, project)
            if kept.control is None:  # its first step here
                program = re.split(r"[/ ]v?\d|[ (]", request.client, maxsplit=1)[0][:60].strip("/")
                origin = request.project or self._project_of(namespace, seen)
                self.database.set_origin(session_id, origin, program)
                share = self.config.service.holdout
                kept.control = is_control(self.database, session_id, share, stores=True)
            control = kept.control
            with kept.lock:  # the plan must be this step's
                state, policy = self.processor.begin(key, session_id, self.llm_client, model)
                policy = replace(policy, choose=choose_all) if control else policy
                state.prefix_cache.cached_for = request.cached_for
                charged, form = state.ledger.last, None if history is None else history.form
                counter = state.counter if state.is_prepared else open_counter()
                state.ledger.added = count_once(counter.count_text, request.added)
                state.ledger.beside = count_once(counter.count_text, beside) if beside else 0
                state.ledger.unmarked = b"" if request.marked is None else digest_of((beside, request.added))
                state.ledger.head = request.marked or 0
                if isinstance(state, MemoryBankState):
                    state.lineage = lineage and partial(_go_on, lineage)
                elif lineage is not None:
                    self.database.submit(partial(_go_on, lineage), session_id)
                read, source = (seen, form) if history is not None else read_as_chat(seen, state)
                leaving, tokens, chat = apply_policy(read, state, policy, tools, source, sends=request.sends)
                self.processor.check_loops(state, read)
                plan = None if state.last_plan is NO_PLAN else state.last_plan
                if isinstance(state, MemoryBankState) and state.generation != kept.generation:
                    # first use, or another process reset the session
                    self.database.open_session(session_id, project, namespace)
                    kept.generation = state.generation
                if not request.sends():  # also messages that went through, which were not asked for
                    last = state.ledger.last
                    if last is not charged and last.full:  # given up since
                        state.charge(Charge(-last.paid, -last.full), *state.ledger.before)
                    raise NotSentError
                context = leaving if form is None else chat
                if seen is not messages:
                    context = _with_own_text(context, seen, messages)
                unchanged = same_objects(context, messages)
                written = context if unchanged or form is None else leaving
                changed_at, changed = change_since(kept.sent, context, context)
                changes_again = kept.changed and changed_at is not None  # nothing more need be marked then
                kept.sent, kept.changed = context, changed_at is not None
                charge, records, fates, cache_marks = None, 0, None, None
                if isinstance(state, MemoryBankState):
                    records = len(state.steps)
                    charge = None if state.ledger.last is charged else state.ledger.last
                    if charge and charge.cache_marks is not None and form and isinstance(chat, Context):
                        cache_marks = _ends(charge.cache_marks[changes_again:], form, chat)
                    fates = None if plan is None else plan.fates(state.numbers)
        added = count_once(state.counter.count_text, beside) if beside else 0
        shared = added + plan.view.tokens_between(0, plan.view.tail_start) if plan and plan.view.tail else 0
        step = Rebuilt(
            session_id=session_id,
            created=time.time(),
            full_tokens=(plan.full_tokens if plan else tokens) + added,
            tokens=tokens + added,
            messages=len(messages),
            records=records,
            status=CONTROL if control else "unchanged" if unchanged else "rebuilt",
            strategy=key,
            milliseconds=1000 * (time.perf_counter() - began),
            changed_at=changed_at,
            changed=changed,
            context=context,
            written=written,
            unchanged=unchanged,
            known_tokens=shared,
            beside_tokens=added,
            changes_again=changes_again,
            plan=plan,
            state=state,
            charge=charge,
            fold=plan.fold if plan else None,
            reason=plan.why_unchanged if plan and plan.unchanged else None,
            fates=fates,
            broke=plan.why_unchanged if plan and plan.rule else None,
            cache_marks=cache_marks,
        )
        kept.tokens = max(step.full_tokens, size // 64)  # a large request of few tokens counts by its bytes
        if not is_proxied and self._on_rebuilt is not None:
            self._on_rebuilt(step)
        return step

    def sends_whole(self, step: Rebuilt) -> bool:
        """Return whether a step sends and charges the full history: where savings pay for it, or by the settings."""
        if step.unchanged or step.plan is None or not isinstance(step.state, MemoryBankState):
            return True
        return charge_whole(step.plan.view, step.state, anyway=self.config.service.compaction == "pass")

    def preview(
        self,
        namespace: str | None,
        name: str,
        messages: list[object],
        *,
        strategy: str | None = None,
        model: str = "",
        tools: Sequence[object] | None = None,
        form: Form | None = None,
    ) -> list[object]:
        """Return or raise the same as ``rebuild``: nothing is stored, no model is asked."""
        session_id = stored_id(namespace, name)
        if self.is_control(session_id):
            return messages if form is None else list(form.source.source)
        key = strategy or self.strategy
        seen = self._redacted(messages)
        store = FactStore(self.database, session_id) if self.exists(namespace, name) else None
        stored = [] if store is None else list(store.steps())
        with self._lock:
            view = self._previews.pop((session_id, key), None)
        # a new one where records or messages of the last preview are gone
        if view is None or not view.stored.issubset(stored) or seen[: len(view.messages)] != view.messages:
            memory = MemoryBankState(session_id=session_id, fixed=True)
            config = self.config.model_copy(update={"loop_detection": "off"})
            view = _Preview(MemoryProcessor(config, lambda session_id: memory), memory)  # noqa: ARG005
        if store is not None:
            view.memory.add(store.get_many([t for t in stored if t not in view.stored]))
        view.memory.database.set_note(
            session_id, self.database.get_session(session_id, "note"), view.memory.generation
        )
        view.stored = set(stored)
        if (used := self.processor.state(key, session_id)) is not None:
            view.memory.prefix_cache = copied(used.prefix_cache)
        if store is not None:
            copy_folds(self.database, view.memory.database, session_id)
        applied = view.processor.rebuild(
            seen, key, None, None, form, session_id=session_id, model=model, tools=tools, sends=lambda: True
        )
        view.messages = seen
        with self._lock:
            self._previews[session_id, key] = view
        return applied.sent if form is not None else _with_own_text(applied.sent, seen, messages)

    def standing(
        self,
        namespace: str | None,
        name: str,
        messages: list[object],
        form: Form | None,
        *,
        strategy: str | None = None,
        tools: Sequence[object] | None = None,
    ) -> Sequence[object] | None:
        """The context of the session's newest fold and the messages since, for a step that cannot wait; None without.

        Nothing is stored, and nothing of the session that this process has open is waited for.
        """
        session_id = stored_id(namespace, name)
        settings = self.config.strategy(strategy or self.strategy)
        if not isinstance(settings, MemoryBankSettings) or settings.selection != "evidence":
            return None
        if self.is_control(session_id):
            return None
        seen = self._redacted(messages)
        policy = replace(policy_of(settings), choose=partial(choose_standing, settings=settings))
        state = MemoryBankState.open(self.database, session_id, on_waiting=self._queued, fixed=True)
        context, leaving = leave(build_context(seen, state, policy, tools, stores=False), seen, state, form)
        written = leaving if form is not None else _with_own_text(context, seen, messages)
        return None if same_objects(written, messages if form is None else form.source.source) else written

    def shortens(self, strategy: str | None) -> bool:
        """Return whether a strategy, or the service's own, may leave something out of a context."""
        settings = self.config.memory_strategies.get(strategy or self.strategy)
        return settings is not None and not isinstance(settings, NoStrategySettings)

    def is_control(self, session_id: str) -> bool:
        """Return whether a session is, or will be, one of the share ``holdout`` that goes without memory."""
        with self._lock:
            kept = self._kept.get(session_id)
        if kept is not None and kept.control is not None:
            return kept.control
        return is_control(self.database, session_id, self.config.service.holdout)

    def has_earlier(
        self, namespace: str | None, session_id: str, named: str | None, messages: list[object]
    ) -> bool:
        """Return whether the project of a new session has others with records, which its searches are to reach.

        It is the project that the request has ``named``, else its first prompts.
        """
        if self.bank_settings().scope == "session":
            return False
        project = named or self._project_of(namespace, self._redacted(messages[:_PROMPTS]))
        values: dict[str, object] = {"namespace": namespace, "session": session_id, "project": project}
        return project is not None and self.database.value(_EARLIER, **values) is not None

    def _project_of(self, namespace: str | None, messages: Sequence[object]) -> str | None:
        """The project whose folder the first prompts of a conversation name; no tool, and no model, is asked.

        Where callers have no keys, clients are on this machine, and a repository is the same project as with `run`.
        """
        prompts = takewhile(lambda m: read(m, "role") in ("system", "developer", "user"), messages[:_PROMPTS])
        folder = next(filter(None, (folder_of(content_text(read(m, "content"))) for m in prompts)), None)
        if folder is None:
            return None
        is_here = namespace is None and is_loopback(self.config.service.host)
        return project_of_prompt(folder, is_here=is_here and not Keys(self.database).all())

    def finish(self, step: Rebuilt) -> None:
        """Do the work that a step left for after its context was returned; if it fails, the next step does it."""
        if not isinstance(step.state, MemoryBankState):
            return
        try:
            step.state.finish()
            self._delay = ""
        except StorageError as e:  # the next step raises it
            log.debug("the work put off by a step is left to the next step: %s", e)
        except EmbeddingError as e:
            level = logging.DEBUG if self._delay == str(e) else logging.WARNING
            log.log(level, "summaries wait for the next step: %s", e)
            self._delay = str(e)

    @contextmanager
    def reading(self, namespace: str | None, name: str) -> Iterator[MemoryBankState]:
        """A session's memory, locked, for ``handle_tool_call``. Raises NotFoundError."""
        with self._reading(namespace, self.known(namespace, name)) as state:
            yield state

    @contextmanager
    def searching(
        self, namespace: str | None, project: str | None = None
    ) -> Iterator[tuple[MemoryBankState | None, Scope]]:
        """A memory and the scope in which it searches every session of a namespace, or those of a project.

        It is that of the newest session with records; None without one. Raises ConfigError for an invalid name.
        """
        if project is not None:
            stored_id(namespace, project)
        session_id = newest_searchable(self.database, namespace, project)
        opened = nullcontext() if session_id is None else self._reading(namespace, session_id)
        with opened as state:
            yield state, "all" if project is None else "project"

    @contextmanager
    def _reading(self, namespace: str | None, session_id: str) -> Iterator[MemoryBankState]:
        with self._holding(session_id, namespace) as kept:
            if kept.reader is None:
                state = MemoryBankState.open(
                    self.database, session_id, namespace=namespace, on_waiting=self._queued, fixed=True
                )
                with self._lock:
                    kept.reader = kept.reader or state
            with kept.reader.lock:
                kept.reader.prepare(self.bank_settings(), self.llm_client)
                kept.reader.files = None
                yield kept.reader

    @contextmanager
    def writing(
        self, namespace: str | None, name: str, *, project: str | None = None
    ) -> Iterator[MemoryBankState]:
        """``reading`` for a caller that stores; creates the session. Raises ConfigError, also for another project."""
        session_id = writable_id(namespace, name)
        self._open_session(session_id, namespace, project)
        with self.traced("create_memory", session_id), self.reading(namespace, name) as state:
            yield state

    def files(self, namespace: str | None, project: str) -> MemoryFiles:
        """The files of a project, without secrets, also in its name. Raises ConfigError for a name."""
        project = self.redacted_text(project)
        writable_id(namespace, project)
        return MemoryFiles(self.database, project, namespace=namespace, redact=self.redacted)

    def _redacted(self, messages: list[object], memo: Memo | None = None) -> list[object]:
        """The messages without secrets; the list itself where they have none."""
        if self._redact is None:
            return messages
        redacted = (memo or Memo()).of_each("redacted", check_messages(messages), self._redact)
        return messages if all(map(is_, redacted, messages)) else redacted

    def redacted(self, message: T) -> T:
        """A message without secrets; the same object if it has none."""
        return message if self._redact is None else cast("T", self._redact(message))

    def redacted_text(self, text: str) -> str:
        """A text without secrets."""
        message: Any = self._redact and self._redact({"role": "user", "content": text})
        return str(message["content"]) if message else text

    def bank_settings(self) -> MemoryBankSettings:
        """The settings for reading a session's memory: those of the strategy, or of its memory bank."""
        settings = self.config.strategy(self.strategy)
        if isinstance(settings, StoredSettings):
            return settings.bank()
        lexical = MemoryBankSettings(observer_model="extractive", embedding_model="lexical")
        return settings if isinstance(settings, MemoryBankSettings) else lexical

    def forget(self, namespace: str | None, name: str, trace_id: str) -> bool:
        """Delete the content of a record; see FactStore. Raises NotFoundError for an unknown session."""
        session_id = self.known(namespace, name)
        with self.traced("delete_memory", session_id):
            done = FactStore(self.database, session_id).forget(trace_id)
        if done:
            log.info("a person had the record %s forgotten", trace_id)
        return done

    def exists(self, namespace: str | None, name: str) -> bool:
        """Return whether a namespace has a session of this name."""
        with suppress(ConfigError):
            session_id = stored_id(namespace, name)
            return self.database.value(_KNOWN, session=session_id, namespace=namespace) is not None
        return False

    def names(self, namespace: str | None, limit: int) -> list[str]:
        """The names of a namespace's sessions, newest first."""
        infos, _ = list_page(self.database, namespace, limit) or ([], False)
        return [public_name(namespace, s.session_id) for s in infos]

    def known(self, namespace: str | None, name: str) -> str:
        """The database id of an existing session. Raises NotFoundError."""
        if not self.exists(namespace, name):
            raise NotFoundError("there is no such session: GET /v1/sessions lists the sessions.")
        return stored_id(namespace, name)

    def reset(self, namespace: str | None, name: str) -> None:
        """Delete a session's records, insights, steps and lineage. Raises NotFoundError."""
        session_id = self.known(namespace, name)
        with self.traced("delete_memory", session_id):
            for _ in purge(self.database, session_id=session_id):
                pass
        with self._lock:
            kept = self._kept.pop(session_id, None)
            for key in [k for k in self._previews if k[0] == session_id]:
                del self._previews[key]
        self._close(session_id, kept)

    def delete(self, namespace: str | None, name: str) -> None:
        """Reset a session, which counts as deleted until it is used again. Raises NotFoundError."""
        self.reset(namespace, name)
        self.database.set_session(stored_id(namespace, name), deleted=time.time())

    @property
    def held(self) -> int:
        """How many sessions are open."""
        return len(self._kept)

    def close(self) -> None:
        """Close all sessions but not the database; records go on waiting in it."""
        with self._lock:
            self._previews.clear()
            kept, self._kept = self._kept, OrderedDict()
        for session in kept.items():
            self._close(*session)
        self.processor.close()

    def _close(self, session_id: str, kept: _Kept | None) -> None:
        self.processor.close(session_id)
        if kept is not None and kept.reader is not None:
            kept.reader.close()

    def _open(self, session_id: str) -> MemoryBankState:
        with self._lock:
            kept = self._kept.get(session_id, _Kept(None))
        settings: dict[str, Any] = {"on_waiting": self._queued, "defer": True, "fixed": True}
        return MemoryBankState.open(self.database, session_id, namespace=kept.namespace, **settings)

    @contextmanager
    def _holding(self, session_id: str, namespace: str | None) -> Iterator[_Kept]:
        """Keep a session open meanwhile; closes the least recently used sessions above the limits."""
        with self._lock:
            kept = self._kept.get(session_id)
            if kept is None:
                kept = self._kept[session_id] = _Kept(namespace)
            elif kept.namespace != namespace:
                raise ConfigError(f"there can be no session {session_id!r} here: choose another session_id.")
            self._kept.move_to_end(session_id)
            kept.users += 1
            old: dict[str, _Kept] = {}
            limits, tokens = self.config.service, sum(k.tokens for k in self._kept.values())
            for name, oldest in self._kept.items():
                if len(self._kept) - len(old) <= limits.sessions_kept and tokens <= limits.tokens_kept:
                    break
                if not oldest.users:
                    old[name] = oldest
                    tokens -= oldest.tokens
            for name in old:
                del self._kept[name]
        try:
            for closed in old.items():
                self._close(*closed)
            yield kept
        finally:
            with self._lock:
                kept.users -= 1

    def _open_session(self, session_id: str, namespace: str | None, project: str | None) -> None:
        """Create a session of a project. Raises ConfigError, also for a project whose name holds a secret."""
        if project is not None:
            writable_id(namespace, project)
        self.database.open_session(session_id, project, namespace)

    def _register(self, session_id: str, kept: _Kept, project: str | None) -> None:
        """Create a session for its first step. Raises ConfigError if it belongs to another project or namespace."""
        try:
            writable_id(kept.namespace, public_name(kept.namespace, session_id))
            self._open_session(session_id, kept.namespace, project)
            kept.generation = kept.generation or 0
        except ConfigError:
            with self._lock:
                if self._kept.get(session_id) is kept and kept.generation is None:
                    del self._kept[session_id]
            raise


def _go_on(lineage: Operation[bool], c: Connection) -> None:
    """Add a request to its session. Raises NotSentError where another one was faster."""
    if not lineage(c):
        raise NotSentError


def _ends(counts: Sequence[int], form: Form, context: Context) -> list[list[Any]]:
    """The first ``n`` entries of a context as written, for each ``n`` of ``counts``; [] if they cannot be written."""
    with suppress(HistoryError):
        return [form.source.write(context.entries[:n], context.since) for n in counts]
    return []


@lru_cache(maxsize=32)
def count_once(count: Callable[[str], int], text: str) -> int:
    """The tokens of a text that many requests have, such as their tools."""
    return count(text)


def _with_own_text(context: list[object], redacted: Sequence[object], came: Sequence[object]) -> list[object]:
    """The context with the caller's own messages, and parts of messages, in place of their redacted copies."""
    by_id: dict[int, object] = {}
    for copy, message in zip(redacted, came, strict=True):
        if copy is not message:
            by_id[id(copy)] = message
            by_id.update((id(part), whole) for part, whole in zip(_parts(copy), _parts(message), strict=True))
    result: list[object] = []
    for place, message in enumerate(context):
        if id(message) in by_id:
            result.append(by_id[id(message)])
            continue
        if isinstance(context, Context) and ADDED in context.entries[place][1]:
            position, change = context.entries[place]
            result.append(edited_message(came[position or 0], change))
            continue
        parts = _parts(message)
        restored = [by_id.get(id(p), p) for p in parts]
        changed = any(a is not b for a, b in zip(parts, restored, strict=True))
        result.append({**cast("dict[str, object]", message), "content": restored} if changed else message)
    return Context(result, context.plan, context.entries) if isinstance(context, Context) else result


def _parts(message: object) -> list[object]:
    """The parts of a message whose content is a list, such as the blocks of the Messages API."""
    content = message.get("content") if isinstance(message, dict) else None
    return content if isinstance(content, list) else []
