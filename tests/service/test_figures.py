"""The figures of a session are those of everything that arrived upstream for it, hidden turns and tools included."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.examples import first_short, in_turn
from tests.service.proxied import post, scripted
from tests.service.proxy.test_injection import BANK, MESSAGES, STEPS
from tests.service.requests import PATHS, body_of
from tests.service.tasks import TOOLS, get_order

from memory_bank.service.proxy.body import parse_body
from memory_bank.service.proxy.flow import DIALECTS
from memory_bank.testing import Reply, call, calls, fail, say
from memory_bank.transcript.jsontext import compact
from memory_bank.transcript.tokens import open_counter


def bodies(outputs):
    """A conversation with these outputs, as a request of each API."""
    return {api: (path, body_of(api, outputs, TOOLS)) for api, path in PATHS.items()}


BODIES = bodies([get_order(n) for n in range(STEPS)])
PROSE = bodies(
    [
        " ".join(
            f"In order {n} the customer asks about parcel {n}{k}, which we will send tomorrow."
            for k in range(60)
        )
        for n in range(20)
    ]
)
"""Texts with as many bytes a token as the rest of a request, so that bytes measure what tokens do."""
FETCH = call("get_record", trace_id="#4")
PRICES = {"m": {"prompt": 2.0, "completion": 10.0, "cached": 0.5}}
routes = in_turn("route", BODIES)


def counted(data):
    """The tokens of a request that arrived upstream: its messages as memory reads them, and its tools."""
    body = json.loads(data)
    key = "input" if "input" in body else "messages"
    route = "responses" if key == "input" else "messages" if "max_tokens" in body else "chat"
    dialect = next(d for d in DIALECTS if d.route == route)
    counter = open_counter()
    tokens = sum(map(counter.count_message, dialect.history(parse_body(data, key, "tools")).messages))
    return tokens + counter.count_text(compact(body["tools"]))


def run(tmp_path, route, script, *, stream=False, bank=BANK, given=BODIES, **service):
    """What arrived upstream, the answers, the session and its steps."""
    path, body = given[route]
    strategies = {"small": bank, "none": {"type": "no_strategy"}}
    with scripted(script, tmp_path, strategies, prices=PRICES, **service) as (server, p):
        data = {"model": "m", "stream": stream, **body}
        came = post(p.port, path, data, b"x-memory-session: task")
        p.told()
        assert p.service.recorder.drain(60)
        session = p.ask("/v1/sessions/task").json()
        steps = p.ask("/v1/sessions/task/steps").json()["steps"]
        metrics = p.ask("/metrics").body.decode()
        return [r.data for r in server.requests], came, session, steps, metrics


@routes
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("hidden", first_short([3, 1]))
def test_figures_are_those_of_what_arrived_upstream(tmp_path, route, stream, hidden):
    arrived, came, session, [step], metrics = run(
        tmp_path, route, [*[FETCH] * hidden, say("It is done.")], stream=stream, inject_tools=True
    )
    assert came.status == 200
    assert len(arrived) == hidden + 1
    sent = sum(map(counted, arrived))
    full = counted(json.dumps({"model": "m", **BODIES[route][1]}).encode())
    assert step["status"] == "rebuilt"
    assert step["tokens"] == pytest.approx(sent, rel=0.02)
    assert step["full_tokens"] == pytest.approx(full, rel=0.02)
    assert session["tokens"]["sent"] == step["tokens"]
    assert session["tokens"]["full"] == step["full_tokens"]
    # hidden turns have no text, so the header of a stream goes out after the last of them, too
    assert came.header(b"x-memory-tokens").decode() == f"{step['tokens']}/{step['full_tokens']}"
    assert f'memory_bank_tokens_total{{kind="sent"}} {float(step["tokens"])}' in metrics
    if not stream or route != "chat":  # a chat that streams reports no usage here
        total = sum(len(d) // 4 for d in arrived)  # as the scripted server counts
        assert step["sent"]["input"] == pytest.approx(total, rel=0.02)


@routes
def test_the_saving_is_that_of_the_bytes(tmp_path, route):
    """Of a run with memory and a run without, both measured where they arrive."""
    script = [FETCH, say("It is done.")]
    (tmp_path / "without").mkdir()
    bank = {**BANK, "history_budget": 3_000}
    arrived, _, session, [step], _ = run(tmp_path, route, script, bank=bank, given=PROSE, inject_tools=True)
    without, _, _, [left], _ = run(
        tmp_path / "without", route, [say("It is done.")], given=PROSE, strategy="none"
    )
    assert left["tokens"] == left["full_tokens"]
    ratio = sum(map(len, arrived)) / sum(map(len, without))
    assert step["tokens"] / step["full_tokens"] == pytest.approx(ratio, abs=0.02)
    assert step["sent"]["input"] / step["full"]["input"] == pytest.approx(ratio, abs=0.02)
    assert session["tokens"]["compared"].endswith("% less than without memory")


def test_what_memory_costs_more_is_said(tmp_path):
    """A fold that saves little, and three hidden turns."""
    bank = {**BANK, "history_budget": 0.9}
    _, _, session, [step], _ = run(
        tmp_path, "chat", [FETCH] * 3 + [say("Done.")], bank=bank, inject_tools=True
    )
    assert step["tokens"] > step["full_tokens"]
    more = round(100 * (step["tokens"] / step["full_tokens"] - 1))
    assert more > 0
    assert session["tokens"]["compared"] == f"{more}% more than without memory"
    assert session["cost"]["compared"].endswith("% more than without memory")
    assert session["cost"]["sent"] > session["cost"]["full"]


@routes
def test_a_request_that_was_sent_twice_counts_twice(tmp_path, route):
    def refuse(body):
        given = BODIES[route][1]
        key = "input" if route == "responses" else "messages"
        return say("ok") if body[key] == given[key] else fail(400, "no")

    arrived, came, _, [step], _ = run(tmp_path, route, refuse, inject_tools=False)
    assert (came.status, len(arrived)) == (200, 2)
    assert step["status"] == "refused"
    assert step["tokens"] == pytest.approx(sum(map(counted, arrived)), rel=0.02)
    assert step["full_tokens"] == pytest.approx(counted(arrived[1]), rel=0.02)
    # the provider counts only what it answers; without memory its cache would have held what was known before
    assert {**step["sent"], "cached": 0} == {**step["full"], "cached": 0}
    assert step["sent"]["cached"] <= step["full"]["cached"]


def test_a_request_for_a_summary_counts_as_it_was_sent(tmp_path):
    asks = {"role": "user", "content": "Your task is to create a detailed summary of the conversation so far"}
    path, body = BODIES["chat"]
    given = {"chat": (path, {**body, "messages": [*MESSAGES, asks]})}
    arrived, came, _, [step], _ = run(tmp_path, "chat", [say("A summary.")], given=given)
    assert came.header(b"x-memory-reason") == b"compaction request, completed by memory"
    assert step["tokens"] == pytest.approx(counted(arrived[0]), rel=0.02)
    own = counted(json.dumps({"model": "m", **given["chat"][1]}).encode())
    assert step["full_tokens"] == pytest.approx(own, rel=0.02)  # without memory's tools


def step_of(p, number=1):
    """A step in full."""
    assert p.service.recorder.drain(60)
    return p.ask(f"/v1/sessions/task/steps/{number}").json()


@routes
@pytest.mark.parametrize("stream", [False, True])
def test_a_step_has_the_answer_of_the_model(tmp_path, route, stream):
    path, body = BODIES[route]
    reply = calls(
        ("get_order", {"order": "ORD-9"}),
        ("look", {"at": "key sk-proj-" + "a1B2" * 12}),
        content="I look at both.",
    )
    with scripted([reply], tmp_path, {"small": BANK}, inject_tools=False, redact_secrets=True) as (_, p):
        post(p.port, path, {**body, "model": "gpt-5", "stream": stream}, b"x-memory-session: task")
        p.told()
        found = step_of(p)
    said, step = found["answer"], found["step"]
    assert "".join(part["text"] for part in said["parts"]) == "I look at both."
    assert [c["name"] for c in said["calls"]] == ["get_order", "look"]
    assert json.loads(said["calls"][0]["arguments"][0]["text"]) == {"order": "ORD-9"}
    assert "a1B2a1B2" not in json.dumps(said) and "[redacted" in json.dumps(said)
    assert (step["model"], step["http_status"], step["error"]) == ("gpt-5", 200, None)
    assert step["seconds"] > 0


def test_a_step_is_recorded_once_its_answer_is_there_and_its_cost_before(tmp_path):
    path, body = BODIES["chat"]
    asked, go = threading.Event(), threading.Event()

    def answers(_):
        asked.set()
        assert go.wait(60)
        return say("Done.")

    with scripted(answers, tmp_path, {"small": BANK}) as (_, p), ThreadPoolExecutor(1) as client:
        came = client.submit(post, p.port, path, {**body, "model": "gpt-5"}, b"x-memory-session: task")
        try:
            assert asked.wait(60)
            assert p.service.recorder.drain(60)
            assert p.ask("/v1/sessions/task/steps").json()["steps"] == []
            stored = p.service.database.extent("task")
            assert stored.records == STEPS and stored.paid and stored.sent
        finally:
            go.set()
        assert came.result(60).status == 200
        p.told()
        found = step_of(p)
    assert (found["step"]["number"], found["answer"]["parts"][0]["text"]) == (1, "Done.")


@routes
def test_a_step_has_the_providers_error(tmp_path, route):
    path, body = BODIES[route]
    with scripted([fail(429, "Rate limit reached, try again in 2 s.")], tmp_path, {"small": BANK}) as (_, p):
        assert post(p.port, path, {**body, "model": "gpt-5"}, b"x-memory-session: task").status == 429
        p.told()
        found = step_of(p)
        row = p.ask("/v1/sessions").json()["sessions"][0]
        stats = p.ask("/v1/stats").json()
        alone = p.ask("/v1/sessions/task/steps?only=errors").json()["steps"]
    step = found["step"]
    assert (step["http_status"], step["model"], found["answer"]) == (429, "gpt-5", None)
    assert step["error"] == "Rate limit reached, try again in 2 s."
    assert (row["errors"], row["models"], stats["errors"], len(alone)) == (1, ["gpt-5"], 1, 1)


def test_an_error_within_a_stream_is_the_steps(tmp_path):
    path, body = BODIES["messages"]
    events = [
        {
            "type": "message_start",
            "message": {
                "type": "message",
                "role": "assistant",
                "content": [],
                "usage": {"input_tokens": 9, "output_tokens": 1},
            },
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "I beg"}},
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    ]
    pieces = [f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events]
    with scripted(
        [Reply(raw=pieces, headers={"Content-Type": "text/event-stream"})],
        tmp_path,
        {"small": BANK},
        strict=False,
    ) as (_, p):
        post(p.port, path, {**body, "model": "claude-sonnet-4-5", "stream": True}, b"x-memory-session: task")
        p.told()
        found = step_of(p)
    assert found["step"]["error"] == "Overloaded"
    assert found["answer"]["parts"] == [{"text": "I beg"}]


def test_a_provider_that_cannot_be_reached_is_the_steps_error(tmp_path):
    path, body = BODIES["chat"]
    with scripted([], tmp_path, {"small": BANK}, upstream="http://127.0.0.1:9/v1") as (_, p):
        assert post(p.port, path, {**body, "model": "gpt-5"}, b"x-memory-session: task").status == 502
        p.told()
        step = step_of(p)["step"]
    assert step["http_status"] == 502 and "127.0.0.1:9" in step["error"]


@routes
def test_a_request_that_memory_failed_for_is_a_step_of_its_session(tmp_path, route):
    path, body = BODIES[route]
    with scripted([say("One."), say("Two.")], tmp_path, {"small": BANK}, prices=PRICES) as (_, p):
        for more in ((), (b"x-memory-strategy: no-such-strategy",)):
            post(p.port, path, {"model": "m", **body}, b"x-memory-session: task", *more)
        p.told(2)
        found, stats = step_of(p, 2), p.ask("/v1/stats").json()
        row = p.ask("/v1/sessions?only=without_memory").json()["sessions"][0]
        alone = p.ask("/v1/sessions/task/steps?only=without_memory").json()["steps"]
        post(
            p.port,
            path,
            {"model": "m", **body},
            b"x-memory-session: unknown",
            b"x-memory-strategy: no-such-strategy",
        )
        p.told(3)
        assert p.service.recorder.drain(60)
        assert p.ask("/v1/sessions/unknown/steps").json()["steps"][0]["reason"] == "unknown_strategy"
    step = found["step"]
    assert (step["status"], step["reason"], step["error"]) == ("failed", "unknown_strategy", None)
    assert step["tokens"] == step["full_tokens"] > 1_000 and step["sent"] == step["full"]
    assert step["sent_cost"] == step["full_cost"] > 0
    assert found["answer"]["parts"] == [{"text": "Two."}] and found["calls"] is None
    assert (row["without_memory"], stats["steps_without_memory"], [s["number"] for s in alone]) == (1, 1, [2])
    assert stats["without_memory"] == {"unknown_strategy": 1}


def test_forgetting_a_record_takes_the_answers(tmp_path):
    path, body = BODIES["chat"]
    with scripted([say("ORD-0 is late.")], tmp_path, {"small": BANK}) as (_, p):
        post(p.port, path, {"model": "m", **body}, b"x-memory-session: task")
        p.told()
        assert step_of(p)["answer"]
        assert p.ask("/v1/sessions/task/records/1", "DELETE").status == 204
        found = step_of(p)
    assert (found["answer"], found["calls"]) == (None, None)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ({"error": "No credits left"}, "No credits left"),
        (
            {"choices": [{"delta": {}, "error": {"code": 502, "message": "The provider is down"}}]},
            "The provider is down",
        ),
        ({"object": "error", "message": "Too long"}, "Too long"),
    ],
)
def test_an_error_of_a_gateway_is_the_steps(tmp_path, error, text):
    path, body = BODIES["chat"]
    said = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "I beg"}}]}
    pieces = [f"data: {json.dumps(e)}\n\n" for e in (said, error)]
    stream = Reply(raw=pieces, headers={"Content-Type": "text/event-stream"})
    with scripted([stream], tmp_path, {"small": BANK}, strict=False) as (_, p):
        post(p.port, path, {**body, "model": "m", "stream": True}, b"x-memory-session: task")
        p.told()
        assert step_of(p)["step"]["error"] == text
