"""``context_management`` of the Messages API before upstreams that know it and upstreams that refuse it."""

from __future__ import annotations

import json
import random
from contextlib import contextmanager
from functools import partial
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.blocks import answer, any_messages, good_messages, thought, turn, use, user
from tests.service.proxied import RawUpstream, chunked, post, proxied, whole
from tests.service.proxy.test_messages import ADAPTIVE, SESSION, run, served, thinking_script

from memory_bank.errors import HistoryError
from memory_bank.service.proxy.clearing import CLEARED, clear
from memory_bank.testing import fail
from memory_bank.transcript.anthropic import message_errors
from memory_bank.transcript.tokens import approximate_counter

BETAS = b"anthropic-beta: a-2026,context-management-2025-06-27,b-2026"
TOOLS, THOUGHTS = "clear_tool_uses_20250919", "clear_thinking_20251015"
COUNTER = approximate_counter()
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


def whole_results(messages, source):
    """The ids whose result stands in the messages as it came."""
    came = {
        b["tool_use_id"]: b["content"]
        for m in source
        for b in m["content"]
        if m["role"] == "user" and "tool_use_id" in b
    }
    sent = {b["tool_use_id"]: b["content"] for m in messages for b in m["content"] if "tool_use_id" in b}
    return {i for i, content in sent.items() if content == came[i]}


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
@pytest.mark.parametrize("strategy", ["folding", "memory_bank", "no_strategy"])
def test_an_unknown_upstream_gets_neither_member_nor_beta(tmp_path, setting, stream, strategy):
    """What the client wants cleared is not sent whole, what it excludes is, and the answer says what was cleared."""
    messages = task()
    with before(False, tmp_path, strategy=strategy, context_management=setting) as (api, p):
        for end in (3, 27, len(messages)):  # two calls of one session, and one before the trigger
            _, told = ask(p, messages[:end], clear_tools(exclude_tools=["note"]), stream=stream)
        assert api.statuses == [200] * 3
        assert all("context_management" not in body for body in api.bodies)
        assert {got.header(b"anthropic-beta") for got in api.got} == {b"a-2026,b-2026"}
        sent = api.bodies[-1]["messages"]
        shown = whole_results(sent, messages)
        assert {"toolu_3", "toolu_9"} <= shown
        assert {"toolu_15"} <= shown <= {"toolu_3", "toolu_9", "toolu_14", "toolu_15"}
        [edit] = told["applied_edits"]
        assert (edit["type"], edit["cleared_tool_uses"]) == (TOOLS, 16 - len(shown))
        exchange = p.told(3)[2]
        assert 0 < edit["cleared_input_tokens"] == exchange.full_tokens - exchange.tokens
        if strategy == "no_strategy":
            assert json.dumps(sent).count(CLEARED) == 12
            assert len(sent) == len(messages)
        ask(p, messages[:3], clear_tools())
        assert api.bodies[-1]["messages"] == messages[:3]


