"""Whose conversation a request goes on with: named, chained, known by its calls, forked; never another's."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.chats import call, result, rounds, say, system, user
from tests.contracts.stores import let_wait
from tests.service.proxy.conversing import Messages, World, masked, random_id, turn

from memory_bank.bank.database import Database
from memory_bank.bank.lineage import KEPT
from memory_bank.bank.listing import list_sessions
from memory_bank.bank.maintenance import verify
from memory_bank.bank.schema import lineage, metadata, sessions
from memory_bank.bank.stores import FactStore, InsightStore
from memory_bank.errors import ConfigError
from memory_bank.models.embedding import load_embedder
from memory_bank.service.proxy.api import RequestHistory
from memory_bank.service.proxy.exchange import Exchange
from memory_bank.service.proxy.identity import Identity, SessionMatch
from memory_bank.service.proxy.upstream import credential_of

START = [system(), user("How many items are there?")]
LONG = "there are so many items in the warehouse that they fill it to the roof: "


@pytest.fixture
def world(bank_url: str) -> Iterator[World]:
    world = World(bank_url)
    yield world
    problems = list(verify(world.database))
    world.close()
    assert problems == []


@pytest.fixture
def small() -> Iterator[World]:
    """In memory, for what the kind of database does not matter to."""
    world = World()
    yield world
    world.close()


def known(found: SessionMatch | None) -> SessionMatch:
    assert found is not None
    return found


def steps(n: int, ids: str = "random", start: int = 0, label: str = "") -> Messages:
    """n interactions; the ids are random, or counted."""
    made: Messages = []
    for i in range(start, start + n):
        call_id = random_id(f"{label}{i}") if ids == "random" else f"call_{i}"
        made += turn(call_id, f"{LONG}{label}{i}")
    return made


# --- names


def test_names_in_their_order(small: World) -> None:
    chat = [*START, *steps(1)]
    body: dict[str, Any] = {"metadata": {"session_id": "of metadata"}, "prompt_cache_key": "of cache"}
    header = {"X-Memory-Session": "of header"}
    assert small.find(chat, headers=header, **body) == SessionMatch("of header", "header")
    assert small.find(chat, **body) == SessionMatch("of metadata", "metadata")
    del body["metadata"]["session_id"]
    assert small.find(chat, **body) == SessionMatch("of cache", "prompt_cache_key")
    assert known(small.find(chat)).how == "new"


def test_a_name_holds_before_any_call_and_for_any_list(small: World) -> None:
    for chat in ([], START, [*START, *steps(2)], [user("Something else."), *steps(1, "counted")]):
        assert small.find(chat, headers={"x-memory-session": "mine"}) == SessionMatch("mine", "header")


def test_a_name_in_the_header_may_be_quoted(small: World) -> None:
    names = {"a%2Fb%20c": "a/b c", "M%C3%BCnchen": "München", "50%": "50%", " padded ": "padded"}
    for quoted, name in names.items():
        assert known(small.find([], headers={"x-memory-session": quoted})).name == name


@pytest.mark.parametrize("name", ["", "  ", "x" * 181, "a\nb", "%00", "\u202e"])
def test_a_name_that_cannot_be_one_is_refused(small: World, name: str) -> None:
    with pytest.raises(ConfigError, match="x-memory-session must be"):
        small.find([*START, *steps(1)], headers={"x-memory-session": name})
    with pytest.raises(ConfigError, match=r"metadata\.session_id must be"):
        small.find([*START, *steps(1)], metadata={"session_id": name and f"{name}\n"})
    assert small.count() == 0


@pytest.mark.parametrize(
    "body", [{"metadata": None}, {"metadata": "x"}, {"metadata": {}}, {"metadata": {"session_id": None}},
             {"prompt_cache_key": None}, {"prompt_cache_key": ""}, {"prompt_cache_key": 7}],
)  # fmt: skip
def test_what_names_nothing_is_passed_over(small: World, body: dict[str, Any]) -> None:
    assert known(small.find([*START, *steps(1)], **body)).how == "new"


def test_a_named_session_is_found_by_its_name_only(small: World) -> None:
    chat = [*START, *steps(3)]
    small.ask(chat, headers={"x-memory-session": "mine"})
    other = known(small.ask(chat))
    assert (other.how, other.name != "mine") == ("new", True)
    with small.database.read() as c:
        rows = c.execute(sa.select(lineage.c.digest, lineage.c.session_id)).all()
    assert {session_id for _, session_id in rows} == {"mine", other.name}
    assert len({digest for digest, _ in rows}) == len(rows)  # they share none


# --- one agent


def test_nothing_to_remember_before_the_first_call(small: World) -> None:
    assert small.find(START) is None
    assert small.find(START, prompt_cache_key="k") is None
    assert small.find([*START, say("Hello."), user("And?")]) is None
    assert small.count() == 0


def test_names_are_never_made_of_the_prompt(small: World) -> None:
    chat = [*START, *steps(1)]
    names = {known(small.find(chat, key=f"sk-{i}")).name for i in range(5)}
    assert len(names) == 5


def test_a_retry_finds_its_session_and_writes_nothing(world: World) -> None:
    chat = [*START, *steps(2)]
    first = known(world.ask(chat))
    before = dump(world.database)
    assert known(world.find(chat)) == SessionMatch(first.name, "chain")
    assert dump(world.database) == before


def dump(database: Database) -> list[Any]:
    with database.read() as c:
        return [c.execute(sa.select(t)).all() for t in metadata.sorted_tables]


def test_a_replay_from_the_beginning_makes_one_fork(small: World) -> None:
    first = [known(small.ask([*START, *steps(n, "counted")])) for n in range(1, 30)]
    again = [known(small.ask([*START, *steps(n, "counted")])) for n in range(1, 30)]
    assert len({f.name for f in again[:-1]}) == 1
    assert again[0].forked_from == first[0].name
    assert (
        again[-1].name == first[0].name
    )  # word for word what the first one holds: nobody can tell them apart
    assert small.count() == 2


EDITS = {
    "drop": lambda m, k: [*m[:2], *m[-2 * k :]],
    "summary": lambda m, k: [m[0], user("In short: items were counted."), *m[-2 * k :]],
    "mask": lambda m, k: masked(m, *(x["tool_call_id"] for x in m[: len(m) - 2 * k] if "tool_call_id" in x)),
    "clock": lambda m, k: [system(f"It is {len(m)} o'clock."), *m[1:]],
    "cut": lambda m, k: [{**x, "content": x["content"][:40]} if x["role"] == "tool" else x for x in m[: len(m) - 2 * k]] + m[len(m) - 2 * k :],
}  # fmt: skip


@pytest.mark.parametrize("keep", [0, 1, 2])
@pytest.mark.parametrize("how", EDITS)
def test_an_agent_keeps_its_session_when_its_client_edits_the_past(world: World, how: str, keep: int) -> None:
    """``keep`` interactions stay as they were before the new one comes; of what is dropped, one must."""
    keep = max(keep, 1) if how in ("drop", "summary") else keep
    messages, found = list(START), []
    for n in range(12):
        if n > 3:
            messages = EDITS[how](messages, keep)
        messages = [*messages, *steps(1, start=n)]
        found.append(known(world.ask(messages)))
    assert {f.name for f in found} == {found[0].name}
    assert found[-1].how == "calls"
    assert {f"{LONG}{n}" for n in range(12)} <= set(world.outputs(found[-1]))
    assert world.count() == 1


def test_a_system_prompt_that_changes_keeps_the_session_whatever_the_ids_look_like(world: World) -> None:
    found = []
    for n in range(1, 27):
        turns = [m for i in range(n) for m in turn((f"call_{i}", f"functions.get:{i}")[i % 2], f"{LONG}{i}")]
        found.append(known(world.ask([system(f"It is {n} o'clock."), START[1], *turns])))
    assert {f.name for f in found} == {found[0].name}
    assert [f.how for f in found] == ["new"] + ["calls"] * 25
    assert len(world.records(found[0].name)) == 26
    assert world.count() == 1


def test_prompts_that_change_and_counted_ids_keep_agents_apart(world: World) -> None:
    """Other tasks are others from the first call on, other answers from there on; nobody sees the other's."""
    tasks = {"a": START[1], "b": user("How many shelves are there?"), "c": START[1]}
    names: dict[str, set[str]] = {a: set() for a in tasks}
    for n in range(1, 7):
        for a, task in tasks.items():
            own = steps(n - 1, "counted", 1, label=a)
            found = known(world.ask([system(f"{a}: {n}"), task, *steps(1, "counted"), *own]))
            produced = {m["content"] for m in (*steps(1, "counted"), *own) if m["role"] == "tool"}
            assert set(world.outputs(found)) == produced
            if n > 2:
                names[a].add(found.name)
    assert [len(n) for n in names.values()] == [1, 1, 1]
    assert len(set.union(*names.values())) == 3


