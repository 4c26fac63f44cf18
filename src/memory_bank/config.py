"""The configuration: settings of every strategy and of the service, read from a file and the environment.

Settings are frozen and typed; unknown keys are refused.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from numbers import Integral, Real
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from memory_bank.errors import ConfigError, UnknownStrategyError
from memory_bank.shipped import shipped_file

log = logging.getLogger("memory_bank.MemoryBankStrategy")

ENV_PREFIX = "MEMORY_BANK_"
FAULT = "MEMORY_BANK_FAULT"  # no setting: see memory_bank.faults


def _no_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("true and false are no values for this setting")
    return value


Int = Annotated[int, BeforeValidator(_no_boolean)]
Number = Annotated[int | float, BeforeValidator(_no_boolean)]
Float = Annotated[float, BeforeValidator(_no_boolean)]


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
    history_budget: Literal["auto"] | Annotated[Number, Field(ge=0)] = Field(
        default="auto",
        description="evidence: tokens of the memory, or as a fraction up to 1.0 a share of the older history; auto: "
        "15% of it, from 2,000 to 16,000 tokens",
    )
    layout: Literal["native", "block"] = Field(
        default="native",
        description="evidence: past turns as shortened messages in their places, or one block of excerpts",
    )
    keep_recent: Int = Field(
        default=2,
        ge=0,
        description="evidence: interactions before the last that a fold keeps whole, within a fifth of its budget",
    )
    tools: dict[str, ToolSettings] = Field(
        default_factory=dict,
        description="by tool name, whether its calls change something (evidence), and are always or never retained",
    )
    refresh_after: Literal["auto"] | Annotated[Int, Field(ge=0)] = Field(
        default="auto",
        description="evidence: tokens of new interactions after which the history is folded again; auto: where that "
        "costs least; 0: at every step",
    )
    cache_retention: Float = Field(
        default=300.0,
        gt=0,
        description="evidence: seconds after which the provider has forgotten a prefix, so that a fold is free",
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
    def _check_share(cls, value: int | float | str) -> int | float | str:
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
    def _limit_chars(cls, value: int) -> int:
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
    cache_markers: Literal["auto", "off"] = Field(
        default="auto",
        description="mark requests of the Messages API for the provider's prefix cache that have no marks",
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
        description="tokens of full histories that one worker holds (about 200 bytes each, or 64 of a request)",
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


AnyStrategy = (
    NoStrategySettings
    | TruncationSettings
    | KeepLastSettings
    | MaskingSettings
    | ProgressiveSettings
    | HierarchicalSettings
    | AdaptiveSettings
    | SemanticSettings
    | ScratchpadSettings
    | MemoryBankSettings
)
StrategySettings = Annotated[AnyStrategy, Field(discriminator="type")]
_MODELS: dict[str, type[AnyStrategy]] = {
    model.model_fields["type"].default: model for model in AnyStrategy.__args__
}
STRATEGY_TYPES = tuple(_MODELS)


class Config(BaseSettings):
    """A configuration: the strategies by key. Environment variables override values that are passed in.

    ``MEMORY_BANK_MEMORY_STRATEGIES__memory_bank__TOP_K=5`` sets one value. Raises ConfigError: an unknown
    key, a wrong value, in the arguments or in the environment.
    """

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
    )
    default_strategy: str = Field(
        default="memory_bank", min_length=1, description="key of the strategy that is used when none is named"
    )
    memory_strategies: dict[str, StrategySettings] = Field(
        default_factory=lambda: dict[str, StrategySettings](memory_bank=MemoryBankSettings())
    )
    loop_detection: Literal["off", "warn", "raise"] = Field(
        default="warn", description="action when the agent repeats the same call with the same answer"
    )
    loop_threshold: Int = Field(default=3, ge=2, description="equal calls in a row that count as a loop")
    prices: dict[str, Price] = Field(
        default_factory=dict,
        description="price of a million tokens by the beginning of a model's name",
    )

    service: ServiceSettings = Field(default=ServiceSettings(), description="settings of `memory-bank serve`")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as e:
            raise ConfigError(_sentence(e)) from None
        except SettingsError as e:
            raise ConfigError(f"the environment, {ENV_PREFIX}…: its value is no JSON ({e}).") from None
        for key, settings in self.memory_strategies.items():
            if isinstance(settings, AdaptiveSettings):
                self._check_rungs(key, settings)
            if isinstance(settings, MemoryBankSettings):
                _check_files(key, settings)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  as the base class names it
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """One source: the values passed in, overridden by the environment."""
        return (_Merged(settings_cls, init_settings, env_settings),)

    def strategy(self, key: str) -> AnyStrategy:
        """The settings under a key. Raises UnknownStrategyError, which names the nearest known key."""
        found = self.memory_strategies.get(key)
        if found is None:
            near = difflib.get_close_matches(str(key), self.memory_strategies, n=1)
            known = ", ".join(sorted(self.memory_strategies)) or "none"
            hint = f"did you mean {near[0]!r}?" if near else f"it has {known}."
            raise UnknownStrategyError(f"the configuration has no strategy {key!r}: {hint}")
        return found

    def rung(self, name: str) -> AnyStrategy:
        """One of an adaptive strategy's ``strategies``: the settings under a key, or a type's defaults."""
        if name not in self.memory_strategies and name in _MODELS:
            return _MODELS[name]()
        return self.strategy(name)

    def _check_rungs(self, key: str, settings: AdaptiveSettings) -> None:
        place = f"Config: memory_strategies.{key}.strategies"
        for name in settings.strategies:
            known = [*self.memory_strategies, *STRATEGY_TYPES]
            if name not in known:
                raise UnknownStrategyError(
                    f"{place}: there is no strategy {name!r}: "
                    + hint(name, known, f"it has {', '.join(sorted(self.memory_strategies))}.")
                )
            if isinstance(self.rung(name), AdaptiveSettings):
                raise ConfigError(f"{place}: {name!r} is adaptive itself: name strategies of other types.")


def _check_files(key: str, settings: MemoryBankSettings) -> None:
    """Raise ConfigError for a file that a strategy names and that is not there."""
    for name in ("evidence_model", "observer_prompt"):
        file = getattr(settings, name)
        if file is not None and not Path(file).is_file():
            raise ConfigError(
                f"Config: memory_strategies.{key}.{name}: there is no file {file}: correct the path, or remove it."
            )


class _Merged(PydanticBaseSettingsSource):
    """Values passed in, each overridden by its environment variable."""

    def __init__(
        self,
        settings_cls: type[BaseSettings],
        init: PydanticBaseSettingsSource,
        env: PydanticBaseSettingsSource,
    ) -> None:
        super().__init__(settings_cls)
        self._init = init
        self._env = env

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002
        """Not used: ``__call__`` returns all values."""
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        values, env = dict(self._init()), self._env()
        _check_environment()
        values.update((k, v) for k, v in env.items() if k not in ("memory_strategies", "service"))
        if "service" in env:
            below, above = values.get("service", {}), env["service"]
            below = below.model_dump(exclude_unset=True) if isinstance(below, ServiceSettings) else below
            both = isinstance(below, Mapping) and isinstance(above, Mapping)
            values["service"] = {**below, **above} if both else above
        if "memory_strategies" in env:
            given = env["memory_strategies"]
            if not isinstance(given, Mapping):
                raise ConfigError(
                    f"the environment, {ENV_PREFIX}MEMORY_STRATEGIES: its value is no JSON object."
                )
            below = values.get("memory_strategies", {"memory_bank": {"type": "memory_bank"}})
            if isinstance(below, Mapping):
                values["memory_strategies"] = _laid_over(below, given)
        return values


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Strategies with single values replaced. Keys of the environment match without regard to case."""
    merged = {k: v.model_dump(exclude_unset=True) | {"type": v.type} if isinstance(v, Settings) else v
              for k, v in below.items()}  # fmt: skip
    spelled = {k.lower(): k for k in merged}
    for name, changes in above.items():
        key = spelled.get(name.lower(), name)
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(changes, Mapping):
            merged[key] = {**old, **changes}
        elif isinstance(changes, Mapping) and "type" in changes:
            merged[key] = changes
        else:
            raise ConfigError(
                f"the environment, {ENV_PREFIX}MEMORY_STRATEGIES__{name}__…: there is no strategy {name!r}: "
                + hint(name, merged, f"give it a type with …__{name}__TYPE.")
            )
    return merged


