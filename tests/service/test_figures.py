"""The figures of a session are those of everything that arrived upstream for it, hidden turns and tools included."""

from __future__ import annotations

import json

import pytest
from tests.examples import first_short
from tests.service.proxied import post, scripted
from tests.service.proxy.test_injection import BANK, MESSAGES, STEPS
from tests.service.requests import PATHS, body_of
from tests.service.tasks import TOOLS, get_order

from memory_bank.service.proxy.body import parse_body
from memory_bank.service.proxy.dialects import DIALECTS
from memory_bank.testing import call, fail, say
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
routes = pytest.mark.parametrize("route", list(BODIES))


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
        tmp_path, route, [*[FETCH] * hidden, say("It is done.")], stream=stream
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
    arrived, _, session, [step], _ = run(tmp_path, route, script, bank=bank, given=PROSE)
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
    _, _, session, [step], _ = run(tmp_path, "chat", [FETCH] * 3 + [say("Done.")], bank=bank)
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
    assert step["sent"] == step["full"]  # the provider counts only what it answers


def test_a_request_for_a_summary_counts_as_it_was_sent(tmp_path):
    asks = {"role": "user", "content": "Your task is to create a detailed summary of the conversation so far"}
    path, body = BODIES["chat"]
    given = {"chat": (path, {**body, "messages": [*MESSAGES, asks]})}
    arrived, came, _, [step], _ = run(tmp_path, "chat", [say("A summary.")], given=given)
    assert came.header(b"x-memory-reason") == b"compaction request, completed by memory"
    assert step["tokens"] == step["full_tokens"] == pytest.approx(counted(arrived[0]), rel=0.02)
