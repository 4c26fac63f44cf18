"""One observer for all sessions of a service: it waits for nobody, and nobody waits for it."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.chats import rounds, system, user
from tests.service.processes import until

from memory_bank.bank.database import Database
from memory_bank.bank.listing import namespace_totals, without_insight
from memory_bank.bank.stores import FactStore, InsightStore
from memory_bank.bank.worker import waiting_since
from memory_bank.errors import ConfigError
from memory_bank.models.chat import OpenAIChat
from memory_bank.models.lexical import LexicalEmbedder
from memory_bank.records import InteractionRecord
from memory_bank.service.app import create_app
from memory_bank.service.operations.background import ServiceObserver, chat_of, observed_by
from memory_bank.service.security.access import stored_id
from memory_bank.service.security.redaction import Redaction
from memory_bank.service.sessions import Sessions
from memory_bank.testing import Reply, ScriptedServer, say
from memory_bank.transcript import read

LOCAL = {"type": "memory_bank", "embedding_model": "lexical", "token_encoding": "approximate"}
BACKGROUND = LOCAL | {"observer_model": "m", "observer_mode": "background"}


def chat(n: int = 6) -> list[dict[str, Any]]:
    return [system(), user(), *rounds(n, size=400)]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")


@pytest.fixture
def database(bank_url: str) -> Iterator[Database]:
    database = Database(bank_url)
    yield database
    database.close()


@pytest.fixture
def model() -> Iterator[ScriptedServer]:
    with ScriptedServer(lambda body: say("By the model.")) as server:
        yield server


def config_for(configured: Any, model: ScriptedServer, **more: Any) -> Any:
    return configured({"mine": {**BACKGROUND, **more}}, strategy="mine", upstream=model.base_url)


def observing_for(database: Database, config: Any) -> ServiceObserver:
    return ServiceObserver(database, config, chat_of(config, config.service.upstream))


def test_records_of_sessions_that_nobody_touches_any_more(
    configured: Any, database: Database, model: ScriptedServer
) -> None:
    config = config_for(configured, model)
    before = Sessions(database, config, OpenAIChat(base_url=model.base_url), queued=lambda: None)
    for name in "abc":
        before.rebuild("ns", name, chat())
    before.close()
    assert waiting_since(database)[0] == 18
    assert model.requests == []
    observing = observing_for(database, config)
    observing.start()
    until(lambda: waiting_since(database) == (0, 0.0))
    observing.close(5)
    assert not observing.works
    assert len(model.requests) == 18
    store = InsightStore(LexicalEmbedder(), database, stored_id("ns", "a"))
    assert {i.source for i in store.get_insights(store.trace_ids()).values()} == {"llm:m"}


def test_one_thread_for_all_sessions_of_a_service(
    configured: Any, bank_url: str, model: ScriptedServer
) -> None:
    config = configured({"mine": BACKGROUND}, strategy="mine", upstream=model.base_url, database=bank_url)
    with TestClient(create_app(config)) as client:
        service = client.app.state.service
        for n in range(8):
            service.sessions.rebuild(None, f"s{n}", chat(3))
        names = [t.name for t in threading.enumerate()]
        assert names.count("memory-bank-observer") == 1
        told = client.get("/health").json()["parts"]["observer"]
        assert (told["ok"], told["name"]) == (True, "llm:m")
        until(lambda: not waiting_since(service.database)[0])
    assert "memory-bank-observer" not in [t.name for t in threading.enumerate()]
    assert len(model.requests) == 24


def test_by_extraction_nothing_runs(configured: Any, database: Database) -> None:
    config = configured()
    observing = observing_for(database, config)
    observing.start()
    assert (observing.name, observing.settings) == ("extractive", None)
    observing.wake()
    observing.close(60)
    assert not observing.works


def test_what_a_dead_process_left_without_a_summary_is_found_by_the_next_start_also_without_a_model(
    configured: Any, database: Database
) -> None:
    store, record = FactStore(database, "left"), InteractionRecord.create(1, "get_order", {}, "ORD-7 is late")
    store.store(record)  # by a process that died before the insight, and a session that never goes on
    observing = observing_for(database, configured())
    observing.start()
    until(lambda: not without_insight(database, "left"))
    found = InsightStore(LexicalEmbedder(), database, "left").get_insight(record.trace_id)
    assert found is not None and found.source == "extractive" and "ORD-7" in found.summary
    observing.close(0)


def test_a_service_that_ends_waits_for_the_summaries_of_its_start(configured: Any, tmp_path: Path) -> None:
    """A thread that outlived its service would open the bank again, which may be gone by then."""
    path = tmp_path / "bank.db"
    with closing(Database(f"sqlite:///{path}")) as database:
        FactStore(database, "left").store(InteractionRecord.create(1, "get_order", {}, "ORD-7 is late"))
        observing = observing_for(database, configured())
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")  # the summaries wait for another writer
        observing.start()
        threading.Timer(0.3, other.rollback).start()
        observing.close(60)
        assert not without_insight(database, "left")
        assert "memory-bank-drafts" not in [t.name for t in threading.enumerate()]
        other.close()


def test_limits_hold_over_several_workers(configured: Any, bank_url: str, model: ScriptedServer) -> None:
    config = config_for(configured, model, observer_calls_per_day=5, observer_concurrency=4)
    databases = [Database(bank_url) for _ in range(3)]
    sessions = Sessions(databases[0], config, OpenAIChat(base_url=model.base_url), queued=lambda: None)
    for name in "abcd":
        sessions.rebuild(None, name, chat(4))
    workers = [observing_for(d, config) for d in databases]
    for worker in workers:
        worker.start()
    until(lambda: not waiting_since(databases[0])[0])
    for worker in workers:
        worker.close(5)
    assert len(model.requests) == 5
    assert namespace_totals(databases[0], None).calls == 5
    for database in databases:
        database.close()


def test_a_model_that_hangs_keeps_up_no_request_and_its_records_are_free_soon(
    configured: Any, database: Database
) -> None:
    with ScriptedServer(lambda body: Reply("late", delay=600)) as model:
        config = config_for(configured, model)
        observing = observing_for(database, config)
        sessions = Sessions(database, config, OpenAIChat(base_url=model.base_url), queued=observing.wake)
        observing.start()
        sessions.rebuild(None, "a", chat(2))
        until(lambda: model.requests)
        began = time.monotonic()
        for n in range(3, 8):
            assert sessions.rebuild(None, "a", chat(n)).records == n
        assert time.monotonic() - began < 120
        observing.close(0.2)
        assert time.monotonic() - began < 240
        listed = FactStore(database, stored_id(None, "a")).page()
        assert [o.attempts for o in listed] == [0] * 7  # what was let go does not count
        sessions.close()
    observing.close(60)  # what hung has failed, and logs nothing into the next test


def test_calls_at_hand_are_finished_where_there_is_time(configured: Any, database: Database) -> None:
    with ScriptedServer(lambda body: Reply("in time", delay=0.7)) as model:
        config = config_for(configured, model)
        observing = observing_for(database, config)
        sessions = Sessions(database, config, OpenAIChat(base_url=model.base_url), queued=observing.wake)
        sessions.rebuild(None, "a", chat(12))
        observing.start()
        until(lambda: model.requests)
        observing.close(20)
        assert waiting_since(database)[0] == 12 - len(model.requests) == 4
        sessions.close()


def test_without_a_key_the_strategy_that_needs_one_is_refused(
    configured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    assert chat_of(configured(), "http://127.0.0.1:9/v1") is None
    assert chat_of(configured({"mine": BACKGROUND}), "http://127.0.0.1:9/v1") is None  # others may need one
    needing = [
        BACKGROUND,
        {**BACKGROUND, "observer_mode": "inline"},
        {"type": "progressive_summarization", "summary_model": "m"},
    ]
    for strategy in needing:
        with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
            chat_of(configured({"mine": strategy}, strategy="mine"), "http://127.0.0.1:9/v1")
    for strategy in ({**BACKGROUND, "observer_mode": "off"}, {"type": "progressive_summarization"}):
        assert chat_of(configured({"mine": strategy}, strategy="mine"), "http://127.0.0.1:9/v1") is None


def test_by_whose_settings_records_are_observed(configured: Any) -> None:
    inline = {**BACKGROUND, "observer_mode": "inline", "observer_model": "x"}
    assert observed_by(configured()) is None  # the shipped classic one asks its model within the step
    assert observed_by(configured({"mine": BACKGROUND})).observer_model == "m"  # a request may name it
    both = configured({"mine": BACKGROUND, "other": inline}, strategy="other")
    assert observed_by(both).observer_model == "x"
    off = {**BACKGROUND, "observer_mode": "off"}
    assert observed_by(configured({"mine": off}, strategy="mine")) is None


def test_an_embedder_that_cannot_be_loaded_is_tried_again(
    configured: Any, database: Database, model: ScriptedServer, caplog: Any
) -> None:
    config = config_for(configured, model, embedding_model="./no such folder")
    observing = observing_for(database, config)
    with caplog.at_level(logging.WARNING, "memory_bank"):
        observing.start()
        until(lambda: "the Observer cannot start yet" in caplog.text)
    assert observing.works
    observing.close(30)
    assert not observing.works


def test_a_service_notes_at_a_fold_and_keeps_secrets_from_the_model(
    configured: Any, database: Database, model: ScriptedServer
) -> None:
    note = {"selection": "evidence", "fold_note": "observer", "observer_mode": "off", "history_budget": 800}
    config = config_for(configured, model, refresh_after=800, **note)
    chat_model = chat_of(config, config.service.upstream)  # asks for a key, as for summaries
    sessions = Sessions(database, config, chat_model, redact=Redaction().message, queued=lambda: None)
    secret = f"sk-ant-api03-{'Ab1' * 30}"
    history = [system(), user(), *rounds(60, size=400)]
    history[3]["content"] += f" the key is {secret}"
    for end in range(4, len(history) + 1, 2):
        shown = sessions.rebuild("ns", "a", history[:end])
        until(lambda: not [t for t in threading.enumerate() if t.name == "memory-bank-note"])
    assert 2 <= len(model.requests) == namespace_totals(database, "ns").calls
    assert secret not in str([r.body for r in model.requests])
    assert shown.status == "rebuilt"
    for context in (shown.context, sessions.preview("ns", "a", history)):
        texts = [str(read(m, "content")) for m in context]
        assert any("The agent's notes (made before the latest calls):\nBy the model." in t for t in texts)
    sessions.reset("ns", "a")
    assert database.get_session(stored_id("ns", "a"), "note") == ""
    sessions.close()
