"""Memory for tool-calling agents: prompts stay small, and every tool output can be fetched by its id.

Errors are in ``memory_bank.errors``, typed step histories in ``memory_bank.history``, fakes and contracts for
tests in ``memory_bank.testing``. Names are imported when first used: ``import memory_bank`` loads nothing heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "TOOL_SCHEMAS",
    "CallReport",
    "Config",
    "Decision",
    "FactStore",
    "Fate",
    "Insight",
    "InsightStore",
    "InteractionRecord",
    "LLMOrchestrator",
    "LexicalEmbedder",
    "MemoryBankError",
    "MemoryBankSettings",
    "MemoryBankState",
    "MemoryProcessor",
    "Plan",
    "ProvenanceGuard",
    "apply_memory_bank_strategy",
    "check_call",
    "extract_tool_outputs",
    "format_retrieved_memory",
    "handle_tool_call",
    "ingest_tool_outputs",
    "is_memory_tool",
    "load_config",
    "load_embedder",
    "memory_tools",
    "observe_tool_output",
    "retrieve_and_format",
]

_HOMES = {
    "TOOL_SCHEMAS": "tools",
    "CallReport": "provenance",
    "Config": "config",
    "Decision": "plan",
    "FactStore": "bank.stores",
    "Fate": "plan",
    "Insight": "records",
    "InsightStore": "bank.stores",
    "InteractionRecord": "records",
    "LLMOrchestrator": "orchestrator",
    "LexicalEmbedder": "models.lexical",
    "MemoryBankError": "errors",
    "MemoryBankSettings": "config",
    "MemoryBankState": "bank.session",
    "MemoryProcessor": "processor",
    "Plan": "plan",
    "ProvenanceGuard": "provenance",
    "apply_memory_bank_strategy": "processor",
    "check_call": "provenance",
    "extract_tool_outputs": "transcript.messages",
    "format_retrieved_memory": "bank.retrieval",
    "handle_tool_call": "tools",
    "ingest_tool_outputs": "bank.ingestion",
    "is_memory_tool": "tools",
    "load_config": "config",
    "load_embedder": "models.embedding",
    "memory_tools": "tools",
    "observe_tool_output": "models.observer",
    "retrieve_and_format": "bank.retrieval",
}
_FORMER = {  # names that were imported from here before; they still are
    "errors": (
        "ConfigError", "DatabaseOpenError", "DatabaseVersionError", "EmbedderLoadError", "EmbedderMismatchError",
        "EmbeddingError", "HistoryError", "ImageError", "LoopDetectedError", "MessagesError", "MissingExtraError",
        "ModelError", "PromptError", "ProvenanceError", "RecordConflictError", "RecordError", "StepFileError",
        "StepOrderError", "StorageError", "TokenBudgetError", "TraceFileError", "UnknownStrategyError",
    ),
    "history": (
        "ActionStep", "AdaptiveMemoryManager", "AgentMemory", "FinalAnswerStep", "HierarchicalMemory",
        "MemoryManager", "Observation", "PlanningStep", "ScratchpadStep", "SystemPromptStep", "TaskStep", "Timing",
        "TokenUsage", "ToolCall", "chain", "fit_token_budget", "keep_last_n_steps", "keep_system_and_recent",
        "no_pruning", "prune_old_observations", "semantic_pruning", "steps_from_messages", "summarize_old_steps",
        "to_memory_bank",
    ),
    "plan": ("ContextReport",),
    "records": ("Hit",),
    "transcript.messages": ("parse_messages", "render_messages"),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name) or next((home for home, names in _FORMER.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'memory_bank' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"memory_bank.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


if TYPE_CHECKING:
    from memory_bank.bank.ingestion import ingest_tool_outputs
    from memory_bank.bank.retrieval import format_retrieved_memory, retrieve_and_format
    from memory_bank.bank.session import MemoryBankState
    from memory_bank.bank.stores import FactStore, InsightStore
    from memory_bank.config import Config, MemoryBankSettings, load_config
    from memory_bank.errors import MemoryBankError
    from memory_bank.models.embedding import load_embedder
    from memory_bank.models.lexical import LexicalEmbedder
    from memory_bank.models.observer import observe_tool_output
    from memory_bank.orchestrator import LLMOrchestrator
    from memory_bank.plan import Decision, Fate, Plan
    from memory_bank.processor import MemoryProcessor, apply_memory_bank_strategy
    from memory_bank.provenance import CallReport, ProvenanceGuard, check_call
    from memory_bank.records import Insight, InteractionRecord
    from memory_bank.tools import TOOL_SCHEMAS, handle_tool_call, is_memory_tool, memory_tools
    from memory_bank.transcript.messages import extract_tool_outputs
