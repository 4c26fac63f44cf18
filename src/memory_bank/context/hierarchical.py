"""hierarchical: recent interactions whole, older calls a line each, the oldest as themes."""

from __future__ import annotations

from typing import Any

from memory_bank.config import HierarchicalSettings
from memory_bank.context.digest import digest, items_of
from memory_bank.context.drawn import BankState
from memory_bank.context.report import ContextReport
from memory_bank.context.storing import assembled, kept_tokens, passed, past, room_for_text, store

_WHOLE_SHARE = 0.7  # of the room for history, where older calls need some too


def apply_hierarchical(
    messages: Any, llm_client: Any, settings: HierarchicalSettings, state: BankState
) -> tuple[list[Any], int]:
    """At most ``max_tokens``: whole interactions, then a line a call, then themes with ids."""
    with state.lock:
        view = store(messages, llm_client, settings, state)
        report = ContextReport("hierarchical", settings.max_tokens)
        entries = past(view)
        if len(entries) < settings.keep_last and view.full_tokens <= settings.max_tokens:
            return passed(view, state, report, "there are no older interactions")
        room = settings.max_tokens - kept_tokens(view)
        window = entries[max(0, len(entries) - settings.keep_last + 1) :]
        share = room if len(window) == len(entries) else int(room * _WHOLE_SHARE)
        if len(window) == len(entries) and sum(e.tokens for e in window) > room:
            share = int(room * _WHOLE_SHARE)
        n = 0
        while n < len(window) and window[-n - 1].tokens <= share:
            n += 1
            share -= window[-n].tokens
        whole = entries[len(entries) - n :]
        text = digest(
            items_of(entries[: len(entries) - n], state),
            room_for_text(room - sum(e.tokens for e in whole), state),
            state.counter.count_text,
            chars=settings.summary_chars,
            most_lines=settings.summarize_last,
        )
        return assembled(view, state, text, whole, report)
