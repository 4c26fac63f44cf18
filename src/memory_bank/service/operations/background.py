"""What the service does beside its requests, in a thread each: the Observer's jobs, and fitting evidence models."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import cast

from memory_bank.bank.database import Database
from memory_bank.bank.keys import DEFAULT
from memory_bank.bank.learned import namespaces_due
from memory_bank.bank.worker import BackgroundObserver, Worker
from memory_bank.config import AdaptiveSettings, AnyStrategy, Config, MemoryBankSettings
from memory_bank.errors import ConfigError, StorageError
from memory_bank.models.chat import OpenAIChat
from memory_bank.models.embedding import load_embedder
from memory_bank.models.observer import EXTRACTIVE, Observer
from memory_bank.ports import ChatModel

log = logging.getLogger("memory_bank.Service")


def model_of(config: Config, settings: AnyStrategy) -> str | None:
    """The model that a strategy uses, or None."""
    if isinstance(settings, AdaptiveSettings):
        return next((m for s in settings.strategies if (m := model_of(config, config.rung(s)))), None)
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
    model = model_of(config, config.strategy(name))
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
    own = config.strategy(config.service.strategy or config.default_strategy)
    banks = [s for s in (own, *config.memory_strategies.values()) if isinstance(s, MemoryBankSettings)]
    modes = {True: ("inline", "background"), False: ("background",)}
    allowed = (s for s in banks if s.observer_mode in modes[s is own])
    return next((s for s in allowed if model_of(config, s)), None)


class ServiceObserver(BackgroundObserver):
    """Observes queued records of all sessions in a thread, within limits, also beside other processes."""

    def __init__(self, database: Database, config: Config, chat: ChatModel | None) -> None:
        self.database = database
        self.settings = observed_by(config) if chat is not None else None
        self._chat = chat
        self._started = False
        super().__init__(self._new_worker)

    @property
    def name(self) -> str:
        """The name of the Observer: ``llm:MODEL`` or ``extractive``."""
        return EXTRACTIVE if self.settings is None else f"llm:{self.settings.observer_model}"

    def start(self) -> None:
        """Start the thread, if a model observes; it also processes jobs queued earlier."""
        if self.settings is not None:
            Observer.create(self._chat, self.settings)  # raises for a limit without a price
            self._started = True
            self.wake()

    def wake(self) -> None:
        """Tell the worker that a job was queued; has no effect before ``start``."""
        if self._started:
            super().wake()

    def _new_worker(self) -> Worker:
        settings = cast("MemoryBankSettings", self.settings)  # there are some where the thread was started
        observer, embedder = Observer.create(self._chat, settings), load_embedder(settings.embedding_model)
        return Worker(self.database, observer, embedder, attempts=settings.observer_attempts)


class ServiceLearning:
    """Runs ``memory-bank lab train --db`` for a namespace whenever it has ``new_sessions`` more; 0: never.

    It looks every ``checked_every`` seconds, and one namespace at a time is trained, for at most half an hour, in a
    process that steps do not wait for. Several processes may work on one database: each namespace is trained by one
    of them. Raises ConfigError for a bank in memory, which no other process can read.
    """

    def __init__(self, database: Database, new_sessions: int, *, checked_every: float = 60.0) -> None:
        if new_sessions and database.in_memory:
            raise ConfigError("learn_after needs a bank in a file or on a server: give --db, or set it to 0.")
        self.database = database
        self.new_sessions = new_sessions
        self._checked_every = checked_every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-bank-learning", daemon=True)

    def start(self) -> None:
        """Start the thread that looks for namespaces to train, if the setting asks for it."""
        if self.new_sessions:
            self._thread.start()

    def end(self) -> None:
        """Stop: a process that is at work is ended, and nothing of it is kept. Returns at once."""
        self._stop.set()

    def close(self) -> None:
        """As ``end``, and wait for the thread."""
        self.end()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._checked_every):
            try:
                for namespace in namespaces_due(self.database, self.new_sessions):
                    self._train(namespace or DEFAULT)
                    if self._stop.is_set():
                        return
            except StorageError as e:
                log.warning("no evidence model is fitted now: %s", e)
            except Exception as e:
                log.error("no evidence model is fitted now: %s", type(e).__name__)

    def _train(self, namespace: str) -> None:
        url, secret = self.address()
        command = [sys.executable, "-m", "memory_bank", "lab", "train", "--db", url, "--namespace", namespace]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **secret}
        until = time.monotonic() + 1_800.0
        none, pipe = subprocess.DEVNULL, subprocess.PIPE
        with subprocess.Popen(command, env=environment, stdin=none, stdout=none, stderr=pipe) as process:
            if hasattr(os, "setpriority"):
                with suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, process.pid, 10)
            while process.poll() is None:
                if self._stop.wait(0.2) or time.monotonic() > until:
                    process.kill()
                    break
            output = process.communicate()[1].decode("utf-8", "replace").strip()
        if process.returncode == 0:
            log.info("namespace %s has a new evidence model", namespace)
        elif not self._stop.is_set():
            reason = output.rpartition("\n")[2] or "it did not win or took too long"
            log.info("namespace %s keeps the shipped evidence model: %s", namespace, reason)

    def address(self) -> tuple[str, dict[str, str]]:
        """The URL of the database without its password, for a command line, and variables that hold the password."""
        url = self.database.url
        password = url.password or url.query.get("password")
        bare = url._replace(password=None).difference_update_query(["password"])
        secret = {"PGPASSWORD": password} if isinstance(password, str) else {}
        return bare.render_as_string(hide_password=False), secret
