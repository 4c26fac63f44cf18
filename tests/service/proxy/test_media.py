"""Images and files in older results, over the service: named in contexts and for the Observer, given back whole."""

from __future__ import annotations

import base64
import json
import random

import pytest
from tests.blocks import answer, turn, use, user
from tests.chats import FOLDING, call, result
from tests.examples import first_short
from tests.service.proxied import post, proxied

from memory_bank.config import Config
from memory_bank.testing import ScriptedServer, say
from memory_bank.testing import call as calling

SESSION = b"x-memory-session: pictures"
STEPS = 14


def png(n):
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + random.Random(n).randbytes(3_000)).decode()


def pdf(n):
    return base64.b64encode(b"%PDF-1.7\n" + random.Random(-n).randbytes(3_000)).decode()


def rows(n):
    return json.dumps([{"order": f"ORD-{n}{i:02}", "note": "x" * 40} for i in range(20)])


def as_text(n):
    """What an MCP server returned, as clients write it into a text."""
    return json.dumps(
        {"content": [{"type": "image", "data": png(n), "mimeType": "image/png"}], "rows": rows(n)}
    )


def messages_body(steps=STEPS):
    messages = [user("Look at the charts.")]
    for n in range(steps):
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": png(n)}}
        file = {"type": "document", "title": f"page-{n}.pdf"}
        file |= {"source": {"type": "base64", "media_type": "application/pdf", "data": pdf(n)}}
        content = [{"type": "text", "text": rows(n)}, image, file] if n % 2 else as_text(n)
        messages += [turn(use(f"toolu_{n}", "plot", number=n)), user(answer(f"toolu_{n}", content))]
    tools = [{"name": "plot", "input_schema": {"type": "object"}}]
    return "/v1/messages", {"model": "m", "max_tokens": 9, "messages": messages, "tools": tools}


def responses_body(steps=STEPS):
    items = [{"role": "user", "content": "Look at the charts."}]
    for n in range(steps):
        image = {"type": "input_image", "image_url": f"data:image/png;base64,{png(n)}", "detail": "auto"}
        file = {
            "type": "input_file",
            "filename": f"page-{n}.pdf",
            "file_data": f"data:application/pdf;base64,{pdf(n)}",
        }
        content = [{"type": "input_text", "text": rows(n)}, image, file] if n % 2 else as_text(n)
        made = {"name": "plot", "arguments": json.dumps({"number": n})}
        items += [
            {"type": "function_call", "call_id": f"c{n}", **made},
            {"type": "function_call_output", "call_id": f"c{n}", "output": content},
        ]
    tools = [{"type": "function", "name": "plot", "parameters": {"type": "object"}}]
    return "/v1/responses", {"model": "m", "input": items, "tools": tools}


def chat_body(steps=STEPS):
    messages = [{"role": "user", "content": "Look at the charts."}]
    for n in range(steps):
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png(n)}"}}
        content = [{"type": "text", "text": rows(n)}, image] if n % 2 else as_text(n)
        messages += [call((f"c{n}", "plot", {"number": n})), result(f"c{n}", content)]
    tools = [{"type": "function", "function": {"name": "plot", "parameters": {"type": "object"}}}]
    return "/v1/chat/completions", {"model": "m", "messages": messages, "tools": tools}


STRATEGIES = {
    "native": FOLDING,
    "block": FOLDING | {"layout": "block"},
    "top_k": {
        "type": "memory_bank",
        "selection": "top_k",
        "embedding_model": "lexical",
        "observer_model": "extractive",
    },
    "masking": {"type": "observation_masking", "max_length": 400},
    "hierarchical": {"type": "hierarchical", "max_tokens": 6_000},
    "scratchpad": {"type": "scratchpad", "scratchpad_tokens": 2_000},
    "observed": {
        "type": "memory_bank",
        "embedding_model": "lexical",
        "observer_model": "m",
        "selection": "top_k",
    },
}


def configured(server, tmp_path, strategy, **service):
    addresses = {"upstream": server.base_url, "upstream_anthropic": server.base_url.removesuffix("/v1")}
    return Config(
        memory_strategies=STRATEGIES,
        default_strategy=strategy,
        service={**addresses, "database": str(tmp_path / "bank.db"), "memory_timeout": 60.0, **service},
    )


def parts_of(value):
    """All objects in a value."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from parts_of(inner)


@pytest.mark.parametrize("strategy", first_short(STRATEGIES))
@pytest.mark.parametrize("body_of", [messages_body, responses_body, chat_body])
def test_base64_of_older_results_is_in_no_context(tmp_path, body_of, strategy, monkeypatch):
    with ScriptedServer(lambda _: say("It shows orders.")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        with proxied("", "", configured(server, tmp_path, strategy)) as p:
            path, body = body_of()
            assert post(p.port, path, body, SESSION).status == 200
            [told] = p.told(1)
            assert told.memory == "rebuilt"
            with p.service.sessions.reading(None, "pictures") as state:
                records = state.fact_store.get_many(list(state.steps))
        assert server.refused == []
    originals = [p for p in parts_of(body) if "role" in p or "type" in p]
    contexts = [r.body for r in server.requests]
    for n in range(STEPS):
        for data in (png(n), pdf(n)):
            for context in contexts:
                holding = [o for o in parts_of(context) if data[200:240] in json.dumps(o)]
                assert not holding or any(o in originals for o in holding), (n, holding[-1])
    assert [png(n) in json.dumps(r.raw_output) for n, r in enumerate(records)] == [True] * STEPS
    assert all(r.output_text == as_text(n) for n, r in enumerate(records) if not n % 2)
    if strategy in ("native", "block", "top_k"):
        assert "[image/png, 3 kB]" in json.dumps(contexts[-1])


@pytest.mark.parametrize("stream", first_short([False, True]))
@pytest.mark.parametrize("body_of", [messages_body, responses_body, chat_body])
@pytest.mark.parametrize("number", [3, 4])
def test_get_record_returns_the_part_where_the_api_carries_it(tmp_path, body_of, number, stream):
    fetch = calling("get_record", trace_id=f"#{number + 1}")
    with ScriptedServer([fetch, say("I see.")]) as server:
        with proxied("", "", configured(server, tmp_path, "native", inject_tools=True)) as p:
            path, body = body_of()
            assert post(p.port, path, {**body, "stream": stream}, SESSION).status == 200
        assert server.refused == []
    last = server.requests[1].body
    answered = (last.get("messages") or last["input"])[-1]
    content = answered.get("output") or answered["content"]
    if "messages" in path:
        [block] = content
        content = block["content"]
    named = "[image/png, 3 kB]"
    if body_of is chat_body or not number % 2:  # text, as it came
        assert named in content
        assert png(number)[200:240] not in content
        return
    text, *parts = content
    assert named in text["text"]
    assert png(number)[200:240] not in text["text"]
    given = [part for part in parts_of(body) if part in parts]
    assert len(given) == len(parts) == 2  # the very parts of the result
