"""Measures which share of the evidence that calls need each strategy keeps on recorded runs, and its price.

    python benchmarks/evidence.py toolathlon_dev livemcpbench --strategy memory_bank_local --jobs 2
    python benchmarks/evidence.py run.jsonl.gz --strategy 'memory_bank_local?top_k=8' --html frontier.html
    PYTHONPATH=../shared/evidence python benchmarks/evidence.py tau_retail_gold \
        --strategy 'evbench.strategies:keep_last?n=3' --compare-reference ../shared/evidence

A data set is a trace file, or the name of one (NAME.jsonl.gz, NAME.jsonl) in ``--data-dir``, by default
``../shared/data``, seen from the repository; without any name, every file of that folder. A strategy is a key of the
configuration, ``KEY?setting=value``, a plugin ``module:function?name=value`` of the form
``f(messages, state) -> messages``, ``full`` or ``oracle``. Prints a Markdown table for each set and the plain
mean over the sets. ``{set}`` in a strategy stands for the data set's name:
with ``evidence_model=benchmarks/models/no_{set}.json`` each set is measured with a model that was not trained on it.
Figures do not depend on ``--jobs``, times do. Intervals come from 500 resamples of the
traces with seed 0.

``--compare-reference DIR`` measures the plugins once more with the reference meter (DIR holds its package
``evbench``; tokens are then counted by its rule) and prints the differences in points; exit code 1 when ER,
ERb, ERb_old, ratio or hist_ratio differs by more than one point.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from memory_bank.config import load_config
from memory_bank.errors import MemoryBankError
from memory_bank.lab.costs import REFERENCE, named_counter
from memory_bank.lab.meter.figures import COLUMNS, Figures
from memory_bank.lab.meter.measure import measure
from memory_bank.lab.pages import PageSection, figures_page, plot_file
from memory_bank.lab.strategies import Strategy, parse_strategy
from memory_bank.lab.tables import markdown_table
from memory_bank.lab.traces import TraceFiles

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
COMPARED = {
    "ER": "recall",
    "ERb": "bound",
    "ERb_old": "bound_old",
    "ratio": "share_of_full",
    "hist_ratio": "share_of_history",
}
WITHIN = 1.0  # points
SET = "{set}"  # in a strategy: the name of the data set

Results = dict[str, dict[str, Figures]]  # data set → strategy → figures


def find(name: str, folder: Path) -> Path:
    """The file of a data set."""
    for path in (Path(name), folder / name, folder / f"{name}.jsonl.gz", folder / f"{name}.jsonl"):
        if path.is_file():
            return path
    raise SystemExit(f"there is no trace file {name}, nor one of that name in {folder}")


def data_name(path: Path) -> str:
    """What tables call a data set."""
    return path.name.removesuffix(".gz").removesuffix(".jsonl")


def markdown(rows: Mapping[str, Sequence[Figures]]) -> str:
    """A table: a row for each strategy, the mean where there are several figures."""
    cells = [[name, *(c.cell(*figures) for c in COLUMNS)] for name, figures in rows.items()]
    return markdown_table(["strategy", *(c.title for c in COLUMNS)], cells)


def progress(name: str) -> Any:
    """Traces done, on a terminal only."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        print(
            f"\r{name}: {done} of {total} traces",
            end="\n" if done == total else "",
            file=sys.stderr,
            flush=True,
        )

    return show


def compare(path: Path, strategy: Strategy, ours: Figures, limit: int | None) -> dict[str, float]:
    """Our figure less the reference meter's, in points; 0 where neither had anything to share."""
    reference = importlib.import_module("evbench.run")
    theirs = reference.evaluate(strategy.name, str(path.resolve()), limit, 1)
    pairs = {k: (getattr(ours, name), theirs[k]) for k, name in COMPARED.items()}
    return {k: 0.0 if math.isnan(a) and math.isnan(b) else 100 * (a - b) for k, (a, b) in pairs.items()}


def differs(points: float) -> bool:
    """Whether a difference is too large; one meter alone having nothing to share is."""
    return math.isnan(points) or abs(points) > WITHIN


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", help="trace files or names; default: every file of --data-dir")
    parser.add_argument("--data-dir", type=Path, default=DATA)
    parser.add_argument(
        "--strategy", action="append", default=[], help="default: full and every local memory"
    )
    parser.add_argument("--config", type=Path)
    parser.add_argument("--counter", help="a tiktoken encoding, approximate or reference")
    parser.add_argument("--limit", type=int, help="limit of traces of each set, evenly spread")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures with commit, settings and machine")
    parser.add_argument("--html", type=Path, help="write a page with the frontier plots")
    parser.add_argument("--svg", type=Path, help="write the frontier plot of the first data set")
    parser.add_argument("--compare-reference", type=Path, metavar="DIR")
    return parser.parse_args()


