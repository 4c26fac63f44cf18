"""Strategies, and recorded runs played through them: the context that each recorded model call would have had.

A strategy sees copies of the messages before a turn and nothing else; only the oracle is given the turn's needs.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import inspect
import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from memory_bank import TOOL_SCHEMAS, Config, MemoryBankState, MemoryProcessor
from memory_bank.audit.costs import Costs
from memory_bank.audit.needs import Need, recall
from memory_bank.audit.text import NormalText, texts_of
from memory_bank.audit.traces import Trace, is_turn
from memory_bank.errors import ConfigError
from memory_bank.transcript import (
    ENCODING,
    Interaction,
    MessageKind,
    compact,
    copy_of,
    open_counter,
    pairing_errors,
    parse_messages,
    read,
)

Build = Callable[[list[Any], Sequence[Need]], list[Any]]
"""The context of the next model call, from the messages before it; the turn's needs are for the oracle alone."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """What to measure: a key of a configuration, a plugin, the full history or the oracle; picklable."""

    name: str
    kind: Literal["configured", "plugin", "full", "oracle"]
    target: str = ""  # the key, or module:function
    config: Config | None = None
    options: tuple[tuple[str, Any], ...] = ()  # of a plugin
    model: str = ""  # that the contexts are for, whose price the configuration has

    @contextmanager
    def start(self, trace: Trace) -> Iterator[Build]:
        """What builds contexts from the beginning of a trace. Raises ConfigError when a plugin cannot be imported."""
        if self.config is not None:
            with closing(MemoryProcessor(self.config, partial(TraceMemory().open, trace))) as processor:
                apply = partial(processor.apply_strategy, model=self.model, tools=TOOL_SCHEMAS)
                yield lambda messages, _: apply(messages, self.target)[0]
        elif self.kind == "plugin":
            function = partial(_plugin(self.target), **dict(self.options))
            state: dict[str, Any] = {"tools": trace.tools} if trace.tools else {}  # lives for one trace
            with asyncio.Runner() as loop:

                async def awaited(context: Any) -> Any:
                    return await context

                def build(messages: list[Any], _: Sequence[Need]) -> list[Any]:
                    context = function(messages, state)
                    return _as_messages(
                        loop.run(awaited(context)) if inspect.isawaitable(context) else context
                    )

                yield build
        else:
            yield _oracle if self.kind == "oracle" else lambda messages, _: messages

    def settings(self) -> Any:
        """The settings in its configuration; None without one."""
        return None if self.config is None else self.config.strategy(self.target)


def parse_strategy(text: str, config: Config) -> Strategy:
    """The strategy that a text names. Raises ConfigError and UnknownStrategyError.

    ``full``, ``oracle``, a key of the configuration, ``KEY?setting=value&…`` with settings changed, or
    ``module:function?name=value&…`` for a function ``f(messages, state) -> messages``. Values are JSON, else text.
    """
    target, _, query = text.partition("?")
    options: dict[str, Any] = {}
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    if ":" in target:
        _plugin(target)
        return Strategy(text, "plugin", target, options=tuple(options.items()))
    if target in ("full", "oracle") and target not in config.memory_strategies:
        return Strategy(text, "full" if target == "full" else "oracle")
    return replace(configured(config, target, options), name=text)


def configured(config: Config, key: str, changes: Mapping[str, Any]) -> Strategy:
    """The strategy under a key, some of its settings changed. Raises ConfigError, UnknownStrategyError."""
    settings = config.strategy(key)
    if changes:
        changed = type(settings)(**{**settings.model_dump(), **changes})
        config = config.model_copy(update={"memory_strategies": {**config.memory_strategies, key: changed}})
    return Strategy(key, "configured", key, config)


def uses_budget(strategy: Strategy) -> bool:
    """Whether ``history_budget`` is one of the settings, and the selection respects it."""
    settings = strategy.settings()
    return hasattr(settings, "history_budget") and getattr(settings, "selection", "evidence") == "evidence"


def with_budgets(
    strategy: Strategy, budgets: Sequence[float | str], *, folds: bool = False
) -> list[Strategy]:
    """The strategy with each ``history_budget`` that it takes and its name does not set; ``folds``: at every step."""
    if strategy.config is None or not uses_budget(strategy) or "history_budget" in strategy.name:
        return [strategy]
    often = {"refresh_after": 0} if folds and hasattr(strategy.settings(), "refresh_after") else {}
    joint = "&" if "?" in strategy.name else "?"
    return [
        replace(
            configured(strategy.config, strategy.target, {"history_budget": budget, **often}),
            name=f"{strategy.name}{joint}history_budget={budget}",
        )
        for budget in budgets
    ]


def _plugin(target: str) -> Callable[..., Any]:
    """The function ``module:function``. Raises ConfigError when there is none."""
    module, _, name = target.partition(":")
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as e:
        raise ConfigError(
            f"the strategy {target} cannot be imported ({e}): check the name and PYTHONPATH."
        ) from e
    if not callable(function):
        raise ConfigError(f"the strategy {target} is not a function: name one of (messages, state).")
    return function


def _as_messages(context: Iterable[object]) -> list[Any]:
    """A plugin's answer as a list of dicts. Raises TypeError when it is not a list of messages."""
    messages = []
    for message in context:
        dump = getattr(message, "model_dump", None)
        messages.append(dump(exclude_none=True) if callable(dump) else message)
        if not isinstance(messages[-1], dict):
            raise TypeError("a context is a list of chat messages")
    return messages


