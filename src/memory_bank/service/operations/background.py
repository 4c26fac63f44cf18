"""The Observer's thread of a service, and the chat model that it uses."""

from __future__ import annotations

import logging
import os
import threading
from typing import cast

from memory_bank.bank.database import Database
from memory_bank.bank.words import settle_all
from memory_bank.bank.worker import BackgroundObserver, Worker
from memory_bank.config import AnyStrategy, Config, MemoryBankSettings
from memory_bank.errors import ConfigError, MemoryBankError
from memory_bank.models.chat import OpenAIChat
from memory_bank.models.embedding import load_embedder
from memory_bank.models.observer import EXTRACTIVE, Observer
from memory_bank.ports import ChatModel

log = logging.getLogger("memory_bank.Service")


def model_of(settings: AnyStrategy) -> str | None:
    """The model that a strategy uses, or None."""
    model = getattr(settings, "summary_model", EXTRACTIVE)
    if isinstance(settings, MemoryBankSettings) and {settings.observer_mode, settings.fold_note} != {"off"}:
        model = settings.observer_model
    return None if model == EXTRACTIVE else str(model)


def chat_of(config: Config, base_url: str) -> OpenAIChat | None:
    """The Observer's chat model, None without OPENAI_API_KEY. Raises ConfigError if the strategy needs one."""
    key = os.environ.get("OPENAI_API_KEY")
    if key:
        return OpenAIChat(base_url=base_url, api_key=key)
    name = config.service.strategy or config.default_strategy
    model = model_of(config.strategy(name))
    if model is not None:
        raise ConfigError(
            f"the strategy {name!r} needs a key for its model {model!r}: set OPENAI_API_KEY (any text for a "
            "local server), or choose 'extractive'."
        )
    return None


def observed_by(config: Config) -> MemoryBankSettings | None:
    """The settings of the Observer: those of the service's strategy if a model summarises for it.

    Otherwise those of the first other strategy with background observation, which a request may name. None if
    no strategy uses a model.
    """
    default = config.strategy(config.service.strategy or config.default_strategy)
    banks = [s for s in (default, *config.memory_strategies.values()) if isinstance(s, MemoryBankSettings)]
    modes = {True: ("inline", "background"), False: ("background",)}
    return next((s for s in banks if s.observer_mode in modes[s is default] and model_of(s)), None)


class ServiceObserver(BackgroundObserver):
    """Observes the waiting records of all sessions in a thread, within limits, also beside other processes."""

    def __init__(self, database: Database, config: Config, chat: ChatModel | None) -> None:
        self.database = database
        self.settings = observed_by(config) if chat is not None else None
        default = config.strategy(config.service.strategy or config.default_strategy)
        strategies = default, *config.memory_strategies.values()
        self._banks = [s for s in strategies if isinstance(s, MemoryBankSettings)]
        self._chat = chat
        self._started = False
        super().__init__(self._new_worker)

    @property
    def name(self) -> str:
        """The name of the Observer: ``llm:MODEL`` or ``extractive``."""
        return EXTRACTIVE if self.settings is None else f"llm:{self.settings.observer_model}"

    def start(self) -> None:
        """Start the thread, which makes the summaries that wait; without a model, make those that are missing."""
        if self.settings is not None:
            self._started = True
            self.wake()
        elif self._banks:
            self._thread = threading.Thread(target=self._draft, name="memory-bank-drafts", daemon=True)
            self._thread.start()  # ``close`` waits for it, too

    def wake(self) -> None:
        """Tell the worker that a record waits; has no effect before ``start``."""
        if self._started:
            super().wake()

    def _draft(self) -> None:
        """Make insights by extraction for records that a dead process or a failed embedder has left without."""
        every = all(s.observer_mode != "off" for s in self._banks)  # else only sessions that have insights
        try:
            Worker(self.database, Observer(), self._banks[0].embedding_model).draft(every=every)
            settle_all(self.database)
        except MemoryBankError as e:
            if not self._stop.is_set():
                log.warning("records without an insight wait for their session's next step: %s", e)

    def _new_worker(self) -> Worker:
        settings = cast("MemoryBankSettings", self.settings)  # there are some where the thread was started
        observer, embedder = Observer.create(self._chat, settings), load_embedder(settings.embedding_model)
        worker = Worker(self.database, observer, embedder, attempts=settings.observer_attempts)
        worker.draft()
        settle_all(self.database)
        return worker
