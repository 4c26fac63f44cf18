"""A context that upstream refuses: the request goes as it came, and the session gets its memory back."""

from __future__ import annotations

import json

import pytest
from tests.blocks import turn, user
from tests.examples import first_short
from tests.service.proxied import post, scripted
from tests.service.proxy.test_messages import (
    ADAPTIVE,
    LONG,
    SESSION,
    STEPS,
    ask,
    run,
    served,
    thinking_script,
)
from tests.service.test_figures import BANK, BODIES

from memory_bank.service.proxy.routes import FIRST_PAUSE, LONGEST_PAUSE, REFUSED, SAFER, UNTRIED
from memory_bank.testing import Reply, fail, say

ENABLED = {"type": "enabled", "budget_tokens": 1024}
routes = pytest.mark.parametrize("route", list(BODIES))


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


@routes
@pytest.mark.parametrize("status", first_short([400, 413, 422]))
def test_memory_comes_back_in_a_safer_form(tmp_path, route, status):
    key = "input" if route == "responses" else "messages"
    whole = BODIES[route][1][key]
    refused = []

    def script(body):
        if body[key] != whole and not refused:
            refused.append(body[key])
            return fail(status, "no secret-words", code="bad_turn")
        return say("ok")

    with Client(tmp_path, route, script) as client:
        assert client.ask() == (200, "unchanged", REFUSED, 2)
        for _ in range(FIRST_PAUSE):
            assert client.ask() == (200, "unchanged", REFUSED, 1)
        assert client.ask(session=b"other")[1:3] == ("rebuilt", None)
        for _ in range(3):
            assert client.ask() == (200, "rebuilt", SAFER, 1)
        safer = client.server.requests[-1].body[key]
        assert safer != refused[0]
        assert len(safer) < len(refused[0]) < len(whole)  # one block in place of many turns
        warnings = [line for line in client.p.lines if "refused" in line]
        kind = {"chat": "invalid", "responses": "invalid", "messages": "_error"}[route]
        assert len(warnings) == 1
        assert f"{route}, {status}, " in warnings[0]
        assert kind in warnings[0] or "bad_turn" in warnings[0] or "too_large" in warnings[0]
        assert "session task" in warnings[0]
        assert "for 5 requests, then in a safer form" in warnings[0]
        assert not any("secret-words" in line for line in client.p.lines)
        with client.p.service.sessions.reading(None, "task") as state:
            assert state.fact_store.size() == 12  # facts are recorded all the same


@routes
def test_where_the_original_is_refused_too_memory_goes_on(tmp_path, route):
    faults = [fail(400, "ours"), fail(400, "the clients own"), say("ok")]
    with Client(tmp_path, route, faults) as client:
        assert client.ask()[::3] == (400, 2)
        assert b"the clients own" in client.came.body
        assert client.ask() == (200, "rebuilt", None, 1)


def test_the_client_gets_the_answer_to_its_own_request(tmp_path):
    """Though that was sent once more without its thinking."""
    with served(thinking_script(), tmp_path) as (server, p):
        told = run(p, SESSION, thinking=ADAPTIVE)
        server.strict = False
        server._replies = iter([fail(400, "ours"), fail(400, "its own"), fail(400, "stripped"), say("ok")])
        at = len(server.requests)
        came = ask(p, told[:-1], SESSION, thinking=ADAPTIVE)
        assert (came.status, json.loads(came.body)["error"]["message"]) == (400, "its own")
        assert len(server.requests) == at + 3
        assert ask(p, told[:-1], SESSION, thinking=ADAPTIVE).header(b"x-memory-status") == b"rebuilt"


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 529])
def test_other_errors_pass_as_they_come(tmp_path, status):
    with Client(tmp_path, "chat", [fail(status, "no"), say("ok")]) as client:
        assert client.ask() == (status, "rebuilt", None, 1)
        assert client.ask() == (200, "rebuilt", None, 1)


def test_each_further_refusal_doubles_the_pause(tmp_path):
    whole = BODIES["chat"][1]["messages"]
    with Client(
        tmp_path, "chat", lambda b: say("ok") if b["messages"] == whole else fail(400, "no")
    ) as client:
        tries = [n for n in range(40) if client.ask()[3] == 2]
        assert tries == [0, 1 + FIRST_PAUSE, 2 + 3 * FIRST_PAUSE, 3 + 7 * FIRST_PAUSE]
        ways = client.p.service.proxy.rebuilder.ways
        for _ in range(9):
            ways[None, "task"].left = 0
            client.ask()
        assert ways[None, "task"].pause == LONGEST_PAUSE


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

    with Client(tmp_path, route, script, inject_tools="auto") as client:
        status, memory, reason, count = client.ask(stream=stream)
        assert (status, count) == (200, 3)
        assert client.came.whole
        assert b"Z9" in client.came.body
        assert b"c_hidden" not in client.came.body
        if not stream or words is None:  # else the headers were sent before
            assert (memory, reason) == ("unchanged", REFUSED)
        assert client.p.told()[0].reason == REFUSED
        assert client.ask(stream=stream)[1:] == ("unchanged", REFUSED, 1)


def test_thinking_of_a_turn_that_was_made_for_a_rebuilt_context(tmp_path):
    """The original is refused for its thinking; what is remembered is that it goes without."""
    with served(thinking_script(), tmp_path) as (server, p):
        told = run(p, SESSION, thinking=ADAPTIVE)
        at = len(server.requests)

        def script(body):
            text = json.dumps(body["messages"], ensure_ascii=False)
            return fail(400, "no") if "[… #" in text or "<retrieved-data" in text else say("ok")

        server._replies = iter([script] * 9)
        came = [ask(p, told[:-1], SESSION, thinking=ADAPTIVE) for _ in range(3)]
        assert [c.status for c in came] == [200] * 3
        assert (
            len(server.requests) - at == 3 + 2
        )  # rebuilt, as it came, without thinking; then at once without


# thinking of type "enabled"


def test_a_model_that_accepts_changes_before_thinking_gives_memory_from_the_first_request(tmp_path):
    """Once it was seen to accept one, in whichever session."""
    with served(thinking_script(), tmp_path) as (server, p):
        server.strict = False
        run(p, SESSION, thinking=ENABLED)
        server._replies = iter([say("ok")] * 2)
        other = ask(p, [*LONG, turn("Yes."), user("And now?")], b"x-memory-session: other", thinking=ENABLED)
        assert other.header(b"x-memory-status") == b"rebuilt"
        unknown = ask(
            p,
            [*LONG, turn("Yes."), user("And now?")],
            b"x-memory-session: third",
            thinking=ENABLED,
            model="claude-of-another-kind",
        )
        assert unknown.header(b"x-memory-reason") == UNTRIED.encode()


def test_a_model_that_binds_thinking_costs_one_request_a_session(tmp_path):
    with served([*thinking_script(), *thinking_script()], tmp_path) as (server, p):
        for name in (b"x-memory-session: one", b"x-memory-session: two"):
            told = run(p, name, thinking=ENABLED)
            assert told[-1]["content"][-1]["text"] == "All is well."
        assert len(server.refused) == 2
        assert len(server.requests) == 2 * (STEPS + 1) + 2
        assert len(p.lines) == 2
        assert all("while it thinks" in line for line in p.lines)
