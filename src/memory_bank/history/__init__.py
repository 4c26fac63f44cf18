"""Typed steps of an agent's run, with prunings and managers."""

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
    records_of,
    semantic_pruning,
    summarize_old_steps,
    to_memory_bank,
)
from memory_bank.history.reading import steps_from_messages, typed_steps
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
    "ActionStep", "AdaptiveMemoryManager", "AgentMemory", "FinalAnswerStep", "HierarchicalMemory", "MemoryManager",
    "Observation", "PlanningStep", "Pruning", "ScratchpadStep", "Step", "SystemPromptStep", "TaskStep", "Timing",
    "TokenUsage", "ToolCall", "chain", "count_tokens", "fit_token_budget", "keep_last_n_steps",
    "keep_system_and_recent", "no_pruning", "prune_old_observations", "records_of", "semantic_pruning",
    "steps_from_messages", "summarize_old_steps", "to_memory_bank", "typed_steps",
]  # fmt: skip
