"""Which calls of a chat are answered: the strict check that providers make, and calls that are repeated."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from memory_bank.transcript.messages import Interaction, MessageKind, Pair, kind_of, latest_interactions, read

SHOWN = 5  # how many ids one error lists; the rest are counted
_LOOKED_AT = 200  # interactions, from the end, that are searched for repeated calls


def pairing_errors(messages: object) -> list[str]:
    """The errors in the pairs of a list of Chat Completions messages; empty when there are none.

    ``messages`` is a list (or tuple) of dicts, as they are sent; SDK objects with ``model_dump()`` are
    accepted in their place. Each error is one sentence that begins with the index of a message, such as
    ``"messages[3]: tool_call_id 'c1' answers no call of the turn before it"``. The rules:

    - Each call of an assistant turn is answered once, by a ``role: tool`` message. These messages follow the
      turn directly, in any order, before any other message and before the list ends.
    - A result answers a call of that turn. Ids are non-empty strings, unique in a turn; another turn may use
      them again.
    - A legacy ``function_call`` is answered by one ``role: function`` message of the same name.
    - An entry that is no object or has no role is an error too, because no provider accepts it.

    Takes linear time and never raises.
    """
    if not isinstance(messages, (list, tuple)):
        return [f"messages: not a list but {type(messages).__name__}"]
    errors: list[str] = []
    is_open: dict[tuple[str, str], bool] = {}  # the calls of the present turn by role of the answer and key
    turn = -1
    for i, entry in enumerate([*messages, None]):
        message = _as_dict(entry)
        role = None if message is None else message.get("role")
        if message is not None and role in ("tool", "function"):
            errors += [f"messages[{i}]: {wrong}" for wrong in _answered(is_open, role, message)]
            continue
        errors += [f"messages[{turn}]: {wrong}" for wrong in _unanswered(is_open)]
        is_open = {}
        if i == len(messages):
            break
        if message is None:
            errors.append(f"messages[{i}]: is no object but {type(entry).__name__}")
        elif not isinstance(role, str):
            errors.append(f"messages[{i}]: has no role")
        elif role == "assistant":
            turn = i
            errors += [f"messages[{i}]: {wrong}" for wrong in _opened(is_open, message)]
    return errors


def _opened(is_open: dict[tuple[str, str], bool], message: Mapping[str, Any]) -> Iterator[str]:
    """Take the calls of an assistant's message; what is wrong with them."""
    calls, legacy = message.get("tool_calls"), message.get("function_call")
    if calls is not None and not isinstance(calls, (list, tuple)):
        yield f"tool_calls is not a list but {type(calls).__name__}"
        calls = None
    for n, call in enumerate(calls or ()):
        call_id = (_as_dict(call) or {}).get("id")
        if not isinstance(call_id, str) or not call_id:
            yield f"tool_calls[{n}] has no id"
        elif ("tool", call_id) in is_open:
            yield f"tool_calls[{n}] repeats the id {_quoted(call_id)}"
        else:
            is_open["tool", call_id] = True
    name = None if legacy is None else (_as_dict(legacy) or {}).get("name")
    if isinstance(name, str) and name:
        is_open["function", name] = True
    elif legacy is not None:
        yield "function_call has no name"


def _unanswered(is_open: Mapping[tuple[str, str], bool]) -> Iterator[str]:
    """The errors where another message, or the end of the list, closes a turn."""
    left = [key for key, still in is_open.items() if still]
    if ids := [call_id for role, call_id in left if role == "tool"]:
        others = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
        yield f"no tool message directly after it answers {', '.join(map(_quoted, ids[:SHOWN]))}{others}"
    for name in (name for role, name in left if role == "function"):
        yield f"no function message answers {_quoted(name)}"


def _answered(is_open: dict[tuple[str, str], bool], role: str, message: Mapping[str, Any]) -> Iterator[str]:
    """Count a call as answered; returns what is wrong with the answer."""
    is_tool = role == "tool"
    key = message.get("tool_call_id" if is_tool else "name")
    if not isinstance(key, str) or not key:
        yield f"a {'tool result without a tool_call_id' if is_tool else 'function result without a name'}"
    elif (role, key) not in is_open:
        one, of = (
            ("tool_call_id", "call of the turn") if is_tool else ("the function result", "function_call")
        )
        yield f"{one} {_quoted(key)} answers no {of} before it"
    elif not is_open[role, key]:
        yield f"{'tool_call_id' if is_tool else 'the function_call'} {_quoted(key)} is answered a second time"
    else:
        is_open[role, key] = False


def _as_dict(value: object) -> dict[str, Any] | None:
    try:
        dumped = value if isinstance(value, dict) else value.model_dump()  # type: ignore[attr-defined]
    except Exception:
        return None
    return dumped if isinstance(dumped, dict) else None


def _quoted(text: str) -> str:
    return ascii(text if len(text) <= 60 else text[:57] + "...")


# Loops


def repeated_calls(messages: Sequence[object], threshold: int) -> list[dict[str, Any]]:
    """The calls at the end of a conversation that are all the same, with the same answer; [] below threshold.

    A call is the same when tool, arguments (as JSON values) and output are; parallel calls are the same when
    the whole turn is. A text of the user ends a run, and so does a last message that is no tool result. Each
    call is ``{"call_id", "tool_name", "arguments", "output"}``, oldest first; at most 200 interactions are
    searched.
    """
    if not messages or kind_of(messages[-1]) is not MessageKind.RESULT:
        return []
    if threshold > 1 and not _run(messages, latest_interactions(messages, 2), 2):
        return []  # the last two differ, as nearly always
    interactions = latest_interactions(messages, _LOOKED_AT)
    names = ("call_id", "tool_name", "arguments", "output")
    pairs = ((p.call, p.result) for p in _run(messages, interactions, threshold))
    calls = ((c.call_id, c.name, c.raw_input, r.text) for c, r in pairs if c is not None and r is not None)
    return [dict(zip(names, values, strict=True)) for values in calls]


def _run(messages: Sequence[object], interactions: Sequence[Interaction], threshold: int) -> list[Pair]:
    """The pairs of the equal calls at the end, or else of the equal turns; [] below the threshold."""
    turns: list[list[tuple[tuple[str, str, str], Pair]]] = []
    stop = len(messages)
    for interaction in reversed(interactions[-_LOOKED_AT:]):
        between = messages[interaction.start : stop]
        if any(kind_of(m) is MessageKind.USER and isinstance(read(m, "content"), str) for m in between):
            break  # the user's latest text
        stop = interaction.start
        answered = (p for p in interaction.pairs if p.call is not None and p.result is not None)
        turns.append([(_same_call_key(p), p) for p in answered])
        keys, latest = [key for key, _ in turns[-1]], next((t[-1][0] for t in turns if t), None)
        if keys != [key for key, _ in turns[0]] and any(key != latest for key in keys):
            break  # neither run goes on before this turn
    calls = [call for turn in turns for call in reversed(turn)]  # latest first, as are the turns
    same = list(takewhile(lambda call: call[0] == calls[0][0], calls))
    if len(same) >= threshold:
        return [pair for _, pair in reversed(same)]
    first = [key for key, _ in turns[0]] if turns else []
    alike = list(takewhile(lambda turn: [key for key, _ in turn] == first, turns))
    return [pair for turn in reversed(alike) for _, pair in turn] if len(alike) >= threshold else []


def _same_call_key(pair: Pair) -> tuple[str, str, str]:
    call, result = pair.call, pair.result
    assert call is not None
    assert result is not None
    try:
        arguments = json.dumps(call.raw_input, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        arguments = call.text
    return call.name, arguments, result.text
