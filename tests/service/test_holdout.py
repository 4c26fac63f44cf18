"""The share of sessions that goes without memory: who is drawn, what is sent and stored, what it is told to cost."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest
import sqlalchemy as sa
from tests import items
from tests.chats import rounds, system, user
from tests.service.proxied import TOOLS, RawUpstream, before, configured, post, proxied, whole

from memory_bank.bank import schema
from memory_bank.bank.database import Database
from memory_bank.bank.holdout import is_control
from memory_bank.bank.lineage import ForkPoint, Lineage, LineageEntry
from memory_bank.config import load_config
from memory_bank.errors import ConfigError
from memory_bank.service.sessions import Sessions
from memory_bank.tools import TOOL_SCHEMAS
from memory_bank.transcript import open_counter

PRICES = {"m": {"prompt": 2.0, "completion": 10.0, "cached": 0.5}}
CHAT = "/v1/chat/completions"
USAGE = {"prompt_tokens": 9_000, "completion_tokens": 50}
NAMES = [f"session-{i}" for i in range(400)]


def upstream(*_: object) -> Any:
    return whole(json.dumps({"choices": [], "usage": USAGE}).encode(), b"Content-Type: application/json")


def step_of(p: Any, name: str, messages: Any) -> Any:
    count = len(p.exchanges)
    came = post(
        p.port,
        CHAT,
        {"model": "m", "messages": messages, "tools": TOOLS},
        f"x-memory-session: {name}".encode(),
    )
    p.told(count + 1)
    assert p.service.recorder.drain(60)
    return came


def drawn(bank: Database, share: float, *, stores: bool = False) -> set[str]:
    return {name for name in NAMES if is_control(bank, name, share, stores=stores)}


def opened(bank: Database) -> None:
    for name in NAMES:
        bank.open_session(name)


# -- who is drawn


def test_the_share_is_drawn_by_a_secret_of_the_bank(bank_url, tmp_path):
    with closing(Database(bank_url)) as bank, closing(Database(tmp_path / "other.db")) as other:
        opened(bank)
        here = drawn(bank, 0.1)
        with closing(Database(bank_url)) as again:  # as another process has it
            assert drawn(again, 0.1) == here
        assert 15 <= len(here) <= 70
        assert here < drawn(bank, 0.5) < drawn(bank, 1.0) == set(NAMES)
        assert drawn(bank, 0.0) == set()
        assert drawn(other, 0.1) != here  # so that no client can choose a name for its group


def test_what_is_drawn_stays_with_another_share(bank_url):
    with closing(Database(bank_url)) as bank:
        opened(bank)
        here = drawn(bank, 0.3, stores=True)
        assert [drawn(bank, share) for share in (0.0, 0.9)] == [here, here]


def test_what_began_before_there_was_a_share_has_memory_for_good(tmp_path):
    messages = [system(), user(), *rounds(12, size=4000)]
    with before(upstream, tmp_path, prices=PRICES) as (_, p):
        step_of(p, "old", messages)
    with before(upstream, tmp_path, prices=PRICES, holdout=1.0) as (_, p):
        assert step_of(p, "old", [*messages, *rounds(1, start=20)]).header(b"x-memory-status") == b"rebuilt"
        assert step_of(p, "new", messages).header(b"x-memory-reason") == b"control group (holdout)"
        assert p.ask("/v1/stats").json()["holdout"]["control"] == 1
        assert p.ask("/v1/stats").json()["holdout"]["memory"] == 0  # nothing drew it


def test_a_session_stays_in_its_group_when_the_service_starts_again_with_another_share(tmp_path):
    messages = [system(), user(), *rounds(12, size=4000)]
    for share, count in ((1.0, 12), (0.0, 14), (0.5, 16)):
        with before(upstream, tmp_path, holdout=share) as (_, p):
            came = step_of(p, "a", [system(), user(), *rounds(count, size=4000)])
            assert came.header(b"x-memory-reason") == b"control group (holdout)"
    with before(upstream, tmp_path) as (_, p):
        assert step_of(p, "b", messages).header(b"x-memory-status") == b"rebuilt"


@pytest.mark.parametrize("control", [True, False, None])
def test_a_fork_is_in_the_group_of_its_session(bank_url, control):
    with closing(Database(bank_url)) as bank:
        lineage = Lineage(bank)
        assert lineage.begin("a", None, LineageEntry("w", ["c"], "h"))
        with bank.write() as c:
            c.execute(sa.update(schema.sessions).values(control=control))
        assert lineage.begin("a~2", None, LineageEntry("v", ["d"], "g"), ForkPoint("a", 0, 1))
        assert is_control(bank, "a~2", 1.0, stores=True) is bool(control)
        assert is_control(bank, "a~2", 0.0) is bool(control)


# -- what is sent and stored

ODD = b' {"model": "m",  "messages" : %s, "tools": [ {"type":"function","function":{"name":"look"}} ],"x":1.0e0 } '


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, ODD % json.dumps([system(), user(), *rounds(12, size=4000)], indent=1).encode()),
        (
            "/v1/responses",
            (ODD % json.dumps([items.user(), *items.rounds(9, size=4000)], indent=1).encode()).replace(
                b'"messages"', b'"input"'
            ),
        ),
        (
            "/v1/messages",
            ODD
            % json.dumps(
                [
                    items.user(),
                    *(
                        message
                        for n in range(9)
                        for message in (
                            {
                                "role": "assistant",
                                "content": [{"type": "tool_use", "id": f"t{n}", "name": "look", "input": {}}],
                            },
                            {
                                "role": "user",
                                "content": [
                                    {"type": "tool_result", "tool_use_id": f"t{n}", "content": "x " * 3000}
                                ],
                            },
                        )
                    ),
                ],
                indent=1,
            ).encode(),
        ),
    ],
)
def test_a_session_without_memory_is_sent_to_the_byte_and_stored(tmp_path, path, body):
    with RawUpstream(upstream) as model:
        service = {"strategy": "folding", "inject_tools": True, "holdout": 1.0, "prices": PRICES}
        where = {"upstream_anthropic": model.base_url.removesuffix("/v1")}
        with proxied(model.base_url, tmp_path / "bank.db", **service, **where) as p:
            came = post(p.port, path, body, b"x-memory-session: a")
            p.told(1)
            assert p.service.recorder.drain(60)
            detail = p.ask("/v1/sessions/a").json()
            [step] = p.ask("/v1/sessions/a/steps").json()["steps"]
            found = p.ask("/v1/sessions/a/records").json()["records"]
    assert [got.body for got in model.got] == [body]
    assert came.header(b"x-memory-status") == b"unchanged"
    assert came.header(b"x-memory-reason") == b"control group (holdout)"
    assert (step["status"], detail["control"]) == ("control", True)
    assert detail["records"] == len(found) >= 9
    assert step["tokens"] == step["full_tokens"]
    assert step["sent_cost"] == step["full_cost"] > 0


@pytest.mark.parametrize("key", [{}, {"prompt_cache_key": "the-key"}])
@pytest.mark.parametrize("share", [1.0, 1e-9])
def test_a_conversation_without_a_name_has_memorys_tools_in_either_group_and_the_control_pays_none(
    tmp_path, key, share
):
    """Its first request cannot know its group; the output that memory leaves out stays within its reach."""

    def counting(got):
        prompt = count_text(got.body.decode())
        return whole(
            json.dumps({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": 9}}).encode(),
            b"Content-Type: application/json",
        )

    count_text = open_counter().count_text
    with before(counting, tmp_path, inject_tools=True, holdout=share, prices=PRICES) as (model, p):
        for count in (0, 1, 12):
            messages = [system(), user(), *rounds(count, size=4000)]
            post(p.port, CHAT, {"model": "m", "messages": messages, "tools": TOOLS, **key})
            p.told((0, 1, 12).index(count) + 1)
            assert p.service.recorder.drain(60)
        exchange = p.told(3)[2]
        found = p.ask("/v1/stats").json()["holdout"]
        [session] = p.ask("/v1/sessions").json()["sessions"]
    assert [json.loads(got.body)["tools"] for got in model.got] == [[*TOOLS, *TOOL_SCHEMAS]] * 3
    assert (exchange.reason == "control group (holdout)") is (share == 1.0)
    if share == 1.0:
        assert session["full_cost"] < session["sent_cost"]
        assert found["control"] == 1


def test_a_session_that_the_client_names_has_its_tools_from_the_first_request_on(tmp_path):
    with before(upstream, tmp_path, inject_tools=True, holdout=1e-9) as (model, p):
        for count in (0, 1, 2):
            step_of(p, "a", [system(), user(), *rounds(count)])
    assert [len(json.loads(got.body)["tools"]) for got in model.got] == [2] * 3


def test_a_preview_shows_the_group_and_draws_nothing(tmp_path):
    settings = configured(database=str(tmp_path / "bank.db"), strategy="folding", holdout=1.0)
    with closing(Database(tmp_path / "bank.db")) as bank:
        made = Sessions(bank, settings)
        messages = [system(), user(), *rounds(12, size=4000)]
        bank.open_session("a", namespace=None)
        assert made.preview(None, "a", messages) == messages
        assert made.is_control("a")
        assert bank.column(sa.select(schema.sessions.c.control)) == [None]
        assert made.rebuild(None, "a", messages).status == "control"
        assert bank.column(sa.select(schema.sessions.c.control)) == [True]
        made.close()


@pytest.mark.parametrize("value", ["1.5", "-0.1", '"ten"', "nan"])
def test_a_share_that_is_none_is_refused_in_a_sentence(tmp_path, value):
    (tmp_path / "config.toml").write_text(f"[service]\nholdout = {value}\n")
    with pytest.raises(ConfigError, match=r"service\.holdout: input should be .*\.$") as refused:
        load_config(tmp_path / "config.toml")
    assert "\n" not in str(refused.value)


# -- what it is told to cost


def test_dollars_a_session_are_told_with_and_without_memory(tmp_path):
    with before(upstream, tmp_path, prices=PRICES, holdout=0.5) as (_, p):
        for name in NAMES[:12]:
            step_of(p, name, [system(), user(), *rounds(12, size=4000)])
        found = p.ask("/v1/stats").json()["holdout"]
        listed = [p.ask(f"/v1/sessions/{name}").json() for name in NAMES[:12]]
    control = sum(s["control"] for s in listed)
    assert (found["control"], found["memory"]) == (control, 12 - control)
    assert found["needed"] >= 30 and found["per_session"] is None
    assert found["compared"].startswith(f"{min(control, 12 - control)} of about {found['needed']} sessions")
