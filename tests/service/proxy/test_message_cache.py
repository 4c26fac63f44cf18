"""Messages that came before: the same objects, what is known of them, and never more than are remembered."""

from __future__ import annotations

import hashlib
import json

from hypothesis import given
from hypothesis import strategies as st
from tests import items
from tests.chats import say

from memory_bank.service.proxy.body import HOUR, SEAL, Memo, MessageCache, parse_body, render_body
from memory_bank.transcript.anthropic import from_anthropic
from memory_bank.transcript.responses import from_items
from memory_bank.transcript.textcalls import read_text_calls
from memory_bank.transcript.turns import derive_anew


def data_of(*messages, **more):
    return json.dumps({"messages": messages, **more}).encode()


def body_of(*messages, **more):
    return parse_body(data_of(*messages, **more), "messages")


def said(text):
    return {"role": "user", "content": text}


def test_the_same_bytes_are_the_same_object():
    seen = MessageCache()
    first = seen.parse(data_of(said("a"), said("b")), "messages").value["messages"]
    again = seen.parse(data_of(said("a"), said("c"), said("b")), "messages").value["messages"]
    assert again == [said("a"), said("c"), said("b")]
    assert again[0] is first[0]
    assert again[2] is first[1]


def test_no_two_of_one_body_are_the_same_object():
    seen = MessageCache()
    for _ in range(2):
        body = seen.parse(data_of(*[said("go on")] * 3), "messages")
        assert body.value["messages"] == [said("go on")] * 3
        assert len(set(map(id, body.value["messages"]))) == 3
        assert [value for value, _ in body.elements["messages"]] == body.value["messages"]


def test_what_is_forgotten_is_asked_anew():
    seen = MessageCache(chars=1000)
    old = seen.parse(data_of(said("old")), "messages").value["messages"][0]
    for n in range(40):
        seen.parse(data_of(said(f"{n} " + "x" * 100)), "messages")
    assert seen.parse(data_of(said("old")), "messages").value["messages"][0] is not old


def test_what_the_messages_of_an_earlier_request_hold_the_next_one_holds():
    seen, begun = MessageCache(), [said(f"{n}") for n in range(7)]

    def held(*messages, before=None, after=None):
        body = {"tools": before, "messages": [*begun, *messages], "metadata": after}
        return {*seen.parse(json.dumps(body).encode(), "messages").holds}

    assert held() == set()
    assert held(before="1h") == {HOUR}
    assert held(after="1h") == {HOUR}
    assert held(said("mbc1.a")) >= {SEAL}
    assert held(said("mbc1.a"), said("b")) >= {SEAL}
    assert {*body_of(*begun).holds} == {SEAL, HOUR}  # nothing was looked for


def test_each_api_makes_its_own_of_an_equal_message():
    seen, message = MessageCache(), said("a")
    asked = seen.parse(json.dumps({"input": [said("b"), message]}).encode(), "input")
    from_items(asked.value["input"], derive=asked.derive)
    body = seen.parse(data_of(message), "messages")
    read = from_anthropic(body.value["messages"], derive=body.derive)
    assert read.places == from_anthropic([message]).places


def test_each_provider_s_api_makes_its_own_of_equal_messages():
    messages = [said("Refund.")]
    for n in range(4):
        called = f'I look.\nAction: look\nAction Input: {{"n": {n}}}'
        messages += [{"role": "assistant", "content": called}, said(f"Observation: out {n}")]
    data, seen = json.dumps({"messages": messages}).encode(), MessageCache()
    for _ in range(2):
        body = seen.parse(data, "messages", provider="openai")
        assert read_text_calls(body.value["messages"], body.derive).messages[2]["role"] == "tool"
        body = seen.parse(data, "messages", provider="anthropic")
        read, alone = from_anthropic(body.value["messages"], derive=body.derive), from_anthropic(messages)
        assert (read.messages, read.places) == (alone.messages, alone.places)


def test_what_is_made_of_a_message_is_made_once_and_known():
    seen = MessageCache(chars=8_000)
    answer = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "found"}]}

    def chat(*messages):
        body = seen.parse(data_of(*messages), "messages")
        return from_anthropic(body.value["messages"], None, body.derive).messages

    first = chat(said("look"), answer, result)
    again = chat(said("look"), answer, result, answer)
    assert again[:3] == first == from_anthropic([said("look"), answer, result]).messages
    assert all(a is b for a, b in zip(first, again, strict=False))
    assert again[3] == first[1]
    assert again[3] is not first[1]
    for n in range(40):
        chat(said(f"{n} " + "x" * 100))
    assert chat(said("look"), answer, result)[1] is not first[1]


