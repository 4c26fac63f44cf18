"""Finds and reads the logs of agents, Claude Code, Codex and lists of OpenAI messages, as chat messages.

Claude Code writes one JSON line an event, a file a session, below ``~/.claude/projects``; Codex one line an item, a
file a session, below ``~/.codex/sessions``.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from memory_bank.audit.traces import open_lines, reason_of
from memory_bank.errors import ConfigError
from memory_bank.transcript import compact, content_text, kind_of

Client = Literal["Claude Code", "Codex", "message list"]

_LOOKED_AT = 40  # lines of a file whose format is looked for
_CODEX_ITEMS = frozenset(
    {
        "message", "reasoning", "function_call", "function_call_output", "custom_tool_call",
        "custom_tool_call_output", "local_shell_call", "local_shell_call_output",
    }
)  # fmt: skip
_CODEX_LINES = frozenset({"session_meta", "response_item", "compacted", "turn_context", "event_msg"})


@dataclass(slots=True)
class LoggedSession:
    """A session: its id, its messages without the summaries of compactions, and the compactions in order.

    A compaction is the number of messages before it and the summary that replaced them; None where the log does not
    have it.
    """

    id: str
    client: Client
    messages: list[dict[str, Any]] = field(default_factory=list)
    compactions: list[tuple[int, str | None]] = field(default_factory=list)

    def add(self, role: str, text: str) -> None:
        """Add a message of words; nothing happens when there are none."""
        if text.strip():
            self.messages.append({"role": role, "content": text})

    def add_call(self, call_id: str, name: str, arguments: str) -> None:
        """Add a tool call to the assistant message at the end, or to a new one."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": None})
        _add_call(self.messages[-1], call_id, name, arguments)

    def add_result(self, call_id: str, output: object) -> None:
        """Add the result of a call."""
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": _text_of(output)})


def _add_call(message: dict[str, Any], call_id: str, name: str, arguments: str) -> None:
    function = {"name": name or "unknown", "arguments": arguments}
    message.setdefault("tool_calls", []).append({"id": call_id, "type": "function", "function": function})


def _text_at(value: Mapping[str, Any], *keys: str) -> str:
    """The first of the fields that is text; "" when there is none."""
    return next((v for k in keys if isinstance(v := value.get(k), str)), "")


def _text_of(content: object) -> str:
    """The text of a content: a string, or parts of which those that are no text are named."""
    if isinstance(content, Mapping) and "content" in content:
        content = content["content"]
    return content_text(content)


def _objects(values: object) -> list[Mapping[str, Any]]:
    """The elements of a list that are objects."""
    return [v for v in values if isinstance(v, Mapping)] if isinstance(values, list) else []


# Claude Code


def read_claude_code(lines: Iterable[Mapping[str, Any]], name: str) -> list[LoggedSession]:
    """The sessions in the lines of a file: the agent's own, and one for each subagent (``isSidechain``).

    An assistant message is written in several lines that share its id. After a compaction a user line with
    ``isCompactSummary`` has the summary. Messages are taken in the order of the file, so a session that was rewound
    has the calls of both branches.
    """
    sessions: dict[str, LoggedSession] = {}
    by_id: dict[tuple[str, str], dict[str, Any]] = {}  # assistant messages by session and id
    seen: set[str] = set()  # a resumed session may repeat lines
    for line in lines:
        uuid, message = _text_at(line, "uuid"), line.get("message")
        if line.get("type") not in ("user", "assistant") or not isinstance(message, Mapping) or uuid in seen:
            continue
        seen |= {uuid} if uuid else set()
        branch = _text_at(line, "agentId") or "subagent" if line.get("isSidechain") is True else ""
        session_id = f"{_text_at(line, 'sessionId') or name}{'/' if branch else ''}{branch}"
        session = sessions.setdefault(branch, LoggedSession(session_id, "Claude Code"))
        content = message.get("content")
        if line.get("isCompactSummary") is True:
            session.compactions.append((len(session.messages), _text_of(content)))
        elif line["type"] == "user":
            words = [content] if isinstance(content, str) else []
            for part in _objects(content):
                if part.get("type") == "tool_result":
                    session.add_result(_text_at(part, "tool_use_id"), part.get("content"))
                else:
                    words.append(_text_of([part]))
            session.add("user", "\n".join(words))
        elif line.get("isApiErrorMessage") is not True:
            message_id = _text_at(message, "id")
            known = by_id.get((branch, message_id)) if message_id else None
            said = known or {"role": "assistant", "content": None}
            _add_parts(said, content)
            if known is None and (said["content"] or "tool_calls" in said):
                session.messages.append(said)
                by_id[branch, message_id] = said
    return [s for s in sessions.values() if s.messages]


def _add_parts(message: dict[str, Any], content: object) -> None:
    """Add the words and the calls of one line to an assistant message."""
    text = [content] if isinstance(content, str) else []
    for part in _objects(content):
        if part.get("type") == "text":
            text.append(_text_at(part, "text"))
        elif part.get("type") == "tool_use":
            _add_call(message, _text_at(part, "id"), _text_at(part, "name"), compact(part.get("input") or {}))
    if words := "\n".join(t for t in text if t.strip()):
        message["content"] = f"{message['content']}\n{words}" if message["content"] else words


# Codex


