"""Requests that are to be compacted above a threshold, before upstreams that compact, and upstreams that refuse to."""

from __future__ import annotations

import json
import re

import pytest
from openai import OpenAI
from tests import blocks, items
from tests.service.proxied import post, scripted
from tests.service.proxy.test_compaction import FOREIGN, OUTPUTS, events, key_of
from tests.service.proxy.test_messages import ADAPTIVE, run, served, thinking_script
from tests.service.requests import PATHS, body_of

from memory_bank.service.proxy.clearing import UNKNOWN
from memory_bank.testing import Reply, fail, say
from memory_bank.transcript.events import message_events, message_of, response_events, response_of

SESSION = b"x-memory-session: s"
BETA = b"anthropic-beta: a-2026,compact-2026-01-12"
ASK = "context_management"
REFUSALS = {
    "responses": "Unknown parameter: 'context_management'.",
    "messages": "context_management: Extra inputs are not permitted",
}


def compact(api, tokens=5_000, **more):
    """``context_management`` of an API."""
    if api == "responses":
        return [{"type": "compaction", "compact_threshold": tokens}]
    trigger = {"type": "input_tokens", "value": tokens}
    return {"edits": [{"type": "compact_20260112", "trigger": trigger, **more}]}


def request(api, outputs=OUTPUTS, tokens=5_000, **members):
    return body_of(api, outputs, **{ASK: compact(api, tokens), **members})


def parts(api, came):
    """The items or blocks of a complete or streamed answer, whose events must agree with it."""
    key = "output" if api == "responses" else "content"
    if came.body.startswith(b"{"):
        return came.json()[key]
    told = events(came)
    if api == "responses":
        done = {e["output_index"]: e["item"] for e in told if e["type"] == "response.output_item.done"}
        assert [e["sequence_number"] for e in told] == list(range(len(told)))
        assert told[-1]["response"]["output"] == [*done.values()]
        assert [*done] == [*range(len(done))]
        return [*done.values()]
    made = []
    for e in told:
        if e["type"] == "content_block_start":
            assert e["index"] == len(made)
            made.append(dict(e["content_block"]))
        elif e["type"] == "content_block_delta":
            assert e["index"] == len(made) - 1
            delta = e["delta"]
            if delta["type"] == "compaction_delta":
                made[-1] |= {**delta, "type": "compaction"}
            else:
                made[-1]["text"] += delta["text"]
    return made


def going_on(api, body, answer):
    """The next request of an agent: the answer and one more call stand behind all that was sent."""
    called = body_of(api, ["order 77: PAY-00077 " * 50])[key_of(api)][-2:]
    called = json.loads(json.dumps(called).replace('"c0"', '"c77"'))
    turn = answer if api == "responses" else [{"role": "assistant", "content": answer}, blocks.user("Next.")]
    return {**body, key_of(api): [*body[key_of(api)], *turn, *called]}


def knows_not(api):
    return lambda body: fail(400, REFUSALS[api]) if ASK in body else Reply("Going on.", usage=(40, 2))


