"""A full disk and a lost server: with ``on_storage_error="pass_through"`` the agent goes on, and nothing is lost."""

import json
import subprocess
import sys

import pytest
from tests.bank.conftest import local
from tests.chats import rounds, system, user
from tests.examples import first_short

from memory_bank import MemoryBankState, apply_memory_bank_strategy
from memory_bank.bank.database import Database
from memory_bank.bank.maintenance import verify
from memory_bank.errors import StorageError
from memory_bank.plan import NO_PLAN
from memory_bank.tools import handle_tool_call


def settings(**more):
    return local(**{"on_storage_error": "pass_through", **more})


EVIDENCE = {"selection": "evidence", "history_budget": 300, "refresh_after": 0}
MESSAGES = [system(), user("Which orders are late?"), *rounds(8, size=400)]


@pytest.fixture
def away(postgres, postgres_url):
    """The URL of a bank and what takes its server away; it is back in the end."""
    yield postgres_url, postgres.stop
    postgres.start()


@pytest.mark.parametrize(
    "more", first_short([{}, EVIDENCE, {"observer_mode": "background"}, {"observer_mode": "off"}])
)
def test_a_lost_server(postgres, away, more, caplog):
    url, stop = away
    chosen = settings(**more)
    with MemoryBankState.open(url, "s") as state, MemoryBankState(session_id="s") as alone:
        apply_memory_bank_strategy(MESSAGES[:6], None, chosen, state)
        assert state.last_plan is not NO_PLAN
        stop()
        for n in (8, 10, 12):
            context, tokens = apply_memory_bank_strategy(MESSAGES[:n], None, chosen, state)
            assert context == MESSAGES[:n]
            assert context is not MESSAGES
            assert tokens == sum(map(state.counter.count_message, context))
            assert state.last_plan is NO_PLAN
        assert state.storage_errors == 3
        assert "go through unchanged" in caplog.text
        assert "could not be read" in handle_tool_call(state, "get_record", {"trace_id": "#1"})
        with pytest.raises(StorageError):
            apply_memory_bank_strategy(MESSAGES, None, settings(on_storage_error="raise", **more), state)
        postgres.start()
        context, _ = apply_memory_bank_strategy(MESSAGES, None, chosen, state)
        for n in (6, 8, 10, 12, len(MESSAGES)):
            apply_memory_bank_strategy(MESSAGES[:n], None, chosen, alone)
        assert list(state.fact_store.steps()) == list(alone.fact_store.steps())
        assert set(state.insight_store.trace_ids()) == set(alone.insight_store.trace_ids())
        assert state.fact_store.size() == 8
        assert state.storage_errors == 3
        assert state.last_plan is not NO_PLAN
        assert list(verify(state.database)) == []


def test_a_state_whose_first_step_finds_no_server(postgres, away):
    url, stop = away
    state = MemoryBankState.open(url, "lazy")  # its embedder is bound by its first step
    stop()
    context, tokens = apply_memory_bank_strategy(MESSAGES, None, settings(), state)
    assert context == MESSAGES
    assert tokens == sum(map(state.counter.count_message, MESSAGES))
    assert state.last_plan is NO_PLAN
    with pytest.raises(TypeError):
        apply_memory_bank_strategy("no messages", None, settings(), state)
    postgres.start()
    context, fewer = apply_memory_bank_strategy(MESSAGES, None, settings(top_k=1), state)
    assert fewer < tokens
    assert state.fact_store.size() == 8
    state.close()


def test_leaving_a_state_whose_server_is_away(postgres, away):
    url, stop = away
    with MemoryBankState.open(url, "s") as state:
        apply_memory_bank_strategy(MESSAGES, None, settings(), state)
        stop()
    postgres.start()
    state = MemoryBankState.open(url, "s")
    with pytest.raises(StorageError), state:  # noqa: PT012
        apply_memory_bank_strategy(MESSAGES, None, settings(on_storage_error="raise"), state)
        stop()


FULL = """
import json, resource, sys
from memory_bank import MemoryBankSettings, MemoryBankState, apply_memory_bank_strategy
url, values, messages, room = json.load(sys.stdin)
settings = MemoryBankSettings(**values)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
told = []
with MemoryBankState.open(url, "s") as state:
    for n in range(3, len(messages) + 1, 2):
        if n == 7:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
        if n == len(messages):
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        context, tokens = apply_memory_bank_strategy(messages[:n], None, settings, state)
        told.append((context == messages[:n], not state.last_plan.strategy, state.storage_errors))
    print(json.dumps([told, state.fact_store.size(), state.insight_store.size()]))
"""


@pytest.mark.parametrize("more", first_short([EVIDENCE, {}]))
def test_a_full_disk(tmp_path, more):
    messages = [user(), *rounds(10, size=30_000)]
    values = settings(**more).model_dump(mode="json", exclude_unset=True)
    given = json.dumps([str(tmp_path / "bank.db"), values, messages, 150_000])
    done = subprocess.run(
        [sys.executable, "-c", FULL], input=given, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    told, records, insights = json.loads(done.stdout)
    assert (records, insights) == (10, 10)
    failed = [missing for _, missing, _ in told]
    assert any(failed)
    assert not failed[-1]
    assert all(same for same, missing, _ in told if missing)
    assert told[-1][2] == sum(failed)
    assert list(verify(Database(tmp_path / "bank.db"))) == []


def test_a_full_disk_is_an_error_otherwise(tmp_path):
    script = """
import resource, sys
from memory_bank.errors import StorageError
from memory_bank.bank.database import Database
from memory_bank.bank.stores import FactStore
from tests.contracts.stores import a_record
store = FactStore(Database(sys.argv[1]))
store.store(a_record(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))
try:
    store.store(a_record(2, output_text="secret" * 50_000))
except StorageError as e:
    print(e)
print(store.size(), store.get("trace-00001") == a_record(1))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "bank.db")], capture_output=True, text=True, timeout=60
    )
    sentence, after = done.stdout.splitlines()
    assert "nothing was changed" in sentence
    assert "secret" not in sentence
    assert after == "1 True"