@pytest.mark.parametrize("how", ["drop", "summary", "mask"])
def test_an_edited_past_without_random_ids_is_nobodys(world: World, how: str) -> None:
    chat = [*START, *steps(5, "counted")]
    first = known(world.ask(chat))
    edited = known(world.ask([*EDITS[how](chat, 1), *steps(1, "counted", 5)]))
    assert (edited.how, edited.forked_from) == ("new", None)
    assert edited.name != first.name
    assert not {f"{LONG}{n}" for n in range(4)} & set(world.outputs(edited))


def test_a_summary_of_everything_is_nobodys(world: World) -> None:
    world.ask([*START, *steps(3)])
    assert world.ask([START[0], user("In short: items were counted.")]) is None
    assert known(world.ask([START[0], user("In short."), *steps(1, start=9)])).how == "new"


def test_a_late_retry_does_not_take_the_session_from_its_agent(world: World) -> None:
    """The list still begins with the fork's head; the calls after that tell whose it is."""
    chat = [*START, *steps(4)]
    name = known([world.ask(chat[: 2 + 2 * n]) for n in range(1, 5)][-1]).name
    assert known(world.ask(chat[:4])).how == "fork"
    edited = [*masked(chat, random_id("1"), random_id("2")), *steps(1, start=4)]
    assert known(world.ask(edited)) == SessionMatch(name, "calls")


