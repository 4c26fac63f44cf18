"""progressive_summarization and hierarchical: recent interactions whole, older ones as summaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from memory_bank.bank.session import MemoryBankState
from memory_bank.config import HierarchicalSettings, ProgressiveSettings
from memory_bank.context.policies.digest import Item, digest, items_of, ranges, text_room
from memory_bank.models.summarizing import Summarizer, call_line
from memory_bank.plan import Choice, Shown
from memory_bank.transcript.messages import Interaction, in_full
from memory_bank.transcript.shortening import fit_text
from memory_bank.transcript.tokens import newest_within
from memory_bank.transcript.transcript import View

_WHOLE_SHARE = 0.7  # of the room for history, where older calls need some too


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


class _Blocks(dict[ProgressiveSettings, list[Block]]):
    """The running summary of each settings."""


def choose_progressive(
    view: View, session: MemoryBankState, *, settings: ProgressiveSettings, llm_client: object
) -> Choice:
    """Unchanged below ``compact_threshold`` tokens; above, old interactions go into a running summary.

    The summary then stays the same until the context reaches the threshold again. Every interaction that
    leaves the context goes into it once, in order. Only what is never dropped can exceed the threshold.
    """
    past, budget = view.past, settings.compact_threshold
    present = {e.trace_ids for e in past}
    cache = session.cache(_Blocks)
    blocks = _still_valid(cache.get(settings, []), present)
    folded = set(chain.from_iterable(b.keys for b in blocks))
    recent = [e for e in past if e.trace_ids not in folded]
    if not blocks and view.full_tokens <= budget:
        return Choice(unchanged="the context has not reached the threshold", budget=budget)
    room = budget - view.kept_tokens
    frame = -text_room(0, session)
    text, calls = _text(blocks, settings.summary_tokens, session), 0

    def is_over() -> bool:
        summary = session.counter.count_text(text) + frame if text else 0
        return _sum(recent) + summary > room

    if is_over():
        # as many recent interactions as leave room for a summary of full length
        costs = [e.tokens for e in recent]
        keep = newest_within(costs, room - settings.summary_tokens - frame, settings.keep_last - 1)
        fold, recent = recent[: len(recent) - keep], recent[len(recent) - keep :]
        if fold:
            new = Block(tuple(e.trace_ids for e in fold), tuple(items_of(fold, session)))
            blocks, calls = _summarised([*blocks, new], view, llm_client, settings, session)
            text = _text(blocks, settings.summary_tokens, session)
        if is_over():  # no room for all of the summary: show a part of it
            text = _text(blocks, room - _sum(recent) - frame, session)
    cache[settings] = blocks
    kept = {id(e) for e in recent}
    return Choice(
        text=text,
        whole=recent,
        may_cost_more=bool(folded - present),  # the summary tells of interactions that the list has lost
        reasons=Shown(recent, listed=[e for e in past if id(e) not in kept]),
        budget=budget,
        model_calls=calls,
    )


def choose_hierarchical(view: View, session: MemoryBankState, *, settings: HierarchicalSettings) -> Choice:
    """At most ``max_tokens``: recent interactions whole, older calls one line each, the oldest by tool."""
    interactions, budget = view.past, settings.max_tokens
    if len(interactions) < settings.keep_last and view.full_tokens <= budget:
        return Choice(unchanged="there are no older interactions", budget=budget)
    room = budget - view.kept_tokens
    window = interactions[max(0, len(interactions) - settings.keep_last + 1) :]
    share = room
    if len(window) < len(interactions) or _sum(window) > room:  # older calls need a part of the room
        share = int(room * _WHOLE_SHARE)
    n = newest_within([e.tokens for e in window], share)
    whole, older = interactions[len(interactions) - n :], interactions[: len(interactions) - n]
    text = digest(
        items_of(older, session),
        text_room(room - _sum(whole), session),
        session,
        chars=settings.summary_chars,
        most_lines=settings.summarize_last,
    )
    return Choice(text=text, whole=whole, reasons=Shown(whole, listed=older), budget=budget)


def _sum(interactions: Sequence[Interaction]) -> int:
    return sum(e.tokens for e in interactions)


def _still_valid(blocks: Sequence[Block], present: set[Any]) -> list[Block]:
    """The blocks before the first difference between the conversation now and when they were made.

    Messages that a client has dropped from the beginning make no difference.
    """
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
    summarizer = Summarizer.create(llm_client, settings.summary_model, settings.summary_timeout)
    done = _done(blocks)
    waiting = blocks[done:]
    fresh = sum(len(b.keys) for b in waiting if not b.tried)
    if summarizer is None or fresh < settings.block:
        return blocks, 0
    items = list(chain.from_iterable(b.items for b in waiting))
    records = {r.trace_id: r for r in session.fact_store.get_many([i.trace_id for i in items])}
    shown = [call_line(i.number, records[i.trace_id], i.note) for i in items if i.trace_id in records]
    words = max(20, int(settings.summary_tokens * 0.6))
    text, calls = summarizer.extend(blocks[done - 1].text if done else "", shown, view.task, words)
    if text is None:
        return [*blocks[:done], *(replace(b, tried=True) for b in waiting)], calls
    keys = tuple(chain.from_iterable(b.keys for b in waiting))
    return [*blocks[:done], Block(keys, tuple(items), text)], calls


def _done(blocks: Sequence[Block]) -> int:
    """How many blocks the model's summary covers."""
    return next((i for i in range(len(blocks), 0, -1) if blocks[i - 1].text), 0)


def _text(blocks: Sequence[Block], room: int, session: MemoryBankState) -> str:
    """The running summary in at most ``room`` tokens: the model's, then the calls it has not seen yet."""
    count = session.counter.count_text
    done = _done(blocks)
    waiting = list(chain.from_iterable(b.items for b in blocks[done:]))
    if not done or room <= 0:
        return digest(waiting, room, session)
    seen = [i.number for b in blocks[:done] for i in b.items]
    head = f"Summary of the calls {ranges(seen)}{in_full(session.record_tool)}:\n"
    share = room if not waiting else room * 2 // 3
    text = fit_text(head + blocks[done - 1].text, share, count)
    rest = digest(waiting, room - count(text) - 1, session) if waiting else ""
    return fit_text(f"{text}\n{rest}", room, count) if rest else text
