"""An agent framework uses the memory as an MCP server, over HTTP and over stdio."""

import asyncio
import json

import pytest
from tests.service.mcp_clients import command, fill, http_server

from memory_bank.bank.database import Database
from memory_bank.config import load_config
from memory_bank.service.sessions import Sessions
from memory_bank.testing import ScriptedServer, call, say
from memory_bank.transcript.messages import Interaction, is_memory_tool, parse_messages

agents = pytest.importorskip("agents")
mcp = pytest.importorskip("agents.mcp")


@pytest.mark.parametrize(("way", "structured"), [("http", False), ("http", True), ("stdio", False)])
def test_an_agent_gets_back_what_it_asks_for(tmp_path, way, structured):
    agents.set_tracing_disabled(True)
    database = Database(tmp_path / "bank.db")
    fill(database, None, "main", [f"the parcel PX-{n} is late" for n in range(30)])

    def found(body):
        last = json.dumps(body["messages"][-1])
        return call("get_record", record=last.split("[1] ")[1].split(" ")[0])

    script = [
        call("get_record", record="PX-17"),
        found,
        call("get_record", record="#99"),
        say("It is late."),
    ]
    options = {"use_structured_content": structured, "client_session_timeout_seconds": 60}
    with ScriptedServer(script) as model, http_server(Sessions(database, load_config())) as url:
        if way == "http":
            server = mcp.MCPServerStreamableHttp(
                {"url": url, "headers": {"x-memory-session": "main"}}, **options
            )
        else:
            started = command("--db", str(tmp_path / "bank.db"))
            how = {"command": started.command, "args": started.args, "env": started.env}
            server = mcp.MCPServerStdio(how, **options)

        async def main():
            client = agents.AsyncOpenAI(base_url=model.base_url, api_key="x")
            chat = agents.OpenAIChatCompletionsModel(model="m", openai_client=client)
            async with server:
                agent = agents.Agent(name="a", model=chat, mcp_servers=[server])
                done = await agents.Runner.run(agent, "Where is PX-17?")
            await client.close()
            return done.final_output

        assert asyncio.run(main()) == "It is late."
        assert model.refused == []
        messages = model.requests[-1].body["messages"]
    offered = [t["function"]["name"] for t in model.requests[0].body["tools"]]
    assert offered == ["get_record", "forget_record"]
    results = [m for m in messages if m["role"] == "tool"]
    assert "the parcel PX-17 is late" in json.dumps(results[1])
    assert "this session has #1 to #30" in json.dumps(results[2])
    pairs = [p for s in parse_messages(messages) if isinstance(s, Interaction) for p in s.pairs]
    assert all(is_memory_tool(p.tool_name, p.result.output_text) for p in pairs[:2])
    database.close()
