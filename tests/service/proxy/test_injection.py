"""Tools injected by the proxy: an agent that knows nothing of them gets back what was left out."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import socket
import threading
import time
from contextlib import contextmanager

import openai
import pytest
from tests.examples import first_short, in_turn
from tests.replies import cut, raw, run_agent
from tests.service.processes import until
from tests.service.proxied import RawUpstream, chunked, configured, head_of, post, proxied, scripted, whole
from tests.service.requests import body_of
from tests.service.tasks import HANDLERS, TOOLS, get_order

from memory_bank.bank.database import Database
from memory_bank.config import ServiceSettings, load_config
from memory_bank.errors import UpstreamError
from memory_bank.service.proxy.api import MEMORY_TOOLS
from memory_bank.service.proxy.body import MessageCache, parse_body
from memory_bank.service.proxy.events import MOST_BYTES
from memory_bank.service.proxy.exchange import REFUSED_TOO, ROUNDS, Exchange
from memory_bank.service.proxy.flow import DIALECTS
from memory_bank.service.proxy.identity import Identity
from memory_bank.service.proxy.memory_calls import NOT_YET, answer_memory_calls
from memory_bank.service.proxy.rebuild import Rebuilder
from memory_bank.service.proxy.send import send
from memory_bank.service.proxy.shared import Proxy, Seals
from memory_bank.service.proxy.upstream import UpstreamAnswer
from memory_bank.service.sessions import Sessions
from memory_bank.testing import Reply, call, calls, fail, say
from memory_bank.transcript.responses import item_errors

SESSION = {"x-memory-session": "task"}
HEADERS = (b"x-memory-session: task", b"content-type: application/json")
STEPS = 12
SECRET = json.loads(get_order(3))["lines"][41]["sku"]

OUTPUTS = [get_order(n) for n in range(STEPS)]
MESSAGES = body_of("chat", OUTPUTS)["messages"]
ITEMS, ITEM_TOOLS = (body_of("responses", OUTPUTS, TOOLS)[key] for key in ("input", "tools"))
FETCH = call("get_record", trace_id="#4", path="lines[41].sku")
ways = in_turn("way", ["chat", "responses"])
streams = pytest.mark.parametrize("stream", [False, True])


BANK = {
    "type": "memory_bank",
    "selection": "evidence",
    "embedding_model": "lexical",
    "observer_model": "extractive",
    "refresh_after": 0,
    "history_budget": 400,  # so that much is left out
}


@contextmanager
def injected(tmp_path, script, **service):
    """A proxy with our tools before a strict upstream."""
    with scripted(script, tmp_path, {"small": BANK}, **{"inject_tools": True, **service}) as (server, p):
        yield server, p
        assert server.refused == []


def client_of(p, **headers):
    return openai.OpenAI(
        base_url=p.base_url, api_key="k", max_retries=0, default_headers={**SESSION, **headers}
    )


def ask(p, way, stream=False, **more):
    """One request of the real client; what it got: the words, the calls, the usage."""
    client = client_of(p)
    if way == "chat":
        if not stream:
            done = client.chat.completions.create(model="m", messages=MESSAGES, tools=TOOLS, **more)
            said = done.choices[0].message
        else:
            options = {"stream_options": {"include_usage": True}, **more}
            with client.chat.completions.stream(
                model="m", messages=MESSAGES, tools=TOOLS, **options
            ) as events:
                done = events.get_final_completion()
            said = done.choices[0].message
        names = [(c.function.name, c.function.arguments) for c in said.tool_calls or ()]
        return said.content, names, done.usage.model_dump(exclude_unset=True)
    if not stream:
        done = client.responses.create(model="m", input=ITEMS, tools=ITEM_TOOLS, **more)
    else:
        with client.responses.stream(model="m", input=ITEMS, tools=ITEM_TOOLS, **more) as events:
            done = events.get_final_response()
    names = [(i.name, i.arguments) for i in done.output if i.type == "function_call"]
    return done.output_text or None, names, done.usage.model_dump()


def said_in(body):
    return body["messages"] if "messages" in body else body["input"]


def tools_in(body):
    return [t["function"]["name"] if "function" in t else t["name"] for t in body.get("tools") or ()]


def results_in(body):
    return [
        m.get("content") or m.get("output")
        for m in said_in(body)
        if m.get("role") == "tool" or m.get("type") == "function_call_output"
    ]


# --- what was left out comes back


@ways
@streams
def test_what_was_left_out_is_fetched_unseen(tmp_path, way, stream):
    final = f"It is {SECRET}."
    with injected(tmp_path, [FETCH, say(final)]) as (server, p):
        words, names, usage = ask(p, way, stream)
        assert (words, names) == (final, [])
        first, second = (r.body for r in server.requests)
        assert SECRET not in json.dumps(first)
        assert (
            tools_in(first)
            == tools_in(second)
            == [
                "get_order",
                "get_parcel",
                "get_record",
            ]
        )
        [added] = [r for r in results_in(second) if "retrieved-data" in str(r) and SECRET in r]
        assert added.startswith("<retrieved-data seal=")
        assert said_in(second)[: len(said_in(first))] == said_in(first)
        assert len(said_in(second)) == len(said_in(first)) + 2
        assert p.lines == []
        [told] = p.told()
    assert told.outcome == "complete"
    assert usage["total_tokens"] == (told.usage.input or 0) + (told.usage.output or 0)
    assert usage["total_tokens"] > sum(len(json.dumps(b)) for b in (first, second)) // 5


def test_the_usage_of_hidden_turns_adds_up_wherever_it_stands(tmp_path):
    """The provider's usage stands beside its own member, and the last event repeats the counts as zeros."""

    def streamed(number, reply):
        usage = {"prompt_tokens": 1000 * number, "completion_tokens": number, "cached_tokens": 100 * number}
        end = {"choices": [], "x_groq": {"id": "r", "usage": usage}}
        zeros = {"choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": 0}}
        chunks = [{"choices": [{"index": 0, "delta": reply}]}, end, zeros]
        return chunked(
            *(f"data: {json.dumps(c)}\n\n".encode() for c in chunks),
            headers=(b"Content-Type: text/event-stream",),
        )

    function = {"name": "get_record", "arguments": '{"trace_id": "#4"}'}
    fetch = {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": function}]}
    replies = iter([streamed(1, fetch), streamed(2, {"content": "done"})])
    with RawUpstream(lambda _: next(replies)) as upstream:
        service = {"upstream": upstream.base_url, "database": str(tmp_path / "bank.db"), "strategy": "small"}
        config = configured({"small": BANK}, None, inject_tools=True, **service)
        with proxied("", "", config) as p:
            asked = {"model": "m", "messages": MESSAGES, "tools": TOOLS, "stream": True}
            came = post(p.port, "/v1/chat/completions", asked, *HEADERS)
            [told] = p.told()
    assert b"done" in came.body
    assert len(upstream.got) == 2
    assert told.usage[:3] == (3000, 3, 300)


@ways
@streams
def test_by_default_tools_come_with_rebuilt_contexts_beside_tools_of_the_client(tmp_path, way, stream):
    large = json.loads(json.dumps(TOOLS if way == "chat" else ITEM_TOOLS))
    large[0].get("function", large[0])["description"] = "What an order is. " * 3_000
    with injected(tmp_path, [FETCH, say(SECRET)], inject_tools=ServiceSettings().inject_tools) as (server, p):
        assert ask(p, way, stream, extra_body={"tools": large})[:2] == (SECRET, [])
        assert [set(tools_in(r.body)) & MEMORY_TOOLS for r in server.requests] == [{"get_record"}] * 2


@pytest.mark.parametrize("inject", ["auto", False])
def test_otherwise_nothing_is_offered(tmp_path, inject):
    """To a client that brings no tools, or where the setting is off."""
    with injected(tmp_path, lambda _: say("one"), inject_tools=inject) as (server, p):
        client = client_of(p)
        short = [*MESSAGES[:4]]
        for _ in range(2):  # there are records now
            client.chat.completions.create(model="m", messages=short, **({} if inject else {"tools": TOOLS}))
        client.chat.completions.create(model="m", messages=MESSAGES)
        if not inject:
            client.chat.completions.create(model="m", messages=MESSAGES, tools=TOOLS)
        assert [e.memory for e in p.told(3)] == ["unchanged", "unchanged", "rebuilt"]
    offered = [set(tools_in(r.body)) & MEMORY_TOOLS for r in server.requests]
    assert not any(offered)


def test_a_client_whose_tools_stand_in_an_item_is_offered_none(tmp_path):
    item = {"type": "additional_tools", "role": "developer", "tools": ITEM_TOOLS}
    body = json.dumps({"model": "m", "input": [item, *ITEMS], "store": False}).encode()
    with injected(tmp_path, lambda _: say("one"), inject_tools="auto") as (server, p):
        assert post(p.port, "/v1/responses", body, *HEADERS).status == 200
        assert [e.memory for e in p.told(1)] == ["rebuilt"]
    [request] = server.requests
    assert "tools" not in request.body
    assert request.body["input"][0] == item


def test_an_agent_recovers_every_value_that_its_context_has_lost(tmp_path):
    """A whole task by the reference agent; at its end the model needs what it saw long ago."""
    rng = random.Random(7)
    wanted = {n: rng.randrange(60) for n in range(20)}
    skus = {n: json.loads(get_order(n))["lines"][k]["sku"] for n, k in wanted.items()}
    lost, found = [], {}

    def model():
        body = yield
        for n in wanted:
            body = yield call("get_order", number=n)
        seen = json.dumps(body["messages"])
        lost.extend(n for n in wanted if skus[n] not in seen)
        for i, n in enumerate(lost):
            body = yield call("get_record", trace_id=f"#{n + 1}", path=f"lines[{wanted[n]}].sku")
            found[n] = skus[n] in body["messages"][-1]["content"]
            if i % ROUNDS == ROUNDS - 1:
                body = yield call("get_parcel", number=i)
        yield say("Done.")

    turns = model()
    next(turns)
    with injected(tmp_path, turns.send) as (server, p):
        told = run_agent(client_of(p), "m", MESSAGES[:2], TOOLS, HANDLERS, max_steps=60)
        requests = len(server.requests)
    assert told[-1]["content"] == "Done."
    assert len(lost) > 15
    assert found == dict.fromkeys(lost, True)
    visible = [c["function"]["name"] for m in told for c in m.get("tool_calls") or ()]
    assert visible == ["get_order"] * 20 + ["get_parcel"] * (len(lost) // ROUNDS)
    assert requests == len(visible) + len(lost) + 1
    assert "retrieved-data" not in json.dumps(told)


# --- the client's own calls


@ways
@streams
def test_a_call_of_both_is_answered_whole_and_only_the_clients_come_through(tmp_path, way, stream):
    both = calls(("get_order", {"number": 99}), ("get_record", {"trace_id": "#4"}), content="Let me see.")
    again = calls(("get_order", {"number": 99}), ("get_parcel", {"number": 1}))
    with injected(tmp_path, [both, again]) as (server, p):
        words, names, _ = ask(p, way, stream)
        results = results_in(server.requests[1].body)[-2:]
    assert names == [("get_order", '{"number": 99}'), ("get_parcel", '{"number": 1}')]
    assert words == ("Let me see." if stream else None)
    assert results[0] == NOT_YET
    assert "ORD-1003" in results[1]


@ways
@streams
def test_after_so_many_rounds_the_tools_are_gone(tmp_path, way, stream):
    with injected(tmp_path, lambda body: FETCH if "get_record" in tools_in(body) else say("So be it.")) as (
        server,
        p,
    ):
        assert ask(p, way, stream)[:2] == ("So be it.", [])
        offered = [tools_in(r.body) for r in server.requests]
    assert ["get_record" in tools for tools in offered] == [True] * ROUNDS + [False]
    assert offered[-1] == ["get_order", "get_parcel"]


@ways
@streams
def test_mistakes_come_back_to_the_model(tmp_path, way, stream):
    wrong = [
        call("get_record", trace_id="#99"),
        calls(("get_record", '{"trace_id": "#4'), ("search_memory", {})),
    ]
    with injected(tmp_path, [*wrong, say("I give up.")]) as (server, p):
        assert ask(p, way, stream)[0] == "I give up."
        results = results_in(server.requests[-1].body)[-3:]
    assert "There is no record #99" in results[0]
    assert results[1] == "The arguments of get_record are no JSON object."
    assert "needs a query" in results[2]


def test_another_owners_records_are_not_there(tmp_path):
    with injected(tmp_path, [say("one"), FETCH, say("two")]) as (server, p):
        other = client_of(p, **{"x-memory-session": "other"})
        messages = [*MESSAGES[:3], {**MESSAGES[3], "content": "another"}]
        other.chat.completions.create(model="m", messages=MESSAGES, tools=TOOLS)
        with p.service.sessions.reading(None, "other") as state:
            stranger = next(iter(state.fact_store.steps()))
        client_of(p).chat.completions.create(model="m", messages=messages, tools=TOOLS)
        assert "There is no record #4: this session has #1 to #1." in results_in(server.requests[-1].body)[-1]
    with injected(tmp_path, [call("get_record", trace_id=stranger), say("three")]) as (server, p):
        client_of(p).chat.completions.create(model="m", messages=messages, tools=TOOLS)
        assert "There is no record with the trace_id" in results_in(server.requests[-1].body)[-1]


# --- to the byte


def chat_answer(**more):
    made = {
        "id": "chatcmpl-1",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "é"}}],
        **more,
    }
    return json.dumps(made, indent=3).encode()