# --- several agents


def test_agents_with_the_same_prompt_and_counted_ids(world: World) -> None:
    """Apart from where their tools first gave different answers, whatever the order of their requests."""
    shared = steps(2, "counted")
    own = {a: steps(6, "counted", 2, label=a) for a in "ab"}
    chats = {a: [*START, *shared, *own[a]] for a in "ab"}
    found: dict[str, list[SessionMatch]] = {"a": [], "b": []}
    for a, n in [
        ("a", 1),
        ("b", 1),
        ("a", 2),
        ("b", 2),
        ("a", 3),
        ("b", 3),
        ("b", 4),
        ("b", 4),
        ("a", 4),
        *((x, n) for n in (5, 6, 7, 8) for x in "ab"),
    ]:
        found[a].append(known(world.ask(chats[a][: 2 + 2 * n])))
    assert found["a"][-1].name != found["b"][-1].name
    for a, other in ("ab", "ba"):
        outputs = set(world.outputs(found[a][-1]))
        assert {m["content"] for m in own[a] if m["role"] == "tool"} <= outputs
        assert not {m["content"] for m in own[other] if m["role"] == "tool"} & outputs
    assert world.count() == 2


def test_other_keys_and_namespaces_are_others(bank_url: str) -> None:
    """The same list, with the same ids: a key that is rotated begins anew, and nobody finds what is another's."""
    worlds = [World(Database(bank_url), namespace) for namespace in (None, "one", "two")]
    chats = [[*START, *steps(3)], [*START, *steps(4)], [*START, user("In short."), *steps(2, start=3)]]
    found: list[Any] = []
    for world in worlds:
        for key in ("sk-1", "sk-2", "", None):
            here = [known(world.ask(chat, key=key)) for chat in chats]
            assert {f.forked_from for f in here} == {None}
            assert len({f.name for f in here}) == 1
            found.append((world.namespace, here[0].name))
    assert len(set(found)) == 12
    for world in worlds:
        world.close()


def test_no_key_and_no_prompt_is_stored(bank_url: str) -> None:
    world = World(bank_url, "ns")
    key, chat = "sk-very-secret", [*START, *steps(2)]
    for n in (4, 6):
        assert known(world.find(chat[:n], key=key, prompt_cache_key="hush hush")).how == "prompt_cache_key"
    world.database.close()
    with Database(bank_url).read() as c:
        told = str([c.execute(sa.select(t)).all() for t in (sessions, lineage)])
    digests = [hashlib.new(kind, key.encode()).hexdigest() for kind in ("sha256", "md5", "sha1")]
    ids = [hashlib.sha256(m["tool_call_id"].encode()).hexdigest() for m in chat if m["role"] == "tool"]
    for secret in (key, *digests, *ids, random_id("0"), "How many items", LONG):
        assert secret not in told


