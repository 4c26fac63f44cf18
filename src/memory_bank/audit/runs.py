"""Recorded runs with a strategy: what they cost, and how many of the values that later calls need it keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from memory_bank import Config, load_embedder
from memory_bank.audit.costs import Costs, named_counter
from memory_bank.audit.figures import count_of, percent
from memory_bank.audit.measure import StepRow, measure_trace
from memory_bank.audit.needs import environment_constants, needs_of
from memory_bank.audit.replay import building, quiet
from memory_bank.audit.traces import Trace, is_turn
from memory_bank.pricing import Price, Usage, cost
from memory_bank.transcript import ENCODING, calls_of

LENGTHS = {"over 100": 101, "51 to 100": 51, "26 to 50": 26, "up to 25": 0}
"""Names of runs' lengths, with the fewest tool calls of each."""


def measure_runs(
    traces: Sequence[Trace], config: Config, key: str, model: str, progress: Callable[[int, int], None]
) -> list[list[StepRow]]:
    """The rows of every trace under a strategy that knows the price of a model; what it raises is counted.

    Raises UnknownStrategyError; EmbeddingError or MissingExtraError when its embedder cannot be loaded.
    """
    embedder = getattr(config.strategy(key), "embedding_model", None)
    if isinstance(embedder, str):
        load_embedder(embedder)
    costs, constants = Costs(named_counter(ENCODING)), environment_constants(traces)
    rows: list[list[StepRow]] = []
    with quiet():
        for trace in traces:
            with building(trace, config, key, model) as build:
                rows.append(measure_trace(trace, needs_of(trace, constants), build, costs))
            progress(len(rows), len(traces))
    return rows


class Bill(NamedTuple):
    """The cost of the input of some runs in dollars, without memory and with it, and the dearest run's share."""

    tool_calls: str
    runs: int
    without: float
    with_memory: float
    dearest: float


def bills_of(traces: Sequence[Trace], rows: Sequence[Sequence[StepRow]], price: Price) -> list[Bill]:
    """The cost of a strategy at a price, by the number of tool calls; all runs first."""
    costs: dict[str, list[tuple[float, float]]] = {name: [] for name in ("all", *LENGTHS)}
    for trace, steps in zip(traces, rows, strict=True):
        calls = sum(len(calls_of(m)) for m in trace.messages if is_turn(m))
        without, with_memory = (
            sum(cost(Usage(*used), price) for used in each)
            for each in ((s.full_used for s in steps), (s.used for s in steps))
        )
        if without:
            for name in ("all", next(name for name, fewest in LENGTHS.items() if calls >= fewest)):
                costs[name].append((without, with_memory))
    return [
        Bill(name, len(two), sum(a for a, _ in two), sum(b for _, b in two), max(b / a for a, b in two))
        for name, two in costs.items()
        if two
    ]


class RunAudit(NamedTuple):
    """Sums over the steps of all runs. ``values``: those that calls needed from before the last interaction.

    ``kept``: those of them that stand in the context beside what they belong to. ``errors``: steps at which the
    strategy raised, by the type of the exception. ``broken``: contexts with broken call/result pairs.
    """

    strategy: str
    traces: int
    steps: int
    tokens: int
    full_tokens: int
    values: int
    kept: int
    errors: dict[str, int]
    broken: int

    def sentences(self, bill: Bill | None) -> list[str]:
        """Return the errors of the runs, then the advice on the strategy."""
        raised = [f"{kind} at {count_of(n, 'step')}" for kind, n in sorted(self.errors.items())]
        return [*([f"{self.strategy} raised {', '.join(raised)}"] if raised else []), self._advice(bill)]

    def _advice(self, bill: Bill | None) -> str:
        """Return whether to use the strategy: yes if nothing broke, it cost less, and 70% of the values were kept."""
        name, full = self.strategy, self.full_tokens
        if not self.steps:
            return "Nothing can be advised: no trace has a model call after a tool's output."
        if self.tokens == full and not self.errors:
            return "Memory changes nothing here: these runs are too short for a fold, so it sends the same messages."
        is_dearer = self.tokens >= full or (bill is not None and bill.with_memory > bill.without)
        if self.errors or self.broken or is_dearer:
            return f"Take no memory: {name} raises, breaks pairs, or costs no less than the full history."
        if not self.values:
            share = (
                "all that calls needed, for no call needed a value from before its last interaction: there is "
                "nothing to measure but dollars (what the last answer needs is not measured)"
            )
        else:
            share = f"{percent(self.kept / self.values)}% of the evidence older than the last interaction"
            if self.kept < 0.70 * self.values:
                return f"Take no memory: at {percent(self.tokens / full)}% of the tokens {name} keeps only {share}."
        runs = f"{count_of(self.traces, 'trace')} and {count_of(self.steps, 'model call')}"
        return (
            f"Take {name}: over {runs} it would have saved {full - self.tokens:,} of {full:,} prompt "
            f"tokens ({percent(1 - self.tokens / full)}%) and kept {share}."
        )


def audit_runs(strategy: str, rows: Sequence[Sequence[StepRow]]) -> RunAudit:
    """Sum up the rows of every trace."""
    steps = [row for of_trace in rows for row in of_trace]
    needed = [f.bound for row in steps if row.kind == "call" for f in row.found if f.age > 1]
    return RunAudit(
        strategy, len(rows), len(steps), sum(row.tokens for row in steps), sum(row.full for row in steps),
        len(needed), sum(needed), dict(Counter(row.error for row in steps if row.error)),
        sum(row.broken for row in steps),
    )  # fmt: skip
