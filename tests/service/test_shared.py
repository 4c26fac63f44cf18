"""Several services at one database: no request need go where the one before it went, and what dies loses nothing."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.chats import rounds, system, user
from tests.cli.conftest import environment
from tests.contracts.stores import another_program
from tests.postgres import Server, pooled
from tests.service.processes import FOLDING, Process, serve, until
from tests.service.serving import Served, bearer, configured, serving

from memory_bank.bank.database import Database
from memory_bank.bank.keys import Keys
from memory_bank.bank.listing import list_sessions
from memory_bank.bank.maintenance import purge, verify
from memory_bank.bank.schema import VERSION
from memory_bank.bank.stores import FactStore
from memory_bank.testing import ScriptedServer, say
from memory_bank.transcript.pairing import pairing_errors

pytestmark = pytest.mark.long


ROOT = Path(__file__).parents[2]
WELL = ("rebuilt", "unchanged")  # what memory says where it did its part


def conversation(agent: str, n: int, size: int = 600) -> list[dict[str, Any]]:
    return [system(), user(f"Which orders of {agent} are late?"), *rounds(n, size=size)]


def context(service: Process, session: str, messages: Any) -> Any:
    answer = service.ask(f"/v1/sessions/{quote(session, safe='')}/context", "POST", {"messages": messages})
    assert answer.status == 200, answer.body
    return answer.json()


def assert_holds(bank: Any, **records: int) -> None:
    """The bank is sound, and its sessions have so many records."""
    database = Database(bank)
    assert {name: FactStore(database, name).size() for name in records} == records
    assert list(verify(database)) == []
    database.close()


def at_once(*work: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(work)) as threads:
        return [done.result(120) for done in [threads.submit(w) for w in work]]


@pytest.fixture
def two(bank_url: str) -> Iterator[list[Process]]:
    with serve("--db", bank_url, **FOLDING) as one, serve("--db", bank_url, **FOLDING) as other:
        yield [one, other]


@pytest.mark.parametrize(
    "bank_url", ["SQLite", pytest.param("PostgreSQL", marks=pytest.mark.short)], indirect=True
)
def test_two_hosts_and_two_agents_whose_requests_alternate(two: list[Process], bank_url: str) -> None:
    """Each step is answered by the host that has not seen the one before; the contexts are those of one host."""
    agents = {"ada": 0, "bob": 1}

    def work(agent: str) -> Any:
        for n in range(1, 11):
            last = context(two[(n + agents[agent]) % 2], agent, conversation(agent, n))
        return last

    last = dict(zip(agents, at_once(*(partial(work, a) for a in agents)), strict=True))
    for agent, told in last.items():
        assert told["records"] == 10
        assert pairing_errors(told["messages"]) == []
        for service in two:  # both would say the same of it now
            again = context(service, agent, conversation(agent, 10))
            assert (again["messages"], again["tokens"]) == (told["messages"], told["tokens"])
    assert_holds(bank_url, ada=10, bob=10)


@pytest.mark.short
def test_one_writes_and_the_other_finds(bank_url: str) -> None:
    """A search of all sessions, by both, twice: each has an index in memory when the other writes or deletes."""

    database = Database(bank_url)
    ada, bob = (Keys(database).create(name)[1] for name in ("ada", "bob"))

    def found(service: Served, word: str, key: str = ada) -> set[str]:
        answer = service.ask("GET", f"/v1/search?q={word}", bearer(key))
        assert answer.status == 200, answer.body
        return {f"{hit['session']} {hit['holds']}" for hit in answer.json()["hits"] if hit["holds"] == word}

    def write(service: Served, session: str, text: str) -> None:
        call = {"tool_name": "look", "raw_input": {"at": session}, "raw_output": text}
        body = json.dumps({"tool_outputs": [call]}).encode()
        assert service.ask("POST", f"/v1/sessions/{session}/ingest", bearer(ada), body=body).status == 200

    config = configured(database=bank_url)
    with serving(config) as one, serving(config) as other:
        for session, writer, reader in (("first", one, other), ("second", other, one)):
            write(writer, session, f"a zephyr and a {session}-walrus")
            for service in (reader, writer):
                assert f"{session} zephyr" in found(service, "zephyr")
                assert found(service, "zephyr", bob) == set()
        for gone in list_sessions(database):
            if "first" in gone.session_id:
                assert len(list(purge(database, session_id=gone.session_id))) == 1
        assert [found(service, "zephyr") for service in (one, other)] == [{"second zephyr"}] * 2
        write(one, "first", "the zephyr is back")
        assert found(other, "zephyr") == {"first zephyr", "second zephyr"}
        assert other.ask("DELETE", "/v1/sessions/second", bearer(ada)).status == 204
        assert [found(service, "zephyr") for service in (one, other)] == [{"first zephyr"}] * 2
        database.close()


def test_one_session_at_both_hosts_at_once(two: list[Process], bank_url: str) -> None:
    """As when a client gives up waiting and asks again elsewhere: nothing is stored twice."""

    def ask(service: Process) -> None:
        for n in (4, 8):
            context(service, "s", conversation("s", n))

    at_once(*(partial(ask, s) for s in (*two, *two)))
    assert_holds(bank_url, s=8)


def test_killed_under_load() -> None:
    """The benchmark in short: its long form is run beside the tests."""
    pytest.importorskip("resource")
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/faults.py"), "--part", "services", "--database", "sqlite", "--kills", "2",
         "--strategy", "observed", "--agents", "2", "--services", "1"],
        env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 kills" in done.stdout


def test_the_database_goes_and_comes_back(postgres: Server, postgres_url: str) -> None:
    """While it is away the API says so and the service stays; then all goes on, and what was missed is stored."""
    with serve("--db", postgres_url) as service:
        assert context(service, "s", conversation("s", 4))["records"] == 4
        postgres.stop()
        try:
            answer = service.ask("/v1/sessions/s/context", "POST", {"messages": conversation("s", 5)})
            assert (answer.status, answer.json()["error"]["code"]) == (503, "storage_unavailable")
            assert answer.headers["retry-after"] == "1"
            assert service.ask("/health?live").status == 200
            until(lambda: service.ask("/health").status == 503)  # results are kept for a second
        finally:
            postgres.start()
        assert context(service, "s", conversation("s", 7))["records"] == 7
        assert service.end() == 0
    assert_holds(postgres_url, s=7)


def chatted(service: Process, session: str, messages: Any) -> Any:
    """A chat through the proxy; what memory did for it."""
    body = {"model": "m", "messages": messages}
    answer = service.ask("/v1/chat/completions", "POST", body, x_memory_session=session)
    assert answer.status == 200, answer.body
    return answer.headers["x-memory-status"]


def test_the_proxy_goes_on_while_the_database_is_away(postgres: Server, postgres_url: str) -> None:
    with (
        ScriptedServer(lambda body: say("yes")) as upstream,
        serve("--db", postgres_url, "--upstream", upstream.base_url) as service,
    ):
        assert chatted(service, "s", conversation("s", 8, 3_000)) in WELL
        postgres.stop()
        try:
            for n in (9, 10):
                assert chatted(service, "s", conversation("s", n, 3_000)) == "failed"
                assert upstream.requests[-1].body["messages"] == conversation("s", n, 3_000)
        finally:
            postgres.start()
        # it may rest for a while before it tries again
        until(lambda: chatted(service, "s", conversation("s", 11, 3_000)) in WELL)
        assert upstream.refused == []
    assert_holds(postgres_url, s=11)


@pytest.mark.short
def test_the_proxy_goes_on_where_the_disk_is_full(tmp_path: Path) -> None:
    with (
        ScriptedServer(lambda body: say("yes")) as upstream,
        serve("--db", tmp_path / "b.db", "--upstream", upstream.base_url) as service,
    ):
        assert chatted(service, "s", conversation("s", 8, 3_000)) in WELL
        pid = service.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))  # every write to a file fails
        assert chatted(service, "s", conversation("s", 20, 3_000)) == "failed"
        assert upstream.requests[-1].body["messages"] == conversation("s", 20, 3_000)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))
        until(lambda: chatted(service, "s", conversation("s", 21, 3_000)) in WELL)
    assert_holds(tmp_path / "b.db", s=21)


def test_a_service_that_is_left_behind_by_a_newer_schema_forwards_and_loses_nothing(bank_url: str) -> None:
    with (
        ScriptedServer(lambda body: say("yes")) as upstream,
        serve("--db", bank_url, "--upstream", upstream.base_url) as service,
    ):
        assert chatted(service, "s", conversation("s", 8, 3_000)) in WELL
        other = Database(bank_url)
        with another_program(other.url) as c:  # as a migration does it
            c.exec_driver_sql("UPDATE schema_version SET version_num = '9999'")
        try:
            assert chatted(service, "s", conversation("s", 9, 3_000)) == "failed"
            assert upstream.requests[-1].body["messages"] == conversation("s", 9, 3_000)
            assert FactStore(other, "s").size() == 8
            until(
                lambda: service.ask("/readyz").status == 503
            )  # a balancer asks others; results are kept for a second
            assert service.ask("/healthz").status == 200
            parts = service.ask("/health").json()["parts"]
            assert all("has schema 9999 by now" in parts[p]["trouble"] for p in ("database", "storage")), (
                parts
            )
        finally:
            other.close()
            with another_program(other.url) as c:
                c.exec_driver_sql(f"UPDATE schema_version SET version_num = '{VERSION}'")
        until(lambda: chatted(service, "s", conversation("s", 11, 3_000)) in WELL)
        until(lambda: service.ask("/readyz").status == 200)
    assert_holds(bank_url, s=11)


def test_services_behind_a_pooler_that_gives_each_transaction_another_connection(
    postgres: Server, tmp_path: Path
) -> None:
    """PgBouncer has fewer connections than agents ask at once, and its clients' connections break in between."""
    bank, agents = postgres.new("template0"), [f"agent{n}" for n in range(6)]
    with (
        pooled(postgres, tmp_path, 3) as url,
        ScriptedServer(lambda body: say("yes")) as upstream,
        serve("--db", url(bank), "--upstream", upstream.base_url, **FOLDING) as one,
        serve("--db", url(bank), "--upstream", upstream.base_url, **FOLDING) as other,
    ):

        def work(agent: str) -> list[Any]:
            return [
                chatted((one, other)[n % 2], agent, conversation(agent, n, 3_000))
                for n in range(1, 21)  # psycopg would prepare what is asked more than five times
            ]

        told = at_once(*(partial(work, agent) for agent in agents))
        assert {status for statuses in told for status in statuses} <= set(WELL)
        assert any("rebuilt" in statuses for statuses in told)
        # a purge, a list and a check by the same way
        database = Database(url(bank))
        assert len(list_sessions(database)) == 6
        assert list(verify(database)) == []
        assert [p.records for p in purge(database, session_id=agents[0])] == [20]
        database.close()
    assert_holds(postgres.url(bank), **dict.fromkeys(agents[1:], 20), agent0=0)


