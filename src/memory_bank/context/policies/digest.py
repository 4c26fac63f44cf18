"""The policy with a running summary in the place of older interactions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from memory_bank.bank.session import MemoryBankState
from memory_bank.config import ProgressiveSettings
from memory_bank.context.build import memory_message
from memory_bank.models.extraction import extract_summary
from memory_bank.models.observer import completion_of, describe_call, extend_summary
from memory_bank.plan import Choice, Shown
from memory_bank.transcript.messages import Interaction, in_full, runs_of
from memory_bank.transcript.quoting import Mark, one_line, quote_lines
from memory_bank.transcript.shortening import cut_at_edge, fit_text
from memory_bank.transcript.tokens import newest_within
from memory_bank.transcript.transcript import View

_LINE_CHARS = 500  # of the summary of one call
_LINES_SHARE = 0.7  # of a budget that does not hold a line for every call
_SECONDS = 60.0  # after which a call of the model is given up
_TOGETHER = 4  # fewest old interactions that one call of the model summarises
_THEMES = ((True, 160), (True, 80), (False, 160), (False, 80), (False, 40), (False, 0))


@dataclass(frozen=True, slots=True)
class Item:
    """One past call: its number in the session, its id, its summary, what the agent said with it."""

    number: int
    trace_id: str
    tool: str
    summary: str
    remark: str = ""

    def line(self) -> str:
        """The call in one line."""
        remark = f" (the agent: {cut_at_edge(self.remark, 160)})" if self.remark else ""
        summary = cut_at_edge(self.summary, _LINE_CHARS, marked=True)
        return f"#{self.number} [trace_id {self.trace_id}] {summary}{remark}"


def items_of(interactions: Iterable[Interaction], session: MemoryBankState) -> list[Item]:
    """The calls of some interactions with their summaries, as the bank has them or by extraction."""
    interactions = list(interactions)
    summaries: dict[str, str] = session.cache("summaries on one line")
    numbers = session.numbers
    if missing := [t for e in interactions for t in e.trace_ids if t and t not in summaries]:
        stored = session.insight_store.get_insights(missing)
        bare = session.fact_store.get_many([t for t in missing if t not in stored])
        summaries.update((t, one_line(insight.summary)) for t, insight in stored.items())
        summaries.update((r.trace_id, one_line(extract_summary(r))) for r in bare)
    items = []
    for interaction in interactions:
        remark = one_line(interaction.remark)
        for pair, trace_id in zip(interaction.pairs, interaction.trace_ids, strict=True):
            if trace_id is not None:
                number = numbers.get(trace_id, 0)
                items.append(Item(number, trace_id, pair.tool_name, summaries.get(trace_id, ""), remark))
                remark = ""
    return items


def ranges(numbers: Sequence[int]) -> str:
    """``#1 to #4, #7``."""
    return ", ".join(f"#{a}" if a == b else f"#{a} to #{b}" for a, b in runs_of(sorted(numbers)))


def digest(items: Sequence[Item], room: int, session: MemoryBankState) -> str:
    """At most ``room`` tokens about the calls: lines of the newest that fit, themes of the others."""
    if not items or room <= 0:
        return ""
    count = session.counter.count_text
    heading = f"{Mark.EARLIER}, shortened{in_full(session.record_tool)}."
    left = room - count(heading) - 8
    lines = [item.line() for item in items]
    costs = [count(line) + 1 for line in lines]
    share = left if sum(costs) <= left else int(left * _LINES_SHARE)
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
            head = f"{ranges([i.number for i in group])} {one_line(tool)[:80]}, {len(group)} calls"
            if with_ids:
                head += f", trace_ids {' '.join(i.trace_id for i in group)}"
            summaries = (i.summary.removeprefix(f"Called {tool}").strip("(). ") for i in group if chars)
            gists = "; ".join(gist for text in summaries if (gist := cut_at_edge(text, chars)))
            lines.append(f"{head}: {gists}" if gists else head)
        text = "\n".join(lines)
        if session.counter.count_text(text) <= room:
            return text
    return fit_text(text, room, session.counter.count_text)


def _sum(interactions: Sequence[Interaction]) -> int:
    return sum(e.tokens for e in interactions)


@dataclass(frozen=True, slots=True)
class Block:
    """Interactions that were summarised together: their trace_ids and calls.

    ``text`` is the model's running summary up to their end; "" while extractive summaries are shown instead.
    ``tried``: the model has failed at them.
    """

    keys: tuple[Any, ...]
    items: tuple[Item, ...]
    text: str = ""
    tried: bool = False


