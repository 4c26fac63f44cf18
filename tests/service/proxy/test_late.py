"""A step whose memory comes too late: the last fold goes with what is new; the late result belongs to nothing."""

from __future__ import annotations

import json
import socket
import statistics
import threading
import time
from dataclasses import replace

import pytest
import sqlalchemy as sa
from tests.bank.conftest import counted_commits
from tests.blocks import MARK
from tests.examples import in_turn
from tests.service.processes import until
from tests.service.proxied import before, head_of, post, scripted, whole
from tests.service.proxy.test_faults import locked
from tests.service.proxy.test_messages import unmarked
from tests.service.requests import PATHS, body_of
from tests.service.tasks import get_order
from tests.service.test_figures import BANK

from memory_bank.bank.database import Database
from memory_bank.bank.schema import sessions
from memory_bank.service.proxy.rebuild import CONTINUED, GROWS, Rebuilder
from memory_bank.testing import say

NAMED = b"x-memory-session: s"
RECORDER = "memory-bank-steps"
FOLDS = {"folds": {**BANK, "refresh_after": 4_000}}
apis = in_turn("api", PATHS)


def key_of(api):
    return "input" if api == "responses" else "messages"


def limited(p, seconds):
    """The service gives each step so many seconds, as long as its request is short."""
    own = p.service.proxy.rebuilder
    p.service.proxy.rebuilder = Rebuilder(
        own.sessions, own.identity, seconds, pause=0.1, marks_cache=True, inject=own.inject
    )


class Slow:
    """Sessions whose first step waits, as on a loaded machine."""

    def __init__(self, sessions, go):
        self.sessions, self.go, self.has_begun = sessions, go, False

    def rebuild(self, *args, **kwargs):
        if not self.has_begun:
            self.has_begun = True
            self.go.wait(60)
        return self.sessions.rebuild(*args, **kwargs)

    def __getattr__(self, name):
        return getattr(self.sessions, name)


class AskedLate:
    """Sessions whose steps wait before they ask whether their context is sent, or after that."""

    def __init__(self, sessions, before=None, after=None, asked=None):
        self.asked = asked or threading.Event()
        self.sessions, self.before, self.after = (
            sessions,
            before or threading.Event(),
            after or threading.Event(),
        )
        for event in (self.before, self.after):
            if event not in (before, after):
                event.set()

    def rebuild(self, *args, request, **kwargs):
        def asked():
            if not self.before.is_set():
                self.asked.set()
                self.before.wait(60)
            is_sent = request.sends()
            self.asked.set()
            self.after.wait(60)
            return is_sent

        return self.sessions.rebuild(*args, request=replace(request, sends=asked), **kwargs)

    def __getattr__(self, name):
        return getattr(self.sessions, name)


def steps_and_paid(p):
    """The statuses of the session's steps, and what it has paid."""
    assert p.service.recorder.drain(60)
    steps = p.ask("/v1/sessions/s/steps").json()["steps"]
    return [s["status"] for s in steps], p.service.database.extent("s").paid


def test_a_step_that_was_given_up_stands_once_and_is_not_charged(tmp_path):
    bodies = [body_of("chat", [get_order(n) for n in range(count)]) for count in (12, 13)]
    with scripted([say("ok")] * 9, tmp_path, FOLDS, inject_tools=False) as (_, p):
        limited(p, 60)
        post(p.port, PATHS["chat"], bodies[0], NAMED)
        _, paid = steps_and_paid(p)
        rebuilder, go = p.service.proxy.rebuilder, threading.Event()
        rebuilder.sessions, rebuilder.timeout = AskedLate(rebuilder.sessions, go), 0.3
        came = post(p.port, PATHS["chat"], bodies[1], NAMED)
        assert came.header(b"x-memory-reason").startswith(b"timeout")
        go.set()
        until(lambda: not rebuilder.hanging)
        assert steps_and_paid(p) == (["rebuilt", "failed"], paid)
        with p.service.sessions.reading(None, "s") as state:
            assert state.fact_store.size() == 13  # what came is kept


