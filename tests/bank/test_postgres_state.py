"""A state in PostgreSQL, and processes without a state of their own that go on with it in turns."""

import json
import subprocess
import sys

import pytest
from tests.bank.conftest import local
from tests.chats import call, result, rounds, system, user
from tests.examples import first_short

from memory_bank import MemoryBankState, apply_memory_bank_strategy
from memory_bank.errors import StorageError

EVIDENCE = {"selection": "evidence", "history_budget": 300, "refresh_after": 0}
SETTINGS = {"top_k": local(selection="top_k"), "evidence": local(**EVIDENCE)}
MESSAGES = [
    system(),
    user("Which orders of CUS-7 are late?"),
    *rounds(12, size=400),
    call(("late", "get_order", {"number": 1003})),
    result("late", json.dumps({"order_id": "ORD-1003", "late": True})),
    *rounds(4, size=400, start=50),
]
STEP = """
import json, sys
from memory_bank import MemoryBankSettings, MemoryBankState, apply_memory_bank_strategy
url, settings, messages = json.load(sys.stdin)
with MemoryBankState.open(url, "s") as state:
    context, tokens = apply_memory_bank_strategy(messages, None, MemoryBankSettings(**settings), state)
    insights = 0 if state.insight_store is None else state.insight_store.size()  # None: nothing to embed yet
    json.dump([context, tokens, state.step_count, state.fact_store.size(), insights], sys.stdout)
"""


def in_another_process(url, settings, messages):
    given = json.dumps([url, settings.model_dump(mode="json"), messages])
    done = subprocess.run(
        [sys.executable, "-c", STEP], input=given, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("selection", first_short(SETTINGS))
def test_processes_take_turns_with_one_session(postgres_url, selection):
    """Each step in another process gives what one process with everything in memory gives."""
    settings = SETTINGS[selection]
    alone = MemoryBankState(session_id="s")
    with MemoryBankState.open(postgres_url, "s") as here:
        for n in (10, len(MESSAGES)):
            expected, tokens = apply_memory_bank_strategy(MESSAGES[:n], None, settings, alone)
            there = in_another_process(postgres_url, settings, MESSAGES[:n])
            assert there[:2] == [expected, tokens]
            assert there[2:] == [alone.step_count, alone.fact_store.size(), alone.insight_store.size()]
            assert apply_memory_bank_strategy(MESSAGES[:n], None, settings, here) == (expected, tokens)
        assert list(here.fact_store.steps()) == list(alone.fact_store.steps())
        here.reset()
    assert in_another_process(postgres_url, settings, MESSAGES[:2])[2:] == [0, 0, 0]


@pytest.mark.parametrize("selection", SETTINGS)
def test_a_step_that_meets_no_server_is_made_again(postgres, postgres_url, selection):
    settings = SETTINGS[selection]
    with MemoryBankState.open(postgres_url, "s") as state:
        apply_memory_bank_strategy(MESSAGES[:8], None, settings, state)
        postgres.stop()
        try:
            with pytest.raises(StorageError, match="the server went away"):
                apply_memory_bank_strategy(MESSAGES, None, settings, state)
        finally:
            postgres.start()
        found = apply_memory_bank_strategy(MESSAGES, None, settings, state)
    alone = MemoryBankState(session_id="s")
    apply_memory_bank_strategy(MESSAGES[:8], None, settings, alone)
    assert found == apply_memory_bank_strategy(MESSAGES, None, settings, alone)


@pytest.mark.long
def test_agents_in_two_processes_share_a_session(postgres_url):
    """What the other has stored is found, and nothing is stored twice."""
    settings = SETTINGS["top_k"].model_copy(update={"retrieval_query": "task"})
    with MemoryBankState.open(postgres_url, "s") as here:
        apply_memory_bank_strategy(MESSAGES[:12], None, settings, here)
        in_another_process(postgres_url, settings, MESSAGES)
        context, _ = apply_memory_bank_strategy([user("late order 1003")], None, settings, here)
        assert "ORD-1003" in json.dumps(context)
        apply_memory_bank_strategy(MESSAGES, None, settings, here)
        assert here.fact_store.size() == here.insight_store.size() == 17
