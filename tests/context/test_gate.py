"""The exit: what leaves is no worse than what came, or the original goes, and the reason names the rule."""

import json
import logging
from dataclasses import replace
from typing import Any

import pytest
from tests import blocks, items
from tests.chats import call, result, rounds, say, system, user

from memory_bank import Memory, MemoryBankState
from memory_bank.context import gate
from memory_bank.context.gate import broken_rule, leave
from memory_bank.plan import NO_PLAN, Choice, Context, Form
from memory_bank.processor import MemoryProcessor
from memory_bank.transcript.anthropic import CACHE_MARK, AnthropicWire, Thinking, from_anthropic
from memory_bank.transcript.chat import CHAT, edited_message
from memory_bank.transcript.responses import WIRE as ITEMS
from memory_bank.transcript.responses import from_items

MESSAGES = AnthropicWire()
CHATS = [system(), user(), *rounds(4)]
BLOCKS = [blocks.user("go"), *blocks.rounds(4)]
ITEM_LIST = [
    items.user(),
    items.thought(),
    items.call("a"),
    items.output("a"),
    items.call("b"),
    items.output("b"),
]


def marked(count: int) -> dict[str, Any]:
    return {
        "role": "user",
        "content": [{"type": "text", "text": "x", CACHE_MARK: {"type": "ephemeral"}}] * count,
    }


@pytest.mark.parametrize(
    ("sent", "rule"),
    [
        (CHATS, ""),
        ([*CHATS[:2], *CHATS[-2:]], ""),
        ([*CHATS[:2], None, *CHATS[-2:]], gate.ENTRY),
        ([*CHATS[:2], "text", *CHATS[-2:]], gate.ENTRY),
        ([*CHATS[:2], {}, *CHATS[-2:]], gate.ENTRY),
        ([*CHATS[:2], {"content": "no role"}, *CHATS[-2:]], gate.ENTRY),
        (CHATS[:-2], gate.LAST),
        ([], gate.LAST),
        ([*CHATS, user("more")], gate.LAST),
        (CHATS[1:], gate.SYSTEM),
        ([CHATS[1], CHATS[0], *CHATS[-2:]], gate.SYSTEM),
        ([system("another"), *CHATS[1:]], gate.SYSTEM),
        ([*CHATS[:2], CHATS[2], *CHATS[-2:]], gate.PAIRS),
        ([*CHATS[:2], CHATS[3], *CHATS[-2:]], gate.PAIRS),
        ([*CHATS[:2], CHATS[2], user("between"), *CHATS[3:]], gate.PAIRS),
        ([*CHATS[:2], CHATS[2], CHATS[3], CHATS[3], *CHATS[4:]], gate.PAIRS),
        ([*CHATS[:2], call(("c0", "f", {}), ("other", "f", {})), *CHATS[3:]], gate.PAIRS),
        ([*CHATS[:2], CHATS[2], result("c0", ""), *CHATS[-2:]], gate.EMPTY),
        ([*CHATS[:2], say(""), *CHATS[-2:]], gate.EMPTY),
        ([CHATS[0], marked(5), *CHATS[-2:]], gate.CACHE_MARKS),
        ([*CHATS[:2], user("memory"), *CHATS[-2:]], gate.ROLES),
    ],
)
def test_a_chat_that_breaks_a_rule(sent: list[Any], rule: str) -> None:
    assert broken_rule(sent, CHATS, CHAT) == rule


def test_a_system_message_before_the_first_one() -> None:
    came = [user(), system(), *rounds(2)]
    assert broken_rule([user(), system("memory"), system(), *rounds(2)], came) == gate.SYSTEM
    assert broken_rule([user(), system("memory"), *rounds(2)], [user(), *rounds(2)]) == ""


def test_system_messages_that_a_fold_brings_together_are_one() -> None:
    """Claude Code sends reminders as system messages among the turns; the Messages API gets neighbours as one."""
    came = [user(), system("agents"), *rounds(1), system("reminder"), *rounds(1, 2)]
    assert broken_rule([came[0], system("agents\n\nreminder"), *came[-2:]], came) == ""
    assert broken_rule([came[0], system("reminder\n\nagents"), *came[-2:]], came) == gate.SYSTEM


def test_what_came_so_is_no_fault() -> None:
    odd = [
        None,
        7,
        {"role": "tool", "content": ""},
        say(""),
        user(""),
        call(("p", "f", {})),
        user("a"),
        *rounds(2),
    ]
    assert broken_rule(odd, odd) == broken_rule([], []) == ""
    assert broken_rule(odd[2:], odd) == ""
    assert broken_rule([*odd[:5], odd[5], odd[5], *odd[6:]], odd) == gate.PAIRS