def test_a_step_that_was_given_up_once_it_was_charged_is_charged_no_more(tmp_path):
    bodies = [body_of("chat", [get_order(n) for n in range(count)]) for count in (12, 13)]
    with scripted([say("ok")] * 9, tmp_path, FOLDS, inject_tools=False) as (_, p):
        limited(p, 60)
        post(p.port, PATHS["chat"], bodies[0], NAMED)
        _, paid = steps_and_paid(p)
        rebuilder, stored = p.service.proxy.rebuilder, threading.Event()
        rebuilder.sessions, rebuilder.timeout = AskedLate(rebuilder.sessions, after=stored), 0.3
        came = post(p.port, PATHS["chat"], bodies[1], NAMED)
        assert came.header(b"x-memory-reason").startswith(b"timeout")
        stored.set()
        until(lambda: not rebuilder.hanging)
        statuses, charged = steps_and_paid(p)
        assert (statuses, charged) == (["rebuilt", "failed"], pytest.approx(paid))


@pytest.mark.parametrize("charged", [False, True])
def test_a_step_whose_client_has_gone_is_neither_charged_nor_recorded(tmp_path, charged):
    bodies = [body_of("chat", [get_order(n) for n in range(count)]) for count in (12, 13, 14)]
    with scripted([say("ok")] * 9, tmp_path, FOLDS, inject_tools=False) as (server, p):
        limited(p, 60)
        post(p.port, PATHS["chat"], bodies[0], NAMED)
        _, paid = steps_and_paid(p)
        rebuilder, go, asked = p.service.proxy.rebuilder, threading.Event(), threading.Event()
        own, data = rebuilder.sessions, json.dumps(bodies[1]).encode()
        waits = {"after": go} if charged else {"before": go}
        rebuilder.sessions = AskedLate(own, asked=asked, **waits)
        with socket.create_connection(("127.0.0.1", p.port), timeout=20) as client:
            client.sendall(head_of("POST", PATHS["chat"], data, NAMED) + data)
            assert asked.wait(20)
        assert p.told(2)[1].outcome == "client_gone"
        go.set()
        until(lambda: not rebuilder.hanging)
        statuses, now = steps_and_paid(p)
        assert (statuses, now) == (["rebuilt"], pytest.approx(paid))
        rebuilder.sessions = own
        post(p.port, PATHS["chat"], bodies[2], NAMED)
        before, sent = (unmarked(r.body["messages"]) for r in server.requests)
        assert sent[: len(before)] == before


def test_a_step_that_has_begun_to_be_sent_is_waited_for(tmp_path):
    body = body_of("chat", [get_order(n) for n in range(12)])
    with scripted([say("ok")] * 9, tmp_path, FOLDS, inject_tools=False) as (_, p):
        limited(p, 4.0)
        rebuilder, stored = p.service.proxy.rebuilder, threading.Event()
        rebuilder.sessions = AskedLate(rebuilder.sessions, after=stored)
        threading.Timer(4.4, stored.set).start()
        came = post(p.port, PATHS["chat"], body, NAMED)
        assert (came.header(b"x-memory-status"), came.header(b"x-memory-reason")) == (b"rebuilt", None)
        assert steps_and_paid(p)[0] == ["rebuilt"]


def test_a_step_whose_cost_cannot_be_stored_does_not_hold_the_request(tmp_path):
    body = body_of("chat", [get_order(n) for n in range(12)])
    with scripted([say("ok")] * 9, tmp_path, FOLDS, inject_tools=False) as (_, p):
        limited(p, 0.3)
        rebuilder, stored = p.service.proxy.rebuilder, threading.Event()
        rebuilder.sessions = AskedLate(rebuilder.sessions, after=stored)
        came = post(p.port, PATHS["chat"], body, NAMED)
        assert not stored.is_set()
        assert came.header(b"x-memory-reason").startswith(b"timeout")
        assert came.status == 200
        stored.set()
        until(lambda: not rebuilder.hanging)
        assert steps_and_paid(p)[0] == ["failed"]


