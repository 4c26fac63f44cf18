"""The verbs on recorded runs: replay, audit, explain."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import typer

from memory_bank.cli.shared import (
    CONFIG,
    JSON,
    answer,
    json_line,
    one_line,
    output_file,
    print_json,
    progress,
    table,
    tell,
)  # fmt: skip
from memory_bank.errors import ConfigError, TraceFileError

if TYPE_CHECKING:
    from memory_bank.audit.runs import Bill
    from memory_bank.audit.traces import TraceFiles

APPROXIMATE = "token counts are approximate: the vocabulary of tiktoken is not available"


def replay(
    traces: list[Path] = typer.Argument(..., help="Files of JSON lines {id, messages}, plain or .gz."),
    strategy: str | None = typer.Option(None, help="Key in the configuration; default: its default."),
    config: Path | None = CONFIG,
    db: str | None = typer.Option(None, help="Keep the memory in this database; default: in memory."),
    out: Path | None = typer.Option(None, help="Write a JSON line a step: id, step, messages, tokens."),
    as_json: bool = JSON,
) -> None:
    """Play recorded runs: before every assistant turn, build the context the agent would have seen.

    No model is called: summaries are made by extraction.
    """
    from memory_bank import load_config
    from memory_bank.audit import replay as module
    from memory_bank.audit.traces import TraceFiles

    settings = load_config(config)
    key = strategy or settings.default_strategy
    settings.strategy(key)
    check_files(traces)
    files = TraceFiles(traces, tell)
    played = steps = full = sent = broken = 0
    counter = embedder = observer = ""
    with (
        output_file(out, *traces, *([Path(db)] if db else [])) as target,
        progress("replayed", "traces") as bar,
    ):
        memory = module.TraceMemory(_database(db))
        for trace in files:
            played += 1
            for step in module.replay_trace(trace, settings, key, memory=memory):
                steps += 1
                full, sent, broken = full + step.full_tokens, sent + step.tokens, broken + step.broken_pairs
                counter = step.counter
                if step.plan is not None:
                    embedder, observer = step.plan.embedder, step.plan.observer
                if target is not None:
                    line = {"id": step.trace_id, "step": step.step, "messages": step.messages}
                    target.write(json_line(line | {"tokens": step.tokens}))
            bar(played)
    files.check_calls()
    s = {
        "strategy": key, "traces": played, "steps": steps, "broken_pairs": broken, "skipped_lines": files.skipped,
        "unreadable_files": files.unreadable, "continued": memory.continued, "token_counter": counter,
        "embedder": embedder, "observer": observer, "mean_full_tokens": full / max(1, steps),
        "mean_context_tokens": sent / max(1, steps), "ratio": sent / full if full else 1.0,
    }  # fmt: skip
    warning = "they had records, contexts may show what came later"
    lines = [
        ("strategy", key),
        ("", f"embedder {embedder}, observer {observer}" if embedder else ""),
        ("traces", f"{played:,}"),
        ("steps", f"{steps:,}"),
        ("mean full tokens", f"{s['mean_full_tokens']:,.0f}"),
        ("mean context tokens", f"{s['mean_context_tokens']:,.0f}"),
        ("ratio", f"{s['ratio']:.1%}"),
        ("broken pairs", str(broken)),
        ("", APPROXIMATE if counter == "approximate" else ""),
        *_unread(files),
        ("continued sessions", f"{memory.continued:,}: {warning}" if memory.continued else ""),
    ]
    answer(s, "\n".join(f"{title:<20} {text}" for title, text in lines if text), as_json)
    if broken or files.unreadable:
        raise typer.Exit(1)


def _unread(files: TraceFiles, *, named: bool = False) -> list[tuple[str, str]]:
    """The unread parts: pairs of a title and a count, without those of 0; ``named``: also unknown formats."""
    counts = {
        "skipped lines": files.skipped,
        "files of another format": files.unknown if named else (),
        "unreadable files": files.unreadable,
    }
    return [(title, f"{len(each):,}") for title, each in counts.items() if each]


def check_files(traces: list[Path]) -> None:
    """Raise ConfigError for a trace file that is a directory or does not exist."""
    for path in traces:
        if path.is_dir():
            raise ConfigError(f"{path} is a directory: name the trace files in it.")
        if not path.exists():
            raise ConfigError(f"there is no trace file {path}: check the name.")


def _database(db: str | None) -> str | None:
    """The database to keep the memory in, created if needed. Raises ConfigError, StorageError."""
    from memory_bank.bank.database import Database, database_url

    if not db:
        return None
    url = database_url(db)
    folder = Path(url.database or "").parent
    if url.get_backend_name() == "sqlite" and not folder.is_dir():
        raise ConfigError(f"there is no folder {folder} for the bank: make it, or give --db another path.")
    Database(db).close()
    return db


def audit(
    traces: list[Path] = typer.Argument(..., help="Files of recorded runs or of agents' logs, or their folders."),
    strategy: str | None = typer.Option(None, help="Key in the configuration; default: its default."),
    config: Path | None = CONFIG,
    model: str = typer.Option("claude-sonnet-5-5", help="The model at whose list price the input is billed."),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Say what recorded runs would have cost with memory, by their length, and what it would have kept.

    Read are JSON lines or documents of chat or Anthropic messages, and the logs of Claude Code (~/.claude/projects),
    Codex (~/.codex/sessions), Cline, SWE-agent, OpenHands and Gemini CLI. Where the agent compacted its history: what
    its summary kept of the values that the next 30 calls took, what the bank would have kept beside it (assist) or in
    its place (answer). No model is called: summaries are made by extraction,
    nothing leaves this machine, and no contents are printed.
    """
    from memory_bank import MemoryBankSettings, load_config
    from memory_bank.audit.logs import audit_logs
    from memory_bank.audit.runs import audit_runs, bills_of, measure_runs
    from memory_bank.audit.sessions import log_files
    from memory_bank.audit.traces import TraceFiles
    from memory_bank.pricing import known_price
    from memory_bank.transcript import open_counter

    settings = load_config(config)
    key = strategy or settings.default_strategy
    files = TraceFiles(log_files(traces), tell)
    runs = list(files)
    files.check_calls()
    price, _ = known_price(settings.prices, model) or (None, "")
    if price is None:
        raise ConfigError(f"{one_line(model, 60)} has no list price: name another --model, such as gpt-4.1.")
    compacted = any(run.compactions for run in runs)
    with progress("measured", "runs") as bar:
        rows = measure_runs(runs, settings, key, model, bar)
    bills = bills_of(runs, rows, price)
    measured = audit_runs(key, rows)
    if compacted:
        default = settings.strategy(settings.default_strategy)
        bank = default if isinstance(default, MemoryBankSettings) else None
        with progress("read", "sessions") as bar:
            logs = audit_logs(files, runs, bank=bank, assist=settings.service.compaction_tokens, progress=bar)
        value, sentences, counter = logs.as_dict(), logs.sentences(), logs.token_counter
    else:
        sentences = measured.sentences(bills[0] if bills else None)
        counter = open_counter().name
        unused = {"skipped_lines": files.skipped, "unreadable_files": files.unreadable}
        value = measured._asdict() | {"sentences": sentences, "token_counter": counter} | unused
    if as_json:
        print_json(value | {"model": model, "bills": [b._asdict() for b in bills]})
    else:
        _print_bills(bills, key, model)
        if counter == "approximate":
            print(APPROXIMATE)
        for title, count in _unread(files, named=compacted):
            print(f"{title}: {count}")
        for sentence in sentences:
            print(fill(one_line(sentence, 2_000), 80))
    if files.unreadable or not measured.steps:
        raise typer.Exit(1)


