"""The audit: which strategy suits these traces, and what it would have saved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memory_bank.config import Config
from memory_bank.errors import EmbeddingError, MissingExtraError, TraceFileError
from memory_bank.lab.meter.columns import percent
from memory_bank.lab.meter.costs import named_counter
from memory_bank.lab.meter.figures import old_bound
from memory_bank.lab.meter.runs import Outcome, Progress, measure
from memory_bank.lab.meter.strategies import Strategy, configured, parse_strategy
from memory_bank.lab.traces import BrokenLine, Trace, read_traces
from memory_bank.models.embedding import OPENAI_PREFIX, load_embedder
from memory_bank.transcript.tokens import ENCODING

NO_MEMORY = Strategy("no memory", "full")

BUDGETS = (1_000, 2_000, 4_000, 8_000)
"""Tokens of ``history_budget`` that are tried where a strategy has that setting and none are named."""

POINTS = 0.02
"""A cheaper strategy is taken when it keeps at most so much less than the best."""

LEAST = 0.70
"""A memory that would have kept less of the old evidence is not advised."""

_WORST = 10

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Candidates:
    """What is tried, and notes on what is not."""

    strategies: tuple[Strategy, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Loss:
    """A trace that lost evidence under the strategy advised: old values, and how many were kept bound."""

    trace_id: str
    values: int
    kept: int


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit came to; the first outcome is no memory. ``sentence`` is the advice."""

    traces: int
    outcomes: tuple[Outcome, ...]
    advised: str
    sentence: str
    losses: tuple[Loss, ...]
    notes: tuple[str, ...]
    skipped_lines: tuple[str, ...]
    unreadable_files: tuple[str, ...]
    counter: str

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "traces": self.traces,
            "strategies": [{"strategy": o.strategy.name, **o.figures.as_dict()} for o in self.outcomes],
            "advised": self.advised,
            "sentence": self.sentence,
            "losses": [{"id": x.trace_id, "values": x.values, "kept": x.kept} for x in self.losses],
            "notes": list(self.notes),
            "skipped_lines": list(self.skipped_lines),
            "unreadable_files": list(self.unreadable_files),
            "token_counter": self.counter,
        }


def candidates(config: Config, names: Sequence[str] = (), budgets: Sequence[int] = ()) -> Candidates:
    """No memory first, then the strategies named, else every memory of the configuration.

    A strategy whose settings have a ``history_budget`` in use is tried with each budget: those given, else
    its own and BUDGETS. Of strategies that nobody named, one whose embedder cannot be loaded or would send
    the traces to an endpoint is left out, with a note. Raises ConfigError, UnknownStrategyError;
    EmbeddingError or MissingExtraError when the embedder of one that was named cannot be loaded.
    """
    chosen: list[Strategy] = [NO_MEMORY]
    notes: list[str] = []
    for name in names or [k for k, s in config.memory_strategies.items() if s.type != "no_strategy"]:
        strategy = parse_strategy(name, config)
        model = getattr(_settings(strategy), "embedding_model", None)
        if isinstance(model, str):
            if model.startswith(OPENAI_PREFIX) and not names:
                told = f"its embedder {model} would send the traces away; name it with --strategy"
                notes.append(f"{name} was not tried: {told}")
                continue
            try:
                load_embedder(model)
            except (EmbeddingError, MissingExtraError) as e:
                if names:
                    raise
                notes.append(f"{name} was not tried: {e}")
                continue
        chosen += _with_budgets(strategy, name, budgets)
    if budgets and not any(_has_budget(s) for s in chosen):
        notes.append("none of the strategies has a history_budget: --budget changed nothing")
    return Candidates(tuple({s.name: s for s in chosen}.values()), tuple(notes))


def _settings(strategy: Strategy) -> Any:
    return strategy.config.strategy(strategy.target) if strategy.config is not None else None


def _has_budget(strategy: Strategy) -> bool:
    """Whether a ``history_budget`` is among the settings, and the selection heeds it."""
    settings = _settings(strategy)
    return hasattr(settings, "history_budget") and getattr(settings, "selection", "evidence") == "evidence"


def _with_budgets(strategy: Strategy, name: str, budgets: Sequence[int]) -> list[Strategy]:
    if not _has_budget(strategy) or "history_budget" in name:
        return [strategy]
    assert strategy.config is not None
    own = _settings(strategy).history_budget
    tried = []
    for budget in budgets or sorted({own, *BUDGETS}):
        one = configured(strategy.config, strategy.target, {"history_budget": budget})
        tried.append(replace(one, name=f"{name}{'&' if '?' in name else '?'}history_budget={budget}"))
    return tried


def read_all(paths: Iterable[Path], tell: Tell) -> tuple[list[Trace], list[str], list[str]]:
    """The traces of several files, the lines skipped and the files that cannot be read; each is told."""
    traces: list[Trace] = []
    skipped: list[str] = []
    unreadable: list[str] = []
    for path in paths:
        try:
            for trace in read_traces(path):
                if isinstance(trace, BrokenLine):
                    told = f"{trace.file}, line {trace.line}: {trace.reason}"
                    skipped.append(told)
                    tell(f"skipped {told}.")
                else:
                    traces.append(trace)
        except TraceFileError as e:  # the other files can still be read
            unreadable.append(str(path))
            tell(str(e))
    return traces, skipped, unreadable


