"""The gate as its callers meet it: over real connections, with headers as they come."""

import asyncio
import logging
import socket
import time
from contextlib import ExitStack

import pytest
from fastapi import FastAPI, Request
from starlette.responses import StreamingResponse
from tests.service.serving import bearer, configured, serving

from memory_bank.bank.database import Database
from memory_bank.bank.keys import Keys
from memory_bank.errors import ConfigError, NotAuthorizedError, StorageError
from memory_bank.service.app import create_app
from memory_bank.service.security.access import Keyring, caller_of, check_binding
from memory_bank.testing import ScriptedServer

WHO = "/v1/test-who"


def with_test_routes(app: FastAPI) -> None:
    async def who(request: Request):
        size = sum([len(part) async for part in request.stream()])
        caller, state = caller_of(request), request.state
        seen = {"namespace": caller.namespace, "operator": caller.operator, "key_header": state.key_header}
        return {**seen, "size": size, "request_id": state.request_id}

    async def broken():
        raise KeyError("the tool said hunter2")

    async def begun():
        async def parts():
            yield b"first"
            await asyncio.sleep(0)
            raise KeyError("the tool said hunter2")

        return StreamingResponse(parts(), headers={"content-length": "1000"})

    methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    for path, handler in ((WHO, who), ("/v1/test-broken", broken), ("/v1/test-begun", begun)):
        app.add_api_route(path, handler, methods=methods, include_in_schema=False)
        app.router.routes.insert(0, app.router.routes.pop())


@pytest.fixture
def database(tmp_path):
    database = Database(tmp_path / "bank.db")
    yield database
    database.close()


@pytest.fixture
def service(tmp_path, database):
    """Serves with these settings; ``database`` is another process's view of its database."""
    with ExitStack() as stack:

        def start(host="127.0.0.1", **settings):
            config = configured(**{"database": str(tmp_path / "bank.db"), "host": host, **settings})
            return stack.enter_context(serving(config, host=host, prepare=with_test_routes))

        yield start


def settled(ask, status):
    """The answer once it has this status: keys are read again every second."""
    end = time.monotonic() + 30
    while (answer := ask()).status != status:
        assert time.monotonic() < end, answer
        time.sleep(0.05)
    return answer


# --- by which name, from which page


def test_it_answers_to_its_own_names_only(service):
    served = service(allowed_hosts=("bank.example", "tools.example:8443", "bücher.example"))
    port = served.port
    for host in (
        "localhost", "LOCALHOST", "localhost.", f"localhost:{port}", "localhost:1", "127.0.0.1", f"127.0.0.1:{port}", "127.8.9.1",
        "[::1]", f"[::1]:{port}", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "bank.example", "Bank.Example.:99", "tools.example:8443",
        "xn--bcher-kva.example", "localhost:",
    ):  # fmt: skip
        assert served.ask("GET", WHO, host=host).status == 200, host
    for host in (
        "evil.example", "localhost.evil.example", "evil.localhost.example", "127.0.0.1.nip.io", "tools.example", "tools.example:8444",
        "192.168.1.5", "0.0.0.0", "[::]", "[fe80::1]", "2130706433", "0x7f.0.0.1", "127.1", "", " ", "localhost:x", "localhost:99999",
        "localhost:80:80", "user@localhost", "localhost/", "[127.0.0.1]", "[::1", "::1", "a,b", "local\u0131host", "..", "bank.example..",
    ):  # fmt: skip
        answer = served.ask("GET", WHO, host=host)
        assert (answer.status, answer.json()["error"]["code"]) == (403, "origin_not_allowed"), host


