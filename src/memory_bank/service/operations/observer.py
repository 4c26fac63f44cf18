"""The background Observer of the service: one thread per process, for the queue of all sessions."""

from __future__ import annotations

import logging
import os
import threading

from memory_bank.bank.database import Database
from memory_bank.bank.worker import Worker
from memory_bank.config import AdaptiveSettings, AnyStrategy, Config, MemoryBankSettings
from memory_bank.errors import ConfigError, EmbeddingError
from memory_bank.models.chat import OpenAIChat
from memory_bank.models.embedding import load_embedder
from memory_bank.models.observer import EXTRACTIVE, Observer
from memory_bank.ports import ChatModel

log = logging.getLogger("memory_bank.Observer")


def chat_of(config: Config, base_url: str) -> OpenAIChat | None:
    """The chat model of the Observer, at the upstream with OPENAI_API_KEY; None without a key.

    Raises ConfigError if the service's strategy needs a key.
    """
    key = os.environ.get("OPENAI_API_KEY")
    if key:
        return OpenAIChat(base_url=base_url, api_key=key)
    name = config.service.strategy or config.default_strategy
    model = model_of(config, config.strategy(name))
    if model is not None:
        raise ConfigError(
            f"the strategy {name!r} needs a key for its model {model!r}: set OPENAI_API_KEY (any text for a "
            "local server), or choose 'extractive'."
        )
    return None


def observed_by(config: Config) -> MemoryBankSettings | None:
    """The settings of the Observer: those of the service's strategy if it uses a model.

    Otherwise those of the first other strategy with background observation, which a request may name. None if
    no strategy uses a model.
    """
    own = config.strategy(config.service.strategy or config.default_strategy)
    if isinstance(own, MemoryBankSettings) and model_of(config, own):
        return own
    for other in config.memory_strategies.values():
        if (
            isinstance(other, MemoryBankSettings)
            and other.observer_mode == "background"
            and model_of(config, other)
        ):
            return other
    return None


class ServiceObserver:
    """Observes queued records in its own thread, with the limits and prices of the settings.

    Several processes may work on the queue of one database.
    """

    def __init__(self, database: Database, config: Config, chat: ChatModel | None) -> None:
        self.database = database
        self.settings = observed_by(config) if chat is not None else None
        self._chat = chat
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._worker: Worker | None = None
        self._thread: threading.Thread | None = None

    @property
    def name(self) -> str:
        """The name of the Observer: ``llm:MODEL`` or ``extractive``."""
        return EXTRACTIVE if self.settings is None else f"llm:{self.settings.observer_model}"

    @property
    def works(self) -> bool:
        """Whether the thread is running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread, if a model observes; it also processes jobs queued earlier."""
        if self.settings is None or self._thread is not None:
            return
        Observer.create(self._chat, self.settings)  # raises for a limit without a price
        self._thread = threading.Thread(
            target=self._run, args=(self.settings,), name="memory-bank-observing", daemon=True
        )
        self._thread.start()

    def wake(self) -> None:
        """Say that a job was queued."""
        self._wake.set()

    def end(self) -> None:
        """Start no further job. Returns at once."""
        self._stop.set()
        self._wake.set()

    def close(self, timeout: float) -> None:
        """Start no further job, wait ``timeout`` seconds for the current ones, release those not finished."""
        self.end()
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive() and self._worker is not None:
                log.info("unfinished jobs are released")
                self._worker.abandon()

    def _run(self, settings: MemoryBankSettings) -> None:
        pause = 2.0  # seconds before a failed start is tried again
        while not self._stop.is_set():
            try:
                observer = Observer.create(self._chat, settings)
                embedder = load_embedder(settings.embedding_model)
                self._worker = Worker(self.database, observer, embedder, attempts=settings.observer_attempts)
                self._worker.run(self._stop, wake=self._wake)
                return
            except EmbeddingError as e:  # the embedder cannot be loaded, so no summary could be stored
                log.warning("the Observer cannot start yet: %s", e)
            except Exception:
                log.exception("the Observer failed and starts again")
            self._stop.wait(pause)
            pause = min(60.0, 2 * pause)


def model_of(config: Config, settings: AnyStrategy) -> str | None:
    """The model that a strategy uses, or None."""
    if isinstance(settings, AdaptiveSettings):
        return next((m for s in settings.strategies if (m := model_of(config, config.rung(s)))), None)
    model = getattr(settings, "summary_model", EXTRACTIVE)
    if isinstance(settings, MemoryBankSettings) and settings.observer_mode != "off":
        model = settings.observer_model
    return None if model == EXTRACTIVE else str(model)
