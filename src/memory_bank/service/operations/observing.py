"""The Observer of a service: one worker a process, at the queue of all sessions."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from memory_bank.bank.database import Database
from memory_bank.bank.worker import Worker
from memory_bank.config import AdaptiveSettings, AnyStrategy, Config, MemoryBankSettings
from memory_bank.errors import ConfigError, EmbeddingError
from memory_bank.models.chat import OpenAIChat
from memory_bank.models.embedding import load_embedder
from memory_bank.models.observer import EXTRACTIVE, Observer

log = logging.getLogger("memory_bank.Observer")

_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 60.0  # seconds until a model that cannot be loaded is tried again


def chat_of(config: Config, base_url: str) -> OpenAIChat | None:
    """The model that summarises, at the upstream and with the service's own key; None without a key.

    Raises ConfigError where the service's strategy needs one.
    """
    key = os.environ.get("OPENAI_API_KEY")
    if key:
        return OpenAIChat(base_url=base_url, api_key=key)
    name = config.service.strategy or config.default_strategy
    model = _model_of(config, config.strategy(name))
    if model is not None:
        raise ConfigError(
            f"the strategy {name!r} has {model!r} write summaries, and there is no key for it: set "
            "OPENAI_API_KEY (any text will do for a local server), or choose 'extractive'."
        )
    return None


def observed_by(config: Config) -> MemoryBankSettings | None:
    """The settings by which records are observed: those of the service's strategy if a model observes there.

    Else those of the first other one that leaves records to be observed: a request may name it. None: no
    model observes.
    """
    name = config.service.strategy or config.default_strategy
    own = config.strategy(name)
    if _observes(own):
        assert isinstance(own, MemoryBankSettings)
        return own
    for other in config.memory_strategies.values():
        if _observes(other) and isinstance(other, MemoryBankSettings) and other.observer_mode == "background":
            return other
    return None


class Observing:
    """Works off what is to be observed in a thread of its own: requests never wait for it.

    Limits and prices are those of the settings. Several processes share the queue of one database.
    """

    def __init__(self, database: Database, config: Config, chat: Any) -> None:
        self.database = database
        self.settings = observed_by(config) if chat is not None else None
        self._chat = chat
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._worker: Worker | None = None
        self._thread: threading.Thread | None = None

    @property
    def name(self) -> str:
        """Who observes: ``llm:MODEL`` or ``extractive``."""
        return EXTRACTIVE if self.settings is None else f"llm:{self.settings.observer_model}"

    @property
    def works(self) -> bool:
        """Whether its thread is at work."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Begin, if a model observes: also with what was queued before."""
        if self.settings is None or self._thread is not None:
            return
        Observer.create(self._chat, self.settings)  # a limit without a price is told now
        self._thread = threading.Thread(target=self._run, name="memory-bank-observing", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Something was queued."""
        self._wake.set()

    def end(self) -> None:
        """Take no further job; returns at once."""
        self._stop.set()
        self._wake.set()

    def close(self, timeout: float) -> None:
        """Take no further job, wait so many seconds for those at hand, and leave the rest free for others."""
        self.end()
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive() and self._worker is not None:
                log.info("jobs at hand are left to others")
                self._worker.abandon()

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stop.is_set():
            try:
                self._worker = worker = self._made()
                worker.run(self._stop, wake=self._wake)
                return
            except EmbeddingError as e:  # its model cannot be loaded: no summary could be stored
                log.warning("observing waits: %s", e)
            except Exception:
                log.exception("observing begins again")
            self._stop.wait(pause)
            pause = min(_LONGEST_PAUSE, 2 * pause)

    def _made(self) -> Worker:
        settings = self.settings
        assert settings is not None
        observer = Observer.create(self._chat, settings)
        embedder = load_embedder(settings.embedding_model)
        return Worker(self.database, observer, embedder, attempts=settings.observer_attempts)


def _observes(settings: AnyStrategy) -> bool:
    return (
        isinstance(settings, MemoryBankSettings)
        and settings.observer_model != EXTRACTIVE
        and settings.observer_mode != "off"
    )


def _model_of(config: Config, settings: AnyStrategy) -> str | None:
    """The model that a strategy asks, None where it asks none."""
    if isinstance(settings, AdaptiveSettings):
        return next((m for s in settings.strategies if (m := _model_of(config, config.rung(s)))), None)
    if isinstance(settings, MemoryBankSettings):
        return settings.observer_model if _observes(settings) else None
    model = getattr(settings, "summary_model", EXTRACTIVE)
    return None if model == EXTRACTIVE else str(model)
