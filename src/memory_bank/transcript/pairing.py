"""Which calls of a chat are answered: the strict check that providers make, and calls that are repeated."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memory_bank.transcript.messages import Interaction, MessageKind, Pair, kind_of, latest_interactions, read

SHOWN = 5
"""How many ids one error lists; the rest are counted."""
_LOOKED_AT = 200  # interactions, from the end, that are searched for repeated calls


def pairing_errors(messages: object) -> list[str]:
    """What is wrong with the pairs in a list of Chat Completions messages; empty when nothing is.

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
    turn: _AnsweredTurn | None = None
    for i, given in enumerate(messages):
        message = _as_dict(given)
        role = None if message is None else message.get("role")
        if message is not None and role == "tool":
            _check_tool_result(i, message, turn, errors)
        elif message is not None and role == "function":
            _check_function_result(i, message, turn, errors)
        else:
            _check_answered(turn, errors)
            turn = _open_turn(i, message, errors) if message is not None and role == "assistant" else None
            if not isinstance(role, str):
                what = f"is no object but {type(given).__name__}" if message is None else "has no role"
                errors.append(f"messages[{i}]: {what}")
    _check_answered(turn, errors)
    return errors


@dataclass
class _AnsweredTurn:
    """An assistant turn whose calls are being answered: its calls, and those that are still open."""

    index: int
    asked: set[str] = field(default_factory=set)
    pending: dict[str, None] = field(default_factory=dict)
    function: str | None = None
    function_pending: bool = False


def _open_turn(i: int, message: Mapping[str, Any], errors: list[str]) -> _AnsweredTurn | None:
    """The turn that an assistant message opens, or None when it calls nothing."""
    calls, legacy = message.get("tool_calls"), message.get("function_call")
    if calls is None and legacy is None:
        return None
    turn = _AnsweredTurn(i)
    if isinstance(calls, (list, tuple)):
        for n, given in enumerate(calls):
            call_id = (_as_dict(given) or {}).get("id")
            if not isinstance(call_id, str) or not call_id:
                errors.append(f"messages[{i}]: tool_calls[{n}] has no id")
            elif call_id in turn.asked:
                errors.append(f"messages[{i}]: tool_calls[{n}] repeats the id {_quoted(call_id)}")
            else:
                turn.asked.add(call_id)
                turn.pending[call_id] = None
    elif calls is not None:
        errors.append(f"messages[{i}]: tool_calls is not a list but {type(calls).__name__}")
    if legacy is not None:
        name = (_as_dict(legacy) or {}).get("name")
        if isinstance(name, str) and name:
            turn.function, turn.function_pending = name, True
        else:
            errors.append(f"messages[{i}]: function_call has no name")
    return turn


def _check_tool_result(
    i: int, message: Mapping[str, Any], turn: _AnsweredTurn | None, errors: list[str]
) -> None:
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str) or not call_id:
        errors.append(f"messages[{i}]: a tool result without a tool_call_id")
    elif turn is None or call_id not in turn.asked:
        errors.append(f"messages[{i}]: tool_call_id {_quoted(call_id)} answers no call of the turn before it")
    elif call_id not in turn.pending:
        errors.append(f"messages[{i}]: tool_call_id {_quoted(call_id)} is answered a second time")
    else:
        del turn.pending[call_id]


def _check_function_result(
    i: int, message: Mapping[str, Any], turn: _AnsweredTurn | None, errors: list[str]
) -> None:
    name = message.get("name")
    if not isinstance(name, str) or not name:
        errors.append(f"messages[{i}]: a function result without a name")
    elif turn is None or name != turn.function:
        errors.append(
            f"messages[{i}]: the function result {_quoted(name)} answers no function_call before it"
        )
    elif not turn.function_pending:
        errors.append(f"messages[{i}]: the function_call {_quoted(name)} is answered a second time")
    else:
        turn.function_pending = False


