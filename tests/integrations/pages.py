"""The examples of the page on frameworks: each is run as it stands, against a scripted model."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

from memory_bank.testing import Reply, ScriptedServer, calls, say

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "frameworks.md"
ORDERS = 20
ANSWER = "Order 7 is late."


def get_order(number: int) -> str:
    """An order with its lines.

    Args:
        number: the order's number.
    """
    rng = random.Random(number)
    lines = [{"sku": f"SKU-{rng.randrange(10**7)}", "count": rng.randrange(9)} for _ in range(240)]
    return json.dumps({"order": f"<{number}>", "lines": lines})


def run_example(test: str, monkeypatch: Any, *, final: str = "") -> list[str]:
    """Run the block that is marked with a test's name; return the requests. ``final``: a tool that answers."""
    [code] = re.findall(rf"<!-- run by: {test} -->\n```python\n(.*?)```", PAGE.read_text(), re.S)
    sent: list[str] = []

    def model(body: dict[str, Any]) -> Reply:
        sent.append(json.dumps(body.get("messages") or body.get("input")))
        number = max(map(int, re.findall(r"<(\d+)>", sent[-1])), default=0) + 1
        if number <= ORDERS:
            return calls(("get_order", {"number": number}))
        return calls((final, {"answer": ANSWER})) if final else say(ANSWER)

    with ScriptedServer(model) as server:
        for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE"):
            monkeypatch.setenv(name, server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.base_url.removesuffix("/v1"))
        monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
        exec(compile(code, str(PAGE), "exec"), {"get_order": get_order})
        assert server.refused == []
    assert len(sent) == ORDERS + 1
    assert max(map(len, sent)) < 0.8 * sum(len(get_order(n)) for n in range(ORDERS))
    return sent
