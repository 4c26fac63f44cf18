"""A context names memory tools only where its request offers them: every API, every way to have them."""

from __future__ import annotations

import base64
import copy
import json
import random
import re

import pytest
from tests.chats import FOLDING
from tests.examples import first_short, in_turn
from tests.service.proxied import post, scripted
from tests.service.proxy.test_faults import locked
from tests.service.requests import PATHS
from tests.service.requests import body_of as request_of

from memory_bank.service.proxy.chat import ChatDialect
from memory_bank.service.proxy.exchange import TOOLS_REFUSED
from memory_bank.service.proxy.messages import MessagesDialect
from memory_bank.service.proxy.responses import ResponsesDialect
from memory_bank.testing import fail, say
from memory_bank.transcript.jsontext import compact

ways = in_turn("way", PATHS)
NAMED = re.compile("search_memory|get_record|list_records")
DIALECTS = {"chat": ChatDialect(), "responses": ResponsesDialect(), "messages": MessagesDialect()}
STRATEGIES = {
    "native": FOLDING,
    "kept": FOLDING | {"refresh_after": 100_000},
    "block": FOLDING | {"layout": "block", "history_budget": 1_000},
    "masking": {"type": "observation_masking", "max_length": 40},
    "progressive": {"type": "progressive_summarization", "compact_threshold": 3_000},
}


def output(n):
    return json.dumps([{"order": f"ORD-{n}{i:02}", "status": "open", "note": "x" * 40} for i in range(20)])


MANUAL = "What an order is, and when it may be asked for. " * 1_200  # beside it memory's tools are few tokens


def body_of(way, steps=12, *own, **more):
    body = copy.deepcopy(request_of(way, [output(n) for n in range(steps)], *own))
    for tool in body["tools"]:
        tool.get("function", tool)["description"] = MANUAL
    return {**body, **more}


def named_and_offered(body):
    """The memory tools that a request's context names, and those that it offers."""
    said = json.dumps([body.get("messages"), body.get("input")])
    tools = [*body.get("tools", ()), *(t for i in body.get("input", ()) for t in i.get("tools", ()))]
    return set(NAMED.findall(said)), set(
        NAMED.findall(json.dumps([t.get("function", t)["name"] for t in tools]))
    )


def requests_of(way):
    """Requests of one conversation, with the tools and choices that clients send."""
    own = DIALECTS[way].offer_tools(body_of(way))
    forbids = {"type": "none"} if way == "messages" else "none"
    forced = {
        "chat": {"type": "function", "function": {"name": "get_order"}},
        "responses": {"type": "function", "name": "get_order"},
        "messages": {"type": "tool", "name": "get_order"},
    }[way]
    return [
        body_of(way),
        body_of(way, tool_choice=forbids),
        body_of(way, tools=own),
        body_of(way, 13),
        body_of(way, 13, tool_choice=forced),
        body_of(way, 14, tools=own[:-3] + own[-2:-1]),
        body_of(way, 14, **({} if way == "messages" else {"tools": []})),
        body_of(way, 2),
    ]


@pytest.mark.parametrize("inject", first_short(["auto", True, False]))
@ways
def test_every_tool_that_a_context_names_is_offered(tmp_path, way, inject):
    with scripted(lambda _: say("ok"), tmp_path, STRATEGIES, inject_tools=inject) as (server, p):
        for strategy in STRATEGIES:
            headers = f"x-memory-strategy: {strategy}".encode(), f"x-memory-session: {strategy}".encode()
            for body in requests_of(way):
                assert post(p.port, PATHS[way], body, *headers).status == 200
            if way == "messages":
                post(p.port, "/v1/messages/count_tokens", body_of(way), *headers)
        exchanges = p.told(len(server.requests))
        assert server.refused == []
    kinds = [e.memory for e in exchanges]
    found = [named_and_offered(r.body) for r in server.requests]
    assert [f for f in found if not f[0] <= f[1]] == []
    assert kinds.count("rebuilt") > 5 * len(STRATEGIES)
    with_tool = [
        named for (named, offered), kind in zip(found, kinds, strict=True) if kind == "rebuilt" and offered
    ]
    assert with_tool
    assert sum(named == {"get_record"} for named in with_tool) > len(with_tool) // 2


