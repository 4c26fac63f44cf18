"""Messages to interactions and back, for every shape that arrives in the wild."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chats import any_chats, call, good_chats, result, rounds, say, system, user
from tests.growth import LINEAR, growth

from memory_bank.errors import MessagesError
from memory_bank.transcript.chat import edited_message
from memory_bank.transcript.messages import (
    Interaction,
    MessageKind,
    Utterance,
    extract_tool_outputs,
    kind_of,
    latest_interactions,
    parse_messages,
    task_text,
)
from memory_bank.transcript.pairing import pairing_errors


def interactions(messages):
    return [s for s in parse_messages(messages) if isinstance(s, Interaction)]


def only(messages) -> Interaction:
    (found,) = interactions(messages)
    return found


def same(a, b) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


@given(any_chats())
def test_rendering_gives_the_same_messages_back(messages):
    assert same([m for s in parse_messages(messages) for m in s.messages], messages)


@given(good_chats())
def test_whole_pairs_have_no_fault(messages):
    if not pairing_errors(messages):
        assert [i.fault for i in interactions(messages)] == [""] * len(interactions(messages))


@given(any_chats())
def test_segments_lie_side_by_side(messages):
    position = 0
    for segment in parse_messages(messages):
        assert segment.start == position
        position = segment.stop
    assert position == len(messages)


@given(any_chats())
def test_every_result_is_in_exactly_one_pair(messages):
    results = sum(1 for m in messages if kind_of(m) is MessageKind.RESULT)
    own = sum(
        1 for m in messages if isinstance(m, dict) and m.get("type") == "web_search_call" and "role" not in m
    )
    assert sum(1 for i in interactions(messages) for p in i.pairs if p.result) == results + own


@pytest.mark.parametrize("wrong", ["text", {"role": "user"}, None, 3, iter([])])
def test_what_is_no_list_is_refused_in_one_sentence(wrong):
    with pytest.raises(MessagesError, match="messages must be a list of chat messages, not"):
        parse_messages(wrong)


CALLED = call(("a", "x", {}))


@pytest.mark.parametrize(
    ("messages", "pairs", "fault"),
    [
        ([call(("a", "x", {}), ("b", "y", {})), result("b", "2"), result("a", "1")], {"x": "1", "y": "2"}, ""),
        ([call(("a", "x", {}), ("b", "y", {})), result("a", "1")], {"x": "1", "y": None}, "a call has no result"),
        ([result("zzz", "data")], {"unknown": "data"}, "a result has no call"),
        ([CALLED, result("a", "1"), result("a", "2")], {"x": "1", "unknown": "2"}, "a result has no call"),
        ([call(("a", "x", {}), ("b", "y", {})), result("a", "1"), result("z", "?"), result("b", "2")],
         {"x": "1", "y": "2", "unknown": "?"}, "a result has no call"),
        ([CALLED, user("wait"), result("a", "1")], {"x": "1"}, "a message stands between a call and its result"),
        ([call(("a", "x", {}), ("a", "y", {})), result("a", "1"), result("a", "2")], {"x": "1", "y": "2"},
         "two calls share an id"),
    ],
)  # fmt: skip
def test_pairs_of_a_turn_and_what_is_wrong_with_them(messages, pairs, fault):
    i = only((user(), *messages))
    assert {p.tool_name: p.result and p.result.text for p in i.pairs} == pairs
    assert i.fault == fault


def test_an_id_used_again_in_a_later_turn_belongs_to_that_turn():
    found = interactions([user(), CALLED, result("a", "1"), CALLED, result("a", "2")])
    assert [i.pairs[0].result.text for i in found] == ["1", "2"]


def test_legacy_function_call():
    i = only([user(), {"role": "assistant", "content": None, "function_call": {"name": "find", "arguments": '{"q": 1}'}},
              {"role": "function", "name": "find", "content": "found"}])  # fmt: skip
    assert (i.pairs[0].call.raw_input, i.pairs[0].result.text, i.fault) == ({"q": 1}, "found", "")


def of(call):
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def test_custom_calls_carry_free_text():
    i = only(
        [
            user(),
            of({"id": "a", "type": "custom", "custom": {"name": "grep", "input": "a b"}}),
            result("a", "x"),
        ]
    )
    assert i.pairs[0].tool_name == "grep"
    assert i.pairs[0].call.raw_input == {"_raw": "a b"}


def test_sdk_objects_are_read_like_dicts():
    made = call(("a", "find", {"q": 1}), text="ok") | {"reasoning_content": "kept"}
    message = pytest.importorskip("openai.types.chat").ChatCompletionMessage.model_validate(made)
    messages = [user(), message, result("a", '{"id": 7}')]
    assert extract_tool_outputs(messages) == [("find", {"q": 1}, {"id": 7})]
    assert [m for s in parse_messages(messages) for m in s.messages][1] is message
    function = SimpleNamespace(name="find", arguments='{"q": 1}')
    turn = of(SimpleNamespace(id="a", type="function", function=function))
    assert extract_tool_outputs([user(), turn, result("a", "x")]) == [("find", {"q": 1}, {"_raw": "x"})]


def item(call_id, name="find"):
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}"}


def output(call_id, text):
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def test_responses_items_group_with_reasoning_and_parallel_calls():
    thought = {"type": "reasoning", "id": "r"}
    two = output("b", [{"type": "input_text", "text": "two"}])
    items = [
        user(),
        thought,
        item("a"),
        item("b", "get"),
        two,
        output("a", "one"),
        thought,
        item("c"),
        output("c", "3"),
    ]
    first, second = interactions(items)
    assert (first.start, first.stop, second.start, second.stop) == (1, 6, 6, 9)
    assert [(p.tool_name, p.result.text) for p in first.pairs] == [("find", "one"), ("get", "two")]
    assert first.fault == second.fault == ""
    turn = [thought, *(item(f"p{n}") for n in range(5)), *(output(f"p{n}", "x") for n in range(5))]
    (found,) = latest_interactions([user(), *rounds(3), *turn], 1)
    assert (found.start, len(found.pairs)) == (7, 5)


def test_a_hosted_tool_answers_itself():
    i = only(
        [user(), {"type": "web_search_call", "id": "w", "action": {"query": "x"}, "results": [{"url": "u"}]}]
    )
    assert not i.fault
    assert i.pairs[0].result.raw_output == [{"url": "u"}]


def test_assistant_text_directly_before_a_call_belongs_to_it_and_other_text_stands_alone():
    segments = parse_messages(
        [user(), say("Hello."), user("go"), say("Looking."), call(("a", "x", {})), result("a", "1")]
    )
    assert [type(s) for s in segments] == [Utterance, Utterance, Utterance, Interaction]
    assert segments[3].remark == "Looking."


def test_images_of_a_result_ride_with_it_but_a_users_words_never_do():
    def with_image(text):
        return user([{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": "u"}}])

    image, spoken = with_image("<tool_result id=a>"), with_image("What is this?")
    i = only([user(), CALLED, result("a", "See file 1"), image])
    assert i.messages[-1] is image
    assert i.pairs[0].result.raw_output["attached"] == [image["content"]]
    for words in (spoken, user("stop that")):
        last = parse_messages([user(), CALLED, result("a", "ok"), words])[-1]
        assert isinstance(last, Utterance)
        assert last.message is words


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1}', {"a": 1}), ("", {}), (None, {}), ("  ", {}), ({"a": 1}, {"a": 1}), ([1], {"_raw": [1]}),
        ('{"a": ', {"_raw": '{"a": '}), ("[1, 2]", {"_raw": "[1, 2]"}), ('"text"', {"_raw": '"text"'}),
    ],
)  # fmt: skip
def test_arguments_of_every_kind(arguments, expected):
    turn = of({"id": "a", "function": {"name": "f", "arguments": arguments}})
    assert extract_tool_outputs([user(), turn, result("a", "1")])[0][1] == expected
    if arguments is None:
        assert extract_tool_outputs([user(), of({"id": "a", "function": {"name": "f"}}), result("a", "1")])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ("[1]", [1]),
        ("plain", {"_raw": "plain"}),
        ("", {"_raw": ""}),
        (None, None),
        ([{"type": "text", "text": '{"a": 1}'}], {"a": 1}),
        ("[" * 10_000, {"_raw": "[" * 10_000}),
        ("[" * 10_000 + "]" * 10_000, {"_raw": "[" * 10_000 + "]" * 10_000}),
        ("9" * 5_000, {"_raw": "9" * 5_000}),
        ("\ufeff{}", {"_raw": "\ufeff{}"}),
    ],
)
def test_outputs_of_every_kind(content, expected):
    assert extract_tool_outputs([user(), call(("a", "f", {})), result("a", content)])[0][2] == expected


def test_extract_looks_at_the_last_interaction_only():
    assert [o[2]["n"] for o in extract_tool_outputs([user(), *rounds(3), user("next"), say("ok")])] == [2]
    assert extract_tool_outputs([user(), say("no tools")]) == []
    assert extract_tool_outputs([]) == []


@given(good_chats(), st.integers(1, 4))
def test_the_latest_interactions_are_the_last_ones_of_the_whole_list(messages, count):
    assert latest_interactions(messages, count) == interactions(messages)[-count:]
    for begun in range(len(messages)):  # the next request knows those of the one before
        known = latest_interactions(messages[:begun], count)
        assert latest_interactions(messages, count, known) == interactions(messages)[-count:]


def test_the_task_is_the_first_user_message():
    assert task_text(parse_messages([system(), user("do it"), user("and that")])) == "do it"
    assert task_text(parse_messages([system()])) is None


def test_parallel_calls_take_linear_time():
    def read(n: int) -> None:
        turn = call(*((f"c{i}", "f", "{}") for i in range(n)))
        assert not only([user(), turn, *(result(f"c{i}", "x") for i in reversed(range(n)))]).fault

    assert growth(read, 4_000) < LINEAR


def test_pairs_know_their_content():
    a, b = (
        only([user(), call(("a", "f", {"q": 1})), result("a", text)]).pairs[0].content_key()
        for text in ("x", "y")
    )
    again = only([user(), call(("a", "f", {"q": 1})), result("a", "x")]).pairs[0].content_key()
    assert a == again != b


def test_the_signature_of_a_call_goes_with_it():
    signs = [{"type": "reasoning.encrypted", "data": "x", "id": i} for i in "ab"]
    details = [{"type": "reasoning.text", "text": "so"}, *signs]
    turn = call(("a", "f", {}), ("b", "f", {})) | {"reasoning_details": details}
    assert edited_message(turn, {1: None})["reasoning_details"] == details[:2]
    assert edited_message(turn, {1: "{}"})["reasoning_details"] == details
    odd = [{"id": {"of": "b"}}, {"id": ["b"]}, {"id": None}, "b", None]
    turn["tool_calls"][1]["id"], turn["reasoning_details"] = ["b"], odd
    assert edited_message(turn, {1: None})["reasoning_details"] == [odd[0], *odd[2:]]
