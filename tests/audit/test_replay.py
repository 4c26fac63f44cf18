"""Replay: a step before every assistant turn, and memory that is a trace's own."""

import gc
import tracemalloc

import pytest
from tests.chats import rounds, say, system, user

from memory_bank.audit.replay import TraceMemory, replay_trace
from memory_bank.audit.traces import Trace
from memory_bank.bank.database import Database
from memory_bank.bank.listing import list_sessions
from memory_bank.config import Config, MemoryBankSettings, NoStrategySettings

LOCAL = MemoryBankSettings(
    embedding_model="lexical", observer_model="extractive", token_encoding="approximate"
)


@pytest.fixture
def config():
    return Config(memory_strategies={"memory_bank": LOCAL, "none": NoStrategySettings()})


def trace(n: int = 3, name: str = "t", start: int = 0) -> Trace:
    return Trace(name, [system(), user(name), *rounds(n, start=start), say("done")])


def test_a_step_before_every_assistant_turn(config):
    steps = list(replay_trace(trace(3), config, "memory_bank"))
    assert [s.step for s in steps] == [1, 2, 3, 4]
    assert steps[0].messages == trace().messages[:2]
    assert all(s.trace_id == "t" and s.broken_pairs == 0 and s.counter == "approximate" for s in steps)
    assert steps[3].messages[-2:] == trace().messages[-3:-1]
    plain = list(replay_trace(trace(3), config, "none"))
    assert [s.full_tokens for s in plain] == [s.tokens for s in plain]
    if plain[0].counter == "approximate":  # without a cached vocabulary both count alike
        assert [s.full_tokens for s in plain] == [s.full_tokens for s in steps]
    assert plain[0].plan is None
    assert plain[0].counter


def test_without_a_database_nothing_outlives_a_trace(config):
    memory = TraceMemory()
    for n in range(3):
        steps = replay_trace(trace(3, "same", start=10 * n), config, "memory_bank", memory=memory)
        assert [len(s.plan.decisions) for s in steps] == [0, 0, 1, 2]
    abandoned = replay_trace(trace(3, "same"), config, "memory_bank", memory=memory)
    for _ in range(3):
        next(abandoned)
    abandoned.close()
    steps = replay_trace(trace(3, "same", start=50), config, "memory_bank", memory=memory)
    assert [len(s.plan.decisions) for s in steps] == [0, 0, 1, 2]


def test_in_a_database_a_trace_is_its_session(config, tmp_path):
    database = Database(tmp_path / "bank.db")
    memory = TraceMemory(tmp_path / "bank.db")
    for each in (trace(3, "a"), trace(3, "a", start=50), trace(3, "b"), trace(3, "a")):
        list(replay_trace(each, config, "memory_bank", memory=memory))
    assert {s.session_id: s.records for s in list_sessions(database)} == {"a": 3, "a#2": 3, "b": 3}
    assert memory.continued == 1
    again = TraceMemory(tmp_path / "bank.db")
    for each in (trace(3, "a"), trace(3, "a", start=50), trace(3, "b")):
        list(replay_trace(each, config, "memory_bank", memory=again))
    assert sum(s.records for s in list_sessions(database)) == 9
    assert again.continued == 3
    database.close()


@pytest.mark.long
def test_memory_does_not_grow_with_the_traces(config):
    memory = TraceMemory()

    def play(n: int) -> None:
        for i in range(n):
            list(replay_trace(trace(1, f"t{i} " + "x" * 2000), config, "memory_bank", memory=memory))

    play(30)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    play(30)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 300_000