def test_tools_in_an_item_of_a_request_are_offered(tmp_path):
    function = {"type": "function", "name": "get_record", "parameters": {"type": "object"}}
    space = {"type": "namespace", "name": "mcp__memory_bank", "tools": [function]}
    for tools, wanted in (([space], {"get_record"}), ([{**function, "name": "other"}], set())):
        with scripted(lambda _: say("ok"), tmp_path / str(len(wanted))) as (server, p):
            body = body_of("responses")
            del body["tools"]
            body["input"] = [
                {"type": "additional_tools", "role": "developer", "tools": tools},
                *body["input"],
            ]
            assert post(p.port, "/v1/responses", body).status == 200
            assert [e.memory for e in p.told(1)] == ["rebuilt"]
        [request] = server.requests
        shown = json.dumps([i for i in request.body["input"] if i.get("type") != "additional_tools"])
        assert set(NAMED.findall(shown)) == wanted


# from the first request on, or never


@ways
@pytest.mark.parametrize("inject", ["auto", True])
def test_beside_a_short_first_request_tools_are_offered_only_where_the_setting_says_so(tmp_path, way, inject):
    """By default they are at most 4% of it: no step is 5% dearer than without memory."""
    with scripted(lambda _: say("ok"), tmp_path, SETTINGS, inject_tools=inject) as (server, p):
        for steps in (0, 1, 12, 13):
            body = request_of(way, [output(n) for n in range(steps)])
            assert post(p.port, PATHS[way], body).status == 200
        assert {e.memory for e in p.told(4)} > {"rebuilt"}
        offered = [named_and_offered(r.body)[1] for r in server.requests]
    assert offered == [{"get_record"} if inject is True else set()] * 4


@ways
@pytest.mark.parametrize("kind", ["image", "blanks"])
def test_what_is_long_in_characters_only_makes_no_room_for_the_tools(tmp_path, way, kind):
    """An image is some hundred tokens, and so are many blanks: beside them the tools would be over 4%."""
    data = base64.b64encode(random.Random(1).randbytes(90_000)).decode()
    part = {
        "chat": {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}},
        "responses": {"type": "input_image", "image_url": f"data:image/png;base64,{data}"},
        "messages": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}},
    }[way]
    if kind == "blanks":
        part = {"type": "input_text" if way == "responses" else "text", "text": "a" + " \n" * 60_000 + "b"}
    asks = {"role": "user", "content": [part]}
    key = "input" if way == "responses" else "messages"
    with scripted(lambda _: say("ok"), tmp_path, SETTINGS) as (server, p):
        body = request_of(way, [])
        assert post(p.port, PATHS[way], {**body, key: [*body[key][:-1], asks]}).status == 200
        assert tools_of(server.requests) == {json.dumps(body["tools"])}


def steps_of(way, count, **more):
    """The requests of a conversation, the first without a call."""
    return [body_of(way, steps, **more) for steps in range(count + 1)]


def tools_of(requests):
    """The different lists of tools that arrived upstream, as they were written."""
    return {json.dumps(r.body.get("tools")) for r in requests}


SUMMARY = {
    "role": "user",
    "content": "Your task is to create a detailed summary of the conversation so far.",
}
SETTINGS = {"folds": FOLDING | {"refresh_after": 1_000}}


