"""Toy strategies of the plugin form ``f(messages, state) -> messages``, each with one known trait."""

from __future__ import annotations

from typing import Any

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
