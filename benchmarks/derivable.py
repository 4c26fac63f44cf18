"""Measures on runs that passed whether each later step can be derived from its context, and what the runs cost.

    python benchmarks/derivable.py passed_dev --jobs 2
    python benchmarks/derivable.py runs.jsonl.gz --strategy memory_bank --strategy 'memory_bank?fold=thrifty' \
        --price 0.05/1.25

A value counts if a call's arguments need it, an earlier tool output was the first to show it, and the last
interaction does not show it any more. It is held if the context of that call has it verbatim. A step is derivable
if all its values are held, a run is without a loss if all its steps are. The full history holds them all. Dollars
are those of the input over what the full history costs, in percent: of all runs together, the mean of the runs, the
worst run, and the worst step, at which a run had cost most in relation to the full history up to there. ``--price``
is what a token costs that is read from the cache / written to it, as shares of the input price; strategies get it as
their model's price. Brackets are 95% intervals of 1,000 resamples of the runs.

A data set is a trace file, or the name of one in ``--data-dir``; a strategy as in ``benchmarks/evidence.py``.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from harness import DATA, command_line, print_counter, print_head, print_row, verdict
from measuring.measure import measure, ratio
from measuring.strategies import Strategy, parse_strategy
from memory_bank import Config, load_config
from memory_bank.audit.measure import StepRow
from memory_bank.audit.traces import TraceFiles
from memory_bank.pricing import Price, Usage, cost

MODEL = "measured"
"""The model whose price a strategy gets."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a strategy made of a run: values and how many were held, steps and how many are derivable, its costs.

    ``worst``: the highest share of the full history's price that was paid up to a step.
    """

    values: int
    held: int
    steps: int
    derivable: int
    paid: float
    full: float
    worst: float
    errors: int


def run_of(rows: Sequence[StepRow], price: Price) -> Run:
    """Sum up the steps of a run."""
    needed = [[f.present for f in row.found if f.age > 1] if row.kind == "call" else [] for row in rows]
    paid = list(accumulate(cost(Usage(*row.used), price) for row in rows))
    full = list(accumulate(cost(Usage(*row.full_used), price) for row in rows))
    shares = [a / b for a, b in zip(paid, full, strict=True) if b]
    return Run(
        sum(map(len, needed)), sum(map(sum, needed)), len(rows), sum(map(all, needed)),
        paid[-1], full[-1], max(shares, default=1.0), sum(bool(row.error) for row in rows),
    )  # fmt: skip


def interval(runs: Sequence[Run], figure: Callable[[Sequence[Run]], float]) -> str:
    """A figure of the runs in percent, with its 95% interval."""
    dice = random.Random(0)
    drawn = sorted(figure(dice.choices(runs, k=len(runs))) for _ in range(1_000))
    return f"{100 * figure(runs):.1f} [{100 * drawn[25]:.0f}, {100 * drawn[-26]:.0f}]"


FIGURES: dict[str, Callable[[Sequence[Run]], float]] = {
    "dollars": lambda runs: ratio(sum(r.paid for r in runs), sum(r.full for r in runs)),
    "mean of runs": lambda runs: statistics.fmean(r.paid / r.full for r in runs),
    "values held": lambda runs: ratio(sum(r.held for r in runs), sum(r.values for r in runs)),
    "steps derivable": lambda runs: ratio(sum(r.derivable for r in runs), sum(r.steps for r in runs)),
    "runs without a loss": lambda runs: ratio(sum(r.held == r.values for r in runs), len(runs)),
}


def priced(config: Config, price: Price) -> Config:
    """The configuration with a price for the model."""
    return config.model_copy(update={"prices": {**config.prices, MODEL: price}})


def parse_price(text: str) -> Price:
    """The price of an option: READ/WRITE, or "none" where cached tokens cost as much as others."""
    if text == "none":
        return Price(prompt=1, completion=5, cached=1, cache_write=1)
    read, _, write = text.partition("/")
    return Price(prompt=1, completion=5, cached=float(read), cache_write=float(write or 1))


def main() -> int:
    """Print a table for each set; exit code 1 where a strategy raised."""
    parser = command_line(__doc__)
    parser.add_argument("data", nargs="*", default=["passed_dev"])
    parser.add_argument("--data-dir", type=Path, default=DATA)
    parser.add_argument(
        "--strategy", action="append", default=[], help="by default memory_bank, careful and thrifty"
    )
    parser.add_argument("--price", default="0.1/1.25")
    parser.add_argument("--limit", type=int, help="this many runs, evenly from the file")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    print_counter()
    price = parse_price(options.price)
    config = priced(load_config(), price)
    names = options.strategy or ["memory_bank", "memory_bank?fold=thrifty"]
    strategies: list[Strategy] = [replace(parse_strategy(name, config), model=MODEL) for name in names]
    errors: list[str] = []
    for name in options.data:
        path = next(
            (p for p in (Path(name), options.data_dir / f"{name}.jsonl.gz") if p.exists()), Path(name)
        )
        traces = list(TraceFiles([path], print))
        if options.limit and options.limit < len(traces):
            traces = traces[:: len(traces) // options.limit][: options.limit]
        print(f"\n## {name}: {len(traces)} runs, {options.price} for a cached / a written token\n")
        print_head("strategy", *FIGURES, "worst run", "worst step", "values", "steps")
        for measured in measure(traces, strategies, jobs=options.jobs):
            runs = [run_of(rows, price) for rows in measured.rows if rows]
            most = (f"{100 * max(f):.1f}" for f in ([r.paid / r.full for r in runs], [r.worst for r in runs]))
            counts = sum(r.values for r in runs), sum(r.steps for r in runs)
            print_row(measured.strategy.name, *(interval(runs, f) for f in FIGURES.values()), *most, *counts)
            if raised := sum(r.errors for r in runs):
                errors.append(f"{measured.strategy.name} raised at {raised} steps of {name}")
    return verdict(errors)


if __name__ == "__main__":
    sys.exit(main())
