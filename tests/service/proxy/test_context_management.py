"""``context_management`` of the Messages API before upstreams that know it and upstreams that refuse it."""

from __future__ import annotations

import json
import random
from contextlib import contextmanager
from typing import ClassVar

import pytest
from tests.blocks import answer, turn, use, user
from tests.service.proxied import RawUpstream, chunked, post, proxied, whole
from tests.service.proxy.test_messages import SESSION, served
from tests.service.requests import body_of

from memory_bank.testing import fail, say
from memory_bank.transcript.anthropic import message_errors

BETAS = b"anthropic-beta: a-2026,context-management-2025-06-27,b-2026"
TOOLS = "clear_tool_uses_20250919"
REFUSAL = {"type": "invalid_request_error", "message": "context_management: Extra inputs are not permitted"}


def clear_tools(calls=5, keep=2, **more):
    """The edit, due above so many calls."""
    of = [{"type": "tool_uses", "value": n} for n in (calls, keep)]
    return {"type": TOOLS, "trigger": of[0], "keep": of[1], **more}


class Api(RawUpstream):
    """A Messages API that knows ``context_management`` or refuses it and its beta; it checks the pairs."""

    def __init__(self, knows):
        self.knows = knows
        self.statuses = []
        super().__init__(self._reply)

    @property
    def bodies(self):
        return [json.loads(got.body) for got in self.got]

    def _reply(self, got):
        body = json.loads(got.body)
        errors = message_errors(body["messages"])
        asks = "context_management" in body or b"context-management" in (got.header(b"anthropic-beta") or b"")
        if errors or (asks and not self.knows):
            self.statuses.append(400)
            error = {"type": "x", "message": errors[0]} if errors else REFUSAL
            return whole(json.dumps({"type": "error", "error": error}).encode(), status=b"400 Bad Request")
        self.statuses.append(200)
        if got.line.split()[1].endswith(b"count_tokens"):
            size = len(got.body)
            own = {"context_management": {"original_input_tokens": size + 1}} if asks else {}
            return whole(
                json.dumps({"input_tokens": size, **own}).encode(), b"content-type: application/json"
            )
        own = {"context_management": {"applied_edits": [self.own_edit]}} if asks else {}
        usage = {"input_tokens": 5, "output_tokens": 1}
        if not body.get("stream"):
            message = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "ok"}]}
            return whole(
                json.dumps({**message, "usage": usage, **own}).encode(), b"content-type: application/json"
            )
        events = [
            {"type": "message_start", "message": {"id": "m", "content": [], "usage": usage}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "ok"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage, **own},
            {"type": "message_stop"},
        ]
        sent = [f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events]
        return chunked(*sent, headers=(b"content-type: text/event-stream",))

    own_edit: ClassVar = {"type": TOOLS, "cleared_tool_uses": 1, "cleared_input_tokens": 10}


@contextmanager
def before(knows, tmp_path, **service):
    """The API and the service before it."""
    settings = {"strategy": "folding", "cache_markers": "off", **service}
    with (
        Api(knows) as api,
        proxied("http://127.0.0.1:9", tmp_path / "b.db", upstream_anthropic=api.base_url, **settings) as p,
    ):
        yield api, p


def ask(p, messages, *edits, path="/v1/messages", headers=(BETAS, SESSION), **members):
    """The answer, with the ``context_management`` that it carries where the API puts it."""
    body = {"model": "claude", "max_tokens": 9, "messages": messages, **members}
    came = post(p.port, path, {**body, "context_management": {"edits": [*edits]}}, *headers)
    assert came.status == 200, came.body
    if not members.get("stream"):
        return came, came.json().get("context_management")
    events = [json.loads(part.partition(b"data: ")[2]) for part in came.body.split(b"\n\n") if part]
    with_it = [e for e in events if "context_management" in e]
    assert [e["type"] for e in with_it] in ([], ["message_delta"])
    return came, with_it[0]["context_management"] if with_it else None


