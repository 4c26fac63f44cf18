"""The shapes in which programs write runs, as chat messages: chat and Anthropic messages, and what agents log.

Claude Code writes one JSON line an event, a file a session, below ``~/.claude/projects``; Codex one line an item, a
file a session, below ``~/.codex/sessions``. The others: Cline (Anthropic messages), SWE-agent's ``.traj``, OpenHands'
events, Gemini CLI's chats and checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from memory_bank.errors import ConfigError
from memory_bank.transcript import compact, content_text, from_anthropic, from_items, is_anthropic, kind_of

Client = Literal["Claude Code", "Codex"]

_LOOKED_AT = 40  # lines of a file whose format is looked for
_CODEX_ITEMS = frozenset(
    {
        "message", "function_call", "function_call_output", "custom_tool_call",
        "custom_tool_call_output", "local_shell_call", "local_shell_call_output",
    }
)  # fmt: skip
_CODEX_LINES = frozenset({"session_meta", "response_item", "compacted", "turn_context", "event_msg"})


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded run: its id, its chat messages, and the tools it could call.

    Of an agent's log also the ``client``, and its compactions in order: the number of messages before each and the
    summary that replaced them, which is not among the messages; None where the log does not have it.
    """

    id: str
    messages: list[Any]
    tools: list[Any] | None = None
    task: str = ""
    client: Client | None = None
    compactions: list[tuple[int, str | None]] = field(default_factory=list)


def _say(messages: list[Any], role: str, text: str) -> None:
    """Add a message of words; nothing happens when there are none."""
    if text.strip():
        messages.append({"role": role, "content": text})


def _call(messages: list[Any], call_id: str, name: str, arguments: str) -> None:
    """Add a tool call to the assistant message at the end, or to a new one."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    _add_call(messages[-1], call_id, name, arguments)


def _return(messages: list[Any], call_id: str, output: object) -> None:
    """Add the result of a call."""
    text = _text_of(output) if isinstance(output, (str, list, Mapping, type(None))) else compact(output)
    messages.append({"role": "tool", "tool_call_id": call_id, "content": text})


def _add_call(message: dict[str, Any], call_id: str, name: str, arguments: str) -> None:
    """Add a call, or replace an earlier line's version of it."""
    call = {
        "id": call_id,
        "type": "function",
        "function": {"name": name or "unknown", "arguments": arguments},
    }
    calls = message.setdefault("tool_calls", [])
    calls[:] = [c for c in calls if not call_id or c["id"] != call_id] + [call]


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


def read_claude_code(lines: Iterable[Mapping[str, Any]], name: str) -> list[Trace]:
    """The sessions in the lines of a file: the agent's own, and one for each subagent (``isSidechain``).

    An assistant message is written in several lines that share its id. After a compaction a user line with
    ``isCompactSummary`` has the summary. Messages are taken in the order of the file, so a session that was rewound
    has the calls of both branches.
    """
    sessions: dict[str, Trace] = {}
    by_id: dict[tuple[str, str], dict[str, Any]] = {}  # assistant messages by session and id
    seen: set[str] = set()  # a resumed session may repeat lines
    for line in lines:
        uuid, message = _text_at(line, "uuid"), line.get("message")
        if line.get("type") not in ("user", "assistant") or not isinstance(message, Mapping) or uuid in seen:
            continue
        seen |= {uuid} if uuid else set()
        branch = _text_at(line, "agentId") or "subagent" if line.get("isSidechain") is True else ""
        session_id = f"{_text_at(line, 'sessionId') or name}{'/' if branch else ''}{branch}"
        session = sessions.setdefault(branch, Trace(session_id, [], client="Claude Code"))
        content = message.get("content")
        if line.get("isCompactSummary") is True:
            session.compactions.append((len(session.messages), _text_of(content)))
        elif line["type"] == "user":
            words = [content] if isinstance(content, str) else []
            for part in _objects(content):
                if part.get("type") == "tool_result":
                    _return(session.messages, _text_at(part, "tool_use_id"), part.get("content"))
                else:
                    words.append(_text_of([part]))
            _say(session.messages, "user", "\n".join(words))
        elif line.get("isApiErrorMessage") is not True:
            message_id = _text_at(message, "id")
            earlier = by_id.get((branch, message_id)) if message_id else None
            turn = earlier or {"role": "assistant", "content": None}
            _add_parts(turn, content)
            if earlier is None and (turn["content"] or "tool_calls" in turn):
                session.messages.append(turn)
                by_id[branch, message_id] = turn
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
        before = message["content"] or ""  # a line may repeat what the one before had, and more
        message["content"] = f"{before}\n{words}" if before and not words.startswith(before) else words


