"""``memory-bank demo``: a recorded run of an agent, replayed step by step."""

from __future__ import annotations

from textwrap import fill

import typer

from memory_bank.cli.shared import one_line
from memory_bank.errors import EmbeddingError
from memory_bank.shipped import shipped_trace

_BAR = 24


def demo(
    embedding_model: str = typer.Option(
        "lexical", help="A model for similarity; lexical, which needs none, where it cannot be loaded."
    ),
) -> None:
    """Replay a recorded run of an agent: what each model call would have sent with memory, and without.

    Needs no model, key or network.
    """
    from memory_bank.audit.replay import replay_trace
    from memory_bank.audit.traces import Trace, is_turn, read_traces
    from memory_bank.config import Config, MemoryBankSettings
    from memory_bank.models.embedding import load_embedder

    trace = next(t for t in read_traces(shipped_trace("shop-refunds.jsonl")) if isinstance(t, Trace))
    try:
        load_embedder(embedding_model)
    except EmbeddingError as e:
        print(f"Lexical similarity is used instead: {one_line(str(e), 600)}")
        embedding_model = "lexical"
    settings = MemoryBankSettings(
        selection="evidence", history_budget=2000, refresh_after=0, embedding_model=embedding_model,
        observer_model="extractive",
    )  # fmt: skip
    # constructed without the environment: the demo shows the same on every machine
    config = Config.model_construct(
        default_strategy="memory_bank", memory_strategies={"memory_bank": settings}
    )
    outputs = [m for m in trace.messages if m["role"] == "tool"]
    print(fill(f"The task of a real agent: {trace.task}", 80))
    about = (
        f"It called the model {sum(map(is_turn, trace.messages))} times and got {len(outputs)} outputs of tools. "
        "Without memory each call sends all earlier ones again. With memory it sends the task, the newest outputs, "
        "and of the older ones a list and the lines that the next calls may need:"
    )
    print(f"\n{fill(about, 80)}\n\ncall   tokens without -> with memory")
    full = sent = broken = 0
    for step in replay_trace(trace, config, "memory_bank"):
        share = step.tokens / max(1, step.full_tokens)
        bar = ("#" * min(_BAR, round(_BAR * share))).ljust(_BAR, ".")
        print(f"{step.step:>4} {step.full_tokens:>16,} -> {step.tokens:<11,} {bar} {share:>4.0%}")
        full, sent, broken = full + step.full_tokens, sent + step.tokens, broken + step.broken_pairs
        assert step.state is not None
        records = {r.call_id: r for r in step.state.fact_store.get_many(list(step.state.steps))}
        pieces = step.plan.shown()["pieces"] if step.plan else []
    print(f"\nTogether {full:,} tokens without memory, {sent:,} with it: {1 - sent / full:.0%} saved.")
    print("In dollars, with prompt caching: `memory-bank audit FILE` on runs of your own.")
    if step.counter == "approximate":
        print("(Tokens are approximate: the vocabulary of tiktoken is not available.)")
    print(f"Tool calls without their result, or results without their call: {broken}.")
    tools = {r.trace_id: r.tool_name for r in records.values()}
    best = sorted(pieces, key=lambda piece: -piece["score"])[:3]
    print(f"\nThe last call saw {len(pieces)} lines of older outputs; rated highest:")
    for piece in best:
        print(f"  {tools[piece['trace_id']]}: {one_line(piece['text'], 55)}")
    largest = max(outputs, key=lambda m: len(m["content"]))
    record = records[largest["tool_call_id"]]
    stored, said = (
        (t or "").encode("utf-8", "surrogatepass") for t in (record.output_text, largest["content"])
    )
    same = stored == said
    print(
        f"\nNothing is lost: every output can be fetched again. The largest, of {record.tool_name}:\n"
        f"stored {len(stored):,} bytes, the tool said {len(said):,} bytes: "
        + ("identical, byte for byte." if same else "they differ.")
    )
    if not same:
        raise typer.Exit(1)
