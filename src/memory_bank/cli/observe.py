"""The verb ``bank observe``: a worker process that makes the summaries that are missing or wait for a model."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from memory_bank.cli.shared import (
    CONFIG,
    DB,
    EMBEDDER,
    JSON,
    ONE_SESSION,
    answer,
    bank_embedder_of,
    open_bank,
    progress,
    tell,
)  # fmt: skip
from memory_bank.errors import ConfigError

if TYPE_CHECKING:
    from memory_bank.bank.database import Database
    from memory_bank.config import MemoryBankSettings


def observe(
    db: str | None = DB,
    session: str | None = ONE_SESSION,
    once: bool = typer.Option(False, "--once", help="Exit when no record waits; default: work until stopped."),
    observer_model: str | None = typer.Option(
        None, help="Model at OPENAI_BASE_URL, with OPENAI_API_KEY, or extractive; default: only missing ones."),
    embedding_model: str | None = EMBEDDER,
    config: Path | None = CONFIG,
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Make the insights that are missing, wait for a model or are to be made again; several may work at once.

    Ctrl-C and SIGTERM finish the current calls first. Without a named model, missing insights are made by
    extraction, the others wait, and the command exits.
    """
    from memory_bank.bank.embedder import bank_embedder, check_embedder
    from memory_bank.bank.worker import Worker, observe_again
    from memory_bank.config import EXTRACTIVE
    from memory_bank.models.chat import OpenAIChat
    from memory_bank.models.observer import Observer

    settings = _settings(config, observer_model)
    database = open_bank(db, config, session)
    if embedding_model is None and config is not None and bank_embedder(database) is None:
        embedding_model = settings.embedding_model
    embedder = bank_embedder_of(database, embedding_model)
    if observer_model is None and settings.observer_model == EXTRACTIVE:
        count = Worker(database, Observer(), embedder, session).draft(every=True)
        _report(database, session, as_json, {"queued": 0, "made": count, "observer": EXTRACTIVE})
        return
    observer = Observer.create(None if settings.observer_model == EXTRACTIVE else OpenAIChat(), settings)
    check_embedder(database, embedder.name, None)
    worker = Worker(database, observer, embedder, session, attempts=settings.observer_attempts)
    done = worker.progress
    stop = threading.Event()
    queued = to_redo = 0
    stopped_by: list[int] = []
    try:
        with _stopping(stop) as stopped_by, progress("made", "insights") as bar:
            queued = observe_again(database, session) + worker.draft(every=True)

            def show() -> None:
                count = done.observed + done.extracted
                bar(count, count + worker.open_count())

            worker.run(stop, once=once, on_step=show)
    finally:
        count = done.observed + done.extracted
        counts = {"observed": done.observed, "extracted": done.extracted, "retried": done.retried}
        result = {"queued": queued, "made": count, **counts, "observer": observer.name}
        to_redo = _report(database, session, as_json, result)
    if stopped_by:
        raise typer.Exit(130 if stopped_by[0] == signal.SIGINT else 0)
    if to_redo:
        raise typer.Exit(1)


def _settings(config: Path | None, model: str | None) -> MemoryBankSettings:
    """The settings of the file's default strategy; without a file, the defaults. ``model``: used for summaries."""
    from memory_bank.config import EXTRACTIVE, MemoryBankSettings, load_config

    if model is not None and not model.strip():
        raise ConfigError("--observer-model is empty: name a model, or extractive.")
    settings = MemoryBankSettings(observer_model=EXTRACTIVE)
    if config is not None:
        loaded = load_config(config)
        named = loaded.strategy(loaded.default_strategy)
        if not isinstance(named, MemoryBankSettings):
            raise ConfigError(
                f"the strategy {loaded.default_strategy!r} has no Observer: make one of type memory_bank the default."
            )
        settings = named
    return settings if model is None else settings.model_copy(update={"observer_model": model})


@contextmanager
def _stopping(stop: threading.Event) -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM set ``stop``; a second one stops at once. Yields the received signals."""
    received: list[int] = []

    def on_signal(number: int, _frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        stop.set()
        tell("finishing the current calls; press Ctrl-C again to stop at once.")

    before = {s: signal.signal(s, on_signal) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _report(database: Database, session: str | None, as_json: bool, done: dict[str, Any]) -> int:
    """Print what was made and what is left; returns how many insights are to be made again."""
    from memory_bank.bank.listing import list_sessions

    listed = [s for s in list_sessions(database) if session in (None, s.session_id)]
    to_redo, pending = sum(s.to_redo for s in listed), sum(s.waiting for s in listed)
    text = (
        f"made {done['made']:,} insights ({done['observer']}); {pending:,} records wait for a model, "
        f"{to_redo:,} insights are still to be made again."
    )
    if (to_redo or pending) and "observed" not in done:
        text += "\nname the model that is to make them with --observer-model."
    answer({**done, "still_marked": to_redo, "pending": pending}, text, as_json)
    return to_redo
