"""adaptive: the mildest of several strategies whose context fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memory_bank.config import AdaptiveSettings, MemoryBankSettings, StoredSettings
from memory_bank.context.drawn import BankState
from memory_bank.context.report import ContextReport
from memory_bank.context.storing import reported, store

Rung = tuple[str, Callable[..., tuple[list[Any], int]], Any]
"""A name, a strategy and its settings."""


def apply_adaptive(
    messages: Any, llm_client: Any, settings: AdaptiveSettings, state: BankState, rungs: Sequence[Rung]
) -> tuple[list[Any], int]:
    """The first of the strategies, mildest first, with at most ``max_tokens``; the smallest if none fits.

    All share one state: its bank, and the embedder that is bound first. ``state.last_report.chosen`` names
    the strategy taken.
    """
    with state.lock:
        view = store(messages, llm_client, settings, state)
        best: tuple[list[Any], int, str, Any] | None = None
        warned = state.memos.get("told")
        state.memos["told"] = True  # a rung that does not fit is no news
        try:
            for name, apply, own in rungs:
                banked = isinstance(own, (MemoryBankSettings, StoredSettings))
                context, tokens = apply(messages, llm_client, own, state if banked else state.transcript)
                if best is None or tokens < best[1]:
                    best = context, tokens, name, state.last_plan if banked else None
                if tokens <= settings.max_tokens:
                    break
        finally:
            state.memos["told"] = warned
        assert best is not None
        context, tokens, name, state.last_plan = best
        report = ContextReport("adaptive", settings.max_tokens, chosen=name)
        reported(state, report, view, tokens)
        return context, tokens
