"""Memory: one object for a program's loop, synchronous and asynchronous."""

import asyncio
import copy
import functools
import inspect
import json
import pickle
import random
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from memory_bank import (
    Config,
    Memory,
    MemoryBankSettings,
    MemoryBankState,
    MemoryProcessor,
    apply_memory_bank_strategy,
    is_memory_tool,
    load_config,
)
from memory_bank.bank.steps import list_steps
from memory_bank.closing import Closing
from memory_bank.errors import ConfigError, MessagesError, RecordError
from memory_bank.history import MemoryManager
from tests.chats import FOLDING, call, result, rounds, system, user

CONFIG = {"default_strategy": "m", "memory_strategies": {"m": FOLDING}}
_WORDS = [
    "late",
    "parcel",
    "invoice",
    "address",
    "street",
    "refund",
    "dispatch",
    "warehouse",
    "customer",
    "letter",
]
CHAT = [system(), user()]
for _n in range(30):
    _said = " ".join(f"{random.Random(_n * 100 + i).choice(_WORDS)}-{_n * i}" for i in range(120))
    CHAT += [call((f"c{_n}", "get_order", {"number": _n})), result(f"c{_n}", f"ORD-{1_000 + _n}: {_said}")]


def test_a_loop_with_memory_and_its_tools(tmp_path):
    before = copy.deepcopy(CHAT)
    with Memory(tmp_path / "bank.db", config=CONFIG) as memory:
        assert list(memory.plan.decisions) == []  # before the first step
        context = memory.context(CHAT, tools=memory.tools)
        assert context != CHAT
        assert before == CHAT
        assert memory.plan.tokens < memory.plan.full_tokens
        decision = memory.plan.decisions[0]
        record = memory.record(decision.trace_ids[0])
        assert record == memory.record("#1") == memory.record(record.trace_id[:8])
        assert all(is_memory_tool(tool["function"]["name"]) for tool in memory.tools)
        arguments = json.dumps({"trace_id": record.trace_id})
        assert record.output_text.splitlines()[0] in memory.call("get_record", arguments)
        assert "needs a query" in memory.call("search_memory", "{}")
        assert memory.search(record.trace_id) == []  # an id of ours is in no output
        found = memory.search(record.output_text[:100])
        assert found[0].outline.trace_id == record.trace_id
        assert "30 records" in repr(memory)
    with Memory(
        tmp_path / "bank.db", config=CONFIG
    ) as again:  # what is stored is there before the first step
        assert again.record("#1") == record
        assert record.output_text.splitlines()[0] in again.call("get_record", arguments)
        assert again.search(record.output_text[:100])[0].outline.trace_id == record.trace_id
        assert again.context(CHAT, tools=again.tools) == context
        again.reset()
        with pytest.raises(RecordError, match="stored"):
            again.record("#1")
    with Memory(tmp_path / "bank.db", session_id="other", config=CONFIG) as other:
        assert other.search("order") == []


def test_the_same_under_asyncio():
    async def run():
        async with Memory(config=CONFIG) as memory:
            context = await memory.acontext(CHAT)
            trace_id = memory.plan.decisions[0].trace_ids[0]
            record = await memory.arecord(trace_id)
            answer = await memory.acall("get_record", {"trace_id": trace_id})
            found = await memory.asearch(record.output_text[:100])
            await memory.areset()
            return context, record, answer, found, memory.plan.decisions

    context, record, answer, found, after = asyncio.run(run())
    with Memory(config=CONFIG) as memory:
        assert context == memory.context(CHAT)
        assert record.output_text == memory.record("#1").output_text
        assert answer == memory.call("get_record", {"trace_id": record.trace_id})
        assert [m.outline.trace_id for m in found] == [
            m.outline.trace_id for m in memory.search(record.output_text[:100])
        ]
    assert after == ()


def test_tasks_at_once_keep_to_their_sessions(tmp_path):
    async def one(name):
        chat = [system(), user(name), *rounds(12)]
        async with Memory(tmp_path / "bank.db", session_id=name, config=CONFIG) as memory:
            for end in range(2, len(chat) + 1, 4):
                await memory.acontext(chat[:end])
            return memory.plan.view.task, len(await memory.asearch("order", 20))

    async def all_of_them():
        return await asyncio.gather(*(one(f"task {n}") for n in range(8)))

    for number, (task, found) in enumerate(asyncio.run(all_of_them())):
        assert task == f"task {number}"
        assert found <= 12


def test_a_state_is_an_asynchronous_context_manager(tmp_path):
    async def step(chat):
        async with MemoryBankState(database=tmp_path / "bank.db", session_id="one") as state:
            return await asyncio.to_thread(apply_memory_bank_strategy, chat, None, load_config(), state)

    asyncio.run(step([system(), user(), *rounds(3)]))
    with MemoryBankState.open(tmp_path / "bank.db", session_id="one") as again:
        assert again.fact_store.size() == 3