def _print_bills(bills: Sequence[Bill], strategy: str, model: str) -> None:
    """The verdict: what was paid without memory, and would have been paid with it, by length."""
    if not bills:
        return
    all_ = bills[0]
    verdict = (
        f"Without memory the input costs ${all_.without:,.4g}, with {strategy} ${all_.with_memory:,.4g} "
        f"({all_.with_memory / all_.without:.0%}), at the list price of {one_line(model, 60)}."
    )
    print(f"{fill(verdict, 80)}\n")
    rows = [
        [b.tool_calls, b.runs, f"${b.without:,.4g}", f"${b.with_memory:,.4g}",
         f"{b.with_memory / b.without:.0%}", f"{b.dearest:.0%}"]
        for b in bills[1:]
    ]  # fmt: skip
    table(
        ["tool calls", "runs", "without", "with memory", "share", "dearest run"], rows, range(1, 6), whole=[0]
    )
    print()


def explain(
    traces: Path = typer.Argument(..., help="A file of recorded runs."),
    trace_id: str | None = typer.Option(None, "--id", help="Which run; default: the first."),
    step: int | None = typer.Option(None, min=1, help="Which model call of it; default: the last."),
    strategy: str | None = typer.Option(None, help="Key in the configuration; default: its default."),
    config: Path | None = CONFIG,
    html: Path | None = typer.Option(None, help="Write one self-contained page."),
    as_json: bool = JSON,
) -> None:
    """Explain one context of a recorded run: what was shown, listed, left out, and why."""
    from memory_bank import load_config
    from memory_bank.audit.replay import replay_trace
    from memory_bank.audit.traces import TraceFiles, is_turn

    check_files([traces])
    settings = load_config(config)
    key = strategy or settings.default_strategy
    trace = next((t for t in TraceFiles([traces], tell, strict=True) if trace_id in (None, t.id)), None)
    if trace is None:
        raise TraceFileError(f"{traces} has no such run: check --id.")
    calls = sum(map(is_turn, trace.messages))
    if not calls:
        raise TraceFileError(f"the run {trace.id} has no model call: choose another run with --id.")
    with contextlib.closing(replay_trace(trace, settings, key)) as steps:  # the plan reads its open bank
        played = next((s for s in steps if s.step == (step or calls)), None)
        if played is None:
            raise TraceFileError(
                f"the run {trace.id} has {calls} model calls: choose --step from 1 to {calls}."
            )
        if played.plan is None:
            raise ConfigError(f"the strategy {key} keeps no plan in a replay: choose one that has a bank.")
        plan = played.plan
        if html is not None:
            html.write_text(plan.as_html(), encoding="utf-8", errors="replace")
        if as_json:
            print_json(plan.manifest())
            return
        print(
            f"{plan.tokens:,} tokens instead of {plan.full_tokens:,}, {plan.memory_tokens:,} of them memory"
        )
        rows = [
            ["–" if d.step is None else str(d.step), one_line(", ".join(d.tools), 30), d.fate,
             "" if d.score is None else f"{d.score:.3f}", d.tokens, one_line(d.reason, 100)]
            for d in plan.decisions
        ]  # fmt: skip
        table(["step", "tools", "fate", "worth", "tokens", "why"], rows, right=(0, 3))
    if html is not None:
        print(f"wrote {html}")
