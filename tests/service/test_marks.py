"""A person has a record forgotten through the API and over MCP: its content is gone, and the log has none of it."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.chats import rounds
from tests.service.proxied import configured, proxied


def asked(p, method, path, body=None):
    answer = p.ask(f"/v1{path}", method, body)
    return answer.status, answer.json() if answer.body else None


def test_a_record_is_forgotten(tmp_path, caplog):
    caplog.set_level(logging.INFO, "memory_bank.Service")
    config = configured(upstream="http://127.0.0.1:9/v1", database=str(tmp_path / "bank.db"))
    with proxied("", "", config) as p:
        chat = {"messages": [{"role": "user", "content": "Look."}, *rounds(6, size=300)]}
        assert asked(p, "POST", "/sessions/s/context", chat)[0] == 200
        record = "/sessions/s/records/2"
        status, found = asked(p, "GET", record)
        assert (status, found["mark"], found["raw_output"]["order_id"]) == (200, None, "ORD-1001")
        assert p.service.recorder.drain(60)
        assert asked(p, "DELETE", "/sessions/s/records/99")[0] == 404
        for _ in range(2):
            assert asked(p, "DELETE", record) == (204, None)
        assert asked(p, "POST", "/sessions/s/context", chat)[0] == 200
        status, found = asked(p, "GET", record)
        assert (found["mark"], found["output_text"], found["insight"]) == ("forgotten", "[forgotten]", None)
        marks = [r["mark"] for r in asked(p, "GET", "/sessions/s/records")[1]["records"]]
        assert marks[:3] == [None, "forgotten", None]
        assert len([line for line in p.lines if "a person had the record" in line]) == 2
    assert "ORD-1001" not in "".join(p.lines)


def test_a_record_is_forgotten_over_mcp(tmp_path):
    mcp = pytest.importorskip("mcp")
    config = configured(upstream="http://127.0.0.1:9/v1", database=str(tmp_path / "bank.db"))
    with proxied("", "", config) as p:
        chat = {"messages": [{"role": "user", "content": "Look."}, *rounds(3)]}
        asked(p, "POST", "/sessions/s/context", chat)
        records = asked(p, "GET", "/sessions/s/records")[1]["records"]

        async def call(**given):
            async with mcp.Client(f"{p.base_url[:-3]}/mcp") as client:
                return await client.call_tool("forget_record", given)

        assert not asyncio.run(call(trace_id=records[1]["trace_id"])).is_error
        assert asyncio.run(call(trace_id="unknown")).is_error
        assert asyncio.run(call(trace_id=records[2]["trace_id"], mark="pinned")).is_error
        marks = [r["mark"] for r in asked(p, "GET", "/sessions/s/records")[1]["records"]]
    assert marks == [None, "forgotten", None]