@pytest.mark.parametrize(
    ("sent", "rule"),
    [
        ([BLOCKS[0], *BLOCKS[-2:]], ""),
        ([BLOCKS[0], BLOCKS[1], *BLOCKS[-2:]], gate.PAIRS),
        ([BLOCKS[0], BLOCKS[2], *BLOCKS[-2:]], gate.PAIRS),
        ([BLOCKS[0], {"role": "assistant", "content": []}, *BLOCKS[-2:]], gate.REFUSED),
        (BLOCKS[-2:], gate.REFUSED),  # the first message is the assistant's
        ([marked(5), *BLOCKS[-2:]], gate.CACHE_MARKS),
    ],
)
def test_messages_of_anthropic_that_break_a_rule(sent: list[Any], rule: str) -> None:
    assert broken_rule(sent, BLOCKS, MESSAGES) == rule


@pytest.mark.parametrize("odd", [[[]], {"a": 1}, 7, 1.5, True, "", float("nan"), ["a"]], ids=repr)
def test_ids_of_any_kind_are_compared(odd: Any) -> None:
    """A client's list with such an id is its own matter: it leaves as it came, or without whole turns."""
    for wire, came, (first, kept) in (
        (
            MESSAGES,
            [*BLOCKS[:1], blocks.turn(blocks.use(odd)), blocks.user(blocks.answer(odd)), *BLOCKS[1:]],
            (1, 3),
        ),
        (CHAT, [*CHATS[:2], call((odd, "f", {})), result(odd, "done"), *CHATS[2:]], (2, 4)),
        (ITEMS, [*ITEM_LIST[:1], items.call(odd), items.output(odd), *ITEM_LIST[1:]], (1, 3)),
    ):
        assert broken_rule(came, came, wire) == ""
        assert broken_rule([*came[:first], *came[kept:]], came, wire) == ""
        assert broken_rule(came[:kept], came[:kept], wire) == ""


def test_too_many_marks_break_a_rule_and_the_clients_own_are_its_own() -> None:
    assert broken_rule([marked(4), *BLOCKS[-2:]], BLOCKS, MESSAGES) == ""
    assert broken_rule([marked(5), *BLOCKS[-2:]], BLOCKS, MESSAGES) == gate.CACHE_MARKS
    assert broken_rule([marked(5), *BLOCKS[-2:]], [marked(5), *BLOCKS[1:]], MESSAGES) == ""


def test_the_turn_that_is_answered_keeps_its_thinking_where_it_must() -> None:
    thinks = blocks.turn(blocks.thought("1"), blocks.use("z"))
    came = [*BLOCKS, thinks, blocks.user(blocks.answer("z"))]
    sent = [*BLOCKS, blocks.turn(blocks.use("z")), came[-1]]
    assert broken_rule(sent, came, MESSAGES, Thinking.KEEP_LATER) == gate.REASONING
    assert broken_rule(sent, came, MESSAGES, Thinking.DROP) == ""
    alone = [BLOCKS[0], blocks.turn(blocks.thought("1")), *came[-2:]]
    assert broken_rule(alone, [*alone[:1], *came[-2:]], MESSAGES) == ""  # the API takes both for one turn


@pytest.mark.parametrize(
    ("sent", "rule"),
    [
        ([ITEM_LIST[0], *ITEM_LIST[-2:]], ""),
        ([*ITEM_LIST[:2], *ITEM_LIST[-1:]], gate.PAIRS),
        ([ITEM_LIST[1], ITEM_LIST[0], *ITEM_LIST[-2:]], gate.REASONING),
        ([ITEM_LIST[0], items.user("memory"), *ITEM_LIST[-2:]], gate.ROLES),
        ([ITEM_LIST[0], ITEM_LIST[2], *ITEM_LIST[-2:]], gate.PAIRS),
        ([ITEM_LIST[0], ITEM_LIST[3], *ITEM_LIST[-2:]], gate.PAIRS),
        ([ITEM_LIST[0], {"call_id": "a"}, *ITEM_LIST[-2:]], gate.ENTRY),
        ([ITEM_LIST[0], items.words(""), *ITEM_LIST[-2:]], gate.EMPTY),
        ([ITEM_LIST[0], items.words("a"), items.words("b"), *ITEM_LIST[-2:]], gate.REFUSED),  # one id twice
    ],
)
def test_items_that_break_a_rule(sent: list[Any], rule: str) -> None:
    assert broken_rule(sent, ITEM_LIST, ITEMS) == rule


def context_of(session: MemoryBankState, messages: list[Any], entries: list[Any]) -> Context:
    session.transcript.update(messages)
    return Context([messages[p] for p, _ in entries], NO_PLAN, entries)


