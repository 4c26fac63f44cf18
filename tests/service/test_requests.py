"""What is noted of every request: its id, one line, figures; and what is not: paths, queries, headers, bodies."""

import asyncio
import json
import logging
import re
from contextlib import contextmanager

import pytest
from fastapi import Request
from fastapi.responses import JSONResponse, StreamingResponse
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient
from tests.service.serving import configured as configured_

from memory_bank.errors import NotFoundError
from memory_bank.service.app import create_app
from memory_bank.service.operations import logs

SECRET = "a-secret-name"


def of_requests(records):
    return [r for r in records if r.name == "memory_bank.Requests"]


@pytest.fixture
def client(configured):
    app = create_app(configured())

    @app.get("/things/{name}")
    async def thing(name: str, request: Request) -> JSONResponse:
        logging.getLogger("memory_bank.Service").info("looking")
        return JSONResponse({"id": request.state.request_id})

    @app.get("/missing/{name}")
    async def missing(name: str) -> None:
        raise NotFoundError("there is no such thing.")

    @app.get("/broken/{name}")
    async def broken(name: str) -> None:
        raise ValueError(f"{name} cannot be")

    @app.get("/cut")
    async def cut() -> StreamingResponse:
        async def half():
            yield b"half "
            raise ValueError(SECRET)

        return StreamingResponse(half())

    @app.post("/from-upstream")
    async def upstream(request: Request) -> JSONResponse:
        status = request.headers.get("x-test", "rebuilt")
        return JSONResponse({}, headers={"x-request-id": "req_1", "x-memory-status": status})

    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def test_a_line_a_request(client, told):
    answer = client.get(f"/things/{SECRET}?q={SECRET}", headers={"authorization": f"Bearer {SECRET}"})
    looked, line = (r for r in told if r.name in ("memory_bank.Service", "memory_bank.Requests"))
    assert looked.getMessage() == "looking"
    told_of = line.method, line.route, line.status, line.bytes
    assert told_of == ("GET", "/things/{name}", 200, len(answer.content))
    assert line.ms >= 0
    assert not hasattr(line, "cut")
    known = answer.headers["x-request-id"]
    assert answer.json() == {"id": known}
    assert re.fullmatch("[0-9a-f]{32}", known)


@contextmanager
def formatted(logger=""):
    """The lines of a logger as they are written, in both forms."""
    lines = []

    class Formatted(logging.Handler):
        def emit(self, record):
            lines.extend((logs.JsonLines().format(record), logs.TextLines().format(record)))

    log, handler, ours = logging.getLogger(logger), Formatted(), logging.getLogger("memory_bank")
    log.addHandler(handler)
    ours.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        log.removeHandler(handler)
        ours.setLevel(logging.NOTSET)


def test_the_id_is_on_what_is_logged_meanwhile(client):
    with formatted("memory_bank") as lines:
        client.get("/things/x", headers={"x-request-id": "mine-1"})
    told = [json.loads(line) for line in lines[::2]]
    assert [(m["message"], m["id"]) for m in told] == [("looking", "mine-1"), ("request", "mine-1")]


@pytest.mark.parametrize(
    ("path", "route", "status"),
    [
        ("/missing/x", "/missing/{name}", 404),
        (f"/broken/{SECRET}", "/broken/{name}", 500),
        ("/nothing", "(none)", 404),
        ("/things/", "(none)", 404),
    ],
)
def test_failures(client, told, path, route, status):
    answer = client.get(path, headers={"x-request-id": "mine"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (status, "mine")
    (line,) = of_requests(told)
    assert (line.route, line.status) == (route, status)
    assert SECRET not in answer.text
    lines = [f.format(r) for r in told for f in (logs.TextLines(), logs.JsonLines())]
    assert not any(SECRET in each for each in lines)


def test_an_answer_that_breaks_off_is_cut(client, told):
    client.get("/cut")
    (line,) = of_requests(told)
    assert (line.status, line.bytes, line.cut) == (200, 5, True)


def test_a_method_that_nobody_knows_is_no_label(client):
    client.request("HACK123", "/things/x")
    scraped = client.get("/metrics").text
    assert 'method="OTHER",route="/things/{name}",status="405"' in scraped
    assert "HACK" not in scraped


def test_what_memory_did_and_the_id_that_upstream_gave(client, told):
    answer = client.post("/from-upstream")
    assert answer.headers["x-request-id"] == "req_1"
    client.post("/from-upstream", headers={"x-test": "a\x7fname"})
    first, second = of_requests(told)
    assert (first.memory, first.upstream_id) == ("rebuilt", "req_1")
    assert answer.headers["x-memory-request-id"] not in ("", "req_1")
    assert second.memory == "other"
    assert 'memory_bank_memory_total{status="rebuilt"} 1.0' in client.get("/metrics").text


def test_what_machines_ask_all_the_time_is_told_when_asked_for(client, told):
    client.get("/health?live")
    client.get("/metrics")
    assert [r.levelno for r in of_requests(told)] == [logging.DEBUG, logging.DEBUG]


def test_a_client_that_goes_away_before_the_answer(configured, told):
    app, begun = create_app(configured()), asyncio.Event()

    @app.get("/slow")
    async def slow(request: Request) -> None:
        begun.set()
        await asyncio.sleep(600)

    async def run():
        sent = []

        async def receive():
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http", "method": "GET", "path": "/slow", "raw_path": b"/slow", "query_string": b"", "headers": [(b"host", b"localhost")],
            "scheme": "http", "http_version": "1.1", "server": ("127.0.0.1", 1), "client": None, "root_path": "",
        }  # fmt: skip
        async with app.router.lifespan_context(app):
            task = asyncio.create_task(app(scope, receive, send))
            await asyncio.wait_for(begun.wait(), 60)
            task.cancel()
            await asyncio.wait({task})
        assert sent == []

    asyncio.run(run())
    (line,) = of_requests(told)
    assert (line.status, line.route, line.cut) == (499, "/slow", True)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    database = str(tmp_path_factory.mktemp("requests") / "b.db")
    app = create_app(configured_(database=database, upstream="http://127.0.0.1:9/v1"))

    @app.get("/things/{name:path}")
    async def thing(name: str) -> None:
        raise RuntimeError(name)

    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


HEADER = st.text(st.characters(min_codepoint=1, max_codepoint=255, exclude_characters="\r\n\0"), max_size=40)


@given(name=st.text(min_size=1, max_size=30), header=HEADER, query=st.text(max_size=30))
def test_nothing_of_a_request_is_ever_on_a_line(shared, name, header, query):
    mark = "zq7marked"
    hidden = "".join(f"%{b:02x}" for b in f"{mark}{name}".encode("utf-8", "surrogatepass"))
    with formatted() as lines:
        answer = shared.get(
            f"/things/{hidden}",
            params={"q": mark + query.encode("utf-8", "replace").decode()},
            headers={
                "x-request-id": header.encode("latin-1") + b" zq7marked",
                "x-memory-session": mark.encode(),
            },
        )
    assert answer.status_code in (404, 500)  # a name with a line break is none for the route
    assert mark not in answer.headers["x-request-id"]
    assert lines
    for line in lines:
        assert mark not in line
        assert line.isprintable()


def test_a_route_of_the_api_is_told_by_its_template(client, told):
    client.get(f"/v1/sessions/{SECRET}%2Fx/search?q={SECRET}")
    (line,) = of_requests(told)
    assert (line.route, line.status) == ("/v1/sessions/{name}/search", 404)