def as_stream(*deltas, end=b"data: [DONE]\n\n"):
    lines = [json.dumps({"id": "x", "choices": [{"index": 0, "delta": d}]}) for d in deltas]
    return b"".join(f"data:  {line}\r\n\r\n".encode() for line in lines) + end


LOOK = {
    "tool_calls": [
        {"index": 0, "id": "c", "type": "function", "function": {"name": "get_order", "arguments": "{}"}}
    ]
}
SSE = b"content-type: text/event-stream; charset=utf-8"
ANSWERS = {
    "whole": whole(chat_answer(usage={"total_tokens": 1}), b"content-type: application/json", b"x-vendor: 1"),
    "own call": whole(
        chat_answer(choices=[{"message": {"role": "assistant", **LOOK}}]), b"content-type: application/json"
    ),
    "packed": whole(
        gzip.compress(chat_answer()), b"content-type: application/json", b"content-encoding: gzip"
    ),
    "chunked": chunked(chat_answer()[:9], chat_answer()[9:], headers=(b"content-type: application/json",)),
    "stream": chunked(
        *[as_stream({"role": "assistant"}, {"content": "a"})[i : i + 7] for i in range(0, 200, 7)],
        headers=(SSE,),
    ),
    "stream with a call": chunked(
        as_stream({"role": "assistant"}, {"content": "a"}, LOOK, {}), headers=(SSE,)
    ),
    "no json": whole(b"{broken", b"content-type: application/json"),
    "no object": whole(b"[1]", b"content-type: application/json"),
    "empty": whole(b"", b"content-type: application/json"),
    "text": whole(b"data: what?", b"content-type: text/plain"),
    "error": whole(
        b'{"error": {}}', b"retry-after: 7", b"content-type: application/json", status=b"429 Slow"
    ),
    "stream of one length": whole(as_stream({"content": "a"}), SSE),
    "comments": chunked(b": wait\n\n", as_stream({"content": "a"}), b": bye\n\ndata: rest", headers=(SSE,)),
    "no end": chunked(as_stream({"role": "assistant"}, LOOK, end=b""), headers=(SSE,)),
    "failing stream": chunked(
        as_stream({"content": "a"}, end=b'data: {"error": {"code": 1}}\n\n'), headers=(SSE,)
    ),
    "empty stream": chunked(headers=(SSE,)),
    "stream that breaks off": chunked(
        as_stream({"content": "a"}, LOOK, end=b""), None, headers=(SSE,), end=False
    ),
}
PLAIN = {"model": "m", "messages": MESSAGES, "tools": TOOLS, "odd": [1.0, {"é": None}]}


