"""The sentence that tells an agent of its project's earlier sessions: who gets it, that it stays, what it reaches."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack

import pytest
from tests.chats import FOLDING
from tests.examples import first_short
from tests.service.processes import until
from tests.service.proxied import post, scripted
from tests.service.proxy.test_faults import locked
from tests.service.proxy.test_offered_tools import body_of
from tests.service.requests import PATHS

from memory_bank.bank.database import Database
from memory_bank.bank.lineage import Lineage, Offer
from memory_bank.bank.worker import waiting_since
from memory_bank.testing import call, say
from memory_bank.tools import EARLIER_SCHEMAS, TOOL_SCHEMAS
from memory_bank.transcript.jsontext import compact
from memory_bank.transcript.tokens import open_counter

TELLS = "this project's earlier sessions"
SETTINGS = {"folds": FOLDING | {"refresh_after": 1_000}}
WHEN = "before you ask the user, or try again what failed."


def step(p, way, name, steps, project="shop", *headers, said=""):
    """A step of a session after some calls; the name "" is none."""
    body = body_of(way, steps)
    if said:
        turns = body["input" if way == "responses" else "messages"]
        turns[-1 if way == "messages" else 1]["content"] = said
    named = [f"x-memory-session: {name}".encode()] if name else []
    named += [f"x-memory-project: {project}".encode()] if project else []
    came = post(p.port, PATHS[way], body, *named, *headers)
    assert came.status == 200
    return came


def told(server, at=-1):
    """Whether a request's tools tell of earlier sessions."""
    tools = json.dumps(server.requests[at].body.get("tools"))
    assert "get_record" in tools
    return TELLS in tools


def tools_of(server):
    return {json.dumps(r.body.get("tools")) for r in server.requests}


def test_the_sentence_says_when_in_at_most_40_tokens():
    told, untold = (s[0]["function"] for s in (EARLIER_SCHEMAS, TOOL_SCHEMAS))
    assert told["description"].startswith(untold["description"])
    assert told["description"].endswith(WHEN)
    assert {**told, "description": untold["description"]} == untold
    count = open_counter().count_text
    assert 0 < count(compact(told)) - count(compact(untold)) <= 40


@pytest.mark.parametrize("way", PATHS)
def test_it_is_told_where_an_earlier_session_has_records_and_costs_nothing_elsewhere(tmp_path, way):
    with scripted(lambda _: say("ok"), tmp_path, SETTINGS) as (server, p):
        step(p, way, "first", 0)
        assert not told(server)  # there is none
        step(p, way, "second", 0)
        assert not told(server)  # the first has no record yet
        step(p, way, "first", 1)
        assert not told(server)
        for name, project, tells in (("third", "shop", 1), ("other", "bakery", 0), ("of none", "", 0)):
            step(p, way, name, 0, project)
            assert told(server) is bool(tells)
        step(p, way, "", 0)
        assert not told(server)  # what is not named has no first request that could be known again
        p.ask("/v1/sessions/first", "DELETE")
        step(p, way, "fourth", 0)
        assert not told(server)  # the first is gone, the others have no record
        without = server.requests[0].body["tools"]
        assert all(r.body["tools"] == without for n, r in enumerate(server.requests) if n != 3)


def test_a_folder_in_the_first_prompts_names_the_project_too(tmp_path):
    prompt = "Working directory: /home/me/shop\n"
    with scripted(lambda _: say("ok"), tmp_path, SETTINGS) as (server, p):
        step(p, "chat", "a", 2, "", said=prompt)
        step(p, "chat", "b", 0, "", said=prompt)
        assert told(server)
        step(p, "chat", "c", 0, "", said=prompt.replace("shop", "bakery"))
        assert not told(server)


