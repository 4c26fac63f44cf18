"""A long task for agents: what the model calls, step by step, what the tools say, and what must hold upstream."""

from __future__ import annotations

import json
import random
from typing import Any

from memory_bank.service.app import Service
from memory_bank.testing import Reply, calls, say
from memory_bank.transcript.messages import Interaction, parse_messages
from memory_bank.transcript.tokens import open_counter

SYSTEM = "You check the orders of a shop."
TASK = "Check every order and its parcel, then report."
STEPS = 20
PARALLEL = 4  # of so many steps one makes two calls


def script() -> list[Reply]:
    """The model's turns, then words."""
    turns = []
    for step in range(STEPS):
        asked = [("get_order", {"number": step})]
        if step % PARALLEL == 0:
            asked.append(("get_parcel", {"number": step}))
        turns.append(calls(*asked, content=f"Step {step}." if step % 3 == 0 else None))
    return [*turns, say("All is well.")]


def get_order(number: int) -> str:
    """An order with its lines, some thousand characters."""
    rng = random.Random(number)
    lines = [{"sku": f"SKU-{rng.randrange(10**6)}", "count": rng.randrange(9)} for _ in range(60)]
    return json.dumps(
        {"order": f"ORD-{1000 + number}", "customer": f"CUS-{rng.randrange(999)}", "lines": lines},
        separators=(",", ":"),  # as it is shown at first sight
    )


def get_parcel(number: int) -> str:
    """Where an order's parcel was seen."""
    rng = random.Random(-number - 1)
    return json.dumps(
        [{"depot": f"D{rng.randrange(99)}", "at": rng.randrange(10**9)} for _ in range(50)],
        separators=(",", ":"),
    )


HANDLERS = {"get_order": get_order, "get_parcel": get_parcel}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": (handler.__doc__ or "").strip(),
            "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}},
        },
    }
    for name, handler in HANDLERS.items()
]


def check_budget(service: Service, sent: list[list[Any]]) -> None:
    """Every list of messages that went upstream: anchor, at most the budget of memory, last interaction.

    From where the task's history is larger than that, so is none of what went upstream.
    """
    settings: Any = service.config.strategy(service.sessions.strategy)
    counter = open_counter(settings.token_encoding)
    sizes = []
    for messages in sent:
        segments = parse_messages(messages)
        own = [s for s in segments if isinstance(s, Interaction)]
        tail = counted(counter, segments[segments.index(own[-1]) :]) if own else 0
        whole = counted(counter, segments)
        anchor = counted(counter, segments[: 2 if messages[0]["role"] == "system" else 1])
        assert whole - tail - anchor <= settings.history_budget, len(sizes)
        sizes.append(whole)
    assert len(sizes) > STEPS
    largest = settings.history_budget + 2 * counter.count_text(get_order(0)) + 500
    assert max(sizes) < largest < counter.count_text(get_order(0)) * STEPS / 2


def counted(counter: Any, segments: Any) -> int:
    return sum(counter.count_message(m) for s in segments for m in s.messages)
