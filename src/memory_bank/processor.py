"""Entry points to the pipeline: ``apply_memory_bank_strategy``, and MemoryProcessor for configured strategies."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from memory_bank.bank.database import Database
from memory_bank.bank.session import MemoryBankState, Session
from memory_bank.bank.steps import StepFigures, StepToStore, add_steps
from memory_bank.config import Config, MemoryBankSettings, as_settings, load_config
from memory_bank.context.build import Policy, build_context, charge_step
from memory_bank.context.gate import leave
from memory_bank.context.policies import policy_of
from memory_bank.errors import ConfigError, LoopDetectedError, StorageError
from memory_bank.plan import NO_PLAN, Context, Form
from memory_bank.ports import LLMClient
from memory_bank.pricing import common_length, known_price
from memory_bank.transcript.anthropic import from_anthropic, is_anthropic, thinking_in
from memory_bank.transcript.messages import check_messages, check_shape, read, same_objects
from memory_bank.transcript.pairing import repeated_calls
from memory_bank.transcript.turns import ADDED, Derived

log = logging.getLogger("memory_bank.MemoryBankStrategy")

_ALL: Any = object()


class NotSentError(Exception):
    """Nobody sends the context of a step any more: what it stored stays, and nothing is charged."""


Tools = Sequence[object] | None
OpenState = Callable[..., MemoryBankState]
M = TypeVar("M")  # a message, in the form of the caller's API


class Applied(NamedTuple):
    """The sent messages, their tokens, and the same as a chat (a Context of a strategy, if any)."""

    sent: list[Any]
    tokens: int
    context: list[Any]


def apply_memory_bank_strategy(
    messages: Sequence[M],
    llm_client: LLMClient | None,
    settings: MemoryBankSettings | Config | Mapping[str, Any] | None,
    state: MemoryBankState,
    *,
    tools: Tools = None,
) -> tuple[list[M], int]:
    """Rebuild the context of the next model call: ``(messages, token_count)``.

    Every interaction that is not stored yet is stored; then the context is built of the anchor, what is retrieved,
    and the last interaction with everything after it. Without history the messages come back as they are.

    Args:
        messages: OpenAI-style chat messages, dicts or SDK objects, or dicts of Anthropic's Messages API, which come
            back in that form. They are never changed.
        llm_client: the Observer's model: an ``openai.OpenAI`` client or anything with ``generate_plain``;
            None makes extractive summaries.
        settings: MemoryBankSettings, a dict or any object with those attributes; None for the defaults; or a
            Config, whose default strategy is used if it is a memory bank.
        state: the session's memory.
        tools: those of the call, of any API. A context names ``get_record`` only where it is among them: by default
            it does not.

    Raises:
        MessagesError (also for messages of LangChain and contents of Gemini), ConfigError, EmbeddingError,
            StorageError: nothing that was stored is lost, and the same call can be made again. With
            ``on_storage_error="pass_through"`` a database that fails costs the memory of this step only: the messages
            come back as they are, ``state.storage_errors`` grows, ``state.last_plan`` is ``NO_PLAN``, and the next
            step stores what this one could not.

    Example:
        >>> context, tokens = apply_memory_bank_strategy(messages, None, load_config(), MemoryBankState())
    """
    if isinstance(settings, MemoryBankState) or not isinstance(state, MemoryBankState):
        kind = "None" if state is None else f"a {type(state).__name__}"
        raise ConfigError(
            "the arguments are (messages, llm_client, settings, state): the fourth is "
            f"{kind}, which must be a MemoryBankState, and the third no MemoryBankState."
        )
    if isinstance(settings, Config):
        chosen = settings.strategy(settings.default_strategy)
        if not isinstance(chosen, MemoryBankSettings):
            raise ConfigError(
                f"the configuration's default strategy {settings.default_strategy!r} is of type {chosen.type!r}: "
                "pass config.strategy(KEY) of a memory bank, or use MemoryProcessor."
            )
    else:
        chosen = as_settings(settings)
    policy = policy_of(chosen, llm_client)
    chat, form = read_as_chat(messages, state)
    return apply_policy(chat, state, policy, tools, form, recorded_as=(chosen.type, None))[:2]


def apply_policy(
    messages: Any,
    session: Session,
    policy: Policy,
    tools: Tools,
    form: Form | None = None,
    recorded_as: tuple[str, str | None] | None = None,
    sends: Callable[[], bool] | None = None,
) -> Applied:
    """The context of a strategy; with ``on_storage_error="pass_through"`` the messages, where the database fails.

    ``form``: that in which the context leaves; None: as the messages came.
    ``recorded_as``: the strategy's key and the model under which the step is recorded; None: whoever calls does that.
    ``sends``: whether the context is sent; asked before the step is charged.
    """
    began = time.perf_counter()
    with session.lock:
        try:
            context, sent = leave(build_context(messages, session, policy, tools), messages, session, form)
            if sends is not None and not sends():
                raise NotSentError
            before = session.ledger.sent
            charge_step(context, session)
            if recorded_as and isinstance(session, MemoryBankState) and not session.database.in_memory:
                changed_at, changed = change_since(before, session.ledger.sent, context)
                strategy, model = recorded_as
                figures = StepFigures(
                    session_id=session.session_id,
                    created=time.time(),
                    full_tokens=context.plan.full_tokens,
                    tokens=context.plan.tokens,
                    messages=len(messages),
                    records=len(session.steps),
                    status="unchanged" if same_objects(context, messages) else "rebuilt",
                    strategy=strategy,
                    milliseconds=1000 * (time.perf_counter() - began),
                    changed_at=changed_at,
                    changed=changed,
                    model=model,
                    untold="the program sends its requests itself",
                    fold=context.plan.fold,
                )
                step = StepToStore(
                    figures, context.plan.fates(session.numbers), generation=session.generation
                )
                session.run_later("step", partial(_record_step, session.database, step))
        except StorageError as e:
            if not isinstance(session, MemoryBankState) or not policy.bank:
                raise
            if policy.bank.on_storage_error == "raise":
                raise
            session.storage_errors += 1
            session.last_plan = NO_PLAN
            log.warning("the messages go through unchanged: %s", e)
            passed = list(check_messages(messages))
            tokens = sum(map(session.counter.count_message, passed))
            return Applied(passed if form is None else list(form.source.source), tokens, passed)
    return Applied(context if form is None else list(sent), context.plan.tokens, context)


def read_as_chat(messages: Any, session: Session) -> tuple[Any, Form | None]:
    """Messages of a caller as a chat, and the form in which their context leaves: None for those of a chat itself.

    Raises MessagesError for what is neither a chat nor of Anthropic's Messages API.
    """
    check_shape(messages)
    if not is_anthropic(messages):
        return messages, None
    thinking, derived = thinking_in(messages), session.cache("derived", Derived)
    source = from_anthropic(messages, derive=derived, thinking=thinking)
    derived.keep(messages)
    read = partial(from_anthropic, derive=derived)
    return [*source.messages], Form(source, lambda new: read(new).messages, thinking=thinking)


def _record_step(database: Database, step: StepToStore) -> None:
    try:
        add_steps(database, [step])
    except StorageError as e:
        log.debug("a step could not be recorded: %s", e)


def change_since(
    before: Sequence[object], now: Sequence[object], context: Sequence[object]
) -> tuple[int | None, str | None]:
    """Where a context first differs from the one before, and what stands there, as in StepFigures; else two None.

    ``before``, ``now``: the messages of both, or their digests.
    """
    at = common_length(before, now)
    if at == len(before):
        return None, None
    if at == len(context):
        return at, "end"
    if isinstance(context, Context) and context.plan.memory is not None:
        position, change = context.entries[at]
        if position is None or ADDED in change:
            return at, "memory"
    return at, str(read(context[at], "role") or read(context[at], "type") or "")


class MemoryProcessor:
    """Applies configured strategies to conversations; each strategy and session has a state of its own.

    Args:
        config: a Config, a dict of its values, the path of a configuration file, or None for the shipped one.
        open_state: makes the state of a strategy with a memory, in memory by default; where it has a
            parameter ``session_id``, it gets the session's.

    Thread-safe.

    Example:
        >>> processor = MemoryProcessor({"memory_strategies": {"short": {"type": "truncation"}}})
        >>> context, tokens = processor.apply_strategy(messages, "short", session_id="task-1")
        >>> processor.state("short", "task-1").last_plan.strategy
        'truncation'
        >>> processor.reset_state("task-1")
        >>> processor.close()
    """

    def __init__(
        self,
        config: Config | Mapping[str, Any] | str | Path | None = None,
        open_state: OpenState | None = None,
    ) -> None:
        if isinstance(config, Mapping):
            config = Config(**{str(key): value for key, value in config.items()})
        elif config is None or isinstance(config, (str, Path)):
            config = load_config(config)
        if not isinstance(config, Config):
            kind = type(config).__name__
            raise ConfigError(f"a configuration is a Config, a dict or a path, not {kind}.")
        self.config = config
        self._open_state = open_state
        self._states: dict[tuple[str | None, str], Session] = {}
        self._opening: dict[tuple[str | None, str], threading.RLock] = {}
        self._policies: dict[str, tuple[LLMClient | None, Policy]] = {}  # by strategy, for this client
        self._lock = threading.RLock()

    def apply_strategy(
        self,
        messages: Sequence[M],
        memory_key: str | None = None,
        input_token_count: int | None = None,
        llm_client: LLMClient | None = None,
        *,
        session_id: str | None = None,
        model: str | None = None,
        tools: Tools = None,
        added: int = 0,
    ) -> tuple[list[M], int]:
        """``(messages, token_count)`` of the strategy under ``memory_key``, by default the configured one.

        ``input_token_count``: the caller's count of the messages; "no_strategy" returns it instead of its own.
        ``model``: that the context is for. Its price in the configuration, or else in the list that ships, or else
        its name, tells what its provider charges for a cached prefix, and so how often the history is folded.
        ``tools``: those of the model call; the context names ``get_record`` only where it is among them. ``added``:
        tokens that memory adds to the request beside the messages, such as its tools.
        Raises UnknownStrategyError, MessagesError, what the strategy raises, and with ``loop_detection`` "raise"
        LoopDetectedError, after the strategy has stored what is new.
        """
        return self.rebuild(
            messages, memory_key, input_token_count, llm_client,
            session_id=session_id, model=model, tools=tools, added=added,
        )[:2]  # fmt: skip

    def rebuild(
        self,
        messages: Sequence[Any],
        memory_key: str | None = None,
        input_token_count: int | None = None,
        llm_client: LLMClient | None = None,
        form: Form | None = None,
        *,
        session_id: str | None = None,
        model: str | None = None,
        tools: Tools = None,
        added: int = 0,
        sends: Callable[[], bool] | None = None,
    ) -> Applied:
        """As ``apply_strategy``; with a ``form``, for chat messages that were read of it, and are sent in it.

        ``sends``, of a caller that records the step itself, says whether the context is sent; it is asked before the
        step is charged. Raises NotSentError where it is not sent.
        """
        check_shape(messages)
        key = memory_key or self.config.default_strategy
        session, policy = self.begin(key, session_id, llm_client, model)
        session.ledger.added, session.ledger.beside = added, 0
        if form is None:
            messages, form = read_as_chat(messages, session)
        recorded_as = (key, model) if sends is None else None
        applied = apply_policy(messages, session, policy, tools, form, recorded_as, sends)
        if policy.name == "no_strategy" and input_token_count is not None:
            applied = applied._replace(tokens=input_token_count)
        self.check_loops(session, messages)
        return applied

    def begin(
        self, key: str, session_id: str | None, llm_client: LLMClient | None, model: str | None
    ) -> tuple[Session, Policy]:
        """A session and the policy of a strategy, for a step whose context is for a model."""
        client, policy = self._policies.get(key, (None, None))
        if policy is None or client is not llm_client:
            policy = policy_of(self.config.strategy(key), llm_client)
            self._policies[key] = llm_client, policy
        session = self._states.get((session_id, key))
        if session is None:
            session = self._opened(key, session_id, stored=policy.bank is not None)
        if model and model != session.prefix_cache.model:
            price, _ = known_price(self.config.prices, model) or (None, "")
            session.prefix_cache.take_price(price, model)
        return session, policy

    def check_loops(self, session: Session, messages: Sequence[Any]) -> None:
        """After a step, look for calls that the agent repeats, as configured. Raises LoopDetectedError."""
        if self.config.loop_detection == "raise":
            self._check_loops(messages)
        elif self.config.loop_detection == "warn" and getattr(session, "new_records", True):
            session.run_later("loops", partial(self._check_loops, messages))

    def _check_loops(self, messages: Sequence[Any]) -> None:
        threshold = self.config.loop_threshold
        calls = repeated_calls(messages, threshold)
        if not calls:
            return
        tools = ", ".join(dict.fromkeys(c["tool_name"] for c in calls))
        text = f"the agent repeats itself: {len(calls)} calls in a row of {tools[:200]} with the same answer"
        if self.config.loop_detection == "raise":
            raise LoopDetectedError(f"{text}; change the prompt or the tool, or stop the agent", calls)
        if len(calls) % threshold == 0:
            log.warning("%s", text)

    def state(self, memory_key: str, session_id: str | None = None) -> Session | None:
        """The state of a strategy in a session, a MemoryBankState where it has a memory; None before its use."""
        return self._states.get((session_id, memory_key))

    def reset_state(self, session_id: str | None = _ALL) -> None:
        """End the task: empty the states of a session, by default of all. Models stay loaded.

        None is the session of the steps that name none.
        """
        with self._lock:
            for (session, _), state in self._states.items():
                if session_id is _ALL or session == session_id:
                    state.reset()

    def close(self, session_id: str | None = _ALL) -> None:
        """Close the states of a session, by default of all, and forget them."""
        with self._lock:
            for place in [p for p in self._states if session_id is _ALL or p[0] == session_id]:
                self._states.pop(place).close()

    def _opened(self, key: str, session_id: str | None, *, stored: bool) -> Session:
        """A new session; that of another thread, where one has opened it meanwhile."""
        place = (session_id, key)
        with self._lock:
            opening = self._opening.setdefault(place, threading.RLock())
        with opening:  # a slow database does not block other sessions
            opened = self._states.get(place)
            if opened is None:
                opened = self._open(session_id) if stored else Session()
                with self._lock:
                    self._states[place] = opened
            self._opening.pop(place, None)
            return opened

    def _open(self, session_id: str | None) -> MemoryBankState:
        if session_id is None:
            return (self._open_state or MemoryBankState)()
        if self._open_state is None:
            return MemoryBankState(session_id=session_id)
        try:
            takes_it = "session_id" in inspect.signature(self._open_state).parameters
        except (TypeError, ValueError):
            takes_it = False
        if not takes_it:
            raise ConfigError(
                "open_state has no parameter session_id, so the sessions would share one memory: add it."
            )
        return self._open_state(session_id=session_id)
