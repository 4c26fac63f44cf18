"""Fakes that speak the real protocols, for testing agents with memory.

- ``ScriptedModel``: a chat model that answers from a list.
- ``ScriptedServer``: an OpenAI-compatible HTTP server on loopback (chats and responses) that refuses broken
  pairs; a ``Reply`` may be a fault.
- ``pairing_errors``, ``item_errors``: the checks of providers on messages and on input items.
"""

from memory_bank.testing.model import Request, ScriptedModel
from memory_bank.testing.replies import Reply, call, calls, fail, say
from memory_bank.testing.server import LoggedRequest, ScriptedServer
from memory_bank.transcript.pairing import pairing_errors
from memory_bank.transcript.responses import item_errors

__all__ = [
    "LoggedRequest", "Reply", "Request", "ScriptedModel", "ScriptedServer", "call", "calls", "fail", "item_errors",
    "pairing_errors", "say",
]  # fmt: skip