@pytest.mark.parametrize("name", first_short(ANSWERS, 6))
def test_where_nothing_is_fetched_the_answer_is_upstreams_to_the_byte(tmp_path, name):
    answer = ANSWERS[name]
    streamed = "stream" in name or name in ("comments", "no end")
    body = json.dumps({**PLAIN, "stream": streamed}, indent=1).encode()
    with RawUpstream(lambda _: answer) as up:
        came = {}
        for inject in (False, True):
            with proxied(up.base_url, tmp_path / f"{inject}.db", inject_tools=inject) as p:
                came[inject] = post(p.port, "/v1/chat/completions", body, *HEADERS)
    bare, with_tools = came[False], came[True]
    assert (with_tools.status, with_tools.body, with_tools.whole) == (bare.status, bare.body, bare.whole)
    # a context that offers the tools names one, so its tokens are others
    varying = {b"date", b"x-memory-request-id", b"x-request-id", b"x-memory-tokens", b"x-memory-reason"} | (
        {b"content-length", b"transfer-encoding"} if streamed else set()
    )
    assert [h for h in with_tools.headers if h[0] not in varying] == [
        h for h in bare.headers if h[0] not in varying
    ]
    # an answer that is none may be memory's fault: the request is sent once as it came, and that was not it
    is_none = name in ("no json", "no object", "empty", "text", "empty stream")
    assert with_tools.header(b"x-memory-reason") == (REFUSED_TOO.encode() if is_none else None)
    assert [up.got[0].body] * is_none == [got.body for got in up.got[2:]]
    tools = json.loads(up.got[1].body).pop("tools")
    assert tools[:2] == TOOLS
    assert len(tools) == 3
    start, end = (up.got[0].body.index(part) for part in (b'"messages": ', b'"odd"'))
    assert up.got[1].body[:start] == up.got[0].body[:start]
    assert up.got[1].body.endswith(up.got[0].body[end:])


