"""Anthropic's Messages API through the proxy: a long task, streams, thinking, refusals, sessions, counting."""

from __future__ import annotations

import json
from functools import partial

import pytest
from tests.blocks import MARK, OPAQUE, answer, rounds, system, text, thought, turn, use, user
from tests.examples import first_short
from tests.service.caching import Cached
from tests.service.proxied import RawUpstream, chunked, post, proxied, scripted, whole
from tests.service.requests import body_of
from tests.service.tasks import HANDLERS, STEPS, SYSTEM, TASK, TOOLS, script

from memory_bank.service.proxy.events import EventSplitter
from memory_bank.service.proxy.exchange import THINKING_LEFT_OUT
from memory_bank.testing import Reply, ScriptedServer, call, fail, say
from memory_bank.transcript.anthropic import cache_marks, cache_marks_beside, from_anthropic, message_errors

CALLS = STEPS + STEPS // 4
OWN_TOOLS = body_of("messages", [], TOOLS)["tools"]
SESSION = b"x-claude-code-session-id: 6d0f0c55-6d0e-4f8b-b8a6-5e1e2c0f9a10"
ADAPTIVE = {"type": "adaptive"}


served = partial(scripted, strategy="")
"""The proxy before a strict upstream, with the strategy that is configured."""


def read_stream(data: bytes) -> list:
    """The blocks of a streamed message."""
    blocks: dict[int, dict] = {}
    splitter = EventSplitter()
    for event in [*splitter.feed(data), *splitter.close()]:
        value = event.value or {}
        if value.get("type") == "content_block_start":
            blocks[value["index"]] = {**value["content_block"]}
        elif value.get("type") == "content_block_delta":
            block, delta = blocks[value["index"]], value["delta"]
            kind = delta["type"].removesuffix("_delta")
            if kind == "input_json":
                block["input"] = (block["input"] or "") + delta["partial_json"]
            else:
                block[kind] = block.get(kind, "") + delta[kind]
    for block in blocks.values():
        if isinstance(block.get("input"), str):
            block["input"] = json.loads(block["input"])
    return [blocks[i] for i in sorted(blocks)]


def run(p, *headers, stream=False, mark=False, begun=(), **members):
    """An agent's loop that knows nothing of memory; returns the whole conversation. ``begun``: what was said."""
    messages = [*begun] or [user(TASK)]
    body = {
        "model": "claude",
        "max_tokens": 999,
        "system": SYSTEM,
        "tools": OWN_TOOLS,
        "stream": stream,
        **members,
    }
    while True:
        sent = json.loads(json.dumps(messages))
        if mark and isinstance(sent[-1]["content"], list):
            sent[-1]["content"][-1].update(MARK)
        came = post(p.port, "/v1/messages?beta=true", {**body, "messages": sent}, *headers)
        assert came.status == 200, came.body
        content = read_stream(came.body) if stream else json.loads(came.body)["content"]
        messages.append({"role": "assistant", "content": content})
        made = [b for b in content if b["type"] == "tool_use"]
        if not made:
            return messages
        messages.append(user(*(answer(b["id"], HANDLERS[b["name"]](**b["input"])) for b in made)))


def thinking_script():
    return [Reply(r.content, r.tool_calls, reasoning=f"thought {i}") for i, r in enumerate(script())]


@pytest.mark.parametrize(
    ("stream", "thinking"), [(True, ADAPTIVE), pytest.param(False, None, marks=pytest.mark.long)]
)
def test_a_long_task(tmp_path, stream, thinking):
    replies = thinking_script() if thinking else script()
    members = {"thinking": thinking} if thinking else {}
    with served(replies, tmp_path) as (server, p):
        told = run(p, SESSION, stream=stream, mark=True, **members)
        assert told[-1]["content"][-1]["text"] == "All is well."
        assert server.refused == []
        assert len(server.requests) == STEPS + 1
        assert sum(b["type"] == "tool_use" for m in told[1::2] for b in m["content"]) == CALLS
        exchanges = p.told(STEPS + 1)
        assert {e.memory for e in exchanges[12:]} == {"rebuilt"}
        assert {(e.api.route, e.outcome) for e in exchanges} == {("messages", "complete")}
        assert {e.session for e in exchanges[1:]} == {SESSION.split()[-1].decode()}
        assert all(e.usage.input and e.usage.output for e in exchanges)
        sizes = [len(r.data) for r in server.requests]
        assert max(sizes[-5:]) < len(json.dumps(told)) / 2
        assert sizes[-1] < 60_000
        with p.service.sessions.reading(None, exchanges[-1].session) as state:
            assert state.fact_store.size() == CALLS
        assert p.lines == []


