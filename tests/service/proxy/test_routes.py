"""What goes through the proxy arrives to the byte: requests, answers, headers, uploads, streams."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import sys
import threading
import time

import pytest
from tests.chats import parted
from tests.service.proxied import (
    RawUpstream,
    before,
    chunked,
    head_of,
    post,
    proxied,
    read_answer,
    read_body,
    read_head,
    request,
    whole,
)
from tests.service.requests import body_of
from tests.service.tasks import get_order

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CHAT = "/v1/chat/completions"
OK = b'{"id": "1", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}'


LONG = body_of("chat", [get_order(n) for n in range(12)])["messages"]


@pytest.fixture
def echo(tmp_path):
    """A proxy before an upstream that says yes."""
    with before(lambda got: whole(OK), tmp_path) as (upstream, p):
        yield upstream, p


# requests


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"no json at all \xff\x00",
        b'{"messages": [',
        b'[{"role": "user"}]',
        b'{"messages": "text"}',
        b'{"messages": []}',
        b'{"messages": {"role": "user"}, "model": 3}',
        b'{"messages": [null, 1, "x", [], {"role": 7}, {"role": "user", "content": {"a": 1}}]}',
        b'\xef\xbb\xbf {"model" : "m",  "messages": [ {"role":"user","content":"\\ud800 \\u00e9"} ], "x": 1e400}',
        b'{"model": "m", "messages": [{"role": "user", "content": "twice"}], "messages": []}',
        b'{"messages": [{"role": "user", "content": "vendor"}], "vendor": {"k": [1.10, 2E+3, NaN]}, "vendor": 2}',
        b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        json.dumps({"model": "m", "messages": LONG[:4], "stream": False}, indent=3).encode(),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/responses"])
def test_what_memory_leaves_as_it_is_arrives_to_the_byte(echo, path, body):
    upstream, p = echo
    came = post(p.port, path, body, b"x-memory-session: s")
    assert (came.status, came.body, came.whole) == (200, OK, True)
    assert [g.body for g in upstream.got] == [body]
    assert upstream.got[0].header(b"content-length") == str(len(body)).encode() if body else True
    assert came.header(b"x-memory-status") in (b"passed", b"unchanged")
    assert (came.header(b"x-memory-reason") is None) == (came.header(b"x-memory-status") == b"unchanged")
    assert p.lines == []


@pytest.mark.parametrize(
    ("name", "told"),
    [(" ", b"%20"), (" a b ", b"%20a%20b%20"), ("50%", b"50%25"), ("a/b:c", b"a/b:c"), ("\u00e9", b"%C3%A9")],
)
@pytest.mark.parametrize("by", ["metadata", "prompt_cache_key"])
def test_any_name_is_told_in_a_header(echo, name, told, by):
    """Also one that no header could hold as it is: the answer comes whole, and the name can be sent back."""
    _, p = echo
    more = {"metadata": {"session_id": name}} if by == "metadata" else {by: name}
    came = post(p.port, CHAT, {"messages": LONG[:4], **more})
    assert (came.status, came.body, came.whole) == (200, OK, True)
    assert came.header(b"x-memory-session") == told
    again = post(p.port, CHAT, {"messages": LONG[:6]}, b"x-memory-session: " + told)
    assert again.header(b"x-memory-session") == told


def test_a_rebuilt_request_differs_in_its_messages_only(echo):
    upstream, p = echo
    before, after = (
        b'{ "model":"m", "top_p": 1.0,  "messages":',
        b', "seed": 12345678901234567890, "vendor":"\\u00e9"}',
    )
    written = json.dumps(LONG, indent=1).encode()
    came = post(p.port, CHAT, before + written + after, b"x-memory-session: orders/7")
    sent = upstream.got[0].body
    assert came.header(b"x-memory-status") == b"rebuilt"
    assert came.header(b"x-memory-session") == b"orders/7"
    assert sent.startswith(before) and sent.endswith(after)
    messages = parted(json.loads(sent)["messages"])
    assert messages[:2] == LONG[:2] and messages[-2:] == LONG[-2:]
    assert (
        json.dumps(LONG[0], indent=1).encode().replace(b"\n", b"\n ") in sent
    )  # kept ones in their own bytes
    assert len(sent) < 0.6 * len(written)
    assert upstream.got[0].header(b"content-length") == str(len(sent)).encode()
    less, full = map(int, came.header(b"x-memory-tokens").split(b"/"))
    assert less < full
    (told,) = p.told()
    assert (told.memory, told.tokens, told.full_tokens) == ("rebuilt", less, full)
    assert (told.api.route, told.model, told.outcome, told.status) == ("chat", "m", "complete", 200)
    assert (told.usage.input, told.usage.output, told.session) == (7, 2, "orders/7")
    assert told.received_bytes == len(before + written + after)


def test_headers_go_upstream_but_for_those_of_the_connection_and_ours(echo):
    upstream, p = echo
    post(
        p.port,
        CHAT,
        {"messages": LONG[:2]},
        b"Authorization: Bearer sk-mine",
        b"X-Twice: 1",
        b"x-twice: 2",
        b"OpenAI-Beta: assistants=v2",
        b"X-Memory-Session: s",
        b"x-memory-key: mb_1_2",
        b"Connection: close, X-Hop",
        b"X-Hop: 1",
        b"TE: trailers",
        b"Keep-Alive: 5",
        b"Accept-Encoding: br, gzip",
        b"User-Agent: me/1",
        close=False,
    )
    (got,) = upstream.got
    assert dict(got.headers) == {
        b"host": upstream.base_url[7:-3].encode(),
        b"authorization": b"Bearer sk-mine",
        b"x-twice": b"2",
        b"openai-beta": b"assistants=v2",
        b"accept-encoding": b"identity",
        b"user-agent": b"me/1",
        b"content-length": got.header(b"content-length"),
    }
    assert [v for n, v in got.headers if n == b"x-twice"] == [b"1", b"2"]


def test_the_services_own_key_stays_here(monkeypatch, tmp_path):
    body = {"messages": LONG[:2]}
    mine = b"Authorization: Bearer mb_ab_cd"
    with RawUpstream(lambda got: whole(OK)) as upstream:
        with proxied(upstream.base_url, tmp_path / "a.db") as p:
            came = post(p.port, CHAT, body, mine)
            assert came.status == 401
            assert "OPENAI_API_KEY" in json.loads(came.body)["error"]["message"]
            assert upstream.got == []
            assert p.told()[0].outcome == "refused"
        monkeypatch.setenv("OPENAI_API_KEY", "sk-service")
        with proxied(upstream.base_url, tmp_path / "a.db") as p:
            assert post(p.port, CHAT, body, mine).status == 200
            assert post(p.port, "/v1/files", body, mine).status == 200
            assert post(p.port, CHAT, body, b"Authorization: Bearer sk-client").status == 200
            assert post(p.port, CHAT, body).status == 200
    sent = [g.header(b"authorization") for g in upstream.got]
    assert sent == [b"Bearer sk-service", b"Bearer sk-service", b"Bearer sk-client", None]
    assert all(b"mb_ab" not in g.head for g in upstream.got)


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"])
def test_everything_else_passes(echo, method):
    upstream, p = echo
    data = b"" if method in ("GET", "OPTIONS") else b"\x00\xff any bytes"
    target = "/v1/models/org%2Fmodel%20x/~a;b?limit=2&x=%C3%A9&x=a+b|c"
    came = request(p.port, head_of(method, target, data, b"Accept-Encoding: gzip"), data)
    (got,) = upstream.got
    assert got.line == f"{method} {target} HTTP/1.1".encode()
    assert got.body == data
    assert got.header(b"accept-encoding") == b"gzip"
    assert got.header(b"content-length") == (str(len(data)).encode() if data else None)
    assert (came.status, came.body) == (200, OK)
    assert not [n for n, _ in came.headers if n.startswith(b"x-memory-")]
    assert p.told()[0].api.route == "other"


def test_figures_know_requests_by_their_routes(echo):
    _, p = echo
    for method, path in (("POST", CHAT), ("POST", "/v1/responses"), ("GET", "/v1/models/secret")):
        request(p.port, head_of(method, path, b"{}"), b"{}")
    p.told(3)
    figures = request(p.port, head_of("GET", "/metrics", b"")).body.decode()
    for route in (CHAT, "/v1/responses", "/v1/{path}"):
        assert f'route="{route}",status="200"}} 1.0' in figures
    assert "secret" not in figures


def test_other_methods_on_the_routes_of_chats_pass(echo):
    upstream, p = echo
    assert request(p.port, head_of("GET", CHAT + "?limit=1", b"")).status == 200
    assert upstream.got[0].line == b"GET /v1/chat/completions?limit=1 HTTP/1.1"


def test_an_answer_to_head_has_no_body(tmp_path):
    with (
        before(lambda got: [b"HTTP/1.1 200 OK\r\nContent-Length: 77\r\n\r\n"], tmp_path) as (_, p),
        socket.create_connection(("127.0.0.1", p.port), timeout=20) as connection,
    ):
        connection.sendall(head_of("HEAD", "/v1/models", b""))
        sent = connection.makefile("rb").read()
    assert b"content-length: 77" in sent.lower()
    assert sent.endswith(b"\r\n\r\n")


def test_the_base_urls_path_comes_first(tmp_path):
    with RawUpstream(lambda got: whole(OK)) as upstream:
        base = upstream.base_url.removesuffix("/v1") + "/openai/v1/"
        with proxied(base, tmp_path / "bank.db") as p:
            post(p.port, CHAT, {"messages": LONG[:2]})
            request(p.port, head_of("GET", "/v1/models?a=1", b""))
    assert [g.line.split()[1] for g in upstream.got] == [
        b"/openai/v1/chat/completions",
        b"/openai/v1/models?a=1",
    ]


@pytest.mark.parametrize(
    "path", ["/v1/../admin", "/v1/a/%2e%2E/../x", "/v1/.", "/v1/a/..%2fb", "/v1/sessions/x/other"]
)
def test_no_path_leads_elsewhere(echo, path):
    upstream, p = echo
    assert request(p.port, head_of("PUT", path, b"x"), b"x").status == 404
    assert upstream.got == []


@pytest.mark.parametrize("framing", [b"Content-Length: 1310720", b"Transfer-Encoding: chunked"])
def test_an_upload_is_not_gathered_here(tmp_path, framing):
    """Its first bytes are upstream before its last ones are sent, with or without a known length."""
    part = b"x" * 65_536 if b"Length" in framing else b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    kind = b"multipart/form-data; boundary=b"
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        proxied(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", tmp_path / "bank.db") as p,
        socket.create_connection(("127.0.0.1", p.port), timeout=20) as client,
    ):
        client.sendall(head_of("POST", "/v1/files", b"", b"Content-Type: " + kind, framing) + part)
        upstream, _ = listener.accept()
        with upstream, upstream.makefile("rb") as file:
            got = read_head(file)
            assert framing.lower() in got.head.lower() and got.header(b"content-type") == kind
            pieces = read_body(file, got)
            size = len(next(pieces))
            client.sendall(part * 19 + (b"" if b"Length" in framing else b"0\r\n\r\n"))
            assert size + sum(map(len, pieces)) == 20 * 65_536
            upstream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            assert read_answer(client).body == b"ok"


def test_an_upload_that_upstream_refuses_before_its_end(tmp_path):
    def refuse(connection):
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
        connection.shutdown(socket.SHUT_WR)
        time.sleep(0.3)
        connection.close()

    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        proxied(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", tmp_path / "bank.db") as p,
    ):
        server = threading.Thread(target=lambda: refuse(listener.accept()[0]), daemon=True)
        server.start()
        size = 50_000_000
        parts = (b"x" * 65_536 for _ in range(size // 65_536 + 1))
        head = head_of("POST", "/v1/files", b"", b"Content-Length: %d" % size)
        with socket.create_connection(("127.0.0.1", p.port), timeout=20) as client:
            client.sendall(head)
            with contextlib.suppress(OSError):
                for part in parts:
                    client.sendall(part[: size - 0])
            came = read_answer(client)
        assert came.status in (413, 502)  # as the system hands on what came before the reset, or not
        assert not [line for line in p.lines if "Traceback" in line]


def packed_with(coding, data):
    return gzip.compress(data) if coding == "gzip" else zstd.compress(data)


@pytest.mark.parametrize("coding", ["zstd", "gzip"])
def test_a_compressed_body_is_read_and_goes_upstream_as_it_was(echo, coding):
    upstream, p = echo
    heads = b"Content-Encoding: %b" % coding.upper().encode(), b"x-memory-session: packed"
    for stop in (len(LONG) - 2, len(LONG)):
        data = json.dumps({"model": "m", "messages": LONG[:stop]}).encode()
        came = post(p.port, CHAT, packed_with(coding, data), *heads)
        assert (came.status, came.header(b"x-memory-session")) == (200, b"packed")
    assert came.header(b"x-memory-status") == b"rebuilt"
    assert upstream.got[-1].header(b"content-encoding") is None
    sent = json.loads(upstream.got[-1].body)
    assert sent["model"] == "m" and sent["messages"][-1] == LONG[-1]
    records = json.loads(p.ask("/v1/sessions/packed/records").body)
    assert len(records["records"]) == 12


@pytest.mark.parametrize("coding", ["zstd", "gzip", "br", "zstd, gzip"])
@pytest.mark.parametrize("kind", ["cut", "none", "too large", "twice"])
def test_a_compressed_body_that_cannot_be_read_passes_as_it_came(tmp_path, coding, kind):
    data = json.dumps({"model": "m", "messages": LONG}).encode()
    packed = packed_with(coding, data + b" " * (2**21 if kind == "too large" else 1))
    packed = {"cut": packed[:-9], "none": data[:99], "twice": packed * 2}.get(kind, packed)
    with before(lambda got: whole(OK), tmp_path, max_body_bytes=2**20) as (upstream, p):
        came = post(p.port, CHAT, packed, b"Content-Encoding: %b" % coding.encode())
    assert (came.status, came.header(b"x-memory-status")) == (200, b"passed")
    assert upstream.got[0].body == packed
    assert upstream.got[0].header(b"content-encoding") == coding.encode()


def test_multipart_arrives_to_the_byte(echo):
    upstream, p = echo
    data = (
        b"--b\r\nContent-Disposition: form-data; name=f\r\n\r\n" + bytes(range(256)) * 9000 + b"\r\n--b--\r\n"
    )
    parts = [b"%x\r\n%b\r\n" % (len(c), c) for c in (data[i : i + 9999] for i in range(0, len(data), 9999))]
    head = head_of("POST", "/v1/files", b"", b"Transfer-Encoding: chunked", b"Expect: 100-continue")
    with socket.create_connection(("127.0.0.1", p.port), timeout=20) as client:
        client.sendall(head)
        assert client.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"".join([*parts, b"0\r\n\r\n"]))
        assert read_answer(client).status == 200
    assert upstream.got[0].body == data
    assert upstream.got[0].header(b"expect") is None


# answers


def test_status_headers_and_bytes_come_back(tmp_path):
    packed = gzip.compress(b'{"error": {"message": "slow down"}}')
    answer = whole(
        packed,
        b"Date: yesterday",
        b"Server: theirs",
        b"Content-Encoding: gzip",
        b"Retry-After: 20",
        b"Set-Cookie: a=1",
        b"set-cookie: b=2",
        b"x-request-id: req_1",
        b"X-Memory-Status: theirs",
        b"Connection: keep-alive, x-hop",
        b"X-Hop: 1",
        status=b"429 Too Many",
    )
    with before(lambda got: answer, tmp_path) as (upstream, p):
        came = post(p.port, CHAT, {"messages": LONG[:2]}, b"x-memory-session: s")
    assert (came.status, came.body) == (429, packed)
    assert came.header(b"retry-after") == b"20"
    assert came.header(b"content-encoding") == b"gzip"
    assert came.header(b"x-request-id") == b"req_1"
    assert came.header(b"content-length") == str(len(packed)).encode()
    assert came.header(b"x-memory-status") == b"unchanged"
    assert came.header(b"server") != b"theirs" and came.header(b"date") != b"yesterday"
    assert came.header(b"x-hop") is None
    assert came.header(b"set-cookie") is None  # a browser would keep it for the origin of this service
    assert len(upstream.got) == 1  # the client tries again, not we


def test_no_cookie_of_one_client_reaches_another(tmp_path):
    with before(lambda got: whole(OK, b"Set-Cookie: who=me; Path=/"), tmp_path) as (upstream, p):
        for _ in range(2):
            post(p.port, CHAT, {"messages": LONG[:2]})
    assert [g.header(b"cookie") for g in upstream.got] == [None, None]


@pytest.mark.parametrize(
    "status", [b"204 No Content", b"304 Not Modified", b"302 SessionMatch", b"500 Oops", b"599 Odd"]
)
def test_any_status_passes(tmp_path, status):
    answer = [b"HTTP/1.1 " + status + b"\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n"]
    if status.startswith((b"204", b"304")):
        answer = [b"HTTP/1.1 " + status + b"\r\nLocation: /elsewhere\r\n\r\n"]
    with before(lambda got: answer, tmp_path) as (upstream, p):
        came = request(p.port, head_of("GET", "/v1/models", b""))
        assert came.status == int(status[:3])
        assert came.header(b"location") == b"/elsewhere"
        assert p.lines == []
    assert len(upstream.got) == 1


def test_a_stream_comes_as_it_is_made(tmp_path):
    events = [f"data: {i}\n\n".encode() for i in range(4)]
    pieces = [p for e in events for p in (e, 0.15)]
    with (
        before(lambda got: chunked(*pieces, headers=(b"Content-Type: text/event-stream",)), tmp_path) as (
            _upstream,
            p,
        ),
        socket.create_connection(("127.0.0.1", p.port), timeout=20) as client,
    ):
        data = json.dumps({"messages": LONG[:2], "stream": True}).encode()
        client.sendall(head_of("POST", CHAT, data) + data)
        file, seen = client.makefile("rb"), []
        while line := file.readline():
            if line.startswith(b"data: "):
                seen.append((line, time.monotonic()))
            if line == b"0\r\n":
                break
        (told,) = p.told()
    assert [line.strip() for line, _ in seen] == [e.strip() for e in events]
    assert seen[-1][1] - seen[0][1] > 0.3
    assert told.streamed


def test_headers_come_before_the_first_byte(tmp_path):
    with (
        before(lambda got: chunked(120.0, b"late"), tmp_path) as (_, p),
        socket.create_connection(("127.0.0.1", p.port), timeout=60) as client,
    ):
        data = json.dumps({"messages": LONG[:2], "stream": True}).encode()
        client.sendall(head_of("POST", CHAT, data) + data)
        assert client.recv(10)