def _check_environment() -> None:
    """Raise ConfigError for a variable with our prefix that names no setting; pydantic-settings ignores those."""
    for variable in os.environ:
        if not variable.upper().startswith(ENV_PREFIX) or variable == FAULT:
            continue
        name = variable[len(ENV_PREFIX) :].lower().split("__")[0]
        if name not in Config.model_fields:
            raise ConfigError(
                f"the environment variable {variable} names no setting: "
                + hint(name, Config.model_fields, "unset it.", ENV_PREFIX, str.upper)
            )


def load_config(path: str | Path | None = None) -> Config:
    """Read a configuration file; without a path, the shipped ``config.toml``.

    Raises ConfigError: a missing file, no TOML, an unknown key, a wrong value; UnknownStrategyError when its
    ``default_strategy`` is none of its strategies.
    """
    file = Path(path) if path is not None else shipped_file("config.toml")
    try:
        with open(file, "rb") as f:
            values = tomllib.load(f)
    except OSError as e:
        raise ConfigError(
            f"the configuration {file} cannot be read ({e.strerror or e}): give the path of a TOML file."
        ) from e
    except (ValueError, RecursionError) as e:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise ConfigError(f"the configuration {file} is no TOML: {e}; correct it there.") from e
    try:
        config = Config(**values)
        if "default_strategy" in config.model_fields_set:
            config.strategy(config.default_strategy)
    except ConfigError as e:
        text = str(e)
        if text.startswith("Config: "):
            raise type(e)(text.replace("Config: ", f"{file}: ", 1)) from None
        if not isinstance(e, UnknownStrategyError):
            raise
        where = _variable(["default_strategy"]) or f"{file}: default_strategy"
        raise UnknownStrategyError(f"{where}: {text}") from None
    return config


