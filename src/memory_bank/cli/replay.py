"""``memory-bank replay``: recorded runs through a strategy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from memory_bank.cli.interrupts import between_steps
from memory_bank.cli.output import is_terminal, json_line, one_line, output_file, print_json, tell
from memory_bank.errors import ConfigError


def replay(
    traces: list[Path] = typer.Argument(..., help="Files of JSON lines {id, messages}, plain or .gz."),
    strategy: str | None = typer.Option(None, help="Key in the configuration; default: the one it names."),
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
    from memory_bank.lab.replay import Summary, replay_trace
    from memory_bank.lab.traces import BrokenLine, read_traces

    settings = load_config(config)
    key = strategy or settings.default_strategy
    settings.strategy(key)
    check_files(traces)
    summary = Summary(key)
    with (
        between_steps() as look,
        _memory(db) as memory,
        output_file(out, *traces, *([Path(db)] if db else [])) as target,
        _Progress(traces) as bar,
    ):
        for path in traces:
            try:
                for trace in read_traces(path):
                    if isinstance(trace, BrokenLine):
                        told = f"{trace.file}, line {trace.line}: {trace.reason}"
                        summary.skipped_lines.append(told)
                        tell(f"skipped {told}.")
                        continue
                    summary.traces += 1
                    for step in replay_trace(trace, settings, key, memory=memory):
                        look()
                        summary.add(step)
                        if target is not None:
                            line: dict[str, Any] = {"id": step.trace_id, "step": step.step}
                            target.write(json_line(line | {"messages": step.messages, "tokens": step.tokens}))
                    bar.advance(path, summary.traces)
            except TraceFileError as e:  # the other files can still be read
                summary.unreadable_files.append(str(path))
                tell(str(e))
        summary.continued = memory.continued
    if as_json:
        print_json(summary.as_dict())
    else:
        _print(summary)
    if summary.broken_pairs or summary.unreadable_files:
        raise typer.Exit(1)


def check_files(traces: list[Path]) -> None:
    """Raise ConfigError for a trace file that is a directory or is not there."""
    for path in traces:
        if path.is_dir():
            raise ConfigError(f"{path} is a directory: name the trace files in it.")
        if not path.exists():
            raise ConfigError(f"there is no trace file {path}: check the name.")


@contextlib.contextmanager
def _memory(db: str | None) -> Iterator[Any]:
    from memory_bank.bank.database import Database, database_url
    from memory_bank.lab.replay import Memory

    if db:
        url = database_url(db)
        folder = Path(url.database or "").parent
        if url.get_backend_name() == "sqlite" and not folder.is_dir():
            raise ConfigError(
                f"there is no folder {folder} for the bank: make it, or give --db another path."
            )
    kept = Memory(Database(db) if db else None)
    try:
        yield kept
    finally:
        kept.close()


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
        print(f"skipped lines        {len(s['skipped_lines']):,}")
    if s["unreadable_files"]:
        print(f"unreadable files     {len(s['unreadable_files']):,}")
    if s["continued"]:
        print(
            f"continued sessions   {s['continued']:,}: they held records, contexts may show what came later"
        )


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
            self._task = self._bar.add_task("replay", total=_count_lines(files) or None)

    def advance(self, path: Path, done: int) -> None:
        if self._bar is not None:
            from rich.markup import escape

            self._bar.update(self._task, description=one_line(escape(path.name), 40), completed=done)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _count_lines(files: list[Path]) -> int:
    import gzip
    import zlib

    total = 0
    for path in files:
        if not path.is_file():  # a pipe can be read only once
            continue
        opener: Any = gzip.open if path.suffix == ".gz" else open
        try:
            with opener(path, "rb") as f:
                total += sum(1 for _ in f)
        except (OSError, EOFError, zlib.error):
            continue
    return total