def test_thinking_of_type_enabled_keeps_that_of_the_turn_that_is_answered(tmp_path):
    enabled = {"type": "enabled", "budget_tokens": 1024}
    with served(thinking_script(), tmp_path) as (server, p):
        server.strict = False  # an older model: its signatures are bound to nothing
        run(p, SESSION, thinking=enabled)
        rebuilt = [e.memory == "rebuilt" for e in p.told(STEPS + 1)]
        assert sum(rebuilt) > STEPS / 2
        for request, was in zip(server.requests, rebuilt, strict=True):
            if was:
                turns = [m for m in request.body["messages"] if m["role"] == "assistant"]
                assert turns[-1]["content"][0]["type"] == "thinking"
                assert message_errors(request.body["messages"]) == []


def test_a_client_that_lets_the_provider_drop_thinking_keeps_all(tmp_path):
    drops = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    with served(thinking_script(), tmp_path) as (server, p):
        run(p, SESSION, thinking=drops)
        assert server.refused == []
        last = server.requests[-1].body
        assert any(
            b["type"] == "thinking" for m in last["messages"][1:] for b in m["content"] if isinstance(b, dict)
        )
        assert p.told(STEPS + 1)[-1].memory == "rebuilt"


# bytes


def test_a_request_without_history_passes_byte_by_byte(tmp_path):
    body = b'{"model":"claude", "max_tokens" : 9,"messages":[{"role":"user","content":"hi \\u00e9"}]}'
    pieces = [
        b'event: message_start\ndata: {"type":"message_start"}\n\n',
        b": comment\n\nevent: ping\ndata: {}\n\n",
    ]
    answered = chunked(*pieces, headers=(b"Content-Type: text/event-stream",))
    with (
        RawUpstream(lambda got: answered) as up,
        proxied(
            "http://127.0.0.1:9", tmp_path / "b.db", upstream_anthropic=up.base_url, cache_markers="off"
        ) as p,
    ):
        came = post(
            p.port,
            "/v1/messages?beta=true",
            body,
            b"anthropic-version: 2023-06-01",
            b"anthropic-beta: a-2026,b-2026",
            b"x-api-key: sk-ant-1",
            b"x-memory-session: s",
        )
        assert came.body == b"".join(pieces)
        got = up.got[0]
        assert got.line == b"POST /v1/messages?beta=true HTTP/1.1"
        assert got.body == body
        assert got.header(b"anthropic-version") == b"2023-06-01"
        assert got.header(b"anthropic-beta") == b"a-2026,b-2026"
        assert got.header(b"x-api-key") == b"sk-ant-1"
        assert got.header(b"x-memory-session") is None


def test_everything_but_the_messages_keeps_its_bytes(tmp_path):
    messages = [user(TASK), *rounds(12, size=1_500)]
    extra = b'"metadata":{"user_id" : "u"}, "system":[{"type":"text","text":"\\u00e9"}],"context_management":{"edits":[]}'
    data = b'{"model":"claude",%b, "messages":%b,"max_tokens":9}' % (extra, json.dumps(messages).encode())
    with served([say("ok")], tmp_path, context_management="pass") as (server, p):
        assert post(p.port, "/v1/messages", data, SESSION).status == 200
        sent = server.requests[0].data
        assert p.told()[0].memory == "rebuilt"
        assert sent.startswith(b'{"model":"claude",%b, "messages":[' % extra)
        assert sent.endswith(b',"max_tokens":9}')
        tail = json.dumps(messages[-2]).encode() + b","
        assert tail in sent or json.dumps(messages[-2]).encode() in sent
        assert message_errors(server.requests[0].body["messages"]) == []


