"""The plain strategies that need no memory: everything, truncation, the last n, masked observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memory_bank.context.render import render_context
from memory_bank.history.content import read
from memory_bank.history.conversation import Conversation, View
from memory_bank.history.interactions import Kind, kind_of

Applied = tuple[list[Any], int]


def apply_no_strategy(messages: Any, llm_client: Any, settings: Any, state: Conversation) -> Applied:
    """The messages as they are. ``state`` follows the conversation, so that each is counted once."""
    view = state.update(messages)
    return list(messages), view.full_tokens


def apply_truncation(messages: Any, llm_client: Any, settings: Any, state: Conversation) -> Applied:
    """What is never dropped, and the last interaction with everything after it."""
    return _last(state.update(messages), 1)


def apply_keep_last(messages: Any, llm_client: Any, settings: Any, state: Conversation) -> Applied:
    """What is never dropped, and the last ``settings.n`` interactions."""
    return _last(state.update(messages), settings.n)


def _last(view: View, n: int) -> Applied:
    whole = [e for e in view.history[max(0, len(view.history) - n + 1) :] if not e.interaction.fault]
    tail = view.messages[view.tail_start :]
    tokens = sum(view.tokens_between(p, p + 1) for p in view.kept) + sum(e.tokens for e in whole)
    tokens += view.tokens_between(view.tail_start, len(view.messages))
    return render_context(view, None, tail, whole), tokens


def apply_masking(messages: Any, llm_client: Any, settings: Any, state: Conversation) -> Applied:
    """All messages; outputs before the last ``keep_last`` interactions keep ``max_length`` characters."""
    view = state.update(messages)
    recent = view.entries[-settings.keep_last :]
    stop = recent[0].interaction.start if recent else 0
    out, tokens = list(view.messages), view.full_tokens
    count: Callable[[Any], int] = state.counter.count_message
    for i in range(stop):
        masked = _masked(out[i], settings.max_length)
        if masked is not None:
            tokens += count(masked) - view.tokens_between(i, i + 1)
            out[i] = masked
    return out, tokens


def _masked(message: Any, most: int) -> Any:
    """A tool message cut to its beginning, or None where there is nothing to cut."""
    if kind_of(message) is not Kind.RESULT or not isinstance(message, dict):
        return None
    key = "content" if isinstance(read(message, "content"), str) else "output"
    text = message.get(key)
    if not isinstance(text, str) or len(text) <= most:
        return None
    end = most - 1 if 0 < most < len(text) and "\udc00" <= text[most] <= "\udfff" else most
    return {**message, key: text[:end] + "..."}
