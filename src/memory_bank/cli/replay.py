"""``memory-bank replay``: recorded runs through a strategy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from memory_bank.cli.output import is_terminal, json_line, print_json


def replay(
    traces: list[Path] = typer.Argument(..., help="Files of JSON lines {id, messages, tools?}, plain or .gz."),
    strategy: str | None = typer.Option(None, help="Key in the configuration; default: its default_strategy."),
    config: Path | None = typer.Option(None, help="Configuration file; default: the shipped one."),
    db: str | None = typer.Option(None, help="Keep the memory in this database; default: in memory."),
    out: Path | None = typer.Option(None, help="Write a JSON line a step: id, step, messages, tokens."),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON."),
) -> None:
    """Play recorded runs: before every assistant turn, build the context the agent would have seen.

    No model is called: summaries are made by extraction.
    """
    from memory_bank.config import load_config
    from memory_bank.errors import TraceFileError
    from memory_bank.replay import Summary, replay_trace
    from memory_bank.stores.database import Database
    from memory_bank.traces import BrokenLine, read_traces

    settings = load_config(config)
    key = strategy or settings.default_strategy
    settings.strategy(key)
    for path in traces:
        if not path.is_file():
            raise TraceFileError(f"there is no trace file {path}: check the name.")
    database = Database(db or "")
    summary = Summary(key)
    target = open(out, "w", encoding="utf-8") if out else None  # noqa: SIM115
    bar = _Progress(traces)
    try:
        for path in traces:
            for trace in read_traces(path):
                if isinstance(trace, BrokenLine):
                    told = f"{trace.file}, line {trace.line}: {trace.reason}"
                    summary.skipped_lines.append(told)
                    print(f"memory-bank: skipped {told}.", file=sys.stderr)
                    continue
                summary.traces += 1
                for step in replay_trace(trace, settings, key, database=database):
                    summary.add(step)
                    if target is not None:
                        line: dict[str, Any] = {"id": step.trace_id, "step": step.step}
                        target.write(json_line(line | {"messages": step.messages, "tokens": step.tokens}))
                bar.advance(path, summary.traces)
    finally:
        bar.stop()
        if target is not None:
            target.close()
        database.close()
    if as_json:
        print_json(summary.as_dict())
    else:
        _print(summary)
    if summary.broken_pairs:
        raise typer.Exit(1)


def _print(summary: Any) -> None:
    s = summary.as_dict()
    print(f"strategy             {s['strategy']}")
    if s["embedder"]:
        print(f"                     embedder {s['embedder']}, observer {s['observer']}")
    print(f"traces               {s['traces']:,}")
    print(f"steps                {s['steps']:,}")
    print(f"mean full tokens     {s['mean_full_tokens']:,.0f}")
    print(f"mean context tokens  {s['mean_context_tokens']:,.0f}")
    print(f"ratio                {s['ratio']:.1%}")
    print(f"broken pairs         {s['broken_pairs']}")
    if s["token_counter"] == "approximate":
        print("token counts are approximate: tiktoken's vocabulary is not at hand")
    if s["skipped_lines"]:
        print(f"skipped lines        {len(s['skipped_lines'])}")


class _Progress:
    """A progress bar on a terminal, nothing elsewhere."""

    def __init__(self, files: list[Path]) -> None:
        self._bar: Any = None
        if is_terminal():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed} traces"),
                TimeElapsedColumn(), console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task("replay", total=_count_lines(files))

    def advance(self, path: Path, done: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=path.name, completed=done)

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def _count_lines(files: list[Path]) -> int:
    import gzip

    total = 0
    for path in files:
        opener: Any = gzip.open if path.suffix == ".gz" else open
        try:
            with opener(path, "rb") as f:
                total += sum(1 for _ in f)
        except (OSError, EOFError):
            continue
    return total
