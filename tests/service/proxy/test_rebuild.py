"""A request's memory: what it puts off changes no context, and who leaves early leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import threading
import time

import pytest
from tests.chats import FOLDING, call, result, system, user
from tests.embedding_server import EmbeddingServer, hashed_embedding
from tests.examples import first_short

from memory_bank import LexicalEmbedder, MemoryBankState, apply_memory_bank_strategy
from memory_bank.bank.database import Database
from memory_bank.bank.listing import namespace_totals
from memory_bank.bank.maintenance import purge, verify
from memory_bank.bank.stores import InsightStore
from memory_bank.service.proxy.body import parse_body
from memory_bank.service.proxy.exchange import Exchange
from memory_bank.service.proxy.flow import DIALECTS
from memory_bank.service.proxy.identity import Identity
from memory_bank.service.proxy.rebuild import THREADS, Rebuilder
from memory_bank.service.sessions import Sessions
from memory_bank.testing import fail

CHAT = DIALECTS[0]


def noted(n):
    rows = [{"order": f"ORD-{1000 + n}", "line": k, "sku": f"SKU-{n * 97 + k * 13}"} for k in range(40)]
    wanted = {"number": n, "sku": f"SKU-{(n - 3) * 97}"}
    return [call((f"c{n}", "get_order", wanted), text=f"Now {n}."), result(f"c{n}", json.dumps(rows))]


def conversation(count):
    return [system(), user("Which orders are late?"), *(m for n in range(count) for m in noted(n))]


@pytest.mark.parametrize("key", ["memory_bank", "folding"])
@pytest.mark.parametrize("finished", first_short([0.5, 0.0, 1.0]))
def test_what_is_put_off_changes_no_context(configured, key, finished):
    rng = random.Random(finished)
    config = configured(strategy=key)
    sessions = Sessions(Database(""), config)
    with MemoryBankState(session_id="s") as alone:
        for count in range(1, 22):
            messages = conversation(count)
            made = sessions.rebuild(None, "s", messages)
            expected, tokens = apply_memory_bank_strategy(messages, None, config.strategy(key), alone)
            assert (made.context, made.tokens) == (expected, tokens)
            assert made.plan.as_dict()["decisions"] == alone.last_plan.as_dict()["decisions"]
            if rng.random() < finished:
                sessions.finish(made)
        made.plan.manifest()
    sessions.close()


def test_a_session_that_was_reset_finishes_nothing(configured):
    sessions = Sessions(Database(""), configured())
    made = sessions.rebuild(None, "s", conversation(3))
    sessions.reset(None, "s")
    sessions.finish(made)
    again = sessions.rebuild(None, "s", conversation(2))
    sessions.finish(again)
    assert len(summaries(sessions.database)) == 2
    sessions.close()


def summaries(database):
    return list(InsightStore(LexicalEmbedder(), database, "s").trace_ids())


def test_facts_come_with_the_context_and_summaries_after_it(configured, bank_url):
    database = Database(bank_url)
    sessions = Sessions(database, configured())
    made = sessions.rebuild(None, "s", conversation(3))
    assert (made.state.fact_store.size(), summaries(database)) == (3, [])
    sessions.finish(made)
    assert summaries(database) == list(made.state.steps)
    last = sessions.rebuild(None, "s", conversation(5))
    sessions.close()  # nobody came to finish it
    assert summaries(database) == list(last.state.steps)
    assert list(verify(database)) == []
    database.close()


def test_summaries_of_a_service_that_was_killed_are_made_by_the_next(configured, tmp_path):
    killed, database = Database(tmp_path / "bank.db"), Database(tmp_path / "bank.db")
    Sessions(killed, configured()).rebuild(None, "s", conversation(3))
    assert summaries(database) == []
    sessions = Sessions(database, configured())
    made = sessions.rebuild(None, "s", conversation(4))
    sessions.finish(made)
    assert summaries(database) == list(made.state.steps)
    assert len(made.state.steps) == 4


@pytest.mark.parametrize("end", ["finish", "close"])
def test_summaries_of_before_a_reset_do_not_come_after_it(configured, bank_url, end):
    database = Database(bank_url)
    sessions = Sessions(database, configured())
    made = sessions.rebuild(None, "s", conversation(3))
    for _ in purge(database, session_id="s"):  # by another process
        pass
    if end == "finish":
        sessions.finish(made)
    sessions.close()
    assert summaries(database) == []
    assert list(verify(database)) == []
    database.close()


def test_an_embedder_that_fails_is_told_and_asked_again(configured, monkeypatch, caplog):
    answers = iter([fail(400, "no vectors"), *[None] * 9])
    database = Database("")
    with EmbeddingServer(embed=lambda texts: next(answers) or hashed_embedding(texts)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        sessions = Sessions(database, configured({"memory_bank": {**FOLDING, "embedding_model": "openai:m"}}))
        made = sessions.rebuild(None, "s", conversation(3))
        with caplog.at_level(logging.WARNING, "memory_bank"):
            sessions.finish(made)
        assert "summaries wait for the next step" in caplog.text
        assert not namespace_totals(database, None).insights
        sessions.finish(sessions.rebuild(None, "s", conversation(3)))
        assert namespace_totals(database, None).insights == 3
        sessions.close()


def test_a_loop_is_told_once_the_context_is_there(configured, caplog):
    sessions = Sessions(Database(""), configured())
    same = [m for n in range(3) for m in (call((f"c{n}", "get_order", {"n": 1})), result(f"c{n}", "late"))]
    with caplog.at_level(logging.WARNING, "memory_bank"):
        made = sessions.rebuild(None, "s", [system(), user(), *same])
        assert "repeats itself" not in caplog.text
        sessions.finish(made)
    assert caplog.text.count("repeats itself") == 1
    sessions.close()


async def asked(memory, count, namespace=None, **headers):
    """A request after so many calls, once memory is done with it."""
    body = parse_body(json.dumps({"messages": conversation(count)}).encode(), "messages", "tools")
    given = {"x-memory-session": "s", **headers}
    exchange = Exchange("POST", namespace, CHAT, body=body, client_headers=given, upstream_key="key")
    await memory.rebuild(exchange)
    return exchange


def test_what_was_put_off_is_done_soon(configured):
    database = Database("")
    sessions = Sessions(database, configured())
    memory = Rebuilder(sessions, Identity(database), 5)

    async def run():
        told = await asked(memory, 3)
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
        return told

    assert asyncio.run(run()).memory == "rebuilt"  # its outputs are JSON with indentation
    assert len(summaries(database)) == 3
    sessions.close()


class _Held(Sessions):
    """Sessions whose put-off work waits until ``go`` is set."""

    def finish(self, step):
        self.go.wait(60)
        super().finish(step)


def test_what_is_put_off_does_not_pile_up(configured):
    """While both threads for it are busy, one task of a session waits, however many requests there are."""
    sessions = _Held(Database(""), configured())
    sessions.go = threading.Event()
    memory = Rebuilder(sessions, Identity(sessions.database), 30)

    async def run():
        for n in range(1, 30):
            await asked(memory, n)
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        sessions.go.set()
        assert len(waiting) <= 3
        await asyncio.gather(*waiting)
        await asked(memory, 30)
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})

    asyncio.run(run())
    assert len(summaries(sessions.database)) == 30
    sessions.close()


def test_one_who_leaves_while_others_wait_for_a_thread(configured):
    """A step that never began is not waited for, and the next is made as ever."""
    database = Database("")
    sessions = Sessions(database, configured(strategy="folding"))
    memory = Rebuilder(sessions, Identity(database), 30)

    async def run():
        waiting = [
            asyncio.create_task(asked(memory, 12, **{"x-memory-session": f"s{n}"}))
            for n in range(3 * THREADS)
        ]
        await asyncio.sleep(0)
        for task in waiting[::2]:
            task.cancel()
        done = await asyncio.gather(*waiting, return_exceptions=True)
        return done, await asked(memory, 13)

    done, last = asyncio.run(run())
    assert {d.memory for d in done[1::2]} == {"rebuilt"}
    assert all(isinstance(d, asyncio.CancelledError) for d in done[::2])
    assert last.memory == "rebuilt"
    sessions.close()


class _Hanging:
    """An identity whose searches for one namespace end when ``go`` is set."""

    def __init__(self, slow):
        self.slow = slow
        self.go = threading.Event()

    def session_of(self, exchange, history, **_given):
        if exchange.namespace == self.slow:
            self.go.wait(60)


def test_slow_steps_of_a_key_pause_memory_for_that_key_alone(configured):
    sessions = Sessions(Database(""), configured())
    identity = _Hanging("slow")
    memory = Rebuilder(sessions, identity, 0.2)

    async def main():
        first = await asyncio.gather(*(asked(memory, 2, "slow") for _ in range(THREADS)))
        again = await asked(memory, 2, "slow")
        memory.timeout = 60
        return first, again, await asked(memory, 2, "other")

    first, again, other = asyncio.run(_within(main, identity.go))
    # half of them had their turn at once, the last of those that had waited for it are not let through
    assert {r.reason for r in first} == {"timeout", "paused"}
    assert again.reason == "paused"
    assert sum(memory.without("slow").values()) == THREADS + 1
    assert memory.without("other") == {}
    assert (other.memory, other.reason) == ("passed", "nothing to remember yet")


def test_one_slow_conversation_pauses_itself_alone(configured):
    class OneSlow(_Hanging):
        def session_of(self, exchange, history, **_given):
            if exchange.client_headers["x-memory-session"] == self.slow:
                self.go.wait(60)

    identity = OneSlow("slow")
    memory = Rebuilder(Sessions(Database(""), configured()), identity, 0.2)

    async def main():
        hung = [await asked(memory, 2, **{"x-memory-session": "slow"}) for _ in range(3)]
        memory.timeout = 60
        return hung, await asked(memory, 2)

    hung, other = asyncio.run(_within(main, identity.go))
    assert [r.reason for r in hung] == ["timeout", "timeout", "paused"]
    assert (other.memory, other.reason) == ("passed", "nothing to remember yet")


class _Slow:
    """An identity that takes its time for every request, finds no session, and notes whom it was asked for."""

    def __init__(self, seconds):
        self.seconds, self.asked = seconds, []

    def session_of(self, exchange, history, **_given):
        self.asked.append(exchange.client_headers["x-memory-session"])
        time.sleep(self.seconds)


def test_waiting_for_others_is_no_timeout_for_a_session_that_has_begun(configured):
    """Twice what the threads can do within the limit: a request of a new session goes without, and no other."""
    sessions = Sessions(Database(""), configured())
    identity = _Slow(0.4)
    memory = Rebuilder(sessions, identity, 2.0)

    async def run():
        begun = [asked(memory, 3, **{"x-memory-session": f"b{n}"}) for n in range(11 * THREADS)]
        new = [asked(memory, 1, **{"x-memory-session": f"new{n}"}) for n in range(10)]
        done = await asyncio.gather(*begun, *new)
        return done[-10:], done[:-10], await asked(memory, 1)

    new, begun, later = asyncio.run(run())
    assert {r.memory for r in begun} == {"passed"}
    assert {r.reason for r in new} == {"overloaded"}
    assert memory.without(None) == memory.check()["without_memory"] == {"overloaded": 10}
    assert not any(name.startswith("new") for name in identity.asked)
    assert later.memory == "passed"  # the next time it is taken
    assert memory.trouble(None) is None


async def _within(main, go):
    try:
        return await main()
    finally:
        go.set()