def main() -> int:
    """Measure, print, compare."""
    args = arguments()
    if args.compare_reference:
        sys.path.insert(0, str(args.compare_reference.resolve()))
    config = load_config(args.config)
    names = args.strategy or ["full", *(k for k, s in config.memory_strategies.items() if _is_local(s))]
    strategies = [parse_strategy(n, config) for n in names if SET not in n]
    held_out = [n for n in names if SET in n]
    counter = args.counter or (REFERENCE if args.compare_reference else "o200k_base")
    if args.compare_reference and counter != REFERENCE:
        raise SystemExit("--compare-reference counts by the reference meter's rule: leave --counter out")
    paths = [find(n, args.data_dir) for n in args.data] or sorted(args.data_dir.glob("*.jsonl*"))
    if not paths:
        raise SystemExit(f"{args.data_dir} holds no trace files: name some, or give another --data-dir")
    results: Results = {}
    apart: list[str] = []
    for path in paths:
        name = data_name(path)
        traces = list(TraceFiles([path], lambda told: print(told, file=sys.stderr)))
        start = time.perf_counter()
        ours = [parse_strategy(n.replace(SET, name), config) for n in held_out]
        tried = [*strategies, *(replace(s, name=n) for s, n in zip(ours, held_out, strict=True))]
        outcomes = measure(
            traces, tried, counter=counter, jobs=args.jobs, limit=args.limit, progress=progress(name)
        )
        seconds = time.perf_counter() - start
        results[name] = {o.strategy.name: o.figures for o in outcomes}
        f = outcomes[0].figures
        counts = f"{f.traces} traces, {f.steps:,} steps, {f.values:,} values ({f.values_old:,} old)"
        print(f"\n## {name}: {counts}, {seconds:.0f} s\n")
        print(markdown({s: [f] for s, f in results[name].items()}), flush=True)
        if args.compare_reference:
            apart += _print_comparison(args, path, strategies, results[name])
    if len(paths) > 1:
        print("\n## mean over the sets\n")
        rows = [s.name for s in strategies] + held_out
        print(markdown({n: [r[n] for r in results.values()] for n in rows}))
    if args.json:
        args.json.write_text(json.dumps(_document(args, counter, results, names, config), indent=1))
    if args.html:
        sections = [PageSection(name, list(rows.items())) for name, rows in results.items()]
        args.html.write_text(figures_page("Evidence kept, and its price", "", sections), encoding="utf-8")
    if args.svg:
        name, rows = next(iter(results.items()))
        args.svg.write_text(plot_file(PageSection(name, list(rows.items()))), encoding="utf-8")
    for line in apart:
        print(f"apart by more than a point: {line}")
    return 1 if apart else 0


def _is_local(settings: Any) -> bool:
    return getattr(settings, "embedding_model", "") == "lexical"


def _print_comparison(
    args: argparse.Namespace, path: Path, strategies: Sequence[Strategy], figures: Mapping[str, Figures]
) -> list[str]:
    """The differences to the reference meter as a table; returns those that are too large."""
    print(f"\n| ours less the reference, points | {' | '.join(COMPARED)} |")
    print("|---|" + "---:|" * len(COMPARED))
    apart = []
    for strategy in strategies:
        if strategy.kind != "plugin":
            continue
        points = compare(path, strategy, figures[strategy.name], args.limit)
        print(f"| {strategy.name} | {' | '.join(f'{p:+.3f}' for p in points.values())} |", flush=True)
        apart += [
            f"{data_name(path)}, {strategy.name}, {k}: {p:+.2f}" for k, p in points.items() if differs(p)
        ]
    return apart


def _document(
    args: argparse.Namespace, counter: str, results: Results, names: Sequence[str], config: Any
) -> dict[str, Any]:
    git = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, cwd=ROOT
    ).stdout.strip()
    keys = {n.partition("?")[0] for n in names}
    return {
        "commit": git,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "seed": 0,
        "jobs": args.jobs,
        "limit": args.limit,
        "counter": named_counter(counter).name,
        "settings": {k: s.model_dump() for k, s in config.memory_strategies.items() if k in keys},
        "results": {d: {s: f.as_dict() for s, f in rows.items()} for d, rows in results.items()},
    }


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MemoryBankError as e:
        sys.exit(f"benchmarks/evidence.py: {e}")
