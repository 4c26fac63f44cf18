"""Reads the rollouts of Codex: one JSON line an item, a file a session, below ``~/.codex/sessions``.

Items stand in ``{"type": "response_item", "payload": …}``, in old versions without it. A line ``compacted`` has the
summary, or the history that replaced the former one, which may be encrypted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from memory_bank.lab.logs.sessions import LoggedSession, parts_of, text_at, text_of

_ITEMS = frozenset(
    {
        "message", "reasoning", "function_call", "function_call_output", "custom_tool_call",
        "custom_tool_call_output", "local_shell_call", "local_shell_call_output",
    }
)  # fmt: skip
_LINES = frozenset({"session_meta", "response_item", "compacted", "turn_context", "event_msg"})


def is_codex(line: Mapping[str, Any]) -> bool:
    """Whether a line is one of a rollout."""
    kind = text_at(line, "type")
    return (kind in _LINES and "payload" in line) or (kind in _ITEMS and "sessionId" not in line)


def read_codex(lines: Iterable[Mapping[str, Any]], name: str) -> list[LoggedSession]:
    """The session in the lines of a file; none when nobody spoke in it."""
    session = LoggedSession(name, "Codex")
    for line in lines:
        kind, payload = text_at(line, "type"), line.get("payload")
        item = payload if isinstance(payload, Mapping) else line
        if kind == "session_meta":
            session.id = text_at(item, "id") or name
        elif kind == "compacted":
            session.compact(_summary(item, session))
        elif kind == "response_item" or kind in _ITEMS:
            _add(session, item)
    return [session] if session.messages else []


def _add(session: LoggedSession, item: Mapping[str, Any]) -> None:
    kind = text_at(item, "type")
    call_id = text_at(item, "call_id", "id")
    if kind == "message":
        role = text_at(item, "role")
        session.add(
            role if role in ("user", "assistant", "system", "developer") else "user",
            text_of(item.get("content")),
        )
    elif kind in ("function_call", "custom_tool_call"):
        arguments = text_at(item, "arguments", "input")
        session.add_call(call_id, text_at(item, "name") or "unknown", arguments)
    elif kind == "local_shell_call":
        session.add_call(call_id, "local_shell", json.dumps(item.get("action"), default=str))
    elif kind.endswith("_call_output"):
        session.add_result(call_id, text_of(item.get("output")))


def _summary(item: Mapping[str, Any], session: LoggedSession) -> str | None:
    """What replaced the history, without the user's own messages, which are known; None when it is encrypted."""
    if message := text_at(item, "message"):
        return message
    known = {m["content"] for m in session.messages if m["role"] == "user"}
    texts = [text_of(p.get("content")) for p in parts_of(item.get("replacement_history"))]
    return "\n".join(t for t in texts if t.strip() and t not in known) or None
