"""Broken call/result pairs, completed or dropped on request; every change is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memory_bank.transcript.content import content_text, read
from memory_bank.transcript.interactions import Interaction, Kind, Pair, calls_of, kind_of, result_of

MISSING_RESULT = "[no result was recorded for this call]"


def repair_interaction(interaction: Interaction, mode: str) -> tuple[list[Any], str]:
    """The messages of a broken interaction with whole pairs, and a sentence about what was done.

    ``complete`` answers unanswered calls and puts a call before an orphaned result; ``drop`` removes both.
    Messages between calls and results move behind them. Only chat messages are repaired; items of the
    Responses API and interactions whose calls share an id are given back as they are.
    """
    if any(read(m, "role") is None for m in interaction.messages):
        return list(interaction.messages), "not repaired: Responses items pass through"
    ids = [p.call.call_id for p in interaction.pairs if p.call and p.call.call_id is not None]
    if len(ids) != len(set(ids)):
        return list(interaction.messages), "not repaired: two calls share an id"
    answered = {p.call.call_id for p in interaction.pairs if p.call and p.result}
    calls = [m for m in interaction.messages if kind_of(m) is Kind.CALL]
    lead = [m for m in interaction.messages if kind_of(m) is Kind.SAY]
    riders = [m for m in interaction.messages if kind_of(m) in (Kind.USER, Kind.SYSTEM, Kind.OTHER)]
    known = {c.call_id for m in calls for c in calls_of(m)}
    given: set[Any] = set()
    results: list[Any] = []
    orphans: list[Any] = []
    for m in interaction.messages:
        if kind_of(m) is Kind.RESULT:
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
    done = _told(mode, len(unanswered), len(orphans))
    if "stands between" in interaction.fault:
        done += "; a message in between was moved behind the results"
    return out + riders, done


def _told(mode: str, unanswered: int, orphans: int) -> str:
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
    body = {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}
    if result.call_id is None:
        orphan = {**_as_dict(orphan), "tool_call_id": call_id}
    return [{"role": "assistant", "content": None, "tool_calls": [body]}, orphan]


def _without(message: Any, answered: set[Any]) -> Any:
    """An assistant message with its answered calls only; None when nothing is left of it."""
    tool_calls = list(read(message, "tool_calls") or ())
    kept = [c for c in tool_calls if read(c, "id") in answered]
    legacy = read(message, "function_call")
    if len(kept) == len(tool_calls) and (legacy is None or None in answered):
        return message
    rest = {k: v for k, v in _as_dict(message).items() if k not in ("tool_calls", "function_call")}
    if kept:
        rest["tool_calls"] = kept
    if kept or content_text(rest.get("content")).strip():
        return rest
    return None


def _as_dict(message: Any) -> dict[str, Any]:
    if isinstance(message, Mapping):
        return dict(message)
    dump = getattr(message, "model_dump", None)
    return dict(dump(exclude_none=True)) if callable(dump) else dict(vars(message))
