"""Measures what recorded runs cost with memory, by the number of their tool calls: the table of README.

    python benchmarks/lengths.py
    python benchmarks/lengths.py my-runs.jsonl --strategy memory_bank --price 0.1/1
    python benchmarks/lengths.py --price 0.1/1.25 --weeks 1000

Dollars are those of the input in percent of the same run without memory: the mean of the runs
and the dearest run. ``--price`` is what a token costs that is read from the cache / written to it, as shares of the
input price; the strategy gets it as its model's price. Data sets and strategies are named as in
``benchmarks/evidence.py``; the default strategy has a model that was trained without the set.

``--weeks`` draws weeks of sessions from these runs, of each length and set as many as there are in the data, and a
``holdout`` in each. What a run costs with memory and without is known, and so the true ratio of dollars: the table
says in how many weeks the interval that the service tells has it, and in how many it sees a saving, also of a memory
that saves nothing (A/A).
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from derivable import MODEL, Run, parse_price, priced, run_of
from harness import DATA, command_line, print_counter, print_head, print_row, verdict
from measuring.measure import measure
from measuring.strategies import parse_strategy
from memory_bank import load_config
from memory_bank.audit.traces import Trace, TraceFiles, is_turn
from memory_bank.bank.holdout import LEAST, Comparison, SessionDollars, compared
from memory_bank.transcript import calls_of
from meters import data_name, find

SETS = ("toolathlon_dev", "livemcpbench", "claude_code_dev")
STRATEGY = "memory_bank?evidence_model=benchmarks/models/no_{set}.json"
LENGTHS = {"over 100": 101, "51 to 100": 51, "26 to 50": 26, "11 to 25": 11, "up to 10": 0}
"""Names of lengths, with the fewest tool calls of each."""


def length_of(trace: Trace) -> str:
    """The name of a run's length."""
    number = sum(len(calls_of(m)) for m in trace.messages if is_turn(m))
    return next(name for name, fewest in LENGTHS.items() if number >= fewest)


WEEKS = ((100, 0.1), (300, 0.1), (1_000, 0.1), (100, 0.5), (300, 0.5), (1_000, 0.5))
"""Sessions of a week, and the share without memory."""


Sessions = list[tuple[SessionDollars, SessionDollars]]  # what each costs without memory, and with it


def week(
    sessions: Sessions, chances: Sequence[float], count: int, share: float, dice: np.random.Generator
) -> Comparison:
    """What the service tells of a week."""
    drawn = dice.choice(len(sessions), count, p=chances)
    is_control = dice.random(count) < share
    return compared([sessions[i][1] for i in drawn[~is_control]], [sessions[i][0] for i in drawn[is_control]])


def print_weeks(runs: list[tuple[Run, float]], weeks: int) -> None:
    """Print how often a holdout's interval is right in weeks of runs, each with the number of runs it stands for."""
    print_head(
        "sessions a week", "holdout", "memory", "true ratio", "a session: right", "a call: right",
        "interval, median", "sees a saving", "needed, median",
    )  # fmt: skip
    both: Sessions = [
        (SessionDollars(r.full, r.full, r.steps), SessionDollars(r.paid, r.full, r.steps)) for r, _ in runs
    ]
    weights = np.array([weight for _, weight in runs])
    for name, sessions in (("as measured", both), ("A/A", [(s, s) for s, _ in both])):
        full, paid = (float(weights @ [pair[n].paid for pair in sessions]) for n in (0, 1))
        true = paid / full
        for count, share in WEEKS:
            dice = np.random.default_rng([count, round(100 * share)])
            found = [week(sessions, weights / weights.sum(), count, share, dice) for _ in range(weeks)]
            told = [(f.per_session, f.per_call) for f in found if f.per_session and f.per_call]
            cells = [f"under {LEAST}", "", "", ""]
            if told:
                right = [
                    statistics.fmean(r.low <= true <= r.high for r in ratios)
                    for ratios in zip(*told, strict=True)
                ]
                low, high = (
                    statistics.median(ends) for ends in zip(*((r.low, r.high) for r, _ in told), strict=True)
                )
                seen = statistics.fmean(r.high < 1 for r, _ in told)
                cells = [
                    *(f"{100 * r:.1f}%" for r in right),
                    f"{low:.2f} to {high:.2f}",
                    f"{100 * seen:.0f}%",
                ]
            needed = round(statistics.median(f.needed for f in found))
            print_row(count, f"{share:.0%}", name, f"{true:.2f}", *cells, needed)


def main() -> int:
    """Print the table; exit code 1 where a strategy raised."""
    parser = command_line(__doc__)
    parser.add_argument("data", nargs="*", default=SETS)
    parser.add_argument("--data-dir", type=Path, default=DATA)
    parser.add_argument("--strategy", default=STRATEGY)
    parser.add_argument("--price", action="append", help="by default 0.1/1.25 and 0.05/1.25")
    parser.add_argument("--limit", type=int, help="this many runs of each length and set")
    parser.add_argument("--weeks", type=int, help="weeks of each kind, at the first price")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    print_counter()
    prices = options.price or ["0.1/1.25", "0.05/1.25"]
    runs: dict[tuple[str, str], list[Run]] = {(n, p): [] for n in LENGTHS for p in prices}
    stands_for: list[tuple[Run, float]] = []
    for path in (find(name, options.data_dir) for name in options.data):
        of_length: dict[str, list[Trace]] = {name: [] for name in LENGTHS}
        for trace in TraceFiles([path], print):
            of_length[length_of(trace)].append(trace)
        print(path.name, *(f"{n}: {len(t)}" for n, t in of_length.items()), sep=", ", file=sys.stderr)
        for price in prices:
            config = priced(load_config(), parse_price(price))
            strategy = parse_strategy(options.strategy.replace("{set}", data_name(path)), config)
            for name, traces in of_length.items():
                [measured] = measure(
                    traces, [replace(strategy, model=MODEL)], jobs=options.jobs, limit=options.limit
                )
                made = [run_of(rows, parse_price(price)) for rows in measured.rows if rows]
                runs[name, price] += made
                if price == prices[0]:
                    stands_for += [(run, len(traces) / len(made)) for run in made]
    print_head("tool calls", "runs", *(f"{title} at {p}" for p in prices for title in ("$", "worst run")))
    for name in LENGTHS:
        cells: list[object] = []
        for price in prices:
            own = runs[name, price]
            shares = [r.paid / r.full for r in own] or [float("nan")]
            cells += [f"{100 * share:.0f}%" for share in (statistics.fmean(shares), max(shares))]
        print_row(name, len(runs[name, prices[0]]), *cells)
    if options.weeks:
        print()
        print_weeks(stands_for, options.weeks)
    raised = sum(r.errors for own in runs.values() for r in own)
    return verdict([f"the strategy raised at {raised} steps"] if raised else [])


if __name__ == "__main__":
    sys.exit(main())