def test_other_paths_go_to_the_same_upstream(tmp_path):
    with (
        RawUpstream(lambda got: whole(b"{}")) as up,
        RawUpstream(lambda got: whole(b'{"openai": 1}')) as other,
        proxied(other.base_url, tmp_path / "b.db", upstream_anthropic=up.base_url.removesuffix("/v1")) as p,
    ):
        post(p.port, "/v1/messages/batches", {})
        post(p.port, "/v1/models", {}, b"anthropic-version: 2023-06-01")
        post(p.port, "/v1/models", {})
        assert [g.line.split()[1] for g in up.got] == [b"/v1/messages/batches", b"/v1/models"]
        assert [g.line.split()[1] for g in other.got] == [b"/v1/models"]


# errors


def test_errors_have_the_shape_of_the_api(tmp_path):
    with proxied(
        "http://127.0.0.1:9", tmp_path / "b.db", upstream_anthropic="http://127.0.0.1:9", max_body_bytes=2000
    ) as p:
        gone = post(p.port, "/v1/messages", {"messages": [user("hi")]})
        assert gone.status == 502
        assert json.loads(gone.body)["type"] == "error"
        assert json.loads(gone.body)["error"]["type"] == "api_error"
        long = post(p.port, "/v1/messages", {"messages": [user("hi" * 2000)]})
        assert (long.status, json.loads(long.body)["error"]["type"]) == (413, "request_too_large")
        plain = post(p.port, "/v1/chat/completions", {"messages": [user("hi" * 2000)]})
        assert json.loads(plain.body)["error"]["code"] == "too_large"


# a refused context


LONG = [user(TASK), *rounds(12, size=1_500)]


def ask(p, messages=LONG, *headers, path="/v1/messages", **members):
    body = {"model": "claude", "max_tokens": 9, "tools": OWN_TOOLS, "messages": messages, **members}
    return post(p.port, path, body, *(headers or (SESSION,)))


def test_an_original_whose_thinking_was_made_for_rebuilt_requests_goes_without_it(tmp_path):
    with served(thinking_script(), tmp_path) as (server, p):
        told = run(p, SESSION, thinking=ADAPTIVE)
        taken = len(server.requests)
        server.replies = iter([say("again"), say("and again")])
        passed = ask(
            p, told[:-1], b"x-memory-session: other", b"x-memory-strategy: no_strategy", thinking=ADAPTIVE
        )
        assert passed.status == 200, passed.body
        sent = [r.body["messages"] for r in server.requests[taken:]]
        assert [m == told[:-1] for m in sent] == [False, True, False]
        assert unmarked(sent[0]) == told[:-1]  # it was not the marks that were refused
        assert not p.service.proxy.rebuilder.refusing_marks
        assert not any(
            b["type"] == "thinking" for m in server.requests[-1].body["messages"][1::2] for b in m["content"]
        )
        assert passed.header(b"x-memory-reason") == THINKING_LEFT_OUT.encode()


# cache marks


def unmarked(value):
    """The same without cache marks; a text that became a block to be marked is a text again."""
    if isinstance(value, dict):
        rest = {k: unmarked(v) for k, v in value.items() if k != "cache_control"}
        content = rest.get("content")
        marked = isinstance(value.get("content"), list) and cache_marks(value["content"])
        if marked and rest.get("role") and len(content) == 1 and content[0]["type"] == "text":
            return {**rest, "content": content[0]["text"]}
        return rest
    return [unmarked(v) for v in value] if isinstance(value, list) else value


def marks_in(messages):
    """The positions (message, block) of the marks in a request's messages."""
    return [
        (i, j)
        for i, m in enumerate(messages)
        if isinstance(m["content"], list)
        for j, block in enumerate(m["content"])
        if "cache_control" in block
    ]