def test_best_of_several(world: World) -> None:
    """Branches from one point, made at once and gone on with in any order; each sees only its own."""
    stem = [*START, *steps(3)]
    name = known(world.ask(stem)).name
    found = {a: known(world.ask([*stem, *steps(1, start=3, label=a)])) for a in "abcd"}
    assert len({f.name for f in found.values()}) == 4
    assert found["a"].name == name
    assert {f.forked_from for a, f in found.items() if a != "a"} == {name}
    for n in (2, 3):
        for a in "dbca":
            again = known(world.ask([*stem, *steps(n, start=3, label=a)]))
            assert again.name == found[a].name
            expected = [f"{LONG}{i}" for i in range(3)] + [f"{LONG}{a}{i}" for i in range(3, 3 + n)]
            assert world.outputs(again) == expected


def test_a_branch_that_drops_its_past_keeps_to_its_own(world: World) -> None:
    stem = [*START, *steps(3)]
    world.ask(stem)
    found = {a: known(world.ask([*stem, *steps(1, start=3, label=a)])) for a in "ab"}
    for a in "ba":
        short = [*START, *steps(2, start=3, label=a)]
        again = known(world.ask(short))
        assert (again.name, again.how) == (found[a].name, "calls")
        assert world.outputs(again)[-1] == f"{LONG}{a}4"
    assert f"{LONG}a3" not in world.outputs(found["b"])


def test_a_branch_that_drops_its_past_at_once_is_a_fork_with_it(world: World) -> None:
    """The calls before the parting say where it was; what was recorded until then comes along."""
    chat = [*START, *steps(4)]
    name = known([world.ask(chat[: 2 + 2 * n]) for n in range(1, 5)][-1]).name
    world.ask([*chat, *steps(1, start=4, label="a")])
    other = known(world.ask([*START, *chat[-2:], *steps(1, start=4, label="b")]))
    assert (other.how, other.forked_from) == ("fork", name)
    assert set(world.outputs(other)) == {*(f"{LONG}{i}" for i in range(4)), f"{LONG}b4"}


@pytest.mark.parametrize("shorter", [False, True])
def test_a_tool_run_again_is_another_branch(world: World, shorter: bool) -> None:
    stem, i = [*START, *steps(2)], random_id("again")
    world.ask(stem)
    first = known(world.ask([*stem, *turn(i, LONG)]))
    other = [*stem, *turn(i, "few" if shorter else LONG + "and more")]
    second = known(world.ask(other))
    assert (second.how, second.forked_from) == ("fork", first.name)
    for chat in (other, [*START, *other[-2:]]):  # also when it goes on, with its past or without
        found = known(world.ask([*chat, *steps(1, start=5)]))
        assert LONG not in world.outputs(found)
        assert found.name != first.name


def test_what_came_after_the_calls_is_not_shown_to_who_has_only_the_calls(world: World) -> None:
    """The session went on with calls whose ids show nothing; a sibling has the random ones before them."""
    stem = [*START, *steps(2)]
    name = known(world.ask(stem)).name
    assert known(world.ask([*stem, *steps(1, "counted", 2, label="a")])).name == name
    sibling = known(world.ask([*START, user("In short."), *stem[-2:], *steps(1, start=2, label="b")]))
    assert sibling.name != name
    assert f"{LONG}a2" not in world.outputs(sibling)


def test_examples_in_the_prompt_bind_nobody(world: World) -> None:
    """Ids in a prompt look random and are the same for all."""
    for ids in ("counted", "random"):
        shots = [system(f"With {ids} ids."), user("An example."), *steps(2, ids, label="shot"), say("Two.")]
        names = {}
        for n in range(4):
            for a in "abc":
                chat = [*shots, user(f"How many has {a}?"), *steps(n, ids, label=a)]
                names[a, n] = known(world.ask(chat))
                outputs = set(world.outputs(names[a, n]))
                own = {f"{LONG}shot{i}" for i in range(2)} | {f"{LONG}{a}{i}" for i in range(n)}
                assert outputs == own
        assert len({names[a, 3].name for a in "abc"}) == 3


def test_a_call_that_clients_add_to_every_list_binds_nobody(world: World) -> None:
    """A client that ends every list with the same call and answer, its id random to look at."""
    added = turn("call_Zq81mXk2Pw93bTfL7dRs04Ya", "The time is up.")
    for n in range(1, 5):
        for a in "ab":
            chat = [system(f"You are {a}."), START[1], *steps(n, label=a), *added]
            found = known(world.ask(chat))
            other = "b" if a == "a" else "a"
            assert not any(f"{LONG}{other}{i}" in world.outputs(found) for i in range(5))


