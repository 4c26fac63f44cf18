"""Images and files in older results, over the service: named in contexts and for the Observer, given back whole."""

from __future__ import annotations

import base64
import json
import random

import pytest
from tests.chats import FOLDING
from tests.examples import first_short
from tests.service.proxied import post, scripted
from tests.service.requests import PATHS
from tests.service.requests import body_of as request_of

from memory_bank.testing import call as calling
from memory_bank.testing import say

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


def body_of(api):
    """A conversation whose results are a text, and an image and a file where the API has such parts."""
    outputs = []
    for n in range(STEPS):
        url, file = f"data:image/png;base64,{png(n)}", f"data:application/pdf;base64,{pdf(n)}"
        if api == "messages":
            image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": png(n)}}
            source = {"type": "base64", "media_type": "application/pdf", "data": pdf(n)}
            parts = [
                {"type": "text", "text": rows(n)},
                image,
                {"type": "document", "title": f"page-{n}.pdf", "source": source},
            ]
        elif api == "responses":
            image = {"type": "input_image", "image_url": url, "detail": "auto"}
            parts = [
                {"type": "input_text", "text": rows(n)},
                image,
                {"type": "input_file", "filename": f"page-{n}.pdf", "file_data": file},
            ]
        else:
            parts = [{"type": "text", "text": rows(n)}, {"type": "image_url", "image_url": {"url": url}}]
        outputs.append(parts if n % 2 else as_text(n))
    plot = {"type": "function", "function": {"name": "plot", "parameters": {"type": "object"}}}
    return request_of(api, outputs, [plot], "plot")


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
    "observed": {
        "type": "memory_bank",
        "embedding_model": "lexical",
        "observer_model": "m",
        "selection": "top_k",
    },
}


def served(script, tmp_path, strategy, **service):
    return scripted(script, tmp_path, STRATEGIES, strategy=strategy, **service)


def parts_of(value):
    """All objects in a value."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from parts_of(inner)


@pytest.mark.parametrize("strategy", first_short(STRATEGIES))
@pytest.mark.parametrize("api", PATHS)
def test_base64_of_older_results_is_in_no_context(tmp_path, api, strategy, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    body = body_of(api)
    with served(lambda _: say("It shows orders."), tmp_path, strategy, cache_markers="off") as (server, p):
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        assert post(p.port, PATHS[api], body, SESSION).status == 200
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
@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize("number", [3, 4])
def test_get_record_returns_the_part_where_the_api_carries_it(tmp_path, api, number, stream):
    fetch = calling("get_record", trace_id=f"#{number + 1}")
    body = body_of(api)
    with served([fetch, say("I see.")], tmp_path, "native", inject_tools=True) as (server, p):
        assert post(p.port, PATHS[api], {**body, "stream": stream}, SESSION).status == 200
        assert server.refused == []
    last = server.requests[1].body
    answered = (last.get("messages") or last["input"])[-1]
    content = answered.get("output") or answered["content"]
    if api == "messages":
        [block] = content
        content = block["content"]
    named = "[image/png, 3 kB]"
    if api == "chat" or not number % 2:  # text, as it came
        assert named in content
        assert png(number)[200:240] not in content
        return
    text, *parts = content
    assert named in text["text"]
    assert png(number)[200:240] not in text["text"]
    given = [part for part in parts_of(body) if part in parts]
    assert len(given) == len(parts) == 2  # the very parts of the result
