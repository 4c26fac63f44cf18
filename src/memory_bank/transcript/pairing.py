"""Which calls of a chat are answered: the strict check that providers make, and calls that are repeated."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
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
    for i, given in enumerate([*messages, None]):
        message = _as_dict(given)
        role = None if message is None else message.get("role")
        if message is not None and role in ("tool", "function"):
            errors += [f"messages[{i}]: {wrong}" for wrong in _answered(turn, role, message)]
            continue
        errors += [] if turn is None else turn.unanswered()
        turn = None
        if i == len(messages):
            break
        if message is None:
            errors.append(f"messages[{i}]: is no object but {type(given).__name__}")
        elif not isinstance(role, str):
            errors.append(f"messages[{i}]: has no role")
        elif role == "assistant":
            turn = _AnsweredTurn(i)
            errors += [f"messages[{i}]: {wrong}" for wrong in turn.open(message)]
    return errors


@dataclass
class _AnsweredTurn:
    """An assistant turn whose calls are being answered: for each id and its function, whether it is still open."""

    index: int
    calls: dict[str, bool] = field(default_factory=dict)
    function: dict[str, bool] = field(default_factory=dict)

    def open(self, message: Mapping[str, Any]) -> Iterator[str]:
        """Take the calls of the assistant's message; what is wrong with them."""
        calls, legacy = message.get("tool_calls"), message.get("function_call")
        if calls is not None and not isinstance(calls, (list, tuple)):
            yield f"tool_calls is not a list but {type(calls).__name__}"
            calls = None
        for n, given in enumerate(calls or ()):
            call_id = (_as_dict(given) or {}).get("id")
            if not isinstance(call_id, str) or not call_id:
                yield f"tool_calls[{n}] has no id"
            elif call_id in self.calls:
                yield f"tool_calls[{n}] repeats the id {_quoted(call_id)}"
            else:
                self.calls[call_id] = True
        if legacy is not None:
            name = (_as_dict(legacy) or {}).get("name")
            if isinstance(name, str) and name:
                self.function[name] = True
            else:
                yield "function_call has no name"

    def unanswered(self) -> Iterator[str]:
        """What is wrong where another message, or the end of the list, closes the turn."""
        if ids := [call_id for call_id, is_open in self.calls.items() if is_open]:
            shown = ", ".join(map(_quoted, ids[:SHOWN]))
            more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
            yield f"messages[{self.index}]: no tool message directly after it answers {shown}{more}"
        for name in (name for name, is_open in self.function.items() if is_open):
            yield f"messages[{self.index}]: no function message answers {_quoted(name)}"


def _answered(turn: _AnsweredTurn | None, role: object, message: Mapping[str, Any]) -> Iterator[str]:
    """Note the answer to a call; what is wrong with it."""
    is_tool = role == "tool"
    key = message.get("tool_call_id" if is_tool else "name")
    calls: dict[str, bool] = {} if turn is None else turn.calls if is_tool else turn.function
    if not isinstance(key, str) or not key:
        yield f"a {'tool result without a tool_call_id' if is_tool else 'function result without a name'}"
    elif key not in calls:
        one, of = (
            ("tool_call_id", "call of the turn") if is_tool else ("the function result", "function_call")
        )
        yield f"{one} {_quoted(key)} answers no {of} before it"
    elif not calls[key]:
        yield f"{'tool_call_id' if is_tool else 'the function_call'} {_quoted(key)} is answered a second time"
    else:
        calls[key] = False


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
    turns: list[list[tuple[tuple[str, str, str], Pair]]] = []
    for pairs in _answered_turns(messages, interactions):
        turns.append([(_same_call_key(p), p) for p in pairs])
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


def _answered_turns(messages: Sequence[object], interactions: Sequence[Interaction]) -> Iterator[list[Pair]]:
    """The answered calls of each interaction since the user's last text, the latest first."""
    stop = len(messages)
    for interaction in reversed(interactions[-_LOOKED_AT:]):
        between = messages[interaction.start : stop]
        if any(kind_of(m) is MessageKind.USER and isinstance(read(m, "content"), str) for m in between):
            return
        stop = interaction.start
        yield [p for p in interaction.pairs if p.call is not None and p.result is not None]


def _same_call_key(pair: Pair) -> tuple[str, str, str]:
    call, result = pair.call, pair.result
    assert call is not None
    assert result is not None
    try:
        arguments = json.dumps(call.raw_input, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        arguments = call.text
    return call.name, arguments, result.text
