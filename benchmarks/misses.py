"""Counts the reasons why older evidence was missed, on recorded runs that the weights never saw.

    python benchmarks/misses.py toolathlon_dev=2000 livemcpbench=700 intercode_sql_gpt4=75
    python benchmarks/misses.py livemcpbench=600 --show 20

Each set is given as NAME=BUDGET (tokens for the memory text alone, chosen at every step). Prints bound recall
of older evidence, its share of the older history's tokens, and a Markdown table of the misses. ``--show N``
prints N of them with their reason and rank. ``{set}`` in ``--model`` stands for the set's name.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from memory_bank.lab.costs import Costs, named_counter
from memory_bank.lab.meter.matching import Reader
from memory_bank.lab.meter.needs import Need, environment_constants, needs_of
from memory_bank.lab.meter.recall import context_pages, recall
from memory_bank.lab.traces import TraceFiles
from memory_bank.lab.training.train import replay_steps
from memory_bank.selection.candidates import fold
from memory_bank.selection.index import EvidenceIndex
from memory_bank.selection.model import Model, load_model
from memory_bank.transcript.messages import content_text, read
from memory_bank.transcript.tokens import FRAME_TOKENS

ROOT = Path(__file__).resolve().parents[1]
REASONS = (
    "never a candidate",
    "among the first 100, but no room",
    "rank 100 to 400",
    "rank 400 to 1,500",
    "rank beyond 1,500",
    "present, but cut from what it belongs to",
    "wrongly thought visible in anchor or tail",
)
RANKS = (100, 400, 1500)


@dataclass(slots=True)
class Tally:
    """What became of the older values of a set."""

    needed: int = 0
    bound: int = 0
    tokens: int = 0
    history: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    misses: list[str] = field(default_factory=list)


def reason_of(need: Need, present: bool, index: EvidenceIndex, tail: int) -> tuple[str, int]:
    """Why a need is not bound, and the rank of its value (-1: it has none)."""
    if present:
        return REASONS[5], -1
    ids, values = index.tables.ids, index.tables.values
    numbers = [ids[f] for f in (fold(form.text) for form in need.forms) if f in ids]
    numbers = [n for n in numbers if values["record"][n] >= 0]
    if not numbers:
        return REASONS[0], -1
    eligible, chance = index.chances(tail)
    at = np.flatnonzero(np.isin(eligible, numbers))
    if not len(at):
        return REASONS[6], -1
    rank = int((chance > chance[at].max()).sum())
    return REASONS[1 + sum(rank >= limit for limit in RANKS)], rank


def tally(path: Path, budget: int, model: Model, limit: int | None) -> Tally:
    """Counts over a trace file."""
    traces = list(TraceFiles([path], lambda _: None))
    constants = environment_constants(traces)
    if limit and limit < len(traces):
        traces = traces[:: len(traces) // limit][:limit]
    counter = named_counter()
    total = Tally()
    for trace in traces:
        reader, costs = Reader(), Costs(counter)
        index = EvidenceIndex(model, counter.count_text)
        turns = {turn.position: turn for turn in needs_of(trace, constants, reader)}
        for step in replay_steps(trace.messages, index):
            turn = turns.get(step.position)
            if turn is None:
                continue
            before = trace.messages[: turn.position]
            asked = [read(m, "role") in ("system", "user", "developer") for m in before]
            begin = max((i for i, m in enumerate(before) if read(m, "tool_calls")), default=0)
            base = [m for i, m in enumerate(before) if asked[i] or i >= begin]
            history = sum(costs.of(m) for i, m in enumerate(before) if not asked[i] and i < begin)
            if not history:
                continue
            anchor = [content_text(read(m, "content")) for m, own in zip(before, asked, strict=True) if own]
            chosen = index.select(anchor=anchor, tail_interaction=step.tail, budget=budget)
            total.tokens += chosen.tokens + FRAME_TOKENS
            total.history += history
            needs = [n for n in turn.needs if n.born == "tool" and n.age > 1 and turn.kind == "call"]
            pages = context_pages([*base, {"role": "user", "content": chosen.text}], reader) if needs else []
            for need in needs:
                present, bound = recall(need, pages)
                total.needed += 1
                total.bound += bound
                if not bound:
                    reason, rank = reason_of(need, present, index, step.tail)
                    total.reasons[reason] += 1
                    total.misses.append(f"{trace.id}\t{reason}\t{rank}\t{need.kind}\t{need.value}")
    return total


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="+", metavar="NAME=BUDGET")
    parser.add_argument("--data-dir", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--model", default=str(ROOT / "benchmarks" / "models" / "no_{set}.json"))
    parser.add_argument("--limit", type=int, help="limit of traces of each set, evenly spread")
    parser.add_argument("--show", type=int, default=0, help="how many misses to print")
    return parser.parse_args()


def main() -> None:
    """Measure, count, print."""
    args = arguments()
    found: dict[str, Tally] = {}
    for item in args.sets:
        name, _, budget = item.partition("=")
        model = load_model(Path(args.model.format(set=name)))
        result = found[item] = tally(args.data_dir / f"{name}.jsonl.gz", int(budget), model, args.limit)
        share, cost = 100 * result.bound / result.needed, 100 * result.tokens / result.history
        print(f"{name}, {budget} tokens: {share:.1f} @ {cost:.1f}, {result.needed} values", flush=True)
        for line in result.misses[:: max(1, len(result.misses) // args.show)] if args.show else ():
            print(f"  {line}")
    print(f"\n| reason | {' | '.join(found)} |\n|---|{'---:|' * len(found)}")
    for reason in REASONS:
        print(f"| {reason} | {' | '.join(str(t.reasons[reason]) for t in found.values())} |")


if __name__ == "__main__":
    main()
