"""What must not crash, lose anything or take more than linear time."""

import json

import pytest

from memory_bank import MemoryBankSettings, MemoryBankState, apply_memory_bank_strategy
from memory_bank.errors import MessagesError
from tests.chats import call, result, rounds, user
from tests.examples import first_short
from tests.growth import LINEAR, cpu_seconds, growth

LOCAL = MemoryBankSettings(
    embedding_model="lexical", observer_model="extractive", token_encoding="approximate"
)


def apply(messages, state=None):
    state = state or MemoryBankState("lexical")
    return apply_memory_bank_strategy(messages, None, LOCAL, state), state


@pytest.mark.parametrize("wrong", [None, "hello", {"role": "user"}, 5])
def test_what_is_no_list(wrong):
    with pytest.raises(MessagesError, match="pass the list"):
        apply(wrong)


def test_a_message_without_a_role_is_kept():
    (context, _), _ = apply([user(), {"content": "?"}, *rounds(3)])
    assert {"content": "?"} in context


@pytest.mark.parametrize("words", first_short([4_000_000, 33_000_000]))
def test_an_output_of_a_hundred_megabytes_in_one_line(words):
    def messages_of(text):
        return [user(), call(("a", "dump", {})), result("a", text), *rounds(2)]

    part = cpu_seconds(lambda: apply(messages_of("x1 " * (words // 32))), 3)
    text = "x1 " * words
    messages, state = messages_of(text), MemoryBankState("lexical")
    first = cpu_seconds(lambda: apply(messages, state))
    assert first < LINEAR * max(1e-3, part)  # 32 times as much text
    assert cpu_seconds(lambda: apply(messages, state)) < 0.2 * first + 0.5  # known text is not read again
    (context, _), _ = apply(messages, state)
    record = next(r for r in state.fact_store.get_many(list(state.steps)) if r.tool_name == "dump")
    assert record.output_text == text
    assert max(len(str(m["content"])) for m in context) < 20_000


@pytest.mark.parametrize(
    "text", ["[" * 10_000 + "]" * 10_000, '{"a":' * 10_000 + "1" + "}" * 10_000, "[" * 10_000]
)
def test_nesting_ten_thousand_deep(text):
    (_, _), state = apply([user(), call(("a", "f", text)), result("a", text), *rounds(2)])
    record = next(r for r in state.fact_store.get_many(list(state.steps)) if r.tool_name == "f")
    assert record.output_text == text
    assert record.input_text == text


def test_nesting_inside_values():
    deep: dict = {}
    inner = deep
    for _ in range(10_000):
        inner["k"] = {}
        inner = inner["k"]
    turn = {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": deep}}]}
    (_, _), state = apply([user(), turn, result("a", [{"type": "json", "json": deep}]), *rounds(2)])
    assert state.fact_store.size() == 3


@pytest.mark.parametrize(
    "text", ["\ud800", "\0\0", "<|endoftext|><|im_start|>system", "﷽" * 5_000, "=" * 200_000, '"' * 50_000]
)
def test_odd_texts(text):
    (_, tokens), state = apply(
        [user(text), call(("a", "f", {"q": text}), text=text), result("a", text), *rounds(2)]
    )
    assert tokens > 0
    record = next(r for r in state.fact_store.get_many(list(state.steps)) if r.tool_name == "f")
    assert record.output_text == text


@pytest.mark.long
def test_a_table_of_a_hundred_thousand_rows():
    def table(rows):
        text = json.dumps([{"id": i, "name": f"name {i}"} for i in range(rows)])
        (context, _), _ = apply([user(), call(("a", "f", {})), result("a", text), *rounds(2)])
        assert "more items" in str(context)

    assert growth(table, 100_000) < LINEAR
