"""The audit: which strategy suits some recorded runs, and how many tokens it would have saved."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from memory_bank import Config, load_embedder
from memory_bank.audit.costs import named_counter
from memory_bank.audit.measure import Figures, Measurement, StepRow, json_value, measure, old_bound
from memory_bank.audit.pages import PageSection, figures_page
from memory_bank.audit.processes import ProgressReport
from memory_bank.audit.replay import Strategy, parse_strategy, uses_budget, with_budgets
from memory_bank.audit.tables import count_of, percent
from memory_bank.audit.traces import Trace, TraceFiles, is_turn
from memory_bank.errors import EmbeddingError, MissingExtraError
from memory_bank.pricing import Price, Usage, cost
from memory_bank.transcript import ENCODING, calls_of

Measured = Measurement[StepRow]

NO_MEMORY = Strategy("no memory", "full")

BUDGETS = (1_000, 2_000, 4_000, 8_000)
"""Values of ``history_budget`` (tokens) to try for strategies with that setting when none are given."""


LENGTHS = {"over 100": 101, "51 to 100": 51, "26 to 50": 26, "up to 25": 0}
"""Names of runs' lengths, with the fewest tool calls of each."""


class Bill(NamedTuple):
    """What the input of some runs costs in dollars, without memory and with it, and the dearest run's share."""

    tool_calls: str
    runs: int
    without: float
    with_memory: float
    dearest: float


