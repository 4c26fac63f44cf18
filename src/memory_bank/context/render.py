"""Messages from a plan: anchor, memory message, kept interactions, tail; broken pairs repaired."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from memory_bank.plan import Context, Plan
from memory_bank.transcript.messages import (
    Interaction,
    MessageKind,
    Pair,
    call_entry,
    calls_of,
    content_text,
    kind_of,
    read,
    result_of,
    source_positions,
)
from memory_bank.transcript.quoting import fence
from memory_bank.transcript.transcript import is_same


def render(plan: Plan) -> Context:
    """The messages of a plan: what is never dropped, the memory, past interactions that are shown, the tail.

    The messages come in their order. The memory message stands before the past interactions that are shown:
    those follow what is never dropped, or stand in their places among it where the choice says so
    (``in_place``). Where the plan is ``unchanged`` all messages are there.
    """
    view, choice = plan.view, plan.choice
    keep_all = plan.unchanged or choice.keep_all
    shortened = {} if keep_all else choice.in_place or {}
    out: list[Any] = []
    sources: list[int | None] = []

    def put_turn(start: int, messages: Sequence[Any], stop: int) -> int:
        for message, place in zip(
            messages, source_positions(messages, view.messages[start:stop]), strict=True
        ):
            position = None if place is None else start + place
            # one that did not change may be that of an earlier list, which was equal
            is_own = position is not None and is_same(message, view.messages[position])
            out.append(view.messages[position] if position is not None and is_own else message)
            sources.append(position)
        return stop

    def put(positions: Iterable[int]) -> None:
        skip_to = -1
        for position in positions:
            if position < skip_to:
                continue
            if position in plan.repaired:
                stop = next(e.stop for e in view.interactions if e.start == position)
                skip_to = put_turn(position, plan.repaired[position], stop)
            elif position in shortened:
                skip_to = put_turn(position, shortened[position].messages, shortened[position].stop)
            else:
                replaced = choice.replaced.get(position)
                out.append(view.messages[position] if replaced is None else dict(replaced.message))
                sources.append(position)

    shown = [] if keep_all else [p for e in choice.whole for p in range(e.start, e.stop)]
    if keep_all:
        first: Iterable[int] = range(view.tail_start)
    elif choice.in_place is None:
        first = view.kept
    else:
        shown += [p for start, turn in shortened.items() for p in range(start, turn.stop)]
        begin = min(shown, default=view.tail_start)
        first = [p for p in view.kept if p < begin]
        shown = sorted([*shown, *(p for p in view.kept if p >= begin)])
    put(first)
    if plan.memory is not None:
        out.append(dict(plan.memory))
        sources.append(None)
    put(shown)
    put(range(view.tail_start, len(view.messages)))
    return Context(out, plan, sources)


def memory_message(text: str, session_id: str, role: str = "user") -> dict[str, str]:
    """The message that shows memory, its text fenced as data."""
    return {"role": role, "content": fence(text, session_id)}


MISSING_RESULT = "[no result was recorded for this call]"


def repair_interaction(interaction: Interaction, mode: str) -> tuple[list[Any], str]:
    """The messages of an interaction with whole pairs, and a phrase that says what was done.

    Mode "complete" answers unanswered calls and puts a call before an orphaned result; "drop" removes both.
    Messages between calls and results move behind them. Items of the Responses API and interactions in which
    two calls share an id are returned unchanged.
    """
    if any(read(m, "role") is None for m in interaction.messages):
        return list(interaction.messages), "not repaired: Responses items pass through"
    ids = [p.call.call_id for p in interaction.pairs if p.call and p.call.call_id is not None]
    if len(ids) != len(set(ids)):
        return list(interaction.messages), "not repaired: two calls share an id"
    answered = {p.call.call_id for p in interaction.pairs if p.call and p.result}
    calls = [m for m in interaction.messages if kind_of(m) is MessageKind.CALL]
    lead = [m for m in interaction.messages if kind_of(m) is MessageKind.SAY]
    riders = [
        m
        for m in interaction.messages
        if kind_of(m) in (MessageKind.USER, MessageKind.SYSTEM, MessageKind.OTHER)
    ]
    known = {c.call_id for m in calls for c in calls_of(m)}
    given: set[Any] = set()
    results: list[Any] = []
    orphans: list[Any] = []
    for m in interaction.messages:
        if kind_of(m) is MessageKind.RESULT:
            call_id = result_of(m).call_id
            fits = call_id in known and call_id not in given
            (results if fits else orphans).append(m)
            given.add(call_id)
    unanswered = [p for p in interaction.pairs if p.call and not p.result]
    out = list(lead)
    if mode == "complete":
        out += [*calls, *results, *(_missing_result(p) for p in unanswered)]
        for orphan in orphans:
            out += _with_call(orphan)
    else:
        out += [m for c in calls if (m := _without(c, answered)) is not None]
        out += results
    done = _describe_repairs(mode, len(unanswered), len(orphans))
    if "stands between" in interaction.fault:
        done += "; a message in between was moved behind the results"
    return out + riders, done


def _describe_repairs(mode: str, unanswered: int, orphans: int) -> str:
    verb = "completed" if mode == "complete" else "dropped"
    parts = []
    if unanswered:
        parts.append(f"{verb} {unanswered} unanswered call{'s' if unanswered > 1 else ''}")
    if orphans:
        parts.append(f"{verb} {orphans} orphaned result{'s' if orphans > 1 else ''}")
    return "; ".join(parts) or "reordered"


def _missing_result(pair: Pair) -> dict[str, Any]:
    assert pair.call is not None
    if pair.call.call_id is None:
        return {"role": "function", "name": pair.call.name, "content": MISSING_RESULT}
    return {"role": "tool", "tool_call_id": pair.call.call_id, "content": MISSING_RESULT}


def _with_call(orphan: Any) -> list[Any]:
    result = result_of(orphan)
    name = result.name or "unknown"
    if read(orphan, "role") == "function":
        call: dict[str, Any] = {"role": "assistant", "content": None}
        return [call | {"function_call": {"name": name, "arguments": "{}"}}, orphan]
    call_id = result.call_id or "call_unknown"
    if result.call_id is None:
        orphan = {**as_dict(orphan), "tool_call_id": call_id}
    return [{"role": "assistant", "content": None, "tool_calls": [call_entry(call_id, name, "{}")]}, orphan]


def _without(message: Any, answered: set[Any]) -> Any:
    """An assistant message with its answered calls only; None when nothing is left of it."""
    tool_calls = list(read(message, "tool_calls") or ())
    kept = [c for c in tool_calls if read(c, "id") in answered]
    legacy = read(message, "function_call")
    if len(kept) == len(tool_calls) and (legacy is None or None in answered):
        return message
    rest = {k: v for k, v in as_dict(message).items() if k not in ("tool_calls", "function_call")}
    if kept:
        rest["tool_calls"] = kept
    if kept or content_text(rest.get("content")).strip():
        return rest
    return None


def as_dict(message: Any) -> dict[str, Any]:
    """A message, a call or an item as a new dict: of a mapping, of a pydantic model, of any other object."""
    if isinstance(message, Mapping):
        return dict(message)
    dump = getattr(message, "model_dump", None)
    return dict(dump(exclude_none=True)) if callable(dump) else dict(vars(message))
