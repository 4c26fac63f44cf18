"""Messages of every API as interactions, and back: parsing, pairing, tokens, JSON as tools write it.

The names below are for packages above the library. They are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOMES = {
    "ENCODING": "tokens",
    "Interaction": "messages",
    "MessageKind": "messages",
    "TokenCounter": "tokens",
    "calls_of": "messages",
    "compact": "jsontext",
    "content_text": "messages",
    "is_text_part": "messages",
    "kind_of": "messages",
    "open_counter": "tokens",
    "pairing_errors": "pairing",
    "parse_messages": "messages",
    "read": "messages",
}

__all__ = [
    "ENCODING",
    "Interaction",
    "MessageKind",
    "TokenCounter",
    "calls_of",
    "compact",
    "content_text",
    "is_text_part",
    "kind_of",
    "open_counter",
    "pairing_errors",
    "parse_messages",
    "read",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'memory_bank.transcript' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"memory_bank.transcript.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


if TYPE_CHECKING:
    from memory_bank.ports import TokenCounter
    from memory_bank.transcript.jsontext import compact
    from memory_bank.transcript.messages import (
        Interaction,
        MessageKind,
        calls_of,
        content_text,
        is_text_part,
        kind_of,
        parse_messages,
        read,
    )
    from memory_bank.transcript.pairing import pairing_errors
    from memory_bank.transcript.tokens import ENCODING, open_counter