def fetching(name="list_records", **more):
    """The message of a turn that calls one of our tools."""
    made = {"id": "c", "type": "function", "function": {"name": name, "arguments": "{}"}}
    return {"role": "assistant", "tool_calls": [made], **more}


USAGE = {"prompt_tokens": 10, "completion_tokens": 2, "details": {"cached_tokens": 3}}
JSON = b"content-type: application/json"


@contextmanager
def answering(tmp_path, answers):
    """A proxy with our tools before an upstream that gives these bytes; what a request brings back."""
    left = list(answers)
    with (
        RawUpstream(lambda _: left.pop(0)) as up,
        proxied(up.base_url, tmp_path / "b.db", inject_tools=True) as p,
    ):
        yield up, lambda body: post(p.port, "/v1/chat/completions", body, *HEADERS)
    assert left == []


def test_only_the_usage_of_an_answer_changes_when_something_was_fetched(tmp_path):
    hidden = whole(chat_answer(choices=[{"message": fetching()}], usage=USAGE), JSON)
    last = chat_answer(usage=USAGE, vendor={"usage": USAGE})
    with answering(tmp_path, [hidden, hidden, whole(last, JSON)]) as (_, ask):
        came = ask(PLAIN)
    all_three = b'{"prompt_tokens":30,"completion_tokens":6,"details":{"cached_tokens":9}}'
    assert came.body == chat_answer(usage="THERE", vendor={"usage": USAGE}).replace(b'"THERE"', all_three)
    assert came.header(b"content-length") == str(len(came.body)).encode()
    assert came.header(b"x-memory-fetched") == b"2"


