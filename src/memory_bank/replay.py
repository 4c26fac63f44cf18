"""Recorded runs played through a strategy: before every assistant turn, the context it would have had."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from memory_bank.assembly import MemoryBankState
from memory_bank.config import Config
from memory_bank.history.content import read
from memory_bank.history.conversation import Conversation
from memory_bank.history.tokens import ENCODING, open_counter
from memory_bank.processor import MemoryProcessor
from memory_bank.stores.database import Database
from memory_bank.history.pairing import pairing_errors
from memory_bank.traces import Trace


@dataclass(frozen=True, slots=True)
class Step:
    """One model call of a trace: its number from 1, the context, and what both versions cost."""

    trace_id: str
    step: int
    messages: list[Any]
    full_tokens: int
    tokens: int
    broken_pairs: int  # that the context has and the trace's own messages do not
    plan: Any = None


@dataclass(slots=True)
class Summary:
    """What a replay came to."""

    strategy: str
    traces: int = 0
    steps: int = 0
    full_tokens: int = 0
    context_tokens: int = 0
    broken_pairs: int = 0
    skipped_lines: list[str] = field(default_factory=list)
    counter: str = ""
    embedder: str = ""
    observer: str = ""

    def add(self, step: Step) -> None:
        """Take in one step."""
        self.steps += 1
        self.full_tokens += step.full_tokens
        self.context_tokens += step.tokens
        self.broken_pairs += step.broken_pairs
        if step.plan is not None:
            self.counter = step.plan.counter
            self.embedder = step.plan.embedder
            self.observer = step.plan.observer

    def as_dict(self) -> dict[str, Any]:
        """JSON values; means are per step, ``ratio`` is context over full tokens."""
        return {
            "strategy": self.strategy,
            "traces": self.traces,
            "steps": self.steps,
            "mean_full_tokens": self.full_tokens / self.steps if self.steps else 0.0,
            "mean_context_tokens": self.context_tokens / self.steps if self.steps else 0.0,
            "ratio": self.context_tokens / self.full_tokens if self.full_tokens else 1.0,
            "broken_pairs": self.broken_pairs,
            "skipped_lines": self.skipped_lines,
            "token_counter": self.counter,
            "embedder": self.embedder,
            "observer": self.observer,
        }


def replay_trace(
    trace: Trace,
    config: Config,
    strategy: str,
    *,
    database: Database | None = None,
    llm_client: Any = None,
    on_close: Callable[[Any], None] | None = None,
) -> Iterator[Step]:
    """Play one trace: a Step before every assistant turn. Its memory is its own (session id = trace id).

    ``on_close`` gets the strategy's state before it is closed. Raises what the strategy raises.
    """

    def open_state() -> MemoryBankState:
        return MemoryBankState(database=database, session_id=_session_id(trace.id))

    processor = MemoryProcessor(config, open_state)
    counting = Conversation("", open_counter(getattr(config.strategy(strategy), "token_encoding", ENCODING)))
    number = 0
    for i, message in enumerate(trace.messages):
        if read(message, "role") != "assistant":
            continue
        number += 1
        prefix = trace.messages[:i]
        context, tokens = processor.apply_strategy(prefix, strategy, llm_client=llm_client)
        plan = getattr(processor.state(strategy), "last_plan", None)
        full = plan.full_tokens if plan is not None else counting.update(prefix).full_tokens
        broken = len(pairing_errors(context))
        if broken:
            broken = max(0, broken - len(pairing_errors(prefix)))
        yield Step(trace.id, number, context, full, tokens, broken, plan)
    if on_close is not None:
        on_close(processor.state(strategy))


def _session_id(trace_id: str) -> str:
    """A session id that every database takes."""
    clean = "".join(c if c.isprintable() else "?" for c in trace_id)
    return clean[:255] or "trace"
