"""What goes wrong around the proxy: clients that leave, an upstream that fails, memory that is away."""

from __future__ import annotations

import contextlib
import json
import socket
import sqlite3
import struct
import threading
import time
from dataclasses import astuple

import openai
import pytest
import sqlalchemy as sa
from tests.ports import free_port
from tests.postgres import Relay
from tests.service.processes import until
from tests.service.proxied import (
    RawUpstream,
    before,
    chunked,
    head_of,
    post,
    proxied,
    request,
    scripted,
    whole,
)
from tests.service.proxy.test_routes import CHAT, LONG, OK

from memory_bank.bank.database import Database
from memory_bank.bank.maintenance import verify
from memory_bank.bank.stores import FactStore
from memory_bank.service.proxy.identity import Identity
from memory_bank.service.proxy.rebuild import Rebuilder
from memory_bank.testing import fail, say

SHORT = json.dumps({"model": "m", "messages": LONG[:2]}).encode()
LONGER = json.dumps({"model": "m", "messages": LONG}).encode()
NAMED = b"x-memory-session: s"


def quiet(p):
    assert not [
        line for line in p.lines if "Traceback" in line or "rror" in line.replace("UpstreamError", "")
    ]


# clients that leave


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize(
    "answer",
    [
        [30.0],  # nothing yet
        chunked(b"data: 1\n\n", 30.0),
        [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nfour", 30.0],
    ],
)
def test_upstream_hears_at_once_of_a_client_that_leaves(tmp_path, answer, hard):
    with before(lambda got: answer, tmp_path) as (upstream, p):
        with socket.create_connection(("127.0.0.1", p.port), timeout=20) as client:
            client.sendall(head_of("POST", CHAT, SHORT) + SHORT)
            if len(answer) > 1:
                client.recv(10)
            until(lambda: upstream.got)
            time.sleep(0.05)
            if hard:  # a reset instead of an orderly end
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            left = time.monotonic()
        until(lambda: upstream.gone)
        assert upstream.gone[0] - left < 15  # it would have gone on for 30 seconds
        assert p.told()[0].outcome == "client_gone"
        quiet(p)


@pytest.mark.parametrize("path", [CHAT, "/v1/files"])
def test_a_client_that_leaves_within_its_request(tmp_path, path):
    with before(lambda got: whole(OK), tmp_path) as (upstream, p):
        with socket.create_connection(("127.0.0.1", p.port), timeout=20) as client:
            client.sendall(head_of("POST", path, b"", b"Content-Length: 1000000") + b"x" * 70_000)
            time.sleep(0.1)
        assert p.told()[0].outcome == "client_gone"
        assert upstream.got == [] or len(upstream.got[0].body) < 1_000_000
        quiet(p)


def test_a_client_that_leaves_while_memory_is_at_work(tmp_path):
    with before(lambda got: whole(OK), tmp_path) as (upstream, p):
        with locked(tmp_path / "bank.db"):
            with socket.create_connection(("127.0.0.1", p.port), timeout=20) as client:
                client.sendall(head_of("POST", CHAT, LONGER, NAMED) + LONGER)
                until(lambda: p.service.proxy.rebuilder.tasks)
            assert p.told()[0].outcome == "client_gone"
        assert upstream.got == []
        until(lambda: stored(tmp_path) == 12)  # what came is kept all the same
        quiet(p)


# an upstream that fails


def test_an_upstream_that_breaks_off(tmp_path):
    def answer(got):
        how = json.loads(got.body)["how"]
        if how == "chunks":
            return [*chunked(b"data: 1\n\n", end=False), None]
        if how == "length":
            return [b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\ndata: 1\n\n", None]
        return [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\nzz\r\n"]

    with before(answer, tmp_path) as (_, p):
        for i, how in enumerate(("chunks", "length", "garbage"), 1):
            came = post(p.port, CHAT, {"messages": LONG[:2], "how": how, "stream": True})
            assert (came.status, came.body, came.whole) == (200, b"data: 1\n\n", False)
            assert p.told(i)[-1].outcome == "broken_off"
        assert not [line for line in p.lines if "Traceback" in line]
        assert sum("broke off" in line for line in p.lines) == 3


@pytest.mark.parametrize(
    "answer",
    [
        [None],
        [b"no http\r\n\r\n", None],
        [b"HTTP/1.1 200 OK\r\nbroken head\r\n\r\n"],
        [b"HTTP/1.1 700 X\r\n\r\n"],
    ],
)
def test_an_upstream_that_does_not_answer(tmp_path, answer):
    with before(lambda got: answer, tmp_path) as (upstream, p):
        for path in (CHAT, "/v1/models"):
            came = post(p.port, path, SHORT)
            error = json.loads(came.body)["error"]
            assert came.status == 502
            assert error["code"] == "upstream_unreachable" and error["type"] == "server_error"
            assert upstream.base_url.split("/")[2] in error["message"] or "700" in error["message"]
        assert len(upstream.got) == 2  # not tried twice
        assert [e.outcome for e in p.told(2)] == ["unreachable"] * 2
        quiet(p)


def test_an_upstream_that_is_down_and_up_again(tmp_path):
    port = free_port()
    with proxied(f"http://127.0.0.1:{port}/v1", tmp_path / "bank.db", strategy="folding") as p:
        came = post(p.port, CHAT, LONGER, NAMED)
        assert came.status == 502
        assert "cannot be reached" in json.loads(came.body)["error"]["message"]
        assert stored(tmp_path) == 12
        with pytest.raises(openai.InternalServerError, match="cannot be reached"):
            openai.OpenAI(base_url=p.base_url, api_key="k", max_retries=0).models.list()
        with RawUpstream(lambda got: whole(OK), port) as upstream:
            assert post(p.port, CHAT, LONGER, NAMED).body == OK
            assert len(upstream.got[0].body) < len(LONGER)
        quiet(p)


def test_a_silent_upstream_is_given_up(tmp_path):
    with before(lambda got: [60.0], tmp_path, upstream_timeout=0.3) as (upstream, p):
        came = post(p.port, CHAT, SHORT)
        assert came.status == 502
        assert "0.3 seconds" in json.loads(came.body)["error"]["message"]
        until(lambda: upstream.gone)
    with before(lambda got: chunked(b"1", 60.0), tmp_path, upstream_timeout=1.5) as (upstream, p):
        came = post(p.port, CHAT, SHORT)
        assert (came.body, came.whole) == (b"1", False)
        until(lambda: upstream.gone)
        quiet(p)


def test_a_slow_upstream_may_take_its_time(tmp_path):
    pieces = [x for i in range(9) for x in (0.4, b"%d" % i)]
    with before(lambda got: chunked(*pieces), tmp_path, upstream_timeout=3) as (_, p):
        assert post(p.port, CHAT, SHORT).body == b"012345678"


def test_who_is_to_wait_is_told_by_upstream(tmp_path):
    replies = [fail(429, "slow down", retry_after=0.2), say("now")]
    with scripted(replies, tmp_path) as (server, p):
        client = openai.OpenAI(base_url=p.base_url, api_key="k", max_retries=1)
        began = time.monotonic()
        answer = client.chat.completions.create(model="m", messages=LONG[:2])
        assert answer.choices[0].message.content == "now"
        assert time.monotonic() - began >= 0.2
        assert [r.headers["x-stainless-retry-count"] for r in server.requests] == ["0", "1"]


# memory that fails


@contextlib.contextmanager
def locked(file):
    """Somebody else holds the database for writing."""
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def stored(tmp_path):
    database = Database(tmp_path / "bank.db")
    try:
        return FactStore(database, "s").size()
    finally:
        database.close()


def unchanged(came, upstream, reason):
    """The request went on as it came, and the client is told."""
    assert (came.status, came.body) == (200, OK)
    assert came.header(b"x-memory-status") == b"failed"
    assert came.header(b"x-memory-reason") == reason.encode()
    assert upstream.got[-1].body == LONGER


def test_a_database_that_hangs_costs_little_and_comes_back(tmp_path):
    with before(lambda got: whole(OK), tmp_path, memory_timeout=0.3) as (upstream, p):
        p.service.proxy.rebuilder = Rebuilder(
            p.service.sessions, Identity(p.service.database), 0.3, pause=4.0
        )
        rebuilder = p.service.proxy.rebuilder
        with locked(tmp_path / "bank.db"):
            first = {"model": "m", "messages": json.loads(LONGER)["messages"][:1]}
            came = post(p.port, CHAT, first, b"x-memory-session: q")
            assert came.header(b"x-memory-reason") == b"timeout"
            rebuilder.timeout = 60
            came = post(p.port, CHAT, first, b"x-memory-session: q")
            assert came.header(b"x-memory-reason") == b"busy"  # the step of the first one is still at it
            rebuilder.timeout = 0.3
            for name in (b"s", b"t"):
                came = post(p.port, CHAT, LONGER, b"x-memory-session: " + name)
                unchanged(came, upstream, "timeout")
            for name in (b"v", b"w"):
                came = post(p.port, CHAT, LONGER, b"x-memory-session: " + name)
                unchanged(came, upstream, "paused")
        rebuilder.timeout = 60
        until(lambda: not rebuilder.hanging)
        time.sleep(4.0)  # the pause
        assert post(p.port, CHAT, LONGER, NAMED).header(b"x-memory-status") == b"rebuilt"
        until(lambda: stored(tmp_path) == 12)  # by this one, where a step has given up on the database
        quiet(p)


@pytest.mark.long
def test_a_database_that_is_gone_and_back(postgres, postgres_url, tmp_path):
    with (
        RawUpstream(lambda got: whole(OK)) as upstream,
        proxied(upstream.base_url, postgres_url, strategy="folding") as p,
    ):
        assert post(p.port, CHAT, LONGER, NAMED).header(b"x-memory-status") == b"rebuilt"
        postgres.stop()
        try:
            unchanged(post(p.port, CHAT, LONGER, NAMED), upstream, "storage_unavailable")
            unchanged(post(p.port, CHAT, LONGER, b"x-memory-session: t"), upstream, "storage_unavailable")
        finally:
            postgres.start()
        for name in (NAMED, b"x-memory-session: t"):
            assert post(p.port, CHAT, LONGER, name).header(b"x-memory-status") == b"rebuilt"
        assert list(verify(p.service.database)) == []
        assert not [line for line in p.lines if "Traceback" in line]


def test_a_full_disk(tmp_path):
    with before(lambda got: whole(OK), tmp_path) as (upstream, p):
        post(p.port, CHAT, LONGER, NAMED)
        with p.service.database.read() as c:
            pages = c.exec_driver_sql("PRAGMA page_count").scalar()
        limit_pages(p.service.database, pages)
        more = json.loads(LONGER)
        more["messages"][-1]["content"] += "x" * 900_000
        came = post(p.port, CHAT, more, b"x-memory-session: t")
        assert came.header(b"x-memory-status") == b"failed"
        assert came.header(b"x-memory-reason") == b"storage_unavailable"
        assert json.loads(upstream.got[-1].body) == more
        limit_pages(p.service.database, 10**9)
        came = post(p.port, CHAT, more, b"x-memory-session: t")
        assert came.header(b"x-memory-status") == b"rebuilt"
        assert list(verify(p.service.database)) == []


@pytest.mark.parametrize(
    "line", [b"DELETE /v1/sessions/s", b"POST /v1/sessions/s/reset", b"DELETE /v1/sessions/s/records/1"]
)
def test_deleting_on_a_full_disk(tmp_path, line):
    """503 and one sentence; everything is still there, and the same request works once there is room."""
    sent = line + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
    with before(lambda got: whole(OK), tmp_path) as (_, p):
        assert post(p.port, CHAT, LONGER, NAMED).header(b"x-memory-status") == b"rebuilt"
        database = p.service.database
        before_it = records_of(database)
        with database.write() as c:  # a deletion takes little room by itself
            c.exec_driver_sql("CREATE TABLE ballast (b BLOB)")
            for change in ("UPDATE ON records", "DELETE ON records"):
                c.exec_driver_sql(
                    f"CREATE TRIGGER room_{change[0]} BEFORE {change} "
                    "BEGIN INSERT INTO ballast VALUES (zeroblob(1000000)); END"
                )
        with database.read() as c:
            limit_pages(database, c.exec_driver_sql("PRAGMA page_count").scalar())
        came = request(p.port, sent)
        assert came.status == 503
        assert "disk is full; nothing was changed" in json.loads(came.body)["error"]["message"]
        assert records_of(database) == before_it
        limit_pages(database, 10**9)
        assert request(p.port, sent).status == 204
        assert records_of(database) != before_it
        assert list(verify(database)) == []


def records_of(database):
    store = FactStore(database, "s")
    return [repr(astuple(r)) for r in store.get_many(list(store.steps()))]


def limit_pages(database, most):
    """Give every connection of the database at most so many pages; the setting is one of a connection."""

    def limit(connection, *_):
        connection.execute(f"PRAGMA max_page_count={most}").fetchall()

    for engine in {database._engine, database._reader}:
        sa.event.listen(engine, "checkout", limit)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"x-memory-session: " + b"n" * 500, "invalid_settings"),
        (b"x-memory-session: a%00b", "invalid_settings"),
        (b"x-memory-strategy: no such", "unknown_strategy"),
    ],
)
def test_what_a_client_names_wrongly(tmp_path, header, reason):
    named = [] if header.startswith(b"x-memory-session") else [NAMED]
    with before(lambda got: whole(OK), tmp_path) as (upstream, p):
        unchanged(post(p.port, CHAT, LONGER, header, *named), upstream, reason)
        assert post(p.port, CHAT, LONGER, NAMED).header(b"x-memory-status") == b"rebuilt"