def test_requests_without_marks_get_them_where_the_prefix_will_stand(tmp_path):
    """At the last block, at that of the request before, and at the end of the anchor, which a fold reads again.

    The first requests are marked in part: what is written to the cache is dearer than what is not.
    """
    cache = Cached()
    with served(cache, tmp_path, inject_tools=False) as (server, p):
        everything = rounds(80, size=180)
        folds, read = [], []
        for n in range(2, len(everything) + 1, 2):
            assert ask(p, [user(TASK), *everything[:n]], system=SYSTEM).status == 200
            messages = server.requests[-1].body["messages"]
            marks = marks_in(messages)
            exchange = p.told(n // 2)[-1]
            if exchange.step.charge.cache_marks is not None:
                assert n <= 16
                continue
            assert len(marks) == 3
            assert marks[0] == (0, 0)
            assert marks[-1] == (len(messages) - 1, 0)
            read.append(exchange.usage.cached)
            folds.append(exchange.memory == "rebuilt" and exchange.step.changed_at is not None)
        assert server.refused == []
        assert 2 <= sum(folds) <= 8
        anchor = min(read[1:])  # all that a fold reads; every other request reads all of the one before
        assert anchor > 0
        assert [r == anchor for r in read[1:]] == folds[1:]
        assert p.service.sessions.processor.state("memory_bank", exchange.session).prefix_cache.read == 0.1


def test_a_client_keeps_its_own_marks_and_gets_the_others_up_to_four(tmp_path):
    with served(lambda body: say("ok"), tmp_path) as (server, p):
        marked = [{"type": "text", "text": SYSTEM, **MARK}]
        for members in (
            {"system": marked},
            {"tools": [{**OWN_TOOLS[0], **MARK}]},
            MARK,
        ):  # MARK: the last block's
            body = {"model": "claude", "max_tokens": 9, "system": SYSTEM, "messages": LONG, **members}
            assert post(p.port, "/v1/messages", body, SESSION).status == 200
            messages = server.requests[-1].body["messages"]
            assert marks_in(messages) == [(0, 0), (len(messages) - (3 if members is MARK else 1), 0)]
        own = json.loads(json.dumps(LONG))
        own[-1]["content"][-1].update(MARK)
        ask(p, own, system=marked)
        messages = server.requests[-1].body["messages"]
        assert marks_in(messages) == [(0, 0), (len(messages) - 3, 0), (len(messages) - 1, 0)]


def test_a_request_that_lost_a_marked_block_gets_others_up_to_four(tmp_path):
    hour = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    with served(lambda body: say("ok"), tmp_path) as (server, p):
        own = json.loads(json.dumps(LONG))
        own[1]["content"].insert(0, text("I look.", **hour))
        own[-1]["content"][-1].update(hour)
        ask(p, own, system=[{"type": "text", "text": SYSTEM, **hour}])
        messages = server.requests[-1].body["messages"]
        values = [messages[i]["content"][j]["cache_control"] for i, j in marks_in(messages)]
        assert (
            values == [hour["cache_control"]] * 3
        )  # one of five minutes may not stand before one of an hour
        assert server.refused == []


@pytest.mark.parametrize("place", first_short(["mixed", "around", "system", "tools", "messages", "last"]))
def test_with_any_marks_of_the_client_no_request_leaves_with_more_than_four(tmp_path, place):
    """What leaves is counted after memory has set its own marks; a client with more is refused for its own."""
    with served(lambda body: say("ok"), tmp_path) as (server, p):
        for count in range(7):
            for stop in (3, len(LONG)):
                messages, members = json.loads(json.dumps(LONG[:stop])), {}
                own = dict.fromkeys(("system", "tools", "messages", "around"), 0)
                for n in range(count):
                    where = {"last": "messages", "mixed": ("system", "messages", "tools")[n % 3]}.get(
                        place, place
                    )
                    own["messages" if n and where == "around" else where] += 1
                if own["system"]:
                    members["system"] = [text(f"{SYSTEM} {n}", **MARK) for n in range(own["system"])]
                if own["tools"]:
                    members["tools"] = [
                        {**OWN_TOOLS[0], "name": f"t{n}", **MARK} for n in range(own["tools"])
                    ]
                members |= MARK if own["around"] else {}
                blocks = [m for m in messages if isinstance(m["content"], list)]
                blocks = blocks[-own["messages"] :] if place == "last" else blocks[: own["messages"]]
                for message in blocks[: own["messages"]]:
                    message["content"][-1].update(MARK)
                asked = {
                    "model": "claude",
                    "max_tokens": 9,
                    "system": SYSTEM,
                    "messages": messages,
                    **members,
                }
                refused = len(server.refused)
                post(p.port, "/v1/messages", asked, SESSION + f"{count}".encode())
                allowed = max(4, cache_marks_beside(asked) + cache_marks(messages))
                sent = server.requests[-1].body
                assert cache_marks_beside(sent) + cache_marks(sent["messages"]) <= allowed
                if allowed == 4:
                    assert server.refused[refused:] == []
        assert any(p.told(count + 1)[n].memory == "rebuilt" for n in range(count))


def test_marks_that_upstream_refuses_are_left_out_from_then_on(tmp_path):
    """The session keeps its memory."""

    def refuse(body):
        return fail(400, "Extra inputs are not permitted") if cache_marks(body["messages"]) else say("ok")

    with served(refuse, tmp_path, inject_tools=False) as (server, p):
        came = ask(p, LONG[:3], **MARK)  # the client's mark is at the end: memory's cost no more
        assert (came.status, came.header(b"x-memory-reason")) == (200, b"upstream refused cache marks")
        assert [cache_marks(r.body["messages"]) for r in server.requests] == [1, 0]
        assert ask(p).header(b"x-memory-status") == b"rebuilt"
        assert cache_marks(server.requests[-1].body["messages"]) == 0
        assert len(server.requests) == 3


def test_no_marks_where_nothing_would_be_read_again(tmp_path):
    """Sessions of the control group, the setting "off", and contexts that change at each step."""
    for name, service in (("off", {"cache_markers": "off"}), ("control", {"holdout": 1.0})):
        with served(lambda body: say("ok"), tmp_path / name, **service) as (server, p):
            ask(p)
            assert cache_marks(server.requests[-1].body["messages"]) == 0
    with served(lambda body: say("ok"), tmp_path / "each") as (server, p):
        for n in range(13, 19):
            ask(p, [user(TASK), *rounds(n, size=900)], SESSION, b"x-memory-strategy: truncation")
        assert [cache_marks(r.body["messages"]) for r in server.requests] == [2, 2, 1, 1, 1, 1]


# requests that pass untouched


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"thread": {"id": "thread_1"}}, b"thread"),
        ({"thread": True}, b"thread"),
        ({"messages": []}, b"no messages"),
        ({"messages": "hello"}, b"no messages"),
        ({"messages": [user("hi")]}, b"nothing to remember yet"),
    ],
)
def test_what_passes_untouched(tmp_path, members, reason):
    with served([say("ok")], tmp_path) as (server, p):
        server.strict = False
        came = (
            ask(p, LONG, b"x-none: 1", **members)
            if "messages" not in members
            else post(p.port, "/v1/messages", {"model": "claude", "max_tokens": 9, **members})
        )
        assert came.header(b"x-memory-status") == b"passed"
        assert came.header(b"x-memory-reason") == reason
        assert json.loads(server.requests[0].data)["messages"] == members.get("messages", LONG)