def test_what_is_closed_at_the_end_of_a_block_is_closed_in_a_thread():
    class Door(Closing):
        closed_in = None

        def close(self):
            self.closed_in = threading.current_thread()

    async def pass_through():
        async with Door() as door:
            assert door.closed_in is None
        return door

    assert asyncio.run(pass_through()).closed_in not in (None, threading.main_thread())
    with Door() as door:
        pass
    assert door.closed_in is threading.current_thread()


def test_the_asynchronous_twins_have_the_arguments_of_the_others():
    for name in ("context", "call", "search", "record", "reset"):
        one, twin = getattr(Memory, name), getattr(Memory, f"a{name}")
        assert inspect.signature(twin) == inspect.signature(one)
        assert (twin.__name__, twin.__doc__) == (f"a{name}", f"As ``{name}``, for asyncio.")


def test_wrong_use_is_said():
    memory = Memory()
    with pytest.raises(MessagesError):
        memory.context("hello")
    with pytest.raises(ConfigError):
        Memory(config=5)
    for arguments in ((7,), ("late", "3")):
        with pytest.raises(TypeError, match="takes words, a name or an id as str, and top_k as int"):
            memory.search(*arguments)
    with pytest.raises(TypeError, match=r"MemoryBankState\.open"):
        pickle.dumps(memory.state)
    with pytest.raises(TypeError, match=r"MemoryBankState\.open"):
        pickle.dumps(MemoryBankState())


