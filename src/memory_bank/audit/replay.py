"""Recorded runs played through a strategy: the context that each recorded model call would have had."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from memory_bank import TOOL_SCHEMAS, Config, MemoryBankState, MemoryProcessor
from memory_bank.audit.costs import Costs
from memory_bank.audit.traces import Trace, is_turn
from memory_bank.transcript import ENCODING, compact, copy_of, open_counter, pairing_errors

Build = Callable[[list[Any]], list[Any]]
"""The context of the next model call, from the messages before it."""


@contextmanager
def building(trace: Trace, config: Config, key: str, model: str = "") -> Iterator[Build]:
    """The builder of contexts from the beginning of a trace with a strategy, for the price of a model."""
    with closing(MemoryProcessor(config, partial(TraceMemory().open, trace))) as processor:
        apply = partial(processor.apply_strategy, memory_key=key, model=model, tools=TOOL_SCHEMAS)
        yield lambda messages: apply(messages)[0]


class TraceMemory:
    """Where replayed traces keep their memory: in a database, or in a memory that ends with the trace.

    In a database a trace's session is named after its id, so playing it again stores nothing twice. A repeated id
    with other messages is another run: its session is ``ID#2``, ``ID#3`` and so on. ``continued`` counts the traces
    whose session already had records: their contexts may show what comes later in the trace.
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
        numbers = self._numbers.setdefault(session, {})
        number = numbers.setdefault(_digest(compact(trace.messages), 8), len(numbers) + 1)
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
    trace: Trace, build: Build, positions: Iterable[int], *, strict: bool = False
) -> Iterator[PlayedTurn]:
    """Build the context before each of some messages, from copies of those before it.

    Raises what ``build`` raises when it is ``strict``.
    """
    for position in positions:
        original = trace.messages[:position]
        messages = copied(original)
        context: list[Any] = []
        error = ""
        start = time.perf_counter()
        try:
            context = build(messages)
        except Exception as e:
            if strict:
                raise
            error = type(e).__name__
        seconds = time.perf_counter() - start
        broken = len(pairing_errors(context))
        if broken:
            broken = max(0, broken - len(pairing_errors(original)))
        yield PlayedTurn(position, context, seconds, broken, error)


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the library's warnings, of which a measurement causes hundreds."""
    logger = logging.getLogger("memory_bank")
    level = logger.level
    logger.setLevel(max(level, logging.ERROR))
    try:
        yield
    finally:
        logger.setLevel(level)


def copied(messages: Sequence[Any]) -> list[Any]:
    """Copies of messages: their containers are copied, texts are shared."""
    return list(map(copy_of, messages))


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """One model call of a replayed trace: its number from 1, the context, and the tokens of both versions.

    ``plan`` is what the strategy decided, None for one without a bank. ``counter`` is the name of what counted the
    tokens.
    """

    trace_id: str
    step: int
    messages: list[Any]
    full_tokens: int
    tokens: int
    broken_pairs: int
    plan: Any
    counter: str


def replay_trace(
    trace: Trace, config: Config, strategy: str, *, memory: TraceMemory | None = None
) -> Generator[ReplayStep, None, None]:
    """Play a trace through a configured strategy: a ReplayStep a turn. Raises what the strategy raises."""
    costs = Costs(open_counter(getattr(config.strategy(strategy), "token_encoding", ENCODING)))
    turns = [i for i, message in enumerate(trace.messages) if is_turn(message)]
    full = seen = tokens = 0

    def build(messages: list[Any]) -> list[Any]:
        nonlocal tokens
        context, tokens = processor.apply_strategy(messages, strategy, tools=TOOL_SCHEMAS)
        return context

    with closing(MemoryProcessor(config, partial((memory or TraceMemory()).open, trace))) as processor:
        for number, turn in enumerate(play(trace, build, turns, strict=True), 1):
            full += costs.total(trace.messages[seen : turn.position])
            seen = turn.position
            state = processor.state(strategy)
            plan = state.last_plan if isinstance(state, MemoryBankState) else None
            plan = plan if plan and plan.strategy else None
            whole, counter = (full, costs.counter.name) if plan is None else (plan.full_tokens, plan.counter)
            yield ReplayStep(trace.id, number, turn.context, whole, tokens, turn.broken_pairs, plan, counter)