def test_a_stream_after_turns_of_every_form(tmp_path):
    """Whole where a stream was asked for, then a stream of a length that was told, then one in chunks."""
    delta = {"tool_calls": [{"index": 0, **fetching()["tool_calls"][0]}]}
    counted = {"id": "x", "choices": [], "usage": USAGE}
    end = b"data: " + json.dumps(counted).encode() + b"\n\ndata: [DONE]\n\n"
    answers = [
        whole(chat_answer(choices=[{"message": fetching()}], usage=USAGE), JSON),
        whole(as_stream({"content": "Wait."}, delta, end=end), SSE),
        chunked(as_stream({"role": "assistant", "content": "Done."}, end=end), headers=(SSE,)),
    ]
    with answering(tmp_path, answers) as (_, ask):
        came = ask({**PLAIN, "stream": True})
    lines = [line[5:].strip() for line in came.body.splitlines() if line.startswith(b"data:")]
    assert came.whole
    values = [json.loads(line) for line in lines[:-1]]
    assert [v["choices"][0]["delta"] for v in values[:-1]] == [{"content": "Wait."}, {"content": "\n\nDone."}]
    assert values[-1]["usage"] == {
        "prompt_tokens": 30,
        "completion_tokens": 6,
        "details": {"cached_tokens": 9},
    }
    assert came.header(b"x-memory-fetched") == b"1"  # as many as before the first byte


