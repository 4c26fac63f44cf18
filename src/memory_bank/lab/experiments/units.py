"""The matrix unrolled: every case with every strategy, threshold, seed and model is one unit of work."""

from __future__ import annotations

import difflib
import glob
import hashlib
import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memory_bank.config import load_config
from memory_bank.errors import ConfigError
from memory_bank.lab.experiments.config import Experiment, ModelSettings, SuiteSettings, suite_name
from memory_bank.lab.experiments.overflow import overflow_cases
from memory_bank.lab.meter.needs import environment_constants
from memory_bank.lab.meter.strategies import Strategy, parse_strategy
from memory_bank.lab.traces import BrokenLine, Trace, read_traces

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Case:
    """A case of a suite: a recorded run, to be replayed or done anew; ``digest`` is of its content."""

    id: str
    trace: Trace
    digest: str


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite with its cases; ``constants`` are values of the environment, which need no memory."""

    name: str
    settings: SuiteSettings
    cases: tuple[Case, ...]
    constants: frozenset[str] = frozenset()
    ids: frozenset[str] = frozenset()  # of all its cases, those not selected too


@dataclass(frozen=True, slots=True)
class Unit:
    """One case done once: what a results line is for. ``id`` is a hash of all that defines it."""

    id: str
    suite: str
    kind: str
    case: Case
    strategy: Strategy
    threshold: int | None
    seed: int
    model: ModelSettings | None = None

    @property
    def place(self) -> dict[str, Any]:
        """Where the unit stands in the matrix, as JSON values."""
        return {
            "suite": self.suite,
            "kind": self.kind,
            "case": self.case.id,
            "strategy": self.strategy.name,
            "threshold": self.threshold,
            "seed": self.seed,
            "model": self.model.name if self.model else None,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """What an experiment comes to: its suites, its units in order, and the hash of both."""

    experiment: Experiment
    suites: tuple[Suite, ...]
    units: tuple[Unit, ...]
    hash: str
    strategies: dict[str, Any]  # name → settings


def plan_experiment(experiment: Experiment, tell: Tell) -> Plan:
    """Read the cases and unroll the matrix; ``tell`` hears of lines that hold no case.

    Raises ConfigError (no case, an unknown id, a live suite without models), TraceFileError and what
    ``parse_strategy`` raises.
    """
    config = load_config(_path(experiment, experiment.strategy_config))
    strategies = [parse_strategy(text, config) for text in experiment.strategies]
    suites = tuple(_read_suite(experiment, s, tell) for s in experiment.suites)
    _check_selected(experiment, suites)
    settings = {s.name: strategy_settings(s) for s in strategies}
    units = [u for suite in suites for u in _units(experiment, suite, strategies)]
    if not units:
        raise ConfigError("the experiment has no cases: its files hold no trace that can be used.")
    whole = _digest([experiment.name, [u.id for u in units]])
    return Plan(experiment, suites, tuple(units), whole, settings)


def strategy_settings(strategy: Strategy) -> dict[str, Any]:
    """The settings that make a strategy what it is, as JSON values."""
    if strategy.kind == "configured" and strategy.config is not None:
        return strategy.config.strategy(strategy.target).model_dump(mode="json")
    return {"type": strategy.kind, "target": strategy.target, **dict(strategy.options)}


def with_threshold(strategy: Strategy, threshold: int | None) -> tuple[Strategy, int]:
    """A strategy that begins at a threshold, and the threshold that is left for a gate before it.

    Where it has a setting ``compact_threshold`` that one is set and the strategy sees everything; else
    contexts up to the threshold go through as they came. Raises ConfigError when the setting refuses it.
    """
    if threshold is None:
        return strategy, 0
    if strategy.kind == "configured" and strategy.config is not None:
        settings: Any = strategy.config.strategy(strategy.target)
        if "compact_threshold" in type(settings).model_fields:
            changed = type(settings)(**{**settings.model_dump(), "compact_threshold": max(1, threshold)})
            all_of_them = {**strategy.config.memory_strategies, strategy.target: changed}
            config = strategy.config.model_copy(update={"memory_strategies": all_of_them})
            return replace(strategy, config=config), 0
    return strategy, threshold


def _units(experiment: Experiment, suite: Suite, strategies: Sequence[Strategy]) -> list[Unit]:
    live = suite.settings.kind != "replay"
    models: Sequence[ModelSettings | None] = experiment.models if live else (None,)
    if live and not models:
        raise ConfigError(f"the suite {suite.name} is live and needs a model: give one under [[models]].")
    for model in (*models, suite.settings.judge):
        if live and model is not None and not os.environ.get(model.api_key_env):
            raise ConfigError(
                f"the model {model.name} has no API key: set {model.api_key_env} (any text for a local one)."
            )
    oracle = next((s.name for s in strategies if s.kind == "oracle"), None)
    if live and oracle:
        raise ConfigError(
            f"the suite {suite.name} is live: {oracle!r} knows only recorded runs, leave it out."
        )
    seeds = experiment.seeds if live or experiment.benchmark_sample_size else experiment.seeds[:1]
    units = []
    for seed in seeds:
        for case in sample(suite, experiment.benchmark_sample_size, seed):
            for model in models:
                for strategy in strategies:
                    for threshold in experiment.thresholds or (None,):
                        units.append(_unit(experiment, suite, case, model, strategy, threshold, seed))
    return units


def sample(suite: Suite, size: int | None, seed: int) -> Sequence[Case]:
    """The cases of a suite, or so many of them, drawn by the seed and in their order."""
    if size is None or size >= len(suite.cases):
        return suite.cases
    drawn = random.Random(f"{seed}:{suite.name}").sample(range(len(suite.cases)), size)
    return [suite.cases[i] for i in sorted(drawn)]


def _unit(
    experiment: Experiment,
    suite: Suite,
    case: Case,
    model: ModelSettings | None,
    strategy: Strategy,
    threshold: int | None,
    seed: int,
) -> Unit:
    kind = suite.settings.kind
    effective, _ = with_threshold(strategy, threshold)
    defined = [
        suite.name,
        suite.settings.model_dump(exclude={"files"}),
        [case.id, case.digest],
        model and model.model_dump(exclude={"timeout"}),
        [strategy.name, strategy_settings(effective)],
        threshold,
        seed,
        experiment.counter,
        experiment.cost.model_dump(),
        sorted(suite.constants),
    ]
    return Unit(_digest(defined), suite.name, kind, case, effective, threshold, seed, model)


def _read_suite(experiment: Experiment, settings: SuiteSettings, tell: Tell) -> Suite:
    name = suite_name(settings)
    traces = overflow_cases(settings) if settings.kind == "overflow" else _traces(experiment, settings, tell)
    constants = environment_constants(traces) if settings.kind == "replay" else frozenset()
    seen: dict[str, int] = {}
    cases: list[Case] = []
    for trace in traces:
        n = seen[trace.id] = seen.get(trace.id, 0) + 1
        if experiment.selected_test_cases and trace.id not in experiment.selected_test_cases:
            continue
        content = [trace.messages, trace.tools, trace.task]
        cases.append(Case(trace.id if n == 1 else f"{trace.id}#{n}", trace, _digest(content)))
    return Suite(name, settings, tuple(cases), constants, frozenset(seen))


def _traces(experiment: Experiment, settings: SuiteSettings, tell: Tell) -> list[Trace]:
    found: list[Trace] = []
    for pattern in settings.files:
        path = str(_path(experiment, pattern))
        paths = sorted(glob.glob(path)) if glob.has_magic(path) else [path]
        for file in paths:
            for trace in read_traces(file):
                if isinstance(trace, BrokenLine):
                    tell(f"skipped {trace.file}, line {trace.line}: {trace.reason}.")
                else:
                    found.append(trace)
    if not found:
        raise ConfigError(f"the suite {suite_name(settings)} has no cases: its files hold no trace.")
    return found


def _check_selected(experiment: Experiment, suites: Sequence[Suite]) -> None:
    known = {i for s in suites for i in s.ids}
    missing = next((i for i in experiment.selected_test_cases if i not in known), None)
    if missing is None:
        return
    near = difflib.get_close_matches(missing, sorted(known), n=1)
    hint = f"did you mean {near[0]!r}?" if near else "take an id of its files."
    raise ConfigError(f"selected_test_cases: no suite has a case {missing!r}: {hint}")


def _path(experiment: Experiment, given: str | None) -> Path | None:
    return None if given is None else experiment.folder / Path(given).expanduser()


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:20]