@pytest.mark.parametrize("mode", ["assist", "answer"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ["responses", "messages"])
def test_where_upstream_does_not_compact_the_bank_does(tmp_path, api, stream, mode):
    """One refusal is enough; a request below the threshold, or after the compaction, is not compacted."""
    settings = {"compaction": mode, "context_management": "pass", "cache_markers": "off"}
    with scripted(knows_not(api), tmp_path, **settings) as (server, p):
        body = request(api, stream=stream)
        came = post(p.port, PATHS[api], body, SESSION, BETA)
        assert came.status == 200, came.body
        compaction, said = parts(api, came)
        assert compaction["type"] == "compaction"
        assert compaction["encrypted_content"].startswith("mbc1.")
        assert came.header(b"x-memory-reason") == b"compaction at the client's threshold"
        assert "Going on." in json.dumps(said)
        refused, sent = server.requests
        assert ASK in refused.body
        assert ASK not in sent.body
        assert "compact-2026" not in (sent.headers.get("anthropic-beta") or "")
        assert "PAY-00007" in json.dumps(sent.body)
        assert len(json.dumps(sent.body)) < len(json.dumps(body)) / 2
        if api == "messages":
            usage = [e["usage"] for e in events(came) if "usage" in e][-1] if stream else came.json()["usage"]
            ours, theirs = usage["iterations"]
            assert (ours["type"], ours["input_tokens"], theirs["input_tokens"]) == ("compaction", 0, 40)
        later = going_on(api, body, [compaction, said])
        for _ in range(2):
            came = post(p.port, PATHS[api], later, SESSION)
            assert [i["type"] for i in parts(api, came)] == [said["type"]]
        again = server.requests[-1].body[key_of(api)]
        key = key_of(api)
        assert (
            again[: len(sent.body[key])] == sent.body[key]
        )  # the prefix stays, thinking that is bound to it fits
        assert "PAY-00077" in json.dumps(again)
        assert compaction not in again
        short = post(p.port, PATHS[api], request(api, OUTPUTS[:1], stream=stream), b"x-memory-session: t")
        assert len(parts(api, short)) == 1
        assert sum(ASK in r.body for r in server.requests) == 1
        told = p.told(4)
        assert [e.usage.input for e in told] == [40] * 4
        assert told[0].answered_tokens < told[0].full_tokens / 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_pause_ends_the_answer_with_the_block(tmp_path, stream):
    with scripted(knows_not("messages"), tmp_path) as (server, p):
        paused = compact("messages", pause_after_compaction=True, instructions="Keep ids.")
        body = request("messages", stream=stream, **{ASK: paused})
        came = post(p.port, PATHS["messages"], body, SESSION, BETA)
        [block] = parts("messages", came)
        end = [e for e in events(came) if e["type"] == "message_delta"][0] if stream else came.json()
        assert (end["delta"] if stream else end)["stop_reason"] == "compaction"
        assert [i["type"] for i in end["usage"]["iterations"]] == ["compaction"]
        assert server.requests == []
        last = [blocks.turn(block), blocks.user("Go on.")]
        came = post(p.port, PATHS["messages"], {**body, "messages": body["messages"] + last}, SESSION)
        assert [b["type"] for b in parts("messages", came)] == ["text"]
        assert "PAY-00007" in json.dumps(server.requests[0].body["messages"])
        assert p.told()[0].usage.input is None  # nothing was paid


@pytest.mark.parametrize("strategy", ["folding", "no_strategy"])
def test_other_edits_stay_and_a_session_without_memory_is_not_compacted(tmp_path, strategy):
    """Also in the request after a compaction, which is compacted again when it has grown."""
    both = compact("messages", 2_000)
    both["edits"].append({"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": 1}})
    with scripted(lambda _: say("On."), tmp_path, strategy=strategy) as (_, p):
        body = request("messages", **{ASK: both})
        kinds = []
        for n in range(4):
            came = post(p.port, PATHS["messages"], body, SESSION)
            kinds.append([b["type"] for b in came.json()["content"]])
            assert came.json()[ASK]["applied_edits"] or n % 2
            more = body_of("messages", ["order: " + "PAY-00077 " * 200] * (4 if n == 1 else 1))["messages"][
                1:
            ]
            told = json.loads(re.sub(r'"c(\d+)"', rf'"d{n}-\1"', json.dumps(more)))
            body = {
                **body,
                "messages": [
                    *body["messages"],
                    blocks.turn(*came.json()["content"]),
                    blocks.user("Next."),
                    *told,
                ],
            }
        with_it = ["compaction", "text"]
        assert kinds == ([with_it, ["text"], with_it, ["text"]] if strategy == "folding" else [["text"]] * 4)


def compacts(api, stream, foreign):
    """An upstream that compacts a conversation that has no compaction of its own yet."""

    def answer(body):
        if foreign in json.loads(json.dumps(body)).get("input", []) or "theirs" in json.dumps(body):
            return say("Going on.")
        if api == "responses":
            response = response_of("resp_1", body, [foreign, items.words("Going on.")], 40, 2)
            return Reply(
                raw=[e.decode() for e in response_events(response)] if stream else json.dumps(response)
            )
        made = message_of("msg_1", "m", [foreign, blocks.text("Going on.")], "end_turn", 40, 2)
        spent = [{"type": "compaction", "input_tokens": 900, "output_tokens": 60},
                 {"type": "message", "input_tokens": 40, "output_tokens": 2}]  # fmt: skip
        made["usage"]["iterations"] = spent
        told = b"".join(message_events(made)).replace(
            b'"usage": {"output_tokens": 2}', b'"usage": ' + json.dumps(made["usage"]).encode()
        )
        return Reply(raw=[told.decode()] if stream else json.dumps(made))

    return answer


