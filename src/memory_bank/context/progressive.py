"""progressive_summarization: what falls out of the recent window goes into a running summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from memory_bank.config import ProgressiveSettings
from memory_bank.context.digest import Item, digest, fitted, items_of, key_of, ranges
from memory_bank.context.drawn import BankState
from memory_bank.context.report import ContextReport
from memory_bank.context.storing import assembled, kept_tokens, passed, past, room_for_text, store
from memory_bank.models.summarizing import Summarizer, told
from memory_bank.transcript.interactions import Interaction
from memory_bank.transcript.transcript import View

_WORDS_PER_TOKEN = 0.6


@dataclass(frozen=True, slots=True)
class Block:
    """Interactions that were summarised together: their keys and calls.

    ``text`` is the model's running summary up to their end, or "" while extraction stands for them.
    ``tried`` tells that the model has failed at them.
    """

    keys: tuple[Any, ...]
    items: tuple[Item, ...]
    text: str = ""
    tried: bool = False


def apply_progressive(
    messages: Any, llm_client: Any, settings: ProgressiveSettings, state: BankState
) -> tuple[list[Any], int]:
    """Unchanged below ``compact_threshold`` tokens; above, old interactions are folded into the summary.

    The summary then stays as it is until the context reaches the threshold again. It sees every interaction
    that leaves the context, once and in order; the threshold is exceeded only by what is never dropped.
    """
    with state.lock:
        view = store(messages, llm_client, settings, state)
        entries = past(view)
        blocks = _still_true(state.memos.get(("blocks", settings), []), {key_of(e) for e in entries})
        folded = set(chain.from_iterable(b.keys for b in blocks))
        open_ = [e for e in entries if key_of(e) not in folded]
        report = ContextReport("progressive_summarization", settings.compact_threshold)
        if not blocks and view.full_tokens <= settings.compact_threshold:
            return passed(view, state, report, "the context has not reached the threshold")
        room = settings.compact_threshold - kept_tokens(view)
        text = _text(blocks, settings.summary_tokens, state)
        calls = 0
        if _sum(open_) + _cost(text, state) > room:
            keep = _window(open_, room, settings, state)
            fold = open_[: len(open_) - keep]
            open_ = open_[len(open_) - keep :]
            if fold:
                new = Block(tuple(map(key_of, fold)), tuple(items_of(fold, state)))
                blocks, calls = _summarised([*blocks, new], view, llm_client, settings, state)
                text = _text(blocks, settings.summary_tokens, state)
            if _sum(open_) + _cost(text, state) > room:  # no room for all of it: what is folded is not lost
                text = _text(blocks, room_for_text(room - _sum(open_), state), state)
        state.memos["blocks", settings] = blocks
        report = replace(report, model_calls=calls)
        gone = folded - {key_of(e) for e in entries}
        return assembled(view, state, text, open_, report, beyond=bool(gone))


def _sum(entries: Sequence[Interaction]) -> int:
    return sum(e.tokens for e in entries)


def _cost(text: str, state: BankState) -> int:
    """Tokens of the message that shows a text, rounded up."""
    return state.counter.count_text(text) - room_for_text(0, state) if text else 0


def _window(open_: Sequence[Interaction], room: int, settings: ProgressiveSettings, state: BankState) -> int:
    """How many of the latest stay whole, so that a full-grown summary fits beside them."""
    cap = settings.summary_tokens - room_for_text(0, state)
    keep = min(settings.keep_last - 1, len(open_))
    while keep and _sum(open_[-keep:]) + cap > room:
        keep -= 1
    return keep


def _still_true(blocks: Sequence[Block], present: set[Any]) -> list[Block]:
    """The blocks up to where the conversation took another way than it had when they were made.

    That a client has dropped its oldest messages changes nothing.
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
    blocks: list[Block], view: View, llm_client: Any, settings: ProgressiveSettings, state: BankState
) -> tuple[list[Block], int]:
    """The blocks with those at the end, when they are enough, merged into one by the model; its calls."""
    summarizer = Summarizer.create(llm_client, settings.summary_model, settings.summary_timeout)
    done = next((i + 1 for i in reversed(range(len(blocks))) if blocks[i].text), 0)
    waiting = blocks[done:]
    fresh = sum(len(b.keys) for b in waiting if not b.tried)
    if summarizer is None or fresh < settings.block:
        return blocks, 0
    items = list(chain.from_iterable(b.items for b in waiting))
    records = {r.trace_id: r for r in state.fact_store.get_many([i.trace_id for i in items])}
    shown = [told(i.number, records[i.trace_id], i.note) for i in items if i.trace_id in records]
    text: str | None = blocks[done - 1].text if done else ""
    words = max(20, int(settings.summary_tokens * _WORDS_PER_TOKEN))
    calls = 0
    for part in summarizer.blocks(shown):
        calls += 1
        text = summarizer.extend(text or "", part, view.task, words)
        if text is None:
            tried = [Block(b.keys, b.items, tried=True) for b in waiting]
            return [*blocks[:done], *tried], calls
    keys = tuple(chain.from_iterable(b.keys for b in waiting))
    return [*blocks[:done], Block(keys, tuple(items), text or "")], calls


def _text(blocks: Sequence[Block], room: int, state: BankState) -> str:
    """The running summary in at most so many tokens: the model's, then what it has not seen yet."""
    count = state.counter.count_text
    done = next((i + 1 for i in reversed(range(len(blocks))) if blocks[i].text), 0)
    waiting = list(chain.from_iterable(b.items for b in blocks[done:]))
    if room <= 0:
        return ""
    if not done:
        return digest(waiting, room, count)
    seen = [i.number for b in blocks[:done] for i in b.items]
    head = f'Summary of the calls {ranges(seen)} (get_record("#N") gives one back whole):\n'
    share = room if not waiting else room * 2 // 3
    text = fitted(head + blocks[done - 1].text, share, count)
    rest = digest(waiting, room - count(text) - 1, count) if waiting else ""
    return fitted(f"{text}\n{rest}", room, count) if rest else text
