"""Settings of the strategies that shorten, summarise or choose, and keep every output by its trace_id."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from memory_bank.settings.bank import MemoryBankSettings
from memory_bank.settings.base import Float, Int, Settings

EXTRACTIVE = "extractive"


class StoredSettings(Settings):
    """Of a strategy whose records rest in a bank, so that ``get_record`` finds what a context leaves out."""

    embedding_model: str = Field(
        default="lexical", min_length=1, description="of the bank's search; 'lexical' needs no weights"
    )
    token_encoding: str = Field(
        default="o200k_base", min_length=1, description="tiktoken encoding; 'approximate' needs no vocabulary"
    )

    def bank(self) -> MemoryBankSettings:
        """The settings of the bank beneath."""
        return MemoryBankSettings(
            observer_model=EXTRACTIVE,
            embedding_model=self.embedding_model,
            token_encoding=self.token_encoding,
        )


class MaskingSettings(StoredSettings):
    """Everything, but older tool outputs cut to their beginning and their trace_id."""

    type: Literal["observation_masking"] = "observation_masking"
    keep_last: Int = Field(default=3, ge=1, description="the outputs of so many last interactions stay whole")
    max_length: Int = Field(default=100, ge=0, description="older outputs keep this many characters")


class ProgressiveSettings(StoredSettings):
    """What falls out of the recent window goes into a running summary."""

    type: Literal["progressive_summarization"] = "progressive_summarization"
    compact_threshold: Int = Field(
        default=8000, ge=1, description="tokens of a context from which on it is compacted"
    )
    keep_last: Int = Field(
        default=3, ge=1, description="so many interactions stay whole where they fit, the last one included"
    )
    summary_tokens: Int = Field(default=1500, ge=1, description="the running summary has at most so many")
    summary_model: str = Field(
        default=EXTRACTIVE, min_length=1, description="model that writes the summary; 'extractive' needs none"
    )
    block: Int = Field(
        default=4, ge=1, description="so many old interactions, or more, are summarised in one model call"
    )
    summary_timeout: Float = Field(
        default=60.0, gt=0, le=3600, description="seconds after which a model call is given up"
    )


class HierarchicalSettings(StoredSettings):
    """Recent interactions whole, older ones summarised one by one, the oldest as themes."""

    type: Literal["hierarchical"] = "hierarchical"
    max_tokens: Int = Field(default=8000, ge=1, description="tokens of the whole context")
    keep_last: Int = Field(
        default=3, ge=1, description="so many interactions stay whole where they fit, the last one included"
    )
    summarize_last: Int = Field(
        default=12, ge=0, description="so many calls before those are summarised one by one; older: themes"
    )
    summary_chars: Int = Field(default=500, ge=40, description="a summary of one call is cut to this")
    summary_model: str = Field(
        default=EXTRACTIVE,
        min_length=1,
        description="model that summarises each call; 'extractive' needs none",
    )

    def bank(self) -> MemoryBankSettings:
        """The bank's Observer summarises each call, once."""
        return super().bank().model_copy(update={"observer_model": self.summary_model})


class AdaptiveSettings(StoredSettings):
    """The mildest of several strategies that fits."""

    type: Literal["adaptive"] = "adaptive"
    max_tokens: Int = Field(default=8000, ge=1, description="tokens of the whole context")
    strategies: tuple[str, ...] = Field(
        default=("no_strategy", "observation_masking", "semantic", "hierarchical", "truncation"),
        min_length=1,
        description="keys of this configuration or types, the mildest first",
    )


class SemanticSettings(StoredSettings):
    """Past interactions whole, by relevance and diversity, under a budget."""

    type: Literal["semantic"] = "semantic"
    history_budget: Int = Field(default=4000, ge=0, description="tokens for past interactions")
    diversity: Float = Field(
        default=0.3,
        ge=0,
        le=1,
        description="0: relevance alone; 1: only unlike what is chosen",
    )
    retrieval_query: Literal["task", "adaptive"] = Field(
        default="adaptive", description="what relevance is measured to: the task, or task and latest doings"
    )


class ScratchpadSettings(StoredSettings):
    """Anchor, a scratchpad of what was found, and the last interaction."""

    type: Literal["scratchpad"] = "scratchpad"
    scratchpad_tokens: Int = Field(default=1500, ge=0, description="tokens of the scratchpad")
    observations: Int = Field(default=5, ge=0, description="so many past calls are noted with their outcome")
    failures: Int = Field(default=3, ge=0, description="so many failed calls are noted")
    facts: Int = Field(default=60, ge=0, description="so many key values are kept, the latest")
    observation_chars: Int = Field(default=400, ge=40, description="a note of a call is cut to this")

    @field_validator("observation_chars")
    @classmethod
    def _not_without_bounds(cls, value: int) -> int:
        return min(value, 1_400)