def task(calls=16, other=(3, 9)):
    """A task of long results; calls of some numbers are of another tool."""
    rng = random.Random(calls)
    out = [user("Hello.", "Check the orders.")]
    for i in range(calls):
        words = " ".join(f"SKU-{rng.randrange(10**6)} count {rng.randrange(99)}" for _ in range(120))
        out += [
            turn(use(f"toolu_{i}", "note" if i in other else "get_order", number=i)),
            user(answer(f"toolu_{i}", words)),
        ]
    return out


@pytest.mark.parametrize("setting", ["auto", "remove"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_upstream_gets_neither_member_nor_beta(tmp_path, setting, stream):
    """And nothing is cleared in its place."""
    messages = task()
    with before(False, tmp_path, strategy="no_strategy", context_management=setting) as (api, p):
        for end in (3, len(messages)):
            _, told = ask(p, messages[:end], clear_tools(), stream=stream)
            assert told is None
            assert api.bodies[-1]["messages"] == messages[:end]
        assert api.statuses == [200] * 2
        assert all("context_management" not in body for body in api.bodies)
        assert {got.header(b"anthropic-beta") for got in api.got} == {b"a-2026,b-2026"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("strategy", ["folding", "no_strategy"])
def test_one_refusal_is_enough(tmp_path, stream, strategy):
    """The request is sent again without the member; the next one has none from the start."""
    messages = task()
    with before(False, tmp_path, strategy=strategy, context_management="pass") as (api, p):
        for _ in range(3):
            came, _ = ask(p, messages, clear_tools(), stream=stream)
            assert came.header(b"x-memory-status") == (b"rebuilt" if strategy == "folding" else b"unchanged")
        assert api.statuses == [400, 200, 200, 200]
        assert len([line for line in p.lines if "context_management" in line]) == 1
        assert api.bodies[1]["messages"] == api.bodies[-1]["messages"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_upstream_that_knows_it_gets_it(tmp_path, stream):
    """Its report passes, and the client gets it."""
    messages = task()
    with before(True, tmp_path, context_management="pass") as (api, p):
        came, told = ask(p, messages, clear_tools(exclude_tools=["note"]), stream=stream)
        assert came.header(b"x-memory-status") == b"rebuilt"
        assert told == {"applied_edits": [Api.own_edit]}
        assert all(b["context_management"]["edits"] for b in api.bodies)
        assert {got.header(b"anthropic-beta") for got in api.got} == {BETAS.partition(b": ")[2]}


def test_by_default_only_the_api_of_anthropic_gets_it(tmp_path):
    for url, passes in (
        ("https://api.anthropic.com", True),
        ("https://gateway.example/api.anthropic.com", False),
    ):
        with proxied("http://127.0.0.1:9", tmp_path / "b.db", upstream_anthropic=url) as p:
            assert ("anthropic" in p.service.proxy.rebuilder.passes) is passes


def test_an_error_in_the_edits_is_the_clients(tmp_path):
    message = "context_management.edits.0.keep: Input should be greater than 0"
    refusals = [fail(400, message), fail(400, message)]
    with served(refusals, tmp_path, strategy="no_strategy", context_management="pass") as (server, p):
        for n in (1, 2):
            body = {
                "model": "m",
                "max_tokens": 9,
                "messages": [user("Hi.")],
                "context_management": {"edits": [{}]},
            }
            came = post(p.port, "/v1/messages", body)
            assert (came.status, came.json()["error"]["message"]) == (400, message)
            assert len(server.requests) == n


def test_a_threshold_of_the_responses_api_is_upstreams(tmp_path):
    """Its compaction passes as it came; an upstream that knows none gets the request without it."""
    managed = [{"type": "compaction", "compact_threshold": 1_000}]
    body = {**body_of("responses", ["x" * 9_000] * 3), "context_management": managed}
    refusal = fail(400, "Unknown parameter: 'context_management'.")
    with served([say("ok"), refusal, say("ok"), say("ok")], tmp_path, strategy="no_strategy") as (server, p):
        for _ in range(3):
            assert post(p.port, "/v1/responses", body).status == 200
        assert [r.body.get("context_management") for r in server.requests] == [managed, managed, None, None]
