"""The strategies of a configuration as policies, one module a family."""

from __future__ import annotations

from functools import partial
from typing import Any

from memory_bank import config
from memory_bank.context.build import Policy
from memory_bank.context.policies.digest import choose_progressive
from memory_bank.context.policies.evidence import choose_evidence
from memory_bank.context.policies.plain import choose_all, choose_last, choose_masking
from memory_bank.context.policies.top_k import choose_top_k


def policy_of(settings: config.AnyStrategy, llm_client: object = None) -> Policy:
    """The policy that settings describe."""
    choose: Any  # a function of the view, the session and these settings
    match settings:
        case config.NoStrategySettings():
            return Policy(settings.type, choose_all)
        case config.TruncationSettings():
            return Policy(settings.type, partial(choose_last, n=1))
        case config.KeepLastSettings():
            return Policy(settings.type, partial(choose_last, n=settings.n))
        case config.MemoryBankSettings(selection="evidence"):
            choose = choose_evidence
        case config.MemoryBankSettings():
            choose = choose_top_k
        case config.MaskingSettings():
            choose = choose_masking
        case config.ProgressiveSettings():
            choose = partial(choose_progressive, llm_client=llm_client)
    return Policy(
        settings.type,
        partial(choose, settings=settings),
        bank=settings if isinstance(settings, config.MemoryBankSettings) else settings.bank(),
        llm_client=llm_client,
        reads_insights=choose is not choose_evidence,
    )
