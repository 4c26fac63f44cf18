"""A context that upstream refuses: the request goes as it came, and the session gets its memory back."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from tests.blocks import answer, thought, turn, use, user
from tests.examples import first_short, in_turn
from tests.service.proxied import RawUpstream, chunked, configured, post, proxied, scripted, whole
from tests.service.proxy.test_messages import (
    ADAPTIVE,
    SESSION,
    STEPS,
    ask,
    run,
    served,
    thinking_script,
)
from tests.service.test_figures import BANK, BODIES

from memory_bank.service.proxy.exchange import (
    FIRST_PAUSE,
    IN_VAIN,
    LONGEST_PAUSE,
    OUTAGES,
    REFUSED,
    REFUSED_TOO,
    REFUSES_ALL,
    THINKING_LEFT_OUT,
    TOOLS_REFUSED,
)
from memory_bank.service.proxy.send import LONGEST_BUFFERED, TEMPORARY
from memory_bank.testing import Reply, fail, say
from memory_bank.transcript import events

ENABLED = {"type": "enabled", "budget_tokens": 1024}
routes = in_turn("route", BODIES)
streams = pytest.mark.parametrize("stream", [False, True])
FINAL = [302, 400, 403, 404, 413, 422, 424, 500, 501, 502, 503]
JSON, EVENTS = b"content-type: application/json", b"content-type: text/event-stream"


class Client:
    """An agent of one session before an upstream."""

    def __init__(self, tmp_path, route, script, **service):
        bank = {**BANK, "history_budget": 3_000}  # enough for past turns in their places
        self.route = route
        self._served = scripted(script, tmp_path, {"small": bank}, **{"inject_tools": False, **service})

    def __enter__(self):
        self.server, self.p = self._served.__enter__()
        return self

    def __exit__(self, *error):
        self._served.__exit__(*error)

    def ask(self, session=b"task", **more):
        """The status, what memory did, why, and how many requests arrived upstream for it."""
        path, body = BODIES[self.route]
        before = len(self.server.requests)
        came = post(self.p.port, path, {**body, **more}, b"x-memory-session: " + session)
        reason = came.header(b"x-memory-reason")
        self.came = came
        return (
            came.status,
            came.header(b"x-memory-status").decode(),
            reason and reason.decode(),
            len(self.server.requests) - before,
        )


def is_own(route, body):
    """Whether a request is the client's own."""
    key = "input" if route == "responses" else "messages"
    return body[key] == BODIES[route][1][key]


# every status


@routes
@pytest.mark.parametrize("stream", first_short([True, False]))
def test_no_status_for_a_rebuilt_context_reaches_the_agent(tmp_path, route, stream):
    """Whatever upstream answers to the changed request, the client gets the answer to its own."""
    statuses = iter(FINAL)

    def script(body):
        return say("ok") if is_own(route, body) else fail(next(statuses), "no", code="bad_turn")

    with Client(tmp_path, route, script) as client:
        for number in range(len(FINAL)):
            came = client.ask(session=b"%d" % number, stream=stream)
            assert came == (200, "unchanged", REFUSED, 2), FINAL[number]
            assert b"ok" in client.came.body


@routes
@pytest.mark.parametrize("status", [400, *first_short([500, 403], 1)])
def test_memory_pauses_says_so_and_comes_back(tmp_path, route, status):
    refused = []

    def script(body):
        if not is_own(route, body) and not refused:
            refused.append(body)
            return fail(status, "no secret-words", code="bad_turn")
        return say("ok")

    with Client(tmp_path, route, script) as client:
        assert client.ask() == (200, "unchanged", REFUSED, 2)
        for _ in range(FIRST_PAUSE):
            assert client.ask() == (200, "unchanged", REFUSED, 1)
        assert client.ask(session=b"other")[1:3] == ("rebuilt", None)
        for _ in range(3):
            assert client.ask() == (200, "rebuilt", None, 1)
        [warning] = [line for line in client.p.lines if "refused" in line]
        assert f"{route}, {status}, " in warning
        assert "session task goes without memory for 5 requests" in warning
        assert not any("secret-words" in line for line in client.p.lines)
        with client.p.service.sessions.reading(None, "task") as state:
            assert state.fact_store.size() == 12  # facts are recorded all the same


