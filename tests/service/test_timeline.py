"""The routes of a session's steps: listed, as a curve, in full; of one's own sessions only."""

import json
import sqlite3

import pytest
from tests.chats import call, result, user
from tests.service.processes import serve, until
from tests.service.runs import orders, recorded
from tests.service.serving import serve_here

from memory_bank.bank.database import Database
from memory_bank.bank.steps import list_steps
from memory_bank.service.api.sessions import Curve, StepDetail, StepPage


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    file = tmp_path_factory.mktemp("timeline") / "bank.db"
    with serve_here(file, history_budget=4_000, refresh_after=0) as service:
        service.file = file
        yield service


def step(service, name, messages, **more):
    body = {"messages": messages, "plan": False, **more}
    answer = service.ask(f"/v1/sessions/{name}/context", "POST", body)
    assert answer.status == 200, answer.body
    return answer.json()


def got(service, path):
    answer = service.ask(f"/v1/sessions/{path}")
    assert answer.status == 200, answer.body
    return answer.json()


def noted(service, name, number):
    """A step, once it is noted."""
    path = f"/v1/sessions/{name}/steps/{number}"
    return until(lambda: (a := service.ask(path)).status == 200 and a.json())


@pytest.fixture(scope="module")
def shop(service):
    """A session of 19 steps; the last two are there in full."""
    steps = recorded("shop-refunds")
    for messages in steps[:-2]:
        step(service, "shop", messages)
    for messages in steps[-2:]:
        step(service, "shop", messages)
        noted(service, "shop", len([m for m in messages if m["role"] == "assistant"]) + 1)
    return len(steps)


def test_steps_are_listed_page_by_page(service, shop):
    page = got(service, "shop/steps")
    assert StepPage.model_validate(page)
    assert [s["number"] for s in page["steps"]] == list(range(1, shop + 1))
    assert (page["first"], page["last"], page["next"]) == (1, shop, None)
    part = got(service, "shop/steps?limit=5&after=3")
    assert [s["number"] for s in part["steps"]] == [4, 5, 6, 7, 8]
    assert part["next"] == 8
    assert got(service, f"shop/steps?limit=2&after={shop - 2}")["next"] is None
    assert got(service, f"shop/steps?after={shop}")["steps"] == []
    assert page["steps"][-1]["tokens"] < page["steps"][-1]["full_tokens"]


def test_the_curve_has_all_steps_in_few_points(service, shop):
    curve = got(service, "shop/curve")
    assert Curve.model_validate(curve)
    assert [p["number"] for p in curve["points"]] == list(range(1, shop + 1))
    steps = got(service, "shop/steps")["steps"]
    assert curve["tokens"] == sum(s["tokens"] for s in steps)
    few = got(service, "shop/curve?points=4")
    assert len(few["points"]) == 4 and sum(p["steps"] for p in few["points"]) == shop


def test_a_step_in_full_tells_what_was_sent_and_why(service, shop):
    detail = got(service, f"shop/steps/{shop}")
    assert StepDetail.model_validate(detail)
    fold, calls = detail["fold"], detail["calls"]
    assert detail["step"]["number"] == shop and detail["step"]["fold"] == fold["number"] > 1
    assert fold["pieces"] and fold["pieces"][0]["values"][0]["features"]
    assert detail["changes"] and all(c["before"] != c["now"] for c in detail["changes"])
    assert detail["new"] and detail["gone"]
    assert [c["number"] for c in calls] == list(range(1, len(calls) + 1))
    assert detail["fates"] == {f: [c["fate"] for c in calls].count(f) for f in {c["fate"] for c in calls}}
    assert {p["trace_id"] for p in fold["pieces"]} <= {
        c["trace_id"] for c in calls if c["fate"] in ("kept", "shown in part")
    }
    sent = json.dumps(step(service, "again", recorded("shop-refunds")[-1])["messages"])
    shown = noted(service, "again", 1)["fold"]
    assert json.dumps(shown["text"])[1:-1] in sent
    assert all(json.dumps(p["text"])[1:-1] in sent for p in shown["pieces"] if "\n" not in p["text"])


