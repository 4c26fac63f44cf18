"""What model calls cost by the usage that is reported, and what broke the cache."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
import sqlalchemy as sa
from tests.chats import rounds, system, user
from tests.service.caching import Cached
from tests.service.proxied import RawUpstream, before, post, proxied, scripted, whole

from memory_bank.bank import schema
from memory_bank.bank.database import Database
from memory_bank.bank.listing import session_details
from memory_bank.bank.transfer import export_lines, import_lines
from memory_bank.config import load_config
from memory_bank.testing import fail, say

CHAT = "/v1/chat/completions"
PRICES = {"m": {"prompt": 2.0, "completion": 10.0, "cached": 0.5}}


def reported(cached=3_000):
    usage = {
        "prompt_tokens": 9_000,
        "completion_tokens": 50,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return whole(json.dumps({"choices": [], "usage": usage}).encode(), b"Content-Type: application/json")


def priced(tmp_path, **service):
    return before(lambda _: reported(), tmp_path, prices=PRICES, **service)


def step_of(p, messages, name, model="m-2026"):
    before = len(p.exchanges)
    came = post(p.port, CHAT, {"model": model, "messages": messages}, b"x-memory-session: " + name)
    p.told(before + 1)
    assert p.service.recorder.drain(60)
    return came


def test_costs_of_a_session_and_of_all(tmp_path):
    with priced(tmp_path) as (_, p):
        step_of(p, rounds(12, size=4000), b"a")
        step_of(p, rounds(13, size=4000), b"a")
        step_of(p, rounds(12, size=4000), b"b", model="other")
        page = p.ask("/v1/sessions/a/steps").json()["steps"]
        detail, stats = p.ask("/v1/sessions/a").json(), p.ask("/v1/stats").json()
        metrics = p.ask("/metrics").body.decode()
    first, second = page
    assert first["status"] == second["status"] == "rebuilt"
    assert (second["model"], second["sent"]) == (
        "m-2026", {"input": 9_000, "cached": 3_000, "written": 0, "output": 50, "written_hour": 0},
    )  # fmt: skip
    assert second["sent_cost"] == pytest.approx((6_000 * 2 + 3_000 * 0.5 + 50 * 10) / 1e6)
    assert second["full"]["input"] >= second["full_tokens"] > second["tokens"]
    assert second["full"]["cached"] > 0.8 * second["full"]["input"]  # all but the latest call
    assert first["changed_at"] is None
    assert second["changed_at"] is None or second["changed"]
    cost = detail["cost"]
    assert cost["sent"] == pytest.approx(first["sent_cost"] + second["sent_cost"])
    assert cost["full"] == pytest.approx(first["full_cost"] + second["full_cost"])
    assert (cost["unpriced"], cost["models"][0]["calls"]) == ([], 2)
    assert stats["cost"]["sent"] == cost["sent"]
    assert stats["cost"]["unpriced"] == ["other"]
    assert stats["holdout"] is None
    assert 'memory_bank_model_tokens_total{kind="cached"} 9000.0' in metrics
    assert 'memory_bank_model_cost_total{kind="sent"}' in metrics


def test_the_first_message_that_differs_is_told(tmp_path):
    with priced(tmp_path, strategy="") as (_, p):
        messages = rounds(3, size=100)
        step_of(p, messages, b"a")
        step_of(p, rounds(4, size=100), b"a")  # begins as the one before
        edited = rounds(5, size=100)
        edited[0] = {**edited[0], "content": "Another prompt."}
        step_of(p, edited, b"a")
        found = [(s["changed_at"], s["changed"]) for s in p.ask("/v1/sessions/a/steps").json()["steps"]]
    assert found == [(None, None), (None, None), (0, edited[0]["role"])]


def test_prices_that_ship_are_used_where_the_configuration_has_none(tmp_path):
    with before(lambda _: reported(), tmp_path, prices={"gpt-5": {"prompt": 9, "completion": 9}}) as (_, p):
        for name, model in ((b"a", "gpt-4.1-mini-2025-04-14"), (b"b", "gpt-5"), (b"c", "house-model")):
            step_of(p, rounds(12, size=4000), name, model=model)
        models = {m["model"]: m for m in p.ask("/v1/stats").json()["cost"]["models"]}
    shipped = models["gpt-4.1-mini-2025-04-14"]
    assert shipped["sent_cost"] == pytest.approx((6_000 * 0.4 + 3_000 * 0.1 + 50 * 1.6) / 1e6)
    assert re.fullmatch(r"genai-prices [\d.]+, 20\d\d-\d\d-\d\d", shipped["price_from"])
    assert models["gpt-5"]["price_from"] == "[prices] in the configuration"
    assert models["gpt-5"]["sent_cost"] == pytest.approx((9_000 * 9 + 50 * 9) / 1e6)
    assert (models["house-model"]["price"], models["house-model"]["sent_cost"]) == (None, None)


def test_sessions_are_sorted_and_filtered_by_what_their_steps_came_to(tmp_path):
    with priced(tmp_path) as (_, p):
        for name, model, steps in ((b"dear", "m", 3), (b"cheap", "m", 1), (b"other", "house", 2)):
            for n in range(steps):
                step_of(p, rounds(12 + n, size=4000), name, model=model)
        p.ask("/v1/sessions/cheap/title", "PUT", {"title": "The Cheap One"})

        def names(query=""):
            return [s["name"] for s in p.ask(f"/v1/sessions?{query}").json()["sessions"]]

        assert names() == ["other", "cheap", "dear"]
        assert names("sort=cost") == ["dear", "cheap", "other"]
        assert names("sort=steps") == ["dear", "other", "cheap"]
        assert names("sort=saved") == [
            "dear",
            "cheap",
            "other",
        ]  # by dollars: the last one's model has no price
        assert names("sort=lost") == names("sort=saved")[::-1]
        assert names("sort=saved&since=1e10") == []
        assert names("sort=used") == ["other", "cheap", "dear"]
        assert names("model=m") == ["cheap", "dear"]
        assert names("model=m&sort=cost&q=cheap+one") == ["cheap"]
        assert names("only=errors") == names("only=without_memory") == []
        page = p.ask("/v1/sessions?sort=cost&limit=2").json()
        assert page["next"] == "cheap"
        assert names("sort=cost&limit=2&after=cheap") == ["other"]
        dear = p.ask("/v1/sessions?q=dear").json()["sessions"][0]
        detail = p.ask("/v1/sessions/dear").json()
        days = p.ask("/v1/stats/days").json()["days"]
        stats = p.ask("/v1/stats").json()
        begun = [s["created"] for n in names() for s in p.ask(f"/v1/sessions/{n}/steps").json()["steps"]]
        hours = p.ask("/v1/stats/days?unit=hour&days=2&offset=345").json()["days"]
        wrong = [p.ask(f"/v1/sessions?{q}").status for q in ("sort=name", "only=x", "sort=cost&after=nobody")]
    assert dear["tokens"] == detail["tokens"] and dear["sent_cost"] == detail["cost"]["sent"]
    assert (dear["models"], dear["errors"], dear["without_memory"]) == (["m"], 0, 0)
    assert sum(d["tokens"]["steps"] for d in days) == 6 and len(days) <= 2
    assert sum(d["sent_cost"] for d in days) == pytest.approx(stats["cost"]["sent"])
    assert wrong == [422, 422, 422]
    there = timezone(timedelta(minutes=345))  # whose hours begin at a quarter to
    assert {h["day"] for h in hours} == {f"{datetime.fromtimestamp(t, there):%Y-%m-%d %H}:00" for t in begun}
    assert all(h["start"] % 3_600 == 900 for h in hours)
    assert sum(h["tokens"]["steps"] for h in hours) == 6


def test_days_are_those_of_the_time_zone_that_is_asked_for(tmp_path):
    """A step half an hour before midnight in UTC is of the next day in the east, of the same in the west."""
    with priced(tmp_path) as (_, p):
        step_of(p, rounds(12, size=4000), b"late", model="m")
        midnight = 86_400 * (time.time() // 86_400) - 3 * 86_400
        with p.service.database.write() as c:
            c.execute(sa.update(schema.steps).values(created=midnight - 1_800))

        def found(offset):
            [day] = p.ask(f"/v1/stats/days?offset={offset}").json()["days"]
            return day["day"], day["start"]

        def utc(at):
            return str(datetime.fromtimestamp(at, UTC).date())

        assert found(0) == (utc(midnight - 1), midnight - 86_400)
        assert found(60) == (utc(midnight), midnight - 3_600)
        assert found(29) == (utc(midnight - 1), midnight - 86_400 - 29 * 60)
        assert found(-330) == (utc(midnight - 1), midnight - 86_400 + 330 * 60)
        refused = [p.ask(f"/v1/stats/days?{q}").status for q in ("offset=2000", "unit=week", "offset=x")]
    assert refused == [422] * 3


def test_the_latest_steps_that_went_wrong_are_listed_with_their_sessions(tmp_path):
    replies = [say("x"), fail(429, "too fast"), say("x"), fail(500, "broken")]
    strategies = {"memory_bank": load_config().memory_strategies["memory_bank"].model_dump()}
    with scripted(replies, tmp_path, strategies) as (_, p):
        for name in (b"a", b"a", b"b", b"b"):
            step_of(p, rounds(2, size=40), name)
        p.ask("/v1/sessions/b/title", "PUT", {"title": "The Second"})

        def wrong(query=""):
            found = p.ask(f"/v1/stats/wrong?{query}").json()["steps"]
            return [(s["session"], s["title"], s["step"]["number"], s["step"]["http_status"]) for s in found]

        second, first = ("b", "The Second", 2, 500), ("a", None, 2, 429)
        assert wrong() == wrong("only=errors") == [second, first]
        assert wrong("limit=1") == [second] and wrong("session=a") == [first]
        assert wrong("only=without_memory") == wrong(f"since={time.time() + 9}") == wrong("until=5") == []
        assert p.ask("/v1/stats/wrong?session=nobody").status == 404
        assert [p.ask(f"/v1/stats/wrong?{q}").status for q in ("only=x", "since=-1", "limit=0")] == [422] * 3


def test_a_title_is_kept_by_an_export_and_taken_away_again(tmp_path):
    with priced(tmp_path) as (_, p):
        step_of(p, rounds(3, size=400), b"a")
        assert p.ask("/v1/sessions/a/title", "PUT", {"title": "  Refunds of März "}).status == 204
        assert p.ask("/v1/sessions/a").json()["title"] == "Refunds of März"
        lines = [json.loads(line) for line in p.ask("/v1/sessions/a/export").body.splitlines()]
        assert lines == list(map(json.loads, map(json.dumps, export_lines(p.service.database, "a"))))
        assert (
            lines[0]["session"]["title"] == "Refunds of März" and lines[0]["session"]["rows"]["record"] == 3
        )
        (tmp_path / "other").mkdir()
        other = Database(tmp_path / "other" / "bank.db")
        assert [type(i).__name__ for i in import_lines(other, enumerate(map(json.dumps, lines)))] == [
            "ImportedSession"
        ]
        assert session_details(other, None, "a").title == "Refunds of März"
        other.close()
        assert [
            p.ask("/v1/sessions/a/title", "PUT", b).status for b in ({}, {"title": "x" * 121}, {"title": 7})
        ] == [422] * 3
        assert p.ask("/v1/sessions/a/title", "PUT", {"title": ""}).status == 204
        assert p.ask("/v1/sessions/a").json()["title"] is None


def answering(usage, content="ok"):
    """An answer of a model with this usage."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    body = {"choices": [choice], **({} if usage is None else {"usage": usage})}
    return whole(json.dumps(body).encode(), b"Content-Type: application/json")


