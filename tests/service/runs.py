"""Runs of an agent for the tests of the page: recorded ones, generated ones, and what a hostile tool answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.chats import call, result, system, user

EXAMPLES = Path(__file__).parents[2] / "examples"
Messages = list[Any]


def recorded(name: str) -> list[Messages]:
    """What an agent sent at each of its steps."""
    messages = json.loads((EXAMPLES / f"{name}.jsonl").read_text().splitlines()[0])["messages"]
    return [messages[:i] for i, m in enumerate(messages) if m["role"] == "assistant"]


def orders(n: int, rows: int = 30) -> Messages:
    """A chat of so many calls, each with an answer of its own."""
    messages = [system("You look after orders."), user("Which orders are late?")]
    for i in range(n):
        found = [{"order": f"ORD-{i:04}{k:02}", "sku": f"SKU-{i * 97 + k * 13}"} for k in range(rows)]
        messages += [
            call((f"c{i}", "get_order", {"number": i})),
            result(f"c{i}", json.dumps(found, indent=1)),
        ]
    return messages
