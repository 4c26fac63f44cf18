"""The settings of an experiment, read from a TOML file: suites, strategies, thresholds, models, prices."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from memory_bank.errors import ConfigError
from memory_bank.transcript import ENCODING

ValueT = TypeVar("ValueT")


class _ExperimentTable(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class CostSettings(_ExperimentTable):
    """What input tokens cost, in any one currency, and the discount for cached ones."""

    price_per_million: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    cached_discount: float = Field(
        default=0.5, ge=0, le=1, description="0.9: a token of the common prefix costs a tenth"
    )
    cache_minimum: int = Field(default=0, ge=0, description="shorter prefixes (tokens) are not cached")


class ModelSettings(_ExperimentTable):
    """A model of the live suites, at any OpenAI-compatible endpoint."""

    name: str = Field(min_length=1)
    base_url: str | None = Field(default=None, description="default: OPENAI_BASE_URL, or OpenAI itself")
    api_key_env: str = Field(
        default="OPENAI_API_KEY", min_length=1, description="variable that holds the key"
    )
    timeout: float = Field(default=120.0, gt=0, le=3600)
    temperature: float | None = Field(default=None, ge=0, le=2)


class SuiteSettings(_ExperimentTable):
    """Cases of one kind; ``name`` is their name in tables."""

    kind: Literal["replay", "complex_func", "overflow"]
    name: str = Field(default="", max_length=80)
    files: tuple[str, ...] = Field(default=(), description="files or patterns, from the experiment's folder")
    max_steps: int = Field(default=30, ge=1, le=1000, description="live: model calls a case")
    judge: ModelSettings | None = Field(default=None, description="complex_func: judges completeness")
    pages: int = Field(default=20, ge=2, le=10_000, description="overflow: how many pages there are")
    page_tokens: int = Field(
        default=500, ge=10, le=1_000_000, description="overflow: tokens of a page, about"
    )
    lag: int = Field(default=4, ge=1, le=1000, description="overflow: a page needs the code this far back")
    context_limit: int | None = Field(default=None, ge=1, description="overflow: larger contexts break")
    repeats: int = Field(default=1, ge=1, le=1000, description="overflow: how many cases")


class Experiment(_ExperimentTable):
    """A whole experiment. ``folder`` holds its file; paths are relative to it."""

    name: str = Field(default="experiment", pattern=r"^[\w][\w .-]{0,79}$")
    suites: tuple[SuiteSettings, ...] = Field(min_length=1)
    strategies: tuple[str, ...] = Field(
        min_length=1, description="KEY, KEY?setting=value, module:function, full"
    )
    strategy_config: str | None = Field(
        default=None, description="configuration file; default: the shipped one"
    )
    thresholds: tuple[int, ...] = Field(
        default=(), description="tokens at which a strategy begins; none: it always acts"
    )
    models: tuple[ModelSettings, ...] = ()
    selected_test_cases: tuple[str, ...] = Field(default=(), description="ids; none: all")
    benchmark_sample_size: int | None = Field(default=None, ge=1, description="of each suite, drawn by seed")
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    jobs: int = Field(default=1, ge=1, le=256)
    counter: str = Field(default=ENCODING, min_length=1, description="a tiktoken encoding, or 'approximate'")
    cost: CostSettings = CostSettings()
    folder: Path = Field(default=Path(), exclude=True)

    @field_validator("strategies", "thresholds", "seeds", "selected_test_cases")
    @classmethod
    def _once(cls, values: tuple[ValueT, ...]) -> tuple[ValueT, ...]:
        if (twice := _repeated(values)) is not None:
            raise ValueError(f"{twice!r} is listed twice")
        return values

    @field_validator("thresholds")
    @classmethod
    def _not_negative(cls, values: tuple[int, ...]) -> tuple[int, ...]:
        if any(v < 0 for v in values):
            raise ValueError("a threshold is a number of tokens, 0 or more")
        return values


def load_experiment(path: str | Path) -> Experiment:
    """Read an experiment. Raises ConfigError for a missing file, an unknown key, a wrong value."""
    file = Path(path)
    try:
        values = tomllib.loads(file.read_bytes().decode("utf-8"))
    except OSError as e:
        raise ConfigError(
            f"the experiment {file} cannot be read ({e.strerror or e}): give the path of a TOML file."
        ) from e
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"the experiment {file} is not TOML: {e}; correct it there.") from e
    if not values.get("suites"):
        raise ConfigError(f"the experiment {file} has no cases: give it [[suites]] with kind and files.")
    values["folder"] = file.parent
    try:
        experiment = Experiment(**values)
    except ValidationError as e:
        raise ConfigError(f"{file}: {_describe_error(e)}") from None
    if (twice := _repeated([suite_name(s) for s in experiment.suites])) is not None:
        raise ConfigError(f"{file}: two suites are called {twice!r}: give each a name of its own.")
    if (twice := _repeated([m.name for m in experiment.models])) is not None:
        raise ConfigError(f"{file}: the model {twice!r} is listed twice: results could not be told apart.")
    return experiment


def _repeated(values: Sequence[ValueT]) -> ValueT | None:
    """The first value that occurs twice, None if there is none."""
    return next((v for i, v in enumerate(values) if v in values[:i]), None)


def suite_name(suite: SuiteSettings) -> str:
    """The name of a suite in tables: its own, else its first file's, else its kind."""
    if suite.name or not suite.files:
        return suite.name or suite.kind
    return Path(suite.files[0]).name.removesuffix(".gz").removesuffix(".jsonl")


_TABLES: dict[str, type[BaseModel]] = {"suites": SuiteSettings, "models": ModelSettings, "cost": CostSettings}


def _describe_error(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    loc = [str(p) for p in first["loc"]]
    place = ".".join(loc)
    if first["type"] == "extra_forbidden":
        table: type[BaseModel] = _TABLES.get(loc[0], Experiment) if len(loc) > 1 else Experiment
        known = [k for k in table.model_fields if k != "folder"]
        near = difflib.get_close_matches(loc[-1], known, n=1)
        return f"{place} is not a setting: " + (f"did you mean {near[0]}?" if near else "remove it.")
    message = first["msg"].removeprefix("Value error, ").rstrip(".")
    return f"{place}: {message[0].lower()}{message[1:]}."
