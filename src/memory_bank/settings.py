"""Settings of the strategies and of the service: frozen, typed, unknown keys refused."""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from memory_bank.errors import ConfigError


def _no_truth_for_a_number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("true and false are no values for this setting")
    return value


Int = Annotated[int, BeforeValidator(_no_truth_for_a_number)]
Number = Annotated[int | float, BeforeValidator(_no_truth_for_a_number)]
Float = Annotated[float, BeforeValidator(_no_truth_for_a_number)]


class Settings(BaseModel):
    """Settings of one strategy."""

    type: str
    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as e:
            raise ConfigError(sentence(e, type(self))) from None


def hint(name: str, known: Any, otherwise: str, before: str = "", spell: Any = str) -> str:
    """The nearest known name as a question, else ``otherwise``."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {before}{spell(near[0])}?" if near else otherwise


def sentence(error: ValidationError, model: type[BaseModel]) -> str:
    """The first validation error of settings as one sentence, without the value."""
    first = error.errors(include_url=False, include_input=False)[0]
    loc = [str(p) for p in first["loc"]]
    place = f"{model.__name__}: {'.'.join(loc)}" if loc else model.__name__
    if first["type"] == "extra_forbidden":
        return f"{place} is no setting: {hint(loc[-1], model.model_fields, 'remove it.')}"
    return f"{place}: {message_of(first)}"


def message_of(first: Any) -> str:
    """Pydantic's message as the end of a sentence."""
    message = first["msg"].removeprefix("Value error, ")
    return f"{message[0].lower()}{message[1:]}."


class NoStrategySettings(Settings):
    """The full history: the baseline of every comparison."""

    type: Literal["no_strategy"] = "no_strategy"


class TruncationSettings(Settings):
    """System and user messages, and the last interaction."""

    type: Literal["truncation"] = "truncation"


class KeepLastSettings(Settings):
    """System and user messages, and the last ``n`` interactions."""

    type: Literal["keep_last_n"] = "keep_last_n"
    n: Int = Field(default=5, ge=1, description="interactions to keep, including the last one")


FIXED_QUERY = "how to proceed with the task"


class Price(BaseModel):
    """Price of a model for a million tokens, in any one currency.

    ``cached``: of input tokens read from the provider's prefix cache, ``cache_write``: of those written to it;
    None: as ``prompt``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    prompt: float = Field(ge=0, allow_inf_nan=False)
    completion: float = Field(ge=0, allow_inf_nan=False)
    cached: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    cache_write: float | None = Field(default=None, ge=0, allow_inf_nan=False)


class ObserverBudget(BaseModel):
    """Limits of the Observer's model calls; None: no limit. A day is a UTC day of the whole bank."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    calls_per_session: int | None = Field(default=None, ge=0)
    calls_per_day: int | None = Field(default=None, ge=0)
    tokens_per_session: int | None = Field(default=None, ge=0)
    tokens_per_day: int | None = Field(default=None, ge=0)
    cost_per_session: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    cost_per_day: float | None = Field(default=None, ge=0, allow_inf_nan=False)