def _check_answered(turn: _AnsweredTurn | None, errors: list[str]) -> None:
    """Note the calls without a result of a turn that another message, or the end of the list, closes."""
    if turn is None:
        return
    if turn.pending:
        ids = list(turn.pending)
        shown = ", ".join(map(_quoted, ids[:SHOWN]))
        more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
        errors.append(f"messages[{turn.index}]: no tool message directly after it answers {shown}{more}")
    if turn.function_pending and turn.function is not None:
        errors.append(f"messages[{turn.index}]: no function message answers {_quoted(turn.function)}")


def _as_dict(value: object) -> dict[str, Any] | None:
    """The dict that a message or call is, or dumps to; None for anything else."""
    try:
        dumped = value if isinstance(value, dict) else value.model_dump()  # type: ignore[attr-defined]
    except Exception:
        return None
    return dumped if isinstance(dumped, dict) else None


def _quoted(text: str) -> str:
    """An id for use in a sentence: quoted, escaped, at most 60 characters."""
    return ascii(text if len(text) <= 60 else text[:57] + "...")


# Loops


def repeated_calls(
    messages: Sequence[object], threshold: int, interactions: Sequence[Interaction] | None = None
) -> list[dict[str, Any]]:
    """The calls at the end of a conversation that are all the same, with the same answer; [] below threshold.

    A call is the same when tool, arguments (as JSON values) and output are; parallel calls are the same when
    the whole turn is. A text of the user ends a run, and so does a last message that is no tool result.
    ``interactions`` are those of the messages where they are parsed already (``View.interactions``). Each
    call is ``{"call_id", "tool_name", "arguments", "output"}``, oldest first; at most 200 interactions are
    searched.
    """
    if not messages or kind_of(messages[-1]) is not MessageKind.RESULT:
        return []
    if interactions is None:
        last_two = latest_interactions(messages, 2)
        if threshold > 1 and not _run(messages, last_two, 2):
            return []  # the last two differ, as nearly always
        interactions = latest_interactions(messages, _LOOKED_AT)
    return [
        {
            "call_id": pair.call.call_id,
            "tool_name": pair.call.name,
            "arguments": pair.call.raw_input,
            "output": pair.result.text,
        }
        for pair in _run(messages, interactions, threshold)
        if pair.call is not None and pair.result is not None
    ]


def _run(messages: Sequence[object], interactions: Sequence[Interaction], threshold: int) -> list[Pair]:
    """The pairs of the equal calls at the end, or else of the equal turns; [] below the threshold."""
    calls: list[Pair] = []  # latest first, as are the turns
    turns: list[list[Pair]] = []
    last_key: tuple[str, str, str] | None = None
    last_keys: list[tuple[str, str, str]] | None = None
    calls_differ = turns_differ = False
    for pairs in _answered_turns(messages, interactions):
        keys = [_same_call_key(p) for p in pairs]
        last_keys = keys if last_keys is None else last_keys
        turns_differ = turns_differ or keys != last_keys
        if not turns_differ:
            turns.append(pairs)
        for pair, key in zip(reversed(pairs), reversed(keys), strict=True):
            last_key = key if last_key is None else last_key
            calls_differ = calls_differ or key != last_key
            if not calls_differ:
                calls.append(pair)
        if calls_differ and turns_differ:
            break
    if len(calls) >= threshold:
        return calls[::-1]
    return [p for pairs in reversed(turns) for p in pairs] if len(turns) >= threshold else []


def _answered_turns(messages: Sequence[object], interactions: Sequence[Interaction]) -> Iterator[list[Pair]]:
    """The answered calls of each interaction since the user's last text, the latest first."""
    stop = len(messages)
    for interaction in reversed(interactions[-_LOOKED_AT:]):
        if any(_is_text_of_user(m) for m in messages[interaction.start : stop]):
            return
        stop = interaction.start
        yield [p for p in interaction.pairs if p.call is not None and p.result is not None]


def _is_text_of_user(message: object) -> bool:
    return kind_of(message) is MessageKind.USER and isinstance(read(message, "content"), str)


def _same_call_key(pair: Pair) -> tuple[str, str, str]:
    call, result = pair.call, pair.result
    assert call is not None
    assert result is not None
    try:
        arguments = json.dumps(call.raw_input, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        arguments = call.text
    return call.name, arguments, result.text