def test_what_people_try_first_works():
    asked = [*CHAT, user("And now?")]
    with Memory(
        config=CONFIG, budget=600, tools=[{"type": "function", "function": {"name": "get_order"}}]
    ) as small:
        with Memory(config=CONFIG, history_budget=600) as same:
            assert small.context(asked) == same.context(asked)
        with Memory(config=CONFIG) as memory:
            memory.context(asked)
            assert small.plan.tokens < memory.plan.tokens
    with Memory(strategy="keep_last_n", n=2) as last, Memory(strategy="truncation") as one:
        assert len(last.context(CHAT)) == len(one.context(CHAT)) + 2
        assert len(last) == 0  # this strategy has no memory
    with Memory(strategy=MemoryBankSettings(**FOLDING)) as given, Memory(config=CONFIG) as memory:
        assert given.context(CHAT) == memory.context(CHAT)
    with Memory(tools=[{"name": "get_record", "input_schema": {}}], config=CONFIG) as told:
        assert "get_record" in str(told.context(CHAT))
        assert "get_record" not in str(told.context(CHAT, tools=[]))


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        ({"budgett": 5}, "did you mean budget?"), ({"session": "a"}, "did you mean session_id?"),
        ({"client": None}, "did you mean llm_client?"), ({"database": "x"}, "did you mean bank?"),
        ({"keep_recents": 1}, "did you mean keep_recent?"), ({"embedder": "x"}, "did you mean embedding_model?"),
        ({"foo": 1}, "its arguments are bank, budget, config, llm_client, model, session_id, strategy, tools"),
        ({"strategy": "truncation", "keep_recent": 1}, "its arguments are bank"),
    ],
)  # fmt: skip
def test_an_unknown_argument_is_answered_with_the_nearest(arguments, nearest):
    with pytest.raises(TypeError, match=rf"^Memory has no argument '\w+': {re.escape(nearest)}"):
        Memory(**arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"budget": 3.5}, "Memory: history_budget: a fraction is a share"), ({"budget": -1}, "Memory: history_budget"),
        ({"budget": True}, "Memory: history_budget"), ({"budget": "lots"}, "Memory: history_budget"),
        ({"budget": 5, "strategy": "truncation"}, "Memory: the strategy 'truncation' has no budget"),
        ({"strategy": 5}, "Memory: strategy is the name"), ({"strategy": {}}, "Memory: strategy is the name"),
        ({"strategy": "memory_bnk"}, "did you mean 'memory_bank'?"), ({"tools": "x"}, "Memory: tools are the list"),
        ({"tools": {"get_order": {}}}, "Memory: tools are the list"), ({"n": "x", "strategy": "keep_last_n"}, "n:"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named(arguments, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        Memory(**arguments)


def test_a_memory_is_a_list_of_its_records(tmp_path):
    assert Memory()  # an empty one is true as well: `memory or Memory()` keeps it
    assert "0 records&gt;" in Memory()._repr_html_()
    with Memory(tmp_path / "bank.db", config=CONFIG) as memory:
        assert (len(memory), memory.records, list(memory), memory.context([])) == (0, [], [], [])
        memory.context(CHAT)
        assert len(memory) == len(memory.records) == 30
        assert [r.raw_input["number"] for r in memory] == list(range(30))
        assert memory.records[0] == memory.record("#1")
        assert memory.context([]) == []
        assert len(memory) == 30
        assert "<html" in memory._repr_html_()
    with Memory(tmp_path / "bank.db", config=CONFIG) as again:
        assert len(again) == 30  # before its first step
    again.close()  # twice
    with Memory(config=CONFIG) as memory:
        memory.context(CHAT)
        memory.close()
    memory.close()


def test_steps_are_recorded_in_the_bank_as_the_proxys_are(tmp_path):
    def steps_of(session_id):
        with MemoryBankState.open(tmp_path / "bank.db", session_id=session_id) as state:
            return list_steps(state.database, session_id)

    with Memory(tmp_path / "bank.db", session_id="a", config=CONFIG, model="gpt-4.1") as memory:
        for end in (2, 40, 62):
            memory.context(CHAT[:end])
        sums = memory.plan.tokens, memory.plan.full_tokens
    first, _, last = steps_of("a")
    assert (first.number, first.status, first.messages, first.records) == (1, "unchanged", 2, 0)
    assert (last.number, last.status, last.messages, last.records) == (3, "rebuilt", 62, 30)
    assert ((last.tokens, last.full_tokens), last.model) == (sums, "gpt-4.1")
    with MemoryBankState.open(tmp_path / "bank.db", session_id="b") as state:
        apply_memory_bank_strategy(CHAT, None, MemoryBankSettings(**FOLDING), state)
    assert [s.status for s in steps_of("b")] == ["rebuilt"]
    opened = functools.partial(MemoryBankState.open, tmp_path / "bank.db")
    processor = MemoryProcessor(CONFIG, lambda session_id: opened(session_id=session_id))
    processor.apply_strategy(CHAT, session_id="c")
    processor.rebuild(CHAT, session_id="c", sends=lambda: True)
    processor.close()
    assert len(steps_of("c")) == 1


def test_a_step_that_cannot_be_recorded_is_a_step(tmp_path, caplog):
    caplog.set_level("DEBUG", "memory_bank")
    with Memory(tmp_path / "bank.db", config=CONFIG) as memory:
        memory.context(CHAT)
        with memory.state.database.write() as connection:
            connection.execute(sa.text("DROP TABLE steps"))
        assert memory.context([*CHAT, user("And now?")])[-1] == user("And now?")
    assert "a step could not be recorded" in caplog.text


def test_a_plan_is_one_line_and_a_page():
    memory = Memory(config=CONFIG)
    assert repr(memory.plan) == "<Plan of no step: 0 of 0 tokens, 0 past interactions>"
    memory.context(CHAT)
    assert len(repr(memory.plan)) < 200
    assert "<html" in memory.plan._repr_html_()


def test_every_value_has_a_short_repr(tmp_path):
    chat = [system(), user("Find them. " * 500), *rounds(100, 3_000)]
    with Memory(tmp_path / "bank.db", config=CONFIG) as memory:
        memory.context(chat)
        state, record = memory.state, memory.record("#1")
        history = MemoryManager.from_messages(chat)
        values = [
            memory, state, memory.plan, *memory.plan.decisions, memory.plan.choice, memory.plan.view,
            *memory.plan.view.interactions, record, *memory.search("order"), *state.fact_store.page(),
            state.insight_store.get_insight(record.trace_id), state.fact_store, state.insight_store,
            load_config(), *load_config().memory_strategies.values(), MemoryBankSettings(), MemoryProcessor(),
            history, *history.steps, *(o for s in history.steps for o in getattr(s, "observations", ())),
        ]  # fmt: skip
        assert [(type(v), len(repr(v))) for v in values if len(repr(v)) >= 300] == []
        assert repr(state) == "<MemoryBankState of session 'default': 100 records>"
        assert repr(record).startswith(f"InteractionRecord(trace_id='{record.trace_id[:5]}")
        assert repr(Config(prices={}, loop_threshold=5)).startswith(
            "Config(loop_threshold=5, prices={}, memory_"
        )


ROOT = Path(__file__).parents[1]
GIVEN = """# pyright: strict
from typing import Any

from openai.types.chat import ChatCompletionFunctionToolParam

TOOLS: list[ChatCompletionFunctionToolParam] = []


def run_tool(name: str, arguments: dict[str, Any]) -> str:
    return name


"""
"""What a page says that its reader has."""


def script_of(page):
    """The Python of a page; its messages are annotated, as openai's own objects do not fit its parameters."""
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S))
    first, *rest = code.split("messages = [")
    return (
        GIVEN
        + first
        + "".join(f"messages{'' if n else ': list[Any]'} = [{part}" for n, part in enumerate(rest))
    )


@pytest.mark.long
@pytest.mark.parametrize("page", ["tests/typed_script.py", "README.md", "docs/howto/agent-loop.md"])
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_users_script_is_typed(checker, page, tmp_path):
    script = tmp_path / "script.py"
    script.write_text((ROOT / page).read_text() if page.endswith(".py") else script_of(page))
    if checker == "mypy":
        command = ["mypy", "--strict", "--cache-dir", str(tmp_path), str(script)]
    else:
        command = ["pyright", "--pythonpath", sys.executable, str(script)]
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
