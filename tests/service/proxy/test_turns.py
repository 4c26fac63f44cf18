"""Turns as one stream: what is not ours passes to the byte, what is ours leaves no trace."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import in_turn
from tests.service.proxy.test_events import cut

from memory_bank.models.usage import add_usage
from memory_bank.service.proxy.api import MEMORY_TOOLS, valid_arguments
from memory_bank.service.proxy.chat import ChatDialect
from memory_bank.service.proxy.events import MOST_BYTES, EventSplitter, read_event
from memory_bank.service.proxy.responses import ResponsesDialect
from memory_bank.testing import Reply, ScriptedServer
from memory_bank.tools import ToolAnswer

DIALECTS = {"chat": ChatDialect(), "items": ResponsesDialect()}
PATHS = {"chat": "/v1/chat/completions", "items": "/v1/responses"}
OUR_CALL = ("get_record", {"trace_id": "#1"})
THEIR_CALL = ("look", {"q": "x" * 50})

WORDS = st.one_of(st.none(), st.text(max_size=40))
REASONS = st.one_of(st.none(), st.just("thinking it over"))
CALLS = st.lists(st.sampled_from([OUR_CALL, THEIR_CALL, ("search_memory", {"query": "é"})]), max_size=3)
TURNS = st.builds(lambda c, t, r: Reply(c, t, usage=(100, 7), reasoning=r), WORDS, CALLS, REASONS)


def body_for(way):
    body = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    return {**body, "messages": []} if way == "chat" else {**body, "input": []}


def sent(way, replies):
    """The bytes in which a server streams these turns."""
    server = ScriptedServer()
    return [b"".join(server.render(reply, PATHS[way], body_for(way), 400)[1]) for reply in replies]


def joined(way, turns, places=(), rounds=99):
    """What a client gets of them, and the hidden turns."""
    stream = DIALECTS[way].open_stream(body_for(way))
    out, hidden = b"", []
    for data in turns:
        splitter = EventSplitter()
        for chunk in cut(data, places):
            out += b"".join(map(stream.feed, splitter.feed(chunk)))
        out += b"".join(map(stream.feed, splitter.close()))
        last, spoken = stream.end(len(hidden) < rounds)
        out += last
        if spoken is None:
            break
        hidden.append(spoken)
    return out, hidden


def events(data):
    splitter = EventSplitter()
    return splitter.feed(data) + splitter.close()


def is_ours(reply):
    return any(name in MEMORY_TOOLS for name, *_ in reply.tool_calls)


def shown(replies):
    """The turns up to and with the first that does not call our tools."""
    for n, reply in enumerate(replies):
        if not is_ours(reply):
            return replies[: n + 1]
    return [*replies, Reply("the end", usage=(100, 7))]


ways = in_turn("way", ["chat", "items"])


@ways
@given(st.data())
def test_a_turn_without_a_call_of_ours_passes_to_the_byte(way, data):
    reply = data.draw(TURNS.filter(lambda r: not is_ours(r)))
    turn = sent(way, [reply])[0]
    assert joined(way, [turn], data.draw(st.lists(st.integers(0, 9_999), max_size=6))) == (turn, [])


@ways
@given(st.data())
def test_it_is_all_one_how_the_bytes_were_cut(way, data):
    turns = sent(way, shown(data.draw(st.lists(TURNS, max_size=4))))
    assert joined(way, turns, data.draw(st.lists(st.integers(0, 9_999), max_size=9))) == joined(way, turns)


@given(st.lists(TURNS, max_size=4))
def test_hidden_chat_turns_make_one_stream(replies):
    replies = shown(replies)
    out, hidden = joined("chat", sent("chat", replies))
    assert len(hidden) == len(replies) - 1
    chunks = [e.value for e in events(out) if e.value]
    assert [e.data for e in events(out) if e.value is None] == ["[DONE]"]
    assert len({c["id"] for c in chunks}) == 1
    choices = [c for chunk in chunks for c in chunk["choices"]]
    deltas = [c["delta"] for c in choices]
    assert [d["role"] for d in deltas if "role" in d] == ["assistant"]
    assert "role" in deltas[0]
    assert sum(c["finish_reason"] is not None for c in choices) == 1
    assert choices[-1]["finish_reason"] == ("tool_calls" if replies[-1].tool_calls else "stop")
    said = [r.content for r in replies if r.content]
    assert "".join(d.get("content") or "" for d in deltas) == "\n\n".join(said)
    called = [c["function"]["name"] for d in deltas for c in d.get("tool_calls", ()) if c.get("id")]
    assert called == [name for name, *_ in replies[-1].tool_calls]
    usage = [c["usage"] for c in chunks if c.get("usage")]
    n = len(replies)
    assert usage == [{"prompt_tokens": 100 * n, "completion_tokens": 7 * n, "total_tokens": 107 * n}]


@given(st.lists(TURNS, max_size=4))
def test_hidden_items_make_one_stream(replies):
    replies = shown(replies)
    out, hidden = joined("items", sent("items", replies))
    assert len(hidden) == len(replies) - 1
    values = [e.value for e in events(out)]
    assert [v["sequence_number"] for v in values] == list(range(len(values)))
    kinds = [v["type"] for v in values]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert [k for k in kinds if k in ("response.created", "response.completed")] == [
        "response.created",
        "response.completed",
    ]
    response = values[-1]["response"]
    assert response["id"] == values[0]["response"]["id"]
    done = {v["output_index"]: v["item"] for v in values if v["type"] == "response.output_item.done"}
    added = [v["output_index"] for v in values if v["type"] == "response.output_item.added"]
    assert added == list(done) == list(range(len(response["output"])))
    assert list(done.values()) == response["output"]
    for v in values:
        if "item_id" in v:
            assert done[v["output_index"]]["id"] == v["item_id"]
    texts = [i["content"][0]["text"] for i in response["output"] if i["type"] == "message"]
    assert texts == [r.content for r in replies if r.content is not None]
    called = [i["name"] for i in response["output"] if i["type"] == "function_call"]
    assert called == [name for name, *_ in replies[-1].tool_calls]
    assert response["usage"]["input_tokens"] == 100 * len(replies)
    thought = [r.reasoning is not None for r in replies]
    spoke = [r.content is not None for r in replies[:-1]] + [True]  # reasoning goes with what it led to
    reasoned = [i["id"] for i in response["output"] if i["type"] == "reasoning"]
    assert len(reasoned) == sum(t and s for t, s in zip(thought, spoke, strict=True))


@ways
def test_a_hidden_turn_is_what_the_model_said(way):
    turn = Reply("Let me see.", [OUR_CALL, ("look", {"q": 1}, "c9")], reasoning="hm")
    out, [hidden] = joined(way, sent(way, [turn, Reply("Done.")]))
    assert [(c.name, json.loads(c.arguments), c.is_memory) for c in hidden.calls] == [
        ("get_record", {"trace_id": "#1"}, True),
        ("look", {"q": 1}, False),
    ]
    assert b"get_record" not in out
    assert b"look" not in out
    results = [DIALECTS[way].result(c, ToolAnswer("text")) for c in hidden.calls]
    if way == "chat":
        [message] = hidden.messages
        assert message["content"] == "Let me see."
        assert message["reasoning_content"] == "hm"
        assert [c["id"] for c in message["tool_calls"]] == [r["tool_call_id"] for r in results]
        assert results[1] == {"role": "tool", "tool_call_id": "c9", "content": "text"}
    else:
        assert [i["type"] for i in hidden.messages] == [
            "reasoning",
            "message",
            "function_call",
            "function_call",
        ]
        assert results[1] == {"type": "function_call_output", "call_id": "c9", "output": "text"}


@ways
def test_after_the_last_round_a_call_of_ours_is_the_clients(way):
    turns = sent(way, [Reply(tool_calls=[OUR_CALL])] * 4)
    out, hidden = joined(way, turns, rounds=2)
    assert len(hidden) == 2
    assert b"get_record" in out
    if way == "chat":
        assert out != turns[2]  # its usage is of all three
        assert out.replace(b" ", b"").count(b'"tool_calls":[') == turns[2].replace(b" ", b"").count(
            b'"tool_calls":['
        )


@ways
def test_words_come_before_the_turn_is_over_and_calls_after(way):
    [data] = sent(way, [Reply("some words to be read at once", [THEIR_CALL])])
    stream = DIALECTS[way].open_stream(body_for(way))
    came = [(e, stream.feed(e)) for e in events(data)]
    begins = next(i for i, (e, _) in enumerate(came) if b"words" in e.raw or b"some wor" in e.raw)
    assert came[begins][1].endswith(came[begins][0].raw)
    first_call = next(i for i, (e, _) in enumerate(came) if b"look" in e.raw)
    assert all(out == e.raw for e, out in came[begins + 1 : first_call])
    assert all(out == b"" for _, out in came[first_call:])
    assert stream.end(True) == (b"".join(e.raw for e, _ in came[first_call:]), None)


@ways
def test_a_stream_that_breaks_off_gives_what_is_the_clients(way):
    for call, expected in ((THEIR_CALL, True), (OUR_CALL, False)):
        [data] = sent(way, [Reply(None, [call])])
        for size in range(0, len(data), 7):
            stream = DIALECTS[way].open_stream(body_for(way))
            whole = EventSplitter().feed(data[:size])
            out = b"".join(map(stream.feed, whole)) + stream.break_off()
            named = any(call[0].encode() in e.raw for e in whole)
            if expected or not named:
                assert out == b"".join(e.raw for e in whole)
            else:
                assert out == b""


@ways
def test_nothing_is_hidden_of_a_turn_that_failed(way):
    [data] = sent(way, [Reply(None, [OUR_CALL])])
    whole = events(data)
    if way == "chat":
        failed = [*(e.raw for e in whole[:-2]), b'data: {"error": {"message": "no"}}\n\n']
    else:
        end = whole[-1].value
        end["type"], end["response"]["status"] = "response.failed", "failed"
        failed = [*(e.raw for e in whole[:-1]), b"data: " + json.dumps(end).encode() + b"\n\n"]
    out, hidden = joined(way, [b"".join(failed)])
    assert hidden == []
    assert out == b"".join(failed)


def chunk(delta, **more):
    return (
        b"data: "
        + json.dumps({"id": "c", "choices": [{"index": 0, "delta": delta, **more}]}).encode()
        + b"\n\n"
    )


def piece(index=None, call_id=None, name=None, arguments=None):
    made = {} if index is None else {"index": index}
    made |= {} if call_id is None else {"id": call_id, "type": "function"}
    return {
        **made,
        "function": {k: v for k, v in (("name", name), ("arguments", arguments)) if v is not None},
    }


@pytest.mark.parametrize(
    "pieces",
    [
        [
            piece(0, "a", "get_record", ""),
            piece(0, None, None, '{"x"'),
            piece(0, None, None, ":1}"),
            piece(1, "b", "look", "{}"),
        ],
        [piece(0, "a", "get_record", '{"x":1}'), piece(0, "b", "look", "{}")],  # one index for all
        [
            piece(None, "a", "get_record", '{"x"'),
            piece(None, None, None, ":1}"),
            piece(None, "b", "look", "{}"),
        ],
        [
            piece(0, "a", "get_record", ""),
            piece(1, "b", "look", ""),
            piece(0, "", None, '{"x":1}'),
            piece(1, None, "", "{}"),
        ],
    ],
)
def test_pieces_of_calls_as_servers_send_them(pieces):
    stream = DIALECTS["chat"].open_stream({})
    for one in pieces:
        assert stream.feed(read_event(chunk({"tool_calls": [one]}))) == b""
    _, spoken = stream.end(True)
    assert [(c.name, c.arguments, c.item["id"]) for c in spoken.calls] == [
        ("get_record", '{"x":1}', "a"),
        ("look", "{}", "b"),
    ]


def test_a_server_that_names_the_role_in_every_delta():
    role = {"role": "assistant"}
    first = [
        chunk({**role, "content": "Wait."}),
        chunk({**role, "tool_calls": [piece(0, "a", "get_record", "{}")]}),
    ]
    then = [chunk({**role, "content": ""}), chunk({**role, "content": "Done."}, finish_reason="stop")]
    out, [_] = joined("chat", [b"".join(first), b"".join(then)])
    deltas = [e.value["choices"][0]["delta"] for e in events(out)]
    assert deltas == [{**role, "content": "Wait."}, {"content": "\n\nDone."}]


def test_a_call_without_an_id_gets_one_and_broken_arguments_are_not_sent_back():
    value = {
        "choices": [
            {
                "message": {
                    "role": "assistant",
                    "tool_calls": [{"function": {"name": "get_record", "arguments": '{"x'}}],
                }
            }
        ]
    }
    spoken = DIALECTS["chat"].read_answer(value, {})
    assert spoken.calls[0].arguments == '{"x'
    [said] = spoken.messages
    assert said["tool_calls"][0]["function"]["arguments"] == "{}"
    assert (
        DIALECTS["chat"].result(spoken.calls[0], ToolAnswer("t"))["tool_call_id"]
        == said["tool_calls"][0]["id"]
        != ""
    )
    assert valid_arguments('{"a": 1}') == '{"a": 1}'
    assert (
        valid_arguments("")
        == valid_arguments(None)
        == valid_arguments([1])
        == valid_arguments("[1]")
        == valid_arguments("{")
        == "{}"
    )


def test_what_the_provider_does_not_keep_is_not_named_to_it():
    output = [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "reasoning", "id": "rs_2", "encrypted_content": "x"},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "get_record", "arguments": "{}"},
        {"type": "computer_call", "id": "cc_1", "call_id": "c2", "action": {}},
        "odd",
    ]
    kept = ResponsesDialect().read_answer({"output": output}, {"store": True})
    assert kept.messages == output[:3]
    assert [(c.is_memory, ResponsesDialect().result(c, ToolAnswer("t")) is None) for c in kept.calls] == [
        (True, False),
        (False, True),
    ]
    forgotten = ResponsesDialect().read_answer({"output": output}, {"store": False})
    assert [i["type"] for i in forgotten.messages] == ["reasoning", "function_call"]
    assert forgotten.messages[0]["id"] == "rs_2"
    assert "id" not in forgotten.messages[1]


@pytest.mark.parametrize("odd", [{}, {"choices": []}, {"choices": [None]}, {"choices": [{"message": 1}]}, {"choices": [{"message": {"tool_calls": [1, {"function": 2}, {}]}}]}, {"output": 3}, {"output": [None, {"type": 5}]}, {"usage": 3}])  # fmt: skip
def test_odd_answers_are_read(odd):
    for dialect in DIALECTS.values():
        assert not dialect.read_answer(odd, {}).calls_memory
    for way in DIALECTS:
        data = (
            b"data: " + json.dumps({"type": "response.completed", "response": odd, **odd}).encode() + b"\n\n"
        )
        assert joined(way, [data]) == (data, [])


# --- offering


def test_our_tools_come_after_the_clients():
    mine = {"type": "function", "function": {"name": "look"}}
    offered = DIALECTS["chat"].offer_tools({"tools": [mine], "tool_choice": "auto"})
    assert offered[0] is mine
    assert [t["function"]["name"] for t in offered[1:]] == ["get_record"]
    offered = DIALECTS["items"].offer_tools({"tools": [{"type": "web_search"}], "tool_choice": "required"})
    assert [t.get("name") for t in offered] == [None, "get_record"]
    assert all(t["strict"] and t["parameters"] for t in offered[1:])
    assert len(DIALECTS["chat"].offer_tools({"tools": None})) == len(DIALECTS["items"].offer_tools({})) == 1


@pytest.mark.parametrize(
    "body",
    [
        {"tool_choice": "none"},
        {"tool_choice": "required"},  # nothing but ours could be called
        {"tool_choice": {"type": "function", "function": {"name": "look"}}},
        {"tool_choice": {"type": "allowed_tools", "tools": []}},
        {"tools": [{"type": "function", "function": {"name": "get_record"}}]},
        {"tools": [{"type": "function", "name": "mcp__memory_bank__search_memory"}]},
        {"tools": [{"type": "custom", "custom": {"name": "list_records"}}]},
        {"tools": "odd"},
    ],
)
@ways
def test_where_our_tools_are_not_offered(way, body):
    assert DIALECTS[way].offer_tools(body) is None


def test_where_one_of_the_two_cannot_offer_them():
    assert all(
        DIALECTS["chat"].offer_tools(b) is None
        for b in ({"n": 2}, {"functions": [{}]}, {"function_call": "auto"})
    )
    assert DIALECTS["chat"].offer_tools({"n": 1}) is not None
    assert all(
        DIALECTS["items"].offer_tools(b) is None for b in ({"background": True}, {"prompt": {"id": "p"}})
    )
    assert (
        DIALECTS["items"].offer_tools({"prompt": {"id": "p"}, "tools": [{"type": "web_search"}]}) is not None
    )


def test_usage_is_added_with_its_details():
    one = {"total": 3, "details": {"cached": 1, "kind": "a"}, "cost": 0.5, "flag": True}
    other = {"total": 4, "details": {"cached": 2, "kind": "b", "new": 1}, "cost": None, "more": 1}
    assert add_usage(one, other) == {
        "total": 7, "details": {"cached": 3, "kind": "b", "new": 1}, "cost": 0.5, "flag": True, "more": 1,
    }  # fmt: skip
    assert add_usage({}, one) == add_usage(one, {}) == one


@ways
@pytest.mark.parametrize("piece", [1, 40_000])
def test_a_turn_that_is_too_long_is_not_held(way, piece):
    """From the bound on it passes, also where it calls a memory tool; the time is in proportion to its length."""
    [data] = sent(way, [Reply(tool_calls=[("get_record", {"trace_id": "#1"})])])
    begun = [e for e in events(data) if b"delta" in e.raw]
    delta = next(e for e in begun if b"trace_id" in e.raw or b'\\"' in e.raw)
    value = json.loads(delta.data)
    if way == "chat":
        value["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"] = "x" * piece
    else:
        value["delta"] = "x" * piece
    event = read_event(b"data: " + json.dumps(value).encode() + b"\n\n")
    stream, fed, out = DIALECTS[way].open_stream(body_for(way)), 0, b""
    for first in events(data)[: events(data).index(delta)]:
        out += stream.feed(first)
        fed += len(first.raw)
    assert out == b""
    while not out:
        out = stream.feed(event)
        fed += len(event.raw)
    assert len(out) == fed
    assert fed - len(event.raw) <= MOST_BYTES < fed
    assert stream.feed(event) == event.raw
    assert stream.end(True) == (b"", None)
