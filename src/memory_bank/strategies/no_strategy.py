"""No memory: the full history, as it is."""

from __future__ import annotations

from typing import Any

from memory_bank.history.parsing import check_messages


def apply_no_strategy(messages: Any, llm_client: Any, settings: Any, state: Any) -> tuple[list[Any], int]:
    """The messages as they are, and their tokens. ``state`` follows the conversation to count only once."""
    view = state.update(check_messages(messages))
    return list(messages), view.full_tokens