def test_a_worker_that_dies_while_the_database_is_away(postgres: Server, postgres_url: str) -> None:
    """It is replaced once there is a database to begin with; the others serve meanwhile."""
    with serve("--db", postgres_url, "--workers", "2") as service:
        postgres.stop()
        try:
            os.kill(service.children()[0], signal.SIGKILL)
            until(lambda: "is replaced: postgresql" in service.log)  # the new one says why it cannot begin
            assert service.ask("/health?live").status == 200
        finally:
            postgres.start()
        until(lambda: len(service.children()) == 2)
        assert context(service, "s", conversation("s", 4))["records"] == 4
        assert service.end() == 0


def test_a_full_disk(tmp_path: Path) -> None:
    """What cannot be stored is said, and stored when there is room again."""
    bank = tmp_path / "b.db"
    with serve("--db", bank) as service:
        assert context(service, "s", conversation("s", 2, 20_000))["records"] == 2
        pid = service.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        room = max(f.stat().st_size for f in tmp_path.glob("b.db*")) + 30_000
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (room, hard))
        failed = service.ask("/v1/sessions/s/context", "POST", {"messages": conversation("s", 9, 20_000)})
        assert (failed.status, failed.json()["error"]["code"]) == (503, "storage_unavailable")
        assert "xxxx" not in failed.body.decode()
        assert context(service, "s", conversation("s", 2, 20_000))
        health = service.ask("/health")
        assert (health.status, health.json()["status"]) == (200, "degraded")
        assert not health.json()["parts"]["storage"]["ok"]
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))
        assert context(service, "s", conversation("s", 9, 20_000))["records"] == 9
        until(lambda: service.ask("/health").json()["parts"]["storage"]["ok"])
        assert service.end() == 0
    assert_holds(bank, s=9)


def test_what_was_said_is_in_no_log(tmp_path: Path) -> None:
    with serve("--db", tmp_path / "b.db", "--log-format", "json") as service:
        messages = conversation("a name that is secret", 4)
        context(service, "a session that is secret", messages)
        service.ask("/v1/sessions/secret/context", "POST", {"messages": "secret"})
        service.ask("/v1/sessions/secret/search?q=secret")
        service.end()
    assert service.log.count('"message": "request"') == 3
    assert "secret" not in service.log
    assert "ORD-" not in service.log