@pytest.mark.parametrize("stream", [False, True])
def test_one_refusal_is_enough(tmp_path, stream):
    """The request is sent again without the member; the next one has none from the start."""
    messages = task()
    with before(False, tmp_path, strategy="no_strategy", context_management="pass") as (api, p):
        for _ in range(3):
            _, told = ask(p, messages, clear_tools(), stream=stream)
            assert told["applied_edits"][0]["cleared_tool_uses"] == 14
        assert api.statuses == [400, 200, 200, 200]
        assert len([line for line in p.lines if "context_management" in line]) == 1
        assert api.bodies[1]["messages"] == api.bodies[-1]["messages"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_upstream_that_knows_it_gets_it(tmp_path, stream):
    """Where memory rebuilds, both report; else nothing of request and answer changes."""
    messages = task()
    with before(True, tmp_path, context_management="pass") as (api, p):
        came, told = ask(p, messages, clear_tools(exclude_tools=["note"]), stream=stream)
        assert came.header(b"x-memory-status") == b"rebuilt"
        shown = whole_results(api.bodies[0]["messages"], messages)
        assert {"toolu_3", "toolu_9"} <= shown <= {"toolu_3", "toolu_9", "toolu_14", "toolu_15"}
        own, theirs = told["applied_edits"]
        assert (own["cleared_tool_uses"], theirs) == (16 - len(shown), Api.own_edit)
        came, told = ask(p, messages[:3], clear_tools(calls=0), stream=stream)
        assert told == {"applied_edits": [Api.own_edit]}
        assert api.bodies[1]["messages"] == messages[:3]
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


@pytest.mark.parametrize("knows", [True, False])
def test_counts_say_what_the_request_had(tmp_path, knows):
    messages = task()
    count = partial(ask, path="/v1/messages/count_tokens")
    with before(knows, tmp_path, context_management="pass") as (api, p):
        ask(p, messages, clear_tools())
        came, told = count(p, messages, clear_tools())
        tokens = came.json()["input_tokens"]
        assert tokens < len(json.dumps(messages)) // 2 < told["original_input_tokens"]
        came, told = count(p, messages[:3], clear_tools())
        assert told == {"original_input_tokens": came.json()["input_tokens"] + knows}
        assert api.statuses.count(400) == (not knows)


def test_inputs_least_amounts_and_nothing_due(tmp_path):
    messages = task(8, other=())
    with before(False, tmp_path, strategy="no_strategy") as (api, p):
        for edit, gone in [
            (clear_tools(clear_tool_inputs=True), 6),
            (clear_tools(clear_tool_inputs=["get_order"]), 6),
            (clear_tools(clear_tool_inputs=["other"]), 6),
            (clear_tools(clear_at_least={"type": "input_tokens", "value": 10**6}), 0),
            ({"type": TOOLS}, 0),  # below 100,000 tokens
            ({**clear_tools(), "trigger": {"type": "input_tokens", "value": 500}}, 6),
            ({**clear_tools(), "keep": "all", "trigger": None, "exclude_tools": 7}, 0),
        ]:
            _, told = ask(p, messages, edit)
            sent = api.bodies[-1]["messages"]
            calls = [b["input"] for m in sent for b in m["content"] if b["type"] == "tool_use"]
            assert calls.count({}) == (gone if edit.get("clear_tool_inputs") in (True, ["get_order"]) else 0)
            assert len(whole_results(sent, messages)) == 8 - gone
            assert [e["cleared_tool_uses"] for e in told["applied_edits"]] == [gone] * bool(gone)


def test_a_request_for_a_summary_keeps_all(tmp_path):
    ending = user("Your task is to create a detailed summary of the conversation so far, " + "x" * 99)
    messages = [*task(), turn("Done."), ending]
    with before(False, tmp_path) as (api, p):
        came, told = ask(p, messages, clear_tools(), compaction={"type": "summarize"})
        assert came.header(b"x-memory-reason") == b"compaction request"
        assert (told, api.bodies[0]["messages"]) == ({"applied_edits": []}, messages)


@pytest.mark.parametrize("strategy", ["folding", "no_strategy"])
@pytest.mark.parametrize("thinking", [ADAPTIVE, {"type": "enabled", "budget_tokens": 1024}])
@pytest.mark.parametrize("keep", ["all", {"type": "thinking_turns", "value": 1}])
def test_signed_thinking_is_never_refused(tmp_path, strategy, thinking, keep):
    """In an agent's loop before an upstream that checks signatures and pairs."""
    edits = {"edits": [{"type": THOUGHTS, "keep": keep}, clear_tools(8, 3, exclude_tools=["get_parcel"])]}
    with served(thinking_script(), tmp_path, strategy=strategy) as (server, p):
        told = run(p, SESSION, BETAS, thinking=thinking, context_management=edits)
        assert told[-1]["content"][-1]["text"] == "All is well."
        assert len(server.refused) <= 4 * (thinking is not ADAPTIVE)  # one for each pause
        assert all("context_management" not in r.body for r in server.requests)


def test_old_thinking_is_cleared(tmp_path):
    messages = []
    for i in range(4):
        messages += [user(f"Question {i}?"), turn(thought(f"hm {i}"), f"Answer {i}.")]
    messages.append(user("And now?"))
    drop = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    with before(False, tmp_path) as (api, p):
        for keep, left in (("all", 4), ({"type": "thinking_turns", "value": 3}, 3), (None, 1)):
            edit = {"type": THOUGHTS} | ({"keep": keep} if keep else {})
            _, told = ask(p, messages, edit, thinking=drop)
            assert json.dumps(api.bodies[-1]["messages"]).count('"thinking": "hm') == left
            assert [e["cleared_thinking_turns"] for e in told["applied_edits"]] == [4 - left] * (left < 4)


EDITS = st.lists(
    st.builds(
        lambda calls, keep, inputs: clear_tools(calls, keep, clear_tool_inputs=inputs),
        st.integers(0, 5), st.integers(0, 4), st.sampled_from([True, False, ["get_order"], None]),
    )
    | st.builds(lambda n: {"type": THOUGHTS, "keep": {"type": "thinking_turns", "value": n}}, st.integers(0, 3))
    | st.sampled_from([{"type": THOUGHTS, "keep": "all"}, {"type": TOOLS, "keep": 7}, {"type": "of_tomorrow"}, None]),
    max_size=3,
)  # fmt: skip


@given(messages=good_messages() | any_messages(), edits=EDITS | st.just("none"))
def test_clearing_breaks_nothing(messages, edits):
    """No pair is orphaned, nothing else changes, twice is as once, and what came is not modified."""
    request = {"messages": messages, "context_management": {"edits": edits}}
    came = json.dumps(messages)
    try:
        written, _, edited = clear(request, messages, (1, 1), COUNTER, True)
    except HistoryError:
        return
    assert json.dumps(messages) == came
    if not message_errors(messages):
        assert message_errors(written) == []
    assert clear(request, written, (1, 1), COUNTER, True)[:2] == (written, 0)
    gone = {e["type"]: e for e in edited}.get(TOOLS, {}).get("cleared_tool_uses", 0)
    assert json.dumps(written).count(CLEARED) == gone
