"""Recorded runs played through a strategy: before every assistant turn, the context it would have had."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from memory_bank.assembly import MemoryBankState
from memory_bank.bank.database import Database
from memory_bank.config import Config
from memory_bank.lab.traces import Trace
from memory_bank.processor import MemoryProcessor
from memory_bank.transcript.content import read
from memory_bank.transcript.jsontext import compact
from memory_bank.transcript.pairing import pairing_errors
from memory_bank.transcript.tokens import ENCODING, open_counter
from memory_bank.transcript.transcript import Transcript

_SESSION_CHARS = 255
_TRACES_A_DATABASE = 500


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
    counter: str = ""  # what counted the tokens: an encoding, or "approximate"


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
    unreadable_files: list[str] = field(default_factory=list)
    continued: int = 0  # traces whose session held records before they were played
    counter: str = ""
    embedder: str = ""
    observer: str = ""

    def add(self, step: Step) -> None:
        """Take in one step."""
        self.steps += 1
        self.full_tokens += step.full_tokens
        self.context_tokens += step.tokens
        self.broken_pairs += step.broken_pairs
        self.counter = step.counter
        if step.plan is not None:
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
            "unreadable_files": self.unreadable_files,
            "continued": self.continued,
            "token_counter": self.counter,
            "embedder": self.embedder,
            "observer": self.observer,
        }


class Memory:
    """Where the traces of a replay keep their memory: a database, or nothing that outlives the trace.

    In a database a trace's session is named after its id, so that playing it again stores nothing twice. An
    id that comes again in the same replay with other messages is another run: its session is ``ID#2``,
    ``ID#3`` and so on. Without a database every trace begins with nothing, whatever its id, and what it
    stored is gone when it ends. ``continued`` counts the traces whose session held records already: their
    contexts may show what the trace comes to later.
    """

    def __init__(self, database: Database | None = None) -> None:
        self.keeps = database is not None
        self.continued = 0
        self._database = database or Database()
        self._played = 0
        self._seen: dict[str, list[bytes]] = {}

    def open(self, trace: Trace) -> MemoryBankState:
        """The state that a trace starts with."""
        session = _session_id(trace.id)
        if self.keeps:
            session = self._own_session(session, trace)
        state = MemoryBankState(database=self._database, session_id=session)
        if self.keeps and state.fact_store.size():
            self.continued += 1
        return state

    def leave(self, state: Any) -> None:
        """The end of a trace: without a database, what it stored is dropped."""
        if self.keeps:
            return
        if isinstance(state, MemoryBankState):
            state.reset()
        self._played += 1
        if self._played % _TRACES_A_DATABASE == 0:  # each leaves a line in the list of sessions
            self.close()
            self._database = Database()

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _own_session(self, session: str, trace: Trace) -> str:
        text = compact(trace.messages).encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(text, digest_size=8).digest()
        known = self._seen.setdefault(session, [])
        if digest not in known:
            known.append(digest)
        number = known.index(digest) + 1
        return session if number == 1 else f"{session[: _SESSION_CHARS - 8]}#{number}"


def replay_trace(
    trace: Trace,
    config: Config,
    strategy: str,
    *,
    memory: Memory | None = None,
    llm_client: Any = None,
    on_close: Callable[[Any], None] | None = None,
) -> Iterator[Step]:
    """Play one trace: a Step before every assistant turn. Its memory is its own, see ``Memory``.

    ``on_close`` gets the strategy's state after the last step. Raises what the strategy raises.
    """
    own = memory or Memory()
    processor = MemoryProcessor(config, lambda: own.open(trace))
    counting = Transcript("", open_counter(getattr(config.strategy(strategy), "token_encoding", ENCODING)))
    number = 0
    try:
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
            counter = plan.counter if plan is not None else counting.counter.name
            yield Step(trace.id, number, context, full, tokens, broken, plan, counter)
        if on_close is not None:
            on_close(processor.state(strategy))
    finally:
        own.leave(processor.state(strategy))
        if memory is None:
            own.close()


def _session_id(trace_id: str) -> str:
    """A session id that every database takes, another one for every trace id."""
    clean = "".join(c if c.isprintable() else "?" for c in trace_id)
    if clean == trace_id and len(clean) <= _SESSION_CHARS - 8:
        return clean
    mark = hashlib.blake2b(trace_id.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{clean[: _SESSION_CHARS - 20]}~{mark}"
