"""LLMOrchestrator: model calls with memory applied, and a trace of what was sent and what it cost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from memory_bank.bank.session import MemoryBankState
from memory_bank.closing import Closing
from memory_bank.config import Config
from memory_bank.errors import ConfigError
from memory_bank.models import chat
from memory_bank.models.usage import NO_USAGE
from memory_bank.plan import Context
from memory_bank.pricing import Charge, PrefixCache, Usage, costs, known_price
from memory_bank.processor import MemoryProcessor, OpenState
from memory_bank.records import Brief
from memory_bank.transcript.messages import check_messages
from memory_bank.transcript.tokens import open_counter
from memory_bank.transcript.transcript import copy_of


@dataclass(frozen=True, slots=True, repr=False)
class Sent(Brief):
    """One model call: what was sent, and what it cost.

    ``counted_tokens`` are those of ``messages`` by our counter, ``full_tokens`` those of the whole history;
    ``prompt_tokens`` and ``completion_tokens`` are as the model reported them, 0 where it did not (a stream
    does not). ``cost`` is by the configured price or the list's, None without one; where nothing was reported it is
    that of the counted tokens. ``error`` is the kind of failure, or "".
    """

    number: int
    kind: Literal["memory", "plain"]
    model: str
    messages: tuple[Any, ...]
    counted_tokens: int
    full_tokens: int
    memory_key: str | None = None
    session_id: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    seconds: float = 0.0
    streamed: bool = False
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The call with its messages, as JSON values where the messages are."""
        return {**asdict(replace(self, messages=())), "messages": list(self.messages)}


_Prefix = tuple[PrefixCache, Charge] | None
_Call = tuple[Sent, list[Any], dict[str, Any], _Prefix]
"""A call to make: what the trace will hold, the messages and options that the client gets, their cached prefix."""


