"""Messages to interactions and back, for every shape that arrives in the wild."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chats import any_chats, call, good_chats, result, rounds, say, system, user

from memory_bank.errors import MessagesError
from memory_bank.transcript.messages import (
    Interaction,
    MessageKind,
    Utterance,
    extract_tool_outputs,
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
    from memory_bank.transcript.messages import kind_of

    results = sum(1 for m in messages if kind_of(m) is MessageKind.RESULT)
    own = sum(
        1 for m in messages if isinstance(m, dict) and m.get("type") == "web_search_call" and "role" not in m
    )
    assert sum(1 for i in interactions(messages) for p in i.pairs if p.result) == results + own


@pytest.mark.parametrize("wrong", ["text", {"role": "user"}, None, 3, iter([])])
def test_what_is_no_list_is_refused_in_one_sentence(wrong):
    with pytest.raises(MessagesError, match="messages must be a list of chat messages, not"):
        parse_messages(wrong)


def test_a_tuple_is_fine():
    assert len(parse_messages((user(), say("hello")))) == 2


def test_parallel_results_in_any_order_find_their_calls():
    i = only(
        [
            user(),
            call(("a", "find", {"q": 1}), ("b", "get", {"q": 2})),
            result("b", "second"),
            result("a", "first"),
        ]
    )
    assert [(p.tool_name, p.result.text) for p in i.pairs] == [("find", "first"), ("get", "second")]
    assert not i.fault


def test_an_id_used_again_in_a_later_turn_belongs_to_that_turn():
    first, second = interactions(
        [user(), call(("a", "x", {})), result("a", "1"), call(("a", "x", {})), result("a", "2")]
    )
    assert first.pairs[0].result.text == "1"
    assert second.pairs[0].result.text == "2"


def test_a_pending_call_is_kept_and_named():
    i = only([user(), call(("a", "x", {}), ("b", "y", {})), result("a", "1")])
    assert i.fault == "a call has no result"
    assert i.pairs[1].result is None


def test_an_orphaned_result_is_an_interaction_with_a_fault():
    i = only([user(), result("zzz", "data")])
    assert i.fault == "a result has no call"
    assert i.pairs[0].tool_name == "unknown"
    assert i.pairs[0].result.text == "data"


def test_a_second_result_for_one_call_is_an_orphan():
    i = only([user(), call(("a", "x", {})), result("a", "1"), result("a", "2")])
    assert [p.result.text for p in i.pairs] == ["1", "2"]
    assert "a result has no call" in i.fault


def test_an_orphan_among_expected_results_marks_their_turn():
    i = only(
        [user(), call(("a", "x", {}), ("b", "y", {})), result("a", "1"), result("z", "?"), result("b", "2")]
    )
    assert [p.tool_name for p in i.pairs] == ["x", "y", "unknown"]
    assert i.fault == "a result has no call"


def test_a_message_between_call_and_result_is_told():
    i = only([user(), call(("a", "x", {})), user("wait"), result("a", "1")])
    assert i.fault == "a message stands between a call and its result"
    assert i.pairs[0].result.text == "1"


def test_two_calls_of_one_turn_with_one_id():
    i = only([user(), call(("a", "x", {}), ("a", "y", {})), result("a", "1"), result("a", "2")])
    assert [(p.tool_name, p.result.text) for p in i.pairs] == [("x", "1"), ("y", "2")]
    assert "share an id" in i.fault


def test_legacy_function_call():
    i = only([user(), {"role": "assistant", "content": None, "function_call": {"name": "find", "arguments": '{"q": 1}'}},
              {"role": "function", "name": "find", "content": "found"}])  # fmt: skip
    assert (i.pairs[0].call.raw_input, i.pairs[0].result.text, i.fault) == ({"q": 1}, "found", "")


def test_custom_calls_carry_free_text():
    turn = {
        "role": "assistant",
        "tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "grep", "input": "a b"}}],
    }
    i = only([user(), turn, result("a", "x")])
    assert i.pairs[0].tool_name == "grep"
    assert i.pairs[0].call.raw_input == {"_raw": "a b"}


def test_sdk_objects_are_read_like_dicts():
    from openai.types.chat import ChatCompletionMessage

    message = ChatCompletionMessage.model_validate(
        {
            "role": "assistant",
            "content": "ok",
            "reasoning_content": "kept",
            **{k: v for k, v in call(("a", "find", {"q": 1})).items() if k == "tool_calls"},
        }
    )
    messages = [user(), message, result("a", '{"id": 7}')]
    assert extract_tool_outputs(messages) == [("find", {"q": 1}, {"id": 7})]
    assert [m for s in parse_messages(messages) for m in s.messages][1] is message


def test_calls_as_objects_inside_a_dict():
    function = SimpleNamespace(name="find", arguments='{"q": 1}')
    turn = {
        "role": "assistant",
        "content": None,
        "tool_calls": [SimpleNamespace(id="a", type="function", function=function)],
    }
    assert extract_tool_outputs([user(), turn, result("a", "x")]) == [("find", {"q": 1}, {"_raw": "x"})]


def test_responses_items_group_with_reasoning_and_parallel_calls():
    items = [
        user(),
        {"type": "reasoning", "id": "r"},
        {"type": "function_call", "call_id": "a", "name": "find", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "get", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "two"}]},
        {"type": "function_call_output", "call_id": "a", "output": "one"},
        {"type": "reasoning", "id": "r2"},
        {"type": "function_call", "call_id": "c", "name": "find", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "three"},
    ]
    first, second = interactions(items)
    assert (first.start, first.stop, second.start, second.stop) == (1, 6, 6, 9)
    assert [(p.tool_name, p.result.text) for p in first.pairs] == [("find", "one"), ("get", "two")]
    assert not first.fault
    assert not second.fault


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
    assert segments[3].note == "Looking."


def test_images_of_a_result_ride_with_it_but_a_users_words_never_do():
    image = {
        "role": "user",
        "content": [
            {"type": "text", "text": "<tool_result id=a>"},
            {"type": "image_url", "image_url": {"url": "u"}},
        ],
    }
    i = only([user(), call(("a", "shot", {})), result("a", "See file 1"), image])
    assert i.messages[-1] is image
    assert i.pairs[0].result.raw_output["attached"] == [image["content"]]
    spoken = {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": "u"}},
        ],
    }
    segments = parse_messages([user(), call(("a", "shot", {})), result("a", "ok"), spoken])
    assert isinstance(segments[-1], Utterance)
    assert segments[-1].message is spoken


def test_a_user_turn_after_results_is_the_users():
    segments = parse_messages([user(), call(("a", "x", {})), result("a", "1"), user("stop that")])
    assert isinstance(segments[-1], Utterance)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        (None, {}),
        ("  ", {}),
        ({"a": 1}, {"a": 1}),
        ('{"a": ', {"_raw": '{"a": '}),
        ("[1, 2]", {"_raw": "[1, 2]"}),
        ('"text"', {"_raw": '"text"'}),
        ([1], {"_raw": [1]}),
    ],
)
def test_arguments_of_every_kind(arguments, expected):
    turn = {
        "role": "assistant",
        "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": arguments}}],
    }
    assert extract_tool_outputs([user(), turn, result("a", "1")])[0][1] == expected


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


def test_parallel_calls_as_items_are_one_of_the_latest_interactions():
    def item(n):
        return {"type": "function_call", "call_id": f"p{n}", "name": "f", "arguments": "{}"}

    def output(n):
        return {"type": "function_call_output", "call_id": f"p{n}", "output": "x"}

    turn = [{"type": "reasoning", "summary": []}, *map(item, range(5)), *map(output, range(5))]
    (found,) = latest_interactions([user(), *rounds(3), *turn], 1)
    assert (found.start, len(found.pairs)) == (7, 5)


def test_missing_arguments_and_type_are_fine():
    turn = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "api"}}]}
    assert extract_tool_outputs([user(), turn, result("1", '{"result": "ok"}')]) == [
        ("api", {}, {"result": "ok"})
    ]


def test_the_task_is_the_first_user_message():
    assert task_text(parse_messages([system(), user("do it"), user("and that")])) == "do it"
    assert task_text(parse_messages([system()])) is None


def test_ten_thousand_parallel_calls_take_linear_time():
    import time

    def seconds(n: int) -> float:
        turn = call(*((f"c{i}", "f", "{}") for i in range(n)))
        messages = [user(), turn, *(result(f"c{i}", "x") for i in reversed(range(n)))]
        start = time.thread_time()
        assert not only(messages).fault
        return time.thread_time() - start

    seconds(1000)  # quadratic time would take 256 times as long
    assert min(seconds(16_000) for _ in range(3)) < 100 * max(1e-4, min(seconds(1_000) for _ in range(5)))


def test_pairs_know_their_content():
    a, b = (
        only([user(), call(("a", "f", {"q": 1})), result("a", text)]).pairs[0].content_key()
        for text in ("x", "y")
    )
    again = only([user(), call(("a", "f", {"q": 1})), result("a", "x")]).pairs[0].content_key()
    assert a == again != b