# Codex


def read_codex(lines: Iterable[Mapping[str, Any]], name: str) -> list[Trace]:
    """The session in the lines of a file; none when nobody spoke in it.

    Items stand in ``{"type": "response_item", "payload": …}``, in old versions without it. A line ``compacted`` has
    the summary, or the history that replaced the former one, which may be encrypted.
    """
    session_id, messages, items = name, list[Any](), list[Any]()  # those since the compaction before
    compactions: list[tuple[int, str | None]] = []
    for line in lines:
        kind, payload = _text_at(line, "type"), line.get("payload")
        item = payload if isinstance(payload, Mapping) else line
        if kind == "session_meta":
            session_id = _text_at(item, "id") or name
        elif kind == "compacted":
            messages += from_items(items).messages
            compactions.append((len(messages), _codex_summary(item, messages)))
            items = []
        elif (kind == "response_item" or item is line) and _text_at(item, "type") in _CODEX_ITEMS:
            output = item.get("output")
            if isinstance(output, Mapping) and "content" in output:  # as some versions log it
                item = {**item, "output": output["content"]}
            items.append(item)
    messages += from_items(items).messages
    return [Trace(session_id, messages, client="Codex", compactions=compactions)] if messages else []


def _codex_summary(item: Mapping[str, Any], messages: Sequence[Any]) -> str | None:
    """The text in place of the history, without the user's messages, which are known; None when it is encrypted."""
    if message := _text_at(item, "message"):
        return message
    asked = {_text_of(m["content"]) for m in messages if m["role"] == "user"}
    texts = [_text_of(p.get("content")) for p in _objects(item.get("replacement_history"))]
    return "\n".join(t for t in texts if t.strip() and t not in asked) or None


# Lists of messages and events


def chat_of(value: object) -> list[Any] | None:
    """The chat messages that a JSON value is or holds, of any shape; None where it is no run."""
    if isinstance(value, Mapping):
        lists = (value.get(key) for key in ("messages", "history", "events", "trajectory"))
        entries = next((v for v in lists if isinstance(v, list)), None)
        return None if entries is None else _as_chat(entries)
    if not isinstance(value, list):
        return None
    chat = _as_chat(value)
    return chat if any(str(kind_of(m)) != "other" for m in chat) else None


def _as_chat(entries: list[Any]) -> list[Any]:
    """A list of messages or events as chat messages; one that has no known shape stays as it is."""
    if not all(isinstance(m, Mapping) for m in entries):
        return entries
    if any("role" not in m and isinstance(m.get("message"), Mapping) for m in entries):
        entries = [m["message"] if isinstance(m.get("message"), Mapping) else m for m in entries]
    if any({"action", "observation"} & m.keys() and "source" in m for m in entries):
        return _of_openhands(entries)
    if any(m.get("type") == "gemini" or m.get("role") == "model" for m in entries):
        return _of_gemini(entries)
    messages: list[Any] = []
    for message in entries:
        messages[-1:] = (
            [message] if messages and _repeats(messages[-1], message) else [*messages[-1:], message]
        )
    if is_anthropic(messages):
        return [*from_anthropic(messages).messages]
    ids = [m.get("tool_call_ids") for m in messages]  # SWE-agent's
    return [
        {**m, "tool_call_id": i[0]} if isinstance(i, list) and i and "tool_call_id" not in m else m
        for m, i in zip(messages, ids, strict=True)
    ]


def _repeats(before: Mapping[str, Any], message: Mapping[str, Any]) -> bool:
    """Return whether a message is the one before as it has grown meanwhile."""
    if not message.get("id") or any(before.get(key) != message.get(key) for key in ("id", "role")):
        return False
    return _text_of(message.get("content")).startswith(_text_of(before.get("content")))