def test_each_further_refusal_doubles_the_pause(tmp_path):
    with Client(
        tmp_path, "chat", lambda body: say("ok") if is_own("chat", body) else fail(403, "no")
    ) as client:
        tries = [n for n in range(40) if client.ask()[3] == 2]
        assert tries == [0, 1 + FIRST_PAUSE, 2 + 3 * FIRST_PAUSE, 3 + 7 * FIRST_PAUSE]
        [of_session] = client.p.service.proxy.refusals.values()
        for _ in range(9):
            of_session.left = 0
            client.ask()
        assert of_session.pause == LONGEST_PAUSE


@routes
def test_where_the_original_is_refused_too_memory_goes_on(tmp_path, route):
    faults = [fail(500, "ours"), fail(404, "the clients own"), say("ok")]
    with Client(tmp_path, route, faults) as client:
        assert client.ask() == (404, "unchanged", REFUSED_TOO, 2)
        assert b"the clients own" in client.came.body
        assert client.ask() == (200, "rebuilt", None, 1)
        assert not [line for line in client.p.lines if "refused" in line]


@routes
def test_what_memory_added_is_not_blamed_for_a_request_that_is_refused_as_it_came(tmp_path, route):
    """Tools or cache marks, which stay; the client's own bytes are answered, and the reason says so."""
    path, body = BODIES[route]
    key = "input" if route == "responses" else "messages"
    begun = {**body, key: body[key][: -2 * 11]}
    with Client(
        tmp_path, route, [fail(400, "no"), fail(400, "its own"), say("ok")], inject_tools=True
    ) as client:
        came = [post(client.p.port, path, begun, b"x-memory-session: task") for _ in range(2)]
        assert [c.status for c in came] == [400, 200]
        assert b"its own" in came[0].body
        assert [c.header(b"x-memory-reason") for c in came] == [REFUSED_TOO.encode(), None]
        changed, own, later = (r.body for r in client.server.requests)
        assert own == begun
        assert later == changed != own
        assert not client.p.lines


@routes
@pytest.mark.parametrize("status", first_short(sorted(TEMPORARY), 2))
def test_a_status_that_says_nothing_of_the_request_passes_as_it_comes(tmp_path, route, status):
    with Client(tmp_path, route, [fail(status, "no"), say("ok")]) as client:
        assert client.ask() == (status, "rebuilt", None, 1)
        assert client.ask() == (200, "rebuilt", None, 1)


@routes
def test_an_outage_of_a_form_that_was_accepted_passes_as_it_comes(tmp_path, route):
    outages = [fail(status, "no") for status in sorted(OUTAGES)]
    bank = {"folds": {**BANK, "refresh_after": 4_000}}
    with scripted([say("ok"), *outages, say("ok")], tmp_path, bank, inject_tools=False) as (server, p):
        path, body = BODIES[route]
        came = [post(p.port, path, body, b"x-memory-session: a") for _ in range(len(outages) + 2)]
        assert [c.status for c in came] == [200, *sorted(OUTAGES), 200]
        assert {c.header(b"x-memory-status") for c in came} == {b"rebuilt"}
        assert len(server.requests) == len(came)
        assert not [line for line in p.lines if "refused" in line]


@routes
@pytest.mark.parametrize("status", first_short([500, 502], 1))
def test_another_model_that_renders_no_context_does_not_end_the_session(tmp_path, route, status):
    """What one model has accepted says nothing of another, to which a client changes within a session."""

    def script(body):
        return fail(status, "roles") if body["model"] == "b" and not is_own(route, body) else say("ok")

    with Client(tmp_path, route, script) as client:
        came = [client.ask(model=model) for model in "aabba"]
        assert [c[0] for c in came] == [200] * 5
        assert [c[1] for c in came] == ["rebuilt", "rebuilt", "unchanged", "unchanged", "rebuilt"]


