"""``memory-bank bank observe`` as a worker of its own, and the queue as `sessions` shows it."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.chats import call, result, rounds, user
from tests.cli.conftest import COMMAND, environment
from tests.contracts.insights import NumbersEmbedder
from tests.contracts.stores import let_wait

from memory_bank import MemoryBankSettings, MemoryBankState, apply_memory_bank_strategy
from memory_bank.bank.database import Database
from memory_bank.bank.stores import FactStore, InsightStore
from memory_bank.bank.worker import waiting_since
from memory_bank.records import Insight
from memory_bank.testing import ScriptedServer, fail, say
from memory_bank.tools import handle_tool_call

pytest.importorskip("openai", reason="needs the extra openai")

SETTINGS = MemoryBankSettings(
    embedding_model="lexical", observer_model="extractive", token_encoding="approximate"
)
OFF = SETTINGS.model_copy(update={"observer_mode": "off"})


def fill(url: str, session: str = "s", n: int = 6, settings: Any = OFF) -> None:
    with MemoryBankState.open(url, session) as state:
        apply_memory_bank_strategy([user(f"task of {session}"), *rounds(n)], None, settings, state)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    with ScriptedServer(lambda body: say("A summary by the model.")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        yield server


def test_once_until_no_record_waits(cli: Any, bank_url: str, server: Any) -> None:
    fill(bank_url, "one")
    fill(bank_url, "two", 3)
    done = cli.bank(
        bank_url, "observe", "--once", "--observer-model", "m", "--session", "two", "--json"
    ).json()
    assert (done["queued"], done["observed"], done["pending"]) == (3, 3, 0)
    done = cli.bank(bank_url, "observe", "--once", "--observer-model", "m", "--json").json()
    assert (done["queued"], done["observed"], done["still_marked"]) == (6, 6, 0)
    assert len(server.requests) == 9
    assert "task of two" in json.dumps(server.requests[0].body)
    listed = cli.bank(bank_url, "sessions", "--json").json()["sessions"]
    assert {s["session_id"]: (s["waiting"], s["unobserved"], s["calls"]) for s in listed} == {
        "one": (0, 0, 6),
        "two": (0, 0, 3),
    }
    assert cli.bank(bank_url, "observe", "--once", "--observer-model", "m").out.startswith("made 0 insights")


def test_what_waits_in_the_queue_needs_a_model(cli: Any, bank_url: str) -> None:
    fill(bank_url)
    InsightStore("lexical", Database(bank_url), "s").add_many(
        [Insight(f"t{n}", "short") for n in range(3)], waiting=["t0", "t1", "t2"]
    )
    done = cli.bank(bank_url, "observe")
    assert (done.code, "made 6 insights (extractive); 3 records wait for a model" in done.out) == (0, True)
    assert "--observer-model" in done.out
    extractive = cli.bank(bank_url, "observe", "--once", "--observer-model", "extractive", "--json").json()
    assert extractive["pending"] == 0


def test_limits_of_a_strategy_hold(cli: Any, bank_url: str, server: Any, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        'default_strategy = "mine"\n[memory_strategies.mine]\ntype = "memory_bank"\nobserver_model = "m"\nembedding_model = "lexical"\n'
        "observer_concurrency = 1\nobserver_calls_per_day = 2\n"
    )
    fill(bank_url)
    done = cli.bank(bank_url, "observe", "--once", "--config", config, "--json")
    assert done.code == 1
    assert (done.json()["observed"], done.json()["extracted"], done.json()["still_marked"]) == (2, 4, 4)
    assert len(server.requests) == 2
    (session,) = cli.bank(bank_url, "sessions", "--json").json()["sessions"]
    assert session["calls"] == 2
    assert session["to_redo"] == 4
    config.write_text('default_strategy = "no_strategy"\n')
    refused = cli.bank(bank_url, "observe", "--config", config)
    assert (refused.code, "has no Observer" in refused.sentence()) == (2, True)


def test_another_embedder_is_refused_at_once(cli: Any, bank_url: str, server: Any) -> None:
    InsightStore(NumbersEmbedder(), Database(bank_url), "s").add("a", "1 0")
    done = cli.bank(bank_url, "observe", "--observer-model", "m", "--embedding-model", "lexical")
    assert (done.code, "numbers" in done.sentence()) == (1, True)


def worker(url: str, server: Any, *more: str) -> subprocess.Popen[str]:
    env = environment(OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="k")
    return subprocess.Popen(
        [*COMMAND, "bank", "observe", "--db", url, "--observer-model", "m", "--json", *more],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def until(condition: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 0, marks=pytest.mark.long)]
)
def test_it_works_until_it_is_stopped(bank_url: str, server: Any, number: int, code: int) -> None:
    fill(bank_url)
    running = worker(bank_url, server)
    try:
        database = Database(bank_url)
        until(lambda: len(server.requests) >= 6 and not waiting_since(database)[0])
        fill(bank_url, "later", 2, SETTINGS)
        let_wait(database, list(MemoryBankState.open(bank_url, "later").fact_store.steps()))
        until(lambda: len(server.requests) >= 8 and not waiting_since(database)[0])
        running.send_signal(number)
        out, err = running.communicate(timeout=120)
    finally:
        running.kill()
    finishing, *stopped = err.splitlines()
    assert finishing.startswith("memory-bank: finishing the current calls")
    assert (running.returncode, stopped) == (code, ["memory-bank: stopped."] if code else [])
    done = json.loads(out)
    assert (done["queued"], done["made"], done["pending"]) == (6, 8, 0)


@pytest.mark.long
def test_calls_at_hand_are_finished(bank_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def slow(body: Any) -> Any:
        go_on.wait(120)
        return say("slowly")

    fill(bank_url, n=20)
    with ScriptedServer(slow) as server:
        running = worker(bank_url, server)
        until(lambda: len(server.requests) >= 8)
        running.send_signal(signal.SIGINT)
        assert running.stderr
        assert any("finishing the current calls" in line for line in running.stderr)  # before any call ends
        go_on.set()
        out, _ = running.communicate(timeout=120)
    done = json.loads(out)
    assert running.returncode == 130
    assert (done["observed"], done["pending"]) == (8, 12)
    assert len(server.requests) == 8  # none was asked for twice, none was paid for and lost


@pytest.mark.long
def test_two_workers_share_the_work(bank_url: str, server: Any) -> None:
    fill(bank_url, n=40)
    workers = [worker(bank_url, server, "--once") for _ in range(2)]
    outs = [w.communicate(timeout=60) for w in workers]
    assert [w.returncode for w in workers] == [0, 0], outs
    assert sum(json.loads(out)["observed"] for out, _ in outs) == len(server.requests) == 40


def test_sessions_show_the_queue(cli: Any, bank_url: str) -> None:
    fill(bank_url, settings=SETTINGS)
    database = Database(bank_url)
    ids = list(FactStore(database, "s").steps())
    let_wait(database, ids[:2])
    let_wait(database, ids[2:3], 2, "the model failed")
    (session,) = cli.bank(bank_url, "sessions", "--json").json()["sessions"]
    assert (session["waiting"], session["failing"], session["attempts"]) == (3, 1, 2)


def test_answers_of_our_own_tools_are_not_to_be_observed(cli: Any, bank_url: str, server: Any) -> None:
    with MemoryBankState.open(bank_url, "s") as state:
        messages = [user(), *rounds(2)]
        apply_memory_bank_strategy(messages, None, SETTINGS, state)
        told = handle_tool_call(state, "get_record", {"trace_id": "#1"})
        messages += [call(("x", "memory_bank__get_record", {"trace_id": "#1"})), result("x", told)]
        messages += [call(("y", "get_record", {"id": 5})), result("y", "an application's own")]
        apply_memory_bank_strategy(messages, None, OFF, state)
    (session,) = cli.bank(bank_url, "sessions", "--json").json()["sessions"]
    assert (session["records"], session["insights"], session["unobserved"]) == (4, 2, 1)
    done = cli.bank(bank_url, "observe", "--once", "--observer-model", "m", "--json").json()
    assert (done["queued"], done["observed"]) == (1, 1)
    assert cli.bank(bank_url, "observe", "--json").json()["made"] == 0
    assert cli.bank(bank_url, "sessions", "--json").json()["sessions"][0]["unobserved"] == 0
    with MemoryBankState.open(bank_url, "s") as state:
        state.prepare(SETTINGS)
        assert (state.pending, state.flush(0)) == (0, 0)


def test_a_failing_model_is_tried_again_later(
    cli: Any, bank_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(bank_url, n=1)
    answers = iter([fail(400), say("at the second attempt")])
    with ScriptedServer(lambda body: next(answers)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        done = cli.bank(bank_url, "observe", "--once", "--observer-model", "m", "--json")
    assert (done.code, done.json()["observed"], done.json()["retried"]) == (0, 1, 1)
