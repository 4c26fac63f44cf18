"""Settings: every default has its home here, and an unknown key or a wrong value is refused."""

from __future__ import annotations

import difflib
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from memory_bank.errors import ConfigError, UnknownStrategyError
from memory_bank.shipped import shipped_file

FIXED_QUERY = "how to proceed with the task"


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as e:
            raise ConfigError(_sentence(e, type(self).__name__)) from None


class NoStrategySettings(_Settings):
    """No memory at all: the full history, what every comparison starts from."""

    type: Literal["no_strategy"] = "no_strategy"


class MemoryBankSettings(_Settings):
    """The memory bank. The defaults are the documented ones."""

    type: Literal["memory_bank"] = "memory_bank"
    observer_model: str = Field(
        "gpt-4-1-mini", min_length=1, description="model that summarises each call; 'extractive' needs none"
    )
    embedding_model: str = Field(
        "BAAI/bge-small-en-v1.5",
        min_length=1,
        description="FlagEmbedding model or local folder; 'openai:NAME'; 'lexical' needs no weights",
    )
    top_k: int = Field(3, ge=0, description="how many past records are brought back")
    max_chars_per_record: int = Field(2000, ge=0, description="raw data of a record is shortened to this")
    retrieval_query: Literal["fixed", "task", "adaptive"] = Field(
        "fixed", description="what is searched for: a fixed sentence, the task, or task and latest doings"
    )
    fixed_query: str = Field(FIXED_QUERY, min_length=1, description="the sentence of retrieval_query 'fixed'")
    memory_role: Literal["user", "system", "developer", "assistant"] = Field(
        "user", description="role of the message that holds the retrieved context"
    )
    repair_pairs: Literal["off", "complete", "drop"] = Field(
        "off", description="broken call/result pairs: pass through, complete, or drop"
    )
    observer_max_chars: int = Field(10_000, ge=200, description="the Observer sees this much of an output")
    observer_concurrency: int = Field(8, ge=1, le=64, description="parallel Observer calls of one step")
    observer_prompt: str | None = Field(None, description="another prompt file for the Observer")
    token_encoding: str = Field(
        "o200k_base", min_length=1, description="tiktoken encoding; 'approximate' needs no vocabulary"
    )


StrategySettings = Annotated[NoStrategySettings | MemoryBankSettings, Field(discriminator="type")]


class Config(BaseSettings):
    """A configuration: the strategies by key. Environment variables win over the file.

    ``MEMORY_BANK_MEMORY_STRATEGIES__memory_bank__TOP_K=5`` sets one value.
    """

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix="MEMORY_BANK_",
        env_nested_delimiter="__",
    )
    default_strategy: str = Field("memory_bank", description="the strategy when none is named")
    memory_strategies: dict[str, StrategySettings] = Field(
        default_factory=lambda: {"memory_bank": MemoryBankSettings()}
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment first, then what the file says."""
        return env_settings, init_settings

    def strategy(self, key: str) -> NoStrategySettings | MemoryBankSettings:
        """The settings under a key. Raises UnknownStrategyError, which names the nearest known key."""
        found = self.memory_strategies.get(key)
        if found is None:
            near = difflib.get_close_matches(key, self.memory_strategies, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(self.memory_strategies))}."
            raise UnknownStrategyError(f"the configuration has no strategy {key!r}: {hint}")
        return found


def load_config(path: str | Path | None = None) -> Config:
    """Read a configuration file; without a path, the shipped ``config.toml``.

    Raises ConfigError: a missing file, no TOML, an unknown key, a wrong value.
    """
    file = Path(path) if path is not None else shipped_file("config.toml")
    try:
        with open(file, "rb") as f:
            values = tomllib.load(f)
    except OSError as e:
        raise ConfigError(f"the configuration {file} cannot be read: {e.strerror or e}.") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"the configuration {file} is no TOML: {e}.") from e
    try:
        config = Config(**values)
    except ValidationError as e:
        raise ConfigError(_sentence(e, str(file))) from None
    except ConfigError as e:
        raise ConfigError(f"{file}: {e}") from None
    if "default_strategy" in config.model_fields_set:
        config.strategy(config.default_strategy)
    return config


@lru_cache(maxsize=64)
def _cached(values: tuple[tuple[str, Any], ...]) -> MemoryBankSettings:
    return MemoryBankSettings(**dict(values))


def as_settings(settings: Any) -> MemoryBankSettings:
    """MemoryBankSettings of themselves, of None (defaults), or of any object with those attributes.

    Of a foreign object only plain values count, so that a namespace, a dataclass or a test double serves.
    Raises ConfigError for values that are wrong.
    """
    if isinstance(settings, MemoryBankSettings):
        return settings
    if settings is None:
        return _cached(())
    values = []
    for name in MemoryBankSettings.model_fields:
        if name == "type":
            continue
        value = settings.get(name) if isinstance(settings, dict) else getattr(settings, name, None)
        if isinstance(value, (str, int, float)):
            values.append((name, value))
    return _cached(tuple(values))


def _sentence(error: ValidationError, where: str) -> str:
    """The first thing that is wrong, as one sentence; of the value only its type."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(p) for p in first["loc"] if p not in ("no_strategy", "memory_bank") or len(first["loc"]) == 1)
    place = place or "the settings"
    if first["type"] == "extra_forbidden":
        key = str(first["loc"][-1])
        near = difflib.get_close_matches(key, [*MemoryBankSettings.model_fields, *Config.model_fields], n=1)
        hint = f"did you mean {near[0]}?" if near else "remove it."
        return f"{where}: unknown setting {key!r}: {hint}"
    if first["type"].startswith("union_tag"):
        return f"{where}: {place}: give it a known  type = \"…\"  ({first['msg']})."
    return f"{where}: {place}: {first['msg'][0].lower()}{first['msg'][1:]}."
