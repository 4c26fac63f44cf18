"""Messages from a plan: anchor, memory message, kept interactions, tail; broken pairs repaired."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any

from memory_bank.plan import Context, Plan
from memory_bank.transcript.chat import as_dict, edited_message
from memory_bank.transcript.messages import Interaction, MessageKind, call_entry, kind_of, read, result_of
from memory_bank.transcript.quoting import Mark, fence
from memory_bank.transcript.turns import Edit, Entry


def render(plan: Plan) -> Context:
    """The messages of a plan: what is never dropped, the memory, past interactions that are shown, the tail.

    The messages come in their order. The memory message stands before the past interactions that are shown:
    those follow what is never dropped, or stand in their places among it where the choice says so
    (``in_place``, and after a fold ``since``). Where the plan is ``unchanged`` all messages are there.
    """
    view, choice = plan.view, plan.choice
    edits = plan.edits
    stops = {e.start: e.stop for e in view.interactions if e.start in plan.repaired}
    entries: list[Entry] = []
    keep_all = plan.unchanged or choice.keep_all
    whole = [] if keep_all else [p for e in choice.whole for p in range(e.start, e.stop)]
    if keep_all:
        first: Iterable[int] = range(view.tail_start)
    elif not choice.in_place and choice.since is None:
        first = view.kept
    else:
        whole += [p for p in edits if p < view.tail_start and choice.in_place]
        begin = min([*whole, view.tail_start if choice.since is None else choice.since])
        first = [p for p in view.kept if p < begin]
        whole = sorted({*whole, *(p for p in view.kept if p >= begin)})
    memory = [] if plan.memory is None else [None]
    skip_to = -1
    for position in chain(first, memory, whole, range(view.tail_start, len(view.messages))):
        if position is None:
            entries.append((None, dict(plan.memory or {})))
        elif position in stops:
            entries += plan.repaired[position]
            skip_to = stops[position]
        elif position >= skip_to:
            entries.append((position, edits[position].change if position in edits else {}))
    return Context(written(entries, view.messages, edits), plan, entries)


def written(
    entries: Iterable[Entry], messages: Sequence[Any], edits: Mapping[int, Edit] = MappingProxyType({})
) -> list[Any]:
    """The chat messages of a context; where ``edits`` give a message, it is not read again."""
    out: list[Any] = []
    for position, change in entries:
        if position is None:
            out.append(change)
        elif change and position in edits:
            out.append(edits[position].message)
        else:
            out.append(edited_message(messages[position], change))
    return out


def memory_message(text: str, session_id: str, role: str = "user") -> dict[str, str]:
    """The message that shows memory, its text fenced as data."""
    return {"role": role, "content": fence(text, session_id)}


def repair_interaction(interaction: Interaction, mode: str) -> tuple[list[Entry], str]:
    """The entries of an interaction with whole pairs, and a phrase that says what was done.

    Mode "complete" answers unanswered calls and puts a call before an orphaned result; "drop" removes both.
    Messages between calls and results move behind them. Items of the Responses API and interactions in which
    two calls share an id are returned unchanged.
    """
    kept: dict[MessageKind, list[Entry]] = {kind: [] for kind in MessageKind}
    for position, message in enumerate(interaction.messages, interaction.start):
        kept[kind_of(message)].append((position, {}))
    everything = sorted(chain.from_iterable(kept.values()), key=lambda entry: entry[0] or 0)
    if any(read(m, "role") is None for m in interaction.messages):
        return everything, "not repaired: Responses items pass through"
    ids = [p.call.call_id for p in interaction.pairs if p.call and p.call.call_id is not None]
    if len(ids) != len(set(ids)):
        return everything, "not repaired: two calls share an id"
    unanswered = [(p.call, p.call_at) for p in interaction.pairs if p.call and not p.result]
    orphans = [interaction.start + (p.result_at or 0) for p in interaction.pairs if not p.call]
    results = [entry for entry in kept[MessageKind.RESULT] if entry[0] not in orphans]
    out = kept[MessageKind.SAY]
    if mode == "complete":
        out += [*kept[MessageKind.CALL], *results]
        for call, _ in unanswered:
            answers: dict[str, Any] = {"role": "tool", "tool_call_id": call.call_id}
            if call.call_id is None:
                answers = {"role": "function", "name": call.name}
            out.append((None, {**answers, "content": f"{Mark.MISSING} for this call]"}))
        for position in orphans:
            out += _with_call(interaction.messages[position - interaction.start], position)
    else:
        for entry in kept[MessageKind.CALL]:
            at = (entry[0] or 0) - interaction.start
            left = {place[1]: None for _, place in unanswered if place and place[0] == at}
            if not left or edited_message(interaction.messages[at], left) is not None:
                out.append((entry[0], left))
        out += results
    verb = "completed" if mode == "complete" else "dropped"
    counts = ((len(unanswered), "unanswered call"), (len(orphans), "orphaned result"))
    done = "; ".join(f"{verb} {n} {what}{'s' if n > 1 else ''}" for n, what in counts if n) or "reordered"
    if "stands between" in interaction.fault:
        done += "; a message in between was moved behind the results"
    riders = (MessageKind.USER, MessageKind.SYSTEM, MessageKind.OTHER)
    return out + sorted((e for kind in riders for e in kept[kind]), key=lambda e: e[0] or 0), done


def _with_call(orphan: Any, position: int) -> list[Entry]:
    result = result_of(orphan)
    name = result.name or "unknown"
    call: dict[str, Any] = {"role": "assistant", "content": None}
    if read(orphan, "role") == "function":
        return [(None, call | {"function_call": {"name": name, "arguments": "{}"}}), (position, {})]
    call_id = result.call_id or "call_unknown"
    call["tool_calls"] = [call_entry(call_id, name, "{}")]
    own: Entry = (position, {}) if result.call_id else (None, {**as_dict(orphan), "tool_call_id": call_id})
    return [(None, call), own]