def test_after_its_own_summary_a_client_goes_on_in_its_session(tmp_path):
    """Claude Code and Codex keep no call: what was recorded is shown at once."""
    with served(lambda body: say("ok"), tmp_path) as (server, p):
        ask(p)
        kept = [user("This session is being continued from a previous conversation that ran out of context.")]
        came = ask(p, kept)
        assert came.header(b"x-memory-status") == b"rebuilt"
        assert came.header(b"x-memory-session") == SESSION.split()[-1]
        assert "result 11 result 11" in json.dumps(server.requests[-1].body["messages"])
        assert p.service.database.get_session(SESSION.split()[-1].decode(), "task") == TASK


def test_blocks_of_the_provider_and_system_messages_go_upstream_whole(tmp_path):
    messages = [
        user(TASK),
        system("Be brief."),
        *rounds(6, size=1_500),
        turn("I search.", *OPAQUE),
        user("Go on."),
        turn(use("toolu_x"), OPAQUE[-1]),
        user(answer("toolu_x", "X" * 400)),
        *rounds(6, size=1_500, start=6),
    ]
    with served([say("ok")], tmp_path) as (server, p):
        assert ask(p, messages).header(b"x-memory-status") == b"rebuilt"
        sent = server.requests[0].body["messages"]
        assert all(m in sent for m in (messages[14], messages[16]))
        assert system("Be brief.") in sent
        assert server.refused == []


# sessions


