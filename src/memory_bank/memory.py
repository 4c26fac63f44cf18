"""Memory: the memory of one agent's task as one object, for synchronous and asynchronous programs."""

from __future__ import annotations

import asyncio
import functools
import html
import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from memory_bank.bank.session import MemoryBankState
from memory_bank.closing import Closing
from memory_bank.config import Config, MemoryBankSettings, Settings, hint
from memory_bank.errors import ConfigError
from memory_bank.plan import NO_PLAN, Plan
from memory_bank.ports import LLMClient, Scope, ToolSchema
from memory_bank.processor import M, MemoryProcessor, Tools
from memory_bank.records import InteractionRecord
from memory_bank.tools import TOOL_SCHEMAS, handle_tool_call
from memory_bank.tools.handlers import record_named
from memory_bank.tools.search import SearchMatch, search_session

P = ParamSpec("P")
T = TypeVar("T")
_TOGETHER = 256  # records that are read at once
_ALSO_TRIED = {
    "bank": ("database", "db", "path", "url", "file"),
    "budget": ("max_tokens",),
    "strategy": ("type",),
}


def _in_thread(work: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    @functools.wraps(work)
    async def awaited(*args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(work, *args, **kwargs)

    awaited.__name__, awaited.__doc__ = f"a{work.__name__}", f"As ``{work.__name__}``, for asyncio."
    return awaited


class Memory(Closing):
    """The memory of a task: ``context`` before each model call, and everything that was stored.

    Args:
        bank: a file name or a database URL; None keeps everything in memory.
        session_id: the task. One that is stored already goes on with its calls; a list that continues nothing of it
            gets a session of its own, ``NAME~`` and a random number, which a WARNING of the log names once.
        config: a Config, a dict of its values, or the path of a configuration file; None: the shipped one.
        strategy: the name of one in the configuration, or settings such as MemoryBankSettings(…); None: its default.
        budget: tokens of what stands in the place of the older history, or a share of it (``history_budget``).
        tools: those of the agent's model calls, where ``context`` gets none.
        model: the agent's model; its price decides how often the history is folded.
        llm_client: writes summaries where the configuration asks for a model: an ``openai.OpenAI``, or anything
            with ``generate_plain``. None: no model is called.
        options: further settings of the strategy, such as ``keep_recent``, and arguments of MemoryBankState, such as
            ``project``.

    Every method that works has a twin for asyncio with an ``a`` before its name, which leaves the event loop free.
    A context manager, synchronous or asynchronous. Thread-safe. ``len(memory)`` and iteration are of its records.
    Raises ConfigError, UnknownStrategyError, DatabaseOpenError, and TypeError for an argument that it does not have.

    Example:
        >>> memory = Memory(budget=2_000)
        >>> context = memory.context(messages, tools=memory.tools)
        >>> memory.plan.unchanged, memory.search("late order")[0].outline.number
        (True, 1)
        >>> memory.call("get_record", {"record": "#1", "path": "due"}).splitlines()[-2]
        '2026-03-01'
        >>> memory.record("#1").output_text
        '{"order": "ORD-1", "due": "2026-03-01", "note": "late"}'
        >>> len(memory), [record.tool_name for record in memory] == [memory.records[0].tool_name]
        (1, True)
        >>> memory.reset()
        >>> memory.close()
    """

    def __init__(
        self,
        bank: str | Path | None = None,
        *,
        session_id: str = "default",
        config: Config | Mapping[str, Any] | str | Path | None = None,
        strategy: str | Settings | None = None,
        budget: int | float | str | None = None,
        tools: Tools = None,
        model: str | None = None,
        llm_client: LLMClient | None = None,
        **options: Any,
    ) -> None:
        self._processor = MemoryProcessor(config, lambda: self.state)
        self._processor.config = _with_strategy(self._processor.config, strategy, budget, options)
        if tools is not None and (isinstance(tools, (str, Mapping)) or not isinstance(tools, Sequence)):
            raise ConfigError(
                f"Memory: tools are the list of the model calls' tools, as in context(…), not {type(tools).__name__}."
            )
        self.state = MemoryBankState(database=bank, session_id=session_id, **options)
        self._tools, self._model, self._llm_client = tools, model, llm_client

    def __repr__(self) -> str:
        return f"<Memory of session {self.state.session_id!r}: {len(self):,} records>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>" if self.plan is NO_PLAN else self.plan.as_html()

    def __len__(self) -> int:
        return self.state.fact_store.size()

    def __bool__(self) -> bool:
        return True  # without a record, too

    def __iter__(self) -> Iterator[InteractionRecord]:
        facts = self.state.fact_store
        trace_ids = list(facts.steps())
        for start in range(0, len(trace_ids), _TOGETHER):
            yield from facts.get_many(trace_ids[start : start + _TOGETHER])

    @property
    def records(self) -> list[InteractionRecord]:
        """All that tools have returned in this session, oldest first. Raises StorageError."""
        return list(self)

    @property
    def tools(self) -> list[ToolSchema]:
        """The tools by which the agent reads what its context leaves out, for ``tools=`` of its model calls."""
        return list(TOOL_SCHEMAS)

    @property
    def plan(self) -> Plan:
        """The plan of the last context: the fate of every past call, and why; without decisions before the first."""
        key = self._processor.config.default_strategy
        session = self._processor.state(key)
        return NO_PLAN if session is None else session.last_plan

    def context(self, messages: Sequence[M], *, tools: Tools = None) -> list[M]:
        """The messages to send in place of ``messages``, which stay complete and are not changed.

        ``messages`` are those of openai's or Anthropic's API, as dicts or their SDK's objects, and come back in that
        form. ``tools``: those of the call; a context tells the agent of ``get_record`` only where it is among them.
        Raises MessagesError, ConfigError, StorageError; the same call can be made again.

        Example:
            >>> answer = client.chat.completions.create(model="gpt-4.1-mini", messages=memory.context(messages))
        """
        tools = self._tools if tools is None else tools
        return self._processor.rebuild(
            messages, llm_client=self._llm_client, model=self._model, tools=tools
        ).sent

    acontext = _in_thread(context)
    """As ``context``, for asyncio."""

    def call(self, name: str, arguments: object) -> str:
        """The text that answers the agent's call of one of ``tools``; ``arguments`` as the model gave them.

        A wrong call is answered by a sentence. Which calls are meant: ``is_memory_tool(name)``.
        """
        return handle_tool_call(self._read(), name, arguments)

    acall = _in_thread(call)
    """As ``call``, for asyncio."""

    def search(self, query: str, top_k: int = 5, *, scope: Scope | None = None) -> list[SearchMatch]:
        """The records that fit words, a name or an id best, best first; ``scope``: beyond this session.

        Raises StorageError, EmbedderMismatchError.
        """
        return search_session(self._read(), query, top_k, scope=scope, by_agent=False).matches

    asearch = _in_thread(search)
    """As ``search``, for asyncio."""

    def record(self, trace_id: str) -> InteractionRecord:
        """The output of a tool, to the byte: by its trace_id, the beginning of it, or its number (``#12``).

        Raises RecordError where there is none, StorageError.
        """
        return record_named(self._read(), trace_id)

    arecord = _in_thread(record)
    """As ``record``, for asyncio."""

    def reset(self) -> None:
        """End the task: forget what this session has stored."""
        self._processor.reset_state()
        self.state.reset()

    areset = _in_thread(reset)
    """As ``reset``, for asyncio."""

    def close(self) -> None:
        """Close the bank. What is stored stays stored."""
        self.state.__exit__()

    def _read(self) -> MemoryBankState:
        """The state, with what is stored by now: by earlier runs, or other processes."""
        config = self._processor.config
        settings = config.strategy(config.default_strategy)
        with self.state.lock:
            self.state.prepare(
                settings if isinstance(settings, MemoryBankSettings) else None, self._llm_client
            )
        return self.state


def _with_strategy(
    config: Config, strategy: str | Settings | None, budget: int | float | str | None, options: dict[str, Any]
) -> Config:
    """The configuration with the strategy as its default, changed by those ``options`` that are its settings.

    These are removed from ``options``; what remains are arguments of MemoryBankState. Raises as Memory.
    """
    if not isinstance(strategy, (str, Settings, type(None))):
        kind = type(strategy).__name__
        raise ConfigError(
            f"Memory: strategy is the name of one in the configuration, or MemoryBankSettings(…), not {kind}."
        )
    key = strategy if isinstance(strategy, str) else getattr(strategy, "type", config.default_strategy)
    settings: Any = strategy if isinstance(strategy, Settings) else config.strategy(key)
    of_state = {*inspect.signature(MemoryBankState).parameters} - {"database", "session_id"}
    fields = type(settings).model_fields.keys() - of_state - {"type", "tools"}
    arguments = {*inspect.signature(Memory).parameters} - {"options"}
    for name in options.keys() - of_state - fields:
        names = sorted(arguments | of_state | fields)
        meant = next(
            (f"did you mean {argument}?" for argument, tried in _ALSO_TRIED.items() if name in tried), None
        )
        listed = f"its arguments are {', '.join(sorted(arguments))}, and settings of the strategy {key!r}."
        raise TypeError(f"Memory has no argument {name!r}: {meant or hint(name, names, listed)}")
    changes = {name: options.pop(name) for name in fields & options.keys()}
    if budget is not None:
        if "history_budget" not in fields:
            raise ConfigError(
                f"Memory: the strategy {key!r} has no budget: leave it out, or use a memory bank."
            )
        changes["history_budget"] = budget
    if changes:
        known_values = {name: getattr(settings, name) for name in settings.model_fields_set}
        try:
            settings = type(settings)(**known_values | changes)
        except ConfigError as e:
            own_name = f"{type(settings).__name__}: "
            raise ConfigError(*(m.replace(own_name, "Memory: ", 1) for m in e.mistakes)) from None
    strategies = {**config.memory_strategies, key: settings}
    return config.model_copy(update={"default_strategy": key, "memory_strategies": strategies})
