"""The configuration: settings of every strategy and of the service, read from a file and the environment.

Settings are frozen and typed; unknown keys are refused.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from numbers import Integral, Real
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import to_jsonable_python
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsError

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
            raise ConfigError(*_sentences(e, type(self))) from None


def hint(name: str, known: Any, otherwise: str, spell: Any = str) -> str:
    """The nearest known name as a question, else ``otherwise``."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {spell(near[0])}?" if near else otherwise


def _sentences(error: ValidationError, model: type[BaseModel]) -> Iterator[str]:
    """Each validation error of settings as one sentence, without the value."""
    for each in error.errors(include_url=False, include_input=False):
        loc = [str(p) for p in each["loc"]]
        place = ": ".join([model.__name__, *([".".join(loc)] if loc else [])])
        if each["type"] == "extra_forbidden":
            yield f"{place} is no setting: {hint(loc[-1], model.model_fields, 'remove it.')}"
        else:
            yield f"{place}: {message_of(each)}"


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
        default="gpt-4.1-mini",
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
        description="'top_k': whole records by similarity; 'evidence': the values that the next calls may need",
    )
    history_budget: Literal["auto"] | Annotated[Number, Field(ge=0)] = Field(
        default="auto",
        description="evidence: tokens of a fold, or as a fraction up to 1.0 a share of the older history; auto: "
        "15% of it, from 2,000 to 16,000 tokens",
    )
    layout: Literal["native", "block"] = Field(
        default="native",
        description="evidence: past turns as shortened messages in their places, or one block of excerpts",
    )
    keep_recent: Int = Field(
        default=2,
        ge=0,
        description=(
            "evidence: interactions before the last that a fold keeps whole, within a fifth of the budget; 0: none"
        ),
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


class Config(BaseModel):
    """A configuration of the values that are passed in, with the defaults of the code for all others.

    ``load_config`` begins with the shipped configuration instead. Environment variables override both:
    ``MEMORY_BANK_MEMORY_STRATEGIES__memory_bank__TOP_K=5`` sets one value. Raises ConfigError: an unknown
    key, a wrong value, in the arguments or in the environment.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
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
        strategies = values.get("memory_strategies", {"memory_bank": {"type": "memory_bank"}})
        known = strategies if isinstance(strategies, Mapping) else {}
        try:
            super().__init__(**laid_over({"memory_strategies": strategies} | values, _environment(known)))
        except ValidationError as e:
            raise ConfigError(*_mistakes(e, known)) from None
        except SettingsError as e:
            raise ConfigError(f"the environment, {ENV_PREFIX}…: its value is no JSON ({e}).") from None
        for key, settings in self.memory_strategies.items():
            if isinstance(settings, AdaptiveSettings):
                self._check_rungs(key, settings)
            if isinstance(settings, MemoryBankSettings):
                _check_files(key, settings)

    def strategy(self, key: str) -> AnyStrategy:
        """The settings under a key. Raises UnknownStrategyError, which names the nearest known key."""
        found = self.memory_strategies.get(key)
        if found is None:
            raise UnknownStrategyError(_unknown(key, self.memory_strategies))
        return found

    def rung(self, name: str) -> AnyStrategy:
        """One of an adaptive strategy's ``strategies``: the settings under a key, or a type's defaults."""
        if name not in self.memory_strategies and name in _MODELS:
            return _MODELS[name]()
        return self.strategy(name)

    def _check_rungs(self, key: str, settings: AdaptiveSettings) -> None:
        place = _place(["memory_strategies", key, "strategies"])
        for name in settings.strategies:
            if name not in (known := {*self.memory_strategies, *STRATEGY_TYPES}):
                raise UnknownStrategyError(f"{place}: {_unknown(name, known)}")
            if isinstance(self.rung(name), AdaptiveSettings):
                raise ConfigError(f"{place}: {name!r} is adaptive itself: name strategies of other types.")


def _unknown(key: object, strategies: Iterable[str]) -> str:
    known = sorted(strategies)
    nearest = hint(str(key), known, f"it has {', '.join(known) or 'none'}.", repr)
    return f"the configuration has no strategy {key!r}: {nearest}"


def _check_files(key: str, settings: MemoryBankSettings) -> None:
    """Raise ConfigError for a file that a strategy names and that is not there."""
    for name in ("evidence_model", "observer_prompt"):
        file = getattr(settings, name)
        if file is not None and not Path(file).is_file():
            place = _place(["memory_strategies", key, name])
            raise ConfigError(f"{place}: there is no file {file}: correct the path, or remove it.")


_LEVELS = {"service": 1, "memory_strategies": 2}
"""Tables of the configuration that are changed value by value, and how deep; anything else is replaced."""


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration changed by another one, setting by setting; a strategy of another type is replaced."""
    return {**below, **{k: _changed(below.get(k), v, _LEVELS.get(k, 0)) for k, v in above.items()}}


def _changed(below: Any, above: Any, levels: int) -> Any:
    if isinstance(below, BaseModel):
        below = {k: v for k, v in below if k in below.model_fields_set or k == "type"}
    if not (levels and isinstance(below, Mapping) and isinstance(above, Mapping)):
        return above
    if levels == 1 and above.get("type", below.get("type")) != below.get("type"):
        return above
    return {**below, **{k: _changed(below.get(k), v, levels - 1) for k, v in above.items()}}


def _environment(strategies: Iterable[str]) -> dict[str, Any]:
    """What the environment sets. Keys of strategies, which it has in any case, are spelled as the given ones.

    Variables that name no setting are in it too, to be refused.
    """
    ours = (v for v in os.environ if v.upper().startswith(ENV_PREFIX) and v != FAULT)
    values: dict[str, Any] = {v[len(ENV_PREFIX) :].lower().split("__")[0]: None for v in ours}
    values = {name: None for name in values if name not in Config.model_fields}
    options: dict[str, Any] = {
        "env_prefix": ENV_PREFIX,
        "env_nested_delimiter": "__",
        "env_ignore_empty": True,
    }
    values |= EnvSettingsSource(cast("type[BaseSettings]", Config), **options)()
    if isinstance(given := values.get("memory_strategies"), Mapping):
        spelled = {str(k).lower(): k for k in strategies}
        values["memory_strategies"] = {spelled.get(k.lower(), k): v for k, v in given.items()}
    return values


def _has(values: Any, loc: Sequence[str]) -> bool:
    """Whether a configuration sets the value at a place."""
    for name in loc:
        if not isinstance(values, Mapping) or name not in values:
            return False
        values = values[name]
    return True


def _variable(loc: Sequence[str]) -> str | None:
    """The environment variable that sets the value at a place of the configuration, if there is one."""
    if not _has(_environment(loc[1:2]), loc):
        return None
    name = f"{ENV_PREFIX}{'__'.join(loc)}__".upper()
    found = (v for v, value in os.environ.items() if value)
    return next(v for v in found if (x := f"{v}__".upper()).startswith(name) or name.startswith(x))


def _place(loc: Sequence[str]) -> str:
    """How an error names a place of the configuration; ``Config`` stands for the file, if there is one."""
    variable = _variable(loc)
    return f"the environment variable {variable}" if variable else f"Config: {'.'.join(loc)}"


def _read(file: Path) -> dict[str, Any]:
    try:
        with open(file, "rb") as f:
            return tomllib.load(f)
    except OSError as e:
        raise ConfigError(
            f"the configuration {file} cannot be read ({e.strerror or e}): give the path of a TOML file."
        ) from e
    except (ValueError, RecursionError) as e:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise ConfigError(f"the configuration {file} is no TOML: {e}; correct it there.") from e


def load_config(path: str | Path | None = None) -> Config:
    """The shipped configuration, changed by a file, then by the environment, setting by setting.

    Raises ConfigError, whose ``mistakes`` are all of the file's: a missing file, no TOML, an unknown key, a wrong
    value; UnknownStrategyError for a ``default_strategy`` or ``service.strategy`` that does not exist.
    """
    values = _read(shipped_file("config.toml"))
    file = values if path is None else _read(Path(path))
    try:
        config = Config(**laid_over(values, file))
        for loc, key in (
            (["default_strategy"], config.default_strategy),
            (["service", "strategy"], config.service.strategy),
        ):
            if key and key not in config.memory_strategies:
                raise UnknownStrategyError(f"{_place(loc)}: {_unknown(key, config.memory_strategies)}")
    except ConfigError as e:
        where = f"{path or 'the shipped configuration'}: "
        raise type(e)(*(m.replace("Config: ", where, 1) for m in e.mistakes)) from None
    return config


def named_strategies(path: str | Path | None) -> list[str]:
    """The strategies that a configuration file names; all that are shipped if it names none, and without a file."""
    named = {} if path is None else _read(Path(path)).get("memory_strategies", {})
    return list(named or _read(shipped_file("config.toml"))["memory_strategies"])


def effective_settings(path: str | Path | None = None) -> Iterator[tuple[tuple[str, ...], Any, str]]:
    """All settings of ``load_config(path)``: the place, the value, and what sets it.

    That is the file, an environment variable, "shipped" or "default" (of the code). Raises as ``load_config``.
    """
    file = {} if path is None else _read(Path(path))
    given = laid_over(_read(shipped_file("config.toml")), file)
    given = laid_over(given, _environment(given["memory_strategies"]))

    def settings(loc: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], Any, str]]:
        if len(loc) <= _LEVELS.get((*loc, "")[0], 0):
            for name, member in dict(value).items():
                yield from settings((*loc, name), member)
        else:
            source = _variable(loc) or (str(path) if _has(file, loc) else "shipped")
            plain = to_jsonable_python(value, exclude_none=True)
            yield loc, plain, source if _has(given, loc) else "default"

    return settings((), load_config(path))


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


