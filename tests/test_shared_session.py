"""Two processes that feed one conversation at the same moment: everything once, in one order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from memory_bank import MemoryBankSettings, MemoryBankState, apply_memory_bank_strategy
from tests.chats import rounds, system, user

SETTINGS = {
    "selection": "evidence",
    "history_budget": 300,
    "embedding_model": "lexical",
    "observer_model": "extractive",
    "token_encoding": "approximate",
}
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


def test_two_processes_feed_the_same_conversation_at_once(bank_url, tmp_path: Path) -> None:
    gate = tmp_path / "go"
    feeders = [
        subprocess.Popen(
            [sys.executable, "-c", FEED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for feeder in feeders:
        assert feeder.stdin is not None
        assert feeder.stdout is not None
        feeder.stdin.write(json.dumps([bank_url, str(gate), SETTINGS, MESSAGES]) + "\n")
        feeder.stdin.flush()
        assert feeder.stdout.readline() == "ready\n"
    gate.touch()
    assert [feeder.wait(120) for feeder in feeders] == [0, 0]
    alone = MemoryBankState(session_id="s")
    apply_memory_bank_strategy(MESSAGES, None, MemoryBankSettings(**SETTINGS), alone)
    with MemoryBankState.open(bank_url, "s", "lexical") as state:
        assert list(state.fact_store.steps()) == list(alone.fact_store.steps())
        assert state.insight_store.size() == state.fact_store.size() == 20