def test_a_strategy_of_the_clients_choice(tmp_path):
    with before(lambda got: whole(OK), tmp_path) as (upstream, p):
        came = post(p.port, CHAT, LONGER, NAMED, b"x-memory-strategy: truncation")
        assert came.header(b"x-memory-status") == b"rebuilt"
        assert json.loads(upstream.got[-1].body)["messages"] == [*LONG[:2], *LONG[-2:]]


class Odd:
    """An identity that fails as nobody foresaw."""

    def __init__(self, error):
        self.error = error

    def session_of(self, *args, **named):
        raise self.error


def test_what_nobody_foresaw(tmp_path):
    with before(lambda got: whole(OK), tmp_path) as (upstream, p):
        p.service.proxy.rebuilder = Rebuilder(p.service.sessions, Odd(KeyError("what the tool said")), 5)
        unchanged(post(p.port, CHAT, LONGER, NAMED), upstream, "unforeseen")
        assert [line for line in p.lines if "KeyError" in line]
        assert not [line for line in p.lines if "what the tool said" in line]


class Hanging:
    """An identity that never comes back, until it is let go."""

    def __init__(self):
        self.go = threading.Event()
        self.calls = 0

    def session_of(self, *args, **named):
        self.calls += 1
        self.go.wait(120)


def test_steps_that_hang_for_ever_do_not_use_up_the_threads(tmp_path):
    with before(lambda got: whole(OK), tmp_path) as (_, p):
        hanging = Hanging()
        p.service.proxy.rebuilder = Rebuilder(p.service.sessions, hanging, 0.05, pause=0.0)
        try:
            while hanging.calls < 64:  # on a busy machine a request may time out before its thread begins
                assert post(p.port, CHAT, LONGER).header(b"x-memory-reason") == b"timeout"
            for _ in range(6):
                assert post(p.port, CHAT, LONGER).header(b"x-memory-reason") == b"paused"
            assert hanging.calls == 64
        finally:
            hanging.go.set()
        until(lambda: post(p.port, CHAT, LONGER).header(b"x-memory-status") == b"passed")