def test_the_bill_of_a_gateway_comes_before_every_price(tmp_path):
    usage = {
        "prompt_tokens": 9_000,
        "completion_tokens": 50,
        "prompt_tokens_details": {"cached_tokens": 3_000},
    }
    with before(lambda _: answering({**usage, "cost": 0.25}), tmp_path, prices=PRICES) as (_, p):
        for model in ("m", "house-model"):
            step_of(p, rounds(12, size=4000), model.encode(), model=model)
        known, house = (p.ask(f"/v1/sessions/{name}").json()["cost"] for name in ("m", "house-model"))
        [step] = p.ask("/v1/sessions/m/steps").json()["steps"]
        total = p.ask("/v1/stats").json()["cost"]
        metrics = p.ask("/metrics").body.decode()
    assert (step["sent_cost"], step["billed"], step["untold"]) == (0.25, 0.25, None)
    assert known["sent"] == house["sent"] == 0.25
    assert known["full"] > 0.25 and house["full"] > 0.25
    assert known["unpriced"] == house["unpriced"] == []
    assert known["models"][0]["price_from"] == house["models"][0]["price_from"] == "the provider's bill"
    assert total["sent"] == 0.5
    assert 'memory_bank_model_cost_total{kind="sent"} 0.5' in metrics


@pytest.mark.parametrize(
    ("usage", "reason"),
    [
        (None, "the answer has no usage"),
        (
            {"prompt_tokens": -1, "completion_tokens": 3},
            "a figure in the usage cannot be one (prompt_tokens)",
        ),
        ({"prompt_tokens": 0, "completion_tokens": 0}, "the usage counts no input tokens"),
        (
            {"prompt_tokens": 5, "completion_tokens": 3, "cached_tokens": 9},
            "more cached tokens than input tokens",
        ),
    ],
)
def test_a_cost_that_cannot_be_told_says_why(tmp_path, usage, reason):
    answers = iter([answering(usage), reported()])
    with before(lambda _: next(answers), tmp_path, prices=PRICES) as (_, p):
        for size in (12, 13):
            step_of(p, rounds(size, size=4000), b"a")
        untold, told = p.ask("/v1/sessions/a/steps").json()["steps"]
        cost, lines = p.ask("/v1/sessions/a").json()["cost"], list(p.lines)
    assert (untold["sent"], untold["sent_cost"]) == (None, None)
    assert reason in untold["untold"]
    assert told["untold"] is None
    assert cost["sent"] == told["sent_cost"]
    assert cost["untold"] == [{"reason": untold["untold"], "calls": 1}]
    assert lines == []


