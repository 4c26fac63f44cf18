"""Forgotten records under every strategy, and the marks that went."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.chats import rounds

from memory_bank.bank.database import Database
from memory_bank.bank.maintenance import verify
from memory_bank.bank.session import MemoryBankState
from memory_bank.bank.stores import FactStore
from memory_bank.bank.transfer import export_lines, import_lines
from memory_bank.config import load_config
from memory_bank.context.build import build_context
from memory_bank.context.policies import policy_of

STORED = [
    "memory_bank", "memory_bank_local", "observation_masking", "progressive_summarization",
]  # fmt: skip


@pytest.fixture
def database(bank_url: str) -> Iterator[Database]:
    database = Database(bank_url)
    yield database
    database.close()


def settings_of(key, **more):
    settings = load_config().strategy(key)
    if hasattr(settings, "observer_mode"):
        more = {"observer_mode": "inline", "observer_model": "extractive", **more}
    return settings.model_copy(update=more)


def conversation(count, size=900):
    messages = rounds(count, size=size)
    for i, message in enumerate(m for m in messages if m["role"] == "tool"):
        message["content"] = f'{{"secret": "VALUE-{i:04}", "text": "{"word " * (size // 5)}"}}'
    return [{"role": "user", "content": "Look at everything."}, *messages]


def context(state, messages, settings):
    policy = policy_of(settings)
    return build_context(messages, state, policy)


def test_what_is_forgotten_is_deleted_and_not_stored_again(database):
    messages, settings = conversation(8), settings_of("memory_bank")
    with MemoryBankState.open(database, "s") as state:
        context(state, messages, settings)
        ids = list(state.steps)
        store = FactStore(database, "s")
        assert store.forget(ids[2])
    with MemoryBankState.open(database, "s") as state:  # a new process
        context(state, conversation(9), settings)
        assert list(state.steps)[:8] == ids
        assert "VALUE-0002" not in str(store.get(ids[2]))
        assert state.insight_store.search("VALUE-0002 secret") != [ids[2]]
    assert list(verify(database)) == []


@pytest.mark.parametrize("key", STORED)
def test_no_context_quotes_what_was_forgotten_and_its_messages_no_longer_say(database, key):
    settings, messages = settings_of(key), conversation(30)
    with MemoryBankState.open(database, key) as state:
        context(state, messages[:-2], settings)
        assert state.fact_store.forget(list(state.steps)[3])
        assert "VALUE-0003" not in json.dumps(context(state, [messages[0], *messages[11:]], settings))


def test_marks_are_exported_and_imported_and_those_of_older_exports_are_read(database, tmp_path):
    with MemoryBankState.open(database, "s") as state:
        context(state, conversation(4), settings_of("memory_bank"))
        ids = list(state.steps)
        assert state.fact_store.forget(ids[2])
    lines = list(export_lines(database, "s"))
    for line in lines:
        if "record" in line and line["record"]["trace_id"] in ids[:2]:
            line["record"]["mark"] = "pinned" if line["record"]["trace_id"] == ids[0] else "excluded"
    texts = [json.dumps(line) for line in lines]
    other = Database(tmp_path / "other.db")
    for _ in range(2):
        assert [type(i).__name__ for i in import_lines(other, enumerate(texts, 1))] == ["ImportedSession"]
    assert [r.mark for r in FactStore(other, "s").page()] == [None, None, "forgotten", None]
    assert not any("VALUE-0002" in text for text in texts)
    other.close()
