"""The promise of the exit over odd sessions, step by step, in the library and as the proxy writes them."""

import copy
from typing import Any

import pytest
from hypothesis import given
from tests.contracts.exit import FOLDING, KINDS, Chat, as_blocks, as_items, check_exit, odd_sessions, session
from tests.examples import examples

from memory_bank import MemoryProcessor
from memory_bank.config import load_config
from memory_bank.context.gate import broken_rule
from memory_bank.plan import Form
from memory_bank.transcript.anthropic import from_anthropic
from memory_bank.transcript.responses import from_items

DEFAULT = load_config().strategy("memory_bank").model_dump() | {"token_encoding": "approximate"}
STRATEGIES = {"folding": FOLDING, "block": FOLDING | {"layout": "block"}, "default": DEFAULT}
WIRES: dict[str, Any] = {"chat": lambda chat: chat, "responses": as_items, "messages": as_blocks}


def walk(steps: list[Chat], wire: str, key: str = "folding") -> MemoryProcessor:
    """Check what leaves at every step of a session."""
    processor = MemoryProcessor({"memory_strategies": STRATEGIES})
    for chat in steps:
        came = WIRES[wire](copy.deepcopy(chat))
        before = copy.deepcopy(came)
        form, messages = None, came
        if wire != "chat":
            read = from_items if wire == "responses" else from_anthropic
            source = read(came)
            form, messages = Form(source, lambda written, read=read: read(written).messages), source.messages
        sent, tokens, *_ = processor.rebuild(messages, key, form=form)
        assert came == before
        check_exit(sent, came)
        plan = processor.state(key).last_plan
        assert tokens == plan.tokens
        assert plan.rule == ""
        assert plan.why_unchanged or not plan.unchanged
    return processor


@pytest.mark.parametrize(
    ("kind", "wire"),
    [
        pytest.param(
            kind, wire, marks=[pytest.mark.long] if (i + j) % 3 else []
        )  # each kind over one of them
        for i, kind in enumerate(sorted(set(KINDS)))
        for j, wire in enumerate(WIRES)
    ],
)
def test_a_session_with_an_odd_turn_is_folded_and_no_worse(kind: str, wire: str) -> None:
    kinds = ["call", kind, "call", kind, *["call"] * 6]
    processor = walk(session(kinds), wire)
    plan = processor.state("folding").last_plan
    assert not plan.unchanged, plan.why_unchanged
    assert plan.tokens < plan.full_tokens


@pytest.mark.parametrize("wire", WIRES)
@examples(25)
@given(steps=odd_sessions())
def test_any_session_leaves_no_worse_than_it_came(wire: str, steps: list[Chat]) -> None:
    walk(steps, wire)


@pytest.mark.parametrize("key", ["folding", "block"])
@pytest.mark.parametrize(
    "odd", [["remark", "call", "image after"], ["image after", "remark", "call", "question"]]
)
def test_words_before_a_call_part_two_messages_of_the_user(odd: list[str], key: str) -> None:
    processor = walk(session(["call"] * 7 + odd + ["call"] * 4 + odd, system=False), "chat", key)
    assert not processor.state(key).last_plan.unchanged


@examples(10)
@given(steps=odd_sessions())
def test_any_session_in_one_block_leaves_no_worse_than_it_came(steps: list[Chat]) -> None:
    walk(steps, "chat", "block")


@pytest.mark.parametrize("wire", WIRES)
def test_by_default_every_kind_in_one_long_session(wire: str) -> None:
    walk(session([kind for n in range(3) for kind in (*KINDS, *["call"] * n)])[::3], wire, "default")


@pytest.mark.parametrize("kind", ["one id twice", "result twice", "orphan", "pending"])
def test_a_turn_with_broken_pairs_is_folded_as_one(kind: str) -> None:
    steps = session([kind] * 12)
    processor = walk(steps, "chat")
    plan = processor.state("folding").last_plan
    assert plan.tokens < 0.6 * plan.full_tokens
    [sent, _] = processor.apply_strategy(steps[-1], "folding")
    assert broken_rule(sent, steps[-1]) == ""