def _of_openhands(events: Sequence[Mapping[str, Any]]) -> list[Any]:
    """OpenHands' events, also of its SDK: an action of the agent is a call, what it caused is the result."""
    chat: list[Any] = []
    for event in events:
        action, seen, args = event.get("action"), event.get("observation"), event.get("args")
        named = event.get("tool_call_metadata")
        named = named if isinstance(named, Mapping) else event
        call_id = _text_at(named, "tool_call_id") or str(event.get("cause" if seen else "id"))
        if seen:
            if any(c["id"] == call_id for m in chat for c in m.get("tool_calls", ())):
                _return(chat, call_id, (seen if isinstance(seen, Mapping) else event).get("content"))
        elif isinstance(message := event.get("llm_message"), Mapping):
            _say(chat, _text_at(message, "role") or "user", _text_of(message.get("content")))
        elif action in ("message", "system") and isinstance(args, Mapping):
            role = {"user": "user", "agent": "assistant"}.get(_text_at(event, "source"), "system")
            _say(chat, "system" if action == "system" else role, _text_at(args, "content"))
        elif action and event.get("source") == "agent":
            values = action if isinstance(action, Mapping) else args
            _call(
                chat,
                call_id,
                _text_at(named, "function_name", "tool_name") or str(action),
                compact(values or {}),
            )
    return chat


def _of_gemini(entries: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Gemini CLI's chats, whose entries hold calls with their results, and contents of Gemini's API."""
    chat: list[Any] = []
    newest = {_text_at(m, "id") or str(n): m for n, m in enumerate(entries)}  # an entry that grows has one id
    open_: dict[str, list[str]] = {}  # calls without an id, by name
    for number, entry in newest.items():
        content, parts = entry.get("content"), _objects(entry.get("parts") or entry.get("content"))
        words = "\n".join(
            [content] if isinstance(content, str) else [_text_at(p, "text") for p in parts]
        ).strip()
        if entry.get("type") == "gemini" or entry.get("role") == "model":
            chat.append({"role": "assistant", "content": words or None})
        elif entry.get("type", "user") == "user":
            _say(chat, "user", words)
        for n, part in enumerate(parts):
            call, answer = part.get("functionCall"), part.get("functionResponse")
            if isinstance(call, Mapping):
                call_id, name = _text_at(call, "id") or f"{number}.{n}", _text_at(call, "name")
                open_.setdefault(name, []).append(call_id)
                _call(chat, call_id, name, compact(call.get("args") or {}))
            elif isinstance(answer, Mapping):
                unanswered = open_.get(_text_at(answer, "name")) or [""]
                _return(chat, _text_at(answer, "id") or unanswered.pop(0), _output_of(answer.get("response")))
        calls = _objects(entry.get("toolCalls"))
        for call in calls:
            _call(chat, _text_at(call, "id"), _text_at(call, "name"), compact(call.get("args") or {}))
        for call in calls:
            answers = [r.get("functionResponse") for r in _objects(call.get("result"))]
            outputs = [_output_of(a.get("response")) for a in answers if isinstance(a, Mapping)]
            _return(chat, _text_at(call, "id"), "\n".join(outputs) or call.get("resultDisplay"))
    return chat


def _output_of(response: object) -> str:
    """The answer of a function in Gemini's form: its output, or the whole as JSON."""
    text = _text_at(response, "output", "error") if isinstance(response, Mapping) else ""
    return text or compact(response)


# Files


def log_files(paths: Sequence[Path]) -> list[Path]:
    """The files of some paths: files as they are, folders with all JSON files below them, in order.

    Raises ConfigError for a path that does not exist, and for a folder without such files.
    """
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ConfigError(f"there is no file or folder {path}: check the name.")
        if not path.is_dir():
            files.append(path)
            continue
        endings = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".traj")
        below = sorted(p for p in path.rglob("*") if p.name.endswith(endings) and p.is_file())
        if not below:
            raise ConfigError(
                f"the folder {path} holds no .jsonl, .json or .traj files: name the folder of an agent's logs."
            )
        files += below
    return files


def client_of(values: Sequence[Any]) -> Client | None:
    """The coding agent that wrote the first lines of a log; None for anything else."""
    lines = [v for v in values if isinstance(v, Mapping)][:_LOOKED_AT]
    members = {"sessionId", "leafUuid", "snapshot"}
    if any(isinstance(v.get("type"), str) and members & v.keys() for v in lines):
        return "Claude Code"
    for line in lines:
        kind = _text_at(line, "type")
        if (kind in _CODEX_LINES and "payload" in line) or (
            kind in _CODEX_ITEMS and not {"sessionId", "message"} & line.keys()
        ):
            return "Codex"
    return None
