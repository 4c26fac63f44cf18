"""``memory-bank audit``: which memory suits one's own recorded runs, and what it would have saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from memory_bank.cli.output import Progress, one_line, output_file, print_json, table, tell
from memory_bank.cli.replay import check_files


def audit(
    traces: list[Path] = typer.Argument(..., help="Files of JSON lines {id, messages}, plain or .gz."),
    strategy: list[str] = typer.Option(
        [], help="Key, KEY?setting=value, or module:function; default: every memory of the configuration."
    ),
    config: Path | None = typer.Option(None, help="Configuration file; default: the shipped one."),
    budget: list[int] = typer.Option([], min=0, help="Tokens of history to try, where a strategy has them."),
    jobs: int = typer.Option(1, min=1, help="How many processes measure."),
    html: Path | None = typer.Option(None, help="Write a page with the frontier plot."),
    as_json: bool = typer.Option(False, "--json", help="Print everything as JSON."),
) -> None:
    """Measure on recorded runs what each memory keeps of the evidence that calls needed, and advise one.

    No model is called: summaries are made by extraction, and nothing leaves this machine.
    """
    from memory_bank.config import load_config
    from memory_bank.lab.meter.audit import audit as run
    from memory_bank.lab.meter.audit import candidates

    tried = candidates(load_config(config), strategy, budget)
    check_files(traces)
    with output_file(html, *traces) as target, Progress("measured", "traces") as bar:
        report = run(traces, tried, jobs=jobs, tell=tell, progress=bar.advance)
        if target is not None:
            from memory_bank.lab.meter.page import audit_page

            target.write(audit_page(report))
    if as_json:
        print_json(report.as_dict())
    else:
        _print(report)
    if report.unreadable_files or not any(o.figures.steps for o in report.outcomes):
        raise typer.Exit(1)


def _print(report: Any) -> None:
    from memory_bank.lab.meter.columns import SHORT

    rows = [[one_line(o.strategy.name, 60), *(c.cell([o.figures]) for c in SHORT)] for o in report.outcomes]
    table(["strategy", *(c.title.strip() for c in SHORT)], rows, frozenset(range(1, len(SHORT) + 1)))
    print()
    for column in SHORT:
        print(f"{column.title.strip():<11} {column.meaning}")
    print()
    if report.counter == "approximate":
        print("token counts are approximate: tiktoken's vocabulary is not at hand")
    for note in report.notes:
        print(one_line(note, 500))
    if report.skipped_lines:
        print(f"skipped lines: {len(report.skipped_lines):,}")
    if report.unreadable_files:
        print(f"unreadable files: {len(report.unreadable_files):,}")
    print(one_line(report.sentence, 2_000))
