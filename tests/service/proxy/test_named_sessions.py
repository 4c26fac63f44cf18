"""Sessions that a client names: gone back, branched, opened twice, compacted; over the service, by every name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy as sa
from tests import blocks, chats, items
from tests.examples import in_turn
from tests.service.proxied import Came, Proxied, post, scripted
from tests.service.proxy.conversing import World, random_id, turn
from tests.service.proxy.test_identity import EDITS, LONG, START, known, race, steps

from memory_bank.bank.maintenance import verify
from memory_bank.bank.schema import lineage, sessions
from memory_bank.service.proxy.api import RequestHistory
from memory_bank.service.proxy.identity import named_session
from memory_bank.testing import ScriptedServer, say

UUID = "0199aaaa-bbbb-4ccc-8ddd-eeeeffff0000"
TASK = "Look at every order."
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
TOOL = {"name": "look", "parameters": {"type": "object"}}
CODEX_TOOLS = {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", **TOOL}]}


@dataclass(frozen=True)
class Way:
    """How a client names its session, and the route that it uses."""

    path: str
    headers: tuple[bytes, ...] = ()
    members: dict[str, Any] = field(default_factory=dict)
    name: str = UUID

    @property
    def by_person(self) -> bool:
        return self.name != UUID


CLAUDE = Way(MESSAGES, (b"x-claude-code-session-id: " + UUID.encode(),))
CODEX = Way(RESPONSES, (b"session-id: " + UUID.encode(), b"thread-id: " + UUID.encode()))
OPENCODE = Way(CHAT, (b"x-session-id: " + UUID.encode(),))
HEADER = Way(CHAT, (b"x-memory-session: work",), name="work")
WAYS = {
    "claude": CLAUDE,
    "claude-chat": Way(CHAT, CLAUDE.headers),
    "claude-user-id": Way(MESSAGES, members={"metadata": {"user_id": f"user_a_account_b_session_{UUID}"}}),
    "codex": CODEX,
    "opencode": OPENCODE,
    "header": HEADER,
    "header-responses": Way(RESPONSES, HEADER.headers, name="work"),
    "header-messages": Way(MESSAGES, HEADER.headers, name="work"),
    "metadata": Way(CHAT, members={"metadata": {"session_id": "work"}}, name="work"),
}
every_way = in_turn("way", [pytest.param(way, id=name) for name, way in WAYS.items()], 2)


@dataclass
class Client:
    """A client of the service; ``window`` is its conversation: the words of users and (call id, output)."""

    p: Proxied
    server: ScriptedServer
    way: Way
    first: bytes | None = None

    def ask(self, window: list[Any], path: str | None = None) -> tuple[Came, str]:
        """The answer to the request with this conversation, and what the upstream got."""
        path = path or self.way.path
        kind = self.way.path
        messages: list[Any] = [CODEX_TOOLS] if kind == RESPONSES else []
        for part in window:
            if isinstance(part, dict):
                messages.append(part)
            elif isinstance(part, str):
                messages.append(chats.user(part))
            elif kind == CHAT:
                messages += [chats.call((part[0], "look", {})), chats.result(*part)]
            elif kind == RESPONSES:
                messages += [items.call(part[0], name="look"), items.output(part[0], text=part[1])]
            else:
                messages += [blocks.turn(blocks.use(part[0], "look")), blocks.user(blocks.answer(*part))]
        body = {"model": "m", **self.way.members}
        if kind == CHAT:
            body |= {"messages": messages, "tools": [{"type": "function", "function": TOOL}]}
        elif kind == RESPONSES:
            body |= {"input": messages}
        else:
            body |= {"messages": messages, "max_tokens": 9}
            body["tools"] = [{"name": "look", "input_schema": {"type": "object"}}]
        came = post(self.p.port, path, body, *self.way.headers)
        assert came.status == 200
        return came, json.dumps(self.server.requests[-1].body)

    def session(self, window: list[Any]) -> str:
        return (self.ask(window)[0].header(b"x-memory-session") or b"").decode()

    def records(self, session: str) -> list[str]:
        with self.p.service.sessions.reading(None, session) as state:
            stored = state.fact_store
            return [str(r.output_text) for r in stored.get_many(list(stored.steps()))]


def calls(n: int, tag: str, start: int = 0) -> list[Any]:
    """Answered calls whose outputs hold a value each."""
    return [(random_id(f"{tag}{i}"), f"{tag}-{i:02} " * 200) for i in range(start, n)]


@contextmanager
def serving(tmp_path: Any, way: Way) -> Iterator[Client]:
    """A client of a service on a bank in a folder."""
    with scripted(lambda _: say("ok"), tmp_path, strict=False) as (server, p):
        yield Client(p, server, way)


@pytest.fixture
def client(tmp_path: Any, way: Way) -> Iterator[Client]:
    with serving(tmp_path, way) as one:
        yield one


def step_by_step(client: Client, window: list[Any], first: int = 1) -> tuple[Came, str]:
    """All requests of a conversation from its first calls on."""
    last = client.ask(window[:first])
    for n in range(first + 1, len(window) + 1):
        last = client.ask(window[:n])
    return last


# --- going back


@every_way
def test_what_was_undone_is_in_no_context(client: Client, way: Way) -> None:
    old = [TASK, *calls(12, "OLD")]
    before, _ = step_by_step(client, old)
    assert before.header(b"x-memory-session") == way.name.encode()
    assert before.header(b"x-memory-status") == b"rebuilt"
    back = [*old[:4], *calls(12, "NEW", 3)]
    for n in range(5, len(back) + 1):
        came, sent = client.ask(back[:n])
        assert [i for i in range(12) if f"OLD-{i:02}" in sent and i >= 3] == []
        assert random_id("OLD7") not in sent
    fork = (came.header(b"x-memory-session") or b"").decode()
    assert fork.startswith(f"{way.name}~")
    assert "OLD-02" in sent
    assert client.records(fork) == [o for _, o in back[1:]]
    assert client.records(way.name) == [o for _, o in old[1:]]
    assert client.session([*old, *calls(13, "OLD", 12)]) == way.name


@every_way
def test_a_conversation_that_two_windows_resume_parts_there(client: Client, way: Way) -> None:
    stem = [TASK, *calls(4, "STEM")]
    client.ask(stem)
    windows = {tag: [*stem, *calls(8, tag, 4)] for tag in ("ONE", "TWO")}
    found: dict[str, set[str]] = {tag: set() for tag in windows}
    for n in range(6, 10):
        for tag, window in windows.items():
            came, sent = client.ask(window[:n])
            assert ("TWO" if tag == "ONE" else "ONE") not in sent
            found[tag].add((came.header(b"x-memory-session") or b"").decode())
    assert found["ONE"] == {way.name}
    assert len(found["TWO"]) == 1
    assert client.records(found["TWO"].pop()) == [o for _, o in windows["TWO"][1:]]


@every_way
def test_a_past_that_was_edited_is_that_of_a_fork(client: Client, way: Way) -> None:
    old = [TASK, *calls(3, "OLD"), "Now the late ones.", *calls(8, "OLD", 3)]
    step_by_step(client, old)
    _, sent = client.ask([*old[:4], "Now the early ones.", *calls(4, "NEW", 3)])
    assert "OLD-02" in sent and "OLD-03" not in sent


# --- two conversations


@every_way
def test_two_windows_with_one_prompt_do_not_mix(client: Client, way: Way) -> None:
    windows = {tag: [TASK, *calls(10, tag)] for tag in ("ONE", "TWO")}
    found: dict[str, set[bytes | None]] = {tag: set() for tag in windows}
    for n in range(1, 12):
        for tag, window in windows.items():
            came, sent = client.ask(window[:n])
            assert ("TWO" if tag == "ONE" else "ONE") not in sent
            if n > 1:
                found[tag].add(came.header(b"x-memory-session"))
    assert [len(f) for f in found.values()] == [1, 1]
    assert found["ONE"] == {way.name.encode()}
    assert found["ONE"] != found["TWO"]
    assert came.header(b"x-memory-status") == b"rebuilt"


@every_way
def test_the_first_request_of_another_window_shows_nothing_of_the_first(client: Client, way: Way) -> None:
    step_by_step(client, [TASK, *calls(10, "ONE")])
    came, sent = client.ask([TASK])
    assert "ONE" not in sent
    assert came.header(b"x-memory-reason") == b"nothing to remember yet"
    if not way.by_person:  # a person's name holds whatever the list
        _, sent = client.ask(["Something else."])
        assert "ONE" not in sent


@pytest.mark.parametrize("way", [CLAUDE, CODEX, OPENCODE], ids=["claude", "codex", "opencode"])
def test_windows_of_a_client_with_other_prompts_do_not_mix(client: Client, way: Way) -> None:
    step_by_step(client, [TASK, *calls(8, "ONE")])
    other = ["Something else.", *calls(8, "TWO")]
    for n in range(1, 10):
        came, sent = client.ask(other[:n])
        assert "ONE" not in sent
    assert (came.header(b"x-memory-session") or b"").startswith(f"{way.name}~".encode())


@pytest.mark.parametrize("way", [HEADER, WAYS["metadata"]], ids=["header", "metadata"])
def test_a_list_of_other_words_goes_on_in_the_session_that_a_person_named(client: Client, way: Way) -> None:
    """It may be what a client made of the messages by a compaction of its own."""
    step_by_step(client, [TASK, *calls(10, "OLD")])
    short = ["So far, in short: the orders were looked at."]
    assert "OLD-01" in client.ask(short)[1]
    came, sent = client.ask([*short, *calls(11, "NEW", 10)])
    assert came.header(b"x-memory-session") == way.name.encode()
    assert "OLD-01" in sent


@pytest.mark.parametrize("way", [HEADER, WAYS["metadata"]], ids=["header", "metadata"])
def test_windows_of_other_words_under_a_persons_name_part_when_both_go_on(client: Client, way: Way) -> None:
    """The second joins the first; once the first goes on, each has its own records alone, all of them.

    A note of both stays with neither.
    """
    database = client.p.service.sessions.database
    windows = {"ONE": [TASK, *calls(12, "ONE")], "TWO": ["Something else.", *calls(12, "TWO")]}
    other = {"ONE": "TWO", "TWO": "ONE"}
    names: dict[str, str] = {}
    mixed = 0
    for n in range(1, 13):
        for tag, window in windows.items():
            came, sent = client.ask(window[: n + 1])
            mixed += other[tag] in sent
            names[tag] = (came.header(b"x-memory-session") or b"").decode()
        if n == 1:
            assert set(names.values()) == {way.name}
            database.set_note(way.name, "what ONE saw", database.extent(way.name).generation)
            assert database.get_session(way.name, "note")
            digest = database.add_summary(way.name, "a summary of ONE", database.extent(way.name).generation)
    assert mixed <= 1
    assert names["TWO"] == way.name
    assert names["ONE"].startswith(f"{way.name}~")
    for tag, name in names.items():
        assert sorted(client.records(name)) == sorted(o for _, o in windows[tag][1:])
        assert database.get_session(name, "note") == ""
        assert database.get_summary(None, name, digest) is None
    assert list(verify(database)) == []


# --- compaction

HANDOFF = "You are performing a CONTEXT CHECKPOINT COMPACTION. Write it down."
COMPACTED = {
    "claude": (CLAUDE, "Your task is to create a detailed summary of the conversation so far.",
               ["This session is being continued from a previous conversation that ran out of context. In short: "]),
    "codex": (CODEX, HANDOFF, [TASK, "Another language model started to solve this problem. In short: "]),
    "codex-item": (CODEX, {"type": "compaction_trigger"},
                   [TASK, {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"}]),
    "opencode": (OPENCODE, "Provide a detailed prompt for continuing our conversation above.",
                 ["What did we do so far?", chats.say("In short: all."), "Continue if you have next steps."]),
    "header": (HEADER, "Sum up what you did.", ["In short: all."]),
}  # fmt: skip
each_compaction = in_turn(
    "way, prompt, after", [pytest.param(*values, id=name) for name, values in COMPACTED.items()], 2
)


@each_compaction
def test_after_a_compaction_the_next_request_has_its_memory(
    client: Client, way: Way, prompt: Any, after: list[Any]
) -> None:
    window, made = [TASK], 0
    for again in range(3):  # each time what came before is gone
        for _ in range(6):
            window = [*window, *calls(made + 1, "V", made)]
            made += 1
            came, sent = client.ask(window)
            assert came.header(b"x-memory-session") == way.name.encode()
        client.ask([*window, prompt])
        window = [f"{a}{again}" if isinstance(a, str) and again and a != TASK else a for a in after]
        for request in (window, window):  # and once more: a retry
            came, sent = client.ask(request)
            assert came.header(b"x-memory-status") == b"rebuilt"
            assert came.header(b"x-memory-session") == way.name.encode()
            assert {f"V-{i:02}" for i in range(made) if f"V-{i:02}" in sent} >= {"V-00", f"V-{made - 1:02}"}
    assert len(client.records(way.name)) == made


@each_compaction
def test_a_compaction_of_one_window_is_not_of_the_other(
    client: Client, way: Way, prompt: Any, after: list[Any]
) -> None:
    if way.by_person:
        pytest.skip("no trace tells whose compaction it was")
    windows = {tag: [TASK, *calls(8, tag)] for tag in ("ONE", "TWO")}
    for window in windows.values():
        step_by_step(client, window)
    client.ask([*windows["ONE"], prompt])
    client.ask([*windows["TWO"], *calls(9, "TWO", 8)])
    _, sent = client.ask(after)
    assert "ONE-01" in sent and "TWO" not in sent


@each_compaction
def test_going_back_to_before_a_compaction_undoes_what_came_after(
    client: Client, way: Way, prompt: Any, after: list[Any]
) -> None:
    window = [TASK, *calls(8, "OLD")]
    step_by_step(client, window)
    client.ask([*window, prompt])
    client.ask(after)
    step_by_step(client, [*after, *calls(12, "LATER", 8)], len(after) + 1)
    came, sent = client.ask([*window, *calls(9, "NEW", 8)])
    assert "OLD-01" in sent and "LATER" not in sent
    if way.by_person:  # nothing but the name told of a compaction: both are taken for windows now
        return
    # and to right after it
    came, sent = client.ask([*after, *calls(9, "AGAIN", 8)])
    assert "OLD-01" in sent and "LATER" not in sent
    assert (came.header(b"x-memory-session") or b"").startswith(f"{way.name}~".encode())


@pytest.mark.parametrize("way", [CLAUDE])
def test_a_compaction_is_known_to_the_next_process_too(tmp_path: Any, way: Way) -> None:
    _, prompt, _ = COMPACTED["claude"]
    window = [TASK, *calls(10, "V")]
    for request in ([*window], [*window, prompt], ["In the words of no known client."]):
        with serving(tmp_path, way) as one:
            came, sent = one.ask(request)
    assert came.header(b"x-memory-session") == way.name.encode()
    assert "V-01" in sent


# --- counting


@pytest.mark.parametrize("way", [CLAUDE])
def test_counting_counts_what_the_request_would_be_sent(client: Client, way: Way) -> None:
    """Also of a window that went back, of another one and after a compaction; nothing is stored."""
    old = [TASK, *calls(10, "OLD")]
    step_by_step(client, old)
    stored = [o for _, o in old[1:]]
    count = f"{MESSAGES}/count_tokens"
    for window in ([*old[:4], *calls(4, "NEW", 3)], [TASK], [TASK, *calls(1, "NEW")]):
        _, sent = client.ask(window, count)
        assert "OLD-05" not in sent
    with client.p.service.sessions.database.read() as c:
        assert list(c.execute(sa.select(sessions.c.session_id)).scalars()) == [way.name]
    _, prompt, after = COMPACTED["claude"]
    client.ask([*old, prompt])
    assert "OLD-05" in client.ask(after, count)[1]
    assert client.records(way.name) == stored


# --- without the service: names and digests

CLAUDE_ID, CODEX_ID = "x-claude-code-session-id", "session-id"


@pytest.mark.parametrize(
    ("headers", "metadata", "name"),
    [
        ({CLAUDE_ID: UUID}, None, UUID),
        ({CLAUDE_ID: UUID, "x-claude-code-agent-id": "sub-1"}, None, f"{UUID}~sub-1"),
        ({}, {"user_id": json.dumps({"device_id": "d", "session_id": UUID})}, UUID),
        ({}, {"user_id": f"user_ab_account_cd_session_{UUID}"}, UUID),
        ({CODEX_ID: UUID, "thread-id": UUID}, None, UUID),
        ({CODEX_ID: UUID, "thread-id": "thread-4"}, None, f"{UUID}~thread-4"),
        ({"thread-id": UUID}, None, UUID),
        ({"x-session-id": "ses_0123456789abcdef"}, None, "ses_0123456789abcdef"),
        ({"x-memory-session": "mine", "x-session-id": "ses_0123456789abcdef"}, None, "mine"),
        ({}, {"user_id": "user-1234567890123456"}, None),
        ({"x-session-id": "1"}, None, None),
        ({CODEX_ID: "x" * 300}, None, None),
    ],
)
def test_clients_name_their_sessions(headers: dict[str, str], metadata: Any, name: str | None) -> None:
    found = named_session(None, headers, {"metadata": metadata, "tools": [TOOL]}, RequestHistory([]))
    assert (found and found.name) == name


NAMED = {"x-memory-session": "mine"}


@pytest.fixture
def world(bank_url: str) -> Iterator[World]:
    world = World(bank_url)
    yield world
    world.close()


def test_a_session_of_before_names_had_a_lineage_goes_on(world: World) -> None:
    chat = [*START, *steps(4)]
    world.ask(chat, headers=NAMED)
    with world.database.write() as c:
        c.execute(sa.delete(lineage))
        c.execute(sa.update(sessions).values(head=None, head_calls=None))
    found = known(world.ask([*chat, *steps(1, start=4)], headers=NAMED))
    assert found.name == "mine"
    assert len(world.outputs(found)) == 5
    fork = known(world.ask([*chat, *steps(1, start=4, label="b")], headers=NAMED))
    other = known(world.ask([*START, *steps(1, label="c")], headers=NAMED))
    assert len({found.name, fork.name, other.name}) == 3
    assert world.outputs(other) == [f"{LONG}c0"]


def test_a_session_that_was_filled_or_deleted_goes_on(world: World) -> None:
    world.sessions.rebuild(None, "mine", [*START, *steps(3)])
    found = known(world.ask([*START, *steps(4)], headers=NAMED))
    assert (found.name, len(world.outputs(found))) == ("mine", 4)
    world.ask([*START, *steps(1, label="b")], headers=NAMED)
    world.sessions.delete(None, "mine")
    again = known(world.ask([*START, *steps(2, label="c")], headers=NAMED))
    assert (again.name, world.outputs(again)) == ("mine", [f"{LONG}c0", f"{LONG}c1"])


def test_a_header_may_name_a_fork(world: World) -> None:
    chat = [*START, *steps(6)]
    for n in range(1, 7):
        world.ask(chat[: 2 + 2 * n], headers=NAMED)
    gone_back = [*chat[:6], *steps(1, start=2, label="b")]
    fork = known(world.ask(gone_back, headers=NAMED))
    assert (fork.how, fork.forked_from) == ("fork", "mine")
    for n in range(3, 6):
        gone_back += steps(1, start=n, label="b")
        found = known(world.ask(gone_back, headers={"x-memory-session": fork.name}))
        assert found.name == fork.name
    assert len(world.outputs(found)) == 6


@pytest.mark.parametrize("how", EDITS)
def test_a_client_that_numbers_its_calls_may_rewrite_its_past_in_a_session_it_names(
    world: World, how: str
) -> None:
    messages, found = list(START), []
    for n in range(12):
        if n > 3:
            messages = EDITS[how](messages, 1)
        messages = [*messages, *steps(1, "counted", start=n)]
        found.append(known(world.ask(messages, headers=NAMED)))
    assert {f.name for f in found} == {"mine"}
    assert {f"{LONG}{n}" for n in range(12)} <= set(world.outputs(found[-1]))


def test_numbered_windows_of_one_name_do_not_mix(world: World) -> None:
    own = {a: [*START, *(m for i in range(6) for m in turn(f"call_{i}", f"{a} {LONG}{i}"))] for a in "ab"}
    for n in range(1, 7):
        for window in own.values():
            found = known(world.ask(window[: 2 + 2 * n], headers=NAMED))
            assert world.outputs(found) == [m["content"] for m in window[: 2 + 2 * n] if m["role"] == "tool"]
    assert world.count() == 2


def test_requests_of_one_conversation_at_once_are_of_one_session(world: World) -> None:
    headers = {"x-claude-code-session-id": UUID}
    for n in (1, 2, 3):
        chat = [*START, *steps(n)]
        asides = [chat, [*chat, chats.user("A title?")], [*chat, chats.user("Sum it up.")], chat]
        found = race([lambda c=c: known(world.ask(c, headers=headers)) for c in asides])  # type: ignore[misc]
        assert {f.name for f in found} == {UUID}
    assert world.count() == 1
    assert known(World(world.database).ask([*START, *steps(4)], headers=headers)).name == UUID


def test_names_of_other_namespaces_and_requests_without_the_name_are_others(bank_url: str) -> None:
    chat = [*START, *steps(3)]
    for namespace in (None, "one", "two"):
        world = World(bank_url, namespace)
        for key in ("sk-1", "sk-2"):  # a key that is rotated keeps the session
            assert known(world.ask(chat, key=key, headers=NAMED)).name == "mine"
        assert known(world.ask(chat)).name.startswith("auto-")
        assert known(world.ask(chat, prompt_cache_key="mine")).name != "mine"
        assert len(world.records("mine")) == 3
        world.close()