def test_a_write_for_an_hour_costs_twice_the_input(tmp_path):
    lifetimes = {"ephemeral_5m_input_tokens": 1_000, "ephemeral_1h_input_tokens": 3_000}
    usage = {
        "input_tokens": 50,
        "cache_creation_input_tokens": 4_000,
        "cache_creation": lifetimes,
        "output_tokens": 9,
    }
    body = {"type": "message", "role": "assistant", "content": [], "usage": usage}
    answer = whole(json.dumps(body).encode(), b"Content-Type: application/json")
    call = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}]},
    ]
    with (
        RawUpstream(lambda _: answer) as upstream,
        proxied("", tmp_path / "bank.db", upstream_anthropic=upstream.base_url.removesuffix("/v1")) as p,
    ):
        asked = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": messages}
        post(p.port, "/v1/messages", asked, b"x-memory-session: a")
        p.told()
        assert p.service.recorder.drain(60)
        [step] = p.ask("/v1/sessions/a/steps").json()["steps"]
    assert step["sent"] == {"input": 4_050, "cached": 0, "written": 4_000, "output": 9, "written_hour": 3_000}
    assert step["sent_cost"] == pytest.approx((50 * 3 + 1_000 * 3.75 + 3_000 * 6 + 9 * 15) / 1e6)