def test_ids_that_are_hashes_do_not_mix_agents(world: World) -> None:
    """Both made the same calls and got the same last answer; what came before it differed."""
    a, b = (
        [*START, *turn(random_id("hash 0"), f"{LONG}{who}"), *turn(random_id("hash 1"), "the same for both")]
        for who in "ab"
    )
    first = [known(world.ask(a[:n])) for n in (4, 6)]
    second = [known(world.ask(b[:n])) for n in (4, 6)]
    assert len({f.name for f in first}) == len({f.name for f in second}) == 1
    assert f"{LONG}a" not in world.outputs(second[-1])
    beyond = [*START, *b[-2:], *turn(random_id("hash 2"), "other")]
    third = known(world.ask(beyond))
    assert third.name not in {first[0].name, second[0].name}
    assert set(world.outputs(third)) == {"the same for both", "other"}


@pytest.mark.parametrize(
    "headers", [{}, {"x-claude-code-session-id": "0199aaaa-bbbb-4ccc-8ddd-eeeeffff0000"}]
)
def test_a_turn_with_one_call_more_is_another_agents(world: World, headers: dict[str, str]) -> None:
    """Ids that are hashes of what was said: two agents' first calls are equal, the second makes one beside it."""
    ids = [random_id("hash 0"), random_id("hash 1")]
    one = [*START, *turn(ids[0], "the same for both")]
    both = call(*((i, "count_items", {"of": "all"}) for i in ids))
    two = [*START, both, result(ids[0], "the same for both"), result(ids[1], f"{LONG}of two")]
    found = [known(world.ask(chat, headers=headers)) for chat in (one, two, [*one, user("And?")])]
    assert len({found[0].name, found[1].name}) == 2
    assert world.outputs(found[2]) == ["the same for both"]


def test_a_list_that_lost_its_start_is_no_fork_of_another_agents_turn(world: World) -> None:
    """Ids that are hashes: the last turn of the list has the id of another agent's last one, not its result."""
    ids = [random_id(f"hash {n}") for n in range(3)]
    one, two = ([*START, *turn(ids[0], f"{LONG}of {who}"), *turn(ids[1], "both")] for who in ("one", "two"))
    for chat in (one[:-2], one, two[:-2], two, [*two, *turn(ids[2], "last of two")]):
        world.ask(chat)
    cut = known(world.ask([START[0], user("Go on."), *one[-2:], *turn(ids[2], "last of one")]))
    assert world.outputs(cut) == ["both", "last of one"]


@pytest.mark.parametrize("same", [False, True])
def test_a_list_that_lost_its_start_is_no_fork_of_a_turn_that_another_agent_left_behind(
    world: World, same: bool
) -> None:
    """Ids that are hashes: only the records tell what the other agent's turn with this id returned."""
    ids = [random_id(f"hash {n}") for n in range(6)]
    two = [*START, *(m for n in range(6) for m in turn(ids[n], f"{LONG}of two {n}"))]
    for n in range(1, 7):
        world.ask(two[: 2 + 2 * n])
    own = [START[0], user("Go on."), *masked(two[6:10], ids[2]), *turn(random_id("again"), "again")]
    assert f"{LONG}of two 0" in world.outputs(world.ask(own))  # the agent's own, from before its last turns
    last = f"{LONG}of two 2" if same else f"{LONG}of one 2"
    one = [*START, *turn(ids[0], f"{LONG}of one 0"), *turn(ids[1], f"{LONG}of one 1"), *turn(ids[2], last)]
    cut = [START[0], user("Go on."), *one[-4:]]
    found = known(world.ask(cut))
    assert set(world.outputs(found)) == {f"{LONG}of one 1", last}
    found = known(world.ask([*cut, *turn(ids[3], f"{LONG}of one 3")]))
    assert set(world.outputs(found)) == {f"{LONG}of one 1", last, f"{LONG}of one 3"}
    if not same:  # one turn alone: with the same result, nothing tells the agents apart
        found = known(world.ask([START[0], user("Go on, please."), *one[-2:]]))
        assert f"{LONG}of two 1" not in world.outputs(found)


def test_words_that_opened_another_list_of_a_client_are_no_summary(world: World) -> None:
    """A list that lost its first calls was given a session of its own; another agent's begins with the same words."""
    headers = {"x-claude-code-session-id": "0199aaaa-bbbb-4ccc-8ddd-eeeeffff0000"}
    chat, again = [*START, *steps(3)], [START[0], user("Go on.")]
    for n in (4, 6, 8):
        world.ask(chat[:n], headers=headers)
    world.ask([*again, *chat[4:6], *turn(random_id("b"), "of a fork")], headers=headers)
    other = known(world.ask([*again, *turn("call_1", "of another")], headers=headers))
    assert world.outputs(other) == ["of another"]


