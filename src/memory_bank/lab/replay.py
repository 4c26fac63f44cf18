"""Plays recorded runs through a strategy: the context that each recorded model call would have had."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from memory_bank import TOOL_SCHEMAS, Config, MemoryBankState, MemoryProcessor
from memory_bank.lab.costs import Costs
from memory_bank.lab.meter.needs import Need
from memory_bank.lab.strategies import Build, TraceMemory
from memory_bank.lab.traces import Trace, is_turn
from memory_bank.transcript import ENCODING, open_counter, pairing_errors


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """One recorded model call: its position in the messages, and what the strategy made of them.

    ``broken_pairs`` counts the broken call/result pairs of the context that the trace itself does not have.
    When the strategy raised, ``error`` has the exception and the context is empty.
    """

    position: int
    context: list[Any]
    seconds: float
    broken_pairs: int
    error: Exception | None = None

    @property
    def error_name(self) -> str:
        """The type of the exception, or ""."""
        return "" if self.error is None else type(self.error).__name__


def play(trace: Trace, build: Build, turns: Iterable[tuple[int, Sequence[Need]]]) -> Iterator[PlayedTurn]:
    """Build the context before each turn, given as its position and its needs.

    The strategy gets copies of the messages. What it raises is passed on in the result.
    """
    for position, needs in turns:
        original = trace.messages[:position]
        messages = copied(original)
        context: list[Any] = []
        error: Exception | None = None
        start = time.perf_counter()
        try:
            context = build(messages, needs)
        except Exception as e:
            error = e
        seconds = time.perf_counter() - start
        broken = len(pairing_errors(context))
        if broken:
            broken = max(0, broken - len(pairing_errors(original)))
        yield PlayedTurn(position, context, seconds, broken, error)


def copied(messages: Sequence[Any]) -> list[Any]:
    """Copies of messages: their containers are copied, texts are shared.

    A message that is nested too deeply to be copied is returned as it is.
    """

    def copy(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: copy(v) for k, v in value.items()}
        return [copy(v) for v in value] if isinstance(value, list) else value

    copies = []
    for message in messages:
        try:
            copies.append(copy(message))
        except RecursionError:
            copies.append(message)
    return copies


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
    """Play one trace through a strategy of a configuration: a ReplayStep before every assistant turn.

    Raises what the strategy raises.
    """
    costs = Costs(open_counter(getattr(config.strategy(strategy), "token_encoding", ENCODING)))
    turns = [(i, ()) for i, message in enumerate(trace.messages) if is_turn(message)]
    full = seen = 0
    tokens = 0

    def build(messages: list[Any], _: Sequence[Need]) -> list[Any]:
        nonlocal tokens
        context, tokens = processor.apply_strategy(messages, strategy, tools=TOOL_SCHEMAS)
        return context

    with closing(MemoryProcessor(config, partial((memory or TraceMemory()).open, trace))) as processor:
        for number, turn in enumerate(play(trace, build, turns), 1):
            if turn.error is not None:
                raise turn.error
            full += costs.total(trace.messages[seen : turn.position])
            seen = turn.position
            state = processor.state(strategy)
            state = state if isinstance(state, MemoryBankState) else None
            plan = None if state is None else state.last_plan
            yield ReplayStep(
                trace.id,
                number,
                turn.context,
                full if plan is None else plan.full_tokens,
                tokens,
                turn.broken_pairs,
                plan,
                state,
                costs.counter.name if plan is None else plan.counter,
            )


@dataclass(slots=True)
class ReplaySummary:
    """The sums over a replay."""

    strategy: str
    traces: int = 0
    steps: int = 0
    full_tokens: int = 0
    context_tokens: int = 0
    broken_pairs: int = 0
    skipped_lines: list[str] = field(default_factory=list)
    unreadable_files: list[str] = field(default_factory=list)
    continued: int = 0  # traces whose session held records before they were played
    token_counter: str = ""
    embedder: str = ""
    observer: str = ""

    def add(self, step: ReplayStep) -> None:
        """Add one step."""
        self.steps += 1
        self.full_tokens += step.full_tokens
        self.context_tokens += step.tokens
        self.broken_pairs += step.broken_pairs
        self.token_counter = step.counter
        if step.plan is not None:
            self.embedder, self.observer = step.plan.embedder, step.plan.observer

    def as_dict(self) -> dict[str, Any]:
        """JSON values; means are per step, ``ratio`` is context tokens over full tokens."""
        values = asdict(self)
        full, context, steps = values.pop("full_tokens"), values.pop("context_tokens"), max(1, self.steps)
        means = {"mean_full_tokens": full / steps, "mean_context_tokens": context / steps}
        return values | means | {"ratio": context / full if full else 1.0}
