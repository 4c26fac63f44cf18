"""``memory-bank explain`` and ``train``: why a context is what it is, and a model of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from memory_bank.cli.output import one_line, print_json, table
from memory_bank.cli.replay import check_files
from memory_bank.errors import ConfigError, TraceFileError


def explain(
    traces: Path = typer.Argument(..., help="A file of recorded runs."),
    trace_id: str | None = typer.Option(None, "--id", help="Which run; default: the first."),
    step: int | None = typer.Option(None, min=1, help="Which model call of it; default: the last."),
    strategy: str | None = typer.Option(
        None, help="Key in the configuration; default: its default_strategy."
    ),
    config: Path | None = typer.Option(None, help="Configuration file; default: the shipped one."),
    html: Path | None = typer.Option(None, help="Write one self-contained page."),
    as_json: bool = typer.Option(False, "--json", help="Print the manifest as JSON."),
) -> None:
    """Explain one context of a recorded run: what was shown, listed, left out, and why."""
    from memory_bank.config import load_config

    check_files([traces])
    settings = load_config(config)
    with _plan(traces, trace_id, step, settings, strategy or settings.default_strategy) as plan:
        if html is not None:
            html.write_text(plan.as_html(), encoding="utf-8", errors="replace")
        if as_json:
            print_json(plan.manifest())
        else:
            _print(plan)
    if html is not None and not as_json:
        print(f"wrote {html}")


def _print(plan: Any) -> None:
    print(f"{plan.tokens:,} tokens instead of {plan.full_tokens:,}, {plan.memory_tokens:,} of them memory")
    rows = [
        [
            "–" if d.step is None else str(d.step),
            one_line(", ".join(d.tools), 30),
            str(d.fate),
            "" if d.score is None else f"{d.score:.3f}",
            f"{d.tokens:,}",
            one_line(d.reason, 100),
        ]
        for d in plan.decisions
    ]
    table(["step", "tools", "fate", "worth", "tokens", "why"], rows, right=frozenset({0, 3, 4}))


@contextmanager
def _plan(file: Path, trace_id: str | None, step: int | None, config: Any, strategy: str) -> Iterator[Any]:
    """The plan of one model call; the bank behind it stays open while it is read."""
    from memory_bank.lab.replay import replay_trace
    from memory_bank.lab.traces import Trace, read_traces
    from memory_bank.transcript.content import read

    found = (t for t in read_traces(file) if isinstance(t, Trace) and trace_id in (None, t.id))
    trace = next(found, None)
    if trace is None:
        raise TraceFileError(f"{file} has no such run: check --id.")
    calls = sum(1 for m in trace.messages if read(m, "role") == "assistant")
    wanted = calls if step is None else step
    steps = replay_trace(trace, config, strategy)
    made = next((s for s in steps if s.step == wanted), None)
    if made is None:
        raise TraceFileError(f"the run {trace.id} has {calls} model calls: choose one of them.")
    if made.plan is None:
        raise ConfigError(f"the strategy {strategy} keeps no plan: choose one of type memory_bank.")
    yield made.plan


def train(
    traces: list[Path] = typer.Argument(..., help="Files of recorded runs, best of several kinds of tasks."),
    out: Path = typer.Option(..., help="Where to write the model (JSON), for the setting evidence_model."),
    against: Path | None = typer.Option(None, help="The model to beat; default: the shipped one."),
    as_json: bool = typer.Option(False, "--json", help="Print the figures as JSON."),
) -> None:
    """Train a model for selection 'evidence' on your own traces; written only if it wins on unseen ones."""
    from memory_bank.lab.training.train import retrain

    check_files(traces)
    new, present, won = retrain(traces, out, against)
    if as_json:
        print_json({"new": new, "present": present, "written": str(out) if won else None})
    else:
        print(f"log loss per needed value on unseen traces: new {new:.3f}, present {present:.3f}")
        print(f"wrote {out}" if won else "not written: the new model does not win.")
    if not won:
        raise typer.Exit(1)
