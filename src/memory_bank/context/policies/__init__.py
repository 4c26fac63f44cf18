"""The strategies of a configuration as policies, one module a family."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from memory_bank.config import (
    AdaptiveSettings,
    AnyStrategy,
    HierarchicalSettings,
    KeepLastSettings,
    MaskingSettings,
    MemoryBankSettings,
    NoStrategySettings,
    ProgressiveSettings,
    ScratchpadSettings,
    SemanticSettings,
    TruncationSettings,
)
from memory_bank.context.build import Policy
from memory_bank.context.policies.adaptive import choose_adaptive
from memory_bank.context.policies.evidence import choose_evidence, fold_budget
from memory_bank.context.policies.masking import choose_masking
from memory_bank.context.policies.plain import choose_all, choose_last
from memory_bank.context.policies.scratchpad import choose_scratchpad
from memory_bank.context.policies.semantic import choose_semantic
from memory_bank.context.policies.summaries import choose_hierarchical, choose_progressive
from memory_bank.context.policies.top_k import choose_top_k


def policy_of(
    settings: AnyStrategy,
    llm_client: object = None,
    named: Callable[[str], AnyStrategy] | None = None,
) -> Policy:
    """The policy that settings describe. ``named`` returns the settings that an adaptive strategy names."""
    name = settings.type
    if isinstance(settings, NoStrategySettings):
        return Policy(name, choose_all)
    if isinstance(settings, TruncationSettings):
        return Policy(name, partial(choose_last, n=1))
    if isinstance(settings, KeepLastSettings):
        return Policy(name, partial(choose_last, n=settings.n))
    if isinstance(settings, MemoryBankSettings):
        by_evidence = settings.selection == "evidence"
        return Policy(
            name,
            partial(choose_evidence if by_evidence else choose_top_k, settings=settings),
            bank=settings,
            llm_client=llm_client,
            reads_insights=not by_evidence,
            budget=partial(fold_budget, settings.history_budget) if by_evidence else None,
        )
    if isinstance(settings, AdaptiveSettings):
        assert named is not None, "an adaptive strategy names others"
        policies = [(key, policy_of(named(key), llm_client)) for key in settings.strategies]
        choose = partial(choose_adaptive, policies=policies, max_tokens=settings.max_tokens)
    elif isinstance(settings, MaskingSettings):
        choose = partial(choose_masking, settings=settings)
    elif isinstance(settings, ProgressiveSettings):
        choose = partial(choose_progressive, settings=settings, llm_client=llm_client)
    elif isinstance(settings, HierarchicalSettings):
        choose = partial(choose_hierarchical, settings=settings)
    elif isinstance(settings, SemanticSettings):
        choose = partial(choose_semantic, settings=settings)
    else:
        assert isinstance(settings, ScratchpadSettings)
        choose = partial(choose_scratchpad, settings=settings)
    names = ("history_budget", "max_tokens", "compact_threshold", "scratchpad_tokens")
    tokens = next((getattr(settings, name) for name in names if hasattr(settings, name)), None)
    budget = None if tokens is None else partial(fold_budget, tokens)
    return Policy(name, choose, bank=settings.bank(), llm_client=llm_client, budget=budget)
