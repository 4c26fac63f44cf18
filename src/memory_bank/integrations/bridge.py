"""Bridge: a framework's message list, rebuilt before a model call; messages that stay are the very objects.

An adapter says how one message of its framework is read and changed (``PartWire``), and asks ``rebuild`` or
``arebuild`` for the list to send. The framework's own history stays complete.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, Generic, TypedDict, TypeVar, Unpack

from memory_bank.bank.database import Database
from memory_bank.bank.session import MemoryBankState, Session
from memory_bank.config import Config
from memory_bank.errors import ConfigError, LoopDetectedError, MemoryBankError
from memory_bank.plan import Form
from memory_bank.ports import ToolFunction
from memory_bank.processor import MemoryProcessor, Tools
from memory_bank.tools import TOOL_SCHEMAS, handle_tool_call, memory_tools
from memory_bank.transcript.anthropic import Thinking, without_thinking
from memory_bank.transcript.turns import ChatMessage, Conversation

log = logging.getLogger("memory_bank.Integrations")

N = TypeVar("N")
MAX_SESSIONS = 256  # sessions that a bridge holds; the one that was used longest ago is closed for a new one
NO_SESSION = "No tool output is stored in this session yet."


@dataclass(slots=True, eq=False)
class _OpenSession:
    """A session of a bridge; ``last``: its last list, if the caller has not named it; ``users``: calls in it."""

    name: str
    last: list[ChatMessage] | None = None
    users: int = 0


class BridgeOptions(TypedDict, total=False):
    """The options of every adapter, as Bridge describes them."""

    config: Config | Mapping[str, Any] | str | Path | None
    strategy: str | None
    database: str | Path | None
    llm_client: Any
    max_sessions: int


class ModelCall(TypedDict, total=False):
    """Other facts of a model call: the prompt that is sent apart, the tools, which a context may name, and
    what becomes of Anthropic's thinking from the first message on that is changed."""

    system: str | None
    tools: Sequence[object]
    thinking: Thinking


