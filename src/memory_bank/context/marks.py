"""Applies to the choice of any strategy the marks of records (pinned, excluded) and `tools.NAME.retain`."""

from __future__ import annotations

from dataclasses import replace

from memory_bank.bank.retrieval import raw_data
from memory_bank.bank.session import MemoryBankState
from memory_bank.plan import Choice, Shown
from memory_bank.transcript.transcript import View

_CHARS = 2_000
"""Characters shown of a pinned record whose messages are no longer in the list."""
HEADING = "Pinned records of earlier calls:"


def marked_view(view: View, session: MemoryBankState, budget: int | None) -> View:
    """The view in which past interactions with pinned records are never dropped, and those excluded are hidden.

    The newest pinned interactions whose tokens fit into ``budget`` (None: all) are kept; others are left to
    the strategy. An interaction with an excluded record is hidden even if it has a pinned one, too.
    """
    pinned_ids, excluded_ids = session.retained
    if not (pinned_ids or excluded_ids):
        return view
    hidden = {e.start for e in view.history if not e.fault and excluded_ids.intersection(e.record_ids)}
    pinned: set[int] = set()
    room = budget
    for entry in reversed(view.history):
        if entry.fault or entry.start in hidden or not pinned_ids.intersection(entry.record_ids):
            continue
        if room is not None:
            if entry.tokens > room:
                continue
            room -= entry.tokens
        pinned.add(entry.start)
    kept = set(view.kept).union(*(range(e.start, e.stop) for e in view.history if e.start in pinned))
    return replace(view, kept=sorted(kept), pinned=frozenset(pinned), hidden=frozenset(hidden))


def marked_choice(choice: Choice, view: View, session: MemoryBankState, budget: int | None) -> Choice:
    """The choice without what is hidden, and with pinned records whose messages are no longer in the list."""
    pinned_ids, excluded_ids = session.retained
    if not (pinned_ids or excluded_ids):
        return choice
    apart = {p for e in view.history if e.start in view.pinned | view.hidden for p in range(e.start, e.stop)}
    if apart.intersection(choice.edits):
        choice = replace(choice, edits={p: e for p, e in choice.edits.items() if p not in apart})
    here = {t for e in view.interactions for t in e.record_ids}
    text = _pinned_text(pinned_ids - here - excluded_ids, view, session, budget)
    if text:
        text = f"{choice.text.rstrip()}\n\n{text}".lstrip() if not choice.unchanged else text
    if view.hidden and (choice.unchanged or choice.keep_all):
        reasons = choice.reasons if choice.keep_all else Shown(whole=view.past)
        return replace(
            choice,
            text=text or ("" if choice.unchanged else choice.text),
            whole=view.past,
            in_place=True,
            keep_all=False,
            unchanged="",
            may_cost_more=True,
            reasons=reasons,
        )
    if text:
        keep_all = choice.keep_all or bool(choice.unchanged)
        reasons = Shown(whole=view.past) if choice.unchanged else choice.reasons
        return replace(
            choice, text=text, keep_all=keep_all, unchanged="", may_cost_more=True, reasons=reasons
        )
    return replace(choice, may_cost_more=True) if view.hidden else choice


def _pinned_text(gone: frozenset[str], view: View, session: MemoryBankState, budget: int | None) -> str:
    """Pinned records that no message shows, shortened, the newest that fit into what the others leave."""
    if not gone:
        return ""
    room = budget
    if room is not None:
        room -= sum(e.tokens for e in view.history if e.start in view.pinned)
    numbers = {t: n for n, t in enumerate(session.steps, 1) if t in gone}
    lines: list[str] = []
    for record in reversed(session.fact_store.get_many(list(numbers))):
        shown = raw_data(record, _CHARS).text
        line = f"#{numbers[record.trace_id]} {record.tool_name}: {shown}"
        tokens = session.counter.count_text(line) + 1
        if room is not None:
            if tokens > room:
                continue
            room -= tokens
        lines.append(line)
    return "\n".join([HEADING, *reversed(lines)]) if lines else ""