def test_what_goes_upstream_again_is_what_went_before(tmp_path):
    body = json.dumps({**PLAIN, "big": 12345678901234567890123, "text": "\u00e9"}, indent=2).encode()
    hidden = fetching(reasoning_content="hm", refusal=None)
    answers = [chat_answer(choices=[{"message": hidden}]), chat_answer()]
    with answering(tmp_path, [whole(a, JSON) for a in answers]) as (up, ask):
        ask(body)
    first, second = (json.loads(got.body) for got in up.got)
    assert b"12345678901234567890123" in up.got[1].body
    made = second["messages"][len(first["messages"]) :]
    assert made[0] == {"content": None, **fetching(reasoning_content="hm")}
    assert made[1]["tool_call_id"] == "c"
    assert "get_order, step 1" in made[1]["content"]
    del second["messages"][-2:]
    assert second == first
    for got in up.got:
        assert got.body.endswith(body[body.index(b'"odd"') :])


# --- what the provider keeps


@streams
@pytest.mark.parametrize("store", [True, False])
def test_reasoning_goes_with_its_calls_and_a_stored_response_can_be_gone_on_with(tmp_path, stream, store):
    named = stream and store  # by previous_response_id: only where nothing is said before the last turn
    script = [
        Reply(
            None if named else "First words.", [("get_record", {"trace_id": "#4"})], reasoning="I look it up."
        ),
        Reply(None, [("list_records", {})], reasoning="One more."),
        Reply("Last words.", [], reasoning="Now I know."),
        Reply("And so on."),
    ]
    with injected(tmp_path, script) as (server, p):
        client = client_of(p)
        options = {"model": "m", "input": ITEMS, "tools": ITEM_TOOLS, "store": store}
        if stream:
            with client.responses.stream(**options) as events:
                seen = list(events)
                done = events.get_final_response()
            assert [e.sequence_number for e in seen if e.type != "response.output_text.delta"] == sorted(
                e.sequence_number for e in seen if e.type != "response.output_text.delta"
            )
            kinds = ["reasoning", "message"] * (1 if named else 2)
        else:
            done = client.responses.create(**options)
            kinds = ["reasoning", "message"]
        assert [i.type for i in done.output] == kinds
        again = [*ITEMS, *(i.to_dict() for i in done.output), {"role": "user", "content": "And?"}]
        if store:
            then = client.responses.create(
                model="m", previous_response_id=done.id, input="And?", tools=ITEM_TOOLS
            )
        else:
            then = client.responses.create(**{**options, "input": again})
        assert then.output_text == "And so on."
        assert item_errors(again) == []
    hidden = server.requests[2].body["input"]
    assert [i["type"] for i in hidden if i.get("type") in ("reasoning", "function_call")][-4:] == [
        "reasoning", "function_call", "reasoning", "function_call",
    ]  # fmt: skip


# --- faults


