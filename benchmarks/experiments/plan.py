"""The settings of an experiment, read from a TOML file, and its units: cases × strategies × thresholds × models."""

from __future__ import annotations

import difflib
import glob
import hashlib
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeVar

from benchmarks.measuring.strategies import Build, Strategy, configured, parse_strategy
from pydantic import Field, field_validator

from memory_bank import load_config
from memory_bank.audit.costs import Costs, ScriptedCache
from memory_bank.audit.needs import Need, environment_constants
from memory_bank.audit.traces import Trace, TraceFiles
from memory_bank.config import Amount, AtLeast0, AtLeast1, Name, Seconds, Settings, Share, read_toml
from memory_bank.errors import ConfigError
from memory_bank.pricing import Price, Usage, cost
from memory_bank.transcript import ENCODING

ValueT = TypeVar("ValueT")

READ_PAGE = "read_page"
"""The tool of a book."""


class CostSettings(Settings):
    """What input tokens cost, in any one currency, and the discount for cached ones."""

    price_per_million: Amount = 1.0
    cached_discount: Share = 0.5
    cache_minimum: AtLeast0 = 0


class ModelSettings(Settings):
    """A model of the live suites, at any OpenAI-compatible endpoint."""

    name: Name
    base_url: str | None = None
    api_key_env: Name = "OPENAI_API_KEY"
    timeout: Seconds = 120.0
    temperature: float | None = Field(default=None, ge=0, le=2)

    def api_key(self) -> str:
        """The key. Raises ConfigError when its variable is empty."""
        if key := os.environ.get(self.api_key_env):
            return key
        raise ConfigError(
            f"the model {self.name} has no API key: set {self.api_key_env} (any text for a local one)."
        )


class SuiteSettings(Settings):
    """Cases of one kind; ``name`` is their name in tables."""

    kind: Literal["replay", "complex_func", "overflow"]
    name: str = Field(default="", max_length=80)
    files: tuple[str, ...] = ()
    max_steps: int = Field(default=30, ge=1, le=1000)
    judge: ModelSettings | None = None
    pages: int = Field(default=20, ge=2, le=10_000)
    page_tokens: int = Field(default=500, ge=10, le=1_000_000)
    lag: int = Field(default=4, ge=1, le=1000)
    context_limit: AtLeast1 | None = None
    repeats: int = Field(default=1, ge=1, le=1000)

    @property
    def title(self) -> str:
        """Its name in tables: its own, else its first file's, else its kind."""
        if self.name or not self.files:
            return self.name or self.kind
        return Path(self.files[0]).name.removesuffix(".gz").removesuffix(".jsonl")


class Experiment(Settings):
    """A whole experiment. ``folder`` holds its file; paths are relative to it."""

    name: str = Field(default="experiment", pattern=r"^[\w][\w .-]{0,79}$")
    suites: tuple[SuiteSettings, ...] = Field(min_length=1)
    strategies: tuple[str, ...] = Field(min_length=1)
    strategy_config: str | None = None
    thresholds: tuple[AtLeast0, ...] = ()
    models: tuple[ModelSettings, ...] = ()
    selected_test_cases: tuple[str, ...] = ()
    benchmark_sample_size: AtLeast1 | None = None
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    jobs: int = Field(default=1, ge=1, le=256)
    counter: Name = ENCODING
    cost: CostSettings = CostSettings()
    folder: Path = Field(default=Path(), exclude=True)

    @field_validator("suites", "models", "strategies", "thresholds", "seeds", "selected_test_cases")
    @classmethod
    def _once(cls, values: tuple[ValueT, ...]) -> tuple[ValueT, ...]:
        names = [getattr(v, "title", v.name) if isinstance(v, Settings) else v for v in values]  # type: ignore[attr-defined]
        for i, name in enumerate(names):
            if name in names[:i]:
                raise ValueError(f"{name!r} is listed twice: results could not be told apart")
        return values

    def path(self, given: str) -> Path:
        """A path in the file."""
        return self.folder / Path(given).expanduser()


