"""Small experiments: recorded runs and TOML files in a folder of the test's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.chats import call, result, system, user

REPLAY = """
name = "small"
strategies = ["full", "truncation", "keep_last_n?n=2"]
counter = "approximate"
[cost]
price_per_million = 2.0
cached_discount = 0.75
[[suites]]
kind = "replay"
name = "orders"
files = ["runs.jsonl"]
"""


def run(n: int, turns: int = 5) -> dict[str, Any]:
    """A run in which every call uses an id that the first output told."""
    ids = [f"ORD-{n}{i}77" for i in range(turns)]
    messages = [system(), user("Look at all orders and say which is late")]
    messages += [
        call(("c0", "list_orders", {})),
        result("c0", json.dumps({"orders": ids, "note": "x" * 300})),
    ]
    for i, order in enumerate(ids, 1):
        messages += [
            call((f"c{i}", "get_order", {"id": order})),
            result(f"c{i}", json.dumps({"n": i, "at": "B" * 200})),
        ]
    return {"id": f"run-{n}", "messages": [*messages, {"role": "assistant", "content": f"{ids[-1]} is late"}]}


@pytest.fixture
def experiment(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str = REPLAY, runs: int = 4) -> Path:
        with open(tmp_path / "runs.jsonl", "w") as f:
            f.writelines(json.dumps(run(n)) + "\n" for n in range(runs))
        path = tmp_path / "experiment.toml"
        path.write_text(text)
        return path

    return write


def results_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of units in a results file."""
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    return [line for line in lines if "unit" in line]