def test_an_old_request_of_another_agent_with_the_same_ids(world: World) -> None:
    """It goes back to where only its own session was; the other's calls are the last of its list."""
    stem = [*START, *turn(random_id("hash 0"), f"{LONG}stem")]
    a, b = (
        [*stem, *turn(random_id("hash 1"), f"{LONG}{who}"), *turn(random_id("hash 2"), "the same for both")]
        for who in "ab"
    )
    for chat in (a, b):
        for n in (4, 6, 8):
            world.ask(chat[:n])
    world.ask([*b, *turn(random_id("b 3"), "b goes on")])
    back = known(world.ask(b))
    assert f"{LONG}a" not in world.outputs(back)
    assert f"{LONG}b" in world.outputs(back)


# --- what a fork has


def test_a_fork_has_the_past_that_the_messages_no_longer_hold(world: World) -> None:
    chat = [*START, *steps(6)]
    for n in range(1, 7):
        name = known(world.ask(chat[: 2 + 2 * n])).name
    short = [*START, *steps(2, start=5)]  # four are dropped
    assert known(world.ask(short)).name == name
    assert known(world.ask([*short, *steps(1, start=7, label="a")])).name == name
    fork = known(world.ask([*short, *steps(1, start=7, label="b")]))
    assert fork.forked_from == name
    there, here = world.records(name), world.records(fork.name)
    assert [o for _, o in there[:6]] == [o for _, o in here[:6]] == [f"{LONG}{i}" for i in range(6)]
    assert (there[-1][1], here[-1][1]) == (f"{LONG}a7", f"{LONG}b7")
    assert len(here) == 8
    stores = [FactStore(world.database, n) for n in (name, fork.name)]
    assert not set(stores[0].steps()) & set(stores[1].steps())
    assert world.database.get_session(fork.name, "task") == START[1]["content"]
    again = known(
        world.ask([*chat, *steps(1, start=6), *steps(1, start=7, label="b")])
    )  # the whole past again
    assert len(set(world.outputs(again))) == len(world.outputs(again))


def test_a_fork_has_the_insights_of_its_past_and_what_waits(world: World) -> None:
    chat = [*START, *steps(3)]
    name = known(world.ask(chat)).name
    world.ask([*chat, *steps(1, start=3)])
    waiting = list(FactStore(world.database, name).steps())
    let_wait(world.database, [waiting[1], waiting[3]])
    later = known(world.find([*chat, *steps(2, start=3)]))
    assert later.name == name
    fork = known(world.find([*chat, *steps(1, start=3), *steps(1, start=4, label="b")]))
    made = InsightStore(load_embedder("lexical"), world.database, fork.name)
    theirs = InsightStore(load_embedder("lexical"), world.database, name)
    own = list(FactStore(world.database, fork.name).steps())
    assert len(own) == 3
    assert [made.get_summary(t) for t in own] == [theirs.get_summary(t) for t in waiting[:3]]
    assert {s.session_id: s.waiting for s in list_sessions(world.database)} == {name: 2, fork.name: 1}


def test_equal_calls_of_the_past_are_told_apart_in_a_fork(world: World) -> None:
    same = [m for _ in range(3) for m in turn("call_1", "still working")]
    chat = [*START, *same]
    name = known(world.ask(chat)).name
    assert known(world.ask([*chat, *steps(1, start=3, label="a")])).name == name
    world.ask([*chat, *steps(2, start=3, label="a")])
    fork = known(world.ask([*chat, *steps(1, start=3, label="a"), *steps(1, start=4, label="b")]))
    assert fork.forked_from == name
    assert world.outputs(fork).count("still working") == 3


def test_a_fork_belongs_to_whoever_asks_for_it(world: World) -> None:
    chat = [*START, *steps(2)]
    name = known(world.find(chat)).name
    world.sessions.rebuild(None, name, chat, project="ada")
    world.ask([*chat, *steps(1, start=2, label="a")])
    other = known(world.find([*chat, *steps(1, start=2, label="b")]))
    world.sessions.rebuild(None, other.name, chat, project="bob")
    assert [world.database.project_of(n) for n in (name, other.name)] == ["ada", "bob"]


# --- prompt_cache_key


def test_a_cache_key_with_a_secret_names_no_session(world):
    """It still tells conversations apart, but a name is stored as it is."""
    key = "sk-proj-" + "aB3_d-" * 12
    first = known(world.ask([*START, *steps(2, "counted")], prompt_cache_key=key))
    assert first.name.startswith("auto-")
    again = known(world.ask([*START, *steps(3, "counted")], prompt_cache_key=key))
    assert again.name == first.name


