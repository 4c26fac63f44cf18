"""An agent that goes round in circles: the same call with the same answer, again and again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from memory_bank.transcript.content import read
from memory_bank.transcript.interactions import Interaction, Kind, Pair, kind_of
from memory_bank.transcript.parsing import parse_messages

_LOOKED_AT = 100  # interactions, from the end


def repeated_calls(messages: Sequence[Any], threshold: int) -> list[dict[str, Any]]:
    """The calls at the end of a conversation that are all the same, with the same answer; [] below threshold.

    A call is the same when tool, arguments (as JSON values) and output are; parallel calls are the same when
    the whole turn is. A word of the user ends a run, and so does a last message that is no tool result.
    Each is ``{"call_id", "tool_name", "arguments", "output"}``, oldest first.
    """
    if not messages or kind_of(messages[-1]) is not Kind.RESULT:
        return []
    if threshold > 1 and not _run(_turns(messages[_start(messages, 2) :]), 2):
        return []  # the last two differ, as nearly always
    size = 8 + 2 * threshold
    found: list[dict[str, Any]] = []
    while True:  # look further back while all that was looked at is one run
        start = _start(messages, size)
        turns = _turns(messages[start:])
        found = _run(turns, threshold)
        if start == 0 or size >= _LOOKED_AT or len(found) < sum(map(len, turns)):
            return found
        size *= 4


def _start(messages: Sequence[Any], turns: int) -> int:
    """Where the last so many turns with calls begin, or the message after the user's last words."""
    for i in range(len(messages) - 1, -1, -1):
        kind = kind_of(messages[i])
        if kind is Kind.USER and isinstance(read(messages[i], "content"), str):
            return i + 1
        if kind is Kind.CALL:
            turns -= 1
            if turns == 0:
                return i
    return 0


def _turns(messages: Sequence[Any]) -> list[list[Pair]]:
    """The answered calls of each interaction."""
    segments = parse_messages(list(messages))
    return [
        [p for p in s.pairs if p.call is not None and p.result is not None]
        for s in segments
        if isinstance(s, Interaction)
    ]


def _run(turns: list[list[Pair]], threshold: int) -> list[dict[str, Any]]:
    single = _equal_at_end([_key(p) for pairs in turns for p in pairs])
    pairs = [p for turn in turns for p in turn]
    whole = _equal_at_end([tuple(map(_key, turn)) for turn in turns])
    if single >= threshold:
        return [_told(p) for p in pairs[len(pairs) - single :]]
    if whole >= threshold and turns[-1]:
        return [_told(p) for turn in turns[len(turns) - whole :] for p in turn]
    return []


def _equal_at_end(keys: Sequence[Any]) -> int:
    n = 0
    while n < len(keys) and keys[-1 - n] == keys[-1]:
        n += 1
    return n


def _key(pair: Pair) -> tuple[str, str, str]:
    call, result = pair.call, pair.result
    assert call is not None
    assert result is not None
    try:
        arguments = json.dumps(call.raw_input, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        arguments = call.text
    return call.name, arguments, result.text


def _told(pair: Pair) -> dict[str, Any]:
    call, result = pair.call, pair.result
    assert call is not None
    assert result is not None
    return {
        "call_id": call.call_id,
        "tool_name": call.name,
        "arguments": call.raw_input,
        "output": result.text,
    }
