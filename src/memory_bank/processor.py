"""MemoryProcessor: picks the strategy by its key in the configuration and keeps its state."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from memory_bank.assembly import MemoryBankState
from memory_bank.config import Config, MemoryBankSettings, load_config
from memory_bank.errors import ConfigError
from memory_bank.history.conversation import Conversation
from memory_bank.history.parsing import check_messages
from memory_bank.history.tokens import open_counter
from memory_bank.strategies.memory_bank import apply_memory_bank_strategy
from memory_bank.strategies.plain import apply_keep_last, apply_masking, apply_no_strategy, apply_truncation

OpenState = Callable[[], MemoryBankState]
_PLAIN: dict[str, Callable[..., tuple[list[Any], int]]] = {
    "no_strategy": apply_no_strategy,
    "truncation": apply_truncation,
    "keep_last_n": apply_keep_last,
    "observation_masking": apply_masking,
}


class MemoryProcessor:
    """Applies configured strategies to one agent's conversation.

    ``config`` is a Config, a dict of its values, the path of a configuration file, or None for the shipped
    one. ``open_state`` makes the memory bank's state of a key when it is first needed; in memory unless
    given. Safe under threads.
    """

    def __init__(
        self,
        config: Config | Mapping[str, Any] | str | Path | None = None,
        open_state: OpenState | None = None,
    ) -> None:
        self.config = _as_config(config)
        self._open_state = open_state or MemoryBankState
        self._states: dict[str, Any] = {}
        self._lock = threading.RLock()

    def apply_strategy(
        self,
        messages: list[Any],
        memory_key: str | None = None,
        input_token_count: int | None = None,
        llm_client: Any = None,
    ) -> tuple[list[Any], int]:
        """``(messages, token_count)`` of the strategy under ``memory_key`` (default: the configured one).

        ``input_token_count`` is what the caller counted for the messages; a strategy that changes nothing
        gives it back instead of counting again. Raises UnknownStrategyError, MessagesError and what the
        strategy raises.
        """
        key = memory_key or self.config.default_strategy
        settings = self.config.strategy(key)
        if settings.type == "no_strategy" and input_token_count is not None:
            return list(check_messages(messages)), input_token_count
        if not isinstance(settings, MemoryBankSettings):
            with self._lock:
                apply = _PLAIN[settings.type]
                return apply(messages, llm_client, settings, self._state(key, _counting))
        return apply_memory_bank_strategy(messages, llm_client, settings, self._state(key, self._open_state))

    def state(self, memory_key: str) -> Any:
        """The state that a strategy has built up, or None."""
        return self._states.get(memory_key)

    def reset_state(self) -> None:
        """The end of a task: every state is emptied; models stay loaded."""
        with self._lock:
            for state in self._states.values():
                state.reset()

    def close(self) -> None:
        """Close what the states hold open."""
        with self._lock:
            for state in self._states.values():
                if isinstance(state, MemoryBankState):
                    state.close()
            self._states.clear()

    def _state(self, key: str, make: Callable[[], Any]) -> Any:
        with self._lock:
            if key not in self._states:
                self._states[key] = make()
            return self._states[key]


def _as_config(config: Any) -> Config:
    if isinstance(config, Config):
        return config
    if isinstance(config, Mapping):
        return Config(**{str(key): value for key, value in config.items()})
    if config is None or isinstance(config, (str, Path)):
        return load_config(config)
    raise ConfigError(f"a configuration is a Config, a dict or a path, not {type(config).__name__}.")


def _counting() -> Conversation:
    return Conversation("", open_counter())