def test_what_became_different_is_told_between_two_steps(service):
    for n in (3, 40):
        step(service, "turn", orders(n), strategy="memory_bank")
        detail = noted(service, "turn", 1 if n == 3 else 2)
    turned = {c["trace_id"]: (c["before"], c["now"]) for c in detail["changes"]}
    # of the first step, whose calls went through whole: shown in part now, or less
    assert 1 <= len(turned) <= 3
    assert {before for before, _ in turned.values()} == {"kept"}
    assert "kept" not in {now for _, now in turned.values()}


def test_changes_since_a_step_whose_fold_is_no_longer_stored_are_not_known(service):
    steps = recorded("shop-refunds")
    for messages in steps:
        step(service, "older", messages)
    whole = noted(service, "older", len(steps))
    number = noted(service, "older", len(steps) - 1)["step"]["fold"]
    assert whole["changes"] and whole["new"] and number not in (None, whole["step"]["fold"])
    with sqlite3.connect(service.file) as c:
        assert c.execute("DELETE FROM folds WHERE session_id = 'older' AND number = ?", (number,)).rowcount
    c.close()
    detail = got(service, f"older/steps/{len(steps)}")
    assert (detail["changes"], detail["new"], detail["gone"]) == (None, None, None)
    assert (detail["fold"], detail["calls"]) == (whole["fold"], whole["calls"])


def test_what_is_not_there_is_not_found(service, shop):
    for path in ("nowhere/steps", "nowhere/curve", "nowhere/steps/1", f"shop/steps/{shop + 1}"):
        answer = service.ask(f"/v1/sessions/{path}")
        assert answer.status == 404, path
        assert answer.json()["error"]["code"] == "not_found"


WRONG = (
    "steps/0 steps/x steps?limit=0 steps?limit=501 steps?after=-1 curve?points=0 steps?limits=9 curve?point=9"
)


@pytest.mark.parametrize("path", WRONG.split())
def test_what_is_asked_wrongly_is_told(service, shop, path):
    answer = service.ask(f"/v1/sessions/shop/{path}")
    assert answer.status == 422
    assert answer.json()["error"]["message"]


def test_names_and_texts_of_any_kind(service):
    name, hostile = "a%2Fb%20%3Cb%3E", "\ud800 <script> \u202e \0"
    step(service, name, [user(hostile), call(("c", hostile, {"a": hostile})), result("c", hostile)])
    assert noted(service, name, 1)["calls"][0]["tool"] == hostile


def test_a_reset_takes_the_steps_and_they_begin_anew(service):
    for n in (1, 2):
        step(service, "reset", orders(n))
    until(lambda: got(service, "reset/steps")["last"] == 2)
    assert service.ask("/v1/sessions/reset/reset", "POST").status == 204
    page = got(service, "reset/steps")
    assert (page["steps"], page["first"], page["last"], page["next"]) == ([], None, None, None)
    assert got(service, "reset/curve") == {
        "points": [], "first": None, "last": None, "steps": 0, "tokens": 0, "full_tokens": 0,
    }  # fmt: skip
    step(service, "reset", orders(3))
    assert until(lambda: got(service, "reset/steps")["last"]) == 1
    assert service.ask("/v1/sessions/reset", "DELETE").status == 204
    assert service.ask("/v1/sessions/reset/steps").status == 404


def test_what_waits_is_noted_before_the_service_ends(tmp_path):
    with serve("--db", tmp_path / "bank.db") as process:
        for n in range(1, 9):
            step(process, "a", orders(n))
        assert process.end() == 0
    database = Database(tmp_path / "bank.db", must_exist=True)
    assert [s.number for s in list_steps(database, "a")] == list(range(1, 9))
    database.close()