@ways
@streams
def test_an_error_after_a_fetch_passes_while_nothing_was_given(tmp_path, way, stream):
    with injected(tmp_path, [FETCH, fail(429, "slow down", retry_after=7)]) as (_, p):
        with pytest.raises(openai.RateLimitError, match="slow down") as error:
            ask(p, way, stream)
        assert error.value.response.headers["retry-after"] == "7"
        assert error.value.response.headers["x-memory-fetched"] == "1"


@ways
def test_after_words_were_given_an_error_breaks_the_stream(tmp_path, way):
    both = calls(("get_record", {"trace_id": "#4"}), content="Let me see what there was.")
    with injected(tmp_path, [both, fail(500, "no")]) as (_, p):
        got = []

        def read():
            if way == "chat":
                options = {"messages": MESSAGES, "tools": TOOLS}
                for chunk in client_of(p).chat.completions.create(model="m", stream=True, **options):
                    got.append(chunk.choices[0].delta.content or "")
            else:
                options = {"input": ITEMS, "tools": ITEM_TOOLS}
                for event in client_of(p).responses.create(model="m", stream=True, **options):
                    got.append(getattr(event, "delta", ""))

        with pytest.raises((openai.APIConnectionError, openai.APIError)):
            read()
        assert "".join(got) == "Let me see what there was."
        assert p.told()[0].outcome == "broken_off"
        assert [line for line in p.lines if "500" in line] != []


@streams
def test_upstream_that_hangs_up_in_a_hidden_turn(tmp_path, stream):
    """The request is sent as it came; where that breaks off, too, it is the client's own."""
    with injected(tmp_path, [FETCH, cut(0), say("fine"), FETCH, cut(0), cut(0)]) as (server, p):
        assert ask(p, "chat", stream) is not None
        assert "get_record" not in json.dumps(server.requests[-1].body["tools"])
        p.service.proxy.rebuilder.untooled.clear()
        with pytest.raises(openai.APIStatusError) as error:
            ask(p, "chat", stream)
        assert error.value.status_code == 502


@ways
@streams
def test_a_client_that_goes_away_ends_the_hidden_turns(tmp_path, way, stream):
    slow = Reply("too late", delay=60)
    with injected(tmp_path, [FETCH, slow]) as (server, p):
        if way == "chat":
            path, asked = "/v1/chat/completions", {"messages": MESSAGES, "tools": TOOLS}
        else:
            path, asked = "/v1/responses", {"input": ITEMS, "tools": ITEM_TOOLS}
        data = json.dumps({"model": "m", "stream": stream, **asked}).encode()
        with socket.create_connection(("127.0.0.1", p.port), timeout=60) as client:
            client.sendall(head_of("POST", path, data, *HEADERS) + data)
            until(lambda: len(server.requests) == 2)  # the hidden turn before it is over
        assert p.told()[0].outcome == "client_gone"
        assert len(server.requests) == 2


def test_words_come_at_once_while_a_turn_goes_on(tmp_path):
    both = Reply("Let me see what there was.", [("get_record", {"trace_id": "#4"})], pause=0.4)
    with injected(tmp_path, [both, say("Done.")]) as (_, p):
        began = time.monotonic()
        pieces = client_of(p).chat.completions.create(model="m", messages=MESSAGES, tools=TOOLS, stream=True)
        times = [(time.monotonic() - began, c.choices[0].delta.content) for c in pieces if c.choices]
        first = next(at for at, words in times if words)
    assert times[-1][0] - first > 0.6


def test_a_memory_that_hangs_is_told_to_the_model(tmp_path):
    with injected(tmp_path, [say("one"), FETCH, say("two")]) as (server, p):
        ask(p, "chat")
        p.service.proxy.rebuilder.timeout = 1.0
        held, let_go = threading.Event(), threading.Event()

        def hold():
            with p.service.sessions.reading(None, "task"):
                held.set()
                let_go.wait(60)

        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(60)
        try:
            assert ask(p, "chat")[0] == "two"
        finally:
            let_go.set()
            thread.join()
        assert results_in(server.requests[-1].body)[-1] == "The memory did not answer in time."


