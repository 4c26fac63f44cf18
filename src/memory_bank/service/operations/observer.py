"""The background Observer of the service: one thread per process, for the queue of all sessions."""

from __future__ import annotations

import os

from memory_bank.bank.database import Database
from memory_bank.bank.worker import BackgroundObserver, Worker
from memory_bank.config import AdaptiveSettings, AnyStrategy, Config, MemoryBankSettings
from memory_bank.errors import ConfigError
from memory_bank.models.chat import OpenAIChat
from memory_bank.models.embedding import load_embedder
from memory_bank.models.observer import EXTRACTIVE, Observer
from memory_bank.ports import ChatModel


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
    """Observes queued records in a thread of its own, with the limits and prices of the settings.

    Several processes may work on the queue of one database.
    """

    def __init__(self, database: Database, config: Config, chat: ChatModel | None) -> None:
        self.database = database
        self.settings = observed_by(config) if chat is not None else None
        self._chat = chat
        self._background: BackgroundObserver | None = None

    @property
    def name(self) -> str:
        """The name of the Observer: ``llm:MODEL`` or ``extractive``."""
        return EXTRACTIVE if self.settings is None else f"llm:{self.settings.observer_model}"

    @property
    def works(self) -> bool:
        """Whether the thread is running."""
        return self._background is not None and self._background.works

    def start(self) -> None:
        """Start the thread, if a model observes; it also processes jobs queued earlier."""
        if (settings := self.settings) is None or self._background is not None:
            return
        observer = Observer.create(self._chat, settings)  # raises for a limit without a price

        def worker() -> Worker:
            embedder = load_embedder(settings.embedding_model)
            return Worker(self.database, observer, embedder, attempts=settings.observer_attempts)

        self._background = BackgroundObserver(worker)
        self._background.wake()

    def wake(self) -> None:
        """Say that a job was queued."""
        if self._background is not None:
            self._background.wake()

    def end(self) -> None:
        """Start no further job. Returns at once."""
        if self._background is not None:
            self._background.end()

    def close(self, timeout: float) -> None:
        """Start no further job, wait ``timeout`` seconds for the current ones, release those not finished."""
        if self._background is not None:
            self._background.close(timeout, release=True)


def model_of(config: Config, settings: AnyStrategy) -> str | None:
    """The model that a strategy uses, or None."""
    if isinstance(settings, AdaptiveSettings):
        return next((m for s in settings.strategies if (m := model_of(config, config.rung(s)))), None)
    model = getattr(settings, "summary_model", EXTRACTIVE)
    if isinstance(settings, MemoryBankSettings) and settings.observer_mode != "off":
        model = settings.observer_model
    return None if model == EXTRACTIVE else str(model)
