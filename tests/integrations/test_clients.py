"""Real clients through the proxy: those that are installed run 25 steps, and the pages name them all."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest
from tests.benchmarks import importing

pytest.importorskip("uvicorn", reason="needs the service")
ROOT = Path(__file__).parents[2]
with importing():
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
    is_ready = (clients.place_of(name) / ".ready").exists()
    if not is_ready and (client.npm or not all(map(is_here, client.packages))):
        pytest.skip(f"{name} is not installed: `python benchmarks/clients.py {name}` installs it")
    row = clients.run_client(name, clients.place_of(name), tmp_path)
    assert row.errors == [], row.output
    assert row.good, f"{row}\n{row.output}"
    assert row.requests >= clients.STEPS
    return row


@pytest.mark.parametrize("name", [n for n in clients.CLIENTS if n not in RECIPES])
def test_a_client(name: str, tmp_path: Path) -> None:
    run(name, tmp_path)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_for_node(name: str, tmp_path: Path) -> None:
    run(name, tmp_path)


def test_the_recipes_for_node_are_those_of_the_page() -> None:
    headings = re.findall(r"^## (.+)$", clients.TYPESCRIPT.read_text(), re.M)
    assert len(headings) == len(RECIPES) == 3
    assert all("process.argv[2]" in clients.recipe(heading) for heading in headings)


def test_the_pages_name_every_client() -> None:
    table = (ROOT / "docs" / "benchmarks" / "clients.md").read_text()
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("|")]
    assert clients.HEAD in table
    assert rows[2:] == [client.shown for client in clients.CLIENTS.values()]


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
