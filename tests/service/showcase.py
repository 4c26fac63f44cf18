"""A service that agents have worked with for some days: recorded runs, sent through the proxy to a scripted provider."""

from __future__ import annotations

import json
import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.chats import call, result, system, user
from tests.service.proxied import post, scripted
from tests.service.runs import EXAMPLES

from memory_bank.config import load_config
from memory_bank.testing import Reply, fail

CHAT = "/v1/chat/completions"
RATE = "Rate limit reached for gpt-5 on tokens per min (TPM): limit 450,000, used 449,120, requested 9,841."
EVENTS = [
    {"id": f"evt_{n:03}", "title": t, "start": f"2026-03-{9 + n:02}T1{n % 8}:00"}
    for n, t in enumerate(
        ["Stand-up", "Design review", "Interview", "1:1 with Ada", "Incident review", "Planning"]
    )
]


def run_of(name: str) -> list[Any]:
    """The messages of a recorded run."""
    messages: list[Any] = json.loads((EXAMPLES / f"{name}.jsonl").read_text().splitlines()[0])["messages"]
    return messages


def calendar() -> list[Any]:
    """A short run whose tools answer as MCP servers do."""
    messages = [system("You keep a calendar."), user("Move every review of next week to the afternoon.")]
    for i, event in enumerate([*EVENTS, *EVENTS]):
        told = {
            "content": [{"type": "text", "text": json.dumps({"events": [event] * 12}, indent=2)}],
            "isError": False,
        }
        messages += [
            call((f"m{i}", "calendar__list_events", {"day": event["start"][:10]})),
            result(f"m{i}", json.dumps(told)),
        ]
    return [
        *messages,
        {"role": "assistant", "content": "Both reviews now begin at 14:00; nobody had a conflict."},
    ]


def recount() -> list[Any]:
    """A long run: sixty shelves are counted, one after the other."""
    messages = [
        system("You count the stock of a warehouse."),
        user("Recount aisles 1 to 60, note every difference."),
    ]
    chance = random.Random(3)
    for aisle in range(1, 61):
        rows = [
            {
                "sku": f"SKU-{chance.randrange(10**6):06}",
                "shelf": f"{aisle}-{k:02}",
                "booked": (n := chance.randrange(90)),
                "counted": n - (k == 5),
            }
            for k in range(40)
        ]
        messages += [
            call((f"r{aisle}", "count_aisle", {"aisle": aisle})),
            result(f"r{aisle}", json.dumps(rows)),
        ]
    return [
        *messages,
        {"role": "assistant", "content": "All 60 aisles are counted; each misses one item on shelf 05."},
    ]


RUNS: list[tuple[str, str, str, list[Any], float]] = [  # session, title, model, messages, days ago
    ("refund-audit-w11", "Double charges, week 11", "gpt-4.1-mini", run_of("shop-refunds"), 0),
    ("warehouse-recount", "Warehouse recount", "claude-sonnet-4-5", recount(), 1),
    ("checkout-latency", "", "claude-sonnet-4-5", run_of("log-hunt"), 1),
    ("flaky-payment-test", "Flaky payment test", "gpt-5", run_of("code-fix"), 0),
    ("calendar-reviews", "", "gpt-4.1-mini", calendar(), 2),
    ("refund-audit-w10", "Double charges, week 10", "gpt-4.1-mini", run_of("shop-refunds"), 4),
    ("code-fix-nightly", "", "gpt-5", run_of("code-fix"), 5),
    ("log-hunt-nightly", "", "house-model-7b", run_of("log-hunt"), 6),
    ("refund-audit-w09", "Double charges, week 9", "gpt-4.1-mini", run_of("shop-refunds")[:24], 8),
]
PROGRAMS = {
    "claude-sonnet-4-5": b"claude-cli/2.1.4 (external, cli)",
    "gpt-5": b"codex_cli_rs/0.46.0",
    "gpt-4.1-mini": b"OpenAI/Python 1.60.0",
    "house-model-7b": b"opencode/1.0.1",
}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


