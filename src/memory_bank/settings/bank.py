"""Settings of the memory bank."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from memory_bank.settings.base import Float, Int, Number, Settings

FIXED_QUERY = "how to proceed with the task"


class Price(BaseModel):
    """Of a model, in any one currency, for a million tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    prompt: float = Field(ge=0, allow_inf_nan=False)
    completion: float = Field(ge=0, allow_inf_nan=False)


class ObserverBudget(BaseModel):
    """What the Observer's model may cost at most; None: no limit. Days are UTC, over the whole bank."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    calls_per_session: int | None = Field(default=None, ge=0)
    calls_per_day: int | None = Field(default=None, ge=0)
    tokens_per_session: int | None = Field(default=None, ge=0)
    tokens_per_day: int | None = Field(default=None, ge=0)
    cost_per_session: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    cost_per_day: float | None = Field(default=None, ge=0, allow_inf_nan=False)


class MemoryBankSettings(Settings):
    """The memory bank. The defaults are the documented ones."""

    type: Literal["memory_bank"] = "memory_bank"
    observer_model: str = Field(
        default="gpt-4-1-mini",
        min_length=1,
        description="model that summarises each call; 'extractive' needs none",
    )
    embedding_model: str = Field(
        default="BAAI/bge-small-en-v1.5",
        min_length=1,
        description="FlagEmbedding model or local folder; 'openai:NAME'; 'lexical' needs no weights",
    )
    selection: Literal["top_k", "evidence"] = Field(
        default="top_k",
        description="'top_k': whole records by similarity; 'evidence': what the next call may need",
    )
    history_budget: Number = Field(
        default=4000,
        ge=0,
        description="evidence: tokens for the memory, or (a fraction up to 1.0) a share of the older history",
    )
    keep_recent: Int = Field(
        default=0, ge=0, description="evidence: interactions before the last kept whole, while they fit"
    )
    refresh_after: Int = Field(
        default=0,
        ge=0,
        description="evidence: chosen anew when what came since has more tokens (at most half the budget)",
    )
    shorten_last: Int = Field(
        default=0,
        ge=0,
        description="evidence: longer outputs (characters) of the tail are shortened; 0 never",
    )
    evidence_model: str | None = Field(
        default=None, description="evidence: another model file, as `memory-bank train` writes it"
    )
    similarity_weight: Float = Field(
        default=0.0,
        ge=0,
        le=10,
        description="evidence: log-odds for a piece one standard deviation nearer to the step; 0 embeds none",
    )
    top_k: Int = Field(default=3, ge=0, description="how many past records are brought back")
    max_chars_per_record: Int = Field(
        default=2000, ge=0, description="raw data of a record is shortened to this"
    )
    retrieval_query: Literal["fixed", "task", "adaptive"] = Field(
        default="fixed",
        description="what is searched for: a fixed sentence, the task, or task and latest doings",
    )
    fixed_query: str = Field(
        default=FIXED_QUERY, min_length=1, description="the sentence of retrieval_query 'fixed'"
    )
    memory_role: Literal["user", "system", "developer", "assistant"] = Field(
        default="user", description="role of the message that holds the retrieved context"
    )
    repair_pairs: Literal["off", "complete", "drop"] = Field(
        default="off", description="broken call/result pairs: pass through, complete, or drop"
    )
    observer_mode: Literal["inline", "background", "off"] = Field(
        default="inline",
        description="summaries by a model: within the step, beside it (extraction serves meanwhile), or none",
    )
    observer_min_chars: Int = Field(
        default=0, ge=0, description="shorter outputs are summarised by extraction, never sent to a model"
    )
    observer_timeout: Float = Field(
        default=60.0, gt=0, le=3600, description="seconds after which a model call is given up"
    )
    observer_attempts: Int = Field(
        default=5, ge=1, le=100, description="background: attempts at a record before extraction stays"
    )
    observer_budget: ObserverBudget = Field(
        default=ObserverBudget(), description="limits of calls, tokens and cost; extraction beyond them"
    )
    observer_prices: dict[str, Price] = Field(
        default_factory=dict, description="price of a million tokens by model, where cost is to be counted"
    )
    on_storage_error: Literal["raise", "pass_through"] = Field(
        default="raise",
        description="a full disk or lost server: an error, or the messages unchanged with a warning",
    )
    scope: Literal["session", "agent", "all"] = Field(
        default="session",
        description="whose records top_k and the memory tools find: this session's, its agent's, all",
    )
    observer_max_chars: Int = Field(
        default=10_000, ge=200, description="the Observer sees this much of an output"
    )
    observer_concurrency: Int = Field(
        default=8, ge=1, le=64, description="parallel Observer calls of one step"
    )
    observer_prompt: str | None = Field(default=None, description="another prompt file for the Observer")
    token_encoding: str = Field(
        default="o200k_base", min_length=1, description="tiktoken encoding; 'approximate' needs no vocabulary"
    )

    @field_validator("history_budget")
    @classmethod
    def _a_share_is_at_most_one(cls, value: int | float) -> int | float:
        if isinstance(value, float) and value > 1:
            raise ValueError(
                "a fraction is a share of the history, at most 1.0; give tokens as a whole number"
            )
        return value
