"""Typed steps of an agent's run, with prunings and managers. Names are imported when they are first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memory_bank.history.banking import records_of, to_memory_bank
    from memory_bank.history.foreign import typed_steps
    from memory_bank.history.manager import AdaptiveMemoryManager, HierarchicalMemory, MemoryManager
    from memory_bank.history.pruning import (
        Pruning,
        chain,
        count_tokens,
        fit_token_budget,
        keep_last_n_steps,
        keep_system_and_recent,
        no_pruning,
        prune_old_observations,
        semantic_pruning,
        summarize_old_steps,
    )
    from memory_bank.history.reading import steps_from_messages
    from memory_bank.history.scratchpad import AgentMemory
    from memory_bank.history.steps import (
        ActionStep,
        FinalAnswerStep,
        Observation,
        PlanningStep,
        ScratchpadStep,
        Step,
        SystemPromptStep,
        TaskStep,
        Timing,
        TokenUsage,
        ToolCall,
    )

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
    "typed_steps",
]

_MODULES = {
    "AdaptiveMemoryManager": "manager",
    "AgentMemory": "scratchpad",
    "HierarchicalMemory": "manager",
    "MemoryManager": "manager",
    "records_of": "banking",
    "steps_from_messages": "reading",
    "to_memory_bank": "banking",
    "typed_steps": "foreign",
}
"""The module of a name; other names beginning with a capital are in ``steps``, the rest in ``pruning``."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'memory_bank.history' has no attribute {name!r}")
    default = "steps" if name[0].isupper() and name != "Pruning" else "pruning"
    module = importlib.import_module(f"memory_bank.history.{_MODULES.get(name, default)}")
    value: object = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