def test_a_session_that_is_too_long_without_memory_survives_an_outage(tmp_path):
    """What came is refused for its length then, so that memory is tried again."""

    def script(body):
        return (
            fail(500, "down")
            if client.is_down
            else fail(400, "too long")
            if is_own("chat", body)
            else say("ok")
        )

    with Client(tmp_path, "chat", script) as client:
        client.is_down = True
        for _ in range(IN_VAIN + 5):
            assert client.ask()[0] == 500
        client.is_down = False
        assert [client.ask()[:2] for _ in range(IN_VAIN)][-1] == (200, "rebuilt")


@routes
def test_an_upstream_that_fails_for_everything_gets_no_double_load_and_pauses_nothing(tmp_path, route):
    def script(_):
        return fail(500, "no") if client.is_down else say("ok")

    with Client(tmp_path, route, script) as client:
        client.is_down = True
        came = [client.ask() for _ in range(IN_VAIN + 9)]
        assert {status for status, *_ in came} == {500}
        assert [count for *_, count in came] == [2] * IN_VAIN + [1] * 9
        assert not [line for line in client.p.lines if "refused" in line]
        client.is_down = False
        assert client.ask() == (200, "unchanged", REFUSES_ALL, 1)
        assert client.ask() == (200, "rebuilt", None, 1)


@routes
@pytest.mark.parametrize("status", first_short([404, 400, 500]))
def test_a_request_that_memory_did_not_change_is_no_reason_for_a_pause(tmp_path, route, status):
    path, body = BODIES[route]
    key = "input" if route == "responses" else "messages"
    begun = {**body, key: body[key][: -2 * 11]}
    script = [fail(status, "its own"), *[say("ok")] * 9]
    with Client(tmp_path, route, script, cache_markers="off") as client:
        named = b"x-memory-session: task"
        assert post(client.p.port, path, begun, named).status == status
        assert len(client.server.requests) == 1
        assert client.ask() == (200, "rebuilt", None, 1)
        assert not client.p.lines


# what is no status


@contextmanager
def raw(answer, tmp_path):
    """An upstream of all APIs that answers with these bytes, and the service before it."""
    with RawUpstream(answer) as upstream:
        settings = {
            "upstream": upstream.base_url,
            "upstream_anthropic": upstream.base_url.removesuffix("/v1"),
            "database": str(tmp_path / "bank.db"),
            "strategy": "small",
            "inject_tools": False,
        }
        with proxied("", "", configured({"small": BANK}, **settings)) as p:
            yield upstream, p


def accepted(route, stream):
    """The answer of an upstream, as bytes."""
    if route == "chat":
        made = events.completion("c1", "m", {"role": "assistant", "content": "fine"}, 9, 1)
        pieces = events.chat_events(made, {})
    elif route == "responses":
        made = events.response_of("r1", {}, [events.text_item("i1", "fine")], 9, 1)
        pieces = events.response_events(made)
    else:
        made = events.message_of("m1", "m", [{"type": "text", "text": "fine"}], "end_turn", 9, 1)
        pieces = events.message_events(made)
    return chunked(*pieces, headers=(EVENTS,)) if stream else whole(json.dumps(made).encode(), JSON)


def event(kind, **members):
    [made] = events.as_events([(kind, members)])
    return made


