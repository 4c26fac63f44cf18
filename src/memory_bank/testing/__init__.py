"""What tests of agents with memory need, shipped: fakes that speak the real protocols, and contracts.

- ``ScriptedModel``: a chat model that answers from a list.
- ``ScriptedServer``: an OpenAI-compatible HTTP server on loopback (chats and responses), strict about pairs;
  faults such as half, cut and raw are in ``memory_bank.testing.server``.
- ``pairing_errors``, ``item_errors``: the checks that providers make on messages, and on input items.
- ``run_agent``: a reference agent loop.
- contract classes, in modules of their own because they import pytest: ``chat_contract`` and others.
"""

from memory_bank.testing.agent import run_agent
from memory_bank.testing.model import Request, ScriptedModel
from memory_bank.testing.replies import Reply, call, calls, fail, say
from memory_bank.testing.server import LoggedRequest, ScriptedServer
from memory_bank.transcript.pairing import pairing_errors
from memory_bank.transcript.responses import item_errors

__all__ = [
    "LoggedRequest",
    "Reply",
    "Request",
    "ScriptedModel",
    "ScriptedServer",
    "call",
    "calls",
    "fail",
    "item_errors",
    "pairing_errors",
    "run_agent",
    "say",
]