def test_a_host_that_is_missing_broken_or_told_twice_is_refused(service):
    served = service()
    for host in (b"local\0host", b"localhost\0", b"\0"):
        with socket.create_connection(("127.0.0.1", served.port)) as c:
            c.sendall(b"GET / HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
            assert c.makefile("rb").readline().split()[1] == b"400"
    with socket.create_connection(("127.0.0.1", served.port)) as c:
        c.sendall(f"GET {WHO} HTTP/1.0\r\n\r\n".encode())
        assert c.makefile("rb").readline().split()[1] == b"403"
    twice = served.ask("GET", WHO, ("Host", "evil.example"))
    assert twice.status in (400, 403)  # 400: where the server itself refuses it


def test_the_address_that_a_request_came_in_at_is_a_name(service, database):
    Keys(database).create("a")
    _, key = Keys(database).create("b")
    served = service("0.0.0.0")
    for host, status in ((f"127.0.0.1:{served.port}", 200), ("0.0.0.0", 200), ("10.1.2.3", 403)):
        assert served.ask("GET", WHO, bearer(key), host=host).status == status


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS", "HEAD"])
def test_pages_from_elsewhere_may_not_call(service, method):
    served = service()
    here = f"localhost:{served.port}"

    def ask(*origins):
        return served.ask(method, WHO, *(("Origin", o) for o in origins), host=here)

    for origin in (f"http://{here}", f"HTTP://LOCALHOST:{served.port}"):
        assert ask(origin).status in (200, 204), origin
    for origin in (
        "null", "", "http://evil.example", "http://localhost", "http://localhost:3000", f"http://127.0.0.1:{served.port}", f"ftp://{here}",
        "http://tools.example", "https://tools.example.evil.example", "https://evil.example/https://tools.example", "https://tools.example:444",
        f"http://{here}@evil.example", f"http://{here} http://evil.example", "https://", "tools.example", "file://",
    ):  # fmt: skip
        answer = ask(origin)
        assert answer.status == 403, origin
        assert answer.header("access-control-allow-origin") is None
    assert ask(f"http://{here}", "http://evil.example").status == 403


def test_a_page_that_names_itself_as_the_host_is_still_told_by_the_host(service):
    """Rebinding: the page's own name leads here, so that the browser takes us for the page's origin."""
    served = service()
    evil = f"evil.example:{served.port}"
    headers = ("Origin", f"http://{evil}"), ("Sec-Fetch-Site", "same-origin")
    assert served.ask("GET", WHO, *headers, host=evil).status == 403


def test_requests_that_a_browser_makes_for_other_pages(service):
    served = service()

    def ask(method="GET", path=WHO, **fetch):
        return served.ask(method, path, *((f"Sec-Fetch-{k.title()}", v) for k, v in fetch.items())).status

    document = {"mode": "navigate", "dest": "document"}
    assert ask(site="none", **document) == 200
    assert ask(site="same-origin", mode="cors", dest="empty") == 200
    assert ask(mode="cors") == 200  # a program that says no site
    assert ask(path="/", site="cross-site", **document) == 200  # a link that was followed
    assert ask(site="cross-site", **document) == 403  # it leads to the page alone
    for site in ("cross-site", "same-site"):
        assert ask(site=site) == ask("POST", site=site, **document) == 403
        for mode, dest in (("no-cors", "image"), ("no-cors", "script"), ("navigate", "iframe")):
            assert ask(site=site, mode=mode, dest=dest) == 403


def test_a_page_from_elsewhere_gets_no_leave_before_its_request(service):
    asks = ("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", "authorization")
    served = service()
    refused = served.ask("OPTIONS", WHO, ("Origin", "https://tools.example"), *asks)
    assert (refused.status, refused.header("access-control-allow-origin")) == (403, None)


@pytest.mark.parametrize("name", ["http://bank.example", ""])
def test_names_that_are_none_are_told_before_it_starts(name):
    with pytest.raises(ConfigError, match="allowed_hosts"):
        create_app(configured(database=":memory:", allowed_hosts=(name,)))


# --- keys


def test_without_keys_the_user_of_the_machine_asks(service):
    told = service().ask("GET", WHO).json()
    assert (told["namespace"], told["operator"], told["key_header"]) == (None, True, None)


def test_from_the_first_key_on_keys_are_asked_for_and_revoking_opens_nothing(service, database):
    served = service()
    assert served.ask("GET", WHO).status == 200
    made, key = Keys(database).create("first")
    settled(lambda: served.ask("GET", WHO), 401)
    told = served.ask("GET", WHO, bearer(key)).json()
    assert [told[k] for k in ("namespace", "operator", "key_header")] == [
        made.namespace,
        False,
        "authorization",
    ]
    Keys(database).revoke("first")
    settled(lambda: served.ask("GET", WHO, bearer(key)), 401)
    assert served.ask("GET", WHO).status == 401
    again = service()
    assert again.ask("GET", WHO).status == again.ask("GET", WHO, bearer(key)).status == 401


def test_revoking_reaches_every_process_while_requests_keep_coming(service, database):
    _, kept = Keys(database).create("kept")
    _, key = Keys(database).create("lost")
    both = [service(), service()]
    assert all(s.ask("GET", WHO, bearer(key)).status == 200 for s in both)
    Keys(database).revoke("lost")
    for served in both:
        settled(lambda s=served: s.ask("GET", WHO, bearer(key)), 401)
        assert served.ask("GET", WHO, bearer(kept)).status == 200


def test_two_keys_of_one_namespace(service, database):
    made, old = Keys(database).create("old")
    _, new = Keys(database).create("new", namespace=made.namespace, operator=True)
    _, local = Keys(database).create("local", namespace="default")
    served = service()
    assert served.ask("GET", WHO, bearer(old)).json()["namespace"] == made.namespace
    assert served.ask("GET", WHO, bearer(new)).json()["namespace"] == made.namespace
    assert served.ask("GET", WHO, bearer(new)).json()["operator"]
    assert served.ask("GET", WHO, bearer(local)).json()["namespace"] is None


def test_whatever_is_wrong_with_a_key_the_answer_is_the_same(service, database):
    made, key = Keys(database).create("mine")
    _, gone = Keys(database).create("gone")
    Keys(database).revoke("gone")
    served = service()
    id_ = f"mb_{made.key_id}"
    keys = (
        gone, f"{id_}_{'x' * 43}", key[:-1], key + "x", key.upper(), "mb_", "mb__", "mb___", f"{id_}_", id_, "mb_" + "a" * 30_000,
        "sk-of-upstream",
    )  # fmt: skip
    own, header = ("x-memory-key", key), "Authorization"
    wrong = [(), *((bearer(k),) for k in keys), ((header, f"Basic {key}"),), ((header, key),)]
    wrong += [
        (("x-memory-key", ""),),
        (("x-memory-key", "mb_é_ü"),),
        (("x-memory-key", "wrong"), bearer(key)),
    ]
    wrong += [(own, ("x-memory-key", "wrong")), (bearer(key), bearer(key))]
    answers = [served.ask("GET", WHO, *headers, ("x-request-id", "same")) for headers in wrong]
    assert {a.status for a in answers} == {401}
    assert {a.header("www-authenticate") for a in answers} == {"Bearer"}
    assert len({a.body for a in answers}) == 1
    assert "mb_" in answers[0].said
    for right in ((bearer(key),), ((header, f"bearer   {key} "),), (own,), (own, bearer("sk-of-upstream"))):
        assert served.ask("GET", WHO, *right).status == 200, right
    assert served.ask("GET", WHO, own, bearer("sk-of-upstream")).json()["key_header"] == "x-memory-key"


def test_what_is_open_without_a_key(service, database):
    Keys(database).create("a")
    served = service()
    for path in ("/", "/health", "/openapi.json", "/static/x"):
        assert 401 not in (served.ask("GET", path).status, served.ask("HEAD", path).status), path
        assert served.ask("POST", path).status == 401, path
        assert served.ask("GET", path, bearer("mb_a_b")).status == 401, path
        assert served.ask("GET", path, host="evil.example").status == 403, path
    for path in (
        "/v1/sessions", "/v1", "/metrics", "/static", "//", "/health/", "/HEALTH", "/v1/models", "/mcp", "/%2e/health", "/docs",
        "/static/../v1/test-who", "/nothing",
    ):  # fmt: skip
        answer = served.ask("GET", path)
        assert answer.status in (401, 404) and b"namespace" not in answer.body, path
    assert served.ask("GET", "/nothing").status == 401


def test_a_revoked_key_is_refused_after_a_second_however_many_requests_come(database):
    _, key = Keys(database).create("a")
    now = [0.0]
    keyring = Keyring(database, clock=lambda: now[0])

    async def walk():
        assert keyring.caller(key)
        Keys(database).revoke("a")
        while now[0] <= 1:
            now[0] += 0.125
            await keyring.refresh()

    asyncio.run(walk())
    with pytest.raises(NotAuthorizedError):
        keyring.caller(key)
    keyring.close()


def test_keys_that_were_known_hold_while_the_database_is_away(database, caplog):
    class Leaving(type(database)):
        away = False

        def read(self):
            if self.away:
                raise StorageError("gone")
            return super().read()

    _, key = Keys(database).create("a")
    leaving = Leaving(database.url.database)
    now = [0.0]
    keyring = Keyring(leaving, clock=lambda: now[0])

    async def walk():
        for leaving.away in (True, True, True, False):
            now[0] += 60
            await keyring.refresh()
            assert keyring.caller(key).key_id == key.split("_")[1]
            with pytest.raises(NotAuthorizedError):
                keyring.caller("mb_other_key")
        Keys(database).revoke("a")
        now[0] += 60
        await keyring.refresh()
        with pytest.raises(NotAuthorizedError):
            keyring.caller(key)

    with caplog.at_level(logging.WARNING):
        asyncio.run(walk())
    keyring.close()
    leaving.close()
    told = "the keys cannot be read from the database: the known ones stay valid."
    assert [r.message for r in caplog.records].count(told) == 1


# --- how much, how often


def test_a_body_that_is_too_long(service):
    served = service(max_body_bytes=1_000_000)
    assert served.ask("POST", WHO, body=b"x" * 1_000_000).json()["size"] == 1_000_000
    assert served.ask("POST", WHO, body=iter([b"x" * 500_000] * 2)).json()["size"] == 1_000_000
    for body in (b"x" * 1_000_001, iter([b"x" * 500_000] * 3), iter([b"x" * 1_000_001])):
        answer = served.ask("POST", WHO, body=body)
        assert (answer.status, answer.json()["error"]["code"]) == (413, "too_large")
        assert "1,000,000" in answer.said
        assert answer.header("x-request-id")
    with socket.create_connection(("127.0.0.1", served.port)) as c:  # told before it is sent
        c.sendall(f"POST {WHO} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n".encode())
        c.settimeout(10)
        assert c.makefile("rb").readline().split()[1] == b"413"


def test_a_body_that_is_too_long_on_its_way_through(service):
    """What only passes is not held: the limit ends it in the middle, here and upstream."""
    with ScriptedServer() as upstream:
        served = service(max_body_bytes=1_000_000, upstream=upstream.base_url)
        for path in ("/v1/files", "/v1/chat/completions"):
            answer = served.ask("POST", path, bearer("sk-x"), body=iter([b"x" * 300_000] * 4))
            assert (answer.status, answer.json()["error"]["code"]) == (413, "too_large"), path
            assert answer.header("x-request-id")
        assert served.ask("GET", "/v1/models", bearer("sk-x")).status == 200
        assert [r.path for r in upstream.requests] == ["/v1/models"]


def test_limits_of_a_key_go_before_those_of_the_settings(service, database):
    _, small = Keys(database).create("small", max_body_bytes=2_000, requests_per_minute=2)
    _, large = Keys(database).create("large", max_body_bytes=5_000, requests_per_minute=0)
    _, plain = Keys(database).create("plain")
    served = service(max_body_bytes=4_000, requests_per_minute=3)

    def post(key, n):
        return served.ask("POST", WHO, bearer(key), body=b"x" * n).status

    assert [post(small, 2_000), post(small, 2_001), post(small, 1)] == [200, 413, 429]
    assert [post(large, n) for n in (5_000, 5_001, 1, 1, 1, 1, 1)] == [200, 413, *[200] * 5]
    assert [post(plain, 4_000), post(plain, 4_001), post(plain, 1), post(plain, 1)] == [200, 413, 200, 429]


def test_a_limit_that_is_reached_says_when_to_come_again(service):
    served = service(requests_per_minute=2)
    answers = [served.ask("GET", WHO) for _ in range(3)]
    assert [a.status for a in answers] == [200, 200, 429]
    assert answers[-1].json()["error"]["code"] == "too_many_requests"
    assert 25 <= int(answers[-1].header("retry-after")) <= 30
    assert served.ask("GET", "/health").status != 429


# --- failures


def test_answers_are_taken_for_what_they_say_and_kept_nowhere(service):
    served = service()
    for path in (WHO, "/v1/test-broken", "/nothing", "/openapi.json"):
        answer = served.ask("GET", path)
        assert answer.header("x-content-type-options") == "nosniff"
        assert answer.header("content-type") == "application/json"
        assert answer.header("cache-control") == "no-store"


def test_an_unforeseen_error_is_told_without_its_words(service, caplog):
    served = service()
    with caplog.at_level(logging.DEBUG):
        answer = served.ask("GET", "/v1/test-broken")
        with pytest.raises(Exception, match=r"IncompleteRead|closed|reset"):
            served.ask("GET", "/v1/test-begun")
    assert (answer.status, answer.json()["error"]["code"]) == (500, "unforeseen")
    assert "KeyError" in answer.said
    assert any("test_gate.py" in r.getMessage() for r in caplog.records)
    assert "hunter2" not in answer.body.decode() + caplog.text


def test_websockets_are_refused(service):
    served = service()
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    upgrade["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
    assert served.ask("GET", WHO, *upgrade.items()).status in (403, 200)
    sent = []

    async def ask():
        async def send(message):
            sent.append(message)

        await served.app({"type": "websocket", "path": WHO, "headers": []}, None, send)

    asyncio.run(ask())
    assert sent == [{"type": "websocket.close", "code": 1008}]


# --- where it may listen


@pytest.mark.parametrize("host", ["127.0.0.1", "127.4.4.4", "::1", "localhost", "::ffff:127.0.0.1"])
def test_loopback_needs_no_keys(host, database):
    check_binding(configured(host=host).service, database)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "fe80::1"])