def load_experiment(path: str | Path) -> Experiment:
    """Read an experiment. Raises ConfigError for a missing file, an unknown key, a wrong value."""
    values = read_toml(path, "experiment")
    if not values.get("suites"):
        raise ConfigError(f"the experiment {path} has no cases: give it [[suites]] with kind and files.")
    try:
        return Experiment(**values | {"folder": Path(path).parent})
    except ConfigError as e:
        raise ConfigError(*(m.replace("Experiment: ", f"{path}: ", 1) for m in e.mistakes)) from None


@dataclass(frozen=True, slots=True)
class Unit:
    """One run of one case: one line of results.

    ``id`` is a hash of everything that defines it, ``place`` its place in the matrix as JSON values, ``case`` its
    trace under a name that no other has. Contexts of up to ``gate`` tokens pass unchanged. ``constants`` are values
    of the environment, which need no memory.
    """

    id: str
    place: dict[str, Any]
    suite: SuiteSettings
    case: Trace
    strategy: Strategy
    gate: int
    model: ModelSettings | None
    constants: frozenset[str]
    experiment: Experiment


@dataclass(frozen=True, slots=True)
class ExperimentPlan:
    """The units of an experiment in order, a hash of them, and the settings of its strategies by name."""

    experiment: Experiment
    units: tuple[Unit, ...]
    hash: str
    strategies: dict[str, Any]


def plan_experiment(experiment: Experiment, tell: Callable[[str], None]) -> ExperimentPlan:
    """Read the cases, list the units. Raises ConfigError, TraceFileError, UnknownStrategyError."""
    file = experiment.strategy_config
    config = load_config(None if file is None else experiment.path(file))
    strategies = [parse_strategy(text, config) for text in experiment.strategies]
    suites: dict[SuiteSettings, list[Trace]] = {}
    for suite in experiment.suites:
        found = suites[suite] = book_cases(suite) if suite.kind == "overflow" else []
        for path in (str(experiment.path(pattern)) for pattern in suite.files if suite.kind != "overflow"):
            files = TraceFiles(sorted(glob.glob(path)) if glob.has_magic(path) else [path], tell, strict=True)
            found += files
        if not found:
            raise ConfigError(f"the suite {suite.title} has no cases: its files hold no trace.")
    known = {trace.id for traces in suites.values() for trace in traces}
    for wanted in experiment.selected_test_cases:
        if wanted not in known:
            near = difflib.get_close_matches(wanted, sorted(known), n=1)
            hint = f"did you mean {near[0]!r}?" if near else "use an id of its files."
            raise ConfigError(f"selected_test_cases: no suite has a case {wanted!r}: {hint}")
    units = tuple(u for s, traces in suites.items() for u in _units(experiment, s, traces, strategies))
    defined = _digest([experiment.name, [u.id for u in units]])
    return ExperimentPlan(experiment, units, defined, {s.name: _settings_of(s) for s in strategies})


def _settings_of(strategy: Strategy) -> Any:
    if strategy.config is not None:
        return strategy.settings().model_dump(mode="json")
    return {"type": strategy.kind, "target": strategy.target, **dict(strategy.options)}


def book_cases(settings: SuiteSettings) -> list[Trace]:
    """The cases of an overflow suite: task and tool, no recorded turns."""
    properties = {"page": {"type": "integer"}, "code": {"type": "string"}}
    function = {
        "name": READ_PAGE,
        "description": "One page of the book, with its code.",
        "parameters": {"type": "object", "properties": properties, "required": ["page"]},
    }
    tasks = (
        f"Read the pages 1 to {settings.pages} of book {n} in order, one call of {READ_PAGE} a turn. "
        f"Every page has a code. Page n is opened with the code of page n-{settings.lag}; the first {settings.lag} "
        "need none. After the last page answer with its code."
        for n in range(1, settings.repeats + 1)
    )
    tools = [{"type": "function", "function": function}]
    return [Trace(f"book-{n}", [{"role": "user", "content": t}], tools, t) for n, t in enumerate(tasks, 1)]


def page_code(case: str, page: int) -> str:
    """The code of a page, which cannot be derived from anything in the context."""
    return "PG-" + hashlib.sha256(f"{case}/{page}".encode()).hexdigest()[:8].upper()