def read_codex(lines: Iterable[Mapping[str, Any]], name: str) -> list[LoggedSession]:
    """The session in the lines of a file; none when nobody spoke in it.

    Items stand in ``{"type": "response_item", "payload": …}``, in old versions without it. A line ``compacted`` has
    the summary, or the history that replaced the former one, which may be encrypted.
    """
    session = LoggedSession(name, "Codex")
    for line in lines:
        kind, payload = _text_at(line, "type"), line.get("payload")
        item = payload if isinstance(payload, Mapping) else line
        if kind == "session_meta":
            session.id = _text_at(item, "id") or name
        elif kind == "compacted":
            session.compactions.append((len(session.messages), _codex_summary(item, session)))
        if kind != "response_item" and kind not in _CODEX_ITEMS:
            continue
        kind, call_id = _text_at(item, "type"), _text_at(item, "call_id", "id")
        if kind == "message":
            role = _text_at(item, "role")
            role = role if role in ("user", "assistant", "system", "developer") else "user"
            session.add(role, _text_of(item.get("content")))
        elif kind in ("function_call", "custom_tool_call"):
            session.add_call(call_id, _text_at(item, "name"), _text_at(item, "arguments", "input"))
        elif kind == "local_shell_call":
            session.add_call(call_id, "local_shell", json.dumps(item.get("action"), default=str))
        elif kind.endswith("_call_output"):
            session.add_result(call_id, item.get("output"))
    return [session] if session.messages else []


def _codex_summary(item: Mapping[str, Any], session: LoggedSession) -> str | None:
    """What replaced the history, without the user's own messages, which are known; None when it is encrypted."""
    if message := _text_at(item, "message"):
        return message
    known = {m["content"] for m in session.messages if m["role"] == "user"}
    texts = [_text_of(p.get("content")) for p in _objects(item.get("replacement_history"))]
    return "\n".join(t for t in texts if t.strip() and t not in known) or None


# Files


def log_files(paths: Sequence[Path]) -> list[Path]:
    """The files of some paths: files as they are, folders with all JSON files below them, in order.

    Raises ConfigError for a path that does not exist, and for a folder without such files.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ConfigError(f"there is no file or folder {path}: check the name.")
        if not path.is_dir():
            found.append(path)
            continue
        endings = (".jsonl", ".jsonl.gz", ".json")
        below = sorted(p for p in path.rglob("*") if p.name.endswith(endings) and p.is_file())
        if not below:
            raise ConfigError(
                f"the folder {path} holds no .jsonl or .json files: name the folder of an agent's logs."
            )
        found += below
    return found


def _values_in(path: Path, most: int | None = None) -> list[Any]:
    """The JSON values of a file, one a line or one document; of at most so many lines. None: a line is no JSON."""
    with open_lines(path) as lines:
        values = [_parsed(line) for line in islice(lines, most) if line.strip()]
        if not any(isinstance(v, (Mapping, list)) for v in values):
            lines.seek(0)
            values = [_parsed("".join(lines))]  # one JSON document over several lines
    return values


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _client_of(values: Sequence[Any]) -> Client | None:
    """The coding agent that wrote the first lines of a log; None for a list of messages and anything else."""
    lines = [v for v in values if isinstance(v, Mapping)][:_LOOKED_AT]
    marks = {"sessionId", "leafUuid", "snapshot"}
    if any(isinstance(v.get("type"), str) and marks & v.keys() for v in lines):
        return "Claude Code"
    for line in lines:
        kind = _text_at(line, "type")
        if (kind in _CODEX_LINES and "payload" in line) or (kind in _CODEX_ITEMS and "sessionId" not in line):
            return "Codex"
    return None


def _messages_in(value: object) -> list[dict[str, Any]]:
    """The list of messages that a document is or holds; empty for anything else."""
    value = value.get("messages") if isinstance(value, Mapping) else value
    if not isinstance(value, list) or not all(isinstance(m, Mapping) for m in value):
        return []
    return value if any(str(kind_of(m)) != "other" for m in value) else []


def log_format(path: Path) -> Client | None:
    """The client whose log a file is; None for recorded runs (``{"id", "messages"}`` a line) and anything else."""
    if not path.is_file():
        return None  # a pipe can be read only once
    try:
        values = _values_in(path, _LOOKED_AT)
    except (OSError, EOFError, zlib.error):
        return None  # its reader says why it cannot be read
    has_objects = any(isinstance(v, Mapping) for v in values)
    lists = not has_objects and any(map(_messages_in, values))
    return _client_of(values) or ("message list" if lists else None)


@dataclass(slots=True)
class LogFiles:
    """Iterates over the sessions in log files; collects and reports what cannot be used.

    ``skipped`` counts lines that are no JSON objects, ``unknown`` lists files of no known format, ``unreadable``
    files that cannot be read (to the end).
    """

    paths: Sequence[Path]
    tell: Callable[[str], None]
    skipped: int = 0
    unknown: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[LoggedSession]:
        for path in self.paths:
            try:
                values = _values_in(path)
            except (OSError, EOFError, zlib.error) as e:  # the other files can still be read
                self.unreadable.append(str(path))
                self.tell(f"the log {path} cannot be read: {reason_of(e)}; check or replace it.")
                continue
            name = path.name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".json")
            if client := _client_of(values):
                objects = [v for v in values if isinstance(v, Mapping)]
                self.skipped += len(values) - len(objects)
                yield from (read_claude_code if client == "Claude Code" else read_codex)(objects, name)
            elif found := list(filter(None, map(_messages_in, values))):
                self.skipped += len(values) - len(found)
                yield from (LoggedSession(f"{name}:{n}", "message list", m) for n, m in enumerate(found, 1))
            else:
                self.unknown.append(str(path))
