"""What ``evidence.py`` and ``acting.py`` share: their options, tables, files, and the comparison with a reference."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness import DATA, about, command_line, print_counter, print_head, print_row
from measuring.pages import PageSection, PlottedShare, figures_page
from measuring.strategies import Strategy, parse_strategy, with_budgets
from measuring.tables import Column, markdown_table
from memory_bank.audit.costs import named_counter
from memory_bank.audit.traces import Trace, TraceFiles, message_texts
from memory_bank.config import SHIPPED, Config, load_config, read_toml
from memory_bank.errors import MemoryBankError
from memory_bank.pages import render

WITHIN = 1.0  # points that a figure may differ from the reference meter's
REFERENCE = "reference"
SET = "{set}"  # in a strategy: the name of the data set

Figures = Any  # Figures or ActingFigures: shares as attributes, share_of_history, intervals, as_dict()
Results = dict[str, dict[str, Figures]]  # data set → strategy → figures


class ReferenceCounter:
    """Counts as the reference meter does (``evbench.text``): 4 a message and its texts by cl100k_base.

    A call is one text, its name and arguments separated by a space; texts are encoded 4,000 characters at a time.
    """

    name = REFERENCE
    approximate = False

    def count_text(self, text: str) -> int:
        """Tokens of a text."""
        counter = named_counter("cl100k_base")
        return sum(counter.count_text(text[i : i + 4_000]) for i in range(0, len(text), 4_000))

    def count_message(self, message: object) -> int:
        """Tokens of a message."""
        return 4 + sum(map(self.count_text, message_texts(message)))


@dataclass(frozen=True, slots=True)
class Meter:
    """A way to measure strategies, and how its figures are shown and compared.

    ``evaluate`` runs the reference meter's module on a strategy, a file and a limit; ``compared`` names its figures,
    shares of 0 to 1, with ours. ``measure`` has the signature of ``measuring.measure.measure``.
    """

    command: str
    title: str
    measure: Callable[..., Sequence[Any]]
    columns: Sequence[Column[Any]]
    shares: Sequence[PlottedShare]
    counts: Callable[[Figures], str]
    reference: str
    compared: Mapping[str, str]
    evaluate: Callable[[Any, str, str, int | None], Mapping[str, float]]


def run(meter: Meter, description: str) -> None:
    """Measure as the command line says, and exit: 1 where a figure is too far from the reference meter's."""
    try:
        sys.exit(_run(meter, _arguments(description)))
    except MemoryBankError as e:
        sys.exit(f"{meter.command}: {e}")


def _arguments(description: str) -> argparse.Namespace:
    parser = command_line(description)
    parser.add_argument("data", nargs="*", help="trace files or names; default: every file of --data-dir")
    parser.add_argument("--data-dir", type=Path, default=DATA)
    parser.add_argument(
        "--strategy", action="append", default=[], help="default: full and every local memory"
    )
    parser.add_argument(
        "--baseline", action="append", default=[], help="a strategy to compare with at equal tokens"
    )
    parser.add_argument(
        "--at", action="append", type=float, default=[], metavar="SHARE",
        help="try each strategy that has a budget with this share of the older history, for example 0.25",
    )  # fmt: skip
    parser.add_argument("--config", type=Path)
    parser.add_argument("--counter", help="a tiktoken encoding, approximate or reference")
    parser.add_argument("--limit", type=int, help="limit of traces of each set, evenly spread")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures with commit, settings and machine")
    parser.add_argument(
        "--lines", type=Path, help="append a JSON line for each set and strategy, as they finish"
    )
    parser.add_argument("--html", type=Path, help="write a page with the frontier plots")
    parser.add_argument("--svg", type=Path, help="write the frontier plot of the first data set")
    parser.add_argument("--compare-reference", type=Path, metavar="DIR")
    args = parser.parse_args()
    if any(not 0 < share < 1 for share in args.at):
        parser.error("--at takes a share of the older history between 0 and 1, for example 0.25")
    return args


