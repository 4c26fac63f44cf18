"""Past calls as text under a token budget: the newest one line each, the oldest grouped by tool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from memory_bank.bank.session import MemoryBankState
from memory_bank.context.render import memory_message
from memory_bank.models.extraction import extract_summary
from memory_bank.transcript.messages import Interaction, in_full
from memory_bank.transcript.shortening import cut_at_edge, fit_text
from memory_bank.transcript.tokens import newest_within

_LINES_SHARE = 0.7  # of a budget that does not hold a line for every call
_THEMES = ((True, 160), (True, 80), (False, 160), (False, 80), (False, 40), (False, 0))


class _Summaries(dict[str, str]):
    """Summaries on one line, by trace_id."""


class _Numbers(dict[str, int]):
    """The number of every record, by trace_id."""


@dataclass(frozen=True, slots=True)
class Item:
    """One past call: its number in the session, its id, its summary, what the agent said with it."""

    number: int
    trace_id: str
    tool: str
    summary: str
    note: str = ""

    def line(self, chars: int) -> str:
        """The call in one line."""
        said = f" (the agent: {cut_at_edge(self.note, 160)})" if self.note else ""
        return (
            f"#{self.number} [trace_id {self.trace_id}] {cut_at_edge(self.summary, chars, marked=True)}{said}"
        )

    def gist(self, chars: int) -> str:
        """The call without its tool's name, in at most ``chars`` characters."""
        text = self.summary.removeprefix(f"Called {self.tool}")
        return cut_at_edge(text.strip("(). "), chars)


def items_of(interactions: Iterable[Interaction], session: MemoryBankState) -> list[Item]:
    """The calls of some interactions with their summaries, as the bank has them or by extraction."""
    interactions = list(interactions)
    known, numbers = session.cache(_Summaries), numbers_of(session)
    if missing := [t for e in interactions for t in e.trace_ids if t and t not in known]:
        found = session.insight_store.get_insights(missing)
        summaries = {t: insight.summary for t, insight in found.items()}
        bare = session.fact_store.get_many([t for t in missing if t not in found])
        summaries |= {r.trace_id: extract_summary(r) for r in bare}
        known.update((t, " ".join(text.split())) for t, text in summaries.items())
    items = []
    for interaction in interactions:
        note = " ".join(interaction.note.split())
        for pair, trace_id in zip(interaction.pairs, interaction.trace_ids, strict=True):
            if trace_id is not None:
                number = numbers.get(trace_id, 0)
                items.append(Item(number, trace_id, pair.tool_name, known.get(trace_id, ""), note))
                note = ""
    return items


def numbers_of(session: MemoryBankState) -> dict[str, int]:
    """The number of every record of the session, as ``get_record("#12")`` takes it."""
    cached = session.cache(_Numbers)
    if len(cached) != len(session.steps):
        cached.clear()
        cached.update((t, i) for i, t in enumerate(session.steps, 1))
    return cached


def digest(
    items: Sequence[Item],
    room: int,
    session: MemoryBankState,
    *,
    chars: int = 500,
    most_lines: int | None = None,
) -> str:
    """At most ``room`` tokens about the calls, oldest first; "" where there is room for nothing.

    As many of the newest as fit have a line of their own (``most_lines`` at most), the rest are themes.
    """
    if not items or room <= 0:
        return ""
    count = session.counter.count_text
    heading = f"Earlier tool calls, shortened{in_full(session.record_tool)}."
    left = room - count(heading) - 8
    most = len(items) if most_lines is None else most_lines
    lines = [item.line(chars) for item in items[max(0, len(items) - most) :]]
    costs = [count(line) + 1 for line in lines]
    share = left if len(lines) == len(items) and sum(costs) <= left else int(left * _LINES_SHARE)
    n = newest_within(costs, share)
    parts = [heading]
    if n < len(items):
        parts.append(_themes(items[: len(items) - n], left - sum(costs[len(costs) - n :]), session))
    return fit_text("\n".join(p for p in [*parts, *lines[len(lines) - n :]] if p), room, count)


def _themes(items: Sequence[Item], room: int, session: MemoryBankState) -> str:
    """The calls by tool: how many, which, and what they were about, as far as the room goes."""
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(item.tool, []).append(item)
    text = ""
    for with_ids, chars in _THEMES:
        lines = []
        for tool, group in groups.items():
            head = f"{tool}, {len(group)} calls ({ranges([i.number for i in group])})"
            ids = f", trace_ids {' '.join(i.trace_id for i in group)}" if with_ids else ""
            gists = "; ".join(g for i in group if (g := i.gist(chars))) if chars else ""
            lines.append(f"{head}{ids}: {gists}" if gists else head + ids)
        text = "\n".join(lines)
        if session.counter.count_text(text) <= room:
            return text
    return fit_text(text, room, session.counter.count_text)


def ranges(numbers: Sequence[int]) -> str:
    """``#1 to #4, #7``."""
    parts: list[list[int]] = []
    for n in sorted(numbers):
        if parts and n == parts[-1][1] + 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return ", ".join(f"#{a}" if a == b else f"#{a} to #{b}" for a, b in parts)


def text_room(tokens: int, session: MemoryBankState) -> int:
    """The tokens of text that fit into a memory message of ``tokens`` tokens."""
    return tokens - session.counter.count_message(memory_message("", session.session_id)) - 2
