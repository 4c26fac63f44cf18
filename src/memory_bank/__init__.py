"""memory_bank: the prompt of a tool-calling agent stays small, every tool output stays one id away.

Names are imported when they are first used, so that ``import memory_bank`` loads nothing heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "ActionStep": "history",
    "AdaptiveMemoryManager": "history",
    "AgentMemory": "history",
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
    "FactStore": "bank.facts",
    "Fate": "context.plan",
    "FinalAnswerStep": "history",
    "HierarchicalMemory": "history",
    "HistoryError": "errors",
    "Hit": "records",
    "ImageError": "errors",
    "Insight": "records",
    "InsightStore": "bank.insights",
    "InteractionRecord": "records",
    "LLMOrchestrator": "orchestrator",
    "LexicalEmbedder": "models.lexical",
    "LoopDetectedError": "errors",
    "MemoryBankError": "errors",
    "MemoryBankSettings": "config",
    "MemoryBankState": "assembly",
    "MemoryManager": "history",
    "MemoryProcessor": "processor",
    "MessagesError": "errors",
    "MissingExtraError": "errors",
    "ModelError": "errors",
    "Observation": "history",
    "Plan": "context.plan",
    "PlanningStep": "history",
    "PromptError": "errors",
    "ProvenanceError": "errors",
    "ProvenanceGuard": "provenance",
    "RecordConflictError": "errors",
    "RecordError": "errors",
    "ScratchpadStep": "history",
    "StepFileError": "errors",
    "StepOrderError": "errors",
    "StorageError": "errors",
    "SystemPromptStep": "history",
    "TOOL_SCHEMAS": "tools",
    "TaskStep": "history",
    "Timing": "history",
    "TokenBudgetError": "errors",
    "TokenUsage": "history",
    "ToolCall": "history",
    "TraceFileError": "errors",
    "UnknownStrategyError": "errors",
    "apply_memory_bank_strategy": "context.memory_bank",
    "chain": "history",
    "check_call": "provenance",
    "extract_tool_outputs": "transcript.parsing",
    "fit_token_budget": "history",
    "format_retrieved_memory": "bank.retrieval",
    "handle_tool_call": "tools",
    "ingest_tool_outputs": "bank.ingestion",
    "is_memory_tool": "tools",
    "keep_last_n_steps": "history",
    "keep_system_and_recent": "history",
    "load_config": "config",
    "load_embedder": "models.embedding",
    "memory_tools": "tools",
    "no_pruning": "history",
    "observe_tool_output": "models.observer",
    "parse_messages": "transcript.parsing",
    "prune_old_observations": "history",
    "render_messages": "transcript.parsing",
    "retrieve_and_format": "bank.retrieval",
    "semantic_pruning": "history",
    "steps_from_messages": "history",
    "summarize_old_steps": "history",
    "to_memory_bank": "history",
}

__all__ = [
    "TOOL_SCHEMAS",
    "ActionStep",
    "AdaptiveMemoryManager",
    "AgentMemory",
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
    "FinalAnswerStep",
    "HierarchicalMemory",
    "HistoryError",
    "Hit",
    "ImageError",
    "Insight",
    "InsightStore",
    "InteractionRecord",
    "LLMOrchestrator",
    "LexicalEmbedder",
    "LoopDetectedError",
    "MemoryBankError",
    "MemoryBankSettings",
    "MemoryBankState",
    "MemoryManager",
    "MemoryProcessor",
    "MessagesError",
    "MissingExtraError",
    "ModelError",
    "Observation",
    "Plan",
    "PlanningStep",
    "PromptError",
    "ProvenanceError",
    "ProvenanceGuard",
    "RecordConflictError",
    "RecordError",
    "ScratchpadStep",
    "StepFileError",
    "StepOrderError",
    "StorageError",
    "SystemPromptStep",
    "TaskStep",
    "Timing",
    "TokenBudgetError",
    "TokenUsage",
    "ToolCall",
    "TraceFileError",
    "UnknownStrategyError",
    "apply_memory_bank_strategy",
    "chain",
    "check_call",
    "extract_tool_outputs",
    "fit_token_budget",
    "format_retrieved_memory",
    "handle_tool_call",
    "ingest_tool_outputs",
    "is_memory_tool",
    "keep_last_n_steps",
    "keep_system_and_recent",
    "load_config",
    "load_embedder",
    "memory_tools",
    "no_pruning",
    "observe_tool_output",
    "parse_messages",
    "prune_old_observations",
    "render_messages",
    "retrieve_and_format",
    "semantic_pruning",
    "steps_from_messages",
    "summarize_old_steps",
    "to_memory_bank",
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
    from memory_bank.bank.facts import FactStore
    from memory_bank.bank.ingestion import ingest_tool_outputs
    from memory_bank.bank.insights import InsightStore
    from memory_bank.bank.retrieval import format_retrieved_memory, retrieve_and_format
    from memory_bank.config import Config, MemoryBankSettings, load_config
    from memory_bank.context.memory_bank import apply_memory_bank_strategy
    from memory_bank.context.plan import Decision, Fate, Plan
    from memory_bank.context.report import ContextReport
    from memory_bank.errors import (
        ConfigError,
        DatabaseOpenError,
        DatabaseVersionError,
        EmbedderLoadError,
        EmbedderMismatchError,
        EmbeddingError,
        HistoryError,
        ImageError,
        LoopDetectedError,
        MemoryBankError,
        MessagesError,
        MissingExtraError,
        ModelError,
        PromptError,
        ProvenanceError,
        RecordConflictError,
        RecordError,
        StepFileError,
        StepOrderError,
        StorageError,
        TokenBudgetError,
        TraceFileError,
        UnknownStrategyError,
    )
    from memory_bank.history import (
        ActionStep,
        AdaptiveMemoryManager,
        AgentMemory,
        FinalAnswerStep,
        HierarchicalMemory,
        MemoryManager,
        Observation,
        PlanningStep,
        ScratchpadStep,
        SystemPromptStep,
        TaskStep,
        Timing,
        TokenUsage,
        ToolCall,
        chain,
        fit_token_budget,
        keep_last_n_steps,
        keep_system_and_recent,
        no_pruning,
        prune_old_observations,
        semantic_pruning,
        steps_from_messages,
        summarize_old_steps,
        to_memory_bank,
    )
    from memory_bank.models.embedding import load_embedder
    from memory_bank.models.lexical import LexicalEmbedder
    from memory_bank.models.observer import observe_tool_output
    from memory_bank.orchestrator import LLMOrchestrator
    from memory_bank.processor import MemoryProcessor
    from memory_bank.provenance import CallReport, ProvenanceGuard, check_call
    from memory_bank.records import Hit, Insight, InteractionRecord
    from memory_bank.tools import TOOL_SCHEMAS, handle_tool_call, is_memory_tool, memory_tools
    from memory_bank.transcript.parsing import extract_tool_outputs, parse_messages, render_messages
