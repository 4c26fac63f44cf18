"""What was said, without side effects: typed steps and their prunings, parsing, counting, shortening.

Names are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOMES = {
    "ActionStep": "steps",
    "AdaptiveMemoryManager": "adaptive",
    "AgentMemory": "scratchpad",
    "FinalAnswerStep": "steps",
    "HierarchicalMemory": "hierarchy",
    "MemoryManager": "manager",
    "Observation": "parts",
    "PlanningStep": "steps",
    "Pruning": "pruning",
    "ScratchpadStep": "steps",
    "Step": "steps",
    "SystemPromptStep": "steps",
    "TaskStep": "steps",
    "Timing": "parts",
    "TokenUsage": "parts",
    "ToolCall": "parts",
    "chain": "pruning",
    "count_tokens": "pruning",
    "fit_token_budget": "pruning",
    "keep_last_n_steps": "pruning",
    "keep_system_and_recent": "pruning",
    "no_pruning": "pruning",
    "prune_old_observations": "pruning",
    "records_of": "banking",
    "semantic_pruning": "relevance",
    "steps_from_messages": "reading",
    "summarize_old_steps": "summaries",
    "to_memory_bank": "banking",
}

__all__ = [
    "ActionStep",
    "AdaptiveMemoryManager",
    "AgentMemory",
    "FinalAnswerStep",
    "HierarchicalMemory",
    "MemoryManager",
    "Observation",
    "PlanningStep",
    "Pruning",
    "ScratchpadStep",
    "Step",
    "SystemPromptStep",
    "TaskStep",
    "Timing",
    "TokenUsage",
    "ToolCall",
    "chain",
    "count_tokens",
    "fit_token_budget",
    "keep_last_n_steps",
    "keep_system_and_recent",
    "no_pruning",
    "prune_old_observations",
    "records_of",
    "semantic_pruning",
    "steps_from_messages",
    "summarize_old_steps",
    "to_memory_bank",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'memory_bank.history' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"memory_bank.history.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from memory_bank.history.adaptive import AdaptiveMemoryManager
    from memory_bank.history.banking import records_of, to_memory_bank
    from memory_bank.history.hierarchy import HierarchicalMemory
    from memory_bank.history.manager import MemoryManager
    from memory_bank.history.parts import Observation, Timing, TokenUsage, ToolCall
    from memory_bank.history.pruning import (
        Pruning,
        chain,
        count_tokens,
        fit_token_budget,
        keep_last_n_steps,
        keep_system_and_recent,
        no_pruning,
        prune_old_observations,
    )
    from memory_bank.history.reading import steps_from_messages
    from memory_bank.history.relevance import semantic_pruning
    from memory_bank.history.scratchpad import AgentMemory
    from memory_bank.history.steps import (
        ActionStep,
        FinalAnswerStep,
        PlanningStep,
        ScratchpadStep,
        Step,
        SystemPromptStep,
        TaskStep,
    )
    from memory_bank.history.summaries import summarize_old_steps