def audit(
    paths: Sequence[Path],
    tried: Candidates,
    *,
    counter: str = ENCODING,
    jobs: int = 1,
    tell: Tell = lambda _: None,
    progress: Progress | None = None,
) -> Audit:
    """Measure candidates on files of traces, and advise one by ``choose``.

    Broken lines are skipped, counted and told; so are files that cannot be read.
    """
    traces, skipped, unreadable = read_all(paths, tell)
    outcomes = measure(traces, tried.strategies, counter=counter, jobs=jobs, progress=progress)
    best = choose(outcomes)
    return Audit(
        traces=len(traces),
        outcomes=tuple(outcomes),
        advised=best.strategy.name,
        sentence=advice(outcomes, best),
        losses=_losses(traces, best),
        notes=(*tried.notes, *_raised(outcomes)),
        skipped_lines=tuple(skipped),
        unreadable_files=tuple(unreadable),
        counter=named_counter(counter).name,
    )


def choose(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome to take: the cheapest that is within 2 points of the best.

    Compared are memories without a single exception or broken pair, and with fewer tokens than the full
    history; best is the highest bound recall of old evidence among them. Where even the one found keeps less
    than 70% of it, or none is left to compare, no memory is taken: a saving that loses what calls need is
    none. Where no call needed anything old, the cheapest is taken. At equal tokens the earlier one wins.
    """
    baseline = outcomes[0]
    sound = [o for o in outcomes if _is_memory(o) and _is_sound(o)]
    if not sound:
        return baseline
    if not baseline.figures.values_old:
        return min(sound, key=lambda o: o.figures.tokens)
    highest = max(o.figures.bound_old for o in sound)
    near = [o for o in sound if o.figures.bound_old >= highest - POINTS]
    best = min(near, key=lambda o: o.figures.tokens)
    return best if best.figures.bound_old >= LEAST else baseline


def _is_memory(outcome: Outcome) -> bool:
    return outcome.strategy.kind in ("configured", "plugin")


def _is_sound(outcome: Outcome) -> bool:
    f = outcome.figures
    return f.steps > 0 and not f.exceptions and not f.broken and f.tokens < f.full_tokens


def advice(outcomes: Sequence[Outcome], best: Outcome) -> str:
    """One sentence: what to take, and what it would have saved and kept."""
    f = best.figures
    if not f.steps:
        return "Nothing can be advised: no trace has a model call after a tool's output."
    if _is_memory(best):
        saved, full = (f.full_tokens - f.tokens) * f.steps, f.full_tokens * f.steps
        runs = f"{_count(f.traces, 'trace')} and {_count(f.steps, 'model call')}"
        return (
            f"Take {described(best.strategy)}: over {runs} it would have saved {saved:,.0f} of {full:,.0f} "
            f"prompt tokens ({percent(saved / full)}%) and kept {_kept(best)}."
        )
    memories = [o for o in outcomes if _is_memory(o)]
    if not memories:
        return "Take no memory: none was tried."
    sound = [o for o in memories if _is_sound(o)]
    if not sound:
        return "Take no memory: each one tried raises, breaks pairs, or costs no less than the full history."
    top = max(sound, key=lambda o: o.figures.bound_old)
    share = percent(top.figures.share_of_full)
    return (
        f"Take no memory: of those tried, {described(top.strategy)} keeps most, at {share}% of the tokens, "
        f"but that is only {_kept(top)}."
    )


def described(strategy: Strategy) -> str:
    """A strategy in words: its key and the settings that were changed."""
    key, _, changes = strategy.name.partition("?")
    if strategy.kind != "configured" or not changes:
        return strategy.name
    return f"{key} with {' and '.join(c.replace('=', ' ', 1) for c in changes.split('&'))}"


def _kept(outcome: Outcome) -> str:
    f = outcome.figures
    if not f.values_old:
        return "all that was needed, for no call needed a value from before its last interaction"
    text = f"{percent(f.bound_old)}% of the evidence older than the last interaction"
    if "bound_old" in f.intervals:
        low, high = f.intervals["bound_old"]
        text += f" (95% interval {percent(low)} to {percent(high)})"
    return text


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _raised(outcomes: Sequence[Outcome]) -> list[str]:
    """What the strategies raised, a note for each that did."""
    notes = []
    for outcome in outcomes:
        kinds = Counter(row.error for rows in outcome.rows for row in rows if row.error)
        if kinds:
            told = ", ".join(f"{kind} at {_count(n, 'step')}" for kind, n in sorted(kinds.items()))
            notes.append(f"{outcome.strategy.name} raised {told}")
    return notes


def _losses(traces: Sequence[Trace], best: Outcome) -> tuple[Loss, ...]:
    """The traces that lose most under what is advised, worst first."""
    losses = []
    for trace, rows in zip(traces, best.rows, strict=True):
        kept, values = old_bound(rows)
        if kept < values:
            losses.append(Loss(trace.id, int(values), int(kept)))
    losses.sort(key=lambda x: x.kept - x.values)
    return tuple(losses[:_WORST])