def test_the_original_goes_and_the_reason_names_the_rule(caplog: pytest.LogCaptureFixture) -> None:
    session = MemoryBankState("lexical")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            worse = context_of(session, CHATS, [(0, {}), (1, {}), (2, {}), (8, {}), (9, {})])
            context, sent = leave(worse, CHATS, session)
            assert sent is CHATS
            assert context == CHATS
            assert (context.plan.unchanged, context.plan.rule) == (True, gate.PAIRS)
            assert context.plan.why_unchanged.endswith(gate.PAIRS)
    [warning] = [r.getMessage() for r in caplog.records if "not sent" in r.getMessage()]
    assert gate.PAIRS in warning
    assert "order" not in warning


@pytest.mark.parametrize(
    ("source", "entries", "rule"),
    [
        (from_anthropic(BLOCKS), [(0, {}), (1, {}), (7, {}), (8, {})], gate.PAIRS),
        (from_items(ITEM_LIST), [(0, {}), (1, {}), (3, {}), (4, {})], gate.PAIRS),
    ],
)
def test_a_context_that_cannot_be_told_in_a_form_does_not_leave(source: Any, entries: Any, rule: str) -> None:
    session = MemoryBankState("lexical")
    context = context_of(session, source.messages, entries)
    context, sent = leave(context, source.messages, session, Form(source, lambda written: written))
    assert sent is source.source
    assert context.plan.rule == rule


def test_what_goes_on_from_a_context_is_held_against_the_rules() -> None:
    """A result that comes later leaves with the call that it answers, or the original goes."""
    session = MemoryBankState("lexical")
    came = [
        items.user(),
        *(items.call(c) for c in "ab"),
        items.output("b"),
        items.call("c"),
        items.output("c"),
    ]
    for late, rule in (([], ""), (["d"], ""), (["a"], gate.PAIRS)):
        came += [*([] if rule else map(items.call, late)), *map(items.output, late)]
        source = from_items(came)
        entries = [(p, {0: None} if p == 1 else {}) for p in range(len(source.messages))]
        context = context_of(session, source.messages, entries)
        context[1] = edited_message(context[1], {0: None})
        context, sent = leave(context, source.messages, session, Form(source, lambda written: written))
        assert (context.plan.rule, sent is came) == (rule, bool(rule))


def prefix_rules(lists: list[list[Any]], texts: list[str], folds: list[int]) -> list[str]:
    """The rules that contexts break whose first result reads as the texts, in one session."""
    session, rules = MemoryBankState("lexical"), []
    for came, text, fold in zip(lists, texts, folds, strict=True):
        plan = replace(NO_PLAN, unchanged=False, choice=Choice(since=2, fold=fold))
        entries: list[Any] = [(p, {}) for p in range(len(came))]
        context, sent = leave(
            Context([*came[:3], {**came[3], "content": text}, *came[4:]], plan, entries), came, session
        )
        rules.append(context.plan.rule)
        assert (sent is came) is bool(context.plan.rule)
    return rules


GROWN = [[system(), user(), *rounds(n)] for n in range(2, 9)]
WITH_MARK = [[*chat[:-1], {**chat[-1], CACHE_MARK: {"type": "ephemeral"}}] for chat in GROWN]
OWN_CHANGE = [[chat[0], user(f"at {n}"), *chat[2:]] for n, chat in enumerate(GROWN)]


@pytest.mark.parametrize(
    ("lists", "texts", "folds", "from_step"),
    [
        (GROWN, "aaaaaaa", "1111111", 7),
        (GROWN, "abcdefg", "1111111", 2),
        (WITH_MARK, "abcdefg", "1111111", 2),
        (WITH_MARK, "aaaaaaa", "1111111", 7),
        (OWN_CHANGE, "abcdefg", "1111111", 7),
        (GROWN, "abcdefg", "1234567", 7),
        (GROWN, "abbccdd", "1111111", 7),
        (GROWN, "aabcccc", "1111111", 3),
    ],
)
def test_contexts_that_change_what_was_sent_leave_twice(
    lists: list[list[Any]], texts: str, folds: str, from_step: int
) -> None:
    """Each would be written to the provider's cache anew. Then the messages go as they came, and stay so."""
    rules = prefix_rules(lists, [*texts], [*map(int, folds)])
    assert rules == [gate.PREFIX if step >= from_step else "" for step in range(7)]


