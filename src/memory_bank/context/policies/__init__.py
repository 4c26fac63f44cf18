"""The strategies of a configuration as policies, one module a family."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from memory_bank import config
from memory_bank.context.build import Policy
from memory_bank.context.policies.digest import choose_hierarchical, choose_progressive, choose_scratchpad
from memory_bank.context.policies.evidence import choose_evidence, fold_budget
from memory_bank.context.policies.plain import (
    choose_adaptive,
    choose_all,
    choose_last,
    choose_masking,
    choose_semantic,
)
from memory_bank.context.policies.top_k import choose_top_k


def policy_of(
    settings: config.AnyStrategy,
    llm_client: object = None,
    named: Callable[[str], config.AnyStrategy] | None = None,
) -> Policy:
    """The policy that settings describe. ``named`` returns the settings that an adaptive strategy names."""
    choose: Any  # a function of the view, the session and these settings
    tokens: int | float | str | None = None
    match settings:
        case config.NoStrategySettings():
            return Policy(settings.type, choose_all)
        case config.TruncationSettings():
            return Policy(settings.type, partial(choose_last, n=1))
        case config.KeepLastSettings():
            return Policy(settings.type, partial(choose_last, n=settings.n))
        case config.MemoryBankSettings(selection="evidence"):
            choose, tokens = choose_evidence, settings.history_budget
        case config.MemoryBankSettings():
            choose = choose_top_k
        case config.AdaptiveSettings():
            assert named is not None, "an adaptive strategy names others"
            policies = [(key, policy_of(named(key), llm_client)) for key in settings.strategies]
            choose, tokens = partial(choose_adaptive, policies=policies), settings.max_tokens
        case config.MaskingSettings():
            choose = choose_masking
        case config.ProgressiveSettings():
            choose, tokens = partial(choose_progressive, llm_client=llm_client), settings.compact_threshold
        case config.HierarchicalSettings():
            choose, tokens = choose_hierarchical, settings.max_tokens
        case config.SemanticSettings():
            choose, tokens = choose_semantic, settings.history_budget
        case config.ScratchpadSettings():
            choose, tokens = choose_scratchpad, settings.scratchpad_tokens
    return Policy(
        settings.type,
        partial(choose, settings=settings),
        bank=settings if isinstance(settings, config.MemoryBankSettings) else settings.bank(),
        llm_client=llm_client,
        reads_insights=choose is not choose_evidence,
        budget=None if tokens is None else partial(fold_budget, tokens),
    )