def _mistakes(error: ValidationError, strategies: Iterable[str]) -> Iterator[str]:
    """Each validation error of a configuration as one sentence that names the place."""
    for each in error.errors(include_url=False, include_input=False):
        loc = [str(p) for p in each["loc"]]
        if loc[0] == "memory_strategies" and len(loc) > 2 and loc[2] in _MODELS:
            del loc[2]  # the type of the strategy, which pydantic puts between
        cause = each.get("ctx", {}).get("error")
        if isinstance(cause, ConfigError):  # of a strategy: "Type: setting: …", "Type: setting is …"
            for text in cause.mistakes:
                name = re.split("[: ]", text.split(": ", 1)[1])[0]
                rest = text.split(": ", 1)[1].removeprefix(name)
                yield _place([*loc, *name.split(".")]) + rest
        else:
            yield _place(loc) + _complaint(each, loc, strategies)


def _complaint(each: Any, loc: list[str], strategies: Iterable[str]) -> str:
    """The rest of the sentence about a place."""
    if each["type"] == "extra_forbidden":
        if len(loc) == 1 and loc[0] in MemoryBankSettings.model_fields:
            return " is no setting: it belongs to a strategy, under [memory_strategies.<key>]."
        fields = (Config if len(loc) == 1 else ServiceSettings if loc[0] == "service" else Price).model_fields
        return f" is no setting: {hint(loc[-1], fields, 'remove it.')}"
    if each["type"].startswith("union_tag"):
        given = each.get("ctx", {}).get("tag")
        types = f"its type must be one of {', '.join(STRATEGY_TYPES)}"
        if given is not None:
            return f": {types}{f'; {near}' if (near := hint(str(given), STRATEGY_TYPES, '')) else '.'}"
        near = hint(loc[-1], [k for k in strategies if k != loc[-1]], "")
        return f": there is no strategy {loc[-1]!r} to change: {near or f'{types}.'}"
    return f": {message_of(each)}"
