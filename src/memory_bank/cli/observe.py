"""The verb ``observe``: a worker process that makes the summaries that are queued or missing."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from memory_bank.cli.bank import DB, JSON, bank_embedder_of, open_bank, the_session
from memory_bank.cli.lab import CONFIG
from memory_bank.cli.output import counter_line, is_terminal, print_json, tell
from memory_bank.errors import ConfigError

if TYPE_CHECKING:
    from memory_bank.bank.database import Database
    from memory_bank.bank.worker import Worker
    from memory_bank.config import MemoryBankSettings
    from memory_bank.ports import Embedder

_AT_ONCE = 256


def observe(
    db: str | None = DB,
    session: str | None = typer.Option(None, "--session", help="Only this session; default: all."),
    once: bool = typer.Option(False, "--once", help="Exit when no job is left; default: work until stopped."),
    observer_model: str | None = typer.Option(
        None, help="Model at OPENAI_BASE_URL, with OPENAI_API_KEY, or extractive; default: only missing ones."
    ),
    embedding_model: str | None = typer.Option(None, help="Default: the embedder the bank was built with."),
    strategy: str | None = typer.Option(
        None, help="Key in the configuration whose model, limits, prices, prompt and timeouts apply."
    ),
    config: Path | None = CONFIG,
    as_json: bool = JSON,
) -> None:
    """Make the insights that are queued, missing or marked to be made again; several may work at once.

    Ctrl-C and SIGTERM finish the current jobs first. Without a named model, missing insights are made by
    extraction, the others wait, and the command exits.
    """
    from memory_bank.bank.embedder import bank_embedder, check_embedder
    from memory_bank.bank.jobs import queue_unmade
    from memory_bank.bank.worker import Worker
    from memory_bank.models.chat import OpenAIChat
    from memory_bank.models.observer import EXTRACTIVE, Observer

    settings = _settings(strategy, config, observer_model)
    database = open_bank(db, config)
    if session is not None:
        the_session(database, session)
    if embedding_model is None and strategy is not None and bank_embedder(database) is None:
        embedding_model = settings.embedding_model
    if observer_model is None and settings.observer_model == EXTRACTIVE:
        model = bank_embedder_of(database, embedding_model)
        made = _extract_missing(database, model, session)
        _report(database, session, as_json, {"queued": 0, "made": made, "observer": EXTRACTIVE})
        return
    chat = None if settings.observer_model == EXTRACTIVE else OpenAIChat()
    observer = Observer.create(chat, settings)
    model = bank_embedder_of(database, embedding_model)
    check_embedder(database, model.name, None)
    worker = Worker(database, observer, model, session, attempts=settings.observer_attempts)
    stop = threading.Event()
    queued = 0
    stopped_by: list[int] = []
    try:
        with _stopping(stop) as stopped_by:
            queued = queue_unmade(database, session)
            worker.run(stop, once=once, on_step=_progress(worker))
    finally:
        if is_terminal():
            print(file=sys.stderr)
        done = worker.progress
        _report(
            database, session, as_json,
            {
                "queued": queued, "made": done.observed + done.extracted, "observed": done.observed,
                "extracted": done.extracted, "retried": done.retried, "observer": observer.name,
            },
        )  # fmt: skip
    if stopped_by:
        raise typer.Exit(130 if stopped_by[0] == signal.SIGINT else 0)
    if _marked(database, session):
        raise typer.Exit(1)


def _settings(strategy: str | None, config: Path | None, model: str | None) -> MemoryBankSettings:
    """The settings of the named strategy, or the defaults without a model; ``model`` replaces theirs."""
    from memory_bank.config import MemoryBankSettings, load_config
    from memory_bank.models.observer import EXTRACTIVE

    if model is not None and not model.strip():
        raise ConfigError("--observer-model is empty: name a model, or extractive.")
    settings = MemoryBankSettings(observer_model=EXTRACTIVE)
    if strategy is not None or config is not None:
        known = load_config(config)
        key = strategy or known.default_strategy
        named = known.strategy(key)
        if not isinstance(named, MemoryBankSettings):
            raise ConfigError(f"the strategy {key!r} has no Observer: name one of type memory_bank.")
        settings = named
    return settings if model is None else settings.model_copy(update={"observer_model": model})


@contextmanager
def _stopping(stop: threading.Event) -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM set ``stop``; a second one stops at once. Yields the received signals."""
    came: list[int] = []

    def on_signal(number: int, _frame: object) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)
        stop.set()
        tell("finishing the current jobs; press Ctrl-C again to stop at once.")

    before = {s: signal.signal(s, on_signal) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _progress(worker: Worker) -> Callable[[], None] | None:
    if not is_terminal():
        return None

    def show() -> None:
        done, left = worker.progress, worker.queue.open_count()
        made = done.observed + done.extracted
        counter_line(f"made {made:,}, to be tried again {done.retried:,}, left {left:,}")

    return show


def _extract_missing(database: Database, model: Embedder, session: str | None) -> int:
    """Make the missing insights by extraction; returns how many."""
    from memory_bank.bank.listing import list_sessions
    from memory_bank.bank.stores import FactStore, InsightStore
    from memory_bank.models.observer import Observer
    from memory_bank.transcript.messages import is_memory_tool

    made = 0
    observer = Observer()
    for session_id in [session] if session else [s.session_id for s in list_sessions(database)]:
        facts, insights = FactStore(database, session_id), InsightStore(model, database, session_id)
        known = set(insights.trace_ids())
        wanted = [t for t in facts.steps() if t not in known]
        for start in range(0, len(wanted), _AT_ONCE):
            found = facts.get_many(wanted[start : start + _AT_ONCE])
            news = [r for r in found if not is_memory_tool(r.tool_name, r.output_text)]
            insights.add_many(observer.observe_all(news, ""))
            made += len(news)
    return made


def _marked(database: Database, session: str | None) -> int:
    """How many insights are marked to be made again."""
    from memory_bank.bank.listing import list_sessions

    return sum(s.to_redo for s in list_sessions(database) if session in (None, s.session_id))


def _report(database: Database, session: str | None, as_json: bool, done: dict[str, int | str]) -> None:
    from memory_bank.bank.jobs import JobQueue

    marked, pending = _marked(database, session), JobQueue(database, session).open_count()
    if as_json:
        print_json({**done, "still_marked": marked, "pending": pending})
        return
    print(
        f"made {done['made']:,} insights ({done['observer']}); {pending:,} jobs are left, "
        f"{marked:,} insights are still to be made again."
    )
    if (marked or pending) and "observed" not in done:
        print("name the model that is to make them with --observer-model.")