class ToolSettings(BaseModel):
    """What is known of a tool: whether its calls change something, and whether contexts always or never show them."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    effect: Literal["read", "write"] | None = None
    retain: Literal["always", "never"] | None = None


class MemoryBankSettings(Settings):
    """The memory bank, with the documented defaults."""

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
        description="'top_k': whole records by similarity; 'evidence': the values that the next call may need",
    )
    history_budget: Number = Field(
        default=4000,
        ge=0,
        description="evidence: tokens of the memory, or as a fraction up to 1.0 a share of the older history",
    )
    layout: Literal["native", "block"] = Field(
        default="native",
        description="evidence: past turns as shortened messages in their places, or one block of excerpts",
    )
    keep_recent: Int = Field(
        default=2,
        ge=0,
        description=(
            "evidence: interactions before the last to keep whole, within a fifth of the budget; more of both where "
            "the calls work on files; 0 keeps none"
        ),
    )
    tools: dict[str, ToolSettings] = Field(
        default_factory=dict,
        description="by tool name, whether its calls change something (evidence), and are always or never retained",
    )
    refresh_after: Int = Field(
        default=0,
        ge=0,
        description="evidence: keep a selection until later interactions have more tokens (at most half the budget)",
    )
    shorten_last: Int = Field(
        default=0,
        ge=0,
        description="evidence: shorten outputs of the tail to this many characters; 0: never",
    )
    evidence_model: str | None = Field(
        default=None, description="evidence: a model file written by `memory-bank train`"
    )
    similarity_weight: Float = Field(
        default=0.0,
        ge=0,
        le=10,
        description="evidence: log-odds per standard deviation of embedding similarity; 0: embed nothing",
    )
    top_k: Int = Field(default=3, ge=0, description="past records to retrieve")
    max_chars_per_record: Int = Field(default=2000, ge=0, description="characters of raw data of each record")
    retrieval_query: Literal["fixed", "task", "adaptive"] = Field(
        default="fixed",
        description="search query: a fixed sentence, the task, or the task and the latest actions",
    )
    fixed_query: str = Field(
        default=FIXED_QUERY, min_length=1, description="the sentence of retrieval_query 'fixed'"
    )
    memory_role: Literal["user", "system", "developer", "assistant"] = Field(
        default="user", description="role of the message that holds the retrieved context"
    )
    repair_pairs: Literal["off", "complete", "drop"] = Field(
        default="off",
        description="interactions with broken call/result pairs: leave, complete, or drop the broken parts",
    )
    observer_mode: Literal["inline", "background", "off"] = Field(
        default="inline",
        description="when a model summarises: within the step, in the background, or never",
    )
    observer_min_chars: Int = Field(
        default=0, ge=0, description="outputs with fewer characters are summarised by extraction"
    )
    observer_timeout: Float = Field(
        default=60.0, gt=0, le=3600, description="timeout of a model call in seconds"
    )
    observer_attempts: Int = Field(
        default=5, ge=1, le=100, description="background: attempts before the extractive summary is kept"
    )
    observer_budget: ObserverBudget = Field(
        default=ObserverBudget(),
        description="limits of calls, tokens and cost; extraction when they are reached",
    )
    observer_prices: dict[str, Price] = Field(
        default_factory=dict, description="price of a million tokens by model"
    )
    on_storage_error: Literal["raise", "pass_through"] = Field(
        default="raise",
        description="when the database fails: raise, or return the messages unchanged with a warning",
    )
    scope: Literal["session", "agent", "all"] = Field(
        default="session",
        description="records that top_k and the memory tools search: of the session, of its agent, or all",
    )
    observer_max_chars: Int = Field(
        default=10_000, ge=200, description="characters of an output that the Observer reads"
    )
    observer_concurrency: Int = Field(
        default=8, ge=1, le=64, description="parallel Observer calls of one step"
    )
    observer_prompt: str | None = Field(default=None, description="path of a prompt file for the Observer")
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


EXTRACTIVE = "extractive"


class StoredSettings(Settings):
    """A strategy that stores all records in a bank, so that ``get_record`` returns what a context leaves out."""

    embedding_model: str = Field(
        default="lexical",
        min_length=1,
        description="embedding model of the search; 'lexical' needs no weights",
    )
    token_encoding: str = Field(
        default="o200k_base", min_length=1, description="tiktoken encoding; 'approximate' needs no vocabulary"
    )

    def bank(self) -> MemoryBankSettings:
        """The settings by which records are stored."""
        return MemoryBankSettings(
            observer_model=EXTRACTIVE,
            embedding_model=self.embedding_model,
            token_encoding=self.token_encoding,
        )


class MaskingSettings(StoredSettings):
    """All messages; older tool outputs cut to their beginning and their trace_id."""

    type: Literal["observation_masking"] = "observation_masking"
    keep_last: Int = Field(default=3, ge=1, description="last interactions whose outputs stay whole")
    max_length: Int = Field(default=100, ge=0, description="characters kept of an older output")


class ProgressiveSettings(StoredSettings):
    """Old interactions go into a running summary."""

    type: Literal["progressive_summarization"] = "progressive_summarization"
    compact_threshold: Int = Field(default=8000, ge=1, description="tokens at which a context is compacted")
    keep_last: Int = Field(
        default=3, ge=1, description="interactions to keep whole if they fit, including the last one"
    )
    summary_tokens: Int = Field(default=1500, ge=1, description="most tokens of the running summary")
    summary_model: str = Field(
        default=EXTRACTIVE, min_length=1, description="model that writes the summary; 'extractive' needs none"
    )
    block: Int = Field(default=4, ge=1, description="fewest old interactions to summarise in one model call")
    summary_timeout: Float = Field(
        default=60.0, gt=0, le=3600, description="timeout of a model call in seconds"
    )


class HierarchicalSettings(StoredSettings):
    """Recent interactions whole, older calls one line each, the oldest grouped by tool."""

    type: Literal["hierarchical"] = "hierarchical"
    max_tokens: Int = Field(default=8000, ge=1, description="tokens of the whole context")
    keep_last: Int = Field(
        default=3, ge=1, description="interactions to keep whole if they fit, including the last one"
    )
    summarize_last: Int = Field(
        default=12, ge=0, description="older calls with a line of their own; those before are grouped by tool"
    )
    summary_chars: Int = Field(default=500, ge=40, description="most characters of the summary of one call")
    summary_model: str = Field(
        default=EXTRACTIVE,
        min_length=1,
        description="model that summarises each call; 'extractive' needs none",
    )

    def bank(self) -> MemoryBankSettings:
        """The same, with the summary model as Observer."""
        return super().bank().model_copy(update={"observer_model": self.summary_model})


class AdaptiveSettings(StoredSettings):
    """The first of several strategies whose context fits."""

    type: Literal["adaptive"] = "adaptive"
    max_tokens: Int = Field(default=8000, ge=1, description="tokens of the whole context")
    strategies: tuple[str, ...] = Field(
        default=("no_strategy", "observation_masking", "semantic", "hierarchical", "truncation"),
        min_length=1,
        description="keys of the configuration or types of strategies, in the order in which they are tried",
    )


class SemanticSettings(StoredSettings):
    """Past interactions whole, chosen by relevance and diversity (MMR) under a budget."""

    type: Literal["semantic"] = "semantic"
    history_budget: Int = Field(default=4000, ge=0, description="tokens for past interactions")
    diversity: Float = Field(
        default=0.3,
        ge=0,
        le=1,
        description="weight of diversity against relevance, from 0 to 1",
    )
    retrieval_query: Literal["task", "adaptive"] = Field(
        default="adaptive", description="relevance to the task, or to the task and the latest actions"
    )


class ScratchpadSettings(StoredSettings):
    """A scratchpad of values, calls and failures in place of past interactions."""

    type: Literal["scratchpad"] = "scratchpad"
    scratchpad_tokens: Int = Field(default=1500, ge=0, description="tokens of the scratchpad")
    observations: Int = Field(default=5, ge=0, description="past calls listed with their outcome")
    failures: Int = Field(default=3, ge=0, description="failed calls listed")
    facts: Int = Field(default=60, ge=0, description="key values kept, the latest first")
    observation_chars: Int = Field(default=400, ge=40, description="most characters of one listed call")

    @field_validator("observation_chars")
    @classmethod
    def _not_without_bounds(cls, value: int) -> int:
        return min(value, 1_400)


class ServiceSettings(BaseModel):
    """The HTTP service: where it listens, what it forwards to, what it keeps and allows."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="address to listen on; only loopback addresses unless there are API keys",
    )
    port: Int = Field(default=8767, ge=0, le=65535, description="port to listen on; 0: a free port")
    workers: Int = Field(default=1, ge=1, le=64, description="number of server processes")
    database: str = Field(
        default="", description="file name or database URL; empty: bank.db in the user's data directory"
    )
    upstream: str = Field(
        default="", description="base URL of the model's API; empty: OPENAI_BASE_URL, else OpenAI's own"
    )
    upstream_anthropic: str = Field(
        default="",
        description="base URL of the Messages API; empty: ANTHROPIC_BASE_URL, else Anthropic's own",
    )
    upstream_timeout: Float = Field(
        default=600.0, gt=0, le=86_400, description="seconds to wait for a byte of the model's API"
    )
    strategy: str = Field(default="", description="key of the strategy; empty: default_strategy")
    memory_timeout: Float = Field(
        default=5.0, gt=0, le=600, description="seconds after which a request is forwarded unchanged"
    )
    holdout: Float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of sessions that are sent without memory, as a control to compare with",
    )
    inject_tools: bool | Literal["auto"] = Field(
        default="auto",
        description="offer the memory tools to the agent and answer their calls in the proxy; auto: with rebuilt "
        "contexts, to agents that send tools of their own",
    )
    redact: tuple[str, ...] = Field(
        default=(), description="regular expressions; text that matches is never stored"
    )
    redact_secrets: bool = Field(
        default=True, description="keys, tokens and passwords of known forms are never stored"
    )
    max_body_bytes: Int = Field(default=64 * 2**20, ge=1024, description="longest request body accepted")
    requests_per_minute: Int = Field(
        default=0,
        ge=0,
        description="requests a minute of one API key, of all clients without keys; 0: no limit",
    )
    sessions_kept: Int = Field(default=256, ge=1, description="sessions held in memory by one worker")
    tokens_kept: Int = Field(
        default=4_000_000,
        ge=1,
        description="tokens of full histories that one worker holds (about 200 bytes each)",
    )
    steps_kept: Int = Field(
        default=100, ge=0, description="latest steps of a session whose contexts are kept for the page"
    )
    learn_after: Int = Field(
        default=0,
        ge=0,
        description="new sessions of a namespace after which its own evidence model is fitted; 0: never",
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(), description="host names accepted besides the service's address and loopback"
    )
    allowed_origins: tuple[str, ...] = Field(
        default=(),
        description="origins of other web pages that may call the service, such as https://tools.example",
    )
    log_format: Literal["text", "json"] = Field(default="text", description="log lines as text or JSON")
    shutdown_timeout: Float = Field(
        default=10.0, ge=0, le=600, description="seconds that open requests and jobs get at shutdown"
    )

    @field_validator("redact")
    @classmethod
    def _expressions(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for expression in value:
            try:
                re.compile(expression)
            except re.error as e:
                raise ValueError(f"{expression!r} is no regular expression ({e})") from None
        return value