@pytest.mark.parametrize(
    ("model", "steps", "size", "tools"),
    [
        ("gpt-4.1-mini", 16, 24_000, 3),
        ("gpt-4.1-mini", 40, 6_000, 1),
        pytest.param("deepseek-chat", 40, 16_000, 0, marks=pytest.mark.long),
    ],
)
def test_what_is_said_to_be_saved_is_what_the_upstream_would_have_got(tmp_path, model, steps, size, tools):
    """The tokens and the prices of an upstream with a prefix cache, with memory and for the same agent without it."""
    own, without = Cached(), Cached()
    messages = [system(), user(), *rounds(steps, size=size)]
    schema = {"name": "get_order", "description": "Gets an order. " * 30, "parameters": {"type": "object"}}
    body = {
        "model": model,
        **({"tools": [{"type": "function", "function": schema}] * tools} if tools else {}),
    }
    with scripted(own, tmp_path, strategy="") as (_, p):
        for count, end in enumerate(range(4, len(messages) + 1, 2), 1):
            asked = {**body, "messages": messages[:end]}
            without(asked)
            post(p.port, CHAT, asked, b"x-memory-session: a")
            p.told(count)
        assert p.service.recorder.drain(60)
        told, metrics = p.ask("/v1/stats").json()["cost"], p.ask("/metrics").body.decode()
    (tokens, paid), (full_tokens, in_full) = own.paid(model), without.paid(model)
    assert paid < 0.9 * in_full
    assert told["sent"] == pytest.approx(paid)
    assert told["sent"] / told["full"] == pytest.approx(paid / in_full, abs=0.01)
    counted = {
        k: float(re.search(rf'model_tokens_total{{kind="{k}"}} (\S+)', metrics)[1])
        for k in ("input", "full_input")
    }
    assert counted["input"] == tokens
    assert tokens / counted["full_input"] == pytest.approx(tokens / full_tokens, abs=0.01)


