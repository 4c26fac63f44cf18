"""One session of an agent as chat messages, with the places where its client compacted the history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from memory_bank.transcript import content_text

Client = Literal["Claude Code", "Codex", "message list"]


@dataclass(frozen=True, slots=True)
class Compaction:
    """The client replaced everything before ``position`` by ``summary``; None where the log does not have it."""

    position: int
    summary: str | None


@dataclass(slots=True)
class LoggedSession:
    """A session: its id, its messages without the summaries of compactions, and the compactions in order."""

    id: str
    client: Client
    messages: list[dict[str, Any]] = field(default_factory=list)
    compactions: list[Compaction] = field(default_factory=list)

    def add(self, role: str, text: str) -> None:
        """Add a message of words; nothing happens when there are none."""
        if text.strip():
            self.messages.append({"role": role, "content": text})

    def add_call(self, call_id: str, name: str, arguments: str) -> None:
        """Add a tool call to the assistant message at the end, or to a new one."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": None})
        add_call(self.messages[-1], call_id, name, arguments)

    def add_result(self, call_id: str, output: str) -> None:
        """Add the result of a call."""
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": output})

    def compact(self, summary: str | None) -> None:
        """Note that everything so far was replaced by a summary."""
        self.compactions.append(Compaction(len(self.messages), summary))


def add_call(message: dict[str, Any], call_id: str, name: str, arguments: str) -> None:
    """Add a tool call to an assistant message."""
    function = {"name": name, "arguments": arguments}
    call = {"id": call_id, "type": "function", "function": function}
    message.setdefault("tool_calls", []).append(call)


def text_at(value: Mapping[str, Any], *keys: str) -> str:
    """The first of the fields that is text; "" when there is none."""
    return next((v for k in keys if isinstance(v := value.get(k), str)), "")


def text_of(content: object) -> str:
    """The text of a content: a string, or parts of which those that are no text are named."""
    if isinstance(content, Mapping) and "content" in content:
        content = content["content"]
    return content_text(content)


def parts_of(content: object) -> Sequence[Mapping[str, Any]]:
    """The parts of a content that are objects."""
    return [p for p in content if isinstance(p, Mapping)] if isinstance(content, list) else []
