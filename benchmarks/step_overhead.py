"""What a step costs after n past steps: should be what is new, not what is old.

    python benchmarks/step_overhead.py [--out results.json]

An agent's conversation grows one tool call at a time (outputs of about 1.5 kB); each step calls
``apply_memory_bank_strategy`` with the lexical embedder and the extractive observer, in memory and on a
SQLite file (WAL, synchronous=FULL). The figures are medians over the 41 steps around n, and their ratio to
the steps around 30. ``evidence`` selects by evidence under 2,000 tokens; its 95th percentile is printed
too. ``re-parse`` is the straightforward way for comparison, in the same run: the same
strategy with a conversation that is read anew at every step.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from memory_bank import MemoryBankSettings, MemoryBankState, apply_memory_bank_strategy

POINTS = (30, 100, 300, 1000, 3000)
HALF_WINDOW = 20
LOCAL = {"embedding_model": "lexical", "observer_model": "extractive"}
SETTINGS = MemoryBankSettings(**LOCAL, retrieval_query="adaptive")
EVIDENCE = MemoryBankSettings(**LOCAL, selection="evidence", history_budget=2000)


def interaction(i: int, rng: random.Random) -> list[dict[str, Any]]:
    """One call and its result: an order with a dozen items, different every time."""
    items = [
        {
            "sku": f"SKU-{rng.randrange(10**5):05}",
            "quantity": rng.randrange(1, 9),
            "price": rng.randrange(100, 9999) / 100,
            "title": " ".join(rng.choices(WORDS, k=5)),
        }
        for _ in range(12)
    ]
    body = {"order_id": f"ORD-{i:06}", "customer_id": f"CUS-{rng.randrange(10**4)}", "items": items}
    arguments = json.dumps({"order_id": f"ORD-{i:06}"})
    call = {"id": f"call_{i}", "type": "function", "function": {"name": "get_order", "arguments": arguments}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{i}", "content": json.dumps(body)},
    ]


WORDS = ("red", "blue", "small", "steel", "cotton", "garden", "lamp", "chair", "table", "glass", "cable")


def run(
    where: str | Path,
    points: tuple[int, ...],
    *,
    reparse: bool = False,
    settings: MemoryBankSettings = SETTINGS,
    share: float = 0.5,
) -> dict[int, float]:
    """Seconds of a step around each point: the median, or another share of the steps that are no slower."""
    rng = random.Random(0)
    state = MemoryBankState("lexical", database=where)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You support a web shop."},
        {"role": "user", "content": "Check all orders of the week for wrong prices."},
    ]
    last = max(points) + HALF_WINDOW
    timed = {n: range(max(1, n - HALF_WINDOW), n + HALF_WINDOW + 1) for n in points}
    wanted = {i for window in timed.values() for i in window}
    seconds: dict[int, float] = {}
    for i in range(last + 1):
        messages += interaction(i, rng)
        if reparse and i not in wanted:
            continue  # the slow way is only walked where it is timed
        if reparse:
            state.conversation.reset()
        start = time.perf_counter()
        apply_memory_bank_strategy(messages, None, settings, state)
        seconds[i] = time.perf_counter() - start
    state.close()
    sorted_ = {n: sorted(seconds[i] for i in window if i in seconds) for n, window in timed.items()}
    return {n: times[min(len(times) - 1, int(share * len(times)))] for n, times in sorted_.items()}


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="also write the figures as JSON")
    parser.add_argument("--points", default=",".join(map(str, POINTS)))
    args = parser.parse_args()
    points = tuple(int(p) for p in args.points.split(","))
    with tempfile.TemporaryDirectory() as folder:
        run("", (points[0],))  # imports and caches
        results = {
            "in memory": run("", points),
            "SQLite file": run(Path(folder) / "bank.db", points),
            "evidence": run("", points, settings=EVIDENCE),
            "evidence, p95": run("", points, settings=EVIDENCE, share=0.95),
            "in memory, re-parse": run("", points, reparse=True),
        }
    print("| past steps | " + " | ".join(f"{k} (ms, ratio)" for k in results) + " |")
    print("|---|" + "---|" * len(results))
    for n in points:
        cells = [f"{r[n] * 1000:.2f} ({r[n] / r[points[0]]:.1f} ×)" for r in results.values()]
        print(f"| {n:,} | " + " | ".join(cells) + " |")
    if args.out:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()
        info = {
            "commit": commit,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "seed": 0,
        }
        args.out.write_text(
            json.dumps({**info, "settings": SETTINGS.model_dump(), "seconds": results}, indent=1)
        )


if __name__ == "__main__":
    main()
