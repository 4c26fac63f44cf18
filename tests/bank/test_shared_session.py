"""Two processes that feed one conversation at the same moment: everything once, in one order."""

import json
import subprocess
import sys

from tests.bank.conftest import local
from tests.chats import parted, rounds, system, user

from memory_bank import (
    InteractionRecord,
    MemoryBankState,
    apply_memory_bank_strategy,
    handle_tool_call,
)

SETTINGS = local(selection="evidence", history_budget=300, refresh_after=0)
MESSAGES = [system(), user("Which orders of CUS-7 are late?"), *rounds(20, size=300)]
FEED = """
import json, sys, time
from pathlib import Path
from memory_bank import MemoryBankSettings, MemoryBankState, apply_memory_bank_strategy
url, gate, settings, messages = json.loads(sys.stdin.readline())
with MemoryBankState.open(url, "s") as state:
    print("ready", flush=True)
    while not Path(gate).exists():
        time.sleep(0.001)
    for n in range(4, len(messages) + 1, 2):
        apply_memory_bank_strategy(messages[:n], None, MemoryBankSettings(**settings), state)
"""


def test_two_processes_feed_the_same_conversation_at_once(bank_url, tmp_path):
    gate = tmp_path / "go"
    feeders = [
        subprocess.Popen(
            [sys.executable, "-c", FEED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for feeder in feeders:
        feeder.stdin.write(
            json.dumps([bank_url, str(gate), SETTINGS.model_dump(mode="json"), MESSAGES]) + "\n"
        )
        feeder.stdin.flush()
        assert feeder.stdout.readline() == "ready\n"
    gate.touch()
    assert [feeder.wait(120) for feeder in feeders] == [0, 0]
    alone = MemoryBankState(session_id="s")
    apply_memory_bank_strategy(MESSAGES, None, SETTINGS, alone)
    with MemoryBankState.open(bank_url, "s", "lexical") as state:
        assert list(state.fact_store.steps()) == list(alone.fact_store.steps())
        assert state.insight_store.size() == state.fact_store.size() == 20


def test_a_warm_state_knows_what_another_has_stored_since(bank_url):
    settings = SETTINGS.model_copy(update={"history_budget": 600})
    with MemoryBankState.open(bank_url, "s") as one, MemoryBankState.open(bank_url, "s") as two:
        apply_memory_bank_strategy(MESSAGES[:12], None, settings, one)
        for n in range(4):  # what is in nobody's messages
            two.prepare(settings)
            text = f'{{"carrier": "Zephyr-{n}", "note": "{"y" * 300}"}}'
            record = InteractionRecord.create(
                two.step_count + 1, "track", {"n": n}, {"_raw": text}, output_text=text
            )
            two.fact_store.store(record)
        shown, _ = apply_memory_bank_strategy(MESSAGES, None, settings, one)
        memory = parted(shown)[2]["content"]
        assert "#9 track n=3" in memory
        assert all(f"#{6 + n} track n={n}" in memory for n in range(3))
        stored = list(one.fact_store.steps())
        assert list(one.steps) == stored
        assert (
            list(one.cache("evidence", dict).memory.numbers) == stored
        )  # so that "#12" is what the database calls #12
        assert one.step_count == max(one.fact_store.steps().values())


def test_records_of_others_in_between_are_numbered_as_they_were_stored(bank_url):
    settings = SETTINGS.model_copy(update={"refresh_after": 200})
    with MemoryBankState.open(bank_url, "s") as one, MemoryBankState.open(bank_url, "s") as two:
        for n in range(8, 44, 6):
            apply_memory_bank_strategy(MESSAGES[:n], None, settings, one)
            others = [system(), user(f"Another one's conversation {n}"), *rounds(2, size=300, start=100 + n)]
            apply_memory_bank_strategy(others, None, settings, two)
            assert list(two.numbers.items()) == [(t, i) for i, t in enumerate(two.fact_store.steps(), 1)]
        for state in (one, two):
            state.prepare(settings)
            apply_memory_bank_strategy(MESSAGES, None, settings, state)
            stored, evidence = list(state.fact_store.steps()), state.cache("evidence", dict).memory
            read = [] if evidence is None else list(evidence.numbers)
            assert read == stored[: len(read)]  # the next fold reads the others
            assert [*state.numbers] == stored
            for number, trace_id in enumerate(stored, 1):
                told = handle_tool_call(state, "get_record", {"trace_id": f"#{number}"})
                assert f"trace_id: {trace_id}" in told
