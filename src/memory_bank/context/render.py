"""Messages from a plan: anchor, memory message, kept interactions, tail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any

from memory_bank.plan import Context, Plan
from memory_bank.transcript.chat import edited_message
from memory_bank.transcript.quoting import fence
from memory_bank.transcript.turns import Edit, Entry


def render(plan: Plan) -> Context:
    """The messages of a plan: what is never dropped, the memory, past interactions that are shown, the tail.

    The messages come in their order. The memory message stands before the past interactions that are shown:
    those follow what is never dropped, or stand in their places among it where the choice says so
    (``in_place``, and after a fold ``since``). Where the plan is ``unchanged`` all messages are there.
    """
    view, choice = plan.view, plan.choice
    edits = plan.edits
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
    for position in chain(first, memory, whole, range(view.tail_start, len(view.messages))):
        if position is None:
            entries.append((None, dict(plan.memory or {})))
        else:
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