@contextmanager
def showcase(folder: Path) -> Iterator[SimpleNamespace]:
    """The service with its sessions: ``address``, ``proxied``, ``steps`` by session."""
    ahead: list[Any] = []
    sent: dict[str, str] = {}

    def script(body: Any) -> Reply:
        name, reply = ahead.pop(0)
        text = json.dumps(body["messages"])
        known = sum(1 for _ in range(1) if sent.get(name)) and next(
            (i for i, (a, b) in enumerate(zip(text, sent[name], strict=False)) if a != b),
            min(len(text), len(sent[name])),
        )
        if reply.status < 400:
            sent[name] = text
        return replace(reply, cached=(known // 4, 0))

    shipped = load_config().memory_strategies["memory_bank"].model_dump()
    strategies = {"memory_bank": shipped | {"token_encoding": "approximate"}}  # with a vocabulary or without
    steps: dict[str, int] = {}
    with scripted(script, folder, strategies, strict=False, steps_kept=100) as (_, p):
        done = 0

        def ask(name: str, model: str, messages: list[Any], reply: Reply, *headers: bytes) -> None:
            nonlocal done
            ahead.append((name, reply))
            post(
                p.port,
                CHAT,
                {"model": model, "messages": messages, "tools": TOOLS},
                b"x-memory-session: " + name.encode(),
                b"user-agent: " + PROGRAMS[model],
                *headers,
            )
            done += 1
            p.told(done)
            steps[name] = steps.get(name, 0) + 1

        for name, title, model, messages, _ in RUNS:
            turns = [i for i, m in enumerate(messages) if m["role"] == "assistant" and i > 2]
            for number, i in enumerate(turns):
                made = messages[i]
                calls = tuple(
                    (c["function"]["name"], c["function"]["arguments"], c["id"])
                    for c in made.get("tool_calls") or ()
                )
                if name == "flaky-payment-test" and number in (6, 7):
                    ask(name, model, messages[:i], fail(429, RATE, code="rate_limit_exceeded"))
                if name == "log-hunt-nightly" and number == 5:
                    ask(
                        name,
                        model,
                        messages[:i],
                        Reply(content="I go on."),
                        b"x-memory-strategy: retired-strategy",
                    )
                ask(name, model, messages[:i], Reply(content=made.get("content"), tool_calls=calls))
                if name == RUNS[0][0]:  # with the reasons of each step, which end with the next one
                    assert p.service.recorder.drain(60)
            if title:
                assert p.ask(f"/v1/sessions/{name}/title", "PUT", {"title": title}).status == 204
        assert p.service.recorder.drain(120)
        age(folder / "bank.db")
        yield SimpleNamespace(address=p.base_url.removesuffix("/v1"), proxied=p, steps=steps)


def age(bank: Path) -> None:
    """Move the sessions into the days before today, and give their answers the seconds that a provider takes."""
    chance = random.Random(7)
    with sqlite3.connect(bank) as c:
        for name, _, _, _, days in RUNS:
            by = 86_400 * days + 900 * len(name)
            c.execute("UPDATE sessions SET created = created - ? WHERE session_id = ?", (by, name))
            c.execute("UPDATE records SET timestamp = timestamp - ? WHERE session_id = ?", (by, name))
            for (number,) in c.execute("SELECT number FROM steps WHERE session_id = ?", (name,)).fetchall():
                c.execute(
                    "UPDATE steps SET created = created - ? + ?, seconds = ? WHERE session_id = ? AND number = ?",
                    (by, 9 * number - 300, chance.uniform(1.2, 7.5), name, number),
                )
    c.close()


if __name__ == "__main__":
    import sys

    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with showcase(folder) as shown:
        print(shown.address, flush=True)
        time.sleep(100_000)