def _units(
    experiment: Experiment, suite: SuiteSettings, traces: list[Trace], strategies: Sequence[Strategy]
) -> Iterator[Unit]:
    live = suite.kind != "replay"
    models: Sequence[ModelSettings | None] = experiment.models if live else (None,)
    if live:
        called = f"the suite {suite.title} is live"
        if not models:
            raise ConfigError(f"{called} and needs a model: give one under [[models]].")
        for asked in filter(None, (*models, suite.judge)):
            asked.api_key()
        if oracle := next((s.name for s in strategies if s.kind == "oracle"), None):
            raise ConfigError(f"{called}: {oracle!r} knows only recorded runs, leave it out.")
    constants = environment_constants(traces) if not live else frozenset()
    seen: Counter[str] = Counter()
    cases: dict[str, tuple[Trace, str]] = {}  # with a hash of its content
    for trace in traces:
        seen[trace.id] += 1
        if not experiment.selected_test_cases or trace.id in experiment.selected_test_cases:
            name = trace.id if seen[trace.id] == 1 else f"{trace.id}#{seen[trace.id]}"
            cases[name] = replace(trace, id=name), _digest([trace.messages, trace.tools, trace.task])
    size = experiment.benchmark_sample_size
    for seed in experiment.seeds if live or size else experiment.seeds[:1]:
        drawn = list(cases)
        if size is not None and size < len(drawn):
            chosen = random.Random(f"{seed}:{suite.title}").sample(range(len(drawn)), size)
            drawn = [drawn[i] for i in sorted(chosen)]
        thresholds = experiment.thresholds or (None,)
        for name, model, strategy, threshold in product(drawn, models, strategies, thresholds):
            case, content = cases[name]
            acting, gate = strategy, threshold or 0
            if threshold is not None and hasattr(strategy.settings(), "compact_threshold"):
                assert strategy.config is not None
                changes, gate = {"compact_threshold": max(1, threshold)}, 0
                acting = replace(configured(strategy.config, strategy.target, changes), name=strategy.name)
            defined = [
                suite.title, suite.model_dump(exclude={"files"}), [name, content],
                model and model.model_dump(exclude={"timeout"}), [strategy.name, _settings_of(acting)], threshold,
                seed, experiment.counter, experiment.cost.model_dump(), sorted(constants),
            ]  # fmt: skip
            place = {
                "suite": suite.title, "kind": suite.kind, "case": name, "strategy": strategy.name,
                "threshold": threshold, "seed": seed, "model": model.name if model else None,
            }  # fmt: skip
            yield Unit(_digest(defined), place, suite, case, acting, gate, model, constants, experiment)


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:20]


@contextmanager
def gated(unit: Unit, costs: Costs) -> Iterator[tuple[Build, list[list[Any]]]]:
    """What builds the contexts of a unit, those up to its gate unchanged, and a list of them; [] where it raised."""
    contexts: list[list[Any]] = []
    with unit.strategy.start(unit.case) as build:

        def build_gated(messages: list[Any], needs: Sequence[Need]) -> list[Any]:
            contexts.append([])
            passes = unit.gate and costs.total(messages) <= unit.gate
            contexts[-1] = messages if passes else build(messages, needs)
            return contexts[-1]

        yield build_gated, contexts


def bill(unit: Unit, contexts: Sequence[Sequence[Any]], costs: Costs) -> tuple[dict[str, Any], list[int]]:
    """Input tokens, those of them that a prefix cache holds, the plain and the cached cost; cached by request."""
    prices = unit.experiment.cost
    price, cache = prices.price_per_million, ScriptedCache(costs.counter, prices.cache_minimum)
    used = [cache.add(costs.parts(context)) for context in contexts]
    tokens, cached = sum(u.input for u in used), [u.cached for u in used]
    paid = Price(prompt=price, completion=0, cached=price * (1 - prices.cached_discount))
    plain, priced = cost(Usage(tokens), paid), cost(Usage(tokens, sum(cached)), paid)
    return {"tokens": tokens, "cached": sum(cached), "plain": plain, "priced": priced}, cached
