"""Experiments on recorded runs and live models, and the fit of the evidence model.

    python -m benchmarks bench --config examples/experiment.toml
    python -m benchmarks train runs/*.jsonl --out my-model.json

The other benchmarks are scripts: ``python benchmarks/evidence.py --help``.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.experiments.plan import load_experiment, plan_experiment
from benchmarks.experiments.report import by_suite, markdown, render_report, report_lines
from benchmarks.experiments.run import Results, about_run, run_experiment
from benchmarks.harness import command_line
from benchmarks.training.train import retrain

from memory_bank import __version__
from memory_bank.cli.audit import APPROXIMATE, check_files
from memory_bank.cli.shared import answer, one_line, output_file, print_json, progress, table, tell
from memory_bank.errors import ConfigError, MemoryBankError


def bench(args: Namespace) -> int:
    """Run models × strategies × thresholds × cases; write results.jsonl, table.md and report.html."""
    experiment = load_experiment(args.config)
    plan = plan_experiment(experiment, tell)
    folder = args.out or Path(f"bench-{experiment.name.replace(' ', '-')}")
    header: dict[str, Any] = {
        "experiment": plan.hash,
        "about": about_run(experiment, __version__),
        "settings": {"experiment": experiment.model_dump(mode="json"), "strategies": plan.strategies},
    }
    with Results(folder / "results.jsonl", header) as results:
        try:
            with progress("done", "units") as bar:
                run_experiment(plan, results, jobs=args.jobs, progress=bar)
        except KeyboardInterrupt:
            kept = f"{len(results.done):,} of {len(plan.units):,} units are kept in {results.path}"
            raise KeyboardInterrupt(f"stopped: {kept}, the same command continues from there.") from None
        finally:
            lines = report_lines(plan, results.done)
            header["runs"] = results.runs
            page = render_report(experiment.name, lines, len(results.done), len(plan.units), header)
            for name, text in (("table.md", markdown(lines)), ("report.html", page)):
                with output_file(folder / name) as file:
                    assert file is not None
                    file.write(text)
    if args.as_json:
        print_json([line.as_row() for line in lines])
        return 0
    for suite, own in by_suite(lines).items():
        print(one_line(suite, 100))
        columns = own[0].columns
        cells = [[one_line(line.label, 60), *(c.cell(line) for c in columns)] for line in own]
        table(["strategy", *(c.title for c in columns)], cells, range(1, len(columns) + 1), whole=[0])
        print()
    if any(r.get("counter") == "approximate" for line in lines for r in line.results):
        print(APPROXIMATE)
    print(f"written to {one_line(str(folder), 500)}: results.jsonl, table.md, report.html")
    return 0


def train(args: Namespace) -> int:
    """Train a model for selection 'evidence' on recorded runs; it is written only if it wins on unseen ones."""
    check_files(args.traces)
    new, present, won = retrain(args.traces, args.out, args.against)
    answer(
        {"new": new, "present": present, "written": str(args.out) if won else None},
        f"log loss per needed value on unseen traces: new {new:.3f}, present {present:.3f}\n"
        + (f"wrote {args.out}" if won else "not written: the new model does not win."),
        args.as_json,
    )
    return 0 if won else 1


def arguments(words: Sequence[str] | None) -> Namespace:
    """The command line."""
    parser = command_line(__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("bench", help=bench.__doc__)
    one.add_argument("--config", type=Path, required=True, help="the experiment, a TOML file")
    one.add_argument("--out", type=Path, help="folder of the results; default: bench-NAME")
    one.add_argument("--jobs", type=int, help="how many processes; default: the experiment's")
    one.add_argument("--json", action="store_true", dest="as_json", help="print JSON")
    one.set_defaults(run=bench)
    one = verbs.add_parser("train", help=train.__doc__)
    one.add_argument(
        "traces", type=Path, nargs="+", help="files of recorded runs, best of several kinds of tasks"
    )
    one.add_argument("--out", type=Path, required=True, help="where to write the model, for evidence_model")
    one.add_argument("--against", type=Path, help="the model to beat; default: the shipped one")
    one.add_argument("--json", action="store_true", dest="as_json", help="print JSON")
    one.set_defaults(run=train)
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run a verb; the exit code: 1 where it failed, 2 where it was used wrongly, 130 on Ctrl-C."""
    args = arguments(words)
    try:
        code: int = args.run(args)
        return code
    except MemoryBankError as e:
        tell(str(e))
        return 2 if isinstance(e, ConfigError) else 1
    except KeyboardInterrupt as e:
        tell(str(e) or "stopped.")
        return 130


if __name__ == "__main__":
    sys.exit(main())
