"""MemoryProcessor: picks the strategy by its key in the configuration, keeps states and sessions apart."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from memory_bank.assembly import MemoryBankState
from memory_bank.config import AdaptiveSettings, AnyStrategy, Config, load_config
from memory_bank.context.adaptive import apply_adaptive
from memory_bank.context.hierarchical import apply_hierarchical
from memory_bank.context.masking import apply_masking
from memory_bank.context.memory_bank import apply_memory_bank_strategy
from memory_bank.context.plain import apply_keep_last, apply_no_strategy, apply_truncation
from memory_bank.context.progressive import apply_progressive
from memory_bank.context.scratchpad import apply_scratchpad
from memory_bank.context.semantic import apply_semantic
from memory_bank.errors import ConfigError, LoopDetectedError
from memory_bank.transcript.loops import repeated_calls
from memory_bank.transcript.parsing import check_messages
from memory_bank.transcript.tokens import open_counter
from memory_bank.transcript.transcript import Transcript

log = logging.getLogger("memory_bank.MemoryBankStrategy")

_EVERY: Any = object()
OpenState = Callable[..., MemoryBankState]
Applied = tuple[list[Any], int]
_PLAIN: dict[str, Callable[..., Applied]] = {
    "no_strategy": apply_no_strategy,
    "truncation": apply_truncation,
    "keep_last_n": apply_keep_last,
}
_STORED: dict[str, Callable[..., Applied]] = {
    "memory_bank": apply_memory_bank_strategy,
    "observation_masking": apply_masking,
    "progressive_summarization": apply_progressive,
    "hierarchical": apply_hierarchical,
    "semantic": apply_semantic,
    "scratchpad": apply_scratchpad,
}


class MemoryProcessor:
    """Applies configured strategies to agents' conversations.

    ``config`` is a Config, a dict of its values, the path of a configuration file, or None for the shipped
    one. ``open_state`` makes the state of a key when it is first needed, in memory unless given; where it has
    a parameter ``session_id``, it is given the session's. Safe under threads.
    """

    def __init__(
        self,
        config: Config | Mapping[str, Any] | str | Path | None = None,
        open_state: OpenState | None = None,
    ) -> None:
        self.config = _as_config(config)
        self._open_state = open_state
        self._states: dict[tuple[str | None, str], Any] = {}
        self._making: dict[tuple[str | None, str], threading.RLock] = {}
        self._lock = threading.RLock()

    def apply_strategy(
        self,
        messages: list[Any],
        memory_key: str | None = None,
        input_token_count: int | None = None,
        llm_client: Any = None,
        *,
        session_id: str | None = None,
    ) -> Applied:
        """``(messages, token_count)`` of the strategy under ``memory_key`` (default: the configured one).

        ``input_token_count`` is what the caller counted for the messages; a strategy that changes nothing
        gives it back instead of counting again. Every ``session_id`` has states of its own. Raises
        UnknownStrategyError, MessagesError, what the strategy raises, and, when ``loop_detection`` is
        "raise", LoopDetectedError: after the strategy has stored what is new.
        """
        key = memory_key or self.config.default_strategy
        settings = self.config.strategy(key)
        applied = self._apply(messages, llm_client, settings, key, input_token_count, session_id)
        if self.config.loop_detection == "warn" and isinstance(
            state := self.state(key, session_id), MemoryBankState
        ):
            state.put_off("loops", partial(self._watch, messages))
        elif self.config.loop_detection != "off":
            self._watch(messages)
        return applied

    def _apply(
        self,
        messages: Any,
        llm_client: Any,
        settings: AnyStrategy,
        key: str,
        count: int | None,
        session_id: str | None,
    ) -> Applied:
        if settings.type == "no_strategy" and count is not None:
            return list(check_messages(messages)), count
        if settings.type in _PLAIN:
            counting = self._state(key, session_id, _Counting)
            with counting.lock:
                return _PLAIN[settings.type](messages, llm_client, settings, counting.transcript)
        state = self._state(key, session_id, lambda: self._opened(session_id))
        if isinstance(settings, AdaptiveSettings):
            strategies = {**_PLAIN, **_STORED}
            rungs = [(n, strategies[s.type], s) for n in settings.strategies for s in [self.config.rung(n)]]
            return apply_adaptive(messages, llm_client, settings, state, rungs)
        return _STORED[settings.type](messages, llm_client, settings, state)

    def _watch(self, messages: list[Any]) -> None:
        threshold = self.config.loop_threshold
        calls = repeated_calls(messages, threshold)
        if not calls:
            return
        tools = ", ".join(dict.fromkeys(c["tool_name"] for c in calls))
        told = f"the agent repeats itself: {len(calls)} calls in a row of {tools[:200]} with the same answer"
        if self.config.loop_detection == "raise":
            raise LoopDetectedError(f"{told}; change the prompt or the tool, or stop the agent", calls)
        if len(calls) % threshold == 0:
            log.warning("%s", told)

    def state(self, memory_key: str, session_id: str | None = None) -> Any:
        """The state that a strategy has built up in a session, or None."""
        return self._states.get((session_id, memory_key))

    def reset_state(self, session_id: str | None = _EVERY) -> None:
        """The end of a task: the states of a session, or all of them, are emptied; models stay loaded.

        None is the session of those steps that name none.
        """
        with self._lock:
            for (session, _), state in self._states.items():
                if session_id is _EVERY or session == session_id:
                    state.reset()

    def close(self, session_id: str | None = _EVERY) -> None:
        """Close what the states of a session, or all of them, hold open, and forget them."""
        with self._lock:
            for place in [p for p in self._states if session_id is _EVERY or p[0] == session_id]:
                state = self._states.pop(place)
                if isinstance(state, MemoryBankState):
                    state.close()

    def _state(self, key: str, session_id: str | None, make: Callable[[], Any]) -> Any:
        place = (session_id, key)
        with self._lock:
            if place in self._states:
                return self._states[place]
            making = self._making.setdefault(place, threading.RLock())
        with making:  # a database may be slow: other sessions do not wait for it
            with self._lock:
                if place in self._states:
                    return self._states[place]
            try:
                made = make()
                with self._lock:
                    return self._states.setdefault(place, made)
            finally:
                with self._lock:
                    self._making.pop(place, None)

    def _opened(self, session_id: str | None) -> MemoryBankState:
        if self._open_state is None:
            return MemoryBankState() if session_id is None else MemoryBankState(session_id=session_id)
        if session_id is None:
            return self._open_state()
        try:
            takes_it = "session_id" in inspect.signature(self._open_state).parameters
        except (TypeError, ValueError):
            takes_it = False
        if not takes_it:
            raise ConfigError(
                "open_state has no parameter session_id, so the sessions would share one memory: add it."
            )
        return self._open_state(session_id=session_id)


def _as_config(config: Any) -> Config:
    if isinstance(config, Config):
        return config
    if isinstance(config, Mapping):
        return Config(**{str(key): value for key, value in config.items()})
    if config is None or isinstance(config, (str, Path)):
        return load_config(config)
    raise ConfigError(f"a configuration is a Config, a dict or a path, not {type(config).__name__}.")


class _Counting:
    """What a strategy without a bank keeps of a session: its messages, counted once."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.transcript = Transcript("", open_counter())

    def reset(self) -> None:
        """Forget everything."""
        with self.lock:
            self.transcript.reset()
