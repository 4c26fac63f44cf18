"""``memory-bank bench``: an experiment from a file, gone on with where it was left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from memory_bank.cli.output import Progress, Stopped, one_line, output_file, print_json, table, tell


def bench(
    config: Path = typer.Option(..., help="The experiment, a TOML file."),
    out: Path | None = typer.Option(None, help="Folder of the results; default: bench-NAME."),
    jobs: int | None = typer.Option(None, min=1, help="How many processes; default: the experiment's."),
    as_json: bool = typer.Option(False, "--json", help="Print the table as JSON."),
) -> None:
    """Run models × strategies × thresholds × cases; writes results.jsonl, table.md and report.html.

    The same command goes on where it was stopped: no case is done twice.
    """
    from memory_bank import __version__
    from memory_bank.lab.experiments.config import load_experiment
    from memory_bank.lab.experiments.page import render_report
    from memory_bank.lab.experiments.results import Results
    from memory_bank.lab.experiments.runner import about, run_experiment
    from memory_bank.lab.experiments.tables import gather, markdown
    from memory_bank.lab.experiments.units import plan_experiment

    experiment = load_experiment(config)
    plan = plan_experiment(experiment, tell)
    folder = out or Path(f"bench-{experiment.name.replace(' ', '-')}")
    header = {
        "experiment": plan.hash,
        "about": about(experiment, __version__),
        "settings": {"experiment": experiment.model_dump(mode="json"), "strategies": plan.strategies},
    }
    with Results(folder / "results.jsonl", header) as results:
        try:
            with Progress("done", "units") as bar:
                run_experiment(plan, results, jobs=jobs, progress=bar.advance)
        except KeyboardInterrupt:
            left = f"{len(results.done):,} of {len(plan.units):,} units are kept in {results.path}"
            raise Stopped(f"stopped: {left}, the same command goes on from there.") from None
        finally:
            lines = gather(plan, results.done)
            made = {**header, "runs": results.runs}
            page = render_report(experiment.name, lines, len(results.done), len(plan.units), made)
            for name, text in (("table.md", markdown(lines)), ("report.html", page)):
                with output_file(folder / name) as file:
                    assert file is not None
                    file.write(text)
    if as_json:
        print_json([_row(line) for line in lines])
    else:
        _print(lines)
        print(f"written to {one_line(str(folder), 500)}: results.jsonl, table.md, report.html")


def _row(line: Any) -> dict[str, Any]:
    from memory_bank.lab.experiments.tables import columns_of

    numbers = {c.title: c.value(line) for c in columns_of(line.kind)}
    place = {k: getattr(line, k) for k in ("suite", "kind", "model", "strategy", "threshold")}
    return {**place, **{k: None if v != v else v for k, v in numbers.items()}}


def _print(lines: Any) -> None:
    from memory_bank.lab.experiments.tables import columns_of

    for suite in dict.fromkeys(line.suite for line in lines):
        own = [line for line in lines if line.suite == suite]
        columns = columns_of(own[0].kind)
        print(one_line(suite, 100))
        rows = [[one_line(line.label, 60), *(c.cell(line) for c in columns)] for line in own]
        table(["strategy", *(c.title for c in columns)], rows, frozenset(range(1, len(columns) + 1)))
        print()
    if any(r.get("counter") == "approximate" for line in lines for r in line.results):
        print("token counts are approximate")