class Bridge(Generic[N]):
    """Rebuilds the lists of one framework, and answers the memory tools of its agents.

    A session is the one whose ``session_id`` is given. Without one, a list belongs to the session whose last
    list it begins with, system messages aside, and else to a new one. If memory fails, the list goes through
    unchanged, with a warning in the log; what the caller is to change (ConfigError, LoopDetectedError) is raised.

    Args:
        read: a list of natives, and the system prompt that is sent apart or None, as a Conversation.
        config: a Config, a dict of its values, the path of a configuration file, or None for the shipped one.
        strategy: the key of a strategy; by default the configured one.
        database: a file name or URL for sessions that outlive the process; None keeps them in memory.
        llm_client: the model of summaries, for strategies that ask one.
        max_sessions: how many sessions are open; the one that was used longest ago is closed for a new one.
            Its records stay in the database; in memory they are read from the messages when it goes on.

    Thread-safe. Raises ConfigError, UnknownStrategyError.
    """

    def __init__(
        self,
        read: Callable[[Sequence[N], str | None], Conversation[N]],
        *,
        config: Config | Mapping[str, Any] | str | Path | None = None,
        strategy: str | None = None,
        database: str | Path | None = None,
        llm_client: Any = None,
        max_sessions: int = MAX_SESSIONS,
    ) -> None:
        if max_sessions < 1:
            raise ConfigError("max_sessions: the number of sessions to hold must be 1 or more.")
        self._read = read
        self._llm_client = llm_client
        self._max_sessions = max_sessions
        self._database = None if database is None else Database(database)
        self.processor = MemoryProcessor(
            config, None if database is None else partial(MemoryBankState, database=self._database)
        )
        self.strategy = strategy or self.processor.config.default_strategy
        self.processor.config.strategy(self.strategy)
        self._sessions: OrderedDict[str, _OpenSession] = OrderedDict()
        self._lock = threading.Lock()
        self._current: ContextVar[str | None] = ContextVar("memory_bank_session", default=None)
        self._offered: Sequence[
            object
        ] = ()  # the memory tools that the agent has, where a call names no tools

    def offer(self) -> list[ToolFunction]:
        """The memory tools' names, descriptions and parameters, for an adapter that gives them to its agent."""
        self._offered = TOOL_SCHEMAS
        return [schema["function"] for schema in TOOL_SCHEMAS]

    def rebuild(
        self, natives: Sequence[N], session_id: str | None = None, **call: Unpack[ModelCall]
    ) -> list[N]:
        """The natives to send in place of these: unchanged ones are the same objects, shortened ones are copies."""
        rebuilt, name = self._rebuild(natives, session_id, **call)
        self._current.set(name)
        return rebuilt

    async def arebuild(
        self, natives: Sequence[N], session_id: str | None = None, **call: Unpack[ModelCall]
    ) -> list[N]:
        """As ``rebuild``, in a thread."""
        rebuilt, name = await asyncio.to_thread(self._rebuild, natives, session_id, **call)
        self._current.set(name)
        return rebuilt

    def answer(
        self, name: str, arguments: Any, session_id: str | None = None, natives: Sequence[N] | None = None
    ) -> str:
        """The answer to a call of a memory tool, as text; never raises for a wrong call.

        The session is ``session_id``, or that of ``natives``, or the one that this task or thread rebuilt last.
        """
        state = self.state(session_id, natives)
        return NO_SESSION if state is None else handle_tool_call(state, name, arguments)

    async def aanswer(
        self, name: str, arguments: Any, session_id: str | None = None, natives: Sequence[N] | None = None
    ) -> str:
        """As ``answer``, in a thread."""
        return await asyncio.to_thread(self.answer, name, arguments, session_id, natives)

    def tools(self, session_id: str | None = None) -> dict[str, Callable[..., str]]:
        """The memory tools as typed functions with docstrings, by name; the session is that of ``answer``."""

        def bind(name: str, template: Callable[..., str]) -> Callable[..., str]:
            @wraps(template)
            def tool(*args: Any, **named: Any) -> str:
                state = self.state(session_id)
                return NO_SESSION if state is None else memory_tools(state)[name](*args, **named)

            return tool

        self.offer()
        return {name: bind(name, template) for name, template in memory_tools(None).items()}

    def state(self, session_id: str | None = None, natives: Sequence[N] | None = None) -> Session | None:
        """The state of a session, found as in ``answer``; a MemoryBankState where the strategy has a memory."""
        if session_id is None and natives is not None:
            try:
                messages = self._read(natives, None).messages
            except MemoryBankError as e:
                log.warning("the session of a memory tool's call is not known: %s", e)
                return None
            with self._lock:
                session = self._continued(_spoken(messages))
            session_id = None if session is None else session.name
        elif session_id is None:
            session_id = self._current.get()
        return None if session_id is None else self.processor.state(self.strategy, session_id)

    def close(self) -> None:
        """Close all sessions and the database."""
        self.processor.close()
        with self._lock:
            self._sessions.clear()
        if self._database is not None:
            self._database.close()

    def _rebuild(
        self,
        natives: Sequence[N],
        session_id: str | None,
        system: str | None = None,
        tools: Tools = None,
        thinking: Thinking = Thinking.KEEP,
    ) -> tuple[list[N], str | None]:
        """The natives to send, and the name of their session; None where there is nothing to remember."""
        try:
            chat = self._read(natives, system)
            if session_id is None and not any(m["role"] == "tool" for m in chat.messages):
                return list(natives), None
            offered = self._offered if tools is None else tools
            wire: Any = chat.wire
            with self._used(session_id, chat.messages) as name:
                form = Form(
                    chat,
                    lambda written: self._read(written, system).messages,
                    lambda written, since: without_thinking(written, thinking, natives, wire, since),
                    thinking,
                )
                applied = self.processor.rebuild(
                    chat.messages, self.strategy, None, self._llm_client, form, session_id=name, tools=offered
                )
                return applied.sent, name
        except (ConfigError, LoopDetectedError):  # for the caller to change
            raise
        except MemoryBankError as e:
            log.warning("the messages go through unchanged: %s: %s", type(e).__name__, e)
        except Exception as e:  # the error's text may hold contents
            place = traceback.extract_tb(e.__traceback__)[-1]
            log.error(
                "the messages go through unchanged: memory failed with an unforeseen %s at %s:%s",
                type(e).__name__, place.name, place.lineno,
            )  # fmt: skip
        return list(natives), session_id

    @contextmanager
    def _used(self, session_id: str | None, messages: list[ChatMessage]) -> Iterator[str]:
        """The name of the session that a list belongs to; the session stays open within the block."""
        spoken = None if session_id is not None else _spoken(messages)
        with self._lock:
            session = self._sessions.get(session_id or "") if spoken is None else self._continued(spoken)
            if session is None:
                session = _OpenSession(session_id or f"session-{uuid.uuid4().hex}")
                self._sessions[session.name] = session
            self._sessions.move_to_end(session.name)
            session.users += 1
            session.last = spoken
        try:
            yield session.name
        finally:
            with self._lock:
                session.users -= 1
                unused = [h.name for h in self._sessions.values() if not h.users]
                closed = unused[: max(0, len(self._sessions) - self._max_sessions)]
                for name in closed:
                    del self._sessions[name]
            for name in closed:
                self.processor.close(name)

    def _continued(self, spoken: list[ChatMessage]) -> _OpenSession | None:
        """The unnamed session that this list continues: the one with the longest last list that it begins with."""
        begun = [h for h in self._sessions.values() if h.last is not None and h.last == spoken[: len(h.last)]]
        return max(begun, key=lambda session: len(session.last or ()), default=None)


def _spoken(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The messages without those of the system, which clients change."""
    return [m for m in messages if m["role"] not in ("system", "developer")]
