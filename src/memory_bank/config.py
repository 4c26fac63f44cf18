"""Settings: every default has its home here, and an unknown key or a wrong value is refused."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from memory_bank.errors import ConfigError, UnknownStrategyError
from memory_bank.shipped import shipped_file

FIXED_QUERY = "how to proceed with the task"
ENV_PREFIX = "MEMORY_BANK_"
FAULT = "MEMORY_BANK_FAULT"  # no setting: see memory_bank.faults


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

    @property
    def unlimited(self) -> bool:
        """Whether no limit is set."""
        return all(getattr(self, name) is None for name in type(self).model_fields)


class _Settings(BaseModel):
    type: str
    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as e:
            raise ConfigError(_sentence(e, type(self))) from None


class NoStrategySettings(_Settings):
    """No memory at all: the full history, what every comparison starts from."""

    type: Literal["no_strategy"] = "no_strategy"


class TruncationSettings(_Settings):
    """System and user messages, and the last interaction."""

    type: Literal["truncation"] = "truncation"


class KeepLastSettings(_Settings):
    """System and user messages, and the last interactions."""

    type: Literal["keep_last_n"] = "keep_last_n"
    n: int = Field(default=5, ge=1, description="so many interactions, the last one included")


class MaskingSettings(_Settings):
    """Everything, but older tool outputs cut to their beginning."""

    type: Literal["observation_masking"] = "observation_masking"
    keep_last: int = Field(default=3, ge=1, description="the outputs of so many last interactions stay whole")
    max_length: int = Field(default=100, ge=0, description="older outputs keep this many characters")


class MemoryBankSettings(_Settings):
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
    history_budget: int | float = Field(
        default=4000,
        ge=0,
        description="evidence: tokens for the memory, or (a fraction up to 1.0) a share of the older history",
    )
    keep_recent: int = Field(
        default=0, ge=0, description="evidence: interactions before the last kept whole, while they fit"
    )
    shorten_last: int = Field(
        default=0,
        ge=0,
        description="evidence: longer outputs (characters) of the tail are shortened; 0 never",
    )
    evidence_model: str | None = Field(
        default=None, description="evidence: another model file, as `memory-bank train` writes it"
    )
    similarity_weight: float = Field(
        default=0.0,
        ge=0,
        le=10,
        description="evidence: log-odds for a piece one standard deviation nearer to the step; 0 embeds none",
    )
    top_k: int = Field(default=3, ge=0, description="how many past records are brought back")
    max_chars_per_record: int = Field(
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
    observer_min_chars: int = Field(
        default=0, ge=0, description="shorter outputs are summarised by extraction, never sent to a model"
    )
    observer_timeout: float = Field(
        default=60.0, gt=0, le=3600, description="seconds after which a model call is given up"
    )
    observer_attempts: int = Field(
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
    observer_max_chars: int = Field(
        default=10_000, ge=200, description="the Observer sees this much of an output"
    )
    observer_concurrency: int = Field(
        default=8, ge=1, le=64, description="parallel Observer calls of one step"
    )
    observer_prompt: str | None = Field(default=None, description="another prompt file for the Observer")
    token_encoding: str = Field(
        default="o200k_base", min_length=1, description="tiktoken encoding; 'approximate' needs no vocabulary"
    )

    @field_validator(
        "top_k",
        "max_chars_per_record",
        "observer_max_chars",
        "observer_concurrency",
        "observer_min_chars",
        "observer_timeout",
        "observer_attempts",
        "history_budget",
        "keep_recent",
        "shorten_last",
        "similarity_weight",
        mode="before",
    )
    @classmethod
    def _no_truth_for_a_number(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("true and false are no values for this setting")
        return value

    @field_validator("history_budget")
    @classmethod
    def _a_share_is_at_most_one(cls, value: int | float) -> int | float:
        if isinstance(value, float) and value > 1:
            raise ValueError(
                "a fraction is a share of the history, at most 1.0; give tokens as a whole number"
            )
        return value


AnyStrategy = (
    NoStrategySettings | TruncationSettings | KeepLastSettings | MaskingSettings | MemoryBankSettings
)
StrategySettings = Annotated[AnyStrategy, Field(discriminator="type")]
STRATEGY_TYPES = ("no_strategy", "truncation", "keep_last_n", "observation_masking", "memory_bank")


class Config(BaseSettings):
    """A configuration: the strategies by key. Environment variables win over what is passed in.

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
        default="memory_bank", min_length=1, description="the strategy when none is named"
    )
    memory_strategies: dict[str, StrategySettings] = Field(
        default_factory=lambda: dict[str, StrategySettings](memory_bank=MemoryBankSettings())
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as e:
            raise ConfigError(_sentence(e, type(self))) from None
        except SettingsError as e:
            raise ConfigError(f"the environment, {ENV_PREFIX}…: its value is no JSON ({e}).") from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  as the base class names it
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """One source: what is passed in, with the environment laid over it."""
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


class _Merged(PydanticBaseSettingsSource):
    """Settings passed in, and over them, value by value, those of the environment."""

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
        """Never asked: the call below gives all at once."""
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        values, env = dict(self._init()), self._env()
        _check_environment()
        if "default_strategy" in env:
            values["default_strategy"] = env["default_strategy"]
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
    """Strategies with single values replaced. The environment knows no case: its keys find their like."""
    merged = {k: v.model_dump(exclude_unset=True) | {"type": v.type} if isinstance(v, _Settings) else v
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
                + _hint(name, merged, f"give it a type with …__{name}__TYPE.")
            )
    return merged


def _check_environment() -> None:
    """Refuse a variable that looks like a setting and is none: pydantic-settings passes over those."""
    for variable in os.environ:
        if not variable.upper().startswith(ENV_PREFIX) or variable == FAULT:
            continue
        name = variable[len(ENV_PREFIX) :].lower().split("__")[0]
        if name not in Config.model_fields:
            raise ConfigError(
                f"the environment variable {variable} names no setting: "
                + _hint(name, Config.model_fields, "unset it.", ENV_PREFIX, str.upper)
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
    except UnknownStrategyError as e:
        where = _variable(["default_strategy"]) or f"{file}: default_strategy"
        raise UnknownStrategyError(f"{where}: {e}") from None
    except ConfigError as e:
        told = str(e)
        raise ConfigError(
            told.replace("Config: ", f"{file}: ", 1) if told.startswith("Config: ") else told
        ) from None
    return config


def as_settings(settings: Any) -> MemoryBankSettings:
    """MemoryBankSettings of themselves, None (defaults), a dict, or any object with those attributes.

    A dict is read as keywords: unknown keys are refused. Of a foreign object only plain values count (text,
    numbers, paths): a namespace, a dataclass or a test double serves. Raises ConfigError for wrong values.
    """
    if isinstance(settings, MemoryBankSettings):
        return settings
    if settings is None:
        return MemoryBankSettings()
    if isinstance(settings, _Settings):
        raise ConfigError(
            f"{type(settings).__name__} are no settings of a memory bank: pass MemoryBankSettings."
        )
    if isinstance(settings, Mapping):
        return MemoryBankSettings(**{str(k): _as_plain(v, v) for k, v in settings.items() if v is not None})
    values = {}
    for name in MemoryBankSettings.model_fields:
        value = _as_plain(getattr(settings, name, None), None)
        if value is not None and name != "type":
            values[name] = value
    return MemoryBankSettings(**values)


def _as_plain(value: Any, otherwise: Any) -> Any:
    """Text, numbers and tables, those of numpy and pathlib as Python's own; else ``otherwise``."""
    if isinstance(value, (str, bool)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, (dict, BaseModel)):
        return value
    return str(value) if isinstance(value, PurePath) else otherwise


def _hint(name: str, known: Any, otherwise: str, before: str = "", spell: Any = str) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {before}{spell(near[0])}?" if near else otherwise


def _variable(loc: list[str]) -> str | None:
    """The environment variable that says what stands at a place of the configuration, if one does."""
    name = (ENV_PREFIX + "__".join(loc)).upper()
    return next((v for v in os.environ if v.upper() == name), None)


def _sentence(error: ValidationError, model: type[BaseModel]) -> str:
    """The first thing that is wrong, as one sentence that says where; of the value only its type."""
    first = error.errors(include_url=False, include_input=False)[0]
    loc = [str(p) for p in first["loc"]]
    if loc[0] == "memory_strategies" and len(loc) > 2:
        del loc[2]  # the type of the strategy, which pydantic puts between
    cause = first.get("ctx", {}).get("error")
    told = str(cause).split(": ", 1)[1] if isinstance(cause, ConfigError) else ""  # a strategy's own sentence
    if told:
        loc.append(told.split(" ")[0].rstrip(":"))
    place = f"{model.__name__}: {'.'.join(loc)}"
    if model is Config and (variable := _variable(loc)):
        place = f"the environment variable {variable}"
    if told:
        return place + told.removeprefix(loc[-1])
    if first["type"] == "extra_forbidden":
        if model is Config and loc[-1] in MemoryBankSettings.model_fields:
            hint = "it belongs to a strategy, under [memory_strategies.<key>]."
        else:
            hint = _hint(loc[-1], model.model_fields, "remove it.")
        return f"{place} is no setting: {hint}"
    if first["type"].startswith("union_tag"):
        return f"{place}: its type must be one of {', '.join(STRATEGY_TYPES)}."
    message = first["msg"].removeprefix("Value error, ")
    return f"{place}: {message[0].lower()}{message[1:]}."