def test_side_requests_under_the_id_of_a_session_leave_it_alone(tmp_path):
    with served(lambda body: say("ok"), tmp_path) as (_, p):
        ask(p, LONG)
        side = post(
            p.port,
            "/v1/messages",
            {"model": "claude", "max_tokens": 9, "messages": [user("A title, please")]},
            SESSION,
        )
        assert side.header(b"x-memory-reason") == b"nothing to remember yet"
        assert ask(p, [*LONG, *rounds(1, start=12)]).header(b"x-memory-status") == b"rebuilt"
        with p.service.sessions.reading(None, p.told()[0].session) as state:
            assert state.fact_store.size() == 13


def test_a_conversation_without_an_id_is_found_by_its_messages(tmp_path):
    with served(lambda body: say("ok"), tmp_path) as (_, p):
        first = ask(p, LONG, b"x-api-key: k1").header(b"x-memory-session")
        marked = json.loads(json.dumps(LONG))
        marked[-1]["content"][-1].update(MARK)  # clients move their marks
        assert ask(p, [*marked, *rounds(1, start=12)], b"x-api-key: k1").header(b"x-memory-session") == first
        assert ask(p, LONG, b"x-api-key: k2").header(b"x-memory-session") != first


# keys


def test_a_key_of_the_service_scopes_and_is_replaced(tmp_path, monkeypatch):
    from memory_bank.bank.database import Database
    from memory_bank.bank.keys import Keys

    database = Database(tmp_path / "bank.db")
    key, other = (Keys(database).create(name)[1].encode() for name in ("agent", "other"))
    database.close()
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-service")
    with (
        RawUpstream(lambda got: whole(b"{}")) as up,
        proxied("http://127.0.0.1:9", tmp_path / "bank.db", upstream_anthropic=up.base_url) as p,
    ):
        assert ask(p, LONG, b"x-api-key: sk-ant-unknown").status == 401
        assert json.loads(ask(p, LONG, b"x-none: 1").body)["error"]["type"] == "authentication_error"
        for headers in (
            [b"x-api-key: " + key],
            [b"Authorization: Bearer " + key],
            [b"x-api-key: " + key, b"Authorization: Bearer " + key],
        ):
            assert ask(p, LONG, SESSION, *headers).status == 200
            assert up.got[-1].header(b"x-api-key") == b"sk-ant-service"
            assert up.got[-1].header(b"authorization") is None
        assert ask(p, LONG, SESSION, b"x-memory-key: " + key, b"x-api-key: sk-ant-mine").status == 200
        assert up.got[-1].header(b"x-api-key") == b"sk-ant-mine"
        assert ask(p, LONG, SESSION, b"x-api-key: " + other).status == 200
        spaces = {e.namespace for e in p.told(5) if e.status == 200}
        assert len(spaces) == 2
        assert not any(key.decode() in line or "sk-ant" in line for line in p.lines)