@apis
def test_a_late_step_of_another_process_begins_as_the_one_before(tmp_path, api):
    key = key_of(api)
    bodies = [body_of(api, [get_order(n) for n in range(count)]) for count in (12, 13)]
    with (
        scripted([say("ok")] * 9, tmp_path, FOLDS, inject_tools=False) as (server, first),
        scripted([say("ok")] * 9, tmp_path, FOLDS, inject_tools=False) as (other, second),
    ):
        limited(first, 60)
        limited(second, 2.0)
        post(first.port, PATHS[api], bodies[0], NAMED)
        with locked(tmp_path / "bank.db"):
            came = post(second.port, PATHS[api], bodies[1], NAMED)
        assert came.header(b"x-memory-reason").endswith(b": " + CONTINUED.encode())
        before, sent = (unmarked(s.requests[0].body[key]) for s in (server, other))
        assert sent == [*before, *bodies[1][key][len(bodies[0][key]) :]]


def names(tmp_path):
    database = Database(tmp_path / "bank.db")
    try:
        return database.column(sa.select(sessions.c.session_id))
    finally:
        database.close()


@apis
def test_a_late_step_sends_the_last_fold_and_what_is_new(tmp_path, api):
    key = key_of(api)
    bodies = [body_of(api, [get_order(n) for n in range(count)]) for count in range(12, 17)]
    with scripted([say("ok")] * 9, tmp_path, FOLDS, inject_tools=False) as (server, p):
        limited(p, 60)
        post(p.port, PATHS[api], bodies[0], NAMED)
        late = p.service.proxy.rebuilder
        with locked(tmp_path / "bank.db"):
            late.timeout = 1.0  # also for the stored fold
            for number in (1, 2, 3):
                came = post(p.port, PATHS[api], bodies[number], NAMED)
                assert came.status == 200
                assert came.header(b"x-memory-status") == b"rebuilt"
                assert came.header(b"x-memory-reason").endswith(b": " + CONTINUED.encode())
                sent = unmarked(server.requests[-1].body[key])
                before = unmarked(server.requests[-2].body[key])
                new = bodies[number][key][len(bodies[number - 1][key]) :]
                assert sent == [*before, *new]
                assert len(json.dumps(sent)) < len(json.dumps(bodies[number][key])) / 2
            late.timeout = 60
        until(lambda: not late.hanging)
        time.sleep(2 * late.pause)
        came = post(p.port, PATHS[api], bodies[4], NAMED)
        assert (came.header(b"x-memory-status"), came.header(b"x-memory-reason")) == (b"rebuilt", None)
        assert unmarked(server.requests[-1].body[key])[: len(sent)] == sent  # the fold is that of before
        assert server.refused == []
        assert p.service.recorder.drain(60)
        steps = p.ask("/v1/sessions/s/steps").json()["steps"]
        assert [s["status"] for s in steps] == ["rebuilt", *["failed"] * 3, "rebuilt"]
        assert steps[2]["tokens"] == steps[2]["full_tokens"]  # no saving is claimed
        assert names(tmp_path) == ["s"]


@pytest.mark.parametrize("members", [{}, MARK])  # MARK beside the messages: the last block's
def test_marks_of_the_client_stay_within_four(tmp_path, members):
    """Claude Code moves its marks to the newest messages at each request."""

    def marked(count):
        body = body_of(
            "messages",
            [get_order(n) for n in range(count)],
            system=[{"type": "text", "text": "a", **MARK}],
            **members,
        )
        for message in (body["messages"][-1], body["messages"][-3]):
            message["content"][-1].update(MARK)
        return body

    with scripted([say("ok")] * 9, tmp_path, FOLDS, inject_tools=False) as (server, p):
        limited(p, 60)
        post(p.port, PATHS["messages"], marked(12), NAMED)
        with locked(tmp_path / "bank.db"):
            p.service.proxy.rebuilder.timeout = 1.0  # also for the stored fold
            for count in (13, 14):
                came = post(p.port, PATHS["messages"], marked(count), NAMED)
                assert came.header(b"x-memory-status") == b"rebuilt"
                assert json.dumps(server.requests[-1].body).count('"cache_control"') <= 4
            p.service.proxy.rebuilder.timeout = 60


