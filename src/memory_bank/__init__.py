"""Memory for tool-calling agents: prompts stay small, and every tool output can be fetched by its id.

Errors are in ``memory_bank.errors``, typed step histories in ``memory_bank.history``, fakes and contracts for
tests in ``memory_bank.testing``. Names are imported when first used: ``import memory_bank`` loads nothing heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [  # to give an agent a memory
    "TOOL_SCHEMAS", "Config", "LLMOrchestrator", "LexicalEmbedder", "Memory", "MemoryBankError", "MemoryBankSettings",
    "MemoryBankState", "MemoryProcessor", "Plan", "apply_memory_bank_strategy", "handle_tool_call",
    "is_memory_tool", "load_config", "load_embedder", "memory_tools",
]  # fmt: skip
__all__ += [  # single steps and their values, the parts of a plan
    "Decision", "FactStore", "Fate", "Insight", "InsightStore", "InteractionRecord",
    "extract_tool_outputs", "format_retrieved_memory", "ingest_tool_outputs",
    "observe_tool_output", "retrieve_and_format",
]  # fmt: skip

_HOMES = {
    "bank.retrieval": ("format_retrieved_memory", "ingest_tool_outputs", "retrieve_and_format"),
    "bank.session": ("MemoryBankState",), "bank.stores": ("FactStore", "InsightStore"),
    "config": ("Config", "MemoryBankSettings", "load_config"), "errors": ("MemoryBankError",),
    "memory": ("Memory",), "models.embedding": ("load_embedder",), "models.lexical": ("LexicalEmbedder",),
    "models.observer": ("observe_tool_output",), "orchestrator": ("LLMOrchestrator",),
    "plan": ("Decision", "Fate", "Plan"),
    "processor": ("MemoryProcessor", "apply_memory_bank_strategy"),
    "records": ("Insight", "InteractionRecord"), "transcript.messages": ("extract_tool_outputs",),
    "tools": ("TOOL_SCHEMAS", "handle_tool_call", "is_memory_tool", "memory_tools"),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return globals().setdefault(name, getattr(importlib.import_module(f"memory_bank.{home}"), name))
    raise AttributeError(f"module 'memory_bank' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


if TYPE_CHECKING:
    from memory_bank.bank.retrieval import format_retrieved_memory, ingest_tool_outputs, retrieve_and_format
    from memory_bank.bank.session import MemoryBankState
    from memory_bank.bank.stores import FactStore, InsightStore
    from memory_bank.config import Config, MemoryBankSettings, load_config
    from memory_bank.errors import MemoryBankError
    from memory_bank.memory import Memory
    from memory_bank.models.embedding import load_embedder
    from memory_bank.models.lexical import LexicalEmbedder
    from memory_bank.models.observer import observe_tool_output
    from memory_bank.orchestrator import LLMOrchestrator
    from memory_bank.plan import Decision, Fate, Plan
    from memory_bank.processor import MemoryProcessor, apply_memory_bank_strategy
    from memory_bank.records import Insight, InteractionRecord
    from memory_bank.tools import TOOL_SCHEMAS, handle_tool_call, is_memory_tool, memory_tools
    from memory_bank.transcript.messages import extract_tool_outputs