@pytest.mark.parametrize("way", PATHS)
@pytest.mark.parametrize("tells", first_short([True, False]))
def test_what_the_first_request_decided_stays_in_every_process_and_after_a_restart(tmp_path, way, tells):
    """Also where earlier sessions come or go meanwhile, in a late request and for count_tokens."""
    arrived = []
    for part in range(2):  # restarted in between
        with ExitStack() as stack:
            opened = [
                stack.enter_context(scripted(lambda _: say("ok"), tmp_path, SETTINGS)) for _ in range(3)
            ]
            if part == 0 and tells:
                step(opened[1][1], way, "earlier", 2)
            for n in range(6):
                server, p = opened[n % 3]
                step(p, way, "s", part * 6 + n)
                arrived.append(server.requests[-1].body["tools"])
                if way == "messages":
                    headers = b"x-memory-session: s", b"x-memory-project: shop"
                    post(p.port, "/v1/messages/count_tokens", body_of(way, part * 6 + n), *headers)
                    arrived.append(server.requests[-1].body["tools"])
                if n == 0:
                    step(opened[2][1], way, f"another {part}", 2)
                    if part == 0 and tells:
                        opened[1][1].ask("/v1/sessions/earlier", "DELETE")
            server, p = opened[0]
            with locked(tmp_path / "bank.db"):
                p.service.proxy.rebuilder.timeout = 0.2
                assert b"timeout" in step(p, way, "s", part * 6 + 6).header(b"x-memory-reason")
            arrived.append(server.requests[-1].body["tools"])
    assert len({json.dumps(tools) for tools in arrived}) == 1
    assert (TELLS in json.dumps(arrived[0])) is tells


def test_a_first_request_that_memory_fails_for_decides_too(tmp_path):
    with scripted(lambda _: say("ok"), tmp_path, SETTINGS) as (server, p):
        step(p, "chat", "earlier", 2)
        rebuilder = p.service.proxy.rebuilder
        with locked(tmp_path / "bank.db"):
            usual, rebuilder.timeout = rebuilder.timeout, 0.2
            assert step(p, "chat", "s", 0).header(b"x-memory-reason")
        rebuilder.timeout = usual
        for n in range(1, 4):
            step(p, "chat", "s", n)
        assert len({json.dumps(r.body["tools"]) for r in server.requests[1:]}) == 1


def test_of_two_first_requests_at_once_one_decides(bank_url):
    """Two processes that see different sessions before theirs."""
    banks = [Database(bank_url) for _ in range(2)]
    barrier, kept = threading.Barrier(2), {}

    def first(bank, offer):
        barrier.wait()
        kept[offer] = Lineage(bank).keep_offer("s", offer)

    threads = [
        threading.Thread(target=first, args=each)
        for each in zip(banks, (Offer.OWN, Offer.EARLIER), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(kept.values())) == 1
    assert {Lineage(bank).offer("s") for bank in banks} == set(kept.values())
    for bank in banks:
        bank.close()


def test_words_reach_the_earlier_session_without_another_argument(tmp_path):
    """From the first request on; a session that is not told stays with its own records."""
    search = [call("get_record", record="ORD-100", lines=None, pattern=None, path=None), say("I see.")]
    with scripted([say("ok"), *search * 3], tmp_path, SETTINGS) as (server, p):
        step(p, "chat", "monday", 2)
        until(lambda: not waiting_since(p.service.database)[0])  # a search finds what has its insight
        for name, steps, project, reaches in (
            ("tuesday", 0, "shop", True),
            ("tuesday", 1, "shop", True),
            ("other", 0, "bakery", False),
        ):
            came = step(p, "chat", name, steps, project)
            assert came.json()["choices"][0]["message"]["content"] == "I see."
            answer = server.requests[-1].body["messages"][-1]["content"]
            assert ("of the session monday" in answer) is reaches


@pytest.mark.parametrize("scope", ["session", "project", "all"])
def test_a_configured_scope_keeps_sessions_to_themselves(tmp_path, scope):
    with scripted(lambda _: say("ok"), tmp_path, {"s": FOLDING | {"scope": scope}}) as (server, p):
        step(p, "chat", "monday", 2)
        step(p, "chat", "tuesday", 0)
        assert told(server) is (scope != "session")


def test_another_keys_sessions_are_not_told_of(tmp_path):
    from memory_bank.bank.keys import Keys

    keys = Keys(Database(tmp_path / "bank.db"))
    mine, theirs = (keys.create(name)[1] for name in ("mine", "theirs"))
    keys.database.close()
    with scripted(lambda _: say("ok"), tmp_path, SETTINGS) as (server, p):
        for key, name, tells in ((theirs, "a", False), (mine, "b", False), (mine, "c", True)):
            step(p, "chat", name, 0, "shop", b"x-memory-key: " + key.encode())
            assert told(server) is tells
            step(p, "chat", name, 2, "shop", b"x-memory-key: " + key.encode())