@apis
def test_what_continues_nothing_goes_as_it_came(tmp_path, api):
    """Another beginning, a shorter list, another session's words, and a request for a summary."""
    key = key_of(api)
    body = body_of(api, [get_order(n) for n in range(12)])
    with scripted([say("ok")] * 9, tmp_path, FOLDS, inject_tools=False, cache_markers="off") as (server, p):
        limited(p, 60)
        post(p.port, PATHS[api], body, NAMED)
        other = body_of(api, [get_order(n + 1) for n in range(13)])
        asks = json.loads(json.dumps(body_of(api, [get_order(n) for n in range(13)])))
        asks[key].append(
            {
                "role": "user",
                "content": "Your task is to create a detailed summary of the conversation so far.",
            }
        )
        shorter = body_of(api, [get_order(n) for n in range(6)])
        with locked(tmp_path / "bank.db"):
            p.service.proxy.rebuilder.timeout = 0.3
            for odd in (other, asks, shorter):
                came = post(p.port, PATHS[api], odd, NAMED)
                assert came.header(b"x-memory-status") == b"failed"
                assert server.requests[-1].body == odd
            p.service.proxy.rebuilder.timeout = 60


@pytest.mark.parametrize("named", [True, False])
def test_a_late_result_begins_no_session_that_no_client_sent(tmp_path, named):
    """Its request has gone on without it, and later ones of the conversation have come since."""
    bodies = [body_of("chat", [get_order(n) for n in range(count)]) for count in range(1, 9)]
    headers = [NAMED] if named else []
    with scripted([say("ok")] * 20, tmp_path, FOLDS, inject_tools=False) as (_, p):
        limited(p, 60)
        rebuilder, go = p.service.proxy.rebuilder, threading.Event()
        rebuilder.sessions = Slow(rebuilder.sessions, go)
        rebuilder.timeout = 2.0  # in which the first one's session is found also on a busy machine
        post(p.port, PATHS["chat"], bodies[0], *headers)
        for body in bodies[1:4]:
            came = post(p.port, PATHS["chat"], body, *headers)
            assert came.header(b"x-memory-reason") == b"busy"
        assert any("still at work" in line for line in p.lines)
        rebuilder.timeout = 60
        go.set()
        until(lambda: not rebuilder.hanging)
        for body in bodies[4:]:
            came = post(p.port, PATHS["chat"], body, *headers)
            assert came.header(b"x-memory-status") != b"failed"
        assert len(names(tmp_path)) == 1
        assert p.service.recorder.drain(60)
        steps = p.ask(f"/v1/sessions/{names(tmp_path)[0]}/steps").json()["steps"]
        assert [s["status"] for s in steps[:4]] == ["failed"] * 4
        assert [s["messages"] for s in steps[4:]] == [len(body["messages"]) for body in bodies[4:]]


def test_the_limit_grows_with_the_history(tmp_path):
    body = body_of("chat", ["x" * GROWS] * 2)
    with scripted([say("ok")], tmp_path, FOLDS, inject_tools=False) as (_, p):
        limited(p, 0.2)
        with locked(tmp_path / "bank.db"):
            post(p.port, PATHS["chat"], body, NAMED)
        [line] = [line for line in p.lines if "took longer" in line]
        assert "0.6" in line


def test_two_commits_stand_before_the_answer(tmp_path):
    """Facts and lineage are one transaction, what the step costs is another; its summaries are a third."""
    at, steps = [], []
    with counted_commits() as commits:

        def answer(_):
            at.append(len(commits))
            return whole(b"{}")

        with before(answer, tmp_path, strategy="memory_bank", inject_tools=False) as (_, p):
            for count in range(4, 10):
                begun = len(commits)
                post(p.port, PATHS["chat"], body_of("chat", [get_order(n) for n in range(count)]), NAMED)
                p.told(len(at))
                until(lambda: not p.service.proxy.rebuilder.tasks)
                assert p.service.recorder.drain(60)
                steps.append((commits[begun : at[-1]], commits[begun:]))
            assert p.service.database.extent("s").records == 9
    assert all(first for first, _ in steps)
    every = [len([name for name in names if name != RECORDER]) for _, names in steps[2:]]
    assert statistics.median(every) == 3, steps  # a fold, or the bank's counter, is another one