def test_without_a_key_of_its_own_the_service_says_which_to_set(tmp_path, monkeypatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with served([say("ok")], tmp_path) as (_, p):
        came = ask(p, LONG, b"x-api-key: mb_0123456789abcdef_x")
        assert came.status == 401
        assert "ANTHROPIC_API_KEY" in json.loads(came.body)["error"]["message"]


# counting


def test_counting_counts_the_rebuilt_context_and_records_nothing(tmp_path):
    with served(lambda body: say("ok"), tmp_path) as (server, p):
        counted = {"model": "claude", "messages": LONG, "system": SYSTEM, "tools": OWN_TOOLS}
        came = post(p.port, "/v1/messages/count_tokens?beta=true", counted, SESSION)
        assert came.status == 200
        assert came.header(b"x-memory-status") == b"rebuilt"
        rebuilt = json.loads(came.body)["input_tokens"]
        assert rebuilt < len(json.dumps(counted)) / 8
        assert p.service.sessions.names(None, 9) == []
        ask(p, LONG, system=SYSTEM)
        sent = server.requests[-1].body["messages"]
        assert server.requests[0].body["messages"] == unmarked(sent)  # what is counted is what is sent
        assert server.requests[0].body["tools"] == server.requests[-1].body["tools"]
        assert cache_marks(sent) == 2
        post(
            p.port,
            "/v1/messages/count_tokens",
            {**counted, "messages": [*LONG, *rounds(1, start=12)]},
            SESSION,
        )
        with p.service.sessions.reading(None, p.told(2)[1].session) as state:
            assert state.fact_store.size() == 12
        few = post(p.port, "/v1/messages/count_tokens", {"model": "claude", "messages": [user("hi")]})
        assert few.header(b"x-memory-status") == b"passed"


# memory tools


@pytest.mark.parametrize("stream", [False, True])
def test_memory_tools_are_offered_and_answered(tmp_path, stream):
    replies = [
        Reply(
            "Let me look.", [("search_memory", {"query": "result 1"}), ("list_records", {})], usage=(100, 10)
        ),
        Reply("Found.", usage=(120, 5)),
    ]
    with served(replies, tmp_path, inject_tools=True) as (server, p):
        came = ask(p, LONG, stream=stream)
        assert came.header(b"x-memory-fetched") == (None if stream else b"2")
        assert server.refused == []
        names = [t["name"] for t in server.requests[0].body["tools"]]
        assert names[2:] == ["get_record"]
        content = read_stream(came.body) if stream else json.loads(came.body)["content"]
        assert [b["text"] for b in content] == (["Let me look.", "Found."] if stream else ["Found."])
        asked, answered = server.requests[1].body["messages"][-2:]
        assert asked["role"] == "assistant"
        results = answered["content"]  # in one message: gateways refuse two of the user in a row
        assert [b["type"] for b in results] == ["tool_result", "tool_result"]
        assert "result 1" in str(results[0]["content"])
        exchange = p.told()[0]
        assert (exchange.usage.input, exchange.usage.output) == (220, 15)


def test_memory_tools_are_not_offered_where_the_model_thinks_at_first(tmp_path):
    with served(lambda body: say("ok"), tmp_path, inject_tools=True) as (server, p):
        ask(p, LONG, thinking=ADAPTIVE)
        assert len(server.requests[-1].body["tools"]) == len(OWN_TOOLS)
        ask(
            p, [*LONG, turn(thought()), user("on")], b"x-memory-strategy: no_strategy", b"x-memory-session: t"
        )
        assert len(server.requests[-1].body["tools"]) == len(OWN_TOOLS)
        ask(p, LONG)
        assert len(server.requests[-1].body["tools"]) == len(OWN_TOOLS)
        for more in (
            {"thinking": {"type": "disabled"}},
            {"tool_choice": {"type": "none"}},
            {"thinking": ADAPTIVE},
        ):
            ask(p, LONG, b"x-memory-session: u", **more)
            assert len(server.requests[-1].body["tools"]) == len(OWN_TOOLS) + 1


def test_the_scripted_upstream_is_strict(tmp_path):
    replies = [Reply(None, [("get_order", {"number": 1})], reasoning="hm"), say("ok"), call("x")]
    with ScriptedServer(replies) as server:
        port = int(server.base_url.split(":")[2].split("/")[0])
        body = {"model": "claude", "max_tokens": 9, "messages": [user("go")], "thinking": ADAPTIVE}
        first = json.loads(post(port, "/v1/messages", body).body)["content"]
        messages = [user("go"), {"role": "assistant", "content": first}, user(answer(first[1]["id"], "ok"))]
        changed = [user("go!"), *messages[1:]]
        refused = post(port, "/v1/messages", {**body, "messages": changed})
        assert refused.status == 400
        assert b"different prefix" in refused.body
        marked = [user(*(text("a", **MARK) for _ in range(5)))]
        assert b"maximum of 4" in post(port, "/v1/messages", {**body, "messages": marked}).body
        assert b"max_tokens" in post(port, "/v1/messages", {"model": "m", "messages": [user("go")]}).body
        assert post(port, "/v1/messages", {**body, "messages": messages}).status == 200
        assert json.loads(post(port, "/v1/messages/count_tokens", body).body)["input_tokens"] > 0
        assert from_anthropic(messages).messages[1]["tool_calls"]


def test_tokens_are_counted_after_an_empty_output(tmp_path):
    messages = [
        user("go"),
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t1", "name": "get_record", "input": {}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": ""}]},
    ]
    body = {"model": "m", "max_tokens": 10, "messages": messages}
    with served(lambda body: say("ok"), tmp_path) as (_, p):
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            came = post(p.port, path, body, b"x-memory-session: s")
            assert (came.status, came.header(b"x-memory-status")) == (200, b"unchanged")