@ways
@pytest.mark.parametrize("named", first_short([False, True]))
def test_the_tools_of_a_session_never_change(tmp_path, way, named):
    """From the first request on: with a fold or without, whatever the choice, in a pause, after a restart, too late."""
    headers = [b"x-memory-session: s"] if named else []
    forbids = {"type": "none"} if way == "messages" else "none"
    arrived, memories = [], []
    for part in (steps_of(way, 8), steps_of(way, 14)[9:]):
        with scripted(lambda _: say("ok"), tmp_path, SETTINGS) as (server, p):
            for number, body in enumerate(part):
                choice = {"tool_choice": forbids} if number == 3 else {}
                assert post(p.port, PATHS[way], {**body, **choice}, *headers).status == 200
            key = "input" if way == "responses" else "messages"
            post(p.port, PATHS[way], {**part[-1], key: [*part[-1][key], SUMMARY]}, *headers)
            p.service.proxy.refusals[None, p.told(3)[2].session, part[-1]["model"]].left = 1
            assert post(p.port, PATHS[way], part[-1], *headers).header(b"x-memory-status") == b"unchanged"
            with locked(tmp_path / "bank.db"):
                p.service.proxy.rebuilder.timeout = 0.2
                late = post(
                    p.port, PATHS[way], body_of(way, 9 if part[0] == body_of(way, 0) else 15), *headers
                )
            assert b"timeout" in late.header(b"x-memory-reason")
            memories += [e.memory for e in p.told(len(server.requests))]
            arrived += server.requests
    [tools] = tools_of(arrived)
    assert set(NAMED.findall(tools)) == {"get_record"}
    assert {"passed", "unchanged", "rebuilt"} <= set(memories) | {"passed"}


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("named", [True, False])
def test_with_thinking_the_first_request_of_a_session_decides(tmp_path, begins, named):
    """Also in another process, when the client turns thinking on or off later, and in a fork."""
    on, off = {"thinking": {"type": "adaptive"}}, {}
    headers = [b"x-memory-session: s"] if named else []
    arrived = []
    for number, bodies in enumerate((steps_of("messages", 4), steps_of("messages", 9)[5:])):
        with scripted(lambda _: say("ok"), tmp_path, SETTINGS) as (server, p):
            for at, body in enumerate(bodies):
                thinks = begins if number == 0 and at < 3 else not begins
                assert (
                    post(p.port, PATHS["messages"], {**body, **(on if thinks else off)}, *headers).status
                    == 200
                )
            arrived += server.requests
    [tools] = tools_of(arrived)
    assert bool(NAMED.findall(tools)) is not begins


@ways
def test_agents_with_other_tools_beside_each_other(tmp_path, way):
    other = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    requests = {b"a": steps_of(way, 6), b"b": []}
    requests[b"b"] = [body_of(way, steps, other, "look") for steps in range(7)]
    without = [{k: v for k, v in body.items() if k != "tools"} for body in steps_of(way, 6)]
    with scripted(lambda _: say("ok"), tmp_path, SETTINGS) as (server, p):
        for number in range(7):
            for name, bodies in requests.items():
                post(p.port, PATHS[way], bodies[number], b"x-memory-session: " + name)
            post(p.port, PATHS[way], without[number], b"x-memory-session: c")
    for at, offers in enumerate((True, True, False)):
        [tools] = tools_of(server.requests[at::3])
        assert bool(NAMED.findall(tools)) is offers


@ways
@pytest.mark.parametrize("status", [400, 500])
def test_an_upstream_that_refuses_the_tools_costs_memory_nothing(tmp_path, way, status):
    def script(body):
        return fail(status, "no") if NAMED.search(json.dumps(body.get("tools"))) else say("ok")

    with scripted(script, tmp_path, SETTINGS) as (server, p):
        came = [post(p.port, PATHS[way], body, b"x-memory-session: s") for body in steps_of(way, 12)]
        assert {c.status for c in came} == {200}
        assert len(server.requests) == len(came) + 1
        assert came[0].header(b"x-memory-reason") == TOOLS_REFUSED.encode()
        assert [c.header(b"x-memory-reason") for c in came[2:]] == [None] * 11
        assert came[-1].header(b"x-memory-status") == b"rebuilt"


@ways
@pytest.mark.parametrize("status", first_short([400, 500], 1))
def test_a_chat_before_an_upstream_without_tools_is_not_asked_twice_each_time(tmp_path, way, status):
    """A conversation that has not begun has no session to remember it by."""
    script = lambda body: fail(status, "no tools here") if body.get("tools") else say("ok")  # noqa: E731
    body = {k: v for k, v in request_of(way, []).items() if k != "tools"}
    with scripted(script, tmp_path, SETTINGS, inject_tools=True) as (server, p):
        assert {post(p.port, PATHS[way], body).status for _ in range(30)} == {200}
        assert len(server.requests) <= 30 + 3
        assert all(TOOLS_REFUSED in line for line in p.lines if "refused" in line)


