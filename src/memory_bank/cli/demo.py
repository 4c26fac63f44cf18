"""``memory-bank demo``: a recorded run of an agent, replayed step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from memory_bank.cli.shared import one_line
from memory_bank.errors import EmbeddingError
from memory_bank.shipped import shipped_trace

if TYPE_CHECKING:
    from memory_bank import MemoryBankState
    from memory_bank.lab.replay import ReplayStep
    from memory_bank.lab.traces import Trace

_BAR = 24


def demo(
    embedding_model: str = typer.Option(
        "BAAI/bge-small-en-v1.5", help="Falls back to lexical when it cannot be loaded."
    ),
) -> None:
    """Replay a recorded run: tokens with and without memory, what was brought back, one exact fetch."""
    from memory_bank.config import Config, MemoryBankSettings
    from memory_bank.lab.replay import replay_trace
    from memory_bank.lab.traces import Trace, is_turn, read_traces
    from memory_bank.models.embedding import load_embedder

    trace = next(t for t in read_traces(shipped_trace("shop-refunds.jsonl")) if isinstance(t, Trace))
    try:
        load_embedder(embedding_model)
    except EmbeddingError as e:
        _say("[yellow]Falling back to the built-in lexical embedder:[/] ", one_line(str(e), 600))
        embedding_model = "lexical"
    settings = MemoryBankSettings(
        selection="evidence",
        history_budget=2000,
        refresh_after=0,
        embedding_model=embedding_model,
        observer_model="extractive",
    )
    # constructed without the environment: the demo shows the same on every machine
    config = Config.model_construct(
        default_strategy="memory_bank", memory_strategies={"memory_bank": settings}
    )
    calls = sum(len(m.get("tool_calls") or ()) for m in trace.messages)
    _say(f"\n[bold]{trace.id}[/]: {len(trace.messages)} messages of a recorded run, {calls} tool calls.")
    _say("Task: ", one_line(trace.task, 300))
    _say("Before each model call the prompt is rebuilt: anchor, what matters now, last interaction.\n")
    steps = []
    last = sum(map(is_turn, trace.messages))
    for step in replay_trace(trace, config, "memory_bank"):
        steps.append(step)
        _show(step)
        if step.step == last:  # its memory is dropped with the trace
            assert step.state is not None
            trace_id, tool, stored, said = _fetch(step.state, trace)
    full, rebuilt = sum(s.full_tokens for s in steps), sum(s.tokens for s in steps)
    saved = f"{1 - rebuilt / full:.0%} saved"
    approximate = steps[-1].counter == "approximate"
    how = " (approximate: the vocabulary of tiktoken is not available)" if approximate else ""
    _say(f"\n[bold]All steps together: {full:,} tokens in full, {rebuilt:,} rebuilt: {saved}[/]{how}.")
    _say(f"Broken call/result pairs in all rebuilt prompts: {sum(s.broken_pairs for s in steps)}.")
    _say(f"\nNothing is lost. The largest output, of [bold]{tool}[/], fetched by its trace_id {trace_id}:")
    same = stored == said
    verdict = "[green]identical, byte for byte[/]" if same else "[red]they differ[/]"
    _say(f"  stored {len(stored):,} bytes, the tool said {len(said):,} bytes: {verdict}.")
    if not same:
        raise typer.Exit(1)


def _say(markup: str, text: str = "") -> None:
    """Print a line of markup, followed by text that is not read as markup."""
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False).print(Text.from_markup(markup) + Text(text), soft_wrap=True)


def _show(step: ReplayStep) -> None:
    share = step.tokens / max(1, step.full_tokens)
    bar = ("#" * min(_BAR, round(_BAR * share))).ljust(_BAR, ".")
    _say(
        f"step {step.step:>2}  {step.full_tokens:>7,} -> {step.tokens:>6,} tokens  [cyan]{bar}[/] {share:>4.0%}"
    )
    for d in () if step.plan.unchanged else step.plan.decisions:
        if d.score is not None and str(d.fate) in ("kept", "shown in part"):
            line = f"step {d.step} {', '.join(d.tools)}: worth {d.score:.2f}, {d.reason}"
            _say("         [dim]<-[/] ", one_line(line, 150))


def _fetch(state: MemoryBankState, trace: Trace) -> tuple[str, str, bytes, bytes]:
    """The largest output: its id, its tool, what the bank stored, and what the trace's message says."""
    largest = max((m for m in trace.messages if m["role"] == "tool"), key=lambda m: len(m["content"]))
    records = state.fact_store.get_many(list(state.steps))
    found = next(r for r in records if r.call_id == largest["tool_call_id"])
    again = state.fact_store.get(found.trace_id)
    text = "" if again is None or again.output_text is None else again.output_text
    stored, said = (t.encode("utf-8", "surrogatepass") for t in (text, largest["content"]))
    return found.trace_id, found.tool_name, stored, said