class LLMOrchestrator(Closing):
    """Calls a chat model: ``generate`` with memory applied, ``generate_plain`` without.

    ``client`` is an ``openai.OpenAI``, an ``openai.AsyncOpenAI`` (for ``agenerate`` and ``agenerate_plain``)
    or anything with ``generate_plain``. ``config`` and ``open_state`` are MemoryProcessor's. Summaries that a
    strategy asks of a model are made through this orchestrator, and are in the trace as plain calls; with an
    asynchronous client they need ``summary_client``, a synchronous one, and are made by extraction without.
    The configuration's prices, or the list's, and the cached tokens that answers report (those of a stream are not
    read) decide how often the history is folded. ``trace`` holds the last 1,000 calls. Safe under threads.

    An orchestrator is itself a ``ChatModel``: it may stand wherever an ``llm_client`` is asked for.

    Example:
        >>> with LLMOrchestrator(client, model="gpt-4.1-mini") as model:
        ...     model.set_active_context(session_id="task-1")
        ...     answer = model.generate(messages)
        ...     title = model.generate_plain(input_messages=[{"role": "user", "content": "Name this task."}])
        ...     [sent.kind for sent in model.trace]
        ...     model.reset_session()
        ['memory', 'plain']
    """

    def __init__(
        self,
        client: Any,
        config: Config | Mapping[str, Any] | str | Path | None = None,
        *,
        model: str | None = None,
        memory_key: str | None = None,
        session_id: str | None = None,
        open_state: OpenState | None = None,
        summary_client: Any = None,
    ) -> None:
        if client is None:
            raise ConfigError("LLMOrchestrator needs a client: an openai.OpenAI, or one with generate_plain.")
        self.processor = MemoryProcessor(config, open_state)
        self._client = client
        plain = callable(getattr(client, "generate_plain", None))
        self._create: Any = None if plain or not callable(create := chat.create_of(client)) else create
        self._async = self._create is not None and chat.is_async(client)
        self._chat = None if self._async else chat.as_chat_model(client)
        self._summaries: Any = chat.as_chat_model(summary_client) or (None if self._async else self)
        self._counter = open_counter()
        self._active: dict[str, str | None] = dict.fromkeys(("memory_key", "session_id", "model"))
        self._trace: deque[Sent] = deque(maxlen=1_000)
        self._number = 0
        self._lock = threading.Lock()
        self.set_active_context(memory_key, session_id, model)

    def set_active_context(
        self, memory_key: str | None = None, session_id: str | None = None, model: str | None = None
    ) -> None:
        """The defaults of the following calls: strategy, session and model.

        What is None stays as it was. Raises UnknownStrategyError; nothing is changed then.
        """
        if memory_key is not None:
            self.processor.config.strategy(memory_key)
        names = {"memory_key": memory_key, "session_id": session_id, "model": model}
        self._active = self._active | {k: v for k, v in names.items() if v is not None}

    def reset_session(self, session_id: str | None = None) -> None:
        """The end of a task: a session's memory (default: the active one's) is emptied; the trace stays."""
        self.processor.reset_state(self._active["session_id"] if session_id is None else session_id)

    @property
    def trace(self) -> list[Sent]:
        """The last calls, oldest first."""
        with self._lock:
            return list(self._trace)

    def generate(
        self,
        messages: Sequence[Any],
        *,
        model: str | None = None,
        memory_key: str | None = None,
        session_id: str | None = None,
        **options: Any,
    ) -> Any:
        """Answer a conversation, its context rebuilt by the strategy; the client's own answer.

        ``options`` (tools, temperature, stream …) go to the client as they are; a stream comes back as the
        client gave it. Raises what the strategy raises, ModelError when there is no completion, and for a
        stream what the client raises.
        """
        return self._call(*self._with_memory(messages, model, memory_key, session_id, **options))

    def generate_plain(
        self, *, input_messages: list[dict[str, Any]], model: str | None = None, **options: Any
    ) -> Any:
        """Answer messages as they are, without memory. Raises as ``generate`` does."""
        return self._call(*self._plain(input_messages, model, options))

    async def agenerate(self, messages: Sequence[Any], **options: Any) -> Any:
        """As ``generate``, with the same arguments, for asynchronous programs: with either kind of client."""
        return await self._acall(*await asyncio.to_thread(self._with_memory, messages, **options))

    async def agenerate_plain(
        self, *, input_messages: list[dict[str, Any]], model: str | None = None, **options: Any
    ) -> Any:
        """As ``generate_plain``, for asynchronous programs."""
        return await self._acall(*self._plain(input_messages, model, options))

    def close(self) -> None:
        """Close what the memory holds open; the client is the caller's."""
        self.processor.close()

    def _with_memory(
        self,
        messages: Any,
        model: str | None = None,
        memory_key: str | None = None,
        session_id: str | None = None,
        **options: Any,
    ) -> _Call:
        name = self._model(model)
        key = memory_key or self._active["memory_key"] or self.processor.config.default_strategy
        session = self._active["session_id"] if session_id is None else session_id
        applied = self.processor.rebuild(
            messages, key, None, self._summaries, session_id=session, model=name, tools=options.get("tools")
        )
        context, tokens, chat = applied.sent, applied.tokens, applied.context
        full = chat.plan.full_tokens if isinstance(chat, Context) else tokens
        state = self.processor.state(key, session)
        copied, streamed = tuple(map(copy_of, context)), bool(options.get("stream"))
        sent = Sent(0, "memory", name, copied, tokens, full, key, session, streamed=streamed)
        prefix = (state.prefix_cache, state.ledger.last) if isinstance(state, MemoryBankState) else None
        return sent, context, options, prefix

    def _plain(self, messages: Any, model: str | None, options: dict[str, Any]) -> _Call:
        messages = list(check_messages(messages))
        tokens = sum(map(self._counter.count_message, messages))
        session, streamed = self._active["session_id"], bool(options.get("stream"))
        name, copied = self._model(model), tuple(map(copy_of, messages))
        sent = Sent(0, "plain", name, copied, tokens, tokens, session_id=session, streamed=streamed)
        return sent, messages, options, None

    def _model(self, model: str | None) -> str:
        name = model or self._active["model"]
        if not name:
            raise ConfigError("no model is named: pass model=, or set_active_context(model=…).")
        return name

    def _call(self, sent: Sent, messages: list[Any], options: dict[str, Any], prefix: _Prefix) -> Any:
        if self._async:
            raise ConfigError("the client is asynchronous: use agenerate and agenerate_plain.")
        with self._recorded(sent, prefix) as answers:
            if sent.streamed and self._create is not None:
                answers.append(self._create(messages=messages, model=sent.model, **options))
            else:
                chat: Any = self._chat  # takes the options that its client takes
                answers.append(chat.generate_plain(input_messages=messages, model=sent.model, **options))
        return answers[0]

    async def _acall(self, sent: Sent, messages: list[Any], options: dict[str, Any], prefix: _Prefix) -> Any:
        if not self._async:
            return await asyncio.to_thread(self._call, sent, messages, options, prefix)
        with self._recorded(sent, prefix) as answers:
            try:
                answer = await self._create(messages=messages, model=sent.model, **options)
            except Exception as e:
                if sent.streamed:
                    raise
                raise chat.model_error(e, sent.model, self._client) from e
            answers.append(answer if sent.streamed else chat.checked_completion(answer, self._client))
        return answers[0]

    @contextmanager
    def _recorded(self, sent: Sent, prefix: _Prefix) -> Iterator[list[Any]]:
        """Record a call when it has ended; the caller appends its answer to the list."""
        answers, error, began = list[Any](), "", time.perf_counter()
        try:
            yield answers
        except BaseException as e:
            error = type(e).__name__
            raise
        finally:
            usage = chat.usage_of(answers[0]) if answers and not sent.streamed else NO_USAGE
            if prefix is not None and answers and not sent.streamed:
                cache, charge = prefix
                cache.answered(charge, usage.cached if usage.untold is None else None)
            price, _ = known_price(self.processor.config.prices, sent.model) or (None, "")
            used = usage.tokens or Usage(0 if error else sent.counted_tokens)
            paid = costs(used, used, price, usage.billed)
            with self._lock:
                self._number += 1
                done = replace(
                    sent,
                    number=self._number,
                    prompt_tokens=usage.input or 0,
                    completion_tokens=usage.output or 0,
                    cost=None if paid is None else paid[0],
                    seconds=time.perf_counter() - began,
                    error=error,
                )
                self._trace.append(done)
