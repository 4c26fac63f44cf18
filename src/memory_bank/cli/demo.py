"""``memory-bank demo``: a recorded run of an agent, replayed step by step."""

from __future__ import annotations

from typing import Any

import typer

from memory_bank.cli.output import one_line

DEMO_TRACE = "shop-refunds.jsonl"


def demo(
    embedding_model: str = typer.Option(
        "BAAI/bge-small-en-v1.5", help="Falls back to lexical where it cannot be had."
    ),
) -> None:
    """Replay a recorded run: tokens with and without memory, what was brought back, and one exact fetch."""
    from rich.console import Console
    from rich.markup import escape

    from memory_bank.config import Config, MemoryBankSettings
    from memory_bank.replay import replay_trace
    from memory_bank.shipped import shipped_trace
    from memory_bank.traces import Trace, read_traces

    console = Console(highlight=False)
    say = console.print
    trace = next(t for t in read_traces(shipped_trace(DEMO_TRACE)) if isinstance(t, Trace))
    embedder, why = _load(embedding_model)
    if why:
        say(
            f"[yellow]Falling back to the built-in lexical embedder:[/] {escape(one_line(why, 400))}",
            soft_wrap=True,
        )
    settings = MemoryBankSettings(
        embedding_model=embedder, observer_model="extractive", retrieval_query="adaptive"
    )
    config = Config(default_strategy="memory_bank", memory_strategies={"memory_bank": settings})
    say(
        f"\n[bold]{trace.id}[/]: {len(trace.messages)} messages of a recorded agent run, {_calls(trace)} tool calls."
    )
    say(f"Task: {one_line(trace.task, 300)}", soft_wrap=True)
    say(
        "Before each model call the prompt is rebuilt: anchor, what matters of past calls, last interaction.\n"
    )
    totals = [0, 0]
    fetched: list[Any] = []
    for step in replay_trace(
        trace, config, "memory_bank", on_close=lambda s: fetched.append(_fetch(s, trace))
    ):
        totals[0] += step.full_tokens
        totals[1] += step.tokens
        _show_step(say, step)
    approximate = (
        " (approximate: tiktoken's vocabulary is not at hand)" if step.plan.counter == "approximate" else ""
    )
    saved = 1 - totals[1] / totals[0]
    say(
        f"\n[bold]All steps together: {totals[0]:,} tokens in full, {totals[1]:,} rebuilt: {saved:.0%} saved[/]{approximate}."
    )
    say(f"Broken call/result pairs in any rebuilt prompt: {step.broken_pairs}.")
    trace_id, tool, stored, said = fetched[0]
    say(f"\nNothing is lost. The largest output, of [bold]{tool}[/], fetched by its trace_id {trace_id}:")
    same = stored == said
    say(f"  stored {len(stored):,} bytes, the tool said {len(said):,} bytes: " + (
        "[green]identical, byte for byte[/]." if same else "[red]they differ[/]."))  # fmt: skip
    if not same:
        raise typer.Exit(1)


def _load(name: str) -> tuple[str, str]:
    """The embedder's name and, where it had to be replaced, why."""
    from memory_bank.clients.embedding import load_embedder
    from memory_bank.errors import EmbeddingError

    try:
        load_embedder(name)
    except EmbeddingError as e:
        return "lexical", str(e)
    return name, ""


def _show_step(say: Any, step: Any) -> None:
    from rich.markup import escape

    width = 24
    share = step.tokens / max(1, step.full_tokens)
    filled = min(width, round(width * share))
    bar = "█" * filled + "·" * (width - filled)
    say(
        f"step {step.step:>2}  {step.full_tokens:>7,} → {step.tokens:>6,} tokens  [cyan]{bar}[/] {share:>4.0%}"
    )
    for decision in step.plan.decisions:
        if (
            decision.score is not None
            and str(decision.fate) in ("kept", "shown in part")
            and not step.plan.unchanged
        ):
            tools = ", ".join(decision.tools)
            line = f"step {decision.step} {tools}: similarity {decision.score:.2f}, {decision.reason}"
            say(f"         [dim]↩ {escape(one_line(line, 150))}[/]", soft_wrap=True)


def _calls(trace: Any) -> int:
    return sum(len(m.get("tool_calls") or ()) for m in trace.messages)


def _fetch(state: Any, trace: Any) -> tuple[str, str, bytes, bytes]:
    """The largest output: its id, its tool, what the bank stored, and what the trace's message says."""
    largest = max(
        (m for m in trace.messages if m["role"] == "tool"), key=lambda m: len(m["content"]), default=None
    )
    records = state.fact_store.get_many(list(state.steps))
    record = next(r for r in records if largest and r.call_id == largest["tool_call_id"])
    again = state.fact_store.get(record.trace_id)
    return record.trace_id, record.tool_name, again.output_text.encode(), largest["content"].encode()