def test_beyond_loopback_needs_a_key(host, database):
    with pytest.raises(ConfigError, match="keys create"):
        check_binding(configured(host=host).service, database)
    made, _ = Keys(database).create("a")
    check_binding(configured(host=host).service, database)
    Keys(database).revoke(made.key_id)
    check_binding(configured(host=host).service, database)


def test_a_name_is_what_it_leads_to(database):
    """These short forms are names that every machine knows: 127.0.0.1 and 10.0.0.7."""
    check_binding(configured(host="127.1").service, database)
    with pytest.raises(ConfigError, match="keys create"):
        check_binding(configured(host="10.7").service, database)


@pytest.mark.parametrize("name", ["no..name", "a\0b", "127.0.0.1\0", "\0"])
def test_a_name_that_leads_nowhere(database, name):
    with pytest.raises(ConfigError, match="is unknown"):
        check_binding(configured(host=name).service, database)


def test_without_keys_nothing_is_answered_beyond_loopback_however_it_was_started(service):
    """As where another server runs the application."""
    served = service(allowed_hosts=("bank.example",))
    sent = []

    async def ask(path):
        async def send(message):
            sent.append(message)

        scope = {
            "type": "http", "method": "GET", "path": path, "scheme": "http", "query_string": b"", "server": ("10.0.0.7", 80),
            "headers": [(b"host", b"bank.example")],
        }  # fmt: skip
        await served.app(scope, None, send)

    for path in (WHO, "/openapi.json"):
        asyncio.run(ask(path))
        assert sent[-2]["status"] == 403
        assert b"keys create" in sent[-1]["body"]
