"""``/health`` and ``/metrics``: what they say when all is well, when a part is away, and to whom."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.middleware import Middleware
from starlette.testclient import TestClient
from tests.chats import rounds, system, user
from tests.contracts.insights import NumbersEmbedder
from tests.postgres import Server
from tests.service.processes import until

from memory_bank import __version__
from memory_bank.bank.database import Database
from memory_bank.bank.stores import InsightStore
from memory_bank.service.app import create_app
from memory_bank.service.security.access import Caller
from memory_bank.testing import ScriptedServer

CHAT = [system(), user(), *rounds(12, size=2_000)]


def parts(client: Any) -> Any:
    return client.get("/health").json()["parts"]


@pytest.fixture
def upstream() -> Any:
    with ScriptedServer() as server:
        yield server


def test_a_service_with_a_bank_in_memory_is_ready(configured: Any, upstream: Any) -> None:
    with TestClient(create_app(configured(upstream=upstream.base_url, database=":memory:"))) as client:
        assert client.get("/readyz").status_code == 200
        assert parts(client)["database"]["ok"]


@pytest.mark.parametrize("way", ["deleted", "replaced"])
def test_a_bank_whose_file_is_not_there_any_more_loses_nothing(
    configured: Any, upstream: Any, tmp_path: Path, way: str
) -> None:
    config = configured(upstream=upstream.base_url)
    file, body = Path(config.service.database), {"tool_name": "t", "raw_input": {}, "raw_output": "x"}
    ingested = {"tool_outputs": [body | {"call_id": "c1"}]}
    with TestClient(create_app(config)) as client:
        assert client.post("/v1/sessions/s/ingest", json=ingested).status_code == 200
        kept = file.rename(tmp_path / "kept.db")
        if way == "replaced":
            Database(tmp_path / "new.db").close()
            (tmp_path / "new.db").rename(file)
        for path in ("/v1/sessions/s/ingest", "/v1/sessions/new/ingest"):
            answer = client.post(path, json={"tool_outputs": [body | {"call_id": "c2"}]})
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_unavailable")
            assert "put that file back, or stop every process" in answer.json()["error"]["message"]
        answer = client.get("/health")
        found = answer.json()["parts"]
        assert (answer.status_code, found["database"]["ok"], found["storage"]["ok"]) == (503, False, False)
        answer = client.post("/v1/chat/completions", json={"model": "m", "messages": CHAT})
        assert answer.headers["x-memory-reason"] == "storage_unavailable"
        kept.rename(file)
        assert client.post("/v1/sessions/s/ingest", json=ingested).status_code == 200


def test_all_is_well(configured: Any, upstream: Any) -> None:
    with TestClient(create_app(configured(upstream=upstream.base_url))) as client:
        answer = client.get("/health")
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
        told = answer.json()
    assert (told["status"], told["version"]) == ("ok", __version__)
    assert list(told["parts"]) == ["database", "storage", "upstream", "embedder", "observer", "memory"]
    assert all(part["ok"] and part["ms"] >= 0 for part in told["parts"].values())
    assert told["parts"]["database"]["name"].startswith("sqlite:///")
    assert told["parts"]["embedder"]["name"] == "lexical-v1"
    assert told["parts"]["observer"] | {"ms": 0} == {
        "ok": True, "ms": 0, "name": "extractive", "waiting": 0, "oldest_seconds": 0.0,
    }  # fmt: skip


def test_upstream_is_asked_without_a_key_and_not_again_at_once(
    configured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-a-secret")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        with TestClient(create_app(configured(upstream=url))) as client:
            asked: list[bytes] = []

            def answer() -> None:
                connection, _ = listener.accept()
                asked.append(connection.recv(10_000))
                connection.sendall(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n")
                connection.close()

            thread = threading.Thread(target=answer, daemon=True)
            thread.start()
            assert parts(client)["upstream"]["status"] == 401
            assert parts(client)["upstream"]["ok"]  # known from before: nobody answers a second time
            thread.join(10)
    (request,) = asked
    assert request.startswith(b"HEAD /v1 HTTP/1.1\r\n")
    assert b"secret" not in request
    assert b"uthorization" not in request


def test_upstream_is_away(configured: Any) -> None:
    with TestClient(create_app(configured())) as client:
        answer = client.get("/health")
    assert (answer.status_code, answer.json()["status"]) == (
        200,
        "degraded",
    )  # what is stored can still be read
    assert answer.json()["parts"]["upstream"]["trouble"] == "ConnectError"


def test_a_part_that_hangs_is_told_in_time_and_hangs_alone(configured: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        with TestClient(create_app(configured(upstream=url))) as client:
            began = time.monotonic()
            told = client.get("/health").json()
            assert time.monotonic() - began < 60  # no answer would ever come
    assert told["status"] == "degraded"
    assert {n: p["ok"] for n, p in told["parts"].items()} == {
        "database": True, "storage": True, "upstream": False, "embedder": True, "observer": True, "memory": True,
    }  # fmt: skip


def test_the_database_goes_and_comes_back(
    configured: Any, postgres: Server, postgres_url: str, upstream: Any
) -> None:
    app = create_app(configured(database=postgres_url, upstream=upstream.base_url))
    with TestClient(app) as client:
        assert client.get("/health").json()["status"] == "ok"
        postgres.stop()
        try:
            until(lambda: client.get("/health").status_code == 503)  # results are kept for a second
            answer = client.get("/health")
            assert (answer.status_code, answer.json()["status"]) == (503, "degraded")
            told = answer.json()["parts"]
            assert not told["database"]["ok"]
            assert "password" not in answer.text
            live = client.get("/health?live")
            assert (live.status_code, live.json()["status"]) == (200, "ok")
            scraped = client.get("/metrics").text
            assert "memory_bank_database_up 0.0" in scraped
            assert "memory_bank_queue_records" not in scraped
        finally:
            postgres.start()
        until(lambda: client.get("/health").status_code == 200)
        scraped = client.get("/metrics").text
        assert "memory_bank_database_up 1.0" in scraped
        (errors,) = [x for x in scraped.splitlines() if x.startswith("memory_bank_database_errors_total")]
        assert float(errors.split()[1]) > 0


def test_another_embedder_than_the_banks(configured: Any, upstream: Any, tmp_path: Any) -> None:
    database = Database(tmp_path / "bank.db")
    InsightStore(NumbersEmbedder(), database, "s").add("a", "1 0")
    database.close()
    with TestClient(create_app(configured(upstream=upstream.base_url))) as client:
        told = parts(client)
    assert not told["embedder"]["ok"]
    assert "re-embed" in told["embedder"]["trouble"]
    assert told["database"]["ok"]


def test_one_more_part_and_what_it_raises(configured: Any, upstream: Any) -> None:
    def ping() -> dict[str, Any]:
        raise ValueError("with a secret")

    with TestClient(create_app(configured(upstream=upstream.base_url))) as client:
        client.app.state.service.operations.add("recorder", ping)
        answer = client.get("/health")
    assert answer.json()["parts"]["recorder"]["trouble"] == "ValueError"
    assert "secret" not in answer.text


class As:
    """The application, asked by a caller of one's choice, as the gate would tell it."""

    def __init__(self, app: Any, caller: Caller) -> None:
        self.app, self.caller = app, caller

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            scope["state"]["caller"] = self.caller
        await self.app(scope, receive, send)


