"""The strict check that providers make on a chat: every tool call answered, every result asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SHOWN = 5
"""How many ids one error lists; the rest are counted."""


def pairing_errors(messages: Any) -> list[str]:
    """What is wrong with the pairs in a list of Chat Completions messages; empty when nothing is.

    ``messages`` is a list (or tuple) of dicts, as they go over the wire; SDK objects with ``model_dump()``
    are accepted in their place. Each error is one sentence that begins with the index of a message, such as
    ``"messages[3]: tool_call_id 'c1' answers no call of the turn before it"``. The rules:

    - The calls of an assistant turn are each answered once, by ``role: tool`` messages that follow it
      directly, in any order, before any other message and before the list ends.
    - A result answers a call of that turn. Ids are non-empty strings, unique in a turn; another turn may use
      them again.
    - A legacy ``function_call`` is answered by one ``role: function`` message of the same name.
    - An entry that is no object or has no role is an error too, for no provider takes it.

    Takes linear time, and never raises, whatever it is given.
    """
    if not isinstance(messages, (list, tuple)):
        return [f"messages: not a list but {_kind(messages)}"]
    errors: list[str] = []
    turn: _Turn | None = None
    for i, given in enumerate(messages):
        message = _as_dict(given)
        if message is None or not isinstance(message.get("role"), str):
            what = "has no role" if message is not None else f"is no object but {_kind(given)}"
            _close(turn, errors)
            turn = None
            errors.append(f"messages[{i}]: {what}")
            continue
        role = message["role"]
        if role == "tool":
            _tool_result(i, message, turn, errors)
        elif role == "function":
            _function_result(i, message, turn, errors)
        else:
            _close(turn, errors)
            turn = _open(i, message, errors) if role == "assistant" else None
    _close(turn, errors)
    return errors


@dataclass
class _Turn:
    """An assistant turn whose calls are being answered: what it asked for, what is still open."""

    index: int
    asked: set[str] = field(default_factory=set)
    pending: dict[str, None] = field(default_factory=dict)
    function: str | None = None
    function_pending: bool = False


def _open(i: int, message: dict[Any, Any], errors: list[str]) -> _Turn | None:
    """The turn that an assistant message opens, or None when it calls nothing."""
    calls, legacy = message.get("tool_calls"), message.get("function_call")
    if calls is None and legacy is None:
        return None
    turn = _Turn(i)
    if isinstance(calls, (list, tuple)):
        for n, given in enumerate(calls):
            call = _as_dict(given)
            call_id = call.get("id") if call is not None else None
            if not isinstance(call_id, str) or not call_id:
                errors.append(f"messages[{i}]: tool_calls[{n}] has no id")
            elif call_id in turn.asked:
                errors.append(f"messages[{i}]: tool_calls[{n}] repeats the id {_show(call_id)}")
            else:
                turn.asked.add(call_id)
                turn.pending[call_id] = None
    elif calls is not None:
        errors.append(f"messages[{i}]: tool_calls is not a list but {_kind(calls)}")
    if legacy is not None:
        call = _as_dict(legacy)
        name = call.get("name") if call is not None else None
        if isinstance(name, str) and name:
            turn.function, turn.function_pending = name, True
        else:
            errors.append(f"messages[{i}]: function_call has no name")
    return turn


def _tool_result(i: int, message: dict[Any, Any], turn: _Turn | None, errors: list[str]) -> None:
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str) or not call_id:
        errors.append(f"messages[{i}]: a tool result without a tool_call_id")
    elif turn is None or call_id not in turn.asked:
        errors.append(f"messages[{i}]: tool_call_id {_show(call_id)} answers no call of the turn before it")
    elif call_id not in turn.pending:
        errors.append(f"messages[{i}]: tool_call_id {_show(call_id)} is answered a second time")
    else:
        del turn.pending[call_id]


def _function_result(i: int, message: dict[Any, Any], turn: _Turn | None, errors: list[str]) -> None:
    name = message.get("name")
    if not isinstance(name, str) or not name:
        errors.append(f"messages[{i}]: a function result without a name")
    elif turn is None or name != turn.function:
        errors.append(f"messages[{i}]: the function result {_show(name)} answers no function_call before it")
    elif not turn.function_pending:
        errors.append(f"messages[{i}]: the function_call {_show(name)} is answered a second time")
    else:
        turn.function_pending = False


def _close(turn: _Turn | None, errors: list[str]) -> None:
    """Another message comes, or the list ends: what is still open stays unanswered."""
    if turn is None:
        return
    if turn.pending:
        ids = list(turn.pending)
        shown = ", ".join(_show(call_id) for call_id in ids[:SHOWN])
        more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
        errors.append(f"messages[{turn.index}]: no tool message directly after it answers {shown}{more}")
    if turn.function_pending and turn.function is not None:
        errors.append(f"messages[{turn.index}]: no function message answers {_show(turn.function)}")


def _as_dict(value: Any) -> dict[Any, Any] | None:
    """The dict that a message or call is, or dumps to; None for anything else."""
    if isinstance(value, dict):
        return value
    if value is None or isinstance(value, (str, bytes, int, float, list, tuple)):
        return None
    try:
        dumped = value.model_dump()
    except Exception:
        return None
    return dumped if isinstance(dumped, dict) else None


def _kind(value: Any) -> str:
    return type(value).__name__


def _show(text: str) -> str:
    """An id as it can stand in a sentence: quoted, escaped, never long."""
    return ascii(text if len(text) <= 60 else text[:57] + "...")
