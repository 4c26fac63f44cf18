"""Reads the logs of Claude Code: one JSON line an event, a file a session, below ``~/.claude/projects``.

Subagents (``isSidechain``) are sessions of their own. An assistant message is written in several lines that share its
id. After a compaction a user line with ``isCompactSummary`` has the summary. Messages are taken in the order of the
file, so a session that was rewound has the calls of both branches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from memory_bank.lab.logs.sessions import LoggedSession, add_call, parts_of, text_at, text_of
from memory_bank.transcript import compact


def is_claude_code(line: Mapping[str, Any]) -> bool:
    """Whether a line is an event of Claude Code's log."""
    return isinstance(line.get("type"), str) and (
        "sessionId" in line or "leafUuid" in line or "snapshot" in line
    )


def read_claude_code(lines: Iterable[Mapping[str, Any]], name: str) -> list[LoggedSession]:
    """The sessions in the lines of a file: the agent's own, and one for each subagent."""
    sessions: dict[str, _Building] = {}
    seen: set[str] = set()  # a resumed session may repeat lines
    for line in lines:
        uuid = text_at(line, "uuid")
        message = line.get("message")
        if line.get("type") not in ("user", "assistant") or not isinstance(message, Mapping) or uuid in seen:
            continue
        seen |= {uuid} if uuid else set()
        branch = text_at(line, "agentId") or "subagent" if line.get("isSidechain") is True else ""
        session_id = f"{text_at(line, 'sessionId') or name}{'/' if branch else ''}{branch}"
        session = sessions.setdefault(branch, _Building(LoggedSession(session_id, "Claude Code")))
        session.add(line, message)
    return [s.session for s in sessions.values() if s.session.messages]


class _Building:
    """A session while its lines are read."""

    def __init__(self, session: LoggedSession) -> None:
        self.session = session
        self._by_id: dict[str, dict[str, Any]] = {}  # assistant messages by their id

    def add(self, line: Mapping[str, Any], message: Mapping[str, Any]) -> None:
        content = message.get("content")
        if line.get("isCompactSummary") is True:
            self.session.compact(text_of(content))
        elif line["type"] == "user":
            self._add_user(content)
        elif line.get("isApiErrorMessage") is not True:
            self._add_assistant(text_at(message, "id"), content)

    def _add_user(self, content: object) -> None:
        words = [content] if isinstance(content, str) else []
        for part in parts_of(content):
            if part.get("type") == "tool_result":
                self.session.add_result(text_at(part, "tool_use_id"), text_of(part.get("content")))
            else:
                words.append(text_of([part]))
        self.session.add("user", "\n".join(words))

    def _add_assistant(self, message_id: str, content: object) -> None:
        known = self._by_id.get(message_id) if message_id else None
        message: dict[str, Any] = known or {"role": "assistant", "content": None}
        text = [content] if isinstance(content, str) else []
        for part in parts_of(content):
            if part.get("type") == "text":
                text.append(text_at(part, "text"))
            elif part.get("type") == "tool_use":
                arguments = compact(part.get("input") or {})
                add_call(message, text_at(part, "id"), text_at(part, "name") or "unknown", arguments)
        if words := "\n".join(t for t in text if t.strip()):
            message["content"] = f"{message['content']}\n{words}" if message["content"] else words
        if known is None and (message["content"] or "tool_calls" in message):
            self.session.messages.append(message)
            if message_id:
                self._by_id[message_id] = message