def test_a_message_that_is_made_of_several_is_the_same_at_the_next_step():
    """Items of the Responses API, and calls that an agent writes as text: only what is new is a new object."""
    listed, texts = [items.user()], [said("go")]
    for n in range(4):
        listed += [*(items.call(f"{c}{n}") for c in "ab"), *(items.output(f"{c}{n}") for c in "ab")]
        texts += [say(f"I look.\nAction: get\nAction Input: {{'n': {n}}}"), said(f"Observation: {n}")]
    for source, step, read in (
        (listed, 4, lambda given, derive: from_items(given, None, derive)),
        (texts, 2, read_text_calls),
    ):
        seen, last = MessageCache(), []
        for stop in range(1 + step, len(source) + 1, step):
            body = seen.parse(data_of(*source[:stop]), "messages")
            chat = read(body.value["messages"], body.derive).messages
            assert chat == read(source[:stop], derive_anew).messages
            assert all(a is b for a, b in zip(last, chat, strict=False))
            last = chat


messages = st.lists(
    st.one_of(st.builds(said, st.sampled_from(["", "a", "b", "é", "\ud800"])), st.just(7)), max_size=8
)


@given(st.lists(messages, max_size=6))
def test_a_body_says_what_it_said(requests):
    seen = MessageCache(chars=120)
    for given_ in requests:
        plain = body_of(*given_, stream=True)
        body = seen.parse(plain.data, "messages")
        assert body.value == plain.value
        assert render_body(body, {"messages": body.value["messages"]}) == plain.data
        kept = body.value["messages"][::2]
        assert json.loads(render_body(body, {"messages": kept}))["messages"] == given_[::2]


def interleaved(requests):
    """Requests of conversations that go on, are edited and rewound, as some client writes their JSON."""
    return st.lists(st.tuples(requests, st.integers(0, 12), st.sampled_from([",", ", ", " ,\n"])), max_size=8)


@given(st.lists(messages.filter(lambda m: 7 not in m), min_size=2, max_size=2), interleaved(messages))
def test_an_array_that_begins_as_an_earlier_one_is_read_as_if_it_were_new(begun, requests):
    seen, lists = (
        MessageCache(),
        [[said(f"task {n}"), *map(said, "cdefghi"), *b] for n, b in enumerate(begun)],
    )
    for n, (new, stop, comma) in enumerate(requests):
        own = lists[n % 2] = [*lists[n % 2][:stop], *new]
        data = f'{{"n": 1, "messages": [{comma.join(map(json.dumps, own))}], "tools": [1, 2, 3, 4, 5, 6, 7]}}'.encode()
        plain, body = parse_body(data, "messages", "tools"), seen.parse(data, "messages", "tools")
        assert (body.value, body.elements, body.spans) == (plain.value, plain.elements, plain.spans)
        assert render_body(body, {"messages": body.value["messages"][1:]}) == render_body(
            plain, {"messages": plain.value["messages"][1:]}
        )
        assert len(set(map(id, body.value["messages"]))) >= len([m for m in own if m != 7])


def test_of_a_conversation_that_goes_on_only_what_is_new_is_parsed_and_computed():
    computed, objects, seen = [], [], MessageCache()
    for stop in range(7, 12):
        data = json.dumps({"messages": [said(f"{n}") for n in range(stop)]}).encode()
        body = seen.parse(data, "messages")
        assert all(a is b for a, b in zip(objects, body.value["messages"], strict=False))
        objects = body.value["messages"]
        sizes = body.memo.of_each("size", objects, lambda m: computed.append(m) or len(m["content"]))
        assert sizes == [len(f"{n}") for n in range(stop)]
        digests = body.memo.digests("all", b"seed", [m["content"].encode() for m in objects])
        assert digests[-1] == hashlib.sha256(b"seed" + "".join(map(str, range(stop))).encode()).hexdigest()
    assert computed == [said(f"{n}") for n in range(11)]


@given(st.lists(st.tuples(st.integers(0, 30), st.lists(st.binary(max_size=3), max_size=12)), max_size=8))
def test_digests_are_those_of_the_whole_list_wherever_it_changes(changes):
    memo, parts = Memo(), []
    for stop, new in changes:
        parts = [*parts[:stop], *new]
        whole = [hashlib.sha256(b"seed" + b"".join(parts[: n + 1])).hexdigest() for n in range(len(parts))]
        assert memo.digests("chain", b"seed", parts) == whole
