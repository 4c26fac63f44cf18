"""Anthropic's Messages API: messages as a chat and back, the check of pairs, and what becomes of thinking."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import blocks, chats
from tests.blocks import (
    MARK,
    OPAQUE,
    SERVER_TOOL,
    answer,
    any_messages,
    good_messages,
    rounds,
    system,
    text,
    thought,
    turn,
    use,
    user,
)
from tests.chats import entries

from memory_bank.errors import HistoryError
from memory_bank.transcript.anthropic import (
    MOST_CACHE_MARKS,
    AnthropicWire,
    Thinking,
    cache_marks,
    from_anthropic,
    is_anthropic,
    message_errors,
    with_cache_marks,
    without_thinking,
)
from memory_bank.transcript.messages import Interaction, parse_messages
from memory_bank.transcript.turns import WHOLE, Derived, PartWire

MEMORY = {"role": "user", "content": "MEMORY"}


def shown(chat, drop=()):
    """What is written of a context without some interactions (by number): kept, memory, the last turn."""
    segments = parse_messages(chat.messages)
    turns = [s for s in segments if isinstance(s, Interaction)]
    gone = [turns[i] for i in drop]
    tail = turns[-1].start if turns else len(chat.messages)
    kept = [m for s in segments if s.start < tail and s not in gone for m in s.messages]
    return chat.write(entries(chat, [*kept, dict(MEMORY), *chat.messages[tail:]]))


def unchanged(chat):
    return chat.write(entries(chat, chat.messages))


def test_a_user_message_divides_into_its_results_and_the_rest():
    messages = [
        user("Find it"),
        turn(thought(), "I look.", use("a", n=1), use("b")),
        user(answer("b", "B"), answer("a", [text("A", **MARK)], **MARK), text("And quickly!", **MARK)),
    ]
    chat = from_anthropic(messages, [text("You help.", **MARK)])
    assert chat.messages == [
        chats.system("You help."),
        chats.user("Find it"),
        chats.call(("a", "get_order", '{"n":1}'), ("b", "get_order", "{}"), text="I look."),
        chats.result("b", "B"),
        chats.result("a", [text("A")]),
        chats.user("And quickly!"),
    ]
    turns = [s for s in parse_messages(chat.messages) if isinstance(s, Interaction)]
    assert [(len(t.pairs), t.fault) for t in turns] == [(2, "")]


def test_memory_joins_the_user_message_before_it():
    messages = [user("Find it"), *rounds(3)]
    chat = from_anthropic(messages)
    out = shown(chat, drop=(0, 1))
    assert out[0] == user("Find it", "MEMORY")
    assert out[1] is messages[5]
    assert out[2] is messages[6]
    assert len(out) == 3
    assert messages[0] == user("Find it")  # not modified


def test_a_system_message_stays_and_follows_a_user_message():
    messages = [user("Find it"), system("Be brief."), *rounds(1), system("Now be long."), *rounds(2, start=1)]
    chat = from_anthropic(messages)
    out = shown(chat, drop=(0, 1))
    assert [m["role"] for m in out] == ["user", "system", "assistant", "user"]
    assert out[0] == user("Find it", "MEMORY")
    assert out[1]["content"] == [text("Be brief."), text("Now be long.")]
    assert message_errors(out) == []


def test_words_beside_dropped_results_stay():
    messages = [user("Find it"), turn(use("a")), user(answer("a", "A" * 99), "Also the parcel!"), *rounds(1)]
    out = shown(from_anthropic(messages), drop=(0,))
    assert out[0] == user("Find it", "Also the parcel!", "MEMORY")


def test_cache_marks_of_kept_blocks_stay_and_none_is_added():
    messages = [
        user(text("Find it", **MARK)),
        turn(use("a")),
        user(answer("a", "A", **MARK)),
        turn(use("b")),
        user(answer("b", "B", **MARK), text("?", **MARK)),
    ]
    out = shown(from_anthropic(messages), drop=(0,))
    assert cache_marks(out) == 3
    assert out[0]["content"][0] is messages[0]["content"][0]
    assert out[-1] is messages[-1]


@pytest.mark.parametrize("block", OPAQUE)
def test_a_turn_with_blocks_of_the_provider_is_never_left_out(block):
    messages = [user("Find it"), turn(use("a"), block), user(answer("a")), *rounds(1)]
    chat = from_anthropic(messages)
    turns = [s for s in parse_messages(chat.messages) if isinstance(s, Interaction)]
    assert turns[0].fault  # kept by every strategy
    assert shown(chat)[1] is messages[1]
    alone = from_anthropic([user("Find it"), turn("I search.", block), user("Go on"), *rounds(1)])
    assert [m["role"] for m in alone.messages][:3] == ["user", "assistant", "item"]
    assert shown(alone, drop=(0,))[:2] == alone.source[:2]


def test_a_turn_in_several_messages_is_one_turn():
    messages = [user("go"), turn(use("a")), turn(use("b")), user(answer("a")), user(answer("b")), *rounds(1)]
    chat = from_anthropic(messages)
    turns = [s for s in parse_messages(chat.messages) if isinstance(s, Interaction)]
    assert [len(t.pairs) for t in turns] == [2, 1]
    assert not any(t.fault for t in turns)
    assert unchanged(chat) == messages
    assert shown(chat, drop=(0,))[1:] == messages[5:]


def test_a_shortened_result_keeps_the_members_of_its_block():
    messages = [
        user("go"),
        turn(use("a", q="long " * 50)),
        user(answer("a", "A" * 99, is_error=True, **MARK)),
        *rounds(1),
    ]
    chat = from_anthropic(messages)
    edits = [(p, {}) for p in range(len(chat.messages))]
    edits[2] = (2, {WHOLE: "A… #1"})
    out = chat.write(edits)
    assert out[2]["content"] == [answer("a", "A… #1", is_error=True, **MARK)]
    assert out[1] is messages[1]
    edits[1] = (1, {0: '{"q": "long…"}'})
    assert chat.write(edits)[1] == turn(use("a", q="long…"))


# thinking


THINKING = [
    user("go"),
    turn(thought("1"), use("a")),
    user(answer("a")),
    turn(thought("2"), "words", use("b")),
    user(answer("b")),
    turn({"type": "redacted_thinking", "data": "xx"}, use("c")),
    user(answer("c")),
]


def thoughts(messages):
    return [
        b["type"]
        for m in messages
        if isinstance(m["content"], list)
        for b in m["content"]
        if "thinking" in b["type"]
    ]


def test_thinking_goes_from_the_first_difference_on():
    chat = from_anthropic(THINKING)
    assert unchanged(chat) == THINKING
    out = shown(chat, drop=(1,))  # differs from the second turn on
    assert out[1] is THINKING[1]
    assert out[2] == user(answer("a"), "MEMORY")
    assert thoughts(out) == ["thinking"]
    assert thoughts(shown(chat, drop=(0,))) == []
    later = [(p, {WHOLE: "…"} if m.get("tool_call_id") == "b" else {}) for p, m in enumerate(chat.messages)]
    assert thoughts(chat.write(later)) == ["thinking", "thinking"]


def test_the_tool_turn_that_is_answered_keeps_its_thinking_where_it_must():
    out = shown(from_anthropic(THINKING, thinking=Thinking.KEEP_LATER), drop=(0, 1))
    assert thoughts(out) == ["redacted_thinking"]
    bare = [*THINKING[:5], turn(use("c")), user(answer("c"))]  # it thought before its first call only
    assert thoughts(shown(from_anthropic(bare, thinking=Thinking.KEEP_LATER), drop=(0, 1))) == ["thinking"]
    with pytest.raises(HistoryError, match="no thinking block of its own"):
        without_thinking([user("MEMORY"), *bare[5:]], Thinking.KEEP_LATER, bare)
    ended = [*bare, turn("done"), user("thanks, now this"), *rounds(1)]  # no thinking in the present turn
    assert thoughts(shown(from_anthropic(ended, thinking=Thinking.KEEP_LATER), drop=(0, 1))) == []


def test_thinking_after_a_fold_stays_and_a_turn_begins_with_the_thinking_it_began_with():
    begun = [user("go"), turn(thought("0"), use("0")), user(answer("0"))]
    for n in range(1, 6):
        begun += [turn(*([thought(str(n))] if n % 2 else []), use(str(n))), user(answer(str(n)))]
    sent = []
    for stop in range(9, 14, 2):  # the fold is about the first three calls, of which the third is shown
        chat = from_anthropic(begun[:stop], thinking=Thinking.KEEP_LATER)
        context = [chat.messages[0], {"role": "user", "content": "MEMORY"}, *chat.messages[5:]]
        out = chat.write(entries(chat, context), since=7)
        sent.append([b["thinking"] for m in out for b in m["content"] if b["type"] == "thinking"])
    assert sent == [["0", "3"], ["0", "3"], ["0", "3", "5"]]
    ended = [
        *begun,
        turn(thought("6"), "done"),
        user("and now?"),
        turn(thought("7"), use("7")),
        user(answer("7")),
    ]
    chat = from_anthropic(ended, thinking=Thinking.KEEP_LATER)
    context = [chat.messages[0], {"role": "user", "content": "MEMORY"}, *chat.messages[5:]]
    assert thoughts(chat.write(entries(chat, context), since=7)) == ["thinking"] * 5


def test_thinking_stays_where_the_provider_drops_it():
    kept = shown(from_anthropic(THINKING, thinking=Thinking.KEEP), drop=(0,))
    assert thoughts(kept) == ["thinking", "redacted_thinking"]
    assert thoughts(without_thinking(THINKING, Thinking.DROP)) == []
    assert thoughts(without_thinking(THINKING, Thinking.KEEP_LATER)) == ["redacted_thinking"]


def test_a_message_of_thinking_alone_goes():
    messages = [user("go"), *rounds(1), turn(thought()), user("go on"), *rounds(2, start=1)]
    out = shown(from_anthropic(messages), drop=(0,))
    assert message_errors(out) == []
    assert thoughts(out) == []


# what holds for every list


@given(good_messages())
def test_an_unchanged_chat_gives_the_very_messages(messages):
    assert message_errors(messages) == []
    before = copy.deepcopy(messages)
    chat = from_anthropic(messages, "You help.")
    out = unchanged(chat)
    assert len(out) == len(messages)
    assert all(a is b for a, b in zip(out, messages, strict=True))
    assert messages == before


@given(good_messages(), st.data())
def test_every_context_has_whole_pairs_and_at_most_the_marks_it_had(messages, data):
    chat = from_anthropic(messages)
    turns = [s for s in parse_messages(chat.messages) if isinstance(s, Interaction)]
    may_go = [i for i, t in enumerate(turns[:-1]) if not t.fault]
    drop = data.draw(st.lists(st.sampled_from(may_go), unique=True)) if may_go else []
    rule = data.draw(st.sampled_from(Thinking))
    try:
        out = shown(from_anthropic(messages, thinking=rule), drop)
    except HistoryError:  # the tool turn has no thinking of its own
        out = shown(chat, drop)
    assert message_errors(out) == []
    assert cache_marks(out) <= cache_marks(messages)
    told = str(out)
    for i, t in enumerate(turns):
        assert all((str(p.call.call_id) in told) == (i not in drop) for p in t.pairs)


@given(any_messages(), st.sampled_from(Thinking))
def test_no_list_breaks_it(messages, rule):
    is_anthropic(messages)
    chat = from_anthropic(messages, "s", thinking=rule)
    parse_messages(chat.messages)
    cache_marks(messages)
    without_thinking(messages, rule)
    wire = AnthropicWire(rule)
    assert [wire.bound(m) for m in messages] == [PartWire.bound(wire, m) for m in messages]
    try:
        out = unchanged(chat)
    except HistoryError:
        return
    if not message_errors(messages):
        assert message_errors(out) == []


@given(any_messages())
def test_equal_messages_give_equal_chats(messages):
    assert from_anthropic(messages).messages == from_anthropic(copy.deepcopy(messages)).messages


@given(any_messages(), any_messages(), st.data())
def test_what_two_lists_begin_with_is_read_once(
    messages: list[Any], others: list[Any], data: st.DataObject
) -> None:
    """Read on after an earlier list, a list is what it is when it is read alone."""
    stop, shared = (data.draw(st.integers(0, len(messages))) for _ in range(2))
    prompt = data.draw(st.sampled_from(["You help.", None]))
    earlier = from_anthropic(messages[:stop], "You help.")
    for now in (messages, [*messages[:shared], *others]):
        chat, alone = from_anthropic(now, prompt, earlier=earlier), from_anthropic(now, prompt)
        assert (chat.messages, chat.places, chat.units) == (alone.messages, alone.places, alone.units)
        assert chat.begins == alone.begins
        earlier = chat


@pytest.mark.parametrize("messages", ["text", None, 7, {"role": "user"}])
def test_what_is_no_list(messages):
    with pytest.raises(HistoryError, match="must be a list"):
        from_anthropic(messages)
    assert message_errors(messages)
    assert not is_anthropic(messages)


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([turn("hi")], "first message must use the user role"),
        ([user("go"), turn(use("a"))], "without `tool_result` blocks"),
        ([user("go"), turn(use("a")), user("words")], "without `tool_result` blocks"),
        ([user("go"), turn(use("a")), user("words", answer("a"))], "unexpected `tool_use_id`"),
        ([user("go"), turn(use("a")), user(answer("a"), answer("a"))], "unexpected `tool_use_id`"),
        ([user("go"), turn(use("a")), system("s"), user(answer("a"))], "without `tool_result` blocks"),
        ([user("go"), turn(use("a"), use("a")), user(answer("a"))], "must be unique"),
        ([user("go", answer("a"))], "unexpected `tool_use_id`"),
        ([user("")], "non-empty"),
        ([{"role": "tool", "content": "x"}], "role"),
        ([user("go"), turn("x"), system("s")], "must follow a user message"),
    ],
)
def test_what_the_api_refuses(messages, error):
    assert any(error in e for e in message_errors(messages))


def test_which_lists_are_of_this_api():
    assert is_anthropic([user("go"), *rounds(1)])
    assert not is_anthropic([user("go"), {"role": "assistant", "content": [text("hi")]}])
    assert not is_anthropic([{"role": "user", "content": "go"}, {"role": "tool", "content": "x"}])
    assert SERVER_TOOL[0]["type"] == "server_tool_use"


@pytest.mark.parametrize("odd", [{}, [None], 3, None])
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_types_and_ids_that_are_no_text_break_nothing(odd: Any, role: str) -> None:
    for block in (
        {"type": odd, "text": "x"},
        {"type": "tool_use", "id": odd, "name": odd, "input": odd},
        {"type": "tool_result", "tool_use_id": odd, "content": [{"type": odd}]},
        {"type": "thinking", "thinking": odd, "signature": odd},
    ):
        messages = [user("go"), turn(use("a")), user(answer("a"), block), {"role": role, "content": [block]}]
        chat = from_anthropic(messages)
        assert isinstance(unchanged(chat), list)
        assert isinstance(without_thinking(messages, Thinking.KEEP_LATER), list)
        assert isinstance(message_errors(messages), list)


# cache marks

HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def marked_blocks(messages):
    return [
        b for m in messages if isinstance(m["content"], list) for b in m["content"] if "cache_control" in b
    ]


def named(blocks):
    """The texts and ids of blocks."""
    return [b.get("text") or b.get("tool_use_id") or b["id"] for b in blocks]


@pytest.mark.parametrize(
    ("last", "marked"),
    [
        (user("Go."), "Go."),
        (user("a", "b"), "b"),
        (user(answer("t"), text(" ")), "t"),  # an empty text must have none
        (turn(use("t"), thought()), "t"),
        (turn(thought()), None),
        (user(" "), None),
        (turn(*OPAQUE[-1:]), None),
    ],
)
def test_the_last_block_that_may_have_a_mark_gets_one(last, marked):
    messages = [user("Check."), *rounds(2), last]
    before = "toolu_1" if last["role"] == "assistant" else "toolu_0"  # the request before ended there
    out = with_cache_marks({"messages": messages}, messages)
    assert named(marked_blocks(out)) == ["Check.", before, *([marked] if marked else [])]


@pytest.mark.parametrize(
    ("request_", "marked"),
    [
        ({}, ["Check.", "toolu_4", "toolu_5"]),
        ({"system": [text("s", **MARK)]}, ["Check.", "toolu_4", "toolu_5"]),
        ({"tools": [{"name": "t", **MARK}], "system": [text("s", **MARK)]}, ["Check.", "toolu_5"]),
        ({"system": [text("s", **MARK)] * 3}, ["toolu_5"]),
        ({"system": [text("s", **MARK)] * 4}, None),
        (MARK, ["Check.", "toolu_4"]),  # the API marks the last block itself
    ],
)
def test_the_anchor_has_a_mark_before_and_after_a_fold_beside_those_of_the_client(request_, marked):
    messages = [user("Check."), *rounds(6)]
    fold = [user("Check.", "<memory>"), *messages[7:]]
    for sent in (messages, fold):
        out = with_cache_marks({"messages": messages, **request_}, sent)
        assert (out and named(marked_blocks(out))) == marked
    if marked and "Check." in marked:
        out = with_cache_marks({"messages": messages, **request_}, fold, stands=False)
        assert named(marked_blocks(out)) == ["Check."]


def test_the_marks_that_a_client_moves_stay_at_the_end_and_the_anchor_gets_one():
    messages = [user("Check."), *rounds(6)]
    marked = [*messages]
    for at in (-1, -3):
        marked[at] = user({**messages[at]["content"][0], **HOUR})
    fold = [user("Check.", "<memory>"), *marked[7:]]
    assert with_cache_marks({"messages": marked}, marked) is None
    first = [user(text("Check.", **MARK)), *messages[1:]]  # a mark that does not move
    out = with_cache_marks({"messages": first}, first)
    assert named(marked_blocks(out)) == ["Check.", "toolu_4", "toolu_5"]
    for count, places in ((1, ["Check.", "toolu_4", "toolu_5"]), (2, ["Check.", "toolu_5"])):
        out = with_cache_marks({"messages": marked, "system": [text("s", **HOUR)] * count}, fold)
        assert named(marked_blocks(out)) == places
        assert {b["cache_control"]["ttl"] for b in marked_blocks(out)} == {"1h"}  # never after a shorter one
    lost = [*messages]
    lost[2] = user({**messages[2]["content"][0], **HOUR})
    out = with_cache_marks({"messages": lost}, [user("Check.", "<memory>"), *lost[7:]])
    assert named(marked_blocks(out)) == ["Check.", "toolu_4", "toolu_5"]


@given(good_messages() | any_messages(), st.integers(0, 8), st.booleans())
def test_marks_keep_to_the_rules_whatever_the_messages(messages, gone, marks):
    if not messages:
        return
    given_ = [*messages]
    context = [user("Check.", "<memory>"), *messages[gone:]]
    before = json.dumps(messages)
    for sent in (given_, context):
        out = with_cache_marks({"messages": messages, **(MARK if marks else {})}, sent)
        assert json.dumps(messages) == before
        if out is None:
            continue
        assert len(out) == len(sent)
        assert cache_marks(out) <= max(MOST_CACHE_MARKS, cache_marks(sent))
        for new, old in zip(out, sent, strict=True):
            if new is not old:
                assert from_anthropic([new]).messages == from_anthropic([old]).messages
                (block,) = [b for b in new["content"] if b not in _as_list(old["content"])]
                assert block["cache_control"] and block.get("text") != "" and block["type"] != "thinking"


def _as_list(content):
    return content if isinstance(content, list) else []


def test_what_was_made_of_a_message_is_made_anew_where_that_has_changed() -> None:
    derived = Derived()
    messages = [blocks.user("go"), *blocks.rounds(2)]
    first = from_anthropic(messages, derive=derived).messages
    messages[2]["content"][0]["content"] = "another result"
    again = from_anthropic(messages, derive=derived).messages
    assert again == from_anthropic(messages).messages
    assert [a is b for a, b in zip(first, again, strict=True)] == [True, True, False, True, True]
    derived.keep(messages[:1])
    assert from_anthropic(messages, derive=derived).messages[1] is not again[1]


class Read(dict):
    """A message that counts how often its content is read."""

    times = 0

    def get(self, key, default=None):
        self.times += key == "content"
        return super().get(key, default)


def test_marks_are_looked_for_once():
    """A long list is not read again for each mark that is set."""
    turns = [
        turn
        for n in range(50)
        for turn in (
            Read(role="assistant", content=[{"type": "tool_use", "id": f"t{n}", "name": "get", "input": {}}]),
            Read(role="user", content=[{"type": "tool_result", "tool_use_id": f"t{n}", "content": "fine"}]),
        )
    ]
    messages = [Read(role="user", content=[{"type": "text", "text": "Check the orders."}]), *turns]
    marked = with_cache_marks({"messages": messages}, messages)
    assert marked is not None
    assert cache_marks(marked) == 3
    assert max(message.times for message in messages[2:-3]) <= 3