def test_a_cache_key_names_its_first_conversation_only(world: World) -> None:
    found: dict[str, list[SessionMatch]] = {"a": [], "b": []}
    for n in range(1, 5):
        for a in "ab":
            found[a].append(known(world.ask([*START, *steps(n, "counted", label=a)], prompt_cache_key="app")))
    assert {f.name for f in found["a"]} == {"app"}
    (name,) = {f.name for f in found["b"]}
    assert name.startswith("app~")
    assert [f.how for f in found["a"]] == ["prompt_cache_key"] * 4
    assert [f.how for f in found["b"]] == ["new"] + ["prompt_cache_key"] * 3
    assert set(world.outputs(found["a"][-1])) == {f"{LONG}a{i}" for i in range(4)}
    assert set(world.outputs(found["b"][-1])) == {f"{LONG}b{i}" for i in range(4)}


def test_agents_with_one_cache_key_and_one_past_part_where_they_part(world: World) -> None:
    stem = [*START, *steps(2, "counted")]
    assert known(world.ask(stem, prompt_cache_key="app")).name == "app"
    assert known(world.ask([*stem, *steps(1, "counted", 2, "a")], prompt_cache_key="app")).name == "app"
    fork = known(world.ask([*stem, *steps(1, "counted", 2, "b")], prompt_cache_key="app"))
    assert (fork.how, fork.forked_from) == ("fork", "app")
    assert f"{LONG}a2" not in world.outputs(fork)


def test_a_cache_key_never_opens_a_session_that_is_there(world: World) -> None:
    world.ask([*START, *steps(2, label="mine")], headers={"x-memory-session": "app"})
    found = known(world.ask([*START, *steps(1)], prompt_cache_key="app"))
    assert found.name.startswith("app~")
    assert world.outputs(found) == [f"{LONG}0"]
    assert known(world.ask([*START, *steps(1)])).name.startswith("auto-")  # and is a conversation of its own


@pytest.mark.parametrize("key", ["x" * 200, "a\nb", "\u202e"])
def test_a_cache_key_that_cannot_be_a_name_still_tells_conversations_apart(small: World, key: str) -> None:
    found = known(small.find([*START, *steps(1)], prompt_cache_key=key))
    assert found.name.startswith("auto-")
    assert known(small.find([*START, *steps(2)], prompt_cache_key=key)) == SessionMatch(
        found.name, "prompt_cache_key"
    )


def test_the_longest_cache_key_has_room_for_its_others(small: World) -> None:
    for n in range(3):
        assert (
            known(small.find([*START, *steps(1, label=str(n))], prompt_cache_key="k" * 180)).name[:160]
            == "k" * 160
        )


# --- at once


def test_a_context_that_another_has_gone_on_with_is_not_held(world: World) -> None:
    """Between finding a session and reading it, a sibling may store what the request must not see."""
    chat = [*START, *steps(2, "counted")]
    mine = known(world.find(chat))
    assert world.identity.is_current(None, mine)
    assert known(world.ask([*chat, *steps(1, "counted", 2)])).name == mine.name
    assert not world.identity.is_current(None, mine)
    again = known(world.ask(chat))
    assert (again.how, again.forked_from) == ("fork", mine.name)
    assert world.identity.is_current(None, again)
    assert world.identity.is_current(None, SessionMatch("any", "header"))


def test_a_reset_session_is_not_gone_on_with(world: World) -> None:
    chat = [*START, *steps(3)]
    first = known(world.ask(chat))
    held = known(world.find(chat))
    world.sessions.reset(None, first.name)
    assert not world.identity.is_current(None, held)
    for more in (chat, [*chat, *steps(1, start=3)], [*START, *steps(2, start=2)]):
        assert known(world.find(more)).name != first.name


def test_a_session_that_only_has_lineage_is_reset_too(world: World) -> None:
    first = known(world.find([*START, *steps(1)]))
    world.sessions.delete(None, first.name)
    assert known(world.find([*START, *steps(1)])).name != first.name


def race(jobs: list[Any]) -> list[Any]:
    gate, done = threading.Barrier(len(jobs)), [None] * len(jobs)

    def run(i: int) -> None:
        gate.wait(30)
        done[i] = jobs[i]()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    return done


