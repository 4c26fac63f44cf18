"""The matrix of an experiment: each case with each strategy, threshold, seed and model is a unit."""

from __future__ import annotations

import difflib
import glob
import hashlib
import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memory_bank import load_config
from memory_bank.errors import ConfigError
from memory_bank.lab.experiments.cases import book_cases
from memory_bank.lab.experiments.config import Experiment, ModelSettings, SuiteSettings, suite_name
from memory_bank.lab.meter.needs import environment_constants
from memory_bank.lab.strategies import Strategy, parse_strategy
from memory_bank.lab.traces import BrokenLine, Trace, read_traces


@dataclass(frozen=True, slots=True)
class Case:
    """A case of a suite: a recorded run, to be replayed or done again; ``digest`` hashes its content."""

    id: str
    trace: Trace
    digest: str


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite with its selected cases; ``constants`` are values of the environment, which need no memory."""

    name: str
    settings: SuiteSettings
    cases: tuple[Case, ...]
    constants: frozenset[str] = frozenset()
    ids: frozenset[str] = frozenset()  # of all its cases, selected or not


@dataclass(frozen=True, slots=True)
class Unit:
    """One run of one case: one line of results. ``id`` is a hash of everything that defines it."""

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
        """The unit's place in the matrix, as JSON values."""
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
class ExperimentPlan:
    """The suites of an experiment, its units in order, and a hash of both."""

    experiment: Experiment
    suites: tuple[Suite, ...]
    units: tuple[Unit, ...]
    hash: str
    strategies: dict[str, dict[str, Any]]  # name → settings


def plan_experiment(experiment: Experiment, tell: Callable[[str], None]) -> ExperimentPlan:
    """Read the cases and list the units; skipped lines are reported to ``tell``.

    Raises ConfigError (no case, an unknown id, a live suite without models), TraceFileError,
    UnknownStrategyError.
    """
    config = load_config(_path(experiment, experiment.strategy_config))
    strategies = [parse_strategy(text, config) for text in experiment.strategies]
    suites = tuple(_read_suite(experiment, s, tell) for s in experiment.suites)
    _check_selected(experiment, suites)
    settings = {s.name: s.settings() for s in strategies}
    units = [u for suite in suites for u in _units(experiment, suite, strategies)]
    if not units:
        raise ConfigError("the experiment has no cases: its files hold no trace that can be used.")
    whole = _digest([experiment.name, [u.id for u in units]])
    return ExperimentPlan(experiment, suites, tuple(units), whole, settings)


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
    """The cases of a suite in their order, or ``size`` of them drawn by the seed."""
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
    effective, _ = strategy.with_threshold(threshold)
    defined = [
        suite.name,
        suite.settings.model_dump(exclude={"files"}),
        [case.id, case.digest],
        model and model.model_dump(exclude={"timeout"}),
        [strategy.name, effective.settings()],
        threshold,
        seed,
        experiment.counter,
        experiment.cost.model_dump(),
        sorted(suite.constants),
    ]
    return Unit(_digest(defined), suite.name, kind, case, effective, threshold, seed, model)


def _read_suite(experiment: Experiment, settings: SuiteSettings, tell: Callable[[str], None]) -> Suite:
    name = suite_name(settings)
    traces = book_cases(settings) if settings.kind == "overflow" else _traces(experiment, settings, tell)
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


def _traces(experiment: Experiment, settings: SuiteSettings, tell: Callable[[str], None]) -> list[Trace]:
    found: list[Trace] = []
    for pattern in settings.files:
        path = str(_path(experiment, pattern))
        paths = sorted(glob.glob(path)) if glob.has_magic(path) else [path]
        for file in paths:
            for trace in read_traces(file):
                if isinstance(trace, BrokenLine):
                    tell(f"skipped {trace}.")
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
    hint = f"did you mean {near[0]!r}?" if near else "use an id of its files."
    raise ConfigError(f"selected_test_cases: no suite has a case {missing!r}: {hint}")


def _path(experiment: Experiment, given: str | None) -> Path | None:
    return None if given is None else experiment.folder / Path(given).expanduser()


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:20]