def _run(meter: Meter, args: argparse.Namespace) -> int:
    if args.compare_reference:
        sys.path.insert(0, str(args.compare_reference.resolve()))
    config = load_config(args.config)
    named = read_toml(args.config).get("memory_strategies") or SHIPPED
    names = args.strategy or ["full", *(k for k in named if _is_local(config.strategy(k)))]
    for name in (*names, *args.baseline):
        if SET not in name:
            parse_strategy(name, config)
    counter = args.counter or (REFERENCE if args.compare_reference else "o200k_base")
    if args.compare_reference and counter != REFERENCE:
        raise SystemExit("--compare-reference counts by the reference meter's rule: leave --counter out")
    paths = [find(n, args.data_dir) for n in args.data] or sorted(args.data_dir.glob("*.jsonl*"))
    if not paths:
        raise SystemExit(f"{args.data_dir} holds no trace files: name some, or give another --data-dir")
    made = _about(args, counter, names, config)
    if counter != REFERENCE:
        print_counter(counter)
    results: Results = {}
    apart: list[str] = []
    for path in paths:
        name = data_name(path)
        traces = list(TraceFiles([path], lambda told: print(told, file=sys.stderr)))
        start = time.perf_counter()
        strategies = _strategies(names, args, config, name)
        outcomes = meter.measure(
            traces,
            strategies,
            counter=ReferenceCounter() if counter == REFERENCE else counter,
            jobs=args.jobs,
            limit=args.limit,
            progress=_progress(name),
        )
        seconds = time.perf_counter() - start
        results[name] = {o.strategy.name: o.figures for o in outcomes}
        print(f"\n## {name}: {meter.counts(outcomes[0].figures)}, {seconds:.0f} s\n")
        print(_markdown(meter, {s: [f] for s, f in results[name].items()}), flush=True)
        _print_gains(meter, results[name], args.baseline)
        if args.lines:
            with args.lines.open("a", encoding="utf-8") as file:
                for strategy, figures in results[name].items():
                    row = {"set": name, "strategy": strategy, **figures.as_dict(), "about": made}
                    file.write(json.dumps(row) + "\n")
        if args.compare_reference:
            apart += _print_comparison(meter, args, path, traces, strategies, results[name])
    if len(paths) > 1:
        print("\n## mean over the sets\n")
        rows = list(next(iter(results.values())))
        print(_markdown(meter, {n: [r[n] for r in results.values()] for n in rows}))
    if args.json:
        document = made | {"results": {d: {s: f.as_dict() for s, f in r.items()} for d, r in results.items()}}
        args.json.write_text(json.dumps(document, indent=1))
    sections = [PageSection(name, list(rows.items()), meter.shares) for name, rows in results.items()]
    if args.html:
        page = figures_page(meter.title, sections, meter.columns)
        args.html.write_text(page, encoding="utf-8")
    if args.svg:
        args.svg.write_text(plot_file(sections[0]), encoding="utf-8")
    for line in apart:
        print(f"apart by more than a point: {line}")
    return 1 if apart else 0


def plot_file(section: PageSection) -> str:
    """The section's first frontier plot as an SVG file, for light and dark, with short names as labels."""
    rows = [(short_name(name), f) for name, f in section.rows]
    return PageSection("", rows, section.shares).plots(style=render("colours.css"))[0]


def short_name(strategy: str) -> str:
    """``keep_last_n?n=5`` as ``keep_last_n 5``: the key and the values of its settings, without files."""
    key, _, changes = strategy.partition("?")
    values = (s.partition("=")[2] for s in changes.split("&") if s)
    return " ".join([key, ", ".join(v for v in values if "/" not in v)]).strip()


def find(name: str, folder: Path) -> Path:
    """The file of a data set."""
    for path in (Path(name), folder / name, folder / f"{name}.jsonl.gz", folder / f"{name}.jsonl"):
        if path.is_file():
            return path
    raise SystemExit(f"there is no trace file {name}, nor one of that name in {folder}")


def data_name(path: Path) -> str:
    """What tables call a data set."""
    return path.name.removesuffix(".gz").removesuffix(".jsonl")


def _is_local(settings: Any) -> bool:
    return getattr(settings, "embedding_model", "") == "lexical"


