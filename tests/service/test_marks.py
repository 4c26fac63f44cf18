"""A person pins, excludes and forgets records through the API; the next step uses it, the log has no contents."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from tests.chats import rounds
from tests.service.proxied import configured, proxied


def asked(p, method, path, body=None):
    answer = p.ask(f"/v1{path}", method, body)
    return answer.status, answer.json() if answer.body else None


def test_a_record_is_excluded_pinned_and_forgotten(tmp_path, caplog):
    caplog.set_level(logging.INFO, "memory_bank.Service")
    config = configured(upstream="http://127.0.0.1:9/v1", database=str(tmp_path / "bank.db"))
    with proxied("", "", config) as p:
        messages = rounds(6, size=300)
        chat = {"messages": [{"role": "user", "content": "Look."}, *messages]}
        record = "/sessions/s/records/2"

        def context():
            status, built = asked(p, "POST", "/sessions/s/context", chat)
            assert status == 200
            return json.dumps(built["messages"])

        assert "ORD-1001" in context()
        assert asked(p, "PUT", f"{record}/mark", {"mark": "excluded"}) == (204, None)
        assert "ORD-1001" not in context()
        status, found = asked(p, "GET", record)
        assert (status, found["mark"], found["raw_output"]["order_id"]) == (200, "excluded", "ORD-1001")
        marks = [r["mark"] for r in asked(p, "GET", "/sessions/s/records")[1]["records"]]
        assert marks[:3] == [None, "excluded", None]
        assert asked(p, "PUT", f"{record}/mark", {"mark": "pinned"})[0] == 204
        assert "ORD-1001" in context()
        assert asked(p, "PUT", f"{record}/mark", {"mark": "gone"})[0] == 422
        assert asked(p, "PUT", "/sessions/s/records/99/mark", {"mark": None})[0] == 404
        assert p.service.recorder.drain(60)
        assert asked(p, "DELETE", record) == (204, None)
        assert "ORD-1001" not in context()
        status, found = asked(p, "GET", record)
        assert (found["mark"], found["output_text"], found["insight"]) == ("forgotten", "[forgotten]", None)
        assert asked(p, "PUT", f"{record}/mark", {"mark": "pinned"})[0] == 404
        marked = [line for line in p.lines if "a person marked" in line]
    assert len(marked) == 3
    assert "ORD-1001" not in "".join(p.lines)


def test_a_record_is_marked_over_mcp(tmp_path):
    mcp = pytest.importorskip("mcp")
    config = configured(upstream="http://127.0.0.1:9/v1", database=str(tmp_path / "bank.db"))
    with proxied("", "", config) as p:
        chat = {"messages": [{"role": "user", "content": "Look."}, *rounds(3)]}
        asked(p, "POST", "/sessions/s/context", chat)
        records = asked(p, "GET", "/sessions/s/records")[1]["records"]

        async def call(trace_id, mark):
            async with mcp.Client(f"{p.base_url[:-3]}/mcp") as client:
                return await client.call_tool("mark_record", {"trace_id": trace_id, "mark": mark})

        assert not asyncio.run(call(records[0]["trace_id"], "excluded")).is_error
        assert not asyncio.run(call(records[1]["trace_id"], "forgotten")).is_error
        assert asyncio.run(call(records[1]["trace_id"], "pinned")).is_error
        assert asyncio.run(call("unknown", "pinned")).is_error
        assert asyncio.run(call(records[2]["trace_id"], "gone")).is_error
        marks = [r["mark"] for r in asked(p, "GET", "/sessions/s/records")[1]["records"]]
    assert marks == ["excluded", "forgotten", None]