@pytest.mark.parametrize("mode", ["assist", "answer", "pass"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ["responses", "messages"])
def test_a_compaction_of_upstream_is_held_by_ours_and_comes_back(tmp_path, api, stream, mode):
    foreign = FOREIGN if api == "responses" else {"type": "compaction", "content": "theirs"}
    settings = {"compaction": mode, "context_management": "auto" if mode == "pass" else "pass"}
    with scripted(compacts(api, stream, foreign), tmp_path, **settings) as (server, p):
        body = request(api, stream=stream)
        came = post(p.port, PATHS[api], body, SESSION, BETA)
        compaction, said = parts(api, came)
        assert server.requests[0].body[ASK] == body[ASK]
        assert ("mbc1." in json.dumps(compaction)) == (mode != "pass")
        if api == "messages":
            assert compaction["content"].startswith("theirs")
            assert p.told()[0].usage.input == 940  # the compaction is paid, too
        assert post(p.port, PATHS[api], going_on(api, body, [compaction, said]), SESSION).status == 200
        again = server.requests[-1].body[key_of(api)]
        sent = [i for t in again for i in (t, *(t["content"] if isinstance(t.get("content"), list) else []))]
        assert foreign in sent
        assert "mbc1." not in json.dumps(again)


@pytest.mark.parametrize("api", ["responses", "messages"])
def test_with_pass_nothing_of_it_is_touched(tmp_path, api):
    with scripted(knows_not(api), tmp_path, compaction="pass") as (server, p):
        body = request(api)
        assert post(p.port, PATHS[api], body, SESSION, BETA).status == 400
        assert all(r.body[ASK] == body[ASK] for r in server.requests)
        if api == "messages":
            assert "compact-2026" in server.requests[0].headers["anthropic-beta"]


@pytest.mark.parametrize("thinking", [ADAPTIVE, {"type": "enabled", "budget_tokens": 1024}])
def test_signed_thinking_is_never_refused(tmp_path, thinking):
    """In an agent's loop before an upstream that checks what its thinking is bound to."""
    with served(thinking_script(), tmp_path) as (server, p):
        edits = compact("messages", 1_500)
        told = run(p, SESSION, BETA, thinking=thinking, context_management=edits)
        assert told[-1]["content"][-1]["text"] == "All is well."
        assert sum(t["content"][0]["type"] == "compaction" for t in told[1::2]) >= 2
        assert len(server.refused) <= 4 * (thinking is not ADAPTIVE)  # one for each pause


def test_with_the_client_of_openai(tmp_path):
    with scripted(knows_not("responses"), tmp_path) as (server, p):
        client = OpenAI(base_url=p.base_url, api_key="k")
        body = {k: v for k, v in request("responses").items() if k != "model"}
        answer = client.responses.create(model="m", **body)
        assert [i.type for i in answer.output] == ["compaction", "message"]
        with client.responses.stream(model="m", **body) as stream:
            kinds = [e.type for e in stream]
            final = stream.get_final_response()
        assert kinds[-1] == "response.completed"
        assert [i.type for i in final.output] == ["compaction", "message"]
        later = [*body["input"], *(i.model_dump(exclude_none=True) for i in final.output)]
        assert client.responses.create(model="m", input=later).output_text == "Going on."
        assert "PAY-00007" in json.dumps(server.requests[-1].body)
        assert sum(ASK in r.body for r in server.requests) == 1


@pytest.mark.parametrize(
    ("message", "is_unknown"),
    [
        *((m, True) for m in REFUSALS.values()),
        ("Unrecognized request argument supplied: context_management", True),
        ("Unexpected value(s) `compact-2026-01-12` for the `anthropic-beta` header.", True),
        ("context_management.edits.0: Input tag 'compact_20260112' found using 'type' does not match", True),
        ("Invalid value: 'compaction' (context_management[0].type)", True),
        ("context_management.edits.0.compact_20260112.trigger.value: Input should be 50000 or more", False),
        ("context_management.edits.0.keep: Input should be greater than 0", False),
        ("Invalid 'context_management[0].compact_threshold': must be at least 1000", False),
        ("messages: too long", False),
    ],
)
def test_what_says_that_an_upstream_does_not_know_it(message, is_unknown):
    assert bool(UNKNOWN.search(fail(400, message).content.encode())) is is_unknown
