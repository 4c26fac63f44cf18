"""Real clients through the proxy: those that are installed run 25 steps, and the pages name them all."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
from pathlib import Path

import pytest
from tests.benchmarks import importing
from tests.examples import first_short

from memory_bank.testing import ScriptedServer, say

pytest.importorskip("uvicorn", reason="needs the service")
ROOT = Path(__file__).parents[2]
with importing():
    import client_sessions
    import clients

RECIPES = [
    name for name, client in clients.CLIENTS.items() if client.command.__qualname__.startswith("typescript")
]


def is_here(package: str) -> bool:
    """Whether a distribution is installed in this environment, with the packages of its extra left out."""
    try:
        importlib.metadata.version(re.split(r"[\[<>=]", package)[0])
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def run(name: str, tmp_path: Path) -> clients.Row:
    client = clients.CLIENTS[name]
    if not ready(name) and (client.npm or not all(map(is_here, client.packages))):
        pytest.skip(f"{name} is not installed: `python benchmarks/clients.py {name}` installs it")
    row = clients.run_client(name, clients.place_of(name), tmp_path)
    assert row.errors == [], row.output
    assert row.good, f"{row}\n{row.output}"
    assert row.requests >= clients.STEPS
    return row


@pytest.mark.parametrize("name", first_short([n for n in clients.CLIENTS if n not in RECIPES]))
def test_a_client(name: str, tmp_path: Path) -> None:
    run(name, tmp_path)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_for_node(name: str, tmp_path: Path) -> None:
    run(name, tmp_path)


PAGE = (ROOT / "docs" / "howto" / "connect.md").read_text()
SNIPPETS = {  # a tab of the page, and the client whose environment has its packages
    "openai (Python)": "openai", "openai (Node)": "openai-node", "Anthropic": "anthropic", "LangChain": "langchain",
    "LlamaIndex": "llama_index", "OpenAI Agents SDK": "openai_agents", "Pydantic AI": "pydantic_ai",
    "LiteLLM": "litellm", "Vercel ai": "ai", "LangChain.js": "langchain-js",
}  # fmt: skip


@pytest.mark.parametrize("tab", SNIPPETS)
def test_a_client_of_the_page(tab: str, tmp_path: Path) -> None:
    """What one copies from the page asks upstream through the service."""
    name = SNIPPETS[tab]
    client, place = clients.CLIENTS[name], clients.place_of(name)
    if not ready(name) and (client.npm or not all(map(is_here, client.packages))):
        pytest.skip(f"{name} is not installed: `python benchmarks/clients.py {name}` installs it")
    [(language, code)] = re.findall(
        rf"^/// tab \| {re.escape(tab)}\n<!--[^\n]*\n```(\w+)\n(.*?)```", PAGE, re.S | re.M
    )
    script = (place if client.npm else tmp_path) / ("snippet.mjs" if language == "js" else "snippet.py")
    with (
        ScriptedServer(lambda _: say("Hello to you.")) as server,
        clients.serving(server, tmp_path / "bank.db") as (url, recorded),
    ):
        script.write_text(code.replace("http://127.0.0.1:8767", url))
        run = clients.Run(tmp_path, tmp_path, "http://127.0.0.1:9")  # the code alone names the address
        command = ["node", str(script)] if language == "js" else [str(clients.python_of(place)), str(script)]
        done = subprocess.run(
            command,
            env=run.environment("OPENAI_BASE_URL"),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.stdout.strip().endswith("Hello to you."), done.stderr
    assert server.refused == []
    assert len(server.requests) >= 1
    assert any(e.status == 200 for e in recorded)


def test_the_tabs_of_the_page_are_all_run() -> None:
    tabs = PAGE.split("## Your own program")[1].split("\n## ")[0]
    assert re.findall(r"^/// tab \| (.+)$", tabs, re.M) == list(SNIPPETS)


def test_the_recipes_for_node_are_those_of_the_page() -> None:
    headings = re.findall(r"^## (.+)$", clients.TYPESCRIPT.read_text(), re.M)
    assert len(headings) == len(RECIPES) == 3
    assert all("process.argv[2]" in clients.recipe(heading) for heading in headings)


def test_the_pages_name_every_client() -> None:
    page = (ROOT / "docs" / "benchmarks" / "clients.md").read_text()
    for head, known in (
        (clients.HEAD, [client.shown for client in clients.CLIENTS.values()]),
        (client_sessions.HEAD, [clients.CLIENTS[name].shown for name, *_ in client_sessions.CASES.values()]),
    ):
        _, found, table = page.partition(f"{head}\n")
        assert found
        assert [line.split("|")[1].strip() for line in table.partition("\n\n")[0].splitlines()] == known


def ready(client: str) -> bool:
    return (clients.place_of(client) / ".ready").exists()


@pytest.mark.parametrize("name", client_sessions.CASES)
def test_what_a_coding_agent_does_to_a_session(name: str) -> None:
    """Nothing undone is in a request, no request is made twice, and the figures are those of what was sent."""
    client = client_sessions.CASES[name][0]
    if not ready(client):
        pytest.skip(f"{client} is not installed: `python benchmarks/clients.py {client}` installs it")
    without, given = (client_sessions.measure(name, holdout=share) for share in (1.0, 0.0))
    assert given.right, given.output
    assert given.undone == 0
    assert given.requests <= without.requests + (name == "refused")
    assert given.paid <= 1.05 * without.paid
    # after a compaction what was lost is shown where what was saved before pays for it
    assert given.memory.startswith("rebuilt") or name in ("compacts", "codex-compacts")
    assert (given.full - given.tokens) / given.full == pytest.approx(1 - given.arrived / given.came, abs=0.02)


def test_an_id_of_another_window_is_counted() -> None:
    orders = client_sessions.Orders("x")
    model = client_sessions.Model(orders)
    said = [client_sessions.task(101, 102, 101), orders.text(101), orders.text(201)]
    reply = model({"messages": [{"role": "user", "content": t} for t in said], "tools": [{"name": "Bash"}]})
    assert list(reply.tool_calls) == [("Bash", client_sessions.SHELLS["Bash"]("cat orders/102.json"))]
    assert model.undone(client_sessions._branches(), []) == 1
    assert model.undone(client_sessions._branches((101, 201)), []) == 0
    own = {"messages": [{"role": "user", "content": t} for t in said]}
    assert model.undone(client_sessions._branches(), [own]) == 0  # the client has read it


def test_a_model_that_lacks_an_id_reads_the_order_again_and_never_invents_one() -> None:
    orders = clients.Orders("x")
    model = clients.Model(orders)
    tools = [{"type": "function", "function": {"name": "get_order"}}]
    shown = orders.text(clients.STEPS)
    asked = []
    while (reply := model({"messages": [{"role": "tool", "content": shown}], "tools": tools})).tool_calls:
        asked.append(reply.tool_calls[0][1]["number"])
    assert asked == list(clients.WANTED)
    assert model.again == len(clients.WANTED)
    assert reply.content == clients.sentence(["unknown", "unknown"])


def test_a_client_that_does_not_do_its_task_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(clients.CLIENTS, "none", clients.agent("none", "pytest"))
    row = clients.run_client("none", tmp_path, tmp_path / "run")
    assert "KeyError: 'none'" in row.output
    assert not row.good
    assert row.requests == 0