ERROR = {"type": "invalid_request_error", "message": "roles must alternate"}
STARTED = {
    "chat": b'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}\n\n',
    "responses": event("response.created", response={"id": "r", "status": "in_progress", "error": None}),
    "messages": event("message_start", message={"id": "m", "usage": {"input_tokens": 1}}),
}
FAILED = event("response.failed", response={"status": "failed", "error": {"code": "invalid_prompt"}})
ODD = {
    "an error in its body": lambda r, s: whole(json.dumps({"error": ERROR}).encode(), JSON),
    "a text as error": lambda r, s: whole(b'{"error": "cannot render"}', JSON),
    "an error object": lambda r, s: whole(json.dumps({"object": "error", **ERROR}).encode(), JSON),
    "a page": lambda r, s: whole(b"<html><body>Bad request</body></html>", b"content-type: text/html"),
    "an empty body": lambda r, s: whole(b"", JSON),
    "an empty body of no type": lambda r, s: whole(b""),
    "no content": lambda r, s: [b"HTTP/1.1 204 No Content\r\n\r\n"],
    "an error in its choice": lambda r, s: whole(
        json.dumps({"choices": [{"message": {}, "error": {"code": 400, "message": "no"}}]}).encode(), JSON
    ),
    "another object": lambda r, s: whole(b'{"detail": "no"}', JSON),
    "no answer": lambda r, s: [None],
    "nothing after the head": lambda r, s: [b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n", None],
    "half an answer": lambda r, s: [b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{", None],
    "no HTTP": lambda r, s: [b"no\r\n\r\n", None],
    "a page with an error": lambda r, s: whole(
        b"<html>", b"content-type: text/html", status=b"502 Bad Gateway"
    ),
}
STREAMED = {
    "an error event": lambda r: [event("error", error=ERROR)],
    "a comment and an error": lambda r: [b": wait\n\n", event("error", error=ERROR)],
    "an error in a chunk": lambda r: [b'data: {"error": {"message": "no", "code": 400}}\n\n'],
    "an error after the beginning": lambda r: [STARTED[r], event("error", error=ERROR)],
    "a response that failed": lambda r: [STARTED[r], FAILED] if r == "responses" else [FAILED],
    "an error and a text as chunk": lambda r: [b'data: {"error": "no", "choices": [{"delta": {}}]}\n\n'],
    "no event": lambda r: [],
    "only the end": lambda r: [b"data: [DONE]\n\n"],
    "only the beginning": lambda r: [STARTED[r]],
}


def odd_cases():
    """Every odd answer, for every API; without the long tests each answer for one of them, in turns."""
    cases = [(name, odd, stream) for name, odd in ODD.items() for stream in (False, True)]
    cases += [
        (name, lambda r, s, pieces=pieces: chunked(*pieces(r), headers=(EVENTS,)), True)
        for name, pieces in STREAMED.items()
    ]
    broken = lambda r, s: [*chunked(STARTED[r], headers=(EVENTS,), end=False), None]  # noqa: E731
    cases.append(("it breaks off after its beginning", broken, True))
    for i, route in enumerate(BODIES):
        for j, (name, odd, stream) in enumerate(cases):
            marks = [] if j % len(BODIES) == i else [pytest.mark.long]
            yield pytest.param(route, stream, odd, id=f"{route}-{name}-{stream}", marks=marks)


@pytest.mark.parametrize(("route", "stream", "odd"), [*odd_cases()])
def test_an_answer_that_is_none_is_a_refusal(tmp_path, route, stream, odd):
    """Where nothing of it was shown yet; the client gets the answer to its own request, byte by byte."""
    path, body = BODIES[route]

    def answer(got):
        own = is_own(route, json.loads(got.body))
        return accepted(route, stream) if own else odd(route, stream)

    with raw(answer, tmp_path) as (upstream, p):
        came = post(p.port, path, {**body, "stream": stream}, b"x-memory-session: a")
        assert (came.status, came.whole, len(upstream.got)) == (200, True, 2)
        assert came.header(b"x-memory-reason") == REFUSED.encode()
        expected = accepted(route, stream)
        assert came.body == b"".join(
            p.split(b"\r\n", 1)[1][:-2] if stream else p for p in expected[1 : -1 if stream else None]
        )


@routes
@pytest.mark.parametrize(
    "odd", first_short(["no answer", "an error in its body", "a page", "nothing after the head"], 2)
)
def test_an_odd_answer_to_the_clients_own_request_reaches_it(tmp_path, route, odd):
    path, body = BODIES[route]
    with raw(lambda got: ODD[odd](route, False), tmp_path) as (up, p):
        came = [post(p.port, path, body, b"x-memory-session: a") for _ in range(IN_VAIN + 2)]
        assert len(up.got) == 2 * IN_VAIN + 2
        assert not any("goes without memory" in line for line in p.lines)
        if odd == "a page":
            assert {(c.status, c.body) for c in came} == {(200, b"<html><body>Bad request</body></html>")}
        elif odd == "an error in its body":
            assert {json.loads(c.body)["error"]["message"] for c in came} == {ERROR["message"]}
        else:
            assert {c.status for c in came} == {502}


@pytest.mark.parametrize(
    "error",
    [
        {"type": "overloaded_error"},
        {"code": "rate_limit_exceeded"},
        {"code": 429},
        {"code": "ThrottlingException"},
        {"status": "RESOURCE_EXHAUSTED"},
        {"type": "too_many_requests"},
    ],
)
def test_a_temporary_error_in_a_stream_passes_as_it_comes(tmp_path, error):
    path, body = BODIES["chat"]
    sent = b"data: " + json.dumps({"error": error}).encode() + b"\n\n"
    with raw(lambda got: chunked(sent, headers=(EVENTS,)), tmp_path) as (upstream, p):
        came = post(p.port, path, {**body, "stream": True}, b"x-memory-session: a")
        assert (came.status, came.body, len(upstream.got)) == (200, sent, 1)


@pytest.mark.long  # some seconds
def test_a_stream_that_is_only_kept_alive_passes_after_a_while(tmp_path):
    """Else a client, or a proxy before it, would give up a model that thinks for long."""
    answer = chunked(b": wait\n\n", LONGEST_BUFFERED + 1, b": still there\n\n", headers=(EVENTS,))

    def asked(route):
        path, body = BODIES[route]
        return post(p.port, path, {**body, "stream": True}, b"x-memory-session: " + route.encode())

    with raw(lambda got: answer, tmp_path) as (upstream, p), ThreadPoolExecutor() as pool:
        for came in pool.map(asked, BODIES):
            assert (came.status, came.body) == (200, b": wait\n\n: still there\n\n")
            assert came.header(b"x-memory-status") == b"rebuilt"
        assert len(upstream.got) == len(BODIES)


def test_an_upstream_that_cannot_be_reached_is_asked_once(tmp_path):
    with Client(tmp_path, "chat", [say("ok")]) as client:
        client.server.close()
        path, body = BODIES["chat"]
        assert post(client.p.port, path, body, b"x-memory-session: a").status == 502
        assert not [line for line in client.p.lines if "refused" in line]


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/v1/responses/input_tokens"])
@pytest.mark.parametrize("status", [400, 404, 500])
def test_a_refused_count_is_that_of_the_request_as_it_came(tmp_path, path, status):
    route = path.split("/")[2]
    _, body = BODIES[route]
    whole_body = json.dumps(body).encode()

    def answer(got):
        if json.loads(got.body) == body:
            return whole(b'{"input_tokens": 77}', JSON)
        return whole(b"{}", JSON, status=b"%d No" % status)

    with raw(answer, tmp_path) as (upstream, p):
        post(p.port, BODIES[route][0], body, b"x-memory-session: a")
        at = len(upstream.got)
        came = post(p.port, path, body, b"x-memory-session: a")
        assert came.json() == {"input_tokens": 77}
        assert upstream.got[-1].body == whole_body
        assert len(upstream.got) - at in (1, 2)


# hidden turns, thinking, marks


def test_the_client_gets_the_answer_to_its_own_request(tmp_path):
    """Though that was sent once more without its thinking."""
    with served(thinking_script(), tmp_path) as (server, p):
        told = run(p, SESSION, thinking=ADAPTIVE)
        server.strict = False
        server.replies = iter([fail(400, "ours"), fail(400, "its own"), fail(400, "stripped"), say("ok")])
        at = len(server.requests)
        came = ask(p, told[:-1], SESSION, thinking=ADAPTIVE)
        assert (came.status, json.loads(came.body)["error"]["message"]) == (400, "its own")
        assert len(server.requests) == at + 3
        assert ask(p, told[:-1], SESSION, thinking=ADAPTIVE).header(b"x-memory-status") == b"rebuilt"


@routes
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("words", first_short(["Let me see.", None]))
def test_a_hidden_turn_that_is_refused_does_not_end_the_answer(tmp_path, route, stream, words):
    """Also where words of the turn before it were streamed already."""
    key = "input" if route == "responses" else "messages"

    def script(body):
        offered = json.dumps(body.get("tools"))
        if "get_record" not in offered:
            return say("Z9")
        text = json.dumps(body[key])
        if '"c_hidden"' in text or "toolu_hidden" in text:
            return fail(400, "a turn that I do not know")
        return Reply(words, [("get_record", {"trace_id": "#4"}, "c_hidden")])

    with Client(tmp_path, route, script, inject_tools=True) as client:
        status, memory, reason, count = client.ask(stream=stream)
        assert (status, count) == (200, 3)
        assert client.came.whole
        assert b"Z9" in client.came.body
        assert b"c_hidden" not in client.came.body
        if not stream or words is None:  # else the headers were sent before
            assert (memory, reason) == ("unchanged", TOOLS_REFUSED)
        assert client.p.told()[0].reason == TOOLS_REFUSED
        assert client.ask(stream=stream)[1:] == ("rebuilt", None, 1)  # without the tools


def test_thinking_of_a_turn_that_was_made_for_a_rebuilt_context(tmp_path):
    """The original is refused for its thinking; what is remembered is that it goes without."""
    with served(thinking_script(), tmp_path) as (server, p):
        told = run(p, SESSION, thinking=ADAPTIVE)
        at = len(server.requests)

        def script(body):
            text = json.dumps(body["messages"], ensure_ascii=False)
            return fail(400, "no") if "[… #" in text or "<retrieved-data" in text else say("ok")

        server.replies = iter([script] * 9)
        came = [ask(p, told[:-1], SESSION, thinking=ADAPTIVE) for _ in range(3)]
        assert [c.status for c in came] == [200] * 3
        assert {c.header(b"x-memory-reason") for c in came} == {THINKING_LEFT_OUT.encode()}
        # rebuilt, as it came, without thinking; then as it came and without thinking
        assert len(server.requests) - at == 3 + 2 * 2


def test_a_model_that_binds_thinking_of_type_enabled_costs_one_request_for_each_pause(tmp_path):
    """The agent gets an answer to each of its requests."""
    with served(thinking_script(), tmp_path) as (server, p):
        told = run(p, SESSION, thinking=ENABLED)
        assert told[-1]["content"][-1]["text"] == "All is well."
        pauses = len([line for line in p.lines if "goes without memory" in line])
        assert pauses <= 4
        assert len(server.requests) == STEPS + 1 + pauses


def test_a_turn_that_began_with_a_rebuilt_context_ends_without_its_thinking(tmp_path):
    """Its thinking fits no other context, and the turn could not go on without it while the model thinks."""
    with served([*thinking_script(), *thinking_script()], tmp_path) as (server, p):
        server.strict = False
        told = run(p, SESSION, thinking=ENABLED)
        server.strict = True
        begun = [*told, user("And again, please.")]
        made = turn(thought("for a rebuilt context"), use("toolu_1", "get_order", number=1))
        turns = [*begun, made, user(answer("toolu_1", "an order"))]
        server.replies = iter([say("ok")] * 9)
        came = ask(p, turns, SESSION, thinking=ENABLED, model="claude")
        assert came.status == 200
        assert server.requests[-1].body["thinking"] == {"type": "disabled"}
        assert b'"thinking":"' not in json.dumps(server.requests[-1].body["messages"]).encode()
