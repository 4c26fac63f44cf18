"""Clients that mask old results: what was recorded stays what it is, and nothing is recorded twice."""

import pytest
from tests.chats import call, result, user

from memory_bank import MemoryBankState, MemoryProcessor
from memory_bank.tools import answer_tool_call

IDS = ["call_Zq9aB7xK2mP4nR8t", "call_Yw3cD5eF7gH9jK1m", "call_Xv2bN4cM6zL8kJ0h"]


def output(i):
    return f"secret-{i} " + "word " * 3000


def chat(n, masked=(), mask="[cleared]", ids=IDS):
    messages = [user("go")]
    for i in range(n):
        messages += [call((ids[i], "get", {"i": i})), result(ids[i], mask if i in masked else output(i))]
    return messages


def told(state):
    return [r.output_text for r in state.fact_store.get_many(list(state.steps))]


@pytest.mark.parametrize("mask", ["[cleared]", "", "[Old tool result content cleared]"])
@pytest.mark.parametrize("ids", [IDS, ["call_1", "call_2", "call_3"]])
def test_a_masked_result_is_the_record_that_it_was(mask, ids):
    with MemoryBankState() as state:
        processor = MemoryProcessor(None, lambda session_id: state)
        processor.apply_strategy(chat(2, ids=ids), session_id="s")
        processor.apply_strategy(chat(3, (0, 1), mask, ids), session_id="s")
        assert told(state) == [output(0), output(1), output(2)]
        assert "secret-0" in answer_tool_call(state, "get_record", {"record": "#1"}).text
        assert state.last_plan.view.interactions[0].trace_ids == (None,)
        processor.apply_strategy([*chat(3, (0, 1), mask, ids), user("and?")], session_id="s")
        assert len(state.steps) == 3


def test_after_a_restart_too(tmp_path):
    for messages in (chat(2), chat(3, (0, 1))):
        with MemoryBankState.open(tmp_path / "bank.db", "s") as state:
            MemoryProcessor(None, lambda session_id: state).apply_strategy(messages, session_id="s")
            assert told(state)[:2] == [output(0), output(1)]


def test_the_same_call_made_again_is_recorded():
    """Its id may come again, and its output may be shorter."""
    first = [call(("c1", "get", {})), result("c1", "a long answer " * 9)]
    again = [call(("c1", "get", {})), result("c1", "short")]
    more = [call(("c2", "get", {"n": 2})), result("c2", "other")]
    with MemoryBankState() as state:
        processor = MemoryProcessor(None, lambda session_id: state)
        for messages in (
            [user("go"), *first],
            [user("go"), *first, *again],
            [user("go"), *first, *again, *more],
        ):
            processor.apply_strategy(messages, session_id="s")
        assert told(state) == ["a long answer " * 9, "short", "other"]


def test_a_longer_result_and_other_arguments_are_new():
    changed = [user("go"), call((IDS[0], "get", {"i": 0})), result(IDS[0], output(0) + "more"), *chat(3)[3:]]
    other = [user("go"), call((IDS[0], "get", {"i": 9})), result(IDS[0], "x"), *chat(3)[3:]]
    for messages in (changed, other):
        with MemoryBankState() as state:
            processor = MemoryProcessor(None, lambda session_id: state)
            processor.apply_strategy(chat(2), session_id="s")
            processor.apply_strategy(messages, session_id="s")
            assert len(state.steps) == 4
