"""A scripted agent behind the scripted server: it makes the right call only if its context holds what it needs."""

from __future__ import annotations

import json
import threading
from typing import Any

from tests.chats import call, result, user

from memory_bank.testing import Reply, calls, say

Turn = list[tuple[str, dict[str, Any]]]


class Careful:
    """Knows the calls of each task, but takes every value from the context it is sent, else writes "unknown".

    ``tasks`` maps how the first user message begins to its turns and the answer. Requests of one unit are told by ``user``.
    """

    def __init__(self, tasks: dict[str, tuple[list[Turn], str]]) -> None:
        self.tasks = tasks
        self.asked = 0
        self._steps: dict[str, int] = {}
        self._lock = threading.Lock()

    def __call__(self, body: dict[str, Any]) -> Reply:
        messages = body["messages"]
        context = json.dumps([m.get("content") for m in messages] + [m.get("tool_calls") for m in messages])
        fresh = not any(m["role"] == "assistant" for m in messages)
        with self._lock:
            self.asked += 1
            step = self._steps[body["user"]] = 0 if fresh else self._steps[body["user"]] + 1
        # a memory may follow the task in its message
        task = next(m["content"] for m in messages if m["role"] == "user")
        turns, answer = next(plan for text, plan in self.tasks.items() if task.startswith(text))
        if step >= len(turns):
            return say(answer if answer in context else "I do not know")
        return calls(
            *((name, {k: known(v, context) for k, v in given.items()}) for name, given in turns[step])
        )


def known(value: Any, context: str) -> Any:
    return value if not isinstance(value, str) or value in context else "unknown"


def trip(n: int) -> dict[str, Any]:
    """A case: one search, two parallel ones with its id, two details, a booking with the first id."""
    place, cars, day = f"LOC-{n}41", [f"CAR-{n}{i}7" for i in range(2)], ["2026-03-01", "2026-03-02"]
    task = (
        f"Rent the cheaper car at airport {n} on 2026-03-01 or 2026-03-02, then book it; the fee is FEE-{n}"
    )
    found = json.dumps({"location_id": place, "note": "n" * 400})
    messages = [
        user(task),
        call(("a", "search_location", {"query": f"airport {n}"})), result("a", found),
        call(*((f"b{i}", "search_cars", {"location_id": place, "date": day[i]}) for i in range(2))),
        *(result(f"b{i}", json.dumps({"car": cars[i], "price": 40 + i, "terms": "t" * 400})) for i in range(2)),
        call(("c", "car_detail", {"car": cars[0]})), result("c", json.dumps({"seats": 4, "terms": "d" * 400})),
        call(("e", "car_detail", {"car": cars[1]})), result("e", json.dumps({"seats": 5, "terms": "e" * 400})),
        call(("d", "book", {"car": cars[0], "location_id": place, "days": 1})),
        result("d", json.dumps({"booking": f"BOOK-{n}99"})),
        {"role": "assistant", "content": f"BOOK-{n}99"},
    ]  # fmt: skip
    names = ("search_location", "search_cars", "car_detail", "book")
    tools = [{"type": "function", "function": {"name": x, "parameters": {"type": "object"}}} for x in names]
    return {"id": f"trip-{n}", "messages": messages, "tools": tools}


def plan_of_trip(case: dict[str, Any]) -> tuple[str, tuple[list[Turn], str]]:
    turns: list[Turn] = []
    for message in case["messages"]:
        if message.get("tool_calls"):
            functions = [c["function"] for c in message["tool_calls"]]
            turns.append([(f["name"], json.loads(f["arguments"])) for f in functions])
    return case["messages"][0]["content"], (turns, case["messages"][-1]["content"])