def as_settings(settings: Any) -> MemoryBankSettings:
    """MemoryBankSettings from themselves, None (defaults), a dict, or any object with those attributes.

    A dict is read as keywords: unknown keys are refused, but settings of other strategies (``compact_threshold``)
    only have no effect, and a warning says so. Of other objects only plain values are read (text, numbers, paths).
    Raises ConfigError for wrong values.
    """
    if isinstance(settings, MemoryBankSettings):
        return settings
    if settings is None:
        return MemoryBankSettings()
    if isinstance(settings, Settings):
        raise ConfigError(
            f"{type(settings).__name__} are no settings of a memory bank: pass MemoryBankSettings."
        )
    if isinstance(settings, Mapping):
        given = {str(k): _as_plain(v, v) for k, v in settings.items() if v is not None}
        if foreign := tuple(sorted(given.keys() & _OF_OTHERS)):
            _warn_of_foreign(foreign)
        return MemoryBankSettings(**{k: v for k, v in given.items() if k not in foreign})
    values = {}
    for name in MemoryBankSettings.model_fields:
        value = _as_plain(getattr(settings, name, None), None)
        if value is not None and name != "type":
            values[name] = value
    return MemoryBankSettings(**values)


_OF_OTHERS = {name for model in _MODELS.values() for name in model.model_fields} - set(
    MemoryBankSettings.model_fields
)


@lru_cache(maxsize=64)
def _warn_of_foreign(names: tuple[str, ...]) -> None:
    """Log once that settings of other strategies have no effect on a memory bank."""
    log.warning(
        "%s: settings of other strategies, which have no effect on a memory bank: remove them",
        ", ".join(names),
    )


def _as_plain(value: Any, otherwise: Any) -> Any:
    """Text, numbers and tables as Python's own types; anything else is ``otherwise``."""
    if isinstance(value, (str, bool)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, (dict, BaseModel)):
        return value
    return str(value) if isinstance(value, PurePath) else otherwise


def _variable(loc: list[str]) -> str | None:
    """The environment variable that sets the value at a place of the configuration, if there is one."""
    name = (ENV_PREFIX + "__".join(loc)).upper()
    return next((v for v in os.environ if v.upper() == name), None)


def _sentence(error: ValidationError) -> str:
    """The first validation error of a configuration as one sentence that names the place."""
    first = error.errors(include_url=False, include_input=False)[0]
    loc = [str(p) for p in first["loc"]]
    strategy = _MODELS.get(loc[2]) if loc[0] == "memory_strategies" and len(loc) > 2 else None
    if strategy is not None:
        del loc[2]  # the type of the strategy, which pydantic puts between
    cause = first.get("ctx", {}).get("error")
    text = str(cause).split(": ", 1)[1] if isinstance(cause, ConfigError) else ""  # a strategy's own sentence
    if text:
        loc.append(text.split(" ")[0].rstrip(":"))
    place = f"Config: {'.'.join(loc)}"
    if variable := _variable(loc):
        place = f"the environment variable {variable}"
    if text:
        return place + text.removeprefix(loc[-1])
    if first["type"] == "extra_forbidden":
        if loc[0] == "service" and len(loc) > 1:
            return f"{place} is no setting: {hint(loc[-1], ServiceSettings.model_fields, 'remove it.')}"
        if loc[-1] in MemoryBankSettings.model_fields:
            return f"{place} is no setting: it belongs to a strategy, under [memory_strategies.<key>]."
        return f"{place} is no setting: {hint(loc[-1], Config.model_fields, 'remove it.')}"
    if first["type"].startswith("union_tag"):
        given = first.get("ctx", {}).get("tag")
        near = hint(str(given), STRATEGY_TYPES, "") if given is not None else ""
        return f"{place}: its type must be one of {', '.join(STRATEGY_TYPES)}{f'; {near}' if near else '.'}"
    return f"{place}: {message_of(first)}"