def bills_of(traces: Sequence[Trace], measured: Measured, price: Price) -> list[Bill]:
    """What a strategy would have cost at a price, by the number of tool calls; all runs first."""
    costs: dict[str, list[tuple[float, float]]] = {name: [] for name in ("all", *LENGTHS)}
    for trace, rows in zip(traces, measured.rows, strict=True):
        calls = sum(len(calls_of(m)) for m in trace.messages if is_turn(m))
        pair = [sum(cost(Usage(*used), price) for used in each) for each in
                ((r.full_used for r in rows), (r.used for r in rows))]  # fmt: skip
        if pair[0]:
            for name in ("all", next(name for name, fewest in LENGTHS.items() if calls >= fewest)):
                costs[name].append((pair[0], pair[1]))
    return [
        Bill(name, len(own), sum(a for a, _ in own), sum(b for _, b in own), max(b / a for a, b in own))
        for name, own in costs.items()
        if own
    ]


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """The strategies to try, and notes on those that are not tried."""

    strategies: tuple[Strategy, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit: no memory is measured first, ``sentence`` advises, ``losses`` has the worst traces."""

    traces: int
    measurements: tuple[Measured, ...]
    advised: str
    sentence: str
    losses: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]
    skipped_lines: tuple[str, ...]
    unreadable_files: tuple[str, ...]
    token_counter: str

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        values = {f.name: json_value(getattr(self, f.name)) for f in fields(self) if f.name != "measurements"}
        measured = [{"strategy": m.strategy.name, **m.figures.as_dict()} for m in self.measurements]
        return {"traces": self.traces, "strategies": measured} | values

    def as_html(self) -> str:
        """A self-contained page with the frontier plot, the table and the notes."""
        rows = [(m.strategy.name, m.figures) for m in self.measurements]
        losses = [f"{x['id']}: {x['kept']:,} of {x['values']:,} old values kept" for x in self.losses]
        advised = next((m.strategy for m in self.measurements if m.strategy.name == self.advised), NO_MEMORY)
        heading = f"{self.traces:,} traces, tokens by {self.token_counter}"
        lists = [
            (f"Traces that lose most with {described(advised)}", losses),
            ("Notes", self.notes),
            ("Lines skipped", self.skipped_lines),
            ("Files that cannot be read", self.unreadable_files),
        ]
        section = PageSection(heading, rows, self.advised)
        return figures_page("Memory audit", self.sentence, [section], lists)


def plan_audit(
    config: Config,
    names: Sequence[str] = (),
    budgets: Sequence[int] = (),
    among: Sequence[str] | None = None,
    tried: Sequence[int] = BUDGETS,
) -> AuditPlan:
    """No memory first, then the named strategies, or every memory ``among`` those of the configuration.

    A strategy that uses a ``history_budget`` is tried with each of ``budgets``, or with its own and those ``tried``.
    Of strategies that are not named, those whose embedder cannot be loaded or would send the traces to an
    endpoint are left out, with a note. Raises ConfigError and UnknownStrategyError; EmbeddingError or
    MissingExtraError when the embedder of a named strategy cannot be loaded.
    """
    chosen: list[Strategy] = [NO_MEMORY]
    notes: list[str] = []
    every = config.memory_strategies if among is None else among
    for name in names or [k for k in every if config.strategy(k).type != "no_strategy"]:
        strategy = parse_strategy(name, config)
        model = getattr(strategy.settings(), "embedding_model", None)
        if isinstance(model, str):
            if model.startswith("openai:") and not names:
                reason = f"its embedder {model} would send the traces away; name it with --strategy"
                notes.append(f"{name} was not tried: {reason}")
                continue
            try:
                load_embedder(model)
            except (EmbeddingError, MissingExtraError) as e:
                if names:
                    raise
                notes.append(f"{name} was not tried: {e}")
                continue
        own = getattr(strategy.settings(), "history_budget", 0)
        all_tried = [own, *tried] if own == "auto" else sorted({own, *tried})
        chosen += with_budgets(strategy, budgets or all_tried) if budgets or tried else [strategy]
    if budgets and not any(uses_budget(s) for s in chosen):
        notes.append("none of the strategies has a history_budget: --budget changed nothing")
    return AuditPlan(tuple({s.name: s for s in chosen}.values()), tuple(notes))


def audit(
    files: TraceFiles,
    traces: Sequence[Trace],
    plan: AuditPlan,
    *,
    counter: str = ENCODING,
    jobs: int = 1,
    progress: ProgressReport | None = None,
) -> Audit:
    """Measure the strategies of a plan on the runs that were read of files, and advise one."""
    measured = measure(traces, plan.strategies, counter=counter, jobs=jobs, progress=progress)
    notes = list(plan.notes)
    for m in measured:
        if kinds := Counter(row.error for rows in m.rows for row in rows if row.error):
            raised = ", ".join(f"{kind} at {count_of(n, 'step')}" for kind, n in sorted(kinds.items()))
            notes.append(f"{m.strategy.name} raised {raised}")
    best = choose(measured)
    shares = zip(traces, map(old_bound, best.rows), strict=True)
    losses = [{"id": t.id, "values": of, "kept": has} for t, (has, of) in shares if has < of]
    return Audit(
        traces=len(traces),
        measurements=tuple(measured),
        advised=best.strategy.name,
        sentence=advice(measured, best),
        losses=tuple(sorted(losses, key=lambda x: x["kept"] - x["values"])[:10]),  # type: ignore[operator]
        notes=tuple(notes),
        skipped_lines=tuple(files.skipped),
        unreadable_files=tuple(files.unreadable),
        token_counter=named_counter(counter).name,
    )


def choose(measured: Sequence[Measured]) -> Measured:
    """The strategy to take: the cheapest that is within 2 points of the best.

    Only memories without any exception or broken pair are compared that have fewer tokens than the full history and
    cost less at one of the prices of a prefix cache at least; the best has the highest bound recall of old evidence.
    No memory is taken when there is none to compare, or when the one found keeps less than 70% of the old evidence:
    a saving that loses what calls need is not one. When no call needed anything old, there is nothing to measure but
    dollars: the cheapest is taken. At equal tokens the first wins.
    """
    baseline = measured[0]
    sound = [m for m in measured if _is_memory(m) and _is_sound(m)]
    if not sound:
        return baseline
    if not baseline.figures.values_old:
        return min(sound, key=lambda m: (_dollars(m), m.figures.tokens))
    highest = max(m.figures.bound_old for m in sound)
    near = [m for m in sound if m.figures.bound_old >= highest - 0.02]
    best = min(near, key=lambda m: m.figures.tokens)
    return best if best.figures.bound_old >= 0.70 else baseline


def _dollars(measurement: Measured) -> float:
    """The sum of a strategy's dollars at all cache prices, as shares of the full history's; 0 without prices."""
    shares: list[float] = [*measurement.figures.dollars.values()]
    return sum(share for share in shares if not math.isnan(share))


def _is_memory(measurement: Measured) -> bool:
    return measurement.strategy.kind in ("configured", "plugin")


def _is_sound(measurement: Measured) -> bool:
    f = measurement.figures
    is_dearer = f.tokens >= f.full_tokens or min(f.dollars.values()) > 1
    return f.steps > 0 and not f.exceptions and not f.broken and not is_dearer


def advice(measured: Sequence[Measured], best: Measured) -> str:
    """One sentence: which strategy to take, and what it would have saved and kept."""
    f = best.figures
    if not f.steps:
        return "Nothing can be advised: no trace has a model call after a tool's output."
    if _is_memory(best):
        saved, full = (f.full_tokens - f.tokens) * f.steps, f.full_tokens * f.steps
        runs = f"{count_of(f.traces, 'trace')} and {count_of(f.steps, 'model call')}"
        return (
            f"Take {described(best.strategy)}: over {runs} it would have saved {saved:,.0f} of {full:,.0f} prompt "
            f"tokens ({percent(saved / full)}%) and kept {_describe_kept(f)}."
        )
    memories = list(filter(_is_memory, measured))
    if memories and all(m.figures.tokens == f.full_tokens and not m.figures.exceptions for m in memories):
        return (
            "Memory changes nothing here: these runs are too short for a fold, so it sends the same messages."
        )
    if not memories:
        return "Nothing can be advised: no strategy with memory was tried."
    sound = list(filter(_is_sound, memories))
    if not sound:
        return "Take no memory: each one tried raises, breaks pairs, or costs no less than the full history."
    top = max(sound, key=lambda m: m.figures.bound_old)
    return (
        f"Take no memory: of those tried, {described(top.strategy)} keeps most, at "
        f"{percent(top.figures.share_of_full)}% of the tokens, but that is only {_describe_kept(top.figures)}."
    )


def described(strategy: Strategy) -> str:
    """A strategy in words: its key and the settings that were changed."""
    key, _, changes = strategy.name.partition("?")
    if strategy.kind != "configured" or not changes:
        return strategy.name
    return f"{key} with {' and '.join(c.replace('=', ' ', 1) for c in changes.split('&'))}"


def _describe_kept(f: Figures) -> str:
    if not f.values_old:
        return (
            "all that calls needed, for no call needed a value from before its last interaction: there is nothing to "
            "measure but dollars (what the last answer needs is not measured)"
        )
    text = f"{percent(f.bound_old)}% of the evidence older than the last interaction"
    if "bound_old" in f.intervals:
        low, high = f.intervals["bound_old"]
        text += f" (95% interval {percent(low)} to {percent(high)})"
    return text
