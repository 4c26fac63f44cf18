"""Lists of messages in the shapes of other libraries: their name, so that they are refused instead of ignored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memory_bank.errors import MessagesError
from memory_bank.transcript.messages import read

_LOOKED_AT = 8
_LANGCHAIN = frozenset({"human", "ai"})


def check_shape(messages: Sequence[Any]) -> None:
    """Raise MessagesError for messages of LangChain and contents of Gemini, naming what takes them.

    Nothing of them could be stored, for they have no roles and calls of a chat. The first messages are looked at.
    """
    for message in messages[:_LOOKED_AT]:
        role, kind = read(message, "role"), read(message, "type")
        if not isinstance(role, str) and isinstance(kind, str) and kind in _LANGCHAIN:
            raise MessagesError(
                "these are LangChain messages: use the middleware of memory_bank.integrations.langchain, or convert "
                "them with langchain_core.messages.convert_to_openai_messages."
            )
        parts = read(message, "parts")
        if (
            role in ("user", "model")
            and isinstance(parts, (list, tuple))
            and read(message, "content") is None
        ):
            raise MessagesError(
                "these are Gemini contents: use the plugin of memory_bank.integrations.google_adk, or pass chat "
                "messages with role and content."
            )
