"""Messages of every API as interactions, and back: parsing, pairing, tokens, JSON as tools write it.

The names below are for packages above the library.
"""

from memory_bank.ports import TokenCounter
from memory_bank.transcript.anthropic import from_anthropic, is_anthropic
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
from memory_bank.transcript.responses import from_items
from memory_bank.transcript.tokens import ENCODING, open_counter
from memory_bank.transcript.transcript import copy_of

__all__ = [
    "ENCODING", "Interaction", "MessageKind", "TokenCounter", "calls_of", "compact", "content_text", "copy_of",
    "from_anthropic", "from_items", "is_anthropic", "is_text_part", "kind_of", "open_counter", "pairing_errors",
    "parse_messages", "read",
]  # fmt: skip
