"""Toy strategies of the plugin form ``f(messages, state) -> messages``, each with one known trait."""

from __future__ import annotations

import uuid
from typing import Any

from memory_bank.records import InteractionRecord

Messages = list[dict[str, Any]]


def whole(messages: Messages, state: dict[str, Any]) -> Messages:
    return messages


def keep_last(messages: Messages, state: dict[str, Any], n: int = 1) -> Messages:
    """System and user messages, then the last ``n`` interactions."""
    turns = [i for i, m in enumerate(messages) if m.get("tool_calls")]
    first = turns[-n] if n <= len(turns) else 0
    asked = [m for m in messages if m["role"] in ("system", "user")]
    recent = [m for m in messages[first:] if m["role"] == "tool" or m.get("tool_calls")]
    return asked + recent


def shorten(messages: Messages, state: dict[str, Any], keep: int = 1, chars: int = 40) -> Messages:
    """Every output but the last ``keep`` cut to some characters."""
    outputs = [i for i, m in enumerate(messages) if m["role"] == "tool"]
    old = set(outputs[: len(outputs) - keep])
    return [m | {"content": m["content"][:chars] + "..."} if i in old else m for i, m in enumerate(messages)]


async def slow(messages: Messages, state: dict[str, Any]) -> Messages:
    return messages


def bag(messages: Messages, state: dict[str, Any]) -> Messages:
    """The last interaction and bare values, far from all that they belong to."""
    values = ["#W6020", "/srv/shop/out/W5511_receipt.pdf", "149.50", "ada.quill@example.org", "#W5511"]
    filler = f" {'lorem ipsum ' * 30} "
    return [*keep_last(messages, state), {"role": "user", "content": filler.join(values)}]


def raises(messages: Messages, state: dict[str, Any]) -> Messages:
    raise RuntimeError("no")


def raises_late(messages: Messages, state: dict[str, Any]) -> Messages:
    if len(messages) > 6:
        raise RuntimeError("no")
    return messages


def no_messages(messages: Messages, state: dict[str, Any]) -> Any:
    return 5


def breaks_pairs(messages: Messages, state: dict[str, Any]) -> Messages:
    """Forgets the last result."""
    return messages[:-1]


def edits(messages: Messages, state: dict[str, Any]) -> Messages:
    """Changes what it was given, and hopes to see more than the prefix."""
    for m in messages:
        m["content"] = "gone"
        m.pop("tool_calls", None)
    state["seen"] = max(state.get("seen", 0), len(messages))
    return messages


class Store:
    """The outputs so far by an id that their number derives."""

    def __init__(self) -> None:
        self.records: dict[str, InteractionRecord] = {}

    def take(self, messages: Messages) -> None:
        outputs = [m["content"] for m in messages if m["role"] == "tool"]
        for i, text in enumerate(outputs):
            key = str(uuid.uuid5(uuid.NAMESPACE_OID, str(i)))
            self.records[key] = InteractionRecord(key, i, "t", {}, {"_raw": text}, output_text=text)

    def get(self, trace_id: str) -> InteractionRecord | None:
        return self.records.get(trace_id)

    def steps(self) -> dict[str, int]:
        return {t: r.step_id for t, r in self.records.items()}


def lists_ids(messages: Messages, state: dict[str, Any], digits: int = 36, skip: int = 0) -> Messages:
    """The last interaction and the ids of all records but the first ``skip``, each cut to ``digits``."""
    store = state.setdefault("fact_store", Store())
    store.take(messages)
    ids = "\n".join(f"trace_id={t[:digits]}" for t in list(store.records)[skip:])
    return [*keep_last(messages, state), {"role": "user", "content": ids}]


def hides_ids(messages: Messages, state: dict[str, Any]) -> Messages:
    lists_ids(messages, state)
    return keep_last(messages, state)