def _strategies(names: Sequence[str], args: argparse.Namespace, config: Config, data: str) -> list[Strategy]:
    """The strategies to measure on a set, named without the set's name; the baselines last."""
    found: dict[str, Strategy] = {}
    for name in (*names, *args.baseline):
        parsed = replace(parse_strategy(name.replace(SET, data), config), name=name)
        for strategy in with_budgets(parsed, args.at) if args.at else [parsed]:
            found.setdefault(strategy.name, strategy)
    return list(found.values())


def _markdown(meter: Meter, rows: Mapping[str, Sequence[Figures]]) -> str:
    """A table: a row for each strategy, the mean where there are several figures."""
    cells = [[name, *(c.cell(*figures) for c in meter.columns)] for name, figures in rows.items()]
    return markdown_table(["strategy", *(c.title for c in meter.columns)], cells)


def _print_gains(meter: Meter, figures: Mapping[str, Figures], baselines: Sequence[str]) -> None:
    """Each strategy's shares less the baselines' at the same share of the older history, in points."""
    points = sorted(
        (figures[b].share_of_history, b) for b in baselines if not math.isnan(figures[b].share_of_history)
    )
    if not points:
        return
    print()
    print_head("points over the baselines at equal tokens", *(s.name for s in meter.shares))
    for name, own in figures.items():
        if name not in baselines:
            print_row(name, *(_gain(own, [figures[b] for _, b in points], s.name) for s in meter.shares))


def _gain(own: Figures, baselines: Sequence[Figures], share: str) -> str:
    """The gain over a straight line between the baselines; a dash beyond the cheapest and the dearest one."""
    prices = [b.share_of_history for b in baselines]
    if not prices[0] <= own.share_of_history <= prices[-1]:
        return "–"
    gain = getattr(own, share) - np.interp(
        own.share_of_history, prices, [getattr(b, share) for b in baselines]
    )
    return "–" if math.isnan(gain) else f"{100 * gain:+.1f}"


def _progress(name: str) -> Any:
    """Traces done, on a terminal only."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        end = "\n" if done == total else ""
        print(f"\r{name}: {done} of {total} traces", end=end, file=sys.stderr, flush=True)

    return show


def _print_comparison(
    meter: Meter,
    args: argparse.Namespace,
    path: Path,
    traces: Sequence[Trace],
    strategies: Sequence[Strategy],
    figures: Mapping[str, Figures],
) -> list[str]:
    """The differences to the reference meter as a table; returns those that are too large."""
    print()
    print_head("ours less the reference, points", *meter.compared)
    limit = args.limit if args.limit and args.limit < len(traces) else None
    apart = []
    for strategy in strategies:
        if strategy.kind != "plugin":
            continue
        module = importlib.import_module(meter.reference)
        theirs = meter.evaluate(module, strategy.name, str(path.resolve()), limit)
        own = figures[strategy.name]
        points = {k: _points(getattr(own, name), theirs[k]) for k, name in meter.compared.items()}
        print_row(strategy.name, *(f"{p:+.3f}" for p in points.values()))
        apart += [
            f"{data_name(path)}, {strategy.name}, {k}: {p:+.2f}" for k, p in points.items() if _differs(p)
        ]
    return apart


def _points(ours: float, theirs: float) -> float:
    """A difference in points; 0 where neither had anything to share."""
    return 0.0 if math.isnan(ours) and math.isnan(theirs) else 100 * (ours - theirs)


def _differs(points: float) -> bool:
    """Whether a difference is too large; one meter alone having nothing to share is."""
    return math.isnan(points) or abs(points) > WITHIN


def _about(args: argparse.Namespace, counter: str, names: Sequence[str], config: Config) -> dict[str, Any]:
    """The commit, the machine and the settings of the strategies."""
    keys = {n.partition("?")[0] for n in names}
    return about(
        seed=0,
        jobs=args.jobs,
        limit=args.limit,
        counter=counter if counter == REFERENCE else named_counter(counter).name,
        settings={k: s.model_dump() for k, s in config.memory_strategies.items() if k in keys},
    )