def test_an_answer_that_cannot_be_read_ends_it(tmp_path):
    with injected(tmp_path, [FETCH, raw("{broken"), raw("{broken")]) as (_, p):
        came = post(p.port, "/v1/chat/completions", PLAIN, *HEADERS)
    assert (came.status, came.body) == (200, b"{broken")


class Kept(UpstreamAnswer):
    """An answer that knows whether it was let go of."""

    def __init__(self, data, headers, status=200, breaks=False):
        super().__init__(status, headers, self._all(data, breaks), self._close)
        self.closed = False

    async def _all(self, data, breaks):
        for i in range(0, len(data), 40):
            yield data[i : i + 40]
        if breaks:
            raise UpstreamError("it broke off.")

    async def _close(self):
        self.closed = True


@pytest.mark.parametrize("ending", ["all", "at once", "midway", "error", "breaks", "cannot send"])
def test_every_answer_is_let_go_of(tmp_path, ending):
    """However far the client reads, and whatever upstream does."""
    sse, plain = [(b"content-type", b"text/event-stream")], [(b"content-type", b"application/json")]
    delta = {"tool_calls": [{"index": 0, **fetching()["tool_calls"][0]}]}
    last = {
        "error": Kept(b"{}", plain, 429),
        "breaks": Kept(as_stream({"content": "b"}), sse, breaks=True),
        "cannot send": UpstreamError("unreachable.", passing=True),
    }.get(ending) or Kept(as_stream({"content": "b" * 200}, {"content": "c"}), sse)
    script = [Kept(as_stream({"content": "a"} if ending != "at once" else {}, delta), sse), last]
    answers = [a for a in script if isinstance(a, Kept)]
    database = Database(tmp_path / "bank.db")
    sessions = Sessions(database, load_config())
    sessions.rebuild(None, "task", MESSAGES)
    data = json.dumps({**PLAIN, "stream": True}).encode()

    class Scripted:
        async def send(self, *_, **_more):
            answer = script.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    memory = Rebuilder(sessions, Identity(database), 5.0)
    proxy = Proxy({"openai": Scripted()}, memory, MessageCache(), Seals(database), list, print)
    exchange = Exchange("POST", api=DIALECTS[0], body=parse_body(data, "messages", "tools"))
    exchange.memory, exchange.session = "unchanged", "task"
    exchange.tools = DIALECTS[0].offer_tools(PLAIN)

    async def main():
        answer = await answer_memory_calls(proxy, exchange, await send(proxy, exchange))
        read = b""
        try:
            async for piece in answer.body:
                read += piece
                if ending == "midway":
                    break
        except UpstreamError as e:
            return read, e
        finally:
            await answer.aclose()
        return read, None

    read, error = asyncio.run(main())
    assert (error is not None) == (ending in ("error", "breaks", "cannot send"))
    assert b"get_record" not in read
    assert [a.closed for a in answers[: 1 if ending == "midway" else None]] == [True] * (
        1 if ending == "midway" else len(answers)
    )
    sessions.close()
    database.close()


@pytest.mark.parametrize("kind", first_short([b"text/event-stream", b"application/json"]))
def test_an_answer_that_is_too_long_to_be_held_passes(tmp_path, kind):
    """It is not read for calls of memory tools; the client gets all of it."""
    piece = b"x" * 2**20
    count = MOST_BYTES // len(piece) + 4
    answers = []

    def answer(got):
        answers.append(got)
        return chunked(*[piece] * count, headers=(b"Content-Type: " + kind,))

    with (
        RawUpstream(answer) as upstream,
        proxied(upstream.base_url, tmp_path / "bank.db", inject_tools=True) as p,
    ):
        for _ in range(2):  # the tools are offered once there are records
            came = post(
                p.port, "/v1/chat/completions", {"model": "m", "messages": MESSAGES, "stream": True}, *HEADERS
            )
            assert (came.status, len(came.body), came.whole) == (200, count * len(piece), True)
    assert len(answers) == 2