@ways
def test_a_request_for_a_summary_whose_tools_are_refused_pauses_nothing(tmp_path, way):
    """Nor does a late one: memory did not rebuild it, so the tools were refused, and no context."""

    def script(body):
        return fail(400, "no") if refuses and NAMED.search(json.dumps(body.get("tools"))) else say("ok")

    key, header = "input" if way == "responses" else "messages", b"x-memory-session: s"
    for late in (False, True):
        refuses = False
        with scripted(script, tmp_path / str(late), SETTINGS) as (_, p):
            count = 1 if late else 8  # before the first fold, a late one goes as it came
            for body in steps_of(way, count):
                assert post(p.port, PATHS[way], body, header).status == 200
            refuses, last = True, body_of(way, count + 1)
            if late:
                with locked(tmp_path / str(late) / "bank.db"):
                    p.service.proxy.rebuilder.timeout = 0.2
                    came = post(p.port, PATHS[way], last, header)
                p.service.proxy.rebuilder.timeout = 10
            else:
                came = post(p.port, PATHS[way], {**last, key: [*last[key], SUMMARY]}, header)
            assert came.status == 200
            [warning] = [line for line in p.lines if "from now on" in line or "goes without" in line]
            assert TOOLS_REFUSED in warning
            if not late:  # whose job may still be at work
                assert (
                    post(p.port, PATHS[way], body_of(way, 12), header).header(b"x-memory-status")
                    == b"rebuilt"
                )


@ways
def test_a_client_with_a_tool_of_such_a_name_keeps_its_own(tmp_path, way):
    own = DIALECTS[way].offer_tools(body_of(way))[-1:]
    with scripted(lambda _: say("ok"), tmp_path, SETTINGS) as (server, p):
        for body in steps_of(way, 4, tools=own):
            post(p.port, PATHS[way], body, b"x-memory-session: s")
    assert tools_of(server.requests) == {json.dumps(own)}


@ways
def test_the_guard_of_the_price_counts_the_tools(tmp_path, way):
    with scripted(lambda _: say("ok"), tmp_path, SETTINGS) as (server, p):
        for body in steps_of(way, 3):
            post(p.port, PATHS[way], body, b"x-memory-session: s")
        [step] = [e.step for e in p.told(4)[3:]]
        own = len(body_of(way)["tools"])
        added = step.state.counter.count_text(compact(server.requests[-1].body["tools"][own:]))
        assert step.state.ledger.added == added > 100


@ways
@pytest.mark.parametrize("stream", first_short([True, False]))
@pytest.mark.parametrize("status", first_short([500, 404, 403, 422, 502]))
def test_an_agent_survives_an_upstream_that_renders_no_context_of_memory(tmp_path, way, stream, status):
    """From the first fold on, as the service is shipped; its tools stay in the pauses."""

    def script(body):
        return fail(status, "cannot render") if "retrieved-data" in json.dumps(body) else say("ok")

    with scripted(script, tmp_path, SETTINGS) as (server, p):
        bodies = steps_of(way, 18, stream=stream)
        came = [post(p.port, PATHS[way], body, b"x-memory-session: s") for body in bodies]
        assert {c.status for c in came} == {200}
        pauses = len([line for line in p.lines if "goes without memory" in line])
        assert 1 <= pauses <= 3
        assert len(server.requests) == len(came) + pauses
        answered = [r for r in server.requests if "retrieved-data" not in json.dumps(r.body)]
        without = [r for r in answered if not NAMED.search(json.dumps(r.body["tools"]))]
        assert len(without) == pauses  # sent strictly as they came


@ways
def test_an_upstream_that_is_down_for_everything_keeps_its_load(tmp_path, way):
    """Before a session has begun and after it; when it is back, memory and its tools are."""
    with scripted(lambda _: fail(500, "down") if down else say("ok"), tmp_path, SETTINGS) as (server, p):
        down = True
        for bodies in ([body_of(way, 0)] * 12, [body_of(way, 12)] * 12):
            before = len(server.requests)
            assert {post(p.port, PATHS[way], body, b"x-memory-session: s").status for body in bodies} == {500}
            assert len(server.requests) - before <= len(bodies) + 4
        down = False
        came = [
            post(p.port, PATHS[way], body_of(way, steps), b"x-memory-session: s") for steps in (13, 14, 15)
        ]
        assert {c.status for c in came} == {200}
        assert [c.header(b"x-memory-status") for c in came[1:]] == [b"rebuilt"] * 2
        assert not any("goes without" in line or "gets none" in line for line in p.lines)
