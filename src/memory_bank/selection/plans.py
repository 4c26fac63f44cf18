"""The agent's plan or to-do list, and the sentences in which it states a decision; both as it wrote them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from memory_bank.selection.calltext import clip
from memory_bank.transcript.jsontext import parse_arguments
from memory_bank.transcript.quoting import one_line

_PLAN_TOOL = re.compile(r"to_?-?dos?\b|to_?do_?(?:write|list)|(?:^|_|\b)plan(?:$|_|\b)|checklist", re.I)
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_TEXT_KEYS = ("content", "step", "title", "text", "task", "description", "subject", "name", "item")
_STATE_KEYS = ("status", "state", "done", "completed", "checked")
_DONE = frozenset({"completed", "complete", "done", "finished", "true", "x", "checked"})
_ACTIVE = frozenset({"in_progress", "in-progress", "active", "doing", "started"})
_CHECK = re.compile(r"^[ \t]*(?:[-*+]|\d{1,3}[.)])[ \t]*\[([ xX~\-])\][ \t]+(\S.*)$", re.M)
_MOST_ITEMS = 60
_ITEM_CHARS = 100
_SENTENCE = re.compile(r"[^\n.!?]+(?:[.!?](?=\S)[^\n.!?]*)*[.!?]?")
_DECIDES = re.compile(
    r"\b(?:decid(?:e|ed|ing)|decision|instead of|rather than|must not|must never|should not|shouldn't|do not|don't "
    r"|won't|root cause|turns out|conclu(?:de|ded|sion)|confirmed|chose|choose|going with|the (?:problem|issue|bug|"
    r"fix|reason|cause|plan|answer) (?:is|was)|because|the user (?:wants|asked|said|prefers)|"
    r"(?:is|are) (?:not|already)|only the|except)\b",
    re.I,
)
_DECISION_CHARS = 160
_NOTE_CHARS = 6_000


def is_plan_tool(tool: str) -> bool:
    """Whether a tool of this name writes the agent's own plan or to-do list."""
    return bool(_PLAN_TOOL.search(_HUMP.sub("_", tool)))


def plan_in_call(tool: str, arguments: str) -> str:
    """The plan that a call writes, one line an item with its state; "" where it writes none."""
    if not is_plan_tool(tool):
        return ""
    value = parse_arguments(arguments)
    lists = [v for v in value.values() if isinstance(v, list)]
    for items in lists:
        lines = [line for item in items[:_MOST_ITEMS] if (line := _item_line(item))]
        if lines:
            return "\n".join(lines)
    texts = [v for v in value.values() if isinstance(v, str) and v.strip()]
    return plan_in_note("\n".join(texts))


def plan_in_note(text: str) -> str:
    """The check list in what the agent wrote, line by line; "" where it has none."""
    found = _CHECK.findall(text[:_NOTE_CHARS])
    if len(found) < 2:
        return ""
    return "\n".join(f"- [{mark}] {clip(body.strip(), _ITEM_CHARS)}" for mark, body in found[:_MOST_ITEMS])


def decisions_in(text: str) -> Iterator[str]:
    """The sentences of a note that state a decision or a finding, in order, each on one line."""
    for match in _SENTENCE.finditer(text[:_NOTE_CHARS]):
        sentence = one_line(match[0])
        if len(sentence) >= 20 and _DECIDES.search(sentence):
            yield clip(sentence, _DECISION_CHARS)


def _item_line(item: object) -> str:
    if isinstance(item, str):
        return f"- {clip(one_line(item), _ITEM_CHARS)}" if item.strip() else ""
    if not isinstance(item, dict):
        return ""
    text = next((item[k] for k in _TEXT_KEYS if isinstance(item.get(k), str) and item[k].strip()), None)
    if text is None:
        return ""
    state = next((str(item[k]).casefold() for k in _STATE_KEYS if item.get(k) is not None), "")
    mark = "x" if state in _DONE else "~" if state in _ACTIVE else " "
    return f"- [{mark}] {clip(one_line(text), _ITEM_CHARS)}"
