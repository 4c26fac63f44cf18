"""Made-up logs of coding agents, written as the clients write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LEDGER = "\n".join(
    f"    entry_{n} = Ledger.book(account='KTO-{4_100 + 37 * n}', amount={n * 13 + 0.75})" for n in range(40)
)
SOURCE = f"class Quarter:\n    def post(self):\n{LEDGER}\n"
NEEDED = "KTO-4581"  # entry 13
COPIED = "    entry_13 = Ledger.book(account='KTO-4581', amount=169.75)"
SUMMARY = "The quarter's entries are posted in quarter.py; account KTO-4581 was still to be checked."


def write_lines(path: Path, lines: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


class ClaudeCode:
    """A session file of Claude Code."""

    def __init__(self, session: str = "s-1") -> None:
        self.session = session
        self.lines: list[Any] = [{"type": "file-history-snapshot", "messageId": "m", "snapshot": {}}]

    def event(self, kind: str, message: dict[str, Any] | None = None, **fields: Any) -> ClaudeCode:
        number = len(self.lines)
        line: dict[str, Any] = {"type": kind, "uuid": f"{self.session}-{number}", "sessionId": self.session}
        line |= {"isSidechain": False, "timestamp": f"2026-01-01T00:00:{number % 60:02}Z", **fields}
        self.lines.append(line if message is None else line | {"message": message})
        return self

    def user(self, content: Any, **fields: Any) -> ClaudeCode:
        return self.event("user", {"role": "user", "content": content}, **fields)

    def says(self, message_id: str, *parts: dict[str, Any], **fields: Any) -> ClaudeCode:
        """One line for each part, as it is streamed."""
        for part in parts:
            self.event("assistant", {"id": message_id, "role": "assistant", "content": [part]}, **fields)
        return self

    def call(self, call_id: str, name: str, output: Any, **arguments: Any) -> ClaudeCode:
        self.says(f"m-{call_id}", {"type": "thinking", "thinking": "…"}, tool_use(call_id, name, **arguments))
        return self.user([{"type": "tool_result", "tool_use_id": call_id, "content": output}])

    def compact(self, summary: str) -> ClaudeCode:
        self.event("system", subtype="compact_boundary", content="Conversation compacted")
        return self.user(summary, isCompactSummary=True, isVisibleInTranscriptOnly=True)


def tool_use(call_id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def claude_code_lines(summary: str = SUMMARY) -> list[Any]:
    """Reads a file, compacts, reads half of it again, edits one entry of it."""
    log = ClaudeCode().user("Check the postings of the quarter.")
    log.call("a", "Read", [{"type": "text", "text": SOURCE}], file_path="/shop/quarter.py")
    log.call("b", "Bash", "ok", command="ls /shop")
    log.compact(summary)
    log.call("c", "Read", "\n".join(SOURCE.splitlines()[:20]), file_path="/shop/quarter.py", limit=20)
    log.call("d", "Edit", "edited", file_path="/shop/quarter.py", old_string=COPIED, new_string="    pass")
    log.call("e", "Bash", "0 rows", command="ledger --account KTO-4581")
    log.says("m-end", {"type": "text", "text": "Done."})
    return log.lines


def item(kind: str, **fields: Any) -> dict[str, Any]:
    return {"timestamp": "t", "type": "response_item", "payload": {"type": kind, **fields}}


def codex_lines(compacted: dict[str, Any] | None = None) -> list[Any]:
    """The same session as a rollout."""

    def shell(call_id: str, command: str) -> dict[str, Any]:
        return item("function_call", name="shell", call_id=call_id,
                    arguments=json.dumps({"command": ["bash", "-lc", command]}))  # fmt: skip

    def output(call_id: str, text: Any) -> dict[str, Any]:
        return item("function_call_output", call_id=call_id, output=text)

    def words(role: str, text: str) -> dict[str, Any]:
        kind = "output_text" if role == "assistant" else "input_text"
        return item("message", role=role, content=[{"type": kind, "text": text}])

    compacted = compacted or {"message": SUMMARY}
    return [
        {"timestamp": "t", "type": "session_meta", "payload": {"id": "r-1", "cwd": "/shop"}},
        words("user", "Check the postings of the quarter."),
        {"timestamp": "t", "type": "event_msg", "payload": {"type": "user_message", "message": "Check"}},
        item("reasoning", summary=[], encrypted_content="x"),
        words("assistant", "I read the file."),
        shell("a", "cat /shop/quarter.py"), output("a", SOURCE),
        shell("b", "ls /shop"), shell("b2", "pwd"), output("b", {"content": "ok"}), output("b2", "/shop"),
        {"timestamp": "t", "type": "compacted", "payload": compacted},
        shell("c", "sed -n 1,20p /shop/quarter.py"), output("c", "\n".join(SOURCE.splitlines()[:20])),
        item("custom_tool_call", name="apply_patch", call_id="d", input=f"-{COPIED}\n+    pass"),
        item("custom_tool_call_output", call_id="d", output="edited"),
        shell("e", "ledger --account KTO-4581"), output("e", "0 rows"),
        words("assistant", "Done."),
    ]  # fmt: skip