def test_threads_race_for_one_head(world: World) -> None:
    stem = [*START, *steps(3)]
    name = known(world.ask(stem)).name
    chats = [[*stem, *steps(1, start=3, label=f"{i} ")] for i in range(8)]
    found = race([lambda c=c: known(world.ask(c)) for c in chats])  # type: ignore[misc]
    assert len({f.name for f in found}) == 8
    assert sum(f.name == name for f in found) == 1
    for i, f in enumerate(found):
        assert world.outputs(f) == [*(f"{LONG}{k}" for k in range(3)), f"{LONG}{i} 3"]


def test_threads_with_one_request_find_one_session(world: World) -> None:
    for n in (1, 2):  # it begins, and goes on
        chat = [*START, *steps(n)]
        found = race([lambda: known(world.ask(chat))] * 8)  # noqa: B023
        assert len({f.name for f in found}) == 1
    old = race([lambda: known(world.ask([*START, *steps(1)]))] * 8)
    assert len({f.name for f in old}) == 1
    assert world.count() == 2


TURNS = """
import json, sys
from pathlib import Path
sys.path[:0] = json.loads(sys.argv[1])
from tests.service.proxy.conversing import World
world, gate = World(sys.argv[2]), Path(sys.argv[3])
chats = json.loads(sys.stdin.readline())
print("ready", flush=True)
while not gate.exists():
    pass
print(json.dumps([world.ask(chat).name for chat in chats]))
world.close()
"""


@pytest.mark.long
def test_two_processes_at_one_database(bank_url: str, tmp_path: Path) -> None:
    """Requests of four agents with one prompt, each agent's alternating between the processes, and one pair
    that does the same at the same moment."""
    Database(bank_url).close()
    chats = {a: [[*START, *steps(n, "counted", label=a)] for n in range(1, 9)] for a in "ab"}
    shared = [[*START, user("Both."), *steps(n)] for n in range(1, 9)]
    gate = tmp_path / "go"
    processes = []
    for a in "ab":
        p = subprocess.Popen(
            [sys.executable, "-c", TURNS, json.dumps(sys.path), bank_url, str(gate)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert p.stdin is not None and p.stdout is not None
        p.stdin.write(json.dumps([c for pair in zip(chats[a], shared, strict=True) for c in pair]) + "\n")
        p.stdin.flush()
        assert p.stdout.readline() == "ready\n"
        processes.append(p)
    gate.touch()
    told = [json.loads(p.communicate(timeout=120)[0]) for p in processes]
    assert [p.returncode for p in processes] == [0, 0]
    world = World(bank_url)
    for a, names in zip("ab", told, strict=True):
        assert len(set(names[::2])) == 1
        assert {o for _, o in world.records(names[0])} == {f"{LONG}{a}{i}" for i in range(8)}
        assert [o for _, o in world.records(names[-1])] == [f"{LONG}{i}" for i in range(8)]
    other = Identity(Database(bank_url))  # a third host
    found = other.session_of(Exchange("POST", upstream_key="sk-1"), RequestHistory(chats["a"][-1]))
    assert known(found).name == told[0][0]
    assert list(verify(world.database)) == []
    world.close()


# --- growth


@pytest.mark.long
def test_what_a_session_leaves_behind_is_bounded(small: World) -> None:
    chat = [*START, *rounds(KEPT + 40)]
    for n in range(1, KEPT + 41):
        found = known(small.find(chat[: 2 + 2 * n]))
    with small.database.read() as c:
        rows = c.execute(sa.select(sa.func.count()).select_from(lineage)).scalar_one()
    assert rows <= KEPT
    assert small.count() == 1
    assert known(small.find(chat[:-20])).forked_from == found.name
    assert known(small.find(chat[:20])).how == "new"  # too old to be known


def test_a_long_list_that_is_known_far_back_only(small: World) -> None:
    chat = [*START, *steps(60, "counted")]
    first = known(small.find(chat[:4]))
    assert known(small.find(chat)) == SessionMatch(first.name, "chain")
    fork = known(small.find([*chat[:4], *steps(60, "counted", 1, "b")]))
    assert fork.forked_from == first.name


def test_clients_that_share_one_of_two_credentials_are_two():
    def key(*headers):
        return credential_of([(b"accept", b"*/*"), *headers])

    shared, own, other = (b"authorization", b"Bearer gate"), (b"x-api-key", b"k1"), (b"x-api-key", b"k2")
    assert key() is key((b"authorization", b" ")) is None
    assert key(own) == key((b"authorization", b""), own) == "k1"
    assert len({key(shared), key(shared, own), key(shared, other), key(own)}) == 4
    assert key(shared, own) == key(own, shared)
