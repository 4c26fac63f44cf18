"""Messages from a plan: anchor, memory message, kept interactions, tail."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from memory_bank.plan import Choice, Context, Plan
from memory_bank.transcript.chat import edited_message
from memory_bank.transcript.messages import MessageKind, kind_of, read
from memory_bank.transcript.quoting import fence
from memory_bank.transcript.transcript import View
from memory_bank.transcript.turns import ADDED, Change, Edit, Entry


def render(plan: Plan) -> Context:
    """The messages of a plan: what is never dropped, the memory, past interactions that are shown, the tail.

    The messages come in their order. The memory stands before the past interactions that are shown: those follow
    what is never dropped, or stand in their places among it where the choice says so (``in_place``, and after a
    fold ``since``). It follows the text of the user's message that is the plan's ``host``; without one it is a
    message. Where the plan is ``unchanged`` all messages are there.
    """
    view, edits, memory = plan.view, plan.edits, plan.memory
    first, rest = _positions(view, plan.choice)
    changes: dict[int, Change] = {p: edit.change for p, edit in edits.items()}
    if memory is not None and plan.host is not None:
        changes[plan.host] = {ADDED: memory["content"]}
    own: Change = {}
    entries: list[Entry] = [(p, changes.get(p, own)) for p in first]
    if memory is not None and plan.host is None:
        entries.append((None, dict(memory)))
    entries += [(p, changes.get(p, own)) for p in rest]
    return Context(_written(entries, view.messages, edits), plan, entries)


def _positions(view: View, choice: Choice) -> tuple[Sequence[int], list[int]]:
    """The positions of the messages that are shown: those before the memory, and those after it."""
    tail = range(view.tail_start, len(view.messages))
    if choice.keep_all:
        return range(view.tail_start), [*tail]
    whole = [p for e in choice.whole for p in range(e.start, e.stop)]
    if not choice.in_place and choice.since is None:
        return view.kept, [*whole, *tail]
    never_dropped = {*view.kept} if choice.unfolded else ()
    whole += [p for p in choice.edits if p < view.tail_start and p not in never_dropped]
    begin = min([*whole, view.tail_start if choice.since is None else choice.since])
    kept = [p for p in view.kept if p < begin]
    return kept, [*sorted({*whole, *view.kept[len(kept) :]}), *tail]


def host_of(view: View, choice: Choice) -> int | None:
    """The position of the user's message that a memory message of the user joins, None where it stands alone.

    Many chat templates refuse two messages of the user in a row, calls and results aside. It is the last one before
    the memory unless the assistant has spoken since; the next one where there is none before. What stands before
    the memory stays as it is until the next fold, and so does the choice.
    """
    first, rest = _positions(view, choice)
    for position in chain(reversed(first), rest):
        kind = kind_of(view.messages[position])
        if kind is MessageKind.USER:
            content = read(view.messages[position], "content")
            return position if content is None or isinstance(content, str | list | tuple) else None
        if kind is MessageKind.SAY:
            return None
    return None


def _written(entries: Iterable[Entry], messages: Sequence[Any], edits: Mapping[int, Edit]) -> Iterator[Any]:
    """The chat messages of a context; those that ``edits`` give are used again at later steps."""
    for position, change in entries:
        if position is None:
            yield change
        elif change and position in edits:
            yield edits[position].message
        else:
            yield edited_message(messages[position], change) if change else messages[position]


def memory_message(text: str, session_id: str, role: str = "user") -> dict[str, str]:
    """The message that shows memory, its text fenced as data."""
    return {"role": role, "content": fence(text, session_id)}