def test_sessions_are_grouped_by_the_folder_and_the_program_that_sent_them(tmp_path):
    def asked(p, name, folder, agent):
        messages = [system(f"You code.\nWorking directory: {folder}\nIs git: yes"), *rounds(2, size=40)]
        headers = b"x-memory-session: " + name, b"user-agent: " + agent
        before = len(p.exchanges)
        post(p.port, CHAT, {"model": "m", "messages": messages}, *headers)
        p.told(before + 1)

    with priced(tmp_path) as (_, p):
        asked(p, b"a", "/home/me/shop", b"claude-cli/2.1.4 (external, cli)")
        asked(p, b"b", "/srv/mail/", b"codex_cli_rs/0.46.0 (Linux)")
        asked(p, b"b", "/srv/mail/", b"codex_cli_rs/0.46.0 (Linux)")
        asked(p, b"c", "none", b"OpenAI/Python 1.60.0")
        assert p.service.recorder.drain(60)

        def groups(by):
            found = p.ask(f"/v1/stats/groups?by={by}").json()["groups"]
            assert all(g["sent_cost"] is not None and g["last_used"] > 1e9 for g in found)
            return {
                g["name"] and g["name"].partition("@")[0]: (g["sessions"], g["tokens"]["steps"])
                for g in found
            }

        assert groups("project") == {"shop": (1, 1), "mail": (1, 2), None: (1, 1)}
        assert groups("client") == {"claude-cli": (1, 1), "codex_cli_rs": (1, 2), "OpenAI/Python": (1, 1)}
        assert p.ask("/v1/stats/groups").status == p.ask("/v1/stats/groups?by=model").status == 422
        p.ask("/v1/sessions/a", "DELETE")
        assert groups("project") == {"mail": (1, 2), None: (1, 1)}


def test_a_session_is_handed_on(tmp_path):
    with priced(tmp_path) as (_, p):
        step_of(p, rounds(12, size=4000), b"a")
        told = p.ask("/v1/sessions/a/handoff?budget=1000&to=codex")
        wrong = [
            p.ask(f"/v1/sessions/a/handoff?{q}").status for q in ("budget=5", "budget=x", "to=vim", "of=b")
        ]
        missing = p.ask("/v1/sessions/never/handoff").status
    text = told.json()["text"]
    assert text.startswith(
        "<earlier-session>\nThis work was begun in another session, with 12 calls of tools"
    )
    assert "CLAUDE.md" in text
    assert text.endswith("</earlier-session>\n")
    assert (wrong, missing) == ([422] * 4, 404)
