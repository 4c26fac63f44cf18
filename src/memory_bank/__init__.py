"""memory_bank: the prompt of a tool-calling agent stays small, every tool output stays one id away.

Names are imported when they are first used, so that ``import memory_bank`` loads nothing heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "CallReport": "provenance",
    "Config": "config",
    "ConfigError": "errors",
    "ContextReport": "context.report",
    "DatabaseOpenError": "errors",
    "DatabaseVersionError": "errors",
    "Decision": "context.plan",
    "EmbedderLoadError": "errors",
    "EmbedderMismatchError": "errors",
    "EmbeddingError": "errors",
    "FactStore": "stores.facts",
    "Fate": "context.plan",
    "Hit": "records",
    "Insight": "records",
    "InsightStore": "stores.insights",
    "InteractionRecord": "records",
    "LLMOrchestrator": "orchestrator",
    "LexicalEmbedder": "clients.lexical",
    "LoopDetectedError": "errors",
    "MemoryBankError": "errors",
    "MemoryBankSettings": "config",
    "MemoryBankState": "assembly",
    "MemoryProcessor": "processor",
    "MessagesError": "errors",
    "MissingExtraError": "errors",
    "ModelError": "errors",
    "Plan": "context.plan",
    "PromptError": "errors",
    "ProvenanceError": "errors",
    "ProvenanceGuard": "provenance",
    "RecordConflictError": "errors",
    "RecordError": "errors",
    "StorageError": "errors",
    "TOOL_SCHEMAS": "tools",
    "TraceFileError": "errors",
    "UnknownStrategyError": "errors",
    "apply_memory_bank_strategy": "strategies.memory_bank",
    "check_call": "provenance",
    "extract_tool_outputs": "history.parsing",
    "format_retrieved_memory": "retrieval",
    "handle_tool_call": "tools",
    "ingest_tool_outputs": "ingestion",
    "is_memory_tool": "tools",
    "load_config": "config",
    "load_embedder": "clients.embedding",
    "memory_tools": "tools",
    "observe_tool_output": "observer",
    "parse_messages": "history.parsing",
    "render_messages": "history.parsing",
    "retrieve_and_format": "retrieval",
}

__all__ = [
    "TOOL_SCHEMAS",
    "CallReport",
    "Config",
    "ConfigError",
    "ContextReport",
    "DatabaseOpenError",
    "DatabaseVersionError",
    "Decision",
    "EmbedderLoadError",
    "EmbedderMismatchError",
    "EmbeddingError",
    "FactStore",
    "Fate",
    "Hit",
    "Insight",
    "InsightStore",
    "InteractionRecord",
    "LLMOrchestrator",
    "LexicalEmbedder",
    "LoopDetectedError",
    "MemoryBankError",
    "MemoryBankSettings",
    "MemoryBankState",
    "MemoryProcessor",
    "MessagesError",
    "MissingExtraError",
    "ModelError",
    "Plan",
    "PromptError",
    "ProvenanceError",
    "ProvenanceGuard",
    "RecordConflictError",
    "RecordError",
    "StorageError",
    "TraceFileError",
    "UnknownStrategyError",
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
    "parse_messages",
    "render_messages",
    "retrieve_and_format",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'memory_bank' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"memory_bank.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


if TYPE_CHECKING:
    from memory_bank.assembly import MemoryBankState
    from memory_bank.clients.embedding import load_embedder
    from memory_bank.clients.lexical import LexicalEmbedder
    from memory_bank.config import Config, MemoryBankSettings, load_config
    from memory_bank.context.plan import Decision, Fate, Plan
    from memory_bank.context.report import ContextReport
    from memory_bank.errors import (
        ConfigError,
        DatabaseOpenError,
        DatabaseVersionError,
        EmbedderLoadError,
        EmbedderMismatchError,
        EmbeddingError,
        LoopDetectedError,
        MemoryBankError,
        MessagesError,
        MissingExtraError,
        ModelError,
        PromptError,
        ProvenanceError,
        RecordConflictError,
        RecordError,
        StorageError,
        TraceFileError,
        UnknownStrategyError,
    )
    from memory_bank.history.parsing import extract_tool_outputs, parse_messages, render_messages
    from memory_bank.ingestion import ingest_tool_outputs
    from memory_bank.observer import observe_tool_output
    from memory_bank.orchestrator import LLMOrchestrator
    from memory_bank.processor import MemoryProcessor
    from memory_bank.provenance import CallReport, ProvenanceGuard, check_call
    from memory_bank.records import Hit, Insight, InteractionRecord
    from memory_bank.retrieval import format_retrieved_memory, retrieve_and_format
    from memory_bank.stores.facts import FactStore
    from memory_bank.stores.insights import InsightStore
    from memory_bank.strategies.memory_bank import apply_memory_bank_strategy
    from memory_bank.tools import TOOL_SCHEMAS, handle_tool_call, is_memory_tool, memory_tools
