"""What a client's connection may cost: deadlines for heads and bodies, a number that leaves room for health."""

import asyncio
import contextlib
import logging
import socket
import sys
import time
from contextlib import ExitStack, contextmanager

import pytest
from tests.service.proxied import RawUpstream, chunked, configured, post, request, whole
from tests.service.serving import running

from memory_bank.service.app import create_app
from memory_bank.service.operations.logs import RepeatLimit
from memory_bank.service.proxy.upstream import Upstream
from memory_bank.service.server.process import RESERVE, most_connections, protocol

HEALTH = b"GET /health?live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@contextmanager
def serving(tmp_path, upstream, most=8, **seconds):
    """A service whose connections have these bounds; its port."""
    bounded = protocol(most)
    for name, value in seconds.items():
        setattr(bounded, name, value)
    app = create_app(configured(upstream=upstream.base_url, database=str(tmp_path / "bank.db")))
    with running(app, http=bounded, timeout_keep_alive=75) as port:
        yield port


def opened(stack, port, data=b""):
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
    connection.sendall(data)
    return connection


def closed(connection):
    """Whether the service closes the connection, without an answer; waits for it."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


@pytest.fixture
def upstream():
    with RawUpstream(lambda got: whole(b"{}")) as up:
        yield up


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /v1/se",
        b"GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\nX-A: ",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{",
        b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
    ],
)
def test_a_request_that_does_not_arrive_is_given_up(tmp_path, upstream, begun):
    with serving(tmp_path, upstream, head_seconds=0.2, body_pause=0.2) as port, ExitStack() as stack:
        assert closed(opened(stack, port, begun))


def test_single_bytes_prolong_neither_head_nor_body(tmp_path, upstream):
    body = b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
    with serving(tmp_path, upstream, head_seconds=0.5, body_seconds=0.5) as port, ExitStack() as stack:
        for begun in (b"GET / HTTP/1.1\r\nX-A: ", body):
            connection = opened(stack, port, begun)
            connection.settimeout(0.02)
            for _ in range(3_000):  # a minute at most
                try:
                    connection.sendall(b"a")
                    if connection.recv(1) == b"":
                        break
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
            else:
                pytest.fail("the connection is still open")


def test_an_answer_may_take_longer_than_a_request(tmp_path):
    with (
        RawUpstream(lambda got: [0.6, *whole(b"{}")]) as up,
        serving(tmp_path, up, head_seconds=0.2, body_pause=0.2, body_seconds=0.2) as port,
    ):
        assert post(port, "/v1/files", {"a": 1}).status == 200


def test_connections_without_a_request_make_room(tmp_path, upstream):
    with serving(tmp_path, upstream, most=8) as port, ExitStack() as stack:
        idle = [opened(stack, port) for _ in range(50)]
        for _ in range(3):
            assert request(port, HEALTH).status == 200
        assert closed(idle[0])  # the oldest went first


def test_when_every_connection_has_a_request_health_is_answered(tmp_path, upstream):
    half = b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"
    with serving(tmp_path, upstream, most=8) as port, ExitStack() as stack:
        for _ in range(8):
            opened(stack, port, half)
        until = time.monotonic() + 60
        while request(port, b"GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\n\r\n").status != 503:
            opened(stack, port, half)  # one that had not been read yet has made room
            assert time.monotonic() < until
        assert request(port, HEALTH).status == 200


def test_the_number_of_connections_leaves_handles_for_the_rest():
    assert most_connections(1024) == 432
    assert most_connections(20) == 64
    assert most_connections(10**6) == 8192
    assert 2 * most_connections(4096) + RESERVE < 4096


def test_two_lengths_are_refused_and_dropped(tmp_path):
    lengths = b"Content-Length: 7\r\nTransfer-Encoding: chunked"
    answer = [b"HTTP/1.1 200 OK\r\n" + lengths + b"\r\n\r\n2\r\n{}\r\n0\r\n\r\n"]
    with RawUpstream(lambda got: answer) as up, serving(tmp_path, up) as port:
        head = b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
        came = request(port, head + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        assert came.status == 400
        assert not up.got
        came = request(port, b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (came.status, came.body) == (200, b"{}")
        assert came.header(b"content-length") is None


def test_the_head_of_a_request_has_a_bound_and_connect_is_no_method(tmp_path, upstream, caplog):
    """However it arrives: at once, where the parser sees a whole head, or in parts."""

    def head(size, method=b"GET", target=b"/v1/models"):
        line = method + b" " + target + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        return line + b"X-A: " + b"a" * (size - len(line) - 9) + b"\r\n\r\n"

    with serving(tmp_path, upstream) as port:
        assert request(port, head(65_500)).status == 200
        for size in (65_600, 66_000, 120_000):
            assert request(port, head(size)).status in (400, 431)
            assert request(port, head(900, target=b"/v1/" + b"a" * size)).status in (400, 431)
        assert len(upstream.got) == 1
        for target in (b"/v1/x", b"localhost:443", b"/v1/chat/completions", b"/v1/sessions"):
            assert request(port, head(300, b"CONNECT", target)).status in (400, 405)
        assert request(port, HEALTH).status == 200
        with socket.create_connection(("127.0.0.1", port)) as one:  # in parts
            with contextlib.suppress(OSError):
                for part in (head(66_000)[i : i + 6_000] for i in range(0, 66_000, 6_000)):
                    one.sendall(part)
            assert one.recv(12) in (b"HTTP/1.1 400", b"HTTP/1.1 431")
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []


def test_equal_warnings_are_limited():
    now = [0.0]
    limit = RepeatLimit(most=3, seconds=10, clock=lambda: now[0])

    def warned(level=logging.WARNING, line=1):
        record = logging.LogRecord("x", level, "file.py", line, "odd %s", ("thing",), None)
        return record.getMessage() if limit.filter(record) else None

    assert [warned() for _ in range(5)] == ["odd thing"] * 3 + [None] * 2
    assert warned(line=2) == "odd thing"
    assert [warned(logging.INFO) for _ in range(5)] == ["odd thing"] * 5
    now[0] = 11
    assert warned() == "odd thing (2 more of these lines were left out)"
    assert warned() == "odd thing"


# --- connections to the model's API


FORGED = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nnot yours"


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("HEAD", [b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\n" + FORGED]),
        ("GET", [b"HTTP/1.1 204 No Content\r\n\r\n" + FORGED]),
        ("GET", [b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n" + FORGED]),
        ("GET", [b"HTTP/1.1 204 No Content\r\n\r\n", 0.2, FORGED]),
        ("GET", [*whole(b"{}"), FORGED]),
        ("GET", [b"".join([*whole(b"{}"), FORGED])]),
        ("GET", [b"".join([*chunked(b"{}"), FORGED])]),
    ],
)
def test_what_follows_an_answer_is_never_the_next_answer(tmp_path, method, answer):
    def told(got):
        return answer if got.line.startswith(method.encode()) else whole(b'{"own": 1}')

    with RawUpstream(told) as up, serving(tmp_path, up) as port:
        asked = f"{method} /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        for _ in range(3):
            request(port, asked)
            came = post(port, "/v1/chat/completions", {"model": "m", "messages": []})
            assert (came.status, came.body) == (200, b'{"own": 1}')


def test_a_connection_is_used_again_after_an_ordinary_answer(tmp_path):
    ends = set()

    class Counting(RawUpstream):
        def _answer(self, connection, got):
            ends.add(connection.getpeername())
            return super()._answer(connection, got)

    with Counting(lambda got: whole(b"{}")) as up, serving(tmp_path, up) as port:
        for _ in range(5):
            assert post(port, "/v1/files", {}).status == 200
    assert len(ends) == 1


async def beside(streams, kept=60.0):
    """While so many answers stream: calls of functions that one more takes; later, how many connections are left."""
    ends, release = [], asyncio.Event()

    async def serve(reader, writer):
        ends.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{")
                if head.startswith(b"GET /held"):
                    await release.wait()
                writer.write(b"}")
        ends.remove(writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    upstream = Upstream(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", kept=kept)

    async def ask():
        assert await (await upstream.send("GET", b"/whole", [])).hold() == b"{}"

    held = [await upstream.send("GET", b"/held", []) for _ in range(streams)]
    await ask()
    calls = 0

    def count(_frame, event, _arg):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    await ask()
    sys.setprofile(None)
    release.set()
    for answer in held:
        assert await answer.hold() == b"{}"
    for _ in range(10):
        await asyncio.sleep(2 * min(kept, 0.01))
        await ask()
    left = len(ends)
    await upstream.aclose()
    server.close()
    return calls, left


def test_a_request_takes_no_more_work_beside_many_streams():
    (alone, _), (among_many, left) = asyncio.run(beside(0)), asyncio.run(beside(100))
    assert among_many < 2 * alone
    assert left > 100  # they are kept


def test_connections_that_nobody_uses_any_more_are_closed():
    _, left = asyncio.run(beside(100, kept=0.01))
    assert left <= 8  # of the first pool, and of the one more


def test_an_answer_of_upstream_is_no_page_of_this_service(tmp_path):
    headers = (b"Content-Type: text/html", b"Set-Cookie: a=1", b"Service-Worker-Allowed: /")
    with RawUpstream(lambda got: whole(b"<script>", *headers)) as up, serving(tmp_path, up) as port:
        came = request(port, b"GET /v1/help HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert came.header(b"content-security-policy") == b"sandbox"
        assert came.header(b"x-content-type-options") == b"nosniff"
        assert came.header(b"set-cookie") is None
        assert came.header(b"service-worker-allowed") is None
        link = b"Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n"
        for path, status in ((b"/", 200), (b"/v1/help", 403), (b"/v1/sessions", 403), (b"/health", 403)):
            head = b"GET %b HTTP/1.1\r\nHost: localhost\r\n%bConnection: close\r\n\r\n" % (path, link)
            assert request(port, head).status == status
