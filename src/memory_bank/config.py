"""The configuration: strategies by key, read from a file and the environment; unknown keys are refused."""

from __future__ import annotations

import difflib
import logging
import os
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from numbers import Integral, Real
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from memory_bank.errors import ConfigError, UnknownStrategyError
from memory_bank.settings import (
    FIXED_QUERY,
    AdaptiveSettings,
    HierarchicalSettings,
    Int,
    KeepLastSettings,
    MaskingSettings,
    MemoryBankSettings,
    NoStrategySettings,
    ObserverBudget,
    Price,
    ProgressiveSettings,
    ScratchpadSettings,
    SemanticSettings,
    ServiceSettings,
    Settings,
    StoredSettings,
    ToolSettings,
    TruncationSettings,
    hint,
    message_of,
)
from memory_bank.shipped import shipped_file

__all__ = [
    "FIXED_QUERY",
    "STRATEGY_TYPES",
    "AdaptiveSettings",
    "AnyStrategy",
    "Config",
    "HierarchicalSettings",
    "KeepLastSettings",
    "MaskingSettings",
    "MemoryBankSettings",
    "NoStrategySettings",
    "ObserverBudget",
    "Price",
    "ProgressiveSettings",
    "ScratchpadSettings",
    "SemanticSettings",
    "ServiceSettings",
    "StoredSettings",
    "ToolSettings",
    "TruncationSettings",
    "as_settings",
    "load_config",
]

log = logging.getLogger("memory_bank.MemoryBankStrategy")

ENV_PREFIX = "MEMORY_BANK_"
FAULT = "MEMORY_BANK_FAULT"  # no setting: see memory_bank.faults

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