def _oracle(messages: list[Any], needs: Sequence[Need]) -> list[Any]:
    """Anchor, last interaction, and an excerpt for each need of the turn that they lack: a lower bound of costs."""
    segments = parse_messages(messages)
    last = next((s for s in reversed(segments) if isinstance(s, Interaction)), None)
    base: list[Any] = []
    for s in segments:
        if s is last or (not isinstance(s, Interaction) and s.kind in (MessageKind.SYSTEM, MessageKind.USER)):
            base.extend(s.messages)
    shown = texts_of(base)
    asking = ("system", "user", "developer")
    history = texts_of(m for m in reversed(messages) if read(m, "role") not in asking)
    excerpts = filter(None, (_excerpt(need, history) for need in needs if not recall(need, shown)[1]))
    text = "\n".join(dict.fromkeys(excerpts))
    return [*base, {"role": "user", "content": text}] if text else base


def _excerpt(need: Need, history: Sequence[NormalText]) -> str | None:
    """The latest piece of history that holds the value and binds it; unbound where none binds it."""
    first: str | None = None
    for text in history:
        for form in need.forms:
            for at in text.places(form, 3):
                piece = NormalText(text[max(0, at - 80) : at + len(form) + 80])
                if recall(need, [piece])[1]:
                    return piece
                first = first or piece
    return first


class TraceMemory:
    """Where replayed traces keep their memory: in a database, or in a memory that ends with the trace.

    In a database a trace's session is named after its id, so playing it again stores nothing twice. A repeated id
    with other messages is another run: its session is ``ID#2``, ``ID#3`` and so on. ``continued`` counts the traces
    whose session already held records: their contexts may show what comes later in the trace.
    """

    def __init__(self, url: str | Path | None = None) -> None:
        self.continued = 0
        self._url = url
        self._numbers: dict[str, dict[str, int]] = {}  # session → digests of the traces played in it

    def open(self, trace: Trace) -> MemoryBankState:
        """The state that a trace starts with; the caller closes it."""
        if self._url is None:
            return MemoryBankState()
        session = "".join(c if c.isprintable() else "?" for c in trace.id)  # every database takes it
        if session != trace.id or len(session) > 247:  # names have at most 255 characters
            session = f"{session[:235]}~{_digest(trace.id, 4)}"
        known = self._numbers.setdefault(session, {})
        number = known.setdefault(_digest(compact(trace.messages), 8), len(known) + 1)
        name = session if number == 1 else f"{session[:247]}#{number}"
        state = MemoryBankState.open(self._url, session_id=name)
        self.continued += bool(state.fact_store.size())
        return state


def _digest(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """One recorded model call: its position in the messages, and what the strategy made of them.

    ``broken_pairs`` counts the broken call/result pairs of the context that the trace itself does not have.
    ``error`` is the type of the exception that the strategy raised, or ""; the context is empty then.
    """

    position: int
    context: list[Any]
    seconds: float
    broken_pairs: int
    error: str = ""


def play(
    trace: Trace, build: Build, turns: Iterable[tuple[int, Sequence[Need]]], *, strict: bool = False
) -> Iterator[PlayedTurn]:
    """Build the context before each turn from copies of the messages; a turn is its position and its needs.

    Raises what the strategy raises when it is ``strict``.
    """
    for position, needs in turns:
        original = trace.messages[:position]
        messages = copied(original)
        context: list[Any] = []
        error = ""
        start = time.perf_counter()
        try:
            context = build(messages, needs)
        except Exception as e:
            if strict:
                raise
            error = type(e).__name__
        seconds = time.perf_counter() - start
        broken = len(pairing_errors(context))
        if broken:
            broken = max(0, broken - len(pairing_errors(original)))
        yield PlayedTurn(position, context, seconds, broken, error)


def copied(messages: Sequence[Any]) -> list[Any]:
    """Copies of messages: their containers are copied, texts are shared."""
    return list(map(copy_of, messages))


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """One model call of a replayed trace: its number from 1, the context, and the tokens of both versions.

    ``plan`` is what the strategy decided and ``state`` its state after the step, which is closed with the replay;
    both are None for a strategy without a bank. ``counter`` is the name of what counted the tokens.
    """

    trace_id: str
    step: int
    messages: list[Any]
    full_tokens: int
    tokens: int
    broken_pairs: int
    plan: Any
    state: MemoryBankState | None
    counter: str


def replay_trace(
    trace: Trace, config: Config, strategy: str, *, memory: TraceMemory | None = None
) -> Generator[ReplayStep, None, None]:
    """Play a trace through a configured strategy: a ReplayStep a turn. Raises what the strategy raises."""
    costs = Costs(open_counter(getattr(config.strategy(strategy), "token_encoding", ENCODING)))
    turns = [(i, ()) for i, message in enumerate(trace.messages) if is_turn(message)]
    full = seen = tokens = 0

    def build(messages: list[Any], _: Sequence[Need]) -> list[Any]:
        nonlocal tokens
        context, tokens = processor.apply_strategy(messages, strategy, tools=TOOL_SCHEMAS)
        return context

    with closing(MemoryProcessor(config, partial((memory or TraceMemory()).open, trace))) as processor:
        for number, turn in enumerate(play(trace, build, turns, strict=True), 1):
            full += costs.total(trace.messages[seen : turn.position])
            seen = turn.position
            state = processor.state(strategy)
            state = state if isinstance(state, MemoryBankState) else None
            plan = None if state is None or not state.last_plan.strategy else state.last_plan
            whole, counter = (full, costs.counter.name) if plan is None else (plan.full_tokens, plan.counter)
            yield ReplayStep(
                trace.id, number, turn.context, whole, tokens, turn.broken_pairs, plan, state, counter
            )