@pytest.mark.parametrize("api", ["chat", "messages"])
def test_a_caller_that_marks_what_it_got_keeps_its_memory(api: str) -> None:
    """Marks of a cache are put into the context that came back, for this request alone."""
    chat = [user(), *rounds(30, 600)] if api == "chat" else [blocks.user("go"), *blocks.rounds(30)]
    with Memory(config={"memory_strategies": {"m": FOLDING}, "default_strategy": "m"}) as memory:
        for end in range(3, len(chat) + 1, 2):
            own = set(map(id, chat))
            for n, message in enumerate(memory.context(chat[:end])):
                if id(message) not in own:
                    mark = {CACHE_MARK: {"type": "ephemeral", "of": end}}
                    message["content"] = [{"type": "text", "text": f"{message['content']} {n}", **mark}]
            assert memory.plan.rule == ""
        assert not memory.plan.unchanged


def test_words_in_a_message_after_that_of_the_results_stay_in_it() -> None:
    """A client's reminder, which stands in no later request: the results before it are shown in part."""
    orders = json.dumps([{"order_id": f"ORD-{n}", "total": n, "name": f"customer {n}"} for n in range(80)])
    chat: list[Any] = [blocks.user("go")]
    with Memory(config={"memory_strategies": {"m": FOLDING}, "default_strategy": "m"}) as memory:
        for n in range(12):
            chat += [blocks.turn(blocks.use(f"t{n}", number=n)), blocks.user(blocks.answer(f"t{n}", orders))]
            reminder = blocks.user(f"reminder {n}")
            context = memory.context([*chat, reminder])
            assert memory.plan.rule == ""
            assert context[-1] is reminder
        assert not memory.plan.unchanged


NOTHING: dict[str, dict[str, Any]] = {
    "no arguments": {"function": {"name": "f"}},
    "null": {"function": {"name": "f", "arguments": None}},
    "no function": {"function": None},
    "a text": {"function": "f"},
    "a number": {"function": {"name": "f", "arguments": 5}},
    "a list": {"function": {"name": "f", "arguments": [1]}},
    "an object": {"function": {"name": "f", "arguments": {}}},
    "a bare call": {},
    "custom without input": {"type": "custom", "custom": {"name": "f"}},
    "custom is null": {"type": "custom", "custom": None},
    "no name": {"function": {"arguments": "{}"}},
    "an empty text": {"function": {"name": "f", "arguments": ""}},
    "null as text": {"function": {"name": "f", "arguments": "null"}},
}


@pytest.mark.parametrize(
    ("kind", "every", "parallel"),
    [
        pytest.param(
            kind, every, parallel, marks=[] if (every, parallel) == (3, n % 2 == 1) else pytest.mark.long
        )
        for n, kind in enumerate(NOTHING)
        for every in (3, 1)
        for parallel in (False, True)
    ],
)
def test_a_call_without_arguments_is_a_call(kind: str, every: int, parallel: bool) -> None:
    messages: list[Any] = [user()]
    with Memory(config={"memory_strategies": {"m": FOLDING}, "default_strategy": "m"}) as memory:
        for n in range(16):
            made = {"id": f"c{n}", "type": "function", **NOTHING[kind]}
            if n % every:
                made = call((f"c{n}", "get", {"n": n}))["tool_calls"][0]
            more = call((f"d{n}", "get", {"n": n}))["tool_calls"] if parallel else []
            messages.append({"role": "assistant", "content": None, "tool_calls": [made, *more]})
            messages.append(result(f"c{n}", f"order ORD-{n} " + "word " * 150))
            messages += [result(f"d{n}", f"item ITM-{n}")] if parallel else []
            context = memory.context(messages)
            assert all(isinstance(m, dict) and m.get("role") for m in context)
            assert broken_rule(context, messages) == ""
        assert not memory.plan.unchanged
        shown = [c for m in context for c in m.get("tool_calls", ())]
        assert all(c in [c for m in messages for c in m.get("tool_calls", ())] for c in shown)


FOLDING = {
    "type": "memory_bank", "selection": "evidence", "observer_model": "extractive", "embedding_model": "lexical",
    "history_budget": 2_000, "refresh_after": 200,
}  # fmt: skip


def test_an_edited_message_is_copied_again_only_where_the_caller_changed_it():
    processor = MemoryProcessor(
        {
            "memory_strategies": {"mask": {"type": "observation_masking", "max_length": 50, "keep_last": 1}},
            "default_strategy": "mask",
        }
    )
    messages = [user("go")]
    contexts = []
    for n in range(4):
        messages += [call((f"c{n}", "get", {})), result(f"c{n}", "x" * 400)]
        contexts.append(processor.apply_strategy(messages)[0])
        if n == 2:
            contexts[2][2]["content"] = "changed by the caller"
    masked = [context[2] for context in contexts[1:]]
    assert masked[1] is masked[0]
    assert masked[2] is not masked[1]
    assert "changed" not in masked[2]["content"]
    assert messages[2]["content"] == "x" * 400
