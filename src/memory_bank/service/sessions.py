"""The sessions of a bank as the service works with them: rebuilt, read, at most so many held."""

from __future__ import annotations

import logging
import operator
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from memory_bank.bank.database import Database
from memory_bank.bank.maintenance import purge
from memory_bank.bank.schema import records, sessions
from memory_bank.bank.session import MemoryBankState, Session
from memory_bank.config import Config, MemoryBankSettings
from memory_bank.errors import ConfigError, EmbeddingError, NotFoundError, StorageError
from memory_bank.plan import Plan
from memory_bank.processor import MemoryProcessor
from memory_bank.service.security.access import public_name, stored_id
from memory_bank.transcript.messages import check_messages

log = logging.getLogger("memory_bank.Service")

Redact = Callable[[Any], Any]
Traced = Callable[[str, str], AbstractContextManager[Any]]
_s = sessions.c
_KNOWN = sa.select(_s.session_id).where(
    _s.session_id == sa.bindparam("session"),
    _s.namespace.is_not_distinct_from(sa.bindparam("namespace", type_=sa.String)),
    _s.deleted.is_(None),
)
_ANY = sa.select(records.c.seq).where(records.c.session_id == sa.bindparam("session")).limit(1)
_NAMES = (
    sa.select(_s.session_id)
    .where(
        _s.namespace.is_not_distinct_from(sa.bindparam("namespace", type_=sa.String)), _s.deleted.is_(None)
    )
    .order_by(_s.created.desc(), _s.session_id)
    .limit(sa.bindparam("limit"))
)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A step's context. ``messages``: what is to be sent; ``shown`` the same as it may be stored.

    ``plan`` is the step's plan; ``milliseconds`` the time that rebuilding took.
    """

    session_id: str
    strategy: str
    messages: list[Any]
    shown: list[Any] = field(repr=False)
    tokens: int
    full_tokens: int
    message_count: int
    record_count: int
    unchanged: bool
    milliseconds: float
    plan: Plan | None = field(default=None, repr=False)
    state: Session | None = field(default=None, repr=False)


@dataclass(slots=True)
class _Place:
    """A session in use: whose it is, and the lock under which its steps follow one another.

    ``generation``: that of the session when it was last known to be there. ``users``: steps at work.
    ``tokens``: of its full history.
    """

    namespace: str | None
    agent_id: str | None
    lock: Any = field(default_factory=threading.RLock)
    generation: int | None = None
    users: int = 0
    tokens: int = 0


class Sessions:
    """Opens sessions of one database for callers of any namespace, and closes those that wait longest.

    ``redact`` gives a message as it may be stored (the same object where nothing is to be hidden).
    ``rebuilt`` is told of every step, ``queued`` of records to be observed in the background, ``traced``
    makes the span of an operation on a session. Safe under threads, and beside other processes at the same
    database.
    """

    def __init__(
        self,
        database: Database,
        config: Config,
        llm_client: Any = None,
        *,
        redact: Redact | None = None,
        rebuilt: Callable[[Rebuilt], None] | None = None,
        queued: Callable[[], None] | None = None,
        traced: Traced | None = None,
    ) -> None:
        self.database = database
        self.config = config
        self.llm_client = llm_client
        self.strategy = config.service.strategy or config.default_strategy
        config.strategy(self.strategy)
        self._redact = redact
        self._told = rebuilt
        self._queued = queued
        self.traced = traced or _untraced
        self._processor = MemoryProcessor(config, self._open)
        self._places: OrderedDict[str, _Place] = OrderedDict()
        self._readers: OrderedDict[str, MemoryBankState] = OrderedDict()
        self._lock = threading.Lock()

    def rebuild(
        self,
        namespace: str | None,
        name: str,
        messages: list[Any],
        *,
        agent_id: str | None = None,
        strategy: str | None = None,
        llm_client: Any = None,
    ) -> Rebuilt:
        """The context of the next model call, after what is new in the messages is stored.

        Raises what MemoryProcessor.apply_strategy raises, and ConfigError for a name that cannot be one.
        """
        began = time.perf_counter()
        session_id = stored_id(namespace, name)
        agent = None if agent_id is None else stored_id(namespace, agent_id)
        key = strategy or self.strategy
        self.config.strategy(key)
        seen = messages if self._redact is None else [self._redact(m) for m in check_messages(messages)]
        client = llm_client if llm_client is not None else self.llm_client
        with (
            self._using(session_id, namespace, agent) as place,
            place.lock,
        ):  # so that the plan is this step's
            shown, tokens = self._processor.apply_strategy(seen, key, None, client, session_id=session_id)
            state = self._processor.state(key, session_id)
            plan = state.last_plan if state is not None else None
            count = 0
            if isinstance(state, MemoryBankState):
                count = len(state.steps)
                if state.generation != place.generation:  # first use, or another process reset the session
                    self.database.open_session(session_id, agent, namespace)
                    place.generation = state.generation
        context = shown
        if seen is not messages:  # what is stored hides secrets, what is sent has them as they came
            own = {id(s): m for s, m in zip(seen, messages, strict=True) if s is not m}
            context = [own.get(id(m), m) for m in shown]
        step = Rebuilt(
            session_id=session_id,
            strategy=key,
            messages=context,
            shown=shown,
            tokens=tokens,
            full_tokens=plan.full_tokens if plan else tokens,
            message_count=len(messages),
            record_count=count,
            unchanged=len(context) == len(messages) and all(map(operator.is_, context, messages)),
            milliseconds=1000 * (time.perf_counter() - began),
            plan=plan,
            state=state,
        )
        place.tokens = step.full_tokens
        if self._told is not None:
            self._told(step)
        return step

    def finish(self, step: Rebuilt) -> None:
        """Do what a step put off so that its context came sooner; what fails is left to the next step."""
        if not isinstance(step.state, MemoryBankState):
            return
        try:
            step.state.finish()
        except StorageError as e:  # the next step meets it, too, and tells
            log.debug("what a step put off is left to the next: %s", e)
        except EmbeddingError as e:
            log.warning("summaries wait for the next step: %s", e)

    @contextmanager
    def reading(self, namespace: str | None, name: str) -> Iterator[MemoryBankState]:
        """A session's memory, for searches and for ``handle_tool_call``. Raises NotFoundError."""
        session_id = self.known(namespace, name)
        with self._lock:
            state = self._readers.pop(session_id, None)
        if state is None:
            state = MemoryBankState.open(self.database, session_id, namespace=namespace, on_jobs=self._queued)
        with self._lock:
            state = self._readers.setdefault(session_id, state)
            while len(self._readers) > self.config.service.sessions_kept:
                self._readers.popitem(last=False)[1].close()
        with state.lock:
            state.prepare(self.bank_settings(), self.llm_client)
            yield state

    @contextmanager
    def writing(
        self, namespace: str | None, name: str, *, agent_id: str | None = None
    ) -> Iterator[MemoryBankState]:
        """As ``reading``, to store what a caller brings: the session is made where it is not there.

        Raises ConfigError for a name that cannot be one, and for a session of another agent.
        """
        agent = None if agent_id is None else stored_id(namespace, agent_id)
        session_id = stored_id(namespace, name)
        self.database.open_session(session_id, agent, namespace)
        with self.traced("create_memory", session_id), self.reading(namespace, name) as state:
            yield state

    def redacted(self, message: Any) -> Any:
        """A message as it may be stored; the same object where nothing is to be hidden."""
        return message if self._redact is None else self._redact(message)

    def bank_settings(self) -> MemoryBankSettings:
        """Settings by which a session's memory is read: those of the strategy, or of one that has a bank."""
        found: Any = self.config.strategy(self.strategy)
        if isinstance(found, MemoryBankSettings):
            return found
        bank = getattr(found, "bank", None)
        made = bank() if callable(bank) else None
        if isinstance(made, MemoryBankSettings):
            return made
        return MemoryBankSettings(observer_model="extractive", embedding_model="lexical")

    def exists(self, namespace: str | None, name: str) -> bool:
        """Whether a namespace has such a session."""
        try:
            session_id = stored_id(namespace, name)
        except ConfigError:
            return False
        with self.database.read() as c:
            asked = {"session": session_id, "namespace": namespace}
            return c.execute(_KNOWN, asked).first() is not None

    def names(self, namespace: str | None, limit: int) -> list[str]:
        """The names of a namespace's sessions, newest first."""
        with self.database.read() as c:
            found = c.execute(_NAMES, {"namespace": namespace, "limit": limit}).scalars().all()
        return [public_name(namespace, session_id) for session_id in found]

    def has_records(self, namespace: str | None, name: str) -> bool:
        """Whether a namespace has such a session, and something is stored in it."""
        if not self.exists(namespace, name):
            return False
        with self.database.read() as c:
            return c.execute(_ANY, {"session": stored_id(namespace, name)}).first() is not None

    def known(self, namespace: str | None, name: str) -> str:
        """The id in the database of a session that is there. Raises NotFoundError."""
        if not self.exists(namespace, name):
            raise NotFoundError("there is no such session: GET /v1/sessions lists those there are.")
        return stored_id(namespace, name)

    def reset(self, namespace: str | None, name: str) -> None:
        """The end of a task: what is remembered goes, steps and lineage with it. Raises NotFoundError."""
        session_id = self.known(namespace, name)
        with self.traced("delete_memory", session_id):
            for _ in purge(self.database, session_id=session_id):
                pass
        self._forget(session_id)

    def delete(self, namespace: str | None, name: str) -> None:
        """As ``reset``, and the session is no longer there, until something comes for it again."""
        self.reset(namespace, name)
        self.database.mark_deleted(stored_id(namespace, name))

    @property
    def held(self) -> int:
        """How many sessions are held in memory."""
        return len(self._places)

    def close(self) -> None:
        """Close all sessions; what is queued stays queued. The database stays open."""
        self._processor.close()
        with self._lock:
            for state in self._readers.values():
                state.close()
            self._readers.clear()
            self._places.clear()

    def _open(self, session_id: str) -> MemoryBankState:
        with self._lock:
            place = self._places.get(session_id, _Place(None, None))
        return MemoryBankState.open(
            self.database,
            session_id,
            agent_id=place.agent_id,
            namespace=place.namespace,
            on_jobs=self._queued,
            defer=True,
        )

    @contextmanager
    def _using(self, session_id: str, namespace: str | None, agent: str | None) -> Iterator[_Place]:
        """A session while a step is made; where too many are held, those that wait longest are closed."""
        with self._lock:
            place = self._places.get(session_id)
            if place is not None and place.namespace != namespace:
                raise ConfigError(f"there can be no session {session_id!r} here: choose another session_id.")
            if place is None:
                place = self._places[session_id] = _Place(namespace, agent)
            self._places.move_to_end(session_id)
            place.users += 1
            old = self._too_many()
        try:
            for s in old:
                self._processor.close(s)
            if place.generation is None or (agent is not None and place.agent_id != agent):
                try:
                    self.database.open_session(session_id, agent, namespace)
                except ConfigError:  # it is another's: nothing of it is held here
                    with self._lock:
                        if self._places.get(session_id) is place and place.generation is None:
                            del self._places[session_id]
                    raise
                place.agent_id = agent or place.agent_id
            yield place
        finally:
            with self._lock:
                place.users -= 1

    def _too_many(self) -> list[str]:
        """Take the sessions that wait longest off the list until the rest may be held."""
        count, tokens = len(self._places), sum(p.tokens for p in self._places.values())
        most = self.config.service
        old = []
        for session_id, place in list(self._places.items()):
            if count <= most.sessions_kept and tokens <= most.tokens_kept:
                break
            if not place.users:
                del self._places[session_id]
                old.append(session_id)
                count, tokens = count - 1, tokens - place.tokens
        return old

    def _forget(self, session_id: str) -> None:
        with self._lock:
            self._places.pop(session_id, None)
            reader = self._readers.pop(session_id, None)
        self._processor.close(session_id)
        if reader is not None:
            reader.close()


def _untraced(operation: str, session_id: str) -> AbstractContextManager[Any]:  # noqa: ARG001
    return nullcontext()
