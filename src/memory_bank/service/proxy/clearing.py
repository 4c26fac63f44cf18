"""``context_management``: what a client wants cleared, which is not sent; when it wants a compaction."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from memory_bank.ports import TokenCounter
from memory_bank.service.proxy.answers import as_object, objects_of
from memory_bank.service.proxy.body import JsonObject
from memory_bank.service.proxy.upstream import Headers
from memory_bank.transcript.anthropic import THINKING, AnthropicWire, thinking_rule, without_thinking
from memory_bank.transcript.messages import MessageKind, same_objects

CONTEXT_MANAGEMENT = "context_management"
CLEAR_TOOLS, CLEAR_THINKING = "clear_tool_uses_20250919", "clear_thinking_20251015"
COMPACT = "compact_20260112"
CLEARED = "[Old tool result content cleared]"
"""What stands in the place of a cleared result, in the words of Claude Code."""

UNKNOWN = re.compile(
    rb"context[_-]management(?!\W{1,9}(?:edits|\d(?!\W{1,5}type)))"
    rb"|compact[_-]2026[\d_-]++(?!\W{0,4}(?:trigger|instructions|pause|:))"
)
"""Is in the refusal of an upstream that does not know the member, its compaction or a beta; not in that of a wrong
edit."""

# of anthropic-beta, those that belong to the member
_BETAS = (b"context-management-2025-06-27", b"compact-2026-01-12")
_COUNTS = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_WIRE = AnthropicWire()


def edit_of(request: JsonObject, kind: str) -> JsonObject | None:
    """The edit of a type in ``context_management`` of a request of the Messages API; None without one."""
    edits = objects_of(as_object(request.get(CONTEXT_MANAGEMENT)).get("edits"))
    return next((e for e in edits if e.get("type") == kind), None)


def threshold_of(request: JsonObject) -> int | None:
    """The tokens above which a request wants a compaction; None where it does not. Responses have a list of edits."""
    managed = request.get(CONTEXT_MANAGEMENT)
    if isinstance(managed, list):
        entry = next((e for e in objects_of(managed) if e.get("type") == "compaction"), {})
        return number if type(number := entry.get("compact_threshold")) is int else None
    edit = edit_of(request, COMPACT)
    return None if edit is None else _amount(edit, "trigger", 150_000)


def excluded_tools(request: JsonObject) -> frozenset[str]:
    """The tools whose results a client wants to stay whole (``exclude_tools``)."""
    names = (edit_of(request, CLEAR_TOOLS) or {}).get("exclude_tools")
    return frozenset(n for n in names if isinstance(n, str)) if isinstance(names, list) else frozenset()


def clear(
    request: JsonObject,
    written: Sequence[Any],
    tokens: tuple[int, int],
    counter: TokenCounter,
    thinking: bool,
) -> tuple[list[Any], int, list[JsonObject]]:
    """The messages ``written`` for a request without what its edits want cleared of the messages that came; also the
    tokens that this saves, and the edits as an answer reports them.

    ``tokens``: of what came, and of what was written; what memory left out or shortened counts as cleared.
    ``thinking``: old thinking goes, too. From the first changed message on it goes as its signatures demand.

    Raises HistoryError where these allow no change.
    """
    source, full, edits = request["messages"], tokens[0], list[JsonObject]()
    tools, thoughts = edit_of(request, CLEAR_TOOLS), edit_of(request, CLEAR_THINKING)
    names, results = ({}, {}) if tools is None else _calls(source)

    def cost(content: object) -> int:
        return counter.count_message({"role": "tool", "content": content})

    due, inputs = set[str](), tools and tools.get("clear_tool_inputs")
    of_calls = tools and as_object(tools.get("trigger")).get("type") == "tool_uses"
    if tools and (len(results) if of_calls else full) > _amount(tools, "trigger", 100_000):
        excluded, older = excluded_tools(request), max(0, len(results) - _amount(tools, "keep", 3))
        due = {i for i in [*results][:older] if names.get(i) not in excluded}
        if (least := _amount(tools, "clear_at_least", 0)) and sum(cost(results[i]) for i in due) < least:
            due = set()
    all_stay = thoughts is None or thoughts.get("keep") == "all"
    old = [] if all_stay or not thinking else [*_thinking(written)][: -max(1, _amount(thoughts, "keep", 1))]
    out: list[Any] = []
    turn = saved = 0
    for message in written:
        turn += _WIRE.speakers(message) == {"user"}
        change: dict[int, str | None] = {}
        for number, part in _WIRE.read(message).items() if due or turn in old else ():
            i, new = str(part.call_id), ""
            if part.signed and turn in old:
                change[number] = None
            elif i in due and part.kind is MessageKind.CALL:
                new = "{}" if inputs is True or (isinstance(inputs, list) and part.name in inputs) else ""
            elif i in due and part.value == results[i]:
                new = CLEARED
            if new and (less := cost(part.value) - cost(new)) > 0:
                saved, change[number] = saved + less, new
        if (left := _WIRE.write(message, change) if change else message) is not None:
            out.append(left)
    if not same_objects(out, written):
        out = without_thinking(out, thinking_rule(request.get("thinking")), source)
    before, after = _thinking(source), _thinking(out)
    if not all_stay and (gone := len(before) - len(after)) > 0:
        less = counter.count_text("".join(before.values())) - counter.count_text("".join(after.values()))
        edits.append({"type": CLEAR_THINKING, "cleared_thinking_turns": gone, "cleared_input_tokens": less})
    shown = _calls(out)[1] if results else {}
    if gone := sum(i not in shown or shown[i] != result for i, result in results.items()):
        less = max(0, full - tokens[1] + saved)
        edits.append({"type": CLEAR_TOOLS, "cleared_tool_uses": gone, "cleared_input_tokens": less})
    return out, saved, edits


def _amount(edit: JsonObject | None, member: str, default: int) -> int:
    """The number in a member such as ``{"type": "tool_uses", "value": 3}``."""
    value = as_object(as_object(edit).get(member)).get("value")
    return value if type(value) is int and value >= 0 else default


def _calls(messages: Sequence[Any]) -> tuple[dict[str, str | None], dict[str, Any]]:
    """The tools of the calls in some messages, and the results, by the id of the call."""
    parts = [p for m in messages for p in _WIRE.read(m).values() if p.call_id is not None]
    calls = {str(p.call_id): p.name for p in parts if p.kind is MessageKind.CALL}
    return calls, {str(p.call_id): p.value for p in parts if p.kind is MessageKind.RESULT}


def _thinking(messages: Sequence[Any]) -> dict[int, str]:
    """The thinking in some messages, by the number of its turn: one begins where the user speaks without results."""
    turn, found = 0, defaultdict[int, str](str)
    for message in messages:
        turn += _WIRE.speakers(message) == {"user"}
        for block in objects_of(as_object(message).get("content")):
            if block.get("type") in THINKING:
                found[turn] += str(block.get("thinking", ""))
    return found


def without_beta(headers: Headers) -> Headers:
    """The headers without the betas of ``context_management``; other betas stay."""
    shown = [
        (n, b",".join(t for t in v.split(b",") if t.strip() not in _BETAS) if n == b"anthropic-beta" else v)
        for n, v in headers
    ]
    return [(n, v) for n, v in shown if v.strip() or n != b"anthropic-beta"]


def with_compaction(usage: JsonObject) -> JsonObject:
    """The usage of a message that begins with a compaction of the bank, which costs no tokens."""
    own = {"type": "compaction", **dict.fromkeys(_COUNTS, 0)}
    spoken = usage.get("iterations")
    if spoken is None:
        spoken = [{"type": "message", **{k: usage.get(k) or 0 for k in _COUNTS}}]
    return {**usage, "iterations": [own, *spoken]}
