"""Pinned, excluded and forgotten records, and tools that are always or never retained, under every strategy."""

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
from memory_bank.config import MemoryBankSettings, load_config
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


def marked(database, key, mark, number, **more):
    """The text of a context, and its plan, after the record of a call was marked."""
    settings = settings_of(key, **more)
    messages = conversation(30)
    with MemoryBankState.open(database, f"{key}-{mark}") as state:
        context(state, messages[:-2], settings)
        trace_id = list(state.steps)[number]
        store = FactStore(database, state.session_id)
        assert store.forget(trace_id) if mark == "forgotten" else store.mark(trace_id, mark)
        built = context(state, messages, settings)
    return json.dumps(built), built.plan, trace_id


@pytest.mark.parametrize("key", STORED)
def test_a_pinned_record_is_in_every_context(database, key):
    text, plan, trace_id = marked(database, key, "pinned", 3)
    assert "VALUE-0003" in text
    decision = next(d for d in plan.decisions if trace_id in d.trace_ids)
    assert decision.fate == "kept"
    assert plan.budget is None or plan.tokens <= plan.budget


@pytest.mark.parametrize("key", STORED)
@pytest.mark.parametrize("mark", ["excluded", "forgotten"])
def test_an_excluded_or_forgotten_record_is_in_none(database, key, mark):
    for number in (3, 26):
        text, plan, trace_id = marked(database, key, mark, number)
        assert f"VALUE-{number:04}" not in text
        assert next(d for d in plan.decisions if trace_id in d.trace_ids).fate == "left out"
        FactStore(database, f"{key}-{mark}").clear()


def test_a_history_that_fits_goes_without_an_excluded_record(database):
    messages, settings = conversation(4, size=100), settings_of("memory_bank")
    with MemoryBankState.open(database, "short") as state:
        assert context(state, messages, settings).plan.unchanged
        store = FactStore(database, "short")
        store.mark(list(state.steps)[1], "excluded")
        built = context(state, messages, settings)
        text = json.dumps(built)
        assert "VALUE-0001" not in text
        assert all(f"VALUE-000{i}" in text for i in (0, 2, 3))
        assert "VALUE-0001" in str(store.get(list(state.steps)[1]).raw_output)  # reachable by its id
        store.mark(list(state.steps)[1], None)
        assert context(state, messages, settings).plan.unchanged


@pytest.mark.parametrize(("retain", "there"), [("always", True), ("never", False)])
@pytest.mark.parametrize("selection", ["evidence", "top_k"])
def test_tools_are_retained_by_configuration(database, selection, retain, there):
    messages = conversation(30)
    calls = [c for m in messages for c in m.get("tool_calls") or ()]
    calls[5]["function"]["name"] = "special"
    config = {"special": {"retain": retain}}
    settings = MemoryBankSettings(
        selection=selection,
        observer_model="extractive",
        embedding_model="lexical",
        tools=config,
        history_budget=4000,
    )
    with MemoryBankState.open(database, "tools") as state:
        assert ("VALUE-0005" in json.dumps(context(state, messages, settings))) == there


def test_a_pinned_record_is_shown_when_its_messages_are_gone(database):
    messages, settings = conversation(20), settings_of("memory_bank")
    with MemoryBankState.open(database, "gone") as state:
        context(state, messages, settings)
        FactStore(database, "gone").mark(list(state.steps)[2], "pinned")
        rest = [messages[0], *messages[21:]]
        assert "VALUE-0002" in json.dumps(context(state, rest, settings))


def test_what_is_forgotten_is_deleted_and_not_stored_again(database):
    messages, settings = conversation(8), settings_of("memory_bank")
    with MemoryBankState.open(database, "s") as state:
        context(state, messages, settings)
        ids = list(state.steps)
        store = FactStore(database, "s")
        assert store.forget(ids[2])
        assert not store.mark(ids[2], "pinned")
    with MemoryBankState.open(database, "s") as state:  # a new process
        context(state, conversation(9), settings)
        assert list(state.steps)[:8] == ids
        assert "VALUE-0002" not in str(store.get(ids[2]))
        assert state.insight_store.search("VALUE-0002 secret") != [ids[2]]
    assert list(verify(database)) == []


def test_marks_are_exported_and_imported(database, tmp_path):
    with MemoryBankState.open(database, "s") as state:
        context(state, conversation(4), settings_of("memory_bank"))
        ids = list(state.steps)
    store = FactStore(database, "s")
    store.mark(ids[0], "pinned")
    store.mark(ids[1], "excluded")
    store.forget(ids[2])
    lines = [json.dumps(line) for line in export_lines(database, "s")]
    other = Database(tmp_path / "other.db")
    for _ in range(2):
        assert [type(i).__name__ for i in import_lines(other, enumerate(lines, 1))] == ["ImportedSession"]
    assert FactStore(other, "s").marks() == store.marks()
    assert store.marks() == {ids[0]: "pinned", ids[1]: "excluded", ids[2]: "forgotten"}
    assert not any("VALUE-0002" in line for line in lines)
    other.close()
