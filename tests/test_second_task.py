"""A list of another task never meets the records of the first; a real continuation goes on, also in another process."""

import json
import logging

import pytest

from memory_bank import (
    InteractionRecord,
    Memory,
    MemoryBankState,
    MemoryProcessor,
    apply_memory_bank_strategy,
    load_config,
)
from tests.chats import call, result, system, user


def task(city, steps=12, ids="c", since=0, first=None):
    """The list of a task: its words, and calls whose outputs name the city."""
    messages = [user(first or f"List the hotels of {city}")]
    for i in range(since, steps):
        rooms = [{"id": f"{city[:3]}-{i}-{k}", "price": k} for k in range(40)]
        messages += [
            call((f"{ids}{i}", "hotel", {"city": city, "n": i})),
            result(f"{ids}{i}", json.dumps({"hotel": f"{city}-{i}", "rooms": rooms})),
        ]
    return messages


def loop(memory, messages):
    """The contexts of an agent's loop: one before each call, the first without any."""
    return [memory.context(messages[:n]) for n in range(1, len(messages) + 1, 2)]


@pytest.fixture
def bank(tmp_path):
    return tmp_path / "bank.db"


@pytest.mark.parametrize("first", [None, "Do your daily task"])
@pytest.mark.parametrize("ids", ["c", "d"])
def test_two_runs_of_a_program_on_one_file(bank, first, ids, caplog):
    with Memory(bank) as memory:
        loop(memory, task("Rome", first=first))
        assert memory.state.session_id == "default"
    with Memory(bank) as memory, caplog.at_level(logging.INFO):
        contexts = loop(memory, task("Oslo", ids=ids, first=first))
        assert "Rome" not in json.dumps(contexts)
        assert memory.state.session_id.startswith("default~")
        assert memory.state.fact_store.size() == 12
        assert not [m for m in memory.search("hotel Rome", 12) if m.record.raw_input["city"] == "Rome"]
    assert sum("continue nothing" in r.message for r in caplog.records) == 1
    with Memory(bank) as memory:  # each goes on where it was
        memory.context(task("Rome", 13, first=first))
        assert memory.state.session_id == "default"
        assert memory.state.fact_store.size() == 13


def test_the_second_task_is_found_again(bank):
    names = []
    for city in ("Rome", "Oslo", "Bern", "Oslo", "Rome", "Bern"):
        with Memory(bank) as memory:
            memory.context(task(city, 3 + len(names)))
            names.append(memory.state.session_id)
    assert names[0] == names[4] == "default"
    assert names[1] == names[3] and names[2] == names[5]
    assert len(set(names)) == 3


@pytest.mark.parametrize("name", ["default", "named"])
def test_what_continues_a_session(bank, name):
    with Memory(bank, session_id=name) as memory:
        memory.context([system(), *task("Rome")])
    summary = user("This session is being continued from a previous conversation. Rome has 12 hotels.")
    short = task("Rome", 13)
    short[2] = result("c0", "[cleared]")
    for messages in (
        task("Rome", 13),  # more calls
        [system("Another prompt"), *task("Rome", 13)],
        task("Rome", 14, since=9),  # older ones dropped
        task("Rome", 14, since=10)[1:],  # with the first words
        task("Rome", 4),  # rewound
        [*task("Rome", 4), user("And those of Oslo"), *task("Oslo", 2)[1:]],  # a second question
        [summary, *task("Rome", 20, since=19)[1:]],  # compacted
        [
            task("Rome", 0)[0],
            {"role": "assistant", "content": "What I did: …"},
            *task("Rome", 20, since=19)[1:],
        ],
        short,
    ):
        with Memory(bank, session_id=name) as memory:
            memory.context(messages)
            assert memory.state.session_id == name, messages[-1]


def test_a_client_that_keeps_only_the_last_call(bank):
    with Memory(bank) as memory:
        for n in range(1, 8):
            memory.context(task("Rome", n, since=n - 1))
        assert memory.state.session_id == "default"
        assert memory.state.fact_store.size() == 7


@pytest.mark.parametrize("name", ["default", "named"])
def test_two_tasks_of_one_state_without_a_reset(bank, name):
    with MemoryBankState.open(bank, name) as state:
        for city in ("Rome", "Oslo"):
            context, _ = apply_memory_bank_strategy(task(city), None, load_config(), state)
        assert "Rome" not in json.dumps(context)
        assert state.session_id.startswith(f"{name}~")
    with MemoryBankState.open(bank, name) as state:
        context, _ = apply_memory_bank_strategy(task("Bern"), None, load_config(), state)
        assert not any(city in json.dumps(context) for city in ("Rome", "Oslo"))


def test_a_reset_ends_the_task_of_the_session(bank):
    with Memory(bank) as memory:
        loop(memory, task("Rome"))
        memory.reset()
        loop(memory, task("Oslo"))
        assert memory.state.session_id == "default"
        assert memory.state.fact_store.size() == 12


def test_a_call_beside_the_task_changes_nothing_of_it(bank, tmp_path):
    """An agent asks its model for a title in between: the task's contexts stay the same to the byte."""
    contexts = []
    for beside in (False, True):
        with Memory(tmp_path / f"{beside}.db") as memory:
            made = []
            for n in range(1, 40):
                made.append(memory.context(task("Rome", n)))
                if beside and n % 7 == 0:
                    assert memory.context([user("A title for: hotels")]) == [user("A title for: hotels")]
            contexts.append(json.dumps(made).replace(memory.state.session_id, "S"))
            assert memory.state.session_id == "default"
    assert contexts[0] == contexts[1]


def test_records_that_a_program_stored_itself_belong_to_the_first_list(bank):
    with MemoryBankState.open(bank) as state:
        state.add([InteractionRecord.create(1, "ask", {}, "by phone")])
        apply_memory_bank_strategy(task("Rome", 2), None, load_config(), state)
        assert (state.session_id, state.fact_store.size()) == ("default", 3)


def test_a_processor_keeps_tasks_apart(bank):
    for city in ("Rome", "Oslo"):
        processor = MemoryProcessor(None, lambda: MemoryBankState(database=bank))
        context, _ = processor.apply_strategy(task(city))
        processor.close()
    assert "Rome" not in json.dumps(context)