@pytest.mark.parametrize("operator", [False, True])
def test_details_and_figures_are_for_operators(configured: Any, upstream: Any, operator: bool) -> None:
    app = create_app(configured(upstream=upstream.base_url))
    app.user_middleware.append(Middleware(As, caller=Caller("ns", "key1", operator)))  # within the gate
    with TestClient(app) as client:
        told = client.get("/health").json()
        answer = client.get("/metrics")
    assert (told["status"], "parts" in told) == ("ok", operator)
    assert answer.status_code == (200 if operator else 401)
    if not operator:
        assert "--operator" in answer.json()["error"]["message"]
        assert not [r for r in upstream.requests if r.method == "HEAD"]


def test_steps_are_counted(configured: Any, upstream: Any) -> None:
    with TestClient(create_app(configured(upstream=upstream.base_url))) as client:
        sessions = client.app.state.service.sessions
        made = [sessions.rebuild(None, f"Ada {n}", CHAT) for n in range(2)]
        lines = client.get("/metrics").text
        assert f'memory_bank_tokens_total{{kind="full"}} {sum(m.full_tokens for m in made)}.0' in lines
        assert f'memory_bank_tokens_total{{kind="sent"}} {sum(m.tokens for m in made)}.0' in lines
        assert "memory_bank_step_seconds_count 2.0" in lines
        assert "memory_bank_sessions_held 2.0" in lines
        assert "Ada" not in lines
