"""The benchmark of whole agents: tiny shops by each API, and a model that uses only what stands in its request."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memory_bank.pricing import Usage
from memory_bank.transcript.framing import content_of
from tests.audit.test_costs import COUNTER, A, B, C, D, parts, size
from tests.benchmarks import importing, load
from tests.cli.conftest import environment

pytest.importorskip("uvicorn", reason="needs the service")
ROOT = Path(__file__).parents[2]
agents = load("agents")
with importing():
    from agents_model import FRAMES, SUMMARISE, TOOLS, MarkedCache, Shop, Upstream


def row(api: str, strategy: str, kind: str = "native", size: int = 4) -> Any:
    if api not in ("chat", "responses"):
        pytest.importorskip("anthropic", reason="needs anthropic")
    done = agents.run_sdk(agents.Row(size, kind, api, strategy, "tests"))
    assert done.right, done
    assert not done.refused
    return done


@pytest.mark.parametrize("api", agents.APIS)
def test_an_agent_does_its_task_by_every_api_with_memory_and_without(api):
    for strategy in ("none", "memory", *([] if api in agents.THINKING else ["in-process"])):
        done = row(api, strategy)
        assert done.requests >= 11
        assert (done.cached > 0) == (api != "unmarked" or strategy == "memory")  # the proxy adds marks
        assert strategy != "none" or (done.requests, done.missing) == (11, 0)


@pytest.mark.parametrize(("kind", "requests"), [("shell", 11), ("files", 13)])
def test_every_kind_of_tools(kind, requests):
    assert row("chat", "none", kind).requests == requests


def test_an_id_that_was_cut_is_missing_and_costs_requests():
    done = row("chat", "keep-last", size=8)
    assert done.missing > 0
    assert done.requests > 19


def test_an_agent_that_compacts_asks_for_a_summary():
    done = row("chat", "compaction", size=12)
    assert done.requests > 27


def body(*texts: str, tools: tuple[str, ...] = tuple(TOOLS["native"])) -> dict[str, object]:
    offered = [{"type": "function", "function": {"name": name}} for name in tools]
    return {"messages": [{"role": "user", "content": text} for text in texts], "tools": offered}


def test_the_model_uses_no_id_that_its_request_does_not_hold():
    shop = Shop("tests", 4)
    model = Upstream(shop, "native", "chat")
    assert model(body("go")).tool_calls[0][0] == "list_orders"
    again = model(body("nothing here"))
    assert [name for name, *_ in again.tool_calls] == ["list_orders"]
    assert model.missing == {(1, shop.orders[0])}
    asked = model(body("nothing here, but a record [… #2]", tools=(*TOOLS["native"], "get_record")))
    assert asked.tool_calls[0][:2] == (
        "get_record", {"record": "#2", "path": None, "lines": None, "pattern": None},
    )  # fmt: skip
    found = model(body(shop.orders[0]))
    assert found.tool_calls[0][:2] == ("get_order", {"order_id": shop.orders[0]})
    assert len(model.missing) == 1


def test_a_summary_keeps_the_newest_ids_and_is_charged():
    shop = Shop("tests", 30)
    model = Upstream(shop, "native", "chat")
    said = model(body(" ".join(shop.orders), SUMMARISE))
    assert shop.orders[-1] in str(said.content)
    assert shop.orders[0] not in str(said.content)
    assert model.usage[0].output > 1_000


@pytest.mark.long
def test_the_command_prints_tables_and_writes_what_was_run(tmp_path):
    command = [
        "--sizes",
        "4",
        "--tools",
        "native",
        "--apis",
        "chat",
        "--strategies",
        "none",
        "memory",
        "--readme",
    ]
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "agents.py", *command, "--json", tmp_path / "rows.json"],
        env=environment(PYTHONPATH=str(ROOT / "src")), cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| 11 | native | chat | none | none | 11 | 100% | 0.0 |" in done.stdout
    row = r"^\| SDKs \| 11 \| \*\*memory_bank, by the proxy\*\* \| \d+% \| 0\.0 "
    assert re.search(row, done.stdout, re.M)
    written = json.loads((tmp_path / "rows.json").read_text())
    assert {"commit", "settings", "seeds", "machine", "counter", "prices"} <= set(written)
    assert [r["strategy"] for r in written["rows"]] == ["none", "memory"]


def test_with_marks_only_what_they_end_is_written_and_read():
    cache = MarkedCache(COUNTER)
    assert cache.add_marked(parts(A, B, C), ()) == Usage(size(A, B, C))
    assert cache.add_marked(parts(A, B, C), (2,)) == Usage(size(A, B, C), 0, size(A, B))
    assert cache.add_marked(parts(A, B, D), (1, 3)) == Usage(size(A, B, D), size(A, B), size(D))
    assert cache.add_marked(parts(A, C), (2,)) == Usage(size(A, C), size(A), size(C))
    assert cache.add_marked(parts(B, A), (2,)).cached == 0


def test_a_written_prefix_is_found_at_most_20_parts_before_a_mark():
    cache = MarkedCache(COUNTER)
    cache.add_marked(parts(A), (1,))
    more = [f"part {i}" for i in range(20)]
    assert cache.add_marked(parts(A, *more[:19]), (20,)).cached == size(A)
    assert cache.add_marked(parts(A, "other", *more), (22,)).cached == 0


def test_an_output_is_read_within_every_frame():
    shop = Shop("run-0", 4)
    text = shop.answer("get_order", shop.orders[0])
    for frame in FRAMES.values():
        assert content_of(frame(text)).value == json.loads(text)
