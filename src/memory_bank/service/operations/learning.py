"""Adapts the evidence model to the sessions of each namespace, in a process of its own that steps do not wait for."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress

from memory_bank.bank.database import Database
from memory_bank.bank.keys import DEFAULT
from memory_bank.bank.learned import namespaces_due
from memory_bank.errors import ConfigError, StorageError

log = logging.getLogger("memory_bank.Service")

CHECKED_EVERY = 60.0  # seconds
MOST_SECONDS = 1_800.0  # that one namespace may take


class ServiceLearning:
    """Runs ``memory-bank lab train --db`` for a namespace whenever it has ``new_sessions`` more; 0: never.

    One namespace at a time. Several processes may work on one database: each namespace is trained by one of them.
    Raises ConfigError for a bank in memory, which no other process can read.
    """

    def __init__(
        self,
        database: Database,
        new_sessions: int,
        *,
        checked_every: float = CHECKED_EVERY,
        most_seconds: float = MOST_SECONDS,
    ) -> None:
        if new_sessions and database.in_memory:
            raise ConfigError("learn_after needs a bank in a file or on a server: give --db, or set it to 0.")
        self.database = database
        self.new_sessions = new_sessions
        self._checked_every, self._most_seconds = checked_every, most_seconds
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread that looks for namespaces to train, if the setting asks for it."""
        if self.new_sessions:
            self._thread = threading.Thread(target=self._run, name="memory-bank-learning", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Stop: a process that is at work is ended, and nothing of it is kept. Returns at once."""
        self._stop.set()

    def close(self) -> None:
        """As ``end``, and wait for the thread."""
        self.end()
        if self._thread is not None:
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
        until = time.monotonic() + self._most_seconds
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
        """The URL of the database without its password, which other users could see in a command, and that apart."""
        url = self.database.url
        password = url.password or url.query.get("password")
        bare = url._replace(password=None).difference_update_query(["password"])
        secret = {"PGPASSWORD": password} if isinstance(password, str) else {}
        return bare.render_as_string(hide_password=False), secret
