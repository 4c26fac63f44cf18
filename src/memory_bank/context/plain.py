"""The plain strategies that need no memory: everything, truncation, the last n."""

from __future__ import annotations

from typing import Any

from memory_bank.context.render import render_context
from memory_bank.transcript.transcript import Transcript, View

Applied = tuple[list[Any], int]


def apply_no_strategy(messages: Any, llm_client: Any, settings: Any, state: Transcript) -> Applied:
    """The messages as they are. ``state`` follows the conversation, so that each is counted once."""
    view = state.update(messages)
    return list(messages), view.full_tokens


def apply_truncation(messages: Any, llm_client: Any, settings: Any, state: Transcript) -> Applied:
    """What is never dropped, and the last interaction with everything after it."""
    return _last(state.update(messages), 1)


def apply_keep_last(messages: Any, llm_client: Any, settings: Any, state: Transcript) -> Applied:
    """What is never dropped, and the last ``settings.n`` interactions."""
    return _last(state.update(messages), settings.n)


def _last(view: View, n: int) -> Applied:
    if len(view.history) < n:  # nothing falls away: as it came, so that the prefix stays what it was
        return list(view.messages), view.full_tokens
    whole = [e for e in view.history[max(0, len(view.history) - n + 1) :] if not e.fault]
    tail = view.messages[view.tail_start :]
    tokens = sum(view.tokens_between(p, p + 1) for p in view.kept) + sum(e.tokens for e in whole)
    tokens += view.tokens_between(view.tail_start, len(view.messages))
    return render_context(view, None, tail, whole), tokens