def test_one_who_watches_and_fails_hurts_nobody(tmp_path):
    def fails(exchange):
        raise ValueError("secret")

    with before(lambda got: whole(OK), tmp_path) as (_, p):
        p.service.exchanges.insert(0, fails)
        assert post(p.port, CHAT, SHORT).status == 200
        assert p.told()[0].status == 200
        assert [line for line in p.lines if "ValueError" in line and "secret" not in line]


def test_secrets_and_contents_are_neither_logged_nor_stored(tmp_path):
    secret, words = b"Bearer sk-very-secret", "what the user said"
    with before(lambda got: [None], tmp_path) as (_, p):
        body = {"messages": [{"role": "user", "content": words}, *LONG[2:]]}
        post(p.port, CHAT + "?key=sk-very-secret", body, b"Authorization: " + secret, NAMED)
        request(p.port, head_of("GET", "/v1/x?key=sk-very-secret", b"", b"Authorization: " + secret))
        read = b"".join(f.read_bytes() for f in tmp_path.iterdir())
        told = repr(p.told(2)) + "\n".join(p.lines)
    assert b"sk-very-secret" not in read
    assert "sk-very-secret" not in told and words not in told


@pytest.mark.long
def test_requests_go_on_while_the_network_to_the_database_is_silent(tmp_path, postgres):
    """The first one soon, the others at once; what they brought is stored when it is back."""
    relay, bank = Relay(postgres), postgres.emptied()
    settings = {
        "database": relay.url(bank),
        "memory_timeout": 60.0,
    }  # it is not this limit that ends the wait
    with scripted(lambda _: say("ok"), tmp_path, **settings) as (_, p):

        def ask():
            began, number = time.monotonic(), len(p.exchanges)
            assert post(p.port, CHAT, LONGER, NAMED).status == 200
            until(lambda: len(p.exchanges) > number)
            return p.exchanges[-1].memory, time.monotonic() - began

        assert ask()[0] == "rebuilt"
        with relay.silence():
            memory, seconds = ask()
            assert memory == "failed" and seconds < 30  # 2 on an idle machine
            assert [ask()[0] for _ in range(3)] == ["failed"] * 3
        until(lambda: ask()[0] == "rebuilt")
    assert postgres.sql("SELECT count(*) FROM records", bank) == [(12,)]
    relay.close()