def choose_progressive(
    view: View, session: MemoryBankState, *, settings: ProgressiveSettings, llm_client: object
) -> Choice:
    """Unchanged below ``compact_threshold`` tokens; above, old interactions go into a running summary.

    The summary then stays the same until the context reaches the threshold again. Every interaction that
    leaves the context goes into it once, in order. Only what is never dropped can exceed the threshold.
    """
    past, budget = view.past, settings.compact_threshold
    present = {e.trace_ids for e in past}
    cache: dict[ProgressiveSettings, list[Block]] = session.cache("running summaries")
    blocks = _still_valid(cache.get(settings, []), present)
    folded = set(chain.from_iterable(b.keys for b in blocks))
    recent = [e for e in past if e.trace_ids not in folded]
    if not blocks and view.full_tokens <= budget:
        return Choice(unchanged="the context has not reached the threshold", budget=budget)
    room = budget - view.kept_tokens
    frame = session.counter.count_message(memory_message("", session.session_id)) + 2
    text, calls = _summary_text(blocks, settings.summary_tokens, session), 0

    def is_over() -> bool:
        return _sum(recent) + (session.counter.count_text(text) + frame if text else 0) > room

    if is_over():
        # as many recent interactions as leave room for a summary of full length
        left = room - settings.summary_tokens - frame
        keep = newest_within([e.tokens for e in recent], left, settings.keep_last - 1)
        fold, recent = recent[: len(recent) - keep], recent[len(recent) - keep :]
        if fold:
            new = Block(tuple(e.trace_ids for e in fold), tuple(items_of(fold, session)))
            blocks, calls = _summarised([*blocks, new], view, llm_client, settings, session)
            text = _summary_text(blocks, settings.summary_tokens, session)
        if is_over():  # no room for all of the summary: show a part of it
            text = _summary_text(blocks, room - _sum(recent) - frame, session)
    cache[settings] = blocks
    whole_ids = {id(e) for e in recent}
    return Choice(
        text=text,
        whole=recent,
        may_cost_more=bool(folded - present),  # the summary tells of interactions that the list has lost
        reasons=Shown(recent, listed=[e for e in past if id(e) not in whole_ids]),
        budget=budget,
        model_calls=calls,
    )


def _still_valid(blocks: Sequence[Block], present: set[Any]) -> list[Block]:
    """The blocks before the first one whose messages are gone, except from the conversation's beginning."""
    seen = False
    for i, block in enumerate(blocks):
        for key in block.keys:
            if key in present:
                seen = True
            elif seen:
                return list(blocks[:i])
    return list(blocks)


def _summarised(
    blocks: list[Block],
    view: View,
    llm_client: object,
    settings: ProgressiveSettings,
    session: MemoryBankState,
) -> tuple[list[Block], int]:
    """The blocks, the last ones merged by the model if there are enough of them; the number of model calls."""
    complete = completion_of(llm_client, settings.summary_model, _SECONDS)
    done = _done(blocks)
    waiting = blocks[done:]
    if complete is None or sum(len(b.keys) for b in waiting if not b.tried) < _TOGETHER:
        return blocks, 0
    items = tuple(chain.from_iterable(b.items for b in waiting))
    records = {r.trace_id: r for r in session.fact_store.get_many([i.trace_id for i in items])}
    shown = [describe_call(i.number, records[i.trace_id], i.remark) for i in items if i.trace_id in records]
    earlier, words = blocks[done - 1].text if done else "", max(20, int(settings.summary_tokens * 0.6))
    text, calls = extend_summary(complete, earlier, shown, view.task, words)
    if text is None:
        return [*blocks[:done], *(replace(b, tried=True) for b in waiting)], calls
    return [*blocks[:done], Block(tuple(chain.from_iterable(b.keys for b in waiting)), items, text)], calls


def _done(blocks: Sequence[Block]) -> int:
    """How many blocks the model's summary covers."""
    return next((i for i in range(len(blocks), 0, -1) if blocks[i - 1].text), 0)


def _summary_text(blocks: Sequence[Block], room: int, session: MemoryBankState) -> str:
    """The running summary in at most ``room`` tokens: the model's, then the calls it has not seen yet."""
    count = session.counter.count_text
    done = _done(blocks)
    waiting = list(chain.from_iterable(b.items for b in blocks[done:]))
    if not done or room <= 0:
        return digest(waiting, room, session)
    seen = [i.number for b in blocks[:done] for i in b.items]
    head = f"{Mark.SUMMARY_OF}{ranges(seen)}{in_full(session.record_tool)}:\n"
    text = fit_text(head + quote_lines(blocks[done - 1].text), room if not waiting else room * 2 // 3, count)
    rest = digest(waiting, room - count(text) - 1, session)
    return fit_text(f"{text}\n{rest}", room, count) if rest else text
